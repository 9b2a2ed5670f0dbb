"""``atoll topology``: show a cluster, check what tools printed of nodes, compare two nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from atoll.topology.cluster import Cluster
    from atoll.topology.lint import Problem
    from atoll.topology.seen import SeenNode

_GPU = click.option(
    "--gpu", "gpu_name", default="", metavar="NAME", help="The GPU's name (A800-SXM4-80GB), where the file has none."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document with schema_version on stdout.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def command() -> None:
    """Clusters and nodes: what they are made of, what is wrong with them, in what two differ.

    \b
    atoll topology show dgx-h100:16
    atoll topology show cluster.toml --sources
    nvidia-smi topo -m > node.txt; atoll topology check node.txt --gpu H100
    atoll topology diff node01.txt node02.txt
    """


@command.command("show")
@click.argument("target", required=False, metavar="PRESET[:COUNT]|FILE")
@_GPU
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="So many nodes of a preset or of FILE's node.")
@click.option("--hosts-are", "host_type", default="", metavar="PRESET", help="FILE is a list of hosts of this preset.")
@click.option("--sources", is_flag=True, help="The source of every figure.")
@click.option("--toml", "as_toml", is_flag=True, help="As TOML, to be changed and used in place of a preset.")
@click.option("--no-gpudirect", is_flag=True, help="Routes without GPUDirect.")
@click.option("--no-pxn", is_flag=True, help="Routes without PXN.")
@_JSON
def show_command(
    target: str | None, gpu_name: str, nodes: int | None, host_type: str, sources: bool, as_toml: bool,
    no_gpudirect: bool, no_pxn: bool, as_json: bool,
) -> None:  # fmt: skip
    """What a cluster is made of: links with bandwidth per direction, latency and origin; the fabric; typical routes.

    FILE is a cluster in TOML, `nvidia-smi topo -m`, `rocm-smi --showtopo`, NCCL topology XML, or a list of hosts.
    Without an argument the presets are listed. COUNT is of nodes, of racks for NVL72.
    """
    from atoll.errors import SpecError
    from atoll.topology.describe import describe
    from atoll.topology.load import load_cluster
    from atoll.topology.routes import Transport
    from atoll.topology.spec_write import write_cluster

    if as_toml and as_json:
        raise SpecError("--toml and --json are two forms of one cluster: choose one")
    if target is None:
        _list_presets(as_json)
        return
    loaded = load_cluster(target, nodes=nodes, gpu_name=gpu_name, host_type=host_type)
    transport = Transport(not no_gpudirect, not no_pxn)
    if as_toml:
        click.echo(write_cluster(loaded.cluster), nl=False)
    elif as_json:
        _print_json({"cluster": _cluster_json(loaded.cluster, transport), "notes": loaded.notes})
    else:
        click.echo(describe(loaded.cluster, sources=sources, transport=transport), nl=False)
    for note in loaded.notes if not as_json else ():
        click.echo(f"note: {note}", err=True)


@command.command("check")
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@_GPU
@_JSON
def check_command(files: tuple[str, ...], gpu_name: str, as_json: bool) -> int:
    """What is wrong with nodes: links whose ends disagree, too few NVLinks, slow twins, GPUs without a near NIC.

    FILE is `nvidia-smi topo -m` (of several hosts too), `rocm-smi --showtopo`, NCCL topology XML, or a cluster in TOML,
    whose mistakes are listed. Three or more nodes of one kind are also compared with each other.

    Exit status: 0 clean, 1 something is wrong, 2 unusable input.
    """
    from atoll.topology.lint import lint_nodes
    from atoll.topology.load import load_cluster

    nodes: list[SeenNode] = []
    clusters = 0
    for file in files:
        if file.lower().endswith(".toml"):
            load_cluster(file)
            clusters += 1
        else:
            nodes.extend(_nodes(file))
    problems = lint_nodes(nodes, gpu_name)
    if as_json:
        _print_json({"nodes": len(nodes), "clusters": clusters, "problems": [_problem_json(one) for one in problems]})
    else:
        for problem in problems:
            host = f"{problem.host}: " if problem.host else ""
            where = f"  [{problem.sources[0]}]" if problem.sources else ""
            click.echo(f"{problem.id} {problem.level}: {host}{problem.what}{where}\n    do: {problem.do}")
        if not problems:
            counted = [f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"] if nodes or not clusters else []
            counted += [f"{clusters} cluster{'s' if clusters != 1 else ''}"] if clusters else []
            click.echo(f"{' and '.join(counted)}, nothing wrong")
    return 1 if problems else 0


@command.command("diff")
@click.argument("left", type=click.Path())
@click.argument("right", type=click.Path())
@_JSON
def diff_command(left: str, right: str, as_json: bool) -> int:
    """In what two nodes differ: links, PCIe, NICs, and what lies between devices.

    LEFT and RIGHT are files as for `check`, each of one node; of a file with several hosts name one: FILE@HOST.

    Exit status: 0 alike, 1 different, 2 unusable input.
    """
    from atoll.topology.diff import diff_nodes

    one, other = _node(left), _node(right)
    differences = diff_nodes(one, other)
    if as_json:
        rows = [
            {"device": row.device, "what": row.what, "left": row.left, "right": row.right} for row in differences
        ]  # fmt: skip
        _print_json({"left": left, "right": right, "differences": rows})
    elif not differences:
        click.echo(f"{left} and {right} are alike in all that both say")
    else:
        for row in differences:
            click.echo(f"{row.device}: {row.what}: {row.left} | {row.right}")
    return 1 if differences else 0


def _nodes(file: str) -> tuple[SeenNode, ...]:
    from atoll.topology.load import read_file, seen_nodes

    return seen_nodes(read_file(file), file)


def _node(text: str) -> SeenNode:
    """One node: ``FILE`` or ``FILE@HOST``."""
    from pathlib import Path

    from atoll.errors import SpecError, nearest

    file, at, host = text.rpartition("@")
    if not at or Path(text).is_file():
        file, host = text, ""
    nodes = _nodes(file)
    if host:
        found = next((node for node in nodes if node.host == host), None)
        if found is None:
            raise SpecError(f"{file} has no host {host!r}: {nearest(host, [node.host for node in nodes])}")
        return found
    if len(nodes) > 1:
        names = ", ".join(node.host or str(node.source) for node in nodes[:8])
        raise SpecError(f"{file}: {len(nodes)} nodes; name one as FILE@HOST: {names}")
    return nodes[0]


def _list_presets(as_json: bool) -> None:
    from atoll.topology.presets import PRESETS

    if as_json:
        rows = [{"name": one.name, "summary": one.summary, "unit": one.unit} for one in PRESETS.values()]
        _print_json({"presets": rows})
        return
    width = max(len(name) for name in PRESETS)
    for one in PRESETS.values():
        click.echo(f"  {one.name.ljust(width)}  {one.summary}")


def _problem_json(problem: Problem) -> dict[str, Any]:
    return {
        "id": problem.id, "level": problem.level, "what": problem.what, "do": problem.do, "host": problem.host,
        "things": problem.things, "where": [str(source) for source in problem.sources],
    }  # fmt: skip


def _cluster_json(cluster: Cluster, transport: Any) -> dict[str, Any]:
    """The cluster as it stands, its counts, and the typical routes."""
    from atoll.topology.describe import typical_pairs
    from atoll.topology.names import link_name
    from atoll.topology.routes import find_routes

    pairs = typical_pairs(cluster)
    routes = find_routes(cluster, [a for _, a, _ in pairs], [b for _, _, b in pairs], 0, transport)
    usable, latency = routes.bottleneck_bytes_per_s(cluster), routes.latency_s(cluster)
    return {
        "description": cluster,
        "nodes": cluster.num_nodes, "gpus": cluster.num_gpus, "islands": cluster.num_islands,
        "directed_links": cluster.num_links,
        "routes": [
            {
                "what": what, "src_gpu": a, "dst_gpu": b, "usable_bytes_per_s": float(usable[at]),
                "latency_s": float(latency[at]), "links": [link_name(cluster, int(link)) for link in routes[at]],
            }
            for at, (what, a, b) in enumerate(pairs)
        ],
    }  # fmt: skip


def _print_json(document: dict[str, Any]) -> None:
    import msgspec

    encoded = msgspec.json.encode({"schema_version": 1, **document})
    click.echo(msgspec.json.format(encoded, indent=2).decode())
