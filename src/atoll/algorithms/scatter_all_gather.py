"""Broadcast as scatter and all-gather (van de Geijn), and its mirror, reduce as reduce-scatter and gather.

The root scatters N blocks down a binomial tree; then the blocks go around a ring until every rank has all of them.
Inner vertices of the tree have passed on other ranks' blocks and keep them: a block is not sent to a rank that has
it. So every rank but the root receives every block exactly once, and the root nothing. N = 4, root 0::

    steps 0-1   0 -> 2: blocks 2 3;   0 -> 1: block 1,  2 -> 3: block 3
    step 2      0 -> 1: block 0,   1 -> 2: block 1,   2 -> 3: block 2
    step 3      0 -> 1: block 3,   1 -> 2: block 0,   2 -> 3: block 1
    step 4      0 -> 1: block 2,                      2 -> 3: block 0

With L = ceil(log2 N):

=========== ============ =================== ==============
vector of n alpha        beta                gamma
=========== ============ =================== ==============
broadcast   L + N - 1    2(N-1)/N n          0
reduce      L + N - 1    2(N-1)/N n          (N-1)/N n
=========== ============ =================== ==============

(Barnett et al. 1994, "Interprocessor collective communication library"; Thakur, Rabenseifner and Gropp 2005.) Against
the binomial tree's n log2 N it is right for long vectors. Run backwards every transfer becomes a reduction: the ring
collects, the tree brings the sums to the root, and every rank sends its vector exactly once.
"""

from __future__ import annotations

import numpy as np

from atoll.algorithms import binomial_tree
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.compose import compose, embed, mirror, sequence
from atoll.schedule.table import Schedule


def broadcast(world_size: int, root: int) -> Schedule:
    name = "scatter_all_gather"
    scatter = embed(binomial_tree.scatter(world_size, root), range(world_size), world_size)
    ring = ScheduleBuilder("broadcast", world_size, chunks=world_size, root=root, name=name)
    vertex = np.arange(world_size - 1)
    # What the neighbour has from the scatter: the run of blocks from its own to its subtree's end.
    neighbour = vertex + 1
    held = neighbour & -neighbour
    for step in range(world_size - 1):
        block = (vertex - step) % world_size
        lacks = (block < neighbour) | (block >= neighbour + held)
        src, dst = (vertex[lacks] + root) % world_size, (neighbour[lacks] + root) % world_size
        ring.copy(step, src, dst, (block[lacks] + root) % world_size)
    around = embed(ring.build(), range(world_size), world_size)
    return compose(sequence(scatter, around), "broadcast", world_size, world_size, name=name, root=root)


def reduce(world_size: int, root: int) -> Schedule:
    return mirror(broadcast(world_size, root), name="reduce_scatter_gather")
