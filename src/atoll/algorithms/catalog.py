"""What algorithms there are: one entry per collective and name, as plain data.

An entry says where the algorithm is, what it costs and what it asks for; its module is imported when a schedule is
built. Costs are per rank (the busiest one) for a vector of n bytes among N ranks; ``L`` is log2 of N rounded up,
``p`` the largest power of two not above N.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from atoll.errors import SpecError, nearest
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.table import Schedule


class Entry(msgspec.Struct, frozen=True):
    """One algorithm for one collective. ``place`` is ``module.function``; texts are for people.

    ``order`` says in which order an element's contributions are combined; empty where nothing is reduced.
    """

    collective: str
    name: str
    place: str
    steps: str
    sent: str
    order: str
    constraint: str
    summary: str

    def factory(self) -> Callable[..., Schedule]:
        """The function that builds the schedule: ``(world_size, [root], **options)``."""
        module, _, function = self.place.rpartition(".")
        factory: Callable[..., Schedule] = getattr(importlib.import_module(f"atoll.algorithms.{module}"), function)
        return factory

    def options(self) -> dict[str, str]:
        """Keyword options and their types, for people."""
        return {
            parameter.name: f"{parameter.annotation} = {parameter.default}"
            for parameter in inspect.signature(self.factory()).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }


_ANY = "any N"
_ONE_TREE = "rank order, one tree for every element"
_BY_CHUNK = "starts at a rank that depends on the chunk"

# The first entry of a collective is its default.
CATALOG: tuple[Entry, ...] = (
    Entry("all_reduce", "ring", "ring.all_reduce", "2(N-1)", "2(N-1)/N n", _BY_CHUNK, _ANY,
          "reduce-scatter, then all-gather, around one ring"),
    Entry("all_reduce", "recursive_doubling", "recursive_doubling.all_reduce", "log2 p, +2 if N != p",
          "n log2 p, +n if N != p", _ONE_TREE, _ANY, "whole vectors with partners twice as far each time"),
    Entry("all_reduce", "halving_doubling", "halving_doubling.all_reduce", "2 log2 p, +2 if N != p",
          "2(p-1)/p n, +n if N != p", _ONE_TREE, _ANY, "halves, quarters, ... of the vector, and back (Rabenseifner)"),
    Entry("all_reduce", "binomial_tree", "binomial_tree.all_reduce", "2 L", "L n", _ONE_TREE, _ANY,
          "reduce to rank 0, broadcast from there"),
    Entry("all_reduce", "direct", "direct.all_reduce", "2", "2(N-1)/N n", "own first, then ranks 0, 1, 2, ...", _ANY,
          "all pairs at once, in two steps"),
    Entry("reduce_scatter", "ring", "ring.reduce_scatter", "N-1", "(N-1)/N n", _BY_CHUNK, _ANY, "once around the ring"),
    Entry("reduce_scatter", "recursive_halving", "recursive_doubling.reduce_scatter", "log2 p, +2 if N != p",
          "(N-1)/N n, up to +n if N != p", "one tree for every element", _ANY,
          "the other group's half to a partner half as far each time"),
    Entry("reduce_scatter", "direct", "direct.reduce_scatter", "1", "(N-1)/N n", "own first, then ranks 0, 1, 2, ...",
          _ANY, "all pairs at once"),
    Entry("all_gather", "ring", "ring.all_gather", "N-1", "(N-1)/N n", "", _ANY, "once around the ring"),
    Entry("all_gather", "recursive_doubling", "recursive_doubling.all_gather", "log2 p, +2 if N != p",
          "(N-1)/N n, up to +n if N != p", "", _ANY, "all that is known to a partner twice as far each time"),
    Entry("all_gather", "direct", "direct.all_gather", "1", "(N-1)/N n", "", _ANY, "all pairs at once"),
    Entry("broadcast", "binomial_tree", "binomial_tree.broadcast", "L", "L n", "", _ANY,
          "every rank that has it passes it on"),
    Entry("reduce", "binomial_tree", "binomial_tree.reduce", "L", "n (the root receives L n)",
          "from the root around, one tree for every element", _ANY, "the broadcast's tree, upwards"),
    Entry("all_to_all", "pairwise", "pairwise.all_to_all", "N-1", "(N-1)/N n", "", _ANY, "one partner at a time"),
    Entry("all_to_all", "direct", "direct.all_to_all", "1", "(N-1)/N n", "", _ANY, "all pairs at once"),
    Entry("gather", "binomial_tree", "binomial_tree.gather", "L", "up to n/2 (the root receives (N-1)/N n)", "", _ANY,
          "runs of blocks up the tree"),
    Entry("gather", "direct", "direct.gather", "1", "n/N (the root receives (N-1)/N n)", "", _ANY,
          "everyone to the root"),
    Entry("scatter", "binomial_tree", "binomial_tree.scatter", "L", "(N-1)/N n", "", _ANY,
          "runs of blocks down the tree"),
    Entry("scatter", "direct", "direct.scatter", "1", "(N-1)/N n", "", _ANY, "the root to everyone"),
    Entry("barrier", "dissemination", "dissemination.barrier", "L", "L tokens", "", _ANY,
          "to a rank twice as far each round"),
)  # fmt: skip


def names(collective: str) -> tuple[str, ...]:
    """The algorithms of a collective, its default first. Raises ``SpecError`` for an unknown collective."""
    if collective not in COLLECTIVES:
        raise SpecError(f"unknown collective {collective!r}: {nearest(collective, COLLECTIVES)}")
    return tuple(entry.name for entry in CATALOG if entry.collective == collective)


def default(collective: str) -> str:
    """The algorithm to take when nothing is known of the machine."""
    return names(collective)[0]


def find(collective: str, name: str) -> Entry:
    """The entry of an algorithm. Raises ``SpecError`` with the nearest match for an unknown collective or name."""
    known = names(collective)
    for entry in CATALOG:
        if entry.collective == collective and entry.name == name:
            return entry
    raise SpecError(f"unknown algorithm {name!r} for {collective}: {nearest(name, known)}")


def build(collective: str, name: str, world_size: int, root: int | None = None, **options: Any) -> Schedule:
    """The schedule of a named algorithm; ``root`` for broadcast, reduce, gather and scatter, and there only.

    Raises ``SpecError`` for unknown names and options, and where the algorithm is not for this world.
    """
    entry = find(collective, name)
    # Refuses a bad world or root in one place, so that an algorithm may take both for granted.
    rooted = COLLECTIVES[collective].rooted
    if world_size < 1:
        raise SpecError(f"{collective} {name}: expected a world of at least 1 rank, got {world_size}")
    if rooted and (root is None or not 0 <= root < world_size):
        raise SpecError(f"{collective} {name}: expected a root between 0 and {world_size - 1}, got {root}")
    if not rooted and root is not None:
        raise SpecError(f"{collective} {name}: has no root, got root {root}")
    known = entry.options() if options else {}
    for option in options:
        if option not in known:
            has = nearest(option, known) if known else "it has none"
            raise SpecError(f"{collective} {name}: unknown option {option!r}: {has}")
    factory = entry.factory()
    return factory(world_size, root, **options) if rooted else factory(world_size, **options)
