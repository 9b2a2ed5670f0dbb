"""Measuring which algorithm is fastest here, size by size: what ``atoll tune`` writes down.

In the ranks, ``measure`` times every catalogued algorithm of a collective, in turns, so that a busy moment of the
machine hits all of them. Decisions on the way (who is so slow that its turns are wasted) are taken by every rank from
the same gathered times. Outside of them, ``table_of`` turns the times into rules:

* Algorithms that are one and the same schedule in a world are timed once.
* Over all sizes together, the least time lost against the fastest of each size, in logarithms, plus ``CHANGE`` for
  every change of algorithm: one that gains less than that is noise. A rule starts half-way, geometrically, between
  two measured sizes.
* A link of alpha, beta and gamma is fitted to all times by their relative errors, with the schedule's counts as
  coefficients (``schedule.cost``). How far off it is comes from sizes that were left out of a first fit.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.algorithms import catalog
from atoll.errors import SpecError
from atoll.runtime.benchmark import Case, Spec
from atoll.runtime.communicator import Communicator
from atoll.runtime.stability import ORDERS, Order, stable_algorithms
from atoll.runtime.tuning import Fit, Rules, Table
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.cost import CostModel, Link, Ports, cost_model
from atoll.schedule.count import count
from atoll.schedule.prove import prove

ROUNDS = 5
CHANGE = 0.15
# An algorithm this many times slower than the best gets no further turns; after that many such sizes, no larger ones.
HOPELESS = 4.0
PATIENCE = 2
MAX_CALLS = 1000
TIMEOUT_S = 300.0


class TuneSpec(msgspec.Struct, frozen=True):
    """What to measure in one world: a turn lasts ``turn_s`` seconds, or one call."""

    collectives: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    turn_s: float
    dtype: str = "float32"


class Timing(msgspec.Struct, frozen=True):
    """Seconds a call takes, the slowest rank's in the best of the turns (what else the machine does only adds), by
    algorithm; those that were not tried again are left out."""

    collective: str
    size_bytes: int
    seconds: dict[str, float]


def measure(comm: Communicator, spec: TuneSpec) -> Iterator[Timing]:
    """Every collective and size in turn; the same on every rank."""
    for collective in spec.collectives:
        alike = distinct(collective, comm.world_size)
        names = list(alike)
        failures = dict.fromkeys(names, 0)
        for size_bytes in (1,) if collective == "barrier" else spec.sizes_bytes:
            timing = _measure(comm, spec, collective, names, size_bytes)
            for name in names:
                failures[name] = 0 if name in timing.seconds else failures[name] + 1
            names = [name for name in names if failures[name] < PATIENCE]
            seconds = {other: time_s for name, time_s in timing.seconds.items() for other in alike[name]}
            yield msgspec.structs.replace(timing, seconds=seconds)


def _measure(comm: Communicator, spec: TuneSpec, collective: str, names: Sequence[str], size_bytes: int) -> Timing:
    case = Case(comm, Spec(collective, ("auto",), (size_bytes,), spec.dtype, timeout_s=TIMEOUT_S), names[0],
                np.dtype(spec.dtype), size_bytes)  # fmt: skip
    source, out = case.buffers(in_place=False)
    source[...] = 0  # sums of sums stay what they are
    calls = {}
    for name in names:
        case.algorithm = name
        calls[name] = case.call(source, out)

    def timed(name: str, repeat: int) -> float:
        comm.barrier(timeout=TIMEOUT_S)
        start = time.perf_counter()
        for _ in range(repeat):
            calls[name]()
        return float(comm.all_gather(np.array([(time.perf_counter() - start) / repeat])).max())

    rough = {}
    for name in names:
        calls[name]()  # proves it, compiles it, connects
        rough[name] = min(timed(name, 2) for _ in range(3))
    limit = HOPELESS * min(rough.values())
    hopeful = [name for name in names if rough[name] <= limit]
    turns: dict[str, list[float]] = {name: [] for name in hopeful}
    for number in range(ROUNDS):
        for name in hopeful if number % 2 == 0 else reversed(hopeful):
            repeat = max(1, min(MAX_CALLS, round(spec.turn_s / rough[name])))
            turns[name].append(timed(name, repeat))
    return Timing(collective, size_bytes, {name: min(times) for name, times in turns.items()})


def table_of(timings: Sequence[Timing], transport: str, world_size: int) -> Table:
    """The table of one collective and world from its timings, sizes ascending."""
    collective = timings[0].collective
    sizes = tuple(timing.size_bytes for timing in timings)
    used = [name for name in catalog.names(collective) if any(name in timing.seconds for timing in timings)]
    measured = {name: tuple(timing.seconds.get(name) for timing in timings) for name in used}
    rules: dict[Order, Rules] = {}
    for order in ORDERS:
        allowed = stable_algorithms(collective, order)
        if order == "any" or allowed is not None:
            found = _rules(timings, allowed)
            if found:
                rules[order] = found
    return Table(collective, transport, world_size, rules, sizes, measured, _fit(timings, world_size))


def _rules(timings: Sequence[Timing], allowed: Iterable[str] | None) -> Rules:
    """The cheapest path through (size, algorithm), by dynamic programming."""
    timed = {name for timing in timings for name in timing.seconds if allowed is None or name in allowed}
    names = [name for name in catalog.names(timings[0].collective) if name in timed]  # equals: the first listed
    if not names:
        return ()
    lost = []
    for timing in timings:
        best = min((timing.seconds[name] for name in names if name in timing.seconds), default=math.inf)
        lost.append({name: math.log(timing.seconds.get(name, HOPELESS * best) / best) if math.isfinite(best) else 0.0
                     for name in names})  # fmt: skip
    total, came_from = lost[0], []
    for losses in lost[1:]:
        cheapest = min(names, key=total.__getitem__)
        change = total[cheapest] + CHANGE
        came_from.append({name: name if total[name] <= change else cheapest for name in names})
        total = {name: min(total[name], change) + losses[name] for name in names}
    path = [min(names, key=total.__getitem__)]
    for previous in reversed(came_from):
        path.append(previous[path[-1]])
    path.reverse()
    rules = [(0, path[0])]
    for (before, after), (held, name) in zip(
        itertools.pairwise(timing.size_bytes for timing in timings), itertools.pairwise(path), strict=True
    ):
        if name != held:
            rules.append((round(math.sqrt(before * after)), name))
    return tuple(rules)


def _fit(timings: Sequence[Timing], world_size: int) -> Fit | None:
    """alpha, beta and gamma for all times; None where there is nothing to fit."""
    models = models_of(timings[0].collective, world_size, {name for timing in timings for name in timing.seconds})
    everything = [(timing.size_bytes, models[name], seconds) for timing in timings
                  for name, seconds in timing.seconds.items() if name in models]  # fmt: skip
    sizes = sorted({size for size, _, _ in everything})
    kept = set(sizes[::2])
    first = _least_squares([entry for entry in everything if entry[0] in kept])
    link = _least_squares(everything)
    held_out = [entry for entry in everything if entry[0] not in kept]
    if first is None or link is None or not held_out:
        return None
    errors = [abs(float(model.seconds(size, first, Ports.SHARED)) / seconds - 1) for size, model, seconds in held_out]
    return Fit(link, statistics.median(errors))


def _least_squares(entries: Sequence[tuple[int, CostModel, float]]) -> Link | None:
    """The link with the least relative errors, none of its terms negative: the best of all subsets of terms."""
    if len(entries) < 4:
        return None
    rows = []
    for size, model, seconds in entries:
        terms = model.stepwise[Ports.SHARED.value]
        rows.append((terms.alpha / seconds, terms.beta * size / seconds, terms.gamma * size / seconds))
    matrix = np.array(rows)
    target = np.ones(len(rows))
    best: tuple[float, npt.NDArray[np.float64]] | None = None
    for used in ((0, 1, 2), (0, 1), (1, 2), (1,)):
        solution = np.zeros(3)
        solution[list(used)] = np.linalg.lstsq(matrix[:, used], target, rcond=None)[0]
        residual = float(np.sum((matrix @ solution - target) ** 2))
        if solution.min() >= 0 and solution[1] > 0 and (best is None or residual < best[0]):
            best = (residual, solution)
    if best is None:
        return None
    alpha, beta, gamma = best[1].tolist()
    return Link(alpha, 1 / beta, 1 / gamma if gamma > 0 else math.inf)


def models_of(collective: str, world_size: int, names: Iterable[str]) -> Mapping[str, CostModel]:
    """The cost models of algorithms, those left out that are not for this world or move nothing."""
    root = 0 if COLLECTIVES[collective].rooted else None
    models = {}
    for name in names:
        if collective != "barrier" and _builds(collective, name, world_size):
            models[name] = cost_model(count(prove(catalog.build(collective, name, world_size, root))))
    return models


def distinct(collective: str, world_size: int) -> dict[str, list[str]]:
    """The algorithms that are for this world, those that are the same schedule together under the first one's name:
    among two ranks that is most of them."""
    found: dict[bytes, list[str]] = {}
    for name in catalog.names(collective):
        if not _builds(collective, name, world_size):
            continue
        schedule = catalog.build(collective, name, world_size, 0 if COLLECTIVES[collective].rooted else None)
        header = msgspec.structs.replace(schedule.header, name="")
        rows = np.stack(schedule.columns()[:-1])  # without the rows' numbers
        ordered = rows[:, np.lexsort(rows[::-1])]
        found.setdefault(msgspec.msgpack.encode(header) + ordered.tobytes(), []).append(name)
    return {names[0]: names for names in found.values()}


def _builds(collective: str, name: str, world_size: int) -> bool:
    try:
        catalog.build(collective, name, world_size, 0 if COLLECTIVES[collective].rooted else None)
    except SpecError:
        return False
    return True


def by_collective(timings: Iterable[Timing]) -> list[list[Timing]]:
    """Timings of one collective together, in the order in which they came."""
    return [list(group) for _, group in itertools.groupby(timings, key=lambda timing: timing.collective)]
