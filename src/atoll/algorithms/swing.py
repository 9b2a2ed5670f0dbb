"""Swing: recursive halving-doubling for a torus, with partners that swing to and fro and so stay nearer.

On a ring (or each ring of a torus) recursive doubling's partner at distance 2^s congests the links in between. Swing
pairs rank r in step s with r + d(s) if r is even, and r - d(s) if it is odd, where

    d(s) = 1 - 2 + 4 - ... + (-2)^s = (1 - (-2)^(s+1)) / 3        1, -1, 3, -5, 11, ...

about two thirds of 2^s. The first half is a reduce-scatter (in step s a rank sends what its partner, and all whom the
partner meets later, are to complete), the second half the same exchanges backwards with the sums.

**Which N.** Pairs join an even and an odd rank, so the mathematics wants an even N. At a power of two the pairs
halve the vector exactly. At another even N ceil(log2 N) steps still reach everyone, but some twice; a chunk goes to
each rank by the first way only, so that the bytes stay optimal and every contribution counts once. At an odd N the
last rank stands aside: the others complete N - 1 chunks, the last rank hands its share of chunk c directly to the rank
that completes it, some in every step, and gets the sum back in the same way.

With m = N rounded down to even and L = ceil(log2 m):

=========== ====== ==================================== ==============
vector of n alpha  beta                                 gamma
=========== ====== ==================================== ==============
all-reduce  2 L    2(m-1)/m n, and n/m more if N is odd  as many as m
=========== ====== ==================================== ==============

(De Sensi, Bonato, Saam and Hoefler, NSDI 2024, "Swing: short-cutting rings for higher bandwidth allreduce",
arXiv 2401.09356.) The order of a sum depends on the chunk, since partners lie to the right of some ranks and to the
left of others; all ranks end with the same bits. At powers of two every sum is a balanced tree.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import IntArray
from atoll.schedule.table import Schedule


def all_reduce(world_size: int) -> Schedule:
    core = max(world_size - world_size % 2, 1)
    swing = ScheduleBuilder("all_reduce", world_size, chunks=core, name="swing")
    rank = np.arange(core)
    partners = [(rank + _distance(step) * (1 - 2 * (rank % 2))) % core for step in range((core - 1).bit_length())]
    owner = _owners(core, partners)
    steps = len(partners)
    # The way of every chunk from its owner to all; the reduce-scatter goes the same ways backwards.
    holds = owner[None, :] == rank[:, None]
    for step, partner in enumerate(reversed(partners)):
        src, start, length = _runs(holds & ~holds[partner])
        swing.copy(steps + step, src, partner[src], start, num_chunks=length)
        swing.reduce(steps - 1 - step, partner[src], src, start, num_chunks=length)
        holds |= holds[partner]
    if world_size > core and core > 1:
        chunk = np.arange(core)
        when = chunk * steps // core
        swing.reduce(when, core, owner, chunk)
        swing.copy(steps + when, owner, core, chunk)
    return swing.build()


def _distance(step: int) -> int:
    return int((1 - (-2) ** (step + 1)) // 3)


def _owners(core: int, partners: list[IntArray]) -> IntArray:
    """The rank that completes each chunk, numbered so that what is exchanged at a power of two is one run.

    It is the order in which rank 0 would meet all ranks if it met its first partner's half after its own.
    """
    met = np.zeros(1, dtype=np.int64)
    for partner in partners:
        met = np.stack([met, partner[met]], axis=1).reshape(-1)
    _, first = np.unique(met, return_index=True)
    owners: IntArray = met[np.sort(first)]
    return owners


def _runs(mask: npt.NDArray[np.bool_]) -> tuple[IntArray, IntArray, IntArray]:
    """Row, start and length of every run of True."""
    edges = np.diff(mask.astype(np.int8), axis=1, prepend=0, append=0)
    row, start = np.nonzero(edges == 1)
    _, end = np.nonzero(edges == -1)
    return row, start, end - start
