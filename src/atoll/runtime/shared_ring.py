"""One direction of a connection through shared memory: a ring of records, and a staging area for small payloads.

A **record** announces bytes of one call, in the order of the lane: it carries the call's sequence number and
fingerprint, so that bytes of a call that the other side did not make are never taken for data, and says where the
bytes are:

``STAGED``  in the staging area, copied there by the sender, who may forget about them
``LENT``    in shared memory of the sender's (``comm.empty``), to be read in place
``REMOTE``  anywhere in the sender's memory, to be copied by ``process_vm_readv``

The sender alone writes ``head``, the number of records posted; the receiver alone writes ``tail``, the number taken.
What was lent is given back with the tail. A record is written before the head and read after it, which is enough on
x86-64, where stores become visible in order; other machines do not use this transport (``shared_memory.available``).

The staging area begins in the middle of a page. Copies into memory whose place in its page is slightly above that of
their source are several times slower on common processors (4 KiB aliasing), and NumPy's arrays begin 16 or 64 bytes
into a page.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

STAGED, LENT, REMOTE = 0, 1, 2
# sequence, fingerprint, num_bytes, kind, where (a position, an address or a file descriptor), offset, serial
RECORD: Final = struct.Struct("<QQQQQQQ")
SLOTS: Final = 64
SLOT_BYTES: Final = 64
STAGING_BYTES: Final = 1 << 20
PAGE: Final = 4096
HEAD, TAIL = 0, 8  # in words of 8 bytes: each on a cache line of its own
_RECORDS_AT: Final = PAGE
_STAGING_AT: Final = PAGE + SLOTS * SLOT_BYTES + PAGE // 2
RING_BYTES: Final = PAGE + SLOTS * SLOT_BYTES + PAGE + STAGING_BYTES
STAGING_STEP: Final = 64  # staged payloads begin at multiples of it, so that any dtype is aligned


def rounded(num_bytes: int) -> int:
    """The room that a staged payload takes."""
    return (num_bytes + STAGING_STEP - 1) // STAGING_STEP * STAGING_STEP


class _Ring:
    def __init__(self, memory: memoryview, start: int) -> None:
        self.words = memory[start : start + PAGE].cast("Q")
        self.records = memory[start + _RECORDS_AT : start + _RECORDS_AT + SLOTS * SLOT_BYTES]
        self.staging: npt.NDArray[np.uint8] = np.frombuffer(
            memory[start + _STAGING_AT : start + _STAGING_AT + STAGING_BYTES], dtype=np.uint8
        )
        self._typed: dict[np.dtype[Any], npt.NDArray[Any]] = {}

    def typed(self, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The staging area as elements of ``dtype``."""
        view = self._typed.get(dtype)
        if view is None:
            whole = STAGING_BYTES // dtype.itemsize * dtype.itemsize
            view = self._typed[dtype] = self.staging[:whole].view(dtype)
        return view

    def release(self) -> None:
        """Let go of the mapping, so that it can be closed."""
        self._typed.clear()
        self.staging = np.zeros(0, dtype=np.uint8)
        self.words.release()
        self.records.release()


class Outlet(_Ring):
    """The sender's end. ``head`` is how many records were posted."""

    def __init__(self, memory: memoryview, start: int) -> None:
        super().__init__(memory, start)
        self.head = self.words[HEAD]
        self.free_at = 0  # where the staging area is free from, unless it wraps
        self.staged: list[
            tuple[int, int]
        ] = []  # (record, first byte) of what may not have been taken yet; see ``lean``

    def taken(self) -> int:
        """How many records the receiver has taken."""
        tail: int = self.words[TAIL]
        return tail

    def full(self) -> bool:
        return self.head - self.words[TAIL] >= SLOTS

    def reserve(self, num_bytes: int) -> int:
        """Where ``num_bytes`` may be staged for the next record, or -1: not before more is taken."""
        tail = self.words[TAIL]
        if self.head - tail >= SLOTS:
            return -1
        staged = self.staged
        if tail == self.head:
            # All is taken. The same memory is used over and over, and stays in the cache.
            staged.clear()
            self.free_at = 0
        else:
            passed = 0
            while passed < len(staged) and staged[passed][0] < tail:
                passed += 1
            if passed:
                del staged[:passed]
        if not staged:
            start, room = 0, STAGING_BYTES
        else:
            start, oldest = self.free_at, staged[0][1]
            room = (STAGING_BYTES if start > oldest else oldest) - start
            if start > oldest and room < num_bytes:
                start, room = 0, oldest
        if room < num_bytes:
            return -1
        staged.append((self.head, start))
        self.free_at = start + rounded(num_bytes)
        return start

    def post(
        self, sequence: int, fingerprint: int, num_bytes: int, kind: int, where: int, offset: int = 0, serial: int = 0
    ) -> None:
        """Make a record visible. The caller has seen that there is room."""
        head = self.head
        RECORD.pack_into(
            self.records, head % SLOTS * SLOT_BYTES, sequence, fingerprint, num_bytes, kind, where, offset, serial
        )
        self.head = head + 1
        self.words[HEAD] = head + 1


class Inlet(_Ring):
    """The receiver's end. ``tail`` is how many records were taken, ``read`` bytes of the next one too."""

    def __init__(self, memory: memoryview, start: int) -> None:
        super().__init__(memory, start)
        self.tail = self.words[TAIL]
        self.read = 0
        self._next: tuple[int, ...] | None = None

    def peek(self) -> tuple[int, ...] | None:
        """The fields of the oldest record that is not taken, or None."""
        record = self._next
        if record is None and self.words[HEAD] != self.tail:
            record = self._next = RECORD.unpack_from(self.records, self.tail % SLOTS * SLOT_BYTES)
        return record

    def take(self) -> None:
        """The oldest record has been read: its memory is the sender's again."""
        self._next = None
        self.read = 0
        self.tail += 1
        self.words[TAIL] = self.tail
