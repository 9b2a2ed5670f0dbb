"""Waiting for a moment without sleeping: to yield the processor, where that brings the answer sooner.

With a core for every rank the answer of a peer is usually there at once, and with fewer the core goes to a rank that
has something to do. But where the core goes to somebody who keeps it, a rank had better sleep: Linux lets those who
yield wait for everybody else, each time again (since 6.18 a yield forfeits a whole time slice), while those who sleep
run soon after they are woken. A rank that yielded thirty times before it slept came to a turn once a second on a host
with ten busy processes for each core, and its control thread, which needs the same interpreter, with it.
"""

from __future__ import annotations

import os
import time
from typing import Final

CROWDED_S: Final = 0.001  # a yield that takes so long has given the core to somebody who keeps it
UNYIELDING_S: Final = 0.002  # from then on for so long there is no yielding: for this wait, and not for those to come


class Yielding:
    """One per thread that waits."""

    __slots__ = ("_not_before",)

    def __init__(self) -> None:
        self._not_before = 0.0

    def once(self) -> bool:
        """Let others run for a moment; whether to do so again, rather than to sleep."""
        now = time.monotonic()
        if now < self._not_before:
            return False
        os.sched_yield()
        after = time.monotonic()
        if after - now < CROWDED_S:
            return True
        self._not_before = after + UNYIELDING_S
        return False
