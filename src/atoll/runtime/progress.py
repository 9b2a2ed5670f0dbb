"""What moves the bytes of one process: an epoll loop that some thread drives, all communicators in one.

Exactly one thread at a time is the **driver**; only it touches links and machines. A thread that waits for a
collective drives until its own is finished, so a synchronous call costs no thread switch. Asynchronous collectives
are driven by a background thread while nobody waits; a waiting caller takes the wheel from it. New tasks go through
an inbox, so that submitting never waits for the driver.

The driver yields the processor a few times before it sleeps in epoll: on a machine with a core for every rank the
answer is usually there at once, and with fewer the core goes to a rank that has something to do.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from atoll.runtime.control import Control
from atoll.runtime.link import Link, Pumped
from atoll.runtime.task import Task
from atoll.runtime.wakeup import Wakeup

SPINS = 30
QUIET_S = 0.1  # without any event for so long, the control plane compares notes
TURNS_PER_CLOCK = 256  # busy turns between two looks at the clock
LOCAL_MOVE_BYTES = 1 << 20
_EDGES = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET


class Progress:
    """One per process. ``submit`` a task, then ``wait`` for it."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._epoll = select.epoll()
        self.wakeup = Wakeup()
        self._epoll.register(self.wakeup.fileno(), select.EPOLLIN)
        self._links: dict[int, Link] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._tasks: list[Task] = []
        self._ready: deque[Link] = deque()
        self._moving: deque[Task] = deque()
        self._turn = threading.Condition()
        self._driver = ""
        self._waiters = 0
        self._yield_wheel = False
        self._background: threading.Thread | None = None
        self._closed = False

    def add_link(self, link: Link) -> None:
        """Watch a connection."""
        self._post(lambda: self._watch(link))

    def submit(self, task: Task) -> None:
        """Start a task; it moves when some thread drives."""
        self._post(lambda: self._start(task))
        if task.asynchronous:
            self._wake_background()

    def wait(self, task: Task, deadline: float | None = None) -> bool:
        """Drive until ``task`` is finished or ``deadline`` (monotonic seconds) has passed; whether it is finished."""
        while not task.finished:
            if not self._take_wheel(task, deadline):
                break
            try:
                self._drive(lambda: task.finished, deadline)
            finally:
                self._leave_wheel()
            if deadline is not None and time.monotonic() >= deadline:
                break
        return task.finished

    def fail(self, communicator_id: int, error: BaseException, links: list[Link]) -> None:
        """End a communicator: its tasks finish with ``error``, its links close. Returns when no memory is in use."""
        done = threading.Event()

        def end() -> None:
            self._fail_tasks(communicator_id, error)
            for link in links:
                self._forget(link)
            done.set()

        self._post(end)
        with self._turn:
            idle = not self._driver
        if idle and self._take_wheel(None, None):
            try:
                self._drain_inbox()
            finally:
                self._leave_wheel()
        done.wait()

    def close(self) -> None:
        """Stop the background thread and release everything."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()
        self.wakeup.set()
        if self._background is not None and self._background is not threading.current_thread():
            self._background.join()
        for link in list(self._links.values()):
            self._forget(link)
        self._epoll.close()
        self.wakeup.close()

    # -- who drives ------------------------------------------------------------------------------------------------

    def _post(self, action: Callable[[], None]) -> None:
        self._inbox.append(action)
        if self._driver:
            self.wakeup.set()

    def _take_wheel(self, task: Task | None, deadline: float | None) -> bool:
        """Become the driver; False when ``task`` was finished by another one, or the deadline passed, meanwhile."""
        with self._turn:
            self._waiters += 1
            try:
                while self._driver:
                    if task is not None and task.finished:
                        return False
                    if self._driver == "background":
                        self._yield_wheel = True
                        self.wakeup.set()
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self._turn.wait(left)
                self._driver = "caller"
                return True
            finally:
                self._waiters -= 1

    def _leave_wheel(self) -> None:
        with self._turn:
            self._driver = ""
            self._yield_wheel = False
            self._turn.notify_all()

    def _wake_background(self) -> None:
        with self._turn:
            if self._background is None:
                self._background = threading.Thread(target=self._run_background, name="atoll-progress", daemon=True)
                self._background.start()
            self._turn.notify_all()

    def _run_background(self) -> None:
        while True:
            with self._turn:
                while not self._closed and (self._driver or self._waiters or not self._has_background_work()):
                    self._turn.wait()
                if self._closed:
                    return
                self._driver = "background"
            try:
                self._drive(lambda: self._yield_wheel or self._closed or not self._has_background_work(), None)
            finally:
                self._leave_wheel()

    def _has_background_work(self) -> bool:
        return bool(self._inbox) or any(task.asynchronous for task in self._tasks)

    # -- the loop --------------------------------------------------------------------------------------------------

    def _drive(self, until: Callable[[], bool], deadline: float | None) -> None:
        spins = turns = 0
        quiet_since = 0.0
        while True:
            self._drain_inbox()
            moved = self._pump_ready()
            if until():
                return
            if moved:
                spins, quiet_since = 0, 0.0
            if self._inbox or self._ready or self._moving:
                events = self._epoll.poll(0)
                turns += 1
                if turns % TURNS_PER_CLOCK == 0:
                    now = time.monotonic()
                    self._check_deadlines(now)
                    if deadline is not None and now >= deadline:
                        return
            elif spins < SPINS:
                events = self._epoll.poll(0)
                if not events:
                    spins += 1
                    os.sched_yield()
                    continue
            else:
                now = time.monotonic()
                quiet_since = quiet_since or now
                if now - quiet_since >= QUIET_S:
                    self._compare_notes()
                    quiet_since = now
                if self._check_deadlines(now):
                    continue
                if deadline is not None and now >= deadline:
                    return
                events = self._epoll.poll(self._patience(now, quiet_since, deadline))
            for fd, event in events:
                self._on_event(fd, event)

    def _patience(self, now: float, quiet_since: float, deadline: float | None) -> float:
        """Seconds to sleep in epoll: until the next look around or the next deadline."""
        ends = [quiet_since + QUIET_S, *(task.deadline for task in self._tasks)]
        if deadline is not None:
            ends.append(deadline)
        return max(0.0, min(ends) - now)

    def _on_event(self, fd: int, event: int) -> None:
        link = self._links.get(fd)
        if link is None:
            if fd == self.wakeup.fileno():
                self.wakeup.clear()
                self._check_failures()
            return
        if event & (select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
            link.readable = True
            if event & ~(select.EPOLLIN | select.EPOLLOUT):
                link.hung_up = True
        if event & select.EPOLLOUT:
            link.writable = True
        self._queue(link)

    def _pump_ready(self) -> bool:
        """Pump every link that may move, each once; whether anything moved."""
        moved = False
        for _ in range(len(self._ready)):
            link = self._ready.popleft()
            link.queued = False
            for pump, streams in ((link.pump_out, link.outgoing), (link.pump_in, link.incoming)):
                if not streams:
                    continue
                task = streams[0].task
                result = self._guarded(task, pump)
                if result is Pumped.MOVED:
                    moved = True
                    self._queue(link)
                elif result is Pumped.FOREIGN:
                    # Where the other side is behind, what it called then is what we disagree about.
                    sequence = min(task.call.sequence, link.foreign_sequence)
                    self._control.waiting(task.call.communicator_id, sequence)
                    link.readable = False
                elif result is Pumped.BROKEN:
                    link.readable = link.writable = False
                    self._control.disconnected(task.call.communicator_id, link.peer, link.broken)
        for _ in range(len(self._moving)):
            task = self._moving.popleft()
            task.moving = False
            if not task.finished and self._guarded(task, partial(self._move, task)) is Pumped.MOVED:
                moved = True
        return moved

    def _guarded(self, task: Task, act: Callable[[], Pumped]) -> Pumped:
        """Run ``act``, and what it wakes, for ``task``; what it raises ends the task's communicator, not the driver.

        An operation may raise (NumPy told to raise on overflow, say). Should the driver itself be interrupted in here,
        the machine is half moved, so the communicator ends with it.
        """
        try:
            result = act()
            if result is Pumped.MOVED:
                self._after(task)
        except BaseException as error:
            self._fail_tasks(task.call.communicator_id, error)
            if not isinstance(error, Exception):
                raise
            return Pumped.IDLE
        return result

    def _move(self, task: Task) -> Pumped:
        if not task.machine.move(task.local_lane, LOCAL_MOVE_BYTES):
            return Pumped.IDLE
        if not task.machine.lane_done(task.local_lane):
            task.moving = True
            self._moving.append(task)
        return Pumped.MOVED

    def _after(self, task: Task) -> None:
        """A task's machine has advanced: pump what that woke; finish it if that was all."""
        machine = task.machine
        while not machine.done:
            woken = machine.take_woken()
            if not woken:
                return
            for number in woken:
                link = task.links[number]
                if link is None:
                    if not task.moving:
                        task.moving = True
                        self._moving.append(task)
                    continue
                if machine.program.lanes[number].incoming:
                    link.nudge(task)  # which may advance marks and wake others in turn
                self._queue(link)
        self._finish(task, None)

    def _queue(self, link: Link) -> None:
        if not link.queued:
            link.queued = True
            self._ready.append(link)

    def _drain_inbox(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _watch(self, link: Link) -> None:
        self._links[link.fd] = link
        self._epoll.register(link.fd, _EDGES)

    def _forget(self, link: Link) -> None:
        if self._links.pop(link.fd, None) is not None:
            self._epoll.unregister(link.fd)
        link.close()

    def _start(self, task: Task) -> None:
        self._tasks.append(task)
        failure = self._control.failure(task.call.communicator_id)
        if failure is not None:
            self._finish(task, failure)
            return
        if task.machine.done:
            self._finish(task, None)
            return
        # Sends first: the others wait for them; local moves can be made while bytes travel.
        for lane in task.machine.program.lanes:
            link = task.links[lane.number]
            if link is not None:
                link.add(task, lane.number, lane.incoming)
                self._queue(link)
        if task.local_lane >= 0:
            task.moving = True
            self._moving.append(task)

    def _finish(self, task: Task, error: BaseException | None) -> None:
        if task.finished:
            return
        self._tasks.remove(task)
        task.error = error
        if task.on_finish is not None and error is None:
            try:
                task.on_finish()
            except BaseException as raised:
                task.error = raised
        self._control.leave(task.call.communicator_id, task.call.sequence)
        task.finished = True
        if self._waiters:
            with self._turn:
                self._turn.notify_all()

    # -- when nothing moves ----------------------------------------------------------------------------------------

    def _compare_notes(self) -> None:
        """Nothing has happened for a while: ask the others what they are in."""
        self._check_failures()
        for task in self._tasks:
            if not task.told_waiting:
                task.told_waiting = True
                self._control.waiting(task.call.communicator_id, task.call.sequence, task.waits_on())

    def _check_deadlines(self, now: float) -> bool:
        """End what is past its deadline; whether anything was."""
        late = [task for task in self._tasks if now >= task.deadline]
        for task in late:
            if not task.finished:
                call = task.call
                error = self._control.timed_out(
                    call.communicator_id, call.sequence, task.timeout_s, task.waits_on(), task.progress()
                )
                self._fail_tasks(call.communicator_id, error)
        return bool(late)

    def _check_failures(self) -> None:
        for communicator_id in {task.call.communicator_id for task in self._tasks}:
            failure = self._control.failure(communicator_id)
            if failure is not None:
                self._fail_tasks(communicator_id, failure)

    def _fail_tasks(self, communicator_id: int, error: BaseException) -> None:
        """Finish all tasks of a communicator with ``error``; its links carry nothing any more."""
        for task in [task for task in self._tasks if task.call.communicator_id == communicator_id]:
            for link in task.links:
                if link is not None:
                    link.incoming.clear()
                    link.outgoing.clear()
            self._finish(task, error)
