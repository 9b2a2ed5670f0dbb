"""Clusters by name: ``dgx-h100:16`` is 16 DGX H100, ``gb200-nvl72:2`` two racks.

A preset is a node type (``preset_nodes``) and the fabric that such machines usually stand in, sized for the count by
``design``. The count is of nodes, for NVL72 of racks. One node, or one rack, has a fabric of leaves only.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from atoll.errors import SpecError, nearest
from atoll.topology import link_catalogue, preset_nodes
from atoll.topology.cluster import Cluster, NodeGroup
from atoll.topology.design import SWITCH_PORTS, fat_tree, rail_optimised
from atoll.topology.fabric import Fabric, Routing
from atoll.topology.node_type import NodeType

Layout = Literal["rail-optimised", "fat-tree"]


class Preset(msgspec.Struct, frozen=True):
    """``unit_nodes`` nodes make one of what is counted (``unit``)."""

    name: str
    node_type: str
    summary: str
    layout: Layout
    routing: Routing
    fabric_source: str
    unit: str = "node"
    unit_nodes: int = 1
    nodes_per_rack: int = 0


_SUPERPOD: Final = "NVIDIA DGX SuperPOD reference architectures: rail-optimised, non-blocking, adaptive routing"
_AWS: Final = "AWS does not publish its network; taken as non-blocking with SRD spreading packets over all paths"
_AZURE: Final = "Azure documentation: non-blocking fat tree of InfiniBand, one rail per NIC; adaptive routing"
_NONE: Final = "assumed: a plain non-blocking fat tree with ECMP"

PRESETS: Final[dict[str, Preset]] = {
    preset.name: preset
    for preset in (
        Preset("dgx-a100", "dgx-a100", "8 x A100 80 GB, NVSwitch, 8 x 200 Gb/s", "rail-optimised", Routing.ADAPTIVE,
               _SUPERPOD, nodes_per_rack=4),
        Preset("dgx-h100", "dgx-h100", "8 x H100, NVSwitch, 8 x 400 Gb/s", "rail-optimised", Routing.ADAPTIVE,
               _SUPERPOD, nodes_per_rack=4),
        Preset("hgx-h200", "hgx-h200", "8 x H200, NVSwitch, 8 x 400 Gb/s", "rail-optimised", Routing.ADAPTIVE,
               _SUPERPOD, nodes_per_rack=4),
        Preset("hgx-b200", "hgx-b200", "8 x B200, NVSwitch, 8 x 400 Gb/s", "rail-optimised", Routing.ADAPTIVE,
               _SUPERPOD, nodes_per_rack=4),
        Preset("gb200-nvl72", "gb200-tray", "racks of 72 x GB200, one island, 400 Gb/s a GPU", "rail-optimised",
               Routing.ADAPTIVE, _SUPERPOD, "rack", 18, 18),
        Preset("gb300-nvl72", "gb300-tray", "racks of 72 x GB300, one island, 800 Gb/s a GPU", "rail-optimised",
               Routing.ADAPTIVE, _SUPERPOD, "rack", 18, 18),
        Preset("aws-p4d", "aws-p4d", "p4d.24xlarge: 8 x A100 40 GB, 4 x 100 Gb/s EFA", "fat-tree", Routing.ADAPTIVE,
               _AWS),
        Preset("aws-p5", "aws-p5", "p5.48xlarge: 8 x H100, 32 x 100 Gb/s EFA", "fat-tree", Routing.ADAPTIVE, _AWS),
        Preset("azure-ndv4", "azure-ndv4", "ND A100 v4: 8 x A100 40 GB, 8 x 200 Gb/s", "rail-optimised",
               Routing.ADAPTIVE, _AZURE),
        Preset("azure-ndv5", "azure-ndv5", "ND H100 v5: 8 x H100, 8 x 400 Gb/s", "rail-optimised", Routing.ADAPTIVE,
               _AZURE),
        Preset("l40s-pcie", "l40s-pcie", "8 x L40S on PCIe, 4 x 200 Gb/s", "fat-tree", Routing.ECMP, _NONE),
        Preset("rtx4090-box", "rtx4090-box", "8 x RTX 4090, no peer-to-peer, 100 Gb/s", "fat-tree", Routing.ECMP,
               _NONE),
        Preset("mi300x", "mi300x", "8 x MI300X, xGMI mesh, 8 x 400 Gb/s", "rail-optimised", Routing.ECMP,
               "assumed: rail-optimised and non-blocking, ECMP"),
    )
}  # fmt: skip


def preset(
    name: str, count: int = 1, *, nodes: int | None = None, layout: Layout | None = None,
    oversubscription: float = 1.0, routing: Routing | None = None, ports: int = SWITCH_PORTS,
) -> Cluster:  # fmt: skip
    """The cluster of a preset. ``count`` is of nodes, of racks for NVL72; ``nodes`` counts nodes there too.

    ``layout``, ``oversubscription``, ``routing`` and ``ports`` of a switch overrule the preset's fabric. Raises
    ``SpecError`` with the nearest name for an unknown one.
    """
    if name not in PRESETS:
        raise SpecError(f"unknown preset {name!r}: {nearest(name, PRESETS)}")
    chosen = PRESETS[name]
    if count < 1:
        raise SpecError(f"preset {name}: expected at least one {chosen.unit}, got {count}")
    node_type = preset_nodes.NODE_TYPES[chosen.node_type]()
    if nodes is not None and nodes < 1:
        raise SpecError(f"preset {name}: expected at least one node, got {nodes}")
    total = count * chosen.unit_nodes if nodes is None else nodes
    fabric = fabric_for(
        node_type, total, layout or chosen.layout, oversubscription=oversubscription,
        routing=routing or chosen.routing, ports=ports, source=chosen.fabric_source,
    )  # fmt: skip
    label = name if count == 1 and nodes is None else f"{count} x {name}"
    if nodes is not None:
        label = f"{nodes} nodes of {name}" if chosen.unit_nodes > 1 else f"{nodes} x {name}"
    return Cluster(label, (NodeGroup(node_type, total),), fabric, chosen.nodes_per_rack, source=node_type.source)


def fabric_for(
    node_type: NodeType, num_nodes: int, layout: Layout, *, oversubscription: float = 1.0,
    routing: Routing = Routing.ECMP, ports: int = SWITCH_PORTS, source: str = "",
) -> Fabric:  # fmt: skip
    """A fabric for so many nodes of a type, its cables at the rate of the type's NICs. Raises ``SpecError``."""
    cables = [speed for nic in node_type.nics if (speed := node_type.cable(nic)) is not None]
    if not cables:
        raise SpecError(f"node type {node_type.name!r} has no NIC with a link to 'network'; a fabric needs one")
    cable = link_catalogue.uplink(max(cables, key=lambda speed: speed.bandwidth.value))
    if layout == "rail-optimised":
        rails = max(node_type.rails) + 1
        return rail_optimised(
            num_nodes, rails, cable, oversubscription=oversubscription, ports=ports, routing=routing, source=source
        )
    return fat_tree(
        num_nodes, len(cables), cable, oversubscription=oversubscription, ports=ports, routing=routing, source=source
    )
