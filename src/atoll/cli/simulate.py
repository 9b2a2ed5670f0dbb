"""``atoll simulate``: what algorithms cost on a cluster, in virtual time: busbw, the critical path, use of links."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from atoll.cli.schedule_source import collective_name
from atoll.errors import SpecError
from atoll.units import format_size, parse_size

if TYPE_CHECKING:
    from atoll.simulator.side_by_side import Candidate
    from atoll.trace.events import Trace

MAX_SIZES = 1000
MAX_GPUS = 1024


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]})
@click.argument("collective", default="all-reduce")
@click.option("--cluster", "target", required=True, metavar="PRESET[:COUNT]|FILE", help="As for `topology show`.")
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="So many nodes of the preset or of FILE's node.")
@click.option("--gpus", type=click.IntRange(2), metavar="N", help="Ranks, on the first N GPUs.  [default: all]")
@click.option("--algorithm", "algorithms", metavar="NAME[,NAME]", help="One, or several side by side; nccl: its own.")
@click.option("--channels", type=click.IntRange(1, 64), metavar="N",
              help="Of each algorithm.  [default: a node's NICs, where fewer leave some idle]")  # fmt: skip
@click.option("--size", "size_list", metavar="SIZE[,SIZE]", help="Sizes, in place of -b, -e and -f.")
@click.option("-b", "--minbytes", default="1M", show_default=True, metavar="SIZE", help="First size.")
@click.option("-e", "--maxbytes", default="1G", show_default=True, metavar="SIZE", help="Last size.")
@click.option(
    "-f", "--stepfactor", type=click.IntRange(2), default=4, show_default=True, help="Each size so many times."
)
@click.option("-d", "--datatype", default="float", show_default=True, metavar="TYPE", help="As nccl-tests names it.")
@click.option("--segment", metavar="SIZE", help="Longest piece that moves whole.  [default: 512K, or 1/128 of SIZE]")
@click.option("-r", "--root", type=int, default=0, show_default=True, metavar="RANK", help="For rooted collectives.")
@click.option("-x", "variables", multiple=True, metavar="NAME=VALUE", help="A variable of NCCL, for nccl. Repeatable.")
@click.option(
    "--without", "lost", multiple=True, metavar="NODE/NIC", help="A NIC that is gone: node1/nic2. Repeatable."
)
@click.option("--slow", multiple=True, metavar="PART=SHARE", help="A part at a share of its speed: node1/nic2=50%.")
@click.option("--links", type=click.IntRange(1), metavar="N", help="Show the N busiest links of each, too.")
@click.option("--trace", "trace_file", metavar="FILE",
              help="Write when each message was on its way, for ui.perfetto.dev.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document with schema_version on stdout.")
def command(
    collective: str, target: str, nodes: int | None, gpus: int | None, algorithms: str | None, channels: int | None,
    size_list: str | None, minbytes: str, maxbytes: str, stepfactor: int, datatype: str, segment: str | None, root: int,
    variables: tuple[str, ...], lost: tuple[str, ...], slow: tuple[str, ...],
    links: int | None, trace_file: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Play the schedules of COLLECTIVE over a cluster in virtual time. Nothing is run.

    \b
    atoll simulate all-reduce --cluster dgx-h100 --nodes 16 --size 1G --algorithm ring,tree,hierarchical,nccl
    atoll simulate all-reduce --cluster dgx-h100:4 --size 1G --slow node3/nic2=50%
    atoll simulate all-to-all --cluster gb200-nvl72 --gpus 16 -b 1M -e 64M --json
    atoll simulate all-reduce --cluster dgx-h100:2 --size 16M --trace ring.json

    Transfers start when their data is there, pay the latency of their route, and share links by max-min fairness. Rank
    r is on GPU r; tree is double_binary_tree; hierarchical takes the cluster's islands. An algorithm that leaves NICs
    idle runs on as many channels as a node has NICs, each with the order of ranks rotated. Reductions take no time, and
    there is no software in between; nccl is what NCCL would do, as atoll predict has it.

    The table has the columns of nccl-tests, and what the last byte waited for. In the file of --trace every rank is a
    process and every direction of a connection a track, as in that of atoll bench --trace. Sizes are binary: 1M is
    1 MiB.
    """
    from atoll.algorithms.catalog import default
    from atoll.cli.bench import write_file
    from atoll.cli.calibrate import nccl_variables
    from atoll.cli.predict import changed_cluster
    from atoll.report.perfetto import check_count, perfetto
    from atoll.report.simulation_table import Shape, document, line, link_lines, preamble
    from atoll.runtime.benchmark import dtype_named
    from atoll.schedule.bus_bandwidth import BUSBW_FACTOR
    from atoll.schedule.contract import COLLECTIVES
    from atoll.simulator.side_by_side import candidate, play
    from atoll.topology.load import load_cluster

    name = collective_name(collective)
    if name not in BUSBW_FACTOR:
        raise SpecError(f"{collective}: has no size to simulate; expected one of {', '.join(BUSBW_FACTOR)}")
    sizes = _sizes(size_list, minbytes, maxbytes, stepfactor)
    longest = None if segment is None else parse_size(segment, "--segment")
    environment = nccl_variables(variables)
    element = dtype_named(datatype)
    loaded = load_cluster(target, nodes=nodes)
    cluster = changed_cluster(loaded.cluster, lost, slow)
    ranks = cluster.num_gpus if gpus is None else gpus
    rooted = COLLECTIVES[name].rooted
    if not 2 <= ranks <= cluster.num_gpus:
        raise SpecError(f"expected 2 to {cluster.num_gpus} ranks, as many as the cluster has GPUs, got {ranks}")
    if rooted and not 0 <= root < ranks:
        raise SpecError(f"--root: expected a rank between 0 and {ranks - 1}, got {root}")
    asked = [part.strip().replace("-", "_") for part in (algorithms or default(name)).split(",")]
    if ranks > MAX_GPUS and set(asked) != {"nccl"}:
        raise SpecError(
            f"the flow level plays {MAX_GPUS} ranks at most, got {ranks}; give --gpus, or --algorithm nccl alone"
        )
    candidates: list[Candidate] = [
        candidate(cluster, name, one, ranks, root=root if rooted else None, channels=channels) for one in asked
    ]
    shape = Shape(name, ranks, str(element), element.itemsize, root if rooted else -1)
    for note in loaded.notes:
        click.echo(f"note: {note}", err=True)
    if trace_file is not None:
        if not any(one.proven is not None for one in candidates):
            raise SpecError("--trace: nccl is predicted, not played: expected another algorithm, too")
        check_count(2 * len(sizes) * sum(len(one.proven.schedule) for one in candidates if one.proven is not None))
        write_file("--trace", trace_file, b"", "ab")
    traces: list[Trace] | None = None if trace_file is None else []
    if not as_json:
        click.echo("\n".join(preamble(shape, cluster.name, candidates)))
    results = []
    for size in sizes:
        for chosen in candidates:
            _progress(f"  {format_size(size)}, {chosen.name} ...")
            found = play(
                cluster, chosen, size, segment_bytes=longest, dtype=datatype, environment=environment, traces=traces
            )  # fmt: skip
            _progress("")
            results.append(found)
            if not as_json:
                click.echo(line(shape, found))
    if links is not None and not as_json:
        click.echo("\n".join(text for found in results for text in link_lines(found, links)))
    if trace_file is not None and traces:
        from atoll.trace.events import one_after_the_other

        write_file("--trace", trace_file, perfetto(one_after_the_other(traces)), "wb")
    if as_json:
        import msgspec

        page = msgspec.json.encode(document(shape, cluster.name, candidates, results))
        click.echo(msgspec.json.format(page, indent=2).decode())


def _progress(text: str) -> None:
    """A line on a terminal's stderr that says what is played now."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def _sizes(size_list: str | None, minbytes: str, maxbytes: str, stepfactor: int) -> list[int]:
    from atoll.cli.predict import swept_sizes

    found = swept_sizes(size_list, minbytes, maxbytes, stepfactor)
    if min(found) < 1:
        raise SpecError("--size: expected at least 1 byte")
    return found
