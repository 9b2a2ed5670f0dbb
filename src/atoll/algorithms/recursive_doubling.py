"""Recursive doubling: exchange all you know with a partner twice as far away each time.

After step k every rank knows the sum over (all-reduce) or the blocks of (all-gather) an aligned group of 2^(k+1)
ranks. N = 8, the partner is ``rank XOR 2^k``::

    step 0   0-1   2-3   4-5   6-7
    step 1   0---2 1---3 4---6 5---7
    step 2   0-------4   1-------5   ...

With L = log2 of p, the largest power of two not above N, and x = 0 if p = N, else 1 (see ``fold``):

=========== ========= ============================== ==========
vector of n alpha     beta                           gamma
=========== ========= ============================== ==========
all-reduce  L + 2x    (L + 2x) n                     (L + x) n
all-gather  L + 2x    (N-1)/N n, + up to n if x      0
=========== ========= ============================== ==========

(Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH".) The all-reduce
has the fewest steps there are and moves the whole vector in each: right for small ones. Every element is summed along
one tree, in rank order, on every rank: the bits depend neither on the rank nor on the position.

The all-gather run backwards is the recursive halving **reduce-scatter**: partners exchange the half of the vector
that belongs to the other's group, farthest first. It costs what the all-gather costs, and (N-1)/N n gamma; at a power
of two all blocks are summed along one tree, elsewhere a block's order depends on its owner.
"""

from __future__ import annotations

import numpy as np

from atoll.algorithms.fold import fold
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.compose import mirror
from atoll.schedule.table import Schedule


def all_reduce(world_size: int) -> Schedule:
    doubling = ScheduleBuilder("all_reduce", world_size, chunks=1, name="recursive_doubling")
    folded = fold(world_size)
    doubling.reduce(0, folded.guests, folded.hosts, 0)
    step = 1 if len(folded.guests) else 0
    member = np.arange(len(folded.core))
    distance = 1
    while distance < len(member):
        doubling.reduce(step, folded.core, folded.core[member ^ distance], 0)
        distance, step = 2 * distance, step + 1
    doubling.copy(step, folded.hosts, folded.guests, 0)
    return doubling.build()


def all_gather(world_size: int) -> Schedule:
    doubling = ScheduleBuilder("all_gather", world_size, chunks=world_size, name="recursive_doubling")
    folded = fold(world_size)
    doubling.copy(0, folded.guests, folded.hosts, folded.guests)
    step = 1 if len(folded.guests) else 0
    member = np.arange(len(folded.core))
    distance = 1
    while distance < len(member):
        first = member & -distance
        start, end = folded.start(first), folded.start(first + distance)
        doubling.copy(step, folded.core, folded.core[member ^ distance], start, num_chunks=end - start)
        distance, step = 2 * distance, step + 1
    # A guest has its own block; it gets those before and those behind it.
    behind = world_size - 1 - folded.guests
    doubling.copy(step, folded.hosts, folded.guests, 0, num_chunks=folded.guests)
    doubling.copy(step, folded.hosts, folded.guests, folded.guests + 1, num_chunks=behind)
    return doubling.build()


def reduce_scatter(world_size: int) -> Schedule:
    return mirror(all_gather(world_size), name="recursive_halving")
