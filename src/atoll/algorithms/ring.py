"""The ring: every rank talks to its two neighbours only, and every link carries the same bytes in every step.

Cut the vector into N chunks and lay the ranks on a circle. In a **reduce-scatter** chunk c starts at rank c + 1 and
travels once around, each rank adding its own contribution, until it arrives complete at rank c. In an **all-gather**
chunk c starts complete at rank c and travels on, each rank keeping a copy. One after the other they are an
all-reduce. N = 4, chunk 0::

    rank 1 --> rank 2 --> rank 3 --> rank 0     reduce-scatter, steps 0 1 2: partial sums
    rank 0 --> rank 1 --> rank 2 --> rank 3     all-gather,     steps 3 4 5: copies of the sum

=============== ========= ================ ============== =====
vector of n     alpha     beta             gamma          any N
=============== ========= ================ ============== =====
reduce-scatter  N - 1     (N-1)/N n        (N-1)/N n      yes
all-gather      N - 1     (N-1)/N n        0              yes
all-reduce      2(N - 1)  2(N-1)/N n       (N-1)/N n      yes
=============== ========= ================ ============== =====

Every byte count is optimal (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms"); the latency grows
with N. Chunk c is summed in the order c + 1, c + 2, ..., c: the order of an element's sum depends on the chunk it
lies in, but all ranks end with the same bits, since they all receive what one rank completed.

The **bidirectional ring** sends one half of every chunk each way round, on two channels: the same steps and the same
bytes per rank, but half of them per direction, which halves the time where links are full duplex.
"""

from __future__ import annotations

import numpy as np

from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.table import Schedule


def all_reduce(world_size: int) -> Schedule:
    return _ring("all_reduce", world_size, lanes=1)


def reduce_scatter(world_size: int) -> Schedule:
    return _ring("reduce_scatter", world_size, lanes=1)


def all_gather(world_size: int) -> Schedule:
    return _ring("all_gather", world_size, lanes=1)


def bidirectional_all_reduce(world_size: int) -> Schedule:
    return _ring("all_reduce", world_size, lanes=2)


def bidirectional_reduce_scatter(world_size: int) -> Schedule:
    return _ring("reduce_scatter", world_size, lanes=2)


def bidirectional_all_gather(world_size: int) -> Schedule:
    return _ring("all_gather", world_size, lanes=2)


def _ring(collective: str, world_size: int, lanes: int) -> Schedule:
    """Lane 0 turns to the right, lane 1 to the left; block b's part for a lane is chunk ``b * lanes + lane``."""
    name = "ring" if lanes == 1 else "bidirectional_ring"
    ring = ScheduleBuilder(collective, world_size, chunks=world_size * lanes, name=name)
    rank = np.arange(world_size)
    turns = world_size - 1
    for lane in range(lanes):
        way = 1 - 2 * lane
        neighbour = (rank + way) % world_size
        if collective != "all_gather":
            for turn in range(turns):
                block = (rank - way * (turn + 1)) % world_size
                ring.reduce(turn, rank, neighbour, block * lanes + lane, channel=lane)
        if collective != "reduce_scatter":
            first = turns if collective == "all_reduce" else 0
            for turn in range(turns):
                block = (rank - way * turn) % world_size
                ring.copy(first + turn, rank, neighbour, block * lanes + lane, channel=lane)
    return ring.build()
