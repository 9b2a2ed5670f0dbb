"""Devices and links by name: what a number of a cluster stands for, and back.

Devices are numbered as ``cluster`` says: node blocks, NVSwitches by island, leaves, spines, cores. Under adaptive
routing the spines of a pod (and plane) are one device, and the cores one, because one trunk leads to each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from atoll.errors import SpecError, nearest
from atoll.topology.cluster import Cluster, Integers
from atoll.topology.figure import Speed
from atoll.topology.node_type import NETWORK, LinkKind, kind_of


class LinkFacts(msgspec.Struct, frozen=True):
    """One directed link, for people: ``backwards`` where its direction is the second one of its ``speed``."""

    number: int
    name: str
    kind: LinkKind
    speed: Speed
    backwards: bool
    bandwidth_bytes_per_s: float
    usable_bytes_per_s: float
    latency_s: float


def num_devices(cluster: Cluster) -> int:
    return cluster.devices.end


def link_ends(cluster: Cluster, links: ArrayLike) -> tuple[Integers, Integers]:
    """The devices that directed links lead from and to."""
    numbers = np.asarray(links, dtype=np.int64)
    blocks = cluster.devices
    first, second = np.empty_like(numbers), np.empty_like(numbers)
    for at, group in enumerate(cluster.groups):
        chosen = (numbers >= cluster.first_link[at]) & (numbers < cluster.first_link[at + 1])
        node_links = len(group.node_type.links)
        inside = numbers[chosen] - cluster.first_link[at]
        node_in_group, local = inside // (2 * node_links), inside % (2 * node_links) // 2
        for side, out in ((0, first), (1, second)):
            out[chosen] = _node_ends(cluster, at, node_in_group, local, side)
    fabric = cluster.fabric
    if fabric is not None:
        tiers = fabric.tiers
        chosen = (numbers >= cluster.first_leaf_link) & (numbers < cluster.first_spine_link)
        if chosen.any():
            cable = (numbers[chosen] - cluster.first_leaf_link) // 2
            leaf = cable // tiers.leaf_cables
            first[chosen] = blocks.leaves + leaf
            spine = spine_of_leaf(cluster, leaf) + cable % tiers.leaf_cables % tiers.spines
            second[chosen] = blocks.spines + spine
        chosen = numbers >= cluster.first_spine_link
        if chosen.any():
            cable = (numbers[chosen] - cluster.first_spine_link) // 2
            spine = cable // tiers.spine_cables
            first[chosen] = blocks.spines + spine
            core = spine % tiers.spines * tiers.core_group + cable % tiers.spine_cables % tiers.core_group
            second[chosen] = blocks.cores + core
    backwards = numbers % 2 == 1
    return np.where(backwards, second, first), np.where(backwards, first, second)


def spine_of_leaf(cluster: Cluster, leaves: Integers) -> Integers:
    """The first spine of a leaf's pod and plane."""
    fabric = cluster.fabric
    assert fabric is not None
    unit, rail = leaves // fabric.rails, leaves % fabric.rails
    pod = unit * fabric.nodes_per_leaf // fabric.nodes_per_pod if fabric.nodes_per_pod else np.zeros_like(unit)
    plane = rail if fabric.planes else np.zeros_like(rail)
    return (pod * fabric.num_planes + plane) * fabric.tiers.spines


def leaf_of_nic(cluster: Cluster, nodes: Integers, rails: Integers) -> Integers:
    """The leaf that the NIC of a node with this rail number is cabled to."""
    fabric = cluster.fabric
    assert fabric is not None
    return nodes // fabric.nodes_per_leaf * fabric.rails + rails % fabric.rails


def gpu_devices(cluster: Cluster, gpus: ArrayLike) -> Integers:
    """The devices of GPU numbers."""
    nodes = cluster.node_of_gpu(gpus)
    groups = cluster.group_of_node(nodes)
    blocks = cluster.devices
    sizes = np.array([len(group.node_type.devices) for group in cluster.groups], dtype=np.int64)
    # GPUs stand first in a node's block.
    return blocks.nodes[groups] + (nodes - cluster.first_node[groups]) * sizes[groups] + cluster.local_gpu(gpus)


def device_name(cluster: Cluster, device: int) -> str:
    """``node3/gpu0``, ``island1/nvswitch0``, ``leaf4``, ``spine2``, ``core0``."""
    blocks = cluster.devices
    if device >= blocks.leaves:
        for kind, first in (("core", blocks.cores), ("spine", blocks.spines), ("leaf", blocks.leaves)):
            if device >= first:
                return f"{kind}{device - first}"
    if device >= int(blocks.switches[0]):
        group = int(np.searchsorted(blocks.switches, device, side="right")) - 1
        switches = cluster.groups[group].node_type.switches
        inside = device - int(blocks.switches[group])
        return f"island{int(cluster.first_island[group]) + inside // len(switches)}/{switches[inside % len(switches)]}"
    group = int(np.searchsorted(blocks.nodes, device, side="right")) - 1
    devices = cluster.groups[group].node_type.devices
    inside = device - int(blocks.nodes[group])
    node = int(cluster.first_node[group]) + inside // len(devices)
    return f"{cluster.node_name(node)}/{devices[inside % len(devices)]}"


def link_name(cluster: Cluster, number: int) -> str:
    """``node3/gpu0 -> island3/nvswitch0``; a cable among several of the same ends has its number behind it."""
    return link_names(cluster, [number])[0]


def link_names(cluster: Cluster, numbers: Sequence[int]) -> list[str]:
    """Of many links in a row, which is quicker than one by one."""
    firsts, seconds = link_ends(cluster, numbers)
    return [
        _link_name(cluster, number, first, second)
        for number, first, second in zip(numbers, firsts.tolist(), seconds.tolist(), strict=True)
    ]


def _link_name(cluster: Cluster, number: int, first: int, second: int) -> str:
    name = f"{device_name(cluster, first)} -> {device_name(cluster, second)}"
    fabric = cluster.fabric
    if fabric is None or number < cluster.first_leaf_link:
        return name
    tiers = fabric.tiers
    if number < cluster.first_spine_link:
        cable, of_pair = (number - cluster.first_leaf_link) // 2 % tiers.leaf_cables, tiers.leaf_cables // tiers.spines
        which = cable // tiers.spines
    else:
        cable = (number - cluster.first_spine_link) // 2 % tiers.spine_cables
        which, of_pair = cable // tiers.core_group, tiers.spine_cables // tiers.core_group
    return f"{name} (cable {which})" if of_pair > 1 else name


def link_facts(cluster: Cluster, number: int) -> LinkFacts:
    """What is known of one directed link. Raises ``SpecError`` for a number outside."""
    usable, headline = (float(cluster.bandwidth_of(number, usable=usable)) for usable in (True, False))
    kind, speed = _kind_and_speed(cluster, number)
    latency = float(cluster.latency_of(number))
    return LinkFacts(number, link_name(cluster, number), kind, speed, number % 2 == 1, headline, usable, latency)


_NODE: Final = re.compile(r"(?:node)?(\d{1,9})")
_SWITCH: Final = re.compile(r"(leaf|spine|core)(\d{1,9})")
_ISLAND: Final = re.compile(r"island(\d{1,9})")


def find_node(cluster: Cluster, text: str) -> int:
    """The node that ``node3``, ``3`` or a host name stands for. Raises ``SpecError`` with the nearest name."""
    hosts = [host for group in cluster.groups for host in group.hosts]
    if text in hosts:
        return next(
            int(cluster.first_node[at]) + group.hosts.index(text)
            for at, group in enumerate(cluster.groups)
            if text in group.hosts
        )
    match = _NODE.fullmatch(text)
    if match is not None and int(match[1]) < cluster.num_nodes:
        return int(match[1])
    known = hosts or [f"node{number}" for number in range(min(cluster.num_nodes, 1000))]
    raise SpecError(f"cluster {cluster.name!r} has no node {text!r}: {nearest(text, known)}")


def find_device(cluster: Cluster, text: str) -> int:
    """The inverse of ``device_name``, with nodes named as ``find_node`` takes them. Raises ``SpecError``."""
    blocks = cluster.devices
    match = _SWITCH.fullmatch(text)
    if match is not None:
        first, end = {
            "leaf": (blocks.leaves, blocks.spines), "spine": (blocks.spines, blocks.cores),
            "core": (blocks.cores, blocks.end),
        }[match[1]]  # fmt: skip
        if first + int(match[2]) < end:
            return first + int(match[2])
        raise SpecError(f"cluster {cluster.name!r} has {end - first} of {match[1]}, no {text}")
    owner, _, device = text.rpartition("/")
    match = _ISLAND.fullmatch(owner)
    if match is not None and int(match[1]) < cluster.num_islands:
        group = int(np.searchsorted(cluster.first_island, int(match[1]), side="right")) - 1
        switches = cluster.groups[group].node_type.switches
        if device in switches:
            inside = int(match[1]) - int(cluster.first_island[group])
            return int(blocks.switches[group]) + inside * len(switches) + switches.index(device)
        raise SpecError(f"{owner} has no {device!r}: {nearest(device, switches)}")
    node = find_node(cluster, owner)
    group = int(cluster.group_of_node(node))
    devices = cluster.groups[group].node_type.devices
    if device not in devices:
        raise SpecError(f"{owner} has no {device!r}: {nearest(device, devices)}")
    return int(blocks.nodes[group]) + (node - int(cluster.first_node[group])) * len(devices) + devices.index(device)


def _kind_and_speed(cluster: Cluster, number: int) -> tuple[LinkKind, Speed]:
    if number < cluster.first_leaf_link:
        group = int(np.searchsorted(cluster.first_link, number, side="right")) - 1
        links = cluster.groups[group].node_type.links
        link = links[(number - int(cluster.first_link[group])) % (2 * len(links)) // 2]
        return link.kind, link.speed
    assert cluster.fabric is not None
    tiers = cluster.fabric.tiers
    speed = tiers.leaf_speed if number < cluster.first_spine_link else tiers.spine_speed
    assert speed is not None
    return LinkKind.NETWORK, speed


def _node_ends(cluster: Cluster, at: int, node_in_group: Integers, local: Integers, side: int) -> Integers:
    """The devices at one side (0: first, 1: second) of local links of nodes of group ``at``."""
    node_type = cluster.groups[at].node_type
    blocks = cluster.devices
    device_at = {name: index for index, name in enumerate(node_type.devices)}
    switch_at = {name: index for index, name in enumerate(node_type.switches)}
    ends = [(link.a, link.b)[side] for link in node_type.links]
    # Where the end is: 0 in the node, 1 an NVSwitch of its island, 2 a leaf.
    place = np.array([2 if end == NETWORK else 1 if kind_of(end) == "nvswitch" else 0 for end in ends])[local]
    index = np.array([device_at.get(end, switch_at.get(end, 0)) for end in ends], dtype=np.int64)[local]
    in_node = blocks.nodes[at] + node_in_group * len(node_type.devices) + index
    in_island = blocks.switches[at] + node_in_group // node_type.island_nodes * len(node_type.switches) + index
    result: Integers = np.where(place == 1, in_island, in_node)
    if cluster.fabric is not None and (place == 2).any():
        rail_of = dict(zip(node_type.nics, node_type.rails, strict=True))
        rail = np.array([rail_of.get(link.a, 0) for link in node_type.links], dtype=np.int64)[local]
        leaf = leaf_of_nic(cluster, cluster.first_node[at] + node_in_group, rail)
        result = np.where(place == 2, blocks.leaves + leaf, result)
    return result
