"""A world of rank machines in one process, without sockets: bytes move when a random choice says so.

Every run is a different interleaving of the same collective, decided by ``seed``: which lane goes next, how many
bytes a send takes, how many a receive gets. What is correct here under many seeds does not depend on timing. A wire
holds at most ``wire_bytes``, so a machine that needs more than its one staging segment gets stuck, and that is
reported with who waits for what instead of hanging.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.errors import InternalError
from atoll.runtime.machine import Machine
from atoll.runtime.program import LOCAL, Lane, compile_program
from atoll.runtime.reduction import OperationLike, reduction
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import ProvenSchedule

Array = npt.NDArray[Any]


def play(
    proven: ProvenSchedule,
    inputs: Sequence[Array],
    length: int,
    *,
    op: OperationLike = "sum",
    seed: int = 0,
    segment_bytes: int = 64,
    wire_bytes: int = 16,
) -> list[Array]:
    """Every rank's output, one-dimensional, of the collective on a whole vector of ``length`` elements.

    ``inputs[rank]`` is flat and of one dtype. Where the schedule works in place, the inputs are copied first.
    Raises ``InternalError`` naming lanes and steps when no machine can go on before all are done.
    """
    return _World(proven, inputs, length, op, random.Random(seed), segment_bytes, wire_bytes).run()


class _World:
    def __init__(
        self,
        proven: ProvenSchedule,
        inputs: Sequence[Array],
        length: int,
        op: OperationLike,
        rng: random.Random,
        segment_bytes: int,
        wire_bytes: int,
    ) -> None:
        dtype = inputs[0].dtype
        self.rng = rng
        self.wire_bytes = wire_bytes
        self.machines: list[Machine] = []
        self.outputs: list[Array] = []
        self.wires: dict[tuple[int, int, int], bytearray] = {}
        header, terms = proven.header, proven.contract
        chosen = reduction(op, dtype) if terms.collective.reduces else None
        for rank in range(header.world_size):
            program = compile_program(proven, rank, length, dtype.itemsize)
            output = np.zeros(program.output_bytes, dtype=np.uint8)
            held = np.ascontiguousarray(inputs[rank]).reshape(-1).view(np.uint8)[: program.input_bytes].copy()
            if header.in_place:
                held, output = _overlap(proven, rank, length, held, output, dtype.itemsize)
            buffers = (held, output, np.zeros(program.scratch_bytes, dtype=np.uint8))
            self.outputs.append(output.view(dtype))

            def staging(_: Lane) -> npt.NDArray[np.uint8]:
                return np.zeros(segment_bytes, dtype=np.uint8)

            self.machines.append(Machine(program, buffers, dtype, chosen, staging))

    def run(self) -> list[Array]:
        active = [(rank, lane) for rank, machine in enumerate(self.machines) for lane in machine.program.lanes]
        while not all(machine.done for machine in self.machines):
            self.rng.shuffle(active)
            moved = [self._pump(rank, lane) for rank, lane in active]
            if not any(moved):
                stuck = {rank: machine.unfinished() for rank, machine in enumerate(self.machines) if not machine.done}
                raise InternalError(f"{self.machines[0].program.name}: no machine can go on: {stuck}")
        return self.outputs

    def _pump(self, rank: int, lane: Lane) -> bool:
        machine = self.machines[rank]
        machine.take_woken()
        if lane.peer == LOCAL:
            return machine.move(lane.number, self.rng.choice((16, 48, 1 << 20)))
        if lane.incoming:
            wire = self.wires.setdefault((lane.peer, rank, lane.channel), bytearray())
            before = machine.position()
            machine.nudge(lane.number)
            view = machine.buffer_for(lane.number)
            if view is None or not wire:
                return machine.position() != before
            count = self.rng.randint(1, min(len(view), len(wire)))
            view[:count] = wire[:count]
            del wire[:count]
            machine.received(lane.number, count)
            return True
        wire = self.wires.setdefault((rank, lane.peer, lane.channel), bytearray())
        room = self.wire_bytes - len(wire)
        offered = b"".join(machine.sends(lane.number))[:room] if room > 0 else b""
        if not offered:
            return False
        count = self.rng.randint(1, len(offered))
        wire += offered[:count]
        machine.sent(lane.number, count)
        return True


def _overlap(
    proven: ProvenSchedule,
    rank: int,
    length: int,
    held: npt.NDArray[np.uint8],
    output: npt.NDArray[np.uint8],
    itemsize: int,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Input and output as views of one memory, as the header says; the larger one holds the other."""
    header, terms = proven.header, proven.contract
    sizes = chunk_sizes(terms, length) * itemsize
    if len(held) == 0 or len(output) == 0:
        return held, output
    if len(output) >= len(held):
        first = header.input_offset[rank] - header.output_offset[rank]
        start = int(sizes[terms.output_chunks(rank)[:first]].sum())
        output[start : start + len(held)] = held
        return output[start : start + len(held)], output
    first = header.output_offset[rank] - header.input_offset[rank]
    start = int(sizes[terms.input_chunks(rank)[:first]].sum())
    return held, held[start : start + len(output)]
