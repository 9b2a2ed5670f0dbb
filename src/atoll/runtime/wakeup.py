"""A wake-up that one thread waits on in its selector and any thread may give.

An ``eventfd``: one descriptor, level-triggered, so a wake-up given before the wait begins is not lost. Where other
threads may still be about to ``set`` it, leave it to be closed with its last reference, so that nobody ever writes to a
number that means another file by then.
"""

from __future__ import annotations

import os


class Wakeup:
    """``fileno`` goes into a selector for reading; ``set`` makes it readable, ``clear`` makes it quiet again."""

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor, or -1 once closed."""
        return self._fd

    def set(self) -> None:
        """Wake the waiter; from any thread; nothing once closed."""
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Take back all wake-ups so far. Clear first, then look at what happened: so none is missed."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Release the descriptor."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
