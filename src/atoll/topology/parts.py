"""Parts that fail: which GPUs stand behind one, and the cluster with one slowed or gone.

A part is named as ``names.device_name`` names devices, and a few words more: ``node3``, ``node3/nic2``,
``node3/pcie0``, ``island1``, ``island1/nvswitch0``, ``leaf5``, ``spine2``, ``core0``, ``rail3``, ``rack4``.

GPUs *behind* a part are those whose traffic it carries when all is well: a NIC serves the GPUs that have it near, a
leaf the GPUs of those NICs, a spine the nodes of its pod (and, with planes, the GPUs of its rail), a core all. What
stops is the job's matter: a GPU with a second near NIC goes on without the first.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
import numpy as np

from atoll.errors import SpecError, nearest
from atoll.topology.cluster import Cluster, Integers, NodeGroup
from atoll.topology.names import find_device, find_node, leaf_of_nic, link_ends, spine_of_leaf
from atoll.topology.node_paths import node_paths
from atoll.topology.node_type import LinkGroup, LinkKind, NodeType, compact, kind_of, pairs_of

_WHOLE: Final = re.compile(r"(island|leaf|spine|core|rail|rack)(\d{1,9})")


def gpus_behind(cluster: Cluster, part: str) -> Integers:
    """The numbers of the GPUs behind a part, ascending. Raises ``SpecError`` for a part that is not there."""
    everyone = np.arange(cluster.num_gpus, dtype=np.int64)
    match = _WHOLE.fullmatch(part.removesuffix("/nvswitch0") if part.startswith("island") else part)
    if match is None:
        node_name, slash, device = part.rpartition("/")
        node = find_node(cluster, node_name if slash else part)
        mine = np.flatnonzero(cluster.node_of_gpu(everyone) == node)
        return mine[_behind_device(cluster.node_type(node), device)] if slash else mine
    kind, number = match[1], int(match[2])
    if kind == "island":
        _within(kind, number, cluster.num_islands)
        return np.flatnonzero(cluster.island_of_gpu(everyone) == number)
    if kind == "rack":
        racks = cluster.rack_of_node(cluster.node_of_gpu(everyone))
        _within(kind, number, int(racks.max()) + 1)
        return np.flatnonzero(racks == number)
    fabric = cluster.fabric
    if fabric is None:
        raise SpecError(f"cluster {cluster.name!r} has no fabric, so no {part}")
    nodes, rails = cluster.num_nodes, fabric.rails
    counts = {"leaf": fabric.num_leaves(nodes), "spine": fabric.num_spines(nodes), "core": fabric.cores, "rail": rails}
    _within(kind, number, counts[kind])
    if kind == "core":
        return everyone
    gpus, leaves = leaves_of_gpus(cluster)
    if kind == "leaf":
        chosen = leaves == number
    elif kind == "rail":
        chosen = leaves % rails == number
    else:
        # spine_of_leaf counts trunks under adaptive routing; the pod and plane are the same either way.
        chosen = spine_of_leaf(cluster, leaves) // fabric.tiers.spines == number // fabric.spines
    return np.unique(gpus[chosen])


def slowed(cluster: Cluster, part: str, share: float) -> Cluster:
    """The cluster with every link of one device at ``share`` of its bandwidth, both ways."""
    if not 0 < share <= 1:
        raise SpecError(f"{part}: expected a share above 0 and at most 1, got {share:g}; for a lost NIC use without()")
    device = find_device(cluster, part)
    first, second = link_ends(cluster, np.arange(cluster.num_links, dtype=np.int64))
    links = np.flatnonzero((first == device) | (second == device))
    return msgspec.structs.replace(cluster, shares=(*cluster.shares, *((int(link), share) for link in links)))


def without(cluster: Cluster, part: str) -> Cluster:
    """The cluster without one NIC (``node3/nic2``): its node becomes a type of its own, and routes take other NICs.

    GPU numbers stay; link numbers do not, so lowered links (``shares``) cannot be kept and are refused.
    """
    node_name, _, device = part.rpartition("/")
    if kind_of(device) != "nic":
        raise SpecError(
            f"{part}: expected a NIC such as node3/nic2; other parts stop what is behind them (gpus_behind)"
        )
    if cluster.shares:
        raise SpecError(f"{part}: take parts away first, then slow others; this cluster has slowed links")
    node = find_node(cluster, node_name)
    at = int(cluster.group_of_node(node))
    group = cluster.groups[at]
    if device not in group.node_type.nics:
        raise SpecError(f"{part}: {nearest(device, group.node_type.nics)}")
    changed = _without_device(group.node_type, device)
    before = node - int(cluster.first_node[at])
    pieces = (
        (group.node_type, 0, before),
        (changed, before, before + 1),
        (group.node_type, before + 1, group.count),
    )
    parts = tuple(
        NodeGroup(node_type, end - start, group.hosts[start:end]) for node_type, start, end in pieces if end > start
    )
    return msgspec.structs.replace(
        cluster, name=f"{cluster.name} without {part}", groups=(*cluster.groups[:at], *parts, *cluster.groups[at + 1 :])
    )


def _without_device(node_type: NodeType, device: str) -> NodeType:
    """Groups that name the device are written out link by link, so that the others keep their ends."""
    groups: list[LinkGroup] = []
    for group in node_type.groups:
        pairs = pairs_of(group.ends, group.to)
        if not any(device in pair for pair in pairs):
            groups.append(group)
            continue
        by_end: dict[str, list[str]] = {}
        for a, b in pairs:
            if device not in (a, b):
                by_end.setdefault(b, []).append(a)
        groups += [LinkGroup(group.kind, compact(ends), to, group.speed) for to, ends in by_end.items()]
    return msgspec.structs.replace(node_type, name=f"{node_type.name}-without-{device}", groups=tuple(groups))


def _behind_device(node_type: NodeType, device: str) -> list[int]:
    """Positions of the GPUs behind one device of a node."""
    if device not in (*node_type.devices, *node_type.switches):
        raise SpecError(
            f"{node_type.name}: no {device!r}: {nearest(device, [*node_type.devices, *node_type.switches])}"
        )
    paths = node_paths(node_type)
    gpus = node_type.gpus
    if device in gpus:
        return [gpus.index(device)]
    if device in node_type.nics:
        position = node_type.nics.index(device)
        return [at for at, near in enumerate(paths.near) if position in near]
    below_links = [link for link in node_type.links if link.kind is not LinkKind.SMP]
    joined = {device}
    more = {device}
    while more:
        more = {link.a for link in below_links if link.b in joined} - joined
        joined |= more
    return [at for at, gpu in enumerate(gpus) if gpu in joined]


def nics_of_gpus(cluster: Cluster) -> tuple[Integers, Integers, Integers]:
    """A GPU, the node, and the position among the node's NICs, for every GPU and each of its near NICs."""
    found: list[tuple[Integers, Integers, Integers]] = []
    for at, group in enumerate(cluster.groups):
        near = node_paths(group.node_type).near
        pairs = np.array([(gpu, nic) for gpu, nics in enumerate(near) for nic in nics], dtype=np.int64)
        if not pairs.size:
            continue
        nodes = np.arange(cluster.first_node[at], cluster.first_node[at + 1], dtype=np.int64)
        first = cluster.first_gpu_of_node(nodes)
        gpus = (first[:, None] + pairs[None, :, 0]).ravel()
        found.append((gpus, np.repeat(nodes, len(pairs)), np.tile(pairs[:, 1], len(nodes))))
    if not found:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, empty
    gpus, nodes, nics = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return gpus, nodes, nics


def leaves_of_gpus(cluster: Cluster) -> tuple[Integers, Integers]:
    """Pairs of a GPU and a leaf that one of its near NICs is cabled to."""
    gpus, nodes, nics = nics_of_gpus(cluster)
    rails = np.zeros_like(nics)
    groups = cluster.group_of_node(nodes)
    for at, group in enumerate(cluster.groups):
        chosen = groups == at
        rails[chosen] = np.array(group.node_type.rails, dtype=np.int64)[nics[chosen]]
    return gpus, leaf_of_nic(cluster, nodes, rails)


def _within(kind: str, number: int, count: int) -> None:
    if number >= count:
        raise SpecError(
            f"there is no {kind}{number}: {f'{kind}0 to {kind}{count - 1}' if count else f'no {kind} at all'}"
        )
