"""The schedule that leaves its input alone: proven again, the same bits, and no needless move."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import exchanges, mix, random_inputs, random_schedule

from atoll.errors import ScheduleError
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.interpret import interpret
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import prove
from atoll.schedule.table import REPLACE, Header, Row, Schedule


@st.composite
def in_place_schedules(draw: st.DrawFn) -> Schedule:
    rng = random.Random(draw(st.integers(0, 2**32)))
    if draw(st.integers(0, 4)) == 0:
        return exchanges(rng, draw(st.integers(0, 2)))
    return random_schedule(rng, draw(st.sampled_from(sorted(COLLECTIVES))), draw(st.integers(1, 5)))


def input_places(header: Header) -> set[tuple[int, int]]:
    terms = header.contract
    return {
        (rank, header.input_offset[rank] + place)
        for rank in range(header.world_size)
        for place in range(terms.input_size(rank))
    }


def written_places(schedule: Schedule) -> set[tuple[int, int]]:
    return {(row.dst, row.dst_chunk + index) for row in schedule.rows() for index in range(row.num_chunks)}


def is_proven(schedule: Schedule) -> bool:
    try:
        prove(schedule)
    except ScheduleError as error:
        if "wait for each other" not in error.what:
            raise
        return False
    return True


@settings(max_examples=300, deadline=None)
@given(in_place_schedules(), st.data())
def test_proven_again_with_the_same_bits_and_the_input_left_alone(schedule: Schedule, data: st.DataObject) -> None:
    if not is_proven(schedule):
        return
    derived = out_of_place(schedule)
    proven = prove(derived)
    assert not derived.header.in_place
    assert not written_places(derived) & input_places(derived.header)
    equal = schedule.header.collective == "all_to_all"
    length = data.draw(st.integers(0, 4)) * (schedule.world_size if equal else 3)
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    inputs = random_inputs(schedule, chunk_sizes(schedule.header.contract, length), rng)
    for ours, theirs in zip(interpret(proven, inputs, mix), interpret(prove(schedule), inputs, mix), strict=True):
        assert ours.tolist() == theirs.tolist()


@settings(max_examples=200, deadline=None)
@given(in_place_schedules())
def test_differs_in_identity_moves_and_addresses_only(schedule: Schedule) -> None:
    """Chunk by chunk the same destinations in the same order; besides, only local moves of input to output."""
    derived = out_of_place(schedule)
    written = written_places(schedule)
    moves = [row for row in derived.rows() if (row.dst, row.dst_chunk) not in written]
    others = [row for row in derived.rows() if (row.dst, row.dst_chunk) in written]
    assert moved_chunks(others) == moved_chunks(list(schedule.rows()))
    inputs = input_places(derived.header)
    for move in moves:
        assert (move.step, move.src, move.operand_chunk, move.channel) == (0, move.dst, REPLACE, 0)
        assert {(move.src, move.src_chunk + index) for index in range(move.num_chunks)} <= inputs


def moved_chunks(rows: list[Row]) -> list[tuple[int, int, int, int, bool, int]]:
    return [
        (row.step, row.src, row.dst, row.dst_chunk + index, row.operand_chunk == REPLACE, row.channel)
        for row in rows
        for index in range(row.num_chunks)
    ]


@settings(max_examples=200, deadline=None)
@given(in_place_schedules())
def test_deriving_twice_is_deriving_once(schedule: Schedule) -> None:
    derived = out_of_place(schedule)
    assert out_of_place(derived) is derived


@settings(max_examples=200, deadline=None)
@given(in_place_schedules())
def test_what_leaves_its_input_alone_already_is_returned_as_it_is(schedule: Schedule) -> None:
    alone = not schedule.header.in_place and not written_places(schedule) & input_places(schedule.header)
    assert (out_of_place(schedule) is schedule) == alone


def test_the_first_reduction_takes_its_operand_from_the_input() -> None:
    """One pass: destination = own input (op) received. Later ones go on with the running value."""
    builder = ScheduleBuilder("reduce", 4, chunks=1, name="direct", root=0)
    builder.reduce(0, [3, 1], 0, 0)
    builder.reduce(1, 2, 0, 0)
    derived = out_of_place(builder.build())
    assert derived.header.input_offset == (1, 1, 1, 1)
    assert derived.header.output_offset == (0, 0, 0, 0)
    assert list(derived.rows()) == [
        Row(0, 3, 0, 1, 0, 1, 0, 0),  # of the two in step 0 rank 1's comes first
        Row(0, 1, 0, 1, 0, 1, 1, 0),
        Row(1, 2, 0, 1, 0, 1, 0, 0),
    ]
    prove(derived)


def test_a_read_in_the_step_of_the_first_write_is_of_the_input() -> None:
    builder = ScheduleBuilder("all_reduce", 2, chunks=1, name="exchange")
    builder.reduce(0, [0, 1], [1, 0], 0)
    assert list(out_of_place(builder.build()).rows()) == [Row(0, 0, 1, 1, 0, 1, 1, 0), Row(0, 1, 0, 1, 0, 1, 1, 0)]


def test_a_run_is_split_where_its_sources_part() -> None:
    """Rank 1 passes on four chunks, of which two were received and two are its input."""
    builder = ScheduleBuilder("all_gather", 2, chunks=8, name="run", scratch_chunks=4)
    builder.copy(0, 0, 1, 1, 1)
    builder.copy(0, 0, 1, 0, 0)
    builder.copy(0, 0, 1, 2, 2, num_chunks=2)
    builder.copy(1, 1, 0, 2, 8, num_chunks=4)
    builder.copy(1, 1, 0, 4, 4, num_chunks=4)
    derived = out_of_place(builder.build())
    rows = [row for row in derived.rows() if row.step == 1]
    assert rows == [
        Row(1, 1, 0, 2, 8, 2, REPLACE, 0),
        Row(1, 1, 0, 12, 10, 2, REPLACE, 0),
        Row(1, 1, 0, 12, 4, 4, REPLACE, 0),
    ]
    # What nothing writes is moved: each rank's own block, as one run.
    moves = [row for row in derived.rows() if row.src == row.dst]
    assert moves == [Row(0, 0, 0, 12, 0, 4, REPLACE, 0), Row(0, 1, 1, 12, 4, 4, REPLACE, 0)]
    prove(derived)


def test_an_all_to_all_that_rotates_its_input_leaves_it_alone_afterwards() -> None:
    """Input and output do not overlap, and yet the input is written: it is scratch to the algorithm."""
    builder = ScheduleBuilder("all_to_all", 2, chunks=2, name="overwrites")
    builder.copy(0, [0, 1], [0, 1], [0, 1], builder.output + np.arange(2))
    builder.copy(1, [0, 1], [1, 0], [1, 0])  # over the own block, which is moved already
    builder.copy(2, [0, 1], [0, 1], [0, 1], builder.output + np.array([1, 0]))
    schedule = builder.build()
    prove(schedule)
    assert not schedule.header.in_place
    derived = out_of_place(schedule)
    prove(derived)
    assert not written_places(derived) & input_places(derived.header)
    assert list(derived.rows()) == [
        Row(0, 0, 0, 4, 2, 1, REPLACE, 0),
        Row(0, 1, 1, 5, 3, 1, REPLACE, 0),
        Row(1, 0, 1, 5, 1, 1, REPLACE, 0),
        Row(1, 1, 0, 4, 0, 1, REPLACE, 0),
        Row(2, 0, 0, 0, 3, 1, REPLACE, 0),
        Row(2, 1, 1, 1, 2, 1, REPLACE, 0),
    ]


def test_a_rank_without_input_keeps_none() -> None:
    builder = ScheduleBuilder("broadcast", 3, chunks=2, name="broadcast", root=1)
    builder.copy(0, 1, [0, 2], 0, num_chunks=2)
    header = out_of_place(builder.build()).header
    assert header.memory_chunks == (2, 4, 2)
    assert header.input_offset == (2, 2, 2)
    assert input_places(header) == {(1, 2), (1, 3)}


def test_the_name_and_the_contract_stay() -> None:
    builder = ScheduleBuilder("scatter", 3, chunks=6, name="flat", root=2)
    builder.copy(0, 2, [0, 1], [0, 2], num_chunks=2)
    schedule = builder.build()
    derived = out_of_place(schedule)
    assert derived.name == "flat"
    assert derived.header.contract == schedule.header.contract
    prove(derived)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 8])
def test_a_ring_costs_no_row_more(world_size: int) -> None:
    """Reductions take their operand from the input, and all of the output is written: no identity move is left."""
    builder = ScheduleBuilder("all_reduce", world_size, world_size, name="ring")
    rank = np.arange(world_size)
    for step in range(world_size - 1):
        builder.reduce(step, rank, (rank + 1) % world_size, (rank - step) % world_size)
    for step in range(world_size - 1):
        builder.copy(world_size - 1 + step, rank, (rank + 1) % world_size, (rank + 1 - step) % world_size)
    schedule = builder.build()
    assert len(out_of_place(schedule)) == len(schedule) + (world_size == 1)


def test_a_row_outside_memory_is_named() -> None:
    builder = ScheduleBuilder("all_reduce", 2, chunks=1, name="outside")
    builder.copy(0, 0, 1, 5)
    with pytest.raises(ScheduleError, match=r"outside: row 0 .* a run inside the sender's memory"):
        out_of_place(builder.build())
