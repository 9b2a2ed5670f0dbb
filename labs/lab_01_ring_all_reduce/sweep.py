"""Ring and tree over message sizes: who wins where, and at which size they cross.

A message costs a latency alpha and beta per byte. With L = ceil(log2 N)::

    T_ring(V) = 2 (N - 1) (alpha + V beta / N)        many messages, few bytes
    T_tree(V) = 2 L (alpha + V beta)                  few messages, many bytes

so the tree wins while messages are small and the ring once they are large. ``L < N - 1`` takes at least 4 ranks.

Measured, not modelled: at each size, in turns, ``--repeat`` batches of back-to-back calls; a batch's time is the mean
over its calls and over ranks, and the median of the batches counts. The crossover is where the measured sizes are cut
best into "the tree wins" below and "the ring wins" above; rows appear as they are measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import vectors
from exercise import Exercise
from rivals import tree_all_reduce
from vectors import Array
from world import Place, run_world

from atoll.algorithms.catalog import build
from atoll.schedule.count import count
from atoll.schedule.interpret import interpret
from atoll.schedule.prove import prove
from atoll.units import format_duration, format_size

DEADLINE_S = 120.0  # of a batch
SMALLEST_BYTES = 8
# Calls in a batch: enough of the small ones to time, few of the large ones to wait for.
MOST_CALLS, BYTES_PER_BATCH = 20, 1 << 20
CHECKED_LENGTH = 1001
NAMES = ("ring", "tree")


def sizes(largest_bytes: int, itemsize: int) -> list[int]:
    """8 B, 16 B, 32 B, ... up to ``largest_bytes``; whole elements."""
    smallest = max(SMALLEST_BYTES, itemsize)
    powers = [smallest << shift for shift in range(64) if smallest << shift <= largest_bytes]
    return powers or [largest_bytes // itemsize * itemsize]


def crossover(measured: Sequence[tuple[int, float, float]]) -> tuple[int | None, int | None]:
    """(last size at which the tree wins, first at which the ring does) of rows (size, ring_s, tree_s) by size.

    The cut with the fewest rows on the wrong side, so that one noisy row does not move it far; the smallest of equally
    good ones. ``None`` on a side that has no rows.
    """
    wins = [tree_s < ring_s for _, ring_s, tree_s in measured]
    wrong = [wins[:cut].count(False) + wins[cut:].count(True) for cut in range(len(wins) + 1)]
    cut = wrong.index(min(wrong))
    return (measured[cut - 1][0] if cut else None), (measured[cut][0] if cut < len(measured) else None)


def run(args: argparse.Namespace, exercise: Exercise) -> int:
    """The sweep; prints it and returns the exit status."""
    world_size, dtype = args.world, args.dtype
    points = sizes(args.size, dtype.itemsize)
    floats = [vectors.order_sensitive(dtype, CHECKED_LENGTH, rank, args.seed) for rank in range(world_size)]
    tree = prove(build("all_reduce", "binomial_tree", world_size))
    expected = interpret(tree, floats)
    counted = count(tree, CHECKED_LENGTH, dtype.itemsize)
    table = _Table(world_size, args.json)

    def body(place: Place) -> tuple[int, int, int]:
        checked = _check_tree(place, exercise, floats[place.rank], expected[place.rank])
        for size in points:
            place.report((size, _time(place, exercise, np.zeros(size // dtype.itemsize, dtype), args.repeat)))
        return checked

    table.start()
    checks = run_world(world_size, body, deadline_s=DEADLINE_S, on_report=table.add)
    right = all(wrong == 0 for wrong, _, _ in checks)
    right_bytes = [(sent, received) for _, sent, received in checks] == [
        *zip(counted.sent.tolist(), counted.received.tolist(), strict=True)
    ]
    low, high = crossover(table.rows)
    if args.json:
        document = {
            "schema_version": 1, "world_size": world_size, "dtype": dtype.name, "repeat": args.repeat,
            "checks": {"the bits of the library's binomial tree": right, "its bytes": right_bytes},
            "rows": [{"size_bytes": size, "ring_s": ring_s, "tree_s": tree_s} for size, ring_s, tree_s in table.rows],
            "crossover": {"tree_wins_up_to_bytes": low, "ring_wins_from_bytes": high},
        }  # fmt: skip
        print(json.dumps(document, indent=1))
    else:
        print("\n".join(_verdict(world_size, low, high, right, right_bytes)))
    return 0 if right and right_bytes else 1


def _verdict(world_size: int, low: int | None, high: int | None, right: bool, right_bytes: bool) -> list[str]:
    messages = (2 * (world_size - 1), 2 * (world_size - 1).bit_length())
    if low is None:
        text = "no crossover: the ring is at least as fast at every size"
    elif high is None:
        text = f"no crossover up to {format_size(low)}: the tree is faster at every size"
    else:
        text = f"crossover between {format_size(low)} and {format_size(high)}: the tree below, the ring above"
    return [
        text,
        f"one after the other: {messages[0]} messages of V/{world_size} in the ring, {messages[1]} of V in the tree",
        f"the tree's bits are {'equal to' if right else 'NOT EQUAL to'} the library's binomial tree, "
        f"its bytes {'too' if right_bytes else 'are NOT'}",
    ]


class _Table:
    """Prints a row once all ranks have reported it."""

    def __init__(self, world_size: int, silent: bool) -> None:
        self.rows: list[tuple[int, float, float]] = []
        self._world_size = world_size
        self._silent = silent
        self._pending: dict[int, list[dict[str, list[float]]]] = {}

    def start(self) -> None:
        if not self._silent:
            print(f"all-reduce among {self._world_size} processes, over TCP: ring against binomial tree\n")
            print(f"{'size':>10} {'ring':>10} {'tree':>10} {'tree/ring':>10}", flush=True)

    def add(self, _: int, value: tuple[int, dict[str, list[float]]]) -> None:
        size, batches = value
        reports = self._pending.setdefault(size, [])
        reports.append(batches)
        if len(reports) < self._world_size:
            return
        ring_s, tree_s = (
            statistics.median(map(statistics.mean, zip(*(report[name] for report in reports), strict=True)))
            for name in NAMES
        )
        self.rows.append((size, ring_s, tree_s))
        if not self._silent:
            ratio = f"{tree_s / ring_s:.2f}" if ring_s else "-"
            print(f"{format_size(size):>10} {format_duration(ring_s):>10} {format_duration(tree_s):>10} {ratio:>10}",
                  flush=True)  # fmt: skip


def _calls(place: Place, exercise: Exercise) -> dict[str, Callable[[Array], None]]:
    counter = exercise.counter()
    return {
        "ring": lambda vector: exercise.ring_all_reduce(
            place.rank, place.world_size, vector, place.left, place.right, counter
        ),
        "tree": lambda vector: tree_all_reduce(place, vector, exercise.exchange, counter),
    }


def _check_tree(place: Place, exercise: Exercise, floats: Array, expected: Array) -> tuple[int, int, int]:
    """Wrong elements, bytes sent and bytes received of one tree all-reduce."""
    vector = floats.copy()
    place.barrier()
    before = place.passed()
    _calls(place, exercise)["tree"](vector)
    after = place.passed()
    return len(vectors.wrong_elements(vector, expected)), after[0] - before[0], after[1] - before[1]


def _time(place: Place, exercise: Exercise, vector: Array, repeat: int) -> dict[str, list[float]]:
    """Seconds per call of every batch; the vector is zeros, which sums of any number leave zeros."""
    calls = max(1, min(MOST_CALLS, BYTES_PER_BATCH // max(1, vector.nbytes)))
    batches: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(repeat):
        for name, call in _calls(place, exercise).items():
            place.barrier()
            call(vector)  # warms up, and lines the ranks up better than the barrier does
            start = time.perf_counter()
            for _ in range(calls):
                call(vector)
            batches[name].append((time.perf_counter() - start) / calls)
    return batches
