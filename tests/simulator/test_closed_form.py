"""Closed forms: equal to what every single transfer adds up to on small worlds, and quick on large ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.simulator.closed_form import closed_form
from atoll.topology.presets import preset
from atoll.topology.routes import find_routes

NAMES = ("dgx-a100", "dgx-h100", "hgx-b200", "aws-p4d", "azure-ndv5", "mi300x")


def ring_by_recurrence(name: str, nodes: int, size: float, steps_of: int) -> float:
    """Every edge and step: it starts when its last message has left and the data has come."""
    cluster = preset(name, nodes)
    n = cluster.num_gpus
    gpus = np.arange(n)
    routes = find_routes(cluster, gpus, (gpus + 1) % n)
    sending = size / n / routes.bottleneck_bytes_per_s(cluster)
    latency = routes.latency_s(cluster)
    left = np.zeros(n)
    come = np.zeros(n)
    for _ in range(steps_of * (n - 1)):
        left = np.maximum(left, come) + sending
        come = np.roll(left + latency, 1)
    return float(come.max())


@given(
    name=st.sampled_from(NAMES),
    nodes=st.integers(1, 5),
    size=st.integers(0, 2**34),
    collective=st.sampled_from([("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)]),
)
@settings(max_examples=60)
def test_rings_are_what_their_transfers_add_up_to(
    name: str, nodes: int, size: int, collective: tuple[str, int]
) -> None:
    found = closed_form(preset(name, nodes), collective[0], "ring", size)
    assert found.time_s == pytest.approx(ring_by_recurrence(name, nodes, size, collective[1]), rel=0.02)


def test_one_island_is_the_textbook() -> None:
    """alpha 600 ns, beta of 370.8 GB/s: 2(N-1) alpha + 2(N-1)/N n beta, 2 alpha, 2 log2 N alpha."""
    cluster, size = preset("dgx-h100"), 1 << 26
    moved = 2 * 7 / 8 * size / 370.8e9
    for algorithm, messages in (("ring", 14), ("direct", 2), ("halving_doubling", 6), ("hierarchical", 14)):
        found = closed_form(cluster, "all_reduce", algorithm, size)
        assert found.time_s == pytest.approx(messages * 600e-9 + moved)
        assert found.latency_s == pytest.approx(messages * 600e-9)
        assert found.busbw_bytes_per_s < 370.8e9
        assert closed_form(cluster, "all_gather", algorithm, size).time_s == pytest.approx(found.time_s / 2)


def test_between_nodes_what_leaves_shares_the_nics() -> None:
    """Two nodes of eight, a NIC of 48 GB/s each."""
    cluster, size = preset("dgx-h100", 2), 1 << 30
    latency = 2.2e-6
    direct = closed_form(cluster, "all_to_all", "direct", size)
    assert direct.time_s == pytest.approx(size / 2 / 48e9 + latency, rel=1e-3)
    assert direct.bound == "between"
    # A flat ring leaves a node by one NIC only; hierarchical by all eight.
    ring = closed_form(cluster, "all_reduce", "ring", size)
    assert ring.time_s == pytest.approx(30 / 16 * size / 48e9 + latency, rel=1e-3)
    layered = closed_form(cluster, "all_reduce", "hierarchical", size)
    within = 2 * 7 / 8 * size / 370.8e9 + 14 * 600e-9
    assert layered.time_s == pytest.approx(within + 2 * size / 16 / 48e9 + 2 * latency, rel=1e-3)
    assert 5 < ring.time_s / layered.time_s < 6


def test_small_messages_go_round_with_their_latency() -> None:
    """Thirty edges in a row of a ring of sixteen: four ways between nodes, to another rail and so by another GPU, of
    2.8 us; the rest of 600 ns. The other algorithms stay on their rails: 2.2 us."""
    cluster = preset("dgx-h100", 2)
    found = closed_form(cluster, "all_reduce", "ring", 8)
    assert found.latency_s == pytest.approx(4 * 2.8e-6 + 26 * 600e-9)
    assert found.time_s == pytest.approx(ring_by_recurrence("dgx-h100", 2, 8, 2), rel=1e-6)
    assert closed_form(cluster, "all_reduce", "direct", 0).time_s == pytest.approx(2 * 2.2e-6)
    layered = closed_form(cluster, "all_reduce", "hierarchical", 0)
    assert layered.time_s == pytest.approx(14 * 600e-9 + 2 * 2.2e-6)


def test_any_size_of_cluster() -> None:
    times = [
        closed_form(preset("dgx-h100", nodes), "all_reduce", "hierarchical", 1 << 30).time_s
        for nodes in (1, 8, 64, 512, 4096)
    ]
    assert times == sorted(times)
    large = closed_form(preset("dgx-h100", 12_500), "all_reduce", "hierarchical", 1 << 30)
    assert large.ranks == 100_000
    assert closed_form(preset("dgx-h100"), "all_reduce", "ring", 1 << 20, 1).time_s == 0.0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("all_reduce", "rign", 8), "did you mean 'ring'"),
        (("all_to_all", "ring", 8), "ring for 'all_to_all'"),
        (("all_reduce", "ring", -8), "at least 0"),
        (("all_reduce", "ring", 8, 12), "lie 8 to an island and 4 to the smallest"),
    ],
)
def test_what_is_not_regular_is_refused(arguments: tuple[str, str, int], word: str) -> None:
    with pytest.raises(SpecError, match=word):
        closed_form(preset("dgx-h100", 2), *arguments)
    with pytest.raises(SpecError, match="powers of two"):
        closed_form(preset("dgx-h100", 3), "all_reduce", "halving_doubling", 8)
