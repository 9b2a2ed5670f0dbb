"""Compiled programs: what both sides of a connection must agree on, whichever way each of them calls."""

import numpy as np
import pytest

from atoll.algorithms.catalog import CATALOG, build
from atoll.errors import SpecError
from atoll.runtime.program import INPUT, LOCAL, OUTPUT, Program, compile_program, transfer_program
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.schedule.runs import expand

Wire = dict[tuple[int, int, bool], list[int]]


def wires(proven: ProvenSchedule, rank: int) -> Wire:
    """The chunk numbers that cross each lane of a rank, in order: what the other end takes the bytes for."""
    chunks, place = expand(proven.schedule.rows_of(rank))
    numbers = proven.chunk_number[proven.row_start[chunks.row] + place]
    found: Wire = {}
    for src, dst, channel, number in zip(chunks.src, chunks.dst, chunks.channel, numbers, strict=True):
        if src != dst:
            key = (int(dst), int(channel), False) if src == rank else (int(src), int(channel), True)
            found.setdefault(key, []).append(int(number))
    return found


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: f"{entry.collective}-{entry.name}")
def test_ranks_in_place_and_out_of_place_speak_the_same_on_the_wire(entry: object) -> None:
    """One rank may call in place and its neighbour not: nothing in the header says so, and nothing needs to."""
    collective, name = entry.collective, entry.name  # type: ignore[attr-defined]
    compared = 0
    for world_size in (2, 3, 4, 6, 8):
        root = 1 if COLLECTIVES[collective].rooted else None
        try:
            schedule = build(collective, name, world_size, root)
        except SpecError:
            continue
        both = [prove(schedule), prove(out_of_place(schedule))]
        for rank in range(world_size):
            in_place, separate = (wires(proven, rank) for proven in both)
            assert in_place == separate, (world_size, rank)
            for (peer, channel, incoming), numbers in in_place.items():
                assert wires(both[1], peer)[rank, channel, not incoming] == numbers
            compared += len(in_place)
    assert compared


def total(program: Program, incoming: bool) -> dict[tuple[int, int], int]:
    return {
        (lane.peer, lane.channel): lane.num_bytes
        for lane in program.lanes
        if lane.incoming is incoming and lane.peer != LOCAL
    }


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 7, 1000])
def test_both_ends_of_every_lane_count_the_same_bytes_and_empty_lanes_are_none(length: int) -> None:
    for name in ("ring", "direct", "halving_doubling", "double_binary_tree"):
        proven = prove(build("all_reduce", name, 5))
        programs = [compile_program(proven, rank, length, 8) for rank in range(5)]
        for rank, program in enumerate(programs):
            assert all(lane.num_bytes > 0 for lane in program.lanes if length)
            for lane in program.lanes:
                assert lane.num_bytes + lane.token_bytes == sum(op.num_bytes for op in lane.operations)
            assert all(operation.num_bytes > 0 for operation in program.operations)
            for (peer, channel), num_bytes in total(program, incoming=False).items():
                assert total(programs[peer], incoming=True)[rank, channel] == num_bytes
        if length == 0:
            # Three rounds of tokens, to and from the ranks 1, 2 and 4 away.
            for rank, program in enumerate(programs):
                ends = sorted((lane.incoming, (lane.peer - rank) % 5, lane.token_bytes) for lane in program.lanes)
                assert ends == [(False, 1, 1), (False, 2, 1), (False, 4, 1), (True, 1, 1), (True, 3, 1), (True, 4, 1)]
            assert not any(program.payload_operations for program in programs)


def test_scratch_has_room_for_the_longest_chunk_that_ever_lies_there() -> None:
    builder = ScheduleBuilder("broadcast", 2, 3, name="through scratch", root=0, scratch_chunks=1)
    for chunk in (2, 0, 1):  # 10 elements: chunks of 4, 3 and 3
        builder.copy(2 * chunk if chunk else 10, 0, 1, chunk, builder.scratch)
        builder.copy(2 * chunk + 1 if chunk else 11, 1, 1, builder.scratch, chunk)
    proven = prove(builder.build())
    assert chunk_sizes(proven.contract, 10).tolist() == [4, 3, 3]
    program = compile_program(proven, 1, 10, 8)
    assert program.scratch_bytes == 4 * 8 + 2  # and two tokens
    # A shorter chunk after a longer one frees only what it covers; each write waits for the move out before it.
    incoming = next(lane for lane in program.lanes if lane.incoming)
    waits = {op.num_bytes: [(before, num_bytes) for before, _, _, num_bytes in op.guards] for op in incoming.operations}
    assert any(waits.values())
    assert all(0 < num_bytes <= 32 for guards in waits.values() for _, num_bytes in guards)


def test_chunks_that_follow_each_other_in_all_memory_are_one_operation() -> None:
    proven = prove(build("all_gather", "direct", 4))
    program = compile_program(proven, 2, 40, 4)
    assert all(len(lane.operations) == 1 for lane in program.lanes)
    assert program.sent_bytes == program.received_bytes == 3 * 40


def test_offsets_beyond_two_gibibytes_are_exact() -> None:
    length = 5 * (1 << 30) // 4 + 3
    program = compile_program(prove(build("all_reduce", "ring", 2)), 1, length, 4)
    sizes = chunk_sizes(prove(build("all_reduce", "ring", 2)).contract, length)
    assert program.sent_bytes == int(sizes.sum()) * 4
    assert max(op.source[1] for op in program.operations if op.source) == int(sizes[0]) * 4 > 1 << 31
    assert all(type(op.num_bytes) is int for op in program.operations)


def test_input_that_shares_memory_with_output_has_the_outputs_name() -> None:
    in_place = compile_program(prove(build("all_reduce", "ring", 3)), 0, 9, 4)
    assert {op.source[0] for op in in_place.operations if op.source} == {OUTPUT}
    separate = compile_program(prove(out_of_place(build("all_reduce", "ring", 3))), 0, 9, 4)
    assert INPUT in {op.source[0] for op in separate.operations if op.source}
    assert not [op for op in separate.operations if op.target and op.target[0] == INPUT]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_transfer_of_nothing_has_no_lanes(rank: int) -> None:
    program = transfer_program(rank, 0, 8)
    assert not program.lanes
    assert not program.operations
    assert np.sum([program.sent_bytes, program.received_bytes]) == 0
