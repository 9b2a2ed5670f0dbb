"""Regular schedules over a cluster without playing them: alpha and beta of each tier, for any number of GPUs.

The physical counterpart of ``nccl``: what a schedule of ``algorithms`` takes when messages of one lane follow each
other, links are shared evenly, and nothing else costs anything. For the patterns below, with islands that are alike,
that is what flow level gives; a hundred thousand GPUs are as quick as eight.

Vocabulary. *Tiers* are transfers within an island, and between islands (``tiers``): each has an alpha, a beta and a
gamma. x = bytes / rate is what a message takes on its wire, L its latency; N ranks in M islands of g. Where a step adds
what it received, gamma bytes come on top; flow level, for which reducing costs nothing, is gamma = 0.

Rings and all pairs take as long in segments as whole, hierarchies less; their forms are of fine segments. Trees and
exchanges (``closed_form_trees``) depend on them more, and move whole here.

- **Ring.** A lane pays latency and bytes of one message after the other, and all wait for the slowest lane: ``steps
  (L + x)`` of the tier where that is more, with 2(N-1) steps for all-reduce, N-1 for all-gather and reduce-scatter.
- **Direct.** Every rank sends to all others at once. What leaves an island shares its NICs: the messages on the NIC's
  own rail begin first, those to other rails come by NVLink and begin later. Twice for all-reduce. The order in which
  contributions are added is left out: flow level, which keeps to it, is slower by up to N latencies in fine segments,
  and several times in whole messages. ``ordered``, which keeps contributions apart until all are there, has no such
  order; ``pairwise`` is the all-to-all, ``one_shot`` sends whole vectors. The naive ring passes on whole vectors too.
- **Bidirectional ring.** Half a message each way: within an island both share the wires, between each has its NIC.
- **Hierarchical.** A ring within each island, one across islands for each of its ranks, all at the same time on their
  own NICs, a ring within again. The phases overlap where they meet, by all but 1/M of a message before, and after by
  what the last message across has already brought.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec

from atoll.errors import SpecError, nearest
from atoll.schedule.bus_bandwidth import BUSBW_FACTOR
from atoll.simulator import closed_form_trees as trees
from atoll.simulator.communicator import communicator
from atoll.simulator.nccl_constants import PCI
from atoll.simulator.tiers import Shape, shape_of
from atoll.topology.cluster import Cluster
from atoll.topology.routes import DEFAULT_TRANSPORT, Transport

FREE: Final = (math.inf, math.inf)


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


# Whether each phase adds what it receives.
_PHASES: Final = {"all_reduce": (1, 0), "reduce_scatter": (1,), "all_gather": (0,)}


def closed_form(
    cluster: Cluster, collective: str, algorithm: str, size_bytes: int, gpus: int | None = None,
    transport: Transport = DEFAULT_TRANSPORT, *, segment_bytes: float | None = None,
    reduce_bytes_per_s: tuple[float, float] = FREE,
) -> ClosedForm:  # fmt: skip
    """The time of one of ``ALGORITHMS`` among the first ``gpus`` GPUs.

    Ranks are in the order of GPUs, the root is the first; ``size_bytes`` is the whole vector's. ``segment_bytes``: the
    longest piece of a chain; ``None``: whole. ``reduce_bytes_per_s``: how fast a rank adds what came from its island,
    and from others. Raises ``SpecError`` for a pattern that is not regular here (unequal islands, no powers of two
    where they are needed), which flow level plays.
    """
    name = collective.replace("-", "_")
    if algorithm not in ALGORITHMS:
        raise SpecError(f"no closed form of {algorithm!r}: {nearest(algorithm, ALGORITHMS)}")
    time_of, collectives = ALGORITHMS[algorithm]
    if name not in collectives:
        raise SpecError(f"no closed form of {algorithm} for {collective!r}: {nearest(name, collectives)}")
    if size_bytes < 0:
        raise SpecError(f"expected a size of at least 0 bytes, got {size_bytes}")
    longest = math.inf if segment_bytes is None else segment_bytes
    if not longest > 0 or not min(reduce_bytes_per_s) > 0:
        raise SpecError(f"expected a segment and rates of reduction above 0, got {longest} and {reduce_bytes_per_s}")
    comm = communicator(cluster, gpus, transport)
    if comm.ranks == 1:
        return ClosedForm(algorithm, name, 1, size_bytes, 0.0, 0.0, 0.0, "none")
    if time_of in BY_DISTANCE and comm.link == PCI and comm.per_domain > 1:
        raise SpecError(f"{algorithm}: over PCIe the way to a partner depends on which it is; flow level plays it")
    shape = shape_of(cluster, comm, transport, reduce_bytes_per_s)
    whole, bound = time_of(shape, name, float(size_bytes), longest)
    empty, _ = time_of(shape, name, 0.0, longest)
    busbw = size_bytes / whole * BUSBW_FACTOR[name](comm.ranks) if whole else 0.0
    return ClosedForm(algorithm, name, comm.ranks, size_bytes, whole, empty, busbw, bound)


def _ring(shape: Shape, collective: str, size_bytes: float, segment_bytes: float) -> trees.Found:
    return _around(shape, collective, size_bytes / shape.ranks, size_bytes / shape.ranks)


def _bidirectional_ring(shape: Shape, collective: str, size_bytes: float, segment_bytes: float) -> trees.Found:
    return _around(shape, collective, size_bytes / shape.ranks, size_bytes / shape.ranks / 2)


def _naive(shape: Shape, collective: str, size_bytes: float, segment_bytes: float) -> trees.Found:
    time, bound = _around(shape, "all_gather", size_bytes, size_bytes)
    return time + _added_s(shape, size_bytes), bound


def _around(shape: Shape, collective: str, inside_bytes: float, outside_bytes: float) -> trees.Found:
    """A ring whose messages have so many bytes on an island's wires, and on a NIC; the second half only copies."""
    within, between = shape.within, shape.between
    time, outer = 0.0, False
    for reduces in _PHASES[collective]:
        inside = within.alone_s(inside_bytes) + reduces * within.gamma_s_per_byte * inside_bytes
        outside = 0.0
        if between is not None:
            outside = between.alone_s(outside_bytes) + reduces * between.gamma_s_per_byte * inside_bytes
        time += (shape.ranks - 1) * max(inside, outside)
        outer = outside > inside
    return time, "between" if outer else "within"


def _added_s(shape: Shape, message_bytes: float) -> float:
    """Of adding one message of every other rank."""
    far = 0.0 if shape.between is None else (shape.ranks - shape.per_island) * shape.between.gamma_s_per_byte
    return message_bytes * ((shape.per_island - 1) * shape.within.gamma_s_per_byte + far)


def _direct(shape: Shape, collective: str, size_bytes: float, segment_bytes: float) -> trees.Found:
    return _all_pairs(shape, size_bytes / shape.ranks, _PHASES.get(collective, (0,)))


def _one_shot(shape: Shape, collective: str, size_bytes: float, segment_bytes: float) -> trees.Found:
    return _all_pairs(shape, size_bytes, (1,))


def _all_pairs(shape: Shape, message: float, phases: tuple[int, ...]) -> trees.Found:
    within, between = shape.within, shape.between
    near = shape.per_island - 1
    inside = message * near / within.shared_bytes_per_s + within.latency_s if near else 0.0
    outside = 0.0
    if between is not None:
        x = message / between.shared_bytes_per_s
        far, on_rail = shape.ranks - shape.per_island, shape.islands - 1
        others = between.latency_s + (far - on_rail) * x if far > on_rail else 0.0
        outside = max(between.shared_latency_s + far * x, others)
    time = len(phases) * max(inside, outside) + sum(phases) * _added_s(shape, message)
    return time, "between" if outside > inside else "within"


def _hierarchical(shape: Shape, collective: str, size_bytes: float, segment_bytes: float) -> trees.Found:
    g, m = shape.per_island, shape.islands
    latency, x = shape.within.latency_s, size_bytes / g / shape.within.bytes_per_s
    added = shape.within.gamma_s_per_byte * size_bytes / g
    inner = (g - 1) * (2 * (x + latency) + added)
    if shape.between is None:
        return inner, "within"
    message = size_bytes / (g * m)
    across = message / shape.between.shared_bytes_per_s
    outer = (m - 1) * (2 * shape.between.shared_s(message) + shape.between.gamma_s_per_byte * message)
    rest = x * (1 - 1 / m) if g > 1 else 0.0
    overlap = rest + (min(across, latency + rest) if g > 1 else 0.0)
    return inner + outer - overlap, "between" if outer > inner else "within"


_Time = Callable[[Shape, str, float, float], trees.Found]
BY_DISTANCE: Final[tuple[_Time, ...]] = (
    trees.recursive, trees.halving_doubling, trees.binomial, trees.double_binary_tree,
)  # fmt: skip
ALGORITHMS: Final[dict[str, tuple[_Time, tuple[str, ...]]]] = {
    "ring": (_ring, tuple(_PHASES)),
    "bidirectional_ring": (_bidirectional_ring, tuple(_PHASES)),
    "naive": (_naive, ("all_reduce",)),
    "direct": (_direct, (*_PHASES, "all_to_all")),
    "ordered": (_direct, ("all_reduce", "reduce_scatter")),
    "pairwise": (_direct, ("all_to_all",)),
    "one_shot": (_one_shot, ("all_reduce",)),
    "hierarchical": (_hierarchical, ("all_reduce",)),
    "recursive_doubling": (trees.recursive, ("all_reduce", "all_gather")),
    "recursive_halving": (trees.recursive, ("reduce_scatter",)),
    "halving_doubling": (trees.halving_doubling, ("all_reduce",)),
    "binomial_tree": (trees.binomial, ("all_reduce", "broadcast", "reduce", "gather")),
    "double_binary_tree": (trees.double_binary_tree, ("all_reduce",)),
    "chain": (trees.chain, ("broadcast", "reduce")),
}
"""What there is a closed form of, and for which collectives."""
IN_SEGMENTS: Final = (
    "ring", "bidirectional_ring", "naive", "direct", "ordered", "pairwise", "one_shot", "hierarchical",
)  # fmt: skip
"""Those whose form is of messages in fine segments, as the runtime moves them."""
