"""A node as data: its devices, and the links between them.

Vocabulary. A *device* is named by its kind and number: ``gpu0``, ``nic3``, ``pcie1`` (a PCIe switch), ``cpu0`` (one
NUMA node with its root complex), ``mem0`` (the memory of that NUMA node, where transfers without GPUDirect are staged),
``nvswitch0``. ``network`` stands for whatever the node's NICs are cabled to. Numbers need not be dense: a node that
has lost ``nic2`` keeps the names of the others.

A *link group* joins two runs of devices, written ``gpu0-7`` or ``gpu0,gpu3``: the second run divides the first into
equal blocks (``gpu0-7`` to ``pcie0-3`` puts gpu0 and gpu1 below pcie0; ``gpu0-7`` to ``nvswitch0`` puts all there), or,
with ``mesh`` as the second run, every pair of the first is joined. A *link* is one member of a group: duplex, from its
first end to its second and back. In the node it has number l, and its two directions are 2l and 2l + 1.

An *NVSwitch* is one crossbar per island, whatever number of chips it is made of: what limits a transfer is the GPU's
own links. ``island_nodes`` nodes in a row share it, 18 in an NVL72 rack; everywhere else an island is one node or less.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Final

import msgspec

from atoll.errors import SpecError
from atoll.topology.figure import Figure, Speed


class LinkKind(enum.Enum):
    NVLINK = "nvlink"
    XGMI = "xgmi"
    PCIE = "pcie"
    C2C = "c2c"
    """NVLink chip-to-chip between a GPU and its CPU."""
    SMP = "smp"
    """Between the sockets or NUMA nodes of one host: UPI, Infinity Fabric."""
    DRAM = "dram"
    """Between a NUMA node and its memory."""
    NETWORK = "network"
    """The cable of a NIC, or one between switches."""


ISLAND_KINDS: Final = frozenset({LinkKind.NVLINK, LinkKind.XGMI})
DEVICE_KINDS: Final = ("gpu", "nic", "pcie", "cpu", "mem", "nvswitch")
NETWORK: Final = "network"
MESH: Final = "mesh"
MAX_DEVICES: Final = 1024

_RUN: Final = re.compile(r"([a-z]+)(\d{1,4})(?:-(\d{1,4}))?")


class GpuModel(msgspec.Struct, frozen=True):
    """What is known of a GPU: ``nvlinks`` as a healthy one has them, 0 where it has none."""

    name: str
    nvlinks: int = 0
    memory_bandwidth: Figure | None = None


class LinkGroup(msgspec.Struct, frozen=True):
    """Links of one kind and speed, from the devices of ``ends`` to those of ``to`` (see the module's text)."""

    kind: LinkKind
    ends: str
    to: str
    speed: Speed


class Link(msgspec.Struct, frozen=True):
    """One duplex link of a node, from device ``a`` to device ``b`` and back."""

    kind: LinkKind
    a: str
    b: str
    speed: Speed


class NodeType(msgspec.Struct, frozen=True, dict=True):
    """One kind of node. Raises ``SpecError`` where groups do not fit or a GPU has no link at all.

    ``peer_to_peer``: GPUs may read each other's memory over PCIe; if not, such transfers are staged in host memory.
    ``gpudirect``: NICs may read GPU memory. ``nvswitch_chips`` is for counting parts that can fail.
    """

    name: str
    gpu: GpuModel
    groups: tuple[LinkGroup, ...]
    island_nodes: int = 1
    peer_to_peer: bool = True
    gpudirect: bool = True
    nvswitch_chips: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        mistakes = list(self.mistakes())
        if mistakes:
            raise SpecError(f"node type {self.name!r}: " + "; ".join(mistakes))

    def mistakes(self) -> Iterable[str]:
        """What is wrong, each in a few words."""
        if self.island_nodes < 1:
            yield f"island_nodes: expected at least 1, got {self.island_nodes}"
        joined: set[tuple[str, str, LinkKind]] = set()
        linked: set[str] = set()
        for number, group in enumerate(self.groups):
            where = f"links[{number}]"
            try:
                pairs = pairs_of(group.ends, group.to)
            except SpecError as error:
                yield f"{where}: {error}"
                continue
            if group.to == NETWORK and group.kind is not LinkKind.NETWORK:
                yield f"{where}: only links of kind network lead to the network, got {group.kind.value}"
            if group.kind is LinkKind.NETWORK and group.to != NETWORK:
                yield f"{where}: a link of kind network leads to 'network', got {group.to!r}"
            for a, b in pairs:
                key = (min(a, b), max(a, b), group.kind)
                if key in joined:
                    yield f"{where}: {a} and {b} are joined twice; give one link with the sum of the bandwidths"
                joined.add(key)
                linked.update((a, b))
            for name, figure in (("bandwidth", group.speed.bandwidth), ("efficiency", group.speed.efficiency)):
                if not 0 < figure.value < float("inf"):
                    yield f"{where}: {name}: expected a positive number, got {figure.value:g}"
            if group.speed.efficiency.value > 1:
                yield f"{where}: efficiency: expected a share of at most 1, got {group.speed.efficiency.value:g}"
            if not 0 <= group.speed.latency.value < 1:
                yield f"{where}: latency: expected less than a second, got {group.speed.latency.value:g}"
        if not any(kind_of(name) == "gpu" for name in linked):
            yield "no link leads to a GPU; a node has at least one"
        if len(linked) > MAX_DEVICES:
            yield f"{len(linked)} devices; at most {MAX_DEVICES} are taken"

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """Every link, in the order of the groups."""
        return tuple(
            Link(group.kind, a, b, group.speed) for group in self.groups for a, b in pairs_of(group.ends, group.to)
        )

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Every device by kind and number, GPUs first; without NVSwitches, which belong to the island."""
        named = {name for link in self.links for name in (link.a, link.b)} - {NETWORK}
        return tuple(sorted((name for name in named if kind_of(name) != "nvswitch"), key=device_order))

    @cached_property
    def switches(self) -> tuple[str, ...]:
        """The NVSwitches of the island."""
        named = {name for link in self.links for name in (link.a, link.b) if kind_of(name) == "nvswitch"}
        return tuple(sorted(named, key=device_order))

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        return tuple(name for name in self.devices if kind_of(name) == "gpu")

    @cached_property
    def nics(self) -> tuple[str, ...]:
        return tuple(name for name in self.devices if kind_of(name) == "nic")

    @cached_property
    def rails(self) -> tuple[int, ...]:
        """The rail of each NIC: its number."""
        return tuple(number_of(name) for name in self.nics)

    def island_links(self, gpu: str) -> int:
        """NVLinks (or xGMI links) of one GPU, lanes counted."""
        return sum(link.speed.lanes for link in self.links if link.kind in ISLAND_KINDS and gpu in (link.a, link.b))

    def island_bytes_per_s(self, gpu: str, usable: bool = True) -> float:
        """What one GPU sends into its island in one direction, all its links together; 0 where it has none."""
        total = 0.0
        for link in self.links:
            if link.kind in ISLAND_KINDS and gpu in (link.a, link.b):
                backwards = gpu == link.b
                speed = link.speed
                total += speed.usable_bytes_per_s(backwards) if usable else speed.bandwidth_bytes_per_s(backwards)
        return total

    def cable(self, nic: str) -> Speed | None:
        """The speed of a NIC's cable; ``None`` where it is not cabled."""
        return next((link.speed for link in self.links if link.kind is LinkKind.NETWORK and link.a == nic), None)


def kind_of(device: str) -> str:
    """``gpu`` of ``gpu12``."""
    return device.rstrip("0123456789")


def number_of(device: str) -> int:
    """12 of ``gpu12``."""
    return int(device[len(kind_of(device)) :])


def device_order(device: str) -> tuple[int, int]:
    """Sorts devices by kind, then number."""
    return DEVICE_KINDS.index(kind_of(device)), number_of(device)


def expand(run: str) -> tuple[str, ...]:
    """``gpu0-3,gpu6`` as names. Raises ``SpecError`` for what is no run of devices."""
    names: list[str] = []
    for part in run.split(","):
        match = _RUN.fullmatch(part.strip())
        if match is None or match[1] not in DEVICE_KINDS:
            raise SpecError(f"expected devices such as gpu0-7 or nic0,nic4 ({', '.join(DEVICE_KINDS)}), got {part!r}")
        first, last = int(match[2]), int(match[3] or match[2])
        if last < first:
            raise SpecError(f"expected an ascending run such as gpu0-7, got {part!r}")
        names.extend(f"{match[1]}{number}" for number in range(first, last + 1))
    if len(set(names)) != len(names) or len(names) > MAX_DEVICES:
        raise SpecError(f"expected at most {MAX_DEVICES} different devices, got {run!r}")
    return tuple(names)


def compact(names: Iterable[str]) -> str:
    """The inverse of ``expand``: runs of devices with consecutive numbers."""
    runs: list[tuple[str, int, int]] = []
    for name in names:
        kind, number = kind_of(name), number_of(name)
        if runs and runs[-1][0] == kind and runs[-1][2] == number - 1:
            runs[-1] = (kind, runs[-1][1], number)
        else:
            runs.append((kind, number, number))
    return ",".join(f"{kind}{first}" if first == last else f"{kind}{first}-{last}" for kind, first, last in runs)


def pairs_of(ends: str, to: str) -> tuple[tuple[str, str], ...]:
    """The pairs that a group joins. Raises ``SpecError`` where the second run does not divide the first."""
    first = expand(ends)
    if to == MESH:
        if len(first) < 2:
            raise SpecError(f"a mesh joins at least two devices, got {ends!r}")
        return tuple((a, b) for at, a in enumerate(first) for b in first[at + 1 :])
    if to == NETWORK:
        return tuple((a, NETWORK) for a in first)
    second = expand(to)
    if len(first) % len(second):
        raise SpecError(f"{to!r} ({len(second)}) does not divide {ends!r} ({len(first)}) into equal blocks")
    block = len(first) // len(second)
    pairs = tuple((a, second[at // block]) for at, a in enumerate(first))
    if any(a == b for a, b in pairs):
        raise SpecError(f"{ends!r} to {to!r} joins a device with itself")
    return pairs
