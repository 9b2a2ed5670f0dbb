"""What the comparison says: tables for people, and one JSON document."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers_rounds import Contestant, Pair, Row

from atoll.units import format_duration, format_size, parse_size

SCHEMA_VERSION = 1
LARGE_BYTES = 64 << 10


def machine() -> dict[str, Any]:
    """What was measured on, and how busy it was when the measurement began."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def heading(facts: dict[str, Any]) -> list[str]:
    """The lines on top of all tables."""
    about = facts["machine"]
    return [
        f"# {facts['date']}: {' '.join(facts['command'])}",
        f"# {about['processor']}, {about['cores']} cores, Linux {about['kernel']}, Python {about['python']}, "
        f"load average {about['load_average']:.2f} at the start",
    ]


def sides_lines(sides: dict[str, tuple[str, str]]) -> list[str]:
    """Version and settings of each side of a world."""
    return [
        f"#   {name}: {version}{'; ' + settings if settings else ''}" for name, (version, settings) in sides.items()
    ]


def table(
    collective: str, world_size: int, rows: Sequence[Row], contestants: Sequence[Contestant], pairs: Sequence[Pair]
) -> list[str]:
    """Times and ratios of one collective and world, with the least and the geometric mean of each ratio."""
    rounds = max((len(seconds) for row in rows for seconds in row.seconds.values()), default=0)
    ratios = ", and peer/Atoll (median of the rounds' pairs)" if pairs else ""
    lines = [
        f"{collective.replace('_', '-')}, world {world_size}, float32: time per call (slowest rank, median of {rounds} "
        f"rounds){ratios}",
        "",
    ]
    head = ["size", *(contestant.label for contestant in contestants), *(pair.label for pair in pairs)]
    body = [
        [
            format_size(row.size_bytes),
            *(_time(row, contestant.label) for contestant in contestants),
            *(_ratio(row.ratio(pair)) for pair in pairs),
        ]
        for row in rows
    ]
    blank = [""] * len(contestants)
    summaries = [("least", min, rows), ("geometric mean", statistics.geometric_mean, rows)]
    large = [row for row in rows if row.size_bytes >= LARGE_BYTES]
    if 0 < len(large) < len(rows):
        from_size = format_size(LARGE_BYTES)
        summaries += [(f"least, {from_size} up", min, large),
                      (f"mean, {from_size} up", statistics.geometric_mean, large)]  # fmt: skip
    for label, summary, over in summaries if pairs else ():
        found = [[ratio for row in over if (ratio := row.ratio(pair)) is not None] for pair in pairs]
        body.append([label, *blank, *(_ratio(summary(ratios)) if ratios else "-" for ratios in found)])
    widths = [max(len(line[column]) for line in [head, *body]) for column in range(len(head))]
    lines += [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [head, *body]
    ]
    lines += [f"! {label} failed: {why}" for row in rows for label, why in row.failed.items()]
    return lines


def scale_table(transport: str, tables: Sequence[dict[str, Any]]) -> list[str]:
    """What a call costs as the world grows: by size, per call and per step, and where the processors' time goes."""
    lines = [
        f"all-reduce over {transport}, float32, as N grows: time per call and per step of the schedule that auto took, "
        "processor time and sleeps per call, mean of the ranks",
        "",
    ]
    body = [
        ["size", "N", "algorithm", "steps", "per call", "per step", "user", "kernel", "all ranks / cores", "sleeps"]
    ]
    cores = len(os.sched_getaffinity(0))
    for part in sorted(tables, key=lambda part: int(part["world_size"])):
        for row in part["rows"]:
            usage = row["usage"].get(transport)
            if usage is None:
                continue
            seconds = statistics.median(row["seconds"][transport])
            schedule = row["schedules"][transport]
            steps = max(schedule["steps"], 1)
            busy = (usage["user_s"] + usage["system_s"]) * part["world_size"] / cores / seconds
            body.append([
                format_size(row["size_bytes"]), str(part["world_size"]), schedule["algorithm"], str(steps),
                format_duration(seconds), format_duration(seconds / steps), format_duration(usage["user_s"]),
                format_duration(usage["system_s"]), f"{busy:.0%}", f"{usage['sleeps']:.1f}",
            ])  # fmt: skip
    body[1:] = sorted(body[1:], key=lambda cells: parse_size(cells[0]))
    widths = [max(len(line[column]) for line in body) for column in range(len(body[0]))]
    return lines + [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in body
    ]


def document(facts: dict[str, Any], tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Everything, as plain data."""
    return {"schema_version": SCHEMA_VERSION, **facts, "tables": list(tables)}


def table_document(
    sides: dict[str, tuple[str, str]], world_size: int, rows: Sequence[Row], contestants: Sequence[Contestant],
    pairs: Sequence[Pair],
) -> dict[str, Any]:  # fmt: skip
    """One world's rows with all their rounds."""
    return {
        "world_size": world_size,
        "sides": {name: {"version": version, "settings": settings} for name, (version, settings) in sides.items()},
        "contestants": {
            contestant.label: {
                "side": contestant.side,
                "comm_empty": contestant.shared,
                "in_place": contestant.in_place,
            }
            for contestant in contestants
        },
        "pairs": [[pair.atoll, pair.peer] for pair in pairs],
        "rows": [
            {
                "collective": row.collective,
                "size_bytes": row.size_bytes,
                "seconds": row.seconds,
                "usage": row.usage,
                "ratios": {pair.label: row.ratios(pair) for pair in pairs if row.ratios(pair)},
                "median_ratio": {pair.label: row.ratio(pair) for pair in pairs if row.ratios(pair)},
                "failed": row.failed,
            }
            for row in rows
        ],
    }


def read_table(part: dict[str, Any]) -> tuple[list[Row], list[Contestant], list[Pair]]:
    """What ``table_document`` has written."""
    contestants = [
        Contestant(label, facts["side"], facts["comm_empty"], facts["in_place"])
        for label, facts in part["contestants"].items()
    ]
    pairs = [Pair(*label) for label in part["pairs"]]
    rows = [
        Row(row["collective"], part["world_size"], row["size_bytes"], row["seconds"], row["usage"], row["failed"])
        for row in part["rows"]
    ]
    return rows, contestants, pairs


def _time(row: Row, label: str) -> str:
    seconds = row.seconds.get(label)
    return format_duration(statistics.median(seconds)) if seconds else "-"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"
