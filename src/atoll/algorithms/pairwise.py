"""Pairwise all-to-all: one partner at a time, a different one in every step.

In step s - 1 rank r sends its block for rank r + s and receives from rank r - s, s = 1 ... N - 1. Every rank sends
one message and receives one per step, so no receiver is ever asked for more than one link's worth::

    step 0   0 -> 1 -> 2 -> 3 -> 0        step 1   0 <-> 2, 1 <-> 3        step 2   0 -> 3 -> 2 -> 1 -> 0

=========== ====== ============
vector of n alpha  beta
=========== ====== ============
all-to-all  N - 1  (N-1)/N n
=========== ====== ============

Bytes are the fewest possible (each block moves once); steps are not (see ``bruck``). The block that a rank keeps is a
local move in step 0. (Thakur, Rabenseifner and Gropp 2005.)
"""

from __future__ import annotations

import numpy as np

from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.table import Schedule


def all_to_all(world_size: int) -> Schedule:
    pairwise = ScheduleBuilder("all_to_all", world_size, chunks=world_size, name="pairwise")
    rank = np.arange(world_size)
    pairwise.copy(0, rank, rank, rank, pairwise.output + rank)
    for distance in range(1, world_size):
        partner = (rank + distance) % world_size
        pairwise.copy(distance - 1, rank, partner, partner, pairwise.output + rank)
    return pairwise.build()
