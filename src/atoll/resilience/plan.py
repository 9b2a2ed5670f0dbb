"""All of it for one job: how often it breaks, how often to checkpoint, what to hold ready, and what that is worth.

``Job`` is what is known or assumed; ``make_plan`` is a pure function of it. Failures come in up to three kinds:

    in place   the job starts again on the same nodes      detect, restart
    node       one node is replaced                        detect, swap, restart
    domain     several nodes that share something          detect, swap, restart

A plan answers with one chosen way of running (the given interval, or else the best; spares as given, or else for the
availability asked for) and with the others beside it. A **lever** is one change to the job and the goodput after it:
what an investment is worth, before it is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec

from atoll.errors import SpecError
from atoll.resilience.cadence import Checkpoint, daly_first_order_s, daly_s, optimum_s, young_s
from atoll.resilience.demand import at_least, not_negative, positive, share
from atoll.resilience.goodput import FailureKind, Goodput, stop_budget_s
from atoll.resilience.montecarlo import Simulation, simulate
from atoll.resilience.policies import Operation, evaluate, per_owned_node
from atoll.resilience.rates import DAY_S, FailureRate, PartRate, lemon_effect, part_rates
from atoll.resilience.spares import Domain, spares_for
from atoll.resilience.tiers import storage_optimum_s, two_tiers

NINES: Final = (0.9, 0.99, 0.999, 0.9999)
SIZES: Final = (128, 1024, 16384, 131072)
"""GPUs for which the mean time between interruptions is shown beside the job's own."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as far as failures are concerned. Times in seconds, shares from 0 to 1."""

    num_gpus: int
    gpus_per_node: int
    rate: FailureRate
    checkpoint: Checkpoint
    interval_s: float | None = None
    """Between checkpoints to storage; ``None``: the best."""
    memory_copy_s: float | None = None
    """Time of a checkpoint into host memory; ``None``: no such tier."""
    memory_interval_s: float | None = None
    detect_s: float
    swap_s: float
    restart_s: float
    repair_s: float
    in_place_share: float = 0.0
    domains: tuple[Domain, ...] = ()
    spares: int | None = None
    """``None``: as many as ``availability`` asks for."""
    availability: float = 0.999
    elastic: bool = False
    """Shrink when no spare is left, instead of waiting."""
    replica_nodes: int = 1
    target: float = 0.9
    lemon_share: float = 0.0
    lemon_factor: float = 1.0
    duration_s: float

    def __post_init__(self) -> None:
        at_least(self.num_gpus, 1, "GPUs")
        at_least(self.gpus_per_node, 1, "GPUs per node")
        positive(self.duration_s, "duration of the job")
        positive(self.rate.per_node_day, "failure rate per node-day")
        not_negative(self.detect_s, "detection time")
        not_negative(self.swap_s, "swap time")
        share(self.in_place_share, "share of failures that restart in place")
        lemon_effect(self.lemon_share, self.lemon_factor)
        if self.memory_copy_s is None and self.memory_interval_s is not None:
            raise SpecError("checkpoints in memory: an interval is given and not how long a copy takes")
        for domain in self.domains:
            if domain.nodes > self.num_nodes:
                raise SpecError(f"domain: expected at most the job's {self.num_nodes} nodes, got {domain.nodes}")

    @property
    def num_nodes(self) -> int:
        return math.ceil(self.num_gpus / self.gpus_per_node)

    @property
    def failures_per_s(self) -> float:
        """Of the whole job, all kinds together."""
        nodes = self.rate.per_node_day * self.num_nodes / DAY_S
        return nodes + math.fsum(domain.per_s(self.num_nodes) for domain in self.domains)

    @property
    def mtbf_s(self) -> float:
        return 1 / self.failures_per_s


class CadenceRow(msgspec.Struct, frozen=True):
    """A way to choose the interval, and the goodput with it; nodes are taken as always at hand."""

    name: str
    interval_s: float
    goodput: float


class PolicyRow(msgspec.Struct, frozen=True):
    """A way to go on without a node."""

    policy: str
    spares: int
    goodput: Goodput
    per_owned_node: float


class SparesRow(msgspec.Struct, frozen=True):
    """Spares for an availability; ``None`` where no number helps."""

    availability: float
    spares: int | None


class BlastRow(msgspec.Struct, frozen=True):
    """What one failure of a kind takes: every GPU waits, whatever broke; only some nodes have to be replaced."""

    kind: str
    share: float
    every_s: float
    nodes: int
    stop_s: float
    """From the failure until the job is back where it was: downtime, restart, and work done again."""
    gpu_hours: float


class Lever(msgspec.Struct, frozen=True):
    """One change and what it is worth."""

    change: str
    goodput: float
    gain: float
    gpu_days: float
    """Gained over the duration of the job."""


class Plan(msgspec.Struct, frozen=True):
    """Everything that is said about a job. ``chosen`` is the policy that breakdown, levers and simulation use."""

    num_nodes: int
    mtbf_s: float
    failures_per_day: float
    by_size: tuple[tuple[int, float], ...]
    parts: tuple[PartRate, ...]
    blast: tuple[BlastRow, ...]
    operation: Operation
    storage_interval_s: float
    cadences: tuple[CadenceRow, ...]
    spares: tuple[SparesRow, ...]
    policies: tuple[PolicyRow, ...]
    chosen: PolicyRow
    stop_budget_s: float
    """How long the job may stand still per failure and still reach the target; negative: out of reach."""
    levers: tuple[Lever, ...]
    simulation: Simulation | None


def failure_kinds(job: Job, *, shrink: bool = False) -> tuple[FailureKind, ...]:
    """The kinds of failures that a job sees, with their shares; a shrinking job does not swap."""
    nodes = job.rate.per_node_day * job.num_nodes / DAY_S / job.failures_per_s
    stop_s = job.detect_s if shrink else job.detect_s + job.swap_s
    kinds = [
        FailureKind("in place", nodes * job.in_place_share, job.detect_s, job.restart_s, 0),
        FailureKind("node", nodes * (1 - job.in_place_share), stop_s, job.restart_s, 1),
    ]
    for domain in job.domains:
        portion = domain.per_s(job.num_nodes) / job.failures_per_s
        kinds.append(FailureKind(f"{domain.nodes} nodes", portion, stop_s, job.restart_s, domain.nodes))
    return tuple(kind for kind in kinds if kind.share > 0)


def storage_interval_s(job: Job) -> float:
    """The interval of checkpoints to storage: the given one or the best."""
    if job.interval_s is not None:
        return job.interval_s
    kinds = failure_kinds(job)
    if job.memory_copy_s is not None and any(kind.nodes for kind in kinds):
        return max(storage_optimum_s(job.checkpoint, job.mtbf_s, kinds), job.memory_interval_s or 0.0)
    return optimum_s(job.checkpoint, job.mtbf_s)


def operation_of(job: Job, *, spares: int = 0, shrink: bool = False, interval_s: float | None = None) -> Operation:
    """The job as formulas and simulation take it."""
    kinds = failure_kinds(job, shrink=shrink)
    interval_s, checkpoint = interval_s or storage_interval_s(job), job.checkpoint
    if job.memory_copy_s is not None:
        memory_s = job.memory_interval_s or min(optimum_s(Checkpoint(job.memory_copy_s), job.mtbf_s), interval_s)
        tiers = two_tiers(memory_s, job.memory_copy_s, interval_s, checkpoint, kinds)
        interval_s, checkpoint, kinds = tiers.interval_s, tiers.checkpoint, tiers.kinds
    return Operation(
        interval_s=interval_s, checkpoint=checkpoint, mtbf_s=job.mtbf_s, kinds=kinds, num_nodes=job.num_nodes,
        repair_s=job.repair_s, spares=spares, shrink=shrink, replica_nodes=job.replica_nodes,
        rejoin_s=job.restart_s + checkpoint.overhead_s if shrink else 0.0,
    )  # fmt: skip


def make_plan(job: Job, *, runs: int = 200, seed: int = 0) -> Plan:
    """The plan for a job; ``runs`` simulated runs check it, none at 0. Raises ``SpecError`` for what makes no sense."""
    at_least(runs, 0, "runs")
    spares = _spares(job)
    chosen = _policy(job, spares, job.elastic)
    others = [_policy(job, 0, False), _policy(job, spares, False), _policy(job, 0, True)]
    policies = [row for number, row in enumerate(others) if row not in others[:number]]
    if chosen not in policies:
        policies.append(chosen)
    operation = operation_of(job, spares=spares, shrink=job.elastic)
    return Plan(
        num_nodes=job.num_nodes,
        mtbf_s=job.mtbf_s,
        failures_per_day=DAY_S * job.failures_per_s,
        by_size=tuple((size, job.rate.mtbf_s(math.ceil(size / job.gpus_per_node))) for size in SIZES),
        parts=part_rates(job.num_nodes, job.rate.per_node_day),
        blast=_blast(job, operation),
        operation=operation,
        storage_interval_s=storage_interval_s(job),
        cadences=_cadences(job),
        spares=tuple(SparesRow(nines, _spares_for(job, nines)) for nines in NINES),
        policies=tuple(policies),
        chosen=chosen,
        stop_budget_s=stop_budget_s(
            job.target, operation.interval_s, operation.checkpoint, operation.mtbf_s, operation.kinds
        ),
        levers=_levers(job, chosen.goodput.useful),
        simulation=simulate(operation, job.duration_s, runs, seed) if runs else None,
    )


def _policy(job: Job, spares: int, shrink: bool) -> PolicyRow:
    operation = operation_of(job, spares=spares, shrink=shrink)
    result = evaluate(operation)
    policy = "shrink" if shrink else "spares" if spares else "wait"
    return PolicyRow(policy, spares, result, per_owned_node(operation, result.useful))


def _spares_for(job: Job, availability: float) -> int | None:
    losses = operation_of(job).losses
    try:
        return spares_for(losses, job.repair_s, availability)
    except SpecError:
        return None


def _spares(job: Job) -> int:
    if job.spares is not None or job.elastic:
        return job.spares or 0
    return spares_for(operation_of(job).losses, job.repair_s, job.availability)


def _blast(job: Job, operation: Operation) -> tuple[BlastRow, ...]:
    rows = []
    for kind in operation.kinds:
        # A failure strikes in the middle of an interval, on the average.
        again_s = (operation.interval_s + operation.checkpoint.overhead_s) / 2 + operation.checkpoint.background_s
        stop_s = kind.downtime_s + kind.recovery_s + again_s
        every_s = operation.mtbf_s / kind.share
        rows.append(BlastRow(kind.name, kind.share, every_s, kind.nodes, stop_s, stop_s / 3600 * job.num_gpus))
    return tuple(rows)


def _cadences(job: Job) -> tuple[CadenceRow, ...]:
    """The classic intervals side by side, for the storage tier alone."""
    overhead_s, mtbf_s = job.checkpoint.overhead_s, job.mtbf_s
    single = msgspec.structs.replace(job, memory_copy_s=None, memory_interval_s=None)
    ways = [
        ("exact optimum", optimum_s(job.checkpoint, mtbf_s)),
        ("Young 1974", young_s(overhead_s, mtbf_s)),
        ("Daly 2003", daly_first_order_s(overhead_s, mtbf_s, job.restart_s)),
        ("Daly 2006", daly_s(overhead_s, mtbf_s)),
    ]
    if job.interval_s is not None:
        ways.insert(0, ("as given", job.interval_s))
    rows = []
    for name, way_s in ways:
        interval_s = max(way_s, job.checkpoint.background_s)
        kinds = tuple(msgspec.structs.replace(kind, nodes=0) for kind in failure_kinds(single))
        operation = msgspec.structs.replace(operation_of(single, interval_s=interval_s), kinds=kinds)
        rows.append(CadenceRow(name, interval_s, evaluate(operation).useful))
    return tuple(rows)


def _levers(job: Job, now: float) -> tuple[Lever, ...]:
    """What single changes are worth, the most valuable first."""
    replace: Callable[..., Job] = msgspec.structs.replace
    changed: list[tuple[str, Job]] = [
        ("half as many failures", replace(job, rate=replace(job.rate, per_node_day=job.rate.per_node_day / 2))),
        ("restart in half the time", replace(job, restart_s=job.restart_s / 2)),
    ]
    if job.detect_s > 1:
        changed.append(("failures detected in 1 s", replace(job, detect_s=1.0)))
    if job.interval_s is not None:
        changed.append(("checkpoints at the best interval", replace(job, interval_s=None)))
    if not job.checkpoint.background_s and job.memory_copy_s is None:
        # DLRover measured a tenth of the blocking time where a copy to host memory is written in the background.
        tenth = Checkpoint(job.checkpoint.blocking_s / 10, job.checkpoint.blocking_s)
        interval_s = None if job.interval_s is None else max(job.interval_s, tenth.background_s)
        changed.append(
            ("asynchronous checkpoints, blocking a tenth", replace(job, checkpoint=tenth, interval_s=interval_s))
        )
    if job.lemon_share > 0:
        rest = lemon_effect(job.lemon_share, job.lemon_factor)
        calm = replace(job.rate, per_node_day=job.rate.per_node_day * rest)
        changed.append(("lemon nodes taken out", replace(job, rate=calm, lemon_share=0.0)))
    levers = []
    for change, other in changed:
        # Spares are kept as they are, so that a lever is not credited with fewer of them.
        after = evaluate(operation_of(other, spares=_spares(job), shrink=job.elastic)).useful
        gain = after - now
        levers.append(Lever(change, after, gain, gain * job.num_gpus * job.duration_s / DAY_S))
    return tuple(sorted(levers, key=lambda lever: -lever.gain))
