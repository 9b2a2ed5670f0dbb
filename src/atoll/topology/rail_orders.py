"""Orders of ranks that spread a collective's channels over NICs and rails.

A ring in rank order enters every island at one GPU, so it uses one NIC of an island however many there are. NCCL runs a
ring for each NIC: on channel c it enters the islands at another GPU, whose near NIC takes what comes from outside, and
by PXN what leaves goes out over the same rail (NCCL, src/graph/search.cc; ``routes``). Here the ranks of an island keep
their order and are **rotated** until that GPU is first. Each order takes the GPU whose NIC has been entered least
before, the GPU entered least among these, and the first of them. Where an algorithm has several channels of its own,
the second of them goes the other way round and enters at the GPU before, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.topology.cluster import Cluster
from atoll.topology.node_paths import node_paths
from atoll.topology.routes import DEFAULT_TRANSPORT, Transport, find_routes

_Nic = tuple[int, int]  # node and position


def rail_orders(cluster: Cluster, gpus: Sequence[int], count: int, width: int = 1) -> list[list[int]]:
    """``count`` orders of the ranks; rank r is on ``gpus[r]``. Order i is for channels ``i * width`` and on, ``width``
    of them, numbers as ``routes`` has them."""
    islands: dict[int, list[int]] = {}
    for rank, island in enumerate(cluster.island_of_gpu(gpus).tolist()):
        islands.setdefault(island, []).append(rank)
    orders: list[list[int]] = [[] for _ in range(count)]
    for ranks in islands.values():
        nics, entered = Counter[_Nic](), Counter[int]()
        near = [_near_nics(cluster, gpus[rank]) for rank in ranks]

        def entrances(first: int, channel: int, near: list[tuple[int, int, tuple[int, ...]]] = near) -> list[_Nic]:
            """The NICs by which the channels from ``channel`` on enter, with the ranks rotated to ``first``."""
            found = []
            for way in range(width):
                node, position, mine = near[first - way]
                found.append((node, mine[(position + channel + way) % len(mine)] if mine else -1 - position))
            return found

        for number, order in enumerate(orders):
            channel = number * width
            ways = [entrances(first, channel) for first in range(len(ranks))]
            first = min(range(len(ranks)), key=lambda at: (sum(nics[nic] for nic in ways[at]), entered[at], at))
            nics.update(ways[first])
            entered[first] += 1
            order += ranks[first:] + ranks[:first]
    return orders


def nics_per_node(cluster: Cluster, gpus: Sequence[int]) -> int:
    """NICs near the GPUs of a node, at the node that has most; 0 where no GPU has any."""
    return max((len(nics) for nics in _nics_of_nodes(cluster, gpus).values()), default=0)


def leaves_nics_idle(
    cluster: Cluster, gpus: Sequence[int], src: ArrayLike, dst: ArrayLike, channel: ArrayLike,
    transport: Transport = DEFAULT_TRANSPORT,
) -> bool:  # fmt: skip
    """Whether transfers between these ranks, which cross islands, leave out a direction of a NIC near to one's GPU."""
    places: NDArray[np.int64] = np.asarray(gpus, dtype=np.int64)
    lanes: NDArray[np.int64] = np.asarray(channel, dtype=np.int64)
    shape = (cluster.num_gpus, cluster.num_gpus, int(lanes.max(initial=0)) + 1)
    # As one number each: there are millions of transfers on a thousand ranks.
    single = np.unique(np.ravel_multi_index((places[np.asarray(src)], places[np.asarray(dst)], lanes), shape))
    ends = np.stack(np.unravel_index(single, shape), axis=1)
    islands = [cluster.island_of_gpu(ends[:, side]) for side in (0, 1)]
    if (islands[0] == islands[1]).all():
        return False
    used = set(find_routes(cluster, ends[:, 0], ends[:, 1], ends[:, 2], transport).links.tolist())
    for node, nics in _nics_of_nodes(cluster, gpus).items():
        paths = node_paths(cluster.node_type(node))
        first = int(cluster.first_link_of_node(node))
        for cables in (paths.cable_up, paths.cable_down):
            if not {first + int(cables[nic]) for nic in nics} <= used:
                return True
    return False


def _near_nics(cluster: Cluster, gpu: int) -> tuple[int, int, tuple[int, ...]]:
    """A GPU's node, its position in it, and the positions of its near NICs."""
    node, position = int(cluster.node_of_gpu(gpu)), int(cluster.local_gpu(gpu))
    return node, position, node_paths(cluster.node_type(node)).near[position]


def _nics_of_nodes(cluster: Cluster, gpus: Sequence[int]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for gpu in gpus:
        node, _, nics = _near_nics(cluster, gpu)
        found.setdefault(node, set()).update(nics)
    return found
