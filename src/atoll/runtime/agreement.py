"""Agreement among the ranks that are left: one decision, also when ranks die meanwhile; no socket, no clock.

Every member **votes**: its ballot goes to all. The lowest member that is alive is the **coordinator**: once it has the
votes of all that are alive, it combines them and tells the **decision** to all. That is two messages one after the
other. When a coordinator is lost, everyone votes anew for the next one, this time with the decision, if one had come:
the new coordinator hands that on, and decides itself only where nobody has heard of any.

Why the survivors agree: a rank votes for a new coordinator only when it has lost all lower members, and what they had
sent it came before that (links keep their order). So if an earlier coordinator's decision has reached any survivor,
the new coordinator finds it among the votes, which it has from all survivors. Losses are for good: whoever is lost
(dead, or given up, see ``detector``) is not heard any more, so two coordinators never both count.

A decision's ``lost`` are all members whose votes were not counted, and whatever else anyone knew to be gone. A member
that never votes and is alive is waited for; how long is the caller's affair.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_
from typing import Final, NamedTuple

from atoll.runtime.messages import Ballot, Decided, Vote

# Votes kept for agreements that this rank has not come to yet, and agreements that are over kept for those that have to
# ask again. Each is a few dozen bytes.
MAX_EARLY: Final = 4096
MAX_KEPT: Final = 64

Key = tuple[int, int]  # communicator, number


class Message(NamedTuple):
    """Send ``content`` to world rank ``peer``."""

    peer: int
    content: Vote | Decided


class Agreement:
    """One agreement, as member ``rank`` of ``members`` (world ranks) sees it."""

    def __init__(self, key: Key, rank: int, members: Sequence[int], gone: Iterable[int], ballot: Ballot) -> None:
        self._key = key
        self._rank = rank
        self._members = tuple(members)
        self._living = set(members) - set(gone)
        self._ballot = ballot
        self._coordinator = -1
        self._votes: dict[int, Vote] = {}
        self.decision: Ballot | None = None

    @property
    def missing(self) -> list[int]:
        """Living members that have not voted yet."""
        return sorted(self._living - self._votes.keys() - {self._rank})

    @property
    def has_quorum(self) -> bool:
        """Whether more than half of the living members have voted."""
        return 2 * len(self.missing) < len(self._living)

    @property
    def awaited(self) -> set[int]:
        """Members for which this rank waits."""
        if self.decision is not None:
            return set()
        if self._coordinator != self._rank:
            return {self._coordinator}
        return {peer for peer in self._living - {self._rank} if not self._counts(peer)}

    def begin(self) -> list[Message]:
        """Vote."""
        return self._advance()

    def voted(self, peer: int, vote: Vote) -> list[Message]:
        """``peer`` has voted."""
        if peer in self._living:
            self._votes[peer] = vote
        return self._advance()

    def decided(self, peer: int, decision: Ballot) -> list[Message]:
        """Coordinator ``peer`` has counted."""
        if peer in self._living and self.decision is None:
            self.decision = decision
        return self._advance()

    def lose(self, peers: Iterable[int]) -> list[Message]:
        """``peers`` are gone for good."""
        self._living.difference_update(peers)
        return self._advance()

    def depart(self, peer: int) -> list[Message]:
        """``peer`` will not vote; one that has stays, since it may know the decision."""
        return [] if peer in self._votes else self.lose((peer,))

    def _counts(self, peer: int) -> bool:
        vote = self._votes.get(peer)
        return vote is not None and vote.coordinator == self._rank

    def _advance(self) -> list[Message]:
        messages: list[Message] = []
        coordinator = min(self._living)
        if coordinator != self._coordinator:
            self._coordinator = coordinator
            vote = Vote(*self._key, coordinator, self._ballot, self.decision)
            if coordinator != self._rank:
                messages += self._to_all(vote)
            elif self.decision is not None:
                messages += self._to_all(Decided(*self._key, self.decision))
            elif len(self._living) > 1:
                messages += self._to_all(vote)  # for them to know that this rank has come
        if self.decision is None and coordinator == self._rank and not self.awaited:
            self.decision = self._count()
            messages += self._to_all(Decided(*self._key, self.decision))
        return messages

    def _count(self) -> Ballot:
        votes = [self._votes[peer] for peer in sorted(self._living - {self._rank})]
        known = next((vote.decision for vote in votes if vote.decision is not None), None)
        if known is not None:
            return known
        ballots = [self._ballot, *(vote.ballot for vote in votes)]
        lost = {rank for ballot in ballots for rank in ballot.lost} | (set(self._members) - self._living)
        taken = {rank for ballot in ballots for rank in ballot.taken}
        value = reduce(and_, (ballot.value for ballot in ballots))
        return Ballot(value, tuple(sorted(lost)), tuple(sorted(taken)))

    def _to_all(self, content: Vote | Decided) -> list[Message]:
        return [Message(peer, content) for peer in sorted(self._living) if peer != self._rank]


class Council:
    """All agreements of one process: those it takes part in, and votes for those it has not come to yet."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._gone: set[int] = set()
        self._agreements: OrderedDict[Key, Agreement] = OrderedDict()
        self._early: OrderedDict[tuple[int, Key], Vote] = OrderedDict()
        self._withdrawn: set[Key] = set()
        self._departed: dict[int, set[int]] = {}  # communicator -> members that have left it

    def propose(self, key: Key, members: Sequence[int], ballot: Ballot) -> list[Message]:
        """Take part in agreement ``key`` among ``members``, of which this rank is one."""
        gone = self._gone | self._departed.get(key[0], set())
        early = {peer: vote for (peer, other), vote in self._early.items() if other == key}
        agreement = Agreement(key, self._rank, members, gone - early.keys() | self._gone, ballot)
        self._agreements[key] = agreement
        over = [other for other, a in self._agreements.items() if a.decision is not None or other in self._withdrawn]
        for other in over[: max(0, len(over) - MAX_KEPT)]:
            del self._agreements[other]
            self._withdrawn.discard(other)
        messages = agreement.begin()
        for peer, vote in early.items():
            del self._early[peer, key]
            messages += agreement.voted(peer, vote)
        return messages

    def look_up(self, key: Key) -> Agreement | None:
        """Agreement ``key``, if this rank takes part in it."""
        return self._agreements.get(key)

    def awaited(self) -> set[int]:
        """World ranks for which this one waits in any agreement."""
        running = (agreement for key, agreement in self._agreements.items() if key not in self._withdrawn)
        return {peer for agreement in running for peer in agreement.awaited}

    def withdraw(self, key: Key) -> None:
        """This rank's caller does not wait for ``key`` any more. Where others may count on its vote, that stands."""
        self._withdrawn.add(key)

    def heard(self, peer: int, message: Vote | Decided) -> list[Message]:
        """A message of an agreement has come."""
        key = (message.communicator_id, message.number)
        agreement = self._agreements.get(key)
        if isinstance(message, Decided):
            return [] if agreement is None else agreement.decided(peer, message.decision)
        if agreement is not None:
            return agreement.voted(peer, message)
        if peer not in self._gone:
            self._early[peer, key] = message
            if len(self._early) > MAX_EARLY:
                self._early.popitem(last=False)
        return []

    def lose(self, peers: Iterable[int]) -> list[Message]:
        """``peers`` are gone for good, for all agreements."""
        new = set(peers) - self._gone - {self._rank}
        self._gone |= new
        if not new:
            return []
        for peer, key in [entry for entry in self._early if entry[0] in new]:
            del self._early[peer, key]
        return [message for agreement in self._agreements.values() for message in agreement.lose(new)]

    def depart(self, peer: int, communicator_id: int) -> list[Message]:
        """``peer`` has closed a communicator, or does not join it."""
        self._departed.setdefault(communicator_id, set()).add(peer)
        return [
            message
            for (identity, _), agreement in self._agreements.items()
            if identity == communicator_id
            for message in agreement.depart(peer)
        ]
