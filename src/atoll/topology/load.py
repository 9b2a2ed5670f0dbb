"""A cluster or a node by what a person types: a preset, a TOML file, or a file that a tool printed.

``dgx-h100`` and ``dgx-h100:16`` are presets; a name that ends in ``.toml`` is a cluster (``spec_read``); any other file
is known by its content: ``nvidia-smi topo -m``, ``rocm-smi --showtopo``, NCCL topology XML, or a list of hosts, which
needs ``host_type``, the preset that each host is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from atoll.errors import SpecError, nearest
from atoll.readers.host_list import Host, read_host_list
from atoll.readers.identify import HEAD_BYTES, Kind, identify
from atoll.readers.rocm_topology import read_rocm_topology
from atoll.readers.topology_matrix import read_topology_matrices
from atoll.readers.topology_xml import read_topology_xml
from atoll.topology.cluster import Cluster, NodeGroup
from atoll.topology.presets import PRESETS, Layout, fabric_for, preset
from atoll.topology.seen import SeenNode
from atoll.topology.seen_matrix import seen_in_matrix
from atoll.topology.seen_node import import_cluster
from atoll.topology.seen_rocm import seen_in_rocm
from atoll.topology.seen_xml import seen_in_xml
from atoll.topology.spec_read import read_cluster

MAX_BYTES: Final = 64 << 20
_PRESET: Final = re.compile(r"([a-z][a-z0-9-]*)(?::(\d{1,7}))?")


class Loaded(msgspec.Struct, frozen=True):
    """A cluster and what was assumed in reading it; ``seen`` the nodes as the file has them, empty for presets."""

    cluster: Cluster
    notes: tuple[str, ...] = ()
    seen: tuple[SeenNode, ...] = ()


def load_cluster(target: str, *, nodes: int | None = None, gpu_name: str = "", host_type: str = "") -> Loaded:
    """See the module's text. ``gpu_name`` says which GPU it is where a file does not.

    ``nodes`` is how many nodes: of a preset (instead of its count), or alike ones of an imported node, which then stand
    in a rail-optimised, non-blocking fabric with ECMP. Raises ``SpecError``.
    """
    match = _PRESET.fullmatch(target)
    if match is not None and (match[1] in PRESETS or not Path(target).is_file()):
        if nodes is not None and match[2]:
            raise SpecError(f"{target} and {nodes} nodes: give the count once")
        return Loaded(preset(match[1], int(match[2] or 1), nodes=nodes))
    data = read_file(target)
    if nodes is not None and (target.lower().endswith(".toml") or host_type):
        raise SpecError(f"{target} says itself how many nodes there are; got {nodes} besides")
    if target.lower().endswith(".toml"):
        return Loaded(read_cluster(data, target))
    if host_type:
        return Loaded(cluster_of_hosts(read_host_list(data, target), host_type))
    seen = seen_nodes(data, target)
    if len(seen) > 1:
        raise SpecError(
            f"{target}: {len(seen)} nodes and nothing between them; look at one at a time, or write a cluster in TOML: "
            "atoll topology show NODE --toml"
        )
    cluster, notes = import_cluster(seen, Path(target).stem, gpu_name=gpu_name)
    if nodes is not None:
        node_type = cluster.groups[0].node_type
        fabric = fabric_for(node_type, nodes, "rail-optimised", source="assumed: rail-optimised, non-blocking, ECMP")
        cluster = Cluster(f"{nodes} x {cluster.name}", (NodeGroup(node_type, nodes),), fabric)
    return Loaded(cluster, notes, seen)


def seen_nodes(data: bytes, file: str) -> tuple[SeenNode, ...]:
    """The nodes of a file that a tool printed. Raises ``SpecError`` for one of another kind, saying which it is."""
    kind = identify(data[:HEAD_BYTES], len(data))
    if kind is Kind.TOPOLOGY_XML:
        return (seen_in_xml(read_topology_xml(data, file)),)
    if kind is Kind.ROCM_TOPO or (data.lstrip()[:1] == b"{" and b"(Topology)" in data):
        return (seen_in_rocm(read_rocm_topology(data, file)),)
    if kind is Kind.TOPO_MATRIX:
        return tuple(seen_in_matrix(matrix) for matrix in read_topology_matrices(data, file))
    if kind is Kind.HOSTFILE:
        raise SpecError(f"{file}: a list of hosts; say what they are: --hosts-are dgx-h100")
    if kind in (Kind.UNKNOWN_TEXT, Kind.EMPTY):
        # A matrix may stand far down in a log; its reader says what it looked for.
        return tuple(seen_in_matrix(matrix) for matrix in read_topology_matrices(data, file))
    raise SpecError(
        f"{file}: looks like {kind.value.replace('_', ' ')}, which has no topology; expected 'nvidia-smi topo -m', "
        "'rocm-smi --showtopo', NCCL topology XML or a cluster in TOML"
    )


def cluster_of_hosts(hosts: Sequence[Host], host_type: str, *, layout: Layout | None = None) -> Cluster:
    """Hosts of one preset's node type in its fabric. Raises ``SpecError`` for slots beyond a host's GPUs."""
    if host_type not in PRESETS:
        raise SpecError(f"unknown preset {host_type!r}: {nearest(host_type, PRESETS)}")
    chosen = PRESETS[host_type]
    node_type = preset(host_type).groups[0].node_type
    for host in hosts:
        if host.slots is not None and host.slots > len(node_type.gpus):
            raise SpecError(
                f"{host.source}: {host.name} has {host.slots} slots; a {host_type} has {len(node_type.gpus)} GPUs"
            )
    fabric = fabric_for(
        node_type, len(hosts), layout or chosen.layout, routing=chosen.routing, source=chosen.fabric_source
    )
    names = tuple(host.name for host in hosts)
    return Cluster(f"{len(hosts)} x {host_type}", (NodeGroup(node_type, len(hosts), names),), fabric,
                   chosen.nodes_per_rack, source=node_type.source)  # fmt: skip


def read_file(path: str) -> bytes:
    """Raises ``SpecError`` where there is no such file, or one too large."""
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        known = f"; presets: {', '.join(sorted(PRESETS))}" if "/" not in path and "." not in path else ""
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}{known}") from error
    if len(data) > MAX_BYTES:
        raise SpecError(f"{path}: larger than {MAX_BYTES >> 20} MiB; a topology is far smaller")
    return data
