"""Fabrics of any size: how many leaves, spines and cores join so many NICs with switches of so many ports.

Rules, as in NVIDIA's SuperPOD reference architectures, whose published counts the tests hold this to: a leaf gives
ports to NICs and uplinks in the ratio of the oversubscription; two tiers are built while a spine has a port for every
leaf; beyond that pods of 4 units (8, 16, ... where a core would run out of ports) with as many spines as leaves in each
plane, and cores above. Uplinks run at the NICs' rate. Where not even pods as large as the switch allow suffice, cores
are taken to be chassis with more ports, so that a fabric of any size has a figure.
"""

from __future__ import annotations

import math

from atoll.errors import SpecError
from atoll.topology.fabric import Fabric, Routing
from atoll.topology.figure import Speed

SWITCH_PORTS = 64
"""Of a 64-port switch: NVIDIA Quantum-2 QM9700, 64 x 400 Gb/s."""


def rail_optimised(
    num_nodes: int, rails: int, cable: Speed, *, oversubscription: float = 1.0, ports: int = SWITCH_PORTS,
    routing: Routing = Routing.ECMP, source: str = "",
) -> Fabric:  # fmt: skip
    """One leaf per rail for each unit of nodes. ``cable`` is the speed of a NIC's cable and of every uplink."""
    return _design(
        "rail-optimised", num_nodes, rails, 1, cable, oversubscription, ports, routing, source
    )  # fmt: skip


def fat_tree(
    num_nodes: int, nics_per_node: int, cable: Speed, *, oversubscription: float = 1.0, ports: int = SWITCH_PORTS,
    routing: Routing = Routing.ECMP, source: str = "",
) -> Fabric:  # fmt: skip
    """All NICs of a node to one leaf."""
    return _design("fat-tree", num_nodes, 1, nics_per_node, cable, oversubscription, ports, routing, source)


def _design(
    name: str, num_nodes: int, rails: int, nics_per_leaf_and_node: int, cable: Speed, oversubscription: float,
    ports: int, routing: Routing, source: str,
) -> Fabric:  # fmt: skip
    if num_nodes < 1 or rails < 1 or nics_per_leaf_and_node < 1:
        raise SpecError(f"{name}: expected at least one node and one NIC a node, got {num_nodes} nodes")
    if ports < 4 or not oversubscription >= 1:
        raise SpecError(
            f"{name}: expected switches of at least 4 ports and an oversubscription of at least 1, got {ports} ports "
            f"and {oversubscription:g}"
        )
    down = int(ports * oversubscription / (1 + oversubscription) + 1e-9)
    nodes_per_leaf = max(1, min(down // nics_per_leaf_and_node, num_nodes))
    units = -(-num_nodes // nodes_per_leaf)
    leaves = units * rails
    if leaves == 1:
        return Fabric(name, nodes_per_leaf, rails, routing=routing, source=source)
    uplinks = max(1, math.ceil(nodes_per_leaf * nics_per_leaf_and_node / oversubscription - 1e-9))
    spines = _spines(uplinks, leaves, ports)
    if spines:
        return Fabric(
            name, nodes_per_leaf, rails, uplinks, spines, routing=routing, leaf_uplink=cable, source=source
        )  # fmt: skip
    # Three tiers: half of a spine's ports lead down.
    planes = rails > 1
    units_per_pod = 4
    while True:
        pods = -(-units // units_per_pod)
        spines = _spines(uplinks, units_per_pod, ports // 2)
        larger = _spines(uplinks, units_per_pod * 2, ports // 2)
        if pods * (rails if planes else 1) <= ports or not larger or pods == 1:
            break
        units_per_pod *= 2
    spines = spines or uplinks
    up = max(1, units_per_pod * uplinks // spines)
    group = _core_group(up, pods * (rails if planes else 1), ports)
    return Fabric(
        name, nodes_per_leaf, rails, uplinks, spines, units_per_pod * nodes_per_leaf, planes, up, spines * group,
        routing, cable, cable, source,
    )  # fmt: skip


def _spines(uplinks: int, leaves: int, ports: int) -> int:
    """The fewest spines over which ``uplinks`` of each leaf spread evenly within ``ports``; 0 where none do."""
    return next(
        (spines for spines in range(1, uplinks + 1) if uplinks % spines == 0 and leaves * uplinks // spines <= ports), 0
    )


def _core_group(cables: int, spines: int, ports: int) -> int:
    """The fewest cores for spines of equal number with ``cables`` each; ``cables`` where none keep to ``ports``."""
    return next(
        (group for group in range(1, cables + 1) if cables % group == 0 and spines * cables // group <= ports), cables
    )
