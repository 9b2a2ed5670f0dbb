"""Closed forms of what goes by powers of two, and of trees and chains: see ``closed_form`` for the vocabulary.

Messages move whole: a rank passes them on when they are there, and what it sends at one time on one tier shares its
wire. In segments, as the runtime moves them, trees take less and come near to what the busiest wire carries. Ranks and
islands must be powers of two, so that a partner or parent at one distance is on one tier for all, and in its own place
there: on its own rail.

- **Exchanges** (recursive doubling and halving, halving-doubling): the sum over distances of ``L + x``, where all ranks
  work at once. A rank has finished with one partner before it has anything for the next.
- **Binomial tree.** Up, a parent takes its children in order, near ones first: ``L + x`` for each distance. Down, the
  root sends to all its children at once: the farthest has its message when all of one tier have, and is a root with one
  child fewer.
- **Chain.** ``L + x`` a hop. Here segments may be given: the first of k makes the whole way, the others follow as fast
  as the slowest hop lets them. (Flow level lets latencies behind a slow hop overlap with what is still on its way.)
- **Double binary tree**, for each half of the vector: going up, an inner rank takes one child after the other, since
  sums have an order; going down, it sends to both at once. The tree is the in-order one: below an island's last rank
  hang its own island and, across, half of the next. The second tree is the mirror image, on other NICs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from atoll.errors import SpecError
from atoll.simulator.tiers import Shape, Tier

Found = tuple[float, str]
"""Seconds, and the tier that takes most of them."""


class Sum:
    """Seconds by tier."""

    def __init__(self) -> None:
        self.within = self.between = 0.0

    def add(self, seconds: float, crosses: bool) -> None:
        if crosses:
            self.between += seconds
        else:
            self.within += seconds

    def found(self) -> Found:
        return self.within + self.between, "between" if self.between > self.within else "within"


def powers_of_two(shape: Shape, algorithm: str) -> None:
    """Raises ``SpecError`` where ranks or islands are none."""
    for count, what in ((shape.ranks, "ranks"), (shape.per_island, "ranks to an island")):
        if count & (count - 1):
            raise SpecError(
                f"{algorithm}: a closed form needs powers of two, got {count} {what}; flow level plays any number"
            )


def recursive(shape: Shape, collective: str, size_bytes: float, segment_bytes: float) -> Found:
    """Recursive doubling of all-reduce and all-gather, recursive halving of reduce-scatter."""
    powers_of_two(shape, "recursive_doubling")
    total = Sum()
    for distance, tier, crosses in _distances(shape):
        message = size_bytes if collective == "all_reduce" else size_bytes * distance / shape.ranks
        gamma = 0.0 if collective == "all_gather" else tier.gamma_s_per_byte * message
        total.add(tier.shared_s(message) + gamma, crosses)
    return total.found()


def halving_doubling(shape: Shape, collective: str, size_bytes: float, segment_bytes: float) -> Found:
    powers_of_two(shape, "halving_doubling")
    total = Sum()
    for distance, tier, crosses in _distances(shape):
        message = size_bytes / (2 * distance)
        total.add(2 * tier.shared_s(message) + tier.gamma_s_per_byte * message, crosses)
    return total.found()


def binomial(shape: Shape, collective: str, size_bytes: float, segment_bytes: float) -> Found:
    """Up for reduce and gather, down for broadcast, both for all-reduce."""
    powers_of_two(shape, "binomial_tree")
    total = Sum()
    if collective != "broadcast":
        for distance, tier, crosses in _distances(shape):
            message = size_bytes * distance / shape.ranks if collective == "gather" else size_bytes
            gamma = 0.0 if collective == "gather" else tier.gamma_s_per_byte * message
            total.add(tier.shared_s(message) + gamma, crosses)
    if collective in ("broadcast", "all_reduce"):
        at_once = {False: 0, True: 0}
        for _, tier, crosses in _distances(shape):
            at_once[crosses] += 1
            total.add(tier.shared_s(size_bytes * at_once[crosses]), crosses)
    return total.found()


def chain(shape: Shape, collective: str, size_bytes: float, segment_bytes: float) -> Found:
    """Broadcast and reduce from rank to rank."""
    hops = [(shape.within, False, shape.ranks - shape.islands)]
    if shape.between is not None:
        hops.append((shape.between, True, shape.islands - 1))
    message, more = _segments(size_bytes, segment_bytes)
    total, slowest = Sum(), (0.0, False)
    for tier, crosses, count in hops:
        if count:
            gamma = tier.gamma_s_per_byte if collective == "reduce" else 0.0
            each = message / tier.bytes_per_s + gamma * message
            total.add(count * (tier.latency_s + each), crosses)
            slowest = max(slowest, (each, crosses))
    total.add(more * slowest[0], slowest[1])
    return total.found()


def double_binary_tree(shape: Shape, collective: str, size_bytes: float, segment_bytes: float) -> Found:
    powers_of_two(shape, "double_binary_tree")
    x = size_bytes / 2
    total = Sum()
    levels = shape.ranks.bit_length() - 1
    for level in range(1, levels + 1):
        left, right = _children(shape, level)
        kids = [left] if level == levels else [left, right]
        for tier, crosses, aligned in kids:
            up = tier.shared_s(x) if aligned else tier.alone_s(x)
            total.add(up + tier.gamma_s_per_byte * x, crosses)
        last, crosses, aligned = kids[-1]
        together = x * sum(tier is last for tier, _, _ in kids)
        total.add(last.shared_s(together) if aligned else last.alone_s(together), crosses)
    return total.found()


def _segments(size_bytes: float, segment_bytes: float) -> tuple[float, float]:
    """The first segment, and how many more there are of it."""
    if segment_bytes >= size_bytes:
        return size_bytes, 0.0
    count = math.ceil(size_bytes / segment_bytes)
    return size_bytes / count, count - 1.0


def _distances(shape: Shape) -> Iterator[tuple[int, Tier, bool]]:
    """1, 2, 4, ... with the tier of partners so far away."""
    distance = 1
    while distance < shape.ranks:
        tier, crosses = shape.apart(distance)
        yield distance, tier, crosses
        distance *= 2


def _children(shape: Shape, level: int) -> tuple[tuple[Tier, bool, bool], tuple[Tier, bool, bool]]:
    """Left and right child of a vertex so many levels above the leaves: tier, whether it crosses, whether the child
    is in its parent's place on another island."""
    distance = 1 << (level - 1)
    tier, crosses = shape.apart(distance)
    left = (tier, crosses, True)
    if shape.between is not None and 2 * distance == shape.per_island:
        return left, (shape.between, True, False)
    return left, left
