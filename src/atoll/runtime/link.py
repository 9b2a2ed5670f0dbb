"""One connection with its two lanes: the queues of collectives on it, the headers between them, the counted bytes.

Collectives share a connection one after the other, in the order in which they were called, which is the same on both
sides. Each begins with a header of 16 bytes, its sequence number and the fingerprint of its call, so that bytes of a
call that the other side did not make are never taken for data. A header travels with its first payload, in one
system call on both sides.

A header that is another call's is the last thing that is read from a connection.

A small collective that runs as a straight line (``lean``) posts and receives whole operations instead; what it leaves
half done, a header among it, the streams take up.

Readiness is edge-triggered: a link remembers that its socket is readable or writable until a short transfer shows
that it no longer is.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.runtime.program import Operation

if TYPE_CHECKING:
    from atoll.runtime.task import Task

Array = npt.NDArray[Any]
HEADER = struct.Struct("<QQ")


NO_ROOM, NEVER = -1, -2  # what ``post`` and ``receive`` of a line say instead of a number
_TOKEN = memoryview(b"\0")


class Pumped(Enum):
    """What a pump came to."""

    IDLE = "nothing could be done"
    MOVED = "bytes were moved; pump again"
    FOREIGN = "the header is of another call; nothing more is read"
    BROKEN = "the connection has ended"


class ByteCount(msgspec.Struct):
    """Bytes really passed to and from one peer; overhead is headers and tokens.

    ``shared``: through shared memory. Of the payload that was sent there ``lent_sent`` bytes were read in place, and
    ``remote_sent`` from ordinary memory by ``process_vm_readv``; the rest was staged.
    """

    payload_sent: int = 0
    payload_received: int = 0
    overhead_sent: int = 0
    overhead_received: int = 0
    shared: bool = False
    lent_sent: int = 0
    remote_sent: int = 0

    def tokens_are_overhead(self, num_bytes: int, incoming: bool) -> None:
        """``num_bytes`` counted as payload were tokens."""
        if incoming:
            self.payload_received -= num_bytes
            self.overhead_received += num_bytes
        else:
            self.payload_sent -= num_bytes
            self.overhead_sent += num_bytes


class LaneStream:
    """One collective on one direction of a link: the lane it plays."""

    __slots__ = ("lane", "task")

    def __init__(self, task: Task, lane: int) -> None:
        self.task = task
        self.lane = lane


class _Stream(LaneStream):
    """And how much of the header is still to come."""

    __slots__ = ("header", "header_left")

    def __init__(self, task: Task, lane: int, header: bytearray) -> None:
        super().__init__(task, lane)
        self.header = memoryview(header)
        self.header_left = HEADER.size


StreamT = TypeVar("StreamT", bound=LaneStream)


class BaseLink(Generic[StreamT]):
    """A connection to ``peer`` on ``channel``, whatever its bytes go through: its socket, non-blocking, its streams,
    and the memory in which received bytes wait to be reduced. Touched only by the thread that drives progress."""

    def __init__(
        self, connection: socket.socket, peer: int, channel: int, segment_bytes: int, count: ByteCount
    ) -> None:
        self.connection = connection
        self.fd = connection.fileno()
        self.peer = peer
        self.channel = channel
        self.count = count
        self.readable = True
        self.writable = True
        self.hung_up = False
        self.broken = ""
        self.foreign_sequence = -1  # of the call whose header has come where another one was due
        self.queued = False
        self.incoming: deque[StreamT] = deque()
        self.outgoing: deque[StreamT] = deque()
        self.sent_of_line = 0
        self._segment_bytes = segment_bytes
        self._staging: npt.NDArray[np.uint8] | None = None

    def staging(self) -> npt.NDArray[np.uint8]:
        """The connection's one staging segment, made when a collective first reduces on it."""
        if self._staging is None:
            self._staging = np.empty(self._segment_bytes, dtype=np.uint8)
        return self._staging

    def nudge(self, task: Task) -> None:
        """Reduce what is staged for ``task``, as far as it may go now; nothing is where it is not yet its turn."""
        if self.incoming and self.incoming[0].task is task:
            stream = self.incoming[0]
            task.machine.nudge(stream.lane)
            if task.machine.lane_done(stream.lane):
                self.incoming.popleft()


class Link(BaseLink[_Stream]):
    """Its bytes go through the socket."""

    def __init__(
        self, connection: socket.socket, peer: int, channel: int, segment_bytes: int, count: ByteCount
    ) -> None:
        super().__init__(connection, peer, channel, segment_bytes, count)
        self._foreign_told = False
        self._out_sequence = self._in_sequence = -1  # of the line that has last begun to send, and to receive
        self._out_left = self._in_left = 0  # of its headers
        self._buffer = memoryview(bytearray())  # a header, and an operation of a line
        self._in_buffer = 0  # bytes of that operation
        self._elements: dict[np.dtype[Any], Array] = {}  # the buffer behind the header, typed

    def add(self, task: Task, lane: int, incoming: bool) -> None:
        """Queue a lane of ``task`` behind the collectives already here."""
        self.readable = self.writable = True  # a line may have used the socket meanwhile
        stream = _Stream(task, lane, bytearray(HEADER.size) if incoming else task.header)
        if incoming and self._in_sequence == task.call.sequence:
            stream.header[:] = self._buffer[: HEADER.size]
            stream.header_left = self._in_left
        elif not incoming and self._out_sequence == task.call.sequence:
            stream.header_left = self._out_left
        (self.incoming if incoming else self.outgoing).append(stream)

    def pump_out(self) -> Pumped:
        """Send what may be sent, in one system call."""
        if not self.outgoing or not self.writable:
            return Pumped.IDLE
        stream = self.outgoing[0]
        machine = stream.task.machine
        views = machine.sends(stream.lane)
        if not views:
            return Pumped.IDLE
        header_left = stream.header_left
        if header_left:
            views.insert(0, stream.header[HEADER.size - header_left :])
        try:
            sent = self.connection.send(views[0]) if len(views) == 1 else self.connection.sendmsg(views)
        except BlockingIOError:
            self.writable = False
            return Pumped.IDLE
        except OSError as error:
            # What the other side sent before it closed may still be read.
            self.writable = False
            self.broken = error.strerror or str(error)
            return Pumped.BROKEN
        if sent < sum(map(len, views)):
            self.writable = False
        if header_left:
            part = min(sent, header_left)
            stream.header_left -= part
            self.count.overhead_sent += part
            sent -= part
        if sent:
            self.count.payload_sent += sent
            machine.sent(stream.lane, sent)
            if machine.lane_done(stream.lane):
                self.outgoing.popleft()
        return Pumped.MOVED

    def pump_in(self) -> Pumped:
        """Receive what is wanted and there, in one system call."""
        if self.foreign_sequence >= 0 and not self._foreign_told and self.incoming:
            self._foreign_told = True
            return Pumped.FOREIGN
        if not self.incoming or not self.readable or self.foreign_sequence >= 0:
            return Pumped.IDLE
        stream = self.incoming[0]
        machine = stream.task.machine
        view = machine.buffer_for(stream.lane)
        try:
            if stream.header_left:
                views = [stream.header[HEADER.size - stream.header_left :]]
                if view is not None:
                    views.append(view)
                wanted = sum(map(len, views))
                got = self.connection.recvmsg_into(views)[0]
            elif view is not None:
                wanted = len(view)
                got = self.connection.recv_into(view)
            else:
                return Pumped.IDLE
        except BlockingIOError:
            self.readable = False
            return Pumped.IDLE
        except OSError as error:
            self.readable = False
            self.broken = error.strerror or str(error)
            return Pumped.BROKEN
        if got == 0:
            self.readable = False
            self.broken = "closed by the other side"
            return Pumped.BROKEN
        if got < wanted and not self.hung_up:
            self.readable = False
        if stream.header_left:
            part = min(got, stream.header_left)
            stream.header_left -= part
            self.count.overhead_received += part
            got -= part
            if not stream.header_left and stream.header != stream.task.header:
                self.foreign_sequence = HEADER.unpack(stream.header)[0]
                self._foreign_told = True
                return Pumped.FOREIGN
        if got:
            self.count.payload_received += got
            machine.received(stream.lane, got)
            if machine.lane_done(stream.lane):
                self.incoming.popleft()
        return Pumped.MOVED

    # -- one call at a time, without a machine (``lean``) ------------------------------------------------------------

    def begin_line(self, operation_bytes: int) -> None:
        """Make room for operations of up to ``operation_bytes``."""
        if len(self._buffer) < HEADER.size + operation_bytes:
            self._buffer = memoryview(bytearray(HEADER.size + operation_bytes))
            self._elements.clear()

    def post(self, sequence: int, fingerprint: int, source: Array | None, operation: Operation) -> int:
        """Send all of an operation: 0. ``NO_ROOM``: nothing could be sent; ``NEVER``: it is for the machine, which
        finds ``sent_of_line`` bytes of it sent."""
        self.sent_of_line = 0
        if self._out_sequence != sequence:
            self._out_sequence, self._out_left = sequence, HEADER.size
        data: Any = _TOKEN if source is None else source  # an array is a buffer
        left = self._out_left
        try:
            if left:
                sent = self.connection.sendmsg([HEADER.pack(sequence, fingerprint)[HEADER.size - left :], data])
            else:
                sent = self.connection.send(data)
        except BlockingIOError:
            return NO_ROOM
        except OSError:
            return NEVER  # the stream meets it again
        header = min(sent, left)
        self._out_left = left - header
        sent -= header
        self.count.overhead_sent += header
        self.count.payload_sent += sent
        if sent == operation.num_bytes and not self._out_left:
            return 0
        self.sent_of_line = sent
        return NEVER

    def receive(
        self, sequence: int, fingerprint: int, target: Array | None, operand: Array | None, operation: Operation,
        ufunc: np.ufunc | None,
    ) -> int:  # fmt: skip
        """Receive all of an operation, and move or reduce it: its bytes. 0: not all is there yet; ``NEVER``: it is for
        the machine, which finds ``rest_of_line``."""
        if self._in_sequence != sequence:
            self._in_sequence, self._in_left = sequence, HEADER.size
            if self.foreign_sequence >= 0:
                return NEVER
        left, there, num_bytes = self._in_left, self._in_buffer, operation.num_bytes
        buffer = self._buffer
        try:
            got = self.connection.recv_into(buffer[HEADER.size - left + there : HEADER.size + num_bytes])
        except BlockingIOError:
            return 0
        except OSError:
            return NEVER
        if got == 0:
            return NEVER
        count = self.count
        if left:
            header = min(got, left)
            got -= header
            count.overhead_received += header
            self._in_left = left - header
            if not self._in_left:
                theirs = HEADER.unpack_from(buffer)
                if theirs != (sequence, fingerprint):
                    self.foreign_sequence = theirs[0]
                    count.payload_received += got
                    self._in_buffer = there + got
                    return NEVER
        count.payload_received += got
        there += got
        if self._in_left or there < num_bytes:
            self._in_buffer = there
            return 0
        self._in_buffer = 0
        if target is not None:
            elements = self._elements.get(target.dtype)
            if elements is None:
                elements = self._typed(target.dtype)
            combine(elements[: len(target)], target, operand, operation, ufunc)
        return num_bytes

    def _typed(self, dtype: np.dtype[Any]) -> Array:
        behind = np.frombuffer(self._buffer, np.uint8)[HEADER.size :]
        elements = self._elements[dtype] = behind[: len(behind) // dtype.itemsize * dtype.itemsize].view(dtype)
        return elements

    def rest_of_line(self) -> bytes:
        """What has come of the operation that a line could not finish; the machine takes it up."""
        there, self._in_buffer = self._in_buffer, 0
        return bytes(self._buffer[HEADER.size : HEADER.size + there])

    def abandon(self) -> None:
        """What is in flight has failed: forget it."""
        self.incoming.clear()
        self.outgoing.clear()

    def close(self) -> None:
        self.abandon()
        self.connection.close()


def combine(source: Array, target: Array, operand: Array | None, operation: Operation, ufunc: np.ufunc | None) -> None:
    """Move ``source``, which was received, to ``target``, or reduce it with ``operand``."""
    if operand is None:
        target[...] = source
    else:
        assert ufunc is not None
        if operation.received_first:
            ufunc(source, operand, target)
        else:
            ufunc(operand, source, target)
