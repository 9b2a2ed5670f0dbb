"""What one rank knows of the calls and of the end of one communicator: the notes of ``control_machine``."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.runtime.ledger import CallLedger
from atoll.runtime.messages import Draft, Report, Standing, Verdict


class Inquiry:
    """What is known about one call, by world rank."""

    def __init__(self) -> None:
        self.reports: dict[int, Report] = {}
        self.reported = False  # this rank has said what it called
        self.decide_at: float | None = None
        self.timeout_s: float | None = None  # this rank's deadline has passed
        self.answered: set[int] = set()  # who has answered since then
        self.extensions = 0  # how often the others were given more time for that

    def complete(self, ranks: Sequence[int]) -> bool:
        """Whether every rank has said what it called."""
        return all(rank in self.reports and self.reports[rank].standing is not Standing.NOT_YET for rank in ranks)


class OpenCommunicator:
    """Its ledger, what is asked about its calls, and how its verdict comes about."""

    def __init__(self, ledger: CallLedger) -> None:
        self.ledger = ledger
        self.inquiries: dict[int, Inquiry] = {}
        self.departed: dict[int, int] = {}  # world rank -> calls it had completed
        self.suspicions: dict[int, tuple[float, str]] = {}  # world rank -> when to conclude, what was seen
        self.verdict: Verdict | None = None
        self.drafts: dict[int, Draft] = {}  # world rank -> what it has said about the end of this communicator
        self.found: Verdict | None = None  # what this rank itself has found
        self.author = -1
        self.decide_at: float | None = None
        self.extensions = 0
        self.slow: set[int] = set()  # whose answer is not waited for any more
