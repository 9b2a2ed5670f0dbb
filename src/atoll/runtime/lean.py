"""Running a line: a call's work done at once, by the thread that calls.

Used when nothing else is in flight, between ranks of one host at any size, across a socket where all operations are
small enough to go out at once. Each instruction looks whether it can be done, for a moment; when it has waited
longer than a call between ranks that are all there ever takes, ``run`` stops where it is, and the machine goes on from
there (``Stopped``): it sleeps properly, sees deadlines and dead peers, and finds out who called what. So nothing that
can go wrong is dealt with twice.

What is small and staged is written out in ``run`` itself, without a call: a collective of a few bytes is a few
microseconds, and a call of a Python function a good part of one. All else goes through ``SharedLink``. Peers that
sleep are woken before this rank waits, and at the end: one fence covers all that was posted or taken until then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.runtime.linear import (
    MOVE,
    MOVE_REDUCE,
    RECEIVE,
    REDUCE,
    SEND,
    TOKEN_RECEIVE,
    TOKEN_SEND,
    WAIT,
    Instruction,
    Line,
)  # fmt: skip
from atoll.runtime.link import NEVER, Link
from atoll.runtime.program import Program
from atoll.runtime.shared_link import STAGED_AT_MOST, SharedLink
from atoll.runtime.shared_ring import HEAD, RECORD, SLOT_BYTES, SLOTS, STAGED, TAIL, rounded

Array = npt.NDArray[Any]
Memory = tuple[Array, Array, Array]
AnyLink = Link | SharedLink
LOOKS: Final = 40  # before the processor is yielded for the first time
CROWDED_LOOKS: Final = 2  # the same where a rank on this host may be waiting for this very processor
SOCKET_LOOKS: Final = 4  # the same for a socket, where a look is a system call
YIELDS: Final = 200
PATIENCE_S: Final = 0.002  # however few yields that are: where a core is shared by many, each lasts long
SOCKET_BYTES: Final = 64 << 10  # of an operation that a socket takes at once


class Stopped(msgspec.Struct, frozen=True):
    """Where a line was left: bytes done and bytes posted of each operation, bytes that have come for each lane beyond
    those, and the scratch memory it used."""

    marks: list[int]
    posted: list[int]
    rests: list[bytes]
    scratch: npt.NDArray[np.uint8]


class _Step:
    """An instruction with what it needs at hand: ``area`` is the staging area, ``view`` the first of it."""

    __slots__ = (
        "area", "count", "elements", "inlet", "instruction", "itemsize", "kind", "link", "looks", "num_bytes",
        "on_socket", "operand", "outlet", "received_first", "room", "source", "staged", "target", "view",
    )  # fmt: skip

    def __init__(self, instruction: Instruction, link: AnyLink | None, dtype: np.dtype[Any], crowded: bool) -> None:
        operation = instruction.operation
        self.kind = instruction.kind
        self.instruction = instruction
        self.source = instruction.source
        self.target = instruction.target
        self.operand = instruction.operand
        self.received_first = operation.received_first
        self.num_bytes = operation.num_bytes
        self.itemsize = dtype.itemsize
        self.elements = operation.num_bytes // dtype.itemsize
        self.link = link
        self.on_socket = isinstance(link, Link)
        self.staged = False
        self.looks = CROWDED_LOOKS if crowded else SOCKET_LOOKS if isinstance(link, Link) else LOOKS
        if isinstance(link, SharedLink):
            self.outlet, self.inlet, self.count = link.outlet, link.inlet, link.count
            ring = self.inlet if self.kind in (RECEIVE, REDUCE) else self.outlet
            self.staged = self.num_bytes <= STAGED_AT_MOST
            self.area = ring.typed(dtype)
            self.room = rounded(self.num_bytes)
            self.view = self.area[: self.elements if self.staged else 0]


class BoundLine:
    """A line bound to its links, for one dtype and operation; run any number of times."""

    def __init__(
        self, line: Line, program: Program, links: Sequence[AnyLink | None], dtype: np.dtype[Any],
        ufunc: np.ufunc | None, fingerprint: int, crowded: bool = False,
    ) -> None:  # fmt: skip
        """``fingerprint`` is that of every call that runs the line; ``crowded``: ranks outnumber processors here."""
        self._fingerprint = fingerprint
        self.links = links
        self.program = program
        self.has_tokens = program.payload_operations != len(program.operations)
        self._ufunc: Any = ufunc
        # Nothing is lent to a socket, so nothing has to come back.
        self._instructions = [
            instruction
            for instruction in line.instructions
            if instruction.kind != WAIT or isinstance(links[instruction.lane], SharedLink)
        ]
        self._shared = [
            link for at, link in enumerate(links) if isinstance(link, SharedLink) and link not in links[:at]
        ]
        self._steps = [
            _Step(instruction, links[instruction.lane], dtype, crowded) for instruction in self._instructions
        ]
        self._lent: dict[int, tuple[SharedLink, int]] = {}  # of the call that runs: operation -> record

    def run(self, memory: Memory, sequence: int, scratch: npt.NDArray[np.uint8]) -> Stopped | None:
        """Do it all, or as much as can be done; ``None`` when all is done. ``memory`` is input, output and scratch as
        elements."""
        ufunc, fingerprint = self._ufunc, self._fingerprint
        silent = False  # whether a peer may sleep that has not been told what was posted or taken
        if self._lent:
            self._lent.clear()
        for place, step in enumerate(self._steps):
            kind = step.kind
            if kind == SEND:
                if step.staged and (words := step.outlet.words)[TAIL] == (head := step.outlet.head):
                    outlet = step.outlet
                    buffer, where = step.source  # type: ignore[misc]
                    step.view[...] = memory[buffer][where]
                    # What ``reserve`` would have noted: all others are taken, this one begins at 0.
                    outlet.staged = [(head, 0)]
                    outlet.free_at = step.room
                    at = head % SLOTS * SLOT_BYTES
                    RECORD.pack_into(outlet.records, at, sequence, fingerprint, step.num_bytes, STAGED, 0, 0, 0)
                    outlet.head = words[HEAD] = head + 1
                    count = step.count
                    count.payload_sent += step.num_bytes
                    count.overhead_sent += RECORD.size
                    silent = True
                    continue
            elif kind <= REDUCE and step.staged:
                inlet = step.inlet
                tail = inlet.tail
                words = inlet.words
                if words[HEAD] == tail:
                    if silent:
                        self._tell()
                        silent = False
                    looks = step.looks
                    while words[HEAD] == tail and looks:
                        looks -= 1
                    if not looks and not _comes(words, tail):
                        return self._stopped(place, 0, scratch)
                if not inlet.read:
                    record = RECORD.unpack_from(inlet.records, tail % SLOTS * SLOT_BYTES)
                    if record[:4] == (sequence, fingerprint, step.num_bytes, STAGED):
                        at = record[4] // step.itemsize
                        source = step.area[at : at + step.elements] if at else step.view
                        buffer, where = step.target  # type: ignore[misc]
                        target = memory[buffer][where]
                        if kind == RECEIVE:
                            target[...] = source
                        else:
                            buffer, where = step.operand  # type: ignore[misc]
                            if step.received_first:
                                ufunc(source, memory[buffer][where], target)
                            else:
                                ufunc(memory[buffer][where], source, target)
                        inlet.take()
                        count = step.count
                        count.payload_received += step.num_bytes
                        count.overhead_received += RECORD.size
                        silent = True
                        continue
            if silent:
                self._tell()
                silent = False
            if step.on_socket:
                done = self._over_socket(step, memory, sequence)
            else:
                done = self._patiently(step, memory, sequence, fingerprint)
                silent = kind != WAIT
            if done >= 0:
                return self._stopped(place, done, scratch)
        if silent:
            self._tell()
        return None

    def _over_socket(self, step: _Step, memory: Memory, sequence: int) -> int:
        """Do one step across a socket as ``_patiently`` does."""
        link: Link = step.link  # type: ignore[assignment]
        fingerprint, operation = self._fingerprint, step.instruction.operation
        patience = _Patience(step.looks)
        source = target = operand = None
        sends = step.kind in (SEND, TOKEN_SEND)
        if step.source is not None:
            buffer, where = step.source
            source = memory[buffer][where]
        if step.target is not None:
            buffer, where = step.target
            target = memory[buffer][where]
            if step.operand is not None:
                buffer, where = step.operand
                operand = memory[buffer][where]
        while True:
            if sends:
                got = link.post(sequence, fingerprint, source, operation)
                if got == 0:
                    return -1
                if got == NEVER:
                    return link.sent_of_line
            else:
                got = link.receive(sequence, fingerprint, target, operand, operation, self._ufunc)
                if got > 0:
                    return -1
                if got == NEVER:
                    return 0
            if not patience.lasts():
                return 0

    def _patiently(self, step: _Step, memory: Memory, sequence: int, fingerprint: int) -> int:
        """Do one step, waiting a little; -1 when it is done, else how many of its bytes are."""
        instruction = step.instruction
        link: SharedLink = step.link  # type: ignore[assignment]  # a local move uses none
        operation = instruction.operation
        done = 0
        patience = _Patience(step.looks)
        while True:
            if step.kind == SEND:
                buffer, where = instruction.source  # type: ignore[misc]
                record = link.post(sequence, fingerprint, memory[buffer][where], operation)
                if record >= 0:
                    if record:
                        self._lent[operation.number] = (link, record)
                    return -1
                got = record
            elif step.kind in (RECEIVE, REDUCE):
                buffer, where = instruction.target  # type: ignore[misc]
                target = memory[buffer][where]
                operand = None
                if instruction.operand is not None:
                    buffer, where = instruction.operand
                    operand = memory[buffer][where]
                got = link.receive(sequence, fingerprint, target, operand, done, operation, self._ufunc)
                if got > 0:
                    done += got
                    if done == operation.num_bytes:
                        return -1
                    patience = _Patience(step.looks)
                    continue
            elif step.kind == WAIT:
                lender, record = self._lent.get(operation.number, (None, 0))
                if lender is None or lender.given_back(record):
                    return -1
                got = 0
            elif step.kind == TOKEN_SEND:
                got = link.post_token(sequence, fingerprint, operation)
                if got == 0:
                    return -1
            elif step.kind == TOKEN_RECEIVE:
                got = link.receive_token(sequence, fingerprint, operation)
                if got > 0:
                    return -1
            else:
                assert step.kind in (MOVE, MOVE_REDUCE)
                self._move(instruction, memory)
                return -1
            if got == NEVER or not patience.lasts():
                return done

    def _move(self, instruction: Instruction, memory: Memory) -> None:
        assert instruction.source is not None
        assert instruction.target is not None
        (source, read), (target, written) = instruction.source, instruction.target
        if instruction.operand is None:
            memory[target][written] = memory[source][read]
            return
        operand, other = instruction.operand
        pair = (memory[source][read], memory[operand][other])
        self._ufunc(*(pair if instruction.operation.received_first else pair[::-1]), out=memory[target][written])

    def _tell(self) -> None:
        """Wake peers that sleep."""
        if self._shared:
            self._shared[0].fence()
            for link in self._shared:
                if link.flags[link.theirs]:
                    link.wake_peer()

    def _stopped(self, place: int, done: int, scratch: npt.NDArray[np.uint8]) -> Stopped:
        """What the machine has to know: instruction ``place`` has moved ``done`` bytes and could not be finished."""
        marks = [0] * len(self.program.operations)
        posted = [0] * len(self.program.operations)
        for instruction in self._instructions[:place]:
            number, num_bytes = instruction.operation.number, instruction.operation.num_bytes
            if instruction.kind in (SEND, TOKEN_SEND):
                posted[number] = num_bytes
            if instruction.kind != WAIT and number not in self._lent:
                marks[number] = num_bytes
        # One look for each link: what is read after it is the machine's to find out.
        held = {id(link): link.held() for link in self._shared}
        for number, (link, record) in self._lent.items():
            if record not in held[id(link)]:
                marks[number] = self.program.operations[number].num_bytes
        stuck = self._instructions[place]
        if stuck.kind in (RECEIVE, REDUCE, SEND):
            marks[stuck.operation.number] = done
        self._tell()
        rests = [
            link.rest_of_line() if link is not None and lane.incoming else b""
            for lane, link in zip(self.program.lanes, self.links, strict=True)
        ]
        return Stopped(marks, posted, rests, scratch)


class _Patience:
    """How long a step waits: ``looks`` times without a pause, then some yields of the processor."""

    __slots__ = ("_looks", "_until", "_yields")

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self._yields = 0
        self._until = 0.0

    def lasts(self) -> bool:
        """Whether to look again; to be asked after each look in vain."""
        if self._looks:
            self._looks -= 1
            return True
        if not self._yields:
            self._until = time.monotonic() + PATIENCE_S
        elif self._yields > YIELDS or time.monotonic() > self._until:
            return False
        self._yields += 1
        os.sched_yield()
        return True


def _comes(words: memoryview, tail: int) -> bool:
    """Whether record ``tail`` comes within the patience of a line."""
    patience = _Patience(0)
    while words[HEAD] == tail:
        if not patience.lasts():
            return False
    return True
