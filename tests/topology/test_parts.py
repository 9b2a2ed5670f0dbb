"""Parts that fail or slow down, and what nodes and tiers can carry."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_clusters import small_clusters

from atoll.errors import SpecError
from atoll.topology.capacity import fabric_bytes_per_s, node_capacity
from atoll.topology.cluster import Cluster
from atoll.topology.fabric import Routing
from atoll.topology.names import device_name, find_device, link_ends, num_devices
from atoll.topology.parts import gpus_behind, slowed, without
from atoll.topology.presets import preset
from atoll.topology.routes import find_routes


def passed(cluster: Cluster, src: int, dst: int, channel: int = 0) -> list[str]:
    first, second = link_ends(cluster, find_routes(cluster, src, dst, channel)[0])
    return [device_name(cluster, int(first[0])), *(device_name(cluster, int(device)) for device in second)]


@settings(max_examples=20)
@given(small_clusters())
def test_devices_are_found_by_their_names(cluster: Cluster) -> None:
    for device in range(num_devices(cluster)):
        assert find_device(cluster, device_name(cluster, device)) == device


@settings(max_examples=25)
@given(small_clusters(), st.data())
def test_every_device_of_a_default_route_has_its_ends_behind_it(cluster: Cluster, data: st.DataObject) -> None:
    """A leaf, NIC, switch or core that a route passes carries traffic of both ends, or of a GPU that passes it on."""
    gpus = st.integers(0, cluster.num_gpus - 1)
    src, dst = data.draw(gpus), data.draw(gpus)
    for name in passed(cluster, src, dst) if src != dst else []:
        kind = name.rpartition("/")[2].rstrip("0123456789")
        if kind in ("gpu", "cpu", "mem", "pcie") or (kind == "spine" and cluster.fabric is not None
                                                      and cluster.fabric.routing is Routing.ADAPTIVE):  # fmt: skip
            continue
        behind = set(gpus_behind(cluster, name).tolist())
        nodes = {int(node) for node in cluster.node_of_gpu([src, dst])}
        assert {src, dst} & behind or nodes & {int(node) for node in cluster.node_of_gpu(sorted(behind))}


def test_what_stands_behind_each_part_of_a_superpod() -> None:
    cluster = preset("dgx-h100", 512)
    counts = {
        "node7": 8, "node7/gpu3": 1, "node7/nic3": 1, "node7/pcie3": 1, "node7/cpu1": 4, "island7": 8,
        "island7/nvswitch0": 8, "leaf9": 32, "rail2": 512, "spine5": 128, "core3": 4096, "rack127": 32,
    }  # fmt: skip
    for part, count in counts.items():
        assert len(gpus_behind(cluster, part)) == count, part
    assert gpus_behind(cluster, "leaf9").tolist() == [8 * node + 1 for node in range(32, 64)]
    assert gpus_behind(cluster, "spine5").tolist() == [8 * node + 1 for node in range(128)]  # plane 1 of pod 0
    rack = preset("gb300-nvl72", 2)
    assert len(gpus_behind(rack, "island1")) == len(gpus_behind(rack, "rack1")) == 72
    shared = preset("aws-p4d", 2)
    assert gpus_behind(shared, "node1/nic0").tolist() == [8, 9]
    for part, said in (("leaf128", "leaf0 to leaf127"), ("node512", "no node"), ("node1/nic9", "did you mean 'nic"),
                       ("rack128", "rack0 to rack127")):  # fmt: skip
        with pytest.raises(SpecError, match=said):
            gpus_behind(cluster, part)
    with pytest.raises(SpecError, match="does not say how many nodes a rack"):
        gpus_behind(shared, "rack0")


def test_a_slow_part_slows_its_links_only() -> None:
    cluster = preset("dgx-h100", 2)
    slow = slowed(cluster, "node1/nic2", 0.25)
    changed = np.flatnonzero(slow.usable_bytes_per_s != cluster.usable_bytes_per_s)
    assert len(changed) == 4  # PCIe and cable, both ways
    np.testing.assert_allclose(slow.usable_bytes_per_s[changed] / cluster.usable_bytes_per_s[changed], 0.25)
    assert find_routes(slow, 2, 10).bottleneck_bytes_per_s(slow)[0] == pytest.approx(12e9, rel=0.01)
    assert find_routes(slow, 3, 11).bottleneck_bytes_per_s(slow)[0] == pytest.approx(48e9, rel=0.01)
    with pytest.raises(SpecError, match="share above 0"):
        slowed(cluster, "node1/nic2", 0)
    with pytest.raises(SpecError, match="has 8 of leaf"):
        slowed(cluster, "leaf8", 0.5)


def test_without_a_nic_its_gpu_takes_another_and_nothing_else_changes() -> None:
    cluster = preset("dgx-h100", 3)
    less = without(cluster, "node1/nic2")
    assert (less.num_gpus, [group.count for group in less.groups]) == (24, [1, 1, 1])
    there = passed(less, 2, 10)
    assert "node1/nic2" not in there
    assert any(name.startswith("node1/nic") for name in there)
    assert passed(less, 2, 18) == passed(cluster, 2, 18)
    assert passed(less, 11, 3) == passed(cluster, 11, 3)
    every = find_routes(less, np.repeat(np.arange(24), 24), np.tile(np.arange(24), 24))
    first, second = link_ends(less, every.links)
    assert "node1/nic2" not in {device_name(less, device) for device in {*first.tolist(), *second.tolist()}}
    for part, said in (("node1/gpu0", "expected a NIC"), ("node1/nic9", "did you mean")):
        with pytest.raises(SpecError, match=said):
            without(cluster, part)
    with pytest.raises(SpecError, match="first, then slow"):
        without(slowed(cluster, "leaf0", 0.5), "node1/nic2")


def test_the_last_nic_is_missed() -> None:
    with pytest.raises(SpecError, match="no NIC of rtx4090-box-without-nic0 has a link to 'network'"):
        without(preset("rtx4090-box", 2), "node0/nic0")


@pytest.mark.parametrize(
    ("name", "island", "network"),
    [
        ("dgx-a100", 240e9, 8 * 24e9), ("dgx-h100", 370.8e9, 8 * 48e9), ("gb200-nvl72", 721.8e9, 4 * 48e9),
        ("gb300-nvl72", 721.8e9, 4 * 92.2e9),  # PCIe 6 x16 carries a little less than 800 Gb/s
        ("aws-p4d", 240e9, 4 * 11.5e9), ("aws-p5", 370.8e9, 32 * 11.5e9), ("mi300x", 7 * 48e9, 8 * 48e9),
        ("l40s-pcie", 24e9, 4 * 23.5e9), ("rtx4090-box", 24e9, 11.75e9),
    ],
)  # fmt: skip
def test_capacities_of_nodes(name: str, island: float, network: float) -> None:
    capacity = node_capacity(preset(name).groups[0].node_type)
    assert capacity.island_bytes_per_s == pytest.approx(island, rel=0.01)
    assert capacity.network_bytes_per_s == pytest.approx(network, rel=0.01)
    assert capacity.island_gpus == {"gb200-nvl72": 72, "gb300-nvl72": 72, "l40s-pcie": 1, "rtx4090-box": 1}.get(name, 8)


def test_the_ratio_of_island_and_network_is_the_headline_one() -> None:
    """450 GB/s of NVLink to 50 GB/s of InfiniBand a GPU and direction: 9."""
    node = preset("dgx-h100").groups[0].node_type
    cable = node.cable("nic0")
    assert cable is not None
    assert node.island_bytes_per_s("gpu0", usable=False) / cable.bandwidth_bytes_per_s() == 9


def test_capacities_of_tiers() -> None:
    cluster = preset("dgx-h100", 512, oversubscription=2)
    network = node_capacity(cluster.groups[0].node_type).network_bytes_per_s
    beyond = fabric_bytes_per_s(cluster, "leaf")
    assert network / beyond == pytest.approx(2, rel=0.1)
    assert fabric_bytes_per_s(preset("dgx-h100", 512), "leaf") == pytest.approx(network)
    assert fabric_bytes_per_s(preset("dgx-h100", 512), "pod") == pytest.approx(network)
    assert fabric_bytes_per_s(preset("aws-p4d", 2), "leaf") == math.inf
    assert fabric_bytes_per_s(preset("dgx-h100", 8), "pod") == math.inf
    with pytest.raises(SpecError, match="'leaf' or 'pod'"):
        fabric_bytes_per_s(cluster, "spine")


def test_the_cliff_between_two_racks_is_in_the_preset() -> None:
    """All-to-all of 64 ranks in one rack against 128 in two: what each GPU can send bounds it."""
    rack = preset("gb200-nvl72", 2)
    capacity = node_capacity(rack.groups[0].node_type)
    in_rack = capacity.island_bytes_per_s
    # Of 128 blocks 64 cross; busbw counts 127 of them.
    across = capacity.network_bytes_per_s_and_gpu * 127 / 64
    assert in_rack == pytest.approx(623e9, rel=0.25)  # measured on OCI GB200, 64 GPUs in one rack
    assert across == pytest.approx(89.7e9, rel=0.25)  # 128 GPUs over two racks
