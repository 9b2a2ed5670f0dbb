"""The linters: variables, topology files and matrices, the timeout ladder."""

from __future__ import annotations

import pytest

from atoll.doctor.catalogue import RULES
from atoll.doctor.evidence import Evidence
from atoll.doctor.lint_env import LINTS, lint_environment
from atoll.doctor.lint_timeouts import ladder, problems
from atoll.doctor.variables import VARIABLES, version_tuple
from atoll.errors import SpecError
from atoll.readers.environment import EnvironmentVariable, read_environment
from atoll.readers.source import Source
from atoll.readers.topology_matrix import read_topology_matrices
from atoll.readers.topology_xml import read_topology_xml
from atoll.topology.lint import lint_node
from atoll.topology.seen_matrix import seen_in_matrix
from atoll.topology.seen_xml import seen_in_xml
from doctor.corpus import near, topo, topology_xml


def lint(text: str, nccl: str = "", torch: str = "") -> list[tuple[str, str]]:
    return [(found.id, found.variable) for found in lint_environment(read_environment(text, "env.sh"), nccl, torch)]


CLEAN = """
export NCCL_DEBUG=INFO
export NCCL_SOCKET_IFNAME=^lo,docker
export NCCL_IB_HCA=mlx5_0,mlx5_1
export NCCL_IB_TIMEOUT=22
export NCCL_IB_GID_INDEX=3
export NCCL_ALGO=allreduce:ring,tree;broadcast:ring
export NCCL_NET_GDR_LEVEL=PHB
export NCCL_VERSION=2.21.5
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1
export TORCH_NCCL_TRACE_BUFFER_SIZE=2000
export TORCH_NCCL_DUMP_ON_TIMEOUT=true
export CUDA_VISIBLE_DEVICES=0,1
export MY_NCCL_THING=1
"""


def test_a_clean_environment_is_clean() -> None:
    assert lint(CLEAN, "2.24.3", "2.5") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NCCL_SOKET_IFNAME=eth0", ("E01", "NCCL_SOKET_IFNAME")),
        ("NCLL_DEBUG=INFO", ("E01", "NCLL_DEBUG")),
        ("TORCH_NCCL_TRACE_BUFER_SIZE=100", ("E01", "TORCH_NCCL_TRACE_BUFER_SIZE")),
        ("NCCL_TREE_THRESHOLD=0", ("E02", "NCCL_TREE_THRESHOLD")),
        ("NCCL_IB_DISABLE=yes", ("E03", "NCCL_IB_DISABLE")),
        ("NCCL_BUFFSIZE=8M", ("E03", "NCCL_BUFFSIZE")),
        ("NCCL_IB_RETRY_CNT=13", ("E03", "NCCL_IB_RETRY_CNT")),
        ("NCCL_IB_TIMEOUT=1000", ("E03", "NCCL_IB_TIMEOUT")),
        ("NCCL_P2P_LEVEL=FAR", ("E03", "NCCL_P2P_LEVEL")),
        ("NCCL_ALGO=Ringg", ("E03", "NCCL_ALGO")),
        ("NCCL_DEBUG_SUBSYS=INIT,NETT", ("E03", "NCCL_DEBUG_SUBSYS")),
        ("NCCL_IB_DISABLE=1\nNCCL_IB_HCA=mlx5_0", ("E04", "NCCL_IB_DISABLE")),
        ("NCCL_NET=Socket\nNCCL_IB_HCA=mlx5_0", ("E04", "NCCL_NET")),
        ("NCCL_NET=IB\nNCCL_IB_DISABLE=1", ("E05", "NCCL_NET")),
        ("NCCL_MIN_NCHANNELS=16\nNCCL_MAX_NCHANNELS=8", ("E05", "NCCL_MIN_NCHANNELS")),
        ("NCCL_P2P_DISABLE=1\nNCCL_P2P_LEVEL=NVL", ("E05", "NCCL_P2P_LEVEL")),
        ("TORCH_NCCL_BLOCKING_WAIT=1\nTORCH_NCCL_ASYNC_ERROR_HANDLING=1", ("E05", "TORCH_NCCL_BLOCKING_WAIT")),
        ("NCCL_ALGO=NVLS\nNCCL_NVLS_ENABLE=0", ("E05", "NCCL_ALGO")),
        ("NCCL_P2P_DISABLE=1", ("E06", "NCCL_P2P_DISABLE")),
        ("NCCL_SOCKET_IFNAME=lo", ("E07", "NCCL_SOCKET_IFNAME")),
        ("NCCL_SOCKET_IFNAME=eth0,^docker0", ("E07", "NCCL_SOCKET_IFNAME")),
        ('NCCL_SOCKET_IFNAME="eth0, eth1"', ("E07", "NCCL_SOCKET_IFNAME")),
        ("NCCL_ASYNC_ERROR_HANDLING=1", ("E08", "NCCL_ASYNC_ERROR_HANDLING")),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT=1\nTORCH_NCCL_TRACE_BUFFER_SIZE=0", ("E09", "TORCH_NCCL_DUMP_ON_TIMEOUT")),
    ],
)
def test_each_fault_is_named(text: str, expected: tuple[str, str]) -> None:
    assert expected in lint(text)


def test_a_typo_gets_the_nearest_name() -> None:
    (found,) = lint_environment(read_environment("NCCL_IB_GID_INDX=3", "env"))
    assert found.fix == "did you mean NCCL_IB_GID_INDEX?"
    assert found.source is not None
    assert found.source.line == 1


def test_what_is_read_depends_on_the_version() -> None:
    text = "NCCL_IB_SPLIT_DATA_ON_QPS=1\nNCCL_RAS_ENABLE=1"
    assert lint(text, "2.27.3") == []
    assert lint(text, "2.17.1") == [("E02", "NCCL_IB_SPLIT_DATA_ON_QPS"), ("E02", "NCCL_RAS_ENABLE")]
    assert lint("NCCL_TREE_THRESHOLD=0", "2.4.8") == []
    assert lint("NCCL_ASYNC_ERROR_HANDLING=1", torch="1.13") == []


def test_ranks_that_disagree() -> None:
    settings = [EnvironmentVariable("NCCL_IB_HCA", value, Source("log", n), host=f"n{n}")
                for n, value in enumerate(("mlx5_0", "mlx5_0", "mlx5_1"))]  # fmt: skip
    found = [one for one in lint_environment(settings) if one.id == "E10"]
    assert [one.value for one in found] == ["mlx5_1"]


def test_the_table_of_variables_is_sound() -> None:
    for name, variable in VARIABLES.items():
        assert name == variable.name
        assert not variable.replaced_by or variable.replaced_by in VARIABLES
        assert not variable.until or not variable.since or version_tuple(variable.since) < version_tuple(variable.until)
        assert variable.kind in ("bool", "int", "size", "path", "words", "list", "text", "algorithms")
    assert set(LINTS) == {f"E{n:02d}" for n in range(1, 11)}


def test_topology_file_whose_ends_disagree() -> None:
    (problem,) = lint_node(seen_in_xml(read_topology_xml(topology_xml((1, 12)), "bad.xml")))
    assert problem.id == "T01"
    assert problem.things == ("0000:17:00.0", "0000:65:00.0")
    assert lint_node(seen_in_xml(read_topology_xml(topology_xml((12, 12)), "good.xml"))) == ()


def test_topology_file_with_one_device_twice() -> None:
    text = topology_xml().replace('dev="1" sm="80" rank="1"', 'dev="0" sm="80" rank="1"')
    assert [problem.id for problem in lint_node(seen_in_xml(read_topology_xml(text, "bad.xml")))] == ["T04"]


@pytest.mark.parametrize(
    ("links", "name", "change", "expected"),
    [
        ("NV18", "NVIDIA H100 80GB HBM3", {}, set()),
        ("NV8", "NVIDIA A800-SXM4-80GB", {}, set()),
        ("NV8", "", {}, set()),
        ("NV16", "NVIDIA H100 80GB HBM3", {}, {"T03"}),
        ("NV17", "", {}, {"T07"}),
        ("NV18", "", {(1, 4): "NV12"}, {"T03"}),
        ("PHB", "", {}, set()),
    ],
)
def test_matrix(links: str, name: str, change: dict[tuple[int, int], str], expected: set[str]) -> None:
    (matrix,) = read_topology_matrices(topo(8, links, near, change), "topo.txt")
    assert {problem.id for problem in lint_node(seen_in_matrix(matrix), name)} == expected


def names(given: dict[str, float], environment: dict[str, str] | None = None) -> list[tuple[str, str]]:
    return [(p.inner.name, p.outer.name) for p in problems(ladder(environment or {}, given))]


def test_defaults_alone_are_no_problem() -> None:
    assert names({}) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"process_group": 120.0, "heartbeat": 200.0, "elastic": 300.0, "slurm": 86400.0}, []),
        ({"process_group": 1800.0, "heartbeat": 480.0}, [("process_group", "heartbeat")]),
        ({"process_group": 600.0, "heartbeat": 600.0}, [("process_group", "heartbeat")]),
        ({"slurm": 300.0}, [("process_group", "slurm")]),
        ({"process_group": 20.0}, [("nccl", "process_group")]),
        ({"process_group": 900.0, "heartbeat": 1000.0, "elastic": 500.0}, [("heartbeat", "elastic")]),
    ],
)
def test_each_layer_outlasts_the_one_inside(given: dict[str, float], expected: list[tuple[str, str]]) -> None:
    assert names(given) == expected


def test_the_packet_timeout_is_computed() -> None:
    rungs = ladder({"NCCL_IB_TIMEOUT": "22", "NCCL_IB_RETRY_CNT": "7"}, {})
    assert rungs[0].timeout_s == pytest.approx(4.096e-6 * 2**22 * 8)
    assert names({"process_group": 120.0}, {"NCCL_IB_TIMEOUT": "22"}) == [("nccl", "process_group")]


def test_a_matrix_of_peer_access_has_no_topology_and_no_fault() -> None:
    # `nvidia-smi topo -p2p` says which GPUs may read each other's memory; GPU0 and GPU3 differ, but not in NVLinks.
    text = topo(4, "OK", change={(0, 3): "CNS"})
    evidence = Evidence()
    evidence.matrices.extend(read_topology_matrices(text, "p2p.txt"))
    assert evidence.matrices
    with pytest.raises(SpecError, match="topo -p2p"):
        seen_in_matrix(evidence.matrices[0])
    assert [hit for rule in RULES if rule.id in ("G09", "G13") for hit in rule.check(evidence)] == []


def test_the_doctor_and_the_topology_command_find_the_same() -> None:
    (matrix,) = read_topology_matrices(topo(8, "NV18", near, {(1, 4): "NV12"}), "topo.txt")
    (problem,) = lint_node(seen_in_matrix(matrix), "NVIDIA H100 80GB HBM3")
    evidence = Evidence()
    evidence.matrices.append(matrix)
    hits = [hit for rule in RULES if rule.id == "G09" for hit in rule.check(evidence)]
    assert [(hit.what, hit.sources) for hit in hits] == [(problem.what, problem.sources)]
