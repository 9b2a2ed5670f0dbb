"""Agreement among the survivors, without a socket: any order of delivery, deaths at any point, also of coordinators."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.runtime.agreement import MAX_EARLY, MAX_KEPT, Council
from atoll.runtime.messages import CONTROL_DECODER, Ballot, Decided, Vote
from atoll.runtime.wire import FrameReader, FrameWriter

KEY = (7, 1)


class Parliament:
    """N councils joined by FIFO links. A death cuts a rank's messages off anywhere, differently for each receiver; what
    was sent before that arrives before its end is seen."""

    def __init__(self, world_size: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.size = world_size
        self.councils = [Council(rank) for rank in range(world_size)]
        self.links: dict[tuple[int, int], deque] = {}
        self.dead: set[int] = set()
        self.sent = 0

    def post(self, rank: int, messages: list) -> None:
        """Rank dies while it sends, if ``dying``: each receiver gets a prefix."""
        for message in messages:
            if rank not in self.dead:
                self.sent += 1
                self.links.setdefault((rank, message.peer), deque()).append(message.content)

    def propose(self, rank: int, value: int = -1, lost: tuple[int, ...] = (), key: tuple[int, int] = KEY) -> None:
        if rank not in self.dead:
            self.post(rank, self.councils[rank].propose(key, range(self.size), Ballot(value, lost)))

    def kill(self, rank: int) -> None:
        """Of what is on its way from ``rank``, each receiver gets a part, then its link ends."""
        self.dead.add(rank)
        for peer in range(self.size):
            if peer == rank:
                continue
            queue = self.links.setdefault((rank, peer), deque())
            for _ in range(self.rng.randint(0, len(queue))):
                queue.pop()
            queue.append(None)

    def step(self) -> bool:
        """Deliver one message; whether there was one."""
        ready = sorted(link for link, queue in self.links.items() if queue and link[1] not in self.dead)
        if not ready:
            return False
        sender, receiver = self.rng.choice(ready)
        message = self.links[sender, receiver].popleft()
        council = self.councils[receiver]
        self.post(receiver, council.lose([sender]) if message is None else council.heard(sender, message))
        return True

    def settle(self) -> None:
        while self.step():
            pass

    def decisions(self, key: tuple[int, int] = KEY) -> list[Ballot | None]:
        found = [self.councils[rank].look_up(key) for rank in range(self.size) if rank not in self.dead]
        return [None if agreement is None else agreement.decision for agreement in found]


@settings(max_examples=300)
@given(st.integers(2, 6), st.integers(0, 10**9), st.data())
def test_survivors_agree_whoever_dies_whenever(world_size: int, seed: int, data: st.DataObject) -> None:
    world = Parliament(world_size, seed)
    doomed = data.draw(st.sets(st.integers(0, world_size - 1), max_size=world_size - 1))
    values = data.draw(st.lists(st.integers(0, 15), min_size=world_size, max_size=world_size))
    to_come, to_die = list(range(world_size)), sorted(doomed)
    world.rng.shuffle(to_come)
    world.rng.shuffle(to_die)
    while True:
        actions = (["come"] if to_come else []) + (["die"] if to_die else []) + ["deliver"] * 6
        match world.rng.choice(actions):
            case "come":
                rank = to_come.pop()
                world.propose(rank, values[rank])
            case "die":
                world.kill(to_die.pop())
            case "deliver" if not world.step() and not to_come and not to_die:
                break
    decisions = world.decisions()
    assert None not in decisions, "it ends"
    assert len({(d.value, d.lost, d.taken) for d in decisions if d}) == 1, decisions
    decision = decisions[0]
    assert decision is not None
    assert set(decision.lost) <= doomed, "only the dead are lost"
    counted = [rank for rank in range(world_size) if rank not in decision.lost]
    expected = -1
    for rank in counted:
        expected &= values[rank]
    assert decision.value == expected, "and nobody else's value is missing"


def test_a_decision_that_reached_one_survivor_is_everybodys() -> None:
    """Coordinator 0 tells rank 2 alone and dies. Rank 1, next, would decide otherwise by itself: it knows 0 is dead."""
    world = Parliament(3, 0)
    for rank in range(3):
        world.propose(rank, 0b111)
    world.links[1, 0].popleft()
    world.councils[0].heard(1, Vote(*KEY, 0, Ballot(0b011)))
    told = world.councils[0].heard(2, world.links[2, 0].popleft())
    assert [message.peer for message in told] == [1, 2]
    world.post(2, world.councils[2].heard(0, told[1].content))
    world.dead.add(0)
    for receiver in (1, 2):
        world.links[0, receiver].clear()
        world.post(receiver, world.councils[receiver].lose([0]))
    world.settle()
    assert world.decisions() == [Ballot(0b011)] * 2


def test_without_failures_it_is_two_messages_one_after_the_other() -> None:
    world = Parliament(5, 3)
    for rank in range(5):
        world.propose(rank)
    world.settle()
    assert world.decisions() == [Ballot()] * 5
    assert world.sent == 5 * 4 + 4, "everyone's vote to all, and the decision"


def test_lost_and_taken_are_everything_that_anyone_knows() -> None:
    world = Parliament(3, 1)
    for rank, ballot in enumerate((Ballot(-1, (9,), (4,)), Ballot(-1, (), (5,)), Ballot(-1, (8,)))):
        world.post(rank, world.councils[rank].propose(KEY, range(3), ballot))
    world.settle()
    assert world.decisions() == [Ballot(-1, (8, 9), (4, 5))] * 3


def test_one_that_has_not_come_is_waited_for_and_named() -> None:
    world = Parliament(3, 1)
    world.propose(0)
    world.propose(2)
    world.settle()
    agreement = world.councils[2].look_up(KEY)
    assert agreement is not None
    assert agreement.missing == [1]
    assert world.councils[2].awaited() == {0}, "it is the coordinator's answer that the others wait for"
    assert world.councils[0].awaited() == {1}
    world.propose(1)
    world.settle()
    assert None not in world.decisions()
    assert all(not council.awaited() for council in world.councils)


def test_who_has_left_the_communicator_is_not_waited_for() -> None:
    world = Parliament(3, 1)
    world.propose(0)
    world.propose(1)
    world.settle()
    for rank in (0, 1):
        world.post(rank, world.councils[rank].depart(2, KEY[0]))
    world.settle()
    assert world.decisions()[:2] == [Ballot(-1, (2,))] * 2


def test_one_that_voted_and_left_still_counts() -> None:
    world = Parliament(3, 1)
    for rank in range(3):
        world.propose(rank, rank + 4)
    for rank in (0, 1):
        world.post(rank, world.councils[rank].heard(2, world.links[2, rank].popleft()))
        world.post(rank, world.councils[rank].depart(2, KEY[0]))
    world.settle()
    assert world.decisions() == [Ballot(4)] * 3


def test_votes_of_agreements_to_come_are_kept_and_bounded() -> None:
    world = Parliament(2, 1)
    for number in range(MAX_EARLY + 10):
        world.councils[0].heard(1, Vote(7, number, 0, Ballot()))
    assert len(world.councils[0]._early) == MAX_EARLY
    number = MAX_EARLY + 5
    told = world.councils[0].propose((7, number), range(2), Ballot())
    assert Decided(7, number, Ballot()) in [message.content for message in told]


def test_agreements_that_are_over_are_forgotten_but_for_the_last() -> None:
    world = Parliament(2, 1)
    for number in range(3 * MAX_KEPT):
        for rank in range(2):
            world.propose(rank, key=(7, number))
        world.settle()
    assert all(len(council._agreements) <= MAX_KEPT + 1 for council in world.councils)


def test_withdrawn_agreements_make_nobody_wait() -> None:
    world = Parliament(2, 1)
    world.propose(0)
    world.councils[0].withdraw(KEY)
    assert world.councils[0].awaited() == set()
    world.propose(1)
    world.settle()
    assert world.decisions() == [Ballot()] * 2, "its vote still counts"


@pytest.mark.parametrize("message", [Vote(7, 1, 3, Ballot(-(2**63), (1, 2), (3,)), Ballot(5)), Decided(1, 2, Ballot())])
def test_messages_travel(message: Vote | Decided) -> None:
    assert FrameReader(b"k", CONTROL_DECODER).feed(FrameWriter(b"k").frame(message)) == [message]
