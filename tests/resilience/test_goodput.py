"""Goodput by formula: limits, monotony, and a direct simulation of what its derivation leaves out."""

import math
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operations import operations

from atoll.errors import SpecError
from atoll.resilience.cadence import Checkpoint
from atoll.resilience.goodput import FailureKind, Goodput, goodput, stop_budget_s
from atoll.resilience.policies import Operation
from atoll.resilience.tiers import storage_optimum_s, two_tiers

ONE = (FailureKind("any", 1.0, 300.0, 120.0),)


def values(result: Goodput) -> list[float]:
    return [getattr(result, name) for name in result.__struct_fields__]


def of(operation: Operation, mtbf_s: float) -> Goodput:
    return goodput(operation.interval_s, operation.checkpoint, mtbf_s, operation.kinds)


@given(operations())
def test_shares_of_time_add_up_to_one(operation: Operation) -> None:
    result = of(operation, operation.mtbf_s)
    assert all(0 <= value <= 1 for value in values(result))
    assert math.fsum(values(result)) == pytest.approx(1)


@given(operations(), st.floats(1, 1e4))
def test_fewer_failures_never_cost_goodput(operation: Operation, factor: float) -> None:
    assert of(operation, operation.mtbf_s * factor).useful >= of(operation, operation.mtbf_s).useful * (1 - 1e-12)


@given(operations(), st.floats(0, 1e4))
def test_longer_stops_never_gain_goodput(operation: Operation, more_s: float) -> None:
    for field in ("downtime_s", "restart_s", "rework_s"):
        kinds = tuple(
            msgspec.structs.replace(kind, **{field: getattr(kind, field) + more_s}) for kind in operation.kinds
        )
        slower = goodput(operation.interval_s, operation.checkpoint, operation.mtbf_s, kinds)
        assert slower.useful <= of(operation, operation.mtbf_s).useful * (1 + 1e-12)


def test_without_failures_only_checkpoints_cost() -> None:
    result = goodput(90.0, Checkpoint(10.0), 1e15, ONE)
    assert result.useful == pytest.approx(0.9)
    assert result.checkpoint == pytest.approx(0.1)


def test_hopeless_is_zero_and_not_an_error() -> None:
    assert goodput(1e6, Checkpoint(10.0), 1.0, ONE).useful == 0
    assert goodput(1.0, Checkpoint(1e6), 1.0, ONE).useful == 0


def test_first_order_by_hand() -> None:
    """Where failures are rare: overhead, half an interval and the stops, each by itself."""
    result = goodput(1000.0, Checkpoint(10.0), 1e6, ONE)
    by_hand = 1 - 10 / 1010 - (505 + 300 + 120) / 1e6
    assert result.useful == pytest.approx(by_hand, abs=2e-5)


@given(operations(), st.floats(0.05, 0.95))
def test_the_budget_for_stops_meets_its_target(operation: Operation, target: float) -> None:
    budget_s = stop_budget_s(target, operation.interval_s, operation.checkpoint, operation.mtbf_s, operation.kinds)
    if budget_s < 0:
        still = tuple(msgspec.structs.replace(kind, downtime_s=0.0) for kind in operation.kinds)
        assert goodput(operation.interval_s, operation.checkpoint, operation.mtbf_s, still).useful < target
    else:
        stopped = tuple(msgspec.structs.replace(kind, downtime_s=budget_s) for kind in operation.kinds)
        reached = goodput(operation.interval_s, operation.checkpoint, operation.mtbf_s, stopped).useful
        assert reached == pytest.approx(target)


@dataclass
class TwoTierRun:
    """A job with a memory and a storage tier, second by second of what happens and nothing averaged."""

    memory_s: float
    copy_s: float
    per_storage: int
    """Memory intervals between two storage checkpoints."""
    storage: Checkpoint
    soft: FailureKind
    hard: FailureKind
    mtbf_s: float

    def goodput(self, failures: int, seed: int) -> tuple[float, float]:
        """Goodput and its standard error from blocks of failures."""
        random = np.random.default_rng(seed)
        works, times = [], []
        for _ in range(40):
            work, time = self._block(random, failures // 40)
            works.append(work)
            times.append(time)
        work_array, time_array = np.array(works), np.array(times)
        ratio = float(work_array.sum() / time_array.sum())
        error = np.std(work_array - ratio * time_array, ddof=1) / (time_array.mean() * math.sqrt(40))
        return ratio, float(error)

    def _block(self, random: np.random.Generator, failures: int) -> tuple[float, float]:
        done = stored = 0  # memory intervals of work, in memory and in storage
        time = 0.0
        kind = self.soft
        for _ in range(failures):
            left = float(random.exponential(self.mtbf_s))
            time += left
            left -= kind.restart_s
            written_at, writing = math.inf, 0
            while True:
                step = self.memory_s + self.copy_s
                storing = (done + 1) % self.per_storage == 0
                step += self.storage.blocking_s if storing else 0.0
                if left <= 0 or left < step:
                    if written_at <= left:
                        stored = writing
                    break
                left -= step
                written_at -= step
                done += 1
                if written_at <= 0:
                    stored, written_at = writing, math.inf
                if storing:
                    written_at, writing = self.storage.background_s, done
            kind = self.hard if random.random() < self.hard.share else self.soft
            if kind is self.hard:
                done = stored
            time += kind.downtime_s
        return done * self.memory_s, time


def test_two_tiers_against_a_direct_simulation() -> None:
    soft = FailureKind("soft", 0.75, 60.0, 100.0, 0)
    hard = FailureKind("hard", 0.25, 400.0, 200.0, 1)
    storage = Checkpoint(20.0, background_s=120.0)
    run = TwoTierRun(100.0, 1.0, 12, storage, soft, hard, 15_000.0)
    tiers = two_tiers(100.0, 1.0, 1200.0, storage, (soft, hard))
    formula = goodput(tiers.interval_s, tiers.checkpoint, run.mtbf_s, tiers.kinds).useful
    simulated, error = run.goodput(40_000, seed=5)
    assert error < 0.001
    assert abs(formula - simulated) < 3 * error + 0.002


def test_memory_is_worth_nothing_where_every_failure_takes_a_node() -> None:
    hard = (FailureKind("hard", 1.0, 0.0, 0.0, 1),)
    tiers = two_tiers(100.0, 1.0, 1000.0, Checkpoint(10.0), hard)
    alone = goodput(1000.0, Checkpoint(10.0), 1e5, hard).useful
    assert goodput(tiers.interval_s, tiers.checkpoint, 1e5, tiers.kinds).useful < alone
    with pytest.raises(SpecError, match="no failure loses a node"):
        storage_optimum_s(Checkpoint(10.0), 1e5, (FailureKind("soft", 1.0, 0.0, 0.0, 0),))
    with pytest.raises(SpecError, match="seldom"):
        two_tiers(2000.0, 1.0, 1000.0, Checkpoint(10.0), hard)


def test_nonsense_is_refused() -> None:
    with pytest.raises(SpecError, match="add up to 1"):
        goodput(10.0, Checkpoint(1.0), 100.0, ())
    with pytest.raises(SpecError, match="add up to 1"):
        goodput(10.0, Checkpoint(1.0), 100.0, (FailureKind("half", 0.5, 0.0, 0.0),))
    with pytest.raises(SpecError, match="background write"):
        goodput(10.0, Checkpoint(1.0, background_s=11.0), 100.0, ONE)
    with pytest.raises(SpecError, match="MTBF"):
        goodput(10.0, Checkpoint(1.0), 0.0, ONE)
    with pytest.raises(SpecError, match="target"):
        stop_budget_s(1.0, 10.0, Checkpoint(1.0), 100.0, ONE)
    for wrong in ({"share": 1.5}, {"downtime_s": -1.0}, {"restart_s": math.nan}, {"nodes": -1}, {"rework_s": -1.0}):
        with pytest.raises(SpecError):
            FailureKind(**{"name": "bad", "share": 1.0, "downtime_s": 0.0, "restart_s": 0.0, **wrong})
