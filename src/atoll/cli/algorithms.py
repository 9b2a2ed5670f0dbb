"""``atoll algorithms``: what there is, what it costs, what it asks for, and in which order it adds up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from atoll.cli.schedule_source import collective_name
from atoll.errors import SpecError

if TYPE_CHECKING:
    from atoll.algorithms.catalog import Entry

SCHEMA_VERSION = 1
# Counting proves every schedule; in this world the whole list takes seconds.
_MAX_WORLD = 256
_LEGEND = (
    "steps and bytes sent are the busiest rank's, for a vector of n bytes among N ranks;\n"
    "L: log2 N rounded up; p: the largest power of two not above N; *: the default"
)


@click.command(context_settings={"max_content_width": 100})
@click.argument("collective", required=False)
@click.option("--world", type=int, metavar="N", help="Prove and count every algorithm for N ranks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(collective: str | None, world: int | None, as_json: bool) -> None:
    """List the algorithms, of all collectives or of one.

    \b
    atoll algorithms                          everything, in formulas
    atoll algorithms all-reduce               one collective, with options
    atoll algorithms all-reduce --world 12    counted and certified for 12 ranks
    """
    from atoll.algorithms.catalog import CATALOG

    wanted = None if collective is None else collective_name(collective)
    if world is not None and not 1 <= world <= _MAX_WORLD:
        raise SpecError(f"--world: expected 1 to {_MAX_WORLD} ranks, got {world}")
    entries = [entry for entry in CATALOG if wanted in (None, entry.collective)]
    if as_json:
        import msgspec

        document = {"schema_version": SCHEMA_VERSION, "algorithms": [_document(entry, world) for entry in entries]}
        click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
        return
    for name in dict.fromkeys(entry.collective for entry in entries):
        group = [entry for entry in entries if entry.collective == name]
        click.echo(click.style(name.replace("_", "-"), bold=True))
        click.echo("\n".join(_counted(group, world) if world is not None else _formulas(group)))
        click.echo()
        if wanted is not None:
            click.echo("\n".join(line for entry in group for line in _details(entry)))
            click.echo()
    click.echo(_LEGEND if world is None else "bytes are the busiest rank's, sent or received, in vectors of n bytes")


def _formulas(group: list[Entry]) -> list[str]:
    rows = [("algorithm", "steps", "bytes sent", "order of a sum", "N")]
    rows += [(_starred(entry, group), entry.steps, entry.sent, entry.order or "-", entry.constraint) for entry in group]
    return _aligned(rows)


def _details(entry: Entry) -> list[str]:
    lines = [f"  {entry.name.replace('_', '-')}: {entry.summary}"]
    lines += [f"      -O {name}  {kind}" for name, kind in entry.options().items()]
    return lines


def _counted(group: list[Entry], world: int) -> list[str]:
    rows = [("algorithm", "steps", "messages", "bytes", "bytes/bound", "order")]
    for entry in group:
        facts = _facts(entry, world)
        ratio = facts["bandwidth_ratio"]
        rows.append(
            (
                _starred(entry, group),
                f"{facts['steps']:,}",
                f"{facts['messages']:,}",
                f"{facts['busiest']:.4g} n",
                "-" if ratio is None else f"{ratio:.3g}",
                facts["order"],
            )
        )
    return _aligned(rows)


def _facts(entry: Entry, world: int) -> dict[str, Any]:
    """Proven, counted and certified for ``world`` ranks, with root 0."""
    from atoll.algorithms.catalog import build
    from atoll.schedule.certify import certify
    from atoll.schedule.contract import COLLECTIVES
    from atoll.schedule.count import count
    from atoll.schedule.prove import prove

    proof = prove(build(entry.collective, entry.name, world, 0 if COLLECTIVES[entry.collective].rooted else None))
    counts, certificate = count(proof), certify(proof)
    return {
        "world_size": world,
        "steps": counts.steps,
        "messages": counts.messages,
        "busiest": counts.busiest_bytes / counts.vector_bytes,
        "bandwidth_ratio": counts.bandwidth_ratio,
        "same_bits": certificate.same_bits,
        "position_independent": certificate.position_independent,
        "num_orders": certificate.num_orders,
        "depth": certificate.depth,
        "order": certificate.verdict(),
    }


def _document(entry: Entry, world: int | None) -> dict[str, Any]:
    from atoll.algorithms.catalog import default

    return {
        "collective": entry.collective,
        "name": entry.name,
        "default": entry.name == default(entry.collective),
        "summary": entry.summary,
        "steps": entry.steps,
        "bytes_sent": entry.sent,
        "order": entry.order or None,
        "constraint": entry.constraint,
        "options": entry.options(),
        "counted": None if world is None else _facts(entry, world),
    }


def _starred(entry: Entry, group: list[Entry]) -> str:
    return entry.name.replace("_", "-") + (" *" if entry is group[0] else "")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  " + "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
