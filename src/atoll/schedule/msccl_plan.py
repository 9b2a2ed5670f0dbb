"""Turn a proven schedule into an MSCCL program: thread blocks, their steps, and the dependencies between them.

**Buffers.** Input and output become ``i`` and ``o``, in the one placement that the format has for the collective;
everything else of a rank's memory becomes ``s``. A row that crosses from one buffer into another is cut there.

**Thread blocks.** A rank has one for all it sends to a peer over a channel, one for all it receives, and some for
local moves, unless that is more than an executor takes: then sends and receives of a channel share thread blocks in
pairs. Each runs its steps in the order of the table, in a step first what is read only, so that

    by induction over the table's steps every send finds a free slot once its predecessor was received,

and one slot per connection is enough as long as a message of the table is one message of the program.

**Dependencies.** A step waits for the last write of what it reads, and for the last write and the later reads of
what it overwrites. Most of that is implied by the order in thread blocks and by messages; a vector clock per step
tells, and only what nothing implies is written. Of several that remain, all but one go onto ``nop`` steps before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.errors import SpecError
from atoll.schedule import msccl_program as msccl
from atoll.schedule.msccl_program import Address, Gpu, Program, Share, Step, ThreadBlock
from atoll.schedule.prove import ProvenSchedule
from atoll.schedule.runs import expand
from atoll.schedule.table import REPLACE, Columns

_SHARE = dict(msccl.MSCCL_COLLECTIVES.values())

MAX_CHANNELS = 32  # MAXCHANNELS of the NCCL that the executors build on
# Local moves that go into one thread block: as many again may be needed for dependencies.
LOCAL_MOVES = msccl.MAX_STEPS // 2

_CLOCK = np.int8  # counts the steps of a thread block, of which there are at most 64
_SIDE = {"s": "send", "r": "recv"}


def plan(proven: ProvenSchedule, protocol: str) -> Program:
    """The program; ``SpecError`` where the format cannot hold it."""
    _check_limits(proven)
    paired = False
    while True:
        program = _Plan(proven, protocol, paired).build()
        blocks = [len(gpu.blocks) for gpu in program.gpus]
        if max(blocks) <= msccl.MAX_THREAD_BLOCKS:
            return program
        if paired:
            raise SpecError(
                f"{proven.name}: rank {int(np.argmax(blocks))} needs too many thread blocks: expected at most "
                f"{msccl.MAX_THREAD_BLOCKS}, got {max(blocks)}; use fewer peers or channels"
            )
        paired = True


def _check_limits(proven: ProvenSchedule) -> None:
    """Refuse at once what has too many chunks, messages or peers, however it is planned."""
    memory = proven.header.memory_chunks
    for chunks, most, where in (
        (max(memory), msccl.MAX_CHUNKS, f"rank {memory.index(max(memory))}"),
        (sum(memory), msccl.MAX_MEMORY_CHUNKS, "all ranks together"),
    ):
        if chunks > most:
            raise SpecError(f"{proven.name}: expected at most {most} chunks of memory at {where}, got {chunks}")
    rows = proven.schedule.columns()
    remote = rows.src != rows.dst
    channel = int(rows.channel.max(initial=0))
    if channel >= MAX_CHANNELS:
        raise SpecError(f"{proven.name}: expected channels below {MAX_CHANNELS}, got channel {channel}")
    lanes = np.stack([rows.src[remote], rows.dst[remote], rows.channel[remote]])
    lanes, messages = np.unique(lanes, axis=1, return_counts=True)
    if messages.max(initial=0) > msccl.MAX_STEPS:
        src, dst, lane = lanes[:, int(np.argmax(messages))].tolist()
        raise SpecError(
            f"{proven.name}: rank {src} sends too many messages to rank {dst} on channel {lane}: expected at most "
            f"{msccl.MAX_STEPS}, a thread block's steps, got {int(messages.max())}; use fewer chunks or more channels"
        )
    for side, column in (("sends to", 0), ("receives from", 1)):
        blocks = np.bincount(lanes[column], minlength=proven.world_size)
        if blocks.max(initial=0) > msccl.MAX_THREAD_BLOCKS:
            raise SpecError(
                f"{proven.name}: rank {int(np.argmax(blocks))} {side} too many peers, channels counted apart: expected "
                f"at most {msccl.MAX_THREAD_BLOCKS}, one a thread block, got {int(blocks.max())}; use fewer peers or "
                "channels"
            )


class _Names(msgspec.Struct):
    """Where every chunk of a rank's memory is in its buffers: the buffer's letter and the offset in it."""

    buffer: list[str]
    offset: list[int]
    declared: tuple[int, int, int]
    """Sizes of input, output and scratch to declare."""

    def __call__(self, chunk: int) -> Address:
        return Address(self.buffer[chunk], self.offset[chunk])


def _names(proven: ProvenSchedule, rank: int, in_place: bool) -> _Names:
    header, terms = proven.header, proven.contract
    share = _SHARE[terms.collective.name]
    memory = header.memory_chunks[rank]
    inside, outside = header.input_offset[rank], header.output_offset[rank]
    input_size, output_size = terms.input_size(rank), terms.output_size(rank)
    if in_place and input_size and output_size:
        block = rank * terms.chunks_per_block
        ahead = {Share.SAME: 0, Share.INPUT_IN_OUTPUT: block, Share.OUTPUT_IN_INPUT: -block}[share]
        if inside - outside != ahead:
            raise SpecError(
                f"{proven.name}: rank {rank} works in place in a way that MSCCL has not: expected the input to start "
                f"{ahead} chunks after the output, got {inside - outside}; write its out_of_place() instead"
            )
    buffer, offset = [msccl.SCRATCH] * memory, [-1] * memory
    # In place a chunk has two names. A buffer that only the root has is not used by the others.
    output_first = share is Share.INPUT_IN_OUTPUT or terms.collective.name == "broadcast"
    regions = [(msccl.INPUT, inside, input_size), (msccl.OUTPUT, outside, output_size)]
    for letter, start, size in regions if output_first else reversed(regions):
        buffer[start : start + size] = [letter] * size
        offset[start : start + size] = range(size)
    scratch = 0
    for chunk in range(memory):
        if buffer[chunk] == msccl.SCRATCH:
            offset[chunk] = scratch
            scratch += 1
    sizes = {msccl.INPUT: input_size, msccl.OUTPUT: output_size}
    if in_place:
        # A buffer that goes by the other's name is left out, except where only its owner tells who is the root.
        keep = {"broadcast": msccl.INPUT, "reduce": msccl.OUTPUT}.get(terms.collective.name)
        for letter in (msccl.INPUT, msccl.OUTPUT):
            if letter not in buffer and letter != keep:
                sizes[letter] = 0
    return _Names(buffer, offset, (sizes[msccl.INPUT], sizes[msccl.OUTPUT], scratch))


class _Move(msgspec.Struct):
    """One step to be, at one rank. Runs are in chunks of the rank's memory; -1 where there is none."""

    kind: str
    rank: int
    channel: int
    src: int
    dst: int
    count: int
    peer: int = msccl.NO_PEER
    message: int = -1
    origin: tuple[int, int, int] = (-1, -1, -1)
    """In which order several writes of one chunk in one step apply: (src, row, part of the row)."""

    def reads(self) -> Iterator[int]:
        if msccl.KINDS[self.kind].reads_src:
            yield from range(self.src, self.src + self.count)
        if self.kind == "re":
            yield from range(self.dst, self.dst + self.count)

    def writes(self) -> Iterator[int]:
        if msccl.KINDS[self.kind].writes_dst:
            yield from range(self.dst, self.dst + self.count)


class _Block(msgspec.Struct):
    """A thread block to be."""

    thread: int
    channel: int
    send: int = msccl.NO_PEER
    recv: int = msccl.NO_PEER
    steps: list[Step] = []
    planned: int = 0


class _Plan:
    def __init__(self, proven: ProvenSchedule, protocol: str, paired: bool) -> None:
        self.proven = proven
        self.protocol = protocol
        self.paired = paired
        self.in_place = proven.header.in_place
        self.names = [_names(proven, rank, self.in_place) for rank in range(proven.world_size)]
        self.scratch = list(proven.header.memory_chunks)
        self.blocks: list[list[_Block]] = [[] for _ in range(proven.world_size)]
        self._block_of: dict[tuple[str, int, int, int], _Block] = {}
        self._threads = 0

    def build(self) -> Program:
        moves = [move for step, part in self._steps() for move in _in_order(self.proven.name, step, part)]
        assigned = [self._assign(move) for move in moves]
        self._place(moves, assigned)
        terms = self.proven.contract
        coll = next(name for name, (known, _) in msccl.MSCCL_COLLECTIVES.items() if known == terms.collective.name)
        return Program(
            what=coll, name=self.proven.name, collective=terms.collective.name, chunks=terms.chunks, root=terms.root,
            protocol=self.protocol, placements=(self.in_place,), gpus=tuple(map(self._gpu, range(terms.world_size))),
        )  # fmt: skip

    def _gpu(self, rank: int) -> Gpu:
        blocks = tuple(
            ThreadBlock(block.send, block.recv, block.channel, tuple(block.steps), line=0)
            for block in self.blocks[rank]
        )
        return Gpu(*self.names[rank].declared, blocks, line=0)

    def _steps(self) -> Iterator[tuple[int, list[_Move]]]:
        """The moves of every step of the table."""
        message = 0
        for step, rows in self.proven.schedule.steps():
            chunks, _ = expand(rows)
            moves: list[_Move] = []
            for start, count in self._runs(chunks):
                src, dst, channel = int(chunks.src[start]), int(chunks.dst[start]), int(chunks.channel[start])
                source, target = int(chunks.src_chunk[start]), int(chunks.dst_chunk[start])
                operand = int(chunks.operand_chunk[start])
                origin = (src, int(chunks.row[start]), 0)
                if src != dst:
                    kind = "r" if operand == REPLACE else "rrc"
                    moves.append(_Move("s", src, channel, source, -1, count, dst, message))
                    moves.append(_Move(kind, dst, channel, operand, target, count, src, message, origin))
                    message += 1
                    continue
                if operand == REPLACE:
                    parts = [("cpy", source)]
                elif operand == target:
                    parts = [("re", source)]
                elif source == target:
                    # Which operand is written left is the contributors' affair, not the columns'.
                    parts = [("re", operand)]
                else:
                    parts = [("cpy", operand), ("re", source)]
                for part, (kind, read) in enumerate(parts):
                    moves.append(_Move(kind, src, channel, read, target, count, origin=(*origin[:2], part)))
            yield step, moves

    def _runs(self, chunks: Columns) -> list[tuple[int, int]]:
        """Single chunks joined into runs that stay in one buffer on every side: (first, how many)."""
        row, src, dst = chunks.row.tolist(), chunks.src.tolist(), chunks.dst.tolist()
        source, target, operand = chunks.src_chunk.tolist(), chunks.dst_chunk.tolist(), chunks.operand_chunk.tolist()
        runs: list[tuple[int, int]] = []
        for at in range(len(row)):
            start, count = runs[-1] if runs else (at, msccl.MAX_COUNT)
            reads = (operand[start],) if src[start] != dst[start] else (source[start], operand[start])
            if (
                count < msccl.MAX_COUNT
                and row[at] == row[start]
                and self._follows(src[at], source[at - 1], source[at])
                and self._follows(dst[at], target[at - 1], target[at])
                and (operand[at] == REPLACE or self._follows(dst[at], operand[at - 1], operand[at]))
                and not any(_overlap(read, target[start], count + 1) for read in reads)
            ):
                runs[-1] = (start, count + 1)
            else:
                runs.append((at, 1))
        return runs

    def _follows(self, rank: int, before: int, after: int) -> bool:
        names = self.names[rank]
        return names.buffer[before] == names.buffer[after] and names.offset[before] + 1 == names.offset[after]

    def _assign(self, move: _Move) -> _Block:
        """The thread block that makes the move."""
        role = "s" if msccl.KINDS[move.kind].sends else "r" if msccl.KINDS[move.kind].receives else "local"
        key = (role, move.rank, move.peer, move.channel)
        block = self._block_of.get(key)
        if block is None or (role == "local" and block.planned >= LOCAL_MOVES):
            block = self._partner(role, move) if self.paired else None
            if block is None:
                block = _Block(self._threads, move.channel)
                self._threads += 1
                self.blocks[move.rank].append(block)
            if role == "s":
                block.send = move.peer
            elif role == "r":
                block.recv = move.peer
            self._block_of[key] = block
        block.planned += 1
        return block

    def _partner(self, role: str, move: _Move) -> _Block | None:
        """A thread block of the channel that has no use yet for ``role``; of the same peer where there is one."""
        free = [
            block
            for block in self.blocks[move.rank]
            if block.channel == move.channel
            and (block.planned < LOCAL_MOVES if role == "local" else getattr(block, _SIDE[role]) == msccl.NO_PEER)
        ]
        same = [block for block in free if move.peer in (block.send, block.recv)]
        return next(iter(same or free), None)

    def _place(self, moves: list[_Move], assigned: list[_Block]) -> None:
        """Append every move to its thread block, after the dependencies that nothing implies."""
        clocks = np.zeros((self._threads, self._threads), dtype=_CLOCK)
        ended: list[tuple[_Block, int]] = []  # of every move: its thread block, and its step there
        kept: list[npt.NDArray[np.int8]] = []  # clock at its end
        sent: dict[int, int] = {}
        writer: dict[tuple[int, int], int] = {}
        readers: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, (move, block) in enumerate(zip(moves, assigned, strict=True)):
            clock = clocks[block.thread]
            if msccl.KINDS[move.kind].receives:
                np.maximum(clock, kept[sent[move.message]], out=clock)
            needed: set[int] = set()
            for chunk in move.reads():
                if (move.rank, chunk) in writer:
                    needed.add(writer[move.rank, chunk])
            for chunk in move.writes():
                if (move.rank, chunk) in writer:
                    needed.add(writer[move.rank, chunk])
                needed.update(readers.pop((move.rank, chunk), ()))
            waits: list[tuple[_Block, int]] = []
            for before in sorted(needed, reverse=True):
                other, index = ended[before]
                if other is not block and clock[other.thread] <= index:
                    np.maximum(clock, kept[before], out=clock)
                    waits.append((other, index))
            self._append(move, block, waits)
            for chunk in move.reads():
                readers[move.rank, chunk].append(number)
            for chunk in move.writes():
                writer[move.rank, chunk] = number
            if msccl.KINDS[move.kind].sends:
                sent[move.message] = number
            clock[block.thread] = len(block.steps)
            ended.append((block, len(block.steps) - 1))
            kept.append(clock.copy())

    def _append(self, move: _Move, block: _Block, waits: list[tuple[_Block, int]]) -> None:
        names, kind = self.names[move.rank], msccl.KINDS[move.kind]
        own = self.blocks[move.rank]
        waits_for = [(own.index(other), index) for other, index in waits]
        for other, index in waits:
            other.steps[index] = msgspec.structs.replace(other.steps[index], signals=True)
        for extra in waits_for[:-1]:
            block.steps.append(Step(msccl.KINDS["nop"], None, None, 0, extra, signals=False, line=0))
        block.steps.append(
            Step(
                kind=kind,
                src=names(move.src) if kind.reads_src else None,
                dst=names(move.dst) if kind.writes_dst else None,
                count=move.count,
                waits_for=waits_for[-1] if waits_for else None,
                signals=False,
                line=0,
            )
        )
        if len(block.steps) > msccl.MAX_STEPS:
            what = "local moves" if not (kind.sends or kind.receives) else f"messages {_SIDE[move.kind[0]]} {move.peer}"
            raise SpecError(
                f"{self.proven.name}: rank {move.rank}, channel {move.channel}: too many steps in a thread block "
                f"({what}): expected at most {msccl.MAX_STEPS}, got more; use fewer chunks or more channels"
            )


def _overlap(one: int, other: int, count: int) -> bool:
    """Whether two runs of a rank's memory overlap without being the same."""
    return one != REPLACE and 0 < abs(one - other) < count


def _in_order(name: str, step: int, moves: list[_Move]) -> list[_Move]:
    """One step's moves one after the other: all that it reads before it writes, several writes in ascending order."""
    sends = {move.message: move for move in moves if msccl.KINDS[move.kind].sends}
    rest = [move for move in moves if not msccl.KINDS[move.kind].sends]
    writers: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number in sorted(range(len(rest)), key=lambda number: rest[number].origin):
        for chunk in rest[number].writes():
            writers[rest[number].rank, chunk].append(number)
    after: list[set[int]] = [set() for _ in rest]
    for queue in writers.values():
        for one, other in pairwise(queue):
            after[one].add(other)
    for number, move in enumerate(rest):
        for chunk in move.reads():
            queue = writers.get((move.rank, chunk), [])
            # A later writer of the chunk reads what the earlier ones made of it; all others read what was there.
            if queue and number not in queue[1:]:
                after[number].update(writer for writer in queue if writer != number)
    before = [0] * len(rest)
    for others in after:
        for other in others:
            before[other] += 1
    ready = [number for number in range(len(rest)) if not before[number]]
    heapify(ready)
    order: list[_Move] = []
    while ready:
        number = heappop(ready)
        order.append(rest[number])
        for other in after[number]:
            before[other] -= 1
            if not before[other]:
                heappush(ready, other)
    if len(order) < len(rest):
        stuck = rest[next(number for number in range(len(rest)) if before[number])]
        raise SpecError(
            f"{name}: step {step}, rank {stuck.rank}, chunk {stuck.dst}: moves within the rank exchange chunks: "
            "expected an order in which nothing is overwritten before it is read, got a circle; move one of them to "
            "scratch first"
        )
    # A connection's messages are received in the order in which they were sent.
    return [sends[move.message] for move in order if move.message >= 0] + order
