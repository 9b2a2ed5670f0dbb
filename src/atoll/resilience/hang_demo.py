"""A hang and its end, with real processes: what ranks know without a deadline, with one, and with a spare.

``hang``     ranks without deadline and without heartbeats all-reduce again and again; one is stopped (SIGSTOP), as by a
             stuck driver, a lock, or a debugger. Nothing ends, so nothing is raised. Each rank is asked whom it waits
             for: the chain ends at the stopped one
``recover``  the same with a heartbeat timeout and a spare: the error of every survivor, and the sum of the job that
             goes on

What is shown is what happens, so it may go wrong: a rank that ends by itself, or a job that stands still where it
should not, ends the demonstration at once, with that rank's last words or with what every rank was doing.
"""

from __future__ import annotations

import faulthandler
import math
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from atoll.errors import CollectiveTimeout, PeerLost, SpecError, WorldError
from atoll.resilience.chaos_plan import Kind
from atoll.resilience.chaos_rank import Voice
from atoll.resilience.chaos_world import ChaosWorld, Live
from atoll.runtime.arrays import Array
from atoll.runtime.communicator import Communicator
from atoll.runtime.start import init

ELEMENTS: Final = 1 << 16
PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.5
_FOR_EVER_S: Final = 1e9
_ROUNDS: Final = 5
_LAST_WORDS: Final = 8  # lines of what a rank has said that are quoted
_STACKS_S: Final = 2.0  # for ranks that stand still to say where


class Hang(msgspec.Struct, frozen=True):
    """After ``seconds``: whom each rank waits for, by rank; how many have raised anything."""

    seconds: float
    waits_on: dict[int, tuple[int, ...]]
    raised: int


class Recovered(msgspec.Struct, frozen=True):
    """The end of a hang. ``errors`` are the survivors' by rank, ``sums`` those of the ranks of the new communicator."""

    detect_s: float
    recover_s: float
    errors: dict[int, str]
    culprits: tuple[int, ...]
    members: tuple[int, ...]
    sums: dict[int, float]
    expected: float


def hang(world_size: int, victim: int, seconds: float) -> Hang:
    """Show it for ``seconds``."""
    _check(world_size, victim)
    with _Stage(world_size, 0, _wait_for_ever) as (world, stage):
        stage.work()
        stage.break_rank(victim, Kind.STOP)
        begun, before = time.monotonic(), len(world.events)
        while time.monotonic() < begun + seconds:
            world.listen(begun + seconds)
        others = set(range(world_size)) - {victim}
        # On a crowded host they may be slow to look.
        stage.wait_for(
            lambda: others <= {e.rank for e in world.events[before:] if e.what in ("waits", "error")},
            "not every rank has said whom it waits for",
        )
        waits_on = {e.rank: tuple(e.facts[0]) for e in world.events[before:] if e.what == "waits"}
        raised = sum(e.what in ("error", "gone") for e in world.events)
        looked_s = time.monotonic() - begun
        world.signal(victim, signal.SIGCONT)
        return Hang(looked_s, waits_on, raised)


def recover(world_size: int, victim: int, kind: Kind, heartbeat_s: float) -> Recovered:
    """Break ``victim`` and watch what becomes of the job; ``CollectiveTimeout`` when nothing does."""
    _check(world_size, victim)
    with _Stage(world_size, 1, partial(_go_on, heartbeat_s)) as (world, stage):
        stage.work()
        begun = time.monotonic()
        stage.break_rank(victim, kind)
        last = {*range(world_size), world_size} - {victim}
        stage.wait_for(lambda: {e.rank for e in world.events if e.what == "sum"} == last, "the job did not go on")
        errors = {e.rank: e for e in world.events if e.what == "error"}
        sums = {e.rank: e for e in world.events if e.what == "sum"}
        return Recovered(
            max(error.time_s for error in errors.values()) - begun,
            max(said.time_s for said in sums.values()) - begun,
            {rank: error.facts[1] for rank, error in sorted(errors.items())},
            tuple(sorted({rank for error in errors.values() for rank in error.facts[0]})),
            tuple(next(iter(sums.values())).facts[1]),
            {int(said.facts[0]): float(said.facts[2]) for said in sums.values()},
            world_size * (world_size + 1) / 2,
        )


class _Stage:
    """A job that is watched, and what its ranks say on stderr, which is kept only where something goes wrong."""

    def __init__(self, world_size: int, spares: int, live: Live) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="atoll-demo-"))
        self._broken: set[int] = set()
        self._world_size = world_size
        try:
            self._world = ChaosWorld(world_size, spares, partial(_with_stacks, live), log=self._folder, name="demo")
        except BaseException:
            shutil.rmtree(self._folder)
            raise

    def __enter__(self) -> tuple[ChaosWorld, _Stage]:
        return self._world, self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._world.__exit__()
        if kind is None or not issubclass(kind, WorldError):
            shutil.rmtree(self._folder)

    def break_rank(self, rank: int, kind: Kind) -> None:
        """Let the fault happen."""
        self._broken.add(rank)
        self._world.break_rank(rank, kind)

    def work(self) -> None:
        """Wait until every rank has had some results."""
        results = self._world.results[: self._world_size, 0]
        self.wait_for(lambda: not (results < _ROUNDS).any(), "the ranks did not begin to work", 0.01)

    def wait_for(self, condition: Callable[[], bool], otherwise: str, look_s: float = 1.0) -> None:
        """Wait for ``condition``; ``WorldError`` when a rank ends before, or when it does not come about."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            now = time.monotonic()
            through = {e.rank for e in self._world.events if e.what == "sum"}
            gone = sorted(self._world.gone - self._broken - through)
            if gone:
                words = (
                    (self._folder / f"demo-rank{gone[0]}.txt").read_text(errors="replace").splitlines()[-_LAST_WORDS:]
                )
                raise PeerLost(
                    f"rank {gone[0]} of the demonstration ended by itself; all that was said is in {self._folder}",
                    culprits=gone, story=words or ["it said nothing"],
                )  # fmt: skip
            if now >= end:
                self._world.dump_stacks()
                self._world.listen(now + _STACKS_S)
                raise CollectiveTimeout(
                    f"{otherwise} within {PATIENCE_S:g} s; where every rank stands is in {self._folder}",
                    culprits=self._broken,
                )
            self._world.listen(min(end, now + look_s))


def _check(world_size: int, victim: int) -> None:
    if world_size < 3:
        raise SpecError(f"expected a world of at least 3 ranks, so that a majority goes on, got {world_size}")
    if not 0 <= victim < world_size:
        raise SpecError(f"expected a rank between 0 and {world_size - 1}, got {victim}")


def _with_stacks(live: Live, environ: Mapping[str, str], voice: Voice, results: Array) -> None:
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    live(environ, voice, results)


def _vector(comm: Communicator) -> Array:
    return np.full(ELEMENTS, comm.rank + 1.0)


def _wait_for_ever(environ: Mapping[str, str], voice: Voice, results: Array) -> None:
    comm = init(timeout=_FOR_EVER_S, heartbeat_timeout=math.inf, environ=environ)
    me = comm.rank
    while True:
        work = comm.all_reduce(_vector(comm), algorithm="ring", async_op=True)
        while True:
            try:
                work.wait(_LOOK_S)
                break
            except CollectiveTimeout as look:
                if not work.done():
                    voice.say("waits", list(look.culprits))
            except WorldError as error:
                voice.say("error", str(error))
                return
        results[me, 0] += 1


def _go_on(heartbeat_s: float, environ: Mapping[str, str], voice: Voice, results: Array) -> None:
    me = int(environ["ATOLL_RANK"])
    comm = init(timeout=PATIENCE_S, heartbeat_timeout=heartbeat_s, environ=environ)
    if comm.generation == 0:
        try:
            while True:
                comm.all_reduce(_vector(comm), algorithm="ring")
                results[me, 0] += 1
        except WorldError as error:
            voice.say("error", list(error.culprits), str(error))
            comm = comm.grow()
    members = comm.all_gather(np.array([me]))
    total = comm.all_reduce(_vector(comm), algorithm="ring")
    same = total.min() == total.max()
    voice.say("sum", comm.rank, members.tolist(), float(total[0]) if same else math.nan)
    comm.barrier()
    comm.close()
