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
    """None where there is no root; else the first, the last and one between, in large worlds two between."""
    if not COLLECTIVES[collective].rooted:
        return [None]
    if world_size <= 16:
        return sorted({0, world_size // 2, world_size - 1})
    return [world_size // 3, world_size - world_size // 5]


@cache
def proven(collective: str, name: str, world_size: int, root: int | None) -> ProvenSchedule:
    return prove(catalog.build(collective, name, world_size, root))


def measured(schedule: ProvenSchedule, *lengths: int) -> list[Counts]:
    """Counted row by row, for vectors of ``lengths`` bytes."""
    rows = schedule.schedule.columns()
    wide = expand(rows).columns
    travels = wide.src != wide.dst
    src, dst, number = wide.src[travels], wide.dst[travels], schedule.chunk_number[travels]
    away = rows.src != rows.dst
    n = schedule.world_size
    key = ((rows.channel * (int(rows.step.max(initial=0)) + 1) + rows.step) * n + rows.src) * n + rows.dst
    steps, messages = len(np.unique(rows.step[away])), len(np.unique(key[away]))
    found = []
    for length in lengths:
        size = chunk_sizes(schedule.contract, length)[number]
        sent, received = (np.bincount(end, size, minlength=n).astype(np.int64) for end in (src, dst))
        found.append(Counts(steps, messages, sent, received))
    return found
