"""``atoll doctor PATH...``: read what is there, say what is wrong, exit with the verdict's status."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="One JSON document with schema_version on stdout.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Markdown for an issue.")
@click.option("--redact", is_flag=True, help="Hash hosts, addresses, users and paths with users.")
@click.option("--redact-key", default="", metavar="TEXT", help="Make the hashes of --redact repeatable between runs.")
@click.option("--all", "everything", is_flag=True, help="Also what looks bad and is harmless, and every file.")
@click.option("--explain", "explain", metavar="RULE", default="", help="Explain a rule (N09) instead of reading.")
@click.option("--rules", "list_rules", is_flag=True, help="List all rules instead of reading.")
@click.option(
    "--write-handbook", default="", metavar="FOLDER", help="Write the rule catalogue's pages instead of reading."
)
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def command(
    paths: tuple[str, ...],
    as_json: bool,
    as_markdown: bool,
    redact: bool,
    redact_key: str,
    everything: bool,
    explain: str,
    list_rules: bool,
    write_handbook: str,
    quiet: bool,
) -> int:
    """Read the logs, dumps and topologies of a job and say what is wrong.

    PATHS are files or folders: NCCL logs of any version and launcher, flight-recorder dumps, nccl-tests output, topo
    -m, topology XML, ibstat, dmesg, environment dumps. Files are known by their content.

    Exit status: 0 nothing wrong, 1 findings, 2 unusable input, 3 cannot be known.
    """
    from atoll.errors import SpecError

    if as_json and as_markdown:
        raise SpecError("--json and --markdown are two forms of one report: choose one")
    if write_handbook:
        from pathlib import Path

        from atoll.doctor.handbook import write

        click.echo(f"{write(Path(write_handbook))} pages", err=True)
        return 0
    if explain or list_rules:
        _print_rules(explain)
        return 0
    if not paths:
        raise SpecError("no path given: atoll doctor FOLDER (or --explain RULE, --rules)")
    return _diagnose(paths, as_json, as_markdown, redact, redact_key, everything, quiet)


def _print_rules(explain: str) -> None:
    from atoll.doctor.catalogue import RULES, rule_of
    from atoll.doctor.report import explanation_lines

    if explain:
        for line in explanation_lines(rule_of(explain)):
            click.echo(line)
        return
    for rule in RULES:
        click.echo(f"{rule.id}  {rule.title}")


def _diagnose(
    paths: tuple[str, ...],
    as_json: bool,
    as_markdown: bool,
    redact: bool,
    redact_key: str,
    everything: bool,
    quiet: bool,
) -> int:
    import secrets

    from atoll.doctor.gather import gather
    from atoll.doctor.redact import redactor_of
    from atoll.doctor.report import document, markdown_lines, text_lines
    from atoll.doctor.verdict import diagnose

    evidence = gather(paths, progress=None if quiet else _progress())
    verdict = diagnose(evidence)
    redactor = redactor_of(evidence, redact_key.encode() or secrets.token_bytes(16)) if redact else None
    if as_json:
        import msgspec

        found = document(verdict, evidence)
        if redactor is not None:
            found = redactor.document(found)
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        lines = (
            markdown_lines(verdict, evidence) if as_markdown else text_lines(verdict, evidence, everything=everything)
        )
        for line in lines:
            click.echo(redactor.text(line) if redactor is not None else line)
    return verdict.status.exit_status


def _progress() -> Callable[[int, int], None] | None:
    """A line on stderr that shows how much was read, on a terminal and for large inputs only."""
    if not sys.stderr.isatty():
        return None
    from atoll.units import format_size

    shown = -1

    def show(done: int, total: int) -> None:
        nonlocal shown
        percent = 100 * done // total if total else 100
        if total >= 32 << 20 and percent != shown:
            shown = percent
            end = "\n" if done >= total else ""
            click.echo(f"\rread {format_size(done)} of {format_size(total)} ({percent} %)", err=True, nl=False)
            click.echo(end, err=True, nl=False)

    return show
