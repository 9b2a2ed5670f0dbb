"""What one rank has called on one communicator, as the control plane sees it.

The caller's thread writes at the start and end of every collective, and this is on the way of each of them, so it is a
store into a ring and nothing else: no lock, no wake-up. The control thread reads at any time. One value flows the
other way: ``alarm``, the first sequence number that somebody waits for. The control thread first lowers the alarm and
then looks whether the call has been made already; the caller first records its call and then looks at the alarm; so one
of the two sees the other.
"""

from __future__ import annotations

from typing import Final

from atoll.errors import AtollError
from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.messages import Standing

# Calls remembered. A root that broadcasts little runs ahead of the others by what sockets buffer; this is plenty.
HISTORY: Final = 1024
NO_ALARM: Final = 1 << 64


class CallLedger:
    """Calls of this rank on communicator ``communicator_id``, whose rank i is world rank ``ranks[i]``."""

    __slots__ = ("_arrivals", "_inside", "_ring", "alarm", "communicator_id", "entered", "failure", "ranks")

    def __init__(self, communicator_id: int, ranks: tuple[int, ...]) -> None:
        self.communicator_id = communicator_id
        self.ranks = ranks
        self.failure: AtollError | None = None
        self.alarm = NO_ALARM
        self.entered = 0  # how many calls were made: the next sequence number
        self._arrivals = [0.0] * HISTORY
        self._ring: list[CallDescriptor | None] = [None] * HISTORY
        self._inside: dict[int, CallDescriptor] = {}

    def enter(self, call: CallDescriptor, now: float) -> bool:
        """A call begins. Whether somebody waits for it."""
        sequence = call.sequence
        self._ring[sequence % HISTORY] = call
        self._inside[sequence] = call
        self._arrivals[sequence % HISTORY] = now
        self.entered = sequence + 1
        return sequence >= self.alarm

    def leave(self, sequence: int) -> None:
        """A call has ended."""
        self._inside.pop(sequence, None)

    @property
    def entered_at(self) -> float:
        """When the latest call was made; 0 before the first."""
        return self._arrivals[(self.entered - 1) % HISTORY]

    def arrivals(self, first: int) -> tuple[int, list[float]]:
        """When calls from ``first`` on were made, as far back as is remembered: the first of them, and the times."""
        entered = self.entered
        # The caller may be writing the next call into the oldest place.
        first = max(first, entered - HISTORY + 1, 0)
        return first, [self._arrivals[sequence % HISTORY] for sequence in range(first, entered)]

    @property
    def last(self) -> CallDescriptor | None:
        """The latest call."""
        return self._ring[(self.entered - 1) % HISTORY] if self.entered else None

    @property
    def inside(self) -> list[int]:
        """The sequence numbers of calls that have not ended."""
        return list(self._inside)

    def is_inside(self, sequence: int) -> bool:
        """Whether call ``sequence`` was made and has not ended."""
        return sequence in self._inside

    @property
    def completed(self) -> int:
        """How many calls have ended, counted from the first to the first that has not."""
        return min(list(self._inside), default=self.entered)

    def look_up(self, sequence: int) -> tuple[Standing, CallDescriptor | None]:
        """Where this rank stands towards call ``sequence``, and what it called there."""
        if sequence >= self.entered:
            return Standing.NOT_YET, None
        call = self._ring[sequence % HISTORY]
        if call is None or call.sequence != sequence:
            return Standing.FORGOTTEN, None
        return (Standing.INSIDE if sequence in self._inside else Standing.LEFT), call
