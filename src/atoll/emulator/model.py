"""The emulated cluster as a topology, so that the simulator predicts what it will measure.

A rank is a GPU on an NVLink switch: its island interface. Its network interface is a NIC behind a PCIe switch that
limits nothing, as the veth pair there does not. Leaves and spine are the fabric's. Bandwidths are the token buckets',
the efficiency is the share of a frame that is payload, and the latency of a message, software and all, is given: it is
a property of the machine that runs the ranks, not of the emulated links.
"""

from __future__ import annotations

from typing import Final

from atoll.emulator.layout import PAYLOAD_SHARE, Layout, Rates
from atoll.topology.cluster import Cluster, NodeGroup
from atoll.topology.fabric import Fabric
from atoll.topology.figure import Figure, Speed, assumed, derived, measured
from atoll.topology.node_type import NETWORK, GpuModel, LinkGroup, LinkKind, NodeType

UNLIMITED_BYTES_PER_S: Final = 1e11
_NONE: Final = assumed(0.0, "counted on the rank's first and last link")


def cluster_of(layout: Layout, rates: Rates, latency_s: float = 0.0) -> Cluster:
    """GPU r is rank r. ``latency_s`` is what one message costs beside its bytes, between any two ranks."""
    ranks, nics = layout.ranks_per_node, layout.nics
    half = measured(latency_s / 2, "half of what a small message takes between two ranks of this machine")
    groups = [LinkGroup(LinkKind.NVLINK, _run("gpu", ranks), "nvswitch0", _limited(rates.island, half))]
    fabric = None
    if layout.nodes > 1:
        free = assumed(UNLIMITED_BYTES_PER_S, "a veth pair without a limit")
        groups += [
            LinkGroup(LinkKind.PCIE, _run("gpu", ranks), _run("pcie", nics), Speed(free, half)),
            LinkGroup(LinkKind.PCIE, _run("nic", nics), _run("pcie", nics), Speed(free, _NONE)),
            LinkGroup(LinkKind.NETWORK, _run("nic", nics), NETWORK, _limited(rates.network, _NONE)),
        ]
        fabric = _fabric(layout, rates)
    node = NodeType("emulated-node", GpuModel("emulated"), tuple(groups), source="network namespaces of one machine")
    return Cluster("emulated", (NodeGroup(node, layout.nodes),), fabric, source=layout.describe())


def _fabric(layout: Layout, rates: Rates) -> Fabric:
    if not layout.has_spine:
        return Fabric("emulated-fabric", layout.nodes, source="one bridge")
    return Fabric(
        "emulated-fabric", layout.nodes_per_leaf, uplinks_per_leaf=1, spines=1,
        leaf_uplink=_limited(rates.uplink(layout), _NONE), source="a bridge for each leaf, and one for the spine",
    )  # fmt: skip


def _limited(bytes_per_s: float, latency: Figure) -> Speed:
    return Speed(
        derived(bytes_per_s, "the rate of the token bucket"), latency,
        derived(PAYLOAD_SHARE, "1448 bytes of TCP payload in a frame of 1514"),
    )  # fmt: skip


def _run(kind: str, count: int) -> str:
    return f"{kind}0" if count == 1 else f"{kind}0-{count - 1}"
