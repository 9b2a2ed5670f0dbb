"""Small schedules over a cluster in virtual time, exactly: transfers are fluids that share links by max-min fairness.

A row of the table moves bytes at a rate. It may not pass the marks that its dependencies set
(``schedule.dependencies``), so it starts as soon as its first byte is there and then follows its predecessors byte by
byte, as the runtime does; rows of one lane come one after the other. A message begins its route's latency after its
first byte was there.

**Rates.** All rates rise together from zero. A link that is full freezes the rates of those that cross it; a row that
is at a mark freezes with the row that sets it. What is left when all are frozen is max-min fair, and nobody outruns its
data.

**Events.** Rates hold until a row ends, a row comes to a mark, a mark passes to the next chunk, or a message's latency
is over. There are a few events for each row and dependency, and each costs a pass over the rows: this is for worlds of
tens of ranks, and for several collectives at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from atoll.errors import InternalError
from atoll.schedule.dependencies import APPLY, READ, derive
from atoll.simulator.job import Job, check_jobs
from atoll.topology.cluster import Cluster
from atoll.topology.routes import DEFAULT_TRANSPORT, Transport, find_routes

_NEAR = 1e-9
"""A byte that is this share of the largest row away is there; ``near`` of the rows, in bytes."""
_LOCAL_BYTES_PER_S = 1e15
"""A move within a rank's memory takes no link and next to no time."""
_MOST_STILL = 10_000
"""Events without time between them, after which something is wrong with this file."""


class _Mark(msgspec.Struct, frozen=True):
    """A row may not pass ``at`` + t before row ``before`` has passed ``start`` + t, for t up to ``length``.

    ``room``: ``before`` only has to have read what is overwritten. A message may be on its way before that, and two
    that make room for each other, as in an exchange, move together.
    """

    before: int
    start: float
    at: float
    length: float
    room: bool


class _Standing(msgspec.Struct, frozen=True):
    """Whether a row may move, as fast as the rows that set the marks ``at``."""

    may: bool
    at: tuple[_Mark, ...]


class _Rows:
    """All rows of all jobs, and where each stands."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job], transport: Transport) -> None:
        self.total: list[float] = []
        self.links: list[tuple[int, ...]] = []
        self.latency_s: list[float] = []
        self.marks: list[list[_Mark]] = []
        self.edges: list[set[float]] = []
        self.lanes: list[list[int]] = []
        self.start_s: list[float] = []
        for job in jobs:
            self._add(cluster, job, transport)
        count = len(self.total)
        self.near = _NEAR * max(self.total, default=0.0)
        self.done = [0.0] * count
        self.begins: list[float | None] = [None] * count

    def _add(self, cluster: Cluster, job: Job, transport: Transport) -> None:
        schedule = job.proven.schedule
        first = len(self.total)
        chunk = job.size_bytes / schedule.header.chunks
        gpus = np.array(job.gpus, dtype=np.int64)
        src, dst = schedule.column("src"), schedule.column("dst")
        routes = find_routes(cluster, gpus[src], gpus[dst], schedule.column("channel"), transport)
        self.links += [tuple(int(link) for link in routes[at]) for at in range(len(routes))]
        self.latency_s += routes.latency_s(cluster).tolist()
        self.total += (schedule.column("num_chunks") * chunk).tolist()
        self.start_s += [job.start_s] * len(routes)
        self.marks += [[] for _ in range(len(routes))]
        self.edges += [set() for _ in range(len(routes))]
        lanes: dict[tuple[int, int, int], list[int]] = {}
        for at, row in enumerate(schedule.rows()):
            lanes.setdefault((row.src, row.dst, row.channel), []).append(first + at)
        self.lanes += list(lanes.values())
        edges = derive(job.proven)
        room = (edges.before_side == READ) & (edges.after_side == APPLY)
        for before, start, after, at, chunks, makes_room in zip(
            edges.before.tolist(), edges.before_index.tolist(), edges.after.tolist(), edges.after_index.tolist(),
            edges.num_chunks.tolist(), room.tolist(), strict=True,
        ):  # fmt: skip
            if before != after:
                mark = _Mark(first + before, start * chunk, at * chunk, chunks * chunk, makes_room)
                self.marks[first + after].append(mark)
                self.edges[first + before].update((start * chunk, (start + chunks) * chunk))

    def standing(self, row: int) -> _Standing:
        """Whether a row may move, and which marks it is at if so."""
        done, at = self.done[row], []
        if self.total[row] <= self.near:
            return _Standing(True, ())
        for mark in self.marks[row]:
            passed = self.done[mark.before] - mark.start
            if passed < mark.length - self.near and mark.at + max(0.0, passed) <= done + self.near:
                if passed <= -self.near:
                    return _Standing(False, ())  # the mark stands still before its row has come to it
                at.append(mark)
        return _Standing(True, tuple(at))


def fluid_time_s(cluster: Cluster, jobs: Sequence[Job], transport: Transport = DEFAULT_TRANSPORT) -> float:
    """When the last transfer of all jobs has ended, from time 0. ``SpecError`` as for ``flow.simulate``."""
    check_jobs(jobs)
    rows = _Rows(cluster, jobs, transport)
    capacity = dict(enumerate(cluster.usable_bytes_per_s.tolist()))
    heads = dict.fromkeys(range(len(rows.lanes)), 0)
    now, still = 0.0, 0
    while heads:
        current = [rows.lanes[lane][at] for lane, at in heads.items()]
        moving, wake = _ready(rows, current, now)
        rates = _rates(rows, moving, capacity)
        step = min(_until(rows, rates), wake - now)
        still = 0 if step > 0 else still + 1
        if not math.isfinite(step) or still > _MOST_STILL:
            raise InternalError("a proven schedule stands still in virtual time; please report it with the schedule")
        now += step
        for row, rate in rates.items():
            rows.done[row] = min(rows.total[row], rows.done[row] + rate * step)
        for lane in list(heads):
            while lane in heads and _ended(rows, rows.lanes[lane][heads[lane]], now):
                heads[lane] += 1
                if heads[lane] == len(rows.lanes[lane]):
                    del heads[lane]
    return now


def _ended(rows: _Rows, row: int, now: float) -> bool:
    return _begun(rows, row, now) and rows.done[row] >= rows.total[row] - rows.near


def _ready(rows: _Rows, current: Sequence[int], now: float) -> tuple[dict[int, tuple[int, ...]], float]:
    """The rows that move, each with those whose marks it is at, and when the next latency ends."""
    standing = {row: found for row in current if (found := rows.standing(row)).may}
    moving = _under_way(rows, standing, now)
    while starting := _starting(rows, standing, moving, now):
        for row in starting:
            rows.begins[row] = now + rows.latency_s[row]
        # Without a latency they move at once, and others may start with them.
        moving = _under_way(rows, standing, now)
    due = (rows.start_s[row] if (begins := rows.begins[row]) is None else begins for row in current)
    wake = min((time for time in due if time > now), default=math.inf)
    return {row: tuple(mark.before for mark in standing[row].at) for row in moving}, wake


def _begun(rows: _Rows, row: int, now: float) -> bool:
    begins = rows.begins[row]
    return begins is not None and begins <= now


def _under_way(rows: _Rows, standing: dict[int, _Standing], now: float) -> set[int]:
    """The rows whose latency is over, and that are at no mark but of each other."""
    chosen = {row for row in standing if _begun(rows, row, now)}
    while gone := {row for row in chosen if any(mark.before not in chosen for mark in standing[row].at)}:
        chosen -= gone
    return chosen


def _starting(rows: _Rows, standing: dict[int, _Standing], moving: set[int], now: float) -> set[int]:
    """The messages whose first byte is there, or comes with what moves."""
    chosen = {row for row in standing if rows.begins[row] is None and rows.start_s[row] <= now}

    def waits(mark: _Mark) -> bool:
        return mark.before not in moving and not (mark.room and mark.before in chosen)

    while gone := {row for row in chosen if any(map(waits, standing[row].at))}:
        chosen -= gone
    return chosen


def _rates(rows: _Rows, moving: dict[int, tuple[int, ...]], capacity: dict[int, float]) -> dict[int, float]:
    """Max-min fair, no row faster than one whose mark it is at."""
    free = set(moving)
    rates = dict.fromkeys(moving, 0.0)
    left: dict[int, float] = {}
    users: dict[int, int] = {}
    for row in free:
        for link in rows.links[row]:
            left[link] = capacity[link]
            users[link] = users.get(link, 0) + 1
    level = 0.0
    while free:
        rise = min((left[link] / count for link, count in users.items() if count), default=math.inf)
        if not math.isfinite(rise):
            rates.update(dict.fromkeys(free, max(level, _LOCAL_BYTES_PER_S)))
            break
        level += rise
        for link, count in users.items():
            left[link] -= rise * count
        frozen = {row for row in free if any(left[link] <= _NEAR * capacity[link] for link in rows.links[row])}
        while more := {row for row in free - frozen if not (free - frozen).issuperset(moving[row])}:
            frozen |= more
        for row in frozen:
            rates[row] = level
            for link in rows.links[row]:
                users[link] -= 1
        free -= frozen
    return rates


def _until(rows: _Rows, rates: dict[int, float]) -> float:
    """Seconds until rates may change."""
    step = math.inf
    for row, rate in rates.items():
        if rate <= 0:
            continue
        step = min(step, (rows.total[row] - rows.done[row]) / rate)
        for mark in rows.marks[row]:
            ahead = rates.get(mark.before, 0.0)
            passed = rows.done[mark.before] - mark.start
            if passed >= mark.length - rows.near:
                continue
            gap = mark.at + max(0.0, passed) - rows.done[row]
            pace = ahead if passed > -rows.near else 0.0
            if gap > rows.near and rate > pace:
                step = min(step, gap / (rate - pace))
    for row, rate in rates.items():
        if rate <= 0:
            continue
        # Its own marks: when it reaches one's start or end, those behind it get another limit.
        for edge in rows.edges[row]:
            if edge > rows.done[row] + rows.near:
                step = min(step, (edge - rows.done[row]) / rate)
    return max(step, 0.0)
