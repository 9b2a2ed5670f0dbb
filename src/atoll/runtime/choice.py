"""Which algorithm ``algorithm="auto"`` takes, by collective, world size and bytes; the same on every rank.

Thresholds are assumptions of a machine whose ranks share its cores: there the kernel's work per message and per byte
bounds everything, so few messages win while they are small and few bytes once they are large. Every choice ends with
the same bits on all ranks.
"""

from __future__ import annotations

from atoll.algorithms.catalog import default
from atoll.runtime.stability import Order, stable_algorithms

SMALL_BYTES = 32 << 10
LARGE_BYTES = 1 << 20


def choose(collective: str, world_size: int, size_bytes: int, order: Order = "any") -> str:
    """The name of a catalogued algorithm for a vector of ``size_bytes`` in all."""
    stable = stable_algorithms(collective, order)
    if stable is not None and collective == "all_reduce" and order == "rank":
        return "one_shot" if size_bytes <= SMALL_BYTES else "ordered"
    if stable is not None and collective == "all_reduce":
        return "recursive_doubling" if world_size <= 2 or size_bytes <= SMALL_BYTES else "halving_doubling"
    if stable is not None:
        return stable[0]
    if collective == "all_reduce":
        if world_size <= 2 or size_bytes <= SMALL_BYTES:
            return "recursive_doubling"
        return "direct" if size_bytes < LARGE_BYTES and world_size <= 8 else "halving_doubling"
    if collective in ("reduce_scatter", "all_gather"):
        return "direct" if world_size <= 8 else "ring"
    if collective == "all_to_all":
        return "direct" if size_bytes <= SMALL_BYTES else "pairwise"
    return default(collective)
