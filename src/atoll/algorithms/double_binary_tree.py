"""Two binary trees at once: logarithmic latency with the whole bandwidth.

In one binary tree the leaves, half of all ranks, only send on the way up and only receive on the way down. So take
two trees, such that no rank is an inner vertex in both, and give each one half of the vector, on a channel of its own.

Number the ranks 1 ... N. The first tree is the in-order one: i's level is the number of zeros at its end, odd numbers
are leaves, and the children of an even i are i - 2^(level-1) and, if there is one, the middle of what is left to its
right. The second is its mirror image (i becomes N + 1 - i) for even N, or shifted by one (i becomes i - 1, 1
becomes N) for odd N: either way odd and even change places. N = 6::

    4 -+- 2 -+- 1              3 -+- 5 -+- 6        root on the left; channel 0 and channel 1
       |     +- 3                 |     +- 4
       +- 6 --- 5                 +- 1 --- 2

Both trees reduce up, then broadcast down. With H = floor(log2 N) levels below the root and k segments (which follow
from the dependencies; the table is written unsegmented):

=========== =================== =============================== ======
vector of n alpha               beta, in k segments             gamma
=========== =================== =============================== ======
all-reduce  2 H, one segment    up to 2 n + O(H/k) n            n
=========== =================== =============================== ======

A rank sends at most n on the way up and down each, and receives as much. (Sanders, Speck and Traeff 2009, "Two-tree
algorithms for full bandwidth broadcast, reduction and scan".) One tree for every element of a half, in rank order
but for the second tree of an odd N, where the first rank stands beside the last ones.
"""

from __future__ import annotations

import numpy as np

from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import IntArray
from atoll.schedule.table import Schedule


def all_reduce(world_size: int) -> Schedule:
    trees = ScheduleBuilder("all_reduce", world_size, chunks=2, name="double_binary_tree")
    child, parent, level = _in_order_tree(world_size)
    height = world_size.bit_length() - 1
    number = np.arange(1, world_size + 1)
    second = world_size + 1 - number if world_size % 2 == 0 else number % world_size + 1
    for tree, rank in enumerate((number - 1, second - 1)):
        up, down = rank[child - 1], rank[parent - 1]
        trees.reduce(level, up, down, tree, channel=tree)
        trees.copy(2 * height - 1 - level, down, up, tree, channel=tree)
    return trees.build()


def _in_order_tree(size: int) -> tuple[IntArray, IntArray, IntArray]:
    """The vertices 1 ... size without the root, their parents, and their levels."""
    root = 1 << (size.bit_length() - 1)
    child = np.delete(np.arange(1, size + 1), root - 1)
    parent = _above(child)
    while np.any(parent > size):  # the tree is cut on the right: hang on to the next ancestor that is there
        parent = np.where(parent > size, _above(parent), parent)
    lowest = child & -child
    level = np.zeros_like(child)
    for bit in range(1, size.bit_length()):
        level[lowest == 1 << bit] = bit
    return child, parent, level


def _above(vertex: IntArray) -> IntArray:
    """The parent in a tree without end: the lowest set bit cleared, the next one set."""
    lowest = vertex & -vertex
    return (vertex & ~lowest) | (lowest << 1)
