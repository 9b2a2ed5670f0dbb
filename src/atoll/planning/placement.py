"""Placement: which rank runs on which GPU, and what each parallel group therefore crosses.

Vocabulary. A *placement* is a parallelism, a cluster and the GPU number of every rank. It is made by a *mapping*:

``packed``       rank r on the r-th GPU: nodes are filled one after the other
``aligned``      packed, but no group of the fastest axis is cut by the end of an island; GPUs that are left over there
                 stay free
``round-robin``  ranks dealt out over the nodes like cards, as ``srun --distribution=cyclic`` does
``straddling``   packed, but from the middle of a node on: groups that fill a node lie half on the next one
``spread``       packed, but on nodes as far from each other as the cluster allows

The *tier* of a group is the highest thing its traffic passes: ``island`` (NVLink, or one host), ``leaf``, ``spine``,
``core``. Traffic goes from each rank to the next of its group and, round the ring, from the last to the first; in a
pipeline there and back without the closing link; among experts between all pairs.

Nothing is expanded per link; groups are looked at together, as arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final, Literal

import msgspec
import numpy as np

from atoll.errors import SpecError, nearest
from atoll.planning.parallelism import Parallelism
from atoll.topology.cluster import Cluster, Integers
from atoll.topology.names import device_name, link_ends
from atoll.topology.routes import DEFAULT_TRANSPORT, Routes, Transport, find_routes

Mapping = Literal["packed", "aligned", "round-robin", "straddling", "spread"]
MAPPINGS: Final = ("packed", "aligned", "round-robin", "straddling", "spread")
TIERS: Final = ("island", "leaf", "spine", "core")
_MOST_PAIRS: Final = 1 << 18
"""All pairs of all groups of experts are routed up to this many; beyond, ranks at distances 1, 2, 4, ... of a group."""


class Placement(msgspec.Struct, frozen=True, dict=True, eq=False):
    """``gpus[rank]`` is the GPU number of a rank. Make one with ``place``. ``name`` says how it was made."""

    cluster: Cluster
    parallelism: Parallelism
    gpus: Integers
    name: str
    transport: Transport = DEFAULT_TRANSPORT

    @cached_property
    def nodes(self) -> Integers:
        """The node of each rank."""
        return self.cluster.node_of_gpu(self.gpus)

    @cached_property
    def islands(self) -> Integers:
        """The island of each rank."""
        return self.cluster.island_of_gpu(self.gpus)

    def group_gpus(self, kind: str) -> Integers:
        """[groups, ranks] of GPU numbers."""
        return self.gpus[self.parallelism.groups(kind)]

    def crossing(self, kind: str) -> Crossing:
        """What the groups of a kind cross; worked out once."""
        if kind not in self._crossings:
            self._crossings[kind] = _crossing(self, kind)
        return self._crossings[kind]

    @cached_property
    def _crossings(self) -> dict[str, Crossing]:
        return {}


class Crossing(msgspec.Struct, frozen=True, eq=False):
    """What all groups of a kind cross. Arrays have an entry for each group; ``tier`` is a position in ``TIERS``.

    ``passes`` holds pairs of a group and a switch (a device number of leaf, spine or core), sorted, each once.
    """

    kind: str
    ranks: int
    nodes: Integers
    islands: Integers
    rails: Integers
    leaves: Integers
    spines: Integers
    tier: Integers
    passes: Integers

    @property
    def groups(self) -> int:
        return len(self.tier)

    @property
    def highest(self) -> str:
        """The highest tier of any group."""
        return TIERS[int(self.tier.max())]

    def switches(self, group: int) -> Integers:
        """Device numbers of the leaves, spines and cores that a group's traffic passes."""
        found: Integers = self.passes[self.passes[:, 0] == group, 1]
        return found


def place(
    cluster: Cluster, parallelism: Parallelism, mapping: Mapping | Sequence[int] = "packed", *,
    transport: Transport = DEFAULT_TRANSPORT,
) -> Placement:  # fmt: skip
    """Ranks on GPUs by a mapping's name, or as listed. Raises ``SpecError`` where they do not fit."""
    world = parallelism.world_size
    if world > cluster.num_gpus:
        raise SpecError(
            f"{parallelism.text()}: {world} ranks, and {cluster.name} has {cluster.num_gpus} GPUs; take more nodes or "
            "smaller degrees"
        )
    if isinstance(mapping, str):
        if mapping not in MAPPINGS:
            raise SpecError(f"unknown mapping {mapping!r}: {nearest(mapping, MAPPINGS)}")
        if mapping == "aligned":
            gpus = _aligned(cluster, parallelism)
        else:
            gpus = _mapped(cluster, world, mapping)
        return Placement(cluster, parallelism, gpus, mapping, transport)
    gpus = np.asarray(mapping, dtype=np.int64)
    if len(gpus) != world:
        raise SpecError(f"expected a GPU for each of {world} ranks, got {len(gpus)}")
    cluster.node_of_gpu(gpus)
    if len(np.unique(gpus)) != world:
        values, counts = np.unique(gpus, return_counts=True)
        raise SpecError(f"GPU {int(values[counts > 1][0])} is given to several ranks; expected every GPU once")
    return Placement(cluster, parallelism, gpus, "as listed", transport)


def _aligned(cluster: Cluster, parallelism: Parallelism) -> Integers:
    """Whole groups of the fastest axis on every island, as many as fit; packed where none would fit on any."""
    world = parallelism.world_size
    fastest = next((axis for axis in parallelism.axes if axis in parallelism.kinds and axis != "ep"), "tp")
    block = parallelism.degree(fastest)
    every = np.arange(cluster.num_gpus, dtype=np.int64)
    islands = cluster.island_of_gpu(every)
    size = np.bincount(islands)
    if block > size.max():
        return every[:world]
    position = every - (np.cumsum(size) - size)[islands]
    kept = every[position < size[islands] // block * block]
    if len(kept) < world:
        raise SpecError(
            f"aligned: islands of {int(size.max())} GPUs hold {len(kept) // block} groups of {block} ({fastest}) "
            f"without cutting one, {world // block} are wanted; take more nodes or a degree that divides the island"
        )
    return kept[:world]


def _mapped(cluster: Cluster, world: int, mapping: str) -> Integers:
    if mapping == "packed":
        return np.arange(world, dtype=np.int64)
    last_node = int(cluster.node_of_gpu(world - 1))
    if mapping == "round-robin":
        # All GPUs of the nodes that a packed job would take; the last ones stay free where it would not fill them.
        numbers = np.arange(int(cluster.first_gpu_of_node(last_node)) + _gpus(cluster, last_node), dtype=np.int64)
        order = np.lexsort((cluster.node_of_gpu(numbers), cluster.local_gpu(numbers)))
        return numbers[order][:world]
    if mapping == "straddling":
        half = _gpus(cluster, 0) // 2
        if half == 0:
            raise SpecError(f"straddling: the nodes of {cluster.name} have one GPU each, no middle")
        return (np.arange(world, dtype=np.int64) + half) % cluster.num_gpus
    nodes = last_node + 1
    every = np.arange(nodes, dtype=np.int64) * cluster.num_nodes // nodes
    numbers = np.concatenate([int(cluster.first_gpu_of_node(n)) + np.arange(_gpus(cluster, int(n))) for n in every])
    if len(numbers) < world:
        raise SpecError(f"spread: {nodes} nodes of {cluster.name} have {len(numbers)} GPUs, not {world}; list them")
    return numbers[:world].astype(np.int64)


def _gpus(cluster: Cluster, node: int) -> int:
    return len(cluster.node_type(node).gpus)


def traffic_pairs(placement: Placement, kind: str) -> tuple[Integers, Integers, Integers]:
    """(group, from GPU, to GPU) of what the groups of a kind send; see the module's text."""
    members = placement.group_gpus(kind)
    groups, ranks = members.shape
    if ranks == 1:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, empty
    at = np.arange(ranks)
    if kind == "pp":
        src, dst = np.concatenate((at[:-1], at[1:])), np.concatenate((at[1:], at[:-1]))
    elif kind == "ep":
        every = groups * ranks * (ranks - 1) <= _MOST_PAIRS
        near = np.arange(1, ranks) if every else 2 ** np.arange(int(np.log2(ranks - 1)) + 1)
        src = np.repeat(at, len(near))
        dst = (src + np.tile(near, ranks)) % ranks
    else:
        src, dst = at, np.roll(at, -1)
    number = np.repeat(np.arange(groups), len(src))
    return number, members[:, src].ravel(), members[:, dst].ravel()


def routes_of(placement: Placement, src: Integers, dst: Integers) -> Routes:
    """Channel 0 of each pair; PXN among the GPUs of the job."""
    return find_routes(placement.cluster, src, dst, 0, placement.transport, job=placement.gpus)


def _crossing(placement: Placement, kind: str) -> Crossing:
    cluster = placement.cluster
    members = placement.parallelism.groups(kind)
    groups = len(members)
    number, src, dst = traffic_pairs(placement, kind)
    routes = routes_of(placement, src, dst)
    group_of_link = np.repeat(number, np.diff(routes.offsets))
    passes = np.zeros((0, 2), dtype=np.int64)
    blocks = cluster.devices
    if len(routes.links):
        ends = np.concatenate(link_ends(cluster, routes.links))
        number_of_end = np.concatenate((group_of_link, group_of_link))
        passes = _pairs(number_of_end[ends >= blocks.leaves], ends[ends >= blocks.leaves])
    device = passes[:, 1]
    is_leaf, is_spine = device < blocks.spines, (device >= blocks.spines) & (device < blocks.cores)
    leaves = np.bincount(passes[is_leaf, 0], minlength=groups)
    spines = np.bincount(passes[is_spine, 0], minlength=groups)
    cores = np.bincount(passes[device >= blocks.cores, 0], minlength=groups)
    tier = np.where(cores > 0, 3, np.where(spines > 0, 2, np.where(leaves > 0, 1, 0)))
    rails = np.zeros(groups, dtype=np.int64)
    if cluster.fabric is not None and is_leaf.any():
        rail_of = _pairs(passes[is_leaf, 0], (device[is_leaf] - blocks.leaves) % cluster.fabric.rails)
        rails = np.bincount(rail_of[:, 0], minlength=groups)
    return Crossing(
        kind, members.shape[1], _distinct(placement.nodes[members]), _distinct(placement.islands[members]), rails,
        leaves, spines, tier, passes,
    )  # fmt: skip


def _pairs(first: Integers, second: Integers) -> Integers:
    """[pairs, 2], sorted, each once."""
    span = int(second.max(initial=0)) + 1
    keys = np.unique(first * span + second)
    return np.stack((keys // span, keys % span), axis=1)


def _distinct(rows: Integers) -> Integers:
    """How many different values each row has."""
    ordered = np.sort(rows, axis=1)
    distinct: Integers = 1 + (np.diff(ordered, axis=1) != 0).sum(axis=1)
    return distinct


def group_text(placement: Placement, kind: str, group: int) -> str:
    """What one group is and crosses, in words: ranks, nodes, and the switches by name."""
    crossing = placement.crossing(kind)
    if not 0 <= group < crossing.groups:
        raise SpecError(f"there are {kind} groups 0 to {crossing.groups - 1}, got {group}")
    ranks = placement.parallelism.groups(kind)[group]
    nodes = [placement.cluster.node_name(int(node)) for node in np.unique(placement.nodes[ranks])]
    names = [device_name(placement.cluster, int(device)) for device in crossing.switches(group)]
    through = f" through {few(names)}" if names else ""
    return f"{kind}{group}: ranks {runs(ranks.tolist())} on {few(nodes)}{through}"


def few(names: Sequence[str], most: int = 6) -> str:
    """``a, b, c`` or ``a, b, ... z (12)``."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 2])}, ... {names[-1]} ({len(names)})"


def runs(numbers: Sequence[int]) -> str:
    """``0-7``, ``0,8,16,...,504``: numbers of one distance as a run."""
    if len(numbers) > 2:
        distances = set(np.diff(numbers).tolist())
        if distances == {1}:
            return f"{numbers[0]}-{numbers[-1]}"
        if len(distances) == 1 and len(numbers) > 4:
            return f"{numbers[0]},{numbers[1]},{numbers[2]},...,{numbers[-1]}"
    return (
        ",".join(map(str, numbers)) if len(numbers) <= 12 else f"{','.join(map(str, numbers[:8]))},... ({len(numbers)})"
    )
