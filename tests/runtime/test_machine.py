"""Rank machines against the definition: whatever the interleaving, the same bits as ``interpret``."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.algorithms.catalog import CATALOG, build
from atoll.errors import InternalError, SpecError
from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.machine import Machine
from atoll.runtime.program import LOCAL, compile_program, keeps_places, transfer_program
from atoll.runtime.reduction import reduction
from atoll.runtime.task import Task
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.interpret import interpret
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.partition import balanced, chunk_sizes
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.testing.world import play

ALGORITHMS = [(entry.collective, entry.name) for entry in CATALOG]


def proven(collective: str, name: str, world_size: int, in_place: bool) -> ProvenSchedule:
    root = world_size - 1 if COLLECTIVES[collective].rooted else None
    try:
        schedule = build(collective, name, world_size, root)
    except SpecError as error:
        pytest.skip(str(error))
    return prove(schedule if in_place else out_of_place(schedule))


def inputs_for(schedule: ProvenSchedule, length: int, seed: int) -> list[np.ndarray]:
    """Order-sensitive floats: sums of them differ with the order."""
    sizes = chunk_sizes(schedule.contract, length)
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-6, 7, size=(schedule.world_size, length))
    values = (rng.standard_normal((schedule.world_size, length)) * scale).astype(np.float32)
    return [
        values[rank, : int(sizes[schedule.contract.input_chunks(rank)].sum())] for rank in range(schedule.world_size)
    ]


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS, ids=lambda value: str(value))
@pytest.mark.parametrize("in_place", [True, False], ids=["in_place", "out_of_place"])
def test_every_algorithm_equals_the_reference_executor(collective: str, name: str, in_place: bool) -> None:
    for world_size in (1, 2, 3, 5):
        schedule = proven(collective, name, world_size, in_place)
        for length in (0, world_size, 7 * world_size, 5 * world_size + 3):
            if collective == "barrier":
                length = 1
            if collective == "all_to_all":
                length -= length % world_size
            values = inputs_for(schedule, length, seed=length + world_size)
            op = "max" if collective == "barrier" else "sum"
            want = interpret(schedule, values, np.maximum if collective == "barrier" else np.add)
            for seed in range(1 + world_size % 2):
                got = play(schedule, values, length, op=op, seed=seed, segment_bytes=16 * (seed + 1), wire_bytes=5)
                for rank in range(world_size):
                    np.testing.assert_array_equal(got[rank], want[rank], strict=True)


@settings(max_examples=60, deadline=None)
@given(
    algorithm=st.sampled_from(ALGORITHMS),
    world_size=st.integers(1, 9),
    length=st.integers(0, 90),
    in_place=st.booleans(),
    seed=st.integers(0, 2**32),
    segments=st.integers(1, 8),
    wire_bytes=st.integers(1, 70),
)
def test_any_interleaving_gives_the_same_bits(
    algorithm: tuple[str, str], world_size: int, length: int, in_place: bool, seed: int, segments: int, wire_bytes: int
) -> None:
    collective, name = algorithm
    root = seed % world_size if COLLECTIVES[collective].rooted else None
    try:
        schedule = build(collective, name, world_size, root)
    except SpecError:
        return
    if collective == "all_to_all":
        length -= length % world_size
    if collective == "barrier":
        length = 1
    ready = prove(schedule if in_place else out_of_place(schedule))
    values = inputs_for(ready, length, seed)
    op, ufunc = ("max", np.maximum) if collective == "barrier" else ("sum", np.add)
    want = interpret(ready, values, ufunc)
    got = play(ready, values, length, op=op, seed=seed, segment_bytes=16 * segments, wire_bytes=wire_bytes)
    for rank in range(world_size):
        np.testing.assert_array_equal(got[rank], want[rank], strict=True)


def test_operands_are_ordered_for_an_operation_that_does_not_commute() -> None:
    # max(0, -0) is the second operand or the first, and which one shows in the sign.
    schedule = proven("all_reduce", "ring", 3, in_place=False)
    values = [np.array([0.0, -0.0, 0.0]), np.array([-0.0, 0.0, -0.0]), np.array([-0.0, -0.0, 0.0])]
    want = interpret(schedule, values, np.maximum)
    got = play(schedule, values, 3, op="max", seed=1)
    for rank in range(3):
        assert np.array_equal(np.signbit(got[rank]), np.signbit(want[rank]))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float64", "complex64", "complex128"])
def test_dtypes_of_every_width(dtype: str) -> None:
    schedule = proven("all_reduce", "ring", 3, in_place=True)
    values = [np.random.default_rng(rank).integers(0, 2, 10).astype(dtype) for rank in range(3)]
    want = interpret(schedule, values)
    for got in play(schedule, values, 10, seed=3):
        np.testing.assert_array_equal(got, want[0], strict=True)


def test_bytes_on_the_lanes_are_the_programs_own_account() -> None:
    # Ring, N = 4, 10 elements of 4 bytes: chunks of 3 3 2 2; rank r sends every chunk but r + 1 twice over all steps.
    schedule = proven("all_reduce", "ring", 4, in_place=True)
    sizes = balanced(10, 4) * 4
    for rank in range(4):
        program = compile_program(schedule, rank, 10, 4)
        reduced = sum(sizes) - sizes[rank]
        gathered = sum(sizes) - sizes[(rank + 1) % 4]
        assert program.sent_bytes == reduced + gathered
        assert program.scratch_bytes == 0


def test_out_of_place_reduces_without_a_copy_and_without_scratch() -> None:
    program = compile_program(proven("all_reduce", "ring", 4, in_place=False), 1, 64, 4)
    assert program.scratch_bytes == 0
    assert not [lane for lane in program.lanes if lane.peer == LOCAL]


def test_a_schedule_that_keeps_chunks_in_foreign_places_wants_equal_chunks() -> None:
    builder = ScheduleBuilder("broadcast", 2, 2, name="swapped", root=0, scratch_chunks=1)
    # Rank 1 receives chunk 1 where chunk 0 belongs, and sorts it out through scratch.
    builder.copy(0, 0, 1, 1, 0)
    builder.copy(1, 1, 1, 0, builder.scratch)
    builder.copy(2, 0, 1, 0, 0)
    builder.copy(3, 1, 1, builder.scratch, 1)
    ready = prove(builder.build())
    assert not keeps_places(ready)
    values = [np.arange(6.0), np.zeros(6)]
    np.testing.assert_array_equal(play(ready, values, 6)[1], values[0])
    with pytest.raises(SpecError, match="multiple of 2, got 5"):
        compile_program(ready, 1, 5, 8)


def test_a_machine_refuses_memory_that_is_too_small_and_a_missing_operation() -> None:
    program = compile_program(proven("all_reduce", "ring", 2, in_place=False), 0, 8, 4)
    small, enough = np.zeros(4, np.uint8), np.zeros(32, np.uint8)
    nothing = np.zeros(0, np.uint8)
    with pytest.raises(InternalError, match="output has 4 bytes, the program needs 32"):
        Machine(program, (enough, small, nothing), np.dtype("f4"), reduction("sum", "f4"), lambda lane: enough)
    with pytest.raises(InternalError, match="was given no operation"):
        Machine(program, (enough, enough, nothing), np.dtype("f4"), None, lambda lane: enough)


def test_a_transfer_is_one_operation_from_one_rank_to_the_other() -> None:
    source, target = transfer_program(0, 5, 8), transfer_program(1, 5, 8)
    assert (source.sent_bytes, source.received_bytes) == (40, 0)
    assert (target.sent_bytes, target.received_bytes) == (0, 40)
    assert not transfer_program(0, 0, 8).operations


def test_a_story_says_what_is_left() -> None:
    program = compile_program(proven("all_reduce", "ring", 4, in_place=True), 1, 16, 4)
    memory = np.zeros(64, np.uint8)
    machine = Machine(
        program, (memory, memory, memory[:0]), np.dtype("f4"), reduction("sum", "f4"), lambda lane: memory
    )
    left = {(left.lane.peer, left.lane.incoming): left[1:] for left in machine.unfinished()}
    assert left == {(2, False): (0, 0, 0, 96), (0, True): (0, 0, 3, 96)}
    assert machine.bytes_moved() == 0


def words_of(machine: Machine) -> str:
    call = CallDescriptor(0, 0, "all_reduce", "float32", 16, "sum", None, "ring")
    return Task(call, machine, [None] * len(machine.program.lanes), range(4), 1.0, 1.0, False, None).progress()


@pytest.mark.parametrize("block_bytes", [None, 8])
def test_a_story_says_step_and_chunk_reached_and_the_block_where_there_are_several(block_bytes: int | None) -> None:
    program = compile_program(proven("all_reduce", "ring", 4, in_place=True), 1, 16, 4, block_bytes)
    memory, segment = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    machine = Machine(
        program, (memory, memory, memory[:0]), np.dtype("f4"), reduction("sum", "f4"), lambda lane: segment
    )
    (incoming,) = (lane for lane in program.lanes if lane.incoming)
    (outgoing,) = (lane for lane in program.lanes if not lane.incoming)
    told = [words_of(machine)]
    for operation in incoming.operations[:-1]:
        while views := machine.sends(outgoing.number):
            machine.sent(outgoing.number, len(views[0]))
        machine.received(incoming.number, operation.num_bytes)
        told.append(words_of(machine))
    blocks = ["block 0, ", "block 1, "] if block_bytes else [""]
    # Rank 0 begins with its own chunk's predecessor and hands on in each step what it got in the one before.
    places = [f"{block}step {step}, chunk {(3 - step) % 4}" for block in blocks for step in range(6)]
    size = block_bytes or 16
    left = [size * (len(places) - number) for number in range(len(places))]
    assert [words.split(";")[0] for words in told] == [
        f"{rest} bytes still to come from rank 0 ({place})" for rest, place in zip(left, places, strict=True)
    ]


def test_a_story_tells_tokens_from_chunks() -> None:
    program = compile_program(proven("broadcast", "binomial_tree", 2, in_place=True), 1, 4, 4)
    memory = np.zeros(16, np.uint8)
    machine = Machine(program, (memory, memory, memory), np.dtype("f4"), None, lambda lane: memory)
    assert words_of(machine) == (
        "1 byte still to come from rank 0 (the token at the end); 17 bytes still to go to rank 0 (step 0, chunk 0)"
    )
