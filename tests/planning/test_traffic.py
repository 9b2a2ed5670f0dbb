"""Loads on links: held to the proven schedules' own counts, link by link, and to figures worked out by hand."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.algorithms.catalog import build
from atoll.errors import SpecError
from atoll.planning.parallelism import Parallelism
from atoll.planning.placement import Placement, place
from atoll.planning.traffic import Demand, costs, stages
from atoll.schedule.count import count
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.topology.names import link_name
from atoll.topology.presets import preset
from atoll.topology.routes import find_routes

GIB = 1 << 30


def pair_bytes(placement: Placement, demand: Demand) -> dict[tuple[int, int], float]:
    """Bytes from GPU to GPU over all stages."""
    found: dict[tuple[int, int], float] = {}
    for stage in stages(placement, demand):
        for src, dst, size in zip(stage.src.tolist(), stage.dst.tolist(), stage.size_bytes.tolist(), strict=True):
            found[src, dst] = found.get((src, dst), 0.0) + size * stage.repeat
    return found


def counted(proven: ProvenSchedule, length: int) -> dict[tuple[int, int], float]:
    """The same of a proven schedule of bytes."""
    counts = count(proven, length=length)
    pairs = zip(counts.pair_src.tolist(), counts.pair_dst.tolist(), counts.pair_bytes.tolist(), strict=True)
    return {(src, dst): pytest.approx(size) for src, dst, size in pairs if size}


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("world", [2, 5, 8])
def test_a_ring_in_rank_order_moves_what_the_proven_ring_moves(collective: str, world: int) -> None:
    placement = place(preset("dgx-h100", 2), Parallelism(dp=world))
    moved = pair_bytes(placement, Demand("dp", collective, 40 * world, algorithm="rank-order-ring"))
    assert moved == counted(prove(build(collective, "ring", world)), 40 * world)


def test_hierarchical_moves_what_the_proven_composition_moves() -> None:
    placement = place(preset("dgx-h100", 3), Parallelism(dp=24))
    moved = pair_bytes(placement, Demand("dp", "all_reduce", 24 * 60, algorithm="hierarchical"))
    assert moved == counted(prove(build("all_reduce", "hierarchical", 24, group_size=8)), 24 * 60)


def test_all_to_all_moves_what_pairwise_moves() -> None:
    placement = place(preset("dgx-h100", 2), Parallelism(dp=16, ep=16))
    moved = pair_bytes(placement, Demand("ep", "all_to_all", 16 * 10))
    assert len(moved) == 16 * 15
    assert set(moved.values()) == {10.0}


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["dgx-h100", "aws-p5", "l40s-pcie", "rtx4090-box"]), st.integers(1, 4),
    st.sampled_from(["packed", "round-robin", "straddling"]), st.sampled_from([(2, 4), (4, 2), (8, 1), (1, 8)]),
    st.sampled_from(["ring", "rank-order-ring"]),
)  # fmt: skip
def test_times_are_the_busiest_links_of_loads_added_up_one_by_one(
    name: str, nodes: int, mapping: str, degrees: tuple[int, int], algorithm: str
) -> None:
    cluster = preset(name, nodes)
    tp, dp = degrees
    placement = place(cluster, Parallelism(tp=tp, dp=dp * nodes), mapping)  # type: ignore[arg-type]
    demands = [
        Demand(kind, "all_reduce", GIB, algorithm=algorithm)  # type: ignore[arg-type]
        for kind in placement.parallelism.kinds
    ]
    for cost in costs(placement, demands):
        (stage,) = stages(placement, cost.demand)
        busy: dict[int, float] = {}
        mine: dict[int, dict[int, float]] = {}
        slowest = 0.0
        for group, src, dst, channel, size in zip(
            stage.group.tolist(), stage.src.tolist(), stage.dst.tolist(), stage.channel.tolist(),
            stage.size_bytes.tolist(), strict=True,
        ):  # fmt: skip
            routes = find_routes(cluster, src, dst, channel, job=placement.gpus)
            slowest = max(slowest, float(routes.latency_s(cluster)[0]))
            for link in routes[0].tolist():
                seconds = size / float(cluster.bandwidth_of(link))
                busy[link] = busy.get(link, 0.0) + seconds
                mine.setdefault(group, {})
                mine[group][link] = mine[group].get(link, 0.0) + seconds
        assert cost.kind_s == pytest.approx(stage.repeat * (max(busy.values()) + slowest))
        alone = max(max(loads.values()) for loads in mine.values())
        assert stage.repeat * alone <= cost.alone_s <= stage.repeat * (alone + slowest) * (1 + 1e-9)
        most = max(busy.values())
        worst = {link_name(cluster, link) for link, seconds in busy.items() if seconds >= most * (1 - 1e-9)}
        assert cost.bottleneck in worst
        assert cost.alone_s <= cost.kind_s * (1 + 1e-9) <= cost.together_s * (1 + 1e-6)


def test_tensor_parallelism_across_nodes_costs_the_ratio_of_the_links() -> None:
    cluster = preset("dgx-h100", 8)
    demand = Demand("tp", "all_reduce", 4 * GIB)
    inside, across = (
        costs(place(cluster, Parallelism(tp=8, dp=8, order=order)), [demand])[0] for order in ("tp-dp", "dp-tp")
    )
    node = cluster.node_type(0)
    cable = node.cable("nic0")
    assert cable is not None
    ratio = node.island_bytes_per_s("gpu0") / cable.usable_bytes_per_s()
    assert across.kind_s / inside.kind_s == pytest.approx(ratio, rel=0.01)
    assert inside.bottleneck.endswith("nvswitch0")
    assert re.fullmatch(r"node\d/nic\d -> leaf\d|leaf\d -> node\d/nic\d", across.bottleneck)


def test_fair_shares_when_everything_runs_at_once() -> None:
    """A short send over the NIC of a long all-reduce takes twice its own time; the long one all that passes."""
    placement = place(preset("dgx-h100", 4), Parallelism(tp=8, dp=2, pp=2))
    reduce, send = costs(placement, [Demand("dp", "all_reduce", GIB), Demand("pp", "send", 1 << 20)])
    alone = send.kind_s
    assert send.together_s == pytest.approx(2 * alone, rel=0.15)
    assert reduce.together_s == pytest.approx(reduce.kind_s + alone, rel=0.01)


def test_rings_in_topology_order_leave_by_every_nic_and_survive_a_bad_order() -> None:
    cluster, cut = preset("dgx-h100", 4), Parallelism(dp=32)
    times = {
        (mapping, algorithm): costs(
            place(cluster, cut, mapping), [Demand("dp", "all_reduce", GIB, algorithm=algorithm)]  # type: ignore[arg-type]
        )[0].kind_s
        for mapping in ("packed", "round-robin")
        for algorithm in ("ring", "rank-order-ring")
    }  # fmt: skip
    assert times["packed", "ring"] == pytest.approx(times["round-robin", "ring"])
    assert times["packed", "rank-order-ring"] > 6 * times["packed", "ring"]


def test_four_nics_a_gpu_are_used_by_four_channels() -> None:
    cluster = preset("aws-p5", 4)
    placement = place(cluster, Parallelism(tp=8, dp=4))
    (cost,) = costs(placement, [Demand("dp", "all_reduce", GIB)])
    cable = cluster.node_type(0).cable("nic0")
    assert cable is not None
    assert cost.kind_s == pytest.approx(2 * 3 / 4 * GIB / (4 * cable.usable_bytes_per_s()), rel=0.05)


def test_nothing_moves_in_groups_of_one_and_empty_vectors() -> None:
    placement = place(preset("dgx-h100"), Parallelism(tp=8))
    one, empty = costs(placement, [Demand("dp", "all_reduce", GIB), Demand("tp", "all_reduce", 0)])
    assert (one.kind_s, one.bottleneck) == (empty.together_s, empty.bottleneck) == (0.0, "")


@pytest.mark.parametrize(
    ("demand", "says"),
    [
        ({"collective": "all_redcue"}, "did you mean 'all_reduce'?"),
        ({"algorithm": "tree"}, "unknown algorithm 'tree'"),
        ({"size_bytes": -1}, "a size and a number of times of at least 0"),
        ({"collective": "all_gather", "algorithm": "hierarchical"}, "hierarchical is of all_reduce"),
    ],
)
def test_refused_demands(demand: dict[str, str | int], says: str) -> None:
    with pytest.raises(SpecError, match=re.escape(says)):
        msgspec.structs.replace(Demand("dp", "all_reduce", 1), **demand)


def test_hierarchical_wants_equal_islands() -> None:
    placement = place(preset("dgx-h100", 2), Parallelism(dp=12))
    with pytest.raises(SpecError, match="got 4 to 8"):
        costs(placement, [Demand("dp", "all_reduce", 1, algorithm="hierarchical")])
