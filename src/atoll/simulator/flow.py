"""Schedules over a cluster in virtual time, piece by piece: transfers start when their data is there and share links.

A row of the table is cut into **pieces** of at most ``segment_bytes`` (``simulator.pieces``). A piece is released when
what its bytes depend on has arrived and when the piece before it in its lane has ended. The first piece of a message
then pays the latency of its route; then its bytes flow. All that flow at a time share the links by **max-min fairness**
(``simulator.fairness``). Smaller pieces come closer to the byte by byte of ``fluid``, which is exact and for small
worlds; this one is for a thousand ranks and more.

Chunks are equal shares of the vector. Moves within a rank take no time, reductions none either.

**Two kinds of lanes.** A lane that no other can slow down has a rate of its own: when a piece of it ends is known as
soon as it is released. Such pieces are not played but worked out, in waves: all that are known to end, then all that
those release. Lanes that contend for links are played, event by event: everything that starts or ends at one time does
so together, and rates are worked out anew for the groups it touches. A wave never goes past the next
event, so all that an event depends on is known when it comes. The same arguments give the same outcome, to the bit.

**Critical path**: from the last piece back, each time to the piece whose end released it. Its time is charged to the
link that was full, or to latency; what remains is the wait for a job's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from atoll.errors import InternalError, SpecError
from atoll.simulator.fairness import Fairness, ragged
from atoll.simulator.job import Job, check_jobs
from atoll.simulator.pieces import Numbers, Pieces, cut
from atoll.topology.cluster import Cluster, Floats, Integers
from atoll.topology.routes import DEFAULT_TRANSPORT, Transport

_TOGETHER: Final = 1e-12  # times that differ by this share are one: sums in another order
_LATEST_S: Final = float(np.finfo(np.float64).max)


class RowTimes(msgspec.Struct, frozen=True, eq=False):
    """Of each row of a job's table: when its first byte could go, its data there and its lane free, and when its last
    byte was there. The latency of its route lies between."""

    start_s: Floats
    end_s: Floats


class Outcome(msgspec.Struct, frozen=True, eq=False):
    """Times from 0. ``link_bytes`` of every directed link; ``critical_s`` by link, -1 for latency, longest first.

    ``rows``: of each job, where asked for. ``events``: times at which rates were worked out, and waves.
    """

    finish_s: float
    job_finish_s: tuple[float, ...]
    rank_finish_s: tuple[Floats, ...]
    link_bytes: Floats
    critical_s: tuple[tuple[int, float], ...]
    events: int
    rows: tuple[RowTimes, ...] = ()


def simulate(
    jobs: Sequence[Job],
    cluster: Cluster,
    *,
    segment_bytes: float | None = None,
    transport: Transport = DEFAULT_TRANSPORT,
    row_times: bool = False,
) -> Outcome:
    """Play the jobs together. ``segment_bytes`` ``None``: rows move whole. ``row_times``: with ``rows``.

    Raises ``SpecError`` for a job that does not fit its GPUs, for a pair that nothing joins, for a link without
    bandwidth, and for too many pieces.
    """
    check_jobs(jobs)
    if segment_bytes is not None and not segment_bytes > 0:
        raise SpecError(f"segment_bytes: expected more than 0, got {segment_bytes}")
    pieces, lanes = cut(jobs, cluster, segment_bytes, transport)
    fairness = Fairness(cluster, lanes.routes)
    play = _Play(jobs, pieces, lanes.latency_s, fairness)
    play.run()
    job_finish, rank_finish, rows = [], [], []
    for at, job in enumerate(jobs):
        mine = pieces.of_job(at)
        ends: Floats = np.full(len(job.gpus), job.start_s, dtype=np.float64)
        np.maximum.at(ends, lanes.dst[pieces.lane[mine]], play.finish[mine])
        rank_finish.append(ends)
        job_finish.append(float(ends.max()))
        if row_times:
            first = pieces.first_piece[pieces.first_row[at] : pieces.first_row[at + 1] + 1]
            # The pieces of a row move one after the other.
            rows.append(RowTimes(play.release[first[:-1]], play.finish[first[1:] - 1]))
    carried = np.bincount(pieces.lane, weights=pieces.size, minlength=len(lanes.job))
    along = np.repeat(carried, np.diff(lanes.routes.offsets))
    link_bytes = np.bincount(lanes.routes.links, weights=along, minlength=cluster.num_links).astype(np.float64)
    return Outcome(
        max(job_finish, default=0.0), tuple(job_finish), tuple(rank_finish), link_bytes, play.critical(), play.events,
        tuple(rows),
    )  # fmt: skip


class _Play:
    """Where every piece and every lane stands. Lanes are numbered as by ``Fairness``: those that contend come first.

    Per piece: ``finish``, ``release``, the piece whose end was the last to be waited for (``cause``, -1: the job's
    start), the link that was full at its end. Per lane: the ``head``, its next piece if that is released, and when it
    is ``due``: to start if it is of a contended lane and not ``flowing`` yet, to end otherwise; never if there is none.
    """

    def __init__(self, jobs: Sequence[Job], pieces: Pieces, latency_s: Floats, fairness: Fairness) -> None:
        count, contended = len(pieces.size), fairness.contended
        self.pieces = pieces
        self.fairness = fairness
        place = np.empty(len(fairness.order), dtype=np.int32)
        place[fairness.order] = np.arange(len(fairness.order), dtype=np.int32)
        self.lane: Numbers = place[pieces.lane]
        self.latency_s = latency_s[fairness.order]
        self.needs = pieces.needs.copy()
        self.finish: Floats = np.full(count, np.nan)
        self.release: Floats = np.zeros(count)
        for at, job in enumerate(jobs):
            self.release[pieces.of_job(at)] = job.start_s
        self.cause: Numbers = np.full(count, -1, dtype=np.int32)
        self.full: Numbers = fairness.own_limit[self.lane].astype(np.int32)
        self.head: Numbers = np.zeros(len(place), dtype=np.int32)
        self.due: Floats = np.full(len(place), np.inf)
        self.own_s_per_byte = 1 / fairness.own_bytes_per_s
        self.own_s_per_byte[:contended] = 0.0  # their ends are not known beforehand
        self.flowing = np.zeros(contended, dtype=bool)
        self.left, self.rate, self.since = np.zeros(contended), np.zeros(contended), np.zeros(contended)
        self.limit: Integers = np.zeros(contended, dtype=np.int64)
        self.events = 0

    def run(self) -> None:
        contended = self.fairness.contended
        self._ready(np.flatnonzero(self.needs == 0))
        while True:
            now = float(self.due[:contended].min(initial=np.inf))
            ending = np.flatnonzero(self.due[contended:] <= min(now, _LATEST_S)) + contended
            if len(ending):
                self._end(ending, self.due[ending])
            elif now < np.inf:
                self._event(now)
            else:
                break
            self.events += 1
        if np.isnan(self.finish).any():
            raise InternalError("a proven schedule stands still in virtual time; please report it with the schedule")

    def _event(self, now: float) -> None:
        """All that ends or starts at a time in contended lanes, and what that does to the others of their groups."""
        until = now * (1 + _TOGETHER)
        contended, flowing = self.fairness.contended, self.flowing
        ending = np.flatnonzero((self.due[:contended] <= until) & flowing)
        flowing[ending] = False
        self.full[self.head[ending]] = self.limit[ending]
        self._end(ending, np.full(len(ending), now))
        starting = np.flatnonzero((self.due[:contended] <= until) & ~flowing)
        flowing[starting] = True
        self.left[starting], self.rate[starting] = self.pieces.size[self.head[starting]], 0.0
        touched = np.zeros(contended, dtype=bool)
        touched[self.fairness.group[ending]] = True
        touched[self.fairness.group[starting]] = True
        moving = np.flatnonzero(flowing & touched[self.fairness.group])
        left = np.maximum(self.left[moving] - self.rate[moving] * (now - self.since[moving]), 0.0)
        rate, limit = self.fairness.rates(moving)
        self.left[moving], self.since[moving], self.rate[moving], self.limit[moving] = left, now, rate, limit
        self.due[moving] = now + left / rate

    def _end(self, lanes: Integers, times: Floats) -> None:
        """The heads of lanes end; what waited for nothing else is released."""
        pieces = self.pieces
        done = self.head[lanes].astype(np.int64)  # as NumPy likes its indices
        self.finish[done] = times
        self.due[lanes] = np.inf
        spans = pieces.first[done + 1] - pieces.first[done]
        following = pieces.following[done]
        goes_on = following >= 0
        waiting = np.concatenate(
            (pieces.after[ragged(pieces.first[done], spans)], following[goes_on]), dtype=np.int64, casting="safe"
        )
        ended = np.concatenate((np.repeat(times, spans), times[goes_on]))
        by = np.concatenate((np.repeat(done, spans), done[goes_on]))
        np.subtract.at(self.needs, waiting, np.int32(1))
        np.maximum.at(self.release, waiting, ended)
        last = self.release[waiting] == ended
        self.cause[waiting[last]] = by[last]
        self._ready(waiting[self.needs[waiting] == 0])

    def _ready(self, chosen: Integers | Numbers) -> None:
        """Pieces that wait for nothing any more are the heads of their lanes."""
        lanes = self.lane[chosen]
        self.head[lanes] = chosen
        begins = self.release[chosen] + np.where(self.pieces.pays[chosen], self.latency_s[lanes], 0.0)
        self.due[lanes] = begins + self.pieces.size[chosen] * self.own_s_per_byte[lanes]

    def critical(self) -> tuple[tuple[int, float], ...]:
        spent: dict[int, float] = {}
        at = int(self.finish.argmax()) if len(self.finish) else -1
        while at >= 0:
            latency = float(self.latency_s[self.lane[at]]) if self.pieces.pays[at] else 0.0
            link = int(self.full[at])
            spent[-1] = spent.get(-1, 0.0) + latency
            spent[link] = spent.get(link, 0.0) + float(self.finish[at] - self.release[at]) - latency
            at = int(self.cause[at])
        ranked = sorted(spent.items(), key=lambda one: (-one[1], one[0]))
        return tuple((link, time) for link, time in ranked if time > 0)
