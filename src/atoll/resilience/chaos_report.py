"""What a run of chaos came to: counts that must be zero, counts that say how much was tried, and times.

A time is from the fault: *detection* until the last survivor in the communicator has its error, *recovery* from the
last fault until the last member of the new communicator has finished its first collectives there. Double faults are in
all counts, and in the times of recovery of their own line; the times of a kind are those of single faults, of all of
them and then of those that hit rank 0 against those that hit another one: no rank is special.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from atoll.resilience.chaos_plan import Kind, Outcome, Second
from atoll.units import format_duration

SCHEMA_VERSION: Final = 2
RANK_0: Final = "rank 0"
OTHERS: Final = "others"
MAX_SHOWN: Final = 10


class Times(msgspec.Struct, frozen=True):
    """Seconds, of ``count`` faults."""

    count: int
    median_s: float
    p99_s: float
    max_s: float


class ChaosReport(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's text. ``injected`` counts victims by kind, ``faults`` the occasions.

    Keys of ``detection`` and ``recovery``: a kind, a kind and ``rank 0`` or ``others`` (``kill others``), ``double``.
    """

    schema_version: int = SCHEMA_VERSION
    seed: int
    world_size: int
    heartbeat_timeout_s: float
    worlds: int
    results: int
    faults: int
    injected: dict[str, int]
    double: int
    during_recovery: int
    at_rank_0: int
    delays: int
    wrong_results: int
    late_results: int
    hangs: int
    not_recovered: int
    errors_of_survivors: int
    named_right: int
    wrongly_accused: int
    differing_errors: int
    unprovoked: int
    detection: dict[str, Times]
    recovery: dict[str, Times]
    details: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return not (
            self.wrong_results or self.late_results or self.hangs or self.not_recovered or self.wrongly_accused
            or self.unprovoked
        )  # fmt: skip


def summarize(
    outcomes: Sequence[Outcome], *, seed: int, world_size: int, heartbeat_s: float, worlds: int, results: int,
    delays: int, wrong: Sequence[str], unprovoked: Sequence[str],
) -> ChaosReport:  # fmt: skip
    """The report of a run."""
    injected = Counter(kind.value for outcome in outcomes for kind in outcome.kinds)
    accused = [words for outcome in outcomes for words in outcome.accused]
    named = sum(outcome.named for outcome in outcomes)
    details = [f"wrong result: {words}" for words in wrong]
    details += [f"without a fault: {words}" for words in unprovoked]
    for outcome in outcomes:
        where = f"fault {outcome.fault.number} ({' and '.join(outcome.kinds)} of {_ranks(outcome.victims)})"
        details += [f"{where}: wrongly accused by {words.splitlines()[0]}" for words in outcome.accused]
        details += [f"{where}: {outcome.trouble}"] * bool(outcome.trouble)
        details += [f"{where}: a result after it had been given up"] * outcome.late_result
    detection, recovery = {}, {}
    for label, chosen in _groups(outcomes).items():
        detected = _times([outcome.detect_s for outcome in chosen])
        recovered = _times([outcome.recover_s for outcome in chosen])
        if detected is not None and label != "double":
            detection[label] = detected
        if recovered is not None:
            recovery[label] = recovered
    return ChaosReport(
        seed=seed,
        world_size=world_size,
        heartbeat_timeout_s=heartbeat_s,
        worlds=worlds,
        results=results,
        faults=len(outcomes),
        injected={kind.value: injected[kind.value] for kind in Kind if injected[kind.value]},
        double=sum(len(outcome.victims) > 1 for outcome in outcomes),
        during_recovery=sum(o.fault.second is Second.DURING and len(o.victims) > 1 for o in outcomes),
        at_rank_0=sum(outcome.was_rank_0 for outcome in outcomes),
        delays=delays,
        wrong_results=len(wrong),
        late_results=sum(outcome.late_result for outcome in outcomes),
        hangs=sum(outcome.hang for outcome in outcomes),
        not_recovered=sum(bool(outcome.trouble) and not outcome.hang for outcome in outcomes),
        errors_of_survivors=named + len(accused),
        named_right=named,
        wrongly_accused=len(accused),
        differing_errors=sum(outcome.differ for outcome in outcomes),
        unprovoked=len(unprovoked),
        detection=detection,
        recovery=recovery,
        details=tuple(details),
    )


def render(report: ChaosReport) -> str:
    """The report for people."""
    r = report
    share = 100 * r.named_right / r.errors_of_survivors if r.errors_of_survivors else math.nan
    kinds = ", ".join(f"{count} {kind}" for kind, count in r.injected.items()) or "none"
    lines = [
        f"{r.faults} faults in {r.worlds} worlds of {r.world_size} ranks, seed {r.seed}; {r.results} results checked",
        f"  broken ranks           {kinds}",
        f"  rank 0 among them      {r.at_rank_0}",
        f"  double faults          {r.double}, {r.during_recovery} of them during recovery",
        f"  delays of healthy      {r.delays} (no faults)",
        "",
        f"  wrong results          {r.wrong_results}",
        f"  results after the end  {r.late_results}",
        f"  hangs                  {r.hangs}",
        f"  not recovered          {r.not_recovered}",
        f"  culprits named right   {r.named_right} of {r.errors_of_survivors} errors ({share:.4g} %)",
        f"  wrongly accused        {r.wrongly_accused}",
        f"  errors without fault   {r.unprovoked}",
        f"  survivors disagreed    {r.differing_errors}",
        "",
        f"  {'':<12} {'faults':>6}  {'median':>8} {'p99':>8} {'max':>8}",
    ]
    for title, table in (("detection", r.detection), ("recovery", r.recovery)):
        lines.append(f"  {title}")
        lines += [
            f"    {_shown(label):<10} {times.count:>6}  {_short(times.median_s):>8} {_short(times.p99_s):>8} "
            f"{_short(times.max_s):>8}"
            for label, times in table.items()
        ]
    shown = r.details[:MAX_SHOWN]
    lines += ["", *shown] if shown else []
    if len(r.details) > len(shown):
        lines.append(f"... and {len(r.details) - len(shown)} more (--json has all)")
    lines += ["", "every promise was kept" if r.passed else "NOT every promise was kept"]
    return "\n".join(lines)


def to_json(report: ChaosReport) -> dict[str, Any]:
    """The report as one document."""
    document: dict[str, Any] = msgspec.to_builtins(report)
    return {**document, "passed": report.passed}


def _groups(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {}
    for kind in Kind:
        chosen = [outcome for outcome in outcomes if outcome.kinds == (kind,)]
        groups[kind.value] = chosen
        groups[f"{kind.value} {RANK_0}"] = [outcome for outcome in chosen if outcome.was_rank_0]
        groups[f"{kind.value} {OTHERS}"] = [outcome for outcome in chosen if not outcome.was_rank_0]
    return {**groups, "double": [outcome for outcome in outcomes if len(outcome.victims) > 1]}


def _shown(label: str) -> str:
    """The parts of a kind are put under it."""
    return next((f"  {part}" for part in (RANK_0, OTHERS) if label.endswith(part)), label)


def _times(seconds: list[float]) -> Times | None:
    """Of those that are known; ``None`` when none is."""
    known = sorted(value for value in seconds if not math.isnan(value))
    if not known:
        return None
    middle = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
    return Times(len(known), middle, known[math.ceil(0.99 * len(known)) - 1], known[-1])


def _short(seconds: float) -> str:
    return format_duration(float(f"{seconds:.3g}"))


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + " and ".join(map(str, ranks))
