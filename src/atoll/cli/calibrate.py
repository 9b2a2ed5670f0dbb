"""``atoll calibrate``: what somebody measured, made into a model of their cluster with its own residuals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atoll.errors import SpecError

if TYPE_CHECKING:
    from atoll.readers.nccl_tests import NcclTestRun
    from atoll.simulator.calibration import Calibration, Observation, Source
    from atoll.simulator.prediction import Spread
    from atoll.topology.cluster import Cluster

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

    A LOG may also be what atoll bench --json wrote of rings, direct and hierarchical algorithms. Then latencies and
    rates of all links are fitted, and what is stored is the cluster itself with these figures, to be used as --cluster.
    """
    from atoll import __version__
    from atoll.readers.bench_json import is_bench_json
    from atoll.readers.identify import HEAD_BYTES
    from atoll.simulator.calibration import calibrate
    from atoll.simulator.calibration_file import write_calibration
    from atoll.topology.load import load_cluster

    loaded = load_cluster(target, nodes=nodes)
    contents = {log: _read(log) for log in logs}
    benches = [log for log, data in contents.items() if is_bench_json(data[:HEAD_BYTES])]
    if benches:
        if len(benches) < len(logs):
            raise SpecError(f"{benches[0]} is of atoll bench, the others are not; calibrate with one kind at a time")
        _calibrate_links(loaded.cluster, contents, output, as_json)
        return
    environment = nccl_variables(variables)
    seen: list[Observation] = []
    sources: list[Source] = []
    for log in logs:
        for run in _runs(log, contents[log], collective):
            _add(run, log, loaded.cluster, ranks, environment, seen, sources)
    if not seen:
        raise SpecError(f"{', '.join(logs)}: no measured times in it; expected nccl-tests output")
    title = name or loaded.cluster.name
    result = calibrate(seen, title, loaded.cluster.name, sources, f"atoll {__version__}")
    text = write_calibration(result)
    for note in loaded.notes:
        click.echo(f"note: {note}", err=True)
    _deliver(_summary(result), text, output, {"calibration": result} if as_json else None)


def _deliver(summary: list[str], text: str, output: str | None, document: dict[str, Any] | None) -> None:
    """The file, and the summary or a JSON document. Data goes to stdout: the file where it is not stored."""
    if output is not None:
        try:
            Path(output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise SpecError(f"{output}: cannot be written: {error.strerror or error}") from error
    if document is not None:
        import msgspec

        encoded = msgspec.json.encode({"schema_version": 1, **document, "stored": output})
        click.echo(msgspec.json.format(encoded, indent=2).decode())
        return
    for line in summary:
        click.echo(line, err=output is None)
    if output is None:
        click.echo(text, nl=False)
    else:
        click.echo(f"stored in {output}")


def _calibrate_links(cluster: Cluster, contents: dict[str, bytes], output: str | None, as_json: bool) -> None:
    from atoll.readers.bench_json import read_bench_json
    from atoll.simulator.calibration_links import calibrate_links
    from atoll.topology.spec_write import write_cluster

    rows = [row for log, data in contents.items() for row in read_bench_json(data, log)]
    names = ", ".join(Path(log).name for log in contents)
    found = calibrate_links(cluster, rows, names)
    summary = [f"{found.cluster.name}: {found.rows} times of {names}"]
    summary += [f"  latency of links   x {found.latency:.4g}", f"  bandwidth of links x {found.bandwidth:.4g}"]
    summary += [*_residuals(found.spreads), *(f"left out: {why}" for why in found.left_out)]
    head = "".join(f"# {line}\n" for line in summary)
    _deliver(summary, head + write_cluster(found.cluster), output, {"calibration": found} if as_json else None)


def nccl_variables(variables: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE of ``-x``, as mpirun takes it."""
    environment = {}
    for text in variables:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise SpecError(f"-x: expected NAME=VALUE such as NCCL_ALGO=Ring, got {text!r}")
        environment[key] = value
    return environment


def _read(log: str) -> bytes:
    try:
        with Path(log).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{log}: cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise SpecError(f"{log}: larger than {MAX_BYTES >> 20} MiB; cut it to the tables")
    return data


def _runs(log: str, data: bytes, collective: str) -> list[NcclTestRun]:
    import msgspec

    from atoll.readers.measurements import read_measurements

    runs = read_measurements(data, log)
    if not runs:
        raise SpecError(f"{log}: no measured times in it; expected nccl-tests output, its JSON, or a table of times")
    named = collective.replace("-", "_")
    return [run if run.collective or not named else msgspec.structs.replace(run, collective=named) for run in runs]


def _add(
    run: NcclTestRun, log: str, cluster: Cluster, ranks: int | None, environment: dict[str, str],
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
    rows = sum(spread.rows for spread in result.spreads)
    lines = [f"{result.name}: {rows} times, {len(result.fitted)} factors fitted, over NCCL's own figures"]
    lines += [f"  {name:<18}{getattr(result.factors, name):8.3f}" for name in result.fitted]
    return lines + _residuals(result.spreads)


def _residuals(spreads: tuple[Spread, ...]) -> list[str]:
    from atoll.simulator.prediction import BAND_NAMES

    lines = ["residual, measured over predicted:", f"  {'':<14}{'rows':>6}{'median':>9}{'10 %':>9}{'90 %':>9}"]
    for name, spread in zip(BAND_NAMES, spreads, strict=True):
        if spread.known:
            lines.append(f"  {name:<14}{spread.rows:>6}{spread.median:>9.3f}{spread.low:>9.3f}{spread.high:>9.3f}")
        else:
            lines.append(f"  {name:<14}{0:>6}        -  not measured")
    return lines
