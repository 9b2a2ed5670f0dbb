"""Gradient bucketing: many small all-reduces against a few large ones, and hidden behind compute.

A backward pass makes gradients one after the other, last layer first. Data-parallel training must sum each over all
ranks. Three ways, as PyTorch's DDP came to the last one (Li et al. 2020, "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training", VLDB 13(12); its default bucket is 25 MB):

``one each``     after the backward pass, an all-reduce per gradient: pays the latency per gradient
``bucketed``     after the backward pass, an all-reduce per bucket: gradients side by side in memory, up to a capacity
``overlapped``   the same buckets, each started (``async_op=True``) as soon as its last gradient is there, while the
                 backward pass goes on; ``wait`` only at the end

``moved early`` is the fraction of all payload bytes that had moved when compute was done and the first ``wait`` was
called (``Work.bytes_moved``): what overlapped. The compute is NumPy matrix products, which let other threads run. On a
machine with fewer cores than ranks, communication takes its time from the compute it hides behind.

Run by ``python solution.py --buckets``; every rank is this script under the library's launcher.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import atoll
from atoll.errors import AtollError
from atoll.units import format_duration, format_size

GRADIENTS = 200
SMALLEST_BYTES, LARGEST_BYTES = 4 << 10, 64 << 10
CAPACITIES_BYTES = (1 << 20, 4 << 20, 25 << 20)
# A matrix product per gradient: 2 x 128^3 = 4.2 million floating point operations, some 0.1 ms of one core.
COMPUTE_SIDE = 128
DEADLINE_S = 120.0

Vector = npt.NDArray[np.float32]


def start(world_size: int, seed: int, repeat: int, as_json: bool) -> int:
    """Launch the ranks; returns the exit status."""
    from atoll.runtime.launch import launch  # here, since the other ways of the lab do without the runtime

    arguments = [str(seed), str(repeat), str(int(as_json))]
    result = launch(
        [sys.executable, __file__, *arguments],
        world_size,
        environ=os.environ,
        stdout=sys.stdout.buffer,
        stderr=sys.stderr.buffer,
    )
    if result.summary():
        print(f"error: {result.summary()}", file=sys.stderr)
    return result.exit_status


def gradient_lengths(seed: int) -> list[int]:
    """Elements of each float32 gradient, in the order in which they are made: sizes even on a logarithmic scale."""
    exponents = np.random.default_rng(seed).uniform(np.log2(SMALLEST_BYTES), np.log2(LARGEST_BYTES), GRADIENTS)
    return [int(size) for size in 2**exponents // 4]


def fill_buckets(lengths: Sequence[int], capacity_bytes: int) -> list[range]:
    """Consecutive gradients that go together: as many as the capacity holds, at least one."""
    buckets: list[range] = []
    first, filled = 0, 0
    for index, length in enumerate(lengths):
        if index > first and filled + 4 * length > capacity_bytes:
            buckets.append(range(first, index))
            first, filled = index, 0
        filled += 4 * length
    if lengths:
        buckets.append(range(first, len(lengths)))
    return buckets


@dataclass
class Step:
    """One training step's outcome on this rank."""

    seconds: float
    moved_early: int
    moved: int
    wrong: int


class Trainer:
    """A rank that makes gradients and sums them. Gradients are whole numbers: their sums are exact."""

    def __init__(self, communicator: atoll.Communicator, seed: int) -> None:
        self.communicator = communicator
        self.lengths = gradient_lengths(seed)
        self.starts = np.cumsum([0, *self.lengths])
        rank, world_size = communicator.rank, communicator.world_size
        base = np.arange(self.starts[-1], dtype=np.float32) % 1024
        self.gradients = base + np.float32(rank)
        self.expected = base * np.float32(world_size) + np.float32(world_size * (world_size - 1) // 2)
        self.memory = np.empty_like(self.gradients)
        self.matrix = np.random.default_rng(seed).standard_normal((COMPUTE_SIDE, COMPUTE_SIDE)).astype(np.float32)
        self.product = np.empty_like(self.matrix)

    def view(self, gradients: range) -> Vector:
        """The bucket of these gradients: they lie one after the other, so it is a view."""
        return self.memory[self.starts[gradients.start] : self.starts[gradients.stop]]

    def backward(self, index: int) -> None:
        """Compute gradient ``index`` into its place in its bucket."""
        np.matmul(self.matrix, self.matrix, out=self.product)
        place = slice(self.starts[index], self.starts[index + 1])
        self.memory[place] = self.gradients[place]

    def compute_only(self) -> Step:
        self.communicator.barrier()
        begin = time.perf_counter()
        for index in range(len(self.lengths)):
            self.backward(index)
        return Step(time.perf_counter() - begin, 0, 0, 0)

    def afterwards(self, buckets: Sequence[range]) -> Step:
        """Compute all gradients, then sum bucket after bucket."""
        self.communicator.barrier()
        begin = time.perf_counter()
        for index in range(len(self.lengths)):
            self.backward(index)
        moved = 0
        for bucket in buckets:
            work = self.communicator.all_reduce(self.view(bucket), out=self.view(bucket), async_op=True)
            work.wait()
            moved += work.bytes_moved
        return Step(time.perf_counter() - begin, 0, moved, self._wrong())

    def overlapped(self, buckets: Sequence[range]) -> Step:
        """Start each bucket's sum as soon as it is full, and go on computing."""
        self.communicator.barrier()
        begin = time.perf_counter()
        works = []
        for bucket in buckets:
            for index in bucket:
                self.backward(index)
            works.append(self.communicator.all_reduce(self.view(bucket), out=self.view(bucket), async_op=True))
        early = sum(work.bytes_moved for work in works)
        for work in works:
            work.wait()
        seconds = time.perf_counter() - begin
        return Step(seconds, early, sum(work.bytes_moved for work in works), self._wrong())

    def _wrong(self) -> int:
        return int(np.count_nonzero(self.memory != self.expected))


def run_rank(seed: int, repeat: int, as_json: bool) -> int:
    """This rank's part; rank 0 prints."""
    with atoll.init(timeout=DEADLINE_S) as communicator:
        trainer = Trainer(communicator, seed)
        single = [range(index, index + 1) for index in range(len(trainer.lengths))]
        ways: list[tuple[str, int | None, int, Any]] = [
            ("compute alone", None, 0, trainer.compute_only),
            ("one each", None, len(single), lambda: trainer.afterwards(single)),
        ]
        for capacity in CAPACITIES_BYTES:
            filled = fill_buckets(trainer.lengths, capacity)
            ways.append(("bucketed", capacity, len(filled), lambda filled=filled: trainer.afterwards(filled)))
            ways.append(("overlapped", capacity, len(filled), lambda filled=filled: trainer.overlapped(filled)))
        steps: list[list[Step]] = [[] for _ in ways]
        for turn in range(repeat + 1):
            for index, (_, _, _, way) in enumerate(ways):
                step = way()
                if turn:  # the first turn makes connections and proves schedules
                    steps[index].append(step)
        mine = [[[step.seconds, step.moved_early, step.moved, step.wrong] for step in each] for each in steps]
        everyone = communicator.all_gather(np.array(mine, dtype=np.float64)[None])
        communicator.barrier()
        wrong = int(everyone[..., 3].sum())
        if communicator.rank == 0:
            rows = []
            for index, (name, capacity, calls, _) in enumerate(ways):
                early, moved = everyone[:, index, :, 1].sum(), everyone[:, index, :, 2].sum()
                slowest = everyone[:, index, :, 0].max(axis=0).tolist()
                rows.append(
                    {
                        "way": name,
                        "capacity_bytes": capacity,
                        "all_reduces": calls,
                        "seconds": statistics.median(slowest),
                        "moved_bytes": int(moved) // repeat,
                        "moved_before_wait": early / moved if moved else None,
                    }
                )
            _print(rows, communicator.world_size, trainer.lengths, repeat, wrong, as_json)
    return 1 if wrong else 0


def _print(
    rows: Sequence[dict[str, Any]], world_size: int, lengths: Sequence[int], repeat: int, wrong: int, as_json: bool
) -> None:
    total_bytes = 4 * sum(lengths)
    if as_json:
        document = {"schema_version": 1, "world_size": world_size, "gradients": len(lengths),
                    "total_bytes": total_bytes, "repeat": repeat, "wrong_elements": wrong, "rows": rows}  # fmt: skip
        print(json.dumps(document, indent=1))
        return
    print(f"{len(lengths)} gradients of {format_size(4 * min(lengths))} to {format_size(4 * max(lengths))}, "
          f"{format_size(total_bytes)} in all, summed among {world_size} processes\n")  # fmt: skip
    print(f"{'':>14} {'bucket':>8} {'all-reduces':>12} {'step time':>10} {'moved early':>12}")
    for row in rows:
        capacity = "-" if row["capacity_bytes"] is None else format_size(row["capacity_bytes"])
        early = "-" if row["moved_before_wait"] is None else f"{row['moved_before_wait']:.0%}"
        print(f"{row['way']:>14} {capacity:>8} {row['all_reduces']:>12} {format_duration(row['seconds']):>10} "
              f"{early:>12}")  # fmt: skip
    print(f"\nmedian of {repeat} steps, the slowest rank's time; " + (
        "every sum right on every rank" if not wrong else f"{wrong} ELEMENTS WRONG"))  # fmt: skip


if __name__ == "__main__":
    try:
        sys.exit(run_rank(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1"))
    except AtollError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
