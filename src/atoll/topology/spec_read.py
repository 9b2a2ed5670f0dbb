"""A cluster written in TOML.

Everything that is wrong is said at once, each with its place and, for an unknown word, the nearest known one::

    name = "two generations"

    [[nodes]]
    type = "dgx-h100"              # a node type of a preset, or one of [node_types]
    count = 4
    hosts = "node[01-04]"          # optional

    [[nodes]]
    type = "mine"
    count = 1

    [fabric]
    layout = "rail-optimised"      # or "fat-tree": sized by itself, with oversubscription, ports and routing
    oversubscription = 2

    [node_types.mine]
    gpu = "H100 SXM5"
    nvlinks = 18

    [[node_types.mine.links]]
    kind = "nvlink"                # nvlink, xgmi, pcie, c2c, smp, dram, network
    from = "gpu0-7"
    to = "nvswitch0"               # devices, "mesh" or "network"
    lanes = 18
    bandwidth = "450GB/s"          # one direction; or { value = "450GB/s", provenance = "vendor", source = "..." }
    latency = "0.3us"
    efficiency = 0.82              # optional, 1 if not given; `back` is the other direction where it differs

Instead of ``layout`` a fabric may be given by its counts: the fields of ``fabric.Fabric``. A figure may be a number in
SI units or text with a unit; without provenance it counts as assumed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from atoll.errors import SpecError, nearest
from atoll.readers.host_list import expand_node_list
from atoll.topology.cluster import MAX_NODES, Cluster, NodeGroup
from atoll.topology.fabric import Fabric, Routing
from atoll.topology.figure import WHOLE, Figure, Provenance, Speed
from atoll.topology.node_type import GpuModel, LinkGroup, LinkKind, NodeType
from atoll.topology.preset_nodes import NODE_TYPES
from atoll.topology.presets import Layout, fabric_for
from atoll.units import parse_bandwidth, parse_duration

MAX_BYTES: Final = 4 << 20
NO_SOURCE: Final = "no source given"
_COUNTS: Final = ("uplinks_per_leaf", "spines", "nodes_per_pod", "uplinks_per_spine", "cores")
_Value = TypeVar("_Value")


def read_cluster(text: str | bytes, file: str) -> Cluster:
    """The cluster that ``text`` describes. Raises ``SpecError`` with every mistake, one a line."""
    if len(text) > MAX_BYTES:
        raise SpecError(f"{file}: {len(text)} bytes; a cluster is described in at most {MAX_BYTES}")
    try:
        document = tomllib.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{file}: not TOML: {error}") from error
    mistakes: list[str] = []
    cluster = _cluster(_Table("", document, mistakes))
    if cluster is None:
        count = f"{len(mistakes)} mistakes:\n  " if len(mistakes) > 1 else ""
        raise SpecError(f"{file}: {count}" + "\n  ".join(mistakes))
    return cluster


class _Table:
    """One TOML table being read: what it should hold is asked for, what is left over is a mistake."""

    def __init__(self, path: str, data: Mapping[str, Any], mistakes: list[str]) -> None:
        self.path = path
        self.data = data
        self.mistakes = mistakes
        self.known: list[str] = []

    def wrong(self, key: str, what: str) -> None:
        place = f"{self.path}.{key}" if self.path and key else self.path or key
        self.mistakes.append(f"{place}: {what}" if place else what)

    def take(self, key: str, kind: type[_Value], default: _Value, what: str, *, needed: bool = False) -> _Value:
        """A value of one type; ``what`` says in words what is expected."""
        self.known.append(key)
        if key not in self.data:
            if needed:
                self.wrong(key, f"missing; expected {what}")
            return default
        value = self.data[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)  # type: ignore[return-value]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.wrong(key, f"expected {what}, got {value!r:.60}")
            return default
        return value

    def number(self, key: str, default: int, least: int, most: int = MAX_NODES, *, needed: bool = False) -> int:
        value = self.take(key, int, default, f"a whole number from {least} to {most}", needed=needed)
        if not least <= value <= most and key in self.data:
            self.wrong(key, f"expected a whole number from {least} to {most}, got {value}")
            return default
        return value

    def word(self, key: str, default: str, known: list[str], *, needed: bool = False) -> str:
        value = self.take(key, str, default, f"one of {', '.join(known[:12])}", needed=needed)
        if value not in known and key in self.data and isinstance(self.data[key], str):
            self.wrong(key, f"unknown {value!r}: {nearest(value, known)}")
            return default
        return value

    def table(self, key: str) -> _Table | None:
        found = self.take(key, dict, {}, "a table")
        return _Table(f"{self.path}.{key}" if self.path else key, found, self.mistakes) if key in self.data else None

    def tables(self, key: str, *, needed: bool) -> list[_Table]:
        rows = self.take(key, list, [], f"one or more [[{key}]]", needed=needed)
        result = []
        for number, row in enumerate(rows):
            place = f"{self.path}.{key}[{number}]" if self.path else f"{key}[{number}]"
            if isinstance(row, dict):
                result.append(_Table(place, row, self.mistakes))
            else:
                self.mistakes.append(f"{place}: expected a table, got {row!r:.60}")
        return result

    def figure(self, key: str, parse: Callable[[str], float], example: str, *, needed: bool = True) -> Figure | None:
        """A number, text with a unit, or a table of value, provenance and source; ``None`` where missing or wrong."""
        self.known.append(key)
        if key not in self.data:
            if needed:
                self.wrong(key, f"missing; expected a figure such as {example}")
            return None
        value = self.data[key]
        if not isinstance(value, dict):
            return self._figure(key, value, Provenance.ASSUMED, NO_SOURCE, parse, example)
        inner = _Table(f"{self.path}.{key}", value, self.mistakes)
        names = [provenance.value for provenance in Provenance]
        provenance = Provenance(inner.word("provenance", "assumed", names))
        source = inner.take("source", str, NO_SOURCE, "text")
        inner.known.append("value")
        inner.finish()
        if "value" not in value:
            inner.wrong("value", f"missing; expected a figure such as {example}")
            return None
        return inner._figure("value", value["value"], provenance, source, parse, example)

    def _figure(
        self, key: str, value: object, provenance: Provenance, source: str, parse: Callable[[str], float], example: str
    ) -> Figure | None:
        try:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return Figure(float(value), provenance, source)
            if isinstance(value, str):
                return Figure(parse(value), provenance, source)
        except SpecError as error:
            self.wrong("", str(error))
            return None
        self.wrong(key, f"expected a figure such as {example}, got {value!r:.60}")
        return None

    def finish(self) -> None:
        """Whatever was not asked for is not known."""
        for key in self.data:
            if key not in self.known:
                self.wrong(key, f"unknown key: {nearest(key, self.known)}")


def _cluster(top: _Table) -> Cluster | None:
    name = top.take("name", str, "", "a name", needed=True)
    rack = top.number("nodes_per_rack", 0, 0)
    source = top.take("source", str, "", "text")
    types = _node_types(top)
    groups = [group for table in top.tables("nodes", needed=True) if (group := _group(table, types)) is not None]
    if not top.data.get("nodes") and "nodes" in top.data:
        top.wrong("nodes", "expected at least one [[nodes]]")
    fabric_table = top.table("fabric")
    shares = _shares(top)
    top.finish()
    fabric = _fabric(fabric_table, groups) if fabric_table is not None else None
    if top.mistakes:
        return None
    try:
        return Cluster(name, tuple(groups), fabric, rack, shares, source)
    except SpecError as error:
        top.mistakes.append(str(error))
        return None


def _shares(top: _Table) -> tuple[tuple[int, float], ...]:
    """``[[shares]]``: single directed links at part of their bandwidth."""
    shares = []
    for table in top.tables("shares", needed=False):
        link = table.number("link", 0, 0, 1 << 40, needed=True)
        share = table.take("share", float, 1.0, "a share from 0 to 1", needed=True)
        if not 0 < share <= 1:
            table.wrong("share", f"expected a share above 0 and at most 1, got {share:g}")
        table.finish()
        shares.append((link, share))
    return tuple(shares)


def _node_types(top: _Table) -> dict[str, NodeType | None]:
    """By name; ``None`` for one with mistakes, so that naming it is not one more."""
    types: dict[str, NodeType | None] = {}
    tables = top.table("node_types")
    for name in tables.data if tables is not None else ():
        inner = tables.table(name) if tables is not None else None
        types[name] = _node_type(name, inner) if inner is not None else None
    return types


def _node_type(name: str, table: _Table) -> NodeType | None:
    before = len(table.mistakes)
    like = table.word("like", "", list(NODE_TYPES))
    base = NODE_TYPES[like]() if like else None
    gpu = table.take("gpu", str, base.gpu.name if base else "", "the name of the GPU", needed=base is None)
    nvlinks = table.number("nvlinks", base.gpu.nvlinks if base else 0, 0, 1024)
    memory = table.figure("memory_bandwidth", parse_bandwidth, "3.35TB/s", needed=False)
    model = GpuModel(gpu, nvlinks, memory or (base.gpu.memory_bandwidth if base else None))
    span = table.number("island_nodes", base.island_nodes if base else 1, 1)
    peer = table.take("peer_to_peer", bool, base.peer_to_peer if base else True, "true or false")
    direct = table.take("gpudirect", bool, base.gpudirect if base else True, "true or false")
    chips = table.number("nvswitch_chips", base.nvswitch_chips if base else 0, 0)
    source = table.take("source", str, base.source if base else "", "text")
    groups = [group for row in table.tables("links", needed=base is None) if (group := _links(row)) is not None]
    table.finish()
    if len(table.mistakes) > before:
        return None
    try:
        return NodeType(name, model, tuple(groups) or (base.groups if base else ()), span, peer, direct, chips, source)
    except SpecError as error:
        table.wrong("", str(error).partition(": ")[2])
        return None


def _links(table: _Table) -> LinkGroup | None:
    before = len(table.mistakes)
    kind = table.word("kind", "pcie", [kind.value for kind in LinkKind], needed=True)
    ends = table.take("from", str, "", "devices such as gpu0-7", needed=True)
    to = table.take("to", str, "", "devices such as nvswitch0, 'mesh' or 'network'", needed=True)
    speed = _speed(table)
    table.finish()
    return LinkGroup(LinkKind(kind), ends, to, speed) if speed is not None and len(table.mistakes) == before else None


def _speed(table: _Table) -> Speed | None:
    bandwidth = table.figure("bandwidth", parse_bandwidth, "450GB/s")
    back = table.figure("back", parse_bandwidth, "450GB/s", needed=False)
    latency = table.figure("latency", parse_duration, "0.5us")
    efficiency = table.figure("efficiency", _share, "0.8", needed=False)
    lanes = table.number("lanes", 1, 1, 1 << 20)
    if bandwidth is None or latency is None:
        return None
    return Speed(bandwidth, latency, efficiency or WHOLE, lanes, back)


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SpecError(f"expected a share such as 0.8, got {text!r}") from None


def _group(table: _Table, types: dict[str, NodeType | None]) -> NodeGroup | None:
    kind = table.word("type", "", [*types, *NODE_TYPES], needed=True)
    text = table.take("hosts", str, "", "a list of hosts such as node[01-04]")
    hosts: tuple[str, ...] = ()
    if text:
        try:
            hosts = expand_node_list(text, "hosts")
        except SpecError as error:
            table.wrong("hosts", str(error))
    count = table.number("count", len(hosts) or 1, 1, needed=not text)
    table.finish()
    if hosts and len(hosts) != count:
        table.wrong("hosts", f"{len(hosts)} hosts for a count of {count}")
        return None
    found = types[kind] if kind in types else NODE_TYPES[kind]() if kind in NODE_TYPES else None
    return NodeGroup(found, count, hosts) if found is not None else None


def _fabric(table: _Table, groups: list[NodeGroup]) -> Fabric | None:
    routing = Routing(table.word("routing", "ecmp", [routing.value for routing in Routing]))
    source = table.take("source", str, "", "text")
    if "layout" in table.data:
        layout: Layout = (
            "fat-tree" if table.word("layout", "", ["rail-optimised", "fat-tree"]) == "fat-tree" else "rail-optimised"
        )
        oversubscription = table.take("oversubscription", float, 1.0, "a number from 1")
        ports = table.number("ports", 64, 4, 1 << 16)
        table.finish()
        if table.mistakes or not groups:
            return None
        try:
            return fabric_for(
                groups[0].node_type, sum(group.count for group in groups), layout, oversubscription=oversubscription,
                routing=routing, ports=ports, source=source,
            )  # fmt: skip
        except SpecError as error:
            table.wrong("", str(error))
            return None
    name = table.take("name", str, "fabric", "a name")
    per_leaf = table.number("nodes_per_leaf", 1, 1, needed=True)
    counts = {key: table.number(key, 0, 0) for key in _COUNTS}
    rails = table.number("rails", 1, 1)
    planes = table.take("planes", bool, False, "true or false")
    leaf_uplink, spine_uplink = _cable(table, "leaf_uplink"), _cable(table, "spine_uplink")
    table.known.append("layout")
    table.finish()
    if table.mistakes:
        return None
    try:
        return Fabric(
            name, per_leaf, rails, planes=planes, routing=routing, leaf_uplink=leaf_uplink, spine_uplink=spine_uplink,
            source=source, **counts,
        )  # fmt: skip
    except SpecError as error:
        table.wrong("", str(error).partition(": ")[2])
        return None


def _cable(table: _Table, key: str) -> Speed | None:
    inner = table.table(key)
    if inner is None:
        return None
    speed = _speed(inner)
    inner.finish()
    return speed
