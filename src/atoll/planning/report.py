"""What ``atoll place`` and the labs print: crossings, times, mistakes, blast radius, as columns."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.planning.blast_radius import Blast
from atoll.planning.draw_placement import crossing_words
from atoll.planning.placement import Placement, group_text
from atoll.planning.search import Candidate
from atoll.units import format_duration, format_size


def table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Columns two spaces apart, indented by two; the columns in ``left`` to the left, the others to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(widths[at]) if at in left else cell.rjust(widths[at]) for at, cell in enumerate(row)]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def crossings(placement: Placement) -> list[str]:
    """What each kind of group crosses, and the first group of it by name."""
    rows: list[Sequence[str]] = [("", "groups", "ranks", "nodes", "crosses", "reaches")]
    for kind in placement.parallelism.kinds:
        crossing = placement.crossing(kind)
        nodes = f"{crossing.nodes.min()}" if crossing.nodes.min() == crossing.nodes.max() else (
            f"{crossing.nodes.min()}-{crossing.nodes.max()}"
        )  # fmt: skip
        words = crossing_words(crossing)
        rows.append((kind, str(crossing.groups), str(crossing.ranks), nodes, words, crossing.highest))
    lines = table(rows, left=(0, 4, 5))
    return lines + [f"  {group_text(placement, kind, 0)}" for kind in placement.parallelism.kinds]


def times(candidate: Candidate) -> list[str]:
    """Times of each demand: a group alone, all of its kind (with a calibration its interval), everything at once; and
    per step."""
    known = bool(candidate.spreads)
    rows: list[Sequence[str]] = [
        ("", "collective", "size", "alone", "all of the kind", *(["interval"] if known else []), "everything", "times",
         "a step", "busiest link")
    ]  # fmt: skip
    for cost in candidate.costs:
        ends = [_between(candidate.interval_of(cost, cost.kind_s))] if known else []
        demand = cost.demand
        shared = f", {cost.shared} groups" if cost.shared > 1 else ""
        rows.append(
            (demand.kind, demand.collective.replace("_", "-"), format_size(demand.size_bytes),
             format_duration(cost.alone_s), format_duration(cost.kind_s), *ends, format_duration(cost.together_s),
             f"{demand.times:g}", format_duration(cost.step_s), cost.bottleneck + shared)
        )  # fmt: skip
    return table(rows, left=(0, 1, len(rows[0]) - 1))


def compared(plan: Candidate, others: Sequence[Candidate], ranks: Sequence[int] = ()) -> list[str]:
    """Communication a step of each candidate, against the plan's, and where its groups lie; with a calibration also
    the interval, and with ``ranks`` (of the plan and the others) the rank."""
    kinds = plan.placement.parallelism.kinds
    known = bool(plan.spreads)
    head = ["", *(["rank"] if ranks else []), "a step", *(["interval"] if known else []), "against it"]
    rows: list[Sequence[str]] = [(*head, *(f"{kind} reaches" for kind in kinds))]
    for at, candidate in enumerate((plan, *others)):
        ratio = candidate.step_s / plan.step_s if plan.step_s else 1.0
        reaches = [candidate.placement.crossing(kind).highest for kind in kinds]
        rank = [str(ranks[at])] if ranks else []
        ends = [_between(candidate.interval_s)] if known else []
        rows.append((candidate.name, *rank, format_duration(candidate.step_s), *ends, f"{ratio:.3g} x", *reaches))
    return table(rows, left=(0, *range(len(head), len(head) + len(kinds))))


def _between(ends: tuple[float, float]) -> str:
    return " to ".join(format_duration(end) for end in ends)


def blasts(found: Sequence[Blast]) -> list[str]:
    """One line for each kind of part: the worst one, and what stops with it."""
    rows: list[Sequence[str]] = [
        ("one of these fails", "there are", "GPUs behind", "out", "groups", "jobs", "GPUs idle", "on average", "")
    ]
    for blast in found:
        groups = "+".join(f"{count} {kind}" for kind, count in blast.groups.items()) or "0"
        rest = f"{blast.left:.0%} of its bandwidth is left" if blast.left else f"worst: {blast.worst}"
        rows.append(
            (blast.part, str(blast.parts), str(blast.behind), str(blast.out), groups, str(blast.jobs), str(blast.idle),
             f"{blast.mean_idle:.4g}", rest)
        )  # fmt: skip
    return table(rows, left=(0, 8))
