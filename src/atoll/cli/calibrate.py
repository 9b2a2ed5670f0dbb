"""``atoll calibrate``: what somebody measured, made into a model of their cluster with its own residuals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atoll.errors import SpecError

if TYPE_CHECKING:
    from atoll.readers.nccl_tests import NcclTestRun
    from atoll.simulator.calibration import Calibration, Observation, Source

MAX_BYTES = 256 << 20


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]})
@click.argument("logs", nargs=-1, required=True, type=click.Path(), metavar="LOG...")
@click.option("--cluster", "target", required=True, metavar="PRESET[:COUNT]|FILE", help="Where it was measured.")
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="So many nodes of the preset.")
@click.option("--collective", default="", metavar="NAME", help="Which it is, where LOG does not say.")
@click.option("--ranks", type=click.IntRange(2), metavar="N", help="How many there were, where LOG does not say.")
@click.option(
    "-x", "variables", multiple=True, metavar="NAME=VALUE", help="A variable of NCCL that was set. Repeatable."
)
@click.option("-o", "--output", metavar="FILE", help="Store the calibration there.  [default: stdout]")
@click.option("--name", default="", metavar="NAME", help="What to call it.  [default: the cluster's]")
@click.option("--json", "as_json", is_flag=True, help="One JSON document with schema_version on stdout.")
def command(
    logs: tuple[str, ...], target: str, nodes: int | None, collective: str, ranks: int | None,
    variables: tuple[str, ...], output: str | None, name: str, as_json: bool,
) -> None:  # fmt: skip
    """Fit the NCCL model of a cluster to measured times, and say how far off it still is.

    \b
    atoll calibrate all_reduce.log --cluster dgx-h100:2 -o mine.toml
    atoll calibrate 2gpus.log 8gpus.log --cluster dgx-a100 -o a100.toml
    atoll calibrate pasted.txt --cluster cluster.toml --collective all-gather --ranks 16

    LOG is nccl-tests output as it was pasted (any version's columns, launcher prefixes and NCCL lines in between), its
    JSON report, a table with a '# columns:' line, or a CSV sweep. At most six factors are fitted. The stored file is
    TOML: the factors, measured over predicted by band of sizes, and where the numbers came from; predictions that are
    given it print an interval from these residuals.
    """
    from atoll import __version__
    from atoll.simulator.calibration import calibrate
    from atoll.simulator.calibration_file import write_calibration
    from atoll.topology.load import load_cluster

    loaded = load_cluster(target, nodes=nodes)
    environment = _environment(variables)
    seen: list[Observation] = []
    sources: list[Source] = []
    for log in logs:
        for run in _runs(log, collective):
            _add(run, log, loaded.cluster, ranks, environment, seen, sources)
    if not seen:
        raise SpecError(f"{', '.join(logs)}: no measured times in it; expected nccl-tests output")
    title = name or loaded.cluster.name
    result = calibrate(seen, title, loaded.cluster.name, sources, f"atoll {__version__}")
    text = write_calibration(result)
    if output is not None:
        try:
            Path(output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise SpecError(f"{output}: cannot be written: {error.strerror or error}") from error
    for note in loaded.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        import msgspec

        document = {"schema_version": 1, "calibration": result, "stored": output}
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
        return
    # Data goes to stdout: the file where there is none, else the summary.
    for line in _summary(result):
        click.echo(line, err=output is None)
    if output is None:
        click.echo(text, nl=False)
    else:
        click.echo(f"stored in {output}")


def _environment(variables: tuple[str, ...]) -> dict[str, str]:
    environment = {}
    for text in variables:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise SpecError(f"-x: expected NAME=VALUE such as NCCL_ALGO=Ring, got {text!r}")
        environment[key] = value
    return environment


def _runs(log: str, collective: str) -> list[NcclTestRun]:
    import msgspec

    from atoll.readers.measurements import read_measurements

    try:
        with Path(log).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{log}: cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise SpecError(f"{log}: larger than {MAX_BYTES >> 20} MiB; cut it to the tables")
    runs = read_measurements(data, log)
    if not runs:
        raise SpecError(f"{log}: no measured times in it; expected nccl-tests output, its JSON, or a table of times")
    named = collective.replace("-", "_")
    return [run if run.collective or not named else msgspec.structs.replace(run, collective=named) for run in runs]


def _add(
    run: NcclTestRun, log: str, cluster: Any, ranks: int | None, environment: dict[str, str],
    seen: list[Observation], sources: list[Source],
) -> None:  # fmt: skip
    from atoll.simulator.calibration import Source
    from atoll.simulator.measured import observations, placed_communicator, placed_on, ranks_of, without_warm_up

    count = ranks or ranks_of(run)
    if count is None:
        raise SpecError(f"{run.source}: does not say how many ranks there were; give --ranks")
    communicator = placed_communicator(placed_on(cluster, run, count))
    rows = without_warm_up(observations(run, communicator, environment))
    seen.extend(rows)
    if rows:
        sources.append(Source(Path(log).name, run.collective, count, len(rows), run.nccl_version))


def _summary(result: Calibration) -> list[str]:
    """What was fitted and how far off it is, for people."""
    from atoll.simulator.prediction import BAND_NAMES

    rows = sum(spread.rows for spread in result.spreads)
    lines = [f"{result.name}: {rows} times, {len(result.fitted)} factors fitted, over NCCL's own figures"]
    lines += [f"  {name:<18}{getattr(result.factors, name):8.3f}" for name in result.fitted]
    lines.append("residual, measured over predicted:")
    lines.append(f"  {'':<14}{'rows':>6}{'median':>9}{'10 %':>9}{'90 %':>9}")
    for name, spread in zip(BAND_NAMES, result.spreads, strict=True):
        if spread.known:
            lines.append(f"  {name:<14}{spread.rows:>6}{spread.median:>9.3f}{spread.low:>9.3f}{spread.high:>9.3f}")
        else:
            lines.append(f"  {name:<14}{0:>6}        -  not measured")
    return lines
