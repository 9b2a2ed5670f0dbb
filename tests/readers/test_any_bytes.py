"""Any bytes give facts or a clear refusal: random ones, and real and small files that were cut, thinned and damaged."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.readers.bandwidth_table import read_bandwidth_table
from atoll.readers.environment import read_environment
from atoll.readers.flight_recorder import read_flight_recorder
from atoll.readers.host_list import read_host_list
from atoll.readers.ibstat import read_ibstat
from atoll.readers.inspector import read_inspector
from atoll.readers.kernel_log import read_kernel_log
from atoll.readers.nccl_tests import read_nccl_tests
from atoll.readers.nccl_tests_json import read_nccl_tests_json
from atoll.readers.nvidia_smi import read_nvidia_smi
from atoll.readers.pairwise import read_pairwise_csv
from atoll.readers.ras import read_ras
from atoll.readers.rocm_topology import read_rocm_topology
from atoll.readers.slurm import read_slurm
from atoll.readers.topology_matrix import read_topology_matrices
from atoll.readers.topology_xml import read_topology_xml
from atoll.readers.torch_log import read_torch_log
from readers import (
    test_flight_recorder,
    test_inspector,
    test_nccl_tests,
    test_nccl_tests_json,
    test_nvidia_smi,
    test_ras,
    test_rocm_topology,
    test_topology_matrix,
    test_topology_xml,
    test_torch_log,
)

Reader = Callable[[bytes, str], Any]


def read_partial_matrices(data: bytes, file: str) -> Any:
    return read_topology_matrices(data, file, allow_partial=True)


READERS: dict[str, Reader] = {
    reader.__name__: reader
    for reader in (
        read_bandwidth_table, read_environment, read_flight_recorder, read_host_list, read_ibstat, read_inspector,
        read_kernel_log, read_nccl_tests, read_nccl_tests_json, read_nvidia_smi, read_pairwise_csv, read_ras,
        read_rocm_topology, read_slurm, read_topology_matrices, read_partial_matrices, read_topology_xml,
        read_torch_log,
    )
}  # fmt: skip

SEEDS = [
    text.encode()
    for text in (
        test_nccl_tests.MODERN, test_nccl_tests.OLD, json.dumps(test_nccl_tests_json.REPORT), test_nvidia_smi.TABLE,
        test_nvidia_smi.QUERY, test_ras.TEXT, json.dumps(test_ras.JSON), test_rocm_topology.SMALL,
        test_topology_matrix.SMALL, test_topology_xml.SMALL, test_torch_log.REPORT, json.dumps(test_inspector.RECORD),
        "NCCL_A=1\nexport B='x y'\n", "node[001-004] slots=8\n", "# columns: size_bytes oop_time_us\n8 1.5\n",
    )
] + [pickle.dumps(test_flight_recorder.dump()), pickle.dumps(test_flight_recorder.dump(), 2)]  # fmt: skip


def check(reader: Reader, data: bytes) -> None:
    try:
        facts = reader(data, "some/file")
    except SpecError as error:
        # A refusal says why.
        if not str(error):
            raise
        return
    # Facts can be stored: they hold plain data only, and their sources stay short.
    assert len(msgspec.json.encode(facts)) < 40_000_000


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["cut", "drop line", "flip", "insert", "repeat", "swap"])):
            case "cut":
                del data[at:]
            case "drop line":
                start = data.rfind(b"\n", 0, at) + 1
                end = data.find(b"\n", at)
                del data[start : end + 1 if end >= 0 else len(data)]
            case "flip":
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "insert":
                data[at:at] = draw(st.binary(max_size=6))
            case "repeat":
                data[at:at] = data[at : at + draw(st.integers(1, 80))]
            case "swap":
                other = draw(st.integers(0, len(data) - 1))
                data[at], data[other] = data[other], data[at]
    return bytes(data)


@pytest.mark.parametrize("name", READERS)
@given(data=st.binary(max_size=300))
@settings(max_examples=15, deadline=None)
def test_random_bytes(name: str, data: bytes) -> None:
    check(READERS[name], data)


@pytest.mark.parametrize("name", READERS)
@given(data=damaged(SEEDS))
@settings(max_examples=40, deadline=None)
def test_damaged_files(name: str, data: bytes) -> None:
    check(READERS[name], data)


FOLDERS = {
    "read_topology_matrices": "topology", "read_partial_matrices": "topology", "read_rocm_topology": "topology",
    "read_topology_xml": "topology_xml", "read_ibstat": "ib", "read_kernel_log": "kernel_log",
    "read_nccl_tests": "nccl_tests",
    "read_pairwise_csv": "nccl_tests", "read_bandwidth_table": "collective_times",
    "read_flight_recorder": "flight_recorder/*",
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_damaged_real_files(name: str, cases: Path) -> None:
    seeds = [path.read_bytes()[:6000] for path in sorted(cases.glob(FOLDERS[name] + "/*")) if path.is_file()]

    @given(data=damaged(seeds))
    @settings(max_examples=25, deadline=None)
    def run(data: bytes) -> None:
        check(READERS[name], data)

    run()


LONG = 100_000


@pytest.mark.parametrize("unit", [" ", "0-", "a="])
@pytest.mark.parametrize(
    "head",
    [
        "",
        "# nThread ",
        "12 13 float",
        "\tGPU0\tGPU1\nGPU0\t X ",
        "=== Weight between ===\n GPU0 GPU1\nGPU0 ",
        "[1.0] mlx5_core ",
        "n[",
    ],
)
@pytest.mark.timeout(60)
def test_a_long_line_costs_time_in_proportion_to_its_length(head: str, unit: str) -> None:
    """A pattern whose time grows with the square of a line's length would not end within the limit of a test."""
    data = (head + unit * (LONG // len(unit)) + "\n").encode()
    for reader in READERS.values():
        check(reader, data)
