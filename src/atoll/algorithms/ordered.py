"""Ordered: every element is summed in rank order, ((x0 + x1) + x2) + ..., by the one rank that owns it.

Floating-point sums depend on their order, and most algorithms have another order at another position, size or world
layout. Here there is one order, that of a loop over the ranks, in all three collectives: their results are the same
bits, whatever the tensor, and the same as those of ``sum(arrays)`` on one machine.

Block b goes straight to its owner, rank b, as in ``direct``; but instead of adding what arrives to its own, the owner
keeps the blocks apart until all are there and then adds them in rank order (see ``rank_order``). N = 3::

    step 0   rank 0: block 1 -> 1, block 2 -> 2     rank 1: block 0 -> 0, ...
    then     rank b: (x0 + x1) + x2 of block b
    last     all-reduce: rank b sends the sum to all; reduce: to the root

=============== ====== ================================ ============ ===============
vector of n     alpha  beta                             gamma        scratch memory
=============== ====== ================================ ============ ===============
all-reduce      2      2(N-1)/N n                       (N-1)/N n    (N-1)/N n
reduce-scatter  1      (N-1)/N n                        (N-1)/N n    (N-1)/N n
reduce          2      n, the root receives 2(N-1)/N n  (N-1)/N n    (N-1)/N n
=============== ====== ================================ ============ ===============

The bytes are those of the best algorithms; what the order costs is scratch memory and, where N is large, N - 1
messages at once for each rank.
"""

from __future__ import annotations

import numpy as np

from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import IntArray
from atoll.schedule.table import Schedule


def all_reduce(world_size: int) -> Schedule:
    ordered = ScheduleBuilder(
        "all_reduce", world_size, chunks=world_size, name="ordered", scratch_chunks=world_size - 1
    )
    step = _sum_blocks(ordered, world_size)
    rank = np.arange(world_size)
    for distance in range(1, world_size):
        ordered.copy(step, rank, (rank + distance) % world_size, rank)
    return ordered.build()


def reduce_scatter(world_size: int) -> Schedule:
    ordered = ScheduleBuilder(
        "reduce_scatter", world_size, chunks=world_size, name="ordered", scratch_chunks=world_size - 1
    )
    _sum_blocks(ordered, world_size)
    return ordered.build()


def reduce(world_size: int, root: int) -> Schedule:
    ordered = ScheduleBuilder(
        "reduce", world_size, chunks=world_size, root=root, name="ordered", scratch_chunks=world_size - 1
    )
    step = _sum_blocks(ordered, world_size)
    others = (root + np.arange(1, world_size)) % world_size
    ordered.copy(step, others, root, others)
    return ordered.build()


def _sum_blocks(builder: ScheduleBuilder, world_size: int) -> int:
    """Block b of all ranks, summed in rank order at position b of rank b; the number of steps that takes."""
    if world_size == 1:
        return 0
    owner = np.arange(world_size)

    def place(source: IntArray | int) -> IntArray:
        """Where an owner has its block of ``source``: its own in its place, another's in scratch."""
        return np.where(owner == source, owner, builder.scratch + source - (source > owner))

    for distance in range(1, world_size):
        source = (owner - distance) % world_size
        builder.copy(0, source, owner, owner, place(source))
    # The running sum stands where x0 stands; the last addition puts it in its place.
    total = place(0)
    for middle in range(1, world_size - 1):
        builder.reduce(1, owner, owner, place(middle), total)
    last = 1 + (world_size > 2)
    builder.reduce(last, owner, owner, place(world_size - 1), owner, operand_chunk=total)
    return last + 1
