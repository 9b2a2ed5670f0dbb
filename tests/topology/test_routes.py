"""Routes start at the sender, end at the receiver, and every link starts where the one before it ended."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_clusters import small_clusters

from atoll.errors import SpecError
from atoll.topology.cluster import Cluster, NodeGroup
from atoll.topology.design import rail_optimised
from atoll.topology.fabric import Fabric, Routing
from atoll.topology.link_catalogue import infiniband, uplink
from atoll.topology.names import device_name, gpu_devices, link_ends, link_name
from atoll.topology.node_type import kind_of
from atoll.topology.preset_nodes import NODE_TYPES
from atoll.topology.presets import preset
from atoll.topology.routes import Routes, Transport, find_routes


def names(cluster: Cluster, routes: Routes, index: int = 0) -> list[str]:
    """The devices that a route passes, by name."""
    first, second = link_ends(cluster, routes[index])
    return [device_name(cluster, int(first[0])), *(device_name(cluster, int(device)) for device in second)]


def kinds(cluster: Cluster, routes: Routes, index: int = 0) -> list[str]:
    return [kind_of(name.rpartition("/")[2]) for name in names(cluster, routes, index)]


@settings(max_examples=60)
@given(small_clusters(), st.data())
def test_every_route_is_connected_and_ends_right(cluster: Cluster, data: st.DataObject) -> None:
    gpus = st.integers(0, cluster.num_gpus - 1)
    pairs = data.draw(st.lists(st.tuples(gpus, gpus, st.integers(0, 40)), min_size=1, max_size=12))
    transport = Transport(data.draw(st.booleans()), data.draw(st.booleans()), data.draw(st.integers(0, 9)))
    src, dst, channel = (np.array(column) for column in zip(*pairs, strict=True))
    routes = find_routes(cluster, src, dst, channel, transport)
    assert len(routes) == len(pairs)
    bottleneck, headline = (routes.bottleneck_bytes_per_s(cluster, usable=usable) for usable in (True, False))
    latency = routes.latency_s(cluster)
    for at in range(len(pairs)):
        links = routes[at]
        assert len(set(links.tolist())) == len(links)
        if src[at] == dst[at]:
            assert (len(links), bottleneck[at], latency[at]) == (0, np.inf, 0)
            continue
        first, second = link_ends(cluster, links)
        assert first[0] == gpu_devices(cluster, src[at])
        assert second[-1] == gpu_devices(cluster, dst[at])
        assert (second[:-1] == first[1:]).all()
        assert bottleneck[at] == cluster.usable_bytes_per_s[links].min()
        assert headline[at] == cluster.bandwidth_bytes_per_s[links].min()
        assert 0 < bottleneck[at] <= headline[at]
        assert latency[at] == pytest.approx(cluster.latency_s[links].sum())


@settings(max_examples=25)
@given(small_clusters(), st.data())
def test_many_pairs_at_once_equal_one_by_one(cluster: Cluster, data: st.DataObject) -> None:
    gpus = st.integers(0, cluster.num_gpus - 1)
    pairs = data.draw(st.lists(st.tuples(gpus, gpus, st.integers(0, 9)), min_size=2, max_size=6))
    src, dst, channel = (np.array(column) for column in zip(*pairs, strict=True))
    together = find_routes(cluster, src, dst, channel)
    for at, (a, b, c) in enumerate(pairs):
        assert together[at].tolist() == find_routes(cluster, a, b, c)[0].tolist()


def test_an_island_is_crossed_by_its_switch_and_a_mesh_directly() -> None:
    assert names(preset("dgx-h100"), find_routes(preset("dgx-h100"), 2, 5)) == [
        "node0/gpu2", "island0/nvswitch0", "node0/gpu5",
    ]  # fmt: skip
    assert kinds(preset("mi300x"), find_routes(preset("mi300x"), 0, 7)) == ["gpu", "gpu"]
    rack = preset("gb200-nvl72", 2)
    assert names(rack, find_routes(rack, 3, 71)) == ["node0/gpu3", "island0/nvswitch0", "node17/gpu3"]
    assert "leaf" in kinds(rack, find_routes(rack, 71, 72))


def test_pxn_keeps_to_the_rail_and_without_it_the_spine_is_crossed() -> None:
    cluster = preset("dgx-h100", 2)
    assert kinds(cluster, find_routes(cluster, 0, 11)) == [
        "gpu", "nvswitch", "gpu", "pcie", "nic", "leaf", "nic", "pcie", "gpu",
    ]  # fmt: skip
    crossing = find_routes(cluster, 0, 11, transport=Transport(pxn=False))
    assert kinds(cluster, crossing) == ["gpu", "pcie", "nic", "leaf", "spine", "leaf", "nic", "pcie", "gpu"]
    same_rail = find_routes(cluster, 3, 11)
    assert names(cluster, same_rail)[2:5] == ["node0/nic3", "leaf3", "node1/nic3"]


def test_pxn_uses_only_gpus_of_the_job() -> None:
    cluster = preset("dgx-h100", 2)
    alone = find_routes(cluster, 0, 11, job=[0, 11])
    assert "spine" in kinds(cluster, alone)
    assert "spine" not in kinds(cluster, find_routes(cluster, 0, 11, job=[0, 3, 11]))


def test_without_gpudirect_transfers_are_staged_in_host_memory_on_both_sides() -> None:
    cluster = preset("dgx-h100", 2)
    staged = kinds(cluster, find_routes(cluster, 0, 8, transport=Transport(gpudirect=False)))
    assert staged.count("mem") == 2
    assert staged.index("mem") < staged.index("leaf")
    assert "mem" not in kinds(cluster, find_routes(cluster, 0, 8))
    box = preset("rtx4090-box", 2)  # no peer-to-peer and no GPUDirect
    assert kinds(box, find_routes(box, 0, 1)) == ["gpu", "cpu", "mem", "cpu", "gpu"]
    assert kinds(box, find_routes(box, 0, 8)).count("mem") == 2


def test_channels_rotate_over_near_nics_and_gpus_that_share_them_differ() -> None:
    aws = preset("aws-p5", 2)
    used = {names(aws, find_routes(aws, 0, 8, channel))[2] for channel in range(8)}
    assert used == {f"node0/nic{number}" for number in range(4)}
    tray = preset("gb200-nvl72", 2)
    first = [names(tray, find_routes(tray, gpu, gpu + 72))[2] for gpu in range(4)]
    assert first == [f"node0/nic{number}" for number in range(4)]


def test_rails_that_do_not_meet_need_pxn_or_another_nic() -> None:
    node = NODE_TYPES["dgx-h100"]()
    cable = uplink(infiniband(400, "test"))
    rail_only = Fabric("rail-only", nodes_per_leaf=8, rails=8)
    cluster = Cluster("rails", (NodeGroup(node, 4),), rail_only)
    assert "spine" not in kinds(cluster, find_routes(cluster, 0, 11))
    far = names(cluster, find_routes(cluster, 0, 11, transport=Transport(pxn=False)))
    assert "node0/nic3" in far
    assert "node0/cpu0" in far  # its own PCIe switch has no NIC of rail 3
    planes = Fabric("planes", 1, 8, 2, 2, planes=True, leaf_uplink=cable)
    apart = Cluster("planes", (NodeGroup(node, 4),), planes)
    assert "spine" in kinds(apart, find_routes(apart, 0, 8))


def test_three_tiers_are_climbed_only_as_far_as_needed() -> None:
    cluster = preset("dgx-h100", 512)
    per_pod = cluster.fabric.nodes_per_pod if cluster.fabric else 0
    for node, top in ((31, "leaf"), (32, "spine"), (per_pod, "core")):
        route = kinds(cluster, find_routes(cluster, 0, 8 * node))
        assert next(kind for kind in ("core", "spine", "leaf") if kind in route) == top


def test_ecmp_is_a_function_of_flow_and_seed_and_spreads() -> None:
    cluster = preset("dgx-h100", 64, routing=Routing.ECMP)
    src = np.arange(256)
    routes = find_routes(cluster, src, src + 256)
    again = find_routes(cluster, src, src + 256)
    other = find_routes(cluster, src, src + 256, transport=Transport(seed=1))
    assert routes.links.tolist() == again.links.tolist()
    assert routes.links.tolist() != other.links.tolist()
    cables = {int(link) for at in range(256) for link in routes[at] if "-> spine" in link_name(cluster, int(link))}
    assert len(cables) > 100  # 256 flows on 256 cables, by a hash: about 63 % of them


def test_errors_say_what_is_missing() -> None:
    cluster = preset("dgx-h100", 2)
    with pytest.raises(SpecError, match=r"GPUs 0 to 15, got 16"):
        find_routes(cluster, 0, 16)
    with pytest.raises(SpecError, match="channels from 0"):
        find_routes(cluster, 0, 1, -1)
    node = NODE_TYPES["dgx-h100"]()
    with pytest.raises(SpecError, match="2 islands without a fabric"):
        Cluster("x", (NodeGroup(node, 2),))
    with pytest.raises(SpecError, match="2 units without spines"):
        Cluster("x", (NodeGroup(node, 8),), Fabric("x", 4, 8))
    design = rail_optimised(9, 8, infiniband(400, "test"), ports=8)
    assert Cluster("x", (NodeGroup(node, 9),), design).num_gpus == 72
