"""What waits for what: edges between rows, derived once for the runtime and the simulator alike.

A row has two marks, in bytes from its start: how far its source has been **read**, at the sender, and how far its
destination has been **applied**, at the receiver. An edge says that a side of row ``after`` may not pass its chunk
``after_index + i`` before a side of row ``before`` has passed its chunk ``before_index + i``, for ``i`` below
``num_chunks``. Both ends of an edge are at one rank, since memory is a rank's own:

* read after write: a source or an operand holds what an earlier row applied;
* write after read: a destination is still to be read by a row of the same or an earlier step;
* write after write: a destination is still to be written by an earlier row, or by an earlier reduction of the step.

Edges that others imply are left out: a write waits for the reads since the last write, and only where there are
none for the last write itself. Chunks of one edge are contiguous on both sides, so each side's mark may follow the
other byte by byte. That *is* segmentation and pipelining; a table needs no transformation for it.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.schedule.contract import IntArray
from atoll.schedule.prove import ProvenSchedule
from atoll.schedule.runs import expand
from atoll.schedule.table import REPLACE

READ, APPLY = 0, 1


class Dependencies(msgspec.Struct, frozen=True, eq=False):
    """Edges as columns of one length, ordered by (after, after_side, before, before_side, after_index).

    ``before`` and ``after`` are row numbers of the table, the sides ``READ`` or ``APPLY``, the indices count chunks
    within each row.
    """

    rank: IntArray
    before: IntArray
    before_side: IntArray
    before_index: IntArray
    after: IntArray
    after_side: IntArray
    after_index: IntArray
    num_chunks: IntArray

    def __len__(self) -> int:
        return len(self.before)


def derive(proven: ProvenSchedule, rank: int | None = None) -> Dependencies:
    """All edges of the schedule, or those at one rank."""
    schedule = proven.schedule
    rows = schedule.columns() if rank is None else schedule.rows_of(rank)
    chunks, index = expand(rows)
    memory = np.asarray(schedule.header.memory_chunks, dtype=np.int64)
    base = np.cumsum(memory) - memory
    foreign = (chunks.operand_chunk != REPLACE) & (chunks.operand_chunk != chunks.dst_chunk)

    # Events in blocks: reads of sources, reads of operands, writes.
    position = np.concatenate(
        [
            base[chunks.src] + chunks.src_chunk,
            (base[chunks.dst] + chunks.operand_chunk)[foreign],
            base[chunks.dst] + chunks.dst_chunk,
        ]
    )
    owner = np.concatenate([chunks.src, chunks.dst[foreign], chunks.dst])
    row = np.concatenate([chunks.row, chunks.row[foreign], chunks.row])
    place = np.concatenate([index, index[foreign], index])
    writes = np.zeros(len(row), dtype=bool)
    writes[len(row) - len(chunks.row) :] = True
    side = np.full(len(row), APPLY, dtype=np.int64)
    side[: len(chunks.row)] = READ
    when = np.concatenate([chunks.step, chunks.step[foreign], chunks.step]) * 2 + writes
    src = np.concatenate([chunks.src, chunks.src[foreign], chunks.src])
    if rank is not None:
        mine = owner == rank
        position, owner, row, place = position[mine], owner[mine], row[mine], place[mine]
        writes, side, when, src = writes[mine], side[mine], when[mine], src[mine]

    order = np.lexsort((row, src, when, position))
    position, owner, row, place = position[order], owner[order], row[order], place[order]
    writes, side = writes[order], side[order]
    count = len(row)
    entry = np.arange(count)
    opens = np.r_[True, position[1:] != position[:-1]] if count else np.zeros(0, bool)
    group_start = np.maximum.accumulate(np.where(opens, entry, 0)) if count else entry
    # The last write before each event, and the next write after it, within the chunk's own history.
    last = np.maximum.accumulate(np.where(writes, entry, -1)) if count else entry
    previous = np.r_[-1, last[:-1]]
    previous = np.where(previous >= group_start, previous, -1)
    upcoming = np.minimum.accumulate(np.where(writes, entry, count)[::-1])[::-1] if count else entry
    group_end = np.r_[np.flatnonzero(opens)[1:], count][np.cumsum(opens) - 1] if count else entry

    is_read = ~writes
    raw = np.flatnonzero(is_read & (previous >= 0))
    war = np.flatnonzero(is_read & (upcoming < group_end))
    waw = np.flatnonzero(writes & (previous >= 0) & (previous == entry - 1))
    before = np.concatenate([previous[raw], war, previous[waw]])
    after = np.concatenate([raw, upcoming[war], waw])
    return _merge(owner, row, place, side, before, after)


def _merge(
    owner: IntArray, row: IntArray, place: IntArray, side: IntArray, before: IntArray, after: IntArray
) -> Dependencies:
    """Single-chunk edges between events joined into runs; edges of a row's side with itself dropped."""
    keep = (row[before] != row[after]) | (side[before] != side[after])
    before, after = before[keep], after[keep]
    order = np.lexsort((place[after], side[before], row[before], side[after], row[after]))
    before, after = before[order], after[order]
    if len(before) == 0:
        empty = np.zeros(0, dtype=np.int64)
        return Dependencies(*(empty,) * 8)
    key = (row[after], side[after], row[before], side[before])
    same: npt.NDArray[np.bool_] = np.logical_and.reduce([column[1:] == column[:-1] for column in key])
    joins = same & (np.diff(place[after]) == 1) & (np.diff(place[before]) == 1)
    starts = np.flatnonzero(np.r_[True, ~joins])
    first_before, first_after = before[starts], after[starts]
    return Dependencies(
        rank=owner[first_after],
        before=row[first_before],
        before_side=side[first_before],
        before_index=place[first_before],
        after=row[first_after],
        after_side=side[first_after],
        after_index=place[first_after],
        num_chunks=np.diff(np.r_[starts, len(before)]),
    )
