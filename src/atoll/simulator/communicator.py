"""What a group of ranks looks like to a collective library: NVLink domains, and what each carries in and out.

Vocabulary. A *domain* is a set of ranks that NVLink, xGMI or, failing these, PCIe joins without the network: the ranks
of one node, or of one NVL72 rack (NCCL's "node"). ``intra`` is what one rank sends within its domain, ``network`` what
a whole domain sends out, both in one direction, of usable bandwidth, and of the poorest domain, which a collective
waits for. Nodes that look alike are looked at once, so a hundred thousand GPUs cost a few array operations.

Over PCIe the figures are those of a ring and of an exchange of all pairs along the node's own routes, so that a socket
link or a shared switch counts for as many flows as cross it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from atoll.errors import SpecError
from atoll.simulator import nccl_constants as constants
from atoll.topology.capacity import fabric_bytes_per_s
from atoll.topology.cluster import Cluster, Floats, Integers
from atoll.topology.node_paths import node_paths
from atoll.topology.node_type import LinkKind
from atoll.topology.routes import DEFAULT_TRANSPORT, Transport, find_routes

_HOST_KINDS: Final = (LinkKind.PCIE, LinkKind.C2C)
MAX_NODE_GPUS: Final = 62
# InfiniBand between NICs on one leaf, in link_catalogue: two NICs and four PCIe legs. NCCL's NET rows are of it.
_USUAL_NETWORK_LATENCY_S: Final = 2.2e-6


class Communicator(msgspec.Struct, frozen=True):
    """See the module's text; rates in bytes per second.

    ``network_latency_s`` is what a route takes beyond InfiniBand's, ``told_latency_us`` what the network's plugin tells
    NCCL that it takes, which only its tuner believes; ``ordered`` whether the network keeps the order of stores that LL
    and LL128 rely on.

    ``per_domain`` is the number of ranks of the largest domain, ``smallest_domain`` of the smallest.
    ``exchange_s_per_byte`` is the time it takes the slowest domain to send one byte from each of its ranks to each rank
    outside; ``beyond_leaf`` the share of peers beyond a node's leaf switches, ``leaf_bytes_per_s`` what a node may send
    there.
    """

    ranks: int
    nodes: int
    domains: int
    per_domain: int
    smallest_domain: int
    link: str
    gpu: constants.GpuFacts
    gpu_known: bool
    intra_bytes_per_s: float
    exchange_bytes_per_s: float
    network_bytes_per_s: float
    nics: int
    network_latency_s: float
    told_latency_us: float
    ordered: bool
    exchange_s_per_byte: float
    beyond_leaf: float
    leaf_bytes_per_s: float
    in_switch_reduction: bool
    amd_host: bool

    @property
    def ranks_per_domain(self) -> float:
        return self.ranks / self.domains

    @property
    def ranks_per_node(self) -> float:
        return self.ranks / self.nodes


class _Node(msgspec.Struct, frozen=True):
    """What one node brings: see ``Communicator``."""

    link: str
    intra: float
    exchange: float
    network: float
    nics: int


def communicator(
    cluster: Cluster, gpus: int | ArrayLike | None = None, transport: Transport | None = None
) -> Communicator:
    """The communicator of ``gpus``: numbers, or so many from the first on, or all. Raises ``SpecError``."""
    transport = transport or DEFAULT_TRANSPORT
    if gpus is None or isinstance(gpus, int):
        return _of_first(cluster, cluster.num_gpus if gpus is None else gpus, transport)
    return _of_nodes(cluster, *_occupied(cluster, gpus), transport)


@lru_cache(maxsize=64)
def _of_first(cluster: Cluster, count: int, transport: Transport) -> Communicator:
    """Worked out once for all sizes of a sweep."""
    return _of_nodes(cluster, *_first_ones(cluster, count), transport)


def _of_nodes(
    cluster: Cluster, nodes: Integers, counts: Integers, masks: Integers, transport: Transport
) -> Communicator:
    kinds, kind_of_node = _kinds(cluster, nodes, masks)
    looked_at = [_look(cluster, int(node), mask, transport) for node, mask in kinds]
    islands = cluster.island_of_node(nodes)
    _, domain = np.unique(islands, return_inverse=True)
    domains = int(domain.max()) + 1
    per_domain = np.bincount(domain, weights=counts)
    networks = np.array([one.network for one in looked_at])[kind_of_node]
    nics = np.array([one.nics for one in looked_at])[kind_of_node]
    types = [cluster.node_type(node) for node, _ in kinds]
    gpus = [constants.gpu_facts(one.gpu.name) for one in types]
    cables = [link.speed.latency.source for one in types for link in one.links if link.kind is LinkKind.NETWORK]
    # The oldest GPU decides, as in NCCL.
    known = min((one for one in gpus if one is not None), key=lambda one: one.compute, default=None)
    first = types[0]
    # A tray alone with its GPU is joined to its rack's others by the switch, whatever the node itself has.
    several_nodes = len(nodes) > domains
    link = (
        constants.NVLINK if several_nodes or all(one.link == constants.NVLINK for one in looked_at) else constants.PCI
    )
    n = int(counts.sum())
    out = np.bincount(domain, weights=networks)
    if domains > 1 and out.min() <= 0:
        node = int(nodes[int(np.argmax(networks <= 0))])
        raise SpecError(f"{cluster.node_name(node)}: none of its {first.name} GPUs reaches a NIC with a cable")
    crossing = per_domain * (n - per_domain)
    leaf, beyond = _leaf(cluster, nodes, counts, n)
    switch = all(one.switches for one in types) and link == constants.NVLINK
    return Communicator(
        ranks=n,
        nodes=len(nodes),
        domains=domains,
        per_domain=int(per_domain.max()),
        smallest_domain=int(per_domain.min()),
        link=link,
        gpu=known or constants.GpuFacts(first.gpu.name or "unknown", 80, constants.REFERENCE_MHZ),
        gpu_known=None not in gpus,
        intra_bytes_per_s=min(one.intra for one in looked_at),
        exchange_bytes_per_s=min(one.exchange for one in looked_at),
        network_bytes_per_s=float(out.min()) if domains > 1 else 0.0,
        nics=int(np.bincount(domain, weights=nics).min()) if domains > 1 else 0,
        network_latency_s=_network_latency(cluster, nodes, masks, domain, transport) if domains > 1 else 0.0,
        told_latency_us=constants.EFA_TOLD_LATENCY_US if domains > 1 and any("EFA" in one for one in cables) else 0.0,
        ordered=domains == 1 or not any("EFA without RDMA write" in one for one in cables),
        exchange_s_per_byte=float((crossing / out).max()) if domains > 1 else 0.0,
        beyond_leaf=beyond,
        leaf_bytes_per_s=leaf,
        in_switch_reduction=switch,
        amd_host=any("AMD_BW" in one.speed.bandwidth.source for one in first.links if one.kind is LinkKind.SMP),
    )


def _occupied(cluster: Cluster, gpus: ArrayLike) -> tuple[Integers, Integers, Integers]:
    """The nodes that hold ranks, how many each holds, and which GPUs of it, as bits."""
    _bits_suffice(cluster)
    numbers = np.asarray(gpus, dtype=np.int64).ravel()
    if not numbers.size:
        raise SpecError("expected at least one GPU, got none")
    if (np.diff(numbers) <= 0).any():
        numbers = np.sort(numbers)
        twice = np.flatnonzero(np.diff(numbers) == 0)
        if twice.size:
            raise SpecError(f"expected every GPU once, got GPU {int(numbers[twice[0]])} twice")
    home = cluster.node_of_gpu(numbers)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(home)) + 1))
    masks = np.bitwise_or.reduceat(np.left_shift(np.int64(1), cluster.local_gpu(numbers)), starts)
    return home[starts], np.diff(np.concatenate((starts, [len(numbers)]))), masks


def _first_ones(cluster: Cluster, count: int) -> tuple[Integers, Integers, Integers]:
    """``_occupied`` of GPUs 0 to ``count`` - 1, without listing them."""
    _bits_suffice(cluster)
    if not 1 <= count <= cluster.num_gpus:
        raise SpecError(f"cluster {cluster.name!r} has {cluster.num_gpus} GPUs, got {count} ranks")
    nodes = np.arange(int(cluster.node_of_gpu(count - 1)) + 1, dtype=np.int64)
    sizes = np.array([len(group.node_type.gpus) for group in cluster.groups], dtype=np.int64)
    counts = sizes[cluster.group_of_node(nodes)]
    counts[-1] -= int(counts.sum()) - count
    return nodes, counts, np.left_shift(np.int64(1), counts) - 1


def _bits_suffice(cluster: Cluster) -> None:
    for group in cluster.groups:
        if len(group.node_type.gpus) > MAX_NODE_GPUS:
            raise SpecError(
                f"node type {group.node_type.name!r}: {len(group.node_type.gpus)} GPUs; predictions take nodes of at "
                f"most {MAX_NODE_GPUS}"
            )


def _kinds(cluster: Cluster, nodes: Integers, masks: Integers) -> tuple[list[tuple[int, int]], Integers]:
    """Nodes that look alike: one (node, GPUs as bits) of each kind, and the kind of each node."""
    groups = cluster.group_of_node(nodes)
    if (groups == groups[0]).all() and (masks == masks[0]).all() and not cluster.shares:
        return [(int(nodes[0]), int(masks[0]))], np.zeros(len(nodes), dtype=np.int64)
    _, same_gpus = np.unique(masks, return_inverse=True)
    keys = groups * (int(same_gpus.max()) + 1) + same_gpus
    if cluster.shares:
        # A node with a slowed link is like no other.
        links = np.array([number for number, _ in cluster.shares], dtype=np.int64)
        slowed = np.isin(nodes, _node_of_link(cluster, links[links < cluster.first_leaf_link]))
        keys = np.where(slowed, int(keys.max()) + 1 + nodes, keys)
    _, at, kind = np.unique(keys, return_index=True, return_inverse=True)
    return [(int(nodes[i]), int(masks[i])) for i in at], kind


def _node_of_link(cluster: Cluster, links: Integers) -> Integers:
    groups = np.searchsorted(cluster.first_link, links, side="right") - 1
    sizes = np.array([2 * len(group.node_type.links) for group in cluster.groups], dtype=np.int64)
    return cluster.first_node[groups] + (links - cluster.first_link[groups]) // sizes[groups]


def _look(cluster: Cluster, node: int, mask: int, transport: Transport) -> _Node:
    """The rates of one node, of which the GPUs in ``mask`` are used."""
    node_type = cluster.node_type(node)
    paths = node_paths(node_type)
    members = [at for at in range(len(node_type.gpus)) if mask >> at & 1]
    first_link = int(cluster.first_link_of_node(node))
    rate = cluster.bandwidth_of(np.arange(first_link, first_link + 2 * len(node_type.links)))
    names = {node_type.gpus[at] for at in members}
    joined = all(paths.island[a, b] or a == b for a in members for b in members)
    own: dict[str, float] = dict.fromkeys(names, 0.0)
    for number, link in enumerate(node_type.links):
        if link.kind in (LinkKind.NVLINK, LinkKind.XGMI):
            inside = {*names, *node_type.switches}
            if link.a in inside and link.b in inside:
                for end, direction in ((link.a, 0), (link.b, 1)):
                    if end in own:
                        own[end] += float(rate[2 * number + direction])
    network, nics = _network(cluster, node, members, rate)
    alone = len(members) == 1
    if (joined and min(own.values()) > 0) or (alone and node_type.island_nodes > 1):
        intra = min(own.values())
        return _Node(constants.NVLINK, intra, intra, network, nics)
    if alone:
        return _Node(constants.PCI, float("inf"), float("inf"), network, nics)
    gpus = int(cluster.first_gpu_of_node(node)) + np.array(members, dtype=np.int64)
    ring = _shared(cluster, gpus, np.roll(gpus, -1), transport)
    pairs = np.array([(a, b) for a in gpus for b in gpus if a != b], dtype=np.int64)
    each = _shared(cluster, pairs[:, 0], pairs[:, 1], transport)
    return _Node(constants.PCI, ring, each * (len(gpus) - 1), network, nics)


def _shared(cluster: Cluster, src: Integers, dst: Integers, transport: Transport) -> float:
    """The rate of each of these flows when all run and every link is shared evenly among those that cross it."""
    routes = find_routes(cluster, src, dst, 0, transport)
    links, flows = np.unique(routes.links, return_counts=True)
    return float((cluster.bandwidth_of(links) / flows).min()) if links.size else float("inf")


def _network(cluster: Cluster, node: int, members: list[int], rate: Floats) -> tuple[float, int]:
    """What the near NICs of these GPUs send together, each the least of its cable and PCIe, and how many there are."""
    node_type = cluster.node_type(node)
    near = node_paths(node_type).near
    nics = sorted({nic for at in members for nic in near[at]})
    up: dict[str, float] = {}
    cable: dict[str, float] = {}
    for number, link in enumerate(node_type.links):
        if link.kind is LinkKind.NETWORK:
            cable[link.a] = float(rate[2 * number])
        elif link.kind in _HOST_KINDS:
            up[link.a] = max(up.get(link.a, 0.0), float(rate[2 * number]))
    names = [node_type.nics[nic] for nic in nics]
    total = sum(min(cable[name], up.get(name, cable[name])) for name in names)
    host = sum(up.get(node_type.gpus[at], 0.0) for at in members)
    return (min(total, host) if host else total), len(nics)


def _leaf(cluster: Cluster, nodes: Integers, counts: Integers, n: int) -> tuple[float, float]:
    """What a node may send beyond its leaf switches, and the share of a rank's peers that lie there."""
    if cluster.fabric is None:
        return float("inf"), 0.0
    units = nodes // cluster.fabric.nodes_per_leaf
    per_unit = np.bincount(units, weights=counts)
    beyond = 1 - float((per_unit**2).sum()) / n**2
    return (fabric_bytes_per_s(cluster, "leaf"), beyond) if beyond > 0 else (float("inf"), 0.0)


def _network_latency(
    cluster: Cluster, nodes: Integers, masks: Integers, domain: Integers, transport: Transport
) -> float:
    """What a route between the first two domains takes beyond InfiniBand on one leaf."""
    other = int(np.argmax(domain != domain[0]))
    lowest = [(int(mask) & -int(mask)).bit_length() - 1 for mask in (masks[0], masks[other])]
    pair = cluster.first_gpu_of_node(nodes[[0, other]]) + np.array(lowest)
    latency = float(find_routes(cluster, pair[:1], pair[1:], 0, transport).latency_s(cluster)[0])
    return max(0.0, latency - _USUAL_NETWORK_LATENCY_S)


@lru_cache(maxsize=64)
def _best_speed(total: float, speeds: tuple[float, ...], most: int) -> tuple[int, float]:
    """Channels and the speed of each (GB/s), as NCCL's search finds them: the most of ``total`` at a speed it tries."""
    best = (1, total)
    reached = 0.0
    for speed in speeds:
        channels = min(most, int(total / speed + 1e-6))
        if channels * speed > reached + 1e-9:
            best, reached = (channels, speed), channels * speed
    return best


def channels_of(total_bytes_per_s: float, speeds: tuple[float, ...], most: int = 32) -> tuple[int, float]:
    """``_best_speed`` of a rate in bytes per second; a rate below every speed is one channel of it."""
    return _best_speed(total_bytes_per_s / 1e9, speeds, max(1, most))
