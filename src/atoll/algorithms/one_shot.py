"""One-shot all-reduce: every rank sends its whole vector to all others at once, and all add the same things up.

One message time, and no rank waits for a second one: the fastest there is for a few bytes over links that join all
pairs. Adding up what arrives *as* it arrives, own vector first, would give every rank another order of summation and so
different bits; here the vectors are kept apart until they are added in rank order (see ``rank_order``)::

    step 0   x0 -> 1, 2     x1 -> 0, 2     x2 -> 0, 1
    then     every rank: (x0 + x1) + x2

=========== ====== ========= ========= ==================
vector of n alpha  beta      gamma     scratch memory
=========== ====== ========= ========= ==================
all-reduce  1      (N-1) n   (N-1) n   (N-1) n
=========== ====== ========= ========= ==================
"""

from __future__ import annotations

import numpy as np

from atoll.algorithms.rank_order import add_in_rank_order, place
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.table import Schedule


def all_reduce(world_size: int) -> Schedule:
    one_shot = ScheduleBuilder("all_reduce", world_size, chunks=1, name="one_shot", scratch_chunks=world_size - 1)
    rank = np.arange(world_size)
    for distance in range(1, world_size):
        partner = (rank + distance) % world_size
        one_shot.copy(0, rank, partner, 0, place(one_shot, rank, partner))
    add_in_rank_order(one_shot, 1, world_size)
    return one_shot.build()
