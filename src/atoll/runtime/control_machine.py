"""The control plane's decisions: events in, instructions out; no socket, thread or clock here.

**Comparing notes.** A rank whose collective makes no progress tells all ranks of the communicator where it stands and
asks for the same (``Report``). Whoever is asked about a call for the first time reports on it, to all: at once, and
again when it makes that call later. So each rank reports once or twice per call, every rank ends up with the same
facts, and each comes to the verdict by itself; nobody is special, and any one may die.

- All have called and the calls differ: ``CollectiveMismatch``. Where calls differ and somebody has still to come, the
  others are not kept waiting for long (``GRACE_S``).
- A rank's deadline has passed: ``CollectiveTimeout``, after at most ``ANSWER_S`` for those that have not answered.
- A link ended without a goodbye: the process is gone, ``PeerLost`` in every communicator it is in.
- A rank departed, having completed n calls, and this rank is in call n or later: ``PeerLost`` too.
- A data connection broke and nothing of the above has explained it in ``SUSPICION_S``: ``PeerLost``, told to all.
- A rank that somebody waits for gives no sign of life and is given up (``detector``): ``PeerLost``, as if it had died.
- This rank is the one that was given up, or is cut off from most others: ``PeerLost`` in all its communicators.

A verdict is for good: it ends its communicator. One that is not obvious to all (by a link's end) is sent to all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

import msgspec

from atoll.runtime import verdict as verdicts
from atoll.runtime.agreement import Council, Key, Message
from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.detector import Ask, CutOff, Detector, Examine, Finding, GiveUp
from atoll.runtime.ledger import NO_ALARM, CallLedger
from atoll.runtime.messages import (
    Accuse,
    Asks,
    Ballot,
    Beat,
    ControlMessage,
    Decided,
    Departed,
    Doubt,
    Enlist,
    GaveUp,
    Goodbye,
    Kind,
    Linked,
    Report,
    Standing,
    Verdict,
    Vote,
)

# Calls that differ are a mismatch already; this is how long late ranks may still add what they called.
GRACE_S: Final = 0.5
# A living control thread answers in milliseconds; one on a crowded host in tens of them.
ANSWER_S: Final = 0.5
# After a data connection broke: the control link's end, or a verdict of the other side, explains it within this.
SUSPICION_S: Final = 0.5
# Bounds on what is kept for others: inquiries for each communicator, messages for communicators not yet known here.
MAX_INQUIRIES: Final = 1024
MAX_UNCLAIMED: Final = 4096


class Send(NamedTuple):
    """Send ``message`` to world rank ``peer``."""

    peer: int
    message: ControlMessage


class Wake(NamedTuple):
    """Wake the data loop of a communicator: its ledger's ``failure`` is set."""

    communicator_id: int


class Part(NamedTuple):
    """Say nothing more to world rank ``peer`` once what waits is sent, and hear nothing more of it."""

    peer: int


class Notify(NamedTuple):
    """Let those look again who wait for an agreement to end or for being enlisted."""


Instruction = Send | Wake | Part | Examine | Notify


class _Inquiry:
    """What is known about one call, by world rank."""

    def __init__(self) -> None:
        self.reports: dict[int, Report] = {}
        self.reported = False  # this rank has said what it called
        self.decide_at: float | None = None
        self.timeout_s: float | None = None  # this rank's deadline has passed
        self.answered: set[int] = set()  # who has answered since then

    def complete(self, ranks: Sequence[int]) -> bool:
        """Whether every rank has said what it called."""
        return all(rank in self.reports and self.reports[rank].standing is not Standing.NOT_YET for rank in ranks)


class _Communicator:
    def __init__(self, ledger: CallLedger) -> None:
        self.ledger = ledger
        self.inquiries: dict[int, _Inquiry] = {}
        self.departed: dict[int, int] = {}  # world rank -> calls it had completed
        self.suspicions: dict[int, tuple[float, str]] = {}  # world rank -> when to conclude, what was seen
        self.verdict: Verdict | None = None


class ControlMachine:
    """The control plane of world rank ``rank``. ``names[r]`` says where rank r runs: ``pid 4711 on node7``.

    Every event returns what to do about it. Times are seconds on one monotonic clock. ``heartbeat_s`` is the silence
    after which a rank that somebody waits for is given up; infinite: never.
    """

    def __init__(self, rank: int, names: Sequence[str], heartbeat_s: float = inf) -> None:
        self._rank = rank
        self._names = names
        self._detector = Detector(rank, len(names), heartbeat_s)
        self._waits: dict[tuple[int, int], tuple[int, ...]] = {}  # communicator, call -> world ranks awaited
        self.cut_off: Verdict | None = None  # why this rank must not go on
        self._given_up: set[int] = set()
        self.council = Council(rank)
        self._works_in: int | None = None  # the communicator that has taken this spare in
        self.enlisted: Enlist | None = None  # the newest call of spares, where this rank is one or was
        self._communicators: dict[int, _Communicator] = {}
        self._unclaimed: deque[tuple[int, Report | Verdict | Departed]] = deque(maxlen=MAX_UNCLAIMED)
        self._closed: deque[int] = deque(maxlen=MAX_UNCLAIMED)
        self.lost: dict[int, str] = {}  # world rank -> why
        self.left: dict[int, dict[int, int]] = {}  # said goodbye: world rank -> communicator -> calls completed
        self.linked: set[int] = set()  # have their links to all
        self._instructions: list[Instruction] = []

    # Events from this process.

    def register(self, ledger: CallLedger, now: float) -> list[Instruction]:
        """A communicator begins."""
        communicator = self._communicators[ledger.communicator_id] = _Communicator(ledger)
        unclaimed, self._unclaimed = self._unclaimed, deque(maxlen=MAX_UNCLAIMED)
        for peer, message in unclaimed:
            self._dispatch(peer, message, now)
        gone = [peer for peer in ledger.ranks if peer in self.lost]
        if self.cut_off is not None:
            self._fail(communicator, msgspec.structs.replace(self.cut_off, communicator_id=ledger.communicator_id))
        elif gone:
            self._lose(communicator, gone)
        for peer in ledger.ranks:
            if peer in self.left and peer not in communicator.departed:
                self._depart(communicator, peer, self.left[peer].get(ledger.communicator_id, 0))
        return self._done()

    def unregister(self, communicator_id: int) -> list[Instruction]:
        """This rank has closed a communicator."""
        communicator = self._communicators.pop(communicator_id, None)
        self._closed.append(communicator_id)
        if communicator is not None:
            self._part(communicator)
        return self._done()

    def _part(self, communicator: _Communicator) -> None:
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

    def abandon(self, communicator_id: int, sequence: int, reason: str) -> list[Instruction]:
        """This rank gives up a call that others are in; ``sequence`` -1: the communicator as a whole."""
        communicator = self._communicators.get(communicator_id)
        if communicator is not None and communicator.ledger.failure is None:
            self._pass(communicator, verdicts.gave_up_call(communicator.ledger, self._rank, sequence, reason))
        return self._done()

    def goodbye(self, blamed: Iterable[int] = ()) -> list[Instruction]:
        """This process leaves the world; ``blamed`` are ranks because of which it never began."""
        for communicator in self._communicators.values():
            if communicator.verdict is not None:
                self._part(communicator)
        completed = {identity: c.ledger.completed for identity, c in self._communicators.items()}
        message = Goodbye(completed, tuple(sorted({*self.lost, *blamed})))
        for peer in range(len(self._names)):
            if peer != self._rank and peer not in self.lost and peer not in self.left:
                self._instructions.append(Send(peer, message))
        self._communicators.clear()
        return self._done()

    # Agreements.

    def propose(
        self, key: Key, members: Sequence[int], value: int, taken: Iterable[int], now: float
    ) -> list[Instruction]:
        """Take part in an agreement with what this rank knows of the lost; its end shows in ``council`` and wakes."""
        ballot = Ballot(value, tuple(sorted({*self.lost, *self.left})), tuple(sorted(taken)))
        self._send(self.council.propose(key, members, ballot), now)
        return self._done()

    def withdraw(self, key: Key) -> list[Instruction]:
        """Nobody waits for the end of an agreement any more."""
        self.council.withdraw(key)
        return self._done()

    def enlist(self, spares: Iterable[int], call: Enlist) -> list[Instruction]:
        """Tell all ``spares`` who is called."""
        self._instructions += [Send(spare, call) for spare in spares if spare not in self.lost]
        return self._done()

    def joined(self, call: Enlist) -> list[Instruction]:
        """This spare works now; whoever else has called it is told that it does not come."""
        self._works_in = call.communicator_id
        if self.enlisted is not None:
            self._enlist(self.enlisted)
        return self._done()

    def _enlist(self, call: Enlist) -> None:
        if self._works_in is None:
            if self.enlisted is None or call.generation >= self.enlisted.generation:
                self.enlisted = call
            self._instructions.append(Notify())
        elif self._rank in call.ranks and call.communicator_id != self._works_in:
            self._instructions += [
                Send(peer, Departed({call.communicator_id: 0}))
                for peer in call.ranks
                if peer != self._rank and peer not in self.lost and peer not in self.left
            ]

    def _send(self, messages: Sequence[Message], now: float | None = None) -> None:
        self._instructions += [Send(message.peer, message.content) for message in messages]
        self._instructions.append(Notify())
        if now is not None:
            self._update_waits(now)

    # Events from the others.

    def heard(
        self, messages: Sequence[tuple[int, ControlMessage]], ended: Mapping[int, str], now: float
    ) -> list[Instruction]:
        """What came from the others in one go: messages by world rank, and whose links have ended, with the reason.

        The order in which sockets happen to be read means nothing. Of ranks that go down one after the other, the
        one that died is to be named, not those that left because of it: so deaths seen here come before deaths heard
        of, and both before departures.
        """
        goodbyes = [(peer, message) for peer, message in messages if isinstance(message, Goodbye)]
        for peer, message in messages:
            self._detector.heard(peer)
            if isinstance(message, Linked):
                self.linked.add(peer)
            elif isinstance(message, Beat):
                if message.asks:
                    self._instructions.append(Send(peer, Beat(asks=False)))
            elif isinstance(message, Doubt):
                self._follow(self._detector.doubted(message.ranks, now))
            elif isinstance(message, Accuse):
                self._follow(self._detector.accused(peer, message.ranks))
            elif isinstance(message, GaveUp):
                self._give_up(message.ranks, message.reason)
            elif isinstance(message, Vote | Decided):
                self._send(self.council.heard(peer, message), now)
            elif isinstance(message, Enlist):
                self._enlist(message)
            elif not isinstance(message, Goodbye):
                self._dispatch(peer, message, now)
        self.left.update({peer: goodbye.completed for peer, goodbye in goodbyes})
        self._follow(self._detector.gone([peer for peer, _ in goodbyes]))
        self._send(self.council.lose([peer for peer, _ in goodbyes]), now)
        self._lose_all(ended)
        for peer, goodbye in goodbyes:
            self._lose_all({rank: f"rank {peer} reports it as lost" for rank in goodbye.lost if rank != self._rank})
        for peer, goodbye in goodbyes:
            for identity, communicator in self._communicators.items():
                if peer in communicator.ledger.ranks and peer not in communicator.departed:
                    self._depart(communicator, peer, goodbye.completed.get(identity, 0))
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
            )
            if time is not None
        ]
        beat = self._detector.next_deadline()
        return min(times if beat is None else (*times, beat), default=None)

    def tick(self, now: float) -> list[Instruction]:
        """Time has passed."""
        for communicator in list(self._communicators.values()):
            for sequence, inquiry in list(communicator.inquiries.items()):
                if inquiry.decide_at is not None and inquiry.decide_at <= now:
                    inquiry.decide_at = None
                    self._conclude(communicator, sequence)
            for peer, (when, reason) in list(communicator.suspicions.items()):
                if when <= now:
                    del communicator.suspicions[peer]
                    self._conclude_suspicion(communicator, peer, reason)
        self._update_waits(now)
        self._follow(self._detector.tick(now))
        return self._done()

    # Ranks that give no sign of life.

    def examined(self, peer: int, conclusive: bool, words: str) -> list[Instruction]:
        """What this host knows about the process of ``peer``: ``conclusive`` if it cannot give a sign of life."""
        self._follow(self._detector.examined(peer, conclusive, words))
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
        awaited = {peer for peers in self._waits.values() for peer in peers} | self.council.awaited()
        self._follow(self._detector.wait_for(awaited, now))

    def _follow(self, findings: Sequence[Finding]) -> None:
        """Do what the detector has found out to be done."""
        for finding in findings:
            if isinstance(finding, Ask):
                self._instructions.append(Send(finding.peer, Beat(asks=True)))
            elif isinstance(finding, Examine):
                self._instructions.append(finding)
            elif isinstance(finding, GiveUp):
                self._give_up(finding.ranks, finding.reason)
            elif isinstance(finding, CutOff):
                self._end(finding.ranks, finding.reason)
            else:
                self._tell_world(finding.message)

    def _give_up(self, ranks: Sequence[int], reason: str) -> None:
        """``ranks`` are no part of the world any more; hand it on, to them too, for when they come back."""
        if self._rank in ranks:
            who = f"rank {self._rank} ({self._names[self._rank]})"
            self._end((self._rank,), f"{who} was given up by the others, who go on without it: {reason}")
            return
        new = [rank for rank in ranks if rank < len(self._names) and rank not in self.lost and rank not in self.left]
        if new:
            self._tell_world(GaveUp(tuple(new), reason))
            self._given_up.update(new)
            self._lose_all(dict.fromkeys(new, reason))
            self._instructions += [Part(rank) for rank in new]

    def _end(self, ranks: Sequence[int], reason: str) -> None:
        """This rank must not go on."""
        if self.cut_off is None:
            self.cut_off = Verdict(0, Kind.LOST, reason[:4096], tuple(ranks))
            self._detector.ended = True
            self._tell_world(GaveUp((self._rank,), reason[:4096]))
            for communicator in self._communicators.values():
                identity = communicator.ledger.communicator_id
                self._fail(communicator, msgspec.structs.replace(self.cut_off, communicator_id=identity))

    def _tell_world(self, message: ControlMessage) -> None:
        for peer in range(len(self._names)):
            if peer != self._rank and peer not in self.lost and peer not in self.left:
                self._instructions.append(Send(peer, message))

    # Comparing notes.

    def _dispatch(self, peer: int, message: Report | Verdict | Departed, now: float) -> None:
        if isinstance(message, Departed):
            for identity, completed in message.completed.items():
                communicator = self._communicators.get(identity)
                self._send(self.council.depart(peer, identity), now)
                if communicator is None:
                    self._keep(peer, identity, Departed({identity: completed}))
                elif peer in communicator.ledger.ranks:
                    self._depart(communicator, peer, completed)
            return
        communicator = self._communicators.get(message.communicator_id)
        if communicator is None:
            self._keep(peer, message.communicator_id, message)
        elif peer not in communicator.ledger.ranks or communicator.ledger.failure is not None:
            return
        elif isinstance(message, Verdict):
            self._fail(communicator, message)
        else:
            inquiry = self._inquiry(communicator, message.sequence)
            self._hear(communicator, inquiry, peer, message, now)

    def _keep(self, peer: int, communicator_id: int, message: Report | Verdict | Departed) -> None:
        """The others may be ahead of us in making a communicator; of one that is closed here they have been told."""
        if communicator_id not in self._closed:
            self._unclaimed.append((peer, message))

    def _hear(self, communicator: _Communicator, inquiry: _Inquiry, peer: int, report: Report, now: float) -> None:
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

    def _inquiry(self, communicator: _Communicator, sequence: int) -> _Inquiry:
        inquiry = communicator.inquiries.get(sequence)
        if inquiry is None:
            if len(communicator.inquiries) >= MAX_INQUIRIES:
                self._make_room(communicator)
            inquiry = communicator.inquiries[sequence] = _Inquiry()
        return inquiry

    def _make_room(self, communicator: _Communicator) -> None:
        """Forget calls that all have made alike; else the newest, since the oldest is what the others wait behind."""
        inquiries = communicator.inquiries
        for sequence in [s for s, inquiry in inquiries.items() if inquiry.complete(communicator.ledger.ranks)]:
            del inquiries[sequence]
        if len(inquiries) >= MAX_INQUIRIES:
            del inquiries[max(inquiries)]

    def _report(
        self,
        communicator: _Communicator,
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

    def _set_alarm(self, communicator: _Communicator) -> None:
        ledger = communicator.ledger
        awaited = [sequence for sequence, inquiry in communicator.inquiries.items() if not inquiry.reported]
        ledger.alarm = min((*awaited, *communicator.departed.values()), default=NO_ALARM)

    def _decide(self, communicator: _Communicator, sequence: int, now: float) -> None:
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

    def _conclude(self, communicator: _Communicator, sequence: int) -> None:
        """Decide with what is known."""
        ledger, inquiry = communicator.ledger, communicator.inquiries.get(sequence)
        if inquiry is None or ledger.failure is not None:
            return
        if verdicts.differ(inquiry.reports):
            self._pass(communicator, verdicts.mismatch(ledger.communicator_id, sequence, ledger.ranks, inquiry.reports))
        elif inquiry.timeout_s is not None:
            call = ledger.look_up(sequence)[1] or CallDescriptor(ledger.communicator_id, sequence, "a collective")
            self._pass(
                communicator,
                verdicts.timeout(call, ledger.ranks, inquiry.reports, inquiry.answered, inquiry.timeout_s),
            )

    def _pass(self, communicator: _Communicator, verdict: Verdict) -> None:
        """End the communicator here and everywhere."""
        self._tell(communicator, verdict)
        self._fail(communicator, verdict)

    def _fail(self, communicator: _Communicator, verdict: Verdict) -> None:
        ledger = communicator.ledger
        if ledger.failure is None:
            communicator.verdict = verdict
            ledger.failure = verdicts.to_error(verdict)
            communicator.inquiries.clear()
            communicator.suspicions.clear()
            ledger.alarm = NO_ALARM
            self._instructions.append(Wake(ledger.communicator_id))

    # Ranks that are gone.

    def _lose_all(self, lost: Mapping[int, str]) -> None:
        new = {peer: why for peer, why in lost.items() if peer not in self.lost and peer not in self.left}
        self.lost.update(new)
        self._follow(self._detector.gone(new))
        self._send(self.council.lose(new))
        for communicator in self._communicators.values():
            here = [peer for peer in communicator.ledger.ranks if peer in new and peer not in communicator.departed]
            if here:
                self._lose(communicator, here)

    def _lose(self, communicator: _Communicator, peers: Sequence[int]) -> None:
        verb = "did not answer and was given up" if self._given_up.issuperset(peers) else "died"
        reasons = [self.lost[peer] for peer in peers]
        self._fail(communicator, verdicts.gone(communicator.ledger, peers, verb, self._names, reasons))

    def _depart(self, communicator: _Communicator, peer: int, completed: int) -> None:
        communicator.departed[peer] = completed
        self._set_alarm(communicator)
        self._check_departures(communicator)

    def _check_departures(self, communicator: _Communicator) -> None:
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

    def _conclude_suspicion(self, communicator: _Communicator, peer: int, reason: str) -> None:
        ledger = communicator.ledger
        if ledger.inside and ledger.failure is None:
            self._pass(communicator, verdicts.severed(ledger, self._rank, peer, self._names[peer], reason))

    def _tell(self, communicator: _Communicator, message: Report | Verdict | Departed) -> None:
        for peer in communicator.ledger.ranks:
            if peer != self._rank and peer not in self.lost and peer not in self.left:
                self._instructions.append(Send(peer, message))

    def _done(self) -> list[Instruction]:
        instructions, self._instructions = self._instructions, []
        return instructions
