"""One rank of a job under chaos: random collectives, every result checked, and on after every failure.

What a round does follows from the seed and the round's number, so that all ranks do the same; what a rank puts in from
its number in the communicator, so that each knows what must come out. After an error the rank calls ``grow``, agrees
on the round to go on with, and goes on. It tells its observer through a pipe, one JSON list a line:

``["error", time_s, kind, culprits, message]``     a collective or ``grow`` has raised; culprits are world ranks
``["on", time_s, generation, members]``            the first collectives of a communicator are through
``["wrong", time_s, words]``                       a result that was handed out is not right
``["end", time_s, words]``                         this rank goes no further

The number of results it has had so far stands in memory that it shares with the observer.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from atoll.errors import AtollError, WorldError
from atoll.runtime.arrays import Array
from atoll.runtime.communicator import Communicator
from atoll.runtime.start import init

_ALGORITHMS = ("auto", "auto", "ring", "halving_doubling", "binomial_tree", "direct")
_DTYPES = ("int32", "int64", "float32", "float64")


class RankSettings(msgspec.Struct, frozen=True):
    """What all ranks of a job are told."""

    seed: int
    heartbeat_s: float
    timeout_s: float
    join_timeout_s: float
    transport: str


class Voice:
    """The way to the observer."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def say(self, what: str, *facts: object) -> None:
        """One line, whole: shorter than what a pipe takes at once."""
        line = json.dumps([what, time.monotonic(), *facts])
        if len(line) > 3500:
            line = json.dumps([what, time.monotonic(), *(f[:600] if isinstance(f, str) else f for f in facts)])
        os.write(self._descriptor, line.encode() + b"\n")


def main(settings: RankSettings, environ: Mapping[str, str], voice: Voice, results: Array) -> None:
    """Live until told otherwise; ``results[rank]`` counts the results that this rank was handed."""
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    signal.signal(signal.SIGUSR1, lambda *_: shut_all_sockets())
    me = int(environ["ATOLL_RANK"])
    try:
        comm = init(
            timeout=settings.timeout_s, join_timeout=settings.join_timeout_s, heartbeat_timeout=settings.heartbeat_s,
            transport=settings.transport, environ=environ,
        )  # fmt: skip
    except WorldError as error:
        voice.say("error", type(error).__name__, list(error.culprits), str(error))
        voice.say("end", "it could not join")
        return
    number = 0
    while True:
        try:
            number = _live(comm, me, number, settings.seed, voice, results)
        except WorldError as error:
            voice.say("error", type(error).__name__, list(error.culprits), str(error))
            if me in error.culprits:
                voice.say("end", "it was given up")
                return
        try:
            comm = comm.grow()
        except AtollError as error:
            culprits = list(error.culprits) if isinstance(error, WorldError) else []
            voice.say("error", type(error).__name__, culprits, str(error))
            voice.say("end", "it could not go on")
            return


def _live(comm: Communicator, me: int, number: int, seed: int, voice: Voice, results: Array) -> int:
    """Rounds until one fails; raises what it raised. The round's number lives in ``results``."""
    done = results[me, 1]
    members = comm.all_gather(np.array([me, max(number, int(done))])).reshape(-1, 2)
    number = int(members[:, 1].max())
    voice.say("on", comm.generation, members[:, 0].tolist())
    while True:
        wrong = one_round(comm, seed, number)
        results[me, 0] += 1
        number += 1
        results[me, 1] = number
        if wrong:
            voice.say("wrong", f"round {number - 1}: {wrong}")


def one_round(comm: Communicator, seed: int, number: int) -> str:
    """A collective drawn from seed and number; what is wrong with its result, empty when nothing is."""
    chance = random.Random(f"{seed}/{number}")
    rank, size = comm.rank, comm.world_size
    what = chance.choice(_COLLECTIVES)
    length = int(2 ** chance.uniform(0, 15 if chance.random() < 0.95 else 19))
    dtype = np.dtype(chance.choice(_DTYPES))
    root = chance.randrange(size)
    asynchronous = chance.random() < 0.3
    algorithm = chance.choice(_ALGORITHMS)
    if what in ("all_to_all", "scatter", "reduce_scatter", "all_gather", "gather"):
        length += -length % size

    def put(of: int, n: int = length) -> Array:
        return ((np.arange(n) * (2 * of + 1) + 7 * number + 13 * of) % 97).astype(dtype)

    def run(method: Any, *args: Any, **more: Any) -> Any:
        started = method(*args, async_op=asynchronous, **more)
        return started.wait() if asynchronous else started

    def everyone(n: int = length) -> Array:
        return np.stack([put(of, n) for of in range(size)])

    block = slice(rank * (length // size), (rank + 1) * (length // size))
    expected: Array | None
    if what == "all_reduce":
        op = chance.choice(("sum", "max"))
        got = run(comm.all_reduce, put(rank), op, algorithm=algorithm)
        expected = everyone().sum(axis=0, dtype=dtype) if op == "sum" else everyone().max(axis=0)
    elif what == "reduce_scatter":
        got = run(comm.reduce_scatter, put(rank))
        expected = everyone().sum(axis=0, dtype=dtype)[block]
    elif what == "all_gather":
        n = length // size
        got = run(comm.all_gather, put(rank, n))
        expected = everyone(n).reshape(-1)
    elif what == "broadcast":
        got = run(comm.broadcast, put(rank), root)
        expected = put(root)
    elif what == "reduce":
        got = run(comm.reduce, put(rank), "sum", root)
        expected = everyone().sum(axis=0, dtype=dtype) if rank == root else None
    elif what == "all_to_all":
        got = run(comm.all_to_all, put(rank))
        expected = everyone()[:, block].reshape(-1)
    elif what == "gather":
        n = length // size
        got = run(comm.gather, put(rank, n), root)
        expected = everyone(n).reshape(-1) if rank == root else None
    elif what == "scatter":
        mine = np.zeros(length // size, dtype)
        got = run(comm.scatter, put(root) if rank == root else None, root, out=mine)
        expected = put(root)[block]
    else:
        got = run(comm.barrier)
        expected = None
    if (got is None) != (expected is None) or (expected is not None and not np.array_equal(got, expected)):
        return f"{what} of {length} {dtype} on rank {rank} of {size}, algorithm {algorithm}, root {root}"
    return ""


_COLLECTIVES = (
    "all_reduce", "all_reduce", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all",
    "gather", "scatter", "barrier",
)  # fmt: skip


def shut_all_sockets() -> None:
    """End every connection of this process and leave the descriptors as they are."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as sock:
                    sock.shutdown(socket.SHUT_RDWR)
