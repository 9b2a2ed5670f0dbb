"""Measured rows without nccl-tests' frame: a ``# columns:`` line that names them, then whitespace-separated numbers.

``# key: value`` comments say where the rows come from (``collective``, ``hardware``, ``source``, ``status``); they
become the run's ``options``. Column names are ``size_bytes``, ``count``, ``dtype``, ``redop``, ``root`` and, per half,
``oop_`` or ``ip_`` with ``time_us``, ``algbw_GBps``, ``busbw_GBps``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from atoll.errors import SpecError
from atoll.readers.collective_names import collective_name
from atoll.readers.nccl_tests import Measurement, NcclTestRow, NcclTestRun, world_size_of
from atoll.readers.source import Source
from atoll.readers.text_stream import Line, text_lines

_COMMENT: Final = re.compile(r"#\s*([\w -]{1,40}):\s*(.*)")
_WORDS: Final = ("dtype", "redop")
_COUNTS: Final = ("size_bytes", "count", "root")


def read_bandwidth_table(text: str | bytes, file: str) -> NcclTestRun:
    """The rows of ``text`` as one run. Raises ``SpecError`` with file and line where the form is another."""
    return table_in(text_lines(text), file)


def table_in(lines: Iterable[Line], file: str) -> NcclTestRun:
    """``read_bandwidth_table`` of lines."""
    columns: list[str] = []
    options: dict[str, str] = {}
    rows: list[NcclTestRow] = []
    first: Source | None = None
    for line in lines:
        text = line.text.strip()
        if not text:
            continue
        if text.startswith("#"):
            if (comment := _COMMENT.fullmatch(text)) is not None:
                if comment[1] == "columns":
                    columns, first = comment[2].split(), line.source(file)
                else:
                    options[comment[1].strip()] = comment[2][:500]
        elif not columns:
            raise SpecError(f"{file}:{line.number}: expected '# columns: size_bytes ...' before the first row")
        else:
            rows.append(_row(columns, text.split(), line, file))
    if first is None or "size_bytes" not in columns:
        raise SpecError(f"{file}: no bandwidth table: expected a line '# columns: size_bytes ... oop_time_us ...'")
    named = options.pop("collective", "").lower()
    collective = collective_name(named)
    world_size = world_size_of(rows, collective)
    return NcclTestRun(
        tuple(rows), first, collective, "header" if collective else "", world_size=world_size,
        world_size_from="factor" if world_size else "", options=options,
    )  # fmt: skip


def _row(columns: list[str], tokens: list[str], line: Line, file: str) -> NcclTestRow:
    if len(tokens) == len(columns) - 1 and "redop" in columns:
        # all-to-all and all-gather have no operation, and not every table writes a dash for it.
        tokens = [*tokens[: columns.index("redop")], "none", *tokens[columns.index("redop") :]]
    if len(tokens) != len(columns):
        raise SpecError(f"{file}:{line.number}: expected {len(columns)} columns, got {len(tokens)}")
    found: dict[str, float] = {}
    for name, token in zip(columns, tokens, strict=True):
        if name not in _WORDS and token not in ("-", "N/A"):
            found[name] = _number(name, token, line, file)
    words = dict(zip(columns, tokens, strict=True))
    if "size_bytes" not in found:
        raise SpecError(f"{file}:{line.number}: a row without size_bytes")
    return NcclTestRow(
        int(found["size_bytes"]),
        int(found["count"]) if "count" in found else None,
        words.get("dtype", ""),
        words.get("redop", ""),
        line.source(file),
        int(found.get("root", -1)),
        _half("oop_", found),
        _half("ip_", found),
    )


def _number(name: str, token: str, line: Line, file: str) -> float:
    try:
        value = float(token)
    except ValueError:
        value = float("nan")
    if not -2 < value < 1e18 or (name in _COUNTS and value != int(value)):
        raise SpecError(f"{file}:{line.number}: {name}: expected a number, got {token[:40]!r}")
    return value


def _half(prefix: str, found: dict[str, float]) -> Measurement | None:
    time_us, algbw, busbw = (found.get(prefix + name) for name in ("time_us", "algbw_GBps", "busbw_GBps"))
    if time_us is None and algbw is None and busbw is None:
        return None
    return Measurement(
        None if time_us is None else time_us / 1e6,
        None if algbw is None else algbw * 1e9,
        None if busbw is None else busbw * 1e9,
    )
