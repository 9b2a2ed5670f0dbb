"""Recursive halving-doubling (Rabenseifner): an all-reduce with few steps *and* few bytes.

Halving: exchange one half of what you still hold with a partner, keep and reduce the other; then a half of that
half with a partner twice as far away, and so on, until each rank has one chunk complete. Doubling plays the same
exchanges backwards with the sums. N = 4, chunks held in [ ] ::

    rank 0 [0123] 1 [0123] 2 [0123] 3 [0123]
    step 0   0-1, 2-3 exchange halves        [01] [23] [01] [23]
    step 1   0-2, 1-3 exchange quarters      [0]  [2]  [1]  [3]    complete
    steps 2, 3: back again                   [01] [23] [01] [23], then [0123] everywhere

With p the largest power of two not above N, L = log2 p, and x = 0 if p = N, else 1 (see ``fold``: a guest's whole
vector is taken in first and handed out last):

=========== ============= ====================== =================
vector of n alpha         beta                   gamma
=========== ============= ====================== =================
all-reduce  2L + 2x       2(p-1)/p n + 2x n      (p-1)/p n + x n
=========== ============= ====================== =================

(Thakur, Rabenseifner and Gropp 2005.) Where N is no power of two, ``bruck`` needs none of the extra bytes. Near
partners come first, so that the largest messages go the shortest way and every sum is made in rank order along one
tree of depth L + x: the bits depend neither on the rank nor on the position.
"""

from __future__ import annotations

import numpy as np

from atoll.algorithms.fold import fold
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.table import Schedule


def all_reduce(world_size: int) -> Schedule:
    folded = fold(max(world_size, 1))
    power = len(folded.core)
    halving = ScheduleBuilder("all_reduce", world_size, chunks=power, name="halving_doubling")
    halving.reduce(0, folded.guests, folded.hosts, 0, num_chunks=power)
    step = 1 if len(folded.guests) else 0
    member = np.arange(power)
    start = np.zeros(power, dtype=np.int64)
    distances = [1 << k for k in range(power.bit_length() - 1)]
    for distance in distances:
        half = power // (2 * distance)
        upper = (member & distance) != 0
        theirs = start + np.where(upper, 0, half)
        halving.reduce(step, folded.core, folded.core[member ^ distance], theirs, num_chunks=half)
        start += np.where(upper, half, 0)
        step += 1
    for distance in reversed(distances):
        half = power // (2 * distance)
        halving.copy(step, folded.core, folded.core[member ^ distance], start, num_chunks=half)
        start -= np.where((member & distance) != 0, half, 0)
        step += 1
    halving.copy(step, folded.hosts, folded.guests, 0, num_chunks=power)
    return halving.build()
