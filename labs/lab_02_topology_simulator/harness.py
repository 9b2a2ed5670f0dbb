"""The lab's command line: the comparison, ``--bubble`` and ``--blast-radius``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import tables

from atoll.errors import SpecError
from atoll.planning import report as columns
from atoll.planning.blast_radius import Blast, blast_radius
from atoll.planning.draw_pipeline import draw_svg, draw_text
from atoll.planning.parallelism import Parallelism
from atoll.planning.pipeline import Timeline, bubble_share, play
from atoll.planning.placement import place
from atoll.topology.presets import preset
from atoll.units import format_duration, format_size, parse_size


def main(groups_of: Any, simulate: Any) -> None:
    """Parse the arguments and run one part; exit status 1 where a claim does not hold, 2 for bad arguments."""

    @click.command(context_settings={"help_option_names": ["-h", "--help"]})
    @click.option("--size", default="1G", show_default=True, help="Of the all-reduces.")
    @click.option("--bubble", is_flag=True, help="The pipeline bubble, drawn.")
    @click.option("--stages", type=click.IntRange(1, 64), default=4, show_default=True, help="With --bubble.")
    @click.option("--microbatches", type=click.IntRange(1, 512), default=8, show_default=True, help="With --bubble.")
    @click.option("--interleave", type=click.IntRange(1, 16), default=2, show_default=True, help="With --bubble.")
    @click.option("--svg", type=click.Path(), help="With --bubble: draw the schedules into this file.")
    @click.option("--blast-radius", "with_blast", is_flag=True, help="What stops when a part fails.")
    @click.option("--json", "as_json", is_flag=True, help="One JSON document.")
    def command(
        size: str, bubble: bool, stages: int, microbatches: int, interleave: int, svg: str | None, with_blast: bool,
        as_json: bool,
    ) -> int:  # fmt: skip
        if bubble and with_blast:
            raise SpecError("--bubble and --blast-radius are two parts: choose one")
        if svg and not bubble:
            raise SpecError("--svg draws the schedules of --bubble")
        if bubble:
            return _bubble(stages, microbatches, interleave, svg, as_json)
        if with_blast:
            return _blast(as_json)
        size_bytes = parse_size(size, "--size")
        if size_bytes < 1:
            raise SpecError(f"--size {size}: an empty vector takes no time; expected at least 1")
        return _compare(tables.report(groups_of, simulate, size_bytes), as_json)

    try:
        status = command(standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        sys.exit(2)
    except (SpecError, NotImplementedError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, SpecError) else 1)
    sys.exit(status if isinstance(status, int) else 0)


def _compare(report: tables.Report, as_json: bool) -> int:
    holds = all(claim.holds for claim in report.claims)
    if as_json:
        click.echo(json.dumps(report.json(), indent=2))
        return 0 if holds else 1
    click.echo(f"all-reduce of {format_size(report.size_bytes)}, every group of the job at once")
    for block in report.blocks:
        click.echo(f"\n{block.title}")
        rows = [("strategy", "time", "ratio", "busiest link")]
        rows += [
            (row.strategy, format_duration(row.seconds), f"{row.ratio:.3g}", row.bottleneck) for row in block.rows
        ]  # fmt: skip
        click.echo("\n".join(columns.table(rows, left=(0, 3))))
        for note in block.notes:
            click.echo(f"  {note}")
    if not report.claims:
        click.echo(f"\nclaims are of large messages, {format_size(tables.LARGE_BYTES)} and more: none judged")
        return 0
    click.echo("\nclaims")
    for claim in report.claims:
        click.echo(f"  {'holds' if claim.holds else 'FAILS'}  {claim.says}")
    return 0 if holds else 1


def _bubble(stages: int, microbatches: int, interleave: int, svg: str | None, as_json: bool) -> int:
    drawn = [play("gpipe", stages, microbatches), play("1f1b", stages, microbatches)]
    if interleave > 1:
        drawn.append(play("1f1b", stages, microbatches, interleave=interleave))
    for line in drawn:
        expected = bubble_share(stages, microbatches, line.interleave)
        assert line.mean_bubble == expected, f"{line.name}: {line.mean_bubble} played, {expected} by the formula"
    if svg:
        title = f"Pipeline of {stages} stages, {microbatches} micro-batches, backward twice forward"
        try:
            Path(svg).write_text(draw_svg(drawn, title), encoding="utf-8")
        except OSError as error:
            raise SpecError(f"{svg}: cannot be written: {error.strerror or error}") from error
    if as_json:
        click.echo(json.dumps({"schema_version": 1, "schedules": [_schedule_json(line) for line in drawn]}, indent=2))
        return 0
    for line in drawn:
        click.echo(draw_text(line, width=124))
    rows = [("schedule", "micro-batches", "played", "(p-1)/(v m + p-1)", "kept by stage 0", "against the work")]
    for m in sorted({stages, microbatches, 2 * microbatches, 8 * microbatches}):
        for line in drawn:
            if line.interleave > 1 and m % stages:
                continue
            longer = play(line.kind, stages, m, interleave=line.interleave)
            share = bubble_share(stages, m, line.interleave)
            assert longer.mean_bubble == share
            rows.append(
                (line.name, str(m), f"{float(longer.mean_bubble):.2%}", f"{share.numerator}/{share.denominator}",
                 f"{float(longer.peak[0]):g}", f"{float(share / (1 - share)):.2%}")
            )  # fmt: skip
    click.echo("\n".join(columns.table(rows)))
    return 0


def _schedule_json(line: Timeline) -> dict[str, Any]:
    return {
        "kind": line.kind, "stages": line.stages, "microbatches": line.microbatches, "interleave": line.interleave,
        "bubble": float(line.mean_bubble), "end": float(line.end), "kept": [float(peak) for peak in line.peak],
    }  # fmt: skip


def _blast(as_json: bool) -> int:
    """Four jobs of 16 nodes each on 64, with nodes in a row and dealt out one by one."""
    found = {name: blast_radius(_jobs(name), racks_per_feed=4) for name in ("packed", "dealt out")}
    by_part = {name: {blast.part: blast for blast in blasts} for name, blasts in found.items()}
    for part, blast in by_part["packed"].items():
        assert blast.jobs <= by_part["dealt out"][part].jobs, part
    assert by_part["packed"]["rack"].jobs == 1
    assert by_part["dealt out"]["rack"].jobs == 4
    if as_json:
        document = {name: [_blast_json(blast) for blast in blasts] for name, blasts in found.items()}
        click.echo(json.dumps({"schema_version": 1, "placements": document}, indent=2))
        return 0
    click.echo("64 x DGX H100 in racks of 4, 4 racks on a power feed; four jobs of 128 GPUs, tp 8, pp 4, dp 4")
    for name, blasts in found.items():
        click.echo(f"\njobs {name}: {'16 nodes in a row each' if name == 'packed' else 'every fourth node'}")
        click.echo("\n".join(columns.blasts(blasts)))
    return 0


def _jobs(name: str) -> list[Any]:
    cluster, cut = preset("dgx-h100", 64), Parallelism(tp=8, pp=4, dp=4)
    nodes = [range(16 * job, 16 * job + 16) if name == "packed" else range(job, 64, 4) for job in range(4)]
    return [place(cluster, cut, [8 * node + gpu for node in mine for gpu in range(8)]) for mine in nodes]


def _blast_json(blast: Blast) -> dict[str, Any]:
    return {field: getattr(blast, field) for field in blast.__struct_fields__}
