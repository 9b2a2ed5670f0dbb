"""``rocm-smi --showtopo``: weight, hops, link type and NUMA node of the AMD GPUs of one node."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from atoll.errors import SpecError
from atoll.readers.source import Source
from atoll.readers.text_stream import Line, text_lines


class RocmLink(msgspec.Struct, frozen=True):
    """What lies between two different GPUs. A figure that was not printed is ``None``, ``link_type`` then empty.

    ``link_type`` is ``XGMI`` or ``PCIE`` as printed; ``weight`` is relative (15 for each xGMI hop);
    ``bandwidth_min/max_bytes_per_s`` come from ``--shownodesbw``, 0 for GPUs that are not joined directly.
    """

    gpu_a: int
    gpu_b: int
    source: Source
    link_type: str = ""
    weight: int | None = None
    hops: int | None = None
    accessible: bool | None = None
    bandwidth_min_bytes_per_s: float | None = None
    bandwidth_max_bytes_per_s: float | None = None


class RocmGpu(msgspec.Struct, frozen=True):
    """One GPU: its NUMA node and NUMA affinity, ``None`` where not printed."""

    index: int
    source: Source
    numa_node: int | None = None
    numa_affinity: int | None = None


class RocmTopology(msgspec.Struct, frozen=True):
    """All links (ordered pairs, both directions) and GPUs of one node."""

    gpus: tuple[RocmGpu, ...]
    links: tuple[RocmLink, ...]
    source: Source


MAX_GPUS: Final = 256

_BANNER: Final = re.compile(r"\s*={3,}\s*(.+?)\s*={3,}\s*")
_MAX_BANNER: Final = 400
_NUMA: Final = re.compile(r"\s*GPU ?\[?(\d{1,4})\]?\s*:\s*\(Topology\) Numa (Node|Affinity):\s*(-?\d{1,6}|N/A)\s*")
_GPU: Final = re.compile(r"GPU(\d{1,4})")
_RANGE: Final = re.compile(r"(\d{1,9})-(\d{1,9})")
_JSON_PAIR: Final = re.compile(r"\(Topology\) (Weight|Hops|Link type) between DRM devices (\d{1,4}) and (\d{1,4})")

# The words of a section's banner that say what its matrix holds.
_SECTIONS: Final = {
    "weight between": "weight",
    "hops between": "hops",
    "link type between": "link_type",
    "link accessibility": "accessible",
    "bandwidth between": "bandwidth",
    "bandwidth": "bandwidth",
}


def read_rocm_topology(text: str | bytes, file: str) -> RocmTopology:
    """The tables of ``rocm-smi --showtopo`` (also ``--showtopoaccess``, ``--shownodesbw``), as text or as ``--json``.

    Raises ``SpecError`` with file and line where there is no such table, or one is cut or holds no figure.
    """
    stripped = text.lstrip()
    if stripped[:1] in ("{", b"{"):
        return _from_json(text, file)
    reading = _Reading(file)
    for line in text_lines(text):
        reading.feed(line)
    return reading.finish()


class _Reading:
    """The section being read, and per ordered pair and GPU what was found."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.section = ""
        self.columns: list[int] = []
        self.links: dict[tuple[int, int], dict[str, Any]] = {}
        self.sources: dict[tuple[int, int], Source] = {}
        self.gpus: dict[int, RocmGpu] = {}
        self.first: Source | None = None
        self.rows: set[int] = set()
        self.header: Line | None = None

    def feed(self, line: Line) -> None:
        banner = _BANNER.fullmatch(line.text) if len(line.text) < _MAX_BANNER else None
        if banner is not None:
            self.close()
            title = banner[1].lower()
            self.section = next((name for words, name in _SECTIONS.items() if words in title), "")
            return
        numa = _NUMA.fullmatch(line.text)
        if numa is not None:
            self._numa(int(numa[1]), numa[2], numa[3], line)
            return
        if not self.section:
            return
        tokens = line.text.split()
        if not tokens or not (gpu := _GPU.fullmatch(tokens[0])):
            return
        if all(_GPU.fullmatch(token) for token in tokens) and (len(tokens) > 1 or not self.columns):
            self.close()
            self.columns = [int(token[3:]) for token in tokens]
            self.header = line
            if len(set(self.columns)) != len(self.columns) or len(self.columns) > MAX_GPUS:
                raise SpecError(f"{self.file}:{line.number}: expected at most {MAX_GPUS} different GPUs in a header")
        elif self.columns:
            self._row(int(gpu[1]), tokens[1:], line)

    def close(self) -> None:
        """A section ends: every GPU of its header must have had its row."""
        missing = [index for index in self.columns if index not in self.rows]
        if self.header is not None and missing:
            raise SpecError(
                f"{self.file}:{self.header.number}: the row of GPU{missing[0]} is missing: {len(self.rows)} of "
                f"{len(self.columns)} rows. Paste the whole output of 'rocm-smi --showtopo'"
            )
        self.columns, self.rows, self.header = [], set(), None

    def _row(self, index: int, cells: list[str], line: Line) -> None:
        if index not in self.columns or index in self.rows or len(cells) != len(self.columns):
            raise SpecError(
                f"{self.file}:{line.number}: row GPU{index} of {self.section}: expected one row of "
                f"{len(self.columns)} cells for each GPU of the header, got {len(cells)} cells"
            )
        self.rows.add(index)
        self.first = self.first or line.source(self.file)
        for other, cell in zip(self.columns, cells, strict=True):
            self._gpu(other, line)
            if other != index:
                self._cell(index, other, self.section, cell, line.source(self.file), line.number)

    def _gpu(self, index: int, line: Line) -> None:
        self.gpus.setdefault(index, RocmGpu(index, line.source(self.file)))

    def _cell(self, a: int, b: int, section: str, cell: str, source: Source, number: int) -> None:
        found = self.links.setdefault((a, b), {})
        self.sources[a, b] = source if section == "link_type" else self.sources.get((a, b), source)
        if section == "link_type":
            found["link_type"] = "" if cell in ("N/A", "UNKNOWN") else cell.upper()
        elif section == "accessible":
            found["accessible"] = cell.lower() == "true"
        elif section == "bandwidth":
            if match := _RANGE.fullmatch(cell):
                # rocm-smi prints megabytes a second and calls them mps.
                found["bandwidth_min_bytes_per_s"] = int(match[1]) * 1e6
                found["bandwidth_max_bytes_per_s"] = int(match[2]) * 1e6
        elif cell.isdigit() and len(cell) < 10:
            found[section] = int(cell)
        elif cell != "N/A":
            raise SpecError(
                f"{self.file}:{number}: {section} of GPU{a} to GPU{b}: expected a number, got {cell[:40]!r}"
            )

    def _numa(self, index: int, what: str, value: str, line: Line) -> None:
        self._gpu(index, line)
        self.first = self.first or line.source(self.file)
        number = None if value == "N/A" else int(value)
        field = "numa_node" if what == "Node" else "numa_affinity"
        self.gpus[index] = msgspec.structs.replace(self.gpus[index], source=line.source(self.file), **{field: number})

    def finish(self) -> RocmTopology:
        self.close()
        if self.first is None:
            raise SpecError(f"{self.file}: no ROCm topology: expected the output of 'rocm-smi --showtopo'")
        links = tuple(RocmLink(a, b, self.sources[a, b], **found) for (a, b), found in sorted(self.links.items()))
        return RocmTopology(tuple(self.gpus[index] for index in sorted(self.gpus)), links, self.first)


def _from_json(text: str | bytes, file: str) -> RocmTopology:
    try:
        document = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{file}: no JSON of 'rocm-smi --showtopo --json': {error}") from error
    reading = _Reading(file)
    reading.first = source = Source(file, 0)
    sections = {"Weight": "weight", "Hops": "hops", "Link type": "link_type"}
    for owner, values in document.items():
        for key, value in values.items():
            pair = _JSON_PAIR.fullmatch(key)
            if pair is not None:
                a, b = int(pair[2]), int(pair[3])
                for x, y in ((a, b), (b, a)):
                    reading.gpus.setdefault(x, RocmGpu(x, source))
                    reading._cell(x, y, sections[pair[1]], str(value), source, 0)
            elif owner.startswith("card") and owner[4:].isdigit() and len(owner) < 9 and "Numa" in key:
                index = int(owner[4:])
                gpu = reading.gpus.setdefault(index, RocmGpu(index, source))
                field = "numa_node" if key.endswith("Node") else "numa_affinity"
                number = int(value) if str(value).lstrip("-").isdigit() and len(str(value)) < 8 else None
                reading.gpus[index] = msgspec.structs.replace(gpu, **{field: number})
    if not reading.gpus:
        raise SpecError(f"{file}: JSON without a '(Topology)' entry: expected 'rocm-smi --showtopo --json'")
    return reading.finish()
