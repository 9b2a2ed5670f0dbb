"""NCCL RAS: the text of ncclras, and its JSON."""

import json

import pytest

from atoll.errors import SpecError
from atoll.readers.ras import read_ras

TEXT = """\
NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  INCOMPLETE,ERROR,MISMATCH
    1         8         4       1-2         8        32      INIT      OK

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 10.0.0.3 managing GPU 5 (NVML 6)

DEAD
  2 job processes are considered dead (unreachable via the RAS network)
  Process 11 on node 10.0.0.4 managing GPU 0
  Process 12 on node 10.0.0.4 managing GPUs 1,2

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 2 ranks
  Rank 21 -- GPU 5 (NVML 6) managed by process 3487984 on node 10.0.0.3
  Rank 24 -- [process information not found]

#0-0 (cf264af53edbe986) ERROR
  Initialization error on 1 rank
  Rank 6 reported System error -- GPU 6 managed by process 23 on node 10.0.0.1
  Asynchronous errors on 2 ranks
  2 ranks reported Remote process error
  Rank 7 -- GPU 7 managed by process 24 on node 10.0.0.1
  Rank 8 -- GPU 0 managed by process 25 on node 10.0.0.2

Warnings
========

TIMEOUT
  Encountered 3 communication timeouts while gathering communicator data

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different status
  29 ranks have status RUNNING
  Rank 5 has status ABORT -- GPU 5 managed by process 22 on node 10.0.0.1
  Communicator ranks have different AllReduce operation counts
  26 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 3 -- GPU 3 managed by process 20 on node 10.0.0.1
  Rank 4 -- GPU 4 managed by process 21 on node 10.0.0.1
  Rank 9 has launched up to operation 6648 -- GPU 1 managed by process 26 on node 10.0.0.2
  Rank 10 has not launched any operations -- GPU 2 managed by process 27 on node 10.0.0.2

"""


@pytest.mark.parametrize("label", ["", "[1,0]<stdout>:"])
def test_the_text(label: str) -> None:
    (report,) = read_ras("".join(label + line + "\n" for line in TEXT.splitlines()), "ras.txt")
    assert report.nccl_version == "2.27.5"
    assert (report.num_nodes, report.num_processes, report.num_gpus) == (4, 32, 32)
    assert (report.num_missing, report.num_dead, report.num_timeouts) == (1, 2, 3)
    assert [
        (group.group, group.num_communicators, group.world_size, group.status, group.errors) for group in report.groups
    ] == [
        (0, 1, 32, "RUNNING", "INCOMPLETE,ERROR,MISMATCH"),
        (1, 8, 8, "INIT", "OK"),
    ]
    assert report.groups[1].ranks_per_node == "1-2"
    assert [(process.pid, process.host, process.devices, process.dead) for process in report.processes] == [
        (3487984, "10.0.0.3", "5 (NVML 6)", False),
        (11, "10.0.0.4", "0", True),
        (12, "10.0.0.4", "1,2", True),
    ]
    (communicator,) = report.communicators
    assert communicator.communicator == "cf264af53edbe986"
    assert communicator.problems == ("INCOMPLETE", "ERROR", "MISMATCH")
    assert (communicator.world_size, communicator.num_nodes, communicator.status) == (32, 4, "RUNNING")
    ranks = {rank.rank: rank for rank in communicator.ranks}
    assert sorted(ranks) == [3, 4, 5, 6, 7, 8, 9, 10, 21, 24]
    assert [rank for rank in ranks if ranks[rank].missing] == [21, 24]
    assert (ranks[21].host, ranks[21].pid, ranks[21].cuda_device, ranks[21].nvml_device) == ("10.0.0.3", 3487984, 5, 6)
    assert (ranks[6].init_error, ranks[7].async_error, ranks[8].async_error) == (
        "System error", "Remote process error", "Remote process error",
    )  # fmt: skip
    assert ranks[5].status == "ABORT"
    assert {rank: ranks[rank].launched for rank in (3, 4, 9, 10)} == {
        3: {"all_reduce": 6649}, 4: {"all_reduce": 6649}, 9: {"all_reduce": 6648}, 10: {"all_reduce": 0},
    }  # fmt: skip
    assert [
        (count.num_ranks, count.status, count.collective, count.launched, count.ranks) for count in communicator.counts
    ] == [
        (29, "RUNNING", "", None, ()),
        (1, "ABORT", "", None, (5,)),
        (26, "", "all_reduce", 6650, ()),
        (2, "", "all_reduce", 6649, (3, 4)),
        (1, "", "all_reduce", 6648, (9,)),
        (1, "", "all_reduce", 0, (10,)),
    ]


def test_several_polls_in_one_file() -> None:
    first, second = read_ras(TEXT + TEXT.replace("6648", "7000"), "ras.txt")
    assert first.source.line == 1
    assert second.source.line == len(TEXT.splitlines()) + 1
    assert {rank.rank: rank.launched for rank in second.communicators[0].ranks}[9] == {"all_reduce": 7000}
    assert {rank.rank: rank.launched for rank in first.communicators[0].ranks}[9] == {"all_reduce": 6648}


def test_a_healthy_answer() -> None:
    healthy = (
        TEXT[: TEXT.index("INCOMPLETE\n  Missing")].replace("INCOMPLETE,ERROR,MISMATCH", "OK")
        + "\nWarnings\n========\n"
    )
    (report,) = read_ras(healthy, "ras.txt")
    assert report.communicators == ()
    assert [group.errors for group in report.groups] == ["OK", "OK"]


def rank(number: int, operations: int, **status: object) -> dict[str, object]:
    return {
        "rank": number, "host": f"10.0.0.{number // 2}", "pid": 100 + number, "cuda_dev": number % 2,
        "nvml_dev": number % 2,
        "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False,
        "abort_flag": False,
                   **status},
        "collective_counts": {"Broadcast": 1, "AllReduce": operations},
    }  # fmt: skip


JSON = {
    "nccl_version": "2.28.7",
    "cuda_runtime_version": 13000,
    "timestamp": "2025-06-01 10:00:00",
    "communicators_count": 1,
    "communicators": [
        {
            "hash": "0xabc",
            "secondary_hash": "0x1:0x2",
            "size": 4,
            "ranks_count": 3,
            "missing_ranks_count": 1,
            "ranks": [rank(0, 9), rank(1, 9), rank(2, 8, async_error=6)],
            "missing_ranks": [
                {"rank": 3, "host": "10.0.0.1", "pid": 103, "cuda_dev": 1, "nvml_dev": 1,
                 "status": {"unresponsive": True, "considered_dead": True}},
            ],
        }
    ],
    "ras": {"collection_time_sec": 0.1, "timeouts_count": 2},
}  # fmt: skip


def test_the_json() -> None:
    (report,) = read_ras(json.dumps(JSON), "ras.json")
    assert (report.nccl_version, report.num_dead, report.num_missing, report.num_timeouts) == ("2.28.7", 1, 0, 2)
    (communicator,) = report.communicators
    assert (communicator.communicator, communicator.world_size, communicator.num_nodes) == ("abc", 4, 2)
    assert communicator.problems == ("INCOMPLETE", "ERROR", "MISMATCH")
    assert [rank.launched.get("all_reduce") for rank in communicator.ranks] == [9, 9, 8, None]
    assert [rank.async_error for rank in communicator.ranks] == ["", "", "Remote process error", ""]
    assert [(rank.missing, rank.dead) for rank in communicator.ranks] == [(False, False)] * 3 + [(True, True)]
    counts = [(count.collective, count.launched, count.ranks) for count in communicator.counts if count.collective]
    assert counts == [("all_reduce", 9, (0, 1)), ("all_reduce", 8, (2,)), ("broadcast", 1, (0, 1, 2))]


@pytest.mark.parametrize(
    "text", ["", "hello\n", "{}", json.dumps(JSON)[:300], '{"communicators": [{"hash": 3}]}', "{" * 9999]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="ras"):
        read_ras(text, "ras")
