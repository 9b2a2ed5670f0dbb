"""Per-rank step times: CSV or JSON lines with a ``rank``, a ``step`` and the seconds that the step took.

What trainers write differs in names and units, so a column is known by its stem and its unit by its suffix:
``step_time_s``, ``step_time_ms``, ``iteration_time`` (seconds), ``compute_ms``, ``comm_ms``, ``data_ms``; further
numbers (``tokens``) are kept by name. Lines that are cut or damaged are skipped.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from atoll.errors import SpecError
from atoll.readers.source import Source
from atoll.readers.text_stream import Line, text_lines

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_STEMS: Final = {
    "step_time": "step", "iteration_time": "step", "iter_time": "step", "elapsed": "step", "step_duration": "step",
    "compute": "compute", "compute_time": "compute", "forward_backward": "compute",
    "comm": "communication", "comm_time": "communication", "communication": "communication",
    "communication_time": "communication", "nccl": "communication", "exposed_comm": "communication",
    "data": "data", "data_time": "data", "dataloader": "data", "data_wait": "data",
}  # fmt: skip
_KEY: Final = re.compile(r"(?P<stem>[a-z_]+?)(?:_(?P<unit>ns|us|ms|sec|seconds|s))?")


class StepTime(msgspec.Struct, frozen=True):
    """One step of one rank, in seconds; parts that were not written are ``None``."""

    rank: int
    step: int
    step_s: float
    source: Source
    compute_s: float | None = None
    communication_s: float | None = None
    data_s: float | None = None
    host: str = ""
    further: dict[str, float] = {}


def is_step_times(head: str) -> bool:
    """Whether a text begins like step times: a CSV header, or a JSON object, with rank, step and a time."""
    first = next((line for line in head.splitlines() if line.strip() and not line.startswith("#")), "")
    if first.lstrip().startswith("{"):
        try:
            found = msgspec.json.decode(first.encode())
        except msgspec.DecodeError:
            return False
        names = list(found) if isinstance(found, dict) else []
    else:
        names = first.split(",")
    plain = {str(name).strip().lower() for name in names}
    return "rank" in plain and "step" in plain and any(_column(name)[0] == "step" for name in plain)


def read_step_times(text: str | bytes, file: str) -> tuple[StepTime, ...]:
    """All steps of ``text``. Raises ``SpecError`` where the first line names no rank, step and time."""
    return step_times_in(text_lines(text), file)


def step_times_in(lines: Iterable[Line], file: str) -> tuple[StepTime, ...]:
    """``read_step_times`` of lines."""
    header: list[str] = []
    found: list[StepTime] = []
    for line in lines:
        text = line.text.strip()
        if not text or text.startswith("#"):
            continue
        if text.startswith("{"):
            try:
                row = msgspec.json.decode(text.encode())
            except msgspec.DecodeError:
                continue
            if isinstance(row, dict):
                found.extend(_step(row, line, file))
        elif not header:
            header = [name.strip().lower() for name in _cells(text)]
            if "rank" not in header or "step" not in header:
                raise SpecError(f"{file}:{line.number}: expected columns rank, step and step_time, got {text[:80]!r}")
        else:
            found.extend(_step(dict(zip(header, _cells(text), strict=False)), line, file))
    return tuple(found)


def _cells(text: str) -> list[str]:
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def _column(name: str) -> tuple[str, float]:
    """What a column is (``step``, ``compute`` ... or empty) and its unit in seconds."""
    match = _KEY.fullmatch(name.strip().lower())
    if match is None or match["stem"] not in _STEMS:
        return "", 1.0
    return _STEMS[match["stem"]], _UNITS[match["unit"]] if match["unit"] else 1.0


def _step(row: dict[str, Any], line: Line, file: str) -> Iterable[StepTime]:
    times: dict[str, float] = {}
    further: dict[str, float] = {}
    for name, value in row.items():
        number = _number(value)
        if number is None or name in ("rank", "step"):
            continue
        kind, unit_s = _column(name)
        if kind:
            times[kind] = number * unit_s
        else:
            further[name] = number
    rank, step = _number(row.get("rank")), _number(row.get("step"))
    if rank is None or step is None or "step" not in times:
        return
    if rank != int(rank) or step != int(step) or not 0 <= rank < 2**31 or not 0 <= step < 2**62 or times["step"] < 0:
        return
    host = row.get("host", row.get("hostname", ""))
    yield StepTime(
        int(rank), int(step), times["step"], line.source(file), times.get("compute"), times.get("communication"),
        times.get("data"), host if isinstance(host, str) else "", further,
    )  # fmt: skip


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
