"""Lines: in which order they do a program, and that they may stop anywhere and be gone on with by the machine."""

import random
import socket
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from test_communicator import TRANSPORTS, proven, vector

from atoll.algorithms.catalog import CATALOG, names
from atoll.runtime import lean
from atoll.runtime.communicator import Communicator
from atoll.runtime.lean import BoundLine, Stopped
from atoll.runtime.linear import REDUCE, SEND, WAIT, straighten
from atoll.runtime.program import compile_program
from atoll.schedule.interpret import interpret

LENGTHS = (1, 7, 1003, 40_003)


@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
def test_a_line_has_every_operation_once_and_after_what_it_waits_for(world_size: int) -> None:
    lines = 0
    for entry in CATALOG:
        ready = proven(entry.collective, entry.name, world_size, 0 if _rooted(entry.collective) else None)
        if ready is None:
            continue
        for rank in range(world_size):
            program = compile_program(ready, rank, 16 * world_size, 4)
            line = straighten(program)
            assert line is not None, (entry.collective, entry.name)
            lines += 1
            done: set[int] = set()
            read: set[int] = set()
            for instruction in line.instructions:
                operation = instruction.operation
                if instruction.kind == WAIT:
                    assert operation.number in done
                    read.add(operation.number)
                    continue
                assert operation.number not in done
                for before, *_ in operation.guards:
                    assert before in done
                    earlier = program.operations[before]
                    sends = earlier.source is not None and earlier.target is None
                    assert not (sends and earlier.lend) or before in read
                done.add(operation.number)
            assert done == set(range(len(program.operations)))
    assert lines > 20 * world_size


def _rooted(collective: str) -> bool:
    return collective in ("broadcast", "reduce", "gather", "scatter")


def test_a_small_exchange_is_two_instructions() -> None:
    ready = proven("all_reduce", "recursive_doubling", 2)
    assert ready is not None
    line = straighten(compile_program(ready, 0, 4, 4))
    assert line is not None
    assert [instruction.kind for instruction in line.instructions if instruction.kind in (SEND, REDUCE)] == [
        SEND,
        REDUCE,
    ]


class Trickle:
    """A socket that takes and gives a few bytes at a time, and now and then none, while a line runs. (The loop may
    count on it that a short transfer means that there is no more.)"""

    slow = False

    def __init__(self, sock: socket.socket, rng: random.Random) -> None:
        self._sock = sock
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def send(self, data: Any) -> int:
        return self._sock.send(memoryview(data).cast("B")[: self._allowed()])

    def sendmsg(self, views: list[Any]) -> int:
        return self._sock.send(b"".join(bytes(view) for view in views)[: self._allowed()])

    def recv_into(self, view: memoryview) -> int:
        return self._sock.recv_into(view[: self._allowed()])

    def _allowed(self) -> int:
        allowed = self._rng.choice([0, 1, 3, 17, 1 << 20, 1 << 20]) if Trickle.slow else 1 << 30
        if allowed == 0:
            raise BlockingIOError
        return allowed


def impatient(comm: Communicator, seed: int) -> Any:
    """Every all-reduce, over links that are slow now and then, by lines that give up early now and then."""
    rng = random.Random(100 * seed + comm.rank)
    run = BoundLine.run
    ends = {"done": 0, "stopped": 0}

    def counted(*args: Any) -> Stopped | None:
        patient = rng.random() < 0.25  # whatever else this machine does, some lines get to their end
        lean.YIELDS = 1 << 30 if patient else rng.choice([0, 0, 1, 50])  # type: ignore[misc]
        lean.PATIENCE_S = 60.0 if patient else 0.001  # type: ignore[misc]
        Trickle.slow = not patient
        stopped = run(*args)
        Trickle.slow = False
        ends["done" if stopped is None else "stopped"] += 1
        return stopped

    BoundLine.run = counted  # type: ignore[method-assign]
    results = []
    for name in names("all_reduce"):
        if proven("all_reduce", name, comm.world_size) is None:
            continue
        for length in LENGTHS:
            mine = vector(comm.rank, length)
            first = comm.all_reduce(mine, algorithm=name)
            for link in comm._caller._links.values():
                if isinstance(link, lean.Link) and not isinstance(link.connection, Trickle):
                    link.connection = Trickle(link.connection, rng)  # type: ignore[assignment]
            for step in lean_steps(comm):
                step.looks = rng.choice([0, 0, 5])
            for _ in range(2):
                assert comm.all_reduce(mine, algorithm=name).tobytes() == first.tobytes(), (name, length)
            for _ in range(2):
                in_place = mine.copy()
                comm.all_reduce(in_place, out=in_place, algorithm=name)
                assert in_place.tobytes() == first.tobytes(), (name, length)
            results.append((name, length, first.tobytes()))
    comm.broadcast(np.zeros(3), root=comm.world_size - 1)  # tokens as well
    return ends, results


def lean_steps(comm: Communicator) -> list[Any]:
    return [step for ready in comm._caller._ready.values() if ready.line is not None for step in ready.line._steps]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_line_may_stop_anywhere(world_size: int, transport: str) -> None:
    ranks = run_ranks(world_size, impatient, world_size, transport=transport)
    for how in ("done", "stopped"):
        assert sum(ends[how] for ends, _ in ranks) > 10, how
    for case in zip(*(results for _, results in ranks), strict=True):
        name, length, _ = case[0]
        ready = proven("all_reduce", name, world_size)
        assert ready is not None
        outputs = interpret(ready, [vector(rank, length) for rank in range(world_size)], np.add)
        for rank, (_, _, got) in enumerate(case):
            assert got == outputs[rank].tobytes(), (name, length, rank)


def counts_calls(comm: Communicator, size: int) -> tuple[int, int]:
    """System calls on sockets and records posted by one all-reduce of ``size`` elements that is warm."""
    array = np.ones(size, np.float32)
    for _ in range(3):
        comm.all_reduce(array, out=array, algorithm="recursive_doubling")
    comm.barrier()
    (link,) = comm._caller._links.values()
    sent: list[int] = []
    if isinstance(link, lean.Link):
        sock = link.connection

        class Counting(Trickle):
            def send(self, data: Any) -> int:
                sent.append(1)
                return sock.send(data)

            def sendmsg(self, views: list[Any]) -> int:
                sent.append(1)
                return sock.sendmsg(views)

            def recv_into(self, view: memoryview) -> int:
                return sock.recv_into(view)

        link.connection = Counting(sock, random.Random(0))  # type: ignore[assignment]
        comm.all_reduce(array, out=array, algorithm="recursive_doubling")
        return len(sent), 0
    before = link.outlet.head
    comm.all_reduce(array, out=array, algorithm="recursive_doubling")
    return 0, link.outlet.head - before


@pytest.mark.parametrize(("transport", "expected"), [("tcp", (1, 0)), ("shm", (0, 1))])
def test_a_small_all_reduce_of_two_is_one_message_each_way(transport: str, expected: tuple[int, int]) -> None:
    assert run_ranks(2, counts_calls, 100, transport=transport) == [expected] * 2
