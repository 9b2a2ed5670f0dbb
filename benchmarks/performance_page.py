"""Put measured tables into pages: the blocks between ``<!-- begin NAME -->`` and ``<!-- end -->`` are written anew.

    python benchmarks/performance_page.py RESULTS.json... -- docs/performance.md README.md

``RESULTS.json`` is what ``peers.py --json`` wrote. Names are ``all-reduce 2`` (the table of a world),
``collectives 4``, ``machine``, ``scale shm``, and ``summary``, ``summary all-reduce``: the least ratio and the
geometric mean of every comparison. A block whose results are not given stays as it is.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from peers_report import LARGE_BYTES, heading, read_table, scale_table, sides_lines, table
from peers_rounds import Pair, Row

from atoll.units import format_size

_BLOCK = re.compile(r"(<!-- begin ([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
_WHO = {
    "gloo": "Gloo",
    "mpich": "MPICH",
    "openmpi": "Open MPI",
    "machine": "the machine",
}
_WHAT = {
    "tcp": "TCP",
    "shm": "shared memory",
    "tcp out": "TCP",
    "shm out": "shared memory, ordinary arrays",
    "empty": "shared memory, `comm.empty`",
}


def blocks(documents: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The text of every block that the results have, by name."""
    found: dict[str, str] = {}
    summary: dict[str, list[str]] = {}
    for document in documents:
        kind = document["table"]
        top = heading(document)
        if kind == "scale":
            for transport in document["tables"][0]["sides"]:
                found[f"scale {transport}"] = _text([*top, "", *scale_table(transport, document["tables"])])
            continue
        for part in document["tables"]:
            rows, contestants, pairs = read_table(part)
            world_size = part["world_size"]
            sides = {name: (facts["version"], facts["settings"]) for name, facts in part["sides"].items()}
            lines = [*top, *sides_lines(sides)]
            for collective in dict.fromkeys(row.collective for row in rows):
                chosen = [row for row in rows if row.collective == collective]
                lines += ["", *table(collective, world_size, chosen, contestants, pairs)]
            found[kind if kind == "machine" else f"{kind} {world_size}"] = _text(lines)
            summary.setdefault(kind, []).extend(_summary(kind, world_size, rows, pairs))
    head = [
        "| collective | Atoll on | against | ranks | sizes | at least | geometric mean |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, lines in summary.items():
        found[f"summary {kind}"] = "\n".join([*head, *lines]) + "\n"
    if summary:
        found["summary"] = "\n".join([*head, *(line for lines in summary.values() for line in lines)]) + "\n"
    return found


def fill(page: str, found: dict[str, str]) -> str:
    """``page`` with its blocks written anew. ``KeyError`` would hide a spelling: unknown names are left alone."""
    return _BLOCK.sub(lambda match: f"{match[1]}{found[match[2]]}{match[3]}" if match[2] in found else match[0], page)


def _summary(kind: str, world_size: int, rows: Sequence[Row], pairs: Sequence[Pair]) -> list[str]:
    """A line for every comparison; small and large sizes apart against the MPIs, the barrier apart from what moves."""
    lines = []
    for pair in pairs:
        measured = [row for row in rows if row.ratio(pair) is not None]
        groups = {"all-reduce": measured}
        if kind == "collectives":
            groups = {
                "reduce-scatter, all-gather, broadcast, all-to-all": [r for r in measured if r.collective != "barrier"],
                "barrier": [row for row in measured if row.collective == "barrier"],
            }
        for what, group in groups.items():
            parts = [group]
            if kind == "all-reduce" and pair.peer != "gloo":
                parts = [[row for row in group if row.size_bytes < LARGE_BYTES],
                         [row for row in group if row.size_bytes >= LARGE_BYTES]]  # fmt: skip
            for part in parts:
                ratios = [ratio for row in part if (ratio := row.ratio(pair)) is not None]
                if not ratios:
                    continue
                sizes = sorted({row.size_bytes for row in part})
                between = format_size(sizes[0]) + (f" to {format_size(sizes[-1])}" if len(sizes) > 1 else "")
                cells = (what, _WHAT[pair.atoll], _WHO[pair.peer], str(world_size),
                         "-" if what == "barrier" else between, f"{min(ratios):.2f}x",
                         f"{statistics.geometric_mean(ratios):.2f}x")  # fmt: skip
                lines.append(f"| {' | '.join(cells)} |")
    return lines


def _text(lines: Sequence[str]) -> str:
    return "\n".join(["```text", *lines, "```", ""])


def main(arguments: Sequence[str]) -> None:
    """``RESULTS... -- PAGES...``"""
    if "--" not in arguments:
        sys.exit("usage: performance_page.py RESULTS.json... -- PAGE.md...")
    at = list(arguments).index("--")
    found = blocks(json.loads(Path(name).read_text(encoding="utf-8")) for name in arguments[:at])
    for name in arguments[at + 1 :]:
        page = Path(name)
        page.write_text(fill(page.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
