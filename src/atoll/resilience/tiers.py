"""Two tiers of checkpoints: often into host memory, seldom to storage.

A copy in host memory takes seconds and outlives the process, not the node. Failures after which the job starts again
on the same nodes (**soft**: a hung collective, a crashed process) fall back to memory; those that take a node away
(**hard**) fall back to storage. DLRover's Flash Checkpoint works like this, and reports that about 75 % of the faults
in jobs with thousands of GPUs are soft.

The two tiers are reduced to one: the job checkpoints at the rhythm of the memory tier; each storage checkpoint's
overhead is spread over the memory checkpoints between two of them; a hard failure costs more rework. Where in the
storage interval a hard failure strikes is even, so the rework beyond the memory interval's own is

    (storage interval - memory interval) / 2 + background time of the storage write

on the average. This mean stands for the whole distribution, which is right to first order in (interval / MTBF).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from atoll.errors import SpecError
from atoll.resilience.cadence import Checkpoint, optimum_s
from atoll.resilience.demand import positive
from atoll.resilience.goodput import FailureKind, check_interval, check_shares


class Tiers(msgspec.Struct, frozen=True):
    """Two tiers as ``goodput`` takes one: the memory interval, the overhead and the kinds of failures with rework."""

    interval_s: float
    checkpoint: Checkpoint
    kinds: tuple[FailureKind, ...]


def two_tiers(
    memory_interval_s: float,
    copy_s: float,
    storage_interval_s: float,
    storage: Checkpoint,
    kinds: Sequence[FailureKind],
) -> Tiers:
    """Join a memory tier (every ``memory_interval_s``, blocking ``copy_s``) with a storage tier.

    Kinds that lose nodes fall back to storage, the others to memory.
    """
    check_interval(storage_interval_s, storage)
    positive(memory_interval_s, "interval of checkpoints in memory")
    positive(copy_s, "time of a copy to memory")
    if memory_interval_s > storage_interval_s:
        raise SpecError(
            f"checkpoints in memory: every {memory_interval_s:g} s is seldom; expected at most the storage interval, "
            f"{storage_interval_s:g} s"
        )
    spread_s = storage.overhead_s * memory_interval_s / storage_interval_s
    rework_s = (storage_interval_s - memory_interval_s) / 2 + storage.background_s
    falling_back = tuple(
        msgspec.structs.replace(kind, rework_s=kind.rework_s + rework_s) if kind.nodes else kind for kind in kinds
    )
    return Tiers(memory_interval_s, Checkpoint(copy_s + spread_s), falling_back)


def storage_optimum_s(storage: Checkpoint, mtbf_s: float, kinds: Sequence[FailureKind]) -> float:
    """The best storage interval where only failures that lose nodes fall back to storage, in seconds."""
    check_shares(kinds)
    hard = sum(kind.share for kind in kinds if kind.nodes)
    if hard <= 0:
        raise SpecError("checkpoints in memory: no failure loses a node, so nothing would fall back to storage")
    return optimum_s(storage, mtbf_s / hard)
