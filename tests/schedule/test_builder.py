"""Rows from numbers and arrays: broadcasting, refusals, and that nothing of the caller's is kept."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.prove import prove
from atoll.schedule.table import COLUMNS, Row

small = st.integers(0, 100)


def make(
    collective: str = "all_reduce", world_size: int = 4, chunks: int = 4, scratch_chunks: int = 0
) -> ScheduleBuilder:
    root = 1 if COLLECTIVES[collective].rooted else None
    return ScheduleBuilder(collective, world_size, chunks, name="built", root=root, scratch_chunks=scratch_chunks)


@given(st.integers(0, 5), st.lists(st.booleans(), min_size=8, max_size=8), st.booleans(), st.data())
def test_numbers_broadcast_against_arrays(count: int, scalar: list[bool], reduces: bool, data: st.DataObject) -> None:
    """Every argument is a number, or a list, tuple or array of one length; a row for each."""
    scalar[0] = scalar[0] or count == 0  # all numbers make one row
    rows = 1 if all(scalar) else count
    values = [
        data.draw(small) if is_scalar else data.draw(st.lists(small, min_size=count, max_size=count))
        for is_scalar in scalar
    ]
    given_as = [
        value if isinstance(value, int) else data.draw(st.sampled_from((list, tuple, np.array)))(value)
        if value else np.array(value, dtype=np.int64)
        for value in values
    ]  # fmt: skip
    builder = make()
    step, src, dst, src_chunk, dst_chunk, operand, num_chunks, channel = given_as
    if reduces:
        builder.reduce(
            step, src, dst, src_chunk, dst_chunk, operand_chunk=operand, num_chunks=num_chunks, channel=channel
        )
    else:
        builder.copy(step, src, dst, src_chunk, dst_chunk, num_chunks=num_chunks, channel=channel)
        values[5], scalar[5] = -1, True
        rows = 1 if all(scalar) else count
    schedule = builder.build()
    names = ("step", "src", "dst", "src_chunk", "dst_chunk", "operand_chunk", "num_chunks", "channel")
    expected = [
        {name: value if isinstance(value, int) else value[at] for name, value in zip(names, values, strict=True)}
        for at in range(rows)
    ]
    expected.sort(key=lambda row: row["step"])
    assert [row._asdict() for row in schedule.rows()] == [{name: row[name] for name in COLUMNS} for row in expected]


def test_defaults_are_the_same_position_and_itself_as_operand() -> None:
    builder = make()
    builder.copy(0, 0, 1, 3)
    builder.copy(1, 0, 1, 3, 2)
    builder.reduce(2, 0, 1, 3)
    builder.reduce(3, 0, 1, 3, 2)
    builder.reduce(4, 0, 1, 3, 2, operand_chunk=0)
    assert list(builder.build().rows()) == [
        Row(0, 0, 1, 3, 3, 1, -1, 0),
        Row(1, 0, 1, 3, 2, 1, -1, 0),
        Row(2, 0, 1, 3, 3, 1, 3, 0),
        Row(3, 0, 1, 3, 2, 1, 2, 0),
        Row(4, 0, 1, 3, 2, 1, 0, 0),
    ]


def test_rows_of_a_step_keep_the_order_of_calls() -> None:
    builder = make()
    for step, chunk in ((2, 0), (1, 1), (2, 2), (0, 3), (1, 0)):
        builder.copy(step, [0, 1], 2, chunk)
    assert [(row.step, row.src, row.src_chunk) for row in builder.build().rows()] == [
        (0, 0, 3), (0, 1, 3), (1, 0, 1), (1, 1, 1), (1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0), (2, 0, 2), (2, 1, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int16, np.int8, np.uint8, np.uint64])
def test_the_callers_arrays_may_be_reused(dtype: type) -> None:
    builder = make()
    chunk: npt.NDArray[Any] = np.arange(4).astype(dtype)
    for step in range(3):
        builder.copy(step, 0, 1, chunk)
        chunk[:] = chunk[::-1].copy()
    first = builder.build()
    assert first.column("src_chunk").tolist() == [0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3]
    # A builder may go on after build, and what it built stays.
    builder.copy(9, 3, 2, 0)
    assert len(first) == 12
    assert len(builder.build()) == 13


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [0, 1, 2], 0, 0), "do not fit together"),
        (([], [0, 1, 2], 0, 0), "do not fit together"),
        (([[0, 1], [2, 3]], 0, 1, 0), "one-dimensional"),
        (([[0]], 0, 1, 0), "one-dimensional"),
        ((0.0, 0, 1, 0), "whole numbers"),
        ((0, [0.5, 1.0], 1, 0), "whole numbers"),
        ((0, "0", 1, 0), "whole numbers"),
        ((0, 0, True, 0), "whole numbers"),
        ((0, 0, None, 0), "whole numbers"),
        ((0, 0, 1, 2**31), "below 2\\^31"),
        ((0, 0, 1, [0, 2**40]), "below 2\\^31"),
        ((0, 0, 1, -(2**31) - 1), "below 2\\^31"),
        ((0, 0, 1, np.array([2**63], dtype=np.uint64)), "below 2\\^31"),
        ((0, 0, 1, 10**30), "whole numbers"),
    ],
)
def test_what_is_no_row_is_refused(arguments: tuple[object, ...], message: str) -> None:
    """Above all numbers that no column can hold: cut to 32 bits they could name another chunk."""
    builder = make()
    for add in (builder.copy, builder.reduce):
        with pytest.raises(SpecError, match=message) as caught:
            add(*arguments)  # type: ignore[arg-type]
        assert str(caught.value).startswith("schedule built: ")
        assert len(str(caught.value)) < 400
    assert len(builder.build()) == 0


def test_a_bad_argument_in_a_large_call_is_named_briefly() -> None:
    builder = make()
    with pytest.raises(SpecError) as caught:
        builder.copy(0, np.arange(10**6), np.linspace(0, 1, 10**6), 0)
    assert "dst" in str(caught.value)
    assert "float64" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_scratch_and_output_follow_the_vector() -> None:
    builder = make(scratch_chunks=3)
    assert (builder.output, builder.scratch) == (0, 4)
    assert builder.build().header.memory_chunks == (7,) * 4
    builder = make("all_to_all", scratch_chunks=3)
    assert (builder.output, builder.scratch) == (4, 8)
    header = builder.build().header
    assert (header.input_offset, header.output_offset, header.memory_chunks) == ((0,) * 4, (4,) * 4, (11,) * 4)
    assert not header.in_place


@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
def test_regions_lie_where_the_contract_says(collective: str) -> None:
    header = make(collective, 3, 6).build().header
    per_block = 2
    blocks = tuple(rank * per_block for rank in range(3))
    assert header.input_offset == (blocks if collective in ("all_gather", "gather") else (0, 0, 0))
    if collective == "all_to_all":
        assert header.output_offset == (6, 6, 6)
    else:
        assert header.output_offset == (blocks if collective in ("reduce_scatter", "scatter") else (0, 0, 0))
        assert header.in_place
    assert (header.collective, header.name, header.world_size, header.chunks) == (collective, "built", 3, 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"collective": "all_redcue"}, "did you mean 'all_reduce'"),
        ({"world_size": 0}, "world of at least 1 rank"),
        ({"chunks": 0}, "at least 1 chunk"),
        ({"scratch_chunks": -1}, "scratch_chunks"),
        ({"root": 0}, "no root"),
        ({"collective": "reduce"}, "a root between 0 and 3"),
        ({"collective": "gather", "root": 4}, "a root between 0 and 3"),
        ({"collective": "scatter", "root": 0, "chunks": 6}, "multiple of 4"),
    ],
)
def test_bad_headers_are_refused_at_once(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"collective": "all_reduce", "world_size": 4, "chunks": 4, "name": "bad"} | change
    with pytest.raises(SpecError, match=message):
        ScheduleBuilder(**arguments)  # type: ignore[arg-type]


def test_an_empty_builder_builds_an_empty_schedule() -> None:
    schedule = make(world_size=1).build()
    assert (len(schedule), schedule.num_steps) == (0, 0)
    builder = make()
    builder.copy([], [], [], np.zeros(0, dtype=np.int64))
    assert len(builder.build()) == 0


def test_the_1024_rank_ring_costs_at_most_100_megabytes() -> None:
    """Two million rows, while they are collected, put together and held."""
    world_size = 1024
    tracemalloc.start()
    try:
        builder = ScheduleBuilder("all_reduce", world_size, world_size, name="ring")
        rank = np.arange(world_size)
        for step in range(world_size - 1):
            builder.reduce(step, rank, (rank + 1) % world_size, (rank - step) % world_size)
        for step in range(world_size - 1):
            builder.copy(world_size - 1 + step, rank, (rank + 1) % world_size, (rank + 1 - step) % world_size)
        schedule = builder.build()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(schedule) == 2_095_104
    assert schedule.size_bytes < 32e6
    assert peak_bytes < 100e6


def test_the_module_example_is_a_proven_all_gather() -> None:
    builder = ScheduleBuilder("all_gather", 4, chunks=4, name="ring")
    rank = np.arange(4)
    for step in range(3):
        builder.copy(step, rank, (rank + 1) % 4, (rank - step) % 4)
    assert repr(builder.build()) == "<Schedule ring: all_gather, 4 ranks, 12 rows>"
    prove(builder.build())
