"""A cluster for people: what it is made of, where each figure comes from, and what typical routes reach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atoll.topology.cluster import Cluster, NodeGroup
from atoll.topology.fabric import Fabric
from atoll.topology.figure import Speed
from atoll.topology.names import device_name, link_ends
from atoll.topology.routes import DEFAULT_TRANSPORT, Transport, find_routes
from atoll.units import format_bandwidth, format_duration

_HEADINGS = ("per direction", "headline", "usable", "latency", "from")


def describe(cluster: Cluster, *, sources: bool = False, transport: Transport = DEFAULT_TRANSPORT) -> str:
    """Text in columns, ending in a newline. With ``sources`` every figure's source stands below it."""
    lines = [_title(cluster)]
    for at, group in enumerate(cluster.groups):
        first = int(cluster.first_node[at])
        lines += ["", *_group(group, first, sources)]
    if cluster.fabric is not None:
        lines += ["", *_fabric(cluster, cluster.fabric, sources)]
    routes = typical_pairs(cluster)
    if routes:
        lines += ["", "routes, one at a time", *_table(list(_routes(cluster, routes, transport)))]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def typical_pairs(cluster: Cluster) -> list[tuple[str, int, int]]:
    """Pairs of GPUs that show each tier: what it is, and the two GPU numbers."""
    found: list[tuple[str, int, int]] = []
    seen: set[str] = set()

    def add(what: str, gpu: int) -> None:
        if 0 < gpu < cluster.num_gpus and what not in seen:
            seen.add(what)
            found.append((what, 0, gpu))

    first = cluster.groups[0].node_type
    per_node = len(first.gpus)
    if per_node > 1:
        add("in the node", 1)
        if not first.switches and per_node > 2:
            add("in the node, far", per_node - 1)
    nodes = cluster.num_nodes
    island = first.island_nodes
    if nodes > 1 and island > 1:
        add("in the island", per_node)
    if nodes > island:
        other = int(cluster.first_gpu_of_node(min(island, nodes - 1)))
        add("next node" if island == 1 else "next island", other)
        if per_node > 1 and other + 1 < cluster.num_gpus:
            add("next node, other GPU" if island == 1 else "next island, other GPU", other + 1)
    fabric = cluster.fabric
    if fabric is not None:
        for what, distance in (("other leaf", fabric.nodes_per_leaf), ("other pod", fabric.nodes_per_pod)):
            if 0 < distance < nodes and distance > island:
                add(what, int(cluster.first_gpu_of_node(distance)))
    return found


def _title(cluster: Cluster) -> str:
    parts = [f"{cluster.num_nodes} node{_s(cluster.num_nodes)}", f"{cluster.num_gpus} GPU{_s(cluster.num_gpus)}"]
    parts.append(f"{cluster.num_islands} island{_s(cluster.num_islands)}")
    if cluster.nodes_per_rack:
        racks = -(-cluster.num_nodes // cluster.nodes_per_rack)
        parts.append(f"{racks} rack{_s(racks)}")
    return f"{cluster.name}: {', '.join(parts)}"


def _group(group: NodeGroup, first: int, sources: bool) -> Iterable[str]:
    node = group.node_type
    last = first + group.count - 1
    span = f"node {first}" if group.count == 1 else f"nodes {first}-{last}"
    if group.hosts:
        span += f" ({group.hosts[0]}{'' if group.count == 1 else f' ... {group.hosts[-1]}'})"
    what = [f"{len(node.gpus)} x {node.gpu.name}", f"{len(node.nics)} NIC{_s(len(node.nics))}"]
    if node.island_nodes > 1:
        what.append(f"{node.island_nodes} nodes an island")
    if not node.peer_to_peer:
        what.append("no peer-to-peer")
    if not node.gpudirect:
        what.append("no GPUDirect")
    yield f"{span}: {node.name}, {', '.join(what)}"
    if sources and node.source:
        yield f"  {node.source}"
    rows = [(f"{part.kind.value} {part.ends} - {part.to}", part.speed) for part in node.groups]
    yield from _speeds(rows, sources)


def _fabric(cluster: Cluster, fabric: Fabric, sources: bool) -> Iterable[str]:
    nodes = cluster.num_nodes
    leaves = fabric.num_leaves(nodes)
    parts = ["1 leaf" if leaves == 1 else f"{leaves} leaves"]
    if fabric.spines:
        parts.append(f"{fabric.num_spines(nodes)} spine{_s(fabric.num_spines(nodes))}")
    if fabric.cores:
        parts.append(f"{fabric.cores} core{_s(fabric.cores)}")
    if fabric.rails > 1:
        parts.insert(0, f"{fabric.rails} rails")
    node = cluster.groups[0].node_type
    cables = [speed for nic in node.nics if (speed := node.cable(nic)) is not None]
    if fabric.spines and cables:
        ratio = fabric.oversubscription(len(cables), cables[0].bandwidth_bytes_per_s())
        parts.append("non-blocking" if ratio <= 1 else f"leaves oversubscribed {ratio:.3g} : 1")
        above = fabric.spine_oversubscription()
        if fabric.cores and above > 1:
            parts.append(f"spines oversubscribed {above:.3g} : 1")
    parts.append(f"{fabric.routing.value} routing")
    yield f"fabric {fabric.name}: {', '.join(parts)}"
    if sources and fabric.source:
        yield f"  {fabric.source}"
    rows = [
        (f"{what} x {count}", speed)
        for what, count, speed in (
            ("leaf uplink", fabric.uplinks_per_leaf, fabric.leaf_uplink),
            ("spine uplink", fabric.uplinks_per_spine, fabric.spine_uplink),
        )
        if speed is not None
    ]
    if rows:
        yield from _speeds(rows, sources)


def _speeds(rows: Sequence[tuple[str, Speed]], sources: bool) -> Iterable[str]:
    cells = [_HEADINGS]
    cells += [
        (
            name, format_bandwidth(speed.bandwidth.value), format_bandwidth(speed.usable_bytes_per_s()),
            format_duration(speed.latency.value), speed.bandwidth.provenance.value,
        )
        for name, speed in rows
    ]  # fmt: skip
    table = _table(cells)
    yield table[0]
    for line, (_, speed) in zip(table[1:], rows, strict=True):
        yield line
        if speed.back is not None:
            yield f"    back: {format_bandwidth(speed.back.value)}, {speed.back.provenance.value}: {speed.back.source}"
        if sources:
            for what, figure in (("", speed.bandwidth), ("usable ", speed.efficiency), ("latency ", speed.latency)):
                yield f"    {what}{figure.provenance.value}: {figure.source}"


def _routes(cluster: Cluster, pairs: Sequence[tuple[str, int, int]], transport: Transport) -> Iterable[tuple[str, ...]]:
    routes = find_routes(cluster, [a for _, a, _ in pairs], [b for _, _, b in pairs], 0, transport)
    usable, latency = routes.bottleneck_bytes_per_s(cluster), routes.latency_s(cluster)
    for at, (what, a, b) in enumerate(pairs):
        first, second = link_ends(cluster, routes[at])
        devices = [device_name(cluster, int(device)).rpartition("/")[2] for device in (first[0], *second)]
        yield (
            what, f"GPU {a} to {b}", format_bandwidth(float(usable[at])), format_duration(float(latency[at])),
            " > ".join(devices),
        )  # fmt: skip


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns two spaces apart, indented by two; figures to the right, the first and last column to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column in (0, len(row) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells))
    return lines


def _s(count: int) -> str:
    return "" if count == 1 else "s"
