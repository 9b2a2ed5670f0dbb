"""The control plane over real sockets: all ranks in this process, each with its own thread."""

import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator

import pytest
from memberships import PATIENCE_S, memberships, open_sockets

from atoll.errors import CollectiveMismatch, CollectiveTimeout, InternalError, PeerLost, SpecError, WorldError
from atoll.runtime import control_link
from atoll.runtime.control import Control
from atoll.runtime.control_machine import ControlMachine
from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.endpoint import Connection, ConnectionKey, Endpoint
from atoll.runtime.environment import Placement
from atoll.runtime.handshake import SessionKeys
from atoll.runtime.join import join
from atoll.runtime.messages import Linked
from atoll.runtime.process import Process


def all_reduce(sequence: int = 0, communicator: int = 0) -> CallDescriptor:
    return CallDescriptor(communicator, sequence, "all_reduce", "float32", 1024, "sum", None, "ring")


def broadcast(sequence: int = 0, communicator: int = 0) -> CallDescriptor:
    return CallDescriptor(communicator, sequence, "broadcast", "float32", 1024, None, 0, "chain")


class Rank:
    """One rank: its control plane, and the events that its data loop would be woken by."""

    def __init__(self, membership) -> None:
        self.endpoint = Endpoint(membership)
        self.control = Control(membership, self.endpoint)
        self.woken = threading.Event()

    def failure(self, communicator: int = 0) -> WorldError:
        """The failure that this rank is woken for."""
        assert self.woken.wait(PATIENCE_S), "no failure became known"
        error = self.control.failure(communicator)
        assert isinstance(error, WorldError)
        return error

    def die(self) -> None:
        """As when the process is killed: all its connections end, without a word."""
        for link in list(self.control._links.values()):
            link.sock.shutdown(socket.SHUT_RDWR)


def start(ranks: list[Rank], seconds: float = PATIENCE_S) -> list[BaseException | None]:
    """Start all at once, each from a thread of its own; what they raised."""
    raised: list[BaseException | None] = [None] * len(ranks)

    def run(place: int) -> None:
        try:
            ranks[place].control.start(time.monotonic() + seconds)
        except BaseException as error:
            raised[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@pytest.fixture
def make() -> Iterator[Callable[[int], list[Rank]]]:
    """Worlds whose ranks all have communicator 0; afterwards nothing of them is left."""
    before, threads = open_sockets(), threading.active_count()
    made: list[Rank] = []

    def world(world_size: int) -> list[Rank]:
        ranks = [Rank(membership) for membership in memberships(world_size)]
        made.extend(ranks)
        assert start(ranks) == [None] * world_size
        for rank in ranks:
            rank.control.register(0, range(world_size), rank.woken.set)
        return ranks

    yield world
    for rank in made:
        rank.control.close()
        rank.control.close()
    assert threading.active_count() == threads
    assert open_sockets() == before


@pytest.mark.parametrize("world_size", [1, 2, 7])
def test_an_idle_control_plane_sleeps_without_a_timeout(make, world_size: int) -> None:
    for rank in make(world_size):
        for sequence in range(5):
            rank.control.enter(all_reduce(sequence))
            rank.control.leave(0, sequence)
        assert rank.control.failure(0) is None
        assert rank.control._machine.next_deadline() is None
        assert rank.endpoint.next_deadline() is None


def test_a_mismatch_reaches_every_rank_and_wakes_it(make) -> None:
    ranks = make(4)
    for rank in ranks[:3]:
        rank.control.enter(all_reduce())
    ranks[0].control.waiting(0, 0, (3,))
    ranks[3].control.enter(broadcast())
    errors = [rank.failure() for rank in ranks]
    assert {type(error) for error in errors} == {CollectiveMismatch}
    assert len({str(error) for error in errors}) == 1
    assert "ranks 0-2 called all_reduce(float32, 1024, sum, algorithm=ring); rank 3 called broadcast(" in str(errors[0])
    assert errors[0].culprits == (3,)


def test_a_call_made_while_it_is_asked_for_is_never_missed(make) -> None:
    """The caller's thread and the control thread meet without a lock; one of the two must see the other."""
    ranks = make(2)
    go = threading.Barrier(2)
    calls = 300

    def call() -> None:
        for sequence in range(calls):
            go.wait(PATIENCE_S)
            ranks[1].control.enter(all_reduce(sequence))

    thread = threading.Thread(target=call)
    thread.start()
    for sequence in range(calls):
        ranks[0].control.enter(all_reduce(sequence))
        go.wait(PATIENCE_S)
        ranks[0].control.waiting(0, sequence)
    thread.join()
    ranks[0].control.enter(all_reduce(calls))
    ranks[1].control.enter(broadcast(calls))
    machine = ranks[0].control._machine
    deadline = time.monotonic() + PATIENCE_S
    inquiries = machine._communicators[0].inquiries
    while not all(sequence in inquiries and inquiries[sequence].complete((0, 1)) for sequence in range(calls)):
        assert time.monotonic() < deadline, "a report is missing"
    ranks[0].control.waiting(0, calls)
    assert isinstance(ranks[1].failure(), CollectiveMismatch)


def test_a_timeout_is_the_same_on_every_rank_and_names_who_never_came(make) -> None:
    ranks = make(4)
    for rank in (0, 1, 3):
        ranks[rank].control.enter(all_reduce())
    error = ranks[1].control.timed_out(0, 0, 5.0, (2,), "step 1 of 6")
    assert isinstance(error, CollectiveTimeout)
    assert error.culprits == (2,)
    assert "ranks 0-1 and 3 entered it; rank 2 never came" in str(error)
    assert "did not end within 5 s" in str(error)
    assert "step 1 of 6" in str(error)
    for rank in ranks:
        assert str(rank.failure()) == str(error)


def test_a_timeout_that_all_have_at_once_is_one(make) -> None:
    ranks = make(3)
    errors: dict[int, BaseException] = {}

    def time_out(rank: int) -> None:
        errors[rank] = ranks[rank].control.timed_out(0, 0, 1.0, (2,))

    for rank in (0, 1):
        ranks[rank].control.enter(all_reduce())
    threads = [threading.Thread(target=time_out, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors.values():
        assert isinstance(error, CollectiveTimeout)
        assert error.culprits == (2,)


def test_a_process_that_dies_is_named_on_every_other_rank(make) -> None:
    ranks = make(5)
    for rank in ranks:
        rank.control.enter(all_reduce())
    ranks[2].die()
    for rank in (0, 1, 3, 4):
        error = ranks[rank].failure()
        assert isinstance(error, PeerLost)
        assert error.culprits == (2,)
        assert f"rank 2 (pid {os.getpid()} on {socket.gethostname()}) died during all_reduce(" in str(error)


def test_a_rank_that_leaves_disturbs_only_those_that_still_need_it(make) -> None:
    ranks = make(3)
    for rank in ranks:
        rank.control.enter(all_reduce(0))
    ranks[0].control.leave(0, 0)
    ranks[0].control.close()
    for rank in (1, 2):
        ranks[rank].control.leave(0, 0)
    ranks[1].control.enter(all_reduce(1))
    error = ranks[1].failure()
    assert isinstance(error, PeerLost)
    assert error.culprits == (0,)
    assert "rank 0 left communicator 0 after 1 calls" in str(error)
    assert ranks[2].control.failure(0) is None


def test_a_victim_that_exits_is_not_accused(make) -> None:
    ranks = make(4)
    for rank in ranks:
        rank.control.enter(all_reduce())
    ranks[3].die()
    ranks[1].failure()
    ranks[1].control.close()
    for rank in (0, 2):
        assert ranks[rank].failure().culprits == (3,)


def test_a_victim_that_cannot_be_reached_any_more_is_not_accused(make) -> None:
    """Rank 2 dies, rank 0 has raised and gone, and rank 1 finds that out by its data connection first."""
    ranks = make(3)
    ranks[0].endpoint.close()
    process = Process.__new__(Process)  # only its connecting is looked at: it moves no bytes here
    process.membership, process.endpoint, process.control = (
        ranks[1].control._membership, ranks[1].endpoint, ranks[1].control,
    )  # fmt: skip
    call = all_reduce()
    ranks[1].control.enter(call)
    raised: list[BaseException] = []

    def connect() -> None:
        try:
            process.connect(call, [ConnectionKey(0, 0)], PATIENCE_S, time.monotonic() + PATIENCE_S, lambda: None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    communicators = ranks[1].control._machine._communicators
    while not (0 in communicators and communicators[0].suspicions):
        assert time.monotonic() < deadline
        assert not raised
    ranks[2].die()
    thread.join(PATIENCE_S)
    assert [error.culprits for error in raised if isinstance(error, PeerLost)] == [(2,)]


def test_a_broken_data_connection_and_a_given_up_call(make) -> None:
    ranks = make(3)
    for rank in ranks:
        for communicator in (1, 2):
            rank.control.register(communicator, (0, 1, 2), rank.woken.set)
            rank.control.enter(all_reduce(communicator=communicator))
    ranks[0].control.abandon(1, 0, "KeyboardInterrupt: ")
    for rank in ranks:
        assert "rank 0 gave up all_reduce" in str(rank.failure(1))
        rank.woken.clear()
    ranks[1].control.disconnected(2, 2, "connection reset by peer")
    for rank in ranks:
        assert "between rank 1 and rank 2 broke" in str(rank.failure(2))
        assert rank.control.failure(0) is None
        rank.control.unregister(1)
        assert rank.control.failure(1) is None
        rank.control.leave(1, 0)


def test_what_breaks_the_protocol_is_cut_off(make) -> None:
    ranks = make(3)
    ranks[2].control._links[0].sock.send(b"\0\0\0\x05garbage garbage garbage")
    error = ranks[0].failure()
    assert isinstance(error, PeerLost)
    assert error.culprits == (2,)
    assert "broke the protocol: frame 1 has a wrong tag" in str(error)


def test_a_peer_that_does_not_read_is_cut_off_before_memory_runs_out(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_link, "MAX_QUEUED_BYTES", 100_000)
    ours, theirs = socket.socketpair()
    link = control_link.ControlLink(1, Connection(ours, SessionKeys(b"s" * 32, b"r" * 32)))
    ours.setblocking(False)
    queued = 0
    while not link.ended:
        link.queue(Linked())
        link.flush()
        queued += 1
        assert queued < 1_000_000
    assert link.ended == "it does not read its control link"
    assert not link.wants_write
    ours.close()
    theirs.close()
    ranks = make(2)
    monkeypatch.setattr(control_link, "MAX_QUEUED_BYTES", 0)
    ranks[0].control.enter(all_reduce())
    ranks[0].control.waiting(0, 0)
    assert "does not read its control link" in str(ranks[0].failure())


def test_a_failing_control_thread_fails_its_communicators(make, monkeypatch, caplog: pytest.LogCaptureFixture) -> None:
    ranks = make(2)
    caplog.set_level(logging.CRITICAL)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(ControlMachine, "waiting", broken)
    ranks[0].control.enter(all_reduce())
    ranks[0].control.waiting(0, 0)
    assert ranks[0].woken.wait(PATIENCE_S)
    error = ranks[0].control.failure(0)
    assert isinstance(error, InternalError)
    assert "ZeroDivisionError: a bug" in str(error)
    assert isinstance(ranks[0].control.timed_out(0, 0, 1.0), InternalError)
    assert ranks[1].failure().culprits == (0,), "and the others are not left waiting"


# Starting.


def test_a_rank_that_leaves_at_once_disturbs_nobody() -> None:
    for _ in range(5):
        ranks = [Rank(membership) for membership in memberships(6)]
        raised: list[BaseException] = []

        def visit(rank: Rank, raised: list[BaseException] = raised) -> None:
            try:
                rank.control.start(time.monotonic() + PATIENCE_S)
                rank.control.close()
            except BaseException as error:
                raised.append(error)

        threads = [threading.Thread(target=visit, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not raised


def test_no_rank_is_started_before_all_are_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link between 0 and 1 is late; rank 2, which has both of its own, waits for it."""
    ranks = [Rank(membership) for membership in memberships(3)]
    late = ranks[1].endpoint
    held: list[tuple] = []
    monkeypatch.setattr(late, "open", lambda *arguments: held.append(arguments))
    thread = threading.Thread(target=start, args=(ranks,))
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while not (held and 2 in ranks[0].control._machine.roster.linked and 2 in ranks[1].control._machine.roster.linked):
        assert time.monotonic() < deadline
    assert not ranks[2].control._missing
    assert not any(rank.control._started.is_set() for rank in ranks)
    monkeypatch.undo()
    late.open(*held[0])
    thread.join(PATIENCE_S)
    assert all(rank.control._started.is_set() and rank.control._start_error is None for rank in ranks)
    for rank in ranks:
        rank.control.close()


def test_a_rank_that_does_not_come_is_named_by_all_others() -> None:
    before = open_sockets()
    members = memberships(4)
    ranks = [Rank(membership) for membership in members if membership.rank != 2]
    for error in start(ranks, 2.0):  # long enough for the others to link up, on a busy host too
        assert isinstance(error, CollectiveTimeout | PeerLost)
        assert error.culprits == (2,)
    for membership in members:
        assert membership.listener is not None
        membership.listener.close()
    assert open_sockets() == before


def test_a_rank_that_has_died_is_named_by_all_others() -> None:
    members = memberships(4)
    assert members[1].listener is not None
    members[1].listener.close()
    ranks = [Rank(membership) for membership in members if membership.rank != 1]
    for error in start(ranks, PATIENCE_S):
        assert isinstance(error, PeerLost)
        assert error.culprits == (1,)


# Forks, and a world of one.


def test_a_forked_child_lets_go_of_everything(make) -> None:
    outside = open_sockets()
    ranks = make(3)
    ranks[1].control.enter(all_reduce())
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forking beside threads
        child = os.fork()
    if child == 0:
        ours = [rank for rank in ranks if isinstance(rank.control.failure(0), SpecError)]
        os.write(writing, b"%d %d" % (len(ours), len(open_sockets() - outside)))
        os._exit(0)
    os.waitpid(child, 0)
    failed, sockets = map(int, os.read(reading, 100).split())
    assert failed == 3, "every communicator has failed in the child"
    assert sockets == 0, "and no listener, link or epoll is open there"
    os.close(reading)
    os.close(writing)
    # The parent's world is as it was: it still sees a death and can talk.
    assert ranks[0].control.failure(0) is None
    ranks[2].die()
    assert ranks[0].failure().culprits == (2,)


def test_a_world_of_one_has_no_thread_and_no_failures() -> None:
    threads = threading.active_count()
    membership = join(Placement(0, 1, 0, 1, "none", None))
    control = Control(membership, Endpoint(membership))
    control.start(time.monotonic())
    control.register(0, [0], lambda: None)
    control.enter(all_reduce())
    control.waiting(0, 0)
    control.disconnected(0, 0, "impossible")
    assert control.failure(0) is None
    assert isinstance(control.timed_out(0, 0, 0.1), CollectiveTimeout)
    assert threading.active_count() == threads
    control.close()
