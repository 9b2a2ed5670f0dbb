"""The promise of every proof: one staging segment for each incoming connection is enough, however small it is."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import proven_schedules

from atoll.errors import InternalError
from atoll.runtime.program import LOCAL, compile_program, keeps_places
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.interpret import interpret
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.testing.world import play


def order_sensitive(schedule: ProvenSchedule, length: int, rng: random.Random) -> list[np.ndarray]:
    sizes = chunk_sizes(schedule.contract, length)
    return [
        np.array(
            [
                rng.uniform(-1, 1) * 10.0 ** rng.randint(-9, 9)
                for _ in range(sizes[schedule.contract.input_chunks(r)].sum())
            ]
        )
        for r in range(schedule.world_size)
    ]


@settings(max_examples=120)
@given(schedule=proven_schedules(), per_chunk=st.integers(0, 5), odd=st.integers(0, 7), seed=st.integers(0, 2**32))
def test_every_proven_schedule_runs_with_one_segment_of_two_elements(
    schedule: ProvenSchedule, per_chunk: int, odd: int, seed: int
) -> None:
    """Chunks of unequal sizes, also in scratch, which keeps room for the largest; wires that hold half an element."""
    rng = random.Random(seed)
    collective = schedule.header.collective
    length = per_chunk * schedule.header.chunks
    if keeps_places(schedule) and collective != "all_to_all":
        length += odd
    if collective == "barrier":
        length = 1
    values = order_sensitive(schedule, length, rng)
    op, ufunc = ("max", np.maximum) if collective == "barrier" else ("sum", np.add)
    want = interpret(schedule, values, ufunc)
    got = play(schedule, values, length, op=op, seed=seed, segment_bytes=16, wire_bytes=rng.choice([1, 4, 24]))
    for rank in range(schedule.world_size):
        np.testing.assert_array_equal(got[rank], want[rank], strict=True)


def test_memory_is_one_segment_a_connection_and_the_scratch_that_is_touched() -> None:
    schedule = prove(ring(4))
    for rank in range(4):
        program = compile_program(schedule, rank, 4000, 8)
        incoming = [lane for lane in program.lanes if lane.incoming]
        assert len(incoming) == 1
        assert program.scratch_bytes == 0
        assert not [lane for lane in program.lanes if lane.peer == LOCAL]


def test_a_machine_that_needed_more_than_its_segment_would_be_reported_with_who_waits() -> None:
    """The world of these tests can tell: over wires that hold nothing, nobody gets anywhere."""
    schedule = prove(ring(2))
    values = [np.ones(2), np.ones(2)]
    with pytest.raises(InternalError, match="no machine can go on"):
        play(schedule, values, 2, segment_bytes=16, wire_bytes=0)


def ring(world_size: int):  # type: ignore[no-untyped-def]
    builder = ScheduleBuilder("all_reduce", world_size, world_size, name="ring")
    rank = np.arange(world_size)
    for step in range(world_size - 1):
        builder.reduce(step, rank, (rank + 1) % world_size, (rank - step) % world_size)
    for step in range(world_size - 1):
        builder.copy(world_size - 1 + step, rank, (rank + 1) % world_size, (rank + 1 - step) % world_size)
    return builder.build()
