"""Measuring collectives on an emulated cluster, as the simulator thinks of them: all ranks begin together, once.

A *case* is one collective among groups of ranks that run at the same time: one group of all ranks, or those of a
placement. ``bench`` repeats calls back to back and so measures a stream of them; here every repetition begins after a
barrier, with the queues empty, and lasts until the last rank of the last group has ended. All ranks share one clock,
since they share one machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import msgspec

from atoll.algorithms.catalog import build
from atoll.emulator.cluster import EmulatedCluster
from atoll.errors import WorldError
from atoll.runtime.launch import launch
from atoll.schedule.table import Schedule


class Case(msgspec.Struct, frozen=True):
    """All-reduce of ``size_bytes`` in every group at once: ``groups[g]`` are the ranks of group g, in its order.

    ``island_size`` is what hierarchical algorithms take for the size of an island of the group.
    """

    name: str
    groups: tuple[tuple[int, ...], ...]
    algorithm: str
    size_bytes: int
    island_size: int = 0
    repetitions: int = 5

    def schedule(self) -> Schedule:
        """The schedule of each group, in place."""
        options = {"group_size": self.island_size} if self.algorithm == "hierarchical" else {}
        return build("all_reduce", self.algorithm, len(self.groups[0]), **options)


class Timing(msgspec.Struct, frozen=True):
    """What one case took: seconds of each repetition, and elements that were wrong at the end of the first."""

    case: int
    times_s: tuple[float, ...]
    wrong: int

    @property
    def median_s(self) -> float:
        """The middle one, or the mean of the two."""
        times = sorted(self.times_s)
        return (times[(len(times) - 1) // 2] + times[len(times) // 2]) / 2


class Job(msgspec.Struct, frozen=True):
    """All that the ranks are asked for."""

    cases: tuple[Case, ...]
    timeout_s: float


def measure_cases(
    cluster: EmulatedCluster, cases: Sequence[Case], environ: dict[str, str], heard: Callable[[Timing], None],
    timeout_s: float = 120.0,
) -> None:  # fmt: skip
    """Run the cases in order; ``heard`` is called with each result as it comes.

    Raises ``KeyboardInterrupt`` after Ctrl-C, once all ranks have ended; ``WorldError`` when a rank fails.
    """
    command = [
        sys.executable, "-m", "atoll.emulator.measure_rank",
        msgspec.json.encode(Job(tuple(cases), timeout_s)).decode(),
    ]  # fmt: skip
    lines = _Lines(heard)
    result = launch(
        command, cluster.layout.world_size, environ=environ, stdout=lines, stderr=sys.stderr.buffer,  # type: ignore[arg-type]
        entrance=cluster.entrance,
    )  # fmt: skip
    if result.signalled:
        raise KeyboardInterrupt
    if result.first is not None:
        raise WorldError(result.summary(), culprits=(result.first.rank,))


class _Lines:
    """Where the launcher delivers what rank 0 says."""

    def __init__(self, heard: Callable[[Timing], None]) -> None:
        self._heard = heard
        self._pending = b""

    def write(self, text: bytes) -> int:
        self._pending += text
        *lines, self._pending = self._pending.split(b"\n")
        for line in lines:
            self._heard(msgspec.json.decode(line, type=Timing))
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""
