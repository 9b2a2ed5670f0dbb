"""One algorithm on several channels: proven for every collective and any orders, the same bytes, and NICs in use."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.algorithms.catalog import CATALOG, build
from atoll.algorithms.channels import over_channels
from atoll.errors import SpecError
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.count import count
from atoll.schedule.prove import prove
from atoll.schedule.table import Schedule

ENTRIES = [(entry.collective, entry.name) for entry in CATALOG if entry.collective != "barrier"]


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(ENTRIES), st.integers(2, 6), st.integers(1, 4), st.randoms(use_true_random=False))
def test_any_algorithm_on_any_orders_is_proven(entry: tuple[str, str], ranks: int, channels: int, random) -> None:  # type: ignore[no-untyped-def]
    collective, name = entry
    root = random.randrange(ranks) if COLLECTIVES[collective].rooted else None
    orders = [random.sample(range(ranks), ranks) for _ in range(channels)]

    def one(at: int | None) -> Schedule:
        return build(collective, name, ranks, at)

    try:
        plain = one(root)
    except SpecError:
        return  # not for this world
    proven = prove(over_channels(one, orders, root))
    assert proven.schedule.num_steps == plain.num_steps
    per_channel = max(plain.column("channel"), default=0) + 1
    assert max(proven.schedule.column("channel"), default=0) < channels * per_channel
    length = 4 * proven.header.chunks * plain.header.chunks
    assert count(proven, length, 4).sent.sum() == count(prove(plain), length, 4).sent.sum()


def test_the_bytes_of_a_ring_are_spread_over_the_orders() -> None:
    orders = [[0, 1, 2, 3], [1, 0, 3, 2]]
    schedule = over_channels(lambda _: build("all_reduce", "ring", 4), orders)
    assert schedule.name == "ring on 2 channels"
    for channel, order in enumerate(orders):
        pairs = {
            (src, dst)
            for src, dst, on in zip(
                *(schedule.column(name).tolist() for name in ("src", "dst", "channel")), strict=True
            )
            if on == channel
        }
        assert pairs == {(order[at], order[(at + 1) % 4]) for at in range(4)}
    on_channel = np.bincount(schedule.column("channel"), weights=schedule.column("num_chunks"))
    assert on_channel.tolist() == [24, 24]


@pytest.mark.parametrize("orders", [[], [[0, 1], [0, 1, 2]], [[0, 0]], [[1, 2]]])
def test_orders_that_are_none_are_refused(orders: list[list[int]]) -> None:
    with pytest.raises(SpecError, match="each of all ranks"):
        over_channels(lambda _: build("all_reduce", "ring", 2), orders)
