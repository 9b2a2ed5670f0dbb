"""Transfers as fluids: against closed forms, against what links can carry, and under contention."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.algorithms.catalog import build, names
from atoll.emulator.layout import PAYLOAD_SHARE, Layout, Rates
from atoll.emulator.model import cluster_of
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.simulator.closed_form import closed_form
from atoll.simulator.fluid import fluid_time_s
from atoll.simulator.job import Job
from atoll.topology.cluster import Cluster
from atoll.topology.routes import Transport, find_routes

SIZE = 1 << 20
OWN_NIC = Transport(pxn=False)
RATES = Rates(90e6 / PAYLOAD_SHARE, 10e6 / PAYLOAD_SHARE)


def switch(ranks: int, latency_s: float = 0.0) -> Cluster:
    """Ranks on one switch, 90 MB/s each way."""
    return cluster_of(Layout(1, ranks), RATES, latency_s)


def proven(name: str, ranks: int, collective: str = "all_reduce", root: int | None = None) -> ProvenSchedule:
    return prove(build(collective, name, ranks, root))


def alone(cluster: Cluster, schedule: ProvenSchedule, size: float = SIZE) -> float:
    ranks = schedule.schedule.header.world_size
    return fluid_time_s(cluster, [Job(schedule, tuple(range(ranks)), size)], OWN_NIC)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("name", ["ring", "direct"])
def test_bandwidth_optimal_algorithms_take_what_their_bytes_take(name: str, ranks: int) -> None:
    assert alone(switch(ranks), proven(name, ranks)) == pytest.approx(2 * (ranks - 1) / ranks * SIZE / 90e6)


@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_a_ring_passes_a_message_on_after_its_latency(ranks: int) -> None:
    schedule = proven("ring", ranks)
    assert alone(switch(ranks, 1e-3), schedule, 0) == pytest.approx(2 * (ranks - 1) * 1e-3)
    steps = 2 * (ranks - 1)
    assert alone(switch(ranks, 1e-3), schedule) == pytest.approx(steps * (1e-3 + SIZE / ranks / 90e6), rel=0.2)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_chain_forwards_while_it_receives(ranks: int) -> None:
    schedule = proven("chain", ranks, "broadcast", 0)
    assert alone(switch(ranks, 1e-3), schedule) == pytest.approx(SIZE / 90e6 + (ranks - 1) * 1e-3)


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (4, 2), (2, 4), (3, 3)])
@pytest.mark.parametrize("name", ["ring", "direct"])
def test_closed_forms_of_islands_and_network(name: str, nodes: int, ranks: int) -> None:
    cluster = cluster_of(Layout(nodes, ranks), RATES)
    expected = closed_form(cluster, "all_reduce", name, SIZE, transport=OWN_NIC).time_s
    assert alone(cluster, proven(name, nodes * ranks)) == pytest.approx(expected, rel=0.02)


def test_an_oversubscribed_spine_is_shared() -> None:
    schedule = proven("direct", 4)
    free = alone(cluster_of(Layout(4, 1, 1, 1), RATES), schedule)
    assert alone(cluster_of(Layout(4, 1, 1, 1, 2.0), RATES), schedule) == pytest.approx(2 * free)


def test_jobs_on_other_links_do_not_disturb_each_other_and_those_on_the_same_share_them() -> None:
    cluster = cluster_of(Layout(2, 4, 1), RATES)
    pair = proven("ring", 2)
    one = fluid_time_s(cluster, [Job(pair, (0, 4), SIZE)], OWN_NIC)
    assert one == pytest.approx(SIZE / 10e6)
    both = [Job(pair, (0, 4), SIZE), Job(pair, (1, 5), SIZE)]
    assert fluid_time_s(cluster, both, OWN_NIC) == pytest.approx(2 * one), "they share a NIC"
    apart = [Job(pair, (0, 4), SIZE), Job(pair, (1, 2), SIZE)]
    assert fluid_time_s(cluster, apart, OWN_NIC) == pytest.approx(one)
    # The short one has a third of the link's time, half of it used; the long one then has all of it.
    uneven = [Job(pair, (0, 4), SIZE), Job(pair, (1, 5), SIZE / 4)]
    assert fluid_time_s(cluster, uneven, OWN_NIC) == pytest.approx(1.25 * one)
    late = [Job(pair, (0, 4), SIZE), Job(pair, (1, 5), SIZE, start_s=one / 2)]
    assert fluid_time_s(cluster, late, OWN_NIC) == pytest.approx(2 * one), "alone, together, alone"
    assert fluid_time_s(cluster, [Job(pair, (0, 4), SIZE, start_s=3 * one)], OWN_NIC) == pytest.approx(4 * one)


@settings(max_examples=40)
@given(
    st.sampled_from(list(names("all_reduce"))),
    st.sampled_from([Layout(2, 2), Layout(3, 2), Layout(2, 3, 1), Layout(4, 1, 1, 2, 3.0), Layout(1, 5)]),
)
def test_no_link_carries_more_than_it_can_and_time_is_in_proportion_to_bytes(name: str, layout: Layout) -> None:
    cluster = cluster_of(layout, RATES)
    schedule = proven(name, layout.world_size)
    time_s = alone(cluster, schedule)
    rows = list(schedule.schedule.rows())
    chunk = SIZE / schedule.schedule.header.chunks
    routes = find_routes(cluster, [row.src for row in rows], [row.dst for row in rows], 0, OWN_NIC)
    carried: dict[int, float] = {}
    one_by_one = 0.0
    for at, row in enumerate(rows):
        links = [int(link) for link in routes[at]]
        for link in links:
            carried[link] = carried.get(link, 0.0) + row.num_chunks * chunk
        if links:
            one_by_one += row.num_chunks * chunk / min(cluster.bandwidth_of(links))
    bandwidth = cluster.usable_bytes_per_s
    bound = max(size / bandwidth[link] for link, size in carried.items())
    assert bound * (1 - 1e-6) <= time_s <= one_by_one * (1 + 1e-6)
    assert alone(cluster, schedule, 1000 * SIZE) == pytest.approx(1000 * time_s)
    assert math.isfinite(time_s)
