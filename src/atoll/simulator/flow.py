"""Schedules over a cluster in virtual time, piece by piece: transfers start when their data is there and share links.

A row of the table is cut into **pieces** of at most ``segment_bytes``. A piece is released when what its bytes depend
on has arrived (``schedule.dependencies``) and when the piece before it in its lane has ended. The first piece of a
message then pays the latency of its route; then its bytes flow. All that flow at a time share the links by **max-min
fairness**: rates rise together, a link that is full freezes those that cross it. Smaller pieces come closer to the
byte by byte of ``fluid``, which is exact and for small worlds; this one is for hundreds of ranks.

An overwrite does not wait for a read of its own step: the receiver stages it, as in an exchange between two ranks.
Chunks are equal shares of the vector. Moves within a rank take no time, reductions none either.

**Events** are batches: everything that ends at one time ends together. Rates are worked out once for each set of
routes in use. The same arguments give the same outcome, to the bit.

**Critical path**: from the last piece back, each time to the piece whose end released it. Its time is charged to the
link that was full, or to latency; what remains is the wait for a job's start.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from atoll.errors import InternalError, SpecError
from atoll.schedule.contract import IntArray
from atoll.schedule.dependencies import APPLY, READ, derive
from atoll.schedule.prove import ProvenSchedule
from atoll.simulator.job import Job, check_jobs
from atoll.topology.cluster import Cluster, Floats, Integers
from atoll.topology.routes import DEFAULT_TRANSPORT, Routes, Transport, find_routes

__all__ = ["Job", "Outcome", "RowTimes", "simulate"]

MAX_PIECES = 20_000_000
_NEAR = 1e-9
_FREE_BYTES_PER_S = 1e18  # a move that crosses no link
_MOST_REMEMBERED = 4096  # sets of routes


class RowTimes(msgspec.Struct, frozen=True, eq=False):
    """Of each row of a job's table: when its first byte could go (its data there, its lane free, then its latency), and
    when its last byte was there."""

    start_s: Floats
    end_s: Floats


class Outcome(msgspec.Struct, frozen=True, eq=False):
    """Times from 0. ``link_bytes`` of every directed link; ``critical_s`` by link, -1 for latency, longest first.

    ``rows``: of each job, where asked for.
    """

    finish_s: float
    job_finish_s: tuple[float, ...]
    rank_finish_s: tuple[Floats, ...]
    link_bytes: Floats
    critical_s: tuple[tuple[int, float], ...]
    events: int
    rows: tuple[RowTimes, ...] = ()


class _Pieces(msgspec.Struct, frozen=True):
    """Of all jobs, as columns; ``after[first[i]:first[i + 1]]`` are those that wait for piece i."""

    size: Floats
    route: Integers
    latency_s: Floats
    start_s: Floats
    needs: Integers
    first: Integers
    after: Integers
    job: Integers
    dst: Integers
    row: Integers


def simulate(
    jobs: Sequence[Job],
    cluster: Cluster,
    *,
    segment_bytes: float | None = None,
    transport: Transport = DEFAULT_TRANSPORT,
    row_times: bool = False,
) -> Outcome:
    """Play the jobs together. ``segment_bytes`` ``None``: rows move whole. ``row_times``: with ``rows``.

    Raises ``SpecError`` for a job that does not fit its GPUs, for a pair that nothing joins, and for too many pieces.
    """
    check_jobs(jobs)
    if segment_bytes is not None and segment_bytes <= 0:
        raise SpecError(f"segment_bytes: expected more than 0, got {segment_bytes}")
    pieces, routes = _cut(jobs, cluster, segment_bytes, transport)
    finish, cause, release, full, events = _play(pieces, _Sharing(cluster, routes))
    job_finish, rank_finish = [], []
    for at, job in enumerate(jobs):
        ends = np.full(len(job.gpus), job.start_s)
        mine = pieces.job == at
        np.maximum.at(ends, pieces.dst[mine], finish[mine])
        rank_finish.append(ends)
        job_finish.append(float(ends.max()))
    per_route = np.bincount(pieces.route, weights=pieces.size, minlength=len(routes))
    carried = np.repeat(per_route, np.diff(routes.offsets))
    link_bytes = np.bincount(routes.links, weights=carried, minlength=cluster.num_links).astype(np.float64)
    critical = _critical(pieces, finish, cause, release, full)
    rows = []
    if row_times:
        for at, job in enumerate(jobs):
            mine = pieces.job == at
            counted, row = len(job.proven.schedule), pieces.row[mine]
            first = np.searchsorted(row, np.arange(counted))
            rows.append(
                RowTimes(release[mine][first], np.maximum.reduceat(finish[mine], first) if counted else release)
            )
    return Outcome(
        max(job_finish, default=0.0), tuple(job_finish), tuple(rank_finish), link_bytes, critical, events, tuple(rows)
    )  # fmt: skip


def _cut(
    jobs: Sequence[Job], cluster: Cluster, segment_bytes: float | None, transport: Transport
) -> tuple[_Pieces, Routes]:
    """All pieces, and the distinct routes."""
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in _Pieces.__struct_fields__}
    before_all: list[IntArray] = []
    ends: list[tuple[Integers, Integers, Integers]] = []
    count = routed = 0
    for at, job in enumerate(jobs):
        table = job.proven.schedule
        src, dst, channel, step = (table.column(name) for name in ("src", "dst", "channel", "step"))
        chunks = table.column("num_chunks")
        row_bytes = chunks * (job.size_bytes / table.header.chunks)
        cuts = np.ones(len(src), dtype=np.int64)
        if segment_bytes is not None:
            cuts = np.maximum(1, np.ceil(row_bytes / segment_bytes - _NEAR)).astype(np.int64)
        first = count + np.cumsum(cuts) - cuts
        total = int(cuts.sum())
        if count + total > MAX_PIECES:
            raise SpecError(f"more than {MAX_PIECES} pieces to move; give longer segments or fewer ranks")
        row = np.repeat(np.arange(len(src)), cuts)
        pairs, number = np.unique(np.stack((src, dst, channel), axis=1), axis=0, return_inverse=True)
        number = number.reshape(-1)
        gpus = np.array(job.gpus, dtype=np.int64)
        ends.append((gpus[pairs[:, 0]], gpus[pairs[:, 1]], pairs[:, 2]))
        latency = find_routes(cluster, *ends[-1], transport).latency_s(cluster)
        # Lanes: rows of one pair and channel, in order; only the first row of a message pays latency.
        order = np.argsort(number, kind="stable")
        same = number[order][1:] == number[order][:-1]
        pays = np.ones(len(src), dtype=bool)
        pays[order[1:][same & (step[order][1:] == step[order][:-1])]] = False
        pays = np.repeat(pays, cuts) & (np.arange(total) + count == first[row])
        inner = np.flatnonzero(row[1:] == row[:-1]) + count
        earlier, later = order[:-1][same], order[1:][same]
        data_before, data_after = _edges(job.proven, step, chunks, cuts, first)
        before_all += [inner, first[earlier] + cuts[earlier] - 1, data_before]
        columns["after"] += [inner + 1, first[later], data_after]
        columns["size"].append((row_bytes / cuts)[row])
        columns["route"].append(number[row] + routed)
        columns["latency_s"].append(np.where(pays, latency[number[row]], 0.0))
        columns["start_s"].append(np.full(total, job.start_s))
        columns["job"].append(np.full(total, at))
        columns["dst"].append(dst[row])
        columns["row"].append(row)
        count += total
        routed += len(pairs)
    empty = np.zeros(0, dtype=np.int64)
    joined: dict[str, NDArray[Any]] = {
        name: np.concatenate(parts) if parts else empty for name, parts in columns.items()
    }
    before = np.concatenate(before_all) if before_all else empty
    order = np.argsort(before, kind="stable")
    joined["needs"] = np.bincount(joined["after"], minlength=count)
    joined["first"] = np.concatenate(([0], np.cumsum(np.bincount(before, minlength=count)))).astype(np.int64)
    joined["after"] = joined["after"][order]
    gpu_src, gpu_dst, channels = (np.concatenate([empty, *(end[side] for end in ends)]) for side in range(3))
    return _Pieces(**joined), find_routes(cluster, gpu_src, gpu_dst, channels, transport)


def _edges(
    proven: ProvenSchedule, step: IntArray, chunks: IntArray, cuts: IntArray, first: IntArray
) -> tuple[IntArray, IntArray]:
    """Pairs of pieces, before and after. Lengths are in chunks."""
    found = derive(proven)
    room = (found.before_side == READ) & (found.after_side == APPLY) & (step[found.before] == step[found.after])
    kept = np.flatnonzero(~room)
    before, after = found.before[kept], found.after[kept]
    start, length = found.after_index[kept], found.num_chunks[kept]
    long_before, long_after = chunks[before] / cuts[before], chunks[after] / cuts[after]
    low = np.floor(start / long_after + _NEAR).astype(np.int64)
    high = np.minimum(np.ceil((start + length) / long_after - _NEAR).astype(np.int64), cuts[after])
    spans = np.maximum(high - low, 1)
    edge = np.repeat(np.arange(len(kept)), spans)
    piece = low[edge] + np.arange(len(edge)) - np.repeat(np.cumsum(spans) - spans, spans)
    upto = np.minimum((piece + 1) * long_after[edge], (start + length)[edge]) - start[edge]
    passed = np.ceil((upto + found.before_index[kept][edge]) / long_before[edge] - _NEAR).astype(np.int64) - 1
    passed = np.clip(passed, 0, cuts[before][edge] - 1)
    return first[before][edge] + passed, first[after][edge] + piece


class _Sharing:
    """Max-min fair rates of a multiset of routes, remembered."""

    def __init__(self, cluster: Cluster, routes: Routes) -> None:
        self.routes = routes
        self.capacity = cluster.usable_bytes_per_s
        self.known: dict[bytes, tuple[Floats, Integers]] = {}

    def of(self, routes: Integers) -> tuple[Floats, Integers]:
        """Per route given: bytes per second, and the link that is full, -1 for none."""
        key = routes.tobytes()
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= _MOST_REMEMBERED:
                self.known.clear()
            found = self.known[key] = self._work_out(routes)
        return found

    def _work_out(self, routes: Integers) -> tuple[Floats, Integers]:
        lengths = self.routes.offsets[routes + 1] - self.routes.offsets[routes]
        user = np.repeat(np.arange(len(routes)), lengths)
        inner = np.arange(len(user)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        links, at = np.unique(self.routes.links[self.routes.offsets[routes][user] + inner], return_inverse=True)
        left = self.capacity[links].copy()
        rate, full = np.full(len(routes), _FREE_BYTES_PER_S), np.full(len(routes), -1, dtype=np.int64)
        free = lengths > 0
        while free.any():
            users = np.bincount(at, weights=free[user], minlength=len(links))
            share = np.where(users > 0, left / np.maximum(users, 1), np.inf)
            level = float(share.min())
            stops = (share <= level * (1 + _NEAR))[at] & free[user]
            full[user[stops]] = links[at[stops]]
            frozen = np.zeros(len(routes), dtype=bool)
            frozen[user[stops]] = True
            rate[frozen] = level
            left = np.maximum(left - np.bincount(at, weights=frozen[user], minlength=len(links)) * level, 0.0)
            free &= ~frozen
        return rate, full


def _play(pieces: _Pieces, sharing: _Sharing) -> tuple[Floats, Integers, Floats, Integers, int]:
    """Per piece: its end, the piece that released it (-1: the start), when, and the link that was full at its end."""
    count = len(pieces.size)
    needs = pieces.needs.copy()
    finish, release = np.full(count, np.nan), pieces.start_s.copy()
    cause, full = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    waking: list[tuple[float, int, Integers]] = []
    sent = 0

    def wake(chosen: Integers) -> None:
        nonlocal sent
        begins = release[chosen] + pieces.latency_s[chosen]
        for time in np.unique(begins).tolist():
            heapq.heappush(waking, (time, sent, chosen[begins == time]))
            sent += 1

    wake(np.flatnonzero(needs == 0))
    active = np.zeros(0, dtype=np.int64)
    left = np.zeros(0)
    rate, limit = np.zeros(0), np.zeros(0, dtype=np.int64)
    now, events, ended = 0.0, 0, 0
    while len(active) or waking:
        events += 1
        until = now + float((left / rate).min()) if len(active) else np.inf
        time = min(until, waking[0][0]) if waking else until
        left = left - rate * (time - now)
        now = time
        over = left <= _NEAR * pieces.size[active] + rate * (now * 1e-14)
        done = active[over]
        finish[done], full[done] = now, limit[over]
        ended += len(done)
        active, left = active[~over], left[~over]
        if len(done):
            spans = pieces.first[done + 1] - pieces.first[done]
            inner = np.arange(int(spans.sum())) - np.repeat(np.cumsum(spans) - spans, spans)
            after = pieces.after[np.repeat(pieces.first[done], spans) + inner]
            np.subtract.at(needs, after, 1)
            cause[after] = np.repeat(done, spans)
            released = np.unique(after[needs[after] == 0])
            release[released] = np.maximum(now, pieces.start_s[released])
            wake(released)
        while waking and waking[0][0] <= now:
            woken = heapq.heappop(waking)[2]
            active, left = np.concatenate((active, woken)), np.concatenate((left, pieces.size[woken]))
        order = np.argsort(pieces.route[active], kind="stable")
        active, left = active[order], left[order]
        rate, limit = sharing.of(pieces.route[active])
    if ended != count:
        raise InternalError("a proven schedule stands still in virtual time; please report it with the schedule")
    return finish, cause, release, full, events


def _critical(
    pieces: _Pieces, finish: Floats, cause: Integers, release: Floats, full: Integers
) -> tuple[tuple[int, float], ...]:
    spent: dict[int, float] = {}
    at = int(finish.argmax()) if len(finish) else -1
    while at >= 0:
        latency = float(pieces.latency_s[at])
        spent[-1] = spent.get(-1, 0.0) + latency
        link = int(full[at])
        spent[link] = spent.get(link, 0.0) + float(finish[at] - release[at]) - latency
        at = int(cause[at])
    return tuple(sorted(((link, time) for link, time in spent.items() if time > 0), key=lambda one: (-one[1], one[0])))
