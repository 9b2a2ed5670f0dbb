"""Why ``auto`` takes the algorithm it takes: the candidates for one call, predicted, measured, held to the bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from atoll.algorithms import catalog
from atoll.errors import SpecError, nearest
from atoll.runtime.choice import Chooser, Layout
from atoll.runtime.stability import ORDERS, Order, stable_algorithms
from atoll.runtime.tune import models_of
from atoll.runtime.tuning import TRANSPORTS, Table, Tuning
from atoll.schedule.bounds import bounds
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.cost import CostModel, Link, Ports
from atoll.schedule.count import Counts, count
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import prove
from atoll.units import format_bandwidth, format_duration, format_size

# Where nothing has been fitted: a kernel's work for a message and for a byte over loopback, as orders of magnitude.
ASSUMED = Link(20e-6, 1.5e9, 5e9)
MAX_WORLD = 256


class Candidate(msgspec.Struct, frozen=True):
    """One algorithm for the call. ``measured_s`` is that of the nearest measured size, None where there is none."""

    name: str
    steps: int
    messages: int
    bytes: int
    bound_ratio: float | None
    predicted_s: float
    measured_s: float | None
    allowed: bool


class Explanation(msgspec.Struct, frozen=True):
    """All that is said. ``measured_world`` and ``measured_size_bytes`` say where measured times come from."""

    collective: str
    size_bytes: int
    world_size: int
    transport: str
    order: str
    winner: str
    candidates: tuple[Candidate, ...]
    bandwidth_bound_bytes: float
    bound_formula: str
    bound_steps: int
    link: Link
    off: float | None
    table_world: int | None
    measured_size_bytes: int | None
    rule: str | None


def explain(
    tuning: Tuning, collective: str, size_bytes: int, world_size: int, transport: str, order: Order
) -> Explanation:
    """Every candidate of one call among ``world_size`` ranks of one layout. ``SpecError`` for nonsense."""
    if transport not in TRANSPORTS:
        raise SpecError(f"--transport: {nearest(transport, TRANSPORTS)}")
    if order not in ORDERS:
        raise SpecError(f"--order: {nearest(order, ORDERS)}")
    if not 1 <= world_size <= MAX_WORLD:
        raise SpecError(f"--world: expected 1 to {MAX_WORLD} ranks, got {world_size}")
    root = 0 if COLLECTIVES[collective].rooted else None
    islands = tuple(rank // 2 for rank in range(world_size)) if transport == "mixed" else ()
    chooser = Chooser(tuning, Layout(world_size, transport, islands))
    table = tuning.table(collective, transport, world_size)
    if table is None and transport == "mixed":
        table = tuning.table(collective, "tcp", world_size)
    fit = None if table is None else table.fit
    link = ASSUMED if fit is None else fit.link
    models = models_of(collective, world_size, catalog.names(collective))
    allowed = stable_algorithms(collective, order)
    measured, measured_size = _measured(table, size_bytes)
    found = []
    for name in catalog.names(collective):
        proven = prove(chooser.build(collective, name, root))
        counted = count(proven, size_bytes)
        found.append(
            Candidate(
                name, counted.steps, int(counted.messages), int(counted.busiest_bytes), _ratio(counted),
                _predict(models.get(name), size_bytes, link, counted), measured.get(name),
                allowed is None or name in allowed,
            )
        )  # fmt: skip
    contract = proven.contract
    bound = bounds(contract, chunk_sizes(contract, size_bytes))
    winner = chooser.choose(collective, size_bytes, order)
    return Explanation(
        collective, size_bytes, world_size, transport, order, winner, tuple(sorted(found, key=_by_time)),
        bound.bandwidth_bytes, bound.formula, bound.latency_steps, link, None if fit is None else fit.off,
        None if table is None else table.world_size, measured_size, _rule(table, size_bytes, order),
    )  # fmt: skip


def page(facts: Explanation) -> str:
    """The explanation as text."""
    collective = facts.collective.replace("_", "-")
    lines = [
        f"{collective} of {format_size(facts.size_bytes)} among {facts.world_size} ranks over {facts.transport}: "
        f"auto takes {facts.winner}",
        "",
    ]
    rows = [("", "algorithm", "predicted", "measured", "steps", "messages", "bytes", "x bound")]
    for candidate in facts.candidates:
        mark = "*" if candidate.name == facts.winner else "" if candidate.allowed else "-"
        measured = "" if candidate.measured_s is None else format_duration(candidate.measured_s)
        ratio = "" if candidate.bound_ratio is None else f"{candidate.bound_ratio:.3g}"
        rows.append((mark, candidate.name, format_duration(candidate.predicted_s), measured, str(candidate.steps),
                     f"{candidate.messages:,}", format_size(candidate.bytes), ratio))  # fmt: skip
    lines += _aligned(rows)
    lines += ["", *_notes(facts)]
    return "\n".join(lines)


def document(facts: Explanation) -> dict[str, Any]:
    """The explanation as plain data."""
    plain: dict[str, Any] = msgspec.to_builtins(facts)
    rate = facts.link.reduce_bytes_per_s
    plain["link"]["reduce_bytes_per_s"] = rate if math.isfinite(rate) else None
    return plain


def _notes(facts: Explanation) -> list[str]:
    link = facts.link
    least_s = max(facts.bound_steps * link.latency_s, facts.bandwidth_bound_bytes / link.bandwidth_bytes_per_s)
    notes = [
        f"bound: {format_size(facts.bandwidth_bound_bytes)} at the busiest rank ({facts.bound_formula}), "
        f"{facts.bound_steps} step{'s' if facts.bound_steps != 1 else ''}; {format_duration(least_s)} over such links",
    ]
    rates = f"alpha {format_duration(link.latency_s)}, {format_bandwidth(link.bandwidth_bytes_per_s)}"
    if math.isfinite(link.reduce_bytes_per_s):
        rates += f", reducing {format_bandwidth(link.reduce_bytes_per_s)}"
    if facts.off is None:
        notes.append(f"predicted with {rates}: assumed, nothing was measured for this transport and world")
    else:
        notes.append(
            f"predicted with {rates}: fitted among {facts.table_world} ranks, off by {facts.off:.0%} (median) on sizes "
            "left out of the fit"
        )
    if facts.measured_size_bytes is not None and any(c.measured_s is not None for c in facts.candidates):
        notes.append(f"measured among {facts.table_world} ranks at {format_size(facts.measured_size_bytes)}")
    notes.append("why: " + _why(facts))
    if not all(candidate.allowed for candidate in facts.candidates):
        notes.append(f"-: its sums may have another order than '{facts.order}' asks for")
    return notes


def _why(facts: Explanation) -> str:
    winner = next(candidate for candidate in facts.candidates if candidate.name == facts.winner)
    others = [candidate for candidate in facts.candidates if candidate.allowed and candidate is not winner]
    if not others:
        return f"{winner.name} is the only one there is"
    told = "no table speaks of this case; the built-in thresholds say so"
    if facts.rule is not None:
        told = f"the rule {facts.rule} says so"
    measured = [other for other in others if other.measured_s is not None]
    if winner.measured_s is not None and measured:
        rival = min(measured, key=_by_time)
        assert rival.measured_s is not None
        compared = f"measured {format_duration(winner.measured_s)}, {rival.name} {format_duration(rival.measured_s)}"
        if rival.measured_s < winner.measured_s:
            compared += " (noise, another size than the rule was made for, or a rule set by hand)"
    else:
        rival = min(others, key=lambda other: other.predicted_s)
        compared = f"predicted {format_duration(winner.predicted_s)}, {rival.name} {format_duration(rival.predicted_s)}"
    fewer = []
    if winner.steps < rival.steps:
        fewer.append(f"{winner.steps} step{'s' if winner.steps != 1 else ''} instead of {rival.steps}")
    if winner.bytes < rival.bytes:
        fewer.append(f"{format_size(winner.bytes)} instead of {format_size(rival.bytes)} at the busiest rank")
    if winner.messages < rival.messages:
        fewer.append(f"{winner.messages:,} messages instead of {rival.messages:,}")
    return "; ".join([told, compared, *fewer])


def _measured(table: Table | None, size_bytes: int) -> tuple[dict[str, float], int | None]:
    """Times at the measured size nearest to ``size_bytes``, if that is within a factor of 4."""
    if table is None or not table.sizes_bytes:
        return {}, None
    far = [abs(math.log2(max(size, 1) / max(size_bytes, 1))) for size in table.sizes_bytes]
    at = far.index(min(far))
    if far[at] > 2:
        return {}, None
    times = {name: time for name, listed in table.measured.items() if (time := listed[at]) is not None}
    return times, table.sizes_bytes[at]


def _predict(model: CostModel | None, size_bytes: int, link: Link, counted: Counts) -> float:
    if model is None:
        return counted.steps * link.latency_s
    return float(model.seconds(size_bytes, link, Ports.SHARED))


def _ratio(counted: Counts) -> float | None:
    ratio = counted.bandwidth_ratio
    return None if ratio is None else float(ratio)


def _rule(table: Table | None, size_bytes: int, order: Order) -> str | None:
    if table is None or table.algorithm(size_bytes, order) is None:
        return None
    start, name = [rule for rule in table.rules[order] if rule[0] <= size_bytes][-1]
    return f"'{name} from {format_size(start)} up' of the table for {table.transport} among {table.world_size}"


def _by_time(candidate: Candidate) -> tuple[bool, float, float]:
    known = candidate.measured_s
    return known is None, known or 0.0, candidate.predicted_s


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]  # fmt: skip
