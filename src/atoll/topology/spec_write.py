"""A cluster as TOML, spelled out: what ``spec_read`` reads back as the same cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from atoll.errors import SpecError
from atoll.topology.cluster import Cluster
from atoll.topology.fabric import Fabric
from atoll.topology.figure import Figure, Speed
from atoll.topology.node_type import NodeType
from atoll.units import format_bandwidth, format_duration, parse_bandwidth, parse_duration


def write_cluster(cluster: Cluster) -> str:
    """TOML text. Raises ``SpecError`` where two different node types have one name."""
    types: dict[str, NodeType] = {}
    for group in cluster.groups:
        if types.setdefault(group.node_type.name, group.node_type) != group.node_type:
            raise SpecError(f"cluster {cluster.name!r}: two different node types are named {group.node_type.name!r}")
    lines = [f"name = {_text(cluster.name)}"]
    if cluster.nodes_per_rack:
        lines.append(f"nodes_per_rack = {cluster.nodes_per_rack}")
    if cluster.source:
        lines.append(f"source = {_text(cluster.source)}")
    for link, share in cluster.shares:
        lines += ["", "[[shares]]", f"link = {link}", f"share = {share!r}"]
    for group in cluster.groups:
        lines += ["", "[[nodes]]", f"type = {_text(group.node_type.name)}", f"count = {group.count}"]
        if group.hosts:
            lines.append(f"hosts = {_text(','.join(group.hosts))}")
    if cluster.fabric is not None:
        lines += _fabric(cluster.fabric)
    for name, node_type in types.items():
        lines += _node_type(name, node_type)
    return "\n".join(lines) + "\n"


def _fabric(fabric: Fabric) -> Iterable[str]:
    yield from ("", "[fabric]", f"name = {_text(fabric.name)}")
    for key in ("nodes_per_leaf", "rails", "uplinks_per_leaf", "spines", "nodes_per_pod", "uplinks_per_spine", "cores"):
        if getattr(fabric, key):
            yield f"{key} = {getattr(fabric, key)}"
    if fabric.planes:
        yield "planes = true"
    yield f'routing = "{fabric.routing.value}"'
    if fabric.source:
        yield f"source = {_text(fabric.source)}"
    for key, speed in (("leaf_uplink", fabric.leaf_uplink), ("spine_uplink", fabric.spine_uplink)):
        if speed is not None:
            yield from ("", f"[fabric.{key}]", *_speed(speed))


def _node_type(name: str, node_type: NodeType) -> Iterable[str]:
    yield from ("", f"[node_types.{_text(name)}]", f"gpu = {_text(node_type.gpu.name)}")
    yield f"nvlinks = {node_type.gpu.nvlinks}"
    if node_type.gpu.memory_bandwidth is not None:
        yield f"memory_bandwidth = {_figure(node_type.gpu.memory_bandwidth, format_bandwidth, parse_bandwidth)}"
    if node_type.island_nodes != 1:
        yield f"island_nodes = {node_type.island_nodes}"
    if not node_type.peer_to_peer:
        yield "peer_to_peer = false"
    if not node_type.gpudirect:
        yield "gpudirect = false"
    if node_type.nvswitch_chips:
        yield f"nvswitch_chips = {node_type.nvswitch_chips}"
    if node_type.source:
        yield f"source = {_text(node_type.source)}"
    for group in node_type.groups:
        yield from ("", f"[[node_types.{_text(name)}.links]]", f'kind = "{group.kind.value}"')
        yield from (f"from = {_text(group.ends)}", f"to = {_text(group.to)}", *_speed(group.speed))


def _speed(speed: Speed) -> Iterable[str]:
    if speed.lanes != 1:
        yield f"lanes = {speed.lanes}"
    yield f"bandwidth = {_figure(speed.bandwidth, format_bandwidth, parse_bandwidth)}"
    if speed.back is not None:
        yield f"back = {_figure(speed.back, format_bandwidth, parse_bandwidth)}"
    yield f"latency = {_figure(speed.latency, format_duration, parse_duration)}"
    yield f"efficiency = {_figure(speed.efficiency, repr, float)}"


def _figure(figure: Figure, show: Callable[[float], str], parse: Callable[[str], float]) -> str:
    """With its unit where that loses no digit, else as a number in SI units."""
    text = show(figure.value)
    value = _text(text) if parse is not float and parse(text) == figure.value else repr(figure.value)
    provenance = f'provenance = "{figure.provenance.value}"'
    return f"{{ value = {value}, {provenance}, source = {_text(figure.source)} }}"


def _text(text: str) -> str:
    # JSON's basic strings are TOML's, but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
