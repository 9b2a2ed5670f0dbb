"""What nodes and tiers can carry in one direction, without expanding anything: for closed forms and summaries.

All figures are of usable bandwidth unless said otherwise, and of one direction. A node's network capacity counts what
its NICs send together, each the least of its cable and its own PCIe link, and what the PCIe links above them let
through.
"""

from __future__ import annotations

import msgspec

from atoll.errors import SpecError
from atoll.topology.cluster import Cluster
from atoll.topology.node_type import NETWORK, LinkKind, NodeType


class NodeCapacity(msgspec.Struct, frozen=True):
    """``gpus`` of one node; ``island_gpus`` of its island; ``island_bytes_per_s`` what one GPU sends into the island
    (over PCIe where there is none); ``network_bytes_per_s`` what the whole node sends to its leaves.
    """

    gpus: int
    island_gpus: int
    island_bytes_per_s: float
    nics: int
    network_bytes_per_s: float

    @property
    def network_bytes_per_s_and_gpu(self) -> float:
        return self.network_bytes_per_s / self.gpus


def node_capacity(node_type: NodeType) -> NodeCapacity:
    """See the module's text. The slowest GPU counts."""
    island = min(node_type.island_bytes_per_s(gpu) for gpu in node_type.gpus)
    if island == 0:
        island = min(_up(node_type, gpu) for gpu in node_type.gpus)
    gpus = len(node_type.gpus)
    islands = gpus * node_type.island_nodes if any(node_type.island_bytes_per_s(gpu) for gpu in node_type.gpus) else 1
    nics = [nic for nic in node_type.nics if node_type.cable(nic) is not None]
    return NodeCapacity(gpus, islands, island, len(nics), _network(node_type))


def fabric_bytes_per_s(cluster: Cluster, tier: str) -> float:
    """What one node may send beyond its leaf (``"leaf"``) or its pod (``"pod"``) when all do at once, from the uplinks.

    inf where nothing is beyond. Raises ``SpecError`` for another tier or without a fabric.
    """
    if cluster.fabric is None or tier not in ("leaf", "pod"):
        raise SpecError(f"{cluster.name}: expected the tier 'leaf' or 'pod' of a fabric, got {tier!r}")
    fabric = cluster.fabric
    if fabric.leaf_uplink is None or fabric.num_units(cluster.num_nodes) * fabric.rails == 1:
        return float("inf")
    nodes = min(fabric.nodes_per_leaf, cluster.num_nodes)
    if tier == "leaf":
        return fabric.rails * fabric.uplinks_per_leaf * fabric.leaf_uplink.usable_bytes_per_s() / nodes
    if fabric.spine_uplink is None or fabric.num_pods(cluster.num_nodes) == 1:
        return float("inf")
    spines = fabric.num_planes * fabric.spines
    return spines * fabric.uplinks_per_spine * fabric.spine_uplink.usable_bytes_per_s() / fabric.nodes_per_pod


def _up(node_type: NodeType, device: str) -> float:
    """What a device sends into its host."""
    kinds = (LinkKind.PCIE, LinkKind.C2C)
    return max(
        (link.speed.usable_bytes_per_s() for link in node_type.links if link.a == device and link.kind in kinds),
        default=0.0,
    )


def _network(node_type: NodeType) -> float:
    """NICs below the same device share what GPUs and CPUs can bring there; that is at least their own links."""
    total = 0.0
    for link in node_type.links:
        if link.b == NETWORK:
            own = _up(node_type, link.a)
            cable = link.speed.usable_bytes_per_s()
            total += min(cable, own) if own else cable
    # All of it comes from GPUs: their links into the host bound it.
    return min(total, sum(_up(node_type, gpu) for gpu in node_type.gpus) or total)
