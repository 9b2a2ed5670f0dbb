"""Direct: everybody sends to everybody at once, no rank passes anything on.

Block b goes straight to the rank that needs it; the all-reduce (all-pairs, in two steps) reduces chunk c at rank c
and sends the sum to all. N = 3::

    step 0   rank 0: chunk 1 -> 1, chunk 2 -> 2     rank 1: chunk 0 -> 0, ...     each adds what it gets
    step 1   rank 0: chunk 0 -> 1 and 2             rank 1: chunk 1 -> 0 and 2 ...

========================= ====== ============== =============
vector of n               alpha  beta           gamma
========================= ====== ============== =============
reduce-scatter            1      (N-1)/N n      (N-1)/N n
all-gather, all-to-all    1      (N-1)/N n      0
gather, scatter           1      (N-1)/N n      0
all-reduce                2      2(N-1)/N n     (N-1)/N n
========================= ====== ============== =============

With N - 1 ports at once a step is one latency, below the ceil(log2 N) of single-port algorithms; so it is best where
all pairs have a path of their own (NVSwitch, shared memory). Elsewhere N - 1 senders meet at one receiver (incast).
Rank c adds to its own contribution those of ranks 0, 1, 2, ... in that order, whichever comes first: the bits are
always the same, and the same on all ranks; the order differs between chunks.
Rows go round the ranks, nearest first, so that not everyone begins with rank 0.
"""

from __future__ import annotations

import numpy as np

from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import IntArray
from atoll.schedule.table import Schedule


def all_reduce(world_size: int) -> Schedule:
    direct = ScheduleBuilder("all_reduce", world_size, chunks=world_size, name="direct")
    src, dst = _pairs(world_size)
    direct.reduce(0, src, dst, dst)
    direct.copy(1, src, dst, src)
    return direct.build()


def reduce_scatter(world_size: int) -> Schedule:
    direct = ScheduleBuilder("reduce_scatter", world_size, chunks=world_size, name="direct")
    src, dst = _pairs(world_size)
    direct.reduce(0, src, dst, dst)
    return direct.build()


def all_gather(world_size: int) -> Schedule:
    direct = ScheduleBuilder("all_gather", world_size, chunks=world_size, name="direct")
    src, dst = _pairs(world_size)
    direct.copy(0, src, dst, src)
    return direct.build()


def all_to_all(world_size: int) -> Schedule:
    direct = ScheduleBuilder("all_to_all", world_size, chunks=world_size, name="direct")
    src, dst = _pairs(world_size)
    rank = np.arange(world_size)
    direct.copy(0, rank, rank, rank, direct.output + rank)
    direct.copy(0, src, dst, dst, direct.output + src)
    return direct.build()


def gather(world_size: int, root: int) -> Schedule:
    direct = ScheduleBuilder("gather", world_size, chunks=world_size, root=root, name="direct")
    others = (root + np.arange(1, world_size)) % world_size
    direct.copy(0, others, root, others)
    return direct.build()


def scatter(world_size: int, root: int) -> Schedule:
    direct = ScheduleBuilder("scatter", world_size, chunks=world_size, root=root, name="direct")
    others = (root + np.arange(1, world_size)) % world_size
    direct.copy(0, root, others, others)
    return direct.build()


def _pairs(world_size: int) -> tuple[IntArray, IntArray]:
    """All ordered pairs of different ranks, by distance."""
    src = np.tile(np.arange(world_size), world_size - 1)
    distance = np.repeat(np.arange(1, world_size), world_size)
    return src, (src + distance) % world_size
