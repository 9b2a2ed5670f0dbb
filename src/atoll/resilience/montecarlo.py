"""The same by simulation: many runs of the job, failure by failure, from one seed.

It shares the description (``policies.Operation``) with the formulas and nothing else, so that their agreement means
something. All runs advance together, one failure per step: each draws how long it works until the next failure, counts
the checkpoints that became durable in that time, draws the kind of the failure, sends nodes to repair (exponential
times) and waits where it must.

**What is estimated.** Goodput is total kept work over total time of all runs. A run begins after a warm-up in which the
number of nodes in repair settles, and ends with the first failure after the time asked for; a whole number of
failure-to-failure cycles keeps the estimate free of bias (Wald). The standard error is that of a ratio of means, from
the runs, which are independent. ``confidence`` is 1.96 of it each way: 95 %.

Beyond the mean, which the formula knows, simulation shows the **spread**: how bad a bad run of this length is.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from atoll.errors import SpecError
from atoll.resilience.demand import at_least, positive
from atoll.resilience.policies import Operation, usable_share

MAX_CYCLES: Final = 20_000
"""Failures per run at most; a job that fails more often is simulated for less time, and the result says how long."""

MAX_WORK: Final = 2_000_000_000
"""Nodes looked at: runs x nodes that can be away x failures. About ten seconds."""

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


class Simulation(msgspec.Struct, frozen=True):
    """What the runs showed. Shares are of wall time, as in ``Goodput``."""

    goodput: float
    standard_error: float
    low: float
    """Lower end of the 95 % confidence interval of ``goodput``."""
    high: float
    runs: int
    duration_s: float
    """How long each run is, warm-up not counted."""
    failures: int
    worst_5_percent: float
    """Goodput that 5 % of the runs do not reach."""
    median: float
    best_5_percent: float
    seed: int

    def agrees(self, expected: float, errors: float = 3.0) -> bool:
        """Whether a formula's figure lies within so many standard errors."""
        return abs(self.goodput - expected) <= errors * self.standard_error


def simulate(operation: Operation, duration_s: float, runs: int = 200, seed: int = 0) -> Simulation:
    """Run the job ``runs`` times for ``duration_s``; the same arguments give the same result, bit for bit."""
    positive(duration_s, "simulated time")
    at_least(runs, 2, "runs")
    at_least(seed, 0, "seed")
    loses_nodes = any(kind.nodes and kind.share for kind in operation.kinds)
    warm_up_s = 5 * operation.repair_s if loses_nodes else 0.0
    nodes_away = operation.repair_s * sum(loss.nodes * loss.per_s for loss in operation.losses)
    per_failure = runs * (1 + (nodes_away if operation.shrink else min(nodes_away, operation.spares)))
    allowed = min(MAX_CYCLES, MAX_WORK / per_failure - warm_up_s / operation.mtbf_s)
    if allowed < 1:
        raise SpecError(
            f"simulation: {runs} runs with about {nodes_away:,.0f} nodes in repair at a time take too long; "
            "use fewer runs (0: none)"
        )
    duration_s = min(duration_s, allowed * operation.mtbf_s)
    world = _Runs(operation, runs, np.random.Generator(np.random.PCG64(seed)))
    work, time = np.zeros(runs), np.zeros(runs)
    failures = 0
    while True:
        counted = (world.clock_s >= warm_up_s) & (world.clock_s < warm_up_s + duration_s)
        if not counted.any() and bool((world.clock_s >= warm_up_s).all()):
            break
        begin = world.clock_s
        kept = world.advance()
        work += np.where(counted, kept, 0.0)
        time += np.where(counted, world.clock_s - begin, 0.0)
        failures += int(counted.sum())
    ratio = float(work.sum() / time.sum())
    error = float(np.std(work - ratio * time, ddof=1) / (time.mean() * np.sqrt(runs)))
    worst, median, best = (float(value) for value in np.quantile(work / time, (0.05, 0.5, 0.95)))
    return Simulation(
        goodput=ratio, standard_error=error, low=max(0.0, ratio - 1.96 * error), high=min(1.0, ratio + 1.96 * error),
        runs=runs, duration_s=duration_s, failures=failures, worst_5_percent=worst, median=median,
        best_5_percent=best, seed=seed,
    )  # fmt: skip


class _Runs:
    """The state of all runs: a clock each, the kind of the last failure, and when each node away returns."""

    def __init__(self, operation: Operation, runs: int, random: np.random.Generator) -> None:
        self.operation = operation
        self.random = random
        kinds = operation.kinds
        self.bounds = np.cumsum([kind.share for kind in kinds])[:-1]
        self.recovery_s = np.array([kind.recovery_s for kind in kinds])
        self.downtime_s = np.array([kind.downtime_s for kind in kinds])
        self.nodes = np.array([kind.nodes for kind in kinds], dtype=np.int64)
        self.clock_s: Floats = np.zeros(runs)
        self.kind: Numbers = self._kinds(runs)
        # One column a node that can be away; a time in the past is a free column.
        self.returns_s: Floats = np.full((runs, int(self.nodes.max(initial=0)) + 1), -np.inf)

    def advance(self) -> Floats:
        """Every run from its restart to its next one; the seconds of work that each of them keeps."""
        operation = self.operation
        runs = len(self.clock_s)
        begin = self.clock_s
        running_s = self.random.exponential(operation.mtbf_s, runs)
        failed = begin + running_s
        durable_s = running_s - self.recovery_s[self.kind] - operation.checkpoint.background_s
        kept = np.floor(np.maximum(durable_s, 0.0) / (operation.interval_s + operation.checkpoint.overhead_s))
        work: Floats = kept * operation.interval_s
        pause_s = np.zeros(runs)
        if operation.shrink:
            speed, stops = self._shrunk(begin, failed)
            work *= speed
            pause_s += stops * operation.rejoin_s
        self.kind = self._kinds(runs)
        self._lose(self.nodes[self.kind], failed)
        if not operation.shrink:
            pause_s += self._waits(failed)
        self.clock_s = failed + pause_s + self.downtime_s[self.kind]
        return work

    def _kinds(self, runs: int) -> Numbers:
        return np.searchsorted(self.bounds, self.random.random(runs), side="right")

    def _lose(self, lost: Numbers, now: Floats) -> None:
        """Send ``lost`` nodes of each run to repair."""
        rows: Any = np.arange(len(now))
        for number in range(int(lost.max(initial=0))):
            column = self.returns_s.argmin(axis=1)
            losing = lost > number
            if bool((losing & (self.returns_s[rows, column] > now)).any()):
                # No column is free in some run: everybody gets more.
                more = np.full((len(now), self.returns_s.shape[1]), -np.inf)
                self.returns_s = np.concatenate([self.returns_s, more], axis=1)
                column = self.returns_s.argmin(axis=1)
            back = now + self.random.exponential(self.operation.repair_s, len(now))
            self.returns_s[rows[losing], column[losing]] = back[losing]

    def _waits(self, now: Floats) -> Floats:
        """How long each run waits until no more nodes are away than there are spares."""
        away = (self.returns_s > now[:, None]).sum(axis=1)
        excess = away - self.operation.spares
        waits = np.zeros(len(now))
        (short,) = np.nonzero(excess > 0)
        if len(short):
            ordered = np.sort(self.returns_s[short], axis=1)
            first = ordered.shape[1] - away[short]
            waits[short] = ordered[np.arange(len(short)), first + excess[short] - 1] - now[short]
        return waits

    def _shrunk(self, begin: Floats, end: Floats) -> tuple[Floats, Numbers]:
        """Mean speed between two times while nodes return, and how many of them the job stops for."""
        ordered = np.sort(self.returns_s, axis=1)
        columns = ordered.shape[1]
        edges = np.concatenate([begin[:, None], np.clip(ordered, begin[:, None], end[:, None]), end[:, None]], axis=1)
        away = np.arange(columns, -1, -1)
        speeds = np.array([usable_share(self.operation, int(k)) for k in away])
        speed = (np.diff(edges, axis=1) * speeds).sum(axis=1) / (end - begin)
        returning = (ordered > begin[:, None]) & (ordered <= end[:, None]) & (away[:-1] > self.operation.spares)
        return speed, returning.sum(axis=1)
