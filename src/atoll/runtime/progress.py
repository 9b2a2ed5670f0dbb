"""What moves the bytes of one process: an epoll loop that some thread drives, all communicators in one.

Exactly one thread at a time is the **driver**, which is said to have the wheel; only it touches links and machines.
A thread that waits for a collective drives until its own is finished, so a synchronous call costs no thread switch.
Asynchronous collectives are driven by a background thread while nobody waits; a waiting caller takes the wheel from
it. Everything that is to be started or ended goes through an inbox, so that submitting never waits for the driver.

The driver yields the processor a few times before it sleeps in epoll: on a machine with a core for every rank the
answer is usually there at once, and with fewer the core goes to a rank that has something to do (``yielding``). Links
through shared memory give no sign while it is awake: it looks at them at every turn, and says that it sleeps before it
does.

**Interruptions.** An exception may come out of an operation, or out of nowhere (Ctrl-C, a signal handler). Where it
meets a machine on the move, that machine's communicator ends, and the other ranks are told. While the driver waits
for events nothing is in the making, so only its own wait ends; and a signal handler of the driver's thread may even
drive (``close`` a communicator, say). Anywhere else in the loop, everything in flight ends. What may have been missed,
edges among it, is looked for anew.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial

from atoll.errors import SpecError
from atoll.runtime.control import VERDICT_S, Control
from atoll.runtime.lean import AnyLink
from atoll.runtime.link import Pumped
from atoll.runtime.shared_link import SharedLink
from atoll.runtime.task import Task
from atoll.runtime.wakeup import Wakeup
from atoll.runtime.wheel import Wheel
from atoll.runtime.yielding import Yielding

SPINS = 30
QUIET_S = 0.1  # a collective that has not moved for about so long compares notes
LOOK_S = QUIET_S / 2  # between two looks at who has moved
REST_S = 0.5  # the same where nobody is left to be looked at
TURNS_PER_CLOCK = 256  # busy turns between two looks at the clock
LOCAL_MOVE_BYTES = 1 << 20
JOIN_S = 5.0  # for the background thread, which ends in microseconds
_EDGES = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET


class Progress:
    """One per process. ``submit`` a task, then ``wait`` for it. ``ended`` is what ended all of it, None so far."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._epoll = select.epoll()
        # Other threads may be about to set it at any time, so it is closed with its last reference.
        self.wakeup = Wakeup()
        self._epoll.register(self.wakeup.fileno(), select.EPOLLIN)
        self.ended: BaseException | None = None
        self._links: dict[int, AnyLink] = {}
        self._sharing: list[SharedLink] = []  # those of them that go through shared memory
        self._dozing: list[SharedLink] = []  # those whose peers were told that we sleep
        self._inbox: deque[Callable[[], None]] = deque()
        self._tasks: list[Task] = []
        self.broken: dict[int, BaseException] = {}  # communicators that were interrupted in here
        self._ready: deque[AnyLink] = deque()
        self._moving: deque[Task] = deque()
        self._look_at = 0.0
        self._yielding = Yielding()
        self._wheel = Wheel(self.wakeup.set)
        self._background: threading.Thread | None = None
        self._closed = False
        os.register_at_fork(after_in_child=partial(_after_fork, weakref.ref(self)))

    def add_link(self, link: AnyLink) -> None:
        """Watch a connection."""
        self._post(lambda: self._watch(link))

    def submit(self, task: Task) -> None:
        """Start a task; it moves when some thread drives."""
        self._post(lambda: self._start(task))
        if task.asynchronous and self.ended is None:
            self._wheel.start_background(self._start_background)

    def wait(self, task: Task, deadline: float | None = None) -> bool:
        """Drive until ``task`` is finished or ``deadline`` (monotonic seconds) has passed; whether it is finished."""
        self._drive_until(lambda: task.finished, deadline)
        if task.finished and task.error is None:
            # All bytes were moved; but were they ours to have? A rank that was stopped may have been given up.
            task.error = self._control.confirm()
        return task.finished

    def begin_alone(self) -> bool:
        """Take the wheel for one call that needs no loop, where nothing is in flight and nobody wants it.

        Whether it was taken; then ``end_alone`` gives it back.
        """
        if self._tasks or self._inbox or not self._wheel.take_alone():
            return False
        if self._closed:  # it ends under a driver, so from here on it does not
            self._wheel.leave_alone()
            return False
        return True

    def end_alone(self) -> None:
        self._wheel.leave_alone()

    def snapshot(self, communicator_id: int, sequence: int) -> tuple[list[int], str]:
        """For a story, from any thread: the world ranks that a call waits for, and how far it is."""
        for task in list(self._tasks):
            if task.call.communicator_id == communicator_id and task.call.sequence == sequence:
                return task.waits_on(), task.progress()
        return [], ""

    def failure(self, communicator_id: int) -> BaseException | None:
        """What has ended a communicator here, if anything has; the control plane's verdicts are not among it."""
        return self.ended or self.broken.get(communicator_id)

    def fail(self, communicator_id: int, error: BaseException, links: list[AnyLink]) -> None:
        """End a communicator: its tasks finish with ``error``, its links close. Returns when no memory is in use."""

        def end() -> None:
            self._fail_tasks(communicator_id, error)
            for link in links:
                self._forget(link)

        self._do(end)

    def close(self, error: BaseException) -> None:
        """Finish what is in flight with ``error``, refuse what comes after it, and release everything."""
        if self.ended is not None:
            return
        self.ended = error

        def end() -> None:
            for task in list(self._tasks):
                self._drop(task, error)
            for link in list(self._links.values()):
                self._forget(link)
            self._closed = True

        self._do(end)
        self._wheel.tell()
        if self._background is not None and self._background is not threading.current_thread():
            self._background.join(JOIN_S)
        # Whoever drives leaves now. From here on a driver finds nothing to watch, and only refuses what it is given.
        self._do(self._epoll.close)

    # -- who drives ------------------------------------------------------------------------------------------------

    def _post(self, action: Callable[[], None]) -> None:
        self._inbox.append(action)
        if self._wheel.driver:
            self.wakeup.set()

    def _do(self, action: Callable[[], None]) -> None:
        """Have the driver do ``action``, whoever that is, and return when it is done."""
        done = threading.Event()

        def act() -> None:
            action()
            done.set()
            self._wheel.tell_waiters()

        self._post(act)
        self._drive_until(done.is_set)

    def _drive_until(self, done: Callable[[], bool], deadline: float | None = None) -> None:
        while not done():
            try:
                if not self._wheel.take(done, deadline):
                    return
                self._drive(done, deadline)
            except BaseException as error:
                if self._closed and isinstance(error, OSError | ValueError):
                    return  # closed by a signal handler while we waited for events
                self._interrupted(error)
                raise
            finally:
                self._wheel.leave()
            if self._closed or (deadline is not None and time.monotonic() >= deadline):
                return

    def _start_background(self) -> None:
        thread = threading.Thread(target=self._run_background, name="atoll-progress", daemon=True)
        thread.start()
        self._background = thread

    def _run_background(self) -> None:
        while self._wheel.take_for_background(self._has_background_work, lambda: self._closed):
            try:
                self._drive(lambda: self._wheel.wanted or not self._has_background_work(), None)
            except BaseException as error:
                self._interrupted(error)
            finally:
                self._wheel.leave()

    def _has_background_work(self) -> bool:
        return bool(self._inbox) or any(task.asynchronous for task in self._tasks)

    # -- the loop --------------------------------------------------------------------------------------------------

    def _drive(self, until: Callable[[], bool], deadline: float | None) -> None:
        me = threading.get_ident()
        spins = turns = 0
        while True:
            self._wheel.amid = True
            if self._inbox:
                self._drain_inbox()
                self._rouse()  # there may be links that were not told
            moved = self._pump_ready()
            if until() or self._closed:
                self._wheel.amid = False
                return
            if moved:
                spins = 0
                self._rouse()
            sleep_s = 0.0
            if self._inbox or self._ready or self._moving:
                turns += 1
                if turns % TURNS_PER_CLOCK == 0:
                    now = time.monotonic()
                    self._look_around(now)
                    if deadline is not None and now >= deadline:
                        self._wheel.amid = False
                        return
            elif spins < SPINS:
                spins += 1
                if spins > 1 and not self._yielding.once():
                    spins = SPINS
                self._queue_shared(self._sharing)
            else:
                now = time.monotonic()
                if self._look_around(now):
                    continue
                if deadline is not None and now >= deadline:
                    self._wheel.amid = False
                    return
                if self._doze():
                    continue
                sleep_s = self._patience(now, deadline)
            self._wheel.amid = False
            events = self._epoll.poll(sleep_s)
            if self._wheel.driver != me:
                # A signal handler of this thread has driven meanwhile, and the wheel may be anybody's.
                self._post(self._look_anew)
                return
            self._wheel.amid = True
            for fd, event in events:
                self._on_event(fd, event)
            if sleep_s:
                self._rouse()

    def _queue_shared(self, links: list[SharedLink]) -> None:
        for link in links:
            if link.incoming or link.outgoing:
                self._queue(link)

    def _doze(self) -> bool:
        """Tell the peers of shared links that we are about to sleep; whether to look at those links once more."""
        if self._dozing:
            return False
        self._dozing = [link for link in self._sharing if link.incoming or link.outgoing]
        for link in self._dozing:
            link.fall_asleep()
        self._queue_shared(self._dozing)
        return bool(self._dozing)

    def _rouse(self) -> None:
        if self._dozing:
            for link in self._dozing:
                link.wake_up()
            self._queue_shared(self._dozing)
            self._dozing = []

    def _patience(self, now: float, deadline: float | None) -> float:
        """Seconds to sleep in epoll: until the next look around or the next deadline."""
        ends = [self._look_at, *(task.deadline for task in self._tasks)]
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
                elif result is Pumped.BROKEN:
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
        the machine is half moved, so its communicator ends, and no other.
        """
        try:
            result = act()
            if result is Pumped.MOVED:
                self._after(task)
        except BaseException as error:
            if isinstance(error, Exception):
                self._drop(task, error)
            self._break(task.call.communicator_id, task.call.sequence, error)
            if not isinstance(error, Exception):
                self._wheel.amid = False  # nothing else was in the making
                raise
            return Pumped.IDLE
        return result

    def _move(self, task: Task) -> Pumped:
        if not task.machine.move(task.local_lane, LOCAL_MOVE_BYTES):
            return Pumped.IDLE
        if not task.machine.lane_done(task.local_lane):
            self._queue_moves(task)
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
                    self._queue_moves(task)
                    continue
                if machine.program.lanes[number].incoming:
                    link.nudge(task)  # which may advance marks and wake others in turn
                self._queue(link)
        self._finish(task, None)

    def _queue(self, link: AnyLink) -> None:
        if not link.queued:
            link.queued = True
            self._ready.append(link)

    def _queue_moves(self, task: Task) -> None:
        if not task.moving:
            task.moving = True
            self._moving.append(task)

    # -- what the inbox holds: all of it may be begun a second time ----------------------------------------------------

    def _drain_inbox(self) -> None:
        while self._inbox:
            try:
                self._inbox[0]()  # left where it is until it is done, so that an interruption loses nothing
            except Exception:
                self._inbox.popleft()
                raise
            self._inbox.popleft()

    def _watch(self, link: AnyLink) -> None:
        if self.ended is not None:
            link.close()
        elif self._links.get(link.fd) is not link:
            self._epoll.register(link.fd, _EDGES)
            self._links[link.fd] = link
            if isinstance(link, SharedLink):
                self._sharing.append(link)

    def _forget(self, link: AnyLink) -> None:
        if self._links.pop(link.fd, None) is not None:
            self._epoll.unregister(link.fd)
        if isinstance(link, SharedLink):
            for links in (self._sharing, self._dozing):
                if link in links:
                    links.remove(link)
        link.close()

    def _start(self, task: Task) -> None:
        if not task.finished:
            try:
                self._begin(task)
            except Exception as error:
                self._drop(task, error)
                raise

    def _begin(self, task: Task) -> None:
        identity = task.call.communicator_id
        self._tasks.append(task)
        failure = self.failure(identity) or self._control.failure(identity)
        if failure is not None:
            self._finish(task, failure)
            return
        if task.machine.done:
            self._finish(task, None)
            return
        # Sends first: the others wait for them; local moves can be made while bytes travel.
        for lane in task.machine.program.lanes:
            link = task.links[lane.number]
            if link is not None and not task.machine.lane_done(lane.number):
                link.add(task, lane.number, lane.incoming)
                self._queue(link)
        if task.local_lane >= 0 and not task.machine.lane_done(task.local_lane):
            self._queue_moves(task)

    def _finish(self, task: Task, error: BaseException | None) -> None:
        if task.finished:
            return
        task.error = error
        on_finish, task.on_finish = task.on_finish, None
        interruption: BaseException | None = None
        if on_finish is not None and error is None:
            try:
                on_finish()
            except BaseException as raised:
                task.error = raised
                interruption = None if isinstance(raised, Exception) else raised
        self._control.leave(task.call.communicator_id, task.call.sequence)
        task.finished = True
        if task in self._tasks:
            self._tasks.remove(task)
        self._wheel.tell_waiters()
        if interruption is not None:
            raise interruption

    # -- when nothing moves ----------------------------------------------------------------------------------------

    def _look_around(self, now: float) -> bool:
        """Deadlines, and collectives that do not move though others may; whether a collective ended by that."""
        ended = self._check_deadlines(now)
        if now >= self._look_at:
            self._check_failures()
            for task in self._tasks:
                position = task.machine.position()
                if position == task.noted_position and (waits_on := task.waits_on()) != task.told_waits:
                    task.told_waits = waits_on
                    self._control.waiting(task.call.communicator_id, task.call.sequence, waits_on)
                task.noted_position = position
            self._look_at = now + (LOOK_S if self._tasks else REST_S)
        return ended

    def _check_deadlines(self, now: float) -> bool:
        """End what is past its deadline; whether anything was."""
        late = [task for task in self._tasks if now >= task.deadline]
        for task in late:
            if not task.finished:
                facts = (task.call.communicator_id, task.call.sequence, task.timeout_s, task.waits_on())
                if task.expired:
                    self._fail_tasks(task.call.communicator_id, self._control.unexplained(*facts))
                else:
                    # The others may know why. The driver goes on meanwhile: it serves other communicators too.
                    task.expired = True
                    task.deadline = now + VERDICT_S
                    self._control.expired(*facts, task.progress())
        return bool(late)

    def _check_failures(self) -> None:
        for communicator_id in {task.call.communicator_id for task in self._tasks}:
            failure = self._control.failure(communicator_id)
            if failure is not None:
                self._fail_tasks(communicator_id, failure)

    def _fail_tasks(self, communicator_id: int, error: BaseException) -> None:
        """Finish all tasks of a communicator with ``error``; its links carry nothing any more."""
        for task in [task for task in self._tasks if task.call.communicator_id == communicator_id]:
            self._drop(task, error)

    def _drop(self, task: Task, error: BaseException) -> None:
        """Finish a task with ``error``. All tasks of its communicator end with it, so its links are emptied."""
        for link in task.links:
            if link is not None:
                link.abandon()
        self._finish(task, error)

    # -- interruptions -----------------------------------------------------------------------------------------------

    def _break(self, communicator_id: int, sequence: int, error: BaseException) -> None:
        """Call ``sequence`` was interrupted by ``error``: nothing on its communicator can be right any more, here or
        elsewhere."""
        what = f"{type(error).__name__}: {error}"
        interrupted = SpecError(f"an earlier collective was interrupted by {what}")
        self.broken.setdefault(communicator_id, interrupted)
        self._control.abandon(communicator_id, sequence, what)
        self._fail_tasks(communicator_id, interrupted)

    def _interrupted(self, error: BaseException) -> None:
        """``error`` has come out of the loop. If we drive, end what may be in the making, and start from what is."""
        if not self._wheel.is_mine():
            return
        if self._wheel.amid:
            for task in list(self._tasks):
                if not task.finished:
                    self._break(task.call.communicator_id, task.call.sequence, error)
            self._wheel.amid = False
        self._look_anew()

    def _look_anew(self) -> None:
        """Readiness may have been missed: try every link and all local moves."""
        self._ready.clear()
        self._moving.clear()
        for link in self._links.values():
            link.readable = link.writable = True
            link.queued = False
            self._queue(link)
        self._tasks = [task for task in self._tasks if not task.finished]
        for task in self._tasks:
            task.moving = False
            if task.local_lane >= 0 and not task.machine.lane_done(task.local_lane):
                self._queue_moves(task)

    def _abandon_in_child(self) -> None:
        """In a forked child: let go of everything. The epoll is the parent's too, so nothing is taken out of it."""
        self.ended = SpecError(
            "this process was forked from a rank and is none itself: join again, or use subprocesses"
        )
        self._closed = True
        self._epoll.close()
        self.wakeup.close()
        # Locks and threads are those of the parent.
        self._wheel = Wheel(self.wakeup.set)
        self._background = None
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._sharing.clear()
        self._dozing.clear()
        self._inbox.clear()
        for task in self._tasks:
            task.error = self.ended
            task.finished = True
        self._tasks.clear()


def _after_fork(reference: weakref.ref[Progress]) -> None:
    progress = reference()
    if progress is not None:
        progress._abandon_in_child()
