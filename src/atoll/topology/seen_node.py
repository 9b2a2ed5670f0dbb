"""A node type from what was seen: the import of a topology matrix, an NCCL topology file or ``rocm-smi``.

What the file states is taken as it stands: counts of links in each direction, PCIe rates, NIC speeds. What it does not
state is assumed from the GPU's family (``gpu_models``), the source of the figure says so, and ``Imported.notes`` lists
it. Each direction of a direct NVLink keeps its own count, so a file that is wrong gives a node that is wrong in the
same way: the lints (``lint``) say so, not the import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from atoll.errors import SpecError
from atoll.topology import link_catalogue
from atoll.topology.cluster import Cluster, NodeGroup
from atoll.topology.figure import Figure, Provenance, Speed, assumed, derived
from atoll.topology.gpu_models import GpuFamily, assumed_family, nvlink_speed, on_a_board, xgmi_speed
from atoll.topology.node_type import MESH, NETWORK, GpuModel, LinkGroup, LinkKind, NodeType, compact, device_order
from atoll.topology.seen import SWITCH, PciRate, SeenBridge, SeenCpu, SeenGpu, SeenLinks, SeenNic, SeenNode

_KINDS: Final = {"nvlink": LinkKind.NVLINK, "xgmi": LinkKind.XGMI}
# CPU models of Intel -> NCCL's figure for traffic between sockets; AMD and ARM have one each.
_INTEL: Final = {85: link_catalogue.XEON_SKYLAKE, 143: link_catalogue.XEON_SPR, 207: link_catalogue.XEON_EMR}
_UNKNOWN_SOCKETS: Final = Speed(
    assumed(10e9, "the file does not name the CPU; as NCCL's figure for a Xeon Skylake"), assumed(0.3e-6, "a hop")
)
_MEMORY: Final = link_catalogue.dram(8, 3200, "assumed, the file does not say")


class Imported(msgspec.Struct, frozen=True):
    """The node type and what had to be assumed or left out, one sentence each."""

    node_type: NodeType
    notes: tuple[str, ...]


def import_node(node: SeenNode, *, gpu_name: str = "", nic_gbit_per_s: float | None = None) -> Imported:
    """``gpu_name`` and ``nic_gbit_per_s`` stand for what the file does not say. Raises ``SpecError`` without a GPU."""
    if not node.gpus:
        raise SpecError(f"{node.source.file}: names no GPU; a node has at least one")
    return _Import(node, gpu_name, nic_gbit_per_s).build()


def import_cluster(nodes: Sequence[SeenNode], name: str, *, gpu_name: str = "") -> tuple[Cluster, tuple[str, ...]]:
    """Nodes side by side; alike ones share a type. Without a fabric there is one node: several raise ``SpecError``.

    The notes of all nodes come with it, each once.
    """
    groups: list[NodeGroup] = []
    notes: dict[str, None] = {}
    for node in nodes:
        imported = import_node(node, gpu_name=gpu_name)
        notes |= dict.fromkeys(imported.notes)
        node_type = imported.node_type
        hosts = (node.host,) if node.host else ()
        last = groups[-1] if groups else None
        if last is not None and last.node_type == node_type and bool(last.hosts) == bool(hosts):
            groups[-1] = NodeGroup(node_type, last.count + 1, last.hosts + hosts)
        else:
            same = next((group.node_type.name for group in groups if group.node_type == node_type), None)
            label = same or (f"{node_type.name}-{len(groups)}" if groups else node_type.name)
            groups.append(NodeGroup(msgspec.structs.replace(node_type, name=label), 1, hosts))
    return Cluster(name, tuple(groups)), tuple(notes)


class _Import:
    def __init__(self, node: SeenNode, gpu_name: str, nic_gbit_per_s: float | None) -> None:
        self.node = node
        self.gpu_name = gpu_name
        self.nic_gbit_per_s = nic_gbit_per_s
        first = node.gpus[0]
        most = max(gpu.island_links for gpu in node.gpus)
        self.amd = bool(first.architecture) or any(link.kind == "xgmi" for link in first.links)
        self.family: GpuFamily | None = None if self.amd else assumed_family(gpu_name, first.sm, most)
        self.notes: dict[str, None] = dict.fromkeys(node.notes)
        self.groups: list[LinkGroup] = []

    def build(self) -> Imported:
        self._island()
        self._pcie()
        self._cpus()
        self._network()
        gpu = self.node.gpus[0]
        name = self.gpu_name or (self.family.name if self.family else gpu.architecture and f"gcn {gpu.architecture}")
        if self.family is not None and not self.gpu_name:
            self._note(f"the GPU is taken for a {self.family.name}; the file does not name it")
        most = max(seen.island_links for seen in self.node.gpus)
        model = GpuModel(name or "GPU", self.family.nvlinks if self.family and most else most)
        source = f"imported from {self.node.format}, {self.node.source.file}"
        node_type = NodeType(self.node.host or "imported", model, tuple(self.groups), source=source)
        return Imported(node_type, tuple(self.notes))

    def _note(self, text: str) -> None:
        self.notes[text] = None

    def _unnamed_island(self) -> None:
        """A file that leaves NVLinks to NCCL, of GPUs that are known to sit on a board with switches."""
        if self.node.format != "NCCL XML" or not on_a_board(self.gpu_name) or len(self.node.gpus) < 8:
            return
        family = self.family
        if family is not None and not any(gpu.links for gpu in self.node.gpus):
            names = compact(sorted((gpu.name for gpu in self.node.gpus), key=device_order))
            speed = nvlink_speed(family, family.nvlinks, switched=True)
            self.groups.append(LinkGroup(LinkKind.NVLINK, names, SWITCH, speed))
            self._note(f"NVLinks to a switch are assumed, {family.nvlinks} a GPU; the file leaves them to NCCL")

    def _island(self) -> None:
        self._unnamed_island()
        to_switch = {gpu.name: gpu.count_to(SWITCH) for gpu in self.node.gpus if gpu.count_to(SWITCH)}
        for names, count in _alike(to_switch):
            speed = nvlink_speed(self.family, count, switched=True)
            self.groups.append(LinkGroup(LinkKind.NVLINK, compact(names), SWITCH, speed))
        by_name = {gpu.name: gpu for gpu in self.node.gpus}
        c2c: dict[str, str] = {}
        for gpu in self.node.gpus:
            for link in gpu.links:
                if link.kind == "c2c" and link.target:
                    c2c[gpu.name] = link.target
                elif link.target in by_name and link.kind in _KINDS:
                    far = by_name[link.target]
                    # A pair that both ends name is one link, found at its first end.
                    if far.count_to(gpu.name) == 0 or device_order(gpu.name) < device_order(far.name):
                        self._direct(gpu, far, link)
                elif link.target != SWITCH:
                    self._note(f"{gpu.label}: links to {link.target}, which is not in the file, are left out")
        for cpu in sorted(set(c2c.values())):
            names = [gpu for gpu, target in c2c.items() if target == cpu]
            self.groups.append(LinkGroup(LinkKind.C2C, compact(names), cpu, link_catalogue.C2C))

    def _direct(self, gpu: SeenGpu, far: SeenGpu, link: SeenLinks) -> None:
        forwards, back = gpu.count_to(far.name), far.count_to(gpu.name)
        speed = self._bond(gpu, link, forwards)
        if back != forwards:
            other = self._bond(gpu, link, back).bandwidth if back else assumed(1.0, "no link back is named")
            speed = msgspec.structs.replace(speed, back=other, lanes=max(forwards, back))
        self.groups.append(LinkGroup(_KINDS[link.kind], gpu.name, far.name, speed))

    def _bond(self, gpu: SeenGpu, link: SeenLinks, count: int) -> Speed:
        if link.kind == "xgmi":
            return xgmi_speed(gpu.architecture, count, link.bytes_per_s)
        return nvlink_speed(self.family, count, switched=False)

    def _pcie(self) -> None:
        default = self.family.gt_per_s if self.family is not None else 16.0
        rates: dict[tuple[str, PciRate | None], list[str]] = {}
        devices: list[SeenGpu | SeenNic | SeenBridge] = [*self.node.gpus, *self.node.nics, *self.node.bridges]
        for device in devices:
            if device.parent:
                rates.setdefault((device.parent, device.pci), []).append(device.name)
        for (parent, rate), names in rates.items():
            if rate is None:
                self._note(f"PCIe links are taken for {default:g} GT/s x16; the file does not say")
            speed = _pcie_speed(rate, default)
            self.groups.append(LinkGroup(LinkKind.PCIE, compact(sorted(names, key=device_order)), parent, speed))

    def _cpus(self) -> None:
        names = [cpu.name for cpu in self.node.cpus]
        if not names:
            return
        if len(names) > 1:
            self.groups.append(LinkGroup(LinkKind.SMP, compact(names), MESH, _sockets(self.node.cpus[0])))
        memory = compact(name.replace("cpu", "mem") for name in names)
        self.groups.append(LinkGroup(LinkKind.DRAM, compact(names), memory, _MEMORY))

    def _network(self) -> None:
        by_speed: dict[tuple[float | None, float | None], list[str]] = {}
        for nic in self.node.nics:
            by_speed.setdefault((self._nic_rate(nic), nic.latency_s), []).append(nic.name)
        for (rate, latency), names in by_speed.items():
            cable = self._cable(rate, latency)
            self.groups.append(LinkGroup(LinkKind.NETWORK, compact(sorted(names, key=device_order)), NETWORK, cable))

    def _nic_rate(self, nic: SeenNic) -> float | None:
        return nic.bytes_per_s or (self.nic_gbit_per_s * 1e9 / 8 if self.nic_gbit_per_s else None)

    def _cable(self, rate: float | None, latency: float | None) -> Speed:
        if rate is not None:
            figure = derived(rate, "as the file or the caller states it")
        else:
            gbit = self.family.nic_gbit_per_s if self.family is not None else 100.0
            figure = assumed(gbit * 1e9 / 8, f"NICs of {gbit:g} Gb/s, as usual beside such GPUs")
            self._note(f"NICs are taken for {gbit:g} Gb/s; the file does not say")
        cable = link_catalogue.roce(figure.value * 8 / 1e9, figure)
        if latency:
            cable = msgspec.structs.replace(cable, latency=Figure(latency, Provenance.DERIVED, "as the file states it"))
        return cable


def _pcie_speed(rate: PciRate | None, default_gt_per_s: float) -> Speed:
    if rate is not None:
        return link_catalogue.pcie(rate.gt_per_s, rate.width, source="as the file states it")
    speed = link_catalogue.pcie(default_gt_per_s, 16)
    figure = msgspec.structs.replace(speed.bandwidth, provenance=Provenance.ASSUMED)
    return msgspec.structs.replace(speed, bandwidth=figure)


def _sockets(cpu: SeenCpu) -> Speed:
    if cpu.architecture.startswith(("arm", "aarch")):
        return link_catalogue.GRACE
    if "AMD" in cpu.vendor:
        return link_catalogue.EPYC
    return _INTEL.get(cpu.model or 0, _UNKNOWN_SOCKETS)


def _alike(counts: dict[str, int]) -> Iterable[tuple[list[str], int]]:
    """Names of equal count together, in order."""
    key: Callable[[str], tuple[int, int]] = device_order
    for count in dict.fromkeys(counts.values()):
        yield sorted((name for name, value in counts.items() if value == count), key=key), count
