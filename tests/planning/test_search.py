"""The search finds what is known to be best, says why, and does not rank what is alike."""

from __future__ import annotations

import pytest

from atoll.planning.parallelism import Parallelism
from atoll.planning.placement import place
from atoll.planning.search import ALIKE, mistakes, search, usual_demands
from atoll.topology.presets import preset


def test_tensor_parallelism_goes_into_the_island() -> None:
    cluster = preset("dgx-h100", 16)
    wrong = Parallelism(tp=8, pp=2, dp=8, order="dp-tp-pp")
    found = search(cluster, wrong, usual_demands(wrong))
    assert found.best.name == "tp-dp-pp"
    assert found.best.placement.crossing("tp").highest == "island"
    assert found.given.step_s > 3 * found.best.step_s
    assert found.reason.startswith("tp decides: ")
    assert "tp stays in its island" in found.reason
    assert "as given, tp passes a leaf, held by node" in found.reason
    steps = [candidate.step_s for candidate in found.candidates]
    assert min(steps) * (1 + ALIKE) >= found.best.step_s


def test_what_is_as_good_as_anything_is_left_alone() -> None:
    cluster = preset("dgx-h100", 16)
    right = Parallelism(tp=8, pp=2, dp=8, order="tp-pp-dp")
    found = search(cluster, right, usual_demands(right))
    assert found.best is found.given
    assert found.reason.startswith("no placement does better, the worst takes ")
    one = search(cluster, Parallelism(), ())
    assert one.reason == "nothing moves"


def test_a_given_map_is_judged_too() -> None:
    cluster, cut = preset("dgx-h100", 2), Parallelism(tp=8, dp=2)
    dealt = place(cluster, cut, [(rank % 2) * 8 + rank // 2 for rank in range(16)])
    found = search(cluster, cut, usual_demands(cut), dealt)
    assert found.best is not found.given
    assert found.best.name == "tp-dp"


def test_a_degree_that_does_not_divide_the_island_is_aligned_where_gpus_are_left_over() -> None:
    cluster, cut = preset("dgx-h100", 4), Parallelism(tp=6, dp=4)
    found = search(cluster, cut, usual_demands(cut))
    assert found.best.name == "tp-dp, aligned"
    assert found.best.placement.crossing("tp").highest == "island"
    full = Parallelism(tp=6, dp=5)
    assert all("aligned" not in one.name for one in search(cluster, full, usual_demands(full)).candidates)


def test_experts_on_small_tensor_groups_want_the_island_first() -> None:
    cluster, cut = preset("dgx-h100", 16), Parallelism(tp=4, pp=4, dp=8, ep=8)
    found = search(cluster, cut, usual_demands(cut))
    assert found.best.placement.crossing("ep").highest == "island"
    assert found.reason.startswith("ep decides")


def test_mistakes_cost_and_those_that_change_nothing_are_left_out() -> None:
    cluster, cut = preset("dgx-h100", 16), Parallelism(tp=8, pp=2, dp=8)
    demands = usual_demands(cut)
    plan = search(cluster, cut, demands).given
    wrong = {one.name.split(" (")[0]: one.step_s / plan.step_s for one in mistakes(cluster, cut, demands)}
    assert wrong["tp across nodes"] > 3
    assert wrong["ranks dealt out round-robin over nodes"] > 3
    assert 1.2 < wrong["half a node off: groups straddle two nodes"] < wrong["tp across nodes"]
    assert wrong["one ring in rank order"] == pytest.approx(1)
    # One node: round-robin over one node, and tp slowest with nothing beside it, are the plan itself.
    small = preset("dgx-h100")
    names = [one.name for one in mistakes(small, Parallelism(tp=8), usual_demands(Parallelism(tp=8)))]
    assert names == [
        "half a node off: groups straddle two nodes", "one ring in rank order (topology hidden from NCCL)",
        "both: dealt out, and one ring in rank order",
    ]  # fmt: skip


def test_usual_demands_are_of_the_groups_there_are() -> None:
    assert [demand.kind for demand in usual_demands(Parallelism(tp=8, pp=4, dp=16))] == ["tp", "dp", "pp"]
    by_kind = {demand.kind: demand for demand in usual_demands(Parallelism(tp=2, cp=2, dp=4, ep=2))}
    assert set(by_kind) == {"tp", "cp", "dp-cp", "ep", "edp"}
    assert by_kind["tp"].size_bytes == 4096 / 2 * 8192 * 2
    assert by_kind["dp-cp"].size_bytes == 70e9
