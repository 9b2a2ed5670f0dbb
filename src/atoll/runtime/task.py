"""One collective in flight: its machine, its call, its deadline, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.link import HEADER, Link
from atoll.runtime.machine import Machine, Unfinished
from atoll.runtime.program import LOCAL

if TYPE_CHECKING:
    from atoll.runtime.shared_link import SharedLink


class Task:
    """Made by a communicator, moved by ``Progress``. ``finished`` is set last; then ``error`` is final.

    ``links`` maps the machine's lanes to connections (None for local moves). ``deadline`` is in seconds of the
    monotonic clock. ``asynchronous`` tasks are moved in the background too. ``world_ranks[r]`` is the world rank of the
    communicator's rank r. ``local_lane`` is the lane of local moves, -1 without any. ``on_finish`` is called once, when
    all bytes are moved. ``noted_position`` is where the machine was when last looked at.
    """

    __slots__ = (
        "asynchronous", "call", "deadline", "error", "expired", "finished", "header", "links", "local_lane", "machine",
        "moving", "noted_position", "on_finish", "timeout_s", "told_waits", "world_ranks",
    )  # fmt: skip

    def __init__(
        self, call: CallDescriptor, machine: Machine, links: Sequence[Link | SharedLink | None],
        world_ranks: Sequence[int], timeout_s: float, deadline: float, asynchronous: bool,
        on_finish: Callable[[], None] | None,
    ) -> None:  # fmt: skip
        self.call = call
        self.machine = machine
        self.links = links
        self.world_ranks = world_ranks
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.asynchronous = asynchronous
        self.on_finish = on_finish
        self.header = bytearray(HEADER.pack(call.sequence, call.fingerprint()))
        self.local_lane = next((lane.number for lane in machine.program.lanes if lane.peer == LOCAL), -1)
        self.moving = False
        self.told_waits: list[int] | None = None
        self.expired = False  # its deadline has passed; now it is the verdict's
        self.noted_position = -1
        self.error: BaseException | None = None
        self.finished = False

    def bytes_moved(self) -> int:
        """Payload bytes sent and received so far."""
        return self.machine.bytes_moved()

    def waits_on(self) -> list[int]:
        """World ranks whose bytes are awaited; where there are none, those that have yet to take ours."""
        left = [rest.lane for rest in self.machine.unfinished() if rest.lane.peer != LOCAL]
        awaited = [lane for lane in left if lane.incoming] or left
        return sorted({self.world_ranks[lane.peer] for lane in awaited})

    def progress(self) -> str:
        """How far it has come, in words for a story: on each lane the bytes left, the step and the chunk reached."""
        left = self.machine.unfinished()
        if not left:
            return "all bytes moved"
        left.sort(key=lambda rest: not rest.lane.incoming)
        parts = [self._words(rest) for rest in left if rest.lane.peer != LOCAL]
        shown = parts[:4] + ([f"and {len(parts) - 4} more"] if len(parts) > 4 else [])
        return "; ".join(shown) or f"local moves left ({self._place(left[0])})"

    def _words(self, rest: Unfinished) -> str:
        way = "come from" if rest.lane.incoming else "go to"
        plural = "" if rest.num_bytes == 1 else "s"
        return f"{rest.num_bytes} byte{plural} still to {way} rank {rest.lane.peer} ({self._place(rest)})"

    def _place(self, rest: Unfinished) -> str:
        """Numbered from 0, as in the schedule's table."""
        if rest.chunk < 0:
            return "the token at the end"
        program = self.machine.program
        in_blocks = program.operations[program.payload_operations - 1].step >= program.num_steps
        return f"{f'block {rest.block}, ' if in_blocks else ''}step {rest.step}, chunk {rest.chunk}"
