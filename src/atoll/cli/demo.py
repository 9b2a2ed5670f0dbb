"""``atoll demo``: failures shown with real processes on this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from atoll.errors import SpecError
from atoll.units import format_duration, parse_duration

if TYPE_CHECKING:
    from atoll.resilience.hang_demo import Hang, Recovered


@click.group()
def command() -> None:
    """Failures shown with real processes on this machine."""


@command.command()
@click.option("--world", "world_size", type=int, default=4, show_default=True, metavar="N", help="Ranks.")
@click.option("--rank", type=int, default=2, show_default=True, metavar="R", help="The one that is stopped.")
@click.option("--show", default="3s", show_default=True, metavar="TIME", help="How long to look at the hang.")
@click.option(
    "--heartbeat-timeout", default="1s", show_default=True, metavar="TIME", help="The deadline of the second part."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def hang(world_size: int, rank: int, show: str, heartbeat_timeout: str, as_json: bool) -> None:
    """A rank stops in the middle of all-reduces: without a deadline, with one, and with a spare.

    First nobody has a deadline: the job hangs, and each rank can only say whom it waits for. Then with a heartbeat
    timeout: every survivor raises the same error, which names the culprit and none of its victims. Then with a spare,
    which takes the rank's place: the job completes with the right sum.
    """
    import msgspec

    from atoll.resilience.chaos_plan import Kind
    from atoll.resilience.hang_demo import hang as show_hang
    from atoll.resilience.hang_demo import recover

    seconds, heartbeat_s = parse_duration(show, "--show"), parse_duration(heartbeat_timeout, "--heartbeat-timeout")
    if not seconds > 0 or not heartbeat_s > 0:
        raise SpecError("--show and --heartbeat-timeout: expected more than 0 seconds")
    if not as_json:
        click.echo(
            f"1. Without a deadline: {world_size} ranks all-reduce in a ring, again and again; rank {rank} stops."
        )
    seen = show_hang(world_size, rank, seconds)
    if not as_json:
        click.echo("\n".join(hang_lines(seen, rank)))
        click.echo(f"\n2. With one: a rank that says nothing for {format_duration(heartbeat_s)} is given up.")
    end = recover(world_size, rank, Kind.STOP, heartbeat_s)
    if as_json:
        document = {"schema_version": 1, "hang": msgspec.to_builtins(seen, str_keys=True)}
        document["recovery"] = msgspec.to_builtins(end, str_keys=True)
        click.echo(json.dumps(document, indent=2))
        return
    click.echo("\n".join(error_lines(end)))
    click.echo("\n3. And with a spare, that waited in atoll.init until comm.grow() called it.")
    click.echo("\n".join(sum_lines(end)))


def hang_lines(seen: Hang, victim: int) -> list[str]:
    """The first part, for people."""
    looked = format_duration(float(f"{seen.seconds:.2g}"))
    lines = [f"   {looked} later {seen.raised or 'nobody'} has raised anything, and all wait:"]
    for rank, others in sorted(seen.waits_on.items()):
        lines.append(f"     rank {rank} waits for {_ranks(others)}")
    lines.append(f"     rank {victim} says nothing")
    lines.append("   It would stay like this for ever. Only the chain of waiting tells the culprit from its victims.")
    return lines


def error_lines(end: Recovered) -> list[str]:
    """The second part, for people."""
    texts = set(end.errors.values())
    detected = format_duration(float(f"{end.detect_s:.2g}"))
    same = "the same on all" if len(texts) == 1 else f"{len(texts)} different ones"
    lines = [f"   {detected} later {_ranks(tuple(end.errors))} have raised PeerLost, {same}:"]
    lines += [f"     {line}" for text in sorted(texts) for line in text.splitlines()]
    return lines


def sum_lines(end: Recovered) -> list[str]:
    """The third part, for people."""
    right = all(value == end.expected for value in end.sums.values())
    recovered = format_duration(float(f"{end.recover_s:.2g}"))
    return [
        f"   {recovered} after the fault all {len(end.members)} ranks have their next sum: "
        f"{next(iter(end.sums.values())):g}, expected {end.expected:g}: {'right' if right else 'WRONG'}",
        f"   Ranks 0 to {len(end.members) - 1} are now the processes that began as {_ranks(end.members)}.",
    ]


def _ranks(ranks: tuple[int, ...]) -> str:
    words = ", ".join(map(str, ranks))
    return f"rank {words}" if len(ranks) == 1 else f"ranks {words}"
