"""Calls one after the other without a pause: what is still staged of one when the next one's bytes come."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import run_ranks

from atoll.runtime.communicator import Communicator

CALLS = 60
LENGTH = 40_000  # elements: blocks that are read from the sender's memory, not staged by it


def reductions(comm: Communicator) -> list[float]:
    """Reduce-scatters in which a rank must add in the order of ranks what comes in any order."""
    source = np.full(LENGTH, comm.rank + 1, np.float32)
    out = np.empty(LENGTH // comm.world_size, np.float32)
    wrong = 0
    for call in range(CALLS):
        source[:] = comm.rank + call
        comm.reduce_scatter(source, out=out, algorithm="direct")
        expected = comm.world_size * (comm.world_size - 1) / 2 + comm.world_size * call
        wrong += int(np.count_nonzero(out != expected))
    return [wrong, float(out[-1])]


@pytest.mark.parametrize("world_size", [4, 5])
def test_the_next_call_may_begin_while_a_peer_still_adds(world_size: int) -> None:
    last = world_size * (world_size - 1) / 2 + world_size * (CALLS - 1)
    assert run_ranks(world_size, reductions) == [[0, last]] * world_size
