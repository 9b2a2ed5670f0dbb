"""The chain: one rank after the other, each link used once, and all of them at the same time.

A broadcast goes from the root to the next rank, and on to the last one; a reduce comes back the same way. Written
down it is N - 1 steps of the whole vector; run in k segments each rank passes a segment on while it receives the
next, which follows from the dependencies alone::

    0 --> 1 --> 2 --> 3         time 1: segment a on 0->1;  time 2: b on 0->1, a on 1->2;  time 3: c, b, a ...

=========== ============== ====================== =========
vector of n alpha          beta                   gamma
=========== ============== ====================== =========
broadcast   N - 2 + k      (N - 2 + k)/k n        0
reduce      N - 2 + k      (N - 2 + k)/k n        n
=========== ============== ====================== =========

(van de Geijn and Watts 1997, "SUMMA", the pipelined ring.) With many segments each rank sends n and receives n,
which is the least possible: right for long vectors and few ranks. A sum is made from the far end towards the root.
"""

from __future__ import annotations

import numpy as np

from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.table import Schedule


def broadcast(world_size: int, root: int) -> Schedule:
    chain = ScheduleBuilder("broadcast", world_size, chunks=1, root=root, name="chain")
    link = np.arange(world_size - 1)
    chain.copy(link, (root + link) % world_size, (root + link + 1) % world_size, 0)
    return chain.build()


def reduce(world_size: int, root: int) -> Schedule:
    chain = ScheduleBuilder("reduce", world_size, chunks=1, root=root, name="chain")
    link = np.arange(world_size - 1)
    chain.reduce(world_size - 2 - link, (root + link + 1) % world_size, (root + link) % world_size, 0)
    return chain.build()
