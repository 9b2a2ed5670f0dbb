"""Who drives: one thread at a time moves the bytes of a process, whoever waits for them.

A **driver** has the wheel. It takes it to wait for something, or *alone*, for one call that needs no loop; the
background thread has it while nobody waits, and gives it up when somebody wants it. A driver is **amid** something
while it moves bytes, and not while it sleeps: only then may a signal handler of the same thread take the wheel from it.

Whoever wants the wheel says so under the lock before it looks who has it. So a driver that leaves without the lock, and
then looks whether anybody waits, leaves nobody asleep.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from atoll.errors import SpecError


class Wheel:
    """``wake`` gets a driver out of its sleep. ``driver`` is the thread that has it, 0: none; ``wanted``: by a waiter,
    from the background; ``has_background``: there is a thread for that."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._turn = threading.Condition()
        self._waiters = 0
        self._background_drives = False
        self.driver = 0
        self.amid = False
        self.wanted = False
        self.has_background = False

    def is_mine(self) -> bool:
        return self.driver == threading.get_ident()

    def take_alone(self) -> bool:
        """Take it, amid one call, if it is free and nobody wants it; then ``leave_alone``. Whether it was taken."""
        if self.driver or self._waiters or not self._turn.acquire(False):
            return False
        try:
            if self.driver:
                return False
            self.driver = threading.get_ident()
            self.amid = True
            return True
        finally:
            self._turn.release()

    def leave_alone(self) -> None:
        self.amid = False
        self.driver = 0  # without the lock: see the module's text
        if self._waiters or self.has_background:
            self.tell()

    def take(self, done: Callable[[], bool], deadline: float | None) -> bool:
        """Become the driver; False when ``done``, or when the deadline (monotonic seconds) passed, meanwhile."""
        me = threading.get_ident()
        with self._turn:
            self._waiters += 1
            try:
                while self.driver not in (0, me):
                    if done():
                        return False
                    if self._background_drives:
                        self.wanted = True
                        self._wake()
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self._turn.wait(left)
                if self.driver == me and self.amid:
                    raise SpecError(
                        "called by a signal handler that has interrupted a collective of the same thread while it "
                        "moved bytes: expected a call from another thread or after the collective"
                    )
                # A driver of this thread further up the stack gives way: it finds out when it goes on.
                self.driver = me
                return True
            finally:
                self._waiters -= 1

    def take_for_background(self, has_work: Callable[[], bool], ended: Callable[[], bool]) -> bool:
        """Become the driver once there is work and nobody else is there to do it; False when all has ``ended``."""
        with self._turn:
            while not ended() and (self.driver or self._waiters or not has_work()):
                self._turn.wait()
            if ended():
                return False
            self.driver = threading.get_ident()
            self._background_drives = True
            return True

    def start_background(self, start: Callable[[], None]) -> None:
        """``start`` the background thread, if there is none, and have it look for work."""
        with self._turn:
            if not self.has_background:
                start()
                self.has_background = True
            self._turn.notify_all()

    def leave(self) -> None:
        """Give it up, if it is ours."""
        if self.is_mine():
            with self._turn:
                self.driver = 0
                self._background_drives = self.wanted = False
                self._turn.notify_all()

    def tell(self) -> None:
        """Have all who wait look again."""
        with self._turn:
            self._turn.notify_all()

    def tell_waiters(self) -> None:
        """The same, if there are any who wait for something to be done."""
        if self._waiters:
            self.tell()
