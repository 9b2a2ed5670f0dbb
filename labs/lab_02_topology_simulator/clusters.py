"""The lab's clusters: presets as they are, and two changed on purpose."""

from __future__ import annotations

from atoll.topology.cluster import Cluster, NodeGroup
from atoll.topology.fabric import Routing
from atoll.topology.node_type import LinkGroup, LinkKind, NodeType
from atoll.topology.presets import fabric_for, preset


def one_nic(nodes: int) -> Cluster:
    """DGX H100 with one NIC for eight GPUs: all of them on one PCIe switch, so that the NIC alone is narrow."""
    whole = preset("dgx-h100").groups[0].node_type
    speed = {group.kind: group.speed for group in whole.groups}
    pcie = next(group.speed for group in whole.groups if group.kind is LinkKind.PCIE and "gpu" in group.ends)
    node = NodeType(
        "dgx-h100-one-nic",
        whole.gpu,
        (
            LinkGroup(LinkKind.NVLINK, "gpu0-7", "nvswitch0", speed[LinkKind.NVLINK]),
            LinkGroup(LinkKind.PCIE, "gpu0-7", "pcie0", pcie),
            LinkGroup(LinkKind.PCIE, "nic0", "pcie0", pcie),
            LinkGroup(LinkKind.NETWORK, "nic0", "network", speed[LinkKind.NETWORK]),
        ),
        nvswitch_chips=whole.nvswitch_chips,
        source="made for the lab",
    )
    fabric = fabric_for(node, nodes, "rail-optimised", routing=Routing.ADAPTIVE)
    return Cluster(f"{nodes} x dgx-h100, one NIC", (NodeGroup(node, nodes),), fabric)


def plain_tree(nodes: int) -> Cluster:
    """DGX H100 in a plain fat tree of 16-port switches: one node a leaf, and ECMP may put two flows on one cable."""
    return preset("dgx-h100", nodes, layout="fat-tree", routing=Routing.ECMP, ports=16)


def link_ratio(cluster: Cluster, *, usable: bool) -> float:
    """What one GPU sends into its island over what it gets of its node's NICs, per direction."""
    node = cluster.node_type(0)
    cables = [speed for nic in node.nics if (speed := node.cable(nic)) is not None]
    out = sum(speed.usable_bytes_per_s() if usable else speed.bandwidth_bytes_per_s() for speed in cables)
    return node.island_bytes_per_s(node.gpus[0], usable) / (out / len(node.gpus))
