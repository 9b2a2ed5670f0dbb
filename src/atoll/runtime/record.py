"""A recorder of one rank's collectives: when each of its messages was on its way, in the model of ``atoll.trace``.

``Communicator.record`` sets it. While it is set, calls go through the machine, which tells of every advance, and not
through the straight line of ``lean``: what is recorded of small collectives takes some microseconds longer. Without a
recorder a call looks once whether there is one.

A machine sees bytes move, not when they could have. So a send's start is reckoned: the latest of the call, the end of
what was before it in its lane, and when what it waits for had come so far; bytes between the first and the last of an
operation are taken to have come evenly. Receives take the starts of their sends when the ranks' parts are joined.

Times are of one clock for all ranks of a host. Hosts are lined up by their wall clocks, as well as these agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from atoll.runtime.program import LOCAL, Lane, Operation, Program
from atoll.trace.events import TRANSFER_COLUMNS, Part, Trace, Transfers, join, plain_columns

if TYPE_CHECKING:
    from atoll.runtime.communicator import Communicator
    from atoll.runtime.membership import Host

MOST_OPERATIONS = 1_000_000  # of all calls of a recorder; calls beyond are not recorded


class RecordedCall:
    """One call as it goes: ``first[i]`` and ``last[i]`` are when operation i had moved its first and last bytes."""

    __slots__ = ("_clock", "end_s", "first", "last", "name", "program", "start_s")

    def __init__(self, name: str, program: Program, clock: Callable[[], float]) -> None:
        self.name = name
        self.program = program
        self._clock = clock
        self.start_s = clock()
        self.end_s: float | None = None
        self.first = [0.0] * len(program.operations)
        self.last = [0.0] * len(program.operations)

    def advanced(self, operation: int, mark: int) -> None:
        """An operation moves on from ``mark`` bytes."""
        now = self._clock()
        if mark == 0:
            self.first[operation] = now
        self.last[operation] = now

    def ended(self) -> None:
        self.end_s = self._clock()

    def part(self, rank: int) -> Part:
        """What happened, message by message."""
        program = self.program
        rows: list[tuple[int, int, bool, int, int, int, int, float, float]] = []
        for lane in program.lanes:
            if lane.peer != LOCAL:
                rows += self._messages(lane, rank)
        transfers = Transfers.of([[row[at] for row in rows] for at in range(len(TRANSFER_COLUMNS))])
        assert self.end_s is not None  # the recorder leaves out calls that have not ended
        return Part(self.name, program.length * program.itemsize, self.start_s, self.end_s, transfers)

    def _messages(self, lane: Lane, rank: int) -> list[tuple[int, int, bool, int, int, int, int, float, float]]:
        found = []
        clear = self.start_s
        payload = [one for one in lane.operations if one.number < self.program.payload_operations]
        for step, group in groupby(payload, key=lambda operation: operation.step):
            operations = list(group)
            start = max(clear, min(self.first[operations[0].number], self._could_start(operations[0])))
            clear = max(start, *(self.last[operation.number] for operation in operations))
            chunk = min(operation.chunk for operation in operations)
            num_bytes = sum(operation.num_bytes for operation in operations)
            step %= self.program.num_steps
            found.append((rank, lane.peer, not lane.incoming, lane.channel, step, chunk, num_bytes, start, clear))
        return found

    def _could_start(self, operation: Operation) -> float:
        """When the guards of an operation's first byte had let it go."""
        latest = self.start_s
        for before, start, before_start, _ in operation.guards:
            if start == 0:
                share = before_start / self.program.operations[before].num_bytes
                latest = max(latest, self.first[before] + share * (self.last[before] - self.first[before]))
        return latest


class Recorder:
    """Records the calls of the communicator that it is given to; ``clock`` in seconds, the same for a host's ranks."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._calls: list[RecordedCall] = []
        self._operations = 0
        self.wall_offset_s = wall_clock() - clock()

    def begin(self, collective: str, algorithm: str, program: Program) -> RecordedCall | None:
        """A call begins; None where there is no room for more."""
        self._operations += len(program.operations)
        if self._operations > MOST_OPERATIONS:
            return None
        call = RecordedCall(f"{collective.replace('_', '-')} {algorithm}", program, self._clock)
        self._calls.append(call)
        return call

    def parts(self, rank: int) -> list[Part]:
        """The calls that have ended, as this rank saw them."""
        return [call.part(rank) for call in self._calls if call.end_s is not None]


class _Said(msgspec.Struct):
    """A rank's part on its way to rank 0; calls as name, bytes, start, end and columns."""

    place: str
    boot_id: str
    wall_offset_s: float
    calls: list[tuple[str, float, float, float, list[list[float]]]]


def gather_trace(comm: Communicator, recorder: Recorder, host: Host) -> Trace | None:
    """The trace of all ranks, at rank 0; ``None`` elsewhere. A collective of ``comm``, which must not be recorded.

    Every rank, on its ``host``, gives the recorder of the same calls; ``SpecError`` at rank 0 where they did not.
    """
    calls = [
        (part.name, part.size_bytes, part.start_s, part.end_s, plain_columns(part.transfers))
        for part in recorder.parts(comm.rank)
    ]
    message = msgspec.msgpack.encode(_Said(host.name, host.boot_id, recorder.wall_offset_s, calls))
    sizes = comm.all_gather(np.array([len(message)], np.int64))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(message)] = np.frombuffer(message, np.uint8)
    everyone = comm.gather(padded)
    if everyone is None:
        return None
    said = [
        msgspec.msgpack.decode(row[:size].tobytes(), type=_Said)
        for row, size in zip(everyone.reshape(comm.world_size, -1), sizes.tolist(), strict=True)
    ]
    parts = [
        [Part(name, size, start, end, Transfers.of(columns)) for name, size, start, end, columns in one.calls]
        for one in said
    ]
    # Ranks of one kernel share a clock: one offset for all of them.
    offsets: dict[str, float] = {}
    for one in said:
        offsets.setdefault(one.boot_id, one.wall_offset_s)
    shifts = [offsets[one.boot_id] - said[0].wall_offset_s for one in said]
    return join("a real run", [one.place for one in said], parts, shifts)
