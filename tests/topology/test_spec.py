"""Clusters in TOML: there and back, and every mistake at once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from topology_clusters import small_clusters

from atoll.errors import SpecError
from atoll.topology.cluster import Cluster, NodeGroup
from atoll.topology.figure import Provenance, assumed
from atoll.topology.presets import PRESETS, preset
from atoll.topology.routes import find_routes
from atoll.topology.spec_read import NO_SOURCE, read_cluster
from atoll.topology.spec_write import write_cluster


@settings(max_examples=30)
@given(small_clusters())
def test_what_is_written_is_read_back_as_the_same_cluster(cluster: Cluster) -> None:
    assert read_cluster(write_cluster(cluster), "x.toml") == cluster


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_large_presets_round_trip(name: str) -> None:
    cluster = preset(name, 20)
    assert read_cluster(write_cluster(cluster).encode(), "x.toml") == cluster


def test_odd_text_hosts_and_lowered_links_round_trip() -> None:
    node = msgspec.structs.replace(preset("dgx-h100").groups[0].node_type, name='odd "name"\x7f\n', source="\\ é")
    back = msgspec.structs.replace(node.groups[0].speed, back=assumed(1 / 3 * 1e9, "one way is slower"))
    node = msgspec.structs.replace(node, groups=(msgspec.structs.replace(node.groups[0], speed=back), *node.groups[1:]))
    cluster = msgspec.structs.replace(
        preset("dgx-h100", 2), groups=(NodeGroup(node, 2, ("a01", "b-2.example")),), shares=((3, 0.1),)
    )
    assert read_cluster(write_cluster(cluster), "x.toml") == cluster


HAND_WRITTEN = """
name = "hand-written"

[[nodes]]
type = "dgx-h100"
hosts = "n[1-2]"

[[nodes]]
type = "pair"
count = 2

[fabric]
layout = "rail-optimised"
oversubscription = 2
ports = 8

[node_types.pair]
gpu = "A100 PCIe"
nvlinks = 12

[[node_types.pair.links]]
kind = "nvlink"
from = "gpu0"
to = "gpu1"
lanes = 12
bandwidth = "300GB/s"
back = 150e9
latency = "0.6us"

[[node_types.pair.links]]
kind = "pcie"
from = "gpu0-1"
to = "cpu0"
bandwidth = { value = "32GB/s", provenance = "vendor", source = "data sheet" }
latency = 1e-6
efficiency = 0.75

[[node_types.pair.links]]
kind = "pcie"
from = "nic0"
to = "cpu0"
bandwidth = "32GB/s"
latency = "1us"

[[node_types.pair.links]]
kind = "network"
from = "nic0"
to = "network"
bandwidth = "100Gbit/s"
latency = "1us"
"""


def test_a_file_written_by_hand() -> None:
    cluster = read_cluster(HAND_WRITTEN, "x.toml")
    assert (cluster.num_nodes, cluster.num_gpus, cluster.node_name(1), cluster.node_name(2)) == (4, 20, "n2", "node2")
    pair = cluster.groups[1].node_type
    nvlink, pcie = pair.groups[0].speed, pair.groups[1].speed
    assert (nvlink.bandwidth.value, nvlink.back and nvlink.back.value, nvlink.lanes) == (300e9, 150e9, 12)
    assert (nvlink.bandwidth.provenance, nvlink.bandwidth.source) == (Provenance.ASSUMED, NO_SOURCE)
    assert (pcie.bandwidth.provenance, pcie.bandwidth.source) == (Provenance.VENDOR, "data sheet")
    assert pcie.usable_bytes_per_s() == 24e9
    assert find_routes(cluster, 16, 17).bottleneck_bytes_per_s(cluster) == 300e9
    assert find_routes(cluster, 17, 16).bottleneck_bytes_per_s(cluster) == 150e9
    assert find_routes(cluster, 16, 18).bottleneck_bytes_per_s(cluster) == 12.5e9
    assert find_routes(cluster, 3, 18).bottleneck_bytes_per_s(cluster) == 12.5e9  # a different kind of node


def test_like_takes_over_what_is_not_given() -> None:
    text = 'name = "x"\n[[nodes]]\ntype = "mine"\ncount = 1\n[node_types.mine]\nlike = "dgx-h100"\ngpudirect = false\n'
    node = read_cluster(text, "x.toml").groups[0].node_type
    like = preset("dgx-h100").groups[0].node_type
    assert (node.name, node.gpudirect, node.groups) == ("mine", False, like.groups)


def test_every_mistake_is_said_at_once_with_its_place_and_the_nearest_word() -> None:
    text = """
nam = "x"
nodes_per_rack = -1
[[nodes]]
type = "dgx-h10"
count = 0
[[nodes]]
type = "mine"
cout = 3
hosts = "n[1-"
[fabric]
layout = "rail-optimized"
ports = true
[node_types.mine]
gpu = "X"
[[node_types.mine.links]]
kind = "nvlnk"
from = "gpu0-7"
to = "nvswitch0"
bandwidth = "fast"
latency = { value = "1us", provenance = "vender", sauce = "x" }
"""
    with pytest.raises(SpecError) as caught:
        read_cluster(text, "c.toml")
    lines = str(caught.value).splitlines()
    assert lines[0] == "c.toml: 13 mistakes:"
    expected = [
        "name: missing", "nodes_per_rack: expected a whole number from 0", "nodes[0].type: unknown 'dgx-h10': did you "
        "mean 'dgx-h100'?", "nodes[0].count: expected a whole number from 1", "nodes[1].cout: unknown key: did you "
        "mean 'count'?", "nodes[1].hosts:", "fabric.layout: unknown 'rail-optimized': did you mean 'rail-optimised'?",
        "fabric.ports: expected a whole number",
        "node_types.mine.links[0].kind: unknown 'nvlnk': did you mean 'nvlink'?",
        "node_types.mine.links[0]: bandwidth: expected a bandwidth", "node_types.mine.links[0].latency.provenance:",
        "node_types.mine.links[0].latency.sauce: unknown key: did you mean 'source'?", "nam: unknown key",
    ]  # fmt: skip
    for part in expected:
        assert sum(line.strip().startswith(part) for line in lines) == 1, part


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "c.toml: not TOML"),
        (b"\xff\xfe", "c.toml: not TOML"),
        ("", "nodes: missing"),
        ('name = "x"\nnodes = []\n', "nodes: expected at least one"),
        ('name = "x"\nnodes = [3]\n', r"nodes\[0\]: expected a table, got 3"),
        ('name = "x"\n[[nodes]]\ntype = "dgx-h100"\ncount = 2\n', "2 islands without a fabric"),
        ('name = "x"\n[[nodes]]\ntype = "dgx-h100"\ncount = 3\nhosts = "a,b"\n', "2 hosts for a count of 3"),
        ('name = "x"\n[[nodes]]\ntype = "dgx-h100"\ncount = 3\n[fabric]\nnodes_per_leaf = 2\nspines = 1\n', "uplinks"),
        ('name = "x"\n[[nodes]]\ntype = "t"\n[node_types.t]\ngpu = "g"\nlinks = [{kind = "pcie", from = "gpu0-2", '
         'to = "pcie0-1", bandwidth = 1e9, latency = 0}]\n', "does not divide"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str | bytes, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read_cluster(text, "c.toml")
