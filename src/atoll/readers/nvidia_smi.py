"""``nvidia-smi``: the summary table, ``-q``, ``--query-gpu=... --format=csv`` and ``-L``, as one record per GPU."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from atoll.errors import SpecError
from atoll.readers.source import Source
from atoll.readers.text_stream import Line, text_lines


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


MAX_GPUS: Final = 4096
_MAX_FURTHER: Final = 1000

_TABLE_HEAD: Final = re.compile(
    r"\|\s*NVIDIA-SMI\s+\S+\s+(?:Driver Version:\s*(\S+)|KMD Version:\s*(\S+))(?:\s+CUDA (?:UMD )?Version:\s*(\S+))?"
)
_TABLE_GPU: Final = re.compile(
    r"\|\s*(\d{1,4})\s+(\S.*?)\s+(On|Off|N/A|ERR!)\s*\|\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)"
    r"\s+(?:On|Off|N/A|\S+)\s*\|\s*(\S+)\s*\|"
)
_TABLE_STATE: Final = re.compile(
    r"\|\s*(?:\d{1,3}%|N/A|ERR!)\s+(\d{1,3}C|N/A|ERR!)\s+(P\d{1,2}|N/A|ERR!)\s+"
    r"(\d{1,5}W|N/A|ERR!)\s*/\s*(\d{1,5}W|N/A|ERR!)\s*\|"
    r"\s*(\d{1,8})MiB\s*/\s*(\d{1,8})MiB\s*\|\s*(\d{1,3}%|N/A)\s*(.*?)\|"
)
_LIST: Final = re.compile(r"GPU (\d{1,4}): (.{1,100}?) \(UUID: (GPU-[0-9a-fA-F-]{4,60})\)")
_QUERY_GPU: Final = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*")
_QUERY_LEAF: Final = re.compile(r"(\s*)(\S[^:]{0,80}?)\s*: (.{0,400})")
_QUERY_SECTION: Final = re.compile(r"(\s*)(\S[^:]{0,80}?)\s*")
_FAILURE: Final = re.compile(
    r"(NVIDIA-SMI has failed because .{1,200}|Failed to initialize NVML: .{1,200}|No devices were found"
    r"|Unable to determine the device handle for .{1,200}|.{0,40}GPU is lost.{0,200})"
)
_QUANTITY: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*(%|C|W|MHz|MiB|GiB|KiB|x)?")
_NOT_SLOWDOWNS: Final = frozenset({"Idle", "Applications Clocks Setting", "Display Clock Setting", "None"})

# Leaves of -q by the end of their path, and columns of --query-gpu, by the field that they fill and how.
_FIELDS: Final[dict[str, tuple[str, str]]] = {
    "Product Name": ("name", "text"), "name": ("name", "text"), "gpu_name": ("name", "text"),
    "GPU UUID": ("uuid", "text"), "uuid": ("uuid", "text"), "gpu_uuid": ("uuid", "text"),
    "PCI/Bus Id": ("bus_id", "bus"), "pci.bus_id": ("bus_id", "bus"), "gpu_bus_id": ("bus_id", "bus"),
    "index": ("index", "whole"),
    "Persistence Mode": ("persistence", "flag"), "persistence_mode": ("persistence", "flag"),
    "MIG Mode/Current": ("mig", "flag"), "mig.mode.current": ("mig", "flag"),
    "Performance State": ("performance_state", "text"), "pstate": ("performance_state", "text"),
    "Temperature/GPU Current Temp": ("temperature_c", "number"), "temperature.gpu": ("temperature_c", "number"),
    "Power Draw": ("power_w", "number"), "Average Power Draw": ("power_w", "number"),
    "power.draw": ("power_w", "number"),
    "Current Power Limit": ("power_limit_w", "number"), "Enforced Power Limit": ("power_limit_w", "number"),
    "Power Readings/Power Limit": ("power_limit_w", "number"), "power.limit": ("power_limit_w", "number"),
    "Clocks/SM": ("sm_clock_mhz", "number"), "clocks.sm": ("sm_clock_mhz", "number"),
    "clocks.current.sm": ("sm_clock_mhz", "number"),
    "Max Clocks/SM": ("max_sm_clock_mhz", "number"), "clocks.max.sm": ("max_sm_clock_mhz", "number"),
    "FB Memory Usage/Used": ("memory_used_bytes", "size"), "memory.used": ("memory_used_bytes", "size"),
    "FB Memory Usage/Total": ("memory_total_bytes", "size"), "memory.total": ("memory_total_bytes", "size"),
    "Utilization/GPU": ("utilization_percent", "number"), "Utilization/Gpu": ("utilization_percent", "number"),
    "utilization.gpu": ("utilization_percent", "number"),
    "PCIe Generation/Current": ("pcie_generation", "whole"), "pcie.link.gen.current": ("pcie_generation", "whole"),
    "pcie.link.gen.gpucurrent": ("pcie_generation", "whole"),
    "PCIe Generation/Max": ("pcie_generation_max", "whole"), "pcie.link.gen.max": ("pcie_generation_max", "whole"),
    "Link Width/Current": ("pcie_width", "whole"), "pcie.link.width.current": ("pcie_width", "whole"),
    "Link Width/Max": ("pcie_width_max", "whole"), "pcie.link.width.max": ("pcie_width_max", "whole"),
    "Aggregate/SRAM Uncorrectable": ("ecc_uncorrected", "sum"),
    "Aggregate/DRAM Uncorrectable": ("ecc_uncorrected", "sum"),
    "Aggregate/SRAM Uncorrectable Parity": ("ecc_uncorrected", "sum"),
    "Aggregate/SRAM Uncorrectable SEC-DED": ("ecc_uncorrected", "sum"),
    "ecc.errors.uncorrected.aggregate.total": ("ecc_uncorrected", "whole"),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected", "whole"),
    "Aggregate/SRAM Correctable": ("ecc_corrected", "sum"), "Aggregate/DRAM Correctable": ("ecc_corrected", "sum"),
    "ecc.errors.corrected.aggregate.total": ("ecc_corrected", "whole"),
    "Remapped Rows/Pending": ("remap_pending", "flag"), "remapped_rows.pending": ("remap_pending", "flag"),
    "Remapped Rows/Remapping Failure Occurred": ("remap_failed", "flag"),
    "remapped_rows.failure": ("remap_failed", "flag"),
    "Fabric/State": ("fabric_state", "text"), "fabric.state": ("fabric_state", "text"),
    "Compute Mode": ("compute_mode", "text"), "compute_mode": ("compute_mode", "text"),
}  # fmt: skip

# --query-gpu=clocks_event_reasons.active is a mask; the bits are NVML's (nvml.h, nvmlClocksEventReason...).
_REASON_BITS: Final = {
    0x4: "SW Power Cap", 0x8: "HW Slowdown", 0x10: "Sync Boost", 0x20: "SW Thermal Slowdown",
    0x40: "HW Thermal Slowdown", 0x80: "HW Power Brake Slowdown",
}  # fmt: skip
_REASON_COLUMNS: Final = {
    "hw_slowdown": "HW Slowdown", "hw_thermal_slowdown": "HW Thermal Slowdown", "sw_power_cap": "SW Power Cap",
    "hw_power_brake_slowdown": "HW Power Brake Slowdown", "sw_thermal_slowdown": "SW Thermal Slowdown",
    "sync_boost": "Sync Boost",
}  # fmt: skip


def read_nvidia_smi(text: str | bytes, file: str) -> NvidiaSmi:
    """The output of ``nvidia-smi``, ``-q``, ``-L`` or ``--query-gpu --format=csv`` (with its header line).

    Raises ``SpecError`` where it is none of them. A field that cannot be read is left out, and the rest stands.
    """
    lines = list(text_lines(text))
    for line in lines:
        if (failure := _FAILURE.search(line.text)) is not None:
            return NvidiaSmi((), line.source(file), form="failed", error=failure[1].strip())
        if _TABLE_HEAD.search(line.text) is not None:
            return _table(lines, file)
        if "NVSMI LOG" in line.text:
            return _query(lines, file)
        if _LIST.match(line.text.strip()) is not None:
            return _list(lines, file)
        if _csv_columns(line.text) is not None:
            return _csv(lines, file)
    raise SpecError(
        f"{file}: no nvidia-smi output: expected its table, 'NVSMI LOG' of -q, 'GPU 0: ...' of -L, or the header line "
        "of --query-gpu=... --format=csv"
    )


class _Gpu:
    """A GPU being read: fields as they come, everything else under its path."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.fields: dict[str, Any] = {}
        self.slowdowns: list[str] = []
        self.further: dict[str, str] = {}

    def put(self, path: str, value: str) -> None:
        """A leaf: a field, an active slowdown, or a further one."""
        value = value.strip()
        parts = path.split("/")
        head, leaf = (parts[-2] if len(parts) > 1 else ""), parts[-1]
        if any("Reasons" in part and "Counters" not in part for part in parts[:-1]):
            if value == "Active" and leaf not in _NOT_SLOWDOWNS:
                self.slowdowns.append(leaf)
            return
        known = _FIELDS.get(f"{head}/{leaf}") or _FIELDS.get(leaf)
        if known is not None:
            field, how = known
            found = _read(value, how)
            if found is not None and how == "sum":
                self.fields[field] = self.fields.get(field, 0) + found
            elif found is not None:
                self.fields.setdefault(field, found)
        if len(self.further) < _MAX_FURTHER:
            self.further[path[:200]] = value

    def finish(self, **more: Any) -> GpuState:
        return GpuState(self.source, **{**self.fields, **more}, slowdowns=tuple(self.slowdowns), further=self.further)


def _read(value: str, how: str) -> Any:
    """A value in the unit of its field; ``None`` for N/A and what cannot be read."""
    if value in ("", "N/A", "[N/A]", "[Not Supported]", "Not Supported", "ERR!", "Unknown Error", "[Unknown Error]"):
        return None
    if how == "text":
        return value[:200]
    if how == "bus":
        return value.lower()[:20]
    if how == "flag":
        lower = value.lower()
        if lower in ("enabled", "on", "yes", "1"):
            return True
        return False if lower in ("disabled", "off", "no", "0") else None
    match = _QUANTITY.match(value)
    if match is None:
        return None
    number = float(match[1])
    if how == "size":
        return int(number * {"KiB": 1 << 10, "GiB": 1 << 30}.get(match[2] or "MiB", 1 << 20))
    return number if how == "number" else int(number)


def _table(lines: list[Line], file: str) -> NvidiaSmi:
    driver = cuda = ""
    first: Source | None = None
    gpus: list[GpuState] = []
    for line in lines:
        if (head := _TABLE_HEAD.search(line.text)) is not None:
            driver, cuda = head[1] or head[2] or "", head[3] or ""
            first = first or line.source(file)
        elif (gpu := _TABLE_GPU.match(line.text)) is not None and len(gpus) < MAX_GPUS:
            gpus.append(
                GpuState(
                    line.source(file), int(gpu[1]), gpu[2].strip(), bus_id=gpu[4].lower(),
                    persistence=_read(gpu[3], "flag"), ecc_uncorrected=_read(gpu[5], "whole"),
                    error="ERR!" if "ERR!" in line.text else "",
                )
            )  # fmt: skip
        elif gpus and gpus[-1].memory_total_bytes is None and (state := _TABLE_STATE.match(line.text)) is not None:
            gpus[-1] = msgspec.structs.replace(
                gpus[-1], temperature_c=_read(state[1], "number"),
                performance_state=_read(state[2], "text") or "", power_w=_read(state[3], "number"),
                power_limit_w=_read(state[4], "number"), memory_used_bytes=int(state[5]) << 20,
                memory_total_bytes=int(state[6]) << 20, utilization_percent=_read(state[7], "number"),
                compute_mode=state[8].strip(), error="ERR!" if "ERR!" in line.text else gpus[-1].error,
            )  # fmt: skip
    assert first is not None
    return NvidiaSmi(tuple(gpus), first, driver, cuda, "table")


def _query(lines: list[Line], file: str) -> NvidiaSmi:
    driver = cuda = ""
    first: Source | None = None
    gpus: list[_Gpu] = []
    # The open sections, outermost first: (indent, name). A GPU's line has none.
    path: list[tuple[int, str]] = []
    for line in lines:
        text = line.text.rstrip()
        if "NVSMI LOG" in text:
            first = first or line.source(file)
        elif (gpu := _QUERY_GPU.fullmatch(text.strip())) is not None:
            if len(gpus) >= MAX_GPUS:
                break
            gpus.append(_Gpu(line.source(file)))
            gpus[-1].fields["bus_id"] = gpu[1].lower()
            path = []
        elif (leaf := _QUERY_LEAF.fullmatch(text)) is not None:
            name, value = leaf[2], leaf[3].strip()
            if not gpus:
                driver = value if name == "Driver Version" else driver
                cuda = value if name.startswith("CUDA") and name.endswith("Version") else cuda
                continue
            while path and path[-1][0] >= len(leaf[1]):
                path.pop()
            gpus[-1].put("/".join([*(section for _, section in path), name]), value)
            # HW Slowdown has a value and children; the children are read as its siblings are.
        elif gpus and text and (section := _QUERY_SECTION.fullmatch(text)) is not None:
            while path and path[-1][0] >= len(section[1]):
                path.pop()
            if len(path) < 16:
                path.append((len(section[1]), section[2]))
    assert first is not None
    return NvidiaSmi(tuple(gpu.finish(index=at) for at, gpu in enumerate(gpus)), first, driver, cuda, "query")


def _list(lines: list[Line], file: str) -> NvidiaSmi:
    gpus: list[GpuState] = []
    for line in lines:
        if (gpu := _LIST.match(line.text.strip())) is not None and len(gpus) < MAX_GPUS:
            gpus.append(GpuState(line.source(file), int(gpu[1]), gpu[2], gpu[3]))
        elif gpus and line.text.strip().startswith("MIG "):
            gpus[-1] = msgspec.structs.replace(gpus[-1], mig=True)
    return NvidiaSmi(tuple(gpus), gpus[0].source, form="list")


def _csv_columns(text: str) -> list[str] | None:
    """The columns of a header line of ``--format=csv``: known names, with units in brackets."""
    columns = [column.partition(" [")[0].strip() for column in text.split(",")]
    known = sum(1 for column in columns if column in _FIELDS or column == "driver_version")
    return columns if known and known * 2 >= len(columns) and text.strip() and known >= min(2, len(columns)) else None


def _csv(lines: list[Line], file: str) -> NvidiaSmi:
    columns: list[str] | None = None
    first: Source | None = None
    driver = ""
    gpus: list[GpuState] = []
    for line in lines:
        if columns is None:
            columns = _csv_columns(line.text)
            first = line.source(file) if columns else None
            continue
        values = [value.strip() for value in line.text.split(",")]
        if len(values) != len(columns) or _csv_columns(line.text) is not None:
            continue
        if len(gpus) >= MAX_GPUS:
            break
        gpu = _Gpu(line.source(file))
        for column, value in zip(columns, values, strict=True):
            _put_column(gpu, column, value)
        driver = gpu.further.get("driver_version", driver)
        gpus.append(gpu.finish())
    assert first is not None
    return NvidiaSmi(tuple(gpus), first, driver, "", "csv")


def _put_column(gpu: _Gpu, column: str, value: str) -> None:
    group, _, leaf = column.partition(".")
    if group in ("clocks_event_reasons", "clocks_throttle_reasons"):
        if leaf == "active" and value.startswith("0x") and len(value) < 20:
            try:
                mask = int(value, 16)
            except ValueError:
                return
            gpu.slowdowns.extend(name for bit, name in _REASON_BITS.items() if mask & bit)
        elif value == "Active" and leaf in _REASON_COLUMNS:
            gpu.slowdowns.append(_REASON_COLUMNS[leaf])
    else:
        gpu.put(column, value)
