"""The control plane's decisions, without a socket: any order of delivery leads all ranks to one, right verdict."""

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import CollectiveMismatch, CollectiveTimeout, PeerLost, WorldError
from atoll.runtime import verdict as verdicts
from atoll.runtime.control_machine import (
    ANSWER_S,
    GRACE_S,
    MAX_EXTENSIONS,
    MAX_INQUIRIES,
    SUSPICION_S,
    ControlMachine,
)
from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.instructions import Send
from atoll.runtime.ledger import HISTORY, CallLedger
from atoll.runtime.messages import CONTROL_DECODER, ControlMessage, Report, Standing
from atoll.runtime.wire import FrameReader, FrameWriter


def all_reduce(sequence: int = 0, communicator: int = 0, count: int = 1024, dtype: str = "float32") -> CallDescriptor:
    return CallDescriptor(communicator, sequence, "all_reduce", dtype, count, "sum", None, "ring")


def broadcast(sequence: int = 0, communicator: int = 0) -> CallDescriptor:
    return CallDescriptor(communicator, sequence, "broadcast", "float32", 1024, None, 0, "binomial-tree")


class World:
    """N machines joined by FIFO links that deliver when ``rng`` says so; time passes only when told."""

    def __init__(self, world_size: int, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.now = 100.0
        self.machines = [
            ControlMachine(rank, [f"pid {100 + r} on node{r}" for r in range(world_size)]) for rank in range(world_size)
        ]
        self.ledgers: list[dict[int, CallLedger]] = [{} for _ in range(world_size)]
        self.links: dict[tuple[int, int], deque[ControlMessage]] = {}
        self.dead: set[int] = set()
        self.sent = 0
        self.register(0, range(world_size))

    def register(self, communicator: int, ranks: range | tuple[int, ...], at: tuple[int, ...] | None = None) -> None:
        for rank in ranks if at is None else at:
            ledger = self.ledgers[rank][communicator] = CallLedger(communicator, tuple(ranks))
            self.do(rank, self.machines[rank].register(ledger, self.now))

    def do(self, rank: int, instructions: list) -> None:
        for instruction in instructions:
            if isinstance(instruction, Send) and instruction.peer not in self.dead:
                self.sent += 1
                self.links.setdefault((rank, instruction.peer), deque()).append(instruction.message)

    def enter(self, rank: int, call: CallDescriptor) -> None:
        if self.ledgers[rank][call.communicator_id].enter(call, self.now):
            self.do(rank, self.machines[rank].entered(call.communicator_id, self.now))

    def leave(self, rank: int, call: CallDescriptor) -> None:
        self.ledgers[rank][call.communicator_id].leave(call.sequence)

    def wait(self, rank: int, call: CallDescriptor, waits_on: tuple[int, ...] = ()) -> None:
        self.do(rank, self.machines[rank].waiting(call.communicator_id, call.sequence, waits_on, self.now))

    def time_out(self, rank: int, call: CallDescriptor, waits_on: tuple[int, ...] = (), progress: str = "") -> None:
        machine = self.machines[rank]
        self.do(rank, machine.timed_out(call.communicator_id, call.sequence, 5.0, waits_on, progress, self.now))

    def kill(self, *ranks: int) -> None:
        """What they have sent still arrives, then their links end, everywhere at once."""
        self.dead.update(ranks)
        for rank, machine in enumerate(self.machines):
            if rank in self.dead:
                continue
            last = [(peer, message) for peer in ranks for message in self.links.pop((peer, rank), ())]
            self.do(rank, machine.heard(last, dict.fromkeys(ranks, "its link ended"), self.now))

    def goodbye(self, rank: int) -> None:
        self.do(rank, self.machines[rank].goodbye())

    def settle(self, stopped: tuple[int, ...] = ()) -> None:
        """Deliver everything, in an order that keeps each link's own, some of it in one go."""
        while True:
            waiting = sorted(
                link
                for link, queue in self.links.items()
                if queue and link[1] not in self.dead and link[1] not in stopped
            )
            if not waiting:
                return
            receiver = self.rng.choice(waiting)[1]
            chosen = [link for link in waiting if link[1] == receiver and self.rng.random() < 0.7]
            batch = [(link[0], self.links[link].popleft()) for link in chosen]
            if batch:
                self.do(receiver, self.machines[receiver].heard(batch, {}, self.now))

    def pass_time(self, seconds: float, stopped: tuple[int, ...] = ()) -> None:
        """Let time pass, tick by tick as deadlines come."""
        end = self.now + seconds
        while True:
            deadlines = [
                (deadline, rank)
                for rank, machine in enumerate(self.machines)
                if rank not in self.dead and rank not in stopped and (deadline := machine.next_deadline()) is not None
            ]
            deadline, rank = min(deadlines, default=(end, -1))
            if rank < 0 or deadline > end:
                break
            self.now = max(self.now, deadline)
            self.do(rank, self.machines[rank].tick(self.now))
            self.settle(stopped)
        self.now = end

    def failures(self, communicator: int = 0, without: tuple[int, ...] = ()) -> list[WorldError]:
        errors = []
        for rank, ledgers in enumerate(self.ledgers):
            if rank in self.dead or rank in without or communicator not in ledgers:
                continue
            error = ledgers[communicator].failure
            assert isinstance(error, WorldError), f"rank {rank} has no verdict: {error}"
            errors.append(error)
        return errors

    def one_failure(self, communicator: int = 0, without: tuple[int, ...] = ()) -> WorldError:
        errors = self.failures(communicator, without)
        assert len({(type(error), str(error), error.culprits) for error in errors}) == 1, errors
        return errors[0]

    def assert_all_well(self, communicator: int = 0) -> None:
        assert [ledgers[communicator].failure for ledgers in self.ledgers if communicator in ledgers] == [
            None for ledgers in self.ledgers if communicator in ledgers
        ]


# Mismatch.


@given(st.integers(2, 7), st.integers(0, 10**6), st.data())
def test_every_rank_gets_the_same_mismatch_whatever_the_order(world_size: int, seed: int, data: st.DataObject) -> None:
    """Some are waiting before others have called, some have left already; calls come in any order."""
    world = World(world_size, seed)
    kinds = data.draw(
        st.lists(st.integers(0, 2), min_size=world_size, max_size=world_size).filter(lambda k: len(set(k)) > 1)
    )
    calls = [(all_reduce(), all_reduce(count=512), broadcast())[kind] for kind in kinds]
    order = list(range(world_size))
    world.rng.shuffle(order)
    asked = False
    for place, rank in enumerate(order):
        world.enter(rank, calls[rank])
        if world.rng.random() < 0.3:
            world.leave(rank, calls[rank])  # such as a root that has sent all it has
        elif world.rng.random() < 0.5 or (place == world_size - 1 and not asked):
            asked = True
            world.wait(rank, calls[rank])
        if world.rng.random() < 0.5:
            world.settle()
    if not asked:
        world.wait(order[0], calls[order[0]])
    world.settle()
    error = world.one_failure()
    assert isinstance(error, CollectiveMismatch)
    for call in calls:
        assert call.describe() in str(error)
    groups = [[rank for rank in range(world_size) if kinds[rank] == kind] for kind in set(kinds)]
    sizes = sorted((len(group) for group in groups), reverse=True)
    majority = max(groups, key=len) if sizes[0] > sizes[1] else []
    assert error.culprits == tuple(rank for rank in range(world_size) if rank not in majority)


def test_the_mismatch_names_who_called_what() -> None:
    world = World(4)
    for rank in range(3):
        world.enter(rank, all_reduce())
    world.enter(3, broadcast())
    world.wait(0, all_reduce())
    world.settle()
    assert (
        "call 0 of communicator 0: ranks 0-2 called all_reduce(float32, 1024, sum, algorithm=ring); "
        "rank 3 called broadcast(float32, 1024, root=0, algorithm=binomial-tree)" in str(world.one_failure())
    )


def test_agreeing_ranks_are_left_alone_and_cost_one_report_each() -> None:
    world = World(6)
    for rank in range(6):
        world.enter(rank, all_reduce())
        world.wait(rank, all_reduce())
    world.settle()
    world.pass_time(10)
    world.assert_all_well()
    assert world.sent == 6 * 5
    for rank in range(6):
        world.leave(rank, all_reduce())
        world.enter(rank, broadcast(1))
    world.settle()
    assert world.sent == 6 * 5, "the next call is not reported on unless somebody waits"


def test_the_last_rank_is_waited_for_and_decides() -> None:
    world = World(3)
    world.enter(0, all_reduce())
    world.enter(1, all_reduce())
    world.wait(0, all_reduce())
    world.settle()
    world.pass_time(30)
    world.assert_all_well()
    world.enter(2, broadcast())
    world.settle()
    error = world.one_failure()
    assert isinstance(error, CollectiveMismatch)
    assert error.culprits == (2,)


def test_those_that_differ_do_not_wait_for_a_late_rank() -> None:
    world = World(4)
    world.enter(0, all_reduce())
    world.enter(1, all_reduce())
    world.enter(2, broadcast())
    world.wait(0, all_reduce())
    world.settle()
    world.assert_all_well()
    world.pass_time(GRACE_S)
    error = world.one_failure()
    assert isinstance(error, CollectiveMismatch)
    assert "rank 3 had not made that call yet" in str(error)
    assert error.culprits == (2,)


def test_a_rank_that_is_far_ahead_answers_from_its_history() -> None:
    world = World(3)
    for sequence in range(200):
        world.enter(0, broadcast(sequence))
        world.leave(0, broadcast(sequence))
    for rank in (1, 2):
        world.enter(rank, all_reduce(0))
        world.wait(rank, all_reduce(0))
    world.settle()
    error = world.one_failure()
    assert "rank 0 called broadcast(" in str(error)


def test_a_call_beyond_the_history_does_not_accuse() -> None:
    world = World(2)
    for sequence in range(HISTORY + 1):
        world.enter(0, broadcast(sequence))
        world.leave(0, broadcast(sequence))
    world.enter(1, broadcast(0))
    world.wait(1, broadcast(0))
    world.settle()
    world.pass_time(10)
    world.assert_all_well()


def test_a_sub_communicator_fails_alone_and_ranks_are_given_in_both_numberings() -> None:
    world = World(5)
    world.register(0xAB, (4, 1, 3))
    world.enter(4, all_reduce(communicator=0xAB))
    world.enter(1, all_reduce(communicator=0xAB))
    world.enter(3, broadcast(communicator=0xAB))
    world.wait(4, all_reduce(communicator=0xAB))
    world.settle()
    error = world.one_failure(0xAB)
    assert "communicator ab: ranks 0-1 (world ranks 4 and 1) called all_reduce" in str(error)
    assert "rank 2 (world rank 3) called broadcast" in str(error)
    assert error.culprits == (3,)
    world.assert_all_well()


def test_a_report_on_a_communicator_not_yet_known_is_kept_for_it() -> None:
    world = World(2)
    world.register(7, (0, 1), at=(0,))
    world.enter(0, all_reduce(communicator=7))
    world.wait(0, all_reduce(communicator=7))
    world.settle()
    world.register(7, (0, 1), at=(1,))
    world.enter(1, broadcast(communicator=7))
    world.settle()
    assert isinstance(world.one_failure(7), CollectiveMismatch)


def test_reports_of_strangers_to_a_communicator_are_ignored() -> None:
    world = World(3)
    world.register(7, (0, 1))
    world.enter(0, all_reduce(communicator=7))
    world.ledgers[2][7] = CallLedger(7, (0, 2))
    world.do(2, world.machines[2].register(world.ledgers[2][7], world.now))
    world.enter(2, broadcast(communicator=7))
    world.wait(2, broadcast(communicator=7))
    world.settle()
    assert world.ledgers[0][7].failure is None


# Timeouts.


@given(st.integers(2, 7), st.integers(0, 10**6), st.data())
def test_a_timeout_names_who_never_came_on_every_rank(world_size: int, seed: int, data: st.DataObject) -> None:
    world = World(world_size, seed)
    absent = data.draw(st.sets(st.integers(0, world_size - 1), min_size=1, max_size=world_size - 1))
    inside = [rank for rank in range(world_size) if rank not in absent]
    for rank in inside:
        world.enter(rank, all_reduce())
        if world.rng.random() < 0.5:
            world.wait(rank, all_reduce(), tuple(absent))
    world.settle()
    world.now += 5
    world.time_out(inside[0], all_reduce(), tuple(absent), "step 3 of 6")
    world.settle()
    world.pass_time(ANSWER_S)
    error = world.one_failure()
    assert isinstance(error, CollectiveTimeout)
    assert error.culprits == tuple(sorted(absent))
    assert "did not end within 5 s" in str(error)
    assert "never came" in str(error)
    assert "at step 3 of 6" in str(error)


def test_a_rank_that_does_not_answer_is_the_culprit_even_if_it_had_entered() -> None:
    """A stopped process: its control thread is stopped too."""
    world = World(4)
    for rank in range(4):
        world.enter(rank, all_reduce())
        world.wait(rank, all_reduce(), ((rank - 1) % 4,))
    world.settle()
    for rank in (0, 1, 3):
        world.time_out(rank, all_reduce(), ((rank - 1) % 4,))
    world.settle(stopped=(2,))
    world.assert_all_well()
    world.pass_time(ANSWER_S, stopped=(2,))
    world.assert_all_well()  # without heartbeats it may be slow
    world.pass_time(MAX_EXTENSIONS * ANSWER_S, stopped=(2,))
    error = world.one_failure(without=(2,))
    assert error.culprits == (2,)
    assert "rank 2 did not answer (stopped, stuck, or cut off)" in str(error)
    assert "now it does not answer" in str(error)
    world.settle()
    assert isinstance(world.ledgers[2][0].failure, CollectiveTimeout), "it learns it when it goes on"


def test_the_story_ends_the_chain_of_waiting_at_the_culprit() -> None:
    """All are inside; 3 waits for 2 waits for 1 waits for 0, which waits for nobody and does nothing."""
    world = World(4)
    for rank in range(4):
        world.enter(rank, all_reduce())
    world.now += 5
    for rank in (3, 2, 1):
        world.wait(rank, all_reduce(), (rank - 1,))
    world.settle()
    world.time_out(3, all_reduce(), (2,))
    world.settle()
    error = world.one_failure()
    assert error.culprits == (0,)
    assert "rank 0 kept the others waiting" in str(error)
    assert any(line.startswith("rank 3 entered it 5 s before, waiting for rank 2") for line in error.story)


def test_a_timeout_where_calls_differ_is_a_mismatch() -> None:
    world = World(3)
    world.enter(0, all_reduce())
    world.enter(1, broadcast())
    world.time_out(0, all_reduce())
    world.settle()
    world.pass_time(ANSWER_S)
    assert isinstance(world.one_failure(), CollectiveMismatch)


def test_the_last_call_of_an_absent_rank_is_told() -> None:
    world = World(2)
    for rank in range(2):
        world.enter(rank, broadcast(0))
        world.leave(rank, broadcast(0))
    world.now += 7
    world.enter(0, all_reduce(1))
    world.now += 5
    world.time_out(0, all_reduce(1))
    world.settle()
    story = "\n".join(world.one_failure().story)
    assert (
        "rank 1 had not come: its last call, number 0, broadcast(float32, 1024, root=0, algorithm=binomial-tree), "
        in story
    )
    assert "began 12 s before" in story


# Death and departure.


@given(st.integers(2, 7), st.integers(0, 10**6), st.data())
def test_deaths_are_named_on_every_survivor(world_size: int, seed: int, data: st.DataObject) -> None:
    world = World(world_size, seed)
    dead = data.draw(st.sets(st.integers(0, world_size - 1), min_size=1, max_size=world_size - 1))
    for rank in range(world_size):
        if world.rng.random() < 0.7:
            world.enter(rank, all_reduce())
    world.kill(*dead)
    world.settle()
    for error in [world.one_failure()]:
        assert isinstance(error, PeerLost)
        assert error.culprits == tuple(sorted(dead))
        assert all(f"pid {100 + rank} on node{rank}" in str(error) for rank in dead)


@given(st.integers(3, 6), st.integers(0, 10**6))
def test_victims_that_leave_because_of_a_death_are_never_accused(world_size: int, seed: int) -> None:
    """Rank 1 dies, which each sees at its own time; whoever has the verdict raises, closes, and says goodbye."""
    world = World(world_size, seed)
    for rank in range(world_size):
        world.enter(rank, all_reduce())
    world.dead.add(1)
    unaware, ended, errors = set(range(world_size)) - {1}, {1}, set()
    while len(ended) < world_size:
        rank = world.rng.choice([rank for rank in range(world_size) if rank not in ended])
        batch = []
        for link in sorted(world.links):
            queue = world.links[link]
            if link[1] == rank and queue and world.rng.random() < 0.5:
                batch += [(link[0], queue.popleft()) for _ in range(world.rng.randint(1, len(queue)))]
        gone = {1: "its link ended"} if rank in unaware and world.rng.random() < 0.5 else {}
        unaware -= {rank} if gone else set()
        world.do(rank, world.machines[rank].heard(batch, gone, world.now))
        error = world.ledgers[rank][0].failure
        if error is not None:
            assert isinstance(error, PeerLost)
            assert error.culprits == (1,)
            errors.add(str(error))
            if world.rng.random() < 0.5:
                world.do(rank, world.machines[rank].unregister(0))
            world.goodbye(rank)
            ended.add(rank)
    assert len(errors) == 1, "all raise the same"


@given(st.integers(3, 6), st.integers(0, 10**6))
def test_victims_that_leave_because_of_one_that_left_are_never_accused(world_size: int, seed: int) -> None:
    """Rank 1 ends its program in the middle of a call; each that learns it raises and ends its own, in any order."""
    world = World(world_size, seed)
    for rank in range(world_size):
        world.enter(rank, all_reduce())
    world.goodbye(1)
    ended = {1}
    while len(ended) < world_size:
        receiver = world.rng.choice([rank for rank in range(world_size) if rank not in ended])
        batch = []
        for link in sorted(world.links):
            queue = world.links[link]
            if link[1] == receiver and queue and world.rng.random() < 0.5:
                batch += [(link[0], queue.popleft()) for _ in range(world.rng.randint(1, len(queue)))]
        world.do(receiver, world.machines[receiver].heard(batch, {}, world.now))
        error = world.ledgers[receiver][0].failure
        if error is not None:
            assert isinstance(error, PeerLost)
            assert error.culprits == (1,)
            if world.rng.random() < 0.5:
                world.do(receiver, world.machines[receiver].unregister(0))
            world.goodbye(receiver)
            ended.add(receiver)


def test_a_communicator_without_the_dead_goes_on() -> None:
    world = World(4)
    world.register(7, (0, 1))
    world.register(8, (1, 2, 3))
    world.kill(3)
    world.settle()
    world.assert_all_well(7)
    assert world.one_failure(8, without=(3,)).culprits == (3,)


def test_a_communicator_made_with_the_dead_fails_at_once() -> None:
    world = World(3)
    world.kill(2)
    world.register(7, (0, 2), at=(0,))
    error = world.ledgers[0][7].failure
    assert isinstance(error, PeerLost)
    assert error.culprits == (2,)


def test_a_goodbye_after_the_last_call_disturbs_nobody() -> None:
    """A rank that is done leaves while others still finish the same call."""
    world = World(3)
    for rank in range(3):
        world.enter(rank, all_reduce())
    world.leave(0, all_reduce())
    world.goodbye(0)
    world.settle()
    world.kill(0)
    world.assert_all_well()
    for rank in (1, 2):
        world.leave(rank, all_reduce())
        world.goodbye(rank)
    world.settle()
    world.assert_all_well()


def test_a_goodbye_in_the_middle_ends_the_call_of_the_others() -> None:
    world = World(3)
    for rank in range(3):
        world.enter(rank, all_reduce(0))
        world.leave(rank, all_reduce(0))
    world.enter(1, all_reduce(1))
    world.goodbye(0)
    world.settle()
    error = world.ledgers[1][0].failure
    assert isinstance(error, PeerLost)
    assert error.culprits == (0,)
    assert "rank 0 left communicator 0 after 1 calls" in str(error)
    assert "all_reduce(float32, 1024, sum, algorithm=ring), call 1" in str(error)
    # Rank 2 is not in a call yet; it learns it when it makes one.
    assert world.ledgers[2][0].failure is None
    world.enter(2, all_reduce(1))
    assert isinstance(world.ledgers[2][0].failure, PeerLost)


def test_a_goodbye_counts_for_communicators_made_after_it() -> None:
    """This rank is late in making the communicator; the other has done its part and is gone."""
    world = World(2)
    world.register(7, (0, 1), at=(0,))
    world.enter(0, broadcast(0, 7))
    world.leave(0, broadcast(0, 7))
    world.goodbye(0)
    world.settle()
    world.register(7, (0, 1), at=(1,))
    world.enter(1, broadcast(0, 7))
    assert world.ledgers[1][7].failure is None
    world.enter(1, broadcast(1, 7))
    assert "left communicator 7 after 1 calls" in str(world.ledgers[1][7].failure)


class RacingLedger(CallLedger):
    """The caller makes its call in the very moment after the control thread has looked for it."""

    raced: bool | None = None

    def look_up(self, sequence: int):
        found = super().look_up(sequence)
        if self.raced is None:
            self.raced = self.enter(all_reduce(sequence), 0.0)
        return found


def test_a_call_made_right_after_the_look_raises_the_alarm() -> None:
    world = World(2)
    ledger = world.ledgers[1][7] = RacingLedger(7, (0, 1))
    world.do(1, world.machines[1].register(ledger, world.now))
    world.register(7, (0, 1), at=(0,))
    world.enter(0, all_reduce(0, 7))
    world.wait(0, all_reduce(0, 7))
    world.settle()
    assert ledger.raced is True


def test_calls_in_flight_count_as_not_completed() -> None:
    world = World(2)
    for sequence in range(3):
        for rank in range(2):
            world.enter(rank, all_reduce(sequence))
    world.leave(0, all_reduce(2))  # asynchronous ones end in any order
    world.goodbye(0)
    world.settle()
    assert "after 0 calls" in str(world.ledgers[1][0].failure)


def test_closing_a_communicator_is_departing_from_it_alone() -> None:
    world = World(3)
    world.register(7, (0, 1))
    world.do(0, world.machines[0].unregister(7))
    world.settle()
    world.assert_all_well()
    world.enter(1, all_reduce(communicator=7))
    assert isinstance(world.ledgers[1][7].failure, PeerLost)
    world.enter(1, all_reduce())
    world.assert_all_well()


# What the data plane sees.


def test_a_broken_connection_is_explained_by_the_death_behind_it() -> None:
    world = World(3)
    for rank in range(3):
        world.enter(rank, all_reduce())
    world.do(0, world.machines[0].disconnected(0, 2, "connection reset by peer", world.now))
    world.kill(2)
    world.pass_time(10)
    assert "died" in str(world.one_failure())


def test_a_broken_connection_with_both_ends_alive_is_told_to_all() -> None:
    world = World(3)
    for rank in range(3):
        world.enter(rank, all_reduce())
    world.do(0, world.machines[0].disconnected(0, 2, "connection reset by peer", world.now))
    world.settle()
    world.assert_all_well()
    world.pass_time(SUSPICION_S)
    error = world.one_failure()
    assert isinstance(error, PeerLost)
    assert "between rank 0 and rank 2 broke" in str(error)
    assert "connection reset by peer" in str(error)


def test_a_broken_connection_nobody_needs_is_no_failure() -> None:
    world = World(2)
    world.do(0, world.machines[0].disconnected(0, 1, "closed", world.now))
    world.pass_time(10)
    world.assert_all_well()


def test_a_call_that_is_given_up_ends_for_all_with_the_reason() -> None:
    world = World(3)
    for rank in range(2):
        world.enter(rank, all_reduce())
    world.do(1, world.machines[1].abandon(0, 0, "KeyboardInterrupt", world.now))
    world.settle()
    error = world.one_failure()
    assert isinstance(error, PeerLost)
    assert error.culprits == (1,)
    assert (
        "rank 1 gave up all_reduce(float32, 1024, sum, algorithm=ring), call 0 of communicator 0: KeyboardInterrupt"
        in str(error)
    )


def test_the_first_verdict_stays() -> None:
    world = World(3)
    world.kill(1)
    world.settle()
    first = world.ledgers[0][0].failure
    assert first is not None
    world.kill(2)
    world.settle()
    assert world.ledgers[0][0].failure is first


# Bounds.


def test_words_of_any_length_can_be_told() -> None:
    world = World(2)
    long = CallDescriptor(0, 0, "all_reduce", "float32", 1, "f" * 5000)
    world.enter(0, long)
    world.enter(1, all_reduce())
    world.wait(0, long)
    world.settle()
    assert isinstance(world.one_failure(), CollectiveMismatch)


def test_verdicts_of_a_huge_world_fit_in_a_frame() -> None:
    """Every rank of 1,500 called something else, with the longest words there are; or all wait for all others."""
    ranks = tuple(range(1500, 0, -1))
    word = "é" * 64
    calls = {rank: CallDescriptor(0, 0, word, word, rank, word, rank, word) for rank in ranks}
    reports = {rank: Report(0, 0, Standing.INSIDE, calls[rank], calls[rank], 1e9, ranks, "p" * 4096) for rank in ranks}
    for verdict in (
        verdicts.mismatch(0, 0, ranks, reports),
        verdicts.timeout(calls[1], ranks, reports, ranks, 1e9),
        verdicts.timeout(calls[1], ranks, {}, (), 1e9),
    ):
        frame = FrameWriter(b"k").frame(verdict)
        assert FrameReader(b"k", CONTROL_DECODER).feed(frame) == [verdict]
    assert FrameReader(b"k", CONTROL_DECODER).feed(FrameWriter(b"k").frame(reports[1])) == [reports[1]]


def test_inquiries_are_bounded_and_reports_beget_no_storm() -> None:
    world = World(2)
    calls = MAX_INQUIRIES + 100
    for sequence in range(calls):
        world.enter(0, all_reduce(sequence))
        world.wait(0, all_reduce(sequence), (1,))
    world.settle()
    assert world.sent == 2 * calls, "one question and one answer each"
    for machine in world.machines:
        assert len(machine._communicators[0].inquiries) <= MAX_INQUIRIES
    # What was asked about first is still known: its answer comes.
    world.enter(1, broadcast(0))
    world.settle()
    assert isinstance(world.one_failure(), CollectiveMismatch)


@pytest.mark.parametrize("world_size", [2, 16])
def test_idle_machines_have_nothing_to_do(world_size: int) -> None:
    world = World(world_size)
    for sequence in range(50):
        for rank in range(world_size):
            world.enter(rank, all_reduce(sequence))
            world.leave(rank, all_reduce(sequence))
    assert world.sent == 0
    assert all(machine.next_deadline() is None for machine in world.machines)
