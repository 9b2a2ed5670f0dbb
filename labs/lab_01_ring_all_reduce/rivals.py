"""What the ring is held against: the naive all-reduce and the binomial tree, in plain sockets.

Both move their bytes with the exercise's own ``exchange``, so that all three differ in nothing but the schedule.

=========== ========== ==================== ===================================
all-reduce  messages   bytes sent           of n bytes among N ranks, L = ceil(log2 N)
=========== ========== ==================== ===================================
ring        2 (N - 1)  2 (N - 1) / N n      every rank
naive       N - 1      (N - 1) n            every rank: N / 2 times the ring
tree        2 L        up to L n            rank 0 receives L n and sends L n; a leaf sends n and receives n
=========== ========== ==================== ===================================

"Messages" are those that have to wait for one another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from world import Place

Array = npt.NDArray[Any]
Exchange = Callable[..., None]
NOTHING = np.empty(0, dtype=np.uint8)


def naive_all_reduce(place: Place, vector: Array, exchange: Exchange, counter: Any) -> None:
    """Give everyone everything, then let everyone add it up, in rank order: all ranks end with the same bits."""
    rank, world_size = place.rank, place.world_size
    gathered = {rank: vector.copy()}
    for offset in range(1, world_size):
        to, source = (rank + offset) % world_size, (rank - offset) % world_size
        gathered[source] = np.empty_like(vector)
        exchange(place.outgoing[to], vector, place.incoming[source], gathered[source], counter)
    vector[:] = gathered[0]
    for other in range(1, world_size):
        vector += gathered[other]


def tree_all_reduce(place: Place, vector: Array, exchange: Exchange, counter: Any) -> None:
    """Reduce to rank 0 along a binomial tree, then broadcast from there along the same tree.

    A rank's parent is the rank without its lowest set bit; its children are below its lowest set bit.
    """
    rank, world_size = place.rank, place.world_size
    distances = [1 << level for level in range((world_size - 1).bit_length())]
    children = []
    parent = None
    for distance in distances:
        if rank & distance:
            parent = rank - distance
            break
        if rank + distance < world_size:
            children.append(rank + distance)
    for child in children:
        incoming = np.empty_like(vector)
        exchange(place.right, NOTHING, place.incoming[child], incoming, counter)
        vector += incoming
    if parent is not None:
        exchange(place.outgoing[parent], vector, place.left, NOTHING, counter)
        exchange(place.right, NOTHING, place.incoming[parent], vector, counter)
    for child in reversed(children):
        exchange(place.outgoing[child], vector, place.left, NOTHING, counter)
