"""Memory that processes of one host share, without a name: nothing is left behind, however a process ends.

A segment is a ``memfd``. Another process of the same user opens it as ``/proc/PID/fd/FD``; it is gone with the last
process that has it open or mapped, also after SIGKILL, and never appears in ``/dev/shm``.

Arrays in shared memory (``SharedHeap``) can be lent to a peer in place. A segment that is no longer used is kept for
the next array of its size; beyond ``KEPT_BYTES`` its pages are given back, without making it shorter, so that a peer
that still looks at it reads zeros and never faults.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import sys
import threading
import weakref
from bisect import bisect_right
from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

KEPT_BYTES: Final = 256 << 20
MAX_SEGMENT_BYTES: Final = 1 << 40
Bytes = npt.NDArray[np.uint8]


def available() -> bool:
    """Whether this machine can: Linux, for ``memfd`` and ``/proc``, and x86-64, for the order of stores."""
    return sys.platform == "linux" and hasattr(os, "memfd_create") and platform.machine() in ("x86_64", "AMD64")


class Segment:
    """``num_bytes`` of shared memory, mapped. ``fd`` is -1 where another process made it."""

    __slots__ = ("fd", "map", "num_bytes")

    def __init__(self, fd: int, mapped: mmap.mmap) -> None:
        self.fd = fd
        self.map = mapped
        self.num_bytes = len(mapped)

    def forget_descriptor(self) -> None:
        """Nobody attaches it any more."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Close what can be closed; a mapping that is looked at goes with its last view."""
        self.forget_descriptor()
        with contextlib.suppress(BufferError):
            self.map.close()

    def __del__(self) -> None:
        self.close()


def create(num_bytes: int, name: str) -> Segment:
    """A new segment of zeros, whole pages. ``name`` is for people who look into ``/proc``."""
    size = max(1, -(-num_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE
    fd = os.memfd_create(f"atoll-{name}", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        return Segment(fd, mmap.mmap(fd, size))
    except BaseException:
        os.close(fd)
        raise


def attach(pid: int, fd: int, num_bytes: int) -> Segment:
    """Map the segment that process ``pid`` has open as ``fd``. Raises ``OSError`` where it cannot be."""
    handle = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(handle).st_size
        if not 0 < num_bytes <= size <= MAX_SEGMENT_BYTES:
            raise OSError(f"file {fd} of process {pid} has {size} bytes, expected at least {num_bytes}")
        return Segment(-1, mmap.mmap(handle, size))
    except ValueError as error:
        raise OSError(str(error)) from None
    finally:
        os.close(handle)


class Place(NamedTuple):
    """Where an array lies: the segment's descriptor, its serial number in this process, and the offset in it."""

    fd: int
    serial: int
    offset: int


class SharedHeap:
    """Arrays of one process in shared memory, and which addresses are theirs. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._serials = count(1)
        self._starts: list[int] = []  # addresses, ascending
        self._segments: list[tuple[Segment, int]] = []  # and serial number, in the same order
        self._kept: dict[int, list[tuple[Segment, int]]] = {}
        self._kept_bytes = 0

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An uninitialised array. Its memory is reused once the array and all views of it are gone."""
        kind = np.dtype(dtype)
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        num_bytes = int(np.prod(extents, dtype=np.int64)) * kind.itemsize
        size = max(1, -(-num_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        with self._lock:
            kept = self._kept.get(size)
            if kept:
                segment, serial = kept.pop()
                self._kept_bytes -= size
            else:
                segment, serial = create(size, "array"), next(self._serials)
                address = np.frombuffer(segment.map, dtype=np.uint8).__array_interface__["data"][0]
                place = bisect_right(self._starts, address)
                self._starts.insert(place, address)
                self._segments.insert(place, (segment, serial))
        root: Bytes = np.frombuffer(segment.map, dtype=np.uint8)
        weakref.finalize(root, self._give_back, segment, serial).atexit = False
        return root[:num_bytes].view(kind).reshape(extents)

    def find(self, address: int) -> Place | None:
        """The place of an address, None where it is not in shared memory."""
        starts = self._starts
        at = bisect_right(starts, address) - 1
        if at < 0:
            return None
        segment, serial = self._segments[at]
        offset = address - starts[at]
        return Place(segment.fd, serial, offset) if offset < segment.num_bytes else None

    def _give_back(self, segment: Segment, serial: int) -> None:
        with self._lock:
            if self._kept_bytes + segment.num_bytes <= KEPT_BYTES:
                self._kept.setdefault(segment.num_bytes, []).append((segment, serial))
                self._kept_bytes += segment.num_bytes
                return
            place = self._segments.index((segment, serial))
            del self._starts[place], self._segments[place]
        segment.map.madvise(mmap.MADV_REMOVE)  # also what peers have mapped
        segment.close()
