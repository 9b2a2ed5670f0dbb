"""nccl-tests output of any version, dressed and cut as people paste it."""

# ruff: noqa: E501 (lines as programs print them)

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.readers.nccl_tests import (
    Measurement,
    NcclTestRow,
    NcclTestRun,
    NcclTestsReader,
    read_nccl_tests,
    version_from_code,
    world_size_of,
)
from atoll.readers.source import Source
from atoll.readers.text_stream import text_lines

MODERN = """\
# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22907
# Collective test starting: all_gather_perf
# nThread 1 nGpus 1 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid     25 on      host-a device  0 [0000:53:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid     26 on      host-b device  3 [0000:64:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong 
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         
        1024           128     float    none      -1    10.00    0.10    0.05       0     8.00    0.13    0.06    N/A
        4096           512     float    none      -1    16860    0.20    0.10       2  1.6e+07    0.00    0.00    N/A
# Out of bounds values : 2 FAILED
# Avg bus bandwidth    : 0.0525 
#
# Collective test concluded: all_gather_perf
"""  # noqa: W291


def one(text: str, file: str = "x.log") -> NcclTestRun:
    (run,) = read_nccl_tests(text, file)
    return run


def rows_of(run: NcclTestRun) -> list[tuple[object, ...]]:
    return [
        (row.size_bytes, row.count, row.dtype, row.redop, row.root, row.out_of_place, row.in_place) for row in run.rows
    ]


def test_a_modern_run() -> None:
    run = one(MODERN)
    assert (run.collective, run.collective_from) == ("all_gather", "header")
    assert (run.nccl_tests_version, run.nccl_version) == ("2.17.6", "2.29.7")
    assert run.options["minBytes"] == "1024"
    assert run.options["warmup iters"] == "1"
    assert run.options["step"] == "2(factor)"
    assert [(rank.rank, rank.host, rank.device, rank.pid, rank.bus_id) for rank in run.ranks] == [
        (0, "host-a", 0, 25, "0000:53:00"),
        (1, "host-b", 3, 26, "0000:64:00"),
    ]
    assert run.ranks[0].gpu_name == "NVIDIA H100 80GB HBM3"
    assert run.hosts == ("host-a", "host-b")
    assert (run.world_size, run.world_size_from) == (2, "ranks")
    first, second = run.rows
    assert first.out_of_place == Measurement(10e-6, 0.10e9, 0.05e9, 0.0)
    assert first.in_place == Measurement(8e-6, 0.13e9, 0.06e9, None)
    assert second.out_of_place is not None
    assert second.out_of_place.time_s == 16860e-6
    assert second.out_of_place.wrong == 2
    assert second.in_place is not None
    assert second.in_place.time_s == 16.0
    assert (run.average_busbw_bytes_per_s, run.out_of_bounds, run.finished) == (0.0525e9, 2, True)
    assert second.source.line == 13


OLD = """\
# nThread 1 nGpus 8 minBytes 1 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 validation: 0
#
# Using devices
#   Rank  0 Pid 1 on localhost device  0 [0x07] A100-SXM4-40GB
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
node:3442:3442 [0] NCCL INFO Launch mode Parallel
          32             1   float             89.00    0.01    0.02    N/A    85.13    0.03    0.04    N/A
          64             2   float     sum    16860    0.05    0.06  1e-07     1.00    0.07    0.08    N/A
"""


def test_an_old_run_without_root_and_with_an_empty_operation() -> None:
    run = one(OLD, "logs/sb_nccl_alltoall.log")
    assert (run.collective, run.collective_from) == ("all_to_all", "file")
    assert rows_of(run) == [
        (32, 1, "float", "", -1, Measurement(89e-6, 0.01e9, 0.02e9), Measurement(85.13e-6, 0.03e9, 0.04e9)),
        (64, 2, "float", "sum", -1, Measurement(16860e-6, 0.05e9, 0.06e9, 1e-7), Measurement(1e-6, 0.07e9, 0.08e9)),
    ]
    assert not run.finished
    assert run.ranks[0].bus_id == "0x07"


def test_further_columns_go_by_their_header() -> None:
    text = (
        "#  size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% "
        "time algbw busbw #wrong i_min i_max i_p99 i_cv% timestamp\n"
        "  1048576 262144 float sum -1 60.0 17.0 30.0 0 59.0 70.0 69.0 1.5 61.0 17.1 30.1 0 58.0 71.0 68.0 1.6 2025-01-01 10:00:00\n"
    )
    (row,) = one(text).rows
    assert row.out_of_place is not None
    assert row.out_of_place.further == {"i_min": 59.0, "i_max": 70.0, "i_p99": 69.0, "i_cv%": 1.5}
    assert row.in_place is not None
    assert row.in_place.further["i_cv%"] == 1.6
    assert row.in_place.busbw_bytes_per_s == 30.1e9


def test_columns_cut_away() -> None:
    text = "# size count type redop root time busbw time busbw\n 1048576 262144 float sum -1 60.0 30.0 61.0 31.0\n"
    (row,) = one(text).rows
    assert row.out_of_place == Measurement(60e-6, None, 30e9, None)
    assert row.in_place == Measurement(61e-6, None, 31e9, None)


def test_a_replayed_trace_has_no_out_of_place_half() -> None:
    header = MODERN.splitlines()[9]
    row = "        1024           128     float    none      -1" + " " * 32 + "     8.00    0.13    0.06    N/A"
    (read,) = one(header + "\n" + row + "\n").rows
    assert read.out_of_place is None
    assert read.in_place == Measurement(8e-6, 0.13e9, 0.06e9, None)


@pytest.mark.parametrize("root", ["", "      -1", "       3"])
def test_rows_alone_without_any_header(root: str) -> None:
    text = f"     1048576        262144     float     sum{root}    16860   17.00   30.00      0    61.00   17.10   30.10    N/A\n"
    (row,) = one(text).rows
    assert row.root == int(root or -1)
    assert row.out_of_place == Measurement(16860e-6, 17e9, 30e9, 0.0)
    assert row.in_place == Measurement(61e-6, 17.1e9, 30.1e9, None)


def test_several_runs_in_one_file() -> None:
    second = MODERN.replace("all_gather", "alltoall")
    runs = read_nccl_tests(MODERN + second + OLD, "many.log")
    assert [run.collective for run in runs] == ["all_gather", "all_to_all", ""]
    assert [len(run.rows) for run in runs] == [2, 2, 2]
    assert [len(run.ranks) for run in runs] == [2, 2, 1]


def test_the_command_line_names_the_collective() -> None:
    text = "+ mpirun -np 16 -x NCCL_DEBUG=INFO /opt/nccl-tests/build/reduce_scatter_perf -b 8 -e 16G\n" + OLD
    run = one(text)
    assert (run.collective, run.collective_from) == ("reduce_scatter", "command")


def test_failures_are_kept_with_their_line() -> None:
    text = MODERN[: MODERN.index("        1024")] + (
        "host-a: Test NCCL failure common.cu:401 'remote process exited or there was a network error / '\n"
        " .. host-a pid 441581: Test failure common.cu:519\n"
    )
    (failure,) = one(text).failures
    assert failure.host == "host-a"
    assert "remote process exited" in failure.message
    assert failure.source.line == 12


def mpi(text: str) -> str:
    """As mpirun --tag-output writes rows: a tag before each of a row's three writes."""

    def tag(line: str) -> str:
        match = re.match(
            r"(\s+\d+\s+\d+\s+float\s+\w*\s+-1)(\s+\S+\s+\S+\s+\S+\s+\S+)(\s+\S+\s+\S+\s+\S+\s+\S+)$", line
        )
        return "[1,0]<stdout>:" + ("[1,0]<stdout>:".join(match.groups()) if match else line)

    return "".join(tag(line) + "\n" for line in text.splitlines())


def cut_by_info(text: str) -> str:
    """As one process writes rows while another thread logs: the rest of the row comes lines later."""
    noise = "mew0:65704:65704 [1] NCCL INFO AllReduce: opCount 0 sendbuff 0x720000000 count 2097152 datatype 7\n"
    lines = []
    for line in text.splitlines():
        match = re.match(
            r"(\s+\d+\s+\d+\s+float\s+\w*\s+-1)(\s+\S+\s+\S+\s+\S+\s+\S+)(\s+\S+\s+\S+\s+\S+\s+\S+)$", line
        )
        lines.append((noise + noise).join(match.groups()) if match else line)
    return "\n".join(lines) + "\n"


DRESSES = {
    "mpirun": mpi,
    "cut": cut_by_info,
    "srun": lambda text: "".join(f" 0: {line}\n" for line in text.splitlines()),
    "kubernetes": lambda text: "".join(f"2024-05-01T10:11:12.123456789Z {line}\n" for line in text.splitlines()),
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "colour": lambda text: text.replace("# Avg", "\x1b[32m# Avg"),
    "info between": lambda text: text.replace("\n", "\nn1:7:7 [0] NCCL INFO Using network IB\n"),
    "fenced": lambda text: "```\n" + text + "```\n",
    "indented rows": lambda text: text.replace("\n ", "\n      "),
}


@pytest.mark.parametrize("dress", DRESSES)
def test_dress_does_not_matter(dress: str) -> None:
    plain, dressed = one(MODERN), one(DRESSES[dress](MODERN))
    assert rows_of(dressed) == rows_of(plain)
    for field in ("collective", "nccl_version", "options", "average_busbw_bytes_per_s", "out_of_bounds", "finished"):
        assert getattr(dressed, field) == getattr(plain, field)
    assert [rank.host for rank in dressed.ranks] == ["host-a", "host-b"]


def test_a_piece_of_a_lost_row_is_not_given_to_another() -> None:
    text = (
        "    67108864      16777216     float     sum      -1   2372.0   28.29   28.29      0n:1:1 [0] NCCL INFO x\n"
        "... lines lost ...\n"
        "    37547   28.60   28.60      0\n"
    )
    (row,) = one(text).rows
    assert row.out_of_place is not None
    assert row.in_place is None, "37547 us at 28.60 GB/s is 1 GiB, not 64 MiB"


def test_a_text_that_ends_inside_a_row_keeps_what_is_there() -> None:
    at = MODERN.index("        4096") + 60
    run = one(MODERN[:at])
    assert [row.size_bytes for row in run.rows] == [1024, 4096]
    assert run.rows[1].in_place is None
    assert not run.finished


def test_other_text_holds_no_run() -> None:
    assert read_nccl_tests("hello\n# a comment\n12 13 apples\n", "x") == ()


def row_text(size: int, time: str, algbw: str, busbw: str) -> str:
    half = f"  {time:>7}  {algbw:>6}  {busbw:>6}"
    return f"{size:12}  {size // 4:12}  {'float':>8}  {'sum':>6}  {'-1':>6}{half}  {'0':>6}{half}    N/A"


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), st.floats(0.01, 9e6), st.floats(0, 9999)), min_size=1, max_size=20),
    st.sampled_from(sorted(DRESSES)),
)
@settings(max_examples=60)
def test_what_is_printed_is_read(values: list[tuple[int, float, float]], dress: str) -> None:
    header = "".join(line + "\n" for line in MODERN.splitlines()[8:11])
    printed = [(size, f"{time:.2f}", f"{size / time / 1e3:.2f}", f"{busbw:.2f}") for size, time, busbw in values]
    text = header + "".join(row_text(*row) + "\n" for row in printed)
    read = one(DRESSES[dress](text)).rows
    assert [row.size_bytes for row in read] == [size for size, *_ in printed]
    for row, (_, time, algbw, busbw) in zip(read, printed, strict=True):
        for half in (row.out_of_place, row.in_place):
            assert half is not None
            assert half.time_s == float(time + "e-6")
            assert half.algbw_bytes_per_s == float(algbw + "e9")
            assert half.busbw_bytes_per_s == float(busbw + "e9")


@given(st.integers(3, 512), st.sampled_from([("all_reduce", 2.0), ("all_gather", 1.0), ("all_to_all", 1.0)]))
def test_the_world_size_follows_from_the_factor_or_is_not_told(n: int, kind: tuple[str, float]) -> None:
    collective, limit = kind
    rows = [
        NcclTestRow(1 << 30, 1 << 28, "float", "sum", Source("x", 1), -1, Measurement(1e-3, round(a, 2) * 1e9, round(
            a * limit * (n - 1) / n, 2) * 1e9))
        for a in (150.0, 243.21, 480.5)
    ]  # fmt: skip
    assert world_size_of(rows, collective) in (n, None)
    if n <= 64:
        assert world_size_of(rows, collective) == n


def test_version_codes() -> None:
    assert [version_from_code(code) for code in (22707, 23004, 21005, 2708)] == ["2.27.7", "2.30.4", "2.10.5", "2.7.8"]


def test_real_files(cases: Path) -> None:
    found = []
    for path in sorted((cases / "nccl_tests").glob("*.log")) + sorted((cases / "nccl_logs").glob("*.log")):
        found.extend(
            (path.name[:8], run.collective, run.world_size, len(run.rows), len(run.failures), run.finished)
            for run in read_nccl_tests(path.read_bytes(), str(path))
        )
    assert found == [
        ("sb_nccl_", "all_reduce", 8, 34, 0, True),
        ("sb_nccl_", "all_to_all", 8, 34, 0, True),
        ("xx_N2_G1", "all_to_all", 2, 10, 0, True),
        ("xx_N2_G1", "send_recv", 2, 10, 0, True),
        ("xx_N2_G4", "all_to_all", 8, 0, 1, False),
        ("xx_N2_G4", "send_recv", 8, 10, 0, True),
        ("r01_a100", "all_reduce", 2, 3, 0, True),
        ("r02_a100", "all_reduce", 2, 7, 0, True),
        ("r03_rtxa", "all_gather", 4, 0, 4, False),
        ("r05_aws_", "all_reduce", 16, 32, 0, True),
    ]
    (aws,) = read_nccl_tests((cases / "nccl_logs/r05_aws_p5_efa_2.22.3.log").read_bytes(), "r05")
    last = aws.rows[-1].in_place
    assert last is not None
    assert (aws.rows[-1].size_bytes, last.busbw_bytes_per_s) == (17179869184, 488.14e9)
    (wrong,) = read_nccl_tests((cases / "nccl_logs/r02_a100pcie_nvl_topofile_wrong.log").read_bytes(), "r02")
    assert all(row.out_of_place and row.out_of_place.busbw_bytes_per_s < 29e9 for row in wrong.rows)


def test_a_reader_costs_little_on_lines_that_are_not_its_own() -> None:
    reader = NcclTestsReader("x")
    for line in text_lines("host:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n" * 1000):
        reader.feed(line)
    assert reader.runs() == ()
