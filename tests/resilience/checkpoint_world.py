"""A world of threads for tests of checkpoints: ``comm.all_gather`` between N functions of one process."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

PATIENCE_S = 60.0


class ThreadGroup:
    """One thread's place among N; the ranks must make the same calls."""

    def __init__(self, rank: int, shared: list[Any], barrier: threading.Barrier) -> None:
        self.rank = rank
        self.world_size = len(shared)
        self._shared = shared
        self._barrier = barrier

    def all_gather(self, array: np.ndarray) -> np.ndarray:
        self._shared[self.rank] = array
        self._barrier.wait(PATIENCE_S)
        result = np.concatenate(self._shared)
        self._barrier.wait(PATIENCE_S)
        return result


def on_ranks(world_size: int, function: Callable[[ThreadGroup], Any]) -> list[Any]:
    """What ``function(group)`` returned, or the exception it raised, on each of ``world_size`` ranks."""
    shared: list[Any] = [None] * world_size
    barrier = threading.Barrier(world_size)

    def one(rank: int) -> Any:
        try:
            return function(ThreadGroup(rank, shared, barrier))
        except threading.BrokenBarrierError:
            raise
        except Exception as error:
            return error

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(one, range(world_size)))
