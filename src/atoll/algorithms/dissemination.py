"""The dissemination barrier: nobody leaves before everybody has come, in the fewest rounds there are.

In round k rank r tells rank r + 2^k that it, and all it has heard of, have come. After round k a rank has heard of
the 2^(k+1) ranks up to itself, around the circle; after ceil(log2 N) rounds of all of them. N = 5::

    round 0   0 -> 1 -> 2 -> 3 -> 4 -> 0      knows of r-1, r
    round 1   r -> r + 2                      knows of r-3 ... r
    round 2   r -> r + 4                      knows of all, of some twice

Hearing of a rank twice does no harm: a barrier asks for each contribution at least once. Cost: ceil(log2 N) alpha.
(Hensgen, Finkel and Manber 1988, "Two algorithms for barrier synchronization".)
"""

from __future__ import annotations

import numpy as np

from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.table import Schedule


def barrier(world_size: int) -> Schedule:
    rounds = ScheduleBuilder("barrier", world_size, chunks=1, name="dissemination")
    rank = np.arange(world_size)
    for step in range((world_size - 1).bit_length()):
        rounds.reduce(step, rank, (rank + (1 << step)) % world_size, 0)
    return rounds.build()
