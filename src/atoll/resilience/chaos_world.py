"""A job of real processes for chaos: started by fork, observed through pipes, broken on demand, ended for certain.

The observer has imported everything already and has no threads, so a rank is a fork and costs milliseconds. Each has a
pipe to the observer (``chaos_rank`` says what comes through it) and a share of one page of anonymous memory in
which it counts its results. Ranks die with the observer (PR_SET_PDEATHSIG, prctl(2)).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import secrets
import select
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from atoll.resilience.chaos_network import Cables
from atoll.resilience.chaos_plan import Kind
from atoll.resilience.chaos_rank import Voice
from atoll.runtime.arrays import Array

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h

Live = Callable[[Mapping[str, str], Voice, Array], None]
"""What a rank does: its environment, its voice, and where it counts results."""


class Event(msgspec.Struct, frozen=True):
    """What a rank has said."""

    rank: int
    what: str
    time_s: float
    facts: tuple[Any, ...]


class ChaosWorld:
    """``world_size`` ranks and ``spares``, each of which does ``live``; a context manager that ends all of them.

    ``cables``: each rank in its place of that network; else all on loopback. ``log`` is a folder for what the ranks
    say on stderr, and for stacks of those that hang.
    """

    def __init__(
        self, world_size: int, spares: int, live: Live, *, cables: Cables | None = None, log: Path | None = None,
        name: str = "",
    ) -> None:  # fmt: skip
        self.total = world_size + spares
        self.world_size = world_size
        self.events: list[Event] = []
        self.gone: set[int] = set()  # ranks whose pipe has closed
        self.stopped: set[int] = set()
        self._cables = cables
        self._pulled: set[int] = set()
        self._memory = mmap.mmap(-1, max(4096, 16 * self.total))
        self.results = np.frombuffer(self._memory, np.int64)[: 2 * self.total].reshape(self.total, 2)
        self.pids: list[int] = []
        self._pipes: dict[int, tuple[int, bytearray]] = {}
        self._poll = select.poll()
        host = cables.address(0) if cables is not None else ""
        rendezvous = f"{host}:29400" if host else f"unix:@atoll-chaos-{secrets.token_hex(8)}"
        environ = {
            "ATOLL_WORLD_SIZE": str(world_size),
            "ATOLL_SPARES": str(spares),
            "ATOLL_RENDEZVOUS": rendezvous,
            "ATOLL_SECRET": secrets.token_hex(16),
        }
        for rank in range(self.total):
            reading, writing = os.pipe2(os.O_CLOEXEC)
            pid = os.fork()
            if pid == 0:
                self._be(rank, writing, environ, live, log and log / f"{name}-rank{rank}.txt")
            os.close(writing)
            self.pids.append(pid)
            self._pipes[reading] = (rank, bytearray())
            self._poll.register(reading, select.POLLIN)

    def __enter__(self) -> ChaosWorld:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for reading in self._pipes:
            os.close(reading)
        self._pipes.clear()
        if self._cables is not None:
            for place in self._pulled:
                self._cables.plug(place)

    def listen(self, until: float) -> list[Event]:
        """What comes first, or by ``until`` (monotonic seconds); kept in ``events`` too."""
        heard: list[Event] = []
        while not heard:
            ready = self._poll.poll(max(0.0, (until - time.monotonic()) * 1e3))
            if not ready:
                break
            for reading, _ in ready:
                heard += self._read(reading)
            if not self._pipes:
                break
        self.events += heard
        return heard

    def is_alive(self, rank: int) -> bool:
        """Whether the rank has not ended."""
        return rank not in self.gone

    def signal(self, rank: int, number: int) -> None:
        """Send a signal; a rank that has ended does not mind."""
        if self.is_alive(rank):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], number)

    def break_rank(self, rank: int, kind: Kind) -> None:
        """Let the fault happen."""
        if kind is Kind.KILL:
            self.signal(rank, signal.SIGKILL)
        elif kind is Kind.STOP:
            self.signal(rank, signal.SIGSTOP)
            self.stopped.add(rank)
        elif kind is Kind.CLOSE:
            self.signal(rank, signal.SIGUSR1)
        else:
            assert self._cables is not None
            self._cables.pull(rank)
            self._pulled.add(rank)

    def resume(self, rank: int) -> None:
        """End a stop."""
        self.stopped.discard(rank)
        self.signal(rank, signal.SIGCONT)

    def dump_stacks(self) -> None:
        """Have every rank write the stacks of its threads to its log."""
        for rank in range(self.total):
            self.signal(rank, signal.SIGUSR2)

    def _read(self, reading: int) -> list[Event]:
        rank, buffer = self._pipes[reading]
        data = os.read(reading, 65536)
        if not data:
            self._poll.unregister(reading)
            os.close(reading)
            del self._pipes[reading]
            self.gone.add(rank)
            return [Event(rank, "gone", time.monotonic(), ())]
        buffer += data
        *lines, rest = bytes(buffer).split(b"\n")
        buffer[:] = rest
        return [Event(rank, what, time_s, tuple(facts)) for what, time_s, *facts in map(json.loads, lines)]

    def _be(self, rank: int, writing: int, environ: dict[str, str], live: Live, log: Path | None) -> None:
        """Become a rank; never returns."""
        status = 1
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the observer
            for reading in self._pipes:
                os.close(reading)
            output = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            if self._cables is not None:
                self._cables.enter(rank)
            live({**environ, "ATOLL_RANK": str(rank)}, Voice(writing), self.results)
            status = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())  # whatever stands for sys.stderr in the observer
        finally:
            os._exit(status)
