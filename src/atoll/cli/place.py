"""``atoll place``: ranks on GPUs, what each group crosses, what it costs, and what would be better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from atoll.planning.blast_radius import Blast
    from atoll.planning.parallelism import Parallelism
    from atoll.planning.placement import Placement
    from atoll.planning.search import Candidate, Search
    from atoll.planning.traffic import Cost, Demand
    from atoll.simulator.prediction import Spread

_DEGREE = click.IntRange(1)
_SHOWN = 5


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--cluster", "target", required=True, metavar="PRESET[:COUNT]|FILE", help="As for `topology show`.")
@click.option("--nodes", type=_DEGREE, metavar="N", help="So many nodes of the preset or of FILE's node.")
@click.option("--hosts-are", "host_type", default="", metavar="PRESET", help="FILE is a list of hosts of this preset.")
@click.option("--tp", type=_DEGREE, default=1, show_default=True, help="Tensor parallelism.")
@click.option("--pp", type=_DEGREE, default=1, show_default=True, help="Pipeline parallelism.")
@click.option("--dp", type=_DEGREE, help="Data parallelism.  [default: what the cluster leaves]")
@click.option("--cp", type=_DEGREE, default=1, show_default=True, help="Context parallelism.")
@click.option("--ep", type=_DEGREE, default=1, show_default=True, help="Expert parallelism.")
@click.option("--etp", type=_DEGREE, help="Tensor parallelism of an expert.  [default: --tp]")
@click.option(
    "--order",
    default="megatron",
    show_default=True,
    metavar="AXES",
    help="Axes from the fastest to the slowest, tp-cp-ep-dp-pp, or whose order: deepspeed, torchtitan.",
)
@click.option(
    "--mapping", default="packed", show_default=True, metavar="HOW", help="packed, round-robin, straddling or spread."
)
@click.option(
    "--rank-map", type=click.Path(), metavar="FILE", help="The GPU number of each rank, in place of --mapping."
)
@click.option(
    "--traffic",
    multiple=True,
    metavar="KIND=SIZE[*TIMES]",
    help="What a kind of group moves: tp=64M*1280. Repeatable.  [default: of a 70B dense model]",
)
@click.option(
    "--calibration", "stored", metavar="FILE", help="What atoll calibrate stored: its links, and intervals of times."
)
@click.option("--blast-radius", "with_blast", is_flag=True, help="What stops when a part fails.")
@click.option(
    "--racks-per-feed",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="With --blast-radius: so many racks lose power together.",
)
@click.option("--map", "whole_map", is_flag=True, help="The ranks of every node, not of the first ones.")
@click.option("--svg", type=click.Path(), metavar="FILE", help="Write the picture to FILE.")
@click.option("--no-gpudirect", is_flag=True, help="Routes without GPUDirect.")
@click.option("--no-pxn", is_flag=True, help="Routes without PXN.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document with schema_version on stdout.")
def command(
    target: str, nodes: int | None, host_type: str, tp: int, pp: int, dp: int | None, cp: int, ep: int,
    etp: int | None, order: str, mapping: str, rank_map: str | None, traffic: tuple[str, ...], with_blast: bool,
    racks_per_feed: int, whole_map: bool, svg: str | None, no_gpudirect: bool, no_pxn: bool, as_json: bool,
    stored: str | None,
) -> None:  # fmt: skip
    """Where each rank runs, which islands, rails, leaves and spines each group crosses, what that costs.

    Times are of the busiest link and the latency of the routes: a group alone, all groups of its kind at once, and
    everything at once. Beside them stand the usual mistakes, and the best placement with the reason: orders of the
    axes, islands filled with parts of several, whole leaves. With a calibration times have intervals, and placements
    whose intervals overlap one rank.

    \b
    atoll place --cluster dgx-h100:64 --tp 8 --pp 4 --dp 16
    atoll place --cluster gb200-nvl72:2 --tp 8 --pp 2 --dp 9 --svg placement.svg
    atoll place --cluster dgx-h100:16 --tp 4 --ep 8 --pp 4 --blast-radius --racks-per-feed 2
    """
    from atoll.cli.predict import stored_calibration
    from atoll.errors import SpecError
    from atoll.planning.blast_radius import blast_radius
    from atoll.planning.calibrated import calibrated_cluster, placement_spreads
    from atoll.planning.parallelism import Parallelism
    from atoll.planning.placement import place
    from atoll.planning.search import mistakes, search, usual_demands
    from atoll.topology.load import load_cluster
    from atoll.topology.routes import Transport

    loaded = load_cluster(target, nodes=nodes, host_type=host_type)
    cluster = loaded.cluster
    spreads: tuple[Spread, ...] = ()
    if stored is not None:
        calibration = stored_calibration(stored)
        cluster, spreads = calibrated_cluster(cluster, calibration), placement_spreads(calibration)
    if dp is None:
        model = tp * pp * cp
        if model > cluster.num_gpus:
            raise SpecError(
                f"tp {tp} x pp {pp} x cp {cp} = {model} ranks, and {cluster.name} has {cluster.num_gpus} GPUs; take "
                "more nodes or smaller degrees"
            )
        dp = cluster.num_gpus // model
    cut = Parallelism(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, etp=etp or 0, order=order)
    transport = Transport(not no_gpudirect, not no_pxn)
    how: Any = _read_map(rank_map) if rank_map else mapping
    placement = place(cluster, cut, how, transport=transport)
    demands = _demands(usual_demands(cut), traffic)
    found = search(cluster, cut, demands, placement, transport, spreads)
    wrong = mistakes(cluster, cut, demands, transport, spreads)
    blast = blast_radius([placement], racks_per_feed=racks_per_feed) if with_blast else ()
    if svg:
        _write_svg(placement, svg)
    if as_json:
        _print_json(placement, found, wrong, blast)
    else:
        _print_text(placement, found, wrong, blast, whole_map, bool(traffic))
    for note in loaded.notes:
        click.echo(f"note: {note}", err=True)


def _print_text(
    placement: Placement, found: Search, wrong: tuple[Candidate, ...], blast: tuple[Blast, ...], whole_map: bool,
    own_traffic: bool,
) -> None:  # fmt: skip
    from atoll.planning import report
    from atoll.planning.draw_placement import draw_text, map_text

    cut, cluster = placement.parallelism, placement.cluster
    free = cluster.num_gpus - cut.world_size
    click.echo(f"{cut.text()} on {cluster.name}, {placement.name}: {cut.world_size} ranks" + (
        f", {free} GPUs free" if free else ""
    ))  # fmt: skip
    click.echo("\nranks in the order of each node's GPUs")
    click.echo(map_text(placement, most=None if whole_map else 6), nl=False)
    if not cut.kinds:
        return
    click.echo("\ngroups")
    click.echo(draw_text(placement), nl=False)
    click.echo("\n" + "\n".join(report.crossings(placement)))
    what = "as given" if own_traffic else "of a dense 70B model, bf16, sequences of 4,096"
    click.echo(f"\ncollectives {what}; no time is hidden")
    click.echo("\n".join(report.times(found.given)))
    click.echo("\nthe usual mistakes beside it")
    click.echo("\n".join(report.compared(found.given, wrong)))
    best, others = found.best, found.candidates[1:]
    click.echo(f"\nbest: {best.name}, {len(found.candidates)} placements compared")
    click.echo(f"  {found.reason}")
    if others:
        ranks = found.ranks[: 1 + _SHOWN] if best.spreads else ()
        click.echo("\n".join(report.compared(best, others[:_SHOWN], ranks)))
        if best.spreads and found.ranks.count(1) > 1:
            click.echo("  placements of one rank cannot be told apart: their intervals overlap")
    if blast:
        click.echo("\nwhen one part fails")
        click.echo("\n".join(report.blasts(blast)))


def _write_svg(placement: Placement, file: str) -> None:
    from pathlib import Path

    from atoll.errors import SpecError
    from atoll.planning.draw_placement import draw_svg

    try:
        Path(file).write_text(draw_svg(placement), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{file}: cannot be written: {error.strerror or error}") from error
    click.echo(f"wrote {file}", err=True)


def _read_map(file: str) -> list[int]:
    from atoll.errors import SpecError
    from atoll.topology.load import read_file

    words = read_file(file).decode(errors="replace").replace(",", " ").split()
    for at, word in enumerate(words):
        if not word.isascii() or not word.isdigit() or len(word) > 9:
            raise SpecError(f"{file}: entry {at + 1}: expected a GPU number, got {word[:40]!r}")
    return [int(word) for word in words]


def _demands(usual: tuple[Demand, ...], given: tuple[str, ...]) -> tuple[Demand, ...]:
    """The usual demands, with sizes and times replaced as given."""
    import msgspec

    from atoll.errors import SpecError, nearest
    from atoll.units import parse_size

    by_kind = {demand.kind: demand for demand in usual}
    for text in given:
        kind, equals, what = text.partition("=")
        size, star, times = what.partition("*")
        if not equals or kind not in by_kind:
            known = nearest(kind, by_kind) if by_kind else "no group has two ranks"
            raise SpecError(f"--traffic {text}: expected KIND=SIZE[*TIMES] with a kind of group: {known}")
        try:
            count = float(times) if star else by_kind[kind].times
        except ValueError:
            raise SpecError(f"--traffic {text}: expected a number of times such as tp=64M*80, got {times!r}") from None
        by_kind[kind] = msgspec.structs.replace(
            by_kind[kind], size_bytes=float(parse_size(size, f"--traffic {kind}")), times=count
        )
    return tuple(by_kind.values())


def _print_json(placement: Placement, found: Search, wrong: tuple[Candidate, ...], blast: tuple[Blast, ...]) -> None:
    import msgspec

    cut: Parallelism = placement.parallelism
    document = {
        "schema_version": 1, "cluster": placement.cluster.name, "world_size": cut.world_size,
        "degrees": {axis: getattr(cut, axis) for axis in ("tp", "pp", "dp", "cp", "ep")} | {"etp": cut.expert_tp},
        "order": "-".join(cut.axes), "mapping": placement.name, "gpu_of_rank": placement.gpus.tolist(),
        "groups": {kind: _groups_json(placement, kind) for kind in cut.kinds},
        "costs": [_cost_json(cost, found.given) for cost in found.given.costs], "step_s": found.given.step_s,
        "step_interval_s": list(found.given.interval_s) if found.given.spreads else None,
        "mistakes": [_candidate_json(one, found.given) for one in wrong],
        "candidates": [
            _candidate_json(one, found.given) | {"rank": rank}
            for one, rank in zip(found.candidates, found.ranks, strict=True)
        ],
        "best": found.best.name, "reason": found.reason, "best_order": "-".join(found.best.placement.parallelism.axes),
        "best_gpu_of_rank": found.best.placement.gpus.tolist(),
        "blast_radius": [msgspec.to_builtins(one) for one in blast],
    }  # fmt: skip
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def _groups_json(placement: Placement, kind: str) -> list[dict[str, Any]]:
    from atoll.planning.placement import TIERS
    from atoll.topology.names import device_name

    crossing = placement.crossing(kind)
    switches: list[list[str]] = [[] for _ in range(crossing.groups)]
    names = {int(device): device_name(placement.cluster, int(device)) for device in set(crossing.passes[:, 1].tolist())}
    for group, device in crossing.passes.tolist():
        switches[group].append(names[device])
    return [
        {
            "ranks": ranks.tolist(), "nodes": int(crossing.nodes[at]), "islands": int(crossing.islands[at]),
            "rails": int(crossing.rails[at]), "reaches": TIERS[int(crossing.tier[at])], "switches": switches[at],
        }
        for at, ranks in enumerate(placement.parallelism.groups(kind))
    ]  # fmt: skip


def _cost_json(cost: Cost, candidate: Candidate) -> dict[str, Any]:
    demand = cost.demand
    return {
        "kind": demand.kind, "collective": demand.collective, "algorithm": demand.algorithm,
        "size_bytes": demand.size_bytes, "times": demand.times, "alone_s": cost.alone_s, "kind_s": cost.kind_s,
        "kind_interval_s": list(candidate.interval_of(cost, cost.kind_s)) if candidate.spreads else None,
        "together_s": cost.together_s, "step_s": cost.step_s, "bottleneck": cost.bottleneck, "shared": cost.shared,
    }  # fmt: skip


def _candidate_json(candidate: Candidate, plan: Candidate) -> dict[str, Any]:
    kinds = candidate.placement.parallelism.kinds
    return {
        "name": candidate.name, "step_s": candidate.step_s,
        "ratio": candidate.step_s / plan.step_s if plan.step_s else 1.0,
        "interval_s": list(candidate.interval_s) if candidate.spreads else None,
        "reaches": {kind: candidate.placement.crossing(kind).highest for kind in kinds},
    }  # fmt: skip
