"""Adding up vectors that have all arrived, in rank order: ((x0 + x1) + x2) + ...

Rank r has its own vector at position 0 and that of rank s in the scratch chunk ``slot(s, r)``; there are N - 1 slots.
The running sum stands where x0 stands; the last addition puts it at position 0. All ranks do the same arithmetic on
the same operands in the same order, so all end with the same bits, whatever the operation.
"""

from __future__ import annotations

import numpy as np

from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import IntArray


def place(builder: ScheduleBuilder, source: IntArray, rank: IntArray) -> IntArray:
    """The position at ``rank`` of the vector of ``source``: its own at 0, another's in a slot."""
    slot = builder.scratch + source - (source > rank)
    return np.where(source == rank, 0, slot)


def add_in_rank_order(builder: ScheduleBuilder, step: int, world_size: int) -> None:
    """Local rows from ``step`` on: one step for all additions but the last, one for the last."""
    if world_size == 1:
        return
    rank = np.arange(world_size)
    total = place(builder, np.zeros_like(rank), rank)
    for source in range(1, world_size - 1):
        builder.reduce(step, rank, rank, place(builder, np.full_like(rank, source), rank), total)
    last = place(builder, np.full_like(rank, world_size - 1), rank)
    builder.reduce(step + (world_size > 2), rank, rank, last, 0, operand_chunk=total)
