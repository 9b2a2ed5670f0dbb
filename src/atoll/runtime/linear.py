"""A program as a straight line: one rank's operations in an order in which they can simply be done, one by one.

The general machine moves whatever may move; that is what overlaps large transfers, and what several collectives in
flight need, but it is bookkeeping that a small collective pays for with most of its time. In the order below every
operation only ever waits for other ranks, never for a later one of its own: by step; within a step first what is
sent, then what is received and moved, as the table has it. A send is *posted* and its memory lent until the receiver
has read it; ``Wait`` stands where that memory is written again, and at the end.

No circle of ranks can wait for one another. Consider a rank that is in the earliest step of all. What it waits for was
posted at the beginning of that step or before, or is the reading of what it posted in steps before, which the reader
has passed; and as many of its posts as one step has find room (``MAX_POSTS``).

Where an order that satisfies all guards is not found there is no line, and the machine runs the program.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from atoll.runtime.program import LOCAL, Operation, Program
from atoll.runtime.shared_ring import SLOTS

MAX_POSTS: Final = SLOTS // 2  # in one step on one lane
MAX_INSTRUCTIONS: Final = 4096
SEND, RECEIVE, REDUCE, MOVE, MOVE_REDUCE, WAIT, TOKEN_SEND, TOKEN_RECEIVE = range(8)


class Instruction(NamedTuple):
    """``kind`` on ``lane``. Places are (buffer, slice of elements)."""

    kind: int
    lane: int
    operation: Operation
    source: tuple[int, slice] | None
    target: tuple[int, slice] | None
    operand: tuple[int, slice] | None


class Line(NamedTuple):
    """``instructions`` in order; ``lend_any``: whether any send may be lent."""

    instructions: tuple[Instruction, ...]


def straighten(program: Program) -> Line | None:
    """``program`` as a line, None where it has none. Costs time in the number of operations; done once a program."""
    operations = program.operations
    if len(operations) > MAX_INSTRUCTIONS:
        return None
    lane_of = {operation.number: lane for lane in program.lanes for operation in lane.operations}
    posts: dict[tuple[int, int], int] = {}
    for operation in operations:
        lane = lane_of[operation.number]
        if not lane.incoming and lane.peer != LOCAL:
            key = (lane.number, operation.step)
            posts[key] = posts.get(key, 0) + 1
            if posts[key] > MAX_POSTS:
                return None

    def is_send(operation: Operation) -> bool:
        lane = lane_of[operation.number]
        return not lane.incoming and lane.peer != LOCAL

    ordered = _in_order(program, is_send)
    if ordered is None:
        return None
    line: list[Instruction] = []
    waited: set[int] = set()
    for operation in ordered:
        for before, *_ in operation.guards:
            earlier = operations[before]
            if is_send(earlier) and earlier.lend and before not in waited:
                waited.add(before)
                line.append(Instruction(WAIT, lane_of[before].number, earlier, None, None, None))
        line.append(_instruction(program, operation, lane_of[operation.number].number, is_send(operation)))
    line += [
        Instruction(WAIT, lane_of[operation.number].number, operation, None, None, None)
        for operation in ordered
        if is_send(operation) and operation.lend and operation.number not in waited
        and operation.number < program.payload_operations
    ]  # fmt: skip
    return Line(tuple(line))


def _in_order(program: Program, is_send: Callable[[Operation], bool]) -> list[Operation] | None:
    """By step, sends first, then as the table has it, but for what waits for another one; None: in a circle."""
    operations = program.operations
    waits = [0] * len(operations)
    followers: list[list[int]] = [[] for _ in operations]
    for operation in operations:
        for before in {before for before, *_ in operation.guards}:
            followers[before].append(operation.number)
            waits[operation.number] += 1
    for lane in program.lanes:
        for earlier, later in pairwise(lane.operations):
            followers[earlier.number].append(later.number)
            waits[later.number] += 1
    ready = [
        (operation.step, not is_send(operation), operation.number)
        for operation in operations
        if not waits[operation.number]
    ]
    heapify(ready)
    ordered: list[Operation] = []
    while ready:
        step, _, number = heappop(ready)
        if ordered and ordered[-1].step > step:
            return None  # it would make a step wait for a later one, and ranks for each other
        ordered.append(operations[number])
        for follower in followers[number]:
            waits[follower] -= 1
            if not waits[follower]:
                heappush(ready, (operations[follower].step, not is_send(operations[follower]), follower))
    return ordered if len(ordered) == len(operations) else None


def _instruction(program: Program, operation: Operation, lane: int, sends: bool) -> Instruction:
    if operation.number >= program.payload_operations:
        return Instruction(TOKEN_SEND if sends else TOKEN_RECEIVE, lane, operation, None, None, None)

    def elements(place: tuple[int, int] | None) -> tuple[int, slice] | None:
        if place is None:
            return None
        buffer, offset = place
        return buffer, slice(offset // program.itemsize, (offset + operation.num_bytes) // program.itemsize)

    reduces = operation.operand is not None
    if sends:
        kind = SEND
    elif operation.source is not None:
        kind = MOVE_REDUCE if reduces else MOVE
    else:
        kind = REDUCE if reduces else RECEIVE
    return Instruction(
        kind, lane, operation, elements(operation.source), elements(operation.target), elements(operation.operand)
    )


def typed(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Bytes as whole elements."""
    return array[: len(array) // dtype.itemsize * dtype.itemsize].view(dtype)
