"""Orders by several keys, whether or not the keys and the entries' own numbers fit into one integer."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.schedule.sorting import order_by


@given(
    st.integers(0, 30), st.lists(st.sampled_from([1, 2, 1 << 20, 1 << 31, 1 << 40]), min_size=1, max_size=4), st.data()
)
def test_the_order_is_stable_with_the_first_key_foremost(count: int, tops: list[int], data: st.DataObject) -> None:
    values = [data.draw(st.lists(st.sampled_from([0, top // 2, top]), min_size=count, max_size=count)) for top in tops]
    expected = sorted(range(count), key=lambda at: tuple(column[at] for column in values))
    assert order_by(*(np.array(column, dtype=np.int64) for column in values)).tolist() == expected


def test_keys_that_fill_an_integer_and_leave_no_room_for_the_entries() -> None:
    keys = np.array([3, 1, 1, 0], dtype=np.int64), np.array([(1 << 60) - 1, 5, 4, 1 << 59], dtype=np.int64)
    assert order_by(*keys).tolist() == [3, 2, 1, 0]
