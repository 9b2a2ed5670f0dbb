"""Spares: Erlang's formula, its limits, domains against a chain solved as linear equations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.resilience.spares import MAX_SPARES, Domain, Loss, away, poisson_tail, spares_for, waiting_share

LOSSES = st.lists(st.builds(Loss, st.integers(1, 6), st.floats(1e-3, 3)), min_size=1, max_size=3)


@given(st.floats(0.01, 30), st.integers(0, 40))
def test_single_nodes_are_erlangs_loss_formula(load: float, spares: int) -> None:
    """The textbook recursion B(c) = rho B(c-1) / (c + rho B(c-1)), with c = spares + 1."""
    blocking = 1.0
    for servers in range(1, spares + 2):
        blocking = load * blocking / (servers + load * blocking)
    assert waiting_share([Loss(1, load / 50.0)], 50.0, spares) == pytest.approx(blocking)


@given(LOSSES, st.floats(0.1, 3), st.integers(0, 8))
def test_the_chain_is_in_balance(losses: list[Loss], repair_s: float, spares: int) -> None:
    """Stationary of the full generator matrix, not only across cuts."""
    probabilities = away(losses, repair_s, spares)
    states = len(probabilities)
    generator = np.zeros((states, states))
    for k in range(states):
        if k <= spares:
            for loss in losses:
                generator[k, k + loss.nodes] += loss.per_s
        if k:
            generator[k, k - 1] += k / repair_s
        generator[k, k] -= generator[k].sum()
    assert math.fsum(probabilities) == pytest.approx(1)
    np.testing.assert_allclose(np.array(probabilities) @ generator, 0, atol=1e-12)


@given(LOSSES, st.floats(0.1, 3), st.integers(0, 30))
def test_one_more_spare_never_makes_the_job_wait_longer(losses: list[Loss], repair_s: float, spares: int) -> None:
    now, more = waiting_share(losses, repair_s, spares), waiting_share(losses, repair_s, spares + 1)
    assert more <= now * (1 + 1e-12)
    assert 0 <= more <= 1
    assert waiting_share(losses, repair_s * 1.5, spares) >= now * (1 - 1e-12)


@given(LOSSES, st.floats(0.1, 3), st.floats(0.5, 0.99999))
def test_the_number_of_spares_is_the_fewest_that_do(losses: list[Loss], repair_s: float, availability: float) -> None:
    spares = spares_for(losses, repair_s, availability)
    assert waiting_share(losses, repair_s, spares) <= 1 - availability
    if spares:
        assert waiting_share(losses, repair_s, spares - 1) > 1 - availability


@given(LOSSES, st.floats(0.1, 3))
def test_more_nines_never_need_fewer_spares(losses: list[Loss], repair_s: float) -> None:
    needed = [spares_for(losses, repair_s, nines) for nines in (0.9, 0.99, 0.999, 0.9999)]
    assert needed == sorted(needed)


def test_large_loads_neither_overflow_nor_vanish() -> None:
    few, enough = waiting_share([Loss(1, 1.0)], 5000.0, 100), waiting_share([Loss(1, 1.0)], 5000.0, 5400)
    assert few == pytest.approx(1 - 101 / 5000, abs=0.001)
    assert 0 < enough < 1e-4


def test_without_losses_nobody_waits() -> None:
    assert waiting_share([], 10.0, 0) == waiting_share([Loss(3, 0.0)], 10.0, 0) == 0
    assert spares_for([], 10.0, 0.999) == 0


def test_poisson_is_close_where_waiting_is_rare_and_far_off_where_it_is_not() -> None:
    assert poisson_tail(2.0, 8) == pytest.approx(waiting_share([Loss(1, 2.0)], 1.0, 8), rel=0.3)
    assert poisson_tail(4.0, 0) == pytest.approx(1 - math.exp(-4))
    assert waiting_share([Loss(1, 4.0)], 1.0, 0) == pytest.approx(4 / 5)
    assert poisson_tail(0.0, 3) == 0


def test_racks_need_more_spares_than_as_many_single_nodes() -> None:
    single, racks = [Loss(1, 1.6)], [Loss(16, 0.1)]
    assert spares_for(racks, 1.0, 0.999) > 2 * spares_for(single, 1.0, 0.999)


def test_domains_of_a_job_are_counted_whole() -> None:
    assert Domain(16, 1000.0).per_s(2048) == 128 / 1000
    assert Domain(16, 1000.0).per_s(17) == 2 / 1000


def test_nonsense_is_refused() -> None:
    one = [Loss(1, 1.0)]
    for call in (
        lambda: away(one, 0.0, 1), lambda: away(one, 1.0, -1), lambda: away(one, 1.0, MAX_SPARES + 1),
        lambda: spares_for(one, 1.0, 1.0), lambda: spares_for(one, 1.0, 0.0), lambda: Loss(0, 1.0),
        lambda: Loss(1, math.nan), lambda: Domain(0, 1.0), lambda: Domain(1, 0.0), lambda: poisson_tail(-1.0, 1),
    ):  # fmt: skip
        with pytest.raises(SpecError):
            call()
    with pytest.raises(SpecError, match="spares cannot help"):
        spares_for([Loss(1, 1e6)], 1e6, 0.999)
