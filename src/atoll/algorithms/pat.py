"""PAT, parallel aggregated trees: Bruck's all-gather with the far hops first, and no more than a buffer at a time.

Rank r's block travels down a binomial tree rooted at r; all N trees at once, the same tree turned. In Bruck's order
the near hops come first and the last message, half of all data, goes the farthest. PAT goes far first: the one block
that there is at the start goes N/2 away, the many at the end go to a neighbour. N = 8, offsets from the block's owner::

    step 0   0 -> 4               1 block to r + 4
    step 1   0 -> 2, 4 -> 6       2 blocks to r + 2
    step 2   0 -> 1, 2 -> 3, ...  4 blocks to r + 1

A message of many blocks that do not lie side by side needs a buffer. ``max_blocks`` limits it to a, the largest power
of two not above it: the first log2 a steps are as above; then each rank has the a blocks whose owners stand P/a apart
(P is N rounded up to a power of two), and every further step moves a blocks along one edge of the tree that is left, in
depth-first order, so that a rank holds at most a log2(P/a) blocks that it has received and has still to pass on.

=============== ============================ ============== ===========
vector of n     alpha                        beta           gamma
=============== ============================ ============== ===========
all-gather      log2 a + P/a - 1             (N-1)/N n      0
reduce-scatter  log2 a + P/a - 1             (N-1)/N n      (N-1)/N n
=============== ============================ ============== ===========

With no limit a = P/2, and these are ceil(log2 N) steps; with a = 1 they are P - 1, each of one block (fewer where N is
less than P and an edge has no vertex below). The reduce-scatter is the all-gather run backwards: near hops first.
(Jeaugey 2025, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv 2506.20252.)
"""

from __future__ import annotations

import numpy as np

from atoll.errors import SpecError
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.compose import mirror
from atoll.schedule.table import Schedule


def all_gather(world_size: int, *, max_blocks: int | None = None) -> Schedule:
    if max_blocks is not None and max_blocks < 1:
        raise SpecError(f"pat: expected max_blocks of at least 1, got {max_blocks}")
    pat = ScheduleBuilder("all_gather", world_size, chunks=world_size, name="pat")
    dimensions = (world_size - 1).bit_length()
    full = 1 << dimensions
    limit = full if max_blocks is None else max_blocks
    aggregate = min(1 << (limit.bit_length() - 1), max(full // 2, 1))
    apart = full // aggregate
    rank = np.arange(world_size)
    hops = [(0, full >> (k + 1), full >> k) for k in range(aggregate.bit_length() - 1)]
    hops += [(vertex & (vertex - 1), vertex & -vertex, apart) for vertex in _far_first(apart)]
    step = 0
    for vertex, distance, period in hops:
        offsets = np.arange(vertex, world_size - distance, period)
        if len(offsets):
            src = np.tile(rank, len(offsets))
            block = (src - np.repeat(offsets, world_size)) % world_size
            pat.copy(step, src, (src + distance) % world_size, block)
            step += 1
    return pat.build()


def reduce_scatter(world_size: int, *, max_blocks: int | None = None) -> Schedule:
    return mirror(all_gather(world_size, max_blocks=max_blocks), name="pat")


def _far_first(size: int) -> list[int]:
    """The vertices but the root of a binomial tree of ``size`` (a power of two), depth first, far children first."""
    order: list[int] = []
    distance = 1
    while distance < size:
        order = [distance, *(distance + vertex for vertex in order), *order]
        distance *= 2
    return order
