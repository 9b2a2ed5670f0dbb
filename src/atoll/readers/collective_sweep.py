"""Sweeps of many systems in one CSV: a row is one size of one collective on one system.

Columns by name, in any order: ``system``, ``op_name`` (or ``collective``), ``num_gpus`` (or ``ranks``), ``bytes`` (or
``size_bytes``) and a time in microseconds, ``median`` (or ``time_us``, ``latency``); ``nccl_dtype``, ``lib`` and
``lib_version`` where there are such. Other columns are left alone. ``#`` begins a comment. This is the form of the
public NCCL sweeps of aiconfigurator, and that of the measurements beside ``benchmarks/accuracy.py``.

Rows of one system, library version, collective, type and number of ranks become one run; the system, the library and
the comment that precedes the header are its ``options``.
"""

from __future__ import annotations

import csv
from typing import Final

from atoll.errors import SpecError
from atoll.readers.collective_names import known_collective
from atoll.readers.nccl_tests import Measurement, NcclTestRow, NcclTestRun
from atoll.readers.source import Source
from atoll.readers.text_stream import text_lines

_NAMES: Final = {
    "system": ("system",), "collective": ("op_name", "collective"), "ranks": ("num_gpus", "ranks", "world_size"),
    "bytes": ("bytes", "size_bytes", "message_size"), "time": ("median", "time_us", "latency"),
}  # fmt: skip
_FURTHER: Final = {"dtype": ("nccl_dtype", "dtype"), "lib": ("lib",), "version": ("lib_version", "nccl_version")}
MAX_RANKS: Final = 10_000_000


def is_collective_sweep(head: bytes) -> bool:
    """Whether the first line that is no comment names the columns of such a file."""
    for line in head.decode("utf-8", "replace").splitlines():
        if line.strip() and not line.startswith("#"):
            return _columns(next(csv.reader([line]))) is not None
    return False


def read_collective_sweep(text: str | bytes, file: str) -> tuple[NcclTestRun, ...]:
    """The runs of ``text``, in the order of their first rows. Raises ``SpecError`` with file and line."""
    columns: dict[str, int] | None = None
    comments: list[str] = []
    rows: dict[tuple[str, ...], list[NcclTestRow]] = {}
    for line in text_lines(text):
        content = line.raw.strip()
        if not content:
            continue
        if content.startswith("#"):
            comments.append(content[1:].strip())
            continue
        cells = next(csv.reader([content]))
        if columns is None:
            columns = _columns(cells)
            if columns is None:
                wanted = ", ".join("|".join(names) for names in _NAMES.values())
                raise SpecError(f"{file}:{line.number}: expected a header with {wanted}, got {content[:100]!r}")
            continue
        where = f"{file}:{line.number}"
        if len(cells) <= max(columns.values()):
            raise SpecError(f"{where}: expected {max(columns.values()) + 1} columns, got {len(cells)}")
        collective = known_collective(cells[columns["collective"]])
        if not collective:
            raise SpecError(f"{where}: {cells[columns['collective']]!r} is no collective that is known here")
        ranks = int(_number(cells, columns, "ranks", where, 1, MAX_RANKS))
        size = int(_number(cells, columns, "bytes", where, 0, 2.0**62))
        time_us = _number(cells, columns, "time", where, 0, 1e12)
        dtype, lib, version = (cells[columns[name]] if name in columns else "" for name in _FURTHER)
        key = (cells[columns["system"]].strip(), lib, version, collective, dtype, str(ranks))
        source = line.source(file)
        rows.setdefault(key, []).append(
            NcclTestRow(size, None, dtype, "", source, out_of_place=Measurement(float(f"{time_us!r}e-6")))
        )
    if columns is None:
        raise SpecError(f"{file}: no sweep of collectives: it has no header")
    comment = " ".join(comments)[:500]
    return tuple(_run(key, found, comment) for key, found in rows.items())


def _run(key: tuple[str, ...], rows: list[NcclTestRow], comment: str) -> NcclTestRun:
    system, lib, version, collective, _, ranks = key
    first = rows[0].source
    options = {"system": system, "lib": lib, "source": comment}
    return NcclTestRun(
        tuple(rows), Source(first.file, first.line, first.text), collective, "header", world_size=int(ranks),
        world_size_from="header", nccl_version=version if lib in ("", "nccl") else "", options=options,
    )  # fmt: skip


def _columns(cells: list[str]) -> dict[str, int] | None:
    at = {cell.strip().lower(): position for position, cell in enumerate(cells)}
    found: dict[str, int] = {}
    for name, spellings in (_NAMES | _FURTHER).items():
        position = next((at[spelling] for spelling in spellings if spelling in at), None)
        if position is not None:
            found[name] = position
        elif name in _NAMES:
            return None
    return found


def _number(cells: list[str], columns: dict[str, int], name: str, where: str, least: float, most: float) -> float:
    text = cells[columns[name]].strip()
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise SpecError(f"{where}: {name}: expected a number from {least:g} to {most:g}, got {text[:40]!r}")
    return value
