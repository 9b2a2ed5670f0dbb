"""What a test may know of a table: the worlds to try, proven schedules made once, and plain counting."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from atoll.algorithms import catalog
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.schedule.runs import expand

Bytes = npt.NDArray[np.int64]
ENTRIES = [(entry.collective, entry.name) for entry in catalog.CATALOG]


class Counts(NamedTuple):
    """Steps with a message, messages, and bytes per rank."""

    steps: int
    messages: int
    sent: Bytes
    received: Bytes


def roots(collective: str, world_size: int) -> list[int | None]:
    """None where there is no root; else the first, the last and one between."""
    if not COLLECTIVES[collective].rooted:
        return [None]
    return sorted({0, world_size // 2, world_size - 1})


@cache
def proven(collective: str, name: str, world_size: int, root: int | None) -> ProvenSchedule:
    return prove(catalog.build(collective, name, world_size, root))


def measured(schedule: ProvenSchedule, length: int) -> Counts:
    """Counted row by row, for a vector of ``length`` bytes."""
    rows = schedule.schedule.columns()
    size = chunk_sizes(schedule.contract, length)[schedule.chunk_number]
    wide = expand(rows).columns
    travels = wide.src != wide.dst
    sent, received = (
        np.bincount(end[travels], size[travels], minlength=schedule.world_size).astype(np.int64)
        for end in (wide.src, wide.dst)
    )
    away = rows.src != rows.dst
    keys = np.stack([rows.step[away], rows.src[away], rows.dst[away], rows.channel[away]])
    messages = np.unique(keys, axis=1).shape[1]
    return Counts(len(np.unique(rows.step[away])), messages, sent, received)
