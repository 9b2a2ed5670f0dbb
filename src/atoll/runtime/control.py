"""The control plane of one process: a daemon thread that holds a link to every other rank.

The links are a full mesh, so that the end of a process is seen by every other one at the same moment, as an end of
file, without any rank being special. The thread has its own epoll and sleeps without a timeout while nothing is wrong:
an idle control plane costs nothing; only while somebody waits are signs of life asked for (``heartbeat``). What to do
about an event is decided by ``ControlMachine``; this file does the I/O.

Threads: callers write their calls into a ledger (no lock, no wake-up, see there) and post everything else as a command
that the thread takes up. A failure shows in the ledger's ``failure`` and calls the communicator's ``wake``.

Forking: the child of ``os.fork`` has copies of all sockets, which would hide the end of its parent from the others, so
they are closed in the child, where every communicator has failed.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from atoll.errors import AtollError, CollectiveTimeout, InternalError, PeerLost, SpecError, WorldError
from atoll.runtime.agreement import Key
from atoll.runtime.autopsy import look_at
from atoll.runtime.control_link import ControlLink
from atoll.runtime.control_machine import ControlMachine, Snapshot
from atoll.runtime.descriptor import CallDescriptor, name_ranks
from atoll.runtime.detector import Examine
from atoll.runtime.endpoint import ConnectionKey, Endpoint
from atoll.runtime.environment import DEFAULT_HEARTBEAT_S
from atoll.runtime.handshake import Purpose
from atoll.runtime.instructions import Instruction, Notify, Part, Send
from atoll.runtime.ledger import CallLedger
from atoll.runtime.membership import Membership
from atoll.runtime.messages import Ballot, ControlMessage, Enlist, Linked
from atoll.runtime.survey import Surveyed
from atoll.runtime.verdict import to_error
from atoll.runtime.wakeup import Wakeup
from atoll.runtime.watch import Reporter
from atoll.units import format_duration

LOG: Final = logging.getLogger(__name__)
# A verdict takes half a second (control_machine.ANSWER_S) to find and up to four times that to make where hosts are
# busy, twice where its author is lost; beyond this the thread itself is in trouble.
VERDICT_S: Final = 6.0
# How long a process that leaves tries to say goodbye to peers that do not read.
GOODBYE_S: Final = 1.0
_DAY_S: Final = 86400.0

Command = Callable[[float], list[Instruction]]


class Control:
    """One per process. All methods may be called from any thread; ranks are world ranks unless said otherwise."""

    def __init__(
        self,
        membership: Membership,
        endpoint: Endpoint,
        heartbeat_s: float = DEFAULT_HEARTBEAT_S,
        reporter: Reporter | None = None,
    ) -> None:
        """A rank that somebody waits for is given up after ``heartbeat_s`` without a sign of life. ``reporter`` tells
        the launcher what this rank does."""
        self._reporter = reporter
        self._membership = membership
        self._endpoint = endpoint
        names = [f"pid {peer.pid} on {peer.host.name}" for peer in membership.peers]
        self._machine = ControlMachine(membership.rank, names, heartbeat_s)
        # A rank is given up when it was silent for so long; one that has listened more recently is not.
        self._listen_every_s = heartbeat_s / 2
        self._listened_at = time.monotonic()
        self._listen_asked = self._listen_done = 0
        self._parted: list[ControlLink] = []
        self._ledgers: dict[int, CallLedger] = {}
        self._wakes: dict[int, Callable[[], None]] = {}
        self._links: dict[int, ControlLink] = {}
        self._links_by_fd: dict[int, ControlLink] = {}
        self._ended: list[ControlLink] = []
        self._missing = {peer for peer in range(membership.world_size) if peer != membership.rank}
        self._commands: deque[Command] = deque()
        self._wakeup = Wakeup()
        self._epoll = select.epoll()
        self._thread: threading.Thread | None = None
        self._starting = bool(self._missing)
        self._started = threading.Event()
        self._start_error: AtollError | None = None
        self._verdict = threading.Condition()
        self._surveys = threading.Lock()  # one at a time
        self._closing = False
        self._closed = False

    # What callers do.

    def start(self, deadline: float) -> None:
        """Start the thread and link up; ``deadline`` in ``time.monotonic()`` seconds.

        Returns when every rank has its links to all others, so that one that leaves at once disturbs nobody.
        Raises ``PeerLost`` or ``CollectiveTimeout`` naming the ranks that could not be reached.
        """
        if not self._missing:
            return
        began = time.monotonic()
        self._epoll.register(self._wakeup, select.EPOLLIN)
        self._epoll.register(self._endpoint, select.EPOLLIN)
        self._endpoint.subscribe(self._wakeup.set)
        for peer in range(self._membership.rank):
            self._endpoint.open(_link_key(peer), deadline)
        self._thread = threading.Thread(target=self._run, name="atoll-control", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=partial(_after_fork, weakref.ref(self)))
        try:
            self._started.wait(max(0.0, deadline - time.monotonic()))
        except BaseException:
            self.close()
            raise
        if not self._started.is_set():
            missing = self._missing or set(range(self._membership.world_size)) - self._machine.roster.linked
            missing.discard(self._membership.rank)
            self._start_error = CollectiveTimeout(
                f"rank {self._membership.rank} waited {format_duration(time.monotonic() - began)} for "
                f"{name_ranks(missing)} of {self._membership.world_size} to link up, in vain",
                culprits=missing,
            )
        if self._start_error is not None:
            self.close()
            raise self._start_error

    def register(self, communicator_id: int, ranks: Sequence[int], wake: Callable[[], None]) -> CallLedger:
        """Make a communicator known: ``ranks[i]`` is the world rank of its rank i. ``wake`` is called (in the control
        thread) when a failure of it becomes known; give it ``Wakeup.set``. Its calls are noted in what is returned."""
        if communicator_id in self._ledgers:
            raise InternalError(f"communicator {communicator_id:x} is registered already")
        ledger = CallLedger(communicator_id, tuple(ranks))
        self._wakes[communicator_id] = wake
        self._ledgers[communicator_id] = ledger
        self._post(partial(self._machine.register, ledger))
        return ledger

    def observe(self, snapshot: Snapshot) -> None:
        """Where to learn how far a call is."""
        self._machine.snapshot = snapshot

    def unregister(self, communicator_id: int) -> None:
        """The communicator is closed; nothing more is asked of or said about it."""
        ledger = self._ledgers.pop(communicator_id, None)
        if ledger is not None:
            self._wakes.pop(communicator_id, None)
            self._post(partial(self._take_leave, ledger))

    def enter(self, call: CallDescriptor) -> None:
        """A collective begins. Under a microsecond; then look at ``failure`` once."""
        if self._ledgers[call.communicator_id].enter(call, time.monotonic()):
            self._post(partial(self._machine.entered, call.communicator_id))

    def leave(self, communicator_id: int, sequence: int) -> None:
        """It has ended. Under a microsecond."""
        ledger = self._ledgers.get(communicator_id)
        if ledger is not None:
            ledger.leave(sequence)

    def failure(self, communicator_id: int) -> AtollError | None:
        """The error that has ended this communicator, for good; None while all is well."""
        ledger = self._ledgers.get(communicator_id)
        return None if ledger is None else ledger.failure

    def waiting(self, communicator_id: int, sequence: int, waits_on: Sequence[int] = ()) -> None:
        """No progress for about 100 ms, or a header with a foreign fingerprint: compare notes with all ranks.

        ``waits_on``: the world ranks whose bytes are awaited. Returns at once; a verdict shows in ``failure`` and
        wakes.
        """
        ranks = tuple(waits_on)
        self._post(lambda now: self._machine.waiting(communicator_id, sequence, ranks, now))

    def confirm(self) -> AtollError | None:
        """Why what this process has computed must not be handed out: it was given up, or is cut off; None otherwise.

        Cheap, but once in a while (and after a while in which the process was stopped) it waits until the control
        thread has heard all that the others have said.
        """
        now = time.monotonic()
        if now - self._listened_at > self._listen_every_s and self._thread is not None:
            with self._verdict:
                self._listen_asked += 1
                asked = self._listen_asked
                self._wakeup.set()
                self._verdict.wait_for(lambda: self._listen_done >= asked or self._closed, VERDICT_S)
            self._listened_at = now
        verdict = self._machine.roster.cut_off
        return None if verdict is None else to_error(verdict)

    def expired(
        self, communicator_id: int, sequence: int, timeout_s: float, waits_on: Sequence[int] = (), progress: str = ""
    ) -> None:
        """The deadline of a collective has passed. The verdict, for all ranks, shows in ``failure`` and wakes, within
        ``VERDICT_S``; after that, or in a world of one, there is ``unexplained``. ``progress`` is words for the story,
        such as ``step 3 of 6, chunk 2``."""
        ranks = tuple(waits_on)
        self._post(lambda now: self._machine.timed_out(communicator_id, sequence, timeout_s, ranks, progress, now))

    def timed_out(
        self, communicator_id: int, sequence: int, timeout_s: float, waits_on: Sequence[int] = (), progress: str = ""
    ) -> AtollError:
        """As ``expired``, and wait for the error to raise.

        Blocks for at most about a second to learn who entered and who never came. Usually ``CollectiveTimeout``; a
        ``CollectiveMismatch`` or ``PeerLost`` where that is what happened.
        """
        ledger = self._ledgers.get(communicator_id)
        if ledger is not None and self._thread is not None:
            self.expired(communicator_id, sequence, timeout_s, waits_on, progress)
            with self._verdict:
                self._verdict.wait_for(lambda: ledger.failure is not None, VERDICT_S)
            if ledger.failure is not None:
                return ledger.failure
        return self.unexplained(communicator_id, sequence, timeout_s, waits_on)

    def unexplained(
        self, communicator_id: int, sequence: int, timeout_s: float, waits_on: Sequence[int]
    ) -> CollectiveTimeout:
        """The error of a deadline that has passed without a verdict."""
        ledger = self._ledgers.get(communicator_id)
        call = None if ledger is None else ledger.look_up(sequence)[1]
        what = "a collective" if call is None else call.describe()
        return CollectiveTimeout(
            f"{what}, call {sequence} of communicator {communicator_id:x}, did not end within "
            f"{format_duration(timeout_s)}; nothing is known of the other ranks",
            culprits=waits_on,
        )

    def agree(
        self, key: Key, members: Sequence[int], value: int, taken: Iterable[int], timeout_s: float, expel: bool = False
    ) -> Ballot:
        """Take part in agreement ``key`` among ``members`` and wait for what is decided.

        Raises ``CollectiveTimeout`` naming the members that did not come within ``timeout_s``, and ``PeerLost`` where
        this rank is not among those that go on. With ``expel`` those that did not come are given up instead, if more
        than half of the living members have come.
        """
        roster = self._machine.roster
        members, taken = tuple(members), tuple(taken)
        self._ask_roster(lambda now: roster.propose(key, members, value, taken, now))

        def decision() -> Ballot | None:
            agreement = roster.council.look_up(key)
            return None if agreement is None else agreement.decision

        def over() -> bool:
            return decision() is not None or roster.cut_off is not None or self._closed

        with self._verdict:
            self._verdict.wait_for(over, timeout_s)
            if expel and not over():
                reason = f"it did not come to an agreement on who is left within {format_duration(timeout_s)}"
                self._ask_roster(lambda _: roster.expel(key, reason))
                self._verdict.wait_for(over, VERDICT_S)
        decided, error = decision(), self.confirm()
        if error is not None:
            raise error
        if decided is None:
            agreement = roster.council.look_up(key)
            missing = () if agreement is None else agreement.missing
            self._ask_roster(lambda _: roster.council.withdraw(key))
            names = [f"rank {rank}" if rank not in members else f"rank {members.index(rank)}" for rank in missing]
            raise CollectiveTimeout(
                f"an agreement of communicator {key[0]:x} did not end within {format_duration(timeout_s)}: "
                f"{', '.join(names) or 'nobody'} never came",
                culprits=missing,
            )
        if self._membership.rank in decided.lost:
            raise PeerLost(
                f"rank {self._membership.rank} was given up by the others, who go on without it",
                culprits=(self._membership.rank,),
            )
        return decided

    def enlist(self, spares: Iterable[int], call: Enlist) -> None:
        """Tell ``spares`` who of them is called."""
        chosen = tuple(spares)
        self._ask_roster(lambda _: self._machine.roster.enlist(chosen, call))

    def wait_enlisted(self, actives: Iterable[int], seen: int) -> Enlist | None:
        """As a spare, wait for a call of a later generation than ``seen`` that takes this rank in; None once all
        that might call are gone. ``actives`` are the ranks that work at first."""
        roster, mine = self._machine.roster, self._membership.rank
        first = frozenset(actives)

        def over() -> bool:
            working = first if roster.enlisted is None else frozenset(roster.enlisted.ranks)
            return all(rank == mine or roster.is_gone(rank) for rank in working)

        def called() -> bool:
            call = roster.enlisted
            return call is not None and call.generation > seen and mine in call.ranks

        with self._verdict:
            self._verdict.wait_for(lambda: called() or over() or roster.cut_off is not None or self._closed)
        error = self.confirm()
        if error is not None:
            raise error
        return roster.enlisted if called() else None

    def arrivals(self, communicator_id: int, calls: int, timeout_s: float) -> dict[int, dict[int, float]]:
        """When the ranks of a communicator made their latest ``calls`` calls: by world rank, then by sequence number,
        in seconds of this rank's clock. Ranks that do not answer within ``timeout_s`` are not in it."""
        ledger, machine, membership = self._ledgers[communicator_id], self._machine, self._membership
        others = [rank for rank in ledger.ranks if rank != membership.rank]
        first, times = ledger.arrivals(ledger.entered - calls)
        found = {membership.rank: dict(enumerate(times, first))}
        if not others:
            return found
        with self._surveys:
            surveyed: dict[int, Surveyed] = {}

            def ask(now: float) -> None:
                nonlocal surveyed
                surveyed = machine.survey.begin(communicator_id, calls, now)

            self._ask_roster(ask)
            with self._verdict:
                self._verdict.wait_for(
                    lambda: all(rank in surveyed or machine.roster.is_gone(rank) for rank in others) or self._closed,
                    timeout_s,
                )
        here = membership.peers[membership.rank].host.boot_id
        for rank, (answer, ahead_s) in list(surveyed.items()):
            # On one kernel the monotonic clock is the same for all.
            shift_s = 0.0 if membership.peers[rank].host.boot_id == here else ahead_s
            found[rank] = {answer.first + place: at - shift_s for place, at in enumerate(answer.times)}
        return found

    def joined(self, call: Enlist) -> None:
        """This spare works now, and follows no other call."""
        self._ask_roster(lambda _: self._machine.roster.joined(call))

    def disconnected(self, communicator_id: int, peer: int, reason: str) -> None:
        """A data connection with ``peer`` ended in the middle. Then wait for ``failure``: it comes within a second and
        tells whether the process died, left, or only its connection was cut."""
        self._post(lambda now: self._machine.disconnected(communicator_id, peer, reason, now))

    def abandon(self, communicator_id: int, sequence: int, reason: str) -> None:
        """This rank gives up a collective that the others are in (an exception, Ctrl-C): tell them so that they raise
        ``PeerLost`` naming this rank."""
        self._post(lambda now: self._machine.abandon(communicator_id, sequence, reason, now))

    def close(self) -> None:
        """Say goodbye, end the thread, close the links and the endpoint. Called by ``atexit`` if not before."""
        if self._closed:
            return
        self._closed = True
        self._closing = True
        self._wakeup.set()
        if self._thread is not None:
            self._thread.join(GOODBYE_S + VERDICT_S)
            atexit.unregister(self.close)
        self._endpoint.close()
        self._epoll.close()
        if self._reporter is not None:
            self._reporter.close()

    def _take_leave(self, ledger: CallLedger, _: float) -> list[Instruction]:
        if self._reporter is not None:
            self._reporter.tell(ledger)
        return self._machine.unregister(ledger.communicator_id)

    def _ask_roster(self, ask: Callable[[float], None]) -> None:
        def command(now: float) -> list[Instruction]:
            ask(now)
            return self._machine.taken()

        self._post(command)

    def _post(self, command: Command) -> None:
        self._commands.append(command)
        if self._thread is None:
            # A world of one: nobody to tell, and nothing to wait for.
            self._take_commands()
        elif not self._closed:
            self._wakeup.set()

    # The thread. Everything below runs in it alone.

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
            self._say_goodbye()
        except BaseException as error:
            LOG.exception("rank %d: the control thread has failed", self._membership.rank)
            self._fail_all(InternalError(f"the control thread has failed: {type(error).__name__}: {error}"))
        finally:
            self._endpoint.unsubscribe(self._wakeup.set)
            for link in (*self._links.values(), *self._parted):
                link.close()
            self._started.set()

    def _turn(self, until: float | None = None) -> None:
        """Sleep until something happens, then deal with all of it at once: see ``ControlMachine.heard``."""
        messages: list[tuple[int, ControlMessage]] = []
        asked = self._listen_asked
        for fd, _ in self._epoll.poll(self._sleep_s(until)):
            if fd == self._wakeup.fileno():
                self._wakeup.clear()
            elif fd in self._links_by_fd:
                link = self._links_by_fd[fd]
                messages += [(link.peer, message) for message in link.receive()]
                self._flush(link)
        self._endpoint.pump()
        if self._missing:
            self._collect_links()
        ended = self._drop_ended_links()
        if messages or ended:
            self._carry_out(self._machine.heard(messages, ended, time.monotonic()))
        self._take_commands()
        self._carry_out(self._machine.tick(time.monotonic()))
        if self._reporter is not None:
            self._reporter.report(list(self._ledgers.values()), time.monotonic())
        if asked != self._listen_done:
            with self._verdict:
                self._listen_done = asked
                self._verdict.notify_all()
        if self._starting:
            self._check_start()

    def _sleep_s(self, until: float | None = None) -> float | None:
        if self._commands or self._ended or self._listen_asked != self._listen_done:
            return 0.0
        report_at = None if self._reporter is None else self._reporter.next_at
        deadlines = (until, self._machine.next_deadline(), self._endpoint.next_deadline(), report_at)
        soonest = min((deadline for deadline in deadlines if deadline is not None), default=None)
        # epoll refuses more than 24 days; a look around once a day costs nothing.
        return None if soonest is None else min(max(0.0, soonest - time.monotonic()), _DAY_S)

    def _flush(self, link: ControlLink) -> None:
        link.flush()
        if link.ended:
            self._ended.append(link)
        elif link.wants_write != link.watched_for_write:
            link.watched_for_write = link.wants_write
            self._epoll.modify(link.sock, select.EPOLLIN | (select.EPOLLOUT if link.wants_write else 0))

    def _drop_ended_links(self) -> dict[int, str]:
        ended: dict[int, str] = {}
        for link in self._ended:
            if self._links.get(link.peer) is link:
                self._unlink(link)
                link.close()
                if not link.cut:
                    ended[link.peer] = link.ended
        self._ended.clear()
        return ended

    def _unlink(self, link: ControlLink) -> None:
        self._epoll.unregister(link.sock)
        del self._links_by_fd[link.sock.fileno()]
        del self._links[link.peer]

    def _take_commands(self) -> None:
        while self._commands:
            self._carry_out(self._commands.popleft()(time.monotonic()))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        touched: dict[int, ControlLink] = {}
        for instruction in instructions:
            if isinstance(instruction, Send):
                link = self._links.get(instruction.peer)
                if link is not None:
                    link.queue(instruction.message)
                    touched[instruction.peer] = link
            elif isinstance(instruction, Part):
                link = self._links.get(instruction.peer)
                if link is not None:
                    link.flush()
                    self._unlink(link)
                    link.part()
                    touched.pop(instruction.peer, None)
                    self._parted.append(link)
            elif isinstance(instruction, Notify):
                with self._verdict:
                    self._verdict.notify_all()
            elif isinstance(instruction, Examine):
                found = look_at(
                    self._membership.peers[instruction.peer], self._membership.peers[self._membership.rank].host
                )
                self._machine.roster.examined(instruction.peer, found.conclusive, found.words)
                self._carry_out(self._machine.taken())
            else:
                with self._verdict:
                    self._verdict.notify_all()
                wake = self._wakes.get(instruction.communicator_id)
                if wake is not None:
                    wake()
        for link in touched.values():
            self._flush(link)

    def _collect_links(self) -> None:
        for peer in sorted(self._missing):
            try:
                connection = self._endpoint.take_connection(_link_key(peer))
            except PeerLost as error:
                if self._starting:
                    self._end_start(error)
                continue
            if connection is not None:
                link = ControlLink(peer, connection)
                self._links[peer] = self._links_by_fd[connection.sock.fileno()] = link
                self._epoll.register(connection.sock, select.EPOLLIN)
                self._missing.discard(peer)
        if not self._missing:
            self._carry_out([Send(peer, Linked()) for peer in self._links])

    def _check_start(self) -> None:
        """Whether all are linked up; or whether that will never be, since a rank has gone away again."""
        linked = self._machine.roster.linked
        if not self._missing and len(linked) == self._membership.world_size - 1:
            self._end_start(None)
            return
        gone = (set(self._machine.roster.lost) or set(self._machine.roster.left)) - linked
        if gone:
            reasons = "; ".join(dict.fromkeys(self._machine.roster.lost.values())) or "it left on purpose"
            self._end_start(
                PeerLost(f"{name_ranks(gone)} went away before all ranks were linked up: {reasons}", culprits=gone)
            )

    def _end_start(self, error: AtollError | None) -> None:
        self._starting = False
        self._start_error = error
        self._started.set()

    def _say_goodbye(self) -> None:
        until = time.monotonic() + GOODBYE_S
        blamed = self._start_error.culprits if isinstance(self._start_error, WorldError) else ()
        if self._start_error is not None:
            # Those that are still linking up are to learn because of whom this rank gives up, or they would blame it.
            self._wakeup.clear()
            while (
                self._missing - {*blamed, *self._machine.roster.lost, *self._machine.roster.left}
                and time.monotonic() < until
            ):
                self._turn(until)
        self._take_commands()
        self._carry_out(self._machine.goodbye(blamed))
        while any(link.wants_write for link in self._links.values()) and time.monotonic() < until:
            for fd, _ in self._epoll.poll(max(0.0, until - time.monotonic())):
                if fd in self._links_by_fd:
                    self._links_by_fd[fd].receive()
                    self._flush(self._links_by_fd[fd])
            self._drop_ended_links()

    def _fail_all(self, error: AtollError) -> None:
        for identity, ledger in list(self._ledgers.items()):
            ledger.failure = ledger.failure or error
            wake = self._wakes.get(identity)
            if wake is not None:
                wake()
        with self._verdict:
            self._verdict.notify_all()
        self._start_error = self._start_error or error

    def _abandon_in_child(self) -> None:
        """In a forked child: let go of everything without a word to anyone."""
        atexit.unregister(self.close)
        error = SpecError("this process was forked from a rank and is none itself: join again, or use subprocesses")
        for ledger in self._ledgers.values():
            ledger.failure = error
        for link in (*self._links.values(), *self._parted):
            link.close()
        self._closed = True
        self._endpoint.abandon_in_child()
        self._epoll.close()


def _after_fork(reference: weakref.ref[Control]) -> None:
    control = reference()
    if control is not None:
        control._abandon_in_child()


def _link_key(peer: int) -> ConnectionKey:
    return ConnectionKey(0, peer, 0, Purpose.CONTROL)
