"""The main job: the ring, checked, counted, and side by side with the naive way.

One run holds the exercise against three things:

* the **sum**: on whole numbers, where every order of summing is exact, every rank must have its bits;
* the **library's ring schedule**: on order-sensitive floats every rank must have the bits that ``interpret`` makes of
  it, and every rank must have passed to its sockets the bytes that ``count`` says;
* the **naive** way and the **links**: the ring, the all-gather-then-sum, and nothing but sending V to the right are
  timed in turns. From what the links carry follows the time that no all-reduce can beat on them,
  ``2 (N - 1) / N V / bandwidth``.

``algbw`` is V / time, ``busbw`` is 2 (N - 1) / N V / time: what a link carried, were the bytes the least possible.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import vectors
from exercise import Exercise
from rivals import naive_all_reduce
from vectors import Array
from world import Place, run_world

from atoll.schedule.prove import ProvenSchedule
from atoll.units import format_bandwidth, format_duration, format_size

# How long one run may take: a start, and what the naive way moves at a speed that anything should reach.
START_S, SLOWEST_BYTES_PER_S = 60.0, 50e6
SUM, BITS, BYTES = "the sum of whole numbers", "the bits of the library's ring", "the bytes of the library's ring"


def run(args: argparse.Namespace, exercise: Exercise) -> int:
    """The main job; prints the report and returns the exit status."""
    world_size, dtype = args.world, args.dtype
    length = args.size // dtype.itemsize
    ranks = range(world_size)
    whole = [vectors.whole_numbers(dtype, length, rank, world_size, args.seed) for rank in ranks]
    floats = [vectors.order_sensitive(dtype, length, rank, args.seed) for rank in ranks]
    expected_sum = vectors.exact_sum(whole)
    proven = vectors.library_ring(world_size)

    def body(place: Place) -> dict[str, Any]:
        return _rank_body(place, exercise, whole[place.rank], floats[place.rank], expected_sum, args.repeat)

    naive_bytes = world_size * (world_size - 1) * args.size
    results = run_world(world_size, body, deadline_s=START_S + naive_bytes / SLOWEST_BYTES_PER_S)
    report = _judge(results, proven, floats, length, dtype)
    report |= _compare(results, length * dtype.itemsize, world_size)
    report = {"schema_version": 1, "world_size": world_size, "dtype": dtype.name, "length": length,
              "size_bytes": length * dtype.itemsize, "seed": args.seed, "repeat": args.repeat} | report  # fmt: skip
    if args.json:
        print(json.dumps(report, indent=1))
    else:
        print("\n".join(_lines(report)))
    failed = [name for name, right in report["checks"].items() if not right]
    if failed:
        print(f"error: wrong: {'; '.join(failed)}; python check.py {Path(sys.argv[0]).name} says why", file=sys.stderr)
    return 1 if failed else 0


def _rank_body(
    place: Place, exercise: Exercise, whole: Array, floats: Array, expected_sum: Array, repeat: int
) -> dict[str, Any]:
    """What each rank does: one checked run of each data set, then the timed ones, in turns."""
    counter = exercise.counter()

    def ring(vector: Array) -> None:
        exercise.ring_all_reduce(place.rank, place.world_size, vector, place.left, place.right, counter)

    def naive(vector: Array) -> None:
        naive_all_reduce(place, vector, exercise.exchange, exercise.counter())

    def shift(vector: Array) -> None:
        exercise.exchange(place.right, vector, place.left, scratch, exercise.counter())

    vector, scratch = whole.copy(), np.empty_like(whole)
    result: dict[str, Any] = {"passed": {}, "wrong": {}, "seconds": {}}
    place.barrier()
    before = place.passed()
    ring(vector)
    place.barrier()
    result["passed"]["ring"] = _difference(place.passed(), before)
    result["counter"] = (counter.sent, counter.received)
    result["wrong"]["ring"] = len(vectors.wrong_elements(vector, expected_sum))

    vector[:] = floats
    ring(vector)
    result["digest"] = hashlib.sha256(vector.tobytes()).hexdigest()

    vector[:] = whole
    before = place.passed()
    place.barrier()
    naive(vector)
    place.barrier()
    result["passed"]["naive"] = _difference(place.passed(), before)
    result["wrong"]["naive"] = len(vectors.wrong_elements(vector, expected_sum))

    for name in ("ring", "naive", "links"):
        result["seconds"][name] = []
    for _ in range(repeat):
        for name, run in (("ring", ring), ("naive", naive), ("links", shift)):
            vector[:] = whole
            place.barrier()
            start = time.perf_counter()
            run(vector)
            result["seconds"][name].append(time.perf_counter() - start)
            if name != "links":
                result["wrong"][name] += len(vectors.wrong_elements(vector, expected_sum))
    return result


def _difference(after: tuple[int, int], before: tuple[int, int]) -> tuple[int, int]:
    return after[0] - before[0], after[1] - before[1]


def _judge(
    results: Sequence[dict[str, Any]],
    proven: ProvenSchedule,
    floats: Sequence[Array],
    length: int,
    dtype: np.dtype[Any],
) -> dict[str, Any]:
    """What is right and what is not."""
    world_size = len(results)
    digests = [result["digest"] for result in results]
    passed = [tuple(result["passed"]["ring"]) for result in results]
    # As it is asked for first, then turned.
    turn = next((turn for turn in range(world_size) if digests == _digests(proven, floats, turn)), None)
    counted = vectors.ring_bytes(proven, length, dtype.itemsize, turn or 0)
    return {
        "turn": turn,
        "checks": {
            SUM: not any(result["wrong"]["ring"] for result in results),
            BITS: turn is not None,
            BYTES: passed == counted,
            "the exercise's own counter": [tuple(result["counter"]) for result in results] == passed,
            "the sum of the naive way": not any(result["wrong"]["naive"] for result in results),
        },
        "bytes": [
            {"rank": rank, "sent": sent, "received": received, "count_sent": counted[rank][0]}
            for rank, (sent, received) in enumerate(passed)
        ],
        "naive_sent": [result["passed"]["naive"][0] for result in results],
    }


def _digests(proven: ProvenSchedule, floats: Sequence[Array], turn: int) -> list[str]:
    return [hashlib.sha256(output.tobytes()).hexdigest() for output in vectors.ring_outputs(proven, floats, turn)]


def _compare(results: Sequence[dict[str, Any]], size_bytes: int, world_size: int) -> dict[str, Any]:
    """Times: of a run, the slowest rank's; of the runs, the median; of the links, the best.

    Bandwidths are 0 where nothing moves.
    """

    def times_s(name: str) -> list[float]:
        return [max(times) for times in zip(*(result["seconds"][name] for result in results), strict=True)]

    seconds = {name: statistics.median(times_s(name)) for name in ("ring", "naive")}
    factor = 2 * (world_size - 1) / world_size
    link_bandwidth = size_bytes / min(times_s("links")) if world_size > 1 else 0.0
    return {
        "bound_bytes": factor * size_bytes,
        "link_bandwidth_bytes_per_s": link_bandwidth,
        "bound_s": factor * size_bytes / link_bandwidth if link_bandwidth else 0.0,
        "seconds": seconds,
        "busbw_bytes_per_s": {name: factor * size_bytes / seconds[name] for name in seconds},
        "algbw_bytes_per_s": {name: size_bytes / seconds[name] for name in seconds},
    }


def _lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    world_size, checks = report["world_size"], report["checks"]
    bound, size, ranks = report["bound_bytes"], format_size(report["size_bytes"]), report["bytes"]
    turned = f", turned by {report['turn']}" if report["turn"] else ""
    lines = [
        f"all-reduce of {size} ({report['length']} x {report['dtype']}) among {world_size} processes, over TCP",
        "",
        "checked on every rank",
        f"  whole numbers     {_equal(checks[SUM])} the reference sum, bit for bit",
        f"  order-sensitive   {_equal(checks[BITS])} the library's ring schedule{turned}, bit for bit",
        f"  bytes             {_equal(checks[BYTES])} the count of the library's ring schedule{turned}, byte for byte",
        "",
        f"bytes through the sockets; no all-reduce can do with less than 2(N-1)/N V = {bound:.10g} a rank, on average",
        f"{'rank':>6} {'sent':>14} {'received':>14} {'schedule':>14} {'sent/bound':>11}",
    ]
    lines += [
        f"{row['rank']:>6} {row['sent']:>14} {row['received']:>14} {row['count_sent']:>14} "
        f"{_ratio(row['sent'], bound):>11}"
        for row in ranks
    ]
    mean = {"ring": statistics.mean(row["sent"] for row in ranks), "naive": statistics.mean(report["naive_sent"])}
    lines += [
        f"{'mean':>6} {mean['ring']:>14.10g} {'':>14} {'':>14} {_ratio(mean['ring'], bound):>11}",
        "",
        f"side by side, in turns, median of {report['repeat']}",
        f"{'':>8} {'sent a rank':>14} {'sent/bound':>11} {'time':>10} {'algbw':>12} {'busbw':>12}",
    ]
    for name in ("ring", "naive"):
        lines.append(f"{name:>8} {mean[name]:>14.10g} {_ratio(mean[name], bound):>11} "
                     f"{format_duration(report['seconds'][name]):>10} "
                     f"{format_bandwidth(report['algbw_bytes_per_s'][name]):>12} "
                     f"{format_bandwidth(report['busbw_bytes_per_s'][name]):>12}")  # fmt: skip
    lines.append(f"naive / ring: bytes {_ratio(mean['naive'], mean['ring'])} (N/2 = {world_size / 2:g}), "
                 f"time {_ratio(report['seconds']['naive'], report['seconds']['ring'])}")  # fmt: skip
    if report["bound_s"]:
        share = report["bound_s"] / report["seconds"]["ring"]
        lines += [
            "",
            f"links: {format_bandwidth(report['link_bandwidth_bytes_per_s'])} each, at best, while all ranks do "
            f"nothing but send {size} to the right.",
            f"At that rate 2(N-1)/N V takes {format_duration(report['bound_s'])}; the ring reaches {share:.0%} of it."
            if share <= 1
            else "The ring was faster than that: processes waking up were timed, not links. Take a larger --size.",
        ]
    return lines


def _equal(right: bool) -> str:
    return "equal to" if right else "NOT EQUAL to"


def _ratio(value: float, to: float) -> str:
    return f"{value / to:.3f}" if to else "-"
