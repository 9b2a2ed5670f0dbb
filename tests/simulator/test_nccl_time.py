"""How long NCCL takes: properties that hold on every cluster, and figures that vendors published."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.simulator import communicator as communicator_module
from atoll.simulator.communicator import communicator
from atoll.simulator.nccl import COLLECTIVES, predict, predict_for
from atoll.simulator.nccl_environment import nccl_environment
from atoll.simulator.nccl_point_to_point import point_to_point_time
from atoll.simulator.nccl_time import Factors, collective_time, nvls_loop_bytes
from atoll.topology.cluster import Cluster, Integers
from atoll.topology.parts import slowed, without
from atoll.topology.presets import PRESETS, preset
from atoll.topology.routes import Routes, Transport, find_routes

NOTHING = nccl_environment(None, "all_reduce")


@given(
    name=st.sampled_from(sorted(PRESETS)),
    nodes=st.sampled_from([1, 2, 3, 8]),
    gpus=st.integers(2, 64),
    collective=st.sampled_from(COLLECTIVES),
    size=st.integers(0, 2**36),
)
@settings(max_examples=60)
def test_every_prediction_is_finite_and_positive(name: str, nodes: int, gpus: int, collective: str, size: int) -> None:
    cluster = preset(name, nodes=nodes)
    found = predict(cluster, collective, size, min(gpus, cluster.num_gpus))
    assert 1e-6 < found.time_s < 1e6
    assert found.time_s == found.latency_s + found.transfer_s
    assert found.interval[0] <= found.time_s <= found.interval[1]
    # No collective moves more than the links of the ranks can: bus bandwidth is below what they carry, twice with
    # reduction in switches.
    comm = communicator(cluster, min(gpus, cluster.num_gpus))
    carried = comm.intra_bytes_per_s if np.isfinite(comm.intra_bytes_per_s) else comm.network_bytes_per_s
    assert found.busbw_bytes_per_s < 2.01 * max(carried, comm.network_bytes_per_s)


@given(name=st.sampled_from(sorted(PRESETS)), nodes=st.sampled_from([1, 2, 4]), size=st.integers(8, 2**33))
@settings(max_examples=30)
def test_more_bytes_of_one_algorithm_take_longer(name: str, nodes: int, size: int) -> None:
    comm = communicator(preset(name, nodes=nodes))
    for protocol in ("LL", "LL128", "Simple"):
        one, twice = (
            collective_time(comm, "all_reduce", bytes_, "Ring", protocol, NOTHING).total_s
            for bytes_ in (size, 2 * size)
        )
        assert one <= twice <= 2.0001 * one
    one, twice = (point_to_point_time(comm, "all_to_all", bytes_, NOTHING)[0].total_s for bytes_ in (size, 2 * size))
    assert one <= twice


def test_small_messages_are_latency_and_not_clamped() -> None:
    """From 8 B up: a floor of microseconds that grows with the ranks, no bandwidth in it."""
    cluster = preset("dgx-h100", 8)
    times = [predict(cluster, "all_reduce", 8, gpus).time_s for gpus in (2, 4, 8, 16, 32, 64)]
    assert times == sorted(times)
    assert 4e-6 < times[0] < 12e-6
    assert predict(cluster, "all_reduce", 8).bound == "latency"
    assert predict(cluster, "all_reduce", 8 << 30).bound != "latency"
    assert predict(cluster, "barrier", 0).time_s == predict(cluster, "all_reduce", 4).time_s


def test_a_ring_in_simple_pays_half_a_chunk_a_round() -> None:
    """Two slices a chunk: 1.5 times on two GPUs for all-gather, 1.25 for all-reduce, hardly more on many."""
    comm = communicator(preset("dgx-a100"), 2)
    for collective, expected in (("all_gather", 1.5), ("all_reduce", 1.25)):
        time = collective_time(comm, collective, 1 << 30, "Ring", "Simple", NOTHING)
        steps = 2 if collective == "all_reduce" else 1
        moved = (1 << 30) * steps / 2 / 240e9
        assert time.transfer_s / moved == pytest.approx(expected)
    many = communicator(preset("gb200-nvl72"))
    time = collective_time(many, "all_gather", 1 << 30, "Ring", "Simple", NOTHING)
    assert time.transfer_s / ((1 << 30) * 71 / 72 / 720e9) == pytest.approx(1 + 1 / 142)


def test_chunks_of_in_switch_reduction_are_nccls() -> None:
    """16 channels x 8 heads x the chunk of NCCL's table."""
    comm = communicator(preset("dgx-h100"))
    for size, chunk in ((1 << 30, 131072), (512 << 20, 65536), (64 << 20, 65536), (32 << 20, 32768), (4 << 20, 16384)):
        assert nvls_loop_bytes(comm, "NVLS", size, NOTHING) == 128 * chunk
    assert nvls_loop_bytes(comm, "NVLS", 4096, NOTHING) == 4096


@pytest.mark.parametrize(
    ("name", "nodes", "collective", "environment", "published"),
    [
        # NVIDIA GTC 2024 S62129 and GTC 2025 S72583, peak bus bandwidth of nccl-tests in GB/s.
        ("dgx-a100", 1, "all_reduce", {}, 232),
        ("dgx-a100", 4, "all_reduce", {}, 192),
        ("dgx-h100", 1, "all_reduce", {"NCCL_ALGO": "Ring"}, 370),
        ("dgx-h100", 1, "all_reduce", {}, 480),
        ("dgx-h100", 4, "all_reduce", {}, 370),
        ("hgx-b200", 1, "all_reduce", {"NCCL_ALGO": "Ring"}, 700),
        ("hgx-b200", 1, "all_reduce", {}, 850),
        ("gb200-nvl72", 8, "all_reduce", {}, 850),
        ("dgx-a100", 4, "all_to_all", {}, 24),
        ("dgx-h100", 4, "all_to_all", {}, 48),
        ("gb200-nvl72", 8, "all_to_all", {}, 640),
    ],
)
def test_large_messages_reach_what_nvidia_published(
    name: str, nodes: int, collective: str, environment: dict[str, str], published: float
) -> None:
    found = predict(preset(name, nodes=nodes), collective, 16 << 30, environment=environment)
    assert found.busbw_bytes_per_s / 1e9 == pytest.approx(published, rel=0.15 if collective == "all_reduce" else 0.35)


def test_crossing_racks_is_a_cliff_for_all_to_all_and_hardly_one_for_all_reduce() -> None:
    busbw = {
        (racks, collective): predict(preset("gb200-nvl72", racks), collective, 8 << 30).busbw_bytes_per_s
        for racks, collective in itertools.product((1, 2, 3), ("all_to_all", "all_reduce"))
    }
    assert busbw[1, "all_to_all"] > 6 * busbw[2, "all_to_all"]
    # What leaves a rack is (racks - 1) / racks of all: 1/2, then 2/3.
    assert busbw[2, "all_to_all"] / busbw[3, "all_to_all"] == pytest.approx(4 / 3, rel=0.02)
    assert busbw[1, "all_reduce"] < 1.4 * busbw[2, "all_reduce"]


def test_lost_and_slow_nics_cost_what_they_carried() -> None:
    cluster = preset("dgx-h100", 8)
    size = 8 << 30
    whole = predict(cluster, "all_reduce", size)
    lost = predict(without(cluster, "node3/nic2"), "all_reduce", size)
    slow = predict(slowed(cluster, "node3/nic2", 0.5), "all_reduce", size)
    assert whole.bound == lost.bound == "network"
    assert 1.05 < lost.time_s / whole.time_s < 1.25
    assert whole.time_s < slow.time_s < lost.time_s


def test_no_gpudirect_and_other_fabrics_are_not_ignored() -> None:
    efa, infiniband = (predict(preset(name, 2), "all_reduce", 8).time_s for name in ("aws-p5", "dgx-h100"))
    assert efa > infiniband + 10e-6
    narrow = preset("dgx-h100", 256, oversubscription=4)
    plain = preset("dgx-h100", 256)
    assert predict(narrow, "all_to_all", 1 << 30).time_s > 2 * predict(plain, "all_to_all", 1 << 30).time_s


def test_placement_counts() -> None:
    """Eight ranks in one node, over two nodes, and one on each of eight."""
    cluster = preset("dgx-h100", 8)
    size = 1 << 28
    together = predict(cluster, "all_reduce", size, range(8))
    halves = predict(cluster, "all_reduce", size, [*range(4), *range(8, 12)])
    apart = predict(cluster, "all_reduce", size, range(0, 64, 8))
    assert together.time_s < halves.time_s < apart.time_s
    assert apart.time_s > 5 * together.time_s
    shuffled = predict(cluster, "all_reduce", size, [12, 3, 8, 1, 0, 11, 2, 9, 10][:8])
    assert shuffled.time_s == pytest.approx(halves.time_s, rel=0.5)


def test_a_hundred_thousand_gpus_are_looked_at_as_kinds_of_nodes() -> None:
    cluster = preset("dgx-h100", 12_500)
    listed = communicator(cluster, np.arange(100_000))
    assert listed == communicator(cluster)
    assert (listed.ranks, listed.domains, listed.nics) == (100_000, 12_500, 8)
    found = predict(cluster, "all_reduce", 16 << 30)
    assert found.algorithm == "NVLSTree"
    assert 300e9 < found.busbw_bytes_per_s < 400e9


def test_the_work_of_an_answer_does_not_grow_with_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """One node looked at for all that are alike, one route for the network's latency, whatever the number of GPUs."""
    looked: list[int] = []
    routed: list[int] = []
    look = communicator_module._look

    def counting_look(cluster: Cluster, node: int, mask: int, transport: Transport) -> communicator_module._Node:
        looked.append(1)
        return look(cluster, node, mask, transport)

    def counting_routes(cluster: Cluster, src: Integers, dst: Integers, channel: int, transport: Transport) -> Routes:
        routed.append(len(src))
        return find_routes(cluster, src, dst, channel, transport)

    monkeypatch.setattr(communicator_module, "_look", counting_look)
    monkeypatch.setattr(communicator_module, "find_routes", counting_routes)
    for nodes in (3, 12_499):
        looked.clear()
        routed.clear()
        for collective in COLLECTIVES:
            for size in (8, 1 << 20, 8 << 30):
                assert predict(preset("dgx-h100", nodes), collective, size).ranks == 8 * nodes
        assert sum(looked) <= 2
        assert sum(routed) <= 2


def test_factors_scale_their_own_part() -> None:
    comm = communicator(preset("dgx-h100", 2))
    base = predict_for(comm, "all_reduce", 1 << 33, NOTHING)
    half = collective_time(
        comm, "all_reduce", 1 << 33, base.algorithm, base.protocol, NOTHING, Factors(network_bandwidth=0.5)
    )
    assert half.transfer_s == pytest.approx(2 * base.transfer_s)
    assert half.latency_s == base.latency_s


def test_mistakes_are_named() -> None:
    cluster = preset("dgx-h100")
    for arguments, word in (
        (("all_redoce", 8), "did you mean 'all_reduce'"), (("all_reduce", -1), "at least 0"),
        (("all_reduce", 8, 9), "8 GPUs"), (("all_reduce", 8, [1, 1]), "GPU 1 twice"),
        (("all_reduce", 8, []), "got none"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=word):
            predict(cluster, *arguments)
    alone = predict(cluster, "all_reduce", 1 << 20, 1)
    assert alone.time_s == 0.0


def test_mixed_clusters_go_by_their_oldest_gpu_and_their_poorest_node() -> None:
    old, new = preset("dgx-a100").groups[0], preset("dgx-h100").groups[0]
    plain = preset("dgx-h100", 2)
    mixed = msgspec.structs.replace(plain, groups=(new, old))
    comm = communicator(mixed)
    assert comm.gpu.name == "A100"
    assert comm.intra_bytes_per_s == communicator(preset("dgx-a100")).intra_bytes_per_s
    assert comm.network_bytes_per_s == communicator(preset("dgx-a100", 2)).network_bytes_per_s
    assert predict(mixed, "all_reduce", 1 << 30).time_s > predict(plain, "all_reduce", 1 << 30).time_s


def test_the_first_gpus_and_the_same_ones_listed_are_one_communicator() -> None:
    cluster = preset("gb200-nvl72", 3)
    for count in (1, 3, 4, 5, 72, 73, 150, 216):
        assert communicator(cluster, count) == communicator(cluster, list(range(count)))


def test_a_tree_of_domains_fills_at_each_of_its_levels() -> None:
    """Two loops of chunks in one domain and two, twice and three times as many over four and eight."""
    found = {}
    for nodes in (2, 4, 8):
        comm = communicator(preset("dgx-h100", nodes))
        loop = nvls_loop_bytes(comm, "NVLSTree", 1 << 30, NOTHING)
        time = collective_time(comm, "all_reduce", 1 << 30, "NVLSTree", "Simple", NOTHING)
        whole = collective_time(comm, "all_reduce", 1 << 40, "NVLSTree", "Simple", NOTHING)
        rate = (1 << 40) / whole.transfer_s
        found[nodes] = (time.transfer_s * rate - (1 << 30)) / loop
    assert found == pytest.approx({2: 2, 4: 4, 8: 6}, rel=0.02)
