"""A connection whose bytes go through shared memory: what ``Link`` is to a socket, for ranks of one host.

Small payloads are staged: the sender copies them into the ring and is done with them. Large ones stay where they are
until the receiver has read them, and it reduces straight from the sender's memory where it lies in shared memory
(``comm.empty``), or copies it over in one go where the kernel lets it (``process_vm_readv``). Where neither is
possible, and where two ranks exchange one place (``Operation.lend``), large payloads are staged piece by piece.

The socket that made the connection stays. It carries one byte to wake a side that has said that it sleeps, and its end
says that the peer is gone. A side that is about to sleep says so and then looks once more at its rings; the other one
posts and then looks whether it sleeps; with a full fence between the two, one of them sees the other.
"""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from atoll.runtime.introduction import SharedConnection
from atoll.runtime.link import HEADER, NEVER, NO_ROOM, BaseLink, ByteCount, LaneStream, Pumped, combine
from atoll.runtime.program import Operation
from atoll.runtime.remote_memory import RemoteMemory
from atoll.runtime.shared_memory import SharedHeap, attach
from atoll.runtime.shared_ring import LENT, PAGE, RECORD, REMOTE, RING_BYTES, STAGED, STAGING_BYTES, Inlet, Outlet

if TYPE_CHECKING:
    from atoll.runtime.task import Task

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
STAGED_AT_MOST: Final = 32 << 10  # payloads up to this size are staged even where they could be lent
REMOTE_FROM: Final = (128 << 10) + 1  # below, a copy into the staging area costs less than to wait for the reader
PIECE_BYTES: Final = 256 << 10  # of a large payload that is staged, so that both sides copy at once
LENT_PIECE_BYTES: Final = 1 << 20
REDUCED_PIECE_BYTES: Final = 256 << 10  # of the peer's memory that is copied to be reduced: it stays in the cache
MAX_MAPPED: Final = 64  # segments of the peer's that are kept mapped
_OPENER_SLEEPS, _ACCEPTOR_SLEEPS = 0, 8  # words in the segment's first page
_REVOKED: Final = 16  # words further: what that side has lent is no longer what it was


class _Stream(LaneStream):
    """And what its records say of the call."""

    __slots__ = ("fingerprint", "sequence")

    def __init__(self, task: Task, lane: int) -> None:
        super().__init__(task, lane)
        self.sequence, self.fingerprint = HEADER.unpack(task.header)


class SharedLink(BaseLink[_Stream]):
    """Its bytes go through shared memory."""

    def __init__(
        self, connection: socket.socket, shared: SharedConnection, peer: int, channel: int, segment_bytes: int,
        count: ByteCount, heap: SharedHeap,
    ) -> None:  # fmt: skip
        super().__init__(connection, peer, channel, segment_bytes, count)
        self.shared = shared
        count.shared = True
        memory = memoryview(shared.segment.map)
        first, second = PAGE, PAGE + RING_BYTES
        self.outlet = Outlet(memory, first if shared.we_opened else second)
        self.inlet = Inlet(memory, second if shared.we_opened else first)
        self.flags = memory[:PAGE].cast("Q")
        self._mine, self.theirs = (
            (_OPENER_SLEEPS, _ACCEPTOR_SLEEPS) if shared.we_opened else (_ACCEPTOR_SLEEPS, _OPENER_SLEEPS)
        )
        self._fence = threading.Lock()
        self._heap = heap
        self._remote = RemoteMemory(shared.peer_pid)
        self._mapped: OrderedDict[int, Bytes] = OrderedDict()
        self._lent: deque[tuple[int, Operation, int]] = deque()  # (record, operation, bytes) that are not given back

    def add(self, task: Task, lane: int, incoming: bool) -> None:
        """Queue a lane of ``task`` behind the collectives already here."""
        (self.incoming if incoming else self.outgoing).append(_Stream(task, lane))

    # -- sleeping and waking -----------------------------------------------------------------------------------------

    def fall_asleep(self) -> None:
        """Say that we shall sleep; the caller looks at the rings once more before it does."""
        self.flags[self._mine] = 1
        self.fence()

    def wake_up(self) -> None:
        self.flags[self._mine] = 0

    def fence(self) -> None:
        """A full fence: what was stored before is visible before anything is loaded after (a locked instruction)."""
        self._fence.acquire()
        self._fence.release()

    def ring_if_asleep(self) -> None:
        """Wake the peer if it sleeps; after a record was posted or taken."""
        self.fence()
        self.wake_peer()

    def wake_peer(self) -> None:
        """As ``ring_if_asleep``, after a fence."""
        if self.flags[self.theirs]:
            self.flags[self.theirs] = 0
            try:
                self.connection.send(b"\0")
            except OSError:
                return  # a full buffer wakes as well; an end is found when it is read

    def _drain(self) -> None:
        """Take wake-ups off the socket, and see whether it has ended."""
        try:
            while True:
                if not self.connection.recv(4096):
                    self.broken = "closed by the other side"
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            self.broken = error.strerror or str(error)
        self.readable = False

    # -- sending -----------------------------------------------------------------------------------------------------

    def pump_out(self) -> Pumped:
        """Learn what was taken; post what may be posted."""
        if not self.outgoing:
            return Pumped.IDLE
        stream = self.outgoing[0]
        moved = self._reap(stream)
        machine = stream.task.machine
        if not machine.lane_done(stream.lane):
            posted = False
            while (offer := machine.offer(stream.lane)) is not None and self._post(stream, *offer):
                posted = True
            if posted:
                self.ring_if_asleep()
            moved = moved or posted
        if machine.lane_done(stream.lane):
            self.outgoing.popleft()
            moved = True
        elif not moved and self.readable:
            self._drain()
            if self.broken and not self.incoming:
                return Pumped.BROKEN  # where something is incoming, that is read to its end first
        return Pumped.MOVED if moved else Pumped.IDLE

    def _reap(self, stream: _Stream) -> bool:
        taken = self.outlet.taken()
        moved = False
        while self._lent and self._lent[0][0] < taken:
            _, operation, num_bytes = self._lent.popleft()
            stream.task.machine.delivered(stream.lane, operation, num_bytes)
            moved = True
        return moved

    def _post(self, stream: _Stream, operation: Operation, start: int, num_bytes: int) -> bool:
        """Announce bytes ``start`` to ``start + num_bytes`` of ``operation``, or the first of them; False: no room."""
        outlet = self.outlet
        if outlet.full():
            return False
        assert operation.source is not None
        buffer, offset = operation.source
        array = stream.task.machine.buffers[buffer]
        offset += start
        lent = 0
        # All of an operation goes one way, since its mark counts bytes from the first.
        if operation.lend and operation.num_bytes > STAGED_AT_MOST:
            lent = self._lend(stream, operation, array, offset, num_bytes)
        num_bytes = lent or self._stage(stream, array, offset, num_bytes)
        if num_bytes == 0:
            return False
        self.count.payload_sent += num_bytes
        self.count.overhead_sent += RECORD.size
        machine = stream.task.machine
        machine.posted(stream.lane, num_bytes)
        if lent:
            self._lent.append((outlet.head - 1, operation, num_bytes))
        else:
            machine.delivered(stream.lane, operation, num_bytes)
        return True

    def _lend(self, stream: _Stream, operation: Operation, array: Bytes, offset: int, num_bytes: int) -> int:
        """Bytes lent, 0 where that is not possible."""
        address = array.__array_interface__["data"][0] + offset
        num_bytes = min(num_bytes, LENT_PIECE_BYTES)
        return num_bytes if self._post_lent(stream.sequence, stream.fingerprint, operation, address, num_bytes) else 0

    def _post_lent(self, sequence: int, fingerprint: int, operation: Operation, address: int, num_bytes: int) -> bool:
        """Whether the peer is to read there."""
        place = self._heap.find(address)
        if place is not None:
            self.outlet.post(sequence, fingerprint, num_bytes, LENT, place.fd, place.offset, place.serial)
            self.count.lent_sent += num_bytes
        elif operation.num_bytes >= REMOTE_FROM and self.shared.peer_reads_us:
            self.outlet.post(sequence, fingerprint, num_bytes, REMOTE, address)
            self.count.remote_sent += num_bytes
        else:
            return False
        return True

    def _stage(self, stream: _Stream, array: Bytes, offset: int, num_bytes: int) -> int:
        num_bytes = min(num_bytes, PIECE_BYTES)
        place = self.outlet.reserve(num_bytes)
        if place < 0:
            return 0
        self.outlet.staging[place : place + num_bytes] = array[offset : offset + num_bytes]
        self.outlet.post(stream.sequence, stream.fingerprint, num_bytes, STAGED, place)
        return num_bytes

    # -- receiving ---------------------------------------------------------------------------------------------------

    def pump_in(self) -> Pumped:
        """Take the next record, or what the guards allow of it."""
        if not self.incoming or self.foreign_sequence >= 0:
            return Pumped.IDLE
        inlet = self.inlet
        record = inlet.peek()
        if record is None:
            if self.readable:
                self._drain()
            # What the other side posted before it ended may still be read.
            return Pumped.BROKEN if self.broken and inlet.peek() is None else Pumped.IDLE
        stream = self.incoming[0]
        if record[0] != stream.sequence or record[1] != stream.fingerprint:
            if stream.task.machine.has_all(stream.lane):
                return Pumped.IDLE  # the next call's: what was copied for this one waits to be reduced
            self.foreign_sequence = record[0]
            return Pumped.FOREIGN
        got = self._read(stream, record)
        if got and record[3] != STAGED and self.flags[self.theirs + _REVOKED]:
            self.broken = "it gave up the collective while its memory was read"
            got = 0
        if got == 0:
            return Pumped.BROKEN if self.broken else Pumped.IDLE
        self.count.payload_received += got
        if self._has_read(got, record[2]):
            self.ring_if_asleep()
        if stream.task.machine.lane_done(stream.lane):
            self.incoming.popleft()
        return Pumped.MOVED

    def _read(self, stream: _Stream, record: tuple[int, ...]) -> int:
        """Move bytes of ``record`` to where they belong; how many."""
        _, _, num_bytes, kind, where, offset, serial = record
        machine, read = stream.task.machine, self.inlet.read
        if kind == STAGED:
            return machine.take(stream.lane, self.inlet.staging[where + read : where + num_bytes])
        try:
            if kind == LENT:
                lent = self.peer_segment(where, serial, offset + num_bytes)
                return machine.take(stream.lane, lent[offset + read : offset + num_bytes])
            view = machine.buffer_for(stream.lane)
            if view is None:
                return 0
            got = self._remote.read_into(view[: num_bytes - read], where + read)
        except OSError as error:
            self.broken = f"its memory cannot be read: {error.strerror or error}"
            return 0
        machine.received(stream.lane, got)
        return got

    def peer_segment(self, fd: int, serial: int, num_bytes: int) -> Bytes:
        """A segment of the peer's, mapped when first seen."""
        mapped = self._mapped.get(serial)
        if mapped is None:
            segment = attach(self.shared.peer_pid, fd, num_bytes)
            mapped = np.frombuffer(segment.map, dtype=np.uint8)
            self._mapped[serial] = mapped
            if len(self._mapped) > MAX_MAPPED:
                self._mapped.popitem(last=False)
        return mapped

    # -- one call at a time, without a machine; who calls wakes the peer (``lean``) ----------------------------------

    def post(self, sequence: int, fingerprint: int, source: Array, operation: Operation) -> int:
        """Post all of an operation: 0 if it was staged, a number for ``given_back`` if it was lent, ``NO_ROOM`` or
        ``NEVER``."""
        outlet = self.outlet
        num_bytes = operation.num_bytes
        record = 0
        if operation.lend and num_bytes > STAGED_AT_MOST and not outlet.full():
            address = source.__array_interface__["data"][0]
            if self._post_lent(sequence, fingerprint, operation, address, num_bytes):
                record = outlet.head
                self._lent.append((record - 1, operation, num_bytes))
        if not record:
            if num_bytes > STAGING_BYTES:
                return NEVER
            place = outlet.reserve(num_bytes)
            if place < 0:
                return NO_ROOM
            itemsize = source.itemsize
            outlet.typed(source.dtype)[place // itemsize : (place + num_bytes) // itemsize] = source
            outlet.post(sequence, fingerprint, num_bytes, STAGED, place)
        self.count.payload_sent += num_bytes
        self.count.overhead_sent += RECORD.size
        return record

    def given_back(self, record: int) -> bool:
        """Whether what was lent has been read."""
        return self._forget_read() >= record

    def held(self) -> set[int]:
        """What was lent and has not been read."""
        self._forget_read()
        return {record + 1 for record, _, _ in self._lent}

    def _forget_read(self) -> int:
        taken = self.outlet.taken()
        while self._lent and self._lent[0][0] < taken:
            self._lent.popleft()
        return taken

    def receive(
        self, sequence: int, fingerprint: int, target: Array, operand: Array | None, done: int, operation: Operation,
        ufunc: np.ufunc | None,
    ) -> int:  # fmt: skip
        """Move or reduce bytes ``done`` and on of an operation, as many as the next record has: how many. 0: none are
        there yet; ``NEVER``: what is there is not for this call, or cannot be read."""
        inlet = self.inlet
        record = inlet.peek()
        if record is None:
            return 0
        their_sequence, their_fingerprint, num_bytes, kind, where, offset, serial = record
        read = inlet.read
        step = min(num_bytes - read, operation.num_bytes - done)
        itemsize = target.itemsize
        if their_sequence != sequence or their_fingerprint != fingerprint or step % itemsize or read % itemsize:
            return NEVER
        if step != operation.num_bytes:
            part = slice(done // itemsize, (done + step) // itemsize)
            target, operand = target[part], None if operand is None else operand[part]
        if kind == STAGED:
            source = inlet.typed(target.dtype)[(where + read) // itemsize : (where + read + step) // itemsize]
            combine(source, target, operand, operation, ufunc)
        else:
            try:
                if kind == LENT:
                    lent = self.peer_segment(where, serial, offset + num_bytes)
                    source = lent[offset + read : offset + read + step].view(target.dtype)
                    combine(source, target, operand, operation, ufunc)
                else:
                    self._copy_remote(where + read, target, operand, operation, ufunc)
            except OSError:
                return NEVER
            if self.flags[self.theirs + _REVOKED]:
                return NEVER
        self.count.payload_received += step
        self._has_read(step, num_bytes)
        return step

    def _copy_remote(
        self, address: int, target: Array, operand: Array | None, operation: Operation, ufunc: np.ufunc | None
    ) -> None:
        """All of ``target`` from the peer's memory at ``address``, piece by piece where it is reduced."""
        if operand is None:
            into = target.__array_interface__["data"][0]
            if self._remote.read(into, address, target.nbytes) != target.nbytes:
                raise OSError("a part of the memory is missing")
            return
        pieces = self.staging()[:REDUCED_PIECE_BYTES].view(target.dtype)
        into = pieces.__array_interface__["data"][0]
        for start in range(0, len(target), len(pieces)):
            part = slice(start, min(start + len(pieces), len(target)))
            size = part.stop - part.start
            if self._remote.read(into, address + start * target.itemsize, size * target.itemsize) != (
                size * target.itemsize
            ):
                raise OSError("a part of the memory is missing")
            combine(pieces[:size], target[part], operand[part], operation, ufunc)

    def post_token(self, sequence: int, fingerprint: int, operation: Operation) -> int:
        """As ``post``."""
        place = self.outlet.reserve(1)
        if place < 0:
            return NO_ROOM
        self.outlet.post(sequence, fingerprint, 1, STAGED, place)
        self.count.payload_sent += 1  # until the call has ended, as the machine counts it
        self.count.overhead_sent += RECORD.size
        return 0

    def receive_token(self, sequence: int, fingerprint: int, operation: Operation) -> int:
        """As ``receive``."""
        record = self.inlet.peek()
        if record is None:
            return 0
        if record[0] != sequence or record[1] != fingerprint:
            return NEVER
        self.count.payload_received += 1
        self._has_read(1, record[2])
        return 1

    def _has_read(self, step: int, num_bytes: int) -> bool:
        """Whether that was the rest of the record."""
        inlet = self.inlet
        inlet.read += step
        if inlet.read < num_bytes:
            return False
        self.count.overhead_received += RECORD.size
        inlet.take()
        return True

    def rest_of_line(self) -> bytes:
        """What was not finished is still where it was."""
        return b""

    def abandon(self) -> None:
        """What is in flight has failed: forget it, and take back what was lent. The caller may write to it from now
        on, so a peer that finds this said after reading hands nothing out."""
        self.incoming.clear()
        self.outgoing.clear()
        if self._lent:
            self._lent.clear()
            self.flags[self._mine + _REVOKED] = 1
            self.fence()

    def close(self) -> None:
        self.abandon()
        self._mapped.clear()
        self.connection.close()
        self.flags.release()
        self.outlet.release()
        self.inlet.release()
        self.shared.close()
