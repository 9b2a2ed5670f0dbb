"""``atoll predict``: what NCCL will choose for a collective on a cluster, why, and how long it takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from atoll.errors import SpecError
from atoll.units import parse_size

if TYPE_CHECKING:
    from atoll.simulator.calibration import Calibration
    from atoll.topology.cluster import Cluster

MAX_SIZES = 1000


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]})
@click.argument("collective", default="all-reduce")
@click.option("--cluster", "target", required=True, metavar="PRESET[:COUNT]|FILE", help="As for `topology show`.")
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="So many nodes of the preset or of FILE's node.")
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="Ranks, on the first N GPUs.  [default: all]")
@click.option("--size", "size_list", metavar="SIZE[,SIZE]", help="Sizes, in place of -b, -e and -f.")
@click.option("-b", "--minbytes", default="8", show_default=True, metavar="SIZE", help="First size.")
@click.option("-e", "--maxbytes", default="8G", show_default=True, metavar="SIZE", help="Last size.")
@click.option(
    "-f", "--stepfactor", type=click.IntRange(2), default=4, show_default=True, help="Each size so many times."
)
@click.option("-d", "--datatype", default="float", show_default=True, metavar="TYPE", help="As nccl-tests names it.")
@click.option(
    "-x", "variables", multiple=True, metavar="NAME=VALUE", help="A variable of NCCL: NCCL_ALGO=Ring. Repeatable."
)
@click.option("--nccl", "version", metavar="VERSION", help="NCCL's version (2.27.3), for what depends on it.")
@click.option(
    "--without", "lost", multiple=True, metavar="NODE/NIC", help="A NIC that is gone: node1/nic2. Repeatable."
)
@click.option("--slow", multiple=True, metavar="PART=SHARE", help="A part at a share of its speed: node1/nic2=50%.")
@click.option("--calibration", "stored", metavar="FILE", help="What atoll calibrate stored.")
@click.option(
    "--compare", is_flag=True, help="Beside the cluster as it is and NCCL as it is set: what the options cost."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document with schema_version on stdout.")
def command(
    collective: str, target: str, nodes: int | None, gpus: int | None, size_list: str | None, minbytes: str,
    maxbytes: str, stepfactor: int, datatype: str, variables: tuple[str, ...], lost: tuple[str, ...],
    slow: tuple[str, ...], stored: str | None, compare: bool, as_json: bool, version: str | None,
) -> None:  # fmt: skip
    """What NCCL will choose for COLLECTIVE on a cluster, why, and how long it takes. Nothing is run.

    \b
    atoll predict all-reduce --cluster dgx-h100:2
    atoll predict all-reduce --cluster dgx-h100:16 --size 1G -x NCCL_NVLS_ENABLE=0 --compare
    atoll predict all-to-all --cluster gb200-nvl72:2 --gpus 128 -b 1M
    atoll predict all-reduce --cluster dgx-h100:4 --size 1G --without node3/nic2 --compare
    atoll predict all-reduce --cluster dgx-h100:2 --calibration mine.toml

    NCCL's own tuner chooses; the time is that of its kernels over the cluster's links (docs/accuracy.md says how far
    off it has been). Sizes are nccl-tests', binary: 1M is 1 MiB.
    """
    from atoll.cli.calibrate import nccl_variables
    from atoll.report.prediction_report import HEADER, basis, comparison, document, line, reasons
    from atoll.simulator.nccl import predict
    from atoll.simulator.nccl_constants import NCCL_VERSION
    from atoll.topology.load import load_cluster

    loaded = load_cluster(target, nodes=nodes)
    cluster = changed_cluster(loaded.cluster, lost, slow)
    environment = nccl_variables(variables)
    calibration = None if stored is None else stored_calibration(stored)
    sizes = swept_sizes(size_list, minbytes, maxbytes, stepfactor)
    known = version or NCCL_VERSION
    found = [
        predict(cluster, collective, size, gpus, environment=environment, dtype=datatype, calibration=calibration,
                version=known)
        for size in sizes
    ]  # fmt: skip
    for note in loaded.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(document(cluster.name, found)), indent=2).decode())
        return
    name = found[0].collective.replace("_", "-")
    click.echo(f"# {name} of {found[0].ranks} ranks on {cluster.name}, as NCCL {known} does it")
    click.echo(HEADER)
    for one in found:
        click.echo(line(one))
    for text in [*reasons(found), basis(found[0])]:
        click.echo(text)
    if compare:
        plain = predict(
            loaded.cluster, collective, sizes[-1], gpus, dtype=datatype, calibration=calibration,
            version=known,
        )  # fmt: skip
        given = " ".join([*variables, *(f"without {part}" for part in lost), *(f"slow {part}" for part in slow)])
        plans = {"as it is": plain, given or "the same": found[-1]}
        click.echo(f"# {sizes[-1]} B:")
        for text in comparison(plans):
            click.echo(text)


def changed_cluster(cluster: Cluster, lost: tuple[str, ...], slow: tuple[str, ...]) -> Cluster:
    """The cluster of ``--without`` and ``--slow``."""
    from atoll.topology.parts import slowed, without
    from atoll.units import parse_fraction

    for part in lost:
        cluster = without(cluster, part)
    for text in slow:
        part, equals, share = text.partition("=")
        if not equals:
            raise SpecError(f"--slow: expected PART=SHARE such as node1/nic2=50%, got {text!r}")
        cluster = slowed(cluster, part, parse_fraction(share, "--slow"))
    return cluster


def stored_calibration(path: str) -> Calibration:
    """What ``atoll calibrate`` stored. Raises ``SpecError`` for what cannot be read."""
    from atoll.simulator.calibration_file import MAX_BYTES, read_calibration

    try:
        with Path(path).open("rb") as stream:
            return read_calibration(stream.read(MAX_BYTES + 1), path)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}") from error


def swept_sizes(size_list: str | None, minbytes: str, maxbytes: str, stepfactor: int) -> list[int]:
    if size_list is not None:
        return [parse_size(text, "--size") for text in size_list.split(",")]
    first, last = parse_size(minbytes, "--minbytes"), parse_size(maxbytes, "--maxbytes")
    if first < 1 or last < first:
        raise SpecError(
            f"sizes: expected at least 1 byte and --maxbytes not below --minbytes, got {minbytes} and {maxbytes}"
        )
    sizes = [first]
    while sizes[-1] * stepfactor <= last and len(sizes) < MAX_SIZES:
        sizes.append(sizes[-1] * stepfactor)
    return sizes
