"""What parallel groups move, link by link, when one group, all of a kind, or the whole job moves at once.

Vocabulary. A *demand* is one collective that every group of a kind makes, with its size and how often a step of
training makes it. A *stage* is a part of it that repeats alike: pairs of GPUs, the channel, the bytes of each pair, how
often. A *load* is the bytes that a directed link carries, or the seconds that these take.

Rules:

- A stage takes the longest latency of its routes and then as long as its busiest link: loads of all that runs at the
  same time add up on a link. A collective takes the sum of its stages; stages of all groups run in step.
- ``alone`` is the slowest group with the links for itself, ``kind`` all groups of the kind at once, ``together``
  every demand once, all started at the same moment. There links are shared fairly among the groups that cross them: a
  short demand waits for as much of a long one as passes meanwhile, a long one for all of the short. A demand that is
  held up elsewhere takes no more of a link than passes there.
- Rings go *in rank order* on one channel (a plain ring), or *in topology order*, as NCCL lays them: island by island,
  one ring for each GPU of the group in an island (times the NICs near a GPU), each leaving the island by another GPU.

Sizes are nccl-tests': the whole vector; for all-to-all what a rank sends in all; for send what is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from atoll.errors import SpecError, nearest
from atoll.planning.placement import Placement, traffic_pairs
from atoll.topology.cluster import Floats, Integers
from atoll.topology.names import link_name
from atoll.topology.node_paths import node_paths
from atoll.topology.routes import find_routes

Algorithm = Literal["ring", "rank-order-ring", "hierarchical"]
ALGORITHMS: Final = ("ring", "rank-order-ring", "hierarchical")
COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")


class Demand(msgspec.Struct, frozen=True):
    """``times`` collectives of ``size_bytes`` by every group of ``kind`` in a step; ``algorithm`` of rings."""

    kind: str
    collective: str
    size_bytes: float
    times: float = 1.0
    algorithm: Algorithm = "ring"

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise SpecError(
                f"{self.kind}: unknown collective {self.collective!r}: {nearest(self.collective, COLLECTIVES)}"
            )
        if self.algorithm not in ALGORITHMS:
            raise SpecError(f"{self.kind}: unknown algorithm {self.algorithm!r}: {nearest(self.algorithm, ALGORITHMS)}")
        if not (0 <= self.size_bytes < 2**63 and self.times >= 0):
            raise SpecError(f"{self.kind}: expected a size and a number of times of at least 0")
        if self.algorithm == "hierarchical" and self.collective != "all_reduce":
            raise SpecError(f"{self.kind}: hierarchical is of all_reduce, got {self.collective}")


class Stage(msgspec.Struct, frozen=True, eq=False):
    """Pairs that move at once: of which group, from and to which GPU, on which channel, how many bytes; ``repeat``."""

    group: Integers
    src: Integers
    dst: Integers
    channel: Integers
    size_bytes: Floats
    repeat: float


class Cost(msgspec.Struct, frozen=True):
    """Seconds of one collective of a demand; see the module's text. ``bottleneck`` names the busiest link of its kind,
    ``shared`` how many groups of the kind cross it."""

    demand: Demand
    groups: int
    ranks: int
    alone_s: float
    kind_s: float
    together_s: float
    bottleneck: str
    shared: int

    @property
    def step_s(self) -> float:
        """What a step of training spends on it when nothing is hidden."""
        return self.kind_s * self.demand.times


class _Load(msgspec.Struct, frozen=True, eq=False):
    """One demand on the links: alone and kind seconds, latency, seconds of each link in all, groups that cross it."""

    alone_s: float
    kind_s: float
    latency_s: float
    link_s: Floats
    crossing: Floats
    busiest: int
    shared: int


def costs(placement: Placement, demands: Sequence[Demand]) -> tuple[Cost, ...]:
    """What each demand takes. Groups of one rank move nothing. Raises ``SpecError`` for unknown kinds."""
    loads = [_load(placement, demand) for demand in demands]
    result = []
    for demand, load in zip(demands, loads, strict=True):
        together = load.latency_s + _shared_s(load, loads)
        groups = placement.parallelism.groups(demand.kind)
        name = link_name(placement.cluster, load.busiest) if load.busiest >= 0 else ""
        result.append(
            Cost(demand, len(groups), groups.shape[1], load.alone_s, load.kind_s, max(together, load.kind_s), name,
                 load.shared)
        )  # fmt: skip
    return tuple(result)


def _shared_s(mine: _Load, loads: Sequence[_Load]) -> float:
    """Until ``mine`` has passed its busiest link, of which every crossing group gets the same share."""
    used = np.flatnonzero(mine.link_s)
    if not len(used):
        return 0.0
    own, ways = mine.link_s[used], mine.crossing[used]
    busy = np.zeros(len(used))
    for load in loads:
        share = np.minimum(load.link_s[used], own * load.crossing[used] / ways)
        if load is not mine and load.kind_s > 0:
            # Held by a slower link elsewhere, it passes here at that link's pace.
            share = np.minimum(share, load.link_s[used] * min(1.0, mine.kind_s / load.kind_s))
        busy += share
    return float(busy.max())


def _load(placement: Placement, demand: Demand) -> _Load:
    cluster = placement.cluster
    groups = len(placement.parallelism.groups(demand.kind))
    link_s, crossing = np.zeros(cluster.num_links), np.zeros(cluster.num_links)
    alone = np.zeros(groups)
    kind_s = latency_s = longest = 0.0
    busiest, shared = -1, 0
    for stage in stages(placement, demand):
        routes = find_routes(
            cluster, stage.src, stage.dst, stage.channel, placement.transport, job=placement.gpus
        )  # fmt: skip
        if not len(routes.links):
            continue
        lengths = np.diff(routes.offsets)
        latency = routes.latency_s(cluster)
        of_group = np.repeat(stage.group, lengths)
        seconds = np.repeat(stage.size_bytes, lengths) / cluster.bandwidth_of(routes.links)
        span = cluster.num_links
        keys, where = np.unique(of_group * span + routes.links, return_inverse=True)
        each = np.bincount(where.ravel(), weights=seconds)
        mine, of_key = np.zeros(groups), keys // span
        np.maximum.at(mine, of_key, each)
        slowest = np.zeros(groups)
        np.maximum.at(slowest, stage.group, latency)
        alone += stage.repeat * (mine + slowest)
        links, at = np.unique(keys % span, return_inverse=True)
        busy = np.bincount(at.ravel(), weights=each)
        kind_s += stage.repeat * float(busy.max() + latency.max())
        latency_s += stage.repeat * float(latency.max())
        link_s[links] += stage.repeat * busy
        many = np.bincount(at.ravel())
        crossing[links] = np.maximum(crossing[links], many)
        if stage.repeat * busy.max() > longest:
            longest = stage.repeat * float(busy.max())
            worst = int(busy.argmax())
            busiest, shared = int(links[worst]), int(many[worst])
    return _Load(float(alone.max(initial=0.0)), kind_s, latency_s, link_s, crossing, busiest, shared)


def stages(placement: Placement, demand: Demand) -> list[Stage]:
    """The stages of a demand."""
    ranks = placement.parallelism.degree(demand.kind)
    if ranks == 1 or not demand.size_bytes:
        return []
    if demand.collective in ("send", "all_to_all"):
        number, src, dst = traffic_pairs(placement, demand.kind)
        if demand.collective == "send":
            # One way: the way back carries gradients, another send.
            forwards = np.tile(np.arange(2 * ranks - 2) < ranks - 1, len(placement.parallelism.groups(demand.kind)))
            if demand.kind != "pp":
                forwards = np.ones(len(src), dtype=bool)
            number, src, dst = number[forwards], src[forwards], dst[forwards]
            share = np.full(len(src), float(demand.size_bytes))
        else:
            if demand.kind != "ep":
                number, src, dst = _all_pairs(placement.group_gpus(demand.kind))
            groups = len(placement.parallelism.groups(demand.kind))
            peers = len(src) // (groups * ranks)
            # Where not all pairs are routed, those that are stand for the rest.
            share = np.full(len(src), demand.size_bytes * (ranks - 1) / ranks / peers)
        return [Stage(number, src, dst, np.zeros_like(src), share, 1.0)]
    if demand.algorithm == "hierarchical":
        return _hierarchical(placement, demand)
    passes = 2 if demand.collective == "all_reduce" else 1
    orders = _orders(placement, demand)
    channels, groups = orders.shape[:2]
    src, dst = orders.ravel(), np.roll(orders, -1, axis=2).ravel()
    number = np.tile(np.repeat(np.arange(groups), ranks), channels)
    channel = np.repeat(np.arange(channels), groups * ranks)
    share = np.full(len(src), demand.size_bytes / ranks / channels)
    return [Stage(number, src, dst, channel, share, passes * (ranks - 1))]


def _all_pairs(members: Integers) -> tuple[Integers, Integers, Integers]:
    groups, ranks = members.shape
    at = np.arange(ranks)
    src = np.repeat(at, ranks - 1)
    dst = (src + np.tile(np.arange(1, ranks), ranks)) % ranks
    return np.repeat(np.arange(groups), len(src)), members[:, src].ravel(), members[:, dst].ravel()


def _orders(placement: Placement, demand: Demand) -> Integers:
    """[channels, groups, ranks] of GPUs: the rings of each group."""
    members = placement.group_gpus(demand.kind)
    if demand.algorithm == "rank-order-ring":
        return members[None]
    ordered, islands, position, size = _by_island(placement, members)
    channels = int(size.max()) * _near_nics(placement) if (islands[:, :1] != islands).any() else 1
    rings = np.empty((channels, *members.shape), dtype=np.int64)
    for channel in range(channels):
        turned = np.lexsort(((position + channel) % size, islands), axis=1)
        rings[channel] = np.take_along_axis(ordered, turned, axis=1)
    return rings


def _by_island(placement: Placement, members: Integers) -> tuple[Integers, Integers, Integers, Integers]:
    """Members sorted by island; the island of each, its position there, and how many of the group are there."""
    order = np.argsort(placement.cluster.island_of_gpu(members) * placement.cluster.num_gpus + members, axis=1)
    ordered = np.take_along_axis(members, order, axis=1)
    islands = placement.cluster.island_of_gpu(ordered)
    at = np.broadcast_to(np.arange(members.shape[1]), members.shape)
    begins = np.concatenate((np.ones((len(members), 1), bool), islands[:, 1:] != islands[:, :-1]), axis=1)
    first = np.maximum.accumulate(np.where(begins, at, 0), axis=1)
    run = np.cumsum(begins, axis=1) - 1 + members.shape[1] * np.arange(len(members))[:, None]
    size = np.bincount(run.ravel())[run]
    return ordered, islands, at - first, size


def _near_nics(placement: Placement) -> int:
    """NICs near a GPU, of the type that has most."""
    types = {int(group) for group in np.unique(placement.cluster.group_of_node(placement.nodes))}
    return max(
        max((len(nics) for nics in node_paths(placement.cluster.groups[at].node_type).near), default=1) or 1
        for at in types
    )


def _hierarchical(placement: Placement, demand: Demand) -> list[Stage]:
    """Reduce-scatter in each island, all-reduce across, all-gather in each island: rings all."""
    members = placement.group_gpus(demand.kind)
    ordered, _, _, size = _by_island(placement, members)
    local = int(size.max())
    if int(size.min()) != local:
        raise SpecError(
            f"{demand.kind}: hierarchical wants as many ranks of a group in every island; got {int(size.min())} to "
            f"{local}"
        )
    groups, ranks = members.shape
    count = ranks // local
    square = ordered.reshape(groups, count, local)
    number = np.repeat(np.arange(groups), ranks)
    found = []
    if local > 1:
        dst = np.roll(square, -1, axis=2).ravel()
        share = np.full(groups * ranks, demand.size_bytes / local)
        found.append(Stage(number, square.ravel(), dst, np.zeros_like(dst), share, 2 * (local - 1)))
    if count > 1:
        nics = _near_nics(placement)
        src = np.tile(square.ravel(), nics)
        dst = np.tile(np.roll(square, -1, axis=1).ravel(), nics)
        share = np.full(len(src), demand.size_bytes / ranks / nics)
        channel = np.repeat(np.arange(nics), groups * ranks)
        found.append(Stage(np.tile(number, nics), src, dst, channel, share, 2 * (count - 1)))
    return found
