"""N processes on this host, joined by TCP: started, watched, and gone again on every path.

``rank``      a forked process that runs ``body(place)``; ``place`` is what it knows of the world
``link``      one connection per ordered pair of ranks: bytes from a to b have their own socket. In a world of one the
              right neighbour is the rank itself, so a ring of one has its link too
``line``      a pipe from each rank to the parent: barriers, reports, the result, or what went wrong
``deadline``  nothing here waits without one: it is how long all ranks together may be silent. When it passes, every
              rank is asked where it stands (a signal makes ``faulthandler`` write its stack), and the error says so

The parent opens every listening socket before it forks, so a rank can connect to any other at once, in any order: the
kernel completes the connection before the other one accepts. A newcomer proves with a random token that it belongs.
Ranks are killed when the parent leaves ``run_world``, however it leaves; when the parent is killed, the kernel ends
them.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import hmac
import multiprocessing
import os
import re
import secrets
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h
JOIN_TIMEOUT_S = 20.0
HELLO_TIMEOUT_S = 2.0
# How long to wait for the cause when so far only ranks have complained that a neighbour is gone.
CAUSE_GRACE_S = 0.5
STACKS_TIMEOUT_S = 2.0
STATE_SAMPLES, STATE_INTERVAL_S = 5, 0.01
FRAME = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)')


class CountingSocket(socket.socket):
    """A socket that counts the bytes which really pass it."""

    sent_bytes = 0
    received_bytes = 0

    def send(self, *args: Any) -> int:
        count = super().send(*args)
        self.sent_bytes += count
        return count

    def sendall(self, data: Any, *args: Any) -> None:
        # Not by socket.sendall: when that fails, nobody can say how much had gone.
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[self.send(rest, *args) :]

    def sendmsg(self, *args: Any) -> int:
        count = super().sendmsg(*args)
        self.sent_bytes += count
        return count

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        self.received_bytes += 0 if flags & socket.MSG_PEEK else len(data)
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        count = super().recv_into(buffer, nbytes, flags)
        self.received_bytes += 0 if flags & socket.MSG_PEEK else count
        return count


@dataclass(frozen=True)
class Frame:
    """One line of a stack: where a rank stood."""

    file: str
    line: int
    function: str


class WorldError(Exception):
    """The world did not end well; ``rank`` is the one it began with."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class RankRaised(WorldError):
    """A rank's body raised: ``kind`` is the exception's class name, ``frames`` innermost last."""

    def __init__(self, rank: int, kind: str, text: str, frames: Sequence[Frame], is_connection: bool) -> None:
        super().__init__(rank, f"rank {rank} raised {kind}: {text}" if text else f"rank {rank} raised {kind}")
        self.kind = kind
        self.text = text
        self.frames = tuple(frames)
        self.is_connection = is_connection


class RankDied(WorldError):
    """A rank's process ended without a word."""

    def __init__(self, rank: int, exitcode: int | None) -> None:
        how = f"exit status {exitcode}"
        if exitcode is not None and exitcode < 0:
            how = f"signal {-exitcode}, {signal.strsignal(-exitcode)}"
        super().__init__(rank, f"the process of rank {rank} ended without a result ({how})")


class Stuck(WorldError):
    """The deadline passed. ``stacks[rank]`` of those not done, innermost last (empty: no answer); ``waiting`` had come
    to a barrier; ``running`` were not asleep: they compute, or loop without end."""

    def __init__(
        self, deadline_s: float, stacks: dict[int, tuple[Frame, ...]], waiting: Sequence[int], running: Sequence[int]
    ) -> None:
        stuck = sorted(rank for rank in stacks if rank not in waiting)
        super().__init__(stuck[0] if stuck else 0, f"not done after {deadline_s:g} s: ranks {stuck} had not finished")
        self.deadline_s = deadline_s
        self.stacks = stacks
        self.waiting = tuple(waiting)
        self.running = tuple(running)


@dataclass
class Place:
    """A rank's view of the world: its links to and from every other rank, and its line to the parent."""

    rank: int
    world_size: int
    line: Connection
    outgoing: dict[int, CountingSocket] = field(default_factory=dict)
    incoming: dict[int, CountingSocket] = field(default_factory=dict)

    @property
    def right(self) -> CountingSocket:
        return self.outgoing[(self.rank + 1) % self.world_size]

    @property
    def left(self) -> CountingSocket:
        return self.incoming[(self.rank - 1) % self.world_size]

    def passed(self) -> tuple[int, int]:
        """Bytes sent and received so far, over all links, in either direction."""
        links = (*self.outgoing.values(), *self.incoming.values())
        return sum(link.sent_bytes for link in links), sum(link.received_bytes for link in links)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self.line.send(("barrier", None))
        self.line.recv()

    def report(self, value: Any) -> None:
        """Hand ``value`` to the parent's ``on_report``."""
        self.line.send(("report", value))


Body = Callable[[Place], Any]


def run_world(
    world_size: int,
    body: Body,
    *,
    deadline_s: float,
    buffer_bytes: int | None = None,
    on_report: Callable[[int, Any], None] = lambda rank, value: None,
) -> list[Any]:
    """Run ``body`` in ``world_size`` forked processes; returns what each returned, by rank.

    ``deadline_s`` counts anew with each barrier, report or result that a rank comes to.
    ``buffer_bytes`` makes the kernel's socket buffers that small (the kernel doubles it), instead of growing on demand.
    Raises ``RankRaised``, ``RankDied`` or ``Stuck``; no process and no socket is left in any case.
    """
    token = secrets.token_bytes(16)
    listeners: list[socket.socket] = []
    ranks: list[_Rank] = []
    sys.stdout.flush()  # or each child would print what is still in the buffer
    sys.stderr.flush()
    try:
        for _ in range(world_size):
            listener = socket.create_server(("127.0.0.1", 0), backlog=2 * world_size)
            listeners.append(listener)
            if buffer_bytes is not None:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        for rank in range(world_size):
            started = _start(rank, listeners, token, body, buffer_bytes)
            ranks.append(started)
        for listener in listeners:
            listener.close()
        return _watch(ranks, deadline_s, on_report)
    finally:
        for listener in listeners:
            listener.close()
        for started in ranks:
            started.process.kill()
        for started in ranks:
            started.process.join()
            started.process.close()
            started.line.close()
            os.close(started.stack)


# -- the parent ----------------------------------------------------------------------------------------------------


@dataclass
class _Rank:
    rank: int
    process: BaseProcess
    line: Connection
    stack: int  # where its stack can be read from once it was asked for


def _start(rank: int, listeners: Sequence[socket.socket], token: bytes, body: Body, buffer_bytes: int | None) -> _Rank:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    stack_read, stack_write = os.pipe()
    process = context.Process(
        target=_run_rank,
        args=(rank, listeners, token, body, buffer_bytes, there, stack_write, os.getpid()),
        daemon=True,
    )
    try:
        process.start()
    finally:
        there.close()
        os.close(stack_write)
    return _Rank(rank, process, here, stack_read)


def _watch(ranks: Sequence[_Rank], deadline_s: float, on_report: Callable[[int, Any], None]) -> list[Any]:
    deadline = time.monotonic() + deadline_s
    results: dict[int, Any] = {}
    waiting: set[int] = set()
    failures: list[WorldError] = []
    silent: set[int] = set()
    while len(results) < len(ranks):
        lines = {id(rank.line): rank for rank in ranks if rank.rank not in results and rank.rank not in silent}
        ready = wait([rank.line for rank in lines.values()], timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            if failures:
                raise failures[0]
            running = _running(ranks)
            raise Stuck(deadline_s, _stacks(ranks, results), sorted(waiting), running)
        for line in ready:
            rank = lines[id(line)]
            if not failures:
                deadline = time.monotonic() + deadline_s
            try:
                kind, value = rank.line.recv()
            except (EOFError, ConnectionResetError):
                rank.process.join(timeout=1.0)
                kind, value = "died", rank.process.exitcode
            if kind == "barrier":
                waiting.add(rank.rank)
            elif kind == "report":
                on_report(rank.rank, value)
            elif kind == "done":
                results[rank.rank] = value
            else:
                silent.add(rank.rank)
                failures.append(RankRaised(*value) if kind == "raised" else RankDied(rank.rank, value))
        # A rank that goes takes its neighbours with it. Their complaints may be heard first, but are not the cause.
        causes = [failure for failure in failures if not (isinstance(failure, RankRaised) and failure.is_connection)]
        if causes:
            raise causes[0]
        if len(silent) + len(results) == len(ranks) and failures:
            raise failures[0]
        if failures:
            deadline = min(deadline, time.monotonic() + CAUSE_GRACE_S)
        if len(waiting) == len(ranks):
            waiting.clear()
            for rank in ranks:
                # One that was killed meanwhile is found out by the next wait.
                with contextlib.suppress(BrokenPipeError):
                    rank.line.send(None)
    return [results[rank.rank] for rank in ranks]


def _running(ranks: Sequence[_Rank]) -> list[int]:
    """Ranks that some of a few looks find running; one that waits for its neighbour sleeps at every look."""
    found = set()
    for _ in range(STATE_SAMPLES):
        for rank in ranks:
            with contextlib.suppress(OSError):
                # proc(5): the state is the letter after the command's name, which stands in parentheses.
                state = Path(f"/proc/{rank.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
                if state == "R":
                    found.add(rank.rank)
        time.sleep(STATE_INTERVAL_S)
    return sorted(found)


def _stacks(ranks: Sequence[_Rank], results: dict[int, Any]) -> dict[int, tuple[Frame, ...]]:
    """Where every unfinished rank stands, innermost frame last."""
    asked = {rank.stack: rank.rank for rank in ranks if rank.rank not in results}
    for rank in ranks:
        if rank.rank not in results and rank.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.process.pid, signal.SIGUSR1)
    stacks: dict[int, tuple[Frame, ...]] = dict.fromkeys(asked.values(), ())
    text = dict.fromkeys(asked, "")
    until = time.monotonic() + STACKS_TIMEOUT_S
    # The outermost frame of a rank is this file's: once that is there, the stack is complete.
    while pending := [stack for stack in asked if "in _run_rank" not in text[stack]]:
        readable, _, _ = select.select(pending, [], [], max(0.0, until - time.monotonic()))
        if not readable:
            break
        for stack in readable:
            text[stack] += os.read(stack, 65536).decode(errors="replace") or "in _run_rank"
    for stack, rank_number in asked.items():
        frames = [Frame(m["file"], int(m["line"]), m["function"]) for m in FRAME.finditer(text[stack])]
        stacks[rank_number] = tuple(reversed(frames))
    return stacks


# -- a rank --------------------------------------------------------------------------------------------------------


def _run_rank(
    rank: int,
    listeners: Sequence[socket.socket],
    token: bytes,
    body: Body,
    buffer_bytes: int | None,
    line: Connection,
    stack: int,
    parent: int,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who ends us
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    try:
        place = Place(rank, len(listeners), line)
        _join(place, listeners, token, buffer_bytes)
        outcome = ("done", body(place))
    except BaseException as error:  # also SystemExit: a rank that leaves early has failed
        frames = [Frame(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
        is_connection = isinstance(error, (ConnectionError, TimeoutError))
        outcome = ("raised", (rank, type(error).__name__, str(error), frames, is_connection))
    # Before the sockets close, so that the cause is heard before the neighbours' complaints.
    line.send(outcome)


def _join(place: Place, listeners: Sequence[socket.socket], token: bytes, buffer_bytes: int | None) -> None:
    """Connect to every other rank and let every other rank in."""
    offsets = range(1, max(2, place.world_size))
    for offset in offsets:
        peer = (place.rank + offset) % place.world_size
        link = CountingSocket(socket.AF_INET, socket.SOCK_STREAM)
        if buffer_bytes is not None:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        link.settimeout(JOIN_TIMEOUT_S)
        link.connect(listeners[peer].getsockname())
        link.sendall(token + place.rank.to_bytes(4, "big"))
        place.outgoing[peer] = link
    own = listeners[place.rank]
    own.settimeout(JOIN_TIMEOUT_S)
    while len(place.incoming) < len(offsets):
        accepted, _ = own.accept()
        link = CountingSocket(fileno=accepted.detach())
        link.settimeout(HELLO_TIMEOUT_S)
        hello = _receive(link, len(token) + 4)
        if len(hello) == len(token) + 4 and hmac.compare_digest(hello[:16], token):
            place.incoming[int.from_bytes(hello[16:], "big")] = link
        else:
            link.close()  # a stranger
    for link in (*place.outgoing.values(), *place.incoming.values()):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setblocking(False)
        link.sent_bytes = link.received_bytes = 0
    for listener in listeners:
        listener.close()


def _receive(link: socket.socket, size: int) -> bytes:
    """``size`` bytes, or what came until the other side stopped, failed or was too slow."""
    data = b""
    with contextlib.suppress(OSError):
        while len(data) < size and (piece := link.recv(size - len(data))):
            data += piece
    return data
