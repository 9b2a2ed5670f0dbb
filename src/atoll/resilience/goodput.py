"""What is left of the time, by formula.

**Goodput** is the share of wall time that becomes work which is kept: as if no failure, no checkpoint and no restart
had happened. (Meta calls it effective training time ratio, Llama 3 effective training time.)

The job alternates: it is interrupted; nobody notices for a while and a node is replaced (**downtime**, nothing runs
that could fail); it starts and loads the last checkpoint (**restart**, can fail like anything that runs); it works, tau
seconds at a time, and checkpoints, C seconds each. With exponential failures of mean M, the time X from the begin of a
restart to the next failure is exponential, whatever went before. Of X, the restart R comes first; checkpoint j is on
disk at R + w + j (tau + C), where w is what is written in the background; all later work is lost. So

    checkpoints kept per failure     n = sum over j >= 1 of P(X > R + w + j (tau + C))
                                       = exp(-(R + w) / M) / (exp((tau + C) / M) - 1)
    goodput                          n tau / (M + D)

For w = 0 this is Daly's complete model with downtime (Bougeret, Casanova, Rabie, Robert, Vivien, Checkpointing
strategies for parallel jobs, SC 2011). It is exact, also where checkpoints take longer than the job survives. Kinds of
failures that differ in R and D enter by their shares: n is averaged over R, the denominator over D.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from atoll.errors import SpecError
from atoll.resilience.cadence import Checkpoint
from atoll.resilience.demand import at_least, not_negative, positive, share


class FailureKind(msgspec.Struct, frozen=True):
    """One kind of interruption: how large its share of all is, and what it costs each time.

    ``rework_s`` is work that has to be done again beyond what lies after the last checkpoint, as when a lost node takes
    checkpoints in memory with it and the job falls back to storage.
    """

    name: str
    share: float
    downtime_s: float
    restart_s: float
    nodes: int = 1
    """Nodes that have to be replaced; 0: the job starts again on the nodes it has."""
    rework_s: float = 0.0

    def __post_init__(self) -> None:
        share(self.share, f"share of {self.name} failures")
        not_negative(self.downtime_s, f"downtime after a {self.name} failure")
        not_negative(self.restart_s, f"restart time after a {self.name} failure")
        not_negative(self.rework_s, f"rework after a {self.name} failure")
        at_least(self.nodes, 0, f"nodes lost in a {self.name} failure")

    @property
    def recovery_s(self) -> float:
        """Seconds of running until the job is back where the checkpoint left it."""
        return self.restart_s + self.rework_s


class Goodput(msgspec.Struct, frozen=True):
    """Where the time goes, as shares of wall time that add up to 1."""

    useful: float
    checkpoint: float
    rework: float
    restart: float
    downtime: float
    waiting: float = 0.0
    """For a node to come back from repair."""
    shrunk: float = 0.0
    """Work not done because the job runs on fewer nodes."""


def check_shares(kinds: Sequence[FailureKind]) -> None:
    """Refuse kinds whose shares do not add up to 1."""
    total = math.fsum(kind.share for kind in kinds)
    if not kinds or abs(total - 1) > 1e-9:
        raise SpecError(f"failure kinds: expected shares that add up to 1, got {total:g} of {len(kinds)} kinds")


def check_interval(interval_s: float, checkpoint: Checkpoint) -> float:
    """``interval_s`` when it is positive and leaves time for the background write."""
    positive(interval_s, "checkpoint interval")
    if interval_s < checkpoint.background_s:
        raise SpecError(
            f"checkpoint interval: {interval_s:g} s is less than the {checkpoint.background_s:g} s that the background "
            "write takes; checkpoint less often or write faster"
        )
    return interval_s


def kept_checkpoints(interval_s: float, checkpoint: Checkpoint, mtbf_s: float, recovery_s: float) -> float:
    """Checkpoints that become durable between two failures, on the average."""
    exponent = (interval_s + checkpoint.overhead_s) / mtbf_s
    if exponent > 700:
        return 0.0
    return math.exp(-(recovery_s + checkpoint.background_s) / mtbf_s) / math.expm1(exponent)


def goodput(interval_s: float, checkpoint: Checkpoint, mtbf_s: float, kinds: Sequence[FailureKind]) -> Goodput:
    """Where the time of a job goes: ``interval_s`` of work between checkpoints, failures of mean ``mtbf_s``.

    Raises ``SpecError`` for an interval shorter than the background write and for shares that do not add up.
    """
    check_interval(interval_s, checkpoint)
    positive(mtbf_s, "MTBF")
    check_shares(kinds)
    kept = math.fsum(kind.share * kept_checkpoints(interval_s, checkpoint, mtbf_s, kind.recovery_s) for kind in kinds)
    downtime_s = math.fsum(kind.share * kind.downtime_s for kind in kinds)
    restart_s = math.fsum(kind.share * -mtbf_s * math.expm1(-kind.restart_s / mtbf_s) for kind in kinds)
    cycle_s = mtbf_s + downtime_s
    useful, spent = kept * interval_s / cycle_s, kept * checkpoint.overhead_s / cycle_s
    return Goodput(
        useful=useful,
        checkpoint=spent,
        rework=max(0.0, (mtbf_s - restart_s) / cycle_s - useful - spent),
        restart=restart_s / cycle_s,
        downtime=downtime_s / cycle_s,
    )


def stop_budget_s(
    target: float, interval_s: float, checkpoint: Checkpoint, mtbf_s: float, kinds: Sequence[FailureKind]
) -> float:
    """How long the job may stand still per failure, on the average, and still reach a goodput of ``target``.

    Counts downtime (detection, replacement), the restarts being as given. Negative: out of reach at any downtime.
    """
    if not 0 < target < 1:
        raise SpecError(f"goodput target: expected a share above 0 and below 1, got {target:g}")
    check_shares(kinds)
    check_interval(interval_s, checkpoint)
    kept = math.fsum(kind.share * kept_checkpoints(interval_s, checkpoint, mtbf_s, kind.recovery_s) for kind in kinds)
    return kept * interval_s / target - positive(mtbf_s, "MTBF")
