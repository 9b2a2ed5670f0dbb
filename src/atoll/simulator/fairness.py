"""Max-min fair rates of transfers that share links: rates rise together, a full link freezes those that cross it.

Most links never fill. A lane is never faster than the slowest link of its route; where the lanes of a link do not come
to more than it carries even at that, the link holds nobody up. Only the other links are **tight**; a lane without one
has a rate of its own, whatever the others do. Lanes with tight links fall into **groups** of those that are joined by
tight links, one after the other. What happens in a group changes no rate in another.

Rates are worked out in rounds. What is left of a link, shared equally among its lanes that still rise, is its share. A
link whose share is the least on the way of each of those lanes is full at that rate. All such links are frozen in one
round; the shares of the others only grow by it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from atoll.errors import SpecError
from atoll.topology.cluster import Cluster, Floats, Integers
from atoll.topology.names import link_name
from atoll.topology.routes import Routes

_NEAR: Final = 1e-9
_FREE_BYTES_PER_S: Final = 1e18  # a move that crosses no link
_MOST_REMEMBERED: Final = 1 << 21  # rates, of sets of lanes that were worked out


def ragged(starts: Integers, lengths: Integers) -> Integers:
    """``starts[0]``, ``starts[0] + 1``, ... ``lengths[0]`` of them, then those of the next."""
    inner: Integers = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths - starts, lengths)
    return inner


class Fairness:
    """The rates of the lanes of one simulation. ``order``: lanes with tight links first, ``contended`` of them.

    All numbers of lanes below are places in that order. ``own_bytes_per_s``: the slowest link of the route, and
    ``own_limit``: its number, -1 for a route without links. ``group``: of each contended lane.
    """

    def __init__(self, cluster: Cluster, routes: Routes) -> None:
        """Raises ``SpecError`` for a route over a link without bandwidth."""
        capacity = cluster.usable_bytes_per_s
        lengths = np.diff(routes.offsets)
        lane = np.repeat(np.arange(len(routes)), lengths)
        along = capacity[routes.links]
        if len(along) and along.min() <= 0:
            dead = int(routes.links[int(along.argmin())])
            raise SpecError(
                f"cluster {cluster.name!r}: {link_name(cluster, dead)} has no bandwidth, and something must cross it; "
                "take it off the routes, or leave it a share of more than 0"
            )
        own = np.minimum(routes.bottleneck_bytes_per_s(cluster), _FREE_BYTES_PER_S)
        limit = np.full(len(routes), -1, dtype=np.int64)
        slowest = along <= own[lane] * (1 + _NEAR)
        limit[lane[slowest]] = routes.links[slowest]
        wanted = np.bincount(routes.links, weights=own[lane], minlength=len(capacity))
        tight = (wanted > capacity * (1 + _NEAR))[routes.links]
        contended = np.zeros(len(routes), dtype=bool)
        contended[lane[tight]] = True
        self.order: Integers = np.argsort(~contended, kind="stable")
        self.contended = int(contended.sum())
        self.own_bytes_per_s: Floats = own[self.order]
        self.own_limit: Integers = limit[self.order]
        # Of the contended lanes only tight links and the slowest one matter.
        place = np.empty(len(routes), dtype=np.int64)
        place[self.order] = np.arange(len(routes))
        kept = np.flatnonzero(tight | (contended[lane] & (routes.links == limit[lane])))
        kept = kept[np.argsort(place[lane[kept]], kind="stable")]
        self._links, self._at = np.unique(routes.links[kept], return_inverse=True)
        self._capacity: Floats = capacity[self._links]
        self._lengths = np.bincount(place[lane[kept]], minlength=self.contended)[: self.contended]
        self._first = np.cumsum(self._lengths) - self._lengths
        self.group: Integers = self._groups()
        self._known: dict[bytes, tuple[Floats, Integers]] = {}
        self._remembered = 0

    def _groups(self) -> Integers:
        """The least number of a lane that each contended one is joined to."""
        label = np.arange(self.contended)
        if not self.contended:
            return label
        while True:
            least = np.full(len(self._links), self.contended)
            np.minimum.at(least, self._at, np.repeat(label, self._lengths))
            found = np.minimum.reduceat(least[self._at], self._first)
            found = found[found]
            if np.array_equal(found, label):
                return label
            label = found

    def rates(self, lanes: Integers) -> tuple[Floats, Integers]:
        """Of all contended lanes that flow in some groups, ascending: bytes per second, and the link that is full."""
        key = lanes.tobytes()
        found = self._known.get(key)
        if found is None:
            if self._remembered + len(lanes) > _MOST_REMEMBERED:
                self._known.clear()
                self._remembered = 0
            found = self._known[key] = self._work_out(lanes)
            self._remembered += len(lanes)
        return found

    def _work_out(self, lanes: Integers) -> tuple[Floats, Integers]:
        left = self._capacity.copy()
        rate, full = np.zeros(len(lanes)), np.zeros(len(lanes), dtype=np.int64)
        rising = np.arange(len(lanes))
        while len(rising):
            lengths = self._lengths[lanes[rising]]
            at = self._at[ragged(self._first[lanes[rising]], lengths)]
            first = np.cumsum(lengths) - lengths
            users = np.bincount(at, minlength=len(left))
            share = left / np.maximum(users, 1)
            level = np.minimum.reduceat(share[at], first)
            least = np.full(len(left), np.inf)
            np.minimum.at(least, at, np.repeat(level, lengths))
            stops: NDArray[np.bool_] = (least >= share * (1 - _NEAR))[at]
            frozen = np.logical_or.reduceat(stops, first)
            full[np.repeat(rising, lengths)[stops]] = self._links[at[stops]]
            rate[rising[frozen]] = level[frozen]
            gone = np.repeat(frozen, lengths)
            taken = np.bincount(at[gone], weights=np.repeat(level, lengths)[gone], minlength=len(left))
            left = np.maximum(left - taken, 0.0)
            rising = rising[~frozen]
        return rate, full
