"""The kernel's log (dmesg, ``/dev/kmsg``, journal, syslog): Xid, SXid, AER, memory kills, links, RDMA, driver.

``time`` is as printed; ``time_s`` is seconds since boot where the form gives them (``[ 38.1]``, kmsg); ``host`` where a
syslog prefix names it.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from atoll.readers.source import Source
from atoll.readers.text_stream import Line, text_lines


class KernelStamp(msgspec.Struct, frozen=True):
    """When and where a line was written."""

    time: str = ""
    time_s: float | None = None
    host: str = ""


class Xid(msgspec.Struct, frozen=True):
    """``NVRM: Xid (PCI:0000:9b:00): 119, pid=..., name=..., message``. ``bus_id`` is ``0000:9b:00`` without a function.

    For NVLink5 (144 to 150) ``unit`` (``RLW_RXPIPE``), ``fatal``, ``link`` and ``registers`` are decoded;
    ``caused_by`` is the code in ``caused by previous Xid 149``.
    """

    code: int
    bus_id: str
    message: str
    stamp: KernelStamp
    source: Source
    pid: int | None = None
    process: str = ""
    unit: str = ""
    fatal: bool | None = None
    link: int | None = None
    registers: tuple[int, ...] = ()
    caused_by: int | None = None


class Sxid(msgspec.Struct, frozen=True):
    """``nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 ...``; ``fatal`` ``None`` when not
    said.
    """

    code: int
    switch: str
    bus_id: str
    message: str
    stamp: KernelStamp
    source: Source
    fatal: bool | None = None
    link: int | None = None


class PcieError(msgspec.Struct, frozen=True):
    """AER: ``severity`` is ``Corrected``, ``Uncorrected (Non-Fatal)``, ``Uncorrected (Fatal)`` or as written."""

    bus_id: str
    severity: str
    message: str
    stamp: KernelStamp
    source: Source
    driver: str = ""


class OutOfMemoryKill(msgspec.Struct, frozen=True):
    """The OOM killer's record. ``cgroup`` is whether a memory cgroup's limit was hit (else the whole host was full).

    ``resident_bytes`` sums the printed anon, file and shmem resident sizes.
    """

    pid: int | None
    process: str
    cgroup: bool
    stamp: KernelStamp
    source: Source
    resident_bytes: int | None = None
    cgroup_path: str = ""


class LinkChange(msgspec.Struct, frozen=True):
    """A network interface's carrier: ``up`` or lost. ``driver`` (``mlx5_core``) and ``bus_id`` where printed."""

    interface: str
    up: bool
    stamp: KernelStamp
    source: Source
    driver: str = ""
    bus_id: str = ""


class RdmaDriverMessage(msgspec.Struct, frozen=True):
    """A message of an RDMA driver (mlx5_core, mlx5_ib, mlx4, bnxt_re, efa, ib_core, infiniband) other than link
    changes.
    """

    driver: str
    bus_id: str
    message: str
    stamp: KernelStamp
    source: Source


class GpuDriverMessage(msgspec.Struct, frozen=True):
    """``kind``: ``fallen_off_bus`` (without an Xid), ``driver_loaded``, ``needs_reset``, ``init_failed`` or
    ``peermem``.
    """

    kind: str
    message: str
    stamp: KernelStamp
    source: Source
    bus_id: str = ""


class IommuState(msgspec.Struct, frozen=True):
    """The kernel says how the IOMMU runs: the boot command line, or ``iommu: Default domain type: Passthrough``."""

    message: str
    stamp: KernelStamp
    source: Source


class MachineCheck(msgspec.Struct, frozen=True):
    """A hardware error of the host: machine check, EDAC, or a CPU soft lockup / hung task (``kind``)."""

    kind: str
    message: str
    stamp: KernelStamp
    source: Source


class ProcessFault(msgspec.Struct, frozen=True):
    """``python3[123]: segfault at ...`` or ``traps: ... general protection fault``."""

    process: str
    pid: int | None
    message: str
    stamp: KernelStamp
    source: Source


KernelFact = (
    Xid
    | Sxid
    | PcieError
    | OutOfMemoryKill
    | LinkChange
    | RdmaDriverMessage
    | GpuDriverMessage
    | IommuState
    | MachineCheck
    | ProcessFault
)


# A line is looked at further only if one of these is in it.
_MARKS: Final = (
    "NVRM", "nvidia", "Xid", "AER", "emory", "oom", "ink", "mlx", "carrier", "iommu", "IOMMU", "DMAR", "MCE", "mce:",
    "EDAC", "lockup", "blocked for more", "segfault", "traps:", "PCIe Bus Error", "Command line", "efa",
    "bnxt_re", "hfi1",
    "amdgpu", "protection fault",
)  # fmt: skip

_KMSG: Final = re.compile(r"(\d{1,3}),(\d{1,18}),(\d{1,18}),[-cf+][^;]{0,80};")
_BOOT_SECONDS: Final = re.compile(r"(?:<\d{1,3}>)?\[ *(\d{1,12}\.\d{1,9})\](?:\[ *[TC]\d{1,9}\])? ?")
_CTIME: Final = re.compile(r"\[(\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ?")
_SYSLOG: Final = re.compile(
    r"(\w{3} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.,:+Z-]{0,24}) (\S{1,253}) kernel: "
)
_ISO_KERN: Final = re.compile(r"(?:kern\s*:\w{1,8}\s*: )(\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,32}) ")
_KERNEL: Final = re.compile(r"(?:^|\s)kernel: ")

_XID: Final = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{5,16})\): (\d{1,5})(?:, |: )?(.{0,1000})")
_XID_PID: Final = re.compile(r"pid='?(\d{1,10}|<unknown>)'?")
_XID_NAME: Final = re.compile(r"name=([^,]{1,64})")
_XID_PREVIOUS: Final = re.compile(r"caused by previous Xid (\d{1,5})")
_XID_LINK: Final = re.compile(
    r"([A-Z][A-Z0-9_]{2,40}) (Fatal|Nonfatal|Non-fatal) .{0,40}?Link (-?\d{1,3})(?: \(("
    r"(?:0x[0-9a-f]{1,8} ?){1,12})\))?"
)
_SXID: Final = re.compile(r"(nvidia-nvswitch\d{1,3}): SXid \(PCI:([0-9a-fA-F:.]{5,16})\): (\d{1,6}), (.{0,600})")
_SXID_LINK: Final = re.compile(r"\bLink (\d{1,3})\b")
_BUS: Final = re.compile(r"\b((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?)\b", re.IGNORECASE)
_AER: Final = re.compile(
    r"(?:(\w[\w.-]{1,40}) )?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]): (?:AER: )?"
    r"(?:PCIe Bus Error: severity=([\w ()-]{1,40}?),|(aer_status|.*AER:))(.{0,300})"
)
_AER_ROOT: Final = re.compile(
    r"AER: (?:Multiple )?(Corrected|Uncorrect(?:ed|able)[\w ()-]{0,30}?) error (?:message )?received: "
    r"(?:id=)?(\S{1,16})"
)
_OOM_KILLED: Final = re.compile(
    r"(Memory cgroup out of memory|Out of memory)(?: \(oom_kill_allocating_task\))?: Kill"
    r"(?:ed)? process (\d{1,10}) \(([^)]{1,64})\)(.{0,300})"
)
_OOM_SUMMARY: Final = re.compile(r"oom-kill:constraint=(\w{1,40}).{0,1000}?task=([^,]{1,64}),pid=(\d{1,10})")
_OOM_MEMCG: Final = re.compile(r"(?:task_memcg|oom_memcg)=([^,]{1,300})")
_RSS: Final = re.compile(r"(?:anon|file|shmem)-rss:(\d{1,15})kB")
_LINK: Final = re.compile(
    r"(?:(\w[\w-]{1,30}) (?:([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]) )?)?([\w.@-]{1,40}): "
    r"(?:NIC )?[Ll]ink (?:is )?(Up|up|Down|down|UP|DOWN)\b"
)
_CARRIER: Final = re.compile(r"([\w.@-]{1,40}): (lost|gained|Lost|Gained) carrier")
_READY: Final = re.compile(r"ADDRCONF\(NETDEV_(?:CHANGE|UP)\): ([\w.@-]{1,40}): link (becomes ready|is not ready)")
_BOND: Final = re.compile(
    r"\b(\w[\w.-]{0,30}): (?:\(slave ([\w.-]{1,40})\): )?link status (?:definitely |up|down)?\s*(up|down)"
)
_RDMA: Final = re.compile(
    r"\b(mlx5_core|mlx5_ib|mlx5|mlx4_core|mlx4_ib|bnxt_re|bnxt_en|efa|hfi1|irdma|ib_core|infiniband)\b[: ]"
    r"{1,2}(?:([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])[: ]{0,2})?(.{1,400})"
)
_IOMMU: Final = re.compile(
    r"(?:iommu: Default domain type|DMAR: IOMMU enabled|AMD-Vi: .{0,60}enabled|iommu=|intel_iommu=|amd_iom"
    r"mu=|DMAR:.{0,40}DMA (?:Read|Write)|Passthrough)"
)
_HOST_FAULT: Final = (
    ("machine_check", re.compile(r"mce: \[Hardware Error\]|Machine [Cc]heck|MCE ")),
    ("edac", re.compile(r"EDAC \S+: .{0,40}\b(?:CE|UE)\b|EDAC .{0,80}error")),
    ("soft_lockup", re.compile(r"(?:soft|hard) (?:lockup|LOCKUP)")),
    ("hung_task", re.compile(r"task \S+ blocked for more than \d+ seconds")),
)  # fmt: skip
_SEGFAULT: Final = re.compile(
    r"(?:traps: )?([^\s\[]{1,64})\[(\d{1,10})\]:? (segfault at .{1,300}|(?:trap )?"
    r"(?:general protection|invalid opcode).{0,300})"
)
_GPU_DRIVER: Final = (
    ("fallen_off_bus", re.compile(r"fallen off the bus")),
    ("needs_reset", re.compile(r"GPU (?:likely )?needs to be reset|GPU reset required|Drain and Reset", re.IGNORECASE)),
    ("init_failed", re.compile(r"(?:RmInitAdapter|rm_init_adapter|probe routine|GPU initialization) failed")),
    ("driver_loaded", re.compile(r"NVRM: loading NVIDIA UNIX")),
    ("peermem", re.compile(r"nvidia[-_]peermem|nv_peer_mem|nvidia_p2p")),
)  # fmt: skip
_LOST_GPU: Final = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]{7,16})")
_MAX_MESSAGE: Final = 4096
"""A kernel's record has at most 1 KiB; what is longer is cut, so that no line costs much."""
_MAX_FACTS: Final = 2_000_000


class KernelLogReader:
    """A line-oriented reader; ``facts`` holds what it has found, in order."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._facts: list[KernelFact] = []
        self._lost_gpu = ""

    @property
    def facts(self) -> tuple[KernelFact, ...]:
        return tuple(self._facts)

    def feed(self, line: Line) -> None:
        text = line.text
        for mark in _MARKS:
            if mark in text:
                break
        else:
            return
        if len(self._facts) >= _MAX_FACTS:
            return
        # The stamp is read from the raw line: a shipper's prefix is the very stamp that is wanted here.
        stamp, message, stamped = _stamp(line)
        fact = self._fact(message[:_MAX_MESSAGE], stamp, stamped, line)
        if fact is not None:
            self._facts.append(fact)

    def _fact(self, text: str, stamp: KernelStamp, stamped: bool, line: Line) -> KernelFact | None:
        source = line.source(self.file)
        if "Xid" in text:
            if (match := _XID.search(text)) is not None:
                return _xid(match, stamp, source)
            if (match := _SXID.search(text)) is not None:
                return _sxid(match, stamp, source)
        if "NVRM" in text or "nvidia" in text or "nv_peer_mem" in text:
            for kind, pattern in _GPU_DRIVER:
                if pattern.search(text):
                    bus = _BUS.search(text)
                    where = _bus_id(bus[1]) if bus else self._lost_gpu if kind == "fallen_off_bus" else ""
                    return GpuDriverMessage(kind, text.strip(), stamp, source, where)
            if (lost := _LOST_GPU.search(text)) is not None:
                # The driver prints "The NVIDIA GPU <bus id>" and "fallen off the bus" on lines of their own.
                self._lost_gpu = _bus_id(lost[1])
            return None
        if "emory" in text or "oom" in text:
            killed = _out_of_memory(text, stamp, source)
            if killed is not None:
                return killed
        # What follows has no words of its own, so it counts in a line that carries a kernel's stamp only.
        if not stamped and "networkd" not in text:
            return None
        if "AER" in text or "PCIe Bus Error" in text:
            return _pcie(text, stamp, source)
        link = _link(text, stamp, source)
        if link is not None:
            return link
        if _IOMMU.search(text) or "Command line:" in text:
            return IommuState(text.strip(), stamp, source)
        for kind, pattern in _HOST_FAULT:
            if pattern.search(text):
                return MachineCheck(kind, text.strip(), stamp, source)
        if (fault := _SEGFAULT.search(text)) is not None:
            return ProcessFault(fault[1], int(fault[2]), fault[3], stamp, source)
        if (rdma := _RDMA.search(text)) is not None:
            return RdmaDriverMessage(rdma[1], rdma[2] or "", rdma[3].strip(), stamp, source)
        return None


def read_kernel_log(text: str | bytes, file: str) -> tuple[KernelFact, ...]:
    """Every fact in ``text``, in order; none where the kernel says nothing of the kind."""
    reader = KernelLogReader(file)
    for line in text_lines(text):
        reader.feed(line)
    return reader.facts


def _stamp(line: Line) -> tuple[KernelStamp, str, bool]:
    """The stamp of a line, the message behind it, and whether it is one that a kernel log has."""
    text = line.raw.lstrip()
    if (match := _KMSG.match(text)) is not None:
        return KernelStamp(match[3], int(match[3]) / 1e6), text[match.end() :], True
    if (match := _CTIME.match(text)) is not None:
        return KernelStamp(match[1]), text[match.end() :], True
    if (match := _BOOT_SECONDS.match(text)) is not None:
        return KernelStamp(match[1], float(match[1])), text[match.end() :], True
    if (match := _SYSLOG.match(text)) is not None:
        inner = _BOOT_SECONDS.match(text, match.end())
        seconds = float(inner[1]) if inner else None
        return KernelStamp(match[1], seconds, match[2]), text[inner.end() if inner else match.end() :], True
    if (match := _ISO_KERN.match(text)) is not None:
        return KernelStamp(match[1]), text[match.end() :], True
    if (match := _KERNEL.search(text[:400])) is not None:
        return KernelStamp(line.launcher.time, None, line.launcher.host), text[match.end() :], True
    inner = _BOOT_SECONDS.match(line.text)
    if inner is not None:
        return KernelStamp(inner[1], float(inner[1]), line.launcher.host), line.text[inner.end() :], True
    return KernelStamp(line.launcher.time, None, line.launcher.host), line.text, False


def _bus_id(text: str) -> str:
    """``0000:9b:00`` of ``0000:9B:00.0``."""
    return text.lower().partition(".")[0]


def _xid(match: re.Match[str], stamp: KernelStamp, source: Source) -> Xid:
    message = match[3].strip()
    pid, name = _XID_PID.search(message), _XID_NAME.search(message)
    previous, link = _XID_PREVIOUS.search(message), _XID_LINK.search(message)
    process = name[1].strip() if name else ""
    return Xid(
        int(match[2]), _bus_id(match[1]), message, stamp, source,
        int(pid[1]) if pid and pid[1].isdigit() else None,
        "" if process == "<unknown>" else process,
        link[1] if link else "",
        link[2] == "Fatal" if link else None,
        int(link[3]) if link else None,
        tuple(int(register, 16) for register in (link[4] or "").split()) if link else (),
        int(previous[1]) if previous else None,
    )  # fmt: skip


def _sxid(match: re.Match[str], stamp: KernelStamp, source: Source) -> Sxid:
    message = match[4].strip()
    link = _SXID_LINK.search(message)
    lower = message.lower()
    fatal = False if lower.startswith(("non-fatal", "nonfatal")) else True if lower.startswith("fatal") else None
    return Sxid(
        int(match[3]), match[1], match[2].lower(), message, stamp, source, fatal, int(link[1]) if link else None
    )


def _pcie(text: str, stamp: KernelStamp, source: Source) -> KernelFact | None:
    if (root := _AER_ROOT.search(text)) is not None:
        return PcieError(root[2].rstrip(":"), root[1].strip(), text.strip(), stamp, source)
    if (match := _AER.search(text)) is not None:
        severity = (match[3] or "").strip()
        if severity or match[4]:
            return PcieError(match[2], severity, (match[5] or "").strip(), stamp, source, match[1] or "")
    return None


def _out_of_memory(text: str, stamp: KernelStamp, source: Source) -> OutOfMemoryKill | None:
    if (match := _OOM_KILLED.search(text)) is not None:
        sizes = [int(size) for size in _RSS.findall(match[4])]
        return OutOfMemoryKill(
            int(match[2]), match[3], match[1].startswith("Memory cgroup"), stamp, source,
            sum(sizes) * 1024 if sizes else None,
        )  # fmt: skip
    if (match := _OOM_SUMMARY.search(text)) is not None:
        path = _OOM_MEMCG.search(text)
        return OutOfMemoryKill(
            int(match[3]), match[2], match[1] == "CONSTRAINT_MEMCG", stamp, source, None, path[1] if path else ""
        )
    return None


def _link(text: str, stamp: KernelStamp, source: Source) -> LinkChange | None:
    if (match := _READY.search(text)) is not None:
        return LinkChange(match[1], match[2] == "becomes ready", stamp, source)
    if (match := _LINK.search(text)) is not None:
        return LinkChange(match[3], match[4].lower() == "up", stamp, source, match[1] or "", match[2] or "")
    if (match := _CARRIER.search(text)) is not None:
        return LinkChange(match[1], match[2].lower() == "gained", stamp, source)
    if (match := _BOND.search(text)) is not None:
        return LinkChange(match[2] or match[1], match[3] == "up", stamp, source)
    return None
