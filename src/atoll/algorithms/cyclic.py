"""Runs of blocks on a circle: a run that passes the last block is two runs of memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from atoll.schedule.contract import IntArray


class Part(NamedTuple):
    """The part of some runs before, or from, the end of the circle. Arrays of one length.

    ``run`` names the runs that have such a part, ``skip`` is how far into the run it begins, ``start`` and
    ``length`` are its memory.
    """

    run: IntArray
    skip: IntArray
    start: IntArray
    length: IntArray


def cyclic_runs(start: IntArray, length: IntArray, size: int) -> Iterator[Part]:
    """The runs of ``length`` (1 to ``size``) blocks from ``start`` (any integer) on a circle of ``size``, in parts.

    >>> [(part.start.tolist(), part.length.tolist()) for part in cyclic_runs(np.array([3]), np.array([3]), 4)]
    [([3], [1]), ([0], [2])]
    """
    start = start % size
    before = np.minimum(length, size - start)
    yield Part(np.arange(len(start)), np.zeros_like(start), start, before)
    wraps = np.flatnonzero(before < length)
    yield Part(wraps, before[wraps], np.zeros_like(wraps), (length - before)[wraps])
