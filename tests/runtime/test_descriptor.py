"""Calls in words and in 64 bits."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from atoll.runtime.descriptor import CallDescriptor, group_calls, name_ranks
from atoll.runtime.ledger import HISTORY, NO_ALARM, CallLedger
from atoll.runtime.messages import Standing

CALL = CallDescriptor(5, 9, "all_reduce", "float32", 1024, "sum", None, "ring")


def test_a_call_is_described_as_one_would_write_it() -> None:
    assert CALL.describe() == "all_reduce(float32, 1024, sum, algorithm=ring)"
    assert CallDescriptor(0, 0, "broadcast", "int8", 0, None, 3).describe() == "broadcast(int8, 0, root=3)"
    assert CallDescriptor(0, 0, "barrier").describe() == "barrier()"


def test_the_fingerprint_is_of_what_must_agree_and_of_nothing_else() -> None:
    assert CALL.fingerprint() == CallDescriptor(0, 0, "all_reduce", "float32", 1024, "sum", None, "ring").fingerprint()
    others = [
        CallDescriptor(5, 9, "reduce_scatter", "float32", 1024, "sum", None, "ring"),
        CallDescriptor(5, 9, "all_reduce", "float64", 1024, "sum", None, "ring"),
        CallDescriptor(5, 9, "all_reduce", "float32", 1025, "sum", None, "ring"),
        CallDescriptor(5, 9, "all_reduce", "float32", 1024, "max", None, "ring"),
        CallDescriptor(5, 9, "all_reduce", "float32", 1024, "sum", 0, "ring"),
        CallDescriptor(5, 9, "all_reduce", "float32", 1024, "sum", None, "tree"),
        CallDescriptor(5, 9, "all_reduce", "float32", 1024, "sum", None, None),
        CallDescriptor(5, 9, "all_reduce", "float32", 1024, None, None, "sum"),
    ]
    assert len({call.fingerprint() for call in [CALL, *others]}) == 1 + len(others)
    assert all(0 <= call.fingerprint() < 2**64 for call in others)


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    program = (
        "from atoll.runtime.descriptor import CallDescriptor as C;"
        "print(C(5, 9, 'all_reduce', 'float32', 1024, 'sum', None, 'ring').fingerprint())"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert int(other.stdout) == CALL.fingerprint() == 0x1D8E7A87BAD38497


def test_ranks_are_named_as_one_would_say_them() -> None:
    assert name_ranks([3]) == "rank 3"
    assert name_ranks([0, 1, 2]) == "ranks 0-2"
    assert name_ranks([5, 0, 1, 2, 2]) == "ranks 0-2 and 5"
    assert name_ranks([0, 2, 4]) == "ranks 0, 2 and 4"
    assert name_ranks([]) == "no rank"
    assert name_ranks([1], [0, 1]) == "rank 1"
    assert name_ranks([1], [0, 3]) == "rank 1 (world rank 3)"
    assert name_ranks([0, 1, 2], [4, 5, 1]) == "ranks 0-2 (world ranks 4-5 and 1)"


@given(st.sets(st.integers(0, 40), min_size=1))
def test_the_ranks_named_are_the_ranks_meant(ranks: set[int]) -> None:
    words = name_ranks(ranks).removeprefix("ranks ").removeprefix("rank ").replace(" and ", ", ").split(", ")
    named: list[int] = []
    for word in words:
        first, _, last = word.partition("-")
        named += range(int(first), int(last or first) + 1)
    assert named == sorted(ranks)


def test_calls_are_grouped_largest_first_and_the_absent_last() -> None:
    other = CallDescriptor(5, 9, "barrier")
    groups = group_calls({0: other, 1: CALL, 2: None, 3: CALL, 4: None, 5: None})
    assert groups == [([1, 3], CALL), ([0], other), ([2, 4, 5], None)]
    assert group_calls({0: other, 1: CALL}) == [([0], other), ([1], CALL)]


@given(st.lists(st.sampled_from(["enter", "leave oldest", "leave newest"]), max_size=60))
def test_the_ledger_knows_where_it_stands(events: list[str]) -> None:
    """Against a list that keeps everything."""
    ledger = CallLedger(5, (0, 1))
    entered: list[CallDescriptor] = []
    inside: list[int] = []
    for event in events:
        if event == "enter":
            call = CallDescriptor(5, len(entered), f"call {len(entered)}")
            assert ledger.enter(call, 1.0) is False
            inside.append(call.sequence)
            entered.append(call)
        elif inside:
            ledger.leave(inside.pop(0 if event == "leave oldest" else -1))
    assert sorted(ledger.inside) == inside
    assert ledger.completed == min(inside, default=len(entered))
    assert ledger.last == (entered[-1] if entered else None)
    for call in entered:
        assert ledger.look_up(call.sequence) == (
            Standing.INSIDE if call.sequence in inside else Standing.LEFT, call
        )  # fmt: skip
    assert ledger.look_up(len(entered)) == (Standing.NOT_YET, None)


def test_the_ledger_forgets_and_raises_the_alarm() -> None:
    ledger = CallLedger(5, (0, 1))
    assert ledger.alarm == NO_ALARM
    ledger.alarm = HISTORY
    for sequence in range(HISTORY + 2):
        assert ledger.enter(CallDescriptor(5, sequence, "x"), 0.0) is (sequence >= HISTORY)
    assert ledger.look_up(1) == (Standing.FORGOTTEN, None)
    assert ledger.look_up(2)[0] is Standing.INSIDE
