"""From a schedule that works in place to the one that leaves its input alone.

The input gets memory of its own, behind everything else. A position is read from the input until it is first
written, and from where it was written afterwards; the first reduction into a position takes its operand from the
input, so that ``destination = input (op) received`` is one pass; output that nothing ever writes is moved there
locally in step 0. These identity moves are all that the two schedules differ in, as far as data goes.
"""

from __future__ import annotations

import numpy as np

from atoll.schedule.contract import IntArray
from atoll.schedule.runs import coalesce, expand
from atoll.schedule.table import COLUMNS, REPLACE, Columns, Schedule, check_structure

_NEVER = np.iinfo(np.int64).max


def out_of_place(schedule: Schedule) -> Schedule:
    """``schedule`` with separate input; returned as it is where no input shares memory with output or is written.

    Raises ``ScheduleError`` where a row names ranks or chunks that the header does not have.
    """
    check_structure(schedule)
    header = schedule.header
    terms = header.contract
    memory = np.asarray(header.memory_chunks, dtype=np.int64)
    base = np.cumsum(memory) - memory
    # Where the input's copy of a position lies, or -1 where the position holds no input.
    moved = np.full(int(memory.sum()), -1, dtype=np.int64)
    for rank in range(header.world_size):
        start = int(base[rank]) + header.input_offset[rank]
        size = terms.input_size(rank)
        moved[start : start + size] = memory[rank] + np.arange(size)

    chunks, _ = expand(schedule.columns())
    source = base[chunks.src] + chunks.src_chunk
    target = base[chunks.dst] + chunks.dst_chunk
    first_write = np.full(len(moved), _NEVER, dtype=np.int64)
    np.minimum.at(first_write, target, chunks.step)
    if not header.in_place and not np.any(first_write[moved >= 0] < _NEVER):
        return schedule

    def relocate(
        position: IntArray, chunk: IntArray, unwritten: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> IntArray:
        from_input = unwritten & (moved[position] >= 0)
        return np.where(from_input, moved[position], chunk)

    src_chunk = relocate(source, chunks.src_chunk, chunks.step <= first_write[source])
    reduces = chunks.operand_chunk != REPLACE
    operand_position = base[chunks.dst] + np.where(reduces, chunks.operand_chunk, 0)
    # Among several reductions into one position in its first step, only the first one meets the input.
    opens = np.zeros(len(target), dtype=bool)
    order = np.lexsort((chunks.row, chunks.src, chunks.step, target))
    opens[order] = np.r_[True, np.diff(target[order]) != 0] if len(order) else False
    running = (operand_position == target) & ~opens
    unwritten = reduces & ~running & (chunks.step <= first_write[operand_position])
    operand_chunk = relocate(operand_position, chunks.operand_chunk, unwritten)
    columns = coalesce(chunks._replace(src_chunk=src_chunk, operand_chunk=operand_chunk))

    moves = _identity_moves(schedule, base, moved, first_write)
    joined = {name: np.concatenate([moves[name], columns[name]]) for name in COLUMNS}
    input_sizes = [terms.input_size(rank) for rank in range(header.world_size)]
    new_header = type(header)(
        collective=header.collective,
        world_size=header.world_size,
        chunks=header.chunks,
        root=header.root,
        name=header.name,
        input_offset=header.memory_chunks,
        output_offset=header.output_offset,
        memory_chunks=tuple(size + extra for size, extra in zip(header.memory_chunks, input_sizes, strict=True)),
    )
    return Schedule(new_header, joined)


def _identity_moves(schedule: Schedule, base: IntArray, moved: IntArray, first_write: IntArray) -> dict[str, IntArray]:
    """Local moves, in step 0, of the output that is input and that nothing writes."""
    header = schedule.header
    rank_parts, position_parts = [], []
    for rank in range(header.world_size):
        start = int(base[rank]) + header.output_offset[rank]
        position = start + np.arange(header.contract.output_size(rank))
        untouched = position[(moved[position] >= 0) & (first_write[position] == _NEVER)]
        rank_parts.append(np.full(len(untouched), rank))
        position_parts.append(untouched)
    rank_of, position = np.concatenate(rank_parts), np.concatenate(position_parts)
    zero = np.zeros(len(rank_of), dtype=np.int64)
    return coalesce(
        Columns(
            step=zero,
            src=rank_of,
            dst=rank_of,
            src_chunk=moved[position],
            dst_chunk=position - base[rank_of],
            num_chunks=zero + 1,
            operand_chunk=zero + REPLACE,
            channel=zero,
            row=rank_of,  # moves of one rank may join into one run
        )
    )
