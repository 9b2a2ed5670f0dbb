"""Pairwise results: the busbw of every pair of nodes, from a CSV or from a set of nccl-tests runs of two hosts each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from atoll.errors import SpecError
from atoll.readers.collective_names import collective_name
from atoll.readers.nccl_tests import NcclTestRun
from atoll.readers.source import Source
from atoll.readers.text_stream import Line, text_lines


class PairResult(msgspec.Struct, frozen=True):
    """Two hosts measured together. A bandwidth that was not reached is ``None`` and ``error`` then says why, if known.

    Bandwidths are busbw per direction; ``gpus_per_node`` and ``collective`` where given. Host order is as written.
    """

    host_a: str
    host_b: str
    source: Source
    gpus_per_node: int | None = None
    average_busbw_bytes_per_s: float | None = None
    max_busbw_bytes_per_s: float | None = None
    collective: str = ""
    error: str = ""


MAX_ROWS: Final = 1_000_000

_COLUMNS: Final = {
    "host_a": ("node_a", "host_a", "src", "source", "node1", "host1", "a", "from"),
    "host_b": ("node_b", "host_b", "dst", "dest", "destination", "node2", "host2", "b", "to", "peer"),
    "gpus": ("gpus_per_node", "gpus", "ngpus", "g", "ppn"),
    "average": ("avg_busbw", "average_busbw", "busbw", "bus_bw", "busbw_gbps", "avg_busbw_gbps", "bandwidth"),
    "max": ("max_busbw", "peak_busbw", "max_busbw_gbps"),
    "collective": ("collective", "op", "operation", "test"),
    "error": ("first_error_line", "error", "errors", "status"),
}
"""Column names by what they hold; figures are in GB/s (1e9 bytes a second), as nccl-tests prints them."""


def read_pairwise_csv(text: str | bytes, file: str) -> tuple[PairResult, ...]:
    """One result a line, after a line that names the columns (comma, semicolon or tab).

    Needs two host columns and one of busbw. Raises ``SpecError`` with file and line for a missing column or no number.
    """
    results: list[PairResult] = []
    at: dict[str, int] = {}
    delimiter = ","
    width = 0
    for line in text_lines(text):
        if not line.text.strip() or line.text.lstrip().startswith("#"):
            continue
        if not at:
            delimiter = next((mark for mark in ",;\t" if mark in line.text), ",")
            names = [name.strip().lower().replace(" ", "_") for name in line.text.split(delimiter)]
            at = {what: names.index(name) for what, known in _COLUMNS.items() for name in known if name in names}
            missing = [what for what in ("host_a", "host_b") if what not in at]
            if missing or not {"average", "max"} & at.keys():
                raise SpecError(
                    f"{file}:{line.number}: pairwise results need columns node_a, node_b and avg_busbw or max_busbw, "
                    f"got {', '.join(names)[:200]}"
                )
            width = len(names)
            continue
        # The last column may be an error message with the delimiter in it.
        fields = [field.strip() for field in line.text.split(delimiter, width - 1)]
        if len(fields) <= max(at["host_a"], at["host_b"]) or not fields[at["host_a"]] or not fields[at["host_b"]]:
            raise SpecError(f"{file}:{line.number}: expected {width} columns with two hosts, got {len(fields)}")
        if len(results) >= MAX_ROWS:
            raise SpecError(f"{file}:{line.number}: more than {MAX_ROWS} results")

        found = {what: fields[index] for what, index in at.items() if index < len(fields)}
        gpus = _figure(found.get("gpus", ""), "gpus_per_node", line, file)
        collective = found.get("collective", "").removesuffix("_perf").lower()
        results.append(
            PairResult(
                fields[at["host_a"]], fields[at["host_b"]], line.source(file), None if gpus is None else int(gpus),
                _scaled(_figure(found.get("average", ""), "avg_busbw", line, file)),
                _scaled(_figure(found.get("max", ""), "max_busbw", line, file)),
                collective_name(collective), found.get("error", ""),
            )
        )  # fmt: skip
    if not at:
        raise SpecError(f"{file}: empty: expected a line with the columns node_a, node_b, avg_busbw")
    return tuple(results)


def pair_results(runs: Iterable[NcclTestRun]) -> tuple[PairResult, ...]:
    """Each run over exactly two hosts as one result; other runs are left out."""
    results = []
    for run in runs:
        hosts = run.hosts
        if len(hosts) != 2:
            continue
        here = [sum(1 for rank in run.ranks if rank.host == host) for host in hosts]
        busbw = [
            half.busbw_bytes_per_s
            for row in run.rows
            for half in (row.out_of_place, row.in_place)
            if half is not None and half.busbw_bytes_per_s is not None
        ]
        error = f"{run.failures[0].host}: {run.failures[0].message}" if run.failures else ""
        average = run.average_busbw_bytes_per_s
        if average is None and busbw and not run.failures:
            average = sum(busbw) / len(busbw)
        results.append(
            PairResult(
                hosts[0], hosts[1], run.failures[0].source if run.failures else run.source,
                here[0] if here[0] == here[1] else None, average, max(busbw, default=None), run.collective, error,
            )
        )  # fmt: skip
    return tuple(results)


def _figure(text: str, what: str, line: Line, file: str) -> float | None:
    if text in ("", "-", "N/A", "nan", "None"):
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise SpecError(f"{file}:{line.number}: {what}: expected a number, got {text[:40]!r}")
    return value


def _scaled(figure: float | None) -> float | None:
    return None if figure is None else figure * 1e9
