"""A plan as text for people and as JSON.

The text goes from the question to the answer: how often it breaks, how often to checkpoint, what to do without a node,
where the time goes, what simulation says, what a change is worth, and what all that assumes. The JSON document has
``schema_version``; a field may be added within a version and is never removed or renamed. Its units are in its names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from atoll.resilience.plan import Job, Plan, PolicyRow
from atoll.units import format_duration

SCHEMA_VERSION: Final = 1


def document(job: Job, plan: Plan, assumptions: dict[str, str]) -> dict[str, Any]:
    """The plan as plain data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "job": msgspec.to_builtins(job),
        "plan": msgspec.to_builtins(plan),
        "assumptions": assumptions,
    }


def text_lines(job: Job, plan: Plan, assumptions: dict[str, str]) -> Iterator[str]:
    """The plan for people, line by line, at most 100 columns; ``assumptions``: what each number rests on."""
    rate = job.rate.per_node_day
    yield (
        f"{job.num_gpus:,} GPUs, {plan.num_nodes:,} nodes of {job.gpus_per_node}: interrupted every "
        f"{format_duration(plan.mtbf_s)}, {_number(plan.failures_per_day)} times a day"
    )
    yield f"  rate       {_number(rate * 1000)} per 1,000 node-days; one node, once in {format_duration(86400 / rate)}"
    yield f"  by size    {', '.join(f'{gpus:,} GPUs {format_duration(mtbf)}' for gpus, mtbf in plan.by_size)}"
    parts = ", ".join(f"{part.part} {_percent(part.share, 0)}" for part in plan.parts)
    yield f"  by part    {parts} (shares as counted for Llama 3)"
    yield ""
    yield from _blast(plan)
    yield ""
    yield from _cadence(job, plan)
    yield ""
    yield from _policies(job, plan)
    yield ""
    yield from _time(job, plan)
    yield from _simulation(plan)
    yield ""
    yield from _levers(job, plan)
    yield ""
    yield "assumed or given"
    width = max(len(name) for name in assumptions)
    for name, basis in assumptions.items():
        yield f"  {name:<{width}}  {basis}"


def _blast(plan: Plan) -> Iterator[str]:
    yield "a failure stops every GPU; what it takes, by kind"
    yield f"  {'kind':<12} {'share':>7} {'one every':>10} {'nodes out':>10} {'lost each time':>15} {'GPU-hours':>10}"
    for row in plan.blast:
        yield (
            f"  {row.kind:<12} {_percent(row.share):>7} {format_duration(row.every_s):>10} {row.nodes:>10} "
            f"{format_duration(row.stop_s):>15} {row.gpu_hours:>10,.0f}"
        )


def _cadence(job: Job, plan: Plan) -> Iterator[str]:
    checkpoint = job.checkpoint
    cost = f"blocks {format_duration(checkpoint.blocking_s)}"
    if checkpoint.background_s:
        cost += f", then {format_duration(checkpoint.background_s)} in the background"
        cost += f" at {_percent(checkpoint.slowdown)} less speed" if checkpoint.slowdown else ""
    yield f"checkpoint to storage every {format_duration(plan.storage_interval_s)}; each {cost}"
    if job.memory_copy_s is not None:
        yield (
            f"  and into host memory every {format_duration(plan.operation.interval_s)}; "
            f"each blocks {format_duration(job.memory_copy_s)}"
        )
    yield f"  {'interval by':<16} {'interval':>10} {'goodput':>9}  (to storage alone, nodes at hand)"
    for row in plan.cadences:
        yield f"  {row.name:<16} {format_duration(row.interval_s):>10} {_percent(row.goodput):>9}"


def _policies(job: Job, plan: Plan) -> Iterator[str]:
    yield f"without a node (repair {format_duration(job.repair_s)})"
    yield f"  {'policy':<40} {'goodput':>9} {'per owned node':>15}"
    for row in plan.policies:
        yield f"  {_policy(row):<40} {_percent(row.goodput.useful):>9} {_percent(row.per_owned_node):>15}"
    needed = ", ".join(
        f"{_nines(row.availability)} {'-' if row.spares is None else f'{row.spares:,}'}" for row in plan.spares
    )
    yield f"  spares needed to have all nodes for a share of the time: {needed}"


def _policy(row: PolicyRow) -> str:
    if row.policy == "wait":
        return "wait for the repair (fixed size)"
    spares = f"{row.spares:,} hot spare{'' if row.spares == 1 else 's'}"
    if row.policy == "shrink":
        return f"{spares}, then shrink" if row.spares else "shrink and go on (elastic)"
    return spares


def _time(job: Job, plan: Plan) -> Iterator[str]:
    goodput = plan.chosen.goodput
    yield f"where the time goes, with: {_policy(plan.chosen)}"
    named = (
        ("work that is kept", goodput.useful), ("checkpoints", goodput.checkpoint), ("work done again", goodput.rework),
        ("restarts", goodput.restart), ("detection and swap", goodput.downtime), ("waiting for nodes", goodput.waiting),
        ("nodes missing", goodput.shrunk),
    )  # fmt: skip
    for name, value in named:
        if value == 0:
            continue
        days = value * job.num_gpus * job.duration_s / 86400
        yield f"  {name:<20} {_percent(value, 2):>9} {days:>14,.0f} GPU-days of {format_duration(job.duration_s)}"
    nodes = "" if goodput.waiting + goodput.shrunk < 0.0005 else ", nodes at hand,"
    if plan.stop_budget_s > 0:
        budget = f"allows {format_duration(plan.stop_budget_s)} to detect and swap, on the average"
    else:
        budget = "is out of reach, even with detection and swap in no time"
    yield f"  a goodput of {_nines(job.target)}{nodes} {budget}"


def _simulation(plan: Plan) -> Iterator[str]:
    simulation = plan.simulation
    if simulation is None:
        return
    formula = plan.chosen.goodput.useful
    inside = "agrees" if simulation.low <= formula <= simulation.high else f"says {_percent(formula, 2)}"
    yield (
        f"  simulated  {_percent(simulation.goodput, 2)}, 95 % confidence {_percent(simulation.low, 2)} to "
        f"{_percent(simulation.high, 2)}; the formula {inside}"
    )
    yield (
        f"             {simulation.runs} runs of {format_duration(simulation.duration_s)}, {simulation.failures:,} "
        f"failures, seed {simulation.seed}"
    )
    yield (
        f"             one run in twenty gets less than {_percent(simulation.worst_5_percent)}, "
        f"one in twenty more than {_percent(simulation.best_5_percent)}"
    )


def _levers(job: Job, plan: Plan) -> Iterator[str]:
    yield f"what a change is worth over {format_duration(job.duration_s)}, each alone"
    for lever in plan.levers:
        yield (
            f"  {lever.change:<44} {_percent(lever.goodput):>8} {lever.gain * 100:>+7.1f} points "
            f"{lever.gpu_days:>+12,.0f} GPU-days"
        )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _percent(value: float, digits: int = 1) -> str:
    return f"{value * 100:.{digits}f} %"


def _nines(value: float) -> str:
    return f"{value * 100:.6g} %"
