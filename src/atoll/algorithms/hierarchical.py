"""The hierarchical all-reduce: most of the work inside the islands, and each byte over the sea only once.

An **island** is a set of ranks with fast links among themselves (a node, an NVLink domain). Three phases, each any
algorithm one likes:

1. reduce-scatter inside every island: each of its g members completes one g-th of the vector for the island;
2. all-reduce across: the members that stand for the same part, one of each of the M islands, add up their parts;
3. all-gather inside every island.

::

    island A: 0 1     reduce-scatter    0: part 0 of A   1: part 1 of A
    island B: 2 3                       2: part 0 of B   3: part 1 of B
    across            all-reduce        0 - 2: part 0    1 - 3: part 1       side by side
    inside            all-gather        0 - 1, 2 - 3

With rings inside (g ranks each) and across (M islands):

=========== ===================== =============================== ===========================
vector of n alpha                 beta inside                     beta across
=========== ===================== =============================== ===========================
all-reduce  2(g-1) + 2(M-1)       2(g-1)/g n                      2(M-1)/M n/g per rank
=========== ===================== =============================== ===========================

What leaves an island is 2(M-1)/M n in all, and every member sends its share of it; together the bytes of a rank are
2(N-1)/N n as for one ring. (Cho et al. 2019, "BlueConnect"; Mikami et al. 2018, two-dimensional torus all-reduce.)

**Islands of different sizes** cut the vector at different places. Between two neighbouring cuts of any island a part
has one owner in every island, and is all-reduced among these; a rank may own several such parts, each gets a channel.

This file only composes: every phase is some other file's schedule, and the whole is proven like any other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from atoll.algorithms import catalog
from atoll.errors import SpecError
from atoll.schedule.compose import Part, compose, embed, parallel, sequence
from atoll.schedule.table import Schedule

_MAX_CHUNKS = 1 << 16
# An inner algorithm goes by its reduce-scatter's name; where the all-gather's is another one, it stands here.
_GATHER = {"recursive_halving": "recursive_doubling"}


def all_reduce(
    world_size: int, *, group_size: int | None = None, order: str = "contiguous",
    islands: Sequence[Hashable] | None = None, inner: str = "ring", outer: str | Callable[[int], Schedule] = "ring",
) -> Schedule:  # fmt: skip
    """Islands are given by ``islands[rank]``, any name of the rank's island, or by ``group_size`` and ``order``:
    ``contiguous`` (ranks 0 to g - 1, then g to 2g - 1, ...) or ``strided`` (rank r is in island r modulo their number).
    By default the group size is the largest divisor of N not above its square root.

    ``inner`` is an algorithm for reduce-scatter and all-gather, ``outer`` one for all-reduce, or a function of the
    number of islands that makes a schedule, such as this one with a group size of its own.
    """
    members = _members(world_size, group_size, order, islands)
    sizes = sorted({len(island) for island in members})
    gather_name = _GATHER.get(inner, inner)
    scatters = {size: catalog.build("reduce_scatter", inner, size) for size in sizes}
    gathers = {size: catalog.build("all_gather", gather_name, size) for size in sizes}
    across = catalog.build("all_reduce", outer, len(members)) if isinstance(outer, str) else outer(len(members))
    outer_chunks = across.header.chunks
    cuts = math.lcm(*sizes)
    inner_chunks = [schedule.header.chunks for schedule in (*scatters.values(), *gathers.values())]
    chunks = math.lcm(cuts * outer_chunks, *inner_chunks)
    if chunks > _MAX_CHUNKS:
        raise SpecError(
            f"hierarchical: islands of sizes {sizes} with an outer algorithm of {outer_chunks} chunks need a vector of "
            f"{chunks} chunks, more than {_MAX_CHUNKS}; give sizes with a smaller common multiple, or another outer "
            f"algorithm"
        )
    inside = [embed(scatters[len(island)], island, chunks) for island in members]
    outside = _across(across, members, cuts, chunks)
    back = [embed(gathers[len(island)], island, chunks) for island in members]
    whole = sequence(parallel(*inside), parallel(*outside), parallel(*back))
    return compose(whole, "all_reduce", world_size, chunks, name="hierarchical")


def _across(across: Schedule, members: list[list[int]], cuts: int, chunks: int) -> list[Part]:
    """``across`` for every part between two cuts, among the one rank of each island that owns it."""
    places = sorted({cut * (cuts // len(island)) for island in members for cut in range(len(island) + 1)})
    parts = []
    for start, end in itertools.pairwise(places):
        owners = [island[start * len(island) // cuts] for island in members]
        width = (end - start) * (chunks // cuts) // across.header.chunks
        starts = start * (chunks // cuts) + np.arange(across.header.chunks) * width
        parts.append(embed(across, owners, chunks, starts=starts, width=width))
    return parts


def default_group_size(world_size: int) -> int:
    """The largest divisor of the number of ranks that is not above its square root."""
    return next(g for g in range(math.isqrt(world_size), 0, -1) if world_size % g == 0)


def _members(
    world_size: int, group_size: int | None, order: str, islands: Sequence[Hashable] | None
) -> list[list[int]]:
    """The ranks of every island, islands in the order of their first rank."""
    if islands is not None:
        if group_size is not None:
            raise SpecError("hierarchical: expected group_size or islands, got both")
        if len(islands) != world_size:
            raise SpecError(f"hierarchical: expected an island for each of {world_size} ranks, got {len(islands)}")
        names = list(islands)
    else:
        if group_size is None:
            group_size = default_group_size(world_size)
        if not 1 <= group_size <= world_size:
            raise SpecError(f"hierarchical: expected a group_size between 1 and {world_size}, got {group_size}")
        if order not in ("contiguous", "strided"):
            raise SpecError(f"hierarchical: expected order 'contiguous' or 'strided', got {order!r}")
        count = -(-world_size // group_size)
        names = [rank // group_size if order == "contiguous" else rank % count for rank in range(world_size)]
    groups: dict[Hashable, list[int]] = {}
    for rank, name in enumerate(names):
        groups.setdefault(name, []).append(rank)
    return list(groups.values())
