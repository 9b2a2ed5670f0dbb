"""Hosts divided by hand (ATOLL_HOST): shared memory within, TCP between, and what is chosen follows."""

import numpy as np
import pytest
from ranks import run_ranks

from atoll.errors import SpecError
from atoll.runtime.communicator import Communicator
from atoll.runtime.environment import read_placement


def mixed(comm: Communicator, size: int, algorithm: str) -> tuple[bytes, dict[int, bool], list[int]]:
    array = (np.arange(size) % 97 + comm.rank).astype(np.float32)
    for _ in range(2):
        result = comm.all_reduce(array, algorithm=algorithm)
    traffic = comm.traffic()
    shared = {peer: count.shared for peer, count in traffic.items() if count.payload_sent}
    return result.tobytes(), shared, [traffic[peer].payload_sent if peer in traffic else 0 for peer in range(4)]


@pytest.mark.parametrize("hosts", [("a", "a", "b", "b"), ("a", "b", "a", "b")])
def test_ranks_of_one_host_share_memory_and_the_others_use_sockets(hosts: tuple[str, ...]) -> None:
    ranks = run_ranks(4, mixed, 40_000, "direct", hosts=hosts)
    expected = sum((np.arange(40_000) % 97 + rank).astype(np.float32) for rank in range(4))
    for rank, (result, shared, _) in enumerate(ranks):
        assert result == np.asarray(expected, np.float32).tobytes()
        assert shared == {peer: hosts[peer] == hosts[rank] for peer in range(4) if peer != rank}


def test_auto_sends_less_across_hosts_than_within() -> None:
    hosts = ("a", "a", "b", "b")
    for rank, (_, shared, sent) in enumerate(run_ranks(4, mixed, 1 << 20, "auto", hosts=hosts)):
        across = sum(sent[peer] for peer in shared if not shared[peer])
        # Hierarchical: each rank takes its half across and back, in two all-reduces of 4 MiB.
        assert across == 2 * (4 << 20) // 2, (rank, sent)
        assert {peer for peer in shared if shared[peer]} == {rank ^ 1}


def test_a_name_has_an_end() -> None:
    assert read_placement({"ATOLL_HOST": "left"}).host == "left"
    with pytest.raises(SpecError, match="ATOLL_HOST: expected a name of at most 64"):
        read_placement({"ATOLL_HOST": "x" * 65})
