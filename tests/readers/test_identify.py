"""A file's kind is found by what is in it, whatever its name and whatever stands before it."""

import gzip
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.readers.folder import identify_file
from atoll.readers.identify import HEAD_BYTES, Kind, identify, kinds_in

NCCL = "node1:41:77 [3] NCCL INFO Connected all rings\n"
TESTS = "# nThread 1 nGpus 8 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20\n"
WATCHDOG = "[rank1]:[E619 10:00:00.1 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout\n"

SAMPLES = {
    Kind.NCCL_LOG: [
        NCCL,
        " 3: " + NCCL,
        "[1,3]<stdout>:" + NCCL,
        "[2026-05-01 10:00:00] n:1:2 [0] transport/net_ib.cc:12 NCCL WARN NET/IB : bad\n",
        "n:1:2 [0] init.cc:5 (ncclInit) NCCL WARN x\n",
        "some text\nNCCL version 2.4.8+cuda10.1\n",
    ],
    Kind.NCCL_TESTS: [TESTS + NCCL, "[1,0]<stdout>:" + TESTS, "# Avg bus bandwidth    : 124.584 \n"],
    Kind.NCCL_TESTS_JSON: [json.dumps({"version": 1, "args": ["all_reduce_perf"], "results": [{"out_of_place": {}}]})],
    Kind.BANDWIDTH_TABLE: ["gpus_per_node,node_a,node_b,avg_busbw\n1,a,b,13.4\n"],
    Kind.TOPO_MATRIX: [
        "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV12\t0-23\nGPU1\tNV12\t X \t0-23\n",
        "\t\x1b[4mGPU0\tGPU1\tNIC0\x1b[0m\nGPU0\t X \tPHB\tPIX\n",
    ],
    Kind.ROCM_TOPO: ["======== ROCm System Management Interface ========\n=== Weight between two GPUs ===\n"],
    Kind.TOPOLOGY_XML: ['<?xml version="1.0"?>\n<!-- made here -->\n<system version="1"><cpu/></system>', "<system/>"],
    Kind.NCCL_XML_GRAPH: ['<graphs version="1"><graph id="0"/></graphs>'],
    Kind.MSCCL_XML: ['<algo name="x" proto="LL" nchannels="1"><gpu id="0"/></algo>'],
    Kind.IBSTAT: ["CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Active\n"],
    Kind.NVIDIA_SMI: [
        "| NVIDIA-SMI 550.54  Driver Version: 550.54   CUDA Version: 12.4 |\n",
        "==============NVSMI LOG==============\n",
        "index, pci.bus_id, utilization.gpu [%]\n0, 00000000:1B:00.0, 3 %\n",
    ],
    Kind.ENV_DUMP: [
        "HOME=/root\nNCCL_DEBUG=INFO\nPATH=/bin\n",
        'declare -x NCCL_DEBUG="INFO"\ndeclare -x HOME="/root"\n',
        "#!/bin/bash\nset -e\nexport NCCL_IB_HCA=mlx5\nsrun python train.py\n",
        "env:\n  - name: NCCL_DEBUG\n    value: INFO\n",
    ],
    Kind.INSPECTOR_JSONL: ['{"header":{"id":"0x7","rank":2},"metadata":{},"coll_perf":{"coll":"AllReduce"}}\n'],
    Kind.RAS_TEXT: ["NCCL version 2.27.5 compiled with CUDA 12.9\n\nJob summary\n===========\n\n  Nodes  Processes\n"],
    Kind.RAS_JSON: ['{"nccl_version": "2.28.9", "communicators_count": 1, "communicators": []}'],
    Kind.FLIGHT_RECORDER_JSON: ['{"version": "2.9", "pg_config": {}, "entries": []}'],
    Kind.KERNEL_LOG: [
        "[  123.456789] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n",
        "6,3964,206764307,-;nvidia-nvswitch2: open\n",
        "May  1 10:00:00 n1 kernel: mlx5_core 0000:ca:00.0: Port module event\n",
    ],
    Kind.TORCH_LOG: [WATCHDOG, "Traceback (most recent call last):\n  File x\nRuntimeError: no\n"],
    Kind.SLURM: ["slurmstepd: error: Detected 1 oom_kill event in StepId=7.0\n", "srun: error: n1: task 3: Killed\n"],
    Kind.HOSTFILE: ["n1 slots=8\nn2 slots=8\n", "n1:8\nn2:8\n"],
    Kind.UNKNOWN_TEXT: ["Dear diary, today was fine.\n"],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in SAMPLES.items() for text in texts])
def test_kind_by_content(kind: Kind, text: str) -> None:
    data = text.encode()
    assert identify(data, len(data)) is kind
    assert kinds_in(data, len(data))[0] is kind


def test_flight_recorder_is_a_pickle_with_its_keys() -> None:
    dump = pickle.dumps({"version": "2.9", "pg_config": {}, "entries": []}, protocol=2)
    assert identify(dump, len(dump)) is Kind.FLIGHT_RECORDER
    other = pickle.dumps([1, 2, 3], protocol=4)
    assert identify(other, len(other)) is Kind.BINARY


def test_one_text_may_hold_several_kinds() -> None:
    text = (TESTS + NCCL + WATCHDOG).encode()
    assert set(kinds_in(text, len(text))) == {Kind.NCCL_TESTS, Kind.NCCL_LOG, Kind.TORCH_LOG}


def test_empty_and_binary() -> None:
    assert identify(b"", 0) is Kind.EMPTY
    assert identify(bytes(range(256)) * 20, 5120) is Kind.BINARY
    assert identify(b"\x7fELF\2\1\1" + b"\0" * 100, 107) is Kind.BINARY


def test_zeros_in_front_are_a_truncated_log() -> None:
    data = b"\0" * 3000 + NCCL.encode()
    assert identify(data, len(data)) is Kind.NCCL_LOG


def test_utf16_and_gzip(tmp_path: Path) -> None:
    data = NCCL.encode("utf-16")
    assert identify(data, len(data)) is Kind.NCCL_LOG
    path = tmp_path / "image.png"
    path.write_bytes(gzip.compress(NCCL.encode() * 100))
    assert identify_file(path) is Kind.NCCL_LOG


@given(st.binary(max_size=500))
def test_any_bytes_have_a_kind(data: bytes) -> None:
    kinds = kinds_in(data, len(data))
    assert kinds
    assert len(set(kinds)) == len(kinds)
    assert kinds[0] is identify(data, len(data))


@given(st.text(alphabet="<>![]-?x \n\"'=", max_size=300))
def test_xml_like_text_ends(text: str) -> None:
    data = ("<!--" * 50 + text).encode() * 40
    assert identify(data[:HEAD_BYTES], len(data)) in (Kind.UNKNOWN_TEXT, Kind.ENV_DUMP, Kind.HOSTFILE)


CASES = {
    "ib/cori_ibstat_mixed.txt": Kind.IBSTAT,
    "kernel_log/gpud_kmsg_1.log": Kind.KERNEL_LOG,
    "kernel_log/gpud_xid119.log": Kind.KERNEL_LOG,
    "nccl_logs/r01_a100pcie_nvl12_good.log": Kind.NCCL_TESTS,
    "nccl_logs/r07_cori_v100_2.4.8_srun_prefix.log": Kind.NCCL_LOG,
    "nccl_tests/sb_nccl_allreduce.log": Kind.NCCL_TESTS,
    "nccl_tests/xx_pairwise_17node_h100.csv": Kind.BANDWIDTH_TABLE,
    "schedules/ar_ring_4.xml": Kind.MSCCL_XML,
    "topology/a01_mi210x4_showtopo.txt": Kind.ROCM_TOPO,
    "topology/t01_hopper8_nv18_10nic_ansi.txt": Kind.TOPO_MATRIX,
    "topology/t10_a100x8_nv12.txt": Kind.TOPO_MATRIX,
    "topology_xml/timez_topo_real.xml": Kind.TOPOLOGY_XML,
    "flight_recorder/gpu_error_2nd/_dump_0": Kind.FLIGHT_RECORDER,
    "flight_recorder/lock_gil_1st/_dump_9": Kind.FLIGHT_RECORDER,
}


@pytest.mark.parametrize(("name", "kind"), CASES.items())
def test_real_files(cases: Path, name: str, kind: Kind) -> None:
    assert identify_file(cases / name) is kind
