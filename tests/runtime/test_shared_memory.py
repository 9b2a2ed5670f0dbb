"""Shared memory between ranks of one host: rings, what is lent and taken back, what is left behind (nothing)."""

import gc
import itertools
import os
import random
import signal
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import outcomes_of, run_ranks

from atoll.algorithms.catalog import build
from atoll.errors import AtollError, PeerLost, SpecError
from atoll.runtime import introduction, lean, shared_memory
from atoll.runtime.communicator import Communicator
from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.introduction import SEGMENT_BYTES, Introduction
from atoll.runtime.lean import BoundLine, Stopped
from atoll.runtime.linear import straighten
from atoll.runtime.link import ByteCount, Pumped
from atoll.runtime.machine import Machine
from atoll.runtime.program import compile_program, transfer_program
from atoll.runtime.reduction import reduction
from atoll.runtime.remote_memory import RemoteMemory, can_read
from atoll.runtime.shared_link import SharedLink
from atoll.runtime.shared_memory import Segment, SharedHeap, attach, create
from atoll.runtime.shared_ring import LENT, REMOTE, RING_BYTES, SLOTS, STAGED, STAGING_BYTES, Inlet, Outlet
from atoll.runtime.task import Task
from atoll.runtime.transport import read_transport
from atoll.schedule.prove import prove

# -- the ring ----------------------------------------------------------------------------------------------------


@given(st.data())
def test_staged_bytes_stay_until_they_are_taken(data: st.DataObject) -> None:
    memory = memoryview(bytearray(RING_BYTES))
    outlet, inlet = Outlet(memory, 0), Inlet(memory, 0)
    sent: list[tuple[int, bytes]] = []
    number = 0
    for _ in range(data.draw(st.integers(1, 200))):
        if data.draw(st.booleans()):
            size = data.draw(st.sampled_from([1, 64, 1000, 100_000, STAGING_BYTES // 3, STAGING_BYTES]))
            place = outlet.reserve(size)
            if place < 0:
                assert sent, "an empty ring takes anything"
                continue
            content = bytes([number % 251]) * size
            outlet.staging[place : place + size] = np.frombuffer(content, np.uint8)
            outlet.post(number, 7, size, STAGED, place)
            sent.append((number, content))
            number += 1
        elif sent:
            record = inlet.peek()
            assert record is not None
            expected, content = sent.pop(0)
            assert record[:4] == (expected, 7, len(content), STAGED)
            assert inlet.staging[record[4] : record[4] + record[2]].tobytes() == content
            inlet.take()
    assert outlet.head - outlet.taken() == len(sent) <= SLOTS
    assert (inlet.peek() is None) == (not sent)


def test_a_full_ring_takes_no_more() -> None:
    memory = memoryview(bytearray(RING_BYTES))
    outlet, inlet = Outlet(memory, 0), Inlet(memory, 0)
    for number in range(SLOTS):
        outlet.post(number, 0, 1, STAGED, outlet.reserve(1))
    assert outlet.full()
    assert outlet.reserve(1) == -1
    inlet.peek()
    inlet.take()
    assert outlet.reserve(1) >= 0


# -- memory ------------------------------------------------------------------------------------------------------


def test_an_array_is_found_by_its_address_and_its_memory_is_used_again() -> None:
    heap = SharedHeap()
    first = heap.empty((3, 5), np.float64)
    first[...] = 7.0
    assert first.shape == (3, 5)
    part = first[1:]
    place = heap.find(part.__array_interface__["data"][0])
    assert place is not None
    assert place.offset == 5 * 8
    assert heap.find(np.empty(4).__array_interface__["data"][0]) is None
    segment = attach(os.getpid(), place.fd, 120)
    assert np.frombuffer(segment.map, np.float64)[:15].tolist() == [7.0] * 15
    address = first.__array_interface__["data"][0]
    del first
    gc.collect()
    other = heap.empty(15, np.float64)
    assert other.__array_interface__["data"][0] != address, "a view is left"
    del part
    gc.collect()
    assert heap.empty(15, np.float64).__array_interface__["data"][0] == address


def test_what_is_kept_is_bounded_and_the_rest_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "KEPT_BYTES", 3 * 4096)
    heap = SharedHeap()
    before = len(os.listdir("/proc/self/fd"))
    arrays = [heap.empty(1000, np.float32) for _ in range(5)]
    places = [heap.find(array.__array_interface__["data"][0]) for array in arrays]
    assert len(os.listdir("/proc/self/fd")) == before + 2 * 5  # the mapping keeps a descriptor of its own
    other = attach(os.getpid(), places[0].fd, 4000)  # type: ignore[union-attr]
    for array in arrays:
        array[...] = 3.0
    del array, arrays
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before + 2 * 3 + 1
    assert len(other.map) == 4096
    other.map[0]  # a peer that still looks at it does not fault


def test_only_what_is_there_is_attached() -> None:
    segment = create(100, "test")
    assert attach(os.getpid(), segment.fd, 4096).num_bytes == 4096
    with pytest.raises(OSError, match="expected at least"):
        attach(os.getpid(), segment.fd, 4097)
    with pytest.raises(OSError, match="No such file"):
        attach(os.getpid(), 99_999, 1)
    segment.close()
    segment.close()


def test_memory_of_a_process_is_read_or_an_error_says_why_not() -> None:
    source = np.arange(10_000, dtype=np.uint8)
    target = np.zeros(10_000, dtype=np.uint8)
    address = source.__array_interface__["data"][0]
    assert RemoteMemory(os.getpid()).read_into(target.data, address) == 10_000
    np.testing.assert_array_equal(target, source)
    assert can_read(os.getpid(), address, source[:16].tobytes())
    assert not can_read(os.getpid(), address, b"something else..")
    assert not can_read(2**22 + 5, address, b"x")
    with pytest.raises(OSError):
        RemoteMemory(os.getpid()).read_into(target.data, 8)


# -- the introduction ---------------------------------------------------------------------------------------------


def introduce(we: Introduction, they: Introduction) -> None:
    answer = they.feed(we.begin())
    answer = we.feed(answer)
    if answer:
        they.feed(answer)
    assert we.done
    assert they.done


@pytest.mark.parametrize(("we", "they"), [(True, True), (True, False), (False, True), (False, False)])
def test_memory_is_shared_where_both_may(we: bool, they: bool) -> None:
    ours, theirs = Introduction(True, we), Introduction(False, they)
    introduce(ours, theirs)
    assert (ours.shared is not None) == (theirs.shared is not None) == (we and they)
    if ours.shared is not None and theirs.shared is not None:
        ours.shared.segment.map[0] = 77
        assert theirs.shared.segment.map[0] == 77
        assert ours.shared.peer_reads_us
        assert theirs.shared.we_read_peer
        assert len(theirs.shared.segment.map) >= SEGMENT_BYTES
    ours.close()
    theirs.close()


def test_a_segment_of_another_process_is_not_taken_for_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another PID namespace: that number and that descriptor mean something else here."""
    other = create(SEGMENT_BYTES, "other")
    monkeypatch.setattr(introduction, "attach", lambda pid, fd, size: attach(os.getpid(), other.fd, size))
    ours, theirs = Introduction(True, True), Introduction(False, True)
    introduce(ours, theirs)
    assert ours.shared is theirs.shared is None
    other.close()


def test_what_is_no_offer_is_refused() -> None:
    with pytest.raises(ValueError, match="no offer"):
        Introduction(False, True).feed(b"\0" * Introduction(False, True).wanted)
    with pytest.raises(ValueError, match="expected"):
        Introduction(False, True).feed(b"short")


# -- a link --------------------------------------------------------------------------------------------------------


class Ends:
    """Both ends of a shared connection, in one process."""

    def __init__(self, may_read: bool = True) -> None:
        ours, theirs = Introduction(True, True), Introduction(False, True)
        introduce(ours, theirs)
        assert ours.shared is not None
        assert theirs.shared is not None
        for shared in (ours.shared, theirs.shared):
            shared.peer_reads_us = may_read
        self.socks = socket.socketpair()
        self.heap = SharedHeap()
        for sock in self.socks:
            sock.setblocking(False)
        self.links = [
            SharedLink(sock, shared, 1 - rank, 0, 1 << 16, ByteCount(), self.heap)
            for rank, (sock, shared) in enumerate(zip(self.socks, (ours.shared, theirs.shared), strict=True))
        ]

    def close(self) -> None:
        for link in self.links:
            link.close()


@pytest.fixture(params=["readable", "unreadable"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    both = Ends(request.param == "readable")
    yield both
    both.close()


def all_reduce_task(link: SharedLink, sequence: int, array: np.ndarray, rank: int, algorithm: str) -> Task:
    program = compile_program(prove(build("all_reduce", algorithm, 2)), rank, len(array), array.itemsize)
    memory = array.view(np.uint8)
    buffers = (memory, memory, np.zeros(program.scratch_bytes, np.uint8))
    machine = Machine(program, buffers, array.dtype, reduction("sum", array.dtype), lambda _: link.staging())
    call = CallDescriptor(3, sequence, "all_reduce", str(array.dtype), len(array), "sum", None, algorithm)
    links = [None if lane.peer < 0 else link for lane in program.lanes]
    task = Task(call, machine, links, (0, 1), 5.0, 1e9, False, None)
    for lane in program.lanes:
        link.add(task, lane.number, lane.incoming)
    return task


def test_what_is_read_while_a_line_stops_is_noted_once(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a line has lent, each is either done when it stops or reported to the machine later."""
    length, link = 8 * (64 << 10), ends.links[0]
    program = compile_program(prove(build("scatter", "direct", 2, root=0)), 0, length, 4, 128 << 10)
    line = straighten(program)
    assert line is not None
    links = [None if lane.peer < 0 else link for lane in program.lanes]
    bound = BoundLine(line, program, links, np.dtype(np.float32), None, 7)
    memory = tuple(ends.heap.empty(size, np.float32) for size in (length, length // 2, 1))
    monkeypatch.setattr(lean, "YIELDS", 0)
    taken = itertools.count(0, 2)
    stop = BoundLine._stopped

    def stopping(*args: Any) -> Stopped:
        monkeypatch.setattr(link.outlet, "taken", lambda: next(taken))  # the peer reads on between two looks
        return stop(*args)

    monkeypatch.setattr(BoundLine, "_stopped", stopping)
    stopped = bound.run((memory[0], memory[1], memory[2]), 0, memory[2].view(np.uint8))
    assert stopped is not None
    sends = [number for number, posted in enumerate(stopped.posted) if posted]
    held = [operation.number for _, operation, _ in link._lent]
    assert len(sends) >= 3
    assert sorted([number for number in sends if stopped.marks[number]] + held) == sends


@pytest.mark.parametrize("algorithm", ["recursive_doubling", "ring", "halving_doubling"])
@pytest.mark.parametrize("memory", ["shared", "ordinary"])
def test_collectives_one_after_the_other_share_a_ring(ends: Ends, algorithm: str, memory: str) -> None:
    rng = random.Random(5)
    make: Any = ends.heap.empty if memory == "shared" else np.empty
    sizes = (1, 5000, 9, 700_001, 300_000)
    arrays = [[make(size, np.float32) for size in sizes] for _ in range(2)]
    for rank in range(2):
        for array in arrays[rank]:
            array[...] = np.arange(len(array)) % 1000 + rank
    tasks = [
        [all_reduce_task(ends.links[rank], number, array, rank, algorithm) for number, array in enumerate(arrays[rank])]
        for rank in range(2)
    ]
    for _ in range(100_000):
        link = ends.links[rng.randrange(2)]
        for act, streams in ((link.pump_out, link.outgoing), (link.pump_in, link.incoming)):
            if streams:
                task = streams[0].task
                assert act() in (Pumped.IDLE, Pumped.MOVED)
                while task.machine.take_woken():
                    link.nudge(task)
        if all(task.machine.done for rank in range(2) for task in tasks[rank]):
            break
    for rank in range(2):
        for number, array in enumerate(arrays[rank]):
            assert tasks[rank][number].machine.done, tasks[rank][number].progress()
            np.testing.assert_array_equal(array, np.arange(len(array)) % 1000 * 2 + 1)
    one, two = (link.count for link in ends.links)
    assert one.payload_sent == two.payload_received == sum(task.machine.program.sent_bytes for task in tasks[0])
    assert one.overhead_sent == two.overhead_received


def transfer_task(link: SharedLink, array: np.ndarray, rank: int) -> Task:
    program = transfer_program(rank, len(array), array.itemsize)
    memory, nothing = array.view(np.uint8), np.zeros(0, np.uint8)
    buffers = (memory, nothing, nothing) if rank == 0 else (nothing, memory, nothing)
    machine = Machine(program, buffers, array.dtype, None, lambda _: link.staging())
    task = Task(CallDescriptor(3, 0, "send"), machine, [link], (0, 1), 5.0, 1e9, False, None)
    link.add(task, 0, rank == 1)
    return task


@pytest.mark.parametrize("memory", ["shared", "ordinary"])
def test_what_was_taken_back_is_not_handed_out(memory: str) -> None:
    ends = Ends()
    source = (ends.heap.empty if memory == "shared" else np.empty)(100_000, np.float32)
    target = np.zeros(100_000, np.float32)
    transfer_task(ends.links[0], source, 0)
    received = transfer_task(ends.links[1], target, 1)
    assert ends.links[0].pump_out() is Pumped.MOVED
    record = ends.links[1].inlet.peek()
    assert record is not None
    assert record[3] == (LENT if memory == "shared" else REMOTE)
    ends.links[0].abandon()  # the sender raises, and may write to it from now on
    assert ends.links[1].pump_in() is Pumped.BROKEN
    assert "gave up" in ends.links[1].broken
    assert not received.finished
    ends.close()


def test_lent_memory_is_the_senders_again_only_when_it_was_read() -> None:
    ends = Ends()
    source, target = np.ones(50_000, np.float32), np.zeros(50_000, np.float32)
    sent = transfer_task(ends.links[0], source, 0)
    received = transfer_task(ends.links[1], target, 1)
    assert ends.links[0].pump_out() is Pumped.MOVED
    assert not sent.machine.done
    assert ends.links[0].pump_out() is Pumped.IDLE
    while ends.links[1].pump_in() is Pumped.MOVED:
        pass
    assert received.machine.done
    assert ends.links[0].pump_out() is Pumped.MOVED
    assert sent.machine.done
    ends.close()


def test_a_peer_that_sleeps_is_woken_once_and_an_end_is_noticed() -> None:
    ends = Ends()
    sleeper, other = ends.links
    sleeper.fall_asleep()
    other.ring_if_asleep()
    other.ring_if_asleep()
    assert ends.socks[0].recv(100) == b"\0"
    sleeper.wake_up()
    other.ring_if_asleep()
    with pytest.raises(BlockingIOError):
        ends.socks[0].recv(100)
    transfer_task(other, np.zeros(5, np.float32), 1)
    ends.socks[0].close()
    assert other.pump_in() is Pumped.BROKEN
    ends.close()


# -- real ranks ----------------------------------------------------------------------------------------------------


def sums_of(comm: Communicator, unreadable: bool) -> list[float]:
    if unreadable:
        introduction.can_read = lambda *_: False  # type: ignore[assignment]
    results = []
    for size in (10, 5_000, 300_001, 3_000_000):
        for make in (np.empty, comm.empty):
            array = make(size, np.float32)
            out = make(size, np.float32)
            array[...] = np.arange(size) % 100 + comm.rank
            for algorithm in ("recursive_doubling", "ring", "halving_doubling"):
                comm.all_reduce(array, out=out, algorithm=algorithm)
                results.append(float(out.sum(dtype=np.float64)))
            comm.all_reduce(array, out=array, algorithm="recursive_doubling")
            results.append(float(array.sum(dtype=np.float64)))
    return results


@pytest.mark.parametrize("unreadable", [False, True])
def test_every_way_of_lending_gives_the_same_sums(unreadable: bool) -> None:
    ranks = run_ranks(3, sums_of, unreadable, transport="shm")
    expected = [
        float((np.arange(size) % 100 * 3 + 3).sum(dtype=np.float64))
        for size in (10, 5_000, 300_001, 3_000_000)
        for _ in range(8)
    ]
    assert ranks == [expected] * 3


def dies_while_it_lends(comm: Communicator) -> Any:
    array = comm.empty(1 << 20, np.float32)
    array[...] = 1.0
    comm.all_reduce(array, out=array)
    if comm.rank == 1:
        comm.all_reduce(array, out=array, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(3):
            comm.all_reduce(array, out=array)
    except AtollError as error:
        return type(error).__name__, getattr(error, "culprits", ())
    return "nothing", ()


def test_nothing_is_left_behind_by_a_rank_that_is_killed() -> None:
    before = set(os.listdir("/dev/shm"))
    outcomes = outcomes_of(3, dies_while_it_lends, transport="shm")
    assert outcomes[1].exit_code == -signal.SIGKILL
    assert [outcomes[rank].value for rank in (0, 2)] == [(PeerLost.__name__, (1,))] * 2
    assert set(os.listdir("/dev/shm")) == before


def asks_for_what_the_other_refuses(comm: Communicator) -> Any:
    if comm.rank == 1:
        comm._caller.process.endpoint._share_memory = False
    else:
        comm._caller.process.transport = "shm"
    try:
        comm.all_reduce(np.ones(3))
    except AtollError as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def test_shm_is_an_error_where_a_rank_of_the_host_shares_nothing() -> None:
    first, second = run_ranks(2, asks_for_what_the_other_refuses)
    assert first[0] == SpecError.__name__
    assert "shares no memory with rank 1" in first[1]
    assert second[0] == PeerLost.__name__


def test_an_unknown_transport_is_refused() -> None:
    assert read_transport({}) == "auto"
    with pytest.raises(SpecError, match=r"ATOLL_TRANSPORT: unknown transport 'smh'.*shm"):
        read_transport({"ATOLL_TRANSPORT": "smh"})


def test_shm_needs_a_machine_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "platform", SimpleNamespace(machine=lambda: "aarch64"))
    with pytest.raises(SpecError, match="x86-64"):
        read_transport({"ATOLL_TRANSPORT": "shm"})
    assert Segment.__slots__


def ways_of(comm: Communicator, size: int, kind: str) -> dict[str, int]:
    array = (comm.empty if kind == "shared" else np.empty)(size, np.float32)
    array[...] = 1.0
    comm.all_reduce(array, out=array, algorithm="ring")
    (count,) = comm.traffic().values()
    return {"sent": count.payload_sent, "lent": count.lent_sent, "remote": count.remote_sent}


@pytest.mark.parametrize(
    ("size", "kind", "way"),
    [(1000, "shared", None), (40_000, "shared", "lent"), (40_000, "own", None), (100_000, "own", "remote")],
)
def test_the_way_that_bytes_took_is_counted(size: int, kind: str, way: str | None) -> None:
    expected = {"sent": 4 * size, "lent": 0, "remote": 0} | ({} if way is None else {way: 4 * size})
    assert run_ranks(2, ways_of, size, kind, transport="shm") == [expected] * 2
