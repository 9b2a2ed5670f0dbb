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
_IN_ORDER = "rank order, one after the other"
_OWN_FIRST = "own first, then ranks 0, 1, 2, ..."
_AT_POWERS = "one tree at powers of two, else it depends on the chunk"
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
    Entry("all_reduce", "direct", "direct.all_reduce", "2", "2(N-1)/N n", _OWN_FIRST, _ANY,
          "all pairs at once, in two steps"),
    Entry("all_reduce", "bidirectional_ring", "ring.bidirectional_all_reduce", "2(N-1)",
          "2(N-1)/N n, half in each direction", _BY_CHUNK, _ANY, "half of every chunk around the ring each way"),
    Entry("all_reduce", "double_binary_tree", "double_binary_tree.all_reduce", "2 log2 p", "up to 2 n",
          "one tree for each half", _ANY, "two trees, each for one half; no rank is inner in both (Sanders)"),
    Entry("all_reduce", "bruck", "bruck.all_reduce", "2 L", "2(N-1)/N n", _AT_POWERS, _ANY,
          "reduce-scatter, then all-gather, at distances 1, 2, 4, ..."),
    Entry("all_reduce", "swing", "swing.all_reduce", "2 log2 m rounded up, m = N or N-1, even",
          "2(m-1)/m n, +n/m if N is odd", "depends on the chunk", "any N; the last rank of an odd N stands aside",
          "halving-doubling with nearer partners, for tori"),
    Entry("all_reduce", "hierarchical", "hierarchical.all_reduce", "2(g-1) + 2(N/g-1) with rings",
          "2(N-1)/N n; 1/g of a ring's across", "by island, then across", "any N; islands of one size cut best",
          "reduce-scatter in the island, all-reduce across, all-gather in the island"),
    Entry("all_reduce", "ordered", "ordered.all_reduce", "2", "2(N-1)/N n", _IN_ORDER, _ANY,
          "all pairs at once; blocks are kept apart until they are added in rank order"),
    Entry("all_reduce", "one_shot", "one_shot.all_reduce", "1, then local", "(N-1) n", _IN_ORDER, _ANY,
          "whole vectors to everyone at once, added in rank order"),
    Entry("all_reduce", "naive", "naive.all_reduce", "N-1, then local", "(N-1) n", _IN_ORDER, _ANY,
          "all-gather of whole vectors around a ring, then a local sum"),
    Entry("reduce_scatter", "ring", "ring.reduce_scatter", "N-1", "(N-1)/N n", _BY_CHUNK, _ANY, "once around the ring"),
    Entry("reduce_scatter", "recursive_halving", "recursive_doubling.reduce_scatter", "log2 p, +2 if N != p",
          "(N-1)/N n, up to +n if N != p", _AT_POWERS, _ANY,
          "the other group's half to a partner half as far each time"),
    Entry("reduce_scatter", "direct", "direct.reduce_scatter", "1", "(N-1)/N n", _OWN_FIRST, _ANY,
          "all pairs at once"),
    Entry("reduce_scatter", "bidirectional_ring", "ring.bidirectional_reduce_scatter", "N-1",
          "(N-1)/N n, half in each direction", _BY_CHUNK, _ANY, "half of every block around the ring each way"),
    Entry("reduce_scatter", "bruck", "bruck.reduce_scatter", "L", "(N-1)/N n", _AT_POWERS, _ANY,
          "far hops first, at distances ..., 4, 2, 1"),
    Entry("reduce_scatter", "pat", "pat.reduce_scatter", "L; log2 a + P/a - 1 with a buffer of a blocks", "(N-1)/N n",
          _BY_CHUNK, _ANY, "parallel aggregated trees, near hops first"),
    Entry("reduce_scatter", "ordered", "ordered.reduce_scatter", "1", "(N-1)/N n", _IN_ORDER, _ANY,
          "all pairs at once, added in rank order"),
    Entry("all_gather", "ring", "ring.all_gather", "N-1", "(N-1)/N n", "", _ANY, "once around the ring"),
    Entry("all_gather", "recursive_doubling", "recursive_doubling.all_gather", "log2 p, +2 if N != p",
          "(N-1)/N n, up to +n if N != p", "", _ANY, "all that is known to a partner twice as far each time"),
    Entry("all_gather", "direct", "direct.all_gather", "1", "(N-1)/N n", "", _ANY, "all pairs at once"),
    Entry("all_gather", "bidirectional_ring", "ring.bidirectional_all_gather", "N-1",
          "(N-1)/N n, half in each direction", "", _ANY, "half of every block around the ring each way"),
    Entry("all_gather", "bruck", "bruck.all_gather", "L", "(N-1)/N n", "", _ANY, "at distances 1, 2, 4, ..."),
    Entry("all_gather", "pat", "pat.all_gather", "L; log2 a + P/a - 1 with a buffer of a blocks", "(N-1)/N n", "",
          _ANY, "parallel aggregated trees, far hops first"),
    Entry("broadcast", "binomial_tree", "binomial_tree.broadcast", "L", "L n", "", _ANY,
          "every rank that has it passes it on"),
    Entry("broadcast", "chain", "chain.broadcast", "N-1; N-2+k pipelined in k segments", "n", "", _ANY,
          "from each rank to the next, segment by segment"),
    Entry("broadcast", "scatter_all_gather", "scatter_all_gather.broadcast", "L + N-1", "2(N-1)/N n", "", _ANY,
          "blocks down a tree, then around a ring (van de Geijn)"),
    Entry("reduce", "binomial_tree", "binomial_tree.reduce", "L", "n (the root receives L n)",
          "from the root around, one tree for every element", _ANY, "the broadcast's tree, upwards"),
    Entry("reduce", "chain", "chain.reduce", "N-1; N-2+k pipelined in k segments", "n",
          "from the far end to the root, for every element", _ANY, "from each rank to the one before"),
    Entry("reduce", "reduce_scatter_gather", "scatter_all_gather.reduce", "L + N-1",
          "n (the root receives 2(N-1)/N n)", _BY_CHUNK, _ANY, "blocks around a ring, then up a tree"),
    Entry("reduce", "ordered", "ordered.reduce", "2", "n (the root receives 2(N-1)/N n)", _IN_ORDER, _ANY,
          "blocks to all ranks, added in rank order, and on to the root"),
    Entry("all_to_all", "pairwise", "pairwise.all_to_all", "N-1", "(N-1)/N n", "", _ANY, "one partner at a time"),
    Entry("all_to_all", "direct", "direct.all_to_all", "1", "(N-1)/N n", "", _ANY, "all pairs at once"),
    Entry("all_to_all", "bruck", "bruck.all_to_all", "L", "n/N times the bits set in 1 ... N-1", "", _ANY,
          "blocks hop 1, 2, 4, ... ranks: few messages, more bytes"),
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
