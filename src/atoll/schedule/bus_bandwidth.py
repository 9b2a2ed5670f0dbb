"""The factors that make bandwidths of collectives comparable with what a link can carry.

nccl-tests' ``algbw`` is a collective's size over its time; ``busbw`` is that times a factor (nccl-tests,
doc/PERFORMANCE.md). Sizes are nccl-tests' too: where the contract cuts the vector by rank it is the whole vector's.
"""

from __future__ import annotations

from collections.abc import Callable

BUSBW_FACTOR: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
}


def busbw_factor(collective: str, world_size: int) -> float:
    """What algbw is multiplied with to give busbw."""
    return BUSBW_FACTOR[collective](world_size)
