"""Costs against the textbook's coefficients, and pipelining against a chain played segment by segment."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_samples import (
    binomial_broadcast,
    chain_broadcast,
    direct_all_reduce,
    halving_doubling_all_reduce,
    one_shot_all_reduce,
    recursive_doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)

from atoll.errors import SpecError
from atoll.schedule.cost import Coefficients, CostModel, Link, Ports, cost_model
from atoll.schedule.count import count
from atoll.schedule.prove import prove
from atoll.schedule.table import Schedule

LINK = Link(latency_s=5e-6, bandwidth_bytes_per_s=10e9, reduce_bytes_per_s=40e9)


def model(schedule: Schedule) -> CostModel:
    return cost_model(count(prove(schedule)))


@pytest.mark.parametrize(("log_n", "n"), [(1, 2), (2, 4), (3, 8), (4, 16)])
def test_textbook_coefficients(log_n: int, n: int) -> None:
    """alpha, beta n, gamma n of the cost table (Thakur, Rabenseifner and Gropp 2005; Chan et al. 2007)."""
    share = (n - 1) / n
    for schedule, want in (
        (ring_all_reduce(n), (2 * (n - 1), 2 * share, share)),
        (ring_reduce_scatter(n), (n - 1, share, share)),
        (ring_all_gather(n), (n - 1, share, 0)),
        (recursive_doubling_all_reduce(log_n), (log_n, log_n, log_n)),
        (halving_doubling_all_reduce(log_n), (2 * log_n, 2 * share, share)),
        (direct_all_reduce(n), (2, 2 * share, share)),
        (one_shot_all_reduce(n), (1, n - 1, n - 1)),
        (binomial_broadcast(n), (log_n, log_n, 0)),
        (chain_broadcast(n), (n - 1, n - 1, 0)),
    ):
        terms = model(schedule).stepwise["shared"]
        assert (terms.alpha, terms.beta, terms.gamma) == pytest.approx(want), schedule.name


def test_port_models_differ_where_a_rank_has_several_peers() -> None:
    n = 8
    direct = model(direct_all_reduce(n)).stepwise
    share = (n - 1) / n
    assert direct["one"] == Coefficients(2 * (n - 1), 2 * share, share)
    assert direct["per-peer"] == Coefficients(2, 2 / n, share)
    ring = model(ring_all_reduce(n)).stepwise
    assert ring["shared"] == ring["one"] == ring["per-peer"]


def test_seconds_by_hand() -> None:
    ring = model(ring_all_reduce(4))
    size = 1e6
    want = 6 * 5e-6 + 1.5 * size / 10e9 + 0.75 * size / 40e9
    assert ring.stepwise_s(size, LINK) == pytest.approx(want)
    assert ring.seconds(size, LINK) == pytest.approx(want)


@pytest.mark.parametrize("ports", list(Ports))
def test_sweeps_are_the_single_sizes(ports: Ports) -> None:
    sizes = np.array([[0, 8], [1 << 20, 1 << 30]])
    for schedule in (chain_broadcast(6), direct_all_reduce(4), ring_all_reduce(1)):
        costs = model(schedule)
        swept = costs.seconds(sizes, LINK, ports)
        assert swept.shape == sizes.shape
        assert swept.tolist() == [[float(costs.seconds(size, LINK, ports)) for size in row] for row in sizes]
        assert (np.diff(swept.ravel()) >= 0).all()


@given(st.integers(2, 12), st.integers(1, 64), st.floats(1e-7, 1e-3), st.floats(1e3, 1e9))
def test_a_chain_in_k_segments_is_played_in_as_many_seconds(n: int, k: int, latency_s: float, size: float) -> None:
    """Every rank receives a segment, then sends it on, one at a time: (N - 2 + k) turns."""
    link = Link(latency_s, 1e9)
    turn = latency_s + size / k / 1e9
    arrived = [0.0] * n
    for _ in range(k):
        ready = 0.0
        for rank in range(1, n):
            # The wire into a rank is free again once it has delivered the segment before.
            ready = arrived[rank] = max(ready, arrived[rank]) + turn
    got = model(chain_broadcast(n)).pipelined_s(size, link, segment_bytes=size / k)
    assert float(got) == pytest.approx(arrived[-1])


@given(st.integers(3, 20), st.floats(1e3, 1e10))
def test_the_best_segment_is_none_the_worse_than_others(n: int, size: float) -> None:
    chain = model(chain_broadcast(n))
    best = float(chain.pipelined_s(size, LINK))
    assert all(best <= float(chain.pipelined_s(size, LINK, segment_bytes=size / k)) * (1 + 1e-9) for k in (1, 2, 9, 80))
    assert best <= float(chain.stepwise_s(size, LINK)) * (1 + 1e-9)


def test_small_vectors_go_up_a_tree_and_large_ones_around_the_ring() -> None:
    """The crossover that every library's tuning is about."""
    ring, tree = model(ring_all_reduce(16)), model(recursive_doubling_all_reduce(4))
    assert ring.seconds(64, LINK) > tree.seconds(64, LINK)
    assert ring.seconds(1 << 28, LINK) < tree.seconds(1 << 28, LINK)
    # Without reduction cost both are straight lines; they meet where the difference of the alphas is paid.
    link = Link(5e-6, 10e9)
    meet = (30 - 4) * 5e-6 * 10e9 / (4 - 2 * 15 / 16)
    assert ring.stepwise_s(meet, link) == pytest.approx(tree.stepwise_s(meet, link))


def test_pipelining_does_not_flatter_the_ring() -> None:
    """A ring fills its wires in every step already; segments only add latency."""
    ring = model(ring_all_reduce(8))
    sizes = np.geomspace(8, 1e10, 40)
    assert (ring.seconds(sizes, LINK) == ring.stepwise_s(sizes, LINK)).all()


def test_a_world_of_one_costs_nothing() -> None:
    assert model(ring_all_reduce(1)).seconds([0, 1e9], LINK).tolist() == [0, 0]


def test_what_has_no_cost_is_refused() -> None:
    with pytest.raises(SpecError, match="empty vector"):
        cost_model(count(prove(ring_all_reduce(2)), 0))
    with pytest.raises(SpecError, match="at least 0 bytes"):
        model(ring_all_reduce(2)).seconds(-1, LINK)
    with pytest.raises(SpecError, match="segment"):
        model(ring_all_reduce(2)).seconds(1, LINK, segment_bytes=0)
    for bad in ((-1.0, 1.0), (0.0, 0.0), (math.nan, 1.0)):
        with pytest.raises(SpecError, match="positive rates"):
            Link(*bad)
