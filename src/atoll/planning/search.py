"""The best placement of given degrees, the usual mistakes beside it, and why one beats the other.

What is compared is what a step of training spends on communication when nothing is hidden: for every demand the time
of one collective with all groups of its kind at once, times how often the step makes it (``traffic``). Hiding does not
make a bad one good: what cannot be hidden, tensor parallelism first of all, is what placement decides.

Searched are all orders of the axes, on nodes filled one after the other, and, where a degree does not divide the
island and GPUs are left over, with no group cut by an island's end; then the most promising ways to fill an island with
parts of several axes, and, for the best orders, whole leaves (``tiles``). What comes to the same groups on the same
GPUs is looked at once.

**Ranks.** Without a calibration candidates within ``ALIKE`` of the best are not ranked: the usual order wins among
them. With one every time has an interval, from its residuals in the band of each collective's size (no narrower than
those of calibrated predictions of what was held out: placements were not measured), and candidates share a rank where
their intervals overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from atoll.errors import SpecError
from atoll.planning import tiles
from atoll.planning.parallelism import DEFAULT_ORDER, Parallelism
from atoll.planning.placement import TIERS, Mapping, Placement, place
from atoll.planning.traffic import Cost, Demand, costs
from atoll.simulator.prediction import Spread, band_of, interval, ranking
from atoll.topology.cluster import Cluster
from atoll.topology.routes import DEFAULT_TRANSPORT, Transport
from atoll.units import format_duration

ALIKE: Final = 0.05
"""A share of time below which two candidates are not told apart: less than any model's error."""
_MOST_TILES: Final = 12
_MOST_LEAVES: Final = 3


class Candidate(msgspec.Struct, frozen=True, eq=False):
    """One placement and what it costs. ``step_s`` is communication per step, nothing hidden; ``spreads`` are measured
    over predicted by band, where a calibration gave them."""

    name: str
    placement: Placement
    costs: tuple[Cost, ...]
    spreads: tuple[Spread, ...] = ()

    def interval_of(self, cost: Cost, seconds: float) -> tuple[float, float]:
        """(low, high) of a time of one demand; the time itself without a calibration."""
        if not self.spreads:
            return seconds, seconds
        return interval(seconds, self.spreads[band_of(cost.demand.size_bytes)])

    @property
    def interval_s(self) -> tuple[float, float]:
        """(low, high) of ``step_s``: all demands off to one side."""
        ends = [self.interval_of(cost, cost.step_s) for cost in self.costs]
        return sum(low for low, _ in ends), sum(high for _, high in ends)

    @property
    def step_s(self) -> float:
        return sum(cost.step_s for cost in self.costs)


class Search(msgspec.Struct, frozen=True, eq=False):
    """Candidates from the best on; ``reason`` says why the first is better than ``given`` (or that it is not).
    ``ranks`` of the candidates: equal where they cannot be told apart."""

    given: Candidate
    candidates: tuple[Candidate, ...]
    reason: str
    ranks: tuple[int, ...]

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


def usual_demands(parallelism: Parallelism) -> tuple[Demand, ...]:
    """What a dense model of 70 billion parameters moves in a step, for the kinds of groups there are.

    80 layers, hidden size 8,192, 8 key-value heads of 128, sequences of 4,096 (the published shape of Llama 2 70B), one
    sequence a micro-batch, bf16, four micro-batches for each pipeline stage. Per layer and micro-batch four all-reduces
    over tp (Shoeybi et al. 2019), a gather of keys and values over cp on the way there and back, two exchanges over ep
    each way with two experts a token; between stages one send each way; gradients once a step.
    """
    p = parallelism
    layers, hidden, kv, tokens, parameters, width = 80 / p.pp, 8192, 2 * 8 * 128, 4096 / p.cp, 70e9, 2
    microbatches = 4 * p.pp if p.pp > 1 else 8
    activations = tokens * hidden * width
    gradients = width * parameters / (p.tp * p.pp)
    table = {
        "tp": ("all_reduce", activations, 4 * layers * microbatches),
        "cp": ("all_gather", tokens * p.cp * kv * width / p.tp, 2 * layers * microbatches),
        "dp": ("all_reduce", gradients, 1 if p.cp == 1 else 0),
        "dp-cp": ("all_reduce", gradients, 1),
        "pp": ("send", activations / p.tp, 2 * microbatches),
        "ep": ("all_to_all", 2 * activations / p.tp, 4 * layers * microbatches),
        "edp": ("all_reduce", gradients, 1),
    }
    return tuple(Demand(kind, what, size, times) for kind in p.kinds for what, size, times in (table[kind],) if times)


def evaluate(name: str, placement: Placement, demands: Sequence[Demand], spreads: tuple[Spread, ...] = ()) -> Candidate:
    return Candidate(name, placement, costs(placement, demands), spreads)


def mistakes(
    cluster: Cluster, parallelism: Parallelism, demands: Sequence[Demand], transport: Transport = DEFAULT_TRANSPORT,
    spreads: tuple[Spread, ...] = (),
) -> tuple[Candidate, ...]:  # fmt: skip
    """The same degrees, placed as they often are by accident. Those that change nothing or do not fit are left out."""
    others = tuple(axis for axis in parallelism.axes if axis not in ("tp", "pp", "ep"))
    tensor_last = "-".join((*others, "ep", "tp", "pp"))
    rank_order = [
        msgspec.structs.replace(demand, algorithm="rank-order-ring") if _is_ring(demand) else demand
        for demand in demands
    ]
    tries: list[tuple[str, str, Mapping, Sequence[Demand]]] = [
        ("ranks dealt out round-robin over nodes", parallelism.order, "round-robin", demands),
        ("tp across nodes (tp varies slower than dp)", tensor_last, "packed", demands),
        ("half a node off: groups straddle two nodes", parallelism.order, "straddling", demands),
        ("one ring in rank order (topology hidden from NCCL)", parallelism.order, "packed", rank_order),
        ("both: dealt out, and one ring in rank order", parallelism.order, "round-robin", rank_order),
    ]
    found = []
    plan = evaluate("as given", place(cluster, parallelism, transport=transport), demands)
    for name, order, mapping, moved in tries:
        try:
            changed = msgspec.structs.replace(parallelism, order=order)
            placement = place(cluster, changed, mapping, transport=transport)
        except SpecError:
            continue
        candidate = evaluate(name, placement, moved, spreads)
        if not _same(candidate, plan) or moved is not demands:
            found.append(candidate)
    return tuple(found)


def search(
    cluster: Cluster, parallelism: Parallelism, demands: Sequence[Demand], given: Placement | None = None,
    transport: Transport = DEFAULT_TRANSPORT, spreads: tuple[Spread, ...] = (),
) -> Search:  # fmt: skip
    """All orders of the axes, tiles and whole leaves against ``given`` (the parallelism as it is, packed). Raises
    ``SpecError``."""
    asked = evaluate("as given", given or place(cluster, parallelism, transport=transport), demands, spreads)
    found: list[Candidate] = []
    seen: set[int] = set()

    def consider(name: str, placement: Placement) -> None:
        looks = _looks(placement)
        if looks not in seen:
            seen.add(looks)
            found.append(evaluate(name, placement, demands, spreads))

    for shown, changed in _orders(parallelism):
        packed = place(cluster, changed, transport=transport)
        consider(shown, packed)
        try:
            consider(f"{shown}, aligned", place(cluster, changed, "aligned", transport=transport))
        except SpecError:
            continue
    size = tiles.island_size(cluster)
    for one in sorted(found, key=lambda one: one.step_s)[:_MOST_LEAVES]:
        gpus = tiles.whole_leaf_gpus(cluster, one.placement.parallelism, size)
        if gpus is not None:
            consider(
                f"{one.name}, whole leaves",
                place(cluster, one.placement.parallelism, gpus.tolist(), transport=transport),
            )
    choices = sorted(
        tiles.tiles(parallelism, size), key=lambda tile: tiles.bytes_across(tile, parallelism, demands)
    )[:_MOST_TILES]  # fmt: skip
    for tile in choices:
        for across in tiles.across_orders(tile, parallelism):
            gpus = tiles.tiled_gpus(parallelism, tile, across, size)
            consider(tiles.tile_name(tile, across), place(cluster, parallelism, gpus.tolist(), transport=transport))
    return _ranked(asked, found)


def _ranked(asked: Candidate, found: list[Candidate]) -> Search:
    """What was asked for first where nothing is certainly better, then what is alike, then the rest."""
    fastest = min(found, key=lambda one: one.step_s)

    def alike(one: Candidate) -> bool:
        if not one.spreads:
            return one.step_s <= fastest.step_s * (1 + ALIKE)
        return one.interval_s[0] <= fastest.interval_s[1] and fastest.interval_s[0] <= one.interval_s[1]

    near = [one for one in found if alike(one)]
    rest = sorted((one for one in found if one not in near), key=lambda one: one.step_s)
    if alike(asked):
        # What was asked for is as good as anything: nothing to change.
        looks = _looks(asked.placement)
        near = [asked, *(one for one in near if _looks(one.placement) != looks)]
        reason = _why_good(asked, rest)
    else:
        if asked.spreads:
            near.sort(key=lambda one: one.step_s)
        reason = _why(asked, near[0])
    every = (*near, *rest)
    if asked.spreads:
        ranks = tuple(ranking([one.step_s for one in every], [one.interval_s for one in every]))
    else:
        ranks = (*(1 for _ in near), *range(len(near) + 1, len(every) + 1))
    return Search(asked, every, reason, ranks)


def _orders(parallelism: Parallelism) -> list[tuple[str, Parallelism]]:
    """Every order of the axes that fits, by its name, the usual one first, so that it comes first among equals."""
    axes = [axis for axis in parallelism.axes if axis == "ep" or getattr(parallelism, axis) > 1]
    usual = [axis for axis in DEFAULT_ORDER.split("-") if axis in axes]
    found: dict[str, Parallelism] = {}
    for order in sorted(itertools.permutations(axes), key=lambda order: [usual.index(axis) for axis in order]):
        shown = "-".join(axis for axis in order if getattr(parallelism, axis) > 1) or "one rank"
        try:
            changed = msgspec.structs.replace(parallelism, order="-".join(order))
        except SpecError:
            continue
        found.setdefault(shown, changed)
    return list(found.items())


def _looks(placement: Placement) -> int:
    """A hash of which GPUs work together, whatever their ranks are called; pipelines also in which order."""
    parts = []
    for kind in placement.parallelism.kinds:
        members = placement.group_gpus(kind)
        rows = members if kind == "pp" else np.sort(members, axis=1)
        parts.append(rows[np.lexsort(rows.T[::-1])].tobytes())
    return hash((placement.parallelism.kinds, *parts))


def _same(one: Candidate, other: Candidate) -> bool:
    kinds = one.placement.parallelism.kinds
    return all((one.placement.group_gpus(kind) == other.placement.group_gpus(kind)).all() for kind in kinds)


def _is_ring(demand: Demand) -> bool:
    return demand.collective in ("all_reduce", "all_gather", "reduce_scatter")


def _why_good(asked: Candidate, rest: Sequence[Candidate]) -> str:
    told = "; ".join(_told(cost, asked) for cost in asked.costs)
    if not rest:
        return f"no placement does better: {told}" if told else "nothing moves"
    slower = rest[-1].step_s / asked.step_s if asked.step_s else 1.0
    return f"no placement does better, the worst takes {slower:.3g} times as long: {told}"


def _why(asked: Candidate, best: Candidate) -> str:
    """Which demand decides, and what it crosses in both."""
    saved = [before.step_s - after.step_s for before, after in zip(asked.costs, best.costs, strict=True)]
    at = max(range(len(saved)), key=saved.__getitem__)
    before, after = asked.costs[at], best.costs[at]
    kind = before.demand.kind
    return (
        f"{kind} decides: {before.demand.times:g} times a step {format_duration(after.kind_s)} instead of "
        f"{format_duration(before.kind_s)}. {_told(after, best)}; as given, {_told(before, asked)}"
    )


def _told(cost: Cost, candidate: Candidate) -> str:
    crossing = candidate.placement.crossing(cost.demand.kind)
    highest = TIERS[int(crossing.tier.max())]
    where = "stays in its island" if highest == "island" else f"passes a {highest}"
    limit = f", held by {cost.bottleneck}" if cost.bottleneck else ""
    shared = f", which {cost.shared} groups share" if cost.shared > 1 else ""
    return f"{cost.demand.kind} {where}{limit}{shared}"
