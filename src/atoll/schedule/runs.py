"""Rows as single chunks, and back: a row moves a run of chunks, a reading often wants them one by one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atoll.schedule.contract import IntArray
from atoll.schedule.table import COLUMNS, REPLACE, Columns


class Expanded(NamedTuple):
    """``columns`` with one row per chunk moved (``num_chunks`` is 1); ``place`` is the chunk's place in its row."""

    columns: Columns
    place: IntArray


def expand(rows: Columns) -> Expanded:
    """One row per chunk. ``columns.row`` still names the row of the table that the chunk belongs to."""
    counts = rows.num_chunks
    if counts.size == 0 or int(counts.max()) == 1:
        return Expanded(rows, np.zeros(len(counts), dtype=np.int64))
    total = int(counts.sum())
    index = np.arange(total, dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    wide = Columns(*(np.repeat(column, counts) for column in rows))
    operand = np.where(wide.operand_chunk == REPLACE, REPLACE, wide.operand_chunk + index)
    columns = wide._replace(
        src_chunk=wide.src_chunk + index,
        dst_chunk=wide.dst_chunk + index,
        operand_chunk=operand,
        num_chunks=np.ones(total, dtype=np.int64),
    )
    return Expanded(columns, index)


def coalesce(chunks: Columns) -> dict[str, IntArray]:
    """Join neighbouring single-chunk rows of one original row that are still one run; table columns as a mapping."""
    if len(chunks.row) == 0:
        return {name: np.zeros(0, dtype=np.int64) for name in COLUMNS}
    replace = chunks.operand_chunk == REPLACE
    continues = (
        (chunks.row[1:] == chunks.row[:-1])
        & (chunks.src_chunk[1:] == chunks.src_chunk[:-1] + 1)
        & (chunks.dst_chunk[1:] == chunks.dst_chunk[:-1] + 1)
        & ((chunks.operand_chunk[1:] == chunks.operand_chunk[:-1] + 1) | (replace[1:] & replace[:-1]))
        & (replace[1:] == replace[:-1])
    )
    starts = np.flatnonzero(np.r_[True, ~continues])
    columns = {name: getattr(chunks, name)[starts] for name in COLUMNS}
    columns["num_chunks"] = np.diff(np.r_[starts, len(chunks.row)])
    return columns
