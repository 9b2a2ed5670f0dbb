"""Bringing an emulated cluster up: rights, leftovers of earlier ones, the machine's measure, limits."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import msgspec

from atoll.emulator.cluster import EmulatedCluster
from atoll.emulator.layout import DEFAULT_RATIO, Layout, Rates
from atoll.emulator.mark import Leftover, end, leftovers
from atoll.emulator.namespaces import gain_rights
from atoll.errors import SpecError


class Wish(msgspec.Struct, frozen=True):
    """What the links should carry, in bytes per second and direction; ``None``: chosen from what the machine moves."""

    island: float | None = None
    network: float | None = None
    ratio: float = DEFAULT_RATIO

    def __post_init__(self) -> None:
        if not (math.isfinite(self.ratio) and self.ratio > 0):
            raise SpecError(f"--ratio: expected more than 0, got {self.ratio:g}")

    def rates(self) -> Rates | None:
        """Where one bandwidth is given the ratio gives the other; where none is, ``None``."""
        if self.island is not None:
            return Rates(self.island, self.island / self.ratio if self.network is None else self.network)
        return None if self.network is None else Rates(self.network * self.ratio, self.network)


class Started(msgspec.Struct, frozen=True):
    """A cluster that is up. ``moved_bytes_per_s`` is what the machine moved through it before there were limits."""

    cluster: EmulatedCluster
    rates: Rates
    moved_bytes_per_s: float
    ended: tuple[Leftover, ...]

    @property
    def wanted_share(self) -> float:
        """What all links of all ranks together carry, of what the machine moved."""
        layout = self.cluster.layout
        network = layout.nodes * layout.nics if layout.nodes > 1 else 0
        return (layout.world_size * self.rates.island + network * self.rates.network) / self.moved_bytes_per_s


@contextlib.contextmanager
def started(layout: Layout, wish: Wish) -> Iterator[Started]:
    """The cluster, up until the end of the block. ``SpecError`` where this machine or user cannot have one.

    A user without the rights for it enters a user namespace, for good: the first call belongs to a process that is of
    one thread and makes clusters only.
    """
    rates = wish.rates()
    gain_rights()
    ended = tuple(leftover for leftover in leftovers() if end(leftover))
    # NumPy starts threads, and a process with threads cannot enter a user namespace.
    from atoll.emulator.probe import choose_rates, measure

    with EmulatedCluster(layout) as cluster:
        moved = measure(cluster)
        rates = rates or choose_rates(layout, moved, wish.ratio)
        cluster.limit(rates)
        yield Started(cluster, rates, moved, ended)
