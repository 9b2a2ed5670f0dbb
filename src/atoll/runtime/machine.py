"""A rank as a pure state machine: it plays a compiled program, and knows neither sockets nor clocks nor threads.

The transport asks for memory and says what happened; the machine moves marks:

``buffer_for(lane)``   where the next bytes of an incoming lane belong, or None: nothing wanted just now
``received(lane, n)``  n bytes landed there; they are reduced as far as the guards allow
``sends(lane)``        views of the bytes that an outgoing lane may send now, perhaps none
``sent(lane, n)``      n bytes of them are out of our hands: their memory may be overwritten
``offer(lane)``        the next run of bytes that may be posted, for a receiver that reads them where they lie
``posted(lane, n)``    n bytes of it were posted
``delivered(op, n)``   n bytes of an operation were read by the receiver, or copied away: out of our hands
``take(lane, bytes)``  bytes that lie readable somewhere; how many of them were moved or reduced into place
``move(lane)``         make local moves as far as they may go; whether any was made
``nudge(lane)``        an incoming lane may go on: reduce what is staged
``take_woken()``       lanes that an advance has unblocked since the last call; the transport pumps them
``observer``           if it is set, told of every advance: the operation's number and its mark before

Bytes that only replace land where they belong, without a copy. Bytes to be reduced land in the connection's one
staging segment and are reduced from there, so that receiving, reducing and sending overlap segment by segment. A
lane whose destination may not be overwritten yet wants no more than its segment holds. The proof says that one
segment is enough (``schedule.progress``).

Marks of reductions move by whole elements. All memory is given by the caller; the machine allocates nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from atoll.errors import InternalError
from atoll.runtime.program import LOCAL, Lane, Operation, Program
from atoll.runtime.reduction import Reduction

Bytes = npt.NDArray[np.uint8]
MAX_VIEWS = 16  # views handed out by one ``sends``: well below IOV_MAX, and enough to fill a socket's buffer


class _Cursor:
    """Where a lane is: its first operation that is not done; for reductions what is staged, bytes ``start`` to
    ``filled``; for sends that are posted, how far: ``posted`` bytes of operation ``posting``."""

    __slots__ = ("at", "filled", "lane", "operations", "posted", "posting", "staged", "staging", "start")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.operations = lane.operations
        self.at = 0
        self.start = 0
        self.filled = 0
        self.posting = 0
        self.posted = 0
        self.staging: memoryview | None = None
        self.staged: npt.NDArray[Any] | None = None


class Unfinished(NamedTuple):
    """Where a lane is: the step of a block that it is in, the chunk that it moves there, -1 for a token, and the bytes
    that are left to it in all steps."""

    lane: Lane
    block: int
    step: int
    chunk: int
    num_bytes: int


class Machine:
    """One rank in one collective. ``buffers`` are input, output and scratch as flat byte arrays."""

    def __init__(
        self,
        program: Program,
        buffers: tuple[Bytes, Bytes, Bytes],
        dtype: np.dtype[Any],
        reduction: Reduction | None,
        staging: Callable[[Lane], Bytes],
    ) -> None:
        """``staging(lane)`` gives an incoming lane's segment, of whole elements; asked for only if it reduces."""
        for name, array, num_bytes in zip(
            ("input", "output", "scratch"),
            buffers,
            (program.input_bytes, program.output_bytes, program.scratch_bytes),
            strict=True,
        ):
            if len(array) < num_bytes:
                raise InternalError(f"{program.name}: {name} has {len(array)} bytes, the program needs {num_bytes}")
        if program.needs_reduction and reduction is None:
            raise InternalError(f"{program.name}: reduces, and was given no operation")
        self.program = program
        self.buffers = buffers
        self._bytes = tuple(array.data for array in buffers)
        self._typed = tuple(array[: len(array) // dtype.itemsize * dtype.itemsize].view(dtype) for array in buffers)
        self._ufunc = reduction.ufunc if reduction is not None else np.add
        self._dtype = dtype
        self._itemsize = dtype.itemsize
        self._marks = [0] * len(program.operations)
        self._left = len(program.operations)
        self.observer: Callable[[int, int], None] | None = None
        self._woken: list[int] = []
        self._cursors = [_Cursor(lane) for lane in program.lanes]
        for cursor in self._cursors:
            if cursor.lane.incoming and any(operation.operand is not None for operation in cursor.operations):
                segment = staging(cursor.lane)
                if len(segment) == 0 or len(segment) % dtype.itemsize:
                    raise InternalError(f"{program.name}: a segment of {len(segment)} bytes holds no whole {dtype}s")
                cursor.staging = segment.data
                cursor.staged = segment.view(dtype)

    @property
    def done(self) -> bool:
        return self._left == 0

    def lane_done(self, number: int) -> bool:
        cursor = self._cursors[number]
        return cursor.at == len(cursor.operations)

    def has_all(self, number: int) -> bool:
        """Whether all bytes of an incoming lane have come; some of them may still be staged."""
        cursor = self._cursors[number]
        left = len(cursor.operations) - cursor.at
        if left != 1:
            return left == 0
        operation = cursor.operations[cursor.at]
        return operation.num_bytes - self._marks[operation.number] == cursor.filled - cursor.start

    def buffer_for(self, number: int) -> memoryview | None:
        cursor = self._cursors[number]
        if cursor.at == len(cursor.operations):
            return None
        operation = cursor.operations[cursor.at]
        mark = self._marks[operation.number]
        if operation.operand is None:
            limit = self._limit(operation)
            if limit <= mark:
                return None
            assert operation.target is not None
            buffer, offset = operation.target
            return self._bytes[buffer][offset + mark : offset + limit]
        staging = cursor.staging
        assert staging is not None
        outstanding = operation.num_bytes - mark - (cursor.filled - cursor.start)
        if outstanding == 0:
            return None
        if cursor.filled == len(staging):
            if cursor.start == 0:
                return None
            rest = cursor.filled - cursor.start
            staging[:rest] = bytes(staging[cursor.start : cursor.filled])
            cursor.start, cursor.filled = 0, rest
        return staging[cursor.filled : min(len(staging), cursor.filled + outstanding)]

    def received(self, number: int, num_bytes: int) -> None:
        cursor = self._cursors[number]
        operation = cursor.operations[cursor.at]
        if operation.operand is None:
            self._advance(cursor, operation, num_bytes)
        else:
            cursor.filled += num_bytes
            self._reduce_staged(cursor, operation)

    def nudge(self, number: int) -> None:
        cursor = self._cursors[number]
        if cursor.filled > cursor.start:
            self._reduce_staged(cursor, cursor.operations[cursor.at])

    def sends(self, number: int) -> list[memoryview]:
        cursor = self._cursors[number]
        views: list[memoryview] = []
        for operation in cursor.operations[cursor.at : cursor.at + MAX_VIEWS]:
            mark = self._marks[operation.number]
            limit = self._limit(operation) if operation.guards else operation.num_bytes
            if limit > mark:
                assert operation.source is not None
                buffer, offset = operation.source
                views.append(self._bytes[buffer][offset + mark : offset + limit])
            if limit < operation.num_bytes:
                break
        return views

    def sent(self, number: int, num_bytes: int) -> None:
        cursor = self._cursors[number]
        while num_bytes:
            operation = cursor.operations[cursor.at]
            step = min(num_bytes, operation.num_bytes - self._marks[operation.number])
            self._advance(cursor, operation, step)
            num_bytes -= step

    def offer(self, number: int) -> tuple[Operation, int, int] | None:
        """The operation, the first byte of it that is not posted, and how many bytes may be."""
        cursor = self._cursors[number]
        if cursor.posting == len(cursor.operations):
            return None
        operation = cursor.operations[cursor.posting]
        start = cursor.posted
        limit = self._limit(operation) if operation.guards else operation.num_bytes
        if limit < operation.num_bytes:
            limit -= limit % self._itemsize  # the receiver may reduce whole elements only
        return (operation, start, limit - start) if limit > start else None

    def posted(self, number: int, num_bytes: int) -> None:
        cursor = self._cursors[number]
        cursor.posted += num_bytes
        if cursor.posted == cursor.operations[cursor.posting].num_bytes:
            cursor.posting += 1
            cursor.posted = 0

    def delivered(self, number: int, operation: Operation, num_bytes: int) -> None:
        """In the order of bytes for each operation, in any order of operations."""
        self._advance(self._cursors[number], operation, num_bytes)

    def take(self, number: int, source: Bytes) -> int:
        """Move or reduce of ``source``, the lane's next bytes, as much as the guards allow; whole elements where it
        reduces."""
        cursor = self._cursors[number]
        taken = 0
        while taken < len(source) and cursor.at < len(cursor.operations):
            operation = cursor.operations[cursor.at]
            mark = self._marks[operation.number]
            step = min(len(source) - taken, self._limit(operation) - mark)
            assert operation.target is not None
            buffer, offset = operation.target
            if operation.operand is None:
                if step <= 0:
                    break
                self.buffers[buffer][offset + mark : offset + mark + step] = source[taken : taken + step]
            else:
                step -= step % self._itemsize
                if step <= 0:
                    break
                received = source[taken : taken + step].view(self._dtype)
                target = self._elements(operation.target, mark, mark + step)
                operand = (
                    target
                    if operation.operand == operation.target
                    else self._elements(operation.operand, mark, mark + step)
                )
                self._combine(operation, received, operand, target)
            taken += step
            self._advance(cursor, operation, step)
        return taken

    def resume(self, marks: list[int], posted: list[int], rests: list[bytes]) -> None:
        """Go on from where a line has stopped: of each operation ``marks`` bytes are done and ``posted`` posted, and
        ``rests`` have come on each lane for its next operation."""
        self._marks = marks
        self._left = sum(
            mark < operation.num_bytes for mark, operation in zip(marks, self.program.operations, strict=True)
        )
        for cursor in self._cursors:
            self._skip_done(cursor)
            operations = cursor.operations
            while cursor.posting < len(operations) and posted[operations[cursor.posting].number]:
                cursor.posting += 1
        for number, rest in enumerate(rests):
            if rest and self._cursors[number].lane.incoming:
                view = self.buffer_for(number)
                assert view is not None  # the line waited for these bytes, so nothing before them is missing
                view[: len(rest)] = rest
                self.received(number, len(rest))

    def move(self, number: int, at_most_bytes: int) -> bool:
        """Local moves, at most about ``at_most_bytes`` of them; whether any was made."""
        cursor = self._cursors[number]
        moved = 0
        while cursor.at < len(cursor.operations) and moved < at_most_bytes:
            operation = cursor.operations[cursor.at]
            mark = self._marks[operation.number]
            limit = min(self._limit(operation), mark + at_most_bytes)
            if limit < operation.num_bytes:
                limit -= limit % self._itemsize
            if limit <= mark:
                break
            assert operation.source is not None
            assert operation.target is not None
            source = self._elements(operation.source, mark, limit)
            target = self._elements(operation.target, mark, limit)
            if operation.operand is None:
                target[...] = source
            else:
                operand = self._elements(operation.operand, mark, limit)
                self._combine(operation, source, operand, target)
            moved += limit - mark
            self._advance(cursor, operation, limit - mark)
        return moved > 0

    def take_woken(self) -> list[int]:
        woken = self._woken
        if woken:
            self._woken = []
        return woken

    def bytes_moved(self) -> int:
        """Payload bytes sent and received over all lanes but local moves."""
        return sum(
            self._marks[operation.number]
            for lane in self.program.lanes
            if lane.peer != LOCAL
            for operation in lane.operations
            if operation.number < self.program.payload_operations
        )

    def position(self) -> int:
        """A number that grows with every byte moved."""
        return sum(self._marks)

    def unfinished(self) -> list[Unfinished]:
        """For a story: lanes with work left, and where they are."""
        program = self.program
        left = []
        for cursor in self._cursors:
            rest = cursor.operations[cursor.at :]  # looked at once: another thread may ask while this one moves
            if rest:
                missing = sum(operation.num_bytes - self._marks[operation.number] for operation in rest)
                block, step = divmod(rest[0].step, program.num_steps)
                is_token = rest[0].number >= program.payload_operations
                left.append(Unfinished(cursor.lane, block, step, -1 if is_token else rest[0].chunk, missing))
        return left

    def _limit(self, operation: Operation) -> int:
        limit = operation.num_bytes
        marks = self._marks
        for before, start, before_start, num_bytes in operation.guards:
            passed = marks[before] - before_start
            if passed < num_bytes:
                bound = start + passed if passed > 0 else start
                if bound < limit:
                    limit = bound
        return limit

    def _reduce_staged(self, cursor: _Cursor, operation: Operation) -> None:
        mark = self._marks[operation.number]
        ready = min(cursor.filled - cursor.start, self._limit(operation) - mark)
        ready -= ready % self._itemsize
        if ready <= 0:
            return
        assert cursor.staged is not None
        assert operation.target is not None
        assert operation.operand is not None
        first = cursor.start // self._itemsize
        received = cursor.staged[first : first + ready // self._itemsize]
        target = self._elements(operation.target, mark, mark + ready)
        operand = (
            target if operation.operand == operation.target else self._elements(operation.operand, mark, mark + ready)
        )
        self._combine(operation, received, operand, target)
        cursor.start += ready
        if cursor.start == cursor.filled:
            cursor.start = cursor.filled = 0
        self._advance(cursor, operation, ready)

    def _combine(
        self, operation: Operation, received: npt.NDArray[Any], operand: npt.NDArray[Any], target: npt.NDArray[Any]
    ) -> None:
        if operation.received_first:
            self._ufunc(received, operand, out=target)
        else:
            self._ufunc(operand, received, out=target)

    def _elements(self, place: tuple[int, int], start: int, stop: int) -> npt.NDArray[Any]:
        buffer, offset = place
        return self._typed[buffer][(offset + start) // self._itemsize : (offset + stop) // self._itemsize]

    def _skip_done(self, cursor: _Cursor) -> None:
        while cursor.at < len(cursor.operations):
            operation = cursor.operations[cursor.at]
            if self._marks[operation.number] != operation.num_bytes:
                break
            cursor.at += 1

    def _advance(self, cursor: _Cursor, operation: Operation, num_bytes: int) -> None:
        number = operation.number
        if self.observer is not None:
            self.observer(number, self._marks[number])
        mark = self._marks[number] + num_bytes
        self._marks[number] = mark
        wakes = self.program.wakes[number]
        if wakes:
            self._woken.extend(wakes)
        if mark == operation.num_bytes:
            self._left -= 1
            self._skip_done(cursor)
        elif mark > operation.num_bytes:
            raise InternalError(f"{self.program.name}: operation {number} moved {mark} of {operation.num_bytes} bytes")
