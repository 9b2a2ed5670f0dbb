"""Programs in blocks: the same bits as without, whatever the length, however the bytes arrive."""

import numpy as np
import pytest
from ranks import run_ranks
from test_communicator import proven, vector

from atoll.algorithms.catalog import names
from atoll.runtime import plans
from atoll.runtime.communicator import Communicator
from atoll.runtime.program import compile_program
from atoll.schedule.interpret import interpret


@pytest.mark.parametrize("name", names("all_reduce"))
@pytest.mark.parametrize("block_bytes", [1, 8, 20, 4096])
def test_blocks_move_the_same_bytes_in_pieces(name: str, block_bytes: int) -> None:
    for world_size, length in ((3, 31), (4, 1003), (5, 7)):
        ready = proven("all_reduce", name, world_size)
        if ready is None:
            continue
        for rank in range(world_size):
            whole = compile_program(ready, rank, length, 4)
            cut = compile_program(ready, rank, length, 4, block_bytes)
            assert (cut.sent_bytes, cut.received_bytes) == (whole.sent_bytes, whole.received_bytes)
            assert max(op.num_bytes for op in whole.operations) >= max(op.num_bytes for op in cut.operations)
            steps = [operation.step for lane in cut.lanes for operation in lane.operations]
            assert len(set(steps)) >= len({operation.step for operation in whole.operations})
            for lane in cut.lanes:
                assert [operation.step for operation in lane.operations] == sorted(op.step for op in lane.operations)


def in_blocks(comm: Communicator, asynchronous: bool) -> list[tuple[str, bytes]]:
    plans.BLOCKED_BYTES, plans.BLOCK_BYTES, plans.BLOCK_STEP = 1000, 60_000, 64
    results = []
    for name in names("all_reduce"):
        if proven("all_reduce", name, comm.world_size) is None:
            continue
        for make in (np.empty, comm.empty):
            mine = make(100_003, np.float32)
            mine[...] = vector(comm.rank, 100_003)
            if asynchronous:
                result = comm.all_reduce(mine, algorithm=name, async_op=True).wait()
            else:
                comm.all_reduce(mine, algorithm=name)
                result = comm.all_reduce(mine, algorithm=name)
            comm.all_reduce(mine, out=mine, algorithm=name)
            assert mine.tobytes() == result.tobytes(), name
            results.append((name, result.tobytes()))
    return results


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_blocks_equal_the_reference_executor(world_size: int, asynchronous: bool) -> None:
    ranks = run_ranks(world_size, in_blocks, asynchronous, transport="shm")
    for case in zip(*ranks, strict=True):
        name = case[0][0]
        ready = proven("all_reduce", name, world_size)
        assert ready is not None
        outputs = interpret(ready, [vector(rank, 100_003) for rank in range(world_size)], np.add)
        for rank, (_, got) in enumerate(case):
            assert got == outputs[rank].tobytes(), (name, rank)
