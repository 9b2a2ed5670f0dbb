"""Reading another process's memory where the kernel allows it: ``process_vm_readv``, one copy and no staging.

The kernel asks for what a debugger needs: the same user and a process that may be traced. Whether two processes may
is tried out when they meet (``introduction``), never assumed.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any, Final

import numpy as np
import numpy.typing as npt


def _load() -> Any:
    try:
        call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except (OSError, AttributeError):  # not Linux, or a C library without it
        return None
    call.restype = ctypes.c_ssize_t
    call.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)
    return call


_READV: Final = _load()


class RemoteMemory:
    """The memory of process ``pid``. Used by one thread at a time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._vectors = (ctypes.c_uint64 * 4)()  # (address, length) here, (address, length) there
        self._here = ctypes.addressof(self._vectors)
        self._there = self._here + 16

    def read(self, target: int, source: int, num_bytes: int) -> int:
        """Copy from address ``source`` there to address ``target`` here; how many bytes came.

        Raises ``OSError`` where the kernel refuses, the process is gone or it has no such memory.
        """
        if _READV is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        vectors = self._vectors
        vectors[0], vectors[1], vectors[2], vectors[3] = target, num_bytes, source, num_bytes
        got: int = _READV(self._pid, self._here, 1, self._there, 1, 0)
        if got < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return got

    def read_into(self, target: memoryview, source: int) -> int:
        """Fill ``target``, which is writable, from address ``source``; how many bytes came."""
        return self.read(ctypes.addressof(ctypes.c_char.from_buffer(target)), source, len(target))


def can_read(pid: int, address: int, expected: bytes) -> bool:
    """Whether the memory of process ``pid`` can be read, and has ``expected`` at ``address``."""
    found: npt.NDArray[np.uint8] = np.zeros(len(expected), dtype=np.uint8)
    try:
        got = RemoteMemory(pid).read_into(found.data, address)
    except OSError:
        return False
    return got == len(expected) and found.tobytes() == expected
