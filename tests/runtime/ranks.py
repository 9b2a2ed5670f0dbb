"""Real ranks for tests: N processes that join over real sockets, run one function each, and are gone afterwards.

The processes are forked from a server that has already imported what they need, so that a world of four costs
milliseconds. Every wait has a deadline; whatever is still alive at the end is killed.
"""

import multiprocessing
import secrets
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from atoll.runtime.communicator import Communicator
from atoll.runtime.start import init

DEADLINE_S = 60.0
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["atoll.runtime.start", "atoll.algorithms.catalog", "ml_dtypes"])


class Outcome:
    """What a rank's function returned, or what it raised (in words, with the type's name), or how it died."""

    def __init__(self, value: Any = None, error: str = "", kind: str = "", exit_code: int | None = None) -> None:
        self.value = value
        self.error = error
        self.kind = kind
        self.exit_code = exit_code

    def __repr__(self) -> str:
        return f"<Outcome {self.value!r} {self.kind} {self.error} exit={self.exit_code}>"


def free_port() -> int:
    """A port that was free a moment ago, below the range that outgoing connections take."""
    for _ in range(100):
        port = 10240 + secrets.randbelow(20000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port found")


def run_ranks(
    world_size: int, function: Callable[..., Any], *args: Any, timeout: float = 20.0, transport: str = "auto",
    spares: int = 0, heartbeat: str = "", hosts: Sequence[str] = (),
) -> list[Any]:  # fmt: skip
    """``function(communicator, *args)`` on every rank; the values, in rank order. A rank that fails fails the test."""
    outcomes = outcomes_of(
        world_size, function, *args, timeout=timeout, transport=transport, spares=spares, heartbeat=heartbeat,
        hosts=hosts,
    )  # fmt: skip
    failed = {rank: outcome for rank, outcome in enumerate(outcomes) if outcome.kind or outcome.exit_code}
    assert not failed, "\n".join(f"rank {rank}: {outcome.kind}: {outcome.error}" for rank, outcome in failed.items())
    return [outcome.value for outcome in outcomes]


def outcomes_of(
    world_size: int, function: Callable[..., Any], *args: Any, timeout: float = 20.0, transport: str = "auto",
    spares: int = 0, heartbeat: str = "", hosts: Sequence[str] = (),
) -> list[Outcome]:  # fmt: skip
    """What became of every rank, spares last. ``timeout`` is the communicator's, ``heartbeat`` a duration in words.

    ``hosts``: what each rank says for ATOLL_HOST.
    """
    base = {
        "ATOLL_WORLD_SIZE": str(world_size),
        "ATOLL_RENDEZVOUS": f"127.0.0.1:{free_port()}",
        "ATOLL_SECRET": secrets.token_hex(16),
        "ATOLL_TRANSPORT": transport,
        "ATOLL_SPARES": str(spares),
        "ATOLL_HEARTBEAT_TIMEOUT": heartbeat,
    }
    processes, pipes = [], []
    try:
        for rank in range(world_size + spares):
            ours, theirs = _context.Pipe(duplex=False)
            environ = {**base, "ATOLL_RANK": str(rank), "ATOLL_HOST": hosts[rank] if hosts else ""}
            process = _context.Process(target=_rank_main, args=(theirs, environ, timeout, function, args), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        return _collect(processes, pipes)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
        for pipe in pipes:
            pipe.close()


def _collect(processes: list[Any], pipes: list[Connection]) -> list[Outcome]:
    outcomes: list[Outcome | None] = [None] * len(pipes)
    deadline = time.monotonic() + DEADLINE_S
    while any(outcome is None for outcome in outcomes):
        open_pipes = [pipe for pipe, outcome in zip(pipes, outcomes, strict=True) if outcome is None]
        ready = wait(open_pipes, max(0.0, deadline - time.monotonic()))
        if not ready:
            stuck = [rank for rank, outcome in enumerate(outcomes) if outcome is None]
            raise AssertionError(f"ranks {stuck} did not end within {DEADLINE_S} s; the others: {outcomes}")
        for pipe in ready:
            rank = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                outcomes[rank] = pipe.recv()  # type: ignore[union-attr]
            except EOFError:
                processes[rank].join(5)
                outcomes[rank] = Outcome(exit_code=processes[rank].exitcode)
    return [outcome for outcome in outcomes if outcome is not None]


def _rank_main(
    pipe: Connection, environ: dict[str, str], timeout: float, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    communicator: Communicator | None = None
    try:
        communicator = init(timeout=timeout, join_timeout=30.0, environ=environ)
        outcome = Outcome(function(communicator, *args))
    except BaseException as error:
        outcome = Outcome(error=f"{error}\n{traceback.format_exc(limit=8)}", kind=type(error).__name__)
    pipe.send(outcome)
    if communicator is not None:
        communicator.close()
    pipe.close()
