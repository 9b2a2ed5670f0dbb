"""In what two nodes differ, device by device.

Only what both files say is compared: a matrix and an NCCL topology file of one machine do not differ because one has
PCIe rates and the other has not. Bus ids are not compared, names of NICs are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from atoll.errors import SpecError
from atoll.topology.node_paths import node_paths
from atoll.topology.node_type import NodeType
from atoll.topology.seen import SeenGpu, SeenNode
from atoll.topology.seen_node import import_node
from atoll.units import format_bandwidth

_ISLAND: Final = ("NV", "XGMI")


class Difference(msgspec.Struct, frozen=True):
    """``device`` (``gpu3``, ``node`` for the whole) has ``left`` in one node and ``right`` in the other."""

    device: str
    what: str
    left: str
    right: str


def diff_nodes(left: SeenNode, right: SeenNode) -> tuple[Difference, ...]:
    """Every difference; none for twins. Raises ``SpecError`` where a node has no GPU."""
    return tuple(_differences(left, right))


def _differences(left: SeenNode, right: SeenNode) -> Iterable[Difference]:
    if not left.gpus or not right.gpus:
        empty = left if not left.gpus else right
        raise SpecError(f"{empty.source.file}: names no GPU; there is nothing to compare")
    nics_known = bool(left.nics and right.nics) or left.format == right.format
    for what, ours, theirs, known in (
        ("GPUs", left.gpus, right.gpus, True),
        ("NICs", left.nics, right.nics, nics_known),
        ("NUMA nodes", left.cpus, right.cpus, bool(left.cpus and right.cpus)),
    ):
        if known and len(ours) != len(theirs):
            yield Difference("node", what, str(len(ours)), str(len(theirs)))
    links_known = left.format == right.format or all(any(gpu.links for gpu in node.gpus) for node in (left, right))
    for gpu in left.gpus:
        twin = right.gpu(gpu.name)
        if twin is None:
            yield Difference(gpu.name, "presence", "there", "missing")
            continue
        if links_known:
            yield from _links(gpu, twin)
        if gpu.pci is not None and twin.pci is not None and gpu.pci != twin.pci:
            yield Difference(gpu.name, "PCIe", str(gpu.pci), str(twin.pci))
        if gpu.sm is not None and twin.sm is not None and gpu.sm != twin.sm:
            yield Difference(gpu.name, "compute capability", str(gpu.sm), str(twin.sm))
    for gpu in right.gpus:
        if left.gpu(gpu.name) is None:
            yield Difference(gpu.name, "presence", "missing", "there")
    yield from _nics(left, right)
    yield from _words(import_node(left).node_type, import_node(right).node_type)


def _links(gpu: SeenGpu, twin: SeenGpu) -> Iterable[Difference]:
    for target in dict.fromkeys(link.target for link in (*gpu.links, *twin.links)):
        ours, theirs = gpu.count_to(target), twin.count_to(target)
        if ours != theirs:
            yield Difference(gpu.name, f"links to {target}", str(ours), str(theirs))


def _nics(left: SeenNode, right: SeenNode) -> Iterable[Difference]:
    twins = {nic.name: nic for nic in right.nics}
    for nic in left.nics:
        twin = twins.get(nic.name)
        if twin is None:
            continue
        if nic.label != twin.label and left.format == right.format:
            yield Difference(nic.name, "name", nic.label, twin.label)
        if nic.pci is not None and twin.pci is not None and nic.pci != twin.pci:
            yield Difference(nic.name, "PCIe", str(nic.pci), str(twin.pci))
        if nic.bytes_per_s and twin.bytes_per_s and nic.bytes_per_s != twin.bytes_per_s:
            yield Difference(nic.name, "speed", format_bandwidth(nic.bytes_per_s), format_bandwidth(twin.bytes_per_s))


def _words(left: NodeType, right: NodeType) -> Iterable[Difference]:
    """What lies between devices that both nodes have, NVLinks apart, which ``_links`` compares."""
    ours, theirs = node_paths(left), node_paths(right)
    for one, other, here, there in (
        (left.gpus, right.gpus, ours.words, theirs.words),
        (left.nics, right.nics, ours.nic_words, theirs.nic_words),
    ):
        for gpu in left.gpus:
            if gpu not in right.gpus:
                continue
            for device in one:
                if device not in other or (one is left.gpus and device <= gpu):
                    continue
                mine = here[left.gpus.index(gpu)][one.index(device)]
                yours = there[right.gpus.index(gpu)][other.index(device)]
                if mine != yours and not (mine.startswith(_ISLAND) or yours.startswith(_ISLAND)):
                    yield Difference(gpu, f"path to {device}", mine or "none", yours or "none")
