"""What NCCL chooses: its own tuner, its variables, and what a cluster allows."""

from __future__ import annotations

import pytest

from atoll.errors import SpecError
from atoll.simulator import nccl_constants as constants
from atoll.simulator.communicator import communicator
from atoll.simulator.nccl import predict
from atoll.simulator.nccl_environment import nccl_environment
from atoll.simulator.nccl_tuner import bus_bandwidth, estimates, graph_channels, latency_us, ring_steps
from atoll.topology.presets import preset

NOTHING = nccl_environment(None, "all_reduce")


def test_latency_and_bandwidth_are_the_tuners_worked_by_hand() -> None:
    comm = communicator(preset("dgx-h100"))
    # Ring: base + 14 hops; NVLS: its one hop, the base dropped.
    assert latency_us(comm, "all_reduce", "Ring", "LL") == pytest.approx(6.6 + 14 * 0.6)
    assert latency_us(comm, "all_gather", "Ring", "Simple") == pytest.approx(8.4 + 7 * 3.4)
    assert latency_us(comm, "all_reduce", "Tree", "LL128") == pytest.approx(14.0 + 2 * 7 * 1.25)
    assert latency_us(comm, "all_reduce", "NVLS", "Simple") == 25.0
    # 370.8 GB/s a GPU: 8 heads of 40, of which 0.85, 7 in 8, both ways; a ring of 12 channels of 30.
    heads, in_switch = bus_bandwidth(comm, "all_reduce", "NVLS", "Simple", NOTHING)
    assert heads == 8
    assert in_switch == pytest.approx(476.0)
    assert bus_bandwidth(comm, "all_reduce", "Ring", "Simple", NOTHING)[1] == pytest.approx(360.0)
    assert bus_bandwidth(comm, "all_reduce", "Ring", "LL", NOTHING)[1] == pytest.approx(141.0)
    two = communicator(preset("dgx-h100", 2))
    # Two nodes of eight: the chain of a node, and one level of the tree, up and down.
    assert latency_us(two, "all_reduce", "Tree", "LL") == pytest.approx(6.8 + 2 * (7 * 0.6 + 5.0))
    assert bus_bandwidth(two, "all_reduce", "NVLSTree", "Simple", NOTHING)[1] == pytest.approx(8 * 57.7)
    four = communicator(preset("dgx-h100", 4))
    assert bus_bandwidth(four, "all_reduce", "NVLSTree", "Simple", NOTHING)[1] == pytest.approx(8 * 45.5)


@pytest.mark.parametrize(
    ("cluster", "gpus", "collective", "size", "expected"),
    [
        ("dgx-h100", 8, "all_reduce", 8, ("Ring", "LL")),
        ("dgx-h100", 8, "all_reduce", 1 << 26, ("NVLS", "Simple")),
        # Four heads carry less than a ring; two ranks have no NVLS at all.
        ("dgx-h100", 4, "all_reduce", 1 << 28, ("Ring", "Simple")),
        ("dgx-h100", 2, "all_reduce", 1 << 28, ("Ring", "Simple")),
        ("dgx-h100", 8, "all_gather", 1 << 28, ("Ring", "Simple")),
        ("dgx-h100:2", 16, "all_reduce", 8, ("Tree", "LL")),
        ("dgx-h100:2", 16, "all_reduce", 1 << 30, ("NVLSTree", "Simple")),
        ("dgx-a100", 8, "all_reduce", 1 << 22, ("Ring", "LL128")),
        ("l40s-pcie", 8, "all_reduce", 1 << 28, ("Ring", "Simple")),
        ("gb200-nvl72", 72, "all_reduce", 1 << 30, ("NVLS", "Simple")),
    ],
)
def test_choice(cluster: str, gpus: int, collective: str, size: int, expected: tuple[str, str]) -> None:
    name, _, count = cluster.partition(":")
    found = predict(preset(name, int(count or 1)), collective, size, gpus)
    assert (found.algorithm, found.protocol) == expected
    assert "tuner" in found.reason
    best, second = found.considered[0], found.considered[1]
    assert (best.algorithm, best.protocol) == expected
    assert best.tuner_s <= second.tuner_s


def test_no_ll128_over_pcie_and_no_nvls_for_types_that_switches_do_not_add() -> None:
    cluster = preset("l40s-pcie")
    assert "LL128" not in {one.protocol for one in predict(cluster, "all_reduce", 1 << 20).considered}
    found = predict(preset("dgx-h100"), "all_reduce", 1 << 28, dtype="int8")
    assert found.algorithm == "Ring"
    assert found.refused["NVLS"] == "NVSwitches do not add int8"


def test_variables_change_the_choice_and_say_so() -> None:
    cluster = preset("dgx-h100", 2)
    size = 1 << 30
    plain = predict(cluster, "all_reduce", size)
    ring = predict(cluster, "all_reduce", size, environment={"NCCL_ALGO": "Ring"})
    no_nvls = predict(cluster, "all_reduce", size, environment={"NCCL_NVLS_ENABLE": "0"})
    assert plain.algorithm == "NVLSTree"
    assert ring.algorithm == no_nvls.algorithm == "Ring"
    assert no_nvls.refused["NVLSTree"] == "NCCL_NVLS_ENABLE=0"
    assert plain.time_s < ring.time_s == no_nvls.time_s
    sharp = predict(cluster, "all_reduce", size, environment={"NCCL_COLLNET_ENABLE": "1"})
    assert sharp.algorithm.startswith("CollNet")
    only = predict(cluster, "all_reduce", size, environment={"NCCL_ALGO": "^NVLSTree,tree", "NCCL_PROTO": "ll"})
    assert (only.algorithm, only.protocol) == ("Ring", "LL")
    mine = {"NCCL_ALGO": "allreduce:tree;allgather:ring"}
    assert predict(cluster, "all_reduce", size, environment=mine).algorithm == "Tree"
    assert predict(cluster, "all_gather", size, environment=mine).algorithm == "Ring"
    unknown = predict(cluster, "all_reduce", size, environment={"NCCL_BUFFSIZE": "8388608", "NCCL_DEBUG": "INFO"})
    assert unknown.notes == ("NCCL_BUFFSIZE=8388608 is not modelled",)


def test_one_rank_a_node_takes_pat_for_small_and_ring_for_large() -> None:
    cluster = preset("dgx-h100", 16)
    one_each = range(0, 128, 8)
    names = [predict(cluster, "all_gather", size, one_each).algorithm for size in (1 << 12, 1 << 30)]
    assert names == ["PAT", "Ring"]
    off = predict(cluster, "all_gather", 1 << 12, one_each, environment={"NCCL_PAT_ENABLE": "0"})
    assert off.algorithm == "Ring"


@pytest.mark.parametrize(
    ("variables", "word"),
    [
        ({"NCCL_ALGO": "Rign"}, "did you mean 'Ring'"),
        ({"NCCL_PROTO": "LL64"}, "LL64"),
        ({"NCCL_NVLS_ENABLE": "yes"}, "whole number"),
        ({"NCCL_MAX_NCHANNELS": "0"}, "at least 1"),
        ({"NCCL_ALGO": "NVLS"}, "two ranks or fewer"),
        ({"NCCL_ALGO": "allred:ring"}, "unknown collective"),
    ],
)
def test_values_nccl_would_not_take_are_refused(variables: dict[str, str], word: str) -> None:
    with pytest.raises(SpecError, match=word):
        predict(preset("dgx-h100"), "all_reduce", 1 << 20, 2, environment=variables)


def test_every_choice_is_the_least_of_the_tuners_estimates() -> None:
    for name in ("dgx-a100", "dgx-h100", "hgx-b200", "mi300x", "l40s-pcie"):
        for nodes in (1, 2, 5):
            comm = communicator(preset(name, nodes))
            for size in (8, 1 << 14, 1 << 22, 1 << 31):
                found = estimates(comm, "all_reduce", size, NOTHING)
                assert found[0].time_us == min(one.time_us for one in found)
                for one in found:
                    assert one.time_us >= one.latency_us > 0


def test_channels_fill_the_links_without_exceeding_them() -> None:
    for name in ("dgx-a100", "dgx-h100", "hgx-b200", "mi300x"):
        comm = communicator(preset(name))
        for algorithm in ("Ring", "NVLS"):
            channels, speed = graph_channels(comm, algorithm, NOTHING)
            assert 0.8 * comm.intra_bytes_per_s <= channels * speed * 1e9 <= comm.intra_bytes_per_s * 1.0001
    few = nccl_environment({"NCCL_MAX_NCHANNELS": "2"}, "all_reduce")
    assert graph_channels(communicator(preset("dgx-h100")), "Ring", few)[0] <= 2


def test_steps_of_rings() -> None:
    assert (ring_steps("broadcast", 8, 1).all, ring_steps("broadcast", 8, 1).between) == (8, 0)
    assert (ring_steps("all_reduce", 16, 2).all, ring_steps("all_reduce", 16, 2).between) == (30, 2)
    assert (ring_steps("all_gather", 16, 2).all, ring_steps("all_gather", 16, 2).between) == (15, 1)


def test_gpus_are_known_by_the_names_that_tools_print() -> None:
    for printed, name in (
        ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA A100-SXM4-40GB", "A100"), ("NVIDIA GB200", "GB200"),
        ("NVIDIA L40S", "L40S"), ("NVIDIA A10G", "A10G"), ("NVIDIA GeForce RTX 4090", "4090"),
        ("NVIDIA GH200 480GB", "GH200"), ("NVIDIA H20", "H20"), ("NVIDIA H200", "H200"),
    ):  # fmt: skip
        found = constants.gpu_facts(printed)
        assert found is not None
        assert found.name == name
    assert constants.gpu_facts("Quadro K620") is None
