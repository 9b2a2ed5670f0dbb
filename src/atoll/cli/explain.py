"""``atoll explain``: a term, a collective or an algorithm, with worked numbers."""

from __future__ import annotations

import click

SCHEMA_VERSION = 1


@click.command(context_settings={"max_content_width": 100})
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(names: tuple[str, ...], as_json: bool) -> None:
    """Explain TOPIC with worked numbers, or list the topics.

    \b
    atoll explain busbw
    atoll explain all-reduce
    atoll explain ring order

    Every number is worked out by the code that proves, counts and costs schedules.
    """
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
