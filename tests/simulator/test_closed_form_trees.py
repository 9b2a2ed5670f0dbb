"""Closed forms in whole messages: equal to flow level, transfer by transfer; gamma held to the schedule's own costs."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.algorithms.catalog import build
from atoll.errors import SpecError
from atoll.schedule.cost import Link, Ports, cost_model
from atoll.schedule.count import count
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.simulator import closed_form as module
from atoll.simulator.closed_form import ALGORITHMS, IN_SEGMENTS, closed_form
from atoll.simulator.flow import simulate
from atoll.simulator.job import Job
from atoll.topology.presets import preset

ROOTED = ("broadcast", "reduce", "gather")
FORMS = [(collective, name) for name, (_, collectives) in ALGORITHMS.items() for collective in collectives]
# Sums of the direct all-reduce have an order that its form leaves out; phases of a hierarchy overlap only in segments.
WHOLE = [one for one in FORMS if one[1] != "hierarchical" and one not in (("all_reduce", "direct"),
         ("reduce_scatter", "direct"))]  # fmt: skip


def proven_one(collective: str, name: str, ranks: int) -> ProvenSchedule:
    return prove(build(collective, name, ranks, 0 if collective in ROOTED else None))


@pytest.mark.parametrize(("collective", "name"), WHOLE)
def test_equal_to_flow_level_in_whole_messages(collective: str, name: str) -> None:
    """One, two and four nodes; a message that is latency and one that is bytes."""
    for nodes in (1, 2, 4):
        cluster = preset("dgx-h100", nodes)
        proven = proven_one(collective, name, cluster.num_gpus)
        for size in (1 << 12, 1 << 26):
            played = simulate([Job(proven, tuple(range(cluster.num_gpus)), size)], cluster).finish_s
            assert closed_form(cluster, collective, name, size).time_s == pytest.approx(played, rel=1e-3)


@given(
    form=st.sampled_from([one for one in WHOLE if one[1] not in IN_SEGMENTS]),
    gpus=st.sampled_from([2, 4, 8, 16]),
    size=st.integers(1, 1 << 30),
    name=st.sampled_from(["dgx-a100", "dgx-h100", "hgx-b200", "azure-ndv5"]),
)
@settings(max_examples=40)
def test_equal_to_flow_level_on_any_preset(form: tuple[str, str], gpus: int, size: int, name: str) -> None:
    cluster = preset(name, 2)
    played = simulate([Job(proven_one(*form, gpus), tuple(range(gpus)), size)], cluster).finish_s
    assert closed_form(cluster, *form, size, gpus).time_s == pytest.approx(played, rel=1e-3)


def test_a_chain_in_segments_is_a_pipeline() -> None:
    """The first of 64 pieces makes seven hops, the others follow: flow level to the last digit in one island."""
    cluster, size = preset("dgx-h100"), 1 << 26
    found = closed_form(cluster, "broadcast", "chain", size, segment_bytes=1 << 20)
    assert found.time_s == pytest.approx(7 * 600e-9 + (7 + 63) * (1 << 20) / 370.8e9)
    for nodes, most in ((1, 1e-6), (2, 0.01)):
        wide = preset("dgx-h100", nodes)
        job = Job(proven_one("broadcast", "chain", wide.num_gpus), tuple(range(wide.num_gpus)), size)
        played = simulate([job], wide, segment_bytes=1 << 20).finish_s
        assert closed_form(wide, "broadcast", "chain", size, segment_bytes=1 << 20).time_s == pytest.approx(
            played, rel=most
        )


@pytest.mark.parametrize(
    ("collective", "name"),
    [one for one in FORMS if one not in (("all_reduce", "double_binary_tree"), ("all_reduce", "binomial_tree"))],
)
def test_gamma_is_that_of_the_schedule(collective: str, name: str) -> None:
    """On one island: what adding costs, by the counts of the table."""
    cluster, size = preset("dgx-h100"), 1 << 24
    options = {"group_size": 8} if name == "hierarchical" else {}
    model = cost_model(count(prove(build(collective, name, 8, 0 if collective in ROOTED else None, **options))))
    rate = 50e9
    free, slow = (float(model.stepwise_s(size, Link(0.0, 1e30, speed), Ports.SHARED)) for speed in (math.inf, rate))
    plain = closed_form(cluster, collective, name, size)
    found = closed_form(cluster, collective, name, size, reduce_bytes_per_s=(rate, rate))
    assert found.time_s - plain.time_s == pytest.approx(slow - free, rel=1e-9, abs=1e-12)


def test_gamma_has_its_tier() -> None:
    """Two nodes: three steps within, one across, each of the whole vector; a ring waits for the slower of the two."""
    cluster, size = preset("dgx-h100", 2), 1 << 24
    plain = closed_form(cluster, "all_reduce", "recursive_doubling", size).time_s
    for rates, adds in (((10e9, math.inf), 3), ((math.inf, 10e9), 1), ((10e9, 10e9), 4)):
        found = closed_form(cluster, "all_reduce", "recursive_doubling", size, reduce_bytes_per_s=rates)
        assert found.time_s - plain == pytest.approx(adds * size / 10e9)
    tree = closed_form(preset("dgx-h100"), "all_reduce", "double_binary_tree", size)
    slow = closed_form(preset("dgx-h100"), "all_reduce", "double_binary_tree", size, reduce_bytes_per_s=(10e9, 10e9))
    assert slow.time_s - tree.time_s == pytest.approx(5 * size / 2 / 10e9)
    ring = closed_form(cluster, "all_reduce", "ring", size, reduce_bytes_per_s=(math.inf, 10e9))
    free = closed_form(cluster, "all_reduce", "ring", size)
    assert ring.time_s - free.time_s == pytest.approx(15 * size / 16 / 10e9)


@pytest.mark.parametrize(("nodes_per_leaf", "uplinks"), [(4, 1), (4, 2), (4, 4), (2, 1), (8, 1)])
def test_uplinks_hold_up_what_leaves_a_leaf(nodes_per_leaf: int, uplinks: int) -> None:
    """Eight nodes of eight over small leaves with few uplinks, against flow level."""
    whole = preset("dgx-h100", 8)
    assert whole.fabric is not None
    fabric = msgspec.structs.replace(
        whole.fabric, nodes_per_leaf=nodes_per_leaf, uplinks_per_leaf=uplinks, spines=uplinks
    )
    cluster = msgspec.structs.replace(whole, fabric=fabric)
    size = 1 << 26
    for collective, name in (("all_reduce", "recursive_doubling"), ("all_reduce", "halving_doubling")):
        played = simulate([Job(proven_one(collective, name, 64), tuple(range(64)), size)], cluster).finish_s
        assert closed_form(cluster, collective, name, size).time_s == pytest.approx(played, rel=0.01)
    if uplinks < nodes_per_leaf < 8:
        plain = closed_form(whole, "all_reduce", "recursive_doubling", size)
        assert closed_form(cluster, "all_reduce", "recursive_doubling", size).time_s > 1.2 * plain.time_s


def test_a_hundred_thousand_gpus_cost_no_more_work_than_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """By count of the routes that are looked up, whatever the number of nodes."""
    asked: list[int] = []

    def counting(cluster: object, src: object, *rest: object) -> object:
        asked.append(len(src))  # type: ignore[arg-type]
        return find_routes(cluster, src, *rest)  # type: ignore[arg-type]

    from atoll.simulator import tiers
    from atoll.topology.routes import find_routes

    monkeypatch.setattr(tiers, "find_routes", counting)
    for nodes in (2, 16_384):
        asked.clear()
        cluster = preset("dgx-h100", nodes)
        for collective, name in FORMS:
            found = closed_form(cluster, collective, name, 1 << 20)
            assert found.ranks == 8 * nodes
            assert 0 < found.latency_s < found.time_s
        assert max(asked) <= 14


def test_what_has_no_form_says_why() -> None:
    with pytest.raises(SpecError, match="powers of two, got 24 ranks"):
        closed_form(preset("dgx-h100", 3), "all_reduce", "halving_doubling", 8)
    with pytest.raises(SpecError, match="72 ranks"):
        closed_form(preset("gb200-nvl72"), "all_reduce", "double_binary_tree", 8)
    with pytest.raises(SpecError, match="over PCIe"):
        closed_form(preset("l40s-pcie"), "all_reduce", "binomial_tree", 8)
    with pytest.raises(SpecError, match="408 ranks to a leaf whose uplinks carry less"):
        closed_form(preset("dgx-h100", 64, oversubscription=4), "all_reduce", "halving_doubling", 8)
    with pytest.raises(SpecError, match="above 0"):
        closed_form(preset("dgx-h100"), "all_reduce", "ring", 8, reduce_bytes_per_s=(0.0, 1.0))
    assert set(IN_SEGMENTS) < set(module.ALGORITHMS)
