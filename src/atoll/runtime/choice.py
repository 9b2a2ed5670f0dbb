"""Which algorithm ``algorithm="auto"`` takes, and with which islands a hierarchical one is built; alike on every rank.

A **layout** is what the choice may depend on beside the call: how many ranks there are, on which hosts, and what
carries their bytes. It follows from the world's membership and the tuning that rank 0 has sent, so that all ranks make
the same choice without a word. (If they did not, their calls would differ in ``algorithm``, which is a
``CollectiveMismatch``.)

The tuning file's table decides (``runtime.tuning``). Where it has none, thresholds stand in that hold where ranks share
the cores of their machine: the kernel's work per message and per byte bounds everything there, so few messages win
while they are small and few bytes once they are large. Every choice ends with the same bits on all ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import msgspec

from atoll.algorithms.catalog import build, default
from atoll.runtime.stability import Order, stable_algorithms
from atoll.runtime.tuning import Tuning
from atoll.schedule.table import Schedule

SMALL_BYTES = 32 << 10
LARGE_BYTES = 1 << 20
# Above it, everybody to everybody is too many connections and messages at once.
DIRECT_RANKS = 8


class Layout(msgspec.Struct, frozen=True):
    """``transport`` is ``tuning.TRANSPORTS``'; ``islands[rank]`` numbers the hosts, empty where one kind of link
    joins all ranks."""

    world_size: int
    transport: str
    islands: tuple[int, ...] = ()


def layout_of(hosts: Sequence[Hashable], shared_memory: bool) -> Layout:
    """The layout of ranks on ``hosts[rank]``; ``shared_memory``: whether ranks of one host use it."""
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    if not shared_memory or len(numbers) == len(hosts):
        return Layout(len(hosts), "tcp")
    if len(numbers) == 1:
        return Layout(len(hosts), "shm")
    return Layout(len(hosts), "mixed", tuple(numbers[host] for host in hosts))


class Chooser:
    """``tuning`` and ``layout``, together: what a communicator asks."""

    def __init__(self, tuning: Tuning, layout: Layout) -> None:
        self.tuning = tuning
        self.layout = layout

    def choose(self, collective: str, size_bytes: int, order: Order = "any") -> str:
        """The name of a catalogued algorithm for a vector of ``size_bytes`` in all."""
        layout = self.layout
        # Across hosts the slowest links decide, where nobody has measured the mixture.
        for transport in dict.fromkeys((layout.transport, "tcp")):
            table = self.tuning.table(collective, transport, layout.world_size)
            name = None if table is None else table.algorithm(size_bytes, order)
            if name is not None:
                return name
        return assumed(collective, layout.world_size, size_bytes, order)

    def build(self, collective: str, name: str, root: int | None) -> Schedule:
        """The schedule of a named algorithm; islands are hosts, where there are several of several ranks."""
        options: dict[str, Any] = {}
        if name == "hierarchical" and self.layout.islands:
            options["islands"] = self.layout.islands
        return build(collective, name, self.layout.world_size, root, **options)


def assumed(collective: str, world_size: int, size_bytes: int, order: Order = "any") -> str:
    """The choice where nothing has been measured."""
    stable = stable_algorithms(collective, order)
    if collective == "all_reduce":
        small = world_size <= 2 or size_bytes <= SMALL_BYTES
        if order == "rank":
            return "one_shot" if small and world_size <= DIRECT_RANKS else "ordered"
        if small:
            return "recursive_doubling"
        direct = size_bytes < LARGE_BYTES and world_size <= DIRECT_RANKS and stable is None
        return "direct" if direct else "halving_doubling"
    if stable is not None:
        return stable[0]
    if collective in ("reduce_scatter", "all_gather"):
        return "direct" if world_size <= DIRECT_RANKS else "ring"
    if collective == "all_to_all":
        return "direct" if size_bytes <= SMALL_BYTES else "pairwise"
    return default(collective)
