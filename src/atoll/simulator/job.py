"""One collective of those that a simulation plays: a proven schedule on some GPUs of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from atoll.errors import SpecError
from atoll.schedule.prove import ProvenSchedule


class Job(msgspec.Struct, frozen=True):
    """Rank r of ``proven`` runs on GPU ``gpus[r]``, not before ``start_s``; ``size_bytes`` is the whole vector's."""

    proven: ProvenSchedule
    gpus: tuple[int, ...]
    size_bytes: float
    start_s: float = 0.0
    label: str = ""


def check_jobs(jobs: Sequence[Job]) -> None:
    """Raises ``SpecError`` for a job that does not fit its GPUs, or with a size or a start that no job has."""
    for job in jobs:
        ranks = job.proven.schedule.header.world_size
        if len(job.gpus) != ranks or len(set(job.gpus)) != ranks:
            raise SpecError(f"job {job.label!r}: expected {ranks} different GPUs, got {len(set(job.gpus))}")
        if not (0 <= job.size_bytes < float("inf") and 0 <= job.start_s < float("inf")):
            raise SpecError(
                f"job {job.label!r}: expected a size and a start of at least 0, got {job.size_bytes} and {job.start_s}"
            )
