"""A simulated collective as a trace: when each message was on its way, in the model of ``atoll.trace``.

A message is all rows of one (step, src, dst, channel). It starts when the first of them could go and ends when the last
is there; both its ranks see the same times. Local moves take no time and are no transfers. A collective begins with its
job and ends on a rank with the last that the rank sends or receives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.schedule.prove import ProvenSchedule
from atoll.schedule.sorting import order_by
from atoll.simulator.flow import Outcome, RowTimes
from atoll.simulator.job import Job
from atoll.topology.cluster import Cluster
from atoll.trace.events import Collective, Trace, Transfers

SOURCE = "virtual time"


def timeline(jobs: Sequence[Job], found: Outcome, cluster: Cluster) -> Trace:
    """The trace of jobs that were played with ``row_times``; all of the same ranks on the same GPUs."""
    calls = [_collective(job, times) for job, times in zip(jobs, found.rows, strict=True)]
    return Trace(SOURCE, tuple(cluster.gpu_name(gpu) for gpu in jobs[0].gpus), tuple(calls))


def _collective(job: Job, times: RowTimes) -> Collective:
    proven = job.proven
    table = proven.schedule
    src, dst, channel, step = (table.column(name) for name in ("src", "dst", "channel", "step"))
    travels = np.flatnonzero(src != dst)
    lowest = _lowest_chunk(proven)
    num_bytes = table.column("num_chunks") * (job.size_bytes / table.header.chunks)
    # Messages in the order of their lanes; the rows of one stand together.
    order = travels[order_by(*(column[travels] for column in (src, dst, channel, step)))]
    keys = np.stack([column[order] for column in (src, dst, channel, step)])
    first = np.flatnonzero(np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)]) if len(order) else order
    sends = [
        keys[0, first], keys[1, first], np.ones(len(first)), keys[2, first], keys[3, first],
        np.minimum.reduceat(lowest[order], first), np.add.reduceat(num_bytes[order], first),
        np.minimum.reduceat(times.start_s[order], first), np.maximum.reduceat(times.end_s[order], first),
    ] if len(order) else [np.zeros(0)] * 9  # fmt: skip
    receives = [sends[1], sends[0], np.zeros(len(first)), *sends[3:]]
    transfers = Transfers.of([np.concatenate(pair) for pair in zip(sends, receives, strict=True)])
    start = np.full(len(job.gpus), job.start_s)
    end = start.copy()
    np.maximum.at(end, transfers.rank, transfers.end_s)
    name = f"{table.header.collective.replace('_', '-')} {job.label or proven.name}"
    return Collective(name, job.size_bytes, start, end, transfers)


def _lowest_chunk(proven: ProvenSchedule) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Of each row the lowest number of the chunks that it moves."""
    if not len(proven.schedule):
        return np.zeros(0, np.int64)
    return np.minimum.reduceat(proven.chunk_number, proven.row_start[: len(proven.schedule)]).astype(np.int64)
