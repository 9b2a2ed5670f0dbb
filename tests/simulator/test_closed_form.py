"""Closed forms: equal to what every single transfer adds up to on small worlds, and quick on large ones."""

from __future__ import annotations

import pytest

from atoll.algorithms.catalog import build
from atoll.errors import SpecError
from atoll.schedule.prove import prove
from atoll.simulator.closed_form import closed_form
from atoll.simulator.fluid import fluid_time_s
from atoll.simulator.job import Job
from atoll.topology.presets import preset


def in_fluids(name: str, nodes: int, collective: str, algorithm: str, size: float) -> float:
    """Every transfer of the schedule, played."""
    cluster = preset(name, nodes)
    n = cluster.num_gpus
    options = {"group_size": n // nodes} if algorithm == "hierarchical" else {}
    proven = prove(build(collective, algorithm, n, None, **options))
    return fluid_time_s(cluster, [Job(proven, tuple(range(n)), size)])


@pytest.mark.parametrize(
    ("collective", "algorithm", "nodes"),
    [
        ("all_reduce", "ring", 1), ("all_reduce", "ring", 2), ("all_gather", "ring", 2), ("reduce_scatter", "ring", 1),
        ("all_gather", "direct", 1), ("all_gather", "direct", 2), ("all_to_all", "direct", 1),
        ("all_to_all", "direct", 2), ("all_reduce", "hierarchical", 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1 << 16, 1 << 30])
def test_equal_to_flow_level_on_small_worlds(collective: str, algorithm: str, nodes: int, size: int) -> None:
    found = closed_form(preset("dgx-h100", nodes), collective, algorithm, size)
    played = in_fluids("dgx-h100", nodes, collective, algorithm, size)
    assert found.time_s == pytest.approx(played, rel=1e-3)


def test_equal_to_flow_level_on_three_islands() -> None:
    found = closed_form(preset("dgx-h100", 3), "all_reduce", "hierarchical", 1 << 28)
    played = in_fluids("dgx-h100", 3, "all_reduce", "hierarchical", 1 << 28)
    assert found.time_s == pytest.approx(played, rel=1e-3)


def test_one_island_is_the_textbook() -> None:
    """alpha 600 ns, beta of 370.8 GB/s: 2(N-1) alpha + 2(N-1)/N n beta, 2 alpha, 2 log2 N alpha."""
    cluster, size = preset("dgx-h100"), 1 << 26
    moved = 2 * 7 / 8 * size / 370.8e9
    for algorithm, messages in (("ring", 14), ("direct", 2), ("hierarchical", 14)):
        found = closed_form(cluster, "all_reduce", algorithm, size)
        assert found.time_s == pytest.approx(messages * 600e-9 + moved)
        assert found.latency_s == pytest.approx(messages * 600e-9)
        assert found.busbw_bytes_per_s < 370.8e9
    for algorithm, messages in (("ring", 7), ("direct", 1)):
        found = closed_form(cluster, "all_gather", algorithm, size)
        assert found.time_s == pytest.approx(messages * 600e-9 + moved / 2)


def test_between_nodes_what_leaves_shares_the_nics() -> None:
    """Two nodes of eight, a NIC of 48 GB/s each."""
    cluster, size = preset("dgx-h100", 2), 1 << 30
    latency = 2.2e-6
    direct = closed_form(cluster, "all_to_all", "direct", size)
    assert direct.time_s == pytest.approx(size / 2 / 48e9 + latency, rel=1e-3)
    assert direct.bound == "between"
    # A flat ring leaves a node by one NIC only; hierarchical by all eight.
    ring = closed_form(cluster, "all_reduce", "ring", size)
    assert ring.time_s == pytest.approx(30 / 16 * size / 48e9 + 30 * 2.8e-6)
    layered = closed_form(cluster, "all_reduce", "hierarchical", size)
    # Two messages of the fourteen within overlap by half with what goes across.
    within = 13 / 8 * size / 370.8e9 + 13 * 600e-9
    assert layered.time_s == pytest.approx(within + 2 * size / 16 / 48e9 + 2 * latency, rel=1e-3)
    assert 5 < ring.time_s / layered.time_s < 6


def test_small_messages_are_latency() -> None:
    """The ring goes from GPU 7 to GPU 8, on another rail and so by way of another GPU: 2.8 us; the others' messages
    stay on their rails, or begin there: 2.2 us."""
    cluster = preset("dgx-h100", 2)
    assert closed_form(cluster, "all_reduce", "ring", 8).latency_s == pytest.approx(30 * 2.8e-6)
    assert closed_form(cluster, "all_to_all", "direct", 0).time_s == pytest.approx(2.8e-6)
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
        (("all_gather", "hierarchical", 8), "hierarchical for"),
        (("all_reduce", "halving_doubling", 8, 3), "powers of two, got 3 ranks"),
        (("all_reduce", "ring", -8), "at least 0"),
        (("all_reduce", "ring", 8, 12), "lie 8 to an island and 4 to the smallest"),
    ],
)
def test_what_is_not_regular_is_refused(arguments: tuple[str, str, int], word: str) -> None:
    with pytest.raises(SpecError, match=word):
        closed_form(preset("dgx-h100", 2), *arguments)
