"""Placements beyond the orders of the axes: tiles, whole leaves, and ranks with the intervals of a calibration."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.planning.calibrated import calibrated_cluster, placement_spreads
from atoll.planning.parallelism import Parallelism
from atoll.planning.placement import place
from atoll.planning.search import evaluate, search, usual_demands
from atoll.planning.tiles import across_orders, island_size, tile_name, tiled_gpus, tiles, whole_leaf_gpus
from atoll.planning.traffic import Demand
from atoll.simulator.accuracy_record import HELD_OUT_SPREADS
from atoll.simulator.calibration import Calibration
from atoll.simulator.nccl_time import Factors
from atoll.simulator.prediction import Spread
from atoll.topology.presets import preset


def calibration(low: float, high: float, rows: int = 9, **factors: float) -> Calibration:
    return Calibration("mine", "dgx-h100", Factors(**factors), tuple(factors), (Spread(rows, 1.0, low, high),) * 4)


@given(
    tp=st.sampled_from([1, 2, 3, 4, 8]),
    cp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2, 6, 8]),
    pp=st.sampled_from([1, 2, 4]),
    size=st.sampled_from([2, 4, 8, 12]),
    order=st.sampled_from(["tp-cp-ep-dp-pp", "pp-dp-ep-cp-tp", "dp-tp-ep-pp-cp"]),
)
@settings(max_examples=40)
def test_a_tile_fills_every_island_once_and_all_alike(
    tp: int, cp: int, dp: int, pp: int, size: int, order: str
) -> None:
    cut = Parallelism(tp=tp, cp=cp, dp=dp, pp=pp, order=order)
    found = tiles(cut, size)
    assert bool(found) == any(
        t * c * d * p == size
        for t in range(1, tp + 1) if tp % t == 0
        for c in range(1, cp + 1) if cp % c == 0
        for d in range(1, dp + 1) if dp % d == 0
        for p in range(1, pp + 1) if pp % p == 0
    )  # fmt: skip
    for tile in found[:6]:
        for across in across_orders(tile, cut):
            gpus = tiled_gpus(cut, tile, across, size)
            assert sorted(gpus.tolist()) == list(range(cut.world_size))
            where = cut.coordinates(np.arange(cut.world_size))
            for axis, degree in (("tp", tp), ("cp", cp), ("dp", dp), ("pp", pp)):
                # An island has exactly the tile's share of each axis.
                first = where[axis][gpus // size == 0]
                assert len(np.unique(first)) == tile[axis] <= degree


def test_a_tile_that_is_an_order_gives_its_placement() -> None:
    cluster, cut = preset("dgx-h100", 4), Parallelism(tp=4, dp=8)
    gpus = tiled_gpus(cut, {"tp": 4, "cp": 1, "dp": 2, "pp": 1}, ("dp",), 8)
    assert gpus.tolist() == place(cluster, cut).gpus.tolist()
    assert tile_name({"tp": 4, "cp": 1, "dp": 2, "pp": 1}, ("dp",)) == "tp 4 x dp 2 to an island, dp across"
    # So the search does not list it twice, nor orders that come to the same groups.
    names = [one.name for one in search(cluster, cut, usual_demands(cut)).candidates]
    assert len(names) == len(set(names))
    assert "tp 4 x dp 2 to an island, dp across" not in names


def test_the_best_of_a_tile_can_be_given_back_as_a_map() -> None:
    """Pipelines of heavy sends beside tensor groups that do not fill the island: asked for dp first, it finds them."""
    cluster, cut = preset("dgx-h100", 4), Parallelism(tp=2, pp=4, dp=4, order="dp-tp-pp")
    demands = (Demand("tp", "all_reduce", 1 << 26, 10), Demand("pp", "send", 1 << 26, 100))
    found = search(cluster, cut, demands)
    assert found.best is not found.given
    assert found.best.placement.crossing("pp").highest == "island"
    again = evaluate(
        "again", place(cluster, found.best.placement.parallelism, found.best.placement.gpus.tolist()), demands
    )
    assert again.step_s == pytest.approx(found.best.step_s)


def test_whole_leaves_where_there_are_nodes_to_spare() -> None:
    """Leaves of 32 nodes, groups of 12: two to a leaf, eight nodes free, none under two leaves."""
    cluster, cut = preset("dgx-h100", 128), Parallelism(tp=8, dp=12, pp=6)
    gpus = whole_leaf_gpus(cluster, cut, 8)
    assert gpus is not None
    nodes = np.unique(gpus // 8)
    assert len(nodes) == 72
    assert (nodes % 32 < 24).all()
    packed, whole = place(cluster, cut), place(cluster, cut, gpus.tolist())
    assert (packed.crossing("dp").leaves.max(), packed.crossing("dp").highest) == (2, "spine")
    assert (whole.crossing("dp").leaves.max(), whole.crossing("dp").highest) == (1, "leaf")
    assert any(one.name.endswith(", whole leaves") for one in search(cluster, cut, usual_demands(cut)).candidates)
    # No node to spare, groups that divide the leaf, groups wider than a leaf: nothing to change.
    for nodes_, dp in ((72, 12), (128, 8), (128, 48)):
        assert whole_leaf_gpus(preset("dgx-h100", nodes_), Parallelism(tp=8, dp=dp, pp=2), 8) is None


def test_without_a_calibration_there_is_no_interval() -> None:
    cluster, cut = preset("dgx-h100", 4), Parallelism(tp=8, dp=4)
    found = search(cluster, cut, usual_demands(cut))
    assert found.given.interval_s == (found.given.step_s, found.given.step_s)
    assert found.ranks[0] == 1
    assert list(found.ranks) == sorted(found.ranks)


@pytest.mark.parametrize(("low", "high", "alone"), [(0.98, 1.02, True), (0.2, 5.0, False)])
def test_placements_whose_intervals_overlap_are_not_ranked(low: float, high: float, alone: bool) -> None:
    """tp across nodes is three times as slow: told apart by narrow residuals, not by wide ones."""
    cluster, wrong = preset("dgx-h100", 4), Parallelism(tp=8, dp=4, order="dp-tp")
    spreads = placement_spreads(calibration(low, high))
    found = search(cluster, wrong, usual_demands(wrong), spreads=spreads)
    best = min(found.candidates, key=lambda one: one.step_s)
    assert found.given.step_s > 2 * best.step_s
    if alone:
        assert found.best is best
        assert found.given.interval_s[0] > best.interval_s[1]
        assert found.reason.startswith("tp decides")
    else:
        assert set(found.ranks) == {1}
        assert found.best is found.given
        assert found.reason.startswith("no placement does better")


def test_intervals_are_residuals_of_the_sizes_and_no_narrower_than_what_was_held_out() -> None:
    spreads = placement_spreads(calibration(0.9999, 1.0001))
    assert [(one.low, one.high) for one in spreads] == [(one.low, one.high) for one in HELD_OUT_SPREADS]
    assert placement_spreads(calibration(0.5, 2.0, rows=0)) == HELD_OUT_SPREADS
    wide = placement_spreads(calibration(0.5, 2.0))
    cluster, cut = preset("dgx-h100", 4), Parallelism(tp=8, dp=4)
    one = evaluate("one", place(cluster, cut), usual_demands(cut), wide)
    assert one.interval_s == pytest.approx((one.step_s * 0.5, one.step_s * 2))
    mixed = msgspec.structs.replace(one, spreads=(*wide[:2], Spread(9, 1.0, 0.9, 1.1), *wide[3:]))
    tp, dp = mixed.costs
    assert mixed.interval_of(tp, tp.kind_s) == pytest.approx((tp.kind_s * 0.9, tp.kind_s * 1.1))
    assert mixed.interval_of(dp, dp.kind_s) == pytest.approx((dp.kind_s * 0.5, dp.kind_s * 2))


def test_a_calibrations_factors_are_the_links() -> None:
    """NVLink at 0.5, the network at 0.25 of its rate and three times its latency; figures say by what."""
    plain, cut = preset("dgx-h100", 4), Parallelism(tp=8, dp=4)
    made = calibrated_cluster(plain, calibration(1, 1, bandwidth=0.5, network=3.0, network_bandwidth=0.25))
    demands = (Demand("tp", "all_reduce", 1 << 30), Demand("dp", "all_reduce", 1 << 30))
    before, after = (evaluate("one", place(one, cut), demands).costs for one in (plain, made))
    assert after[0].kind_s / before[0].kind_s == pytest.approx(2, rel=0.01)
    assert after[1].kind_s / before[1].kind_s == pytest.approx(4, rel=0.01)
    tiny = (Demand("dp", "all_reduce", 8),)
    slow = evaluate("one", place(made, cut), tiny).costs[0].kind_s
    assert slow > 1.5 * evaluate("one", place(plain, cut), tiny).costs[0].kind_s
    assert "calibrated with mine" in made.groups[0].node_type.groups[0].speed.bandwidth.source
    assert island_size(made) == 8
