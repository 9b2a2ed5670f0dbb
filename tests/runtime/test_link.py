"""One connection: headers, staging, readiness and counted bytes, over sockets that take a few bytes at a time."""

import random
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atoll.algorithms.catalog import build
from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.link import HEADER, ByteCount, Link, Pumped
from atoll.runtime.machine import Machine
from atoll.runtime.program import compile_program, transfer_program
from atoll.runtime.reduction import reduction
from atoll.runtime.task import Task
from atoll.schedule.prove import prove


class Trickle:
    """A socket that takes and gives at most ``allowance()`` bytes a call, and none where that is 0."""

    def __init__(self, sock: socket.socket, allowance: Callable[[], int]) -> None:
        self.sock = sock
        self.allowance = allowance
        self.calls = 0

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, view: memoryview) -> int:
        return self.sock.send(view[: self._allowed()])

    def sendmsg(self, views: list[memoryview]) -> int:
        return self.sock.send(b"".join(views)[: self._allowed()])

    def recv_into(self, view: memoryview) -> int:
        return self.sock.recv_into(view[: self._allowed()])

    def recvmsg_into(self, views: list[memoryview]) -> tuple[int, list[Any], int, None]:
        left, cut = self._allowed(), []
        for view in views:
            cut.append(view[:left])
            left -= len(cut[-1])
        return self.sock.recvmsg_into([view for view in cut if len(view)])[0], [], 0, None

    def close(self) -> None:
        self.sock.close()

    def _allowed(self) -> int:
        self.calls += 1
        allowed = self.allowance()
        if allowed == 0:
            raise BlockingIOError
        return allowed


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def make_link(sock: Any, peer: int = 1, segment_bytes: int = 32) -> Link:
    return Link(sock, peer, 0, segment_bytes, ByteCount())


def make_task(
    link: Link, sequence: int, values: np.ndarray, rank: int, algorithm: str = "recursive_doubling", count: int = -1
) -> tuple[Task, np.ndarray]:
    """An in-place all-reduce of two ranks on ``link``, and its array. ``count`` is what the call says it is."""
    program = compile_program(prove(build("all_reduce", algorithm, 2)), rank, len(values), values.itemsize)
    array = values.copy()
    memory = array.view(np.uint8)
    call = CallDescriptor(7, sequence, "all_reduce", str(values.dtype), len(values) if count < 0 else count, "sum")
    scratch = np.zeros(program.scratch_bytes, np.uint8)
    machine = Machine(
        program, (memory, memory, scratch), values.dtype, reduction("sum", values.dtype), lambda _: link.staging()
    )
    links: list[Link | None] = [None if lane.peer < 0 else link for lane in program.lanes]
    task = Task(call, machine, links, (0, 1), 60.0, 1e9, False, None)
    for lane in program.lanes:
        if lane.peer >= 0:
            link.add(task, lane.number, lane.incoming)
    return task, array


def make_transfer(link: Link, sequence: int, array: np.ndarray, rank: int) -> Task:
    program = transfer_program(rank, len(array), array.itemsize)
    memory = array.view(np.uint8)
    machine = Machine(program, (memory, memory, memory[:0]), array.dtype, None, lambda _: link.staging())
    call = CallDescriptor(7, sequence, "send", str(array.dtype), len(array))
    task = Task(call, machine, [link] * len(program.lanes), (0, 1), 60.0, 1e9, False, None)
    for lane in program.lanes:
        link.add(task, lane.number, lane.incoming)
    return task


def pump(link: Link) -> None:
    """As the driver does it, with an edge for every call, and everything that is woken nudged at once."""
    link.readable = link.writable = True
    for act, streams in ((link.pump_out, link.outgoing), (link.pump_in, link.incoming)):
        if streams:
            task = streams[0].task
            assert act() in (Pumped.IDLE, Pumped.MOVED)
            while task.machine.take_woken():
                link.nudge(task)


@pytest.mark.parametrize("algorithm", ["recursive_doubling", "ring", "halving_doubling"])
@pytest.mark.parametrize("seed", range(6))
def test_collectives_one_after_the_other_share_a_link_and_its_segment(pair: Any, algorithm: str, seed: int) -> None:
    """Elements, headers and segments are cut anywhere; each side may be several collectives ahead of the other."""
    rng = random.Random(seed)
    most = rng.choice([1, 3, 7, 19, 50])
    links = [make_link(Trickle(sock, lambda: rng.randint(0, most)), peer=1 - r) for r, sock in enumerate(pair)]
    values = [[np.arange(n) * 1.5 + 10 * rank + n for n in (1, 5, 0, 9, 17)] for rank in range(2)]
    made = [
        [make_task(links[rank], number, array, rank, algorithm) for number, array in enumerate(values[rank])]
        for rank in range(2)
    ]
    for _ in range(100_000):
        pump(links[rng.randrange(2)])
        if all(task.machine.done for rank in range(2) for task, _ in made[rank]):
            break
    for number in range(5):
        for rank in range(2):
            task, array = made[rank][number]
            assert task.machine.done, task.progress()
            np.testing.assert_array_equal(array, values[0][number] + values[1][number])
    tokens = 1  # of the collective of no elements, there and back
    for link in links:
        assert not link.incoming
        assert not link.outgoing
        assert link.count.overhead_sent == link.count.overhead_received == HEADER.size * len(values[0])
    assert links[0].count.payload_sent == links[1].count.payload_received
    assert links[1].count.payload_sent == links[0].count.payload_received
    assert (
        links[0].count.payload_sent + links[1].count.payload_sent
        == sum(task.machine.program.sent_bytes for made_by in made for task, _ in made_by) + 2 * tokens
    )


def test_header_and_payload_are_one_system_call_on_either_side(pair: Any) -> None:
    links = [make_link(Trickle(sock, lambda: 1 << 20), peer=1 - r) for r, sock in enumerate(pair)]
    make_transfer(links[0], 0, np.arange(10.0), 0)
    got = np.zeros(10)
    make_transfer(links[1], 0, got, 1)
    assert links[0].pump_out() is Pumped.MOVED
    assert links[1].pump_in() is Pumped.MOVED
    assert got.tolist() == list(range(10))
    assert [link.connection.calls for link in links] == [1, 1]


@pytest.mark.parametrize("first_bytes", [1, 15, 16, 17, 1000])
def test_what_follows_a_foreign_header_is_never_taken_for_data(pair: Any, first_bytes: int) -> None:
    """Also where the header came alone, and more of the other call comes later, with its own edges."""
    ours, theirs = pair
    link = make_link(ours)
    task, array = make_task(link, 4, np.arange(6.0), 0)
    other = Task(
        CallDescriptor(7, 4, "all_reduce", "int64", 6, "sum"), task.machine, task.links, (0, 1), 60.0, 1e9, False, None
    )
    message = bytes(other.header) + b"\x07" * 48
    theirs.send(message[:first_bytes])
    results = [link.pump_in()]
    theirs.send(message[first_bytes:])
    for _ in range(3):
        link.readable = True
        results.append(link.pump_in())
    assert results.count(Pumped.FOREIGN) == 1
    assert results[-1] is Pumped.IDLE
    assert link.foreign_sequence == 4
    assert link.count.payload_received == 0
    assert task.machine.bytes_moved() == 0
    assert array.tolist() == list(range(6))


def test_a_short_transfer_says_that_the_socket_has_no_more_for_now(pair: Any) -> None:
    ours, theirs = pair
    link = make_link(ours)
    got = np.zeros(100)
    task = make_transfer(link, 0, got, 1)
    theirs.send(bytes(task.header) + np.ones(10).tobytes())
    assert link.pump_in() is Pumped.MOVED
    assert not link.readable
    assert link.pump_in() is Pumped.IDLE  # without a system call, so without an error
    link.readable = True
    assert link.pump_in() is Pumped.IDLE
    assert not link.readable
    assert task.machine.bytes_moved() == 80


def test_a_full_socket_stops_sending_until_it_is_writable_again(pair: Any) -> None:
    ours, theirs = pair
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    link = make_link(ours)
    task = make_transfer(link, 0, np.ones(1 << 16), 0)
    while link.pump_out() is Pumped.MOVED:
        pass
    assert not link.writable
    sent = link.count.payload_sent
    assert 0 < sent < 1 << 19
    assert len(theirs.recv(1 << 20)) > 0
    link.writable = True
    assert link.pump_out() is Pumped.MOVED
    assert task.machine.bytes_moved() == link.count.payload_sent > sent


def test_what_was_sent_before_the_end_is_read_and_then_the_end_is_told(pair: Any) -> None:
    ours, theirs = pair
    link = make_link(ours)
    got = np.zeros(4)
    task = make_transfer(link, 0, got, 1)
    after = make_transfer(link, 1, np.zeros(4), 1)
    theirs.send(bytes(task.header) + np.arange(4.0).tobytes())
    theirs.close()
    # One event for both: bytes and the hang-up. A short read must not wait for another edge.
    link.hung_up = True
    assert link.pump_in() is Pumped.MOVED
    assert task.machine.done
    assert got.tolist() == [0, 1, 2, 3]
    assert link.pump_in() is Pumped.BROKEN
    assert link.broken == "closed by the other side"
    assert link.pump_in() is Pumped.IDLE
    assert not after.machine.done


def test_a_connection_that_cannot_be_written_may_still_be_read(pair: Any) -> None:
    ours, theirs = pair
    link = make_link(ours)
    got = np.zeros(4)
    task = make_transfer(link, 0, got, 1)
    make_transfer(link, 1, np.zeros(4), 0)
    theirs.send(bytes(task.header) + np.arange(4.0).tobytes())
    theirs.close()
    assert link.pump_out() is Pumped.BROKEN
    assert link.pump_out() is Pumped.IDLE
    assert link.pump_in() is Pumped.MOVED
    assert task.machine.done


def test_a_lane_whose_target_must_not_be_written_yet_is_not_read(pair: Any) -> None:
    """Backpressure: bytes that have no place stay in the socket, but for one segment where they are reduced."""
    ours, theirs = pair
    link = make_link(ours, segment_bytes=32)
    # Recursive doubling in place: what comes is added to what has still to be sent.
    task, _ = make_task(link, 0, np.arange(20.0), 0)
    theirs.send(bytes(task.header) + np.ones(20).tobytes())
    while link.pump_in() is Pumped.MOVED:
        pass
    assert link.readable
    assert link.count.payload_received == 32
    assert task.machine.bytes_moved() == 0
    assert link.pump_out() is Pumped.MOVED
    assert task.machine.take_woken()
    link.nudge(task)
    while link.pump_in() is Pumped.MOVED:
        pass
    assert task.machine.done


def test_nudging_a_task_that_is_not_at_the_head_does_nothing(pair: Any) -> None:
    link = make_link(pair[0])
    first = make_transfer(link, 0, np.zeros(2), 1)
    link.nudge(SimpleNamespace())  # type: ignore[arg-type]
    assert link.incoming[0].task is first
    link.close()
    assert not link.incoming
    assert pair[0].fileno() == -1
