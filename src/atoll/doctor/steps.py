"""What step times and flight-recorder timings say about speed: stragglers, stalls, overlap, imbalance.

Vocabulary. A *step* is one iteration of one rank. In a synchronous job every rank's step takes as long as the slowest
rank's, because the fast ones wait inside the collective: so the step time itself shows nobody. What shows the
straggler is its **compute** part, or its **waiting**: the rank that everybody waits for waits least, and its own
communication kernels are the shortest (it enters last, when all others are there). Long communication on the other
ranks is the victims' waiting.

Every figure is a median over steps, so a warm-up step or one slow checkpoint blames nobody. All times are seconds.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from atoll.readers.flight_recorder import FlightRecorderDump, RecordedCollective
from atoll.readers.source import Source
from atoll.readers.step_times import StepTime

SLOWER: Final = 1.1
"""A rank computes this much longer than the median rank before it is a straggler."""
SPIKE: Final = 1.5
MIN_STEPS: Final = 5
LAST_SHARE: Final = 0.6
LATE_SHARE: Final = 0.5
EXPOSED: Final = 0.2
CORRELATED: Final = 0.8


class Straggler(msgspec.Struct, frozen=True):
    """The rank that the others wait for; ``factor`` is its compute over the median's, or ``None`` if not measured."""

    rank: int
    factor: float | None
    what: str
    sources: tuple[Source, ...]


class Stall(msgspec.Struct, frozen=True):
    """Steps that are far longer than the others, every ``period`` steps (0: on no regular interval)."""

    period: int
    num_spikes: int
    usual_s: float
    spike_s: float
    ranks: tuple[int, ...]
    sources: tuple[Source, ...]


class Exposure(msgspec.Struct, frozen=True):
    """Communication that is not hidden: ``share`` of the time, and whether each operation is waited for."""

    share: float
    blocking_share: float
    rank: int
    sources: tuple[Source, ...]


def straggler_by_steps(steps: Sequence[StepTime]) -> Straggler | None:
    """The rank whose compute is longest, if it is longer than the median by ``SLOWER`` and alone with that."""
    parts: dict[int, list[float]] = {}
    waits: dict[int, list[float]] = {}
    first: dict[int, Source] = {}
    for step in steps:
        first.setdefault(step.rank, step.source)
        compute = step.compute_s
        if compute is None and step.communication_s is not None:
            compute = step.step_s - step.communication_s - (step.data_s or 0.0)
        if compute is not None:
            parts.setdefault(step.rank, []).append(compute)
        if step.communication_s is not None:
            waits.setdefault(step.rank, []).append(step.communication_s)
    medians = {rank: statistics.median(times) for rank, times in parts.items() if len(times) >= MIN_STEPS}
    if not medians and not waits:
        # Only whole steps: a rank that is slower by itself shows where nothing synchronises them.
        whole: dict[int, list[float]] = {}
        for step in steps:
            whole.setdefault(step.rank, []).append(step.step_s)
        medians = {rank: statistics.median(times) for rank, times in whole.items() if len(times) >= MIN_STEPS}
    if len(medians) < 3:
        return None
    slowest = max(medians, key=lambda rank: (medians[rank], -rank))
    usual = statistics.median(medians.values())
    second = max(value for rank, value in medians.items() if rank != slowest)
    if usual <= 0 or medians[slowest] < SLOWER * usual or medians[slowest] < 1.05 * second:
        return None
    wait = {rank: statistics.median(times) for rank, times in waits.items() if times}
    least = wait and min(wait, key=lambda rank: wait[rank]) == slowest
    return Straggler(
        slowest,
        medians[slowest] / usual,
        f"rank {slowest} computes {medians[slowest] / usual:.2f} times as long as the median rank"
        + (", and waits least in its collectives: the others wait for it" if least else ""),
        tuple(source for rank, source in sorted(first.items(), key=lambda item: item[0] != slowest))[:3],
    )


def straggler_by_recorder(dumps: Sequence[FlightRecorderDump]) -> Straggler | None:
    """The rank that starts most collectives last, when the others' time in them is mostly waiting for it."""
    starts: dict[tuple[str, int], dict[int, RecordedCollective]] = {}
    for dump in dumps:
        if dump.rank is None:
            continue
        for entry in dump.entries:
            if not entry.is_p2p and entry.started_s is not None and entry.completed_s is not None:
                starts.setdefault((entry.group, entry.sequence), {})[dump.rank] = entry
    last: Counter[int] = Counter()
    late: dict[int, list[float]] = {}
    counted = 0
    for by_rank in starts.values():
        if len(by_rank) < 3:
            continue
        counted += 1
        began = {rank: entry.started_s or 0.0 for rank, entry in by_rank.items()}
        rank = max(began, key=lambda rank: (began[rank], -rank))
        others = [value for other, value in began.items() if other != rank]
        end = max(entry.completed_s or 0.0 for entry in by_rank.values())
        span = end - min(others)
        if span > 0:
            last[rank] += 1
            # Lateness against the next latest: without that, somebody is always last by nothing.
            late.setdefault(rank, []).append((began[rank] - max(others)) / span)
    if counted < MIN_STEPS or not last:
        return None
    rank, times = last.most_common(1)[0]
    if times < LAST_SHARE * counted or statistics.median(late[rank]) < LATE_SHARE:
        return None
    source = next(dump.source for dump in dumps if dump.rank == rank)
    return Straggler(
        rank,
        None,
        f"rank {rank} starts {times} of {counted} collectives last, and {statistics.median(late[rank]):.0%} of "
        "their time is "
        "the others' waiting for it: its own kernels are the shortest",
        (source,),
    )


def stalls(steps: Sequence[StepTime]) -> Stall | None:
    """Steps that take ``SPIKE`` times the median, at least three of them (or two by the clock), after warm-up."""
    by_rank: dict[int, dict[int, StepTime]] = {}
    for step in steps:
        by_rank.setdefault(step.rank, {})[step.step] = step
    spikes: Counter[int] = Counter()
    guilty: dict[int, list[int]] = {}
    sources: list[Source] = []
    usual_s = spike_s = 0.0
    for rank, own in by_rank.items():
        numbers = sorted(own)[2:]
        if len(numbers) < 2 * MIN_STEPS:
            continue
        usual = statistics.median(own[number].step_s for number in numbers)
        for number in numbers:
            if own[number].step_s > SPIKE * usual:
                spikes[number] += 1
                guilty.setdefault(rank, []).append(number)
                sources.append(own[number].source)
                usual_s, spike_s = usual, max(spike_s, own[number].step_s)
    numbers = sorted(spikes)
    if len(numbers) < 2:
        return None
    gaps = {later - earlier for earlier, later in pairwise(numbers)}
    period = gaps.pop() if len(gaps) == 1 else 0
    if len(numbers) < 3 and not period:
        return None
    if period == 1:
        return None
    return Stall(period, len(numbers), usual_s, spike_s, tuple(sorted(guilty)), tuple(sources[:3]))


def exposed_by_steps(steps: Sequence[StepTime]) -> Exposure | None:
    """Communication beside compute: step = compute + communication, so nothing is hidden. The median rank counts."""
    shares: dict[int, float] = {}
    hidden: dict[int, float] = {}
    first: dict[int, Source] = {}
    by_rank: dict[int, list[StepTime]] = {}
    for step in steps:
        if step.compute_s is not None and step.communication_s is not None and step.step_s > 0:
            by_rank.setdefault(step.rank, []).append(step)
    for rank, own in by_rank.items():
        if len(own) < MIN_STEPS:
            continue
        shares[rank] = statistics.median((step.communication_s or 0.0) / step.step_s for step in own)
        overlaps = [
            ((step.compute_s or 0.0) + (step.communication_s or 0.0) + (step.data_s or 0.0) - step.step_s)
            / max(min(step.compute_s or 0.0, step.communication_s or 0.0), 1e-12)
            for step in own
        ]
        hidden[rank] = statistics.median(overlaps)
        first[rank] = own[0].source
    if not shares:
        return None
    # The rank that communicates least waits least: what it has left is communication and not waiting.
    rank = min(shares, key=lambda rank: (shares[rank], rank))
    if shares[rank] < EXPOSED or hidden[rank] > 0.1:
        return None
    return Exposure(shares[rank], 1.0 - max(0.0, hidden[rank]), rank, (first[rank],))


def exposed_by_recorder(dumps: Iterable[FlightRecorderDump]) -> Exposure | None:
    """Collectives that the host waits for one by one: the next is created only after the last has completed."""
    best: Exposure | None = None
    for dump in dumps:
        entries = [entry for entry in dump.entries
                   if entry.created_s is not None and entry.started_s is not None and entry.completed_s is not None
                   and not entry.is_p2p]  # fmt: skip
        entries.sort(key=lambda entry: entry.created_s or 0.0)
        if len(entries) < 2 * MIN_STEPS or dump.rank is None:
            continue
        pairs = list(pairwise(entries))
        blocking = sum(1 for one, other in pairs if (other.created_s or 0.0) >= (one.completed_s or 0.0)) / len(pairs)
        span = (entries[-1].completed_s or 0.0) - (entries[0].created_s or 0.0)
        busy = _union([(entry.started_s or 0.0, entry.completed_s or 0.0) for entry in entries])
        if span > 0 and blocking >= 0.9 and busy / span >= EXPOSED and (best is None or busy / span < best.share):
            best = Exposure(busy / span, blocking, dump.rank, (dump.source,))
    return best


def imbalance(steps: Sequence[StepTime]) -> tuple[str, float, tuple[Source, ...]] | None:
    """A further column (``tokens``, ``sequence_length``) that the compute time follows: its name and correlation."""
    names = {name for step in steps for name in step.further if "token" in name or "seq" in name or "length" in name}
    for name in sorted(names):
        points = [
            (step.further[name], step.compute_s if step.compute_s is not None else step.step_s)
            for step in steps
            if name in step.further
        ]
        sizes, times = [size for size, _ in points], [time for _, time in points]
        if len(points) < 4 * MIN_STEPS or len(set(sizes)) < 3 or len(set(times)) < 3:
            continue
        usual = statistics.median(times)
        spread = (statistics.quantiles(times, n=10)[-1] - usual) / usual if usual else 0.0
        found = statistics.correlation(sizes, times)
        if found >= CORRELATED and spread >= 0.1:
            return name, found, (steps[0].source,)
    return None


def pipeline_waiting(dumps: Iterable[FlightRecorderDump]) -> tuple[float, int, Source] | None:
    """The share of its window that the most patient rank spends in receives: the bubble, or a slow stage before it."""
    best: tuple[float, int, Source] | None = None
    for dump in dumps:
        timed = [e for e in dump.entries if e.started_s is not None and e.completed_s is not None]
        receives = [(e.started_s or 0.0, e.completed_s or 0.0) for e in timed if e.is_p2p and e.op == "recv"]
        if len(receives) < MIN_STEPS or dump.rank is None:
            continue
        span = max(e.completed_s or 0.0 for e in timed) - min(e.started_s or 0.0 for e in timed)
        share = _union(receives) / span if span > 0 else 0.0
        if best is None or share > best[0]:
            best = (share, dump.rank, dump.source)
    return best


def _union(spans: Sequence[tuple[float, float]]) -> float:
    """The time that at least one of ``spans`` covers."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
