"""``atoll lint topology``: what is wrong with a topology file or matrix before NCCL believes it.

NCCL takes a topology file (``NCCL_TOPO_FILE``) at its word: a wrong number of links silently becomes a wrong number of
channels. A vendor's file may name PCI functions only and leave GPUs, NVLinks and NICs to detection; what it does not
say is not wrong. Checks (``LINTS``): both ends of each link agree, targets exist, GPUs of one board have alike links,
counts are ones that products have, PCI links are as wide as their neighbours', numbers are not given twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from atoll.doctor.expectations import HEALTHY_BONDS, NVLINKS_PER_GPU, gpu_family
from atoll.doctor.finding import Severity
from atoll.readers.source import Source
from atoll.readers.topology_matrix import MatrixDevice, TopologyMatrix, nvlinks
from atoll.readers.topology_xml import XmlGpu, XmlTopology

LINTS: Final[dict[str, str]] = {
    "T01": "the two ends of a link do not agree on how many links there are",
    "T02": "a link leads to a bus id that is not in the file",
    "T03": "a GPU has fewer links than the others of its board",
    "T04": "a bus id, device number or rank is given twice",
    "T05": "a GPU's or NIC's PCI link is narrower or slower than its neighbours'",
    "T06": "the file names no GPU",
    "T07": "a number of NVLinks that no product has",
    "T08": "the matrix is not symmetric",
    "T09": "a GPU has no near NIC although there are as many NICs as GPUs",
}
SWITCH_CLASS: Final = 0x068000


class TopologyProblem(msgspec.Struct, frozen=True):
    """One fault. ``things`` are the bus ids or devices that it is about."""

    id: str
    what: str
    things: tuple[str, ...]
    sources: tuple[Source, ...]
    severity: Severity = Severity.SLOW


def lint_xml(topology: XmlTopology) -> tuple[TopologyProblem, ...]:
    """Everything that is wrong with one NCCL topology file."""
    if not topology.gpus:
        return (TopologyProblem("T06", "the file names no GPU", (), (topology.source,), Severity.NOTICE),)
    found = [*_ends(topology), *_twice(topology), *_narrow(topology)]
    if not found:
        found = list(_alike(topology))
    return tuple(found)


def lint_matrix(matrix: TopologyMatrix, gpu_name: str = "") -> tuple[TopologyProblem, ...]:
    """Everything that is wrong with one ``nvidia-smi topo -m``; ``gpu_name`` gives the number of links to expect."""
    found: list[TopologyProblem] = []
    gpus = [(at, device) for at, device in enumerate(matrix.devices) if device.kind == "gpu"]
    for at, device in gpus:
        for other_at, other in gpus:
            here, there = _cell(device, other_at), _cell(other, at)
            if at < other_at and here is not None and there is not None and here != there:
                found.append(
                    TopologyProblem("T08", f"{device.name} to {other.name} is {here}, back it is {there}",
                                    (device.name, other.name), (device.source, other.source))
                )  # fmt: skip
    found.extend(_board(gpus, gpu_name))
    found.extend(_near_nics(matrix, gpus))
    return tuple(found)


def _ends(topology: XmlTopology) -> Iterable[TopologyProblem]:
    gpus = {gpu.bus_id: gpu for gpu in topology.gpus}
    known = {pci.bus_id for pci in topology.pcis} | set(gpus)
    counts = {
        (gpu.bus_id, link.target): sum(other.count for other in gpu.links if other.target == link.target)
        for gpu in topology.gpus
        for link in gpu.links
    }
    for gpu in topology.gpus:
        for link in gpu.links:
            if link.target not in gpus:
                # Links to switches and to the CPU's own bridge name no GPU of the file.
                if link.target_class is not None and link.target_class >> 16 == 0x03 and link.target not in known:
                    what = f"a link of {gpu.bus_id} leads to the GPU {link.target}, which is not in the file"
                    yield TopologyProblem("T02", what, (gpu.bus_id, link.target), (link.source,))
                continue
            back = counts.get((link.target, gpu.bus_id), 0)
            here = counts[gpu.bus_id, link.target]
            if back != here and (back == 0 or gpu.bus_id < link.target):
                other = [far.source for far in gpus[link.target].links if far.target == gpu.bus_id]
                yield TopologyProblem(
                    "T01",
                    f"{gpu.bus_id} has {here} {link.kind}s to {link.target}, which has {back} back",
                    (gpu.bus_id, link.target),
                    (link.source, *other[:1]),
                )


def _twice(topology: XmlTopology) -> Iterable[TopologyProblem]:
    # Nodes of a multi-node (MNNVL) dump repeat bus ids; their cpus carry different host hashes.
    if len({cpu.host_hash for cpu in topology.cpus}) > 1:
        return
    for name, values in (
        ("bus id", [(gpu.bus_id, gpu) for gpu in topology.gpus]),
        ("device number", [(str(gpu.dev), gpu) for gpu in topology.gpus if gpu.dev is not None]),
        ("rank", [(str(gpu.rank), gpu) for gpu in topology.gpus if gpu.rank is not None]),
    ):
        for value, times in Counter(value for value, _ in values).items():
            if times > 1:
                same = [gpu for other, gpu in values if other == value]
                yield TopologyProblem(
                    "T04", f"{name} {value} is given to {times} GPUs", tuple(gpu.bus_id for gpu in same),
                    tuple(gpu.source for gpu in same[:3]),
                )  # fmt: skip


def _narrow(topology: XmlTopology) -> Iterable[TopologyProblem]:
    """PCI links of GPUs (and of NICs of one speed) against the majority of their kind."""
    pcis = {pci.bus_id: pci for pci in topology.pcis}
    kinds: list[tuple[str, list[str]]] = [("GPU", [gpu.bus_id for gpu in topology.gpus])]
    speeds: dict[float, list[str]] = {}
    for net in topology.nets:
        if net.speed_bytes_per_s:
            speeds.setdefault(net.speed_bytes_per_s, []).append(net.bus_id)
    kinds += [("NIC", sorted(set(bus_ids))) for bus_ids in speeds.values()]
    for kind, bus_ids in kinds:
        links = [
            (pci.link_gt_per_s * pci.link_width, pci)
            for bus_id in bus_ids
            if (pci := pcis.get(bus_id)) is not None and pci.link_gt_per_s and pci.link_width
        ]
        if len(links) < 3:
            continue
        usual, times = Counter(rate for rate, _ in links).most_common(1)[0]
        for rate, pci in links:
            if rate < usual and times * 2 > len(links):
                rate_text = f"{pci.link_gt_per_s:g} GT/s x{pci.link_width}"
                what = f"{kind} {pci.bus_id} has a PCI link of {rate_text}, its neighbours have more"
                yield TopologyProblem("T05", what, (pci.bus_id,), (pci.source,))


def _alike(topology: XmlTopology) -> Iterable[TopologyProblem]:
    totals = {gpu.bus_id: sum(link.count for link in gpu.links if link.kind != "c2c") for gpu in topology.gpus}
    if len(totals) < 3 or not any(totals.values()):
        return
    usual, times = Counter(totals.values()).most_common(1)[0]
    few: list[XmlGpu] = [gpu for gpu in topology.gpus if totals[gpu.bus_id] < usual]
    if times * 2 > len(totals):
        for gpu in few:
            yield TopologyProblem(
                "T03", f"{gpu.bus_id} has {totals[gpu.bus_id]} links, the other GPUs have {usual}", (gpu.bus_id,),
                (gpu.source,),
            )  # fmt: skip


def _cell(device: MatrixDevice, at: int) -> str | None:
    return device.cells[at] if at < len(device.cells) else None


def _board(gpus: list[tuple[int, MatrixDevice]], gpu_name: str) -> Iterable[TopologyProblem]:
    """The bonds of a board on which every GPU reaches every other by NVLink."""
    bonds = {
        (device.name, other.name): nvlinks(_cell(device, at))
        for number, (_, device) in enumerate(gpus)
        for at, other in gpus[number + 1 :]
    }
    if not bonds or not any(bonds.values()):
        return
    by_name = {device.name: device for _, device in gpus}
    usual, times = Counter(bonds.values()).most_common(1)[0]
    meshed = len(gpus) >= 4 and all(bonds.values())
    expected = NVLINKS_PER_GPU.get(gpu_family(gpu_name), (0, ""))[0] if gpu_name else 0
    if meshed and times * 2 > len(bonds):
        for (one, other), count in bonds.items():
            if count < usual:
                yield TopologyProblem(
                    "T03", f"{one} to {other} has {count} NVLinks, the other pairs of the board have {usual}",
                    (one, other),
                    (by_name[one].source, by_name[other].source),
                )  # fmt: skip
    if meshed and expected and usual < expected and usual not in (0, expected):
        yield TopologyProblem(
            "T03", f"every pair has {usual} NVLinks; {gpu_name} has {expected}", tuple(by_name),
            (gpus[0][1].source,),
        )  # fmt: skip
    elif meshed and not expected and usual not in HEALTHY_BONDS:
        yield TopologyProblem(
            "T07", f"every pair has {usual} NVLinks, which no product has", tuple(by_name), (gpus[0][1].source,)
        )


def _near_nics(matrix: TopologyMatrix, gpus: list[tuple[int, MatrixDevice]]) -> Iterable[TopologyProblem]:
    nics = [at for at, device in enumerate(matrix.devices) if device.kind == "nic"]
    if len(nics) < len(gpus) or len(gpus) < 2:
        return
    near = {device.name: any(_cell(device, at) in ("PIX", "PXB") for at in nics) for _, device in gpus}
    without = [device for _, device in gpus if not near[device.name]]
    if without and sum(near.values()) * 2 >= len(gpus):
        names = ", ".join(device.name for device in without)
        yield TopologyProblem(
            "T09", f"{names} {'has' if len(without) == 1 else 'have'} no NIC on the same PCIe switch; the "
                   "other GPUs have",
            tuple(device.name for device in without), tuple(device.source for device in without[:3]), Severity.NOTICE,
        )  # fmt: skip
