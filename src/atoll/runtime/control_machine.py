"""The control plane's decisions: events in, instructions out; no socket, thread or clock here.

**Comparing notes.** A rank whose collective makes no progress tells all ranks of the communicator where it stands and
asks for the same (``Report``). Whoever is asked about a call for the first time reports on it, to all: at once, and
again when it makes that call later. So each rank reports once or twice per call, every rank ends up with the same
facts, and each comes to the verdict by itself; nobody is special, and any one may die.

- All have called and the calls differ: ``CollectiveMismatch``. Where calls differ and somebody has still to come, the
  others are not kept waiting for long (``GRACE_S``).
- A rank's deadline has passed: ``CollectiveTimeout``, after at most ``ANSWER_S`` for those that have not answered, or
  some times that for those that give signs of life: who is only slow to answer is no culprit.
- A rank is lost (``roster``): ``PeerLost`` in every communicator it is in.
- A data connection broke and nothing of the above has explained it in ``SUSPICION_S``: ``PeerLost``.

**One verdict.** Whoever finds something like that tells all ranks of the communicator (``Draft``), and all answer with
where they stand. The first rank that is alive makes the verdict of it and sends it to all, so that all raise the same
error. A rank that already has a verdict answers with that. If the author is lost, everyone turns to the next; so they
do if it does not answer within ``ANSWER_S``, or some times that while it gives signs of life. An author does not wait
longer than that for anyone either.

Two things end a communicator here alone: a rank departed, having completed n calls, and this rank is in call n or later
(``PeerLost``); and this rank itself was given up by the others. A verdict is for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Final

import msgspec

from atoll.runtime import verdict as verdicts
from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.instructions import Instruction, Send, Wake
from atoll.runtime.ledger import NO_ALARM, CallLedger
from atoll.runtime.messages import (
    Arrivals,
    AskArrivals,
    Asks,
    ControlMessage,
    Departed,
    Draft,
    Goodbye,
    Report,
    Standing,
    Verdict,
)
from atoll.runtime.notes import Inquiry, OpenCommunicator
from atoll.runtime.roster import Roster
from atoll.runtime.survey import Survey

# Calls that differ are a mismatch already; this is how long late ranks may still add what they called.
GRACE_S: Final = 0.5
# A living control thread answers in milliseconds; one on a crowded host in tens of them.
ANSWER_S: Final = 0.5
# So many times longer is a rank waited for that gives signs of life: its host is busy.
MAX_EXTENSIONS: Final = 3
# After a data connection broke: the control link's end, or a verdict of the other side, explains it within this.
SUSPICION_S: Final = 0.5
# Bounds on what is kept for others: inquiries for each communicator, messages for communicators not yet known here.
MAX_INQUIRIES: Final = 1024
MAX_UNCLAIMED: Final = 4096
# What a data loop knows of a call: the world ranks it waits for, and how far it is, in words.
Snapshot = Callable[[int, int], tuple[Sequence[int], str]]


class ControlMachine:
    """The control plane of world rank ``rank``. ``names[r]`` says where rank r runs: ``pid 4711 on node7``.

    Every event returns what to do about it. Times are seconds on one monotonic clock. ``heartbeat_s`` is the silence
    after which a rank that somebody waits for is given up; infinite: never.
    """

    def __init__(self, rank: int, names: Sequence[str], heartbeat_s: float = inf) -> None:
        self._rank = rank
        self._instructions: list[Instruction] = []
        self.roster = Roster(rank, names, heartbeat_s, self._instructions, self._on_lost, self._on_cut_off)
        self.snapshot: Snapshot = lambda communicator_id, sequence: ((), "")
        self._now = 0.0  # of the latest event
        self._waits: dict[tuple[int, int], tuple[int, ...]] = {}  # communicator, call -> world ranks awaited
        self._communicators: dict[int, OpenCommunicator] = {}
        self._unclaimed: deque[tuple[int, Report | Verdict | Departed | Draft]] = deque(maxlen=MAX_UNCLAIMED)
        self._closed: deque[int] = deque(maxlen=MAX_UNCLAIMED)
        self.survey = Survey(self.roster, self._ledger_of, self._instructions)

    def _ledger_of(self, communicator_id: int) -> CallLedger | None:
        communicator = self._communicators.get(communicator_id)
        return None if communicator is None else communicator.ledger

    # Events from this process.

    def register(self, ledger: CallLedger, now: float) -> list[Instruction]:
        """A communicator begins."""
        self._now = now
        communicator = self._communicators[ledger.communicator_id] = OpenCommunicator(ledger)
        unclaimed, self._unclaimed = self._unclaimed, deque(maxlen=MAX_UNCLAIMED)
        for peer, message in unclaimed:
            self._dispatch(peer, message, now)
        roster = self.roster
        gone = [peer for peer in ledger.ranks if peer in roster.lost]
        if roster.cut_off is not None:
            self._fail(communicator, msgspec.structs.replace(roster.cut_off, communicator_id=ledger.communicator_id))
        elif gone:
            self._lose(communicator, gone)
        for peer in ledger.ranks:
            if peer in roster.left and peer not in communicator.departed:
                self._depart(communicator, peer, roster.left[peer].get(ledger.communicator_id, 0))
        return self._done()

    def unregister(self, communicator_id: int) -> list[Instruction]:
        """This rank has closed a communicator."""
        communicator = self._communicators.pop(communicator_id, None)
        self._closed.append(communicator_id)
        if communicator is not None:
            self._part(communicator)
        return self._done()

    def _part(self, communicator: OpenCommunicator) -> None:
        """Tell the others that this rank will do nothing more in a communicator, and why, if it did not choose to.

        A rank that leaves because of a verdict hands it on, in front of everything that shows that it has left: else
        those that do not have it yet would take this rank for the cause.
        """
        if communicator.verdict is not None:
            self._tell(communicator, communicator.verdict)
        else:
            ledger = communicator.ledger
            self._tell(communicator, Departed({ledger.communicator_id: ledger.completed}))

    def entered(self, communicator_id: int, now: float) -> list[Instruction]:
        """A call was made that somebody waits for."""
        communicator = self._communicators.get(communicator_id)
        if communicator is not None and communicator.ledger.failure is None:
            for sequence in list(communicator.inquiries):
                self._report(communicator, sequence, now)
            self._check_departures(communicator)
            self._set_alarm(communicator)
        return self._done()

    def waiting(self, communicator_id: int, sequence: int, waits_on: Sequence[int], now: float) -> list[Instruction]:
        """This rank's call makes no progress."""
        self._now = now
        communicator = self._communicators.get(communicator_id)
        if communicator is not None and communicator.ledger.failure is None:
            # Who waits for whom is worth a second report where this rank has only answered so far.
            known = self._inquiry(communicator, sequence).reports.get(self._rank)
            again = bool(waits_on) and known is not None and not known.waits_on
            self._report(communicator, sequence, now, waits_on, asks=Asks.ONCE, again=again)
            self._decide(communicator, sequence, now)
            self._wait_for(communicator_id, sequence, waits_on, now)
        return self._done()

    def timed_out(
        self, communicator_id: int, sequence: int, timeout_s: float, waits_on: Sequence[int], progress: str, now: float
    ) -> list[Instruction]:
        """The deadline of this rank's call has passed."""
        self._now = now
        communicator = self._communicators.get(communicator_id)
        if communicator is not None and communicator.ledger.failure is None:
            inquiry = self._inquiry(communicator, sequence)
            inquiry.timeout_s = timeout_s
            inquiry.answered = {self._rank}
            inquiry.decide_at = now + ANSWER_S
            self._report(communicator, sequence, now, waits_on, progress, asks=Asks.NOW, again=True)
            self._decide(communicator, sequence, now)
            self._wait_for(communicator_id, sequence, waits_on, now)
        return self._done()

    def disconnected(self, communicator_id: int, peer: int, reason: str, now: float) -> list[Instruction]:
        """A data connection broke."""
        communicator = self._communicators.get(communicator_id)
        if communicator is not None and communicator.ledger.failure is None:
            communicator.suspicions.setdefault(peer, (now + SUSPICION_S, reason))
        return self._done()

    def abandon(self, communicator_id: int, sequence: int, reason: str, now: float) -> list[Instruction]:
        """This rank gives up a call that others are in; ``sequence`` -1: the communicator as a whole."""
        self._now = now
        communicator = self._communicators.get(communicator_id)
        if communicator is not None and communicator.ledger.failure is None:
            self._find(communicator, verdicts.gave_up_call(communicator.ledger, self._rank, sequence, reason))
        return self._done()

    def goodbye(self, blamed: Iterable[int] = ()) -> list[Instruction]:
        """This process leaves the world; ``blamed`` are ranks because of which it never began."""
        for communicator in self._communicators.values():
            if communicator.verdict is not None:
                self._part(communicator)
        completed = {identity: c.ledger.completed for identity, c in self._communicators.items()}
        self.roster.tell(Goodbye(completed, tuple(sorted({*self.roster.lost, *blamed}))))
        self._communicators.clear()
        return self._done()

    # Events from the others.

    def heard(
        self, messages: Sequence[tuple[int, ControlMessage]], ended: Mapping[int, str], now: float
    ) -> list[Instruction]:
        """What came from the others in one go: messages by world rank, and whose links have ended, with the reason.

        The order in which sockets happen to be read means nothing. Of ranks that go down one after the other, the
        one that died is to be named, not those that left because of it: so deaths seen here come before deaths heard
        of, and both before departures.
        """
        self._now = now
        goodbyes = {peer: message for peer, message in messages if isinstance(message, Goodbye)}
        for peer, message in messages:
            self.roster.sign_of_life(peer, now)
            if isinstance(message, Report | Verdict | Departed | Draft):
                self._dispatch(peer, message, now)
            elif isinstance(message, AskArrivals | Arrivals):
                self.survey.heard(peer, message, now)
            elif not isinstance(message, Goodbye):
                self.roster.heard(peer, message, now)
        self.roster.leave({peer: goodbye.completed for peer, goodbye in goodbyes.items()})
        self.roster.lose(ended)
        for peer, goodbye in goodbyes.items():
            self.roster.lose({rank: f"rank {peer} reports it as lost" for rank in goodbye.lost if rank != self._rank})
        for peer, goodbye in goodbyes.items():
            for identity, communicator in self._communicators.items():
                if peer in communicator.ledger.ranks and peer not in communicator.departed:
                    self._depart(communicator, peer, goodbye.completed.get(identity, 0))
        self._redraft()
        self._update_waits(now)
        return self._done()

    # Time.

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do; None for never."""
        times = [
            time
            for communicator in self._communicators.values()
            for time in (
                *(inquiry.decide_at for inquiry in communicator.inquiries.values()),
                *(when for when, _ in communicator.suspicions.values()),
                communicator.decide_at,
            )
            if time is not None
        ]
        beat = self.roster.next_deadline()
        return min(times if beat is None else (*times, beat), default=None)

    def tick(self, now: float) -> list[Instruction]:
        """Time has passed."""
        self._now = now
        for communicator in list(self._communicators.values()):
            for sequence, inquiry in list(communicator.inquiries.items()):
                if inquiry.decide_at is not None and inquiry.decide_at <= now:
                    if self._unanswered(communicator, inquiry, living=True) and inquiry.extensions < MAX_EXTENSIONS:
                        inquiry.extensions += 1
                        inquiry.decide_at = now + ANSWER_S
                    else:
                        inquiry.decide_at = None
                        self._conclude(communicator, sequence)
            for peer, (when, reason) in list(communicator.suspicions.items()):
                if when <= now:
                    del communicator.suspicions[peer]
                    self._conclude_suspicion(communicator, peer, reason)
            if communicator.decide_at is not None and communicator.decide_at <= now:
                self._hurry(communicator)
        self._update_waits(now)
        self.roster.tick(now)
        return self._done()

    def taken(self) -> list[Instruction]:
        """What the roster has asked for meanwhile."""
        return self._done()

    def _wait_for(self, communicator_id: int, sequence: int, waits_on: Sequence[int], now: float) -> None:
        self._waits[communicator_id, sequence] = tuple(waits_on)
        self._update_waits(now)

    def _update_waits(self, now: float) -> None:
        for identity, sequence in list(self._waits):
            communicator = self._communicators.get(identity)
            ledger = None if communicator is None else communicator.ledger
            if ledger is None or ledger.failure is not None or not ledger.is_inside(sequence):
                del self._waits[identity, sequence]
        awaited = {peer for peers in self._waits.values() for peer in peers}
        for communicator in self._communicators.values():
            if communicator.ledger.failure is None:
                awaited.update(self._slow_answers(communicator))
                for inquiry in communicator.inquiries.values():
                    awaited.update(self._unanswered(communicator, inquiry))
        self.roster.wait_for(awaited, now)

    # Comparing notes.

    def _dispatch(self, peer: int, message: Report | Verdict | Departed | Draft, now: float) -> None:
        if isinstance(message, Departed):
            for identity, completed in message.completed.items():
                communicator = self._communicators.get(identity)
                self.roster.depart(peer, identity)
                if communicator is None:
                    self._keep(peer, identity, Departed({identity: completed}))
                elif peer in communicator.ledger.ranks:
                    self._depart(communicator, peer, completed)
            return
        communicator = self._communicators.get(message.communicator_id)
        if communicator is None:
            self._keep(peer, message.communicator_id, message)
        elif peer not in communicator.ledger.ranks:
            return
        elif isinstance(message, Draft):
            self._hear_draft(communicator, peer, message)
        elif communicator.ledger.failure is not None:
            return
        elif isinstance(message, Verdict):
            self._fail(communicator, message)
        else:
            inquiry = self._inquiry(communicator, message.sequence)
            self._hear(communicator, inquiry, peer, message, now)

    def _keep(self, peer: int, communicator_id: int, message: Report | Verdict | Departed | Draft) -> None:
        """The others may be ahead of us in making a communicator; of one that is closed here they have been told."""
        if communicator_id not in self._closed:
            self._unclaimed.append((peer, message))
            if isinstance(message, Draft) and message.author == peer:
                # An author does not wait for a program that has yet to learn of its communicator.
                absent = Report(communicator_id, message.report.sequence, Standing.NOT_YET)
                self._instructions.append(Send(peer, Draft(communicator_id, peer, absent)))

    def _hear(self, communicator: OpenCommunicator, inquiry: Inquiry, peer: int, report: Report, now: float) -> None:
        known = inquiry.reports.get(peer)
        if known is None or report.waits_on or report.standing is not known.standing:
            inquiry.reports[peer] = report
        else:
            # An answer without details does not wipe out what the rank has said before, but it is fresher.
            inquiry.reports[peer] = msgspec.structs.replace(
                report, waits_on=known.waits_on, progress=report.progress or known.progress
            )
        inquiry.answered.add(peer)
        if report.asks is Asks.ONCE:
            self._report(communicator, report.sequence, now)
        elif report.asks is Asks.NOW:
            known = inquiry.reports.get(self._rank)
            details = ((), "") if known is None else (known.waits_on, known.progress)
            answer = self._stand(communicator.ledger, report.sequence, now, *details)
            self._instructions.append(Send(peer, answer))
        self._decide(communicator, report.sequence, now)

    def _inquiry(self, communicator: OpenCommunicator, sequence: int) -> Inquiry:
        inquiry = communicator.inquiries.get(sequence)
        if inquiry is None:
            if len(communicator.inquiries) >= MAX_INQUIRIES:
                self._make_room(communicator)
            inquiry = communicator.inquiries[sequence] = Inquiry()
        return inquiry

    def _make_room(self, communicator: OpenCommunicator) -> None:
        """Forget calls that all have made alike; else the newest, since the oldest is what the others wait behind."""
        inquiries = communicator.inquiries
        for sequence in [s for s, inquiry in inquiries.items() if inquiry.complete(communicator.ledger.ranks)]:
            del inquiries[sequence]
        if len(inquiries) >= MAX_INQUIRIES:
            del inquiries[max(inquiries)]

    def _report(
        self,
        communicator: OpenCommunicator,
        sequence: int,
        now: float,
        waits_on: Sequence[int] = (),
        progress: str = "",
        *,
        asks: Asks = Asks.NOTHING,
        again: bool = False,
    ) -> None:
        """Tell the others where this rank stands, unless they know."""
        inquiry = self._inquiry(communicator, sequence)
        # The alarm first, then the look: see the ledger.
        communicator.ledger.alarm = min(communicator.ledger.alarm, sequence)
        report = self._stand(communicator.ledger, sequence, now, waits_on, progress, asks)
        known = inquiry.reports.get(self._rank)
        if again or (not inquiry.reported and (known is None or known.standing is not report.standing)):
            inquiry.reported = report.standing is not Standing.NOT_YET
            inquiry.reports[self._rank] = report
            self._tell(communicator, report)
        self._set_alarm(communicator)

    def _stand(
        self,
        ledger: CallLedger,
        sequence: int,
        now: float,
        waits_on: Sequence[int] = (),
        progress: str = "",
        asks: Asks = Asks.NOTHING,
    ) -> Report:
        """Where this rank stands towards call ``sequence``."""
        standing, call = ledger.look_up(sequence)
        if standing is Standing.INSIDE and not (waits_on and progress):
            awaited, words = self.snapshot(ledger.communicator_id, sequence)
            waits_on, progress = waits_on or awaited, progress or words
        last = ledger.last
        return Report(
            ledger.communicator_id,
            sequence,
            standing,
            None if call is None else call.clipped(),
            None if last is None else last.clipped(),
            max(0.0, now - ledger.entered_at) if last is not None else 0.0,
            tuple(waits_on),
            progress[:4096],
            asks,
        )

    def _set_alarm(self, communicator: OpenCommunicator) -> None:
        ledger = communicator.ledger
        awaited = [sequence for sequence, inquiry in communicator.inquiries.items() if not inquiry.reported]
        ledger.alarm = min((*awaited, *communicator.departed.values()), default=NO_ALARM)

    def _decide(self, communicator: OpenCommunicator, sequence: int, now: float) -> None:
        """Whether what is known about a call is a verdict already."""
        inquiry = communicator.inquiries.get(sequence)
        if inquiry is None or communicator.ledger.failure is not None:
            return
        ranks = communicator.ledger.ranks
        if inquiry.complete(ranks):
            if verdicts.differ(inquiry.reports):
                self._conclude(communicator, sequence)
            elif inquiry.timeout_s is None and all(
                report.standing is not Standing.INSIDE for report in inquiry.reports.values()
            ):
                del communicator.inquiries[sequence]
        elif verdicts.differ(inquiry.reports) and inquiry.decide_at is None:
            inquiry.decide_at = now + GRACE_S
        if inquiry.timeout_s is not None and all(rank in inquiry.answered for rank in ranks):
            self._conclude(communicator, sequence)

    def _conclude(self, communicator: OpenCommunicator, sequence: int) -> None:
        """Decide with what is known."""
        ledger, inquiry = communicator.ledger, communicator.inquiries.get(sequence)
        if inquiry is None or ledger.failure is not None:
            return
        if verdicts.differ(inquiry.reports):
            self._find(communicator, verdicts.mismatch(ledger.communicator_id, sequence, ledger.ranks, inquiry.reports))
        elif inquiry.timeout_s is not None:
            call = ledger.look_up(sequence)[1] or CallDescriptor(ledger.communicator_id, sequence, "a collective")
            verdict = verdicts.timeout(call, ledger.ranks, inquiry.reports, inquiry.answered, inquiry.timeout_s)
            communicator.slow.update(rank for rank in ledger.ranks if rank not in inquiry.answered)
            self._find(communicator, verdict)

    def _unanswered(self, communicator: OpenCommunicator, inquiry: Inquiry, living: bool = False) -> list[int]:
        """After a deadline: who has still to say where it stands; ``living``: of those that give signs of life."""
        asked = () if inquiry.timeout_s is None else communicator.ledger.ranks
        missing = [rank for rank in asked if rank not in inquiry.answered and self._answers(communicator, rank)]
        return [rank for rank in missing if not (living and self.roster.is_late(rank))]

    # One verdict.

    def _find(self, communicator: OpenCommunicator, verdict: Verdict | None) -> None:
        """This rank has found what ends a communicator; None: it has heard that another one has."""
        ledger = communicator.ledger
        if ledger.failure is not None:
            return
        news = verdict is not None and communicator.found is None
        if news:
            communicator.found = verdict
        self._draft(communicator, again=news)

    def _draft(self, communicator: OpenCommunicator, again: bool = False) -> None:
        ledger = communicator.ledger
        present = [rank for rank in ledger.ranks if self._answers(communicator, rank)]
        if present[0] != communicator.author or again:
            communicator.author = present[0]
            communicator.decide_at = self._now + ANSWER_S
            communicator.extensions = 0
            sequence = min(ledger.inside, default=ledger.entered)
            report = self._stand(ledger, sequence, self._now)
            draft = Draft(ledger.communicator_id, present[0], report, communicator.found)
            communicator.drafts[self._rank] = draft
            self._tell(communicator, draft)
        if present[0] == self._rank:
            drafts = communicator.drafts
            if all(rank in drafts and drafts[rank].author == self._rank for rank in present):
                self._author(communicator)

    def _answers(self, communicator: OpenCommunicator, rank: int) -> bool:
        if rank == self._rank:
            return True
        return not (self.roster.is_gone(rank) or rank in communicator.departed or rank in communicator.slow)

    def _hear_draft(self, communicator: OpenCommunicator, peer: int, draft: Draft) -> None:
        if communicator.verdict is not None:
            self._instructions.append(Send(peer, communicator.verdict))
        else:
            communicator.drafts[peer] = draft
            self._find(communicator, None)

    def _redraft(self) -> None:
        """Ranks have gone: others may have to make the verdicts."""
        for communicator in self._communicators.values():
            if communicator.author >= 0 and communicator.ledger.failure is None:
                self._draft(communicator)

    def _hurry(self, communicator: OpenCommunicator) -> None:
        """Somebody has taken too long."""
        living = [rank for rank in self._slow_answers(communicator) if not self.roster.is_late(rank)]
        if living and communicator.extensions < MAX_EXTENSIONS:
            communicator.extensions += 1
            communicator.decide_at = self._now + ANSWER_S
        elif communicator.author == self._rank:
            self._author(communicator)
        else:
            communicator.slow.add(communicator.author)
            self._draft(communicator)

    def _slow_answers(self, communicator: OpenCommunicator) -> list[int]:
        """Those whose part in a verdict this rank waits for."""
        if communicator.author != self._rank:
            return [communicator.author] if communicator.author >= 0 else []
        drafts = communicator.drafts
        present = [rank for rank in communicator.ledger.ranks if self._answers(communicator, rank)]
        return [rank for rank in present if rank not in drafts or drafts[rank].author != self._rank]

    def _author(self, communicator: OpenCommunicator) -> None:
        """Make the verdict for all."""
        ledger, roster = communicator.ledger, self.roster
        reports = {rank: draft.report for rank, draft in communicator.drafts.items()}
        lost = {
            rank: verdicts.Loss(roster.names[rank], roster.lost[rank], rank in roster.given_up)
            for rank in ledger.ranks
            if rank in roster.lost
        }
        found = [draft.verdict for _, draft in sorted(communicator.drafts.items()) if draft.verdict is not None]
        if lost:
            self._pass(communicator, verdicts.gone(ledger.communicator_id, ledger.ranks, lost, reports))
        else:
            self._pass(communicator, min(found, key=lambda verdict: verdicts.PRECEDENCE.index(verdict.kind)))

    def _pass(self, communicator: OpenCommunicator, verdict: Verdict) -> None:
        """End the communicator here and everywhere."""
        self._tell(communicator, verdict)
        self._fail(communicator, verdict)

    def _fail(self, communicator: OpenCommunicator, verdict: Verdict) -> None:
        ledger = communicator.ledger
        if ledger.failure is None:
            communicator.verdict = verdict
            ledger.failure = verdicts.to_error(verdict)
            communicator.inquiries.clear()
            communicator.suspicions.clear()
            communicator.decide_at = None
            ledger.alarm = NO_ALARM
            self._instructions.append(Wake(ledger.communicator_id))

    # Ranks that are gone.

    def _on_lost(self, ranks: Sequence[int]) -> None:
        for communicator in self._communicators.values():
            here = [peer for peer in communicator.ledger.ranks if peer in ranks and peer not in communicator.departed]
            if here:
                self._lose(communicator, here)

    def _on_cut_off(self, verdict: Verdict) -> None:
        for identity, communicator in self._communicators.items():
            self._fail(communicator, msgspec.structs.replace(verdict, communicator_id=identity))

    def _lose(self, communicator: OpenCommunicator, peers: Sequence[int]) -> None:
        """What the verdict says is up to its author, who has lost the same ranks."""
        ledger, roster = communicator.ledger, self.roster
        lost = {rank: verdicts.Loss(roster.names[rank], roster.lost[rank], rank in roster.given_up) for rank in peers}
        self._find(communicator, verdicts.gone(ledger.communicator_id, ledger.ranks, lost, {}))

    def _depart(self, communicator: OpenCommunicator, peer: int, completed: int) -> None:
        communicator.departed[peer] = completed
        self._set_alarm(communicator)
        self._check_departures(communicator)

    def _check_departures(self, communicator: OpenCommunicator) -> None:
        """Whether a call of this rank waits for ranks that have departed before it."""
        ledger = communicator.ledger
        inside = ledger.inside
        if not inside or ledger.failure is not None:
            return
        newest = max(inside)
        missed = {peer: completed for peer, completed in communicator.departed.items() if completed <= newest}
        if not missed:
            return
        first = min(sequence for sequence in inside if sequence >= min(missed.values()))
        self._fail(communicator, verdicts.left(ledger, missed, first))

    def _conclude_suspicion(self, communicator: OpenCommunicator, peer: int, reason: str) -> None:
        ledger = communicator.ledger
        if ledger.inside and ledger.failure is None:
            self._find(communicator, verdicts.severed(ledger, self._rank, peer, self.roster.names[peer], reason))

    def _tell(self, communicator: OpenCommunicator, message: ControlMessage) -> None:
        self.roster.tell(message, communicator.ledger.ranks)

    def _done(self) -> list[Instruction]:
        instructions = list(self._instructions)
        self._instructions.clear()
        return instructions
