"""One algorithm on several channels at once, each with a share of the vector and an order of ranks of its own.

Channel c moves part c of every block of the vector, a C-th of it, by a schedule of its own whose rank i is
``orders[c][i]``. With orders that differ in where they cross from island to island, C channels use C times the NICs:
that is what NCCL does with its rings and trees. Bytes per rank stay as they are and so do the steps; there are C times
the messages, of a C-th of the size.

                 rank order on 2 islands of 4          crosses at
    channel 0    0 1 2 3   4 5 6 7                     3 > 4, 7 > 0
    channel 1    1 2 3 0   5 6 7 4                     0 > 5, 4 > 1

This file only composes; the whole is proven like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from atoll.errors import SpecError
from atoll.schedule.compose import compose, embed, parallel
from atoll.schedule.table import Schedule


def over_channels(
    build: Callable[[int | None], Schedule], orders: Sequence[Sequence[int]], root: int | None = None
) -> Schedule:
    """``build(root)`` makes the schedule of one channel; ``root`` is the whole's, ``orders`` one for each channel.

    Raises ``SpecError`` for orders that are not the same ranks, and for schedules that cannot be embedded.
    """
    ranks = sorted(orders[0]) if orders else []
    if not ranks or ranks != list(range(len(ranks))) or any(sorted(order) != ranks for order in orders):
        raise SpecError("channels: expected at least one order, each of all ranks from 0")
    count = len(orders)
    parts = []
    for channel, order in enumerate(orders):
        schedule = build(None if root is None else list(order).index(root))
        terms = schedule.header.contract
        chunk = np.arange(terms.chunks)
        # A rank owns the block of its own number, whichever rank of the channel's schedule it plays.
        block = np.asarray(order)[chunk // terms.chunks_per_block] if terms.collective.blocked else 0
        starts = (block * count + channel) * terms.chunks_per_block + chunk % terms.chunks_per_block
        total = terms.chunks * count
        vectors = 2 if terms.collective.name == "all_to_all" else 1
        both = np.concatenate([starts + vector * total for vector in range(vectors)])
        parts.append(embed(schedule, order, total * vectors, starts=both, width=1))
    name = f"{schedule.name} on {count} channels"
    return compose(parallel(*parts), terms.collective.name, len(ranks), total, name=name, root=root)
