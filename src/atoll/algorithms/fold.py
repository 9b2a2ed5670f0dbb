"""From any number of ranks to a power of two, for algorithms that halve or double.

Let p be the largest power of two not above N, and e = N - p. The first 2e ranks make e neighbouring pairs: the even
one is the **host**, the odd one its **guest**, who hands its contribution to the host before and gets the result
after. Hosts and the ranks without a guest are the **core**, p of them, in rank order. N = 6 (p = 4, e = 2)::

    rank   0   1   2   3   4   5
           host<-  host<-          guests 1 and 3
    core   0       1       2   3

Pairs are neighbours so that what a member of the core contributes is a run of ranks: core members a to b - 1 stand
for the ranks ``start(a)`` to ``start(b) - 1``. That keeps blocks contiguous and sums in rank order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atoll.schedule.contract import IntArray


class Fold(NamedTuple):
    """``core[i]`` is the rank of core member i; ``hosts[i]`` has the guest ``guests[i]``."""

    core: IntArray
    hosts: IntArray
    guests: IntArray

    def start(self, member: IntArray) -> IntArray:
        """The first rank that core members from ``member`` on stand for; N for one past the last member."""
        return member + np.minimum(member, len(self.hosts))


def fold(world_size: int) -> Fold:
    power = 1 << (world_size.bit_length() - 1)
    extra = world_size - power
    member = np.arange(power)
    hosts = 2 * np.arange(extra)
    return Fold(core=member + np.minimum(member, extra), hosts=hosts, guests=hosts + 1)
