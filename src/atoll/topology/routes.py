"""Routes: the links that a transfer takes from one GPU to another on a channel.

Rules, NCCL's unless said otherwise.

1. GPUs of one node: the node's path (NVLink, else PCIe, else staged in host memory).
2. Nodes of one island (an NVL72 rack): to the NVSwitch and down.
3. Else over the network. The receiver takes its near NIC of the channel. The sender takes its own near NIC if that is
   on the same rail; else, with PXN, a GPU of its node that is of the job passes the data on to the NIC of that rail;
   else the message crosses rails in the fabric, or, where rails do not meet, takes a farther NIC of the right rail over
   PCIe.
4. In the fabric: the leaf if both NICs are on it, else a spine of the pod, else a core. Under ECMP the cables are
   chosen by a hash of both NICs, the channel and a seed: the same arguments give the same route on every machine.

Without GPUDirect, transfers between GPU and NIC are staged in host memory on both sides.

A transfer from a GPU to itself takes no link. Many pairs are routed at once; the result is one array of links and the
offsets of each pair's part in it.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.errors import SpecError
from atoll.topology.cluster import Cluster, Floats, Integers
from atoll.topology.names import leaf_of_nic, spine_of_leaf
from atoll.topology.node_paths import NodePaths, node_paths

_BATCH: Final = 1 << 16


class Transport(msgspec.Struct, frozen=True):
    """How GPUs use the network: GPUDirect RDMA, PXN, and the seed of the ECMP hash."""

    gpudirect: bool = True
    pxn: bool = True
    seed: int = 0


DEFAULT_TRANSPORT: Final = Transport()


class Routes(msgspec.Struct, frozen=True):
    """Route i is ``links[offsets[i]:offsets[i + 1]]``, in the order of travel."""

    offsets: Integers
    links: Integers

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Integers:
        return self.links[self.offsets[index] : self.offsets[index + 1]]

    def latency_s(self, cluster: Cluster) -> Floats:
        """Per route: the sum over its links."""
        return self._reduce(np.add, cluster.latency_of(self.links), 0.0)

    def bottleneck_bytes_per_s(self, cluster: Cluster, *, usable: bool = True) -> Floats:
        """Per route: the least bandwidth of its links, with no other traffic; inf for a route without links."""
        return self._reduce(np.minimum, cluster.bandwidth_of(self.links, usable=usable), np.inf)

    def _reduce(self, operation: np.ufunc, values: Floats, empty: float) -> Floats:
        result = np.full(len(self), empty)
        filled = np.flatnonzero(np.diff(self.offsets) > 0)
        if filled.size:
            result[filled] = operation.reduceat(values, self.offsets[filled])
        return result


def find_routes(
    cluster: Cluster, src_gpus: ArrayLike, dst_gpus: ArrayLike, channels: ArrayLike = 0,
    transport: Transport = DEFAULT_TRANSPORT, *, job: ArrayLike | None = None,
) -> Routes:  # fmt: skip
    """The routes of pairs of GPU numbers; the three arguments are broadcast.

    ``job`` lists the GPUs that take part, among which PXN may choose; ``None``: all of them. Raises ``SpecError`` for
    GPUs that are not there and pairs that nothing joins.
    """
    src, dst, channel = np.broadcast_arrays(
        np.asarray(src_gpus, dtype=np.int64), np.asarray(dst_gpus, dtype=np.int64),
        np.asarray(channels, dtype=np.int64),
    )  # fmt: skip
    src, dst, channel = src.ravel(), dst.ravel(), channel.ravel()
    if channel.size and channel.min() < 0:
        raise SpecError(f"routes: expected channels from 0, got {int(channel.min())}")
    member: NDArray[np.bool_] | None = None
    if job is not None:
        member = np.zeros(cluster.num_gpus, dtype=bool)
        gpus = np.asarray(job, dtype=np.int64)
        cluster.node_of_gpu(gpus)
        member[gpus] = True
    finder = _Finder(cluster, transport, member)
    tables = [
        finder.table(src[at : at + _BATCH], dst[at : at + _BATCH], channel[at : at + _BATCH])
        for at in range(0, len(src), _BATCH)
    ]
    lengths = np.concatenate([(table >= 0).sum(axis=1) for table in tables]) if tables else np.zeros(0, np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    links = np.concatenate([table[table >= 0] for table in tables]) if tables else np.zeros(0, np.int64)
    return Routes(offsets, links)


class _Finder:
    """Routes of one cluster and transport. Tables are [pairs, width] of links, -1 where there is none."""

    def __init__(self, cluster: Cluster, transport: Transport, member: NDArray[np.bool_] | None) -> None:
        self.cluster = cluster
        self.transport = transport
        self.member = member
        self.paths: list[NodePaths] = [node_paths(group.node_type) for group in cluster.groups]
        self.rails = [np.array(group.node_type.rails, dtype=np.int64) for group in cluster.groups]

    def table(self, src: Integers, dst: Integers, channel: Integers) -> Integers:
        cluster = self.cluster
        src_node, dst_node = cluster.node_of_gpu(src), cluster.node_of_gpu(dst)
        same_node = src_node == dst_node
        same_island = ~same_node & (cluster.island_of_node(src_node) == cluster.island_of_node(dst_node))
        parts: list[tuple[Integers, Integers]] = []
        for chosen, find in (
            (np.flatnonzero(same_node), self._in_node),
            (np.flatnonzero(same_island), self._in_island),
            (np.flatnonzero(~same_node & ~same_island), self._between_nodes),
        ):
            if chosen.size:
                parts.append((chosen, find(src[chosen], dst[chosen], channel[chosen])))
        result = np.full((len(src), max([1, *(part.shape[1] for _, part in parts)])), -1, dtype=np.int64)
        for chosen, part in parts:
            result[chosen, : part.shape[1]] = part
        return result

    def _in_node(self, src: Integers, dst: Integers, channel: Integers) -> Integers:
        cluster = self.cluster
        a, b = cluster.local_gpu(src), cluster.local_gpu(dst)
        return self._local(cluster.node_of_gpu(src), "gpu_to_gpu", a, b)

    def _in_island(self, src: Integers, dst: Integers, channel: Integers) -> Integers:
        up = self._local(self.cluster.node_of_gpu(src), "to_switch", self.cluster.local_gpu(src))
        down = self._local(self.cluster.node_of_gpu(dst), "from_switch", self.cluster.local_gpu(dst))
        return np.concatenate((up, down), axis=1)

    def _between_nodes(self, src: Integers, dst: Integers, channel: Integers) -> Integers:
        cluster, fabric = self.cluster, self.cluster.fabric
        assert fabric is not None  # a cluster of several islands has one
        src_node, dst_node = cluster.node_of_gpu(src), cluster.node_of_gpu(dst)
        dst_gpu = cluster.local_gpu(dst)
        dst_nic, dst_rail = self._near(dst_node, dst_gpu, channel)
        relay, src_nic, src_rail = self._sender(src, src_node, channel, dst_rail, dst_node)
        out, back = ("direct_out", "direct_in") if self.transport.gpudirect else ("staged_out", "staged_in")
        src_gpu = cluster.local_gpu(src)
        ends = np.stack(
            (src_node * 65536 + src_nic, dst_node * 65536 + dst_nic, channel), axis=1
        )  # the flow that ECMP hashes
        return np.concatenate(
            (
                self._local(src_node, "gpu_to_gpu", src_gpu, relay),
                self._local(src_node, out, relay, src_nic),
                self._local(src_node, "cable_up", src_nic),
                self._fabric(src_node, src_rail, dst_node, dst_rail, ends),
                self._local(dst_node, "cable_down", dst_nic),
                self._local(dst_node, back, dst_gpu, dst_nic),
            ),
            axis=1,
        )

    def _local(self, nodes: Integers, what: str, *positions: Integers) -> Integers:
        """Rows of a table of each node's type, as links of the cluster."""
        groups = self.cluster.group_of_node(nodes)
        first = self.cluster.first_link_of_node(nodes)
        chosen_groups = np.unique(groups)
        tables = {int(group): getattr(self.paths[group], what) for group in chosen_groups}
        width = max(table.shape[-1] if table.ndim > len(positions) else 1 for table in tables.values())
        rows = np.full((len(nodes), width), -1, dtype=np.int64)
        for group, table in tables.items():
            chosen = np.flatnonzero(groups == group)
            found = table[tuple(position[chosen] for position in positions)].reshape(len(chosen), -1)
            if (found == -2).any():
                at = chosen[int(np.flatnonzero((found == -2).any(axis=1))[0])]
                self._no_path(int(nodes[at]), what, [int(position[at]) for position in positions])
            rows[chosen, : found.shape[1]] = found
        return np.where(rows >= 0, rows + first[:, None], -1)

    def _no_path(self, node: int, what: str, positions: list[int]) -> None:
        node_type = self.cluster.node_type(node)
        to = node_type.gpus if what == "gpu_to_gpu" else node_type.nics
        raise SpecError(
            f"{self.cluster.node_name(node)} ({node_type.name}): no links join {node_type.gpus[positions[0]]} and "
            f"{to[positions[1]]}; give the links in between"
        )

    def _near(self, nodes: Integers, gpus: Integers, channel: Integers) -> tuple[Integers, Integers]:
        """The near NIC of each GPU on a channel, as position and rail."""
        nic, rail = np.empty_like(nodes), np.empty_like(nodes)
        groups = self.cluster.group_of_node(nodes)
        for group in np.unique(groups):
            chosen = groups == group
            near = self.paths[group].near
            width = max(1, *(len(nics) for nics in near)) if near else 1
            table = np.array(
                [[nics[(at + c) % len(nics)] if nics else -1 for c in range(width)] for at, nics in enumerate(near)],
                dtype=np.int64,
            )
            # A row repeats after the number of its own NICs, which may differ from its neighbours'.
            counts = np.array([max(1, len(nics)) for nics in near], dtype=np.int64)
            local = gpus[chosen]
            found = table[local, channel[chosen] % counts[local]]
            if (found < 0).any():
                node = int(nodes[chosen][np.flatnonzero(found < 0)[0]])
                gpu = self.cluster.node_type(node).gpus[int(local[np.flatnonzero(found < 0)[0]])]
                raise SpecError(
                    f"{self.cluster.node_name(node)}/{gpu} reaches no NIC with a cable; another node cannot be reached"
                )
            nic[chosen] = found
            rail[chosen] = self.rails[group][found]
        return nic, rail

    def _sender(
        self, src: Integers, src_node: Integers, channel: Integers, dst_rail: Integers, dst_node: Integers
    ) -> tuple[Integers, Integers, Integers]:
        """The GPU that hands the data to the NIC (the sender itself without PXN), the NIC and its rail."""
        cluster = self.cluster
        relay = cluster.local_gpu(src).copy()
        nic, rail = self._near(src_node, relay, channel)
        crossing = np.flatnonzero(rail != dst_rail)
        if self.transport.pxn and crossing.size:
            found = self._relays(src_node[crossing], relay[crossing], dst_rail[crossing])
            possible = found[:, 0] >= 0
            passed = crossing[possible]
            relay[passed], nic[passed], rail[passed] = found[possible, 0], found[possible, 1], dst_rail[passed]
        for at in np.flatnonzero(~self._meet(src_node, rail, dst_node, dst_rail)):
            node = int(src_node[at])
            same = np.flatnonzero(self.rails[int(cluster.group_of_node(node))] == dst_rail[at])
            if not same.size:
                raise SpecError(
                    f"{cluster.gpu_name(int(src[at]))} has no NIC on rail {int(dst_rail[at])}, and the rails of fabric "
                    f"{cluster.fabric.name if cluster.fabric else ''!r} do not meet; add spines or cores"
                )
            nic[at], rail[at] = same[0], dst_rail[at]
        return relay, nic, rail

    def _relays(self, nodes: Integers, gpus: Integers, rails: Integers) -> Integers:
        """For each sender a GPU of its node and of the job, joined to it by NVLink, that has a NIC of the rail near,
        and that NIC: [senders, 2] of positions, -1 where there is none."""
        found = np.full((len(nodes), 2), -1, dtype=np.int64)
        groups = self.cluster.group_of_node(nodes)
        first = self.cluster.first_gpu_of_node(nodes)
        for group in np.unique(groups):
            table = _relay_table(self.paths[group], self.rails[group])
            rows = np.flatnonzero((groups == group) & (rails < table.shape[1]))
            candidates = table[gpus[rows], rails[rows]]
            usable = candidates[:, :, 0] >= 0
            if self.member is not None:
                usable &= self.member[first[rows, None] + np.maximum(candidates[:, :, 0], 0)]
            best = usable.argmax(axis=1)
            has = usable.any(axis=1)
            found[rows[has]] = candidates[has, best[has]]
        return found

    def _meet(
        self, src_node: Integers, src_rail: Integers, dst_node: Integers, dst_rail: Integers
    ) -> NDArray[np.bool_]:
        """Whether the fabric joins the leaves of two NICs."""
        fabric = self.cluster.fabric
        assert fabric is not None
        src_leaf = leaf_of_nic(self.cluster, src_node, src_rail)
        dst_leaf = leaf_of_nic(self.cluster, dst_node, dst_rail)
        if fabric.cores:
            return np.ones(len(src_leaf), dtype=bool)
        meet: NDArray[np.bool_] = src_leaf == dst_leaf
        if fabric.spines:
            meet = meet | (spine_of_leaf(self.cluster, src_leaf) == spine_of_leaf(self.cluster, dst_leaf))
        return meet

    def _fabric(
        self, src_node: Integers, src_rail: Integers, dst_node: Integers, dst_rail: Integers, ends: Integers
    ) -> Integers:
        """Up and down through the switches, [pairs, 4]."""
        cluster, fabric = self.cluster, self.cluster.fabric
        assert fabric is not None
        tiers = fabric.tiers
        result = np.full((len(src_node), 4), -1, dtype=np.int64)
        src_leaf, dst_leaf = (
            leaf_of_nic(cluster, src_node, src_rail),
            leaf_of_nic(cluster, dst_node, dst_rail),
        )
        away = np.flatnonzero(src_leaf != dst_leaf)
        if not away.size:
            return result
        src_leaf, dst_leaf = src_leaf[away], dst_leaf[away]
        choice = [_hash(ends[away], self.transport.seed * 4 + tier) for tier in range(4)]
        up = choice[0] % tiers.leaf_cables
        spine = up % tiers.spines
        down = spine + tiers.spines * (choice[1] % (tiers.leaf_cables // tiers.spines))
        result[away, 0] = cluster.first_leaf_link + 2 * (src_leaf * tiers.leaf_cables + up)
        result[away, 3] = cluster.first_leaf_link + 2 * (dst_leaf * tiers.leaf_cables + down) + 1
        src_spine = spine_of_leaf(cluster, src_leaf) + spine
        dst_spine = spine_of_leaf(cluster, dst_leaf) + spine
        far = np.flatnonzero(src_spine != dst_spine)
        if far.size:
            above = choice[2][far] % tiers.spine_cables
            core = above % tiers.core_group
            below = core + tiers.core_group * (choice[3][far] % (tiers.spine_cables // tiers.core_group))
            first = cluster.first_spine_link
            result[away[far], 1] = first + 2 * (src_spine[far] * tiers.spine_cables + above)
            result[away[far], 2] = first + 2 * (dst_spine[far] * tiers.spine_cables + below) + 1
        return result


def _relay_table(paths: NodePaths, rails: Integers) -> Integers:
    """[GPUs, rails, candidates, 2]: who may pass on a GPU's data to a rail, and by which NIC; padded with -1."""
    gpus = len(paths.near)
    lists: dict[tuple[int, int], list[tuple[int, int]]] = {
        (gpu, int(rail)): [] for gpu in range(gpus) for rail in rails
    }
    for gpu in range(gpus):
        for other in np.flatnonzero(paths.island[gpu]):
            if other != gpu:
                for nic in paths.near[other]:
                    lists[gpu, int(rails[nic])].append((int(other), nic))
    width = max([1, *(len(entries) for entries in lists.values())])
    table = np.full((gpus, int(rails.max(initial=0)) + 1, width, 2), -1, dtype=np.int64)
    for (gpu, rail), entries in lists.items():
        for at, entry in enumerate(entries):
            table[gpu, rail, at] = entry
    return table


def _hash(ends: Integers, seed: int) -> Integers:
    """A number from 0 below 2^31 for each flow, the same on every machine (splitmix64's mixing)."""
    state = np.full(len(ends), (seed * 0x9E3779B97F4A7C15 + 0x1234567) & ((1 << 64) - 1), dtype=np.uint64)
    for column in range(ends.shape[1]):
        state = state ^ ends[:, column].astype(np.uint64)
        state = state * np.uint64(0xBF58476D1CE4E5B9)
        state = state ^ (state >> np.uint64(29))
        state = state * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(32))
    return (state >> np.uint64(33)).astype(np.int64)
