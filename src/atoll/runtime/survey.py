"""Asking all ranks of a communicator when they made their calls; no socket, no clock.

Control threads answer from their ledgers, so a rank answers also while its program computes. The clock of another host
is compared with ours by the question and its answer: it read its time about half-way between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from atoll.runtime.instructions import Instruction, Notify, Send
from atoll.runtime.ledger import CallLedger
from atoll.runtime.messages import Arrivals, AskArrivals
from atoll.runtime.roster import Roster


class Surveyed(NamedTuple):
    """When a rank made its calls, and how far its clock is ahead of ours, as seen from here."""

    arrivals: Arrivals
    ahead_s: float


class Survey:
    """The latest survey of one rank, and its answers to those of others. ``ledger_of`` a communicator that is open."""

    def __init__(
        self, roster: Roster, ledger_of: Callable[[int], CallLedger | None], instructions: list[Instruction]
    ) -> None:
        self._roster = roster
        self._ledger_of = ledger_of
        self._instructions = instructions
        self._token = 0
        self._asked_at = 0.0
        self.found: dict[int, Surveyed] = {}  # by world rank, filled as answers come

    def begin(self, communicator_id: int, calls: int, now: float) -> dict[int, Surveyed]:
        """Ask for the latest ``calls`` calls; where the answers will be."""
        self._token += 1
        self._asked_at = now
        self.found = {}
        ledger = self._ledger_of(communicator_id)
        if ledger is not None:
            self._roster.tell(AskArrivals(communicator_id, self._token, calls), ledger.ranks)
        return self.found

    def heard(self, peer: int, message: AskArrivals | Arrivals, now: float) -> None:
        """A question, or an answer."""
        if isinstance(message, Arrivals):
            if message.token == self._token:
                self.found[peer] = Surveyed(message, message.now - (self._asked_at + now) / 2)
                self._instructions.append(Notify())
            return
        ledger = self._ledger_of(message.communicator_id)
        if ledger is not None and peer in ledger.ranks:
            first, times = ledger.arrivals(ledger.entered - message.calls)
            answer = Arrivals(message.communicator_id, message.token, first, tuple(times), now)
            self._instructions.append(Send(peer, answer))
