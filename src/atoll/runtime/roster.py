"""Who belongs to the world, as one rank knows it: who died, left or was given up, and what the rest agree on.

Being lost is for good and for all communicators; ``lost`` says why. A rank becomes lost when its link ends without a
goodbye, when it is given up (``detector``), or when one that leaves says so. This rank itself can turn out to be the
one that is lost to the others: then it is ``cut_off``, and nothing that it has may go on.

Here are also the agreements (``agreement``) and the calls of spares, which are between ranks and not about the calls of
a communicator. What follows for communicators is the owner's affair: ``on_lost`` gets those who are newly lost,
``on_cut_off`` the verdict that ends all. No socket, no clock; what is to be done is appended to ``instructions``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from atoll.runtime.agreement import Council, Key, Message
from atoll.runtime.detector import Ask, CutOff, Detector, Examine, Finding, GiveUp
from atoll.runtime.instructions import Instruction, Notify, Part, Send
from atoll.runtime.messages import (
    Accuse,
    Ballot,
    Beat,
    ControlMessage,
    Decided,
    Departed,
    Doubt,
    Enlist,
    GaveUp,
    Kind,
    Linked,
    Verdict,
    Vote,
)

WorldMessage = Linked | Beat | Doubt | Accuse | GaveUp | Vote | Decided | Enlist


class Roster:
    """The world of world rank ``rank``; ``names[r]`` says where rank r runs. Times are monotonic seconds."""

    def __init__(
        self,
        rank: int,
        names: Sequence[str],
        heartbeat_s: float,
        instructions: list[Instruction],
        on_lost: Callable[[Sequence[int]], None],
        on_cut_off: Callable[[Verdict], None],
    ) -> None:
        self.rank = rank
        self.names = names
        self.lost: dict[int, str] = {}  # world rank -> why
        self.given_up: set[int] = set()  # those of the lost that nobody saw die
        self.left: dict[int, dict[int, int]] = {}  # said goodbye: world rank -> communicator -> calls completed
        self.linked: set[int] = set()  # have their links to all
        self.cut_off: Verdict | None = None  # why this rank must not go on
        self.council = Council(rank)
        self.enlisted: Enlist | None = None  # the newest call of spares, where this rank is one or was
        self._works_in: int | None = None  # the communicator that has taken this spare in
        self._detector = Detector(rank, len(names), heartbeat_s)
        self._awaited: frozenset[int] = frozenset()
        self._instructions = instructions
        self._on_lost = on_lost
        self._on_cut_off = on_cut_off

    def is_gone(self, peer: int) -> bool:
        """Whether nothing more can be said to ``peer``."""
        return peer in self.lost or peer in self.left

    def tell(self, message: ControlMessage, peers: Iterable[int] | None = None) -> None:
        """Send ``message`` to all of ``peers`` that are there; by default to the whole world."""
        for peer in range(len(self.names)) if peers is None else peers:
            if peer != self.rank and not self.is_gone(peer):
                self._instructions.append(Send(peer, message))

    # Who is there.

    def heard(self, peer: int, message: WorldMessage, now: float) -> None:
        """``peer`` has said something that is not about a communicator."""
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
        elif isinstance(message, Enlist):
            self._enlist(message)
        else:
            self._pass_on(self.council.heard(peer, message))

    def is_late(self, peer: int) -> bool:
        """Whether ``peer`` gives no sign of life lately, though it is waited for."""
        return self._detector.is_late(peer)

    def sign_of_life(self, peer: int, now: float) -> None:
        """Anything has come from ``peer``."""
        self._detector.heard(peer, now)

    def leave(self, left: Mapping[int, dict[int, int]]) -> None:
        """Ranks have said goodbye: the number of calls they had completed, by communicator."""
        self.left.update(left)
        self._follow(self._detector.gone(left))
        self._pass_on(self.council.lose(left))

    def depart(self, peer: int, communicator_id: int) -> None:
        """``peer`` has closed a communicator."""
        self._pass_on(self.council.depart(peer, communicator_id))

    def lose(self, lost: Mapping[int, str]) -> None:
        """Ranks are lost, and why."""
        new = {peer: why for peer, why in lost.items() if not self.is_gone(peer)}
        if new:
            self.lost.update(new)
            self._follow(self._detector.gone(new))
            self._pass_on(self.council.lose(new))
            self._on_lost(list(new))

    # Who is waited for.

    def wait_for(self, peers: Iterable[int], now: float) -> None:
        """Calls of this rank wait for exactly ``peers`` now; agreements come on top."""
        self._awaited = frozenset(peers)
        self._follow(self._detector.wait_for(self._awaited | self.council.awaited(), now))

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do."""
        return self._detector.next_deadline()

    def tick(self, now: float) -> None:
        """Time has passed."""
        self._follow(self._detector.tick(now))

    def examined(self, peer: int, conclusive: bool, words: str) -> None:
        """What this host knows about the process of ``peer``: ``conclusive`` if it cannot give a sign of life."""
        self._follow(self._detector.examined(peer, conclusive, words))

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
                self.tell(finding.message)

    def _give_up(self, ranks: Sequence[int], reason: str) -> None:
        """``ranks`` are no part of the world any more; hand it on, to them too, for when they come back."""
        if self.rank in ranks:
            who = f"rank {self.rank} ({self.names[self.rank]})"
            self._end((self.rank,), f"{who} was given up by the others, who go on without it: {reason}")
            return
        new = [rank for rank in ranks if rank < len(self.names) and not self.is_gone(rank)]
        if new:
            self.tell(GaveUp(tuple(new), reason))
            self.given_up.update(new)
            self.lose(dict.fromkeys(new, reason))
            self._instructions += [Part(rank) for rank in new]

    def _end(self, ranks: Sequence[int], reason: str) -> None:
        """This rank must not go on."""
        if self.cut_off is None:
            self.cut_off = Verdict(0, Kind.LOST, reason[:4096], tuple(ranks))
            self._detector.ended = True
            self.tell(GaveUp((self.rank,), reason[:4096]))
            self._on_cut_off(self.cut_off)
            self._instructions.append(Notify())

    # What they agree on.

    def propose(self, key: Key, members: Sequence[int], value: int, taken: Iterable[int], now: float) -> None:
        """Take part in an agreement with what this rank knows of the lost; its end shows in ``council``."""
        ballot = Ballot(value, tuple(sorted({*self.lost, *self.left})), tuple(sorted(taken)))
        self._pass_on(self.council.propose(key, members, ballot))
        self.wait_for(self._awaited, now)

    def expel(self, key: Key, reason: str) -> None:
        """Go on without the members that have not come to an agreement, where most of the living ones have."""
        agreement = self.council.look_up(key)
        if agreement is not None and agreement.has_quorum:
            self._give_up(agreement.missing, reason)

    def enlist(self, spares: Iterable[int], call: Enlist) -> None:
        """Tell ``spares`` who of them is called."""
        self.tell(call, spares)

    def joined(self, call: Enlist) -> None:
        """This spare works now; whoever else has called it is told that it does not come."""
        self._works_in = call.communicator_id
        if self.enlisted is not None:
            self._enlist(self.enlisted)

    def _enlist(self, call: Enlist) -> None:
        if self._works_in is None:
            if self.enlisted is None or call.generation >= self.enlisted.generation:
                self.enlisted = call
            self._instructions.append(Notify())
        elif self.rank in call.ranks and call.communicator_id != self._works_in:
            self.tell(Departed({call.communicator_id: 0}), call.ranks)

    def _pass_on(self, messages: Sequence[Message]) -> None:
        self._instructions += [Send(message.peer, message.content) for message in messages]
        self._instructions.append(Notify())
