"""NCCL topology XML (``NCCL_TOPO_FILE``, ``NCCL_TOPO_DUMP_FILE``; NVIDIA, AWS, Azure, RCCL) as a tree of typed nodes.

Vocabulary. ``system`` holds ``cpu`` (a NUMA node), which holds ``pci`` (bridges and functions, nested), which hold
``gpu`` (with ``nvlink`` / ``xgmi`` / ``c2c`` children, each aimed at a bus id) or ``nic`` with ``net`` ports. Vendor
files often name only ``pci`` functions; there a GPU is known by its class code (0x03....), a NIC by 0x02.....
"""

from __future__ import annotations

import re
from typing import Any, Final
from xml.parsers import expat

import msgspec

from atoll.errors import SpecError
from atoll.readers.source import MAX_TEXT, Source


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


MAX_BYTES: Final = 16 << 20
MAX_DEPTH: Final = 64
MAX_ELEMENTS: Final = 100_000
MAX_LINKS: Final = 1024

_SPEED: Final = re.compile(r"\s*(\d{1,4}(?:\.\d{1,3})?)\s*GT/s.*")
_BUS_ID: Final = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?")
_LINK_KINDS: Final = ("nvlink", "xgmi", "c2c")
_DISPLAY: Final = 0x03
_NETWORK: Final = 0x02
_ACCELERATOR: Final = 0x12
_OTHER_ROOTS: Final = {
    "graphs": "NCCL's chosen rings and trees (NCCL_GRAPH_DUMP_FILE), not a topology; use NCCL_TOPO_DUMP_FILE",
    "algo": "an MSCCL schedule, not a topology",
    "nvidia_smi_log": "nvidia-smi -x output, not a topology",
}


def read_topology_xml(text: str | bytes, file: str) -> XmlTopology:
    """The topology in ``text``.

    Raises ``SpecError`` with file and line where it is no well-formed XML, has another root than ``system``, has a
    DOCTYPE or entities, is deeper than ``MAX_DEPTH``, larger than ``MAX_BYTES`` or ``MAX_ELEMENTS``, or where an
    attribute that must be a number is none.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > MAX_BYTES:
        raise SpecError(f"{file}: {len(data)} bytes of XML; a topology has at most {MAX_BYTES}")
    reading = _Reading(file, data)
    parser = expat.ParserCreate()
    parser.StartElementHandler = reading.start
    parser.EndElementHandler = reading.end
    parser.StartDoctypeDeclHandler = reading.refuse_doctype
    parser.EntityDeclHandler = reading.refuse_doctype
    parser.buffer_text = False
    reading.parser = parser
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise SpecError(f"{file}:{error.lineno}: not well-formed XML: {expat.ErrorString(error.code)}") from error
    except (ValueError, LookupError, UnicodeError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{file}:{parser.CurrentLineNumber}: not readable as XML: {error}") from error
    return reading.finish()


class _Element(msgspec.Struct):
    """An open element: its name, attributes and line, and the GPU's links found inside it."""

    name: str
    attributes: dict[str, str]
    source: Source
    links: list[XmlLink]
    has_function: bool = False


class _Reading:
    def __init__(self, file: str, data: bytes) -> None:
        self.file = file
        self.lines = data.split(b"\n")
        self.parser: Any = None
        self.open: list[_Element] = []
        self.elements = 0
        self.version = ""
        self.cpus: list[XmlCpu] = []
        self.pcis: list[XmlPci] = []
        self.gpus: list[XmlGpu] = []
        self.nets: list[XmlNet] = []
        self.first: Source | None = None

    def refuse_doctype(self, *_: object) -> None:
        raise SpecError(
            f"{self.file}:{self.parser.CurrentLineNumber}: a DOCTYPE or entity; no topology has one, refused"
        )

    def start(self, name: str, attributes: dict[str, str]) -> None:
        number = self.parser.CurrentLineNumber
        raw = self.lines[number - 1] if number <= len(self.lines) else b""
        source = Source(self.file, number, raw.decode("utf-8", "backslashreplace").strip()[:MAX_TEXT])
        self.elements += 1
        if self.elements > MAX_ELEMENTS or len(self.open) >= MAX_DEPTH:
            raise SpecError(
                f"{self.file}:{number}: more than {MAX_ELEMENTS} elements or deeper than {MAX_DEPTH}; refused"
            )
        if not self.open:
            if name != "system":
                other = _OTHER_ROOTS.get(name, "not NCCL topology XML")
                raise SpecError(f"{self.file}:{number}: expected the root element <system>, got <{name[:40]}>: {other}")
            self.version = attributes.get("version", "")[:40]
            self.first = source
        element = _Element(name, attributes, source, [])
        if name == "cpu":
            self._cpu(element)
        elif name == "pci":
            self._pci(element)
        elif name in _LINK_KINDS:
            self._link(element)
        elif name == "net":
            self._net(element)
        self.open.append(element)

    def end(self, name: str) -> None:
        element = self.open.pop()
        if name == "gpu":
            self._gpu(element)
        elif name == "pci":
            self._bare_function(element)

    def _numa(self) -> int | None:
        for element in reversed(self.open):
            if element.name == "cpu":
                return _integer(element, "numaid")
        return None

    def _function(self) -> _Element | None:
        """The innermost enclosing PCI element."""
        return next((element for element in reversed(self.open) if element.name == "pci"), None)

    def _cpu(self, element: _Element) -> None:
        get = element.attributes.get
        self.cpus.append(
            XmlCpu(
                _integer(element, "numaid"), element.source, get("arch", ""), get("vendor", ""),
                get("affinity", ""), _integer(element, "familyid"),
                _integer(element, "modelid"), get("host_hash", ""),
            )
        )  # fmt: skip

    def _pci(self, element: _Element) -> None:
        bus_id = element.attributes.get("busid", "").lower()
        if not _BUS_ID.fullmatch(bus_id):
            raise SpecError(f"{element.source}: <pci> needs busid='domain:bus:device.function', got {bus_id[:40]!r}")
        parent = self._function()
        speed = element.attributes.get("link_speed", "")
        rate = _SPEED.fullmatch(speed)
        if parent is not None:
            parent.has_function = True
        self.pcis.append(
            XmlPci(
                bus_id, _integer(element, "class"), element.source,
                parent.attributes.get("busid", "").lower() if parent else "", self._numa(),
                float(rate[1]) if rate else None, _integer(element, "link_width"),
                element.attributes.get("vendor", ""), element.attributes.get("device", ""),
            )
        )  # fmt: skip

    def _link(self, element: _Element) -> None:
        gpu = next((open_ for open_ in reversed(self.open) if open_.name == "gpu"), None)
        if gpu is None:
            raise SpecError(f"{element.source}: <{element.name}> outside a <gpu>")
        count = _integer(element, "count")
        bandwidth = element.attributes.get("bw")
        target = element.attributes.get("target", "").lower()
        if element.name != "c2c" and not target:
            raise SpecError(f"{element.source}: <{element.name}> without a target bus id")
        if count is not None and not 0 <= count <= MAX_LINKS:
            raise SpecError(f"{element.source}: count {count}; expected 0 to {MAX_LINKS} links")
        gpu.links.append(
            XmlLink(
                element.name, target, 1 if count is None else count, element.source,
                _integer(element, "tclass"),
                None if bandwidth is None else _number(element, "bw"),
            )
        )  # fmt: skip

    def _net(self, element: _Element) -> None:
        function = self._function()
        if function is not None:
            function.has_function = True
        get = element.attributes.get
        speed = _number(element, "speed")
        latency = _number(element, "latency")
        self.nets.append(
            XmlNet(
                function.attributes.get("busid", "").lower() if function else "", element.source, get("name", ""),
                _integer(element, "dev"), _integer(element, "port"),
                # NCCL writes Mbit/s and microseconds.
                None if speed is None else speed * 1e6 / 8, None if latency is None else latency / 1e6,
                get("guid", ""), _integer(element, "maxconn"), _flag(element, "gdr"),
                _flag(element, "coll"), self._numa(),
            )
        )  # fmt: skip

    def _gpu(self, element: _Element) -> None:
        function = self._function()
        if function is None:
            raise SpecError(f"{element.source}: <gpu> outside a <pci>")
        function.has_function = True
        self.gpus.append(
            XmlGpu(
                function.attributes.get("busid", "").lower(), element.source, _integer(element, "dev"),
                _integer(element, "rank"), _integer(element, "sm"),
                element.attributes.get("gcn", ""), _flag(element, "gdr"), self._numa(),
                tuple(element.links),
            )
        )  # fmt: skip

    def _bare_function(self, element: _Element) -> None:
        """A PCI function without children: a vendor's file leaves it to NCCL to find out what it is."""
        device_class = _integer(element, "class")
        if element.has_function or device_class is None:
            return
        base = device_class >> 16
        bus_id = element.attributes["busid"].lower()
        if base in (_DISPLAY, _ACCELERATOR):
            self.gpus.append(XmlGpu(bus_id, element.source, numa_id=self._numa(), declared=False))
        elif base == _NETWORK:
            self.nets.append(XmlNet(bus_id, element.source, numa_id=self._numa(), declared=False))

    def finish(self) -> XmlTopology:
        if self.first is None:
            raise SpecError(f"{self.file}: empty: expected the root element <system>")
        return XmlTopology(
            self.version, tuple(self.cpus), tuple(self.pcis), tuple(self.gpus), tuple(self.nets), self.first
        )


def _integer(element: _Element, name: str) -> int | None:
    """A whole number, decimal or 0x..., of at most 64 bits; ``None`` where the attribute is absent or empty."""
    text = element.attributes.get(name, "").strip()
    if not text:
        return None
    try:
        value = int(text, 16) if text.lower().startswith("0x") else int(text)
        if abs(value) < 1 << 64 and len(text) < 32:
            return value
    except ValueError:
        pass
    raise SpecError(f"{element.source}: {name} of <{element.name}>: expected a whole number, got {text[:40]!r}")


def _number(element: _Element, name: str) -> float | None:
    text = element.attributes.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
        if 0 <= value < 1e15:
            return value
    except ValueError:
        pass
    raise SpecError(f"{element.source}: {name} of <{element.name}>: expected a number, got {text[:40]!r}")


def _flag(element: _Element, name: str) -> bool | None:
    value = _integer(element, name)
    return None if value is None else value != 0
