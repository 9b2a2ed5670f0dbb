"""Which part of every axis shares an island, and which nodes are taken: placements that no order of the axes gives.

Vocabulary. A *tile* is what an island holds: so many of each axis's ranks, together as many as the island has GPUs.
tp 4 x pp 2 is a tile of eight: two pipeline stages of one model side by side. What is left of the axes goes *across*
islands, in an order of its own. Every island is filled alike, so that ranks which differ across only are in the same
place in their islands: on one rail.

*Whole leaves* leave nodes at the end of a leaf switch free, where there are nodes to spare, rather than let a group of
the axis that varies fastest across nodes begin under one leaf and end under the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from atoll.planning.parallelism import DEFAULT_ORDER, Parallelism
from atoll.planning.traffic import Demand
from atoll.topology.cluster import Cluster, Integers

AXES: Final = ("tp", "cp", "dp", "pp")
Tile = Mapping[str, int]
_SPANS: Final = {"dp-cp": ("dp", "cp"), "ep": ("cp", "dp"), "edp": ("cp", "dp")}


def island_size(cluster: Cluster) -> int:
    """GPUs of an island; 0 where islands differ."""
    sizes = np.bincount(cluster.island_of_gpu(np.arange(cluster.num_gpus, dtype=np.int64)))
    return int(sizes[0]) if (sizes == sizes[0]).all() else 0


def tiles(parallelism: Parallelism, size: int) -> list[dict[str, int]]:
    """Every tile of ``size`` GPUs: divisors of the degrees."""
    if size < 2 or parallelism.world_size % size:
        return []
    degrees = {axis: getattr(parallelism, axis) for axis in AXES}
    choices = [[part for part in range(1, degree + 1) if degree % part == 0] for degree in degrees.values()]
    return [
        dict(zip(AXES, parts, strict=True))
        for parts in itertools.product(*choices)
        if int(np.prod(parts, dtype=np.int64)) == size
    ]


def bytes_across(tile: Tile, parallelism: Parallelism, demands: Sequence[Demand]) -> float:
    """What a step sends out of islands, roughly: of each demand that a tile cuts, the share that an island does not
    sum up or exchange on its own. It only picks the tiles that are worth a closer look."""
    total = 0.0
    for demand in demands:
        spanned = _SPANS.get(demand.kind, (demand.kind,))
        inner = int(np.prod([tile[axis] for axis in spanned], dtype=np.int64))
        degree = parallelism.degree(demand.kind)
        if inner < degree:
            total += demand.size_bytes * demand.times / min(inner, degree)
    return total


def across_orders(tile: Tile, parallelism: Parallelism) -> list[tuple[str, ...]]:
    """The usual order of what goes across, and pipelines first, whose neighbours then stand side by side."""
    usual = [axis for axis in DEFAULT_ORDER.split("-") if axis in AXES and getattr(parallelism, axis) > tile[axis]]
    stages_first = sorted(usual, key=lambda axis: axis != "pp")
    return list(dict.fromkeys((tuple(usual), tuple(stages_first))))


def tile_name(tile: Tile, across: Sequence[str]) -> str:
    held = " x ".join(f"{axis} {tile[axis]}" for axis in AXES if tile[axis] > 1) or "one rank"
    return f"{held} to an island" + (f", {'-'.join(across)} across" if across else "")


def tiled_gpus(parallelism: Parallelism, tile: Tile, across: Sequence[str], size: int) -> Integers:
    """The GPU of every rank, islands taken one after the other."""
    coordinates = parallelism.coordinates(np.arange(parallelism.world_size, dtype=np.int64))
    local = np.zeros(parallelism.world_size, dtype=np.int64)
    island = np.zeros_like(local)
    step = 1
    for axis in AXES:
        local += coordinates[axis] % tile[axis] * step
        step *= tile[axis]
    step = 1
    for axis in across:
        island += coordinates[axis] // tile[axis] * step
        step *= getattr(parallelism, axis) // tile[axis]
    gpus: Integers = island * size + local
    return gpus


def whole_leaf_gpus(cluster: Cluster, parallelism: Parallelism, size: int) -> Integers | None:
    """Packed, but no group of the axis that is the fastest across nodes lies under two leaves; ``None`` where nothing
    changes or nodes do not suffice. Nodes are islands here."""
    if cluster.fabric is None or not size or cluster.num_nodes * size != cluster.num_gpus:
        return None
    ranks = 1
    for axis in parallelism.axes:
        ranks *= 1 if axis == "ep" else getattr(parallelism, axis)
        if ranks > size:
            break
    if ranks <= size or ranks % size:
        return None
    block, leaf = ranks // size, cluster.fabric.nodes_per_leaf
    needed = parallelism.world_size // size
    if parallelism.world_size % size or block > leaf or leaf % block == 0:
        return None
    nodes = np.arange(cluster.num_nodes, dtype=np.int64)
    # The last leaf may have fewer nodes: what is cut there is cut in any case.
    kept = nodes[nodes % leaf < np.minimum(leaf, cluster.num_nodes - nodes // leaf * leaf) // block * block]
    if len(kept) < needed or (kept[:needed] == nodes[:needed]).all():
        return None
    gpus: Integers = (kept[:needed, None] * size + np.arange(size, dtype=np.int64)).ravel()
    return gpus
