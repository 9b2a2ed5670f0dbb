"""Regular schedules over a cluster without playing them: alpha and beta of each tier, for any number of GPUs.

The physical counterpart of ``nccl``: what a schedule of ``algorithms`` takes when every transfer starts as soon as its
data is there, links are shared evenly, and nothing else costs anything. Times are exact for the patterns below where
all nodes are alike, and equal to flow level there; a hundred thousand GPUs are as quick as eight.

Vocabulary. An *edge* is one transfer between two neighbours of a pattern; it has the latency and the rate of its route,
shared with the edges of the same step that cross the same links. *Tiers* are edges within an island, and between.

**Rings.** Edge e sends its message of step s when that of step s-1 has left it and the data has come from edge e-1.
With x = bytes / rate of an edge and t = x + latency, the longest chain either stays on the slowest edge, ``steps * x +
latency``, or goes round with the data, the sum of t over ``steps`` edges in a row. The larger of the two is the time:
the first for large messages, the second for small ones.

**Direct.** In each step every rank sends to all others at once. What leaves a node shares its NICs; what stays has the
island for itself. **Halving and doubling**: partners at distance 1, 2, 4, ..., bytes halved or doubled each time; from
the size of an island on all its ranks send out together. **Hierarchical**: a ring within the island, one across islands
for each rank of it, side by side on all NICs, a ring within again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from atoll.errors import SpecError, nearest
from atoll.schedule.bus_bandwidth import BUSBW_FACTOR
from atoll.simulator.communicator import Communicator, communicator
from atoll.topology.cluster import Cluster
from atoll.topology.routes import DEFAULT_TRANSPORT, Transport, find_routes


class Tier(msgspec.Struct, frozen=True):
    """``latency_s`` and rate of the transfer from one rank to the next, which has its links for itself;
    ``shared_latency_s`` and ``shared_bytes_per_s`` of transfers that all ranks make at once."""

    latency_s: float
    bytes_per_s: float
    shared_latency_s: float
    shared_bytes_per_s: float


class ClosedForm(msgspec.Struct, frozen=True):
    """Seconds in all, of which ``latency_s`` does not depend on the size; ``bound`` is the tier that bytes wait for."""

    algorithm: str
    collective: str
    ranks: int
    size_bytes: int
    time_s: float
    latency_s: float
    busbw_bytes_per_s: float
    bound: str


class _Shape(msgspec.Struct, frozen=True):
    """N ranks in M islands of g, and both tiers; ``between`` is ``None`` in one island."""

    ranks: int
    islands: int
    within: Tier
    between: Tier | None

    @property
    def per_island(self) -> int:
        return self.ranks // self.islands


_PHASES: Final = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


def closed_form(
    cluster: Cluster, collective: str, algorithm: str, size_bytes: int, gpus: int | None = None,
    transport: Transport = DEFAULT_TRANSPORT,
) -> ClosedForm:  # fmt: skip
    """The time of ``ring``, ``direct``, ``halving_doubling`` or ``hierarchical`` among the first ``gpus`` GPUs.

    Ranks are in the order of GPUs; ``size_bytes`` is the whole vector's. Raises ``SpecError`` for a pattern that is not
    regular here (islands of unequal size, no power of two), which flow level plays.
    """
    name = collective.replace("-", "_")
    if algorithm not in _ALGORITHMS:
        raise SpecError(f"no closed form of {algorithm!r}: {nearest(algorithm, _ALGORITHMS)}")
    time_of, collectives = _ALGORITHMS[algorithm]
    if name not in collectives:
        raise SpecError(f"no closed form of {algorithm} for {collective!r}: {nearest(name, collectives)}")
    if size_bytes < 0:
        raise SpecError(f"expected a size of at least 0 bytes, got {size_bytes}")
    comm = communicator(cluster, gpus, transport)
    if comm.ranks == 1:
        return ClosedForm(algorithm, name, 1, size_bytes, 0.0, 0.0, 0.0, "none")
    shape = _shape(cluster, comm, transport)
    whole, bound = time_of(shape, name, float(size_bytes))
    empty, _ = time_of(shape, name, 0.0)
    busbw = size_bytes / whole * BUSBW_FACTOR[name](comm.ranks) if whole else 0.0
    return ClosedForm(algorithm, name, comm.ranks, size_bytes, whole, empty, busbw, bound)


def _shape(cluster: Cluster, comm: Communicator, transport: Transport) -> _Shape:
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
    within = Tier(0.0, math.inf, 0.0, math.inf)
    if g > 1:
        alone = min(float(rate[mine].min()), comm.intra_bytes_per_s)
        reach = float(latency[mine].max())
        within = Tier(reach, alone, reach, comm.exchange_bytes_per_s)
    if comm.domains == 1:
        return _Shape(n, 1, within, None)
    shared = min(float(rate[across].min()), comm.network_bytes_per_s / g)
    between = Tier(float(latency[out].max()), float(rate[out].min()), float(latency[across].max()), shared)
    return _Shape(n, comm.domains, within, between)


def _boundaries(cluster: Cluster, comm: Communicator) -> NDArray[np.int64]:
    """The last ranks of islands: of the first, of the first whose successor is on other leaves, and of the last."""
    g = comm.per_domain
    found = [g - 1, comm.ranks - 1]
    if cluster.fabric is not None:
        unit = cluster.fabric.nodes_per_leaf * comm.ranks // comm.nodes
        if unit < comm.ranks:
            found.append(unit - 1)
    return np.array(sorted(set(found)), dtype=np.int64)


def _ring(shape: _Shape, collective: str, size_bytes: float) -> tuple[float, str]:
    return _ring_time(shape, size_bytes / shape.ranks, _PHASES[collective] * (shape.ranks - 1))


def _ring_time(shape: _Shape, message: float, steps: int) -> tuple[float, str]:
    """See the module's text; the slowest chain of ``steps`` messages."""
    within, between = shape.within, shape.between
    if between is None:
        return steps * (message / within.bytes_per_s + within.latency_s), "within"
    inner, outer = message / within.bytes_per_s, message / between.bytes_per_s
    hop, leap = inner + within.latency_s, outer + between.latency_s
    stay = max(steps * outer + between.latency_s, steps * inner + within.latency_s)
    g = shape.per_island
    # Edges in a row: as many leaps as fit, beginning with one where leaping is slower.
    laps, rest = divmod(steps, g)
    leaps = laps + (1 if rest and leap >= hop else 0)
    if leap < hop and rest > g - 1:
        leaps += 1
    move = leaps * leap + (steps - leaps) * hop
    return max(stay, move), "between" if outer >= inner else "within"


def _direct(shape: _Shape, collective: str, size_bytes: float) -> tuple[float, str]:
    message = size_bytes / shape.ranks
    phases = 1 if collective == "all_to_all" else _PHASES[collective]
    within, between = shape.within, shape.between
    near = shape.per_island - 1
    far = shape.ranks - shape.per_island
    far_rate = between.shared_bytes_per_s / far if between is not None else 0.0
    # What leaves the island takes its share of the GPU's own links too where they lead to the NIC; over NVLink not.
    inside = message * near / within.shared_bytes_per_s + within.latency_s if near else 0.0
    outside = message / far_rate + between.shared_latency_s if between is not None else 0.0
    return phases * max(inside, outside), "between" if outside > inside else "within"


def _halving_doubling(shape: _Shape, collective: str, size_bytes: float) -> tuple[float, str]:
    n = shape.ranks
    if n & (n - 1) or shape.per_island & (shape.per_island - 1):
        raise SpecError(f"halving and doubling is regular for powers of two, got {n} ranks; flow level plays others")
    total, parts = 0.0, {"within": 0.0, "between": 0.0}
    for level in range(n.bit_length() - 1):
        distance = n >> (level + 1)
        away = distance >= shape.per_island
        tier = shape.between if away and shape.between is not None else shape.within
        rate = tier.shared_bytes_per_s if away else tier.bytes_per_s
        moved = size_bytes / 2 ** (level + 1) / rate
        total += moved + (tier.shared_latency_s if away else tier.latency_s)
        parts["between" if away else "within"] += moved
    phases = _PHASES[collective]
    return phases * total, max(parts, key=lambda name: parts[name])


def _hierarchical(shape: _Shape, collective: str, size_bytes: float) -> tuple[float, str]:
    g, m = shape.per_island, shape.islands
    phases = _PHASES[collective]
    inner = phases * (g - 1) * (size_bytes / g / shape.within.bytes_per_s + shape.within.latency_s) if g > 1 else 0.0
    outer = 0.0
    if shape.between is not None:
        tier = shape.between
        outer = phases * (m - 1) * (size_bytes / (g * m) / tier.shared_bytes_per_s + tier.shared_latency_s)
    return inner + outer, "between" if outer > inner else "within"


_Time = Callable[[_Shape, str, float], tuple[float, str]]
_ALGORITHMS: Final[dict[str, tuple[_Time, tuple[str, ...]]]] = {
    "ring": (_ring, tuple(_PHASES)),
    "direct": (_direct, (*_PHASES, "all_to_all")),
    "halving_doubling": (_halving_doubling, tuple(_PHASES)),
    "hierarchical": (_hierarchical, tuple(_PHASES)),
}
