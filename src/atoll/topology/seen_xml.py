"""What an NCCL topology file says of a node.

GPUs and NICs take the numbers that the file gives them (``dev``) where these are all there and differ, else their
order. Virtual NICs without a bus id are left out and noted. Files of vendors often name PCI functions only, and leave
NVLinks and NIC speeds to detection; what is not said is not wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from atoll.readers.topology_xml import XmlGpu, XmlNet, XmlPci, XmlTopology
from atoll.topology.seen import (
    SWITCH,
    PciRate,
    Repeated,
    SeenBridge,
    SeenCpu,
    SeenGpu,
    SeenLinks,
    SeenNic,
    SeenNode,
)

_SWITCH_CLASS = 0x0680
_DISPLAY = 0x03


def seen_in_xml(topology: XmlTopology) -> SeenNode:
    """The node of one file; what is given twice is kept once and named in ``repeated``."""
    pcis = {pci.bus_id: pci for pci in topology.pcis}
    gpus = list({gpu.bus_id: gpu for gpu in topology.gpus}.values())
    nets: dict[str, list[XmlNet]] = {}
    notes: list[str] = []
    for net in topology.nets:
        if net.bus_id:
            nets.setdefault(net.bus_id, []).append(net)
        else:
            notes.append(f"left out {net.name or 'a NIC'}: no bus id, so it is virtual")
    cpu_names = {cpu.numa_id: f"cpu{at}" for at, cpu in enumerate(topology.cpus)}
    ends = {*(gpu.bus_id for gpu in gpus), *nets}
    above = {pci.parent for pci in topology.pcis if pci.parent}
    bridge_names = {
        pci.bus_id: f"pcie{at}"
        for at, pci in enumerate(pci for pci in pcis.values() if pci.bus_id in above and pci.bus_id not in ends)
    }
    gpu_names = _numbered("gpu", gpus)
    nic_names = _numbered("nic", [parts[0] for parts in nets.values()])

    def parent(pci: XmlPci | None, numa_id: int | None) -> str:
        at = pci.parent if pci is not None else ""
        return bridge_names.get(at, cpu_names.get(numa_id, ""))

    if len({cpu.host_hash for cpu in topology.cpus}) > 1:
        notes.append("a dump of several hosts: GPUs of one bus id are taken once")
    if gpus and not any(gpu.links for gpu in gpus):
        notes.append("no NVLinks are named; NCCL finds them itself")
    return SeenNode(
        "NCCL XML", topology.source,
        tuple(
            SeenGpu(
                gpu_names[gpu.bus_id], gpu.bus_id, gpu.source, parent(pcis.get(gpu.bus_id), gpu.numa_id),
                _rate(pcis.get(gpu.bus_id)), tuple(_links(gpu, gpu_names, cpu_names)), gpu.sm, gpu.gcn,
            )
            for gpu in gpus
        ),
        tuple(
            SeenNic(
                nic_names[bus_id], parts[0].name or bus_id, parts[0].source, parent(pcis.get(bus_id), parts[0].numa_id),
                _rate(pcis.get(bus_id)), sum(net.speed_bytes_per_s or 0 for net in parts) or None,
                parts[0].latency_s or None,
            )
            for bus_id, parts in nets.items()
        ),
        tuple(
            SeenBridge(name, pcis[bus_id].source, parent(pcis[bus_id], pcis[bus_id].numa_id), _rate(pcis[bus_id]))
            for bus_id, name in bridge_names.items()
        ),
        tuple(SeenCpu(cpu_names[cpu.numa_id], cpu.source, cpu.vendor, cpu.arch, cpu.model_id) for cpu in topology.cpus),
        repeated=tuple(_repeated(topology)), notes=tuple(notes),
    )  # fmt: skip


def _links(gpu: XmlGpu, gpu_names: dict[str, str], cpu_names: dict[int | None, str]) -> list[SeenLinks]:
    """Links by target; those to switches are one bond, whatever number of chips there are."""
    found: dict[tuple[str, str], SeenLinks] = {}
    for link in gpu.links:
        kind = link.target_class >> 8 if link.target_class is not None else None
        if link.kind == "c2c":
            target, to_gpu = cpu_names.get(gpu.numa_id, ""), False
        elif link.target in gpu_names:
            target, to_gpu = gpu_names[link.target], True
        elif kind == _SWITCH_CLASS:
            target, to_gpu = SWITCH, False
        else:
            target, to_gpu = link.target, kind is not None and kind >> 8 == _DISPLAY
        before = found.get((link.kind, target))
        count = link.count + (before.count if before is not None else 0)
        first = before.source if before is not None else link.source
        found[link.kind, target] = SeenLinks(link.kind, target, count, first, to_gpu)
    return list(found.values())


def _numbered(kind: str, devices: Sequence[XmlGpu | XmlNet]) -> dict[str, str]:
    numbers = [device.dev for device in devices]
    given = None not in numbers and len(set(numbers)) == len(numbers) and all(0 <= (n or 0) < 10_000 for n in numbers)
    return {device.bus_id: f"{kind}{device.dev if given else at}" for at, device in enumerate(devices)}


def _rate(pci: XmlPci | None) -> PciRate | None:
    if pci is None or not pci.link_gt_per_s or not pci.link_width:
        return None
    return PciRate(pci.link_gt_per_s, pci.link_width)


def _repeated(topology: XmlTopology) -> list[Repeated]:
    # Nodes of a multi-node (MNNVL) dump repeat numbers; their CPUs carry different host hashes.
    if len({cpu.host_hash for cpu in topology.cpus}) > 1:
        return []
    found = []
    for what, values in (
        ("bus id", [(gpu.bus_id, gpu) for gpu in topology.gpus]),
        ("device number", [(str(gpu.dev), gpu) for gpu in topology.gpus if gpu.dev is not None]),
        ("rank", [(str(gpu.rank), gpu) for gpu in topology.gpus if gpu.rank is not None]),
    ):
        for value, times in Counter(value for value, _ in values).items():
            if times > 1:
                same = [gpu for other, gpu in values if other == value]
                labels = tuple(gpu.bus_id for gpu in same)
                found.append(Repeated(what, value, labels, tuple(gpu.source for gpu in same[:3])))
    return found
