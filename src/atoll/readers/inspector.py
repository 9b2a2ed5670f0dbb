"""NCCL Inspector: one JSON object per finished collective and rank (``NCCL_INSPECTOR_ENABLE=1``), or its Prometheus
file.
"""

from __future__ import annotations

import json
import re
from typing import Final

import msgspec

from atoll.errors import SpecError
from atoll.readers.collective_names import collective_name
from atoll.readers.source import MAX_TEXT, Source
from atoll.readers.text_stream import Line, text_lines


class InspectedCollective(msgspec.Struct, frozen=True):
    """One collective as one rank saw it. ``sequence`` counts within communicator ``communicator`` (its id, in hex
    text).

    ``timing_source`` is ``kernel_gpu``, ``kernel_cpu`` or ``collective_cpu``; empty in format versions without it.
    """

    communicator: str
    rank: int
    world_size: int
    num_nodes: int | None
    collective: str
    sequence: int | None
    size_bytes: int
    time_s: float
    source: Source
    algbw_bytes_per_s: float | None = None
    busbw_bytes_per_s: float | None = None
    timing_source: str = ""
    host: str = ""
    pid: int | None = None
    timestamp_s: float | None = None
    format_version: str = ""


MAX_DOCUMENT: Final = 64 << 20

_SAMPLE: Final = re.compile(
    r"(nccl_(?:bus_bandwidth_gbs|algorithm_bandwidth_gbs|collective_exec_time_microseconds))\{"
    r"(.{0,2000})\}\s+(\S{1,40})"
)
_LABEL: Final = re.compile(r'(\w{1,40})="([^"]{0,300})"')
_SIZE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([KMGT]?)i?B")
_SIZE_STEPS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class InspectorReader:
    """A line-oriented reader of JSON lines; ``collectives`` is what it has found, ``num_unreadable`` counts the rest.

    A line that is cut (the program was killed while writing) is counted, not an error.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.num_unreadable = 0
        self._collectives: list[InspectedCollective] = []
        self._decode = msgspec.json.Decoder(_Record).decode

    @property
    def collectives(self) -> tuple[InspectedCollective, ...]:
        return tuple(self._collectives)

    def feed(self, line: Line) -> None:
        text = line.text
        if "coll_perf" not in text:
            return
        try:
            self._collectives.append(_collective(self._decode(text), line.source(self.file)))
        except (msgspec.DecodeError, UnicodeEncodeError, OverflowError, ValueError):
            self.num_unreadable += 1


def read_inspector(text: str | bytes, file: str) -> tuple[InspectedCollective, ...]:
    """Every collective in ``text``: JSON lines, JSON over several lines, an array, or Prometheus samples.

    Raises ``SpecError`` where there is none.
    """
    reader = InspectorReader(file)
    samples: dict[str, dict[str, float]] = {}
    sources: dict[str, Source] = {}
    for line in text_lines(text):
        reader.feed(line)
        if "nccl_" in line.text and (sample := _SAMPLE.match(line.text)) is not None and len(samples) < 1_000_000:
            try:
                samples.setdefault(sample[2], {})[sample[1]] = float(sample[3])
            except ValueError:
                continue
            sources.setdefault(sample[2], line.source(file))
    found = list(reader.collectives)
    if not found and not samples and len(text) <= MAX_DOCUMENT:
        found = _documents(text, file)
    found.extend(
        collective
        for labels, values in samples.items()
        if (collective := _of_sample(dict(_LABEL.findall(labels)), values, sources[labels])) is not None
    )
    if not found:
        raise SpecError(f"{file}: no record of NCCL Inspector: expected JSON objects with 'header' and 'coll_perf'")
    return tuple(found)


class _Header(msgspec.Struct):
    id: str | int = ""
    rank: int = -1
    n_ranks: int = 0
    nnodes: int | None = None


class _Metadata(msgspec.Struct):
    inspector_output_format_version: str = ""
    dump_timestamp_us: float | None = None
    hostname: str = ""
    pid: int | None = None


class _Performance(msgspec.Struct):
    coll: str
    coll_msg_size_bytes: int
    coll_exec_time_us: float
    coll_sn: int | None = None
    coll_timing_source: str = ""
    coll_algobw_gbs: float | None = None
    coll_busbw_gbs: float | None = None


class _Record(msgspec.Struct):
    header: _Header
    coll_perf: _Performance
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


def _collective(record: _Record, source: Source) -> InspectedCollective:
    header, metadata, perf = record.header, record.metadata, record.coll_perf
    return InspectedCollective(
        str(header.id)[:80], header.rank, header.n_ranks, header.nnodes, collective_name(perf.coll), perf.coll_sn,
        perf.coll_msg_size_bytes, perf.coll_exec_time_us / 1e6, source,
        None if perf.coll_algobw_gbs is None else perf.coll_algobw_gbs * 1e9,
        None if perf.coll_busbw_gbs is None else perf.coll_busbw_gbs * 1e9,
        perf.coll_timing_source, metadata.hostname, metadata.pid,
        None if metadata.dump_timestamp_us is None else metadata.dump_timestamp_us / 1e6,
        metadata.inspector_output_format_version,
    )  # fmt: skip


def _documents(text: str | bytes, file: str) -> list[InspectedCollective]:
    """Objects that are written over several lines, one behind the other or as an array."""
    data = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    decoder = json.JSONDecoder()
    found: list[InspectedCollective] = []
    at = data.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(data, at)
            record = msgspec.convert(value, _Record)
        except (ValueError, RecursionError):
            # What cannot be read ends the search: skipping on byte by byte would be quadratic.
            break
        line = data.count("\n", 0, at) + 1 if len(found) < 1000 else 0
        found.append(_collective(record, Source(file, line, data[at : min(end, at + MAX_TEXT)])))
        at = data.find("{", end)
    return found


def _of_sample(labels: dict[str, str], values: dict[str, float], source: Source) -> InspectedCollective | None:
    """A collective of the labels of Prometheus samples, whose size is a text as ``2.00GB`` (binary)."""
    size = _SIZE.fullmatch(labels.get("message_size", ""))
    time_us = values.get("nccl_collective_exec_time_microseconds")
    rank, world = labels.get("rank", ""), labels.get("n_ranks", "")
    if size is None or time_us is None or not rank.isdigit() or not world.isdigit() or len(rank + world) > 16:
        return None
    algbw = values.get("nccl_algorithm_bandwidth_gbs")
    busbw = values.get("nccl_bus_bandwidth_gbs")
    number = labels.get("coll_sn", "")
    nodes = labels.get("n_nodes", "")
    return InspectedCollective(
        labels.get("comm_id", ""), int(rank), int(world), int(nodes) if nodes.isdigit() and len(nodes) < 9 else None,
        collective_name(labels.get("collective", "")), int(number) if number.isdigit() and len(number) < 19 else None,
        int(float(size[1]) * 1024 ** _SIZE_STEPS[size[2]]), time_us / 1e6, source,
        None if algbw is None else algbw * 1e9, None if busbw is None else busbw * 1e9,
        labels.get("coll_timing_source", ""), labels.get("hostname", ""), None, None, "prometheus",
    )  # fmt: skip
