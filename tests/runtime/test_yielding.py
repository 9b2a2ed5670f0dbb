"""Yielding the processor: as long as it comes back at once, and not to those who keep it."""

import pytest

from atoll.runtime import yielding
from atoll.runtime.yielding import CROWDED_S, UNYIELDING_S, Yielding


class Core:
    """A processor on which a yield takes ``turn_s``, and how often it was yielded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.turn_s = 0.0
        self.yields = 0
        monkeypatch.setattr(yielding.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(yielding.os, "sched_yield", self.give)

    def give(self) -> None:
        self.yields += 1
        self.now += self.turn_s


def test_a_core_that_comes_back_at_once_is_yielded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    core, waiter = Core(monkeypatch), Yielding()
    core.turn_s = CROWDED_S / 2
    assert [waiter.once() for _ in range(30)] == [True] * 30
    assert core.yields == 30


def test_a_core_that_somebody_keeps_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    core, waiter = Core(monkeypatch), Yielding()
    core.turn_s = 0.025
    assert [waiter.once() for _ in range(30)] == [False] * 30
    assert core.yields == 1, "one turn of the others, not thirty"
    core.now += UNYIELDING_S
    core.turn_s = 0.0
    assert waiter.once(), "it is looked at anew"
