"""One spelling for the names that programs give to collectives."""

import pytest

from atoll.readers.collective_names import collective_name, known_collective


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("AllReduce", "all_reduce"), ("ALLREDUCE", "all_reduce"), ("allreduce", "all_reduce"),
        ("nccl:all_reduce", "all_reduce"),
        ("_ALLGATHER_BASE", "all_gather"), ("nccl:_all_gather_base", "all_gather"),
        ("_REDUCE_SCATTER_BASE", "reduce_scatter"),
        ("ReduceScatter", "reduce_scatter"), ("alltoall", "all_to_all"), ("ALLTOALL_BASE", "all_to_all"),
        ("alltoallv", "all_to_all_v"), ("alltoallv2", "all_to_all_v"), ("sendrecv", "send_recv"),
        ("SendRecv", "send_recv"),
        ("Broadcast", "broadcast"), ("REDUCE", "reduce"), ("nccl:send 0->1", "send"), ("nccl:recv 0<-1", "recv"),
        ("BARRIER", "barrier"), ("COALESCED", "coalesced"), ("hypercube", "hypercube"),
    ],
)  # fmt: skip
def test_known_names(name: str, word: str) -> None:
    assert collective_name(name) == word


def test_unknown_names_stay() -> None:
    assert known_collective("frobnicate") == ""
    assert collective_name("nccl:Frobnicate x") == "frobnicate"
    assert collective_name("") == ""
