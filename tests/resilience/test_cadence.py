"""The checkpoint interval: the exact optimum is one, and the classic approximations come close where they say."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.resilience.cadence import (
    Checkpoint,
    daly_first_order_s,
    daly_s,
    exact_s,
    optimizer_state_bytes,
    optimum_s,
    write_time_s,
    young_s,
)
from atoll.resilience.goodput import FailureKind, goodput

MTBFS = st.floats(60, 1e8)
RATIOS = st.floats(1e-6, 3)
"""Checkpoint overhead in units of the MTBF."""


def kept(interval_s: float, overhead_s: float, mtbf_s: float, restart_s: float) -> float:
    kinds = (FailureKind("any", 1.0, 0.0, restart_s),)
    return goodput(interval_s, Checkpoint(overhead_s), mtbf_s, kinds).useful


@given(MTBFS, RATIOS, st.floats(0, 2), st.floats(0.01, 100))
def test_no_interval_is_better_than_the_exact_one(mtbf_s: float, ratio: float, restart: float, factor: float) -> None:
    overhead_s, restart_s = ratio * mtbf_s, restart * mtbf_s
    best_s = exact_s(overhead_s, mtbf_s)
    best = kept(best_s, overhead_s, mtbf_s, restart_s)
    assert best >= kept(best_s * factor, overhead_s, mtbf_s, restart_s) * (1 - 1e-12)


@given(MTBFS, st.floats(1e-12, 30))
def test_the_exact_interval_solves_its_equation(mtbf_s: float, ratio: float) -> None:
    x = exact_s(ratio * mtbf_s, mtbf_s) / mtbf_s
    assert 0 < x <= 1
    assert x + math.exp(-(x + ratio)) == pytest.approx(1, abs=1e-12)


@given(MTBFS, st.floats(1e-12, 1e-3))
def test_where_checkpoints_are_cheap_all_agree(mtbf_s: float, ratio: float) -> None:
    overhead_s = ratio * mtbf_s
    exact = exact_s(overhead_s, mtbf_s)
    assert young_s(overhead_s, mtbf_s) == pytest.approx(exact, rel=0.02)
    assert daly_first_order_s(overhead_s, mtbf_s, overhead_s) == pytest.approx(exact, rel=0.02)
    assert daly_s(overhead_s, mtbf_s) == pytest.approx(exact, rel=1e-5)


@given(MTBFS, st.floats(1e-6, 1.9))
def test_dalys_higher_order_stays_close_where_young_does_not(mtbf_s: float, ratio: float) -> None:
    overhead_s = ratio * mtbf_s
    best = kept(exact_s(overhead_s, mtbf_s), overhead_s, mtbf_s, 0)
    assert kept(daly_s(overhead_s, mtbf_s), overhead_s, mtbf_s, 0) >= 0.99 * best


def test_daly_gives_up_where_a_checkpoint_takes_two_mtbfs() -> None:
    assert daly_s(200.0, 100.0) == daly_s(1e6, 100.0) == 100.0
    assert exact_s(1e6, 100.0) == pytest.approx(100.0)


def test_a_worked_example() -> None:
    """40 s every 3.09 h: 15.7 minutes, a loss of 8.5 %; 5 s blocking: 5.6 minutes, 3.0 %."""
    mtbf_s = 3.09 * 3600
    assert young_s(40, mtbf_s) / 60 == pytest.approx(15.7, abs=0.05)
    assert 1 - kept(young_s(40, mtbf_s), 40, mtbf_s, 0) == pytest.approx(0.085, abs=0.004)
    assert young_s(5, mtbf_s) / 60 == pytest.approx(5.6, abs=0.05)
    assert 1 - kept(young_s(5, mtbf_s), 5, mtbf_s, 0) == pytest.approx(0.030, abs=0.001)


def test_a_background_write_costs_its_slowdown_and_bounds_the_interval() -> None:
    checkpoint = Checkpoint(5, background_s=100, slowdown=0.1)
    assert checkpoint.overhead_s == 15
    assert optimum_s(checkpoint, 36000) == exact_s(15, 36000)
    assert optimum_s(Checkpoint(1, background_s=10_000), 36000) == 10_000


def test_sizes_and_times() -> None:
    assert write_time_s(2.3e12, 57.5e9) == 40
    assert optimizer_state_bytes(405e9) == 5.67e12
    # BLOOM's 2.3 TB for 176e9 parameters are 7 % less than 14 bytes each.
    assert optimizer_state_bytes(176e9) == pytest.approx(2.3e12, rel=0.08)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_impossible_checkpoints_are_refused(bad: float) -> None:
    for wrong in ({"blocking_s": bad}, {"blocking_s": 1, "background_s": bad}, {"blocking_s": 1, "slowdown": bad}):
        with pytest.raises(SpecError):
            Checkpoint(**wrong)
    with pytest.raises(SpecError, match="storage bandwidth"):
        write_time_s(1e12, bad)
    with pytest.raises(SpecError, match="MTBF"):
        young_s(1.0, bad)
    with pytest.raises(SpecError):
        exact_s(bad, 1.0)
    with pytest.raises(SpecError):
        daly_s(bad, 1.0)


def test_a_checkpoint_for_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="takes from the job"):
        Checkpoint(0.0)
