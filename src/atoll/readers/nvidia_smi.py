"""``nvidia-smi``: the summary table, ``-q``, ``--query-gpu=... --format=csv`` and ``-L``, as one record per GPU."""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


class GpuState(msgspec.Struct, frozen=True):
    """One GPU; what the output does not print is empty or ``None``. Units: degrees C, watts, MHz, bytes.

    ``slowdowns`` are the active clock event (throttle) reasons by nvidia-smi's words, without idle and the
    applications-clocks setting. ``further`` holds every other leaf of ``-q`` or column of CSV by its path
    (``"PCI/GPU Link Info/Link Width/Max"``).
    """

    source: Source
    index: int | None = None
    name: str = ""
    uuid: str = ""
    bus_id: str = ""
    host: str = ""
    persistence: bool | None = None
    mig: bool | None = None
    performance_state: str = ""
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization_percent: float | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    fabric_state: str = ""
    compute_mode: str = ""
    slowdowns: tuple[str, ...] = ()
    error: str = ""
    further: dict[str, str] = {}


class NvidiaSmi(msgspec.Struct, frozen=True):
    """One output. ``error`` is nvidia-smi's own complaint when it could not talk to the driver."""

    gpus: tuple[GpuState, ...]
    source: Source
    driver_version: str = ""
    cuda_version: str = ""
    form: str = ""
    error: str = ""
