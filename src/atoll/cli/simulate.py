"""``atoll simulate``: what algorithms cost on a cluster, in virtual time: busbw, the critical path, use of links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from atoll.cli.schedule_source import collective_name
from atoll.errors import SpecError
from atoll.units import format_duration, parse_size

if TYPE_CHECKING:
    from atoll.schedule.prove import ProvenSchedule
    from atoll.simulator.flow import Outcome
    from atoll.topology.cluster import Cluster

SCHEMA_VERSION = 1
MAX_SIZES = 1000
MAX_GPUS = 1024
DEFAULT_SEGMENT_BYTES = 512 << 10
MOST_SEGMENTS = 128  # that the default cuts a whole vector into
# What people call NCCL's tree; it is the double binary tree.
NICKNAMES = {"tree": "double_binary_tree"}


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]})
@click.argument("collective", default="all-reduce")
@click.option("--cluster", "target", required=True, metavar="PRESET[:COUNT]|FILE", help="As for `topology show`.")
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="So many nodes of the preset or of FILE's node.")
@click.option("--gpus", type=click.IntRange(2), metavar="N", help="Ranks, on the first N GPUs.  [default: all]")
@click.option("--algorithm", "algorithms", metavar="NAME[,NAME]", help="One, or several side by side.")
@click.option("--size", "size_list", metavar="SIZE[,SIZE]", help="Sizes, in place of -b, -e and -f.")
@click.option("-b", "--minbytes", default="1M", show_default=True, metavar="SIZE", help="First size.")
@click.option("-e", "--maxbytes", default="1G", show_default=True, metavar="SIZE", help="Last size.")
@click.option(
    "-f", "--stepfactor", type=click.IntRange(2), default=4, show_default=True, help="Each size so many times."
)
@click.option("--segment", metavar="SIZE", help="Longest piece that moves whole.  [default: 512K, or 1/128 of SIZE]")
@click.option("-r", "--root", type=int, default=0, show_default=True, metavar="RANK", help="For rooted collectives.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document with schema_version on stdout.")
def command(
    collective: str, target: str, nodes: int | None, gpus: int | None, algorithms: str | None, size_list: str | None,
    minbytes: str, maxbytes: str, stepfactor: int, segment: str | None, root: int, as_json: bool,
) -> None:  # fmt: skip
    """Play the schedules of COLLECTIVE over a cluster in virtual time. Nothing is run.

    \b
    atoll simulate all-reduce --cluster dgx-h100 --nodes 2 --size 64M --algorithm ring,tree,hierarchical
    atoll simulate all-to-all --cluster gb200-nvl72 --gpus 16 -b 1M -e 64M --json

    Transfers start when their data is there, pay the latency of their route, and share links by max-min fairness. Rank
    r is on GPU r; tree is double_binary_tree; hierarchical takes the cluster's islands. One channel of the plain
    algorithm, with no software in between: atoll predict says what NCCL does with many. Reductions take no time.
    Sizes are binary: 1M is 1 MiB.
    """
    from atoll.algorithms.catalog import default
    from atoll.schedule.bus_bandwidth import BUSBW_FACTOR
    from atoll.topology.load import load_cluster

    name = collective_name(collective)
    if name not in BUSBW_FACTOR:
        raise SpecError(f"{collective}: has no size to simulate; expected one of {', '.join(BUSBW_FACTOR)}")
    loaded = load_cluster(target, nodes=nodes)
    cluster = loaded.cluster
    ranks = cluster.num_gpus if gpus is None else gpus
    if not 2 <= ranks <= min(cluster.num_gpus, MAX_GPUS):
        raise SpecError(
            f"expected 2 to {min(cluster.num_gpus, MAX_GPUS)} ranks (the cluster has {cluster.num_gpus} GPUs, and the "
            f"flow level plays {MAX_GPUS} at most), got {ranks}; give --gpus, or ask atoll predict"
        )
    sizes = _sizes(size_list, minbytes, maxbytes, stepfactor)
    longest = None if segment is None else parse_size(segment, "--segment")
    asked = [part.strip().replace("-", "_") for part in (algorithms or default(name)).split(",")]
    proven = {one: _proven(name, one, cluster, ranks, root) for one in asked}
    for note in loaded.notes:
        click.echo(f"note: {note}", err=True)
    results = []
    if not as_json:
        click.echo(f"# {name.replace('_', '-')} of {ranks} ranks on {cluster.name}, simulated")
        click.echo(f"# {'size (B)':>12} {'algorithm':>20} {'time (us)':>12} {'algbw':>8} {'busbw':>8}  critical path")
    for size in sizes:
        for one, schedule in proven.items():
            result = _result(cluster, schedule, one, size, longest)
            results.append(result)
            if not as_json:
                click.echo(
                    f"  {size:>12} {one:>20} {result['time_s'] * 1e6:>12.2f} {result['algbw_bytes_per_s'] / 1e9:>8.2f} "
                    f"{result['busbw_bytes_per_s'] / 1e9:>8.2f}  {_words(result)}"
                )
    if as_json:
        import msgspec

        document = {
            "schema_version": SCHEMA_VERSION, "cluster": cluster.name, "collective": name, "ranks": ranks,
            "results": results,
        }  # fmt: skip
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def _proven(collective: str, asked: str, cluster: Cluster, ranks: int, root: int) -> ProvenSchedule:
    from atoll.algorithms.catalog import build
    from atoll.schedule.contract import COLLECTIVES
    from atoll.schedule.prove import prove

    options: dict[str, Any] = {}
    if asked == "hierarchical":
        options["islands"] = cluster.island_of_gpu(range(ranks)).tolist()
    where = root if COLLECTIVES[collective].rooted else None
    return prove(build(collective, NICKNAMES.get(asked, asked), ranks, where, **options))


def _result(cluster: Cluster, proven: ProvenSchedule, name: str, size: int, segment: int | None) -> dict[str, Any]:
    from atoll.schedule.bus_bandwidth import busbw_factor
    from atoll.simulator.flow import Job, simulate

    header = proven.schedule.header
    longest = segment if segment is not None else max(DEFAULT_SEGMENT_BYTES, size // MOST_SEGMENTS)
    found = simulate([Job(proven, tuple(range(header.world_size)), size, label=name)], cluster, segment_bytes=longest)
    algbw = size / found.finish_s if found.finish_s > 0 else 0.0
    return {
        "size_bytes": size, "algorithm": name, "time_s": found.finish_s, "algbw_bytes_per_s": algbw,
        "busbw_bytes_per_s": algbw * busbw_factor(header.collective, header.world_size),
        "rank_finish_s": found.rank_finish_s[0].tolist(), "critical_path": _critical(cluster, found),
        "links": _links(cluster, found),
    }  # fmt: skip


def _critical(cluster: Cluster, found: Outcome) -> list[dict[str, Any]]:
    """What the critical path waits for, longest first."""
    from atoll.topology.names import link_name

    return [
        {"waits_for": "latency" if link < 0 else link_name(cluster, link), "time_s": time,
         "share": time / found.finish_s}
        for link, time in found.critical_s
    ]  # fmt: skip


def _links(cluster: Cluster, found: Outcome) -> list[dict[str, Any]]:
    """Every link that carried something, busiest first."""
    from atoll.topology.names import link_name

    could = cluster.usable_bytes_per_s * found.finish_s
    used = [
        {"link": link_name(cluster, int(at)), "bytes": float(found.link_bytes[at]),
         "use": float(found.link_bytes[at] / could[at])}
        for at in found.link_bytes.nonzero()[0]
    ]  # fmt: skip
    return sorted(used, key=lambda one: -one["use"])


def _words(result: dict[str, Any]) -> str:
    path = result["critical_path"]
    if not path:
        return "nothing to wait for"
    first = path[0]
    others = f" and {len(path) - 1} more" if len(path) > 1 else ""
    return f"{first['share']:.0%} waits for {first['waits_for']} ({format_duration(first['time_s'])}){others}"


def _sizes(size_list: str | None, minbytes: str, maxbytes: str, stepfactor: int) -> list[int]:
    from atoll.cli.predict import swept_sizes

    found = swept_sizes(size_list, minbytes, maxbytes, stepfactor)
    if min(found) < 1:
        raise SpecError("--size: expected at least 1 byte")
    return found
