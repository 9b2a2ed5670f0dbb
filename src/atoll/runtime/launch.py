"""Start N ranks of one command on this host, see them through, and leave nothing behind.

Every rank gets its place in the world by ATOLL_RANK and friends (``environment``), a rendezvous that cannot collide
with anything (an abstract Unix socket with a random name) and a fresh ATOLL_SECRET. It has no standard input; its
output comes through the launcher line by line, so that lines of different ranks never mix, with ``[rank]`` in front if
asked for.

When a rank fails, the others learn it from each other (their collectives raise ``PeerLost``) and have ``grace_s`` to
say what they have to say. What still runs then gets SIGTERM, and SIGKILL after as long again. The first failure
is the job's: its exit status becomes the launcher's.

A job that goes on without some of its ranks (``recovery``) says how many failures it tolerates; spares are ranks behind
the last that wait in ``atoll.init``, and as many failures are tolerated as there are spares. Only one failure more ends
the job. A rank that is stopped when all others have ended is killed after the grace.

Each rank leads a session of its own, whose process group is ended at the end with whatever the rank left in it. Should
the launcher itself be killed, the kernel ends the ranks (PR_SET_PDEATHSIG, prctl(2)) and the guardian their groups.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, BinaryIO, Final, Protocol

from atoll.errors import SpecError
from atoll.runtime.autopsy import state_of
from atoll.runtime.descriptor import name_ranks
from atoll.runtime.join import MAX_WORLD_SIZE
from atoll.runtime.watch import MAX_DATAGRAM_BYTES, REPORT_EVERY_S, VARIABLE, Board, Row
from atoll.units import format_duration

# How long ranks that have lost another one may take to report and end; the control plane tells them in milliseconds.
DEFAULT_GRACE_S: Final = 5.0
# After all ranks have ended: for output that is still on its way from processes they have left behind.
LAST_WORDS_S: Final = 0.5
# A line that does not end is passed on in pieces of this size.
MAX_LINE_BYTES: Final = 65536
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended: ``status`` as ``subprocess`` has it (negative: a signal)."""

    rank: int
    status: int
    after_s: float
    ended_by_launcher: bool

    def describe(self) -> str:
        """``exit status 3``, ``killed by SIGKILL (signal 9)``."""
        if self.status >= 0:
            return f"exit status {self.status}"
        try:
            return f"killed by {signal.Signals(-self.status).name} (signal {-self.status})"
        except ValueError:
            return f"killed by signal {-self.status}"


@dataclass(frozen=True)
class LaunchResult:
    """How a job ended: the rank that failed ``first``, None when none did or the job went on without those that did,
    which are ``tolerated``; the signal to the launcher, 0 for none."""

    ends: tuple[RankEnd, ...]
    first: RankEnd | None
    signalled: int
    tolerated: tuple[RankEnd, ...] = ()

    @property
    def exit_status(self) -> int:
        """What a shell expects: 128 + n for a signal, else the first failure's own."""
        if self.signalled:
            return 128 + self.signalled
        if self.first is None:
            return 0
        return self.first.status if self.first.status > 0 else 128 - self.first.status

    def summary(self) -> str:
        """What went wrong, in a few lines; empty when nothing did."""
        if self.first is None:
            lines = [f"stopped by {signal.Signals(self.signalled).name}"] if self.signalled else []
            lines += [
                f"rank {end.rank} was lost after {format_duration(round(end.after_s, 2))} ({end.describe()}); "
                "the job went on"
                for end in self.tolerated
            ]
            return "\n".join(lines)
        first = self.first
        lines = [f"rank {first.rank} failed first: {first.describe()} after {format_duration(round(first.after_s, 2))}"]
        if self.signalled:
            lines.insert(0, f"stopped by {signal.Signals(self.signalled).name}")
        groups: dict[str, list[int]] = {}
        for end in self.ends:
            if end.rank != first.rank:
                told = ", ended by the launcher" if end.ended_by_launcher else ""
                groups.setdefault(f"{end.describe()}{told}", []).append(end.rank)
        lines += [f"{name_ranks(ranks)}: {how}" for how, ranks in groups.items()]
        return "\n".join(lines)


def launch(
    command: Sequence[str],
    world_size: int,
    *,
    environ: Mapping[str, str],
    stdout: BinaryIO,
    stderr: BinaryIO,
    prefix: bool = False,
    grace_s: float = DEFAULT_GRACE_S,
    entrance: Sequence[str] = (),
    spares: int = 0,
    tolerate: int | None = None,
    watch: Display | None = None,
) -> LaunchResult:
    """Run ``world_size`` processes of ``command``, and as many ``spares``, and return when all have ended.

    ``tolerate`` failed ranks do not end the job; by default as many as there are spares. ``watch`` is shown what the
    ranks are doing and who comes late.

    ``entrance`` is a command that each rank is started through: it gets the rank's own as arguments, puts the process
    in its place (an emulated node) and becomes it.

    Signals that ask the launcher to end are passed on to the ranks while this runs (in the main thread); a second one
    kills them. ``SpecError`` for an impossible size or a command that cannot be started.
    """
    if not 1 <= world_size <= MAX_WORLD_SIZE:
        raise SpecError(f"-n: expected 1 to {MAX_WORLD_SIZE} ranks, got {world_size}")
    if not grace_s >= 0:
        raise SpecError(f"grace: expected 0 seconds or more, got {grace_s}")
    if not 0 <= spares <= MAX_WORLD_SIZE - world_size:
        raise SpecError(f"--spares: expected 0 to {MAX_WORLD_SIZE - world_size}, got {spares}")
    if tolerate is not None and tolerate < 0:
        raise SpecError(f"--tolerate: expected 0 or more, got {tolerate}")
    limit = spares if tolerate is None else tolerate
    return _Job(
        [*entrance, *command], world_size, environ, (stdout, stderr), prefix, grace_s, spares, limit, watch
    ).run()


def rank_environ(environ: Mapping[str, str], world_size: int, spares: int = 0) -> dict[str, str]:
    """The variables that all ranks of a new world on this host share."""
    shared = dict(environ)
    shared["ATOLL_WORLD_SIZE"] = shared["ATOLL_LOCAL_WORLD_SIZE"] = str(world_size)
    if spares:
        shared["ATOLL_SPARES"] = str(spares)
    shared["ATOLL_RENDEZVOUS"] = f"unix:@atoll-{secrets.token_hex(16)}"
    shared["ATOLL_SECRET"] = secrets.token_hex(32)
    # Without it Python keeps output back until there are 8 KiB, since a pipe is no terminal.
    shared.setdefault("PYTHONUNBUFFERED", "1")
    if world_size > 1:
        # Each rank's numerical libraries would otherwise start a thread for every core.
        cores = len(os.sched_getaffinity(0))
        shared.setdefault("OMP_NUM_THREADS", str(max(1, cores // world_size)))
    return shared


class _Rank:
    """One rank's process."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        self.rank = rank
        self.process = process
        self.pidfd = os.pidfd_open(process.pid)
        self.end: RankEnd | None = None
        self.told_to_end = False

    def signal_group(self, number: int) -> None:
        """Signal the rank and all of its process group. It is reaped last, so that the number stays its own."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)
        if self.end is None and os.getpgid(self.process.pid) != self.process.pid:
            os.kill(self.process.pid, number)


class _Output:
    """One stream of one rank, passed on in whole lines."""

    def __init__(
        self, source: IO[bytes], target: BinaryIO, prefix: bytes, make_way: Callable[[], None] | None = None
    ) -> None:
        """``make_way`` is called before anything is written."""
        self.source = source
        self._make_way = make_way
        self._target = target
        self._prefix = prefix
        self._pending = bytearray()
        os.set_blocking(source.fileno(), False)

    def pump(self) -> bool:
        """Pass on what has come; False at the end of the stream."""
        try:
            data = os.read(self.source.fileno(), MAX_LINE_BYTES)
        except BlockingIOError:
            return True
        self._pending += data
        end = self._pending.rfind(b"\n") + 1
        if not data or len(self._pending) - end > MAX_LINE_BYTES:
            end = len(self._pending)
        self._write(bytes(self._pending[:end]))
        del self._pending[:end]
        return bool(data)

    def _write(self, text: bytes) -> None:
        if not text:
            return
        if self._prefix:
            text = b"".join(self._prefix + line for line in text.splitlines(keepends=True))
            text += b"" if text.endswith(b"\n") else b"\n"
        if self._make_way is not None:
            self._make_way()
        self._target.write(text)
        self._target.flush()


class Display(Protocol):
    """What shows the ranks: ``cli.watch_table``."""

    def update(self, rows: Sequence[Row]) -> None:
        """Show ``rows`` instead of what was shown before."""

    def clear(self) -> None:
        """Make way for other output."""

    def close(self, rows: Sequence[Row]) -> None:
        """Show the last state."""


class _Watch:
    """The launcher's end of what the ranks report to: they have ``theirs``."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ours.setblocking(False)
        self.draw_at = time.monotonic() + REPORT_EVERY_S
        self._board = Board()

    def pump(self) -> None:
        """Read all reports that have come."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._board.heard(self.ours.recv(MAX_DATAGRAM_BYTES), time.monotonic())

    def draw(self, now: float) -> None:
        """Show the ranks, when it is time."""
        if now >= self.draw_at:
            self.draw_at = now + REPORT_EVERY_S
            self.display.update(self._board.rows(now))

    def close(self) -> None:
        """Show the end, and close."""
        self.pump()
        self.display.close(self._board.rows(time.monotonic()))
        self.ours.close()
        self.theirs.close()


class _Job:
    def __init__(
        self,
        command: Sequence[str],
        world_size: int,
        environ: Mapping[str, str],
        targets: tuple[BinaryIO, BinaryIO],
        prefix: bool,
        grace_s: float,
        spares: int,
        tolerate: int,
        watch: Display | None,
    ) -> None:
        self._command = list(command)
        self._environ = rank_environ(environ, world_size, spares)
        self._processes = world_size + spares
        self._tolerate = tolerate
        self._watch = None if watch is None else _Watch(watch)
        if self._watch is not None:
            self._environ[VARIABLE] = str(self._watch.theirs.fileno())
        self._failed: list[RankEnd] = []  # in the order in which they failed
        self._targets = targets
        self._prefix = prefix
        self._grace_s = grace_s
        self._selector = selectors.DefaultSelector()
        self._ranks: list[_Rank] = []
        self._outputs: set[_Output] = set()
        self._began = time.monotonic()
        self._first: RankEnd | None = None
        self._signals: list[int] = []
        self._escalate_at: float | None = None
        self._next_signal = signal.SIGTERM
        if self._watch is not None:
            self._selector.register(self._watch.ours, selectors.EVENT_READ, self._watch)

    def run(self) -> LaunchResult:
        guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guardian.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert guardian.stdin is not None
        with guardian, self._catch_signals():
            try:
                self._start_all(guardian.stdin)
                while any(rank.end is None for rank in self._ranks):
                    self._turn()
                self._last_words()
            finally:
                self._clean_up()
                with contextlib.suppress(BrokenPipeError):
                    guardian.stdin.write(b"done\n")
                    guardian.stdin.close()
        ends = tuple(rank.end for rank in self._ranks if rank.end is not None)
        tolerated = () if self._first is not None else tuple(self._failed)
        return LaunchResult(ends, self._first, self._signals[0] if self._signals else 0, tolerated)

    def _start_all(self, guardian: IO[bytes]) -> None:
        die_with_launcher = _die_with_launcher()
        for number in range(self._processes):
            environ = {**self._environ, "ATOLL_RANK": str(number), "ATOLL_LOCAL_RANK": str(number)}
            try:
                process = subprocess.Popen(
                    self._command,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    preexec_fn=die_with_launcher,
                    pass_fds=() if self._watch is None else (self._watch.theirs.fileno(),),
                )
            except OSError as error:
                raise SpecError(f"cannot start {self._command[0]!r}: {error.strerror}") from None
            rank = _Rank(number, process)
            self._ranks.append(rank)
            guardian.write(b"%d\n" % process.pid)
            guardian.flush()
            self._selector.register(rank.pidfd, selectors.EVENT_READ, rank)
            prefix = b"[%d] " % number if self._prefix else b""
            for source, target in zip((process.stdout, process.stderr), self._targets, strict=True):
                assert source is not None
                output = _Output(source, target, prefix, None if self._watch is None else self._watch.display.clear)
                self._outputs.add(output)
                self._selector.register(source, selectors.EVENT_READ, output)

    def _turn(self) -> None:
        draw_at = None if self._watch is None else self._watch.draw_at
        due = [at for at in (self._escalate_at, draw_at) if at is not None]
        ended: list[_Rank] = []
        for key, _ in self._selector.select(max(0.0, min(due) - time.monotonic()) if due else None):
            if isinstance(key.data, _Output):
                self._pump(key.data)
            elif isinstance(key.data, _Watch):
                key.data.pump()
            elif isinstance(key.data, _Rank):
                ended.append(key.data)
            else:
                os.read(key.fd, 4096)
        self._note_ends(ended)
        if self._escalate_at is not None and time.monotonic() >= self._escalate_at:
            self._escalate()
        if self._watch is not None:
            self._watch.draw(time.monotonic())

    def _pump(self, output: _Output) -> None:
        if not output.pump():
            self._selector.unregister(output.source)
            output.source.close()
            self._outputs.discard(output)

    def _note_ends(self, ended: Sequence[_Rank]) -> None:
        for rank in ended:
            # Look without reaping: the process number must stay taken until its group is ended.
            info = os.waitid(os.P_PID, rank.process.pid, os.WEXITED | os.WNOWAIT)
            assert info is not None
            status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
            self._selector.unregister(rank.pidfd)
            os.close(rank.pidfd)
            rank.end = RankEnd(rank.rank, status, time.monotonic() - self._began, rank.told_to_end)
        failed = [rank.end for rank in ended if rank.end is not None and rank.end.status != 0]
        if failed and self._first is None and not self._signals:
            # Of those seen at once, one that was killed came first: the others report it and exit.
            self._failed += sorted(failed, key=lambda end: (end.status > 0, end.rank))
            if len(self._failed) > self._tolerate:
                self._first = self._failed[0]
                self._escalate_at = time.monotonic() + self._grace_s
        running = [rank for rank in self._ranks if rank.end is None]
        if (
            ended
            and running
            and self._escalate_at is None
            and all(state_of(rank.process.pid) == "T" for rank in running)
        ):
            # Nobody waits for these, and nobody will wake them.
            self._next_signal = signal.SIGKILL
            self._escalate_at = time.monotonic() + self._grace_s

    def _escalate(self) -> None:
        """The grace is over: ask what still runs to end, then make it."""
        for rank in self._ranks:
            if rank.end is None:
                rank.told_to_end = True
                rank.signal_group(self._next_signal)
        self._escalate_at = time.monotonic() + self._grace_s
        self._next_signal = signal.SIGKILL

    def _last_words(self) -> None:
        until = time.monotonic() + LAST_WORDS_S
        while self._outputs and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if isinstance(key.data, _Output):
                    self._pump(key.data)
                elif isinstance(key.data, _Watch):
                    key.data.pump()
                else:
                    os.read(key.fd, 4096)

    def _clean_up(self) -> None:
        for rank in self._ranks:
            rank.signal_group(signal.SIGKILL)
        for rank in self._ranks:
            rank.process.wait()
            if rank.end is None:
                os.close(rank.pidfd)
        for output in self._outputs:
            output.source.close()
        self._selector.close()
        if self._watch is not None:
            self._watch.close()

    @contextlib.contextmanager
    def _catch_signals(self) -> Any:
        """Pass signals on to the ranks; a second one kills them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

        def pass_on(number: int, _: FrameType | None) -> None:
            self._signals.append(number)
            for rank in self._ranks:
                if rank.end is None:
                    rank.told_to_end = True
                    rank.signal_group(number if len(self._signals) == 1 else signal.SIGKILL)
            self._escalate_at = time.monotonic() + self._grace_s
            self._next_signal = signal.SIGKILL

        # The wake-up descriptor makes the selector return when a signal comes.
        self._selector.register(reading, selectors.EVENT_READ)
        previous_fd = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        previous = {number: signal.signal(number, pass_on) for number in _FORWARDED}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(previous_fd)
            os.close(reading)
            os.close(writing)


def _die_with_launcher() -> Callable[[], None]:
    """What a new process runs before the command: the kernel is to kill it when the launcher is gone."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    launcher = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != launcher:
            os._exit(1)

    return prepare
