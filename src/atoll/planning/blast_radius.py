"""Blast radius: how many GPUs, groups and jobs stop when one part fails, for jobs as they are placed.

Vocabulary. GPUs *behind* a part are those that it is, holds, powers, or whose own network traffic it carries when all
is well. A *group* stops when one of its ranks is behind the part and its traffic needs it: a tensor-parallel group
inside an island does not need a leaf. A *job* is synchronous: it stops when one of its groups does (a job of one rank:
when its GPU does), and all its GPUs are then *idle*. GPUs are *out* when no restart brings them back before the repair:
they are dead, or their node has no NIC left whose leaf is alive. So a failed NIC stops a job, which may start again at
once with the other NICs; a failed leaf does the same where a node has NICs on several leaves (rails), and takes the
nodes out where all their NICs lead to it.

Rules for each kind of part:

- ``nvswitch``: counted in chips; one chip that fails stops its island, as fabric managers shut it down.
- ``spine``, ``core``: stop nobody while their pod, plane or group has another; then ``left`` is what remains of the
  bandwidth there. They stop groups that pass them where they are the only one.
- ``rail``: the leaves of one rail everywhere (one firmware upgrade, one misconfigured plane).
- ``power feed``: ``racks_per_feed`` racks in a row that lose power together: no second feed takes over. An assumption
  about the room, not a fact of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from atoll.errors import SpecError
from atoll.planning.placement import TIERS, Placement
from atoll.topology.cluster import Cluster, Integers
from atoll.topology.parts import leaves_of_gpus, nics_of_gpus

_LEAF, _SPINE, _CORE = TIERS.index("leaf"), TIERS.index("spine"), TIERS.index("core")


class Blast(msgspec.Struct, frozen=True):
    """What one failed part of a kind does: the worst of ``parts`` parts, named ``worst``, and the mean ``idle``.

    ``groups`` counts stopped groups by kind over all jobs. ``left`` is the share of bandwidth that remains where the
    part has substitutes, 0 where it has none.
    """

    part: str
    parts: int
    worst: str
    behind: int
    out: int
    groups: dict[str, int]
    jobs: int
    idle: int
    mean_idle: float
    left: float = 0.0

    @property
    def num_groups(self) -> int:
        return sum(self.groups.values())


class _Part(msgspec.Struct, frozen=True):
    """A kind of part: ``gpus`` and ``members`` are pairs of a GPU and the part (0 to ``count`` - 1) it is behind.

    ``tier`` is the lowest tier of groups that need it; 0 for parts that kill GPUs. ``out`` of the GPUs of each part.
    """

    name: str
    count: int
    gpus: Integers
    members: Integers
    tier: int
    out: Integers
    label: Callable[[int], str]
    times: int = 1
    left: float = 0.0


def blast_radius(jobs: Sequence[Placement], *, racks_per_feed: int = 0) -> tuple[Blast, ...]:
    """One entry for each kind of part that the cluster has, from small to large. Without ``nodes_per_rack`` in the
    cluster there are neither racks nor feeds; ``racks_per_feed`` 0 leaves feeds out. Raises ``SpecError`` for jobs on
    different clusters or on the same GPUs.
    """
    if not jobs:
        raise SpecError("blast radius: expected at least one job")
    cluster = jobs[0].cluster
    owner = np.full(cluster.num_gpus, -1, dtype=np.int64)
    for number, job in enumerate(jobs):
        if job.cluster is not cluster and job.cluster != cluster:
            raise SpecError(f"job {number} is on {job.cluster.name}, the others on {cluster.name}")
        if (owner[job.gpus] >= 0).any():
            taken = int(job.gpus[owner[job.gpus] >= 0][0])
            raise SpecError(f"GPU {taken} is in jobs {int(owner[taken])} and {number}; jobs share no GPUs")
        owner[job.gpus] = number
    return tuple(_blast(jobs, owner, part) for part in _parts(cluster, racks_per_feed))


def _blast(jobs: Sequence[Placement], owner: Integers, part: _Part) -> Blast:
    behind = np.bincount(part.members, minlength=part.count)
    groups: dict[str, Integers] = {}
    stopped = np.zeros((part.count, len(jobs)), dtype=bool)
    if not part.left:
        for number, job in enumerate(jobs):
            mine = owner[part.gpus] == number
            ranks = np.full(len(owner), -1, dtype=np.int64)
            ranks[job.gpus] = np.arange(len(job.gpus))
            rank, member = ranks[part.gpus[mine]], part.members[mine]
            if not part.tier:
                stopped[member, number] = True
            for kind in job.parallelism.kinds:
                of_rank = np.empty(len(job.gpus), dtype=np.int64)
                table = job.parallelism.groups(kind)
                of_rank[table] = np.arange(len(table))[:, None]
                needs = job.crossing(kind).tier[of_rank[rank]] >= part.tier
                keys = np.unique(member[needs] * len(table) + of_rank[rank[needs]])
                hit = np.bincount(keys // len(table), minlength=part.count)
                groups[kind] = groups.get(kind, np.zeros(part.count, dtype=np.int64)) + hit
                stopped[:, number] |= hit > 0
    sizes = np.array([len(job.gpus) for job in jobs], dtype=np.int64)
    idle = stopped @ sizes
    worst = int(np.lexsort((-behind, -idle))[0])
    return Blast(
        part.name, part.count * part.times, part.label(worst), int(behind[worst]), int(part.out[worst]),
        {kind: int(hit[worst]) for kind, hit in groups.items() if hit[worst]}, int(stopped[worst].sum()),
        int(idle[worst]), float(idle.mean()), part.left,
    )  # fmt: skip


def _parts(cluster: Cluster, racks_per_feed: int) -> Iterable[_Part]:
    every = np.arange(cluster.num_gpus, dtype=np.int64)
    nodes, islands = cluster.node_of_gpu(every), cluster.island_of_gpu(every)
    ones = np.ones(cluster.num_gpus, dtype=np.int64)
    yield _Part("GPU", cluster.num_gpus, every, every, 0, ones, cluster.gpu_name)
    yield from _nics(cluster)
    chips = {group.node_type.nvswitch_chips for group in cluster.groups}
    if max(chips) > 0:
        size = np.bincount(islands)
        times = max(chips)
        yield _Part("NVSwitch", len(size), every, islands, 0, size, lambda n: f"island{n}/nvswitch0", times=times)
    size = np.bincount(nodes, minlength=cluster.num_nodes)
    yield _Part("node", cluster.num_nodes, every, nodes, 0, size, cluster.node_name)
    yield from _switches(cluster, nodes)
    if cluster.nodes_per_rack:
        racks = cluster.rack_of_node(nodes)
        size = np.bincount(racks)
        yield _Part("rack", len(size), every, racks, 0, size, lambda n: f"rack{n}")
        if racks_per_feed:
            feeds = racks // racks_per_feed
            size = np.bincount(feeds)
            name = f"power feed of {racks_per_feed} rack{'s' if racks_per_feed > 1 else ''}"
            yield _Part(name, len(size), every, feeds, 0, size, lambda n: f"feed{n}")


def _nics(cluster: Cluster) -> Iterable[_Part]:
    gpus, nodes, nics = nics_of_gpus(cluster)
    if not len(gpus) or cluster.fabric is None:
        return
    span = int(nics.max()) + 1
    numbers, members = np.unique(nodes * span + nics, return_inverse=True)
    # A node whose only NIC is gone cannot reach the others.
    nics_of_node = np.bincount(numbers // span, minlength=cluster.num_nodes)
    per_node = np.bincount(cluster.node_of_gpu(np.arange(cluster.num_gpus)), minlength=cluster.num_nodes)
    home = numbers // span
    out = np.where(nics_of_node[home] == 1, per_node[home], 0)

    def label(number: int) -> str:
        node, nic = divmod(int(numbers[number]), span)
        return f"{cluster.node_name(node)}/{cluster.node_type(node).nics[nic]}"

    yield _Part("NIC", len(numbers), gpus, members.ravel(), _LEAF, out, label)


def _switches(cluster: Cluster, nodes: Integers) -> Iterable[_Part]:
    fabric = cluster.fabric
    if fabric is None:
        return
    gpus, leaves = leaves_of_gpus(cluster)
    span = fabric.num_leaves(cluster.num_nodes)
    keys = np.unique(gpus * span + leaves)
    gpus, leaves = keys // span, keys % span
    yield _Part("leaf", span, gpus, leaves, _LEAF, _cut_off(nodes, gpus, leaves, span), lambda n: f"leaf{n}")
    if fabric.rails > 1:
        rails = leaves % fabric.rails
        keys = np.unique(gpus * fabric.rails + rails)
        gpus, rails = keys // fabric.rails, keys % fabric.rails
        out = _cut_off(nodes, gpus, rails, fabric.rails)
        yield _Part("rail", fabric.rails, gpus, rails, _LEAF, out, lambda n: f"rail{n}")
    if fabric.spines:
        yield _redundant(cluster, "spine", fabric.num_spines(cluster.num_nodes), fabric.spines, _SPINE)
    if fabric.cores:
        yield _redundant(cluster, "core", fabric.cores, fabric.core_group, _CORE)


def _redundant(cluster: Cluster, name: str, count: int, alike: int, tier: int) -> _Part:
    """Switches of which ``alike`` serve the same GPUs. Where one is alone, it is in everybody's way at its tier."""
    if alike > 1:
        none = np.zeros(0, dtype=np.int64)
        return _Part(name, count, none, none, tier, np.zeros(count, np.int64), f"{name}{{}}".format,
                     left=1 - 1 / alike)  # fmt: skip
    fabric = cluster.fabric
    assert fabric is not None
    gpus, leaves = leaves_of_gpus(cluster)
    members = np.zeros_like(leaves)
    if name == "spine":
        unit, rail = leaves // fabric.rails, leaves % fabric.rails
        pod = unit * fabric.nodes_per_leaf // fabric.nodes_per_pod if fabric.nodes_per_pod else np.zeros_like(unit)
        members = pod * fabric.num_planes + (rail if fabric.planes else 0)
    keys = np.unique(gpus * count + members % count)
    gpus, members = keys // count, keys % count
    out = np.zeros(count, dtype=np.int64)
    return _Part(name, count, gpus, members, tier, out, f"{name}{{}}".format)


def _cut_off(nodes: Integers, gpus: Integers, members: Integers, count: int) -> Integers:
    """For each part the GPUs of nodes all of whose GPUs' parts are this one."""
    span = int(members.max(initial=0)) + 1
    keys = np.unique(nodes[gpus] * span + members)
    parts_of_node = np.bincount(keys // span, minlength=int(nodes.max()) + 1)
    per_node = np.bincount(nodes)
    only = keys[parts_of_node[keys // span] == 1]
    return np.bincount(only % span, weights=per_node[only // span], minlength=count).astype(np.int64)
