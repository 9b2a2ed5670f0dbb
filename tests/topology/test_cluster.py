"""Arithmetic of a cluster against its explicit expansion; designs against published counts; what is refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_clusters import small_clusters

from atoll.errors import SpecError
from atoll.topology.cluster import Cluster, NodeGroup
from atoll.topology.design import fat_tree, rail_optimised
from atoll.topology.fabric import Fabric, Routing
from atoll.topology.figure import Speed, assumed
from atoll.topology.link_catalogue import infiniband
from atoll.topology.names import device_name, find_node, link_ends, link_facts, link_name, num_devices
from atoll.topology.node_type import MESH, GpuModel, LinkGroup, LinkKind, NodeType, compact, expand
from atoll.topology.preset_nodes import NODE_TYPES
from atoll.topology.presets import PRESETS, preset

CABLE = infiniband(400, "test")


def explicit_links(cluster: Cluster) -> list[tuple[str, str, float]]:
    """Every directed link by name and usable bandwidth, one after the other, as a person would write them down."""
    links: list[tuple[str, str, float]] = []

    def both(a: str, b: str, speed: Speed) -> None:
        links.append((a, b, speed.usable_bytes_per_s()))
        links.append((b, a, speed.usable_bytes_per_s(backwards=True)))

    fabric = cluster.fabric
    node = island = 0
    for group in cluster.groups:
        kind = group.node_type
        for number in range(group.count):
            for link in kind.links:
                ends = []
                for end in (link.a, link.b):
                    if end == "network":
                        assert fabric is not None
                        rail = int(link.a.removeprefix("nic")) % fabric.rails
                        ends.append(f"leaf{node // fabric.nodes_per_leaf * fabric.rails + rail}")
                    elif end.startswith("nvswitch"):
                        ends.append(f"island{island + number // kind.island_nodes}/{end}")
                    else:
                        ends.append(f"{cluster.node_name(node)}/{end}")
                both(ends[0], ends[1], link.speed)
            node += 1
        island += -(-group.count // kind.island_nodes)
    if fabric is None or not fabric.spines:
        return links
    tiers = fabric.tiers
    planes = fabric.rails if fabric.planes else 1
    for unit in range(-(-cluster.num_nodes // fabric.nodes_per_leaf)):
        pod = unit * fabric.nodes_per_leaf // fabric.nodes_per_pod if fabric.nodes_per_pod else 0
        for rail in range(fabric.rails):
            plane = rail if fabric.planes else 0
            for cable in range(tiers.leaf_cables):
                spine = (pod * planes + plane) * tiers.spines + cable % tiers.spines
                assert tiers.leaf_speed is not None
                both(f"leaf{unit * fabric.rails + rail}", f"spine{spine}", tiers.leaf_speed)
    pods = -(-cluster.num_nodes // fabric.nodes_per_pod) if fabric.nodes_per_pod else 1
    for spine in range(pods * planes * tiers.spines):
        for cable in range(tiers.spine_cables):
            core = spine % tiers.spines * tiers.core_group + cable % tiers.core_group
            assert tiers.spine_speed is not None
            both(f"spine{spine}", f"core{core}", tiers.spine_speed)
    return links


def same_as_explicit(cluster: Cluster) -> None:
    links = np.arange(cluster.num_links)
    first, second = link_ends(cluster, links)
    names = [device_name(cluster, device) for device in range(num_devices(cluster))]
    assert len(set(names)) == len(names)
    found = [
        (names[a], names[b], bandwidth)
        for a, b, bandwidth in zip(first.tolist(), second.tolist(), cluster.usable_bytes_per_s.tolist(), strict=True)
    ]
    assert found == explicit_links(cluster)
    assert set(first.tolist()) == set(range(num_devices(cluster)))  # every device has a link
    assert (cluster.bandwidth_of(links) == cluster.usable_bytes_per_s).all()
    assert (cluster.bandwidth_of(links, usable=False) == cluster.bandwidth_bytes_per_s).all()
    assert (cluster.latency_of(links) == cluster.latency_s).all()


@settings(max_examples=30)
@given(small_clusters())
def test_regular_expansion_equals_the_explicit_one(cluster: Cluster) -> None:
    same_as_explicit(cluster)


def test_mixed_groups_expand_too() -> None:
    groups = tuple(
        NodeGroup(NODE_TYPES[name](), count)
        for name, count in (("dgx-h100", 3), ("gb200-tray", 20), ("rtx4090-box", 2), ("dgx-a100", 1))
    )
    cluster = Cluster("mixed", groups, rail_optimised(26, 8, CABLE, ports=8))
    same_as_explicit(cluster)
    assert cluster.num_gpus == 24 + 80 + 16 + 8
    assert cluster.num_islands == 3 + 2 + 2 + 1
    assert cluster.node_of_gpu([0, 23, 24, 103, 104, 127]).tolist() == [0, 2, 3, 22, 23, 25]
    assert cluster.local_gpu([23, 24, 103, 127]).tolist() == [7, 0, 3, 7]
    assert cluster.island_of_gpu([24, 24 + 71, 24 + 72, 104]).tolist() == [3, 3, 4, 5]
    assert cluster.first_gpu_of_node([3, 25]).tolist() == [24, 120]


@pytest.mark.parametrize(
    ("units", "leaves", "spines", "cores"),
    [(2, 16, 8, 0), (4, 32, 16, 0), (8, 64, 32, 0), (16, 128, 128, 64), (32, 256, 256, 128), (64, 512, 512, 256)],
)
def test_designs_have_the_switches_of_published_superpods(units: int, leaves: int, spines: int, cores: int) -> None:
    """NVIDIA DGX SuperPOD reference architecture (B200), table of switch counts by scalable units of 32 nodes."""
    cluster = preset("dgx-h100", 32 * units)
    fabric = cluster.fabric
    assert fabric is not None
    found = (fabric.num_leaves(cluster.num_nodes), fabric.num_spines(cluster.num_nodes), fabric.cores)
    assert found == (leaves, spines, cores)
    assert fabric.oversubscription(8, 50e9) == 1
    assert not cores or fabric.spine_oversubscription() == 1


@settings(max_examples=80)
@given(
    st.integers(1, 2000), st.integers(1, 9), st.sampled_from([1.0, 1.5, 2.0, 4.0, 7.0]),
    st.sampled_from([4, 6, 16, 64, 144]), st.booleans(),
)  # fmt: skip
def test_designs_of_any_size_join_all_nodes_within_the_ports(
    nodes: int, nics: int, oversubscription: float, ports: int, rails: bool
) -> None:
    build = rail_optimised if rails else fat_tree
    fabric = build(nodes, nics, CABLE, oversubscription=oversubscription, ports=ports)
    leaf_nics = fabric.nodes_per_leaf * (1 if rails else nics)
    if leaf_nics > 1 and fabric.nodes_per_leaf > 1:
        assert leaf_nics + fabric.uplinks_per_leaf <= ports + 1
    if fabric.spines:
        pods = fabric.num_pods(nodes)
        units = fabric.num_units(nodes) if pods == 1 else fabric.nodes_per_pod // fabric.nodes_per_leaf
        below = units * (1 if fabric.planes else fabric.rails) * fabric.uplinks_per_leaf // fabric.spines
        assert below + fabric.uplinks_per_spine <= ports or fabric.cores
        assert fabric.oversubscription(nics, 50e9) <= oversubscription + 1e-9
    else:
        assert fabric.num_leaves(nodes) == 1
    assert fabric.num_pods(nodes) == 1 or fabric.cores


def test_presets_cite_every_figure_and_count_one_direction() -> None:
    for name in PRESETS:
        node = preset(name).groups[0].node_type
        assert node.source
        for group in node.groups:
            for figure in (group.speed.bandwidth, group.speed.efficiency, group.speed.latency):
                assert figure.source, (name, group)
        expected = {"A100": 12, "H100": 18, "H200": 18, "B200": 18, "GB200": 18, "GB300": 18, "MI300X": 7}
        links = expected.get(node.gpu.name.split()[0], 0)
        assert {node.island_links(gpu) for gpu in node.gpus} == {links}, name
    per_direction = {"dgx-a100": 300e9, "dgx-h100": 450e9, "hgx-b200": 900e9, "mi300x": 448e9, "l40s-pcie": 0}
    for name, figure in per_direction.items():
        assert preset(name).groups[0].node_type.island_bytes_per_s("gpu0", usable=False) == figure


def test_every_preset_nics_add_up_to_the_published_network() -> None:
    gigabits = {
        "dgx-a100": 1600, "dgx-h100": 3200, "hgx-h200": 3200, "hgx-b200": 3200, "gb200-nvl72": 1600,
        "gb300-nvl72": 3200, "aws-p4d": 400, "aws-p5": 3200, "azure-ndv4": 1600, "azure-ndv5": 3200, "l40s-pcie": 800,
        "rtx4090-box": 100, "mi300x": 3200,
    }  # fmt: skip
    assert set(gigabits) == set(PRESETS)
    for name, expected in gigabits.items():
        node = preset(name).groups[0].node_type
        cables = [speed for nic in node.nics if (speed := node.cable(nic)) is not None]
        assert sum(cable.bandwidth_bytes_per_s() for cable in cables) * 8 == pytest.approx(expected * 1e9)


def test_adaptive_routing_makes_trunks_of_all_cables() -> None:
    """32 cables of 48 GB/s a leaf; a pod and rail has 4 spines of 32 cables to the cores."""
    cluster = preset("dgx-h100", 512)
    assert cluster.usable_bytes_per_s[cluster.first_leaf_link] == pytest.approx(32 * 48e9)
    assert cluster.usable_bytes_per_s[cluster.first_spine_link] == pytest.approx(4 * 32 * 48e9)
    assert cluster.num_links - cluster.first_spine_link == 2 * 4 * 8
    single = preset("dgx-h100", 512, routing=Routing.ECMP)
    assert single.usable_bytes_per_s[single.first_leaf_link] == pytest.approx(48e9)
    assert single.num_links - single.first_spine_link == 2 * 128 * 32


def test_a_hundred_thousand_gpus_are_described_in_few_words() -> None:
    cluster = preset("dgx-h100", 12_500)
    assert cluster.num_gpus == 100_000
    assert len(msgspec.json.encode(cluster)) < 20_000
    assert len(cluster.usable_bytes_per_s) == cluster.num_links
    assert find_node(cluster, "node12499") == 12_499


def test_lowered_links_and_facts() -> None:
    cluster = msgspec.structs.replace(preset("dgx-h100"), shares=((0, 0.5),))
    assert cluster.usable_bytes_per_s[0] == cluster.usable_bytes_per_s[1] / 2
    assert cluster.bandwidth_of([0, 1]).tolist() == cluster.usable_bytes_per_s[:2].tolist()
    facts = link_facts(cluster, 1)
    assert (facts.name, facts.kind, facts.backwards) == ("island0/nvswitch0 -> node0/gpu0", LinkKind.NVLINK, True)
    assert facts.usable_bytes_per_s == pytest.approx(450e9 * 0.824)
    trunk = preset("dgx-h100", 64)
    assert link_name(trunk, trunk.first_leaf_link) == "leaf0 -> spine0"
    cables = preset("dgx-h100", 64, routing=Routing.ECMP)
    assert link_name(cables, cables.first_leaf_link + 2 * 9) == "leaf0 -> spine1 (cable 1)"
    with pytest.raises(SpecError, match="links 0 to"):
        link_facts(cluster, cluster.num_links)
    with pytest.raises(SpecError, match="did you mean 'node0'"):
        find_node(cluster, "nod0")


def test_runs_of_devices_are_read_and_written() -> None:
    assert expand("gpu0-2,gpu7") == ("gpu0", "gpu1", "gpu2", "gpu7")
    assert compact(expand("gpu0-2,gpu7,nic3")) == "gpu0-2,gpu7,nic3"
    for bad in ("gpu", "gpu3-1", "tpu0", "gpu0,gpu0", "", "gpu0-9999"):
        with pytest.raises(SpecError):
            expand(bad)


def test_what_does_not_fit_is_refused_with_everything_at_once() -> None:
    speed = Speed(assumed(1e9, "x"), assumed(1e-6, "x"))
    bad = Speed(assumed(0.0, "x"), assumed(2.0, "x"), assumed(1.5, "x"))
    gpu = GpuModel("X")
    with pytest.raises(SpecError) as caught:
        NodeType(
            "bad", gpu,
            (
                LinkGroup(LinkKind.PCIE, "gpu0-2", "pcie0-1", speed), LinkGroup(LinkKind.NVLINK, "gpu0-1", MESH, bad),
                LinkGroup(LinkKind.NVLINK, "gpu1", "gpu0", speed), LinkGroup(LinkKind.PCIE, "nic0", "network", speed),
            ),
        )  # fmt: skip
    message = str(caught.value)
    for part in (
        "links[0]: 'pcie0-1' (2) does not divide", "links[1]: bandwidth: expected a positive number, got 0",
        "links[1]: efficiency", "links[1]: latency", "links[2]: gpu1 and gpu0 are joined twice", "links[3]: only links",
    ):  # fmt: skip
        assert part in message
    with pytest.raises(SpecError, match="no link leads to a GPU"):
        NodeType("empty", gpu, ())
    with pytest.raises(SpecError) as caught:
        Fabric("bad", 4, 8, uplinks_per_leaf=5, spines=2, nodes_per_pod=6, cores=4)
    for part in ("uplinks_per_leaf: 5 cables", "leaf_uplink: missing", "nodes_per_pod: expected a multiple",
                 "uplinks_per_spine: missing"):  # fmt: skip
        assert part in str(caught.value)
    with pytest.raises(SpecError, match="did you mean 'dgx-h100'"):
        preset("dgx-h10")
