"""Rows as single chunks, and joined again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.schedule.runs import coalesce, expand
from atoll.schedule.table import COLUMNS, REPLACE, Columns, Row

field = st.integers(0, 9)
rows = st.lists(
    st.builds(
        Row, step=field, src=field, dst=field, src_chunk=field, dst_chunk=field, num_chunks=st.integers(1, 5),
        operand_chunk=st.one_of(st.just(REPLACE), field), channel=field,
    ),
    max_size=8,
)  # fmt: skip


def columns_of(table: list[Row]) -> Columns:
    array = np.array(table, dtype=np.int64).reshape(-1, len(COLUMNS))
    named = {name: array[:, index] for index, name in enumerate(COLUMNS)}
    return Columns(row=np.arange(len(table)) + 100, **named)


def one_by_one(table: list[Row]) -> list[Row]:
    return [
        row._replace(
            src_chunk=row.src_chunk + index,
            dst_chunk=row.dst_chunk + index,
            operand_chunk=REPLACE if row.operand_chunk == REPLACE else row.operand_chunk + index,
            num_chunks=1,
        )
        for row in table
        for index in range(row.num_chunks)
    ]


@given(rows)
def test_expand_gives_every_chunk_a_row(table: list[Row]) -> None:
    chunks, place = expand(columns_of(table))
    assert [Row(*fields) for fields in zip(*(column.tolist() for column in chunks[:-1]), strict=True)] == one_by_one(
        table
    )
    assert place.tolist() == [index for row in table for index in range(row.num_chunks)]
    assert chunks.row.tolist() == [100 + number for number, row in enumerate(table) for _ in range(row.num_chunks)]


@given(rows)
def test_coalesce_undoes_expand(table: list[Row]) -> None:
    chunks, _ = expand(columns_of(table))
    joined = coalesce(chunks)
    assert set(joined) == set(COLUMNS)
    assert [Row(*fields) for fields in zip(*(joined[name].tolist() for name in COLUMNS), strict=True)] == table


@given(rows, st.integers(0, 2**32))
def test_coalesce_of_changed_addresses_still_moves_the_same_chunks(table: list[Row], seed: int) -> None:
    """Some sources and operands moved elsewhere: whatever still is a run is one row, and nothing else is."""
    chunks, _ = expand(columns_of(table))
    generator = np.random.default_rng(seed)
    chunks = chunks._replace(
        src_chunk=chunks.src_chunk + 50 * generator.integers(0, 2, len(chunks.row)),
        operand_chunk=np.where(
            chunks.operand_chunk == REPLACE,
            REPLACE,
            chunks.operand_chunk + 50 * generator.integers(0, 2, len(chunks.row)),
        ),
    )
    before = [Row(*fields) for fields in zip(*(column.tolist() for column in chunks[:-1]), strict=True)]
    joined = coalesce(chunks)
    after = [Row(*fields) for fields in zip(*(joined[name].tolist() for name in COLUMNS), strict=True)]
    assert one_by_one(after) == before
    owner = np.repeat(np.arange(len(after)), [row.num_chunks for row in after])
    for at in range(len(before) - 1):
        first, second = before[at], before[at + 1]
        grows = (
            second.src_chunk == first.src_chunk + 1
            and second.dst_chunk == first.dst_chunk + 1
            and (first.operand_chunk == REPLACE) == (second.operand_chunk == REPLACE)
            and (first.operand_chunk == REPLACE or second.operand_chunk == first.operand_chunk + 1)
        )
        same_row = chunks.row[at] == chunks.row[at + 1]
        assert (owner[at] == owner[at + 1]) == bool(same_row and grows)


def test_rows_that_continue_each_other_stay_two() -> None:
    """They may be two messages, and a proof counts rows."""
    table = [Row(0, 0, 1, 0, 4, 2, REPLACE, 0), Row(0, 0, 1, 2, 6, 1, REPLACE, 0)]
    joined = coalesce(expand(columns_of(table)).columns)
    assert joined["num_chunks"].tolist() == [2, 1]


def test_a_replace_and_a_reduction_with_chunk_0_stay_two() -> None:
    """-1 and 0 are neighbours as numbers only."""
    one_row = columns_of([Row(0, 0, 1, 3, 5, 1, REPLACE, 0), Row(0, 0, 1, 4, 6, 1, 0, 0)])
    joined = coalesce(one_row._replace(row=np.zeros(2, dtype=np.int64)))
    assert joined["num_chunks"].tolist() == [1, 1]
    assert joined["operand_chunk"].tolist() == [REPLACE, 0]
