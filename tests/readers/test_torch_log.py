"""PyTorch's watchdog, heartbeat, mismatch and store lines of several versions, and torchrun's report."""

# ruff: noqa: E501 (lines as programs print them)

import pytest

from atoll.readers.torch_log import (
    AsyncError,
    ClosingSignal,
    CollectiveMismatchReport,
    CudaError,
    DumpNotice,
    GpuOutOfMemory,
    HeartbeatStuck,
    ProcessExit,
    PythonException,
    StoreError,
    TorchFact,
    WatchdogStatus,
    WatchdogTimeout,
    read_torch_log,
)


def one(text: str) -> TorchFact:
    (fact,) = read_torch_log(text, "job.log")
    return fact


@pytest.mark.parametrize(
    ("line", "rank", "sequence", "op", "numel", "ran_for_s", "time"),
    [
        (  # up to 2.0
            "[E ProcessGroupNCCL.cpp:458] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, "
            "OpType=_ALLGATHER_BASE, Timeout(ms)=1800000) ran for 1802710 milliseconds before timing out.",
            0, 2, "all_gather", None, 1802.71, "",
        ),
        (  # 2.1
            "[E ProcessGroupNCCL.cpp:475] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=76, "
            "OpType=ALLREDUCE, NumelIn=25, NumelOut=25, Timeout(ms)=600000) ran for 600410 milliseconds before timing out.",
            5, 76, "all_reduce", 25, 600.41, "",
        ),
        (  # 2.2 and later
            "[rank3]:[E219 08:58:32.606233339 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=31, OpType=BROADCAST, NumelIn=11, NumelOut=11, Timeout(ms)=600000) ran for 600031 "
            "milliseconds before timing out.",
            3, 31, "broadcast", 11, 600.031, "219 08:58:32.606233339",
        ),
        (  # a group of four ranks: the label is global, the message's rank is the group's
            "(Worker pid=27, ip=10.0.0.9) [rank13]:[E219 08:58:32.1 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLTOALL_BASE, NumelIn=1, NumelOut=1, "
            "Timeout(ms)=1000) ran for 1001 milliseconds before timing out.",
            13, 9, "all_to_all", 1, 1.001, "219 08:58:32.1",
        ),
    ],
)  # fmt: skip
def test_watchdog_timeouts(
    line: str, rank: int, sequence: int, op: str, numel: int | None, ran_for_s: float, time: str
) -> None:
    fact = one(line + "\n")
    assert isinstance(fact, WatchdogTimeout)
    assert (fact.rank, fact.work.sequence, fact.work.op, fact.work.numel_in) == (rank, sequence, op, numel)
    assert (fact.ran_for_s, fact.time) == (ran_for_s, time)
    assert fact.source.line == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "[rank1]:[E ProcessGroupNCCL.cpp:1316] [PG 1 Rank 1] Exception (either an error or timeout) detected by "
            "watchdog at work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579.",
            ("exception", 1, "1", "", "", 1580, 1582, 1579, None),
        ),
        (
            "[rank7]:[E1109 16:13:20.2 ProcessGroupNCCL.cpp:1785] [PG ID 1 PG GUID 1 Rank 7] Exception (either an error "
            "or timeout) detected by watchdog at work: 45, last enqueued NCCL work: 47, last completed NCCL work: 44.",
            ("exception", 7, "1", "1", "", 45, 47, 44, None),
        ),
        (
            "[rank7]:[E1109 16:13:20.2 ProcessGroupNCCL.cpp:1834] [PG ID 2 PG GUID 35(TENSOR_MODEL_PARALLEL_GROUP) Rank 3] "
            "Timeout at NCCL work: 31, last enqueued NCCL work: 58, last completed NCCL work: 30.",
            ("timeout", 7, "2", "35", "TENSOR_MODEL_PARALLEL_GROUP", 31, 58, 30, None),
        ),
        (
            "[rank1]:[E1118 20:32:23.9 ProcessGroupNCCL.cpp:2168] [PG ID 0 PG GUID 0(default_pg) Rank 1]  failure detected "
            "by watchdog at work sequence id: 2635 PG status: last enqueued work: 2635, last completed work: -1",
            ("failure", 1, "0", "0", "default_pg", 2635, 2635, -1, None),
        ),
        (
            "[rank0]:[E1114 09:51:00.6 ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank 0] Received a dump "
            "signal due to a collective timeout from  rank 1 and we will try our best to dump the debug info. Last enqueued "
            "NCCL work: 3, last completed NCCL work: 1.This is most likely caused by incorrect usages of collectives",
            ("dump_signal", 0, "0", "0", "default_pg", None, 3, 1, 1),
        ),
        (
            "[rank2]:[E1114 09:51:00.6 ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0 Rank 2] Received a dump signal due to a "
            "collective timeout from this local rank and we will try our best. Last enqueued NCCL work: 62, last completed "
            "NCCL work: 62.",
            ("dump_signal", 2, "0", "0", "", None, 62, 62, None),
        ),
    ],
)
def test_where_a_rank_stood(line: str, expected: tuple[object, ...]) -> None:
    fact = one(line)
    assert isinstance(fact, WatchdogStatus)
    assert (
        fact.kind, fact.rank, fact.group_id, fact.group_uid, fact.group_desc, fact.failed_sequence, fact.last_enqueued,
        fact.last_completed, fact.from_rank,
    ) == expected  # fmt: skip


def test_heartbeat() -> None:
    fact = one(
        "[rank1]:[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank 1] [PG 0 Rank 1] ProcessGroupNCCL's watchdog got stuck for 480 "
        "seconds without making progress in monitoring enqueued collectives."
    )
    assert isinstance(fact, HeartbeatStuck)
    assert (fact.rank, fact.stuck_for_s) == (1, 480.0)


def test_mismatch() -> None:
    fact = one(
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=21, OpType=ALLREDUCE, TensorShape=[4, 2], TensorDtypes=Float, "
        "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda)), but Rank 2 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=1OpType=BARRIER).Collectives differ in the following aspects: ..."
    )
    assert isinstance(fact, CollectiveMismatchReport)
    assert (fact.rank_a, fact.rank_b) == (0, 2)
    assert fact.fingerprint_a["OpType"] == "ALLREDUCE"
    assert fact.fingerprint_a["TensorShape"] == "[4, 2]"
    assert fact.fingerprint_b == {"SequenceNumber": "1", "OpType": "BARRIER"}


REPORT = """\
E0517 08:24:03.805000 140617718325696 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: -9) local_rank: 1 (pid: 14690) of binary: /venv/bin/python
W0517 08:24:03 Sending process 14689 closing signal SIGTERM
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
/root/train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-09-07_13:03:29
  host      : node2
  rank      : 12 (local_rank: 4)
  exitcode  : -15 (pid: 14691)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 14691
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-09-07_13:02:58
  host      : node1
  rank      : 9 (local_rank: 1)
  exitcode  : 1 (pid: 14690)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


@pytest.mark.parametrize("label", ["", "[1,0]<stderr>:", " 0: "])
def test_the_report_of_torchrun(label: str) -> None:
    facts = read_torch_log("".join(label + line + "\n" for line in REPORT.splitlines()), "job.log")
    agent, closing, other, root = facts
    assert isinstance(agent, ProcessExit)
    assert (agent.origin, agent.exit_code, agent.local_rank, agent.pid) == ("agent", -9, 1, 14690)
    assert isinstance(closing, ClosingSignal)
    assert (closing.pid, closing.signal) == (14689, "SIGTERM")
    assert isinstance(other, ProcessExit)
    assert (other.rank, other.exit_code, other.host, other.root) == (12, -15, "node2", False)
    assert other.message == "Signal 15 (SIGTERM) received by PID 14691"
    assert isinstance(root, ProcessExit)
    assert (root.rank, root.local_rank, root.exit_code, root.pid, root.host, root.root) == (
        9,
        1,
        1,
        14690,
        "node1",
        True,
    )
    assert (root.message, root.time) == ("", "2026-09-07_13:02:58")
    assert "exitcode" in root.source.text


def test_a_report_that_is_cut_keeps_what_was_listed() -> None:
    (_, _, other) = read_torch_log(REPORT[: REPORT.index("  error_file")], "job.log")
    assert isinstance(other, ProcessExit)
    assert other.exit_code == -15


@pytest.mark.parametrize(
    ("line", "kind", "field", "value"),
    [
        (
            "[rank1]:[E415 21:17:08.9 ProcessGroupNCCL.cpp:552] [Rank 1] Collective WorkNCCL(SeqNum=335, OpType=ALLREDUCE, "
            "NumelIn=1, NumelOut=1, Timeout(ms)=600000) raised the following async exception: NCCL error: remote process "
            "exited or there was a network error, NCCL version 2.21.5",
            AsyncError, "nccl_error", "ncclRemoteError",
        ),
        (
            "[rank2]: torch.distributed.DistBackendError: NCCL error in: ../torch/x.cpp:1333, unhandled system error (run "
            "with NCCL_DEBUG=INFO for details), NCCL version 2.21.5",
            AsyncError, "nccl_error", "ncclSystemError",
        ),
        (
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79 GiB",
            GpuOutOfMemory, "tried_bytes", 2684354560,
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total capacity of 79 GiB",
            GpuOutOfMemory, "device", 3,
        ),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", CudaError, "message",
         "an illegal memory access was encountered"),
        ("[W socket.cpp:663] [c10d] The client socket has failed to connect to [n]:29500 (errno: 111 - Connection refused).",
         StoreError, "kind", "connect_failed"),
        ("[rank0]:[W TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=4): Broken pipe", StoreError, "kind",
         "connection_lost"),
        ("torch.distributed.DistNetworkError: The client socket has timed out after 60s while trying to connect to (n, 1).",
         StoreError, "kind", "timeout"),
        ("[rank4]: ValueError: bad value: 3", PythonException, "exception", "ValueError"),
        ("[rank4]: ValueError: bad value: 3", PythonException, "rank", 4),
        (
            "[rank0]:[E606 09:00:00.1 ProcessGroupNCCL.cpp:667] Stack trace of the failed collective not found, potentially "
            "because FlightRecorder is disabled. You can enable it",
            DumpNotice, "empty", True,
        ),
    ],
)  # fmt: skip
def test_other_lines(line: str, kind: type[TorchFact], field: str, value: object) -> None:
    fact = one(line)
    assert type(fact) is kind
    assert getattr(fact, field) == value


@pytest.mark.parametrize(
    "line",
    [
        "step 10 loss 3.2 Error rate 0.1",
        "Exception handling is documented elsewhere",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        '  File "train.py", line 3, in <module>',
        "host:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    ],
)
def test_lines_that_say_nothing(line: str) -> None:
    assert read_torch_log(line, "job.log") == ()
