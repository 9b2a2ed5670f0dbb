"""``atoll chaos``: ranks of a job at work are broken at random, and every promise about failures is checked."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from atoll.errors import SpecError
from atoll.units import parse_duration


@click.command(options_metavar="[OPTIONS]")
@click.option("--minutes", type=float, metavar="M", help="Begin no new fault after so long.  [default: 1]")
@click.option("--faults", type=int, metavar="N", help="Stop after N faults, however long they take.")
@click.option(
    "--world", "world_size", type=int, default=4, show_default=True, metavar="N", help="Ranks; as many spares wait."
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="S", help="Decides on faults and collectives.")
@click.option(
    "--kinds", default="all", show_default=True, metavar="LIST",
    help="Of kill, stop, close and partition; partition needs root.",
)  # fmt: skip
@click.option(
    "--heartbeat-timeout", default="1s", show_default=True, metavar="TIME",
    help="After so much silence a rank that others wait for is given up.",
)  # fmt: skip
@click.option(
    "--hang-after", default="30s", show_default=True, metavar="TIME", help="A job that does not go on by then hangs."
)  # fmt: skip
@click.option("--log", type=click.Path(file_okay=False), metavar="DIR", help="What the ranks say, one file for each.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(
    ctx: click.Context, minutes: float | None, faults: int | None, world_size: int, seed: int, kinds: str,
    heartbeat_timeout: str, hang_after: str, log: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Break ranks of a job at work, and see that it does what it promises.

    \b
    atoll chaos --minutes 5 --world 4 --seed 1
    atoll chaos --faults 100 --kinds kill,stop --json

    The job runs random collectives on random sizes and checks every result. Ranks are killed, stopped, cut off from
    all their connections, or (as root) have their network cable pulled; a fifth of the faults hits rank 0, and as many
    break a second rank with the first or while the others recover. Healthy ranks are delayed now and then, and must not
    be accused. After each fault the job must go on with a spare, or without the lost.

    The exit status is 1 when any promise was broken. Faults and collectives follow from the seed, moments do not.
    """
    from atoll.resilience.chaos import Chaos, ChaosSettings
    from atoll.resilience.chaos_network import Cables, networks_possible
    from atoll.resilience.chaos_plan import Kind, Outcome, parse_kinds
    from atoll.resilience.chaos_report import render, summarize, to_json

    if world_size < 3:
        raise SpecError(f"--world: expected at least 3 ranks, so that two can go on without one, got {world_size}")
    if (minutes is not None and not minutes > 0) or (faults is not None and faults < 1):
        raise SpecError("--minutes and --faults: expected more than 0")
    heartbeat_s = parse_duration(heartbeat_timeout, "--heartbeat-timeout")
    hang_s = parse_duration(hang_after, "--hang-after")
    if not 0 < heartbeat_s < hang_s:
        raise SpecError(
            f"--heartbeat-timeout: expected more than 0 and less than --hang-after, got {heartbeat_timeout} and "
            f"{hang_after}"
        )
    chosen = parse_kinds(kinds, networks_possible())
    if kinds == "all" and Kind.PARTITION not in chosen:
        click.echo("no partitions: they need root and the command ip (iproute2)", err=True)
    folder = Path(log) if log else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    cables = Cables(2 * world_size) if Kind.PARTITION in chosen else None
    settings = ChaosSettings(
        world_size=world_size, spares=world_size, seed=seed, kinds=chosen, heartbeat_s=heartbeat_s,
        timeout_s=hang_s, hang_s=hang_s, log=folder,
    )  # fmt: skip
    chaos = Chaos(settings, cables)
    limit_s = 60.0 * (1.0 if minutes is None and faults is None else minutes or float("inf"))
    end = time.monotonic() + limit_s
    outcomes: list[Outcome] = []
    live = sys.stderr.isatty()
    try:
        for outcome in chaos.run(lambda number: number == faults or time.monotonic() >= end):
            outcomes.append(outcome)
            if live:
                bad = " NOT as promised" if outcome.trouble or outcome.accused or outcome.late_result else ""
                words = " and ".join(outcome.kinds)
                click.echo(f"\r\x1b[K{len(outcomes)} faults, last: {words}{bad}", err=True, nl=bool(bad))
    except KeyboardInterrupt:
        click.echo("interrupted: the report is of what was done", err=True)
    if live:
        click.echo("\r\x1b[K", err=True, nl=False)
    report = summarize(
        outcomes, seed=seed, world_size=world_size, heartbeat_s=heartbeat_s, worlds=chaos.worlds,
        results=chaos.results, delays=chaos.delays, wrong=chaos.wrong, unprovoked=chaos.unprovoked,
    )  # fmt: skip
    click.echo(json.dumps(to_json(report), indent=2) if as_json else render(report))
    ctx.exit(0 if report.passed else 1)
