"""The kernel's log (dmesg, ``/dev/kmsg``, journal, syslog): Xid, SXid, AER, memory kills, links, RDMA, driver.

``time`` is as printed; ``time_s`` is seconds since boot where the form gives them (``[ 38.1]``, kmsg); ``host`` where a
syslog prefix names it.
"""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


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
