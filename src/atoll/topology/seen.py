"""What was seen of one node, whatever the file: the common form that lints, comparisons and imports work on.

``seen_matrix``, ``seen_xml`` and ``seen_rocm`` fill it from what the readers hand out. Devices are named as in a node
type (``gpu0``, ``nic3``, ``pcie1``, ``cpu0``); ``label`` is what the file calls them. ``parent`` is the device above on
PCIe. What a file does not say is ``None`` or empty, and neither lints nor comparisons make anything of it.
"""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source

SWITCH = "nvswitch0"
"""The target of links that lead to NVSwitches, all chips of an island together."""


class PciRate(msgspec.Struct, frozen=True):
    """An upstream PCIe link as stated."""

    gt_per_s: float
    width: int

    @property
    def product(self) -> float:
        return self.gt_per_s * self.width

    def __str__(self) -> str:
        return f"{self.gt_per_s:g} GT/s x{self.width}"


class SeenLinks(msgspec.Struct, frozen=True):
    """``count`` links of ``kind`` (``nvlink``, ``xgmi``, ``c2c``) from one GPU to ``target``: a GPU, ``SWITCH``, a CPU,
    or the bus id of something that is not in the file. ``to_gpu``: the far end says that it is a GPU."""

    kind: str
    target: str
    count: int
    source: Source
    to_gpu: bool = True
    bytes_per_s: float | None = None


class SeenGpu(msgspec.Struct, frozen=True):
    name: str
    label: str
    source: Source
    parent: str = ""
    pci: PciRate | None = None
    links: tuple[SeenLinks, ...] = ()
    sm: int | None = None
    architecture: str = ""

    def count_to(self, target: str) -> int:
        return sum(link.count for link in self.links if link.target == target)

    @property
    def island_links(self) -> int:
        """NVLinks or xGMI links, all targets together."""
        return sum(link.count for link in self.links if link.kind != "c2c")


class SeenNic(msgspec.Struct, frozen=True):
    name: str
    label: str
    source: Source
    parent: str = ""
    pci: PciRate | None = None
    bytes_per_s: float | None = None
    latency_s: float | None = None


class SeenBridge(msgspec.Struct, frozen=True):
    """A PCIe switch or bridge."""

    name: str
    source: Source
    parent: str = ""
    pci: PciRate | None = None


class SeenCpu(msgspec.Struct, frozen=True):
    """A NUMA node."""

    name: str
    source: Source
    vendor: str = ""
    architecture: str = ""
    model: int | None = None


class Repeated(msgspec.Struct, frozen=True):
    """Something that should be unique and is not: ``what`` (``bus id``), its value, and whose it is."""

    what: str
    value: str
    labels: tuple[str, ...]
    sources: tuple[Source, ...]


class Contradiction(msgspec.Struct, frozen=True):
    """A matrix that says one thing from ``a`` to ``b`` and another back."""

    a: str
    b: str
    there: str
    back: str
    sources: tuple[Source, ...]


class UnevenPair(msgspec.Struct, frozen=True):
    """Two GPUs of a switched board with fewer links to each other (``count``) than either has to its switches."""

    a: str
    b: str
    count: int
    usual: int
    sources: tuple[Source, ...]


class SeenNode(msgspec.Struct, frozen=True):
    """One node. ``format`` is what the file was (``topo -m``, ``NCCL XML``, ``rocm-smi``), ``host`` the name where
    known, ``notes`` what was left out or assumed in reading it."""

    format: str
    source: Source
    gpus: tuple[SeenGpu, ...]
    nics: tuple[SeenNic, ...] = ()
    bridges: tuple[SeenBridge, ...] = ()
    cpus: tuple[SeenCpu, ...] = ()
    host: str = ""
    repeated: tuple[Repeated, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    uneven: tuple[UnevenPair, ...] = ()
    notes: tuple[str, ...] = ()

    def gpu(self, name: str) -> SeenGpu | None:
        return next((gpu for gpu in self.gpus if gpu.name == name), None)

    @property
    def title(self) -> str:
        return self.host or self.source.file
