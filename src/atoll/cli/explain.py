"""``atoll explain``: a term, a collective or an algorithm, with worked numbers."""

from __future__ import annotations

import click

from atoll.errors import SpecError

SCHEMA_VERSION = 1


@click.command(context_settings={"max_content_width": 100})
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@click.option("--size", metavar="SIZE", help="Explain what auto takes for a vector of SIZE; TOPIC is a collective.")
@click.option("--world", type=int, metavar="N", help="Among N ranks.  [default: 4]")
@click.option("--transport", metavar="NAME", help="Over shm, tcp, or mixed (hosts of two ranks).  [default: shm]")
@click.option("--order", metavar="NAME", help="For reductions of that order: any, fixed or rank.  [default: any]")
@click.option("--tuning", metavar="FILE", help="The tuning file.  [default: ATOLL_TUNING, else the package's own]")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(
    names: tuple[str, ...], size: str | None, world: int | None, transport: str | None, order: str | None,
    tuning: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Explain TOPIC with worked numbers, or list the topics; or explain the choice of an algorithm.

    \b
    atoll explain busbw
    atoll explain all-reduce
    atoll explain ring order
    atoll explain all-reduce --size 1M --world 8    candidates, predicted and measured, and why auto takes which

    Every number is worked out by the code that proves, counts and costs schedules.
    """
    if any(option is not None for option in (size, world, transport, order, tuning)):
        _choice(names, size, 4 if world is None else world, transport or "shm", order or "any", tuning, as_json)
        return
    from atoll.cli.topics import find, topics

    chosen = [find(name) for name in names]
    if as_json:
        import msgspec

        document = {
            "schema_version": SCHEMA_VERSION,
            "topics": [
                {"name": topic.name, "summary": topic.summary, "see": topic.see}
                | ({"text": topic.text()} if chosen else {})
                for topic in chosen or topics().values()
            ],
        }
        click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
    elif chosen:
        click.echo("\n\n".join(topic.page() for topic in chosen))
    else:
        known = topics().values()
        width = max(len(topic.name) for topic in known)
        click.echo("\n".join(f"{topic.name:<{width}}  {topic.summary}" for topic in known))


def _choice(
    names: tuple[str, ...], size: str | None, world: int, transport: str, order: str, tuning: str | None, as_json: bool
) -> None:
    """What ``auto`` takes for one call, and why."""
    import os

    from atoll.cli.explain_choice import document, explain, page
    from atoll.cli.schedule_source import collective_name
    from atoll.runtime.tuning import MEASURED_FILE, VARIABLE, load_tuning
    from atoll.units import parse_size

    if len(names) != 1:
        raise SpecError("--size, --world and the like explain one collective: atoll explain all-reduce --size 1M")
    collective = collective_name(names[0])
    if size is None and collective != "barrier":
        raise SpecError(f"expected a --size, such as atoll explain {names[0]} --size 1M --world {world}")
    size_bytes = 1 if size is None else parse_size(size, "--size")
    tables = load_tuning(tuning or os.environ.get(VARIABLE) or MEASURED_FILE)
    facts = explain(tables, collective, size_bytes, world, transport, order)  # type: ignore[arg-type]
    if as_json:
        import msgspec

        click.echo(
            msgspec.json.format(
                msgspec.json.encode({"schema_version": SCHEMA_VERSION, "choice": document(facts)})
            ).decode()
        )
    else:
        click.echo(page(facts))
