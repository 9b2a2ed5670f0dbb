"""Node types of machines that people have. Speeds are in ``link_catalogue``; here is what is joined to what.

Where GPUs and NICs hang on PCIe follows the vendors' own NCCL topology files where there are such (AWS, Azure) and
their user guides otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from atoll.topology import link_catalogue as catalogue
from atoll.topology.figure import Speed, assumed, vendor
from atoll.topology.node_type import MESH, NETWORK, GpuModel, LinkGroup, LinkKind, NodeType


def _memory(terabytes_per_s: float, name: str) -> GpuModel:
    links = {"A100": 12, "H100": 18, "H200": 18, "B200": 18, "GB200": 18, "GB300": 18}
    figure = vendor(terabytes_per_s * 1e12, f"{name} data sheet: memory bandwidth")
    return GpuModel(name, links.get(name.split()[0], 0), figure)


A100: Final = _memory(2.039, "A100 80GB SXM4")
A100_40: Final = _memory(1.555, "A100 40GB SXM4")
H100: Final = _memory(3.35, "H100 SXM5")
H200: Final = _memory(4.8, "H200 SXM5")
B200: Final = _memory(8.0, "B200 SXM")
GB200: Final = _memory(8.0, "GB200")
GB300: Final = _memory(8.0, "GB300")
MI300X: Final = _memory(5.3, "MI300X")
L40S: Final = _memory(0.864, "L40S")
RTX4090: Final = _memory(1.008, "GeForce RTX 4090")

_DDR4_8: Final = catalogue.dram(8, 3200, "EPYC Rome or Milan socket")
_DDR4_6: Final = catalogue.dram(6, 2933, "Xeon Cascade Lake socket")
_DDR5_8: Final = catalogue.dram(8, 4800, "Xeon Sapphire Rapids socket")
_DDR5_12: Final = catalogue.dram(12, 4800, "EPYC Genoa socket")


def _host(
    gpus: int, nics: int, switches: int, cpus: int, gpu_pcie: Speed, nic_pcie: Speed, up: Speed, sockets: Speed,
    memory: Speed, cable: Speed,
) -> tuple[LinkGroup, ...]:  # fmt: skip
    """GPUs and NICs on PCIe switches in equal blocks, switches on CPUs, NICs on cables."""
    groups = [
        LinkGroup(LinkKind.PCIE, _run("gpu", gpus), _run("pcie", switches), gpu_pcie),
        LinkGroup(LinkKind.PCIE, _run("nic", nics), _run("pcie", switches), nic_pcie),
        LinkGroup(LinkKind.PCIE, _run("pcie", switches), _run("cpu", cpus), up),
        LinkGroup(LinkKind.DRAM, _run("cpu", cpus), _run("mem", cpus), memory),
        LinkGroup(LinkKind.NETWORK, _run("nic", nics), NETWORK, cable),
    ]
    if cpus > 1:
        groups.insert(3, LinkGroup(LinkKind.SMP, _run("cpu", cpus), MESH, sockets))
    return tuple(groups)


def _run(kind: str, count: int) -> str:
    return f"{kind}0" if count == 1 else f"{kind}0-{count - 1}"


def _switched(gpus: int, speed: Speed) -> LinkGroup:
    return LinkGroup(LinkKind.NVLINK, _run("gpu", gpus), "nvswitch0", speed)


_GEN3: Final = catalogue.pcie(8, 16)
_GEN4: Final = catalogue.pcie(16, 16)
_GEN4_X8: Final = catalogue.pcie(16, 8)
_GEN5: Final = catalogue.pcie(32, 16)
_GEN6: Final = catalogue.pcie(64, 16)


def dgx_a100() -> NodeType:
    cable = catalogue.infiniband(200, "NVIDIA DGX A100 user guide: 8 ConnectX-6, HDR 200 Gb/s, for compute")
    host = _host(8, 8, 4, 2, _GEN4, _GEN4, _GEN4, catalogue.EPYC, _DDR4_8, cable)
    return NodeType(
        "dgx-a100", A100, (_switched(8, catalogue.nvlink3()), *host), nvswitch_chips=6,
        source="NVIDIA DGX A100 user guide: 8 GPUs, 6 NVSwitches, 2 GPUs and 2 NICs a PCIe switch, 2 EPYC 7742",
    )  # fmt: skip


def dgx_h100() -> NodeType:
    return _hopper(
        "dgx-h100", H100, "NVIDIA DGX H100 user guide: 8 GPUs, 4 NVSwitches, 8 ConnectX-7, 2 Xeon 8480C",
        catalogue.infiniband(400, "NVIDIA DGX H100 user guide: 8 ConnectX-7, NDR 400 Gb/s, for compute"),
    )  # fmt: skip


def hgx_h200() -> NodeType:
    return _hopper(
        "hgx-h200", H200, "NVIDIA HGX H200 data sheet: HGX H100 with H200 GPUs; a NIC per GPU as in DGX H200",
        catalogue.infiniband(400, "NVIDIA DGX H200 user guide: 8 ConnectX-7, NDR 400 Gb/s, for compute"),
    )  # fmt: skip


def _hopper(name: str, gpu: GpuModel, source: str, cable: Speed) -> NodeType:
    host = _host(8, 8, 8, 2, _GEN5, _GEN5, _GEN5, catalogue.XEON_SPR, _DDR5_8, cable)
    return NodeType(name, gpu, (_switched(8, catalogue.nvlink4()), *host), nvswitch_chips=4, source=source)


def hgx_b200() -> NodeType:
    cable = catalogue.infiniband(400, "NVIDIA DGX B200 user guide: 8 ConnectX-7, NDR 400 Gb/s, for compute")
    host = _host(8, 8, 8, 2, _GEN5, _GEN5, _GEN5, catalogue.XEON_EMR, catalogue.dram(8, 5600, "Xeon 8570"), cable)
    return NodeType(
        "hgx-b200", B200, (_switched(8, catalogue.nvlink5()), *host), nvswitch_chips=2,
        source="NVIDIA DGX B200 user guide: 8 GPUs, 2 NVSwitches, 8 ConnectX-7, 2 Xeon 8570",
    )  # fmt: skip


def gb200_tray() -> NodeType:
    """One of 18 compute trays of an NVL72 rack: NICs hang on the Grace CPUs, GPUs reach them over C2C."""
    cable = catalogue.infiniband(400, "NVIDIA DGX GB200 user guide: 4 ConnectX-7, 400G, a tray of 4 GPUs")
    return NodeType(
        "gb200-tray", GB200,
        (
            _switched(4, catalogue.nvlink5()),
            LinkGroup(LinkKind.C2C, "gpu0-3", "cpu0-1", catalogue.C2C),
            LinkGroup(LinkKind.PCIE, "nic0-3", "cpu0-1", _GEN5),
            LinkGroup(LinkKind.SMP, "cpu0", "cpu1", catalogue.GRACE),
            LinkGroup(LinkKind.DRAM, "cpu0-1", "mem0-1", catalogue.dram(32, 2133, "as 546 GB/s of LPDDR5X, Grace")),
            LinkGroup(LinkKind.NETWORK, "nic0-3", NETWORK, cable),
        ),
        island_nodes=18, nvswitch_chips=18,
        source="NVIDIA DGX GB200 user guide: 18 trays of 4 GPUs and 2 Grace CPUs, 9 NVLink switch trays of 2 chips",
    )  # fmt: skip


def gb300_tray() -> NodeType:
    """As GB200, but each GPU has its own ConnectX-8, which is its PCIe switch too."""
    cable = catalogue.infiniband(
        800, "NVIDIA GB300 NVL72 enterprise reference architecture: 4 ConnectX-8 a tray, 800 Gb/s"
    )
    return NodeType(
        "gb300-tray", GB300,
        (
            _switched(4, catalogue.nvlink5()),
            LinkGroup(LinkKind.C2C, "gpu0-3", "cpu0-1", catalogue.C2C),
            LinkGroup(LinkKind.PCIE, "gpu0-3", "pcie0-3", _GEN6),
            LinkGroup(LinkKind.PCIE, "nic0-3", "pcie0-3", _GEN6),
            LinkGroup(LinkKind.PCIE, "pcie0-3", "cpu0-1", _GEN5),
            LinkGroup(LinkKind.SMP, "cpu0", "cpu1", catalogue.GRACE),
            LinkGroup(LinkKind.DRAM, "cpu0-1", "mem0-1", catalogue.dram(32, 2133, "as 546 GB/s of LPDDR5X, Grace")),
            LinkGroup(LinkKind.NETWORK, "nic0-3", NETWORK, cable),
        ),
        island_nodes=18, nvswitch_chips=18,
        source="NVIDIA GB300 NVL72 enterprise reference architecture: 18 trays of 4 GPUs and 4 ConnectX-8",
    )  # fmt: skip


def aws_p4d() -> NodeType:
    cable = catalogue.efa(100, "AWS EC2 user guide, p4d.24xlarge: 400 Gb/s on 4 network cards", rdma_write=False)
    host = _host(8, 4, 4, 2, _GEN3, _GEN3, _GEN3, catalogue.XEON_SKYLAKE, _DDR4_6, cable)
    return NodeType(
        "aws-p4d", A100_40, (_switched(8, catalogue.nvlink3()), *host), nvswitch_chips=6,
        source="aws-ofi-nccl topology of p4d.24xlarge: 2 GPUs and an EFA card a PCIe switch, links of 8 GT/s x16",
    )  # fmt: skip


def aws_p5() -> NodeType:
    cable = catalogue.efa(100, "AWS EC2 user guide, p5.48xlarge: 3200 Gb/s on 32 network cards")
    host = _host(8, 32, 8, 2, _GEN5, _GEN4_X8, _GEN4, catalogue.EPYC, catalogue.dram(8, 3200, "EPYC Milan"), cable)
    return NodeType(
        "aws-p5", H100, (_switched(8, catalogue.nvlink4()), *host), nvswitch_chips=4,
        source="aws-ofi-nccl topology of p5.48xlarge: a GPU and 4 EFA cards a PCIe switch",
    )  # fmt: skip


def azure_ndv4() -> NodeType:
    cable = catalogue.infiniband(200, "Azure documentation, ND A100 v4: 8 x 200 Gb/s HDR InfiniBand")
    host = _host(8, 8, 4, 4, _GEN4, _GEN4, _GEN4, catalogue.EPYC, _DDR4_8, cable)
    return NodeType(
        "azure-ndv4", A100_40, (_switched(8, catalogue.nvlink3()), *host), nvswitch_chips=6,
        source="Azure topology of ND A100 v4: 2 GPUs and 2 NICs a PCIe switch, a switch a NUMA node, 4 NUMA nodes",
    )  # fmt: skip


def azure_ndv5() -> NodeType:
    cable = catalogue.infiniband(400, "Azure documentation, ND H100 v5: 8 x 400 Gb/s NDR InfiniBand")
    host = _host(8, 8, 8, 2, _GEN5, _GEN5, _GEN5, catalogue.XEON_SPR, _DDR5_8, cable)
    return NodeType(
        "azure-ndv5", H100, (_switched(8, catalogue.nvlink4()), *host), nvswitch_chips=4,
        source="Azure topology of ND H100 v5: a GPU and a NIC a PCIe switch, 2 NUMA nodes",
    )  # fmt: skip


def l40s_pcie() -> NodeType:
    """No NVLink; 4 GPUs a PCIe switch, as 8-GPU servers for L40S are built."""
    cable = catalogue.roce(200, assumed(0, "4 NICs of 200 Gb/s a server of 8, as in NVIDIA OVX L40S"))
    host = _host(8, 4, 2, 2, _GEN4, _GEN4, _GEN4, catalogue.XEON_SPR, _DDR5_8, cable)
    return NodeType(
        "l40s-pcie", L40S, host,
        source="NVIDIA L40S data sheet: PCIe 4 x16, no NVLink; the server's switches and NICs are assumed",
    )  # fmt: skip


def rtx4090_box() -> NodeType:
    """No NVLink, no peer-to-peer, no GPUDirect: everything by way of host memory."""
    cable = catalogue.roce(100, assumed(0, "one NIC of 100 Gb/s, assumed"))
    groups = (
        LinkGroup(LinkKind.PCIE, "gpu0-7", "cpu0-1", _GEN4),
        LinkGroup(LinkKind.PCIE, "nic0", "cpu0", _GEN4),
        LinkGroup(LinkKind.SMP, "cpu0", "cpu1", catalogue.EPYC),
        LinkGroup(LinkKind.DRAM, "cpu0-1", "mem0-1", _DDR4_8),
        LinkGroup(LinkKind.NETWORK, "nic0", NETWORK, cable),
    )
    return NodeType(
        "rtx4090-box", RTX4090, groups, peer_to_peer=False, gpudirect=False,
        source="NVIDIA RTX 4090: PCIe 4 x16, no NVLink, peer-to-peer refused by the driver; two EPYC sockets assumed",
    )  # fmt: skip


def mi300x() -> NodeType:
    cable = catalogue.infiniband(400, "AMD reference and Azure ND MI300X v5: 8 NICs of 400 Gb/s a node")
    host = _host(8, 8, 8, 2, _GEN5, _GEN5, _GEN5, catalogue.EPYC, _DDR5_12, cable)
    mesh = LinkGroup(LinkKind.XGMI, "gpu0-7", MESH, catalogue.XGMI_MI300X)
    return NodeType(
        "mi300x", MI300X, (mesh, *host),
        source="AMD Instinct MI300X platform data sheet: 8 GPUs, one Infinity Fabric link to each of the 7 others",
    )  # fmt: skip


NODE_TYPES: Final[dict[str, Callable[[], NodeType]]] = {
    "dgx-a100": dgx_a100, "dgx-h100": dgx_h100, "hgx-h200": hgx_h200, "hgx-b200": hgx_b200, "gb200-tray": gb200_tray,
    "gb300-tray": gb300_tray, "aws-p4d": aws_p4d, "aws-p5": aws_p5, "azure-ndv4": azure_ndv4,
    "azure-ndv5": azure_ndv5, "l40s-pcie": l40s_pcie, "rtx4090-box": rtx4090_box, "mi300x": mi300x,
}  # fmt: skip
