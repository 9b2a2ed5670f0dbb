"""The naive all-reduce: give everyone everything, then let everyone add it up.

Whole vectors travel around a ring; after N - 1 steps every rank has all N of them, and adds them in rank order. N = 3::

    step 0   x0 -> 1   x1 -> 2   x2 -> 0
    step 1   x2 -> 1   x0 -> 2   x1 -> 0
    then     every rank: (x0 + x1) + x2

=========== ====== ========= ========= ==================
vector of n alpha  beta      gamma     scratch memory
=========== ====== ========= ========= ==================
all-reduce  N - 1  (N-1) n   (N-1) n   (N-1) n
=========== ====== ========= ========= ==================

Each rank sends (N-1) n against the ring's 2(N-1)/N n: N/2 times as much, the same at N = 2. It is kept as the thing
to beat; and as the thing to compare with, since its sum is the one that everybody would write down.
"""

from __future__ import annotations

import numpy as np

from atoll.algorithms.rank_order import add_in_rank_order, place
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.table import Schedule


def all_reduce(world_size: int) -> Schedule:
    naive = ScheduleBuilder("all_reduce", world_size, chunks=1, name="naive", scratch_chunks=world_size - 1)
    rank = np.arange(world_size)
    right = (rank + 1) % world_size
    for step in range(world_size - 1):
        source = (rank - step) % world_size
        naive.copy(step, rank, right, place(naive, source, rank), place(naive, source, right))
    add_in_rank_order(naive, world_size - 1, world_size)
    return naive.build()
