"""``atoll lint``: check variables, topology files and timeouts before the run."""

from __future__ import annotations

import click

from atoll.cli.topology import check_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Check variables, topology files and timeouts before the run.

    Exit status: 0 clean, 1 something to change, 2 unusable input.
    """


@command.command("env")
@click.argument("files", nargs=-1, type=click.Path())
@click.option("--nccl", "nccl_version", default="", metavar="VERSION", help="Judge for this NCCL version (2.21.5).")
@click.option("--torch", "torch_version", default="", metavar="VERSION", help="Judge for this PyTorch version (2.4).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def env_command(files: tuple[str, ...], nccl_version: str, torch_version: str, as_json: bool) -> int:
    """Variables that fight each other, are misspelt or are not read by this version.

    FILES are environment dumps, scripts, env files or nccl.conf; without any, this process's own environment.
    """
    import os

    from atoll.doctor.lint_env import lint_environment
    from atoll.readers.environment import EnvironmentVariable, read_environment
    from atoll.readers.source import Source

    settings: list[EnvironmentVariable] = []
    for file in files:
        settings.extend(read_environment(_read(file), file))
    if not files:
        where = Source("environment", 0)
        settings = [EnvironmentVariable(name, value, where) for name, value in sorted(os.environ.items())]
    found = lint_environment(settings, nccl_version, torch_version)
    rows = [
        {
            "id": lint.id, "variable": lint.variable, "value": lint.value, "what": lint.what, "fix": lint.fix,
            "severity": lint.severity.name.lower(), "where": str(lint.source) if lint.source else "",
        }
        for lint in found
    ]  # fmt: skip
    return _print(rows, as_json, f"{len(settings)} variables, nothing to change")


command.add_command(check_command, "topology")


@command.command("timeouts")
@click.argument("files", nargs=-1, type=click.Path())
@click.option(
    "--nccl-ib", default="", metavar="TIME", help="NCCL's own limit for an unanswered packet, retries included."
)
@click.option("--process-group", default="", metavar="TIME", help="init_process_group(timeout=...).")
@click.option("--heartbeat", default="", metavar="TIME", help="TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC.")
@click.option("--elastic", default="", metavar="TIME", help="The elastic agent's join timeout.")
@click.option("--slurm", default="", metavar="TIME", help="The job's time limit.")
@click.option("--nccl", "nccl_version", default="", metavar="VERSION", help="Defaults of this NCCL version.")
@click.option("--torch", "torch_version", default="", metavar="VERSION", help="Defaults of this PyTorch version.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def timeouts_command(
    files: tuple[str, ...], nccl_ib: str, process_group: str, heartbeat: str, elastic: str, slurm: str,
    nccl_version: str, torch_version: str, as_json: bool,
) -> int:  # fmt: skip
    """The ladder of timeouts: each layer strictly longer than the one inside it.

    FILES are environment dumps; options overrule them; what is not set counts with its default. TIME is 90s, 15min, 2h.
    """
    from atoll.doctor.lint_timeouts import ladder, problems
    from atoll.readers.environment import read_environment
    from atoll.units import format_duration, parse_duration

    environment = {v.name: v.value for file in files for v in read_environment(_read(file), file)}
    given = {
        layer: parse_duration(text, f"--{layer.replace('_', '-')}")
        for layer, text in (
            ("nccl", nccl_ib), ("process_group", process_group), ("heartbeat", heartbeat), ("elastic", elastic),
            ("slurm", slurm),
        )
        if text
    }  # fmt: skip
    rungs = ladder(environment, given, nccl_version, torch_version)
    if not as_json:
        for rung in rungs:
            click.echo(f"{rung.name:14} {format_duration(rung.timeout_s):>10}  {rung.origin}")
    rows = [
        {
            "id": "H07", "what": problem.what, "fix": problem.fix, "severity": problem.severity.name.lower(),
            "inner": problem.inner.name, "outer": problem.outer.name,
        }
        for problem in problems(rungs)
    ]  # fmt: skip
    return _print(rows, as_json, "each layer outlasts the one inside it")


def _read(file: str) -> bytes:
    from pathlib import Path

    from atoll.errors import SpecError

    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror or error}") from error


def _print(rows: list[dict[str, str]], as_json: bool, clean: str) -> int:
    """Print problems; the exit status is 1 if there are any."""
    if as_json:
        import msgspec

        document = {"schema_version": 1, "problems": rows}
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        for row in rows:
            where = f"  [{row['where']}]" if row.get("where") else ""
            click.echo(f"{row['id']} {row['severity']}: {row['what']}{where}\n    do: {row['fix']}")
        if not rows:
            click.echo(clean)
    return 1 if rows else 0
