"""When do two schedules mean the same? Where nobody outside a rank could tell them apart, bit for bit.

Two tables may differ in how steps are numbered, in how runs are cut into rows, in where scratch lies and in moves
within a rank, and still be the same algorithm. They are here called equal when all of this is:

* the contract, and whether they work in place;
* on every connection (source, destination, channel) the sequence of values that cross it, chunk by chunk, where the
  chunks of one message have no order among themselves;
* the value of every output chunk.

A *value* is an expression: an input chunk of a rank, or an operation on two values in the order in which the table
has it applied (lower lowest contributor first). Equal expressions are equal bits for every operation and dtype;
nothing is assumed to be commutative or associative. Names of schedules do not count.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from atoll.schedule.prove import ProvenSchedule
from atoll.schedule.runs import expand
from atoll.schedule.table import REPLACE

Lane = tuple[int, int, int]


def difference(one: ProvenSchedule, other: ProvenSchedule) -> str | None:
    """The first thing that tells the two schedules apart, as a sentence; ``None`` where nothing does."""
    if one.contract != other.contract:
        return f"the contracts differ: {_contract(one)} and {_contract(other)}"
    if one.header.in_place != other.header.in_place:
        return "one works in place, the other does not"
    # One table of expressions for both, so that equal numbers are equal expressions.
    expressions: dict[tuple[int, ...], int] = {}
    lanes, outputs = _values(one, expressions)
    other_lanes, other_outputs = _values(other, expressions)
    for lane in sorted(lanes.keys() | other_lanes.keys()):
        how = _lane_difference(lanes[lane], other_lanes[lane])
        if how:
            return f"the connection from rank {lane[0]} to rank {lane[1]} on channel {lane[2]} differs: {how}"
    for rank, (here, there) in enumerate(zip(outputs, other_outputs, strict=True)):
        if here != there:
            at = next(n for n, (a, b) in enumerate(zip(here, there, strict=True)) if a != b)
            return f"output chunk {at} of rank {rank} holds another value"
    return None


class _Lane:
    """What crosses a connection: values in order, and after how many of them a message ends."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.ends: list[int] = []
        self._step = -1

    def add(self, step: int, value: int) -> None:
        if self._step == step:
            self.ends[-1] += 1
        else:
            self.ends.append(len(self.values) + 1)
        self._step = step
        self.values.append(value)


def _lane_difference(here: _Lane, there: _Lane) -> str:
    if len(here.values) != len(there.values):
        return f"{len(here.values)} and {len(there.values)} chunks cross it"
    # What is one message in one table may be several in the other: only where both end one is there an order.
    start = 0
    for end in sorted(set(here.ends) & set(there.ends)):
        if sorted(here.values[start:end]) != sorted(there.values[start:end]):
            return f"other values among its chunks {start} to {end - 1}"
        start = end
    return ""


def _contract(proven: ProvenSchedule) -> str:
    terms = proven.contract
    root = "" if terms.root is None else f", root {terms.root}"
    return f"{terms.collective.name} of {terms.chunks} chunks among {terms.world_size} ranks{root}"


def _values(
    proven: ProvenSchedule, expressions: dict[tuple[int, ...], int]
) -> tuple[dict[Lane, _Lane], list[list[int]]]:
    """What crosses every connection, and what every output holds, as numbers of expressions."""

    def number(*expression: int) -> int:
        return expressions.setdefault(expression, len(expressions))

    header, terms = proven.header, proven.contract
    memory = [[-1] * count for count in header.memory_chunks]
    for rank in range(terms.world_size):
        for place, chunk in enumerate(terms.input_chunks(rank).tolist()):
            memory[rank][header.input_offset[rank] + place] = number(rank, chunk, 0)
    lanes: dict[Lane, _Lane] = defaultdict(_Lane)
    seen = 0
    for step, rows in proven.schedule.steps():
        chunks, _ = expand(rows)
        received_first = proven.received_first[seen : seen + len(chunks.row)].tolist()
        seen += len(chunks.row)
        src, dst, channel = chunks.src.tolist(), chunks.dst.tolist(), chunks.channel.tolist()
        source, target, operand = chunks.src_chunk.tolist(), chunks.dst_chunk.tolist(), chunks.operand_chunk.tolist()
        moved = [memory[rank][chunk] for rank, chunk in zip(src, source, strict=True)]
        held = [memory[r][c] if c != REPLACE else REPLACE for r, c in zip(dst, operand, strict=True)]
        for at, value in enumerate(moved):
            if src[at] != dst[at]:
                lanes[src[at], dst[at], channel[at]].add(step, value)
        written: set[tuple[int, int]] = set()
        for at in np.lexsort((chunks.row, chunks.src)).tolist():
            value = moved[at]
            key = (dst[at], target[at])
            if operand[at] != REPLACE:
                running = operand[at] == target[at] and key in written
                own = memory[dst[at]][target[at]] if running else held[at]
                value = number(value, own) if received_first[at] else number(own, value)
            memory[dst[at]][target[at]] = value
            written.add(key)
    outputs = [
        memory[rank][header.output_offset[rank] : header.output_offset[rank] + terms.output_size(rank)]
        for rank in range(terms.world_size)
    ]
    return lanes, outputs
