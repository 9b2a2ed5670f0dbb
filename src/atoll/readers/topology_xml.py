"""NCCL topology XML (``NCCL_TOPO_FILE``, ``NCCL_TOPO_DUMP_FILE``; NVIDIA, AWS, Azure, RCCL) as a tree of typed nodes.

Vocabulary. ``system`` holds ``cpu`` (a NUMA node), which holds ``pci`` (bridges and functions, nested), which hold
``gpu`` (with ``nvlink`` / ``xgmi`` / ``c2c`` children, each aimed at a bus id) or ``nic`` with ``net`` ports. Vendor
files often name only ``pci`` functions; there a GPU is known by its class code (0x03....), a NIC by 0x02.....
"""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


class XmlLink(msgspec.Struct, frozen=True):
    """``count`` links of ``kind`` (``nvlink``, ``xgmi``, ``c2c``) from the GPU that holds it to bus id ``target``.

    ``target_class`` is the class code of the far end: 0x03.... a GPU, 0x068000 an NVSwitch, 0x060400 a bridge.
    """

    kind: str
    target: str
    count: int
    source: Source
    target_class: int | None = None
    bandwidth: float | None = None


class XmlGpu(msgspec.Struct, frozen=True):
    """A GPU; ``bus_id`` is its PCI function's. Fields that the file does not give are ``None``.

    ``sm`` is the compute capability (80, 90), ``gcn`` the AMD architecture as written, ``numa_id`` the enclosing cpu's.
    """

    bus_id: str
    source: Source
    dev: int | None = None
    rank: int | None = None
    sm: int | None = None
    gcn: str = ""
    gdr: bool | None = None
    numa_id: int | None = None
    links: tuple[XmlLink, ...] = ()
    declared: bool = True
    """False: no ``<gpu>`` element, known by the class code of its PCI function alone."""


class XmlNet(msgspec.Struct, frozen=True):
    """A network port; ``speed_bytes_per_s`` from the file's Mbit/s. A NIC known by class code alone has no name."""

    bus_id: str
    source: Source
    name: str = ""
    dev: int | None = None
    port: int | None = None
    speed_bytes_per_s: float | None = None
    latency_s: float | None = None
    guid: str = ""
    max_connections: int | None = None
    gdr: bool | None = None
    collnet: bool | None = None
    numa_id: int | None = None
    declared: bool = True


class XmlPci(msgspec.Struct, frozen=True):
    """A PCI bridge or function. ``link_gt_per_s`` and ``link_width`` are of its upstream link, ``None`` if not given.

    ``parent`` is the bus id of the bridge above it, empty directly below a cpu.
    """

    bus_id: str
    device_class: int | None
    source: Source
    parent: str = ""
    numa_id: int | None = None
    link_gt_per_s: float | None = None
    link_width: int | None = None
    vendor: str = ""
    device: str = ""


class XmlCpu(msgspec.Struct, frozen=True):
    """A NUMA node; ``host_hash`` tells the nodes of one multi-node (MNNVL) dump apart."""

    numa_id: int | None
    source: Source
    arch: str = ""
    vendor: str = ""
    affinity: str = ""
    family_id: int | None = None
    model_id: int | None = None
    host_hash: str = ""


class XmlTopology(msgspec.Struct, frozen=True):
    """One file, in document order."""

    version: str
    cpus: tuple[XmlCpu, ...]
    pcis: tuple[XmlPci, ...]
    gpus: tuple[XmlGpu, ...]
    nets: tuple[XmlNet, ...]
    source: Source
