"""The event model: parts of ranks joined, lanes strictly nested whatever was recorded, traces one after the other."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.trace.events import (
    Collective,
    Key,
    Lane,
    Part,
    Trace,
    Transfers,
    join,
    lanes,
    one_after_the_other,
    pack,
    unpack,
)  # fmt: skip


def transfers(*rows: tuple[int, int, bool, int, int, int, float, float, float]) -> Transfers:
    """Rows of rank, peer, sends, channel, step, chunk, bytes, start, end."""
    return Transfers.of([[row[at] for row in rows] for at in range(9)])


def one_message(sent: tuple[float, float], received: tuple[float, float]) -> list[list[Part]]:
    """Rank 0 sends to rank 1."""
    return [
        [Part("broadcast chain", 8, 100.0, 104.0, transfers((0, 1, True, 0, 0, 0, 8, *sent)))],
        [Part("broadcast chain", 8, 100.5, 105.0, transfers((1, 0, False, 0, 0, 0, 8, *received)))],
    ]


def test_a_message_is_on_its_way_from_when_its_sender_could_send_it() -> None:
    trace = join("a test", ["here", "there"], one_message((101.0, 103.0), (102.5, 104.5)), [0.0, 0.0])
    (call,) = trace.collectives
    assert (call.start_s.tolist(), call.end_s.tolist()) == ([0.0, 0.5], [4.0, 5.0])
    assert call.transfers.keys() == [Key(0, 0, 0, 0, 1, True), Key(1, 0, 0, 0, 0, False)]
    assert (call.transfers.start_s.tolist(), call.transfers.end_s.tolist()) == ([1.0, 1.0], [3.0, 4.5])
    # A sender that learns late that its memory was read could send no later than that.
    late = join("a test", ["here", "there"], one_message((103.0, 103.5), (100.5, 102.0)), [0.0, 0.0])
    assert late.collectives[0].transfers.start_s.tolist() == [2.0, 2.0]


def test_clocks_of_hosts_are_shifted() -> None:
    trace = join("a test", ["here", "there"], one_message((101.0, 103.0), (2.5, 4.5)), [0.0, 100.0])
    assert trace.collectives[0].start_s.tolist() == [0.0, 100.5]
    assert trace.collectives[0].transfers.end_s.tolist() == [3.0, 4.5]


def test_other_calls_on_some_rank_are_refused() -> None:
    parts = one_message((101.0, 103.0), (102.0, 104.0))
    with pytest.raises(SpecError, match="got 1 on rank 0 and 0 on rank 1"):
        join("a test", ["here", "there"], [parts[0], []], [0.0, 0.0])


columns = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans(), st.integers(0, 1), st.integers(0, 3),
              st.integers(0, 3), st.floats(0, 100), st.floats(0, 10), st.floats(0, 10)),
    max_size=20,
)  # fmt: skip
calls = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), columns), min_size=1, max_size=3)


def trace_of(said: list[tuple[float, float, list[Any]]]) -> Trace:
    return Trace("a test", ("a", "b", "c"), tuple(
        Collective("call", 1, np.full(3, start), np.full(3, start + long), transfers(*rows))
        for start, long, rows in said
    ))  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(calls)
def test_lanes_are_strictly_nested_whatever_was_recorded(said: list[tuple[float, float, list[Any]]]) -> None:
    """Calls may overlap and times may be in any order: on a lane one thing is after the other, or within it."""
    trace = trace_of(said)
    seen = 0
    for lane, spans in lanes(trace):
        before = 0.0
        for span in spans:
            assert before <= span.start_s <= span.end_s
            before = span.start_s
            assert len(span.rows) == len(span.starts_s) == len(span.ends_s) > 0
            for row, start, end in zip(span.rows, span.starts_s, span.ends_s, strict=True):
                table = trace.collectives[span.collective].transfers
                assert Lane(table.rank[row], table.channel[row], table.sends[row], table.peer[row]) == lane
                assert before <= start <= end
                assert table.start_s[row] <= start
                assert table.end_s[row] <= end
                before = end
            assert before <= span.end_s
            before = span.end_s
            seen += len(span.rows)
    assert seen == sum(len(call.transfers) for call in trace.collectives)


@settings(max_examples=50, deadline=None)
@given(calls)
def test_a_trace_is_the_same_in_another_process(said: list[tuple[float, float, list[Any]]]) -> None:
    trace = trace_of(said)
    again = unpack(pack(trace))
    assert (again.source, again.places) == (trace.source, trace.places)
    for ours, theirs in zip(trace.collectives, again.collectives, strict=True):
        assert (ours.name, ours.size_bytes) == (theirs.name, theirs.size_bytes)
        assert ours.start_s.tolist() == theirs.start_s.tolist()
        for name in ours.transfers.__struct_fields__:
            mine, other = getattr(ours.transfers, name), getattr(theirs.transfers, name)
            assert mine.dtype == other.dtype
            assert mine.tolist() == other.tolist()


def test_traces_follow_each_other() -> None:
    first = trace_of([(0.0, 4.0, [(0, 1, True, 0, 0, 0, 1, 1.0, 2.0)]), (5.0, 1.0, [])])
    both = one_after_the_other([first, first])
    assert [call.start_s[0] for call in both.collectives] == [0.0, 5.0, 6.0, 11.0]
    assert [call.end_s[0] for call in both.collectives] == [4.0, 6.0, 10.0, 12.0]
    moved = both.collectives[2].transfers
    assert (moved.start_s[0], moved.end_s[0], moved.sends[0], moved.step[0]) == (7.0, 8.0, True, 0)
