"""What a regular world looks like to a closed form: islands that are alike, and the two or three tiers between ranks.

Vocabulary. N ranks in M islands of g, in the order of GPUs. A **tier** has alpha, a latency; beta, as a rate; gamma, as
the seconds that a byte takes to combine which came over it. *Within* an island; *between* islands; *beyond* the leaf
switches of a node, where a fabric has more than one leaf: an uplink there may carry less than the NICs below it.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from atoll.errors import SpecError
from atoll.simulator.communicator import Communicator
from atoll.topology.cluster import Cluster
from atoll.topology.routes import Transport, find_routes


class Tier(msgspec.Struct, frozen=True):
    """``latency_s`` and rate of the transfer from one rank to the next, which has its links for itself;
    ``shared_latency_s`` and ``shared_bytes_per_s`` of transfers that all ranks make at once, each to the rank in its
    own place on another island. ``gamma_s_per_byte``: what reducing costs."""

    latency_s: float
    bytes_per_s: float
    shared_latency_s: float
    shared_bytes_per_s: float
    gamma_s_per_byte: float = 0.0

    def alone_s(self, size_bytes: float) -> float:
        """To the next rank."""
        return self.latency_s + size_bytes / self.bytes_per_s

    def shared_s(self, size_bytes: float) -> float:
        """Of all ranks at once."""
        return self.shared_latency_s + size_bytes / self.shared_bytes_per_s


class Shape(msgspec.Struct, frozen=True):
    """N ranks in M islands of g, and the tiers; ``between`` is ``None`` in one island, ``leaf_ranks`` 0 on one leaf."""

    ranks: int
    islands: int
    within: Tier
    between: Tier | None
    leaf_ranks: int = 0
    beyond_bytes_per_s: float = math.inf

    @property
    def per_island(self) -> int:
        return self.ranks // self.islands

    def apart(self, distance: int) -> tuple[Tier, bool]:
        """The tier of all ranks at once with partners so many ranks away, a power of two, and whether it is between
        islands. Raises ``SpecError`` where narrow uplinks hold up some of them and others not."""
        if distance < self.per_island or self.between is None:
            return self.within, False
        if not self.leaf_ranks or self.beyond_bytes_per_s >= self.between.shared_bytes_per_s:
            return self.between, True
        if self.leaf_ranks & (self.leaf_ranks - 1):
            raise SpecError(
                f"{self.leaf_ranks} ranks to a leaf whose uplinks carry less than its NICs: partners are not all on "
                "this side or all beyond; flow level plays it"
            )
        if distance < self.leaf_ranks:
            return self.between, True
        return msgspec.structs.replace(self.between, shared_bytes_per_s=self.beyond_bytes_per_s), True


def shape_of(
    cluster: Cluster, comm: Communicator, transport: Transport, reduce_bytes_per_s: tuple[float, float]
) -> Shape:
    """The shape of a communicator of the first GPUs; ``reduce_bytes_per_s`` of what came within, and between. Raises
    ``SpecError`` where islands are not alike."""
    if comm.per_domain != comm.smallest_domain:
        raise SpecError(
            f"{comm.ranks} GPUs of {cluster.name!r} lie {comm.per_domain} to an island and {comm.smallest_domain} to "
            "the smallest; a closed form needs equal ones, flow level does not"
        )
    # The way round a ring of the first island, whose links may be shared on PCIe, then ways between islands.
    g, n = comm.per_domain, comm.ranks
    here = np.arange(g if g > 1 else 0, dtype=np.int64)
    edges = _boundaries(cluster, comm) if comm.domains > 1 else here[:0]
    routes = find_routes(
        cluster,
        np.concatenate((here, edges, edges)),
        np.concatenate((np.roll(here, -1), (edges + 1) % n, (edges + g) % n)),
        0,
        transport,
    )
    latency, rate = routes.latency_s(cluster), routes.bottleneck_bytes_per_s(cluster)
    mine, out, across = np.split(np.arange(len(routes)), [len(here), len(here) + len(edges)])
    gamma, gamma_between = (1 / rate for rate in reduce_bytes_per_s)
    within = Tier(0.0, math.inf, 0.0, math.inf)
    if g > 1:
        alone = min(float(rate[mine].min()), comm.intra_bytes_per_s)
        reach = float(latency[mine].max())
        within = Tier(reach, alone, reach, comm.exchange_bytes_per_s, gamma)
    if comm.domains == 1:
        return Shape(n, 1, within, None)
    shared = min(float(rate[across].min()), comm.network_bytes_per_s / g)
    between = Tier(
        float(latency[out].max()), float(rate[out].min()), float(latency[across].max()), shared, gamma_between
    )
    unit = 0 if cluster.fabric is None else cluster.fabric.nodes_per_leaf * n // comm.nodes
    beyond = comm.leaf_bytes_per_s / comm.ranks_per_node
    return Shape(n, comm.domains, within, between, unit if unit < n else 0, beyond)


def _boundaries(cluster: Cluster, comm: Communicator) -> NDArray[np.int64]:
    """The last ranks of islands: of the first, of the first whose successor is on other leaves, and of the last."""
    g = comm.per_domain
    found = [g - 1, comm.ranks - 1]
    if cluster.fabric is not None:
        unit = cluster.fabric.nodes_per_leaf * comm.ranks // comm.nodes
        if unit < comm.ranks:
            found.append(unit - 1)
    return np.array(sorted(set(found)), dtype=np.int64)
