"""Placements: mappings, what groups cross against routes looked at one by one, refusals."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.planning.parallelism import Parallelism
from atoll.planning.placement import MAPPINGS, TIERS, Placement, group_text, place, runs, traffic_pairs
from atoll.topology.names import device_name, link_ends
from atoll.topology.presets import preset
from atoll.topology.routes import find_routes


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    name = draw(st.sampled_from(["dgx-h100", "l40s-pcie", "gb200-nvl72", "aws-p5"]))
    nodes = draw(st.integers(2, 8))
    cluster = preset(
        name, nodes=nodes, layout=draw(st.sampled_from(["rail-optimised", "fat-tree"])),
        ports=draw(st.sampled_from([8, 64])),
    )  # fmt: skip
    tp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    dp = draw(st.integers(1, cluster.num_gpus // (tp * pp)))
    cut = Parallelism(tp=tp, pp=pp, dp=dp, ep=draw(st.sampled_from([1, dp])))
    if draw(st.booleans()):
        gpus = draw(st.permutations(range(cluster.num_gpus)))[: cut.world_size]
        return place(cluster, cut, gpus)
    return place(cluster, cut, draw(st.sampled_from(["packed", "round-robin", "straddling"])))


@settings(max_examples=40)
@given(placements())
def test_what_groups_cross_is_what_their_routes_pass(placed: Placement) -> None:
    cluster = placed.cluster
    assert len(set(placed.gpus.tolist())) == placed.parallelism.world_size
    for kind in placed.parallelism.kinds:
        crossing = placed.crossing(kind)
        number, src, dst = traffic_pairs(placed, kind)
        for group in {0, crossing.groups - 1}:
            gpus = placed.group_gpus(kind)[group]
            assert crossing.nodes[group] == len(set(cluster.node_of_gpu(gpus).tolist()))
            assert crossing.islands[group] == len(set(cluster.island_of_gpu(gpus).tolist()))
            names: set[str] = set()
            for a, b in zip(src[number == group], dst[number == group], strict=True):
                route = find_routes(cluster, a, b, job=placed.gpus)[0]
                names |= {device_name(cluster, int(end)) for ends in link_ends(cluster, route) for end in ends}
            switches = {name for name in names if re.fullmatch(r"(leaf|spine|core)\d+", name)}
            assert {device_name(cluster, int(device)) for device in crossing.switches(group)} == switches
            assert crossing.leaves[group] == sum(name.startswith("leaf") for name in switches)
            assert crossing.spines[group] == sum(name.startswith("spine") for name in switches)
            highest = max([0, *(TIERS.index(name.rstrip("0123456789")) for name in switches)])
            assert crossing.tier[group] == highest
            assert (crossing.islands[group] > 1) == (highest > 0)


def test_packed_keeps_tensor_parallelism_inside_and_round_robin_does_not() -> None:
    cluster, cut = preset("dgx-h100", 16), Parallelism(tp=8, pp=4, dp=4)
    tiers = {
        mapping: {kind: place(cluster, cut, mapping).crossing(kind).highest for kind in cut.kinds}
        for mapping in ("packed", "round-robin", "straddling")
    }
    assert tiers["packed"] == {"tp": "island", "dp": "leaf", "pp": "leaf"}
    # Sixteen nodes, dealt out: ranks 0, 16, 32, ... share a node, and with them the stages of a pipeline.
    assert tiers["round-robin"] == {"tp": "leaf", "dp": "leaf", "pp": "island"}
    assert tiers["straddling"]["tp"] == "leaf"
    straddled = place(cluster, cut, "straddling").crossing("tp")
    assert set(straddled.nodes.tolist()) == {2}


def test_mappings_give_every_rank_its_own_gpu() -> None:
    cluster = preset("dgx-h100", 12)
    for mapping in MAPPINGS:
        for world in (1, 7, 16, 24, 96):
            gpus = place(cluster, Parallelism(dp=world), mapping).gpus
            assert len(set(gpus.tolist())) == world
    spread = place(cluster, Parallelism(dp=24), "spread")
    assert sorted(set(spread.nodes.tolist())) == [0, 4, 8]
    assert place(cluster, Parallelism(dp=16), "round-robin").gpus.tolist()[:4] == [0, 8, 1, 9]


def test_group_in_words() -> None:
    placed = place(preset("dgx-h100", 64), Parallelism(tp=8, pp=4, dp=16))
    assert group_text(placed, "tp", 1) == "tp1: ranks 8-15 on node1"
    assert group_text(placed, "dp", 0) == (
        "dp0: ranks 0,8,16,...,120 on node0, node1, node2, node3, ... node15 (16) through leaf0"
    )
    assert group_text(placed, "pp", 3).endswith("on node0, node16, node32, node48 through leaf3, leaf11, spine0")
    assert runs([3, 1, 2]) == "3,1,2"


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ("pakced", "unknown mapping 'pakced': did you mean 'packed'?"),
        ([0, 1, 2], "expected a GPU for each of 4 ranks, got 3"),
        ([0, 1, 2, 2], "GPU 2 is given to several ranks"),
        ([0, 1, 2, 99], "has GPUs 0 to 15, got 99"),
    ],
)
def test_refused_mappings(mapping: str | list[int], says: str) -> None:
    with pytest.raises(SpecError, match=re.escape(says)):
        place(preset("dgx-h100", 2), Parallelism(dp=4), mapping)  # type: ignore[arg-type]


def test_too_small_a_cluster_and_unknown_groups() -> None:
    with pytest.raises(SpecError, match="32 ranks, and dgx-h100 has 8 GPUs"):
        place(preset("dgx-h100"), Parallelism(tp=8, dp=4))
    placed = place(preset("dgx-h100"), Parallelism(tp=8))
    with pytest.raises(SpecError, match="tp groups 0 to 0, got 1"):
        group_text(placed, "tp", 1)


def test_large_clusters_are_looked_at_as_arrays() -> None:
    cut = Parallelism(tp=8, pp=8, dp=1024, ep=64)
    placed = place(preset("dgx-h100", 8192), cut)
    assert [placed.crossing(kind).highest for kind in ("tp", "pp")] == ["island", "core"]
    assert np.all(placed.crossing("ep").nodes == 64)
