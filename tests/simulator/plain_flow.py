"""The flow level said plainly, for tests: a transfer for each row, event by event, and the rates of all each time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from atoll.schedule.dependencies import APPLY, READ, derive
from atoll.simulator.job import Job
from atoll.topology.cluster import Cluster
from atoll.topology.routes import Transport, find_routes

_NEAR = 1e-9


class _Row:
    """``state``: waiting, then late (its latency passes), then moving, then done."""

    def __init__(self, job: int, size: float, links: tuple[int, ...], latency_s: float, start_s: float) -> None:
        self.job, self.size, self.links, self.latency_s, self.start_s = job, size, links, latency_s, start_s
        self.before: set[int] = set()
        self.state, self.left, self.wake, self.released, self.end = "waiting", size, math.inf, math.nan, math.nan


def play(jobs: Sequence[Job], cluster: Cluster, transport: Transport) -> list[list[tuple[float, float]]]:
    """Of each job, of each row: when it was released, and its end."""
    rows = [row for number, job in enumerate(jobs) for row in _rows(number, job, cluster, transport)]
    first = np.cumsum([0, *(len(job.proven.schedule) for job in jobs)]).tolist()
    for number, job in enumerate(jobs):
        _order(rows[first[number] : first[number + 1]], job, first[number])
    capacity = cluster.usable_bytes_per_s
    now = 0.0
    while any(row.state != "done" for row in rows):
        for row in rows:
            if row.state == "waiting" and row.start_s <= now and all(rows[at].state == "done" for at in row.before):
                row.state, row.released, row.wake = "late", now, now + row.latency_s
            if row.state == "late" and row.wake <= now * (1 + 1e-12):
                row.state = "moving"
        rates = _rates({at: row.links for at, row in enumerate(rows) if row.state == "moving"}, capacity)
        times = [row.wake for row in rows if row.state == "late"]
        times += [row.start_s for row in rows if row.state == "waiting" and row.start_s > now]
        times += [now + rows[at].left / rate for at, rate in rates.items()]
        then = min(times)
        for at, rate in rates.items():
            rows[at].left -= rate * (then - now)
            if rows[at].left <= _NEAR * rows[at].size + rate * then * 1e-12:
                rows[at].state, rows[at].end = "done", then
        now = then
    return [[(row.released, row.end) for row in rows if row.job == number] for number in range(len(jobs))]


def _rows(number: int, job: Job, cluster: Cluster, transport: Transport) -> list[_Row]:
    table = list(job.proven.schedule.rows())
    gpus = np.array(job.gpus)
    routes = find_routes(
        cluster, gpus[[row.src for row in table]], gpus[[row.dst for row in table]],
        [row.channel for row in table], transport,
    )  # fmt: skip
    latency = routes.latency_s(cluster).tolist()
    chunk = job.size_bytes / job.proven.schedule.header.chunks
    return [
        _Row(number, row.num_chunks * chunk, tuple(routes[at].tolist()), latency[at], job.start_s)
        for at, row in enumerate(table)
    ]


def _order(rows: list[_Row], job: Job, first: int) -> None:
    """What waits for what, by place among all rows; a message pays its latency once."""
    table = list(job.proven.schedule.rows())
    edges = derive(job.proven)
    for before, side, after, other in zip(
        edges.before.tolist(), edges.before_side.tolist(), edges.after.tolist(), edges.after_side.tolist(), strict=True
    ):
        if not (side == READ and other == APPLY and table[before].step == table[after].step):
            rows[after].before.add(first + before)
    last: dict[tuple[int, int, int], int] = {}
    for at, row in enumerate(table):
        lane = (row.src, row.dst, row.channel)
        if lane in last:
            rows[at].before.add(first + last[lane])
            if table[last[lane]].step == row.step:
                rows[at].latency_s = 0.0
        last[lane] = at


def _rates(moving: dict[int, tuple[int, ...]], capacity: np.ndarray) -> dict[int, float]:
    """Water filling: of all links, the one with the least share is full first."""
    left = {link: float(capacity[link]) for links in moving.values() for link in links}
    rates = {at: 1e18 for at, links in moving.items() if not links}
    rising = {at: links for at, links in moving.items() if links}
    while rising:
        share = {
            link: left[link] / users
            for link in left
            if (users := sum(link in links for links in rising.values())) > 0
        }  # fmt: skip
        link = min(share, key=lambda one: (share[one], one))
        for at in [at for at, links in rising.items() if link in links]:
            rates[at] = share[link]
            for crossed in rising.pop(at):
                left[crossed] -= share[link]
    return rates
