"""Speeds of links that presets are made of, each with its source. Everything is per direction.

Bandwidth is the vendor's rate of one direction; efficiency the share that payload reaches, from NCCL's own constants
(src/graph/topo.h of NCCL 2.30: GB/s per NVLink) or from published peaks of nccl-tests; latency what one link adds. Link
latencies are hardly published: where NCCL's tables (src/graph/tuning.cc of 2.30) give the time of a whole hop, legs are
shares of it, and say so.
"""

from __future__ import annotations

from typing import Final

from atoll.topology.figure import Figure, Speed, assumed, derived, measured, vendor

_TOPO_H: Final = "NCCL 2.30 src/graph/topo.h"
_TUNING: Final = "NCCL 2.30 src/graph/tuning.cc"
_SLIDES: Final = "NVIDIA GTC 2024 S62129 and GTC 2025 S72583, peak bus bandwidth of nccl-tests"

_NVLINK_LEG: Final = derived(0.3e-6, f"half of the 0.6 us of an LL hop over NVLink, {_TUNING}; GPU to switch is half")
_PCIE_LEG: Final = derived(
    0.25e-6, f"a quarter of the 1.0 us of an LL hop over PCIe, {_TUNING}; two to four legs a hop"
)
_PCIE_EFFICIENCY: Final = derived(0.762, f"24, 48, 96 GB/s of 31.5, 63, 126 for PCIe 4, 5, 6 x16: {_SLIDES}")


def nvlink3(links: int = 12) -> Speed:
    """A100 and its kin."""
    return Speed(
        vendor(25e9 * links, f"NVIDIA A100 data sheet: 50 GB/s both ways per NVLink 3, 25 each way, x {links}"),
        _NVLINK_LEG, derived(0.8, f"20 of 25 GB/s per link: SM80_NVLINK_BW, {_TOPO_H}"), links,
    )  # fmt: skip


def nvlink4(links: int = 18) -> Speed:
    """H100, H200 and their kin."""
    return Speed(
        vendor(25e9 * links, f"NVIDIA H100 data sheet: 900 GB/s both ways on 18 NVLink 4, 25 GB/s each way, x {links}"),
        _NVLINK_LEG, derived(0.824, f"20.6 of 25 GB/s per link: SM90_NVLINK_BW, {_TOPO_H}"), links,
    )  # fmt: skip


def nvlink5(links: int = 18) -> Speed:
    """B200, GB200, GB300."""
    return Speed(
        vendor(50e9 * links, f"NVIDIA HGX B200, GB200 data sheets: 1.8 TB/s both ways on 18 NVLink 5, x {links}"),
        _NVLINK_LEG, derived(0.802, f"40.1 of 50 GB/s per link: SM100_NVLINK_BW, {_TOPO_H}"), links,
    )  # fmt: skip


def nvlink2(links: int) -> Speed:
    """V100, directly between two GPUs or to a switch."""
    return Speed(
        vendor(25e9 * links, f"NVIDIA V100 data sheet: 300 GB/s both ways on 6 NVLink 2, x {links}"),
        _NVLINK_LEG.times(2, "direct, a whole hop"), derived(0.8, f"20 of 25 GB/s: SM70_NVLINK_BW, {_TOPO_H}"), links,
    )  # fmt: skip


def direct(speed: Speed) -> Speed:
    """The same NVLinks between two GPUs without a switch: one link is the whole hop."""
    return Speed(speed.bandwidth, speed.latency.times(2, "direct, a whole hop"), speed.efficiency, speed.lanes)


# Gigatransfers per second and lane -> PCIe generation. From 6.0 on a flit carries 242 of 256 bytes (PCI-SIG).
_GENERATIONS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def pcie(gt_per_s: float, width: int, *, source: str = "") -> Speed:
    """A PCIe link: 16 GT/s is generation 4, 32 is 5, 64 is 6."""
    if gt_per_s <= 5:
        share, coding = 0.8, "8b/10b"
    elif gt_per_s < 64:
        share, coding = 128 / 130, "128b/130b"
    else:
        share, coding = 242 / 256, "flits of 242 in 256 bytes"
    generation = _GENERATIONS.get(gt_per_s)
    name = f"PCIe {generation} x{width}" if generation else f"PCI of {gt_per_s:g} GT/s x{width}"
    text = f"{name}: {gt_per_s:g} GT/s per lane, {coding}" + (f"; {source}" if source else "")
    return Speed(derived(gt_per_s * 1e9 * width * share / 8, text), _PCIE_LEG, _PCIE_EFFICIENCY, width)


_NIC_LATENCY: Final = assumed(0.6e-6, "a NIC and its cable: about half of the 1.0 to 1.3 us of a small RDMA write")
_HOP_LATENCY: Final = assumed(0.25e-6, "a switch, 0.13 to 0.33 us port to port by various data sheets, and its cable")
_INFINIBAND: Final = measured(0.96, f"24 of 25 and 48 of 50 GB/s, all-to-all across nodes: {_SLIDES}")
_EFA_LATENCY_S: Final = 8.1e-6
_EFA_LATENCY: Final = (
    "a card at either end: AWS's own model of NCCL over EFA (aws-ofi-nccl, nccl_ofi_model.cpp) has 20 us a hop between "
    "p5 nodes where NCCL has 5.0 over InfiniBand, half of what is more at either end"
)
_EFA: Final = assumed(0.92, "Ethernet frames and SRD headers, below InfiniBand's 0.96")
_ROCE: Final = assumed(0.94, "Ethernet frames and RoCE headers, below InfiniBand's 0.96")


def infiniband(gbit_per_s: float, source: str) -> Speed:
    """A NIC's cable, of 200, 400 or 800 Gb/s."""
    return Speed(vendor(gbit_per_s * 1e9 / 8, source), _NIC_LATENCY, _INFINIBAND)


def roce(gbit_per_s: float, figure: Figure) -> Speed:
    """A NIC's cable, Ethernet; ``figure`` says where the rate comes from."""
    rate = Figure(gbit_per_s * 1e9 / 8, figure.provenance, figure.source)
    return Speed(rate, _NIC_LATENCY, _ROCE)


def efa(gbit_per_s: float, source: str, *, rdma_write: bool = True) -> Speed:
    """An EFA card's share of the network of AWS. Without RDMA write (p4d) NCCL may use no protocol but Simple."""
    kind = "EFA" if rdma_write else "EFA without RDMA write"
    return Speed(vendor(gbit_per_s * 1e9 / 8, source), derived(_EFA_LATENCY_S, f"{kind}, {_EFA_LATENCY}"), _EFA)


def uplink(cable: Speed) -> Speed:
    """A cable between switches at the rate of a NIC's."""
    rate = cable.bandwidth
    return Speed(
        derived(rate.value, f"switches are joined at the NICs' rate; {rate.source}"), _HOP_LATENCY, cable.efficiency,
        cable.lanes,
    )  # fmt: skip


def between_sockets(gigabytes_per_s: float, constant: str) -> Speed:
    """UPI, Infinity Fabric: what NCCL reckons with for GPU traffic, which is far below the headline."""
    return Speed(
        derived(gigabytes_per_s * 1e9, f"{constant}, {_TOPO_H}: what GPU traffic between sockets gets"),
        assumed(0.3e-6, "a hop between sockets, of the order of a remote memory access"),
    )


XEON_SPR: Final = between_sockets(22, "SRP_QPI_BW")
XEON_EMR: Final = between_sockets(40, "ERP_QPI_BW")
XEON_SKYLAKE: Final = between_sockets(10, "SKL_QPI_BW")
EPYC: Final = between_sockets(16, "AMD_BW")
GRACE: Final = between_sockets(6, "ARM_BW")


def dram(channels: int, megatransfers_per_s: int, what: str) -> Speed:
    """The memory of one NUMA node, where staged transfers are written and read."""
    return Speed(
        derived(
            channels * megatransfers_per_s * 8e6, f"{channels} channels of DDR at {megatransfers_per_s} MT/s: {what}"
        ),
        assumed(0.1e-6, "a memory access"),
        assumed(0.75, "share of the peak that streams reach"),
    )


C2C: Final = Speed(
    derived(225e9, "NVIDIA GB200 data sheet: 900 GB/s both ways for a Grace CPU and its two GPUs, 225 each way a GPU"),
    assumed(0.25e-6, "as a PCIe leg"),
    assumed(0.8, "as NVLink"),
)  # fmt: skip

XGMI_MI300X: Final = Speed(
    vendor(64e9, "AMD Instinct MI300X data sheet: 128 GB/s both ways per Infinity Fabric link, 64 each way"),
    assumed(0.6e-6, f"as an LL hop over NVLink, {_TUNING}"),
    assumed(0.75, "48 of 64 GB/s, as kernels that copy between two MI300X are commonly reported to reach"),
    1,
)
