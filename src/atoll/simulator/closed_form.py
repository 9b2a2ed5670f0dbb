"""Regular schedules over a cluster without playing them: alpha and beta of each tier, for any number of GPUs.

The physical counterpart of ``nccl``: what a schedule of ``algorithms`` takes when every transfer starts as soon as its
first byte is there, messages of one lane follow each other, links are shared evenly, and nothing else costs anything.
For the patterns below, with islands that are alike, that is what flow level gives; a hundred thousand GPUs are as quick
as eight.

Vocabulary. *Tiers* are transfers within an island, and between islands. x = bytes / rate is what a message takes on its
wire, L its latency; N ranks in M islands of g.

- **Ring.** A lane pays latency and bytes of one message after the other, and all wait for the slowest lane: ``steps
  (L + x)`` of the tier where that is more, with 2(N-1) steps for all-reduce, N-1 for all-gather and reduce-scatter.
- **Direct.** Every rank sends to all others at once. What leaves an island shares its NICs: the messages on the NIC's
  own rail begin first, those to other rails come by NVLink and begin later. Twice for all-reduce. The order in which
  contributions are added is left out: flow level, which keeps to it, is slower by up to N latencies.
- **Hierarchical.** A ring within each island, one across islands for each of its ranks, all at the same time on their
  own NICs, a ring within again. The phases overlap where they meet, by all but 1/M of a message before, and after by
  what the last message across has already brought.
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
    """The time of ``ring``, ``direct`` or ``hierarchical`` among the first ``gpus`` GPUs.

    Ranks are in the order of GPUs; ``size_bytes`` is the whole vector's. Raises ``SpecError`` for a pattern that is not
    regular here (islands of unequal size), which flow level plays.
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
    steps = _PHASES[collective] * (shape.ranks - 1)
    message = size_bytes / shape.ranks
    inside = message / shape.within.bytes_per_s + shape.within.latency_s
    outside = 0.0
    if shape.between is not None:
        outside = message / shape.between.bytes_per_s + shape.between.latency_s
    return steps * max(inside, outside), "between" if outside > inside else "within"


def _direct(shape: _Shape, collective: str, size_bytes: float) -> tuple[float, str]:
    message = size_bytes / shape.ranks
    phases = _PHASES.get(collective, 1)
    within, between = shape.within, shape.between
    near = shape.per_island - 1
    inside = message * near / within.shared_bytes_per_s + within.latency_s if near else 0.0
    outside = 0.0
    if between is not None:
        x = message / between.shared_bytes_per_s
        far, on_rail = shape.ranks - shape.per_island, shape.islands - 1
        others = between.latency_s + (far - on_rail) * x if far > on_rail else 0.0
        outside = max(between.shared_latency_s + far * x, others)
    return phases * max(inside, outside), "between" if outside > inside else "within"


def _hierarchical(shape: _Shape, collective: str, size_bytes: float) -> tuple[float, str]:
    g, m = shape.per_island, shape.islands
    phases = _PHASES[collective]
    latency, x = shape.within.latency_s, size_bytes / g / shape.within.bytes_per_s
    inner = phases * (g - 1) * (x + latency)
    if shape.between is None:
        return inner, "within"
    across = size_bytes / (g * m) / shape.between.shared_bytes_per_s
    outer = phases * (m - 1) * (across + shape.between.shared_latency_s)
    rest = x * (1 - 1 / m) if g > 1 else 0.0
    overlap = rest + (min(across, latency + rest) if g > 1 else 0.0)
    return inner + outer - overlap, "between" if outer > inner else "within"


_Time = Callable[[_Shape, str, float], tuple[float, str]]
_ALGORITHMS: Final[dict[str, tuple[_Time, tuple[str, ...]]]] = {
    "ring": (_ring, tuple(_PHASES)),
    "direct": (_direct, (*_PHASES, "all_to_all")),
    "hierarchical": (_hierarchical, ("all_reduce",)),
}
