"""Failure rates: published figures from their counts, sizes, parts, lemons."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.resilience.rates import (
    LLAMA3_CAUSES,
    PUBLISHED,
    job_mtbf_s,
    lemon_effect,
    observed_rate,
    part_rates,
    published,
    rate_from_node_mtbf,
    yearly_rate,
)

HOUR = 3600.0
DAY = 86400.0


def test_mtbf_by_size_for_four_rates() -> None:
    """Hours at 128 and 2,048 nodes for 2.3, 3.8, 6.5 and 16 interruptions per 1,000 node-days."""
    for rate, small, large in ((2.3, 81, 5.1), (3.8, 49, 3.1), (6.5, 29, 1.8), (16, 12, 0.73)):
        assert job_mtbf_s(rate * 1e-3, 128) / HOUR == pytest.approx(small, rel=0.03)
        assert job_mtbf_s(rate * 1e-3, 2048) / HOUR == pytest.approx(large, rel=0.03)


def test_every_published_rate_says_where_it_is_from() -> None:
    assert len({rate.name for rate in PUBLISHED}) == len(PUBLISHED)
    for rate in PUBLISHED:
        assert published(rate.name) is rate
        assert rate.source
        assert rate.note
        assert 1e-3 < rate.per_node_day < 0.1


def test_an_unknown_rate_is_told_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="did you mean 'llama3'"):
        published("lama3")


@given(st.floats(1e-4, 1), st.integers(1, 100_000))
def test_a_rate_observed_on_a_job_gives_back_its_mtbf(rate: float, nodes: int) -> None:
    mtbf_s = job_mtbf_s(rate, nodes)
    assert observed_rate(7, 7 * mtbf_s, nodes) == pytest.approx(rate)
    assert rate_from_node_mtbf(job_mtbf_s(rate, 1)) == pytest.approx(rate)
    assert job_mtbf_s(rate, 2 * nodes) == pytest.approx(mtbf_s / 2)


def test_parts_add_up_to_the_whole() -> None:
    parts = part_rates(2048, 0.01)
    assert sum(part.count for part in parts) == sum(cause.count for cause in LLAMA3_CAUSES)
    assert math.fsum(part.per_node_day for part in parts) == pytest.approx(0.01)
    assert math.fsum(1 / part.mtbf_s for part in parts) == pytest.approx(1 / job_mtbf_s(0.01, 2048))
    assert [part.part for part in parts] == ["gpu", "software", "host", "network", "nic"]


def test_a_gpu_and_its_memory_fail_in_nine_of_a_hundred_in_a_year() -> None:
    assert yearly_rate(148 + 72, 54 * DAY, 16384) == pytest.approx(0.091, abs=0.001)


def test_lemons_cause_a_sixth_of_the_failures() -> None:
    assert lemon_effect(0.01, 20) == pytest.approx(1 / 1.19)
    assert lemon_effect(0, 20) == lemon_effect(0.5, 1) == 1


@given(st.floats(0, 0.99), st.floats(1, 1e3))
def test_fleet_and_lemons_make_the_average(share: float, factor: float) -> None:
    """Healthy nodes at what remains, lemons at factor times that: together the fleet's rate."""
    rest = lemon_effect(share, factor)
    assert (1 - share) * rest + share * factor * rest == pytest.approx(1)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_numbers_that_are_no_rates_are_refused(bad: float) -> None:
    with pytest.raises(SpecError):
        job_mtbf_s(bad, 8)
    with pytest.raises(SpecError):
        rate_from_node_mtbf(bad)
    with pytest.raises(SpecError):
        observed_rate(bad, 1.0, 1)
    with pytest.raises(SpecError):
        lemon_effect(2.0, 3.0)
    with pytest.raises(SpecError):
        lemon_effect(0.1, 0.5)
    with pytest.raises(SpecError):
        lemon_effect(0.1, math.nan)
