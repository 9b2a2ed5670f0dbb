"""Pipeline schedules, played exactly: who works when, who waits, and how much is kept in memory meanwhile.

Vocabulary. A *stage* is one of p ranks of a pipeline group; it holds ``interleave`` v *model chunks* (1 unless
interleaved), chunk c of stage s being layer block c p + s. A *micro-batch* is one of m pieces of the batch. A *task* is
the forward or backward pass of one micro-batch through one chunk. The *bubble* is the time in which a stage waits.

A schedule is an order of tasks for each stage, as Megatron-LM has them:

``gpipe``   all forwards, then all backwards, the last first (Huang et al. 2019)
``1f1b``    p - 1 - s forwards to warm up, then one forward, one backward, then the rest of the backwards (PipeDream-
            Flush, Narayanan et al. 2021a); with v > 1 *interleaved* (Narayanan et al. 2021b): micro-batches in runs of
            p, chunk by chunk, 2(p - 1 - s) + (v - 1)p forwards to warm up; m must be a multiple of p

A task starts when its stage is free and what it reads has arrived: forwards wait for the block before, backwards for
the block after and for their own forward. Passing on takes ``send_time``, during which the stage goes on. Times are
fractions, so what is compared with a formula is compared exactly. Forward and backward are of a whole stage; a chunk
takes 1/v of it.

With equal stages and nothing to pay for sending, idle time over all time of a stage is

    gpipe, 1f1b       (p - 1) / (m + p - 1)
    interleaved       (p - 1) / (v m + p - 1)

whatever forward and backward take. (As a share of the *work*, as papers have it: (p - 1) / m and (p - 1) / (v m).)
What differs is memory: GPipe keeps the activations of m micro-batches, 1F1B of p - s.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Literal

import msgspec

from atoll.errors import SpecError

Kind = Literal["gpipe", "1f1b"]
SCHEDULES: Final = ("gpipe", "1f1b")
MAX_TASKS: Final = 2_000_000


class Task(msgspec.Struct, frozen=True):
    """One pass of one micro-batch through one chunk of a stage."""

    stage: int
    chunk: int
    microbatch: int
    forward: bool
    start: Fraction
    end: Fraction


class Timeline(msgspec.Struct, frozen=True):
    """A schedule played. ``tasks[stage]`` in the order of time; ``peak[stage]`` is the most micro-batches' activations
    that a stage keeps at once, in whole stages' worth (a chunk counts 1/v).
    """

    kind: Kind
    stages: int
    microbatches: int
    interleave: int
    tasks: tuple[tuple[Task, ...], ...]
    end: Fraction
    peak: tuple[Fraction, ...]

    def busy(self, stage: int) -> Fraction:
        return sum((task.end - task.start for task in self.tasks[stage]), Fraction(0))

    def bubble(self, stage: int) -> Fraction:
        """The share of all time in which a stage waits."""
        return 1 - self.busy(stage) / self.end

    @property
    def mean_bubble(self) -> Fraction:
        return sum((self.bubble(stage) for stage in range(self.stages)), Fraction(0)) / self.stages

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.interleave} chunks a stage" if self.interleave > 1 else self.kind


def bubble_share(stages: int, microbatches: int, interleave: int = 1) -> Fraction:
    """(p - 1) / (v m + p - 1): idle over all time, for equal stages that send for nothing."""
    _check("1f1b", stages, microbatches, interleave, any_run=True)
    return Fraction(stages - 1, interleave * microbatches + stages - 1)


def microbatches_for(stages: int, share: Fraction, interleave: int = 1) -> int:
    """The fewest micro-batches with a bubble of at most ``share``; interleaved, a multiple of the stages."""
    if not 0 < share < 1:
        raise SpecError(f"expected a bubble above 0 and below 1, got {float(share):g}")
    needed = max(1, -(-(stages - 1) * (1 - share) // (share * interleave)))
    return int(needed) if interleave == 1 else int(-(-needed // stages) * stages)


def play(
    kind: Kind, stages: int, microbatches: int, *, interleave: int = 1, forward: Fraction | int = 1,
    backward: Fraction | int = 2, send_time: Fraction | int = 0, slow: dict[int, Fraction] | None = None,
) -> Timeline:  # fmt: skip
    """Play a schedule. ``slow`` gives the time factor of stages that are not as fast as the others. ``SpecError``."""
    _check(kind, stages, microbatches, interleave)
    factors = {stage: Fraction(1) for stage in range(stages)} | (slow or {})
    if min(forward, backward) <= 0 or send_time < 0 or min(factors.values()) <= 0:
        raise SpecError("pipeline: expected forward, backward and time factors above 0 and a send time of at least 0")
    if set(factors) != set(range(stages)):
        raise SpecError(f"pipeline: expected slow stages among 0 to {stages - 1}, got {sorted(factors)}")
    orders = [_order(kind, stages, stage, microbatches, interleave) for stage in range(stages)]
    last_block = stages * interleave - 1
    length = {True: Fraction(forward) / interleave, False: Fraction(backward) / interleave}
    ends: dict[tuple[int, int, bool], Fraction] = {}
    free = [Fraction(0)] * stages
    done = [0] * stages
    tasks: list[list[Task]] = [[] for _ in range(stages)]
    waiting = list(range(stages))
    while waiting:
        # A stage that has moved may let its neighbours move; each goes as far as it can.
        stage = waiting.pop()
        moved = False
        while done[stage] < len(orders[stage]):
            chunk, microbatch, is_forward = orders[stage][done[stage]]
            block = chunk * stages + stage
            ready = _ready(ends, block, microbatch, is_forward, last_block, stages, Fraction(send_time))
            if ready is None:
                break
            start = max(free[stage], ready)
            end = start + length[is_forward] * factors[stage]
            tasks[stage].append(Task(stage, chunk, microbatch, is_forward, start, end))
            ends[block, microbatch, is_forward] = free[stage] = end
            done[stage] += 1
            moved = True
        if moved:
            waiting += [other for other in {(stage + 1) % stages, (stage - 1) % stages} if other not in waiting]
    if any(done[stage] < len(orders[stage]) for stage in range(stages)):
        raise SpecError(f"pipeline: {kind} with {stages} stages and {microbatches} micro-batches deadlocks")
    peaks = tuple(_peak(row, interleave) for row in tasks)
    rows = tuple(tuple(row) for row in tasks)
    return Timeline(kind, stages, microbatches, interleave, rows, max(free), peaks)


def _ready(
    ends: dict[tuple[int, int, bool], Fraction], block: int, microbatch: int, forward: bool, last_block: int,
    stages: int, send_time: Fraction,
) -> Fraction | None:  # fmt: skip
    """When what a task reads is there; ``None`` if that is not known yet."""
    needs: list[tuple[int, bool]] = []
    if forward and block > 0:
        needs.append((block - 1, True))
    if not forward:
        needs.append((block, True))
        if block < last_block:
            needs.append((block + 1, False))
    ready = Fraction(0)
    for other, other_forward in needs:
        end = ends.get((other, microbatch, other_forward))
        if end is None:
            return None
        ready = max(ready, end if other % stages == block % stages else end + send_time)
    return ready


def _order(kind: Kind, stages: int, stage: int, microbatches: int, interleave: int) -> list[tuple[int, int, bool]]:
    """(chunk, micro-batch, forward) of every task of a stage."""
    total = microbatches * interleave
    run = stages * interleave

    def nth(number: int, forward: bool) -> tuple[int, int, bool]:
        chunk = number % run // stages
        microbatch = number // run * stages + number % stages
        return (chunk if forward else interleave - 1 - chunk), microbatch, forward

    if kind == "gpipe":
        forwards = [(0, number, True) for number in range(microbatches)]
        return forwards + [(0, number, False) for number in reversed(range(microbatches))]
    if interleave == 1:
        warm_up = min(stages - 1 - stage, total)
        forwards = [(0, number, True) for number in range(total)]
        backwards = [(0, number, False) for number in range(total)]
    else:
        warm_up = min(2 * (stages - 1 - stage) + (interleave - 1) * stages, total)
        forwards = [nth(number, True) for number in range(total)]
        backwards = [nth(number, False) for number in range(total)]
    steady = [task for pair in zip(forwards[warm_up:], backwards, strict=False) for task in pair]
    return forwards[:warm_up] + steady + backwards[total - warm_up :]


def _peak(tasks: list[Task], interleave: int) -> Fraction:
    kept = most = 0
    for task in tasks:
        kept += 1 if task.forward else -1
        most = max(most, kept)
    return Fraction(most, interleave)


def _check(kind: str, stages: int, microbatches: int, interleave: int, *, any_run: bool = False) -> None:
    if kind not in SCHEDULES:
        raise SpecError(f"pipeline: expected one of {', '.join(SCHEDULES)}, got {kind!r}")
    if min(stages, microbatches, interleave) < 1:
        raise SpecError(
            f"pipeline: expected at least one stage, micro-batch and chunk, got {stages}, {microbatches}, {interleave}"
        )
    if kind == "gpipe" and interleave > 1:
        raise SpecError("pipeline: gpipe has one chunk a stage; interleaving is of 1f1b")
    if interleave > 1 and not any_run and (microbatches % stages or stages == 1):
        raise SpecError(
            f"pipeline: interleaving wants at least two stages and micro-batches in runs of them: {microbatches} is no "
            f"multiple of {stages}"
            if stages > 1
            else "pipeline: interleaving wants at least two stages, got one"
        )
    if not any_run and 2 * stages * microbatches * interleave > MAX_TASKS:
        raise SpecError(f"pipeline: {2 * stages * microbatches * interleave} tasks, at most {MAX_TASKS} are played")
