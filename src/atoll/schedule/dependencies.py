"""What waits for what: edges between rows, derived once for the runtime and the simulator alike.

A row has two marks, in bytes from its start: how far its source has been **read**, at the sender, and how far its
destination has been **applied**, at the receiver. An edge says that a side of row ``after`` may not pass its chunk
``after_index + i`` before a side of row ``before`` has passed its chunk ``before_index + i``, for ``i`` below
``num_chunks``. Both ends of an edge are at one rank, since memory is a rank's own:

* read after write: a source or an operand holds what an earlier row applied;
* write after read: a destination is still to be read by a row of the same or an earlier step;
* write after write: a destination is still to be written by an earlier row, or by an earlier reduction of the step.

Chunks of one edge are contiguous on both sides, so each side's mark may follow the other byte by byte: t bytes into
a chunk once the other is t bytes into its own, or past it. That *is* segmentation and pipelining; a table needs no
transformation for it. Rows of one lane (the messages of one connection; a rank's local moves) run in order besides.

Edges that others imply are left out. A write waits for the reads since the last write, and only where there are none
for the last write itself; that one has waited for all that came before, byte by byte. But scratch may hold chunks of
unequal length in turn: having waited for a short chunk says nothing of the end of a longer one that lay there before.
A write therefore also waits for what came before, past every chunk that may be shorter both than that and its own.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.schedule.contract import IntArray
from atoll.schedule.prove import ProvenSchedule
from atoll.schedule.runs import expand
from atoll.schedule.sorting import order_by
from atoll.schedule.table import REPLACE

READ, APPLY = 0, 1


class Dependencies(msgspec.Struct, frozen=True, eq=False):
    """Edges as columns of one length, ordered by (after, after_side, before, before_side, after_index - before_index,
    after_index).

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


def derive(proven: ProvenSchedule, rank: int | range | None = None) -> Dependencies:
    """All edges of the schedule, or those at one rank, or at the ranks of a range without gaps."""
    events = _events(proven, rank if rank is None or isinstance(rank, range) else range(rank, rank + 1))
    count = len(events.row)
    if count == 0:
        empty = np.zeros(0, dtype=np.int64)
        return Dependencies(*(empty,) * 8)
    entry = np.arange(count)
    opens = np.r_[True, events.position[1:] != events.position[:-1]]
    group_start = np.maximum.accumulate(np.where(opens, entry, 0))
    # The last write before each event, and the next write after it, within the chunk's own history.
    last = np.maximum.accumulate(np.where(events.writes, entry, -1))
    previous = np.r_[-1, last[:-1]]
    previous = np.where(previous >= group_start, previous, -1)
    upcoming = np.minimum.accumulate(np.where(events.writes, entry, count)[::-1])[::-1]
    group_end = np.r_[np.flatnonzero(opens)[1:], count][np.cumsum(opens) - 1]

    raw = np.flatnonzero(~events.writes & (previous >= 0))
    war = np.flatnonzero(~events.writes & (upcoming < group_end))
    waw = np.flatnonzero(events.writes & (previous >= 0) & (previous == entry - 1))
    far_before, far_after = _past_shorter_chunks(events, group_start, group_end)
    before = np.concatenate([previous[raw], war, previous[waw], far_before])
    after = np.concatenate([raw, upcoming[war], waw, far_after])
    return _merge(events, before, after)


class _Events(NamedTuple):
    """Reads of sources, reads of operands and writes, chunk by chunk, in the order of each position's history."""

    position: IntArray  # in the memory of all ranks
    owner: IntArray
    row: IntArray
    place: IntArray  # of the chunk within its row
    side: IntArray
    writes: npt.NDArray[np.bool_]
    shortness: IntArray  # of two chunks the one with the greater shortness is never longer, whatever the length


def _events(proven: ProvenSchedule, ranks: range | None) -> _Events:
    schedule, terms = proven.schedule, proven.contract
    rows = schedule.columns() if ranks is None else schedule.rows_of(ranks)
    chunks, place = expand(rows)
    memory = np.asarray(schedule.header.memory_chunks, dtype=np.int64)
    base = np.cumsum(memory) - memory
    foreign = np.flatnonzero((chunks.operand_chunk != REPLACE) & (chunks.operand_chunk != chunks.dst_chunk))
    number = proven.chunk_number[proven.row_start[chunks.row] + place].astype(np.int64)
    # The balanced partition gives the longer blocks first, and in each block the longer chunks.
    block, index = np.divmod(number, terms.chunks_per_block)
    shortness = index * terms.blocks + block

    def all_of(at_source: IntArray, at_operand: IntArray, at_target: IntArray) -> IntArray:
        return np.concatenate([at_source, at_operand[foreign], at_target])

    count = len(chunks.row)
    writes = np.zeros(2 * count + len(foreign), dtype=np.bool_)
    writes[count + len(foreign) :] = True
    side = np.full(len(writes), APPLY, dtype=np.int64)
    side[:count] = READ
    position = all_of(
        base[chunks.src] + chunks.src_chunk,
        base[chunks.dst] + chunks.operand_chunk,
        base[chunks.dst] + chunks.dst_chunk,
    )
    owner = all_of(chunks.src, chunks.dst, chunks.dst)
    row = all_of(chunks.row, chunks.row, chunks.row)
    when = all_of(chunks.step, chunks.step, chunks.step) * 2 + writes
    # Writes of one step go by source, then by row, as they are given; reads between two writes by anything.
    order = order_by(position - position.min(initial=0), when, all_of(chunks.src, chunks.src, chunks.src))
    if ranks is not None:  # what is at other ranks comes before and after
        order = order[np.count_nonzero(owner < ranks.start) : len(order) - np.count_nonzero(owner >= ranks.stop)]
    return _Events(
        position=position[order],
        owner=owner[order],
        row=row[order],
        place=all_of(place, place, place)[order],
        side=side[order],
        writes=writes[order],
        shortness=all_of(shortness, shortness, shortness)[order],
    )


def _past_shorter_chunks(events: _Events, group_start: IntArray, group_end: IntArray) -> tuple[IntArray, IntArray]:
    """Pairs of events, before and after, that only chunks lie between which may be shorter than both."""
    writes, shortness = events.writes, events.shortness
    longer = np.flatnonzero(writes[1:] & (shortness[1:] < shortness[:-1])) + 1
    longer = longer[group_start[longer] < longer]
    before: list[IntArray] = []
    after: list[IntArray] = []
    for start in np.unique(group_start[longer]).tolist():
        stop = int(group_end[start])
        # What the chunk of memory held in turn, as (shortness, first event, end): the reads, or the write if unread.
        # Kept are those that a later write may have to wait for, so shortness rises.
        held: list[tuple[int, int, int]] = []
        unread = start
        for write in (np.flatnonzero(writes[start:stop]) + start).tolist():
            if write > start:
                ended = int(shortness[write - 1])
                while held and held[-1][0] >= ended:
                    held.pop()
                held.append((ended, min(unread, write - 1), write))
                at = len(held) - 1  # which the write waits for anyway
                while at > 0 and held[at][0] > shortness[write]:
                    at -= 1
                    before.append(np.arange(held[at][1], held[at][2]))
                    after.append(np.full(held[at][2] - held[at][1], write))
            unread = write + 1
    if not before:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return np.concatenate(before), np.concatenate(after)


def _merge(events: _Events, before: IntArray, after: IntArray) -> Dependencies:
    """Single-chunk edges between events joined into runs; a row's edges with itself dropped, since it runs in order."""
    end = events.row * 2 + events.side
    before_end, after_end = end[before], end[after]
    keep = before_end >> 1 != after_end >> 1
    before, after, before_end, after_end = before[keep], after[keep], before_end[keep], after_end[keep]
    place = events.place[after]
    ahead = place - events.place[before]  # a row may meet another twice: by its operand and its target
    ahead -= ahead.min(initial=0)
    order = order_by(after_end, before_end, ahead, place)
    before_end, after_end, ahead, place = before_end[order], after_end[order], ahead[order], place[order]
    joins: npt.NDArray[np.bool_] = (
        (after_end[1:] == after_end[:-1])
        & (before_end[1:] == before_end[:-1])
        & (ahead[1:] == ahead[:-1])
        & (np.diff(place) == 1)
    )
    starts = np.flatnonzero(np.r_[True, ~joins][: len(order)])
    first = order[starts]
    before_end, after_end = before_end[starts], after_end[starts]
    return Dependencies(
        rank=events.owner[after[first]],
        before=before_end >> 1,
        before_side=before_end & 1,
        before_index=events.place[before[first]],
        after=after_end >> 1,
        after_side=after_end & 1,
        after_index=place[starts],
        num_chunks=np.diff(np.r_[starts, len(order)]),
    )
