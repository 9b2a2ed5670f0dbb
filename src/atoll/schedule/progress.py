"""Can a step make progress with one staging segment per connection, however small the segment?

At run time there is no barrier between steps and no memory for a whole message: what a connection receives may wait
in one segment until its destination may be overwritten. A destination may be overwritten once all reads of it in the
same or an earlier step have been made. Waits for earlier steps cannot close a circle, since a connection carries its
messages in step order, so only the rows of one step can hold each other up: row B overwrites what row A still has to
read, while A's receiver cannot take A's bytes for the same reason.

Vocabulary. A **lane** is what runs in order: the chunks of one message, or all local moves of a rank, which are made
one after the other in table order and are not staged. The chunk that a lane is at is its **head**.

A segment may be far smaller than a chunk, so a staged head has read next to nothing of its source. Heads that wait
only for each other still get through, segment by segment and side by side: an exchange of the same chunks in the same
order does. A head that waits for a chunk behind another lane's head does not move with it; so a shifted exchange, in
which B's first chunk overwrites A's last, is stuck. Nor do heads get through that wait for each other without a
segment between them, that is, for reads made only when a chunk is applied: operands and local moves. A swap of two
chunks of one rank in one step is therefore refused; it needs a scratch chunk.

Such steps are played here, the largest set of heads that move together at a time, and what gets stuck is refused, so
that every proven schedule runs with one segment of any size on any transport.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from atoll.errors import ScheduleError
from atoll.schedule.runs import expand
from atoll.schedule.table import REPLACE, Columns, Schedule


def check_progress(schedule: Schedule, step: int, rows: Columns) -> None:
    """Raise ``ScheduleError`` where the rows of one step (``Columns`` of it) wait for each other for ever."""
    stride = max(schedule.header.memory_chunks)
    if not _overwrites_what_it_reads(rows, stride):
        return
    chunks, _ = expand(rows)
    lanes = _lanes(chunks)
    waits = _Waits(chunks, stride)
    heads = dict.fromkeys(range(len(lanes)), 0)
    while heads:
        moving = waits.moving({lanes[lane][at] for lane, at in heads.items()})
        if not moving:
            entry = min(lanes[lane][at] for lane, at in heads.items())
            raise ScheduleError(
                "rows wait for each other for ever",
                schedule=schedule.name,
                step=step,
                rank=int(chunks.dst[entry]),
                chunk=int(chunks.dst_chunk[entry]),
                expected="every exchange to get through with one staging segment a connection, local moves without",
                got=f"row {int(chunks.row[entry])} overwriting what another row of the step has still to read",
                hint="Exchange the chunks in the same order on both sides, or receive into other chunks",
            )
        waits.done |= moving
        heads = {lane: at + (lanes[lane][at] in moving) for lane, at in heads.items()}
        heads = {lane: at for lane, at in heads.items() if at < len(lanes[lane])}


class _Waits:
    """What each single-chunk row waits for, and which rows are ``done``."""

    def __init__(self, chunks: Columns, stride: int) -> None:
        self.done: set[int] = set()
        self._target = (chunks.dst * stride + chunks.dst_chunk).tolist()
        # Who reads a position, and whether only when applied; a row's own reads do not hold it up.
        self._readers: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        local = (chunks.src == chunks.dst).tolist()
        for entry, position in enumerate((chunks.src * stride + chunks.src_chunk).tolist()):
            self._readers[position].append((entry, local[entry]))
        operands = (chunks.dst * stride + chunks.operand_chunk).tolist()
        for entry in np.flatnonzero(_foreign(chunks)).tolist():
            self._readers[operands[entry]].append((entry, True))
        writers: dict[int, list[int]] = defaultdict(list)
        for entry in np.lexsort((chunks.row, chunks.src)).tolist():
            writers[self._target[entry]].append(entry)
        self._previous_writer = {after: before for queue in writers.values() for before, after in pairwise(queue)}

    def moving(self, heads: set[int]) -> set[int]:
        """The largest set of heads that get through side by side, perhaps none."""
        waits = {head: self._pending(head) for head in heads}
        behind: dict[int, list[int]] = defaultdict(list)
        for head, pending in waits.items():
            for entry, _ in pending:
                behind[entry].append(head)
        stuck = [head for head, pending in waits.items() if any(entry not in waits for entry, _ in pending)]
        while True:
            while stuck:
                head = stuck.pop()
                if waits.pop(head, None) is not None:
                    stuck += behind[head]
            stuck = _in_circles(waits)
            if not stuck:
                return set(waits)

    def _pending(self, head: int) -> list[tuple[int, bool]]:
        """Rows that the head waits for, and whether for their being applied rather than read."""
        waits = [
            (entry, at_once)
            for entry, at_once in self._readers.get(self._target[head], ())
            if entry != head and entry not in self.done
        ]
        before = self._previous_writer.get(head)
        if before is not None and before not in self.done:
            waits.append((before, True))
        return waits


def _in_circles(waits: dict[int, list[tuple[int, bool]]]) -> list[int]:
    """Heads that wait in a circle of rows being applied, or behind one: no segment lies between them."""
    at_once = {head: {entry for entry, applied in pending if applied} for head, pending in waits.items()}
    behind: dict[int, list[int]] = defaultdict(list)
    for head, entries in at_once.items():
        for entry in entries:
            behind[entry].append(head)
    free = [head for head, entries in at_once.items() if not entries]
    while free:
        entry = free.pop()
        del at_once[entry]
        for head in behind[entry]:
            at_once[head].discard(entry)
            if not at_once[head]:
                free.append(head)
    return list(at_once)


def _lanes(chunks: Columns) -> list[list[int]]:
    lanes: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    keys = zip(chunks.src.tolist(), chunks.dst.tolist(), chunks.channel.tolist(), strict=True)
    for entry, (src, dst, channel) in enumerate(keys):
        lanes[src, dst, 0 if src == dst else channel].append(entry)
    return list(lanes.values())


def _overwrites_what_it_reads(rows: Columns, stride: int) -> bool:
    """Whether a row's target (or a local row's) overlaps what another row reads in the same step.

    Runs are compared as intervals, so that the usual step costs two sorts and no expansion.
    """
    reads = np.concatenate(
        [rows.src * stride + rows.src_chunk, (rows.dst * stride + rows.operand_chunk)[_foreign(rows)]]
    )
    read_ends = reads + np.concatenate([rows.num_chunks, rows.num_chunks[_foreign(rows)]])
    order = np.argsort(reads, kind="stable")
    starts, ends = reads[order], np.maximum.accumulate(read_ends[order])
    writes = rows.dst * stride + rows.dst_chunk
    # Of the reads that start before the write's end, one that ends after its start meets it.
    before = np.searchsorted(starts, writes + rows.num_chunks, side="left") - 1
    return bool(np.any((before >= 0) & (ends[np.maximum(before, 0)] > writes)))


def _foreign(rows: Columns) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = (rows.operand_chunk != REPLACE) & (rows.operand_chunk != rows.dst_chunk)
    return mask
