"""The loop that moves bytes: who drives, what ends what, interruptions; with a control plane of wood."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from atoll.algorithms.catalog import build
from atoll.errors import CollectiveTimeout, PeerLost, SpecError
from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.link import ByteCount, Link
from atoll.runtime.machine import Machine
from atoll.runtime.program import compile_program
from atoll.runtime.progress import Progress
from atoll.runtime.reduction import Reduction, reduction
from atoll.runtime.task import Task
from atoll.schedule.prove import ProvenSchedule, prove

PATIENCE_S = 60.0  # far more than anything here takes


class WoodenControl:
    """Writes down what it is told. ``failures`` are its verdicts."""

    def __init__(self) -> None:
        self.failures: dict[int, Exception] = {}
        self.told: list[tuple[Any, ...]] = []
        self.on_waiting: Callable[[], None] = lambda: None
        self.on_expired: Callable[[int, Exception], None] = self.failures.__setitem__
        self.given_up: Exception | None = None

    def failure(self, communicator_id: int) -> Exception | None:
        return self.failures.get(communicator_id)

    def leave(self, communicator_id: int, sequence: int) -> None:
        self.told.append(("leave", communicator_id, sequence))

    def waiting(self, communicator_id: int, sequence: int, waits_on: Any = ()) -> None:
        self.told.append(("waiting", communicator_id, sequence, tuple(waits_on)))
        self.on_waiting()

    def abandon(self, communicator_id: int, sequence: int, reason: str) -> None:
        self.told.append(("abandon", communicator_id, sequence, reason))

    def disconnected(self, communicator_id: int, peer: int, reason: str) -> None:
        self.told.append(("disconnected", communicator_id, peer, reason))
        self.failures[communicator_id] = PeerLost("gone", culprits=[peer])

    def expired(
        self, communicator_id: int, sequence: int, timeout_s: float, waits_on: Any = (), progress: str = ""
    ) -> None:
        self.told.append(("expired", communicator_id, sequence, timeout_s, tuple(waits_on), progress))
        self.on_expired(communicator_id, CollectiveTimeout("too late", culprits=waits_on))

    def unexplained(self, communicator_id: int, sequence: int, timeout_s: float, waits_on: Any) -> CollectiveTimeout:
        return CollectiveTimeout("nobody knows why", culprits=waits_on)

    def confirm(self) -> Exception | None:
        return self.given_up

    def all_told(self, what: str) -> list[tuple[Any, ...]]:
        return [told[1:] for told in self.told if told[0] == what]


@pytest.fixture
def progresses() -> Iterator[list[Progress]]:
    """Two ranks' loops."""
    made = [Progress(WoodenControl()) for _ in range(2)]  # type: ignore[arg-type]
    yield made
    for progress in made:
        progress.close(SpecError("closed"))
    assert not [thread for thread in threading.enumerate() if thread.name == "atoll-progress"]


def control_of(progress: Progress) -> WoodenControl:
    control = progress._control
    assert isinstance(control, WoodenControl)
    return control


class World:
    """Two ranks' ends of one communicator, connected."""

    def __init__(self, progresses: list[Progress], identity: int = 7) -> None:
        self.identity = identity
        self.progresses = progresses
        self.links = []
        self.sequence = [0, 0]
        for rank, sock in enumerate(socket.socketpair()):
            sock.setblocking(False)
            link = Link(sock, 1 - rank, 0, 4096, ByteCount())
            self.links.append(link)
            progresses[rank].add_link(link)

    def task(
        self, rank: int, array: np.ndarray, *, asynchronous: bool = False, deadline: float = 1e9,
        op: Reduction | None = None, on_finish: Callable[[], None] | None = None,
    ) -> Task:  # fmt: skip
        """All-reduce ``array`` in place; submitted."""
        link = self.links[rank]
        program = compile_program(doubling(), rank, len(array), array.itemsize)
        memory = array.view(np.uint8)
        machine = Machine(
            program, (memory, memory, np.zeros(program.scratch_bytes, np.uint8)), array.dtype,
            op or reduction("sum", array.dtype), lambda _: link.staging(),
        )  # fmt: skip
        call = CallDescriptor(self.identity, self.sequence[rank], "all_reduce", str(array.dtype), len(array), "sum")
        self.sequence[rank] += 1
        links: list[Link | None] = [None if lane.peer < 0 else link for lane in program.lanes]
        task = Task(call, machine, links, (0, 1), 5.0, deadline, asynchronous, on_finish)
        self.progresses[rank].submit(task)
        return task


def doubling() -> ProvenSchedule:
    return prove(build("all_reduce", "recursive_doubling", 2))


class Stub:
    """A machine of one local lane that moves when ``move`` says so, and is never done."""

    def __init__(self, move: Callable[[], bool]) -> None:
        self.program = compile_program(prove(build("all_reduce", "recursive_doubling", 1)), 0, 0, 8)
        self.done = False
        self.moves = 0
        self._move = move

    def move(self, lane: int, at_most_bytes: int) -> bool:
        self.moves += 1
        return self._move()

    def lane_done(self, lane: int) -> bool:
        return False

    def take_woken(self) -> list[int]:
        return []

    def position(self) -> int:
        return self.moves

    def unfinished(self) -> list[Any]:
        return []


def stub_task(progress: Progress, identity: int, move: Callable[[], bool], deadline: float = 1e9) -> Task:
    call = CallDescriptor(identity, 0, "all_reduce", "float64", 1, "sum")
    task = Task(call, Stub(move), [None], (0, 1), 5.0, deadline, False, None)  # type: ignore[arg-type]
    task.local_lane = 0
    progress.submit(task)
    return task


def wait_for(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.001)


# -- who drives ----------------------------------------------------------------------------------------------------


def test_a_waiting_caller_and_the_background_of_the_other_side_move_several_in_flight(
    progresses: list[Progress],
) -> None:
    world = World(progresses)
    arrays = [[np.full(size, rank + 1.0) for size in (1, 5000, 0, 40_000)] for rank in range(2)]
    theirs = [world.task(1, array, asynchronous=True) for array in arrays[1]]
    ours = [world.task(0, array) for array in arrays[0]]
    for task in (*reversed(ours), *theirs):
        assert progresses[0 if task in ours else 1].wait(task)
        assert task.error is None
    for array in (*arrays[0], *arrays[1]):
        np.testing.assert_array_equal(array, 3.0)
    assert control_of(progresses[0]).all_told("leave") == [(7, sequence) for sequence in (0, 1, 2, 3)]
    assert [link.count.payload_sent for link in world.links] == [
        8 * 45_001 + 1
    ] * 2  # one token, of the collective of no elements


def test_asynchronous_collectives_end_without_anybody_waiting(progresses: list[Progress]) -> None:
    world = World(progresses)
    finished = []
    tasks = [
        world.task(rank, np.ones(30_000), asynchronous=True, on_finish=lambda: finished.append(1)) for rank in range(2)
    ]
    wait_for(lambda: all(task.finished for task in tasks))
    assert len(finished) == 2


def test_a_wait_that_runs_out_leaves_the_task_in_flight(progresses: list[Progress]) -> None:
    world = World(progresses)
    array = np.ones(3)
    task = world.task(0, array, asynchronous=True)
    assert not progresses[0].wait(task, time.monotonic() + 0.02)
    other = world.task(1, np.ones(3))
    assert progresses[1].wait(other)
    assert progresses[0].wait(task)
    assert array.tolist() == [2.0, 2.0, 2.0]


def test_threads_on_communicators_of_their_own_share_the_wheel(progresses: list[Progress]) -> None:
    worlds = [World(progresses, identity) for identity in (7, 8, 9)]
    wrong: list[Any] = []

    def run(rank: int, world: World) -> None:
        for number in range(60):
            array = np.full(number * 7, rank + 1.0)
            task = world.task(rank, array)
            if not progresses[rank].wait(task) or task.error is not None or not (array == 3.0).all():
                wrong.append((rank, world.identity, number, task.error))

    threads = [threading.Thread(target=run, args=(rank, world)) for rank in range(2) for world in worlds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert not wrong


def test_ending_a_communicator_never_waits_for_a_driver_that_is_leaving(progresses: list[Progress]) -> None:
    """What is posted to a driver in the moment it leaves is done by the one who posted it."""
    world = World(progresses)
    stop = threading.Event()

    def drive() -> None:
        while not stop.is_set():
            done = stub_task(progresses[0], 8, lambda: True)
            progresses[0].wait(done, time.monotonic())

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        for _ in range(300):
            progresses[0].fail(8, SpecError("over"), [])
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
    tasks = [world.task(rank, np.ones(2), asynchronous=rank == 1) for rank in range(2)]
    assert progresses[0].wait(tasks[0])
    assert progresses[1].wait(tasks[1])


# -- ends ----------------------------------------------------------------------------------------------------------


def test_a_communicator_ended_under_a_waiting_thread_lets_go_of_its_memory(progresses: list[Progress]) -> None:
    world = World(progresses)
    array = np.ones(100_000)
    task = world.task(0, array)
    waiter = threading.Thread(target=progresses[0].wait, args=(task,))
    waiter.start()
    wait_for(lambda: control_of(progresses[0]).all_told("waiting"))
    progresses[0].fail(7, SpecError("the communicator is closed"), [world.links[0]])
    waiter.join(PATIENCE_S)
    assert isinstance(task.error, SpecError)
    assert world.links[0].connection.fileno() == -1
    # The other side's bytes come too late to land anywhere.
    late = world.task(1, np.full(100_000, 5.0), asynchronous=True)
    assert progresses[1].wait(late)
    assert isinstance(late.error, PeerLost)
    assert (array == 1.0).all()


def test_close_ends_everything_under_a_waiting_thread_and_refuses_what_comes_after(progresses: list[Progress]) -> None:
    worlds = [World(progresses, identity) for identity in (7, 8)]
    before = len(os.listdir("/proc/self/fd"))
    waited = worlds[0].task(0, np.ones(10))
    background = worlds[1].task(0, np.ones(10), asynchronous=True)
    waiter = threading.Thread(target=progresses[0].wait, args=(waited,))
    waiter.start()
    wait_for(lambda: len(control_of(progresses[0]).all_told("waiting")) == 2)
    progresses[0].close(SpecError("the world is closed"))
    progresses[0].close(SpecError("again"))
    waiter.join(PATIENCE_S)
    assert not waiter.is_alive()
    late = worlds[0].task(0, np.ones(10), asynchronous=True)
    assert progresses[0].wait(late)
    for task in (waited, background, late):
        assert str(task.error) == "the world is closed"
    # Two sockets and the epoll; the wake-up goes with the last reference.
    assert len(os.listdir("/proc/self/fd")) == before - 3


def test_a_verdict_of_the_control_plane_ends_the_tasks_and_those_that_come_after(progresses: list[Progress]) -> None:
    world = World(progresses)
    task = world.task(0, np.ones(10))

    def verdict() -> None:
        control_of(progresses[0]).failures[7] = PeerLost("rank 1 died", culprits=[1])
        progresses[0].wakeup.set()

    control_of(progresses[0]).on_waiting = verdict
    assert progresses[0].wait(task)
    after = world.task(0, np.ones(10))
    assert progresses[0].wait(after)
    assert str(task.error) == str(after.error) == "rank 1 died"
    assert control_of(progresses[0]).all_told("waiting") == [(7, 0, (1,))]


def test_the_end_of_a_connection_is_told_once_with_the_peer(progresses: list[Progress]) -> None:
    world = World(progresses)
    task = world.task(0, np.ones(10))
    world.links[1].connection.shutdown(socket.SHUT_RDWR)
    assert progresses[0].wait(task)
    assert control_of(progresses[0]).all_told("disconnected")[0][:2] == (7, 1)
    assert isinstance(task.error, PeerLost)


# -- deadlines and notes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_deadline_ends_a_task_whoever_drives(progresses: list[Progress], asynchronous: bool) -> None:
    world = World(progresses)
    task = world.task(0, np.ones(10), asynchronous=asynchronous, deadline=time.monotonic() + 0.02)
    if asynchronous:
        wait_for(lambda: task.finished)
    else:
        assert progresses[0].wait(task)
    assert isinstance(task.error, CollectiveTimeout)
    ((identity, sequence, timeout_s, waits_on, progress),) = control_of(progresses[0]).all_told("expired")
    assert (identity, sequence, timeout_s, waits_on) == (7, 0, 5.0, (1,))
    assert progress == "80 bytes still to come from rank 1 (step 0, chunk 0)"


def test_a_busy_communicator_hides_neither_the_deadline_nor_the_standstill_of_another(
    progresses: list[Progress],
) -> None:
    world = World(progresses)
    busy = stub_task(progresses[0], 8, lambda: True)
    stuck = world.task(0, np.ones(10))
    waiter = threading.Thread(target=progresses[0].wait, args=(busy,))
    waiter.start()
    try:
        wait_for(lambda: control_of(progresses[0]).all_told("waiting"))
        overdue = world.task(0, np.ones(1), deadline=time.monotonic())
        wait_for(lambda: stuck.finished)
    finally:
        progresses[0].fail(8, SpecError("enough"), [])
        waiter.join(PATIENCE_S)
    assert isinstance(overdue.error, CollectiveTimeout)
    assert isinstance(stuck.error, CollectiveTimeout)
    # Who moves is not said to wait, and who waits says so once.
    assert control_of(progresses[0]).all_told("waiting")[0] == (7, 0, (1,))
    assert 8 not in {told[0] for told in control_of(progresses[0]).all_told("waiting")}


# -- interruptions -------------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[[], bool]:
    def move() -> bool:
        raise error

    return move


def test_what_an_operation_raises_ends_its_communicator_alone(progresses: list[Progress]) -> None:
    world = World(progresses)
    sound = world.task(0, np.ones(10))
    stuck = stub_task(progresses[0], 8, lambda: False)
    broken = stub_task(progresses[0], 8, raising(FloatingPointError("overflow")))
    assert progresses[0].wait(broken)
    assert isinstance(broken.error, FloatingPointError)
    assert stuck.finished
    assert str(stuck.error) == "an earlier collective was interrupted by FloatingPointError: overflow"
    assert control_of(progresses[0]).all_told("abandon") == [(8, 0, "FloatingPointError: overflow")]
    after = stub_task(progresses[0], 8, lambda: True)
    assert progresses[0].wait(after)
    assert after.error is stuck.error is progresses[0].failure(8)
    other = world.task(1, np.ones(10), asynchronous=True)
    assert progresses[0].wait(sound)
    assert progresses[1].wait(other)
    assert sound.error is None


def test_an_interruption_amid_a_move_ends_that_communicator_and_comes_out(progresses: list[Progress]) -> None:
    world = World(progresses)
    sound = world.task(0, np.ones(10))
    broken = stub_task(progresses[0], 8, raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        progresses[0].wait(sound)
    assert broken.finished
    assert isinstance(broken.error, SpecError)
    assert not sound.finished
    other = world.task(1, np.ones(10), asynchronous=True)
    assert progresses[0].wait(sound)
    assert progresses[1].wait(other)
    assert sound.error is None


def test_an_interruption_while_finishing_does_not_lose_the_task(progresses: list[Progress]) -> None:
    world = World(progresses)

    def interrupted() -> None:
        raise KeyboardInterrupt

    world.task(1, np.ones(4), asynchronous=True)
    task = world.task(0, np.ones(4), on_finish=interrupted)
    with pytest.raises(KeyboardInterrupt):
        progresses[0].wait(task)
    assert task.finished
    assert isinstance(task.error, KeyboardInterrupt)
    assert progresses[0].wait(task)


class OnSignal:
    """What SIGUSR1 does to the main thread: ``act``, once, where it finds that thread waiting for events."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.acted = threading.Event()

    def __call__(self, act: Callable[[], None]) -> None:
        def handle(*_: object) -> None:
            if not self.progress._wheel.amid and not self.acted.is_set():
                self.acted.set()
                act()

        signal.signal(signal.SIGUSR1, handle)


@pytest.fixture
def on_signal(progresses: list[Progress]) -> Iterator[OnSignal]:
    previous = signal.getsignal(signal.SIGUSR1)
    yield OnSignal(progresses[0])
    signal.signal(signal.SIGUSR1, previous)


def interrupt_when_asleep(on_signal: OnSignal) -> threading.Thread:
    """Signal the main thread once its task has stood still, until that meets it waiting for events."""

    def interrupt() -> None:
        wait_for(lambda: control_of(on_signal.progress).all_told("waiting"))
        while not on_signal.acted.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            on_signal.acted.wait(0.01)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def test_an_interruption_while_waiting_for_events_ends_only_the_wait(
    progresses: list[Progress], on_signal: OnSignal
) -> None:
    def act() -> None:
        raise TimeoutError("from a handler")

    on_signal(act)
    world = World(progresses)
    task = world.task(0, np.ones(10))
    thread = interrupt_when_asleep(on_signal)
    with pytest.raises(TimeoutError, match="from a handler"):
        progresses[0].wait(task)
    thread.join()
    assert not task.finished
    other = world.task(1, np.ones(10), asynchronous=True)
    assert progresses[0].wait(task)
    assert progresses[1].wait(other)
    assert control_of(progresses[0]).all_told("abandon") == []


@pytest.mark.parametrize("how", ["fail", "close", "collective"])
def test_a_signal_handler_may_drive_while_its_thread_waits_for_events(
    progresses: list[Progress], on_signal: OnSignal, how: str
) -> None:
    worlds = [World(progresses, identity) for identity in (7, 8)]
    within = []

    def act() -> None:
        if how == "fail":
            progresses[0].fail(7, SpecError("ended within"), [worlds[0].links[0]])
        elif how == "close":
            progresses[0].close(SpecError("ended within"))
        else:
            worlds[1].task(1, np.ones(5), asynchronous=True)
            within.append(worlds[1].task(0, np.ones(5)))
            assert progresses[0].wait(within[0])
            worlds[0].task(1, np.ones(10), asynchronous=True)

    on_signal(act)
    task = worlds[0].task(0, np.ones(10))
    thread = interrupt_when_asleep(on_signal)
    assert progresses[0].wait(task)
    thread.join()
    if how == "collective":
        assert within[0].error is None
        assert task.error is None
    else:
        assert str(task.error) == "ended within"


def test_a_signal_handler_amid_a_move_is_refused_instead_of_hanging(progresses: list[Progress]) -> None:
    refused = []

    def move() -> bool:
        # As a signal handler would that is run amid a NumPy operation.
        try:
            progresses[0].fail(9, SpecError("never"), [])
        except SpecError as error:
            refused.append(str(error))
        raise FloatingPointError

    task = stub_task(progresses[0], 8, move)
    assert progresses[0].wait(task)
    assert "signal handler" in refused[0]


def test_the_wheel_is_not_lost_with_a_thread_that_was_interrupted_while_leaving_it(progresses: list[Progress]) -> None:
    """As if Ctrl-C came between the last byte and the release: the thread still has the wheel, and drives nothing."""
    world = World(progresses)
    progresses[0]._wheel.driver = threading.get_ident()
    progresses[0].fail(8, SpecError("over"), [])
    assert progresses[0]._wheel.driver == 0
    other = world.task(1, np.ones(10), asynchronous=True)
    task = world.task(0, np.ones(10), asynchronous=True)
    assert progresses[0].wait(task)
    assert progresses[1].wait(other)
