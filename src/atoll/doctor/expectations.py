"""What a healthy machine reaches, from published figures: the yardstick until a measured model replaces it.

Every row cites its source. Figures are nccl-tests *busbw* per rank, bytes per second, at large sizes. They are peaks of
well-built systems, so a verdict asks whether a measurement stays below a *share* of them (``bandwidth.py``), never
whether it reaches them.

Across nodes no table of systems is needed: a ring moves busbw over every node's NICs, so busbw <= NICs x rate. The
share of line rate that is reached, ``NIC_EFFICIENCY``, is from the published pairs (line rate, busbw) below.
"""

from __future__ import annotations

from typing import Final

import msgspec

from atoll.topology.gpu_models import family_of, on_a_board

NVIDIA_SLIDES = "NVIDIA GTC 2024 S62129 and GTC 2025 S72583, peak bus bandwidth of nccl-tests"


class IslandPeak(msgspec.Struct, frozen=True):
    """Peak busbw of ``collective`` among the GPUs of one NVLink island. ``ring`` without, ``nvls`` with NVLink
    SHARP."""

    gpu: str
    collective: str
    ring_bytes_per_s: float
    nvls_bytes_per_s: float | None
    source: str


ISLAND_PEAKS: Final[tuple[IslandPeak, ...]] = (
    IslandPeak("V100", "all_reduce", 122e9, None, NVIDIA_SLIDES),
    IslandPeak("A100", "all_reduce", 232e9, None, NVIDIA_SLIDES),
    IslandPeak("A100", "all_to_all", 210e9, None, NVIDIA_SLIDES),
    IslandPeak("H100", "all_reduce", 370e9, 480e9, NVIDIA_SLIDES + "; 370 and 480 also nccl-tests issue 212"),
    IslandPeak("H100", "all_to_all", 320e9, None, NVIDIA_SLIDES),
    IslandPeak("B200", "all_reduce", 700e9, 850e9, NVIDIA_SLIDES),
    IslandPeak("B200", "all_to_all", 640e9, None, NVIDIA_SLIDES),
    IslandPeak("GB200", "all_reduce", 680e9, 850e9, NVIDIA_SLIDES),
    IslandPeak("GB200", "all_to_all", 640e9, None, NVIDIA_SLIDES),
)
"""H200 has the NVLink of H100; B300 and GB300 that of B200 and GB200 (vendor data sheets)."""

_PEAKS_OF: Final = {"GB300": "GB200", "B300": "B200", "H200": "H100"}
"""Families whose NVLink is that of another one, in which they are counted here."""

NIC_EFFICIENCY: Final = 0.92
"""Lowest of: 192 of 8 x 200 Gb/s (0.96), 370 of 8 x 400 Gb/s (0.925), 48 of 400 Gb/s (0.96): NVIDIA slides."""

# Line rates that a text may name, in bytes per second and direction.
RATE_NAMES: Final[dict[str, float]] = {
    "EDR": 12.5e9,
    "HDR100": 12.5e9,
    "HDR": 25e9,
    "NDR200": 25e9,
    "NDR": 50e9,
    "XDR": 100e9,
}
NVLS_SINCE: Final = (2, 17)


class Machine(msgspec.Struct, frozen=True):
    """What is known of the machine that was measured; ``None`` where it is not. ``nic_rate_bytes_per_s`` is of one NIC
    and direction; ``nics_from`` says who told."""

    gpu: str = ""
    world_size: int | None = None
    num_nodes: int | None = None
    nics_per_node: int | None = None
    nic_rate_bytes_per_s: float | None = None
    nics_from: str = ""
    nccl_version: tuple[int, ...] = ()

    @property
    def gpus_per_node(self) -> int | None:
        if not self.world_size or not self.num_nodes or self.world_size % self.num_nodes:
            return None
        return self.world_size // self.num_nodes


class Expectation(msgspec.Struct, frozen=True):
    """``busbw_bytes_per_s`` that a healthy machine reaches at least at large sizes; ``limit`` is what bounds it."""

    busbw_bytes_per_s: float
    limit: str
    source: str


def gpu_family(name: str) -> str:
    """The generation of a GPU by its name as printed: ``NVIDIA H200`` is ``H100``; empty when unknown."""
    family = family_of(name)
    return "" if family is None else _PEAKS_OF.get(family.name, family.name)


def expected(collective: str, machine: Machine) -> Expectation | None:
    """The least that ``collective`` should reach on ``machine``, or ``None`` where too little is known to say."""
    if not machine.world_size or not machine.num_nodes:
        return None
    if machine.num_nodes == 1:
        return _in_island(collective, machine)
    return _across_nodes(collective, machine)


def _in_island(collective: str, machine: Machine) -> Expectation | None:
    """Only whole boards of 8 (4 for GB200) are compared: on fewer GPUs some boards have fewer links to each other."""
    if not on_a_board(machine.gpu) or machine.world_size not in (4, 8):
        return None
    family = gpu_family(machine.gpu)
    if machine.world_size == 4 and family != "GB200":
        return None
    row = next((peak for peak in ISLAND_PEAKS if (peak.gpu, peak.collective) == (family, collective)), None)
    if row is None and collective in ("all_gather", "reduce_scatter"):
        # A ring moves the same over each link for these as for all-reduce; NVLS helps them less.
        row = next((peak for peak in ISLAND_PEAKS if (peak.gpu, peak.collective) == (family, "all_reduce")), None)
    return Expectation(row.ring_bytes_per_s, "NVLink", row.source) if row else None


def _across_nodes(collective: str, machine: Machine) -> Expectation | None:
    per_node = machine.gpus_per_node
    if machine.nics_per_node is None or machine.nic_rate_bytes_per_s is None or per_node is None:
        return None
    world = machine.world_size or 0
    # A GPU drives one NIC: with fewer GPUs than NICs some NICs are idle by design.
    usable = min(machine.nics_per_node, per_node)
    all_nics = usable * machine.nic_rate_bytes_per_s * NIC_EFFICIENCY
    rate_gbit = machine.nic_rate_bytes_per_s * 8 / 1e9
    source = f"{usable} NIC{'s' if usable > 1 else ''} of {rate_gbit:g} Gb/s ({machine.nics_from})"
    if collective in ("all_to_all", "all_to_all", "sendrecv", "gather", "scatter"):
        remote = 1.0 if collective == "send_recv" else (world - per_node) / (world - 1)
        # busbw counts (n-1)/n of the data of one GPU; of that only the remote share crosses its share of the NICs.
        return Expectation(all_nics / per_node / remote, "NICs", source)
    if collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        island = next((p.ring_bytes_per_s for p in ISLAND_PEAKS if p.gpu == gpu_family(machine.gpu)), float("inf"))
        return Expectation(min(all_nics, island), "NICs" if all_nics <= island else "NVLink", source)
    return None
