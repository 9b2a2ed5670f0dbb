"""Which ranks are given up though nobody saw them die: suspicion, evidence and majority; no clock, no socket.

The end of a process shows as the end of its links and needs no proof. A rank that is only silent (stopped, stuck, or
behind a network that lets nothing through) is judged in steps. Nothing of this begins
unless somebody waits for it:

1. **Doubt.** It is late (``heartbeat``): all ranks are told, so that each asks it, and the one that waits asks everyone
   to learn how far it itself can reach.
2. **Evidence.** It is silent: if it runs on this host, the kernel says whether its process is stopped. That settles it.
3. **Majority.** Otherwise everyone who finds it silent accuses it. It is given up once more than half of the living
   ranks do. One that reaches no more than half of the living is itself **cut off**: it gives up nobody, and ends. So
   when a network splits, at most one side goes on.
4. **One broken pair.** Most hear a rank that this one does not: only the connection between the two is dead. The higher
   of them gives way.

To be given up is for good, for all communicators, and told to everyone, the rank itself included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from atoll.runtime.descriptor import name_ranks
from atoll.runtime.heartbeat import Heartbeat
from atoll.runtime.messages import Accuse, Doubt
from atoll.units import format_duration


class Ask(NamedTuple):
    """Ask ``peer`` for a sign of life."""

    peer: int


class Tell(NamedTuple):
    """Tell all living ranks."""

    message: Doubt | Accuse


class Examine(NamedTuple):
    """Look at the process of ``peer``, if this host can, and answer with ``examined``."""

    peer: int


class GiveUp(NamedTuple):
    """``ranks`` are lost from now on; tell everyone."""

    ranks: tuple[int, ...]
    reason: str


class CutOff(NamedTuple):
    """This rank is on the losing side: it must not go on. ``ranks`` are those that it does not reach."""

    ranks: tuple[int, ...]
    reason: str


Finding = Ask | Tell | Examine | GiveUp | CutOff


class Detector:
    """The judgement of world rank ``rank``. Every event returns what follows from it."""

    def __init__(self, rank: int, world_size: int, timeout_s: float) -> None:
        self._rank = rank
        self._living = set(range(world_size))
        self._beat = Heartbeat(timeout_s)
        self._awaited: frozenset[int] = frozenset()
        self._doubted: dict[int, float] = {}  # whom others doubt -> attended time until which this is looked into
        self._evidence: dict[int, tuple[bool, str]] = {}  # conclusive or not, in words
        self._accusers: dict[int, set[int]] = {}
        self._accused: dict[int, float] = {}  # whom this rank accuses -> attended time of the accusation
        self._findings: list[Finding] = []
        self.ended = False  # cut off: nothing is judged any more

    @property
    def timeout_s(self) -> float:
        """The silence after which a rank is accused."""
        return self._beat.timeout_s

    def wait_for(self, peers: Iterable[int], now: float) -> list[Finding]:
        """This rank waits for exactly ``peers`` now."""
        awaited = frozenset(peers) & self._living - {self._rank}
        if awaited != self._awaited:
            self._awaited = awaited
            self._watch(now)
        return self._done()

    def is_late(self, peer: int) -> bool:
        """Whether ``peer`` is waited for and has not been heard for a while."""
        return self._beat.is_late(peer)

    def heard(self, peer: int, now: float) -> None:
        """Something came from ``peer``."""
        self._beat.heard(peer, now)
        self._doubted.pop(peer, None)
        self._evidence.pop(peer, None)

    def doubted(self, ranks: Iterable[int], now: float) -> list[Finding]:
        """Another rank finds ``ranks`` late."""
        until = self._beat.attended_s + 2 * self._beat.timeout_s
        self._doubted.update({peer: until for peer in ranks if peer in self._living and peer != self._rank})
        self._watch(now)
        return self._done()

    def accused(self, by: int, ranks: Sequence[int]) -> list[Finding]:
        """``ranks`` are all that ``by`` accuses now."""
        if by in self._living:
            self._note(by, ranks)
            self._count()
        return self._done()

    def examined(self, peer: int, conclusive: bool, words: str) -> list[Finding]:
        """What was found about the process of ``peer``: ``conclusive`` if it cannot answer."""
        self._evidence[peer] = (conclusive, words)
        self._judge()
        return self._done()

    def gone(self, peers: Iterable[int]) -> list[Finding]:
        """``peers`` have died, left, or been given up."""
        self._forget(peers)
        self._count()
        return self._done()

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do."""
        return None if self.ended else self._beat.next_deadline()

    def tick(self, now: float) -> list[Finding]:
        """Time has passed; all that has come was heard before."""
        if not self.ended:
            beats = self._beat.look(now)
            if beats.late:
                self._findings.append(Tell(Doubt(tuple(beats.late))))
            if beats.ask:
                expired = [peer for peer, until in self._doubted.items() if until < self._beat.attended_s]
                for peer in expired:
                    del self._doubted[peer]
                self._watch(now)
                self._findings += [Ask(peer) for peer in beats.ask if peer in self._beat.watched]
                self._judge()
        return self._done()

    def _watch(self, now: float) -> None:
        watched = {*self._awaited, *self._doubted} & self._living
        if watched and (self._beat.undecided() or self._beat.silent()):
            watched = set(self._living)
        new = self._beat.watch(watched - {self._rank}, now, self._doubted)
        self._findings += [Ask(peer) for peer in new]

    def _judge(self) -> None:
        silent = [peer for peer in self._beat.silent() if peer in self._living]
        longest_s = max((self._beat.silence_s(peer) for peer in silent), default=0.0)
        if self.ended or (self._beat.undecided() and longest_s < 1.5 * self._beat.timeout_s):
            return  # who is late answers, or is silent too, within the timeout: then all are judged together
        unseen = [peer for peer in silent if peer not in self._evidence]
        if unseen:
            self._findings += [Examine(peer) for peer in unseen]
            return
        stopped = [peer for peer in silent if self._evidence[peer][0]]
        if stopped:
            self._give_up(stopped, self._words(stopped))
        rest = [peer for peer in silent if peer in self._living]
        reach = len(self._living) - len(rest)
        if rest and 2 * reach <= len(self._living):
            self._cut_off(rest, reach)
            return
        if set(rest) != self._accused.keys():
            self._accused = {peer: self._accused.get(peer, self._beat.attended_s) for peer in rest}
            self._note(self._rank, rest)
            self._findings.append(Tell(Accuse(tuple(rest))))
            self._count()
        for peer, since in list(self._accused.items()):
            if self._beat.attended_s - since >= self._beat.timeout_s:
                loser = max(peer, self._rank)
                reason = (
                    f"the control connection between {name_ranks((peer, self._rank))} lets nothing through, though "
                    f"both reach most others: the higher rank gives way"
                )
                if loser == self._rank:
                    self._end((peer,), reason)
                else:
                    self._give_up([loser], reason)

    def _words(self, peers: Sequence[int]) -> str:
        found = [self._evidence[peer][1] for peer in peers if peer in self._evidence and self._evidence[peer][1]]
        tail = f": {'; '.join(dict.fromkeys(found))}" if found else ""
        return f"no sign of life for {format_duration(self._beat.timeout_s)}{tail}"

    def _note(self, by: int, ranks: Sequence[int]) -> None:
        for accusers in self._accusers.values():
            accusers.discard(by)
        for peer in ranks:
            if peer in self._living:
                self._accusers.setdefault(peer, set()).add(by)

    def _count(self) -> None:
        """Give up whom most of the living accuse."""
        if self.ended:
            return
        most = [
            peer
            for peer, accusers in self._accusers.items()
            if peer != self._rank and 2 * len(accusers & self._living) > len(self._living)
        ]
        if most:
            self._give_up(most, self._words(most))

    def _give_up(self, ranks: Sequence[int], reason: str) -> None:
        self._findings.append(GiveUp(tuple(sorted(ranks)), reason))
        self._forget(ranks)

    def _forget(self, ranks: Iterable[int]) -> None:
        for peer in ranks:
            self._living.discard(peer)
            self._doubted.pop(peer, None)
            self._accusers.pop(peer, None)
            self._accused.pop(peer, None)
        self._awaited &= self._living

    def _cut_off(self, silent: Sequence[int], reach: int) -> None:
        self._end(
            tuple(silent),
            f"{name_ranks(silent)}: {self._words(silent)}; rank {self._rank} reaches {reach} of {len(self._living)} "
            "living ranks, itself included, which is no majority, so it cannot tell who is cut off and does not go on",
        )

    def _end(self, ranks: tuple[int, ...], reason: str) -> None:
        self.ended = True
        self._findings.append(CutOff(ranks, reason))

    def _done(self) -> list[Finding]:
        findings, self._findings = self._findings, []
        return findings
