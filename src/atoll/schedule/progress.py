"""Can a step make progress with one staging segment per connection?

At run time there is no barrier between steps and no memory for a whole message: what a connection receives may wait
in one segment until its destination may be overwritten. A destination may be overwritten once all reads of it in the
same or an earlier step have been made. Waits for earlier steps cannot close a circle, since a connection carries its
messages in step order, so only the rows of one step can hold each other up: row B overwrites what row A still has to
read, while A's receiver cannot take A's bytes for the same reason.

An exchange of the same chunks in the same order always gets through, segment by segment. One that is shifted, in
which B's first chunk overwrites A's last, does not. Here such steps are played with one chunk of staging, and what
gets stuck is refused, so that every proven schedule runs with one segment on any transport.

Local moves are not staged at all: a rank makes them one after the other, in table order, each chunk as soon as its
destination is free. A swap of two chunks in one step is therefore refused too; it needs a scratch chunk.
"""

from __future__ import annotations

from collections import defaultdict

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
    source = (chunks.src * stride + chunks.src_chunk).tolist()
    target = (chunks.dst * stride + chunks.dst_chunk).tolist()
    messages: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for entry, key in enumerate(zip(chunks.src.tolist(), chunks.dst.tolist(), chunks.channel.tolist(), strict=True)):
        messages[key].append(entry)
    local: dict[int, list[int]] = {rank: [] for rank, dst, _ in messages if rank == dst}
    for (rank, dst, _), entries in messages.items():
        if rank == dst:
            local[rank] += entries
    staged_lanes = [entries for (src, dst, _), entries in messages.items() if src != dst]
    lanes = staged_lanes + [sorted(entries) for entries in local.values()]

    unread: dict[int, int] = defaultdict(int)
    for position in source:
        unread[position] += 1
    for entry, operand in enumerate(chunks.operand_chunk.tolist()):
        # An operand other than the destination is read when its row is applied.
        if operand != REPLACE and operand != chunks.dst_chunk[entry]:
            unread[int(chunks.dst[entry]) * stride + operand] += 1
    writers: dict[int, list[int]] = defaultdict(list)
    for entry in np.lexsort((chunks.row, chunks.src)).tolist():
        writers[target[entry]].append(entry)
    turn = {entry: place for queue in writers.values() for place, entry in enumerate(queue)}
    applied = dict.fromkeys(writers, 0)

    heads = [0] * len(lanes)  # next chunk of the lane to apply
    staged = [False] * len(lanes)  # whether it has been read
    moved = True
    while moved:
        moved = False
        for lane, entries in enumerate(lanes):
            while heads[lane] < len(entries):
                entry = entries[heads[lane]]
                if lane < len(staged_lanes) and not staged[lane]:
                    staged[lane] = True
                    unread[source[entry]] -= 1
                    moved = True
                operand = int(chunks.operand_chunk[entry])
                own_operand = operand not in (REPLACE, int(chunks.dst_chunk[entry]))
                operand_position = int(chunks.dst[entry]) * stride + operand
                unstaged = lane >= len(staged_lanes)
                own_reads = (own_operand and operand_position == target[entry]) + (
                    unstaged and source[entry] == target[entry]
                )
                pending = unread[target[entry]] - own_reads
                if pending or applied[target[entry]] != turn[entry]:
                    break
                if unstaged:
                    unread[source[entry]] -= 1
                if own_operand:
                    unread[operand_position] -= 1
                applied[target[entry]] += 1
                heads[lane] += 1
                staged[lane] = False
                moved = True
    for lane, entries in enumerate(lanes):
        if heads[lane] < len(entries):
            entry = entries[heads[lane]]
            raise ScheduleError(
                "rows wait for each other for ever",
                schedule=schedule.name,
                step=step,
                rank=int(chunks.dst[entry]),
                chunk=int(chunks.dst_chunk[entry]),
                expected="every exchange to get through with one staging segment a connection",
                got=f"row {int(chunks.row[entry])} overwriting what another row of the step has still to read",
                hint="Exchange the chunks in the same order on both sides, or receive into other chunks",
            )


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
