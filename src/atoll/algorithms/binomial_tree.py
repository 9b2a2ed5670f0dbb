"""The binomial tree: in every step, every rank that has something passes it on to one that has not.

Number the ranks from the root (v = rank - root mod N). Vertex v's parent is v with its lowest set bit cleared, and
what hangs below v is the run of vertices from v to v + lowest bit - 1. N = 8::

    0 -+- 4 -+- 6 --- 7        broadcast, scatter: left to right, far hops first
       |     +- 5              reduce, gather: right to left, near hops first
       +- 2 --- 3
       +- 1

With L = ceil(log2 N):

===================== ====== ============================ =======
vector of n           alpha  beta (the root's)            gamma
===================== ====== ============================ =======
broadcast             L      L n                          0
reduce                L      L n                          L n
scatter, gather       L      (N-1)/N n                    0
all-reduce            2L     2 L n                        L n
===================== ====== ============================ =======

(Chan, Heimlich, Purkayastha and van de Geijn 2007, "Collective communication: theory, practice, and experience".)
L steps are the fewest there are for one message at a time. The all-reduce is a reduce to rank 0 and a broadcast from
there. Subtrees are runs of ranks: sums are made in rank order, counted from the root, along one tree for every element.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from atoll.algorithms.cyclic import cyclic_runs
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import IntArray
from atoll.schedule.table import Schedule


def broadcast(world_size: int, root: int) -> Schedule:
    tree = ScheduleBuilder("broadcast", world_size, chunks=1, root=root, name="binomial_tree")
    for step, (parent, child, _) in enumerate(reversed(list(_levels(world_size)))):
        tree.copy(step, (parent + root) % world_size, (child + root) % world_size, 0)
    return tree.build()


def reduce(world_size: int, root: int) -> Schedule:
    tree = ScheduleBuilder("reduce", world_size, chunks=1, root=root, name="binomial_tree")
    for step, (parent, child, _) in enumerate(_levels(world_size)):
        tree.reduce(step, (child + root) % world_size, (parent + root) % world_size, 0)
    return tree.build()


def all_reduce(world_size: int) -> Schedule:
    tree = ScheduleBuilder("all_reduce", world_size, chunks=1, name="binomial_tree")
    levels = list(_levels(world_size))
    for step, (parent, child, _) in enumerate(levels):
        tree.reduce(step, child, parent, 0)
    for step, (parent, child, _) in enumerate(reversed(levels), start=len(levels)):
        tree.copy(step, parent, child, 0)
    return tree.build()


def gather(world_size: int, root: int) -> Schedule:
    tree = ScheduleBuilder("gather", world_size, chunks=world_size, root=root, name="binomial_tree")
    for step, (parent, child, below) in enumerate(_levels(world_size)):
        for part in cyclic_runs(child + root, below, world_size):
            src, dst = (child[part.run] + root) % world_size, (parent[part.run] + root) % world_size
            tree.copy(step, src, dst, part.start, num_chunks=part.length)
    return tree.build()


def scatter(world_size: int, root: int) -> Schedule:
    tree = ScheduleBuilder("scatter", world_size, chunks=world_size, root=root, name="binomial_tree")
    for step, (parent, child, below) in enumerate(reversed(list(_levels(world_size)))):
        for part in cyclic_runs(child + root, below, world_size):
            src, dst = (parent[part.run] + root) % world_size, (child[part.run] + root) % world_size
            tree.copy(step, src, dst, part.start, num_chunks=part.length)
    return tree.build()


def _levels(world_size: int) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
    """Near hops first: parents, their children, and how many vertices stand below each child, itself included."""
    distance = 1
    while distance < world_size:
        child = np.arange(distance, world_size, 2 * distance)
        yield child - distance, child, np.minimum(distance, world_size - child)
        distance *= 2
