"""Bruck: ceil(log2 N) steps for any number of ranks, with partners at distances 1, 2, 4, ... around a circle.

**All-gather.** Before step k rank r holds the 2^k blocks from its own on, r, r + 1, ...; rank r + 2^k holds just
those that follow. Fetching them (as many as are still missing) doubles what is held. N = 5::

    step 0   r <- r + 1: 1 block        holds r, r+1
    step 1   r <- r + 2: 2 blocks       holds r ... r+3
    step 2   r <- r + 4: 1 block        holds all 5

**Reduce-scatter** is the same backwards, and **all-reduce** the one after the other: for *any* N it has Rabenseifner's
cost at a power of two (Traeff 2023, "Optimal, non-pipelined reduce-scatter and allreduce algorithms").

**All-to-all.** A block that must travel distance d goes 2^k ranks in step k for every bit k that d has. Every rank has
one block of every distance in transit: a first hop reads the input, a last one writes the output, between
two hops a block waits in the scratch chunk of its distance.

With L = ceil(log2 N):

=============== ====== ========================================= ===========
vector of n     alpha  beta                                      gamma
=============== ====== ========================================= ===========
all-gather      L      (N-1)/N n                                 0
reduce-scatter  L      (N-1)/N n                                 (N-1)/N n
all-reduce      2 L    2(N-1)/N n                                (N-1)/N n
all-to-all      L      n/N times the bits set in 1 ... N-1       0
                       (n/2 log2 N at a power of two)
=============== ====== ========================================= ===========

(Bruck, Ho, Kipnis, Upfal and Weathersbee 1997, "Efficient algorithms for all-to-all communications in multiport
message-passing systems".) The original rotates blocks before and after; addresses on a circle make that unnecessary.
The all-to-all pays for its few steps with bytes: right for small blocks. At a power of two all sums have one
order, at another N it depends on the block.
"""

from __future__ import annotations

import numpy as np

from atoll.algorithms.cyclic import cyclic_runs
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.compose import compose, embed, mirror, sequence
from atoll.schedule.contract import IntArray
from atoll.schedule.table import Schedule


def all_gather(world_size: int) -> Schedule:
    bruck = ScheduleBuilder("all_gather", world_size, chunks=world_size, name="bruck")
    rank = np.arange(world_size)
    for step in range((world_size - 1).bit_length()):
        held = 1 << step
        src = rank + held
        for part in cyclic_runs(src, np.full_like(rank, min(held, world_size - held)), world_size):
            bruck.copy(step, src[part.run] % world_size, part.run, part.start, num_chunks=part.length)
    return bruck.build()


def reduce_scatter(world_size: int) -> Schedule:
    return mirror(all_gather(world_size), name="bruck")


def all_reduce(world_size: int) -> Schedule:
    everyone = range(world_size)
    scatter = embed(reduce_scatter(world_size), everyone, world_size)
    gather = embed(all_gather(world_size), everyone, world_size)
    return compose(sequence(scatter, gather), "all_reduce", world_size, world_size, name="bruck")


def all_to_all(world_size: int) -> Schedule:
    bruck = ScheduleBuilder("all_to_all", world_size, chunks=world_size, name="bruck", scratch_chunks=world_size)
    rank = np.arange(world_size)
    bruck.copy(0, rank, rank, rank, bruck.output + rank)
    for step in range((world_size - 1).bit_length()):
        hop = 1 << step
        to = (rank + hop) % world_size
        # Distances with this bit are runs; the first of a run has no lower bit, so this is its first hop.
        for low in range(hop, world_size, 2 * hop):
            high = min(low + hop, world_size) - 1
            first = (rank + low) % world_size
            if low == hop:
                bruck.copy(step, rank, to, first, bruck.output + (to - low) % world_size)
                _last_hops(bruck, step, to, low + 1, high)
            else:
                bruck.copy(step, rank, to, first, _slot(bruck, low))
                if high > low:
                    bruck.copy(step, rank, to, _slot(bruck, high), num_chunks=high - low)
    return bruck.build()


def _slot(bruck: ScheduleBuilder, distance: int) -> int:
    """Where a block of that distance waits. Far ones first, as they lie in the output of the rank they come to."""
    return bruck.scratch + bruck.contract.world_size - distance


def _last_hops(bruck: ScheduleBuilder, step: int, to: IntArray, low: int, high: int) -> None:
    """Blocks of distances ``low`` to ``high`` arrive: rank ``to`` has them from ranks ``to - high`` to ``to - low``."""
    if high < low:
        return
    world_size = bruck.contract.world_size
    src = (to - (1 << step)) % world_size
    for part in cyclic_runs(to - high, np.full_like(to, high - low + 1), world_size):
        source = _slot(bruck, high) + part.skip
        bruck.copy(step, src[part.run], to[part.run], source, bruck.output + part.start, num_chunks=part.length)
