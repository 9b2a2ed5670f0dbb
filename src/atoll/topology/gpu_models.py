"""What is known of GPU families: the NVLinks of a healthy one, and what to assume where a file does not say.

A name as printed (``NVIDIA A800-SXM4-80GB``) or a compute capability (``sm`` of NCCL's XML) gives the family. Export
variants have fewer links of the same kind: 8 on an A800 is healthy.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from atoll.topology import link_catalogue
from atoll.topology.figure import Speed, derived


class GpuFamily(msgspec.Struct, frozen=True):
    """``nvlinks`` of a healthy GPU on an NVLink board (SXM); ``gt_per_s`` of its PCIe, ``nic_gbit_per_s`` of the NICs
    usual beside it: what importers assume, and say so.
    """

    name: str
    nvlinks: int
    source: str
    gt_per_s: float
    nic_gbit_per_s: float
    sm: int


FAMILIES: Final[tuple[GpuFamily, ...]] = (
    GpuFamily("GB300", 18, "NVIDIA GB300 NVL72 data sheet: 18 NVLink 5", 64, 800, 103),
    GpuFamily("GB200", 18, "NVIDIA GB200 NVL72 data sheet: 18 NVLink 5", 32, 400, 100),
    GpuFamily("B300", 18, "NVIDIA HGX B300 data sheet: 18 NVLink 5", 64, 800, 103),
    GpuFamily("B200", 18, "NVIDIA HGX B200 data sheet: 18 NVLink 5", 32, 400, 100),
    GpuFamily("H200", 18, "NVIDIA H200 data sheet: 18 NVLink 4", 32, 400, 90),
    GpuFamily("H100", 18, "NVIDIA H100 SXM5 data sheet: 18 NVLink 4", 32, 400, 90),
    GpuFamily("H800", 8, "export variant of H100 with 400 GB/s both ways: 8 NVLink 4", 32, 400, 90),
    GpuFamily("H20", 18, "NVIDIA H20: 900 GB/s both ways, 18 NVLink 4", 32, 400, 90),
    GpuFamily("A100", 12, "NVIDIA A100 SXM4 data sheet: 12 NVLink 3", 16, 200, 80),
    GpuFamily("A800", 8, "export variant of A100 with 400 GB/s both ways: 8 NVLink 3", 16, 200, 80),
    GpuFamily("V100", 6, "NVIDIA V100 SXM2 and SXM3 data sheet: 6 NVLink 2", 8, 100, 70),
    GpuFamily("P100", 4, "NVIDIA P100 SXM2 data sheet: 4 NVLink 1", 8, 100, 60),
)

HEALTHY_BONDS: Final = frozenset({1, 2, 3, 4, 6, 8, 12, 18})
"""Bonds between two GPUs, or a GPU and its switches, that whole products have: V100 boards 1, 2 and 6, boards of four 4
and 6, bridges of PCIe cards 2, 4, 6 and 12, and the links of the families."""

# What most GPUs of a compute capability, or with so many NVLinks, are.
_USUAL: Final[dict[int, str]] = {103: "B300", 100: "B200", 90: "H100", 80: "A100", 70: "V100", 60: "P100"}
_BY_LINKS: Final[dict[int, str]] = {18: "H100", 12: "A100", 8: "A800", 6: "V100"}
_NO_BOARD: Final = re.compile(r"PCIe|RTX|GeForce|\bNVL\b|Quadro|Tesla T", re.IGNORECASE)
_AMD_XGMI: Final = {"908": 46e9, "910": 50e9, "90a": 50e9, "942": 64e9, "gfx90a": 50e9, "gfx942": 64e9}


def family_of(name: str) -> GpuFamily | None:
    """By name; ``None`` for one that has no NVLink board."""
    return next((family for family in FAMILIES if re.search(rf"\b{family.name}\b", name, re.IGNORECASE)), None)


def on_a_board(name: str) -> bool:
    """Whether a GPU of this name sits on an NVLink board; PCIe, NVL and workstation cards have bridges at most."""
    return family_of(name) is not None and not _NO_BOARD.search(name)


def healthy_links(sm: int | None) -> frozenset[int]:
    """What GPUs of a compute capability may have towards switches; empty where it is not known."""
    return frozenset(family.nvlinks for family in FAMILIES if family.sm == sm)


def assumed_family(name: str, sm: int | None, nvlinks: int) -> GpuFamily | None:
    """The family to take figures from: by name, else by compute capability, else by the number of links."""
    named = family_of(name)
    if named is not None:
        return named
    usual = family_of((_BY_LINKS.get(nvlinks) if sm is None else _USUAL.get(sm)) or "")
    if usual is None or not nvlinks or usual.nvlinks == nvlinks:
        return usual
    return next((family for family in FAMILIES if family.sm == usual.sm and family.nvlinks == nvlinks), usual)


def nvlink_speed(family: GpuFamily | None, links: int, *, switched: bool) -> Speed:
    """So many NVLinks of a family, to a switch or directly to another GPU."""
    sm = family.sm if family is not None else 80
    if sm >= 100:
        speed = link_catalogue.nvlink5(links)
    elif sm >= 90:
        speed = link_catalogue.nvlink4(links)
    elif sm >= 80:
        speed = link_catalogue.nvlink3(links)
    else:
        return link_catalogue.nvlink2(links)
    return speed if switched else link_catalogue.direct(speed)


def xgmi_speed(architecture: str, links: int, bytes_per_s: float | None = None) -> Speed:
    """So many xGMI links; ``bytes_per_s`` where the driver reports it."""
    base = link_catalogue.XGMI_MI300X
    if bytes_per_s:
        figure = derived(bytes_per_s, "as the driver reports it (rocm-smi --shownodesbw), one direction")
    else:
        rate = _AMD_XGMI.get(architecture, 50e9)
        figure = derived(rate * links, "AMD data sheets: 46 (MI100), 50 (MI200), 64 GB/s (MI300X) each way and link")
    return Speed(figure, base.latency, base.efficiency, links)
