"""A cluster as data: node types times counts and a fabric; everything else is arithmetic.

Nothing is expanded per GPU until somebody asks. Numbers run as follows.

- *Nodes* are numbered group by group, *GPUs* node by node: GPU number 8 of DGX boxes is gpu0 of node 1. Ranks are
  mapped to GPU numbers by whoever places them; the identity is the default placement.
- *Links* are directed and have one integer each. A node's block holds two for each link of its type (2l forwards, 2l +
  1 back); blocks follow each other, then come leaf uplinks (two for each cable: up, down), then spine uplinks.
- *Devices*: a node's block holds the devices of its type; then the NVSwitches island by island, leaves, spines, cores.

All functions on numbers take and return NumPy arrays and cost what their arguments are long. The full columns
(``usable_bytes_per_s`` and the like) are worked out once, when asked for: a few milliseconds at 100,000 GPUs.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.errors import SpecError
from atoll.topology.fabric import Fabric
from atoll.topology.figure import Speed
from atoll.topology.node_type import NodeType

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_NODES: Final = 1_000_000


class NodeGroup(msgspec.Struct, frozen=True):
    """``count`` nodes of one type in a row; ``hosts`` names them where names are known."""

    node_type: NodeType
    count: int
    hosts: tuple[str, ...] = ()


class DeviceBlocks(msgspec.Struct, frozen=True):
    """The first device of each group's nodes, of the switches of each group's islands, of leaves, spines, cores."""

    nodes: Integers
    switches: Integers
    leaves: int
    spines: int
    cores: int
    end: int


class Cluster(msgspec.Struct, frozen=True, dict=True):
    """See the module's text. ``fabric`` is ``None`` for a single node or island. ``nodes_per_rack`` 0: not known.

    ``shares`` lowers single directed links: (number, share of the bandwidth), for what-ifs. Raises ``SpecError``.
    """

    name: str
    groups: tuple[NodeGroup, ...]
    fabric: Fabric | None = None
    nodes_per_rack: int = 0
    shares: tuple[tuple[int, float], ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        mistakes = []
        if not self.groups:
            mistakes.append("no nodes")
        for number, group in enumerate(self.groups):
            if not 1 <= group.count <= MAX_NODES:
                mistakes.append(f"nodes[{number}]: count: expected 1 to {MAX_NODES}, got {group.count}")
            if group.hosts and len(group.hosts) != group.count:
                mistakes.append(f"nodes[{number}]: {len(group.hosts)} hosts for {group.count} nodes")
        if not mistakes:
            mistakes = self._reach()
        if mistakes:
            raise SpecError(f"cluster {self.name!r}: " + "; ".join(mistakes))

    def _reach(self) -> list[str]:
        """Whether nodes can reach each other at all."""
        if self.num_islands == 1:
            return []
        if self.fabric is None:
            return [f"{self.num_islands} islands without a fabric cannot reach each other; give [fabric]"]
        without = [
            group.node_type.name
            for group in self.groups
            if not any(group.node_type.cable(nic) for nic in group.node_type.nics)
        ]
        if without:
            return [f"no NIC of {', '.join(without)} has a link to 'network'"]
        fabric = self.fabric
        if fabric.num_units(self.num_nodes) > 1 and not fabric.spines:
            return [f"{fabric.num_units(self.num_nodes)} units without spines cannot reach each other; give spines"]
        if fabric.num_pods(self.num_nodes) > 1 and not fabric.cores:
            return [f"{fabric.num_pods(self.num_nodes)} pods without cores cannot reach each other; give cores"]
        return []

    # --- how many -----------------------------------------------------------------------------------------------

    @cached_property
    def counts(self) -> Integers:
        return np.array([group.count for group in self.groups], dtype=np.int64)

    @property
    def num_nodes(self) -> int:
        return int(self.counts.sum())

    @cached_property
    def num_gpus(self) -> int:
        return int(self._first("gpus")[-1])

    @cached_property
    def num_islands(self) -> int:
        return int(self.first_island[-1])

    @cached_property
    def first_node(self) -> Integers:
        """Of each group, and the end."""
        return np.concatenate(([0], np.cumsum(self.counts)))

    @cached_property
    def first_gpu(self) -> Integers:
        return self._first("gpus")

    @cached_property
    def first_link(self) -> Integers:
        """The first directed link of each group, and the end of all node links."""
        return self._first("links") * 2

    @cached_property
    def first_island(self) -> Integers:
        islands = [-(-group.count // group.node_type.island_nodes) for group in self.groups]
        return np.concatenate(([0], np.cumsum(np.array(islands, dtype=np.int64))))

    def _first(self, what: str) -> Integers:
        sizes = [group.count * len(getattr(group.node_type, what)) for group in self.groups]
        return np.concatenate(([0], np.cumsum(np.array(sizes, dtype=np.int64))))

    @cached_property
    def first_leaf_link(self) -> int:
        return int(self.first_link[-1])

    @cached_property
    def first_spine_link(self) -> int:
        if self.fabric is None:
            return self.first_leaf_link
        return self.first_leaf_link + 2 * self.fabric.num_leaves(self.num_nodes) * self.fabric.tiers.leaf_cables

    @cached_property
    def num_links(self) -> int:
        if self.fabric is None:
            return self.first_spine_link
        fabric = self.fabric
        spines = fabric.num_pods(self.num_nodes) * fabric.num_planes * fabric.tiers.spines
        return self.first_spine_link + 2 * spines * fabric.tiers.spine_cables

    @cached_property
    def devices(self) -> DeviceBlocks:
        """Where devices of each kind start."""
        nodes = np.cumsum([0, *(group.count * len(group.node_type.devices) for group in self.groups)])
        per_island = np.array([len(group.node_type.switches) for group in self.groups], dtype=np.int64)
        switches = np.concatenate(([0], np.cumsum(np.diff(self.first_island) * per_island))) + nodes[-1]
        leaves = int(switches[-1])
        if self.fabric is None:
            return DeviceBlocks(nodes, switches, leaves, leaves, leaves, leaves)
        tiers = self.fabric.tiers
        spines = leaves + self.fabric.num_leaves(self.num_nodes)
        planes = self.fabric.num_pods(self.num_nodes) * self.fabric.num_planes
        cores = spines + (planes * tiers.spines if self.fabric.spines else 0)
        end = cores + (tiers.spines * tiers.core_group if self.fabric.cores else 0)
        return DeviceBlocks(nodes, switches, leaves, spines, cores, end)

    # --- where ----------------------------------------------------------------------------------------------------

    def group_of_node(self, nodes: ArrayLike) -> Integers:
        return np.searchsorted(self.first_node, np.asarray(nodes, dtype=np.int64), side="right") - 1

    def node_of_gpu(self, gpus: ArrayLike) -> Integers:
        """Raises ``SpecError`` for a number that no GPU has."""
        numbers = np.asarray(gpus, dtype=np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.num_gpus):
            raise SpecError(f"cluster {self.name!r} has GPUs 0 to {self.num_gpus - 1}, got {_outside(numbers, self)}")
        groups = np.searchsorted(self.first_gpu, numbers, side="right") - 1
        per_node = self._per_group("gpus")[groups]
        return self.first_node[groups] + (numbers - self.first_gpu[groups]) // per_node

    def local_gpu(self, gpus: ArrayLike) -> Integers:
        """Position among the GPUs of its node."""
        numbers = np.asarray(gpus, dtype=np.int64)
        groups = np.searchsorted(self.first_gpu, numbers, side="right") - 1
        return (numbers - self.first_gpu[groups]) % self._per_group("gpus")[groups]

    def first_gpu_of_node(self, nodes: ArrayLike) -> Integers:
        numbers = np.asarray(nodes, dtype=np.int64)
        groups = self.group_of_node(numbers)
        return self.first_gpu[groups] + (numbers - self.first_node[groups]) * self._per_group("gpus")[groups]

    def first_link_of_node(self, nodes: ArrayLike) -> Integers:
        numbers = np.asarray(nodes, dtype=np.int64)
        groups = self.group_of_node(numbers)
        return self.first_link[groups] + (numbers - self.first_node[groups]) * 2 * self._per_group("links")[groups]

    def island_of_node(self, nodes: ArrayLike) -> Integers:
        numbers = np.asarray(nodes, dtype=np.int64)
        groups = self.group_of_node(numbers)
        spans = np.array([group.node_type.island_nodes for group in self.groups], dtype=np.int64)
        return self.first_island[groups] + (numbers - self.first_node[groups]) // spans[groups]

    def island_of_gpu(self, gpus: ArrayLike) -> Integers:
        return self.island_of_node(self.node_of_gpu(gpus))

    def rack_of_node(self, nodes: ArrayLike) -> Integers:
        """Raises ``SpecError`` where racks are not known."""
        if not self.nodes_per_rack:
            raise SpecError(f"cluster {self.name!r} does not say how many nodes a rack holds; give nodes_per_rack")
        return np.asarray(nodes, dtype=np.int64) // self.nodes_per_rack

    def node_type(self, node: int) -> NodeType:
        return self.groups[int(self.group_of_node(node))].node_type

    def node_name(self, node: int) -> str:
        group = int(self.group_of_node(node))
        hosts = self.groups[group].hosts
        return hosts[node - int(self.first_node[group])] if hosts else f"node{node}"

    def gpu_name(self, gpu: int) -> str:
        node = int(self.node_of_gpu(gpu))
        return f"{self.node_name(node)}/{self.node_type(node).gpus[int(self.local_gpu(gpu))]}"

    def _per_group(self, what: str) -> Integers:
        return np.array([len(getattr(group.node_type, what)) for group in self.groups], dtype=np.int64)

    # --- links ----------------------------------------------------------------------------------------------------

    def bandwidth_of(self, links: ArrayLike, *, usable: bool = True) -> Floats:
        """Bytes per second of directed links: what payload reaches, or (``usable=False``) the headline."""
        return self._values(links, 0 if usable else 1)

    def latency_of(self, links: ArrayLike) -> Floats:
        """Seconds of directed links."""
        return self._values(links, 2)

    @cached_property
    def usable_bytes_per_s(self) -> Floats:
        """Of every directed link."""
        return self._column(0)

    @cached_property
    def bandwidth_bytes_per_s(self) -> Floats:
        """The headline of every directed link."""
        return self._column(1)

    @cached_property
    def latency_s(self) -> Floats:
        return self._column(2)

    @cached_property
    def _tables(self) -> list[Floats]:
        """Per group [3, 2 x links]: usable, headline, latency."""
        return [_table([link.speed for link in group.node_type.links]) for group in self.groups]

    @cached_property
    def _fabric_tables(self) -> tuple[Floats, Floats]:
        tiers = self.fabric.tiers if self.fabric is not None else None
        leaf = [tiers.leaf_speed] if tiers is not None and tiers.leaf_speed is not None else []
        spine = [tiers.spine_speed] if tiers is not None and tiers.spine_speed is not None else []
        return _table(leaf), _table(spine)

    def _column(self, row: int) -> Floats:
        parts = [np.tile(table[row], group.count) for table, group in zip(self._tables, self.groups, strict=True)]
        for table, count in zip(
            self._fabric_tables,
            (self.first_spine_link - self.first_leaf_link, self.num_links - self.first_spine_link),
            strict=True,
        ):
            parts.append(np.tile(table[row], count // 2))
        column = np.concatenate(parts)
        if row < 2:
            for number, share in self.shares:
                column[number] *= share
        column.flags.writeable = False
        return column

    def _values(self, links: ArrayLike, row: int) -> Floats:
        numbers = self._checked(links)
        values = np.empty(numbers.shape, dtype=np.float64)
        for at, table in enumerate(self._tables):
            chosen = (numbers >= self.first_link[at]) & (numbers < self.first_link[at + 1])
            values[chosen] = table[row][(numbers[chosen] - self.first_link[at]) % table.shape[1]]
        leaf, spine = self._fabric_tables
        chosen = (numbers >= self.first_leaf_link) & (numbers < self.first_spine_link)
        values[chosen] = leaf[row][numbers[chosen] % 2] if leaf.size else 0
        chosen = numbers >= self.first_spine_link
        values[chosen] = spine[row][numbers[chosen] % 2] if spine.size else 0
        if row < 2:
            for number, share in self.shares:
                values[numbers == number] *= share
        return values

    def _checked(self, links: ArrayLike) -> Integers:
        numbers = np.asarray(links, dtype=np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.num_links):
            raise SpecError(f"cluster {self.name!r} has links 0 to {self.num_links - 1}, got one outside")
        return numbers


def _outside(numbers: Integers, cluster: Cluster) -> int:
    return int(numbers[(numbers < 0) | (numbers >= cluster.num_gpus)].flat[0])


def _table(speeds: list[Speed]) -> Floats:
    rows: list[list[Any]] = [[], [], []]
    for speed in speeds:
        for backwards in (False, True):
            rows[0].append(speed.usable_bytes_per_s(backwards))
            rows[1].append(speed.bandwidth_bytes_per_s(backwards))
            rows[2].append(speed.latency.value)
    return np.array(rows, dtype=np.float64).reshape(3, 2 * len(speeds))
