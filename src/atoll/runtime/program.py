"""One rank's part of a proven schedule, compiled for a length and an element size: what its machine plays.

Vocabulary. An **operation** moves one contiguous run of bytes: a send reads it from a buffer, a receive writes it
(or reduces it with an operand), a local move does both. Each has one **mark**, the bytes done so far. A **lane** is
one direction of one connection, (peer, channel); its operations run in order, and their bytes, one after the other,
are all that crosses the wire. Local moves are one more lane, in table order. A **guard** says that an operation may
not pass ``start + t`` before operation ``before`` has passed ``before_start + t``, for t up to ``num_bytes``.

Buffers are the caller's input and output and a scratch that the machine allocates. Where a schedule works in place,
input and output overlap, and the output's name is used for what they share. Scratch holds only the chunks that this
rank touches, each with room for the largest chunk that ever lies there.

**Tokens.** A collective must not return on one rank while another has called something else, or nobody would learn of
it in time. Where the data alone does not make every rank wait for every other one (a root that only sends, an empty
block), the program ends with a dissemination of one-byte tokens, whose headers say who has called what. They are
overhead, not payload.

**Blocks.** A long vector may be cut into blocks: the first ``block_bytes`` of each chunk go through all steps, then the
next. What one step has left in a processor's cache is there when the next one wants it. It suits ranks that share
memory; over a wire the steps of one block would wait for each other, where those of the whole vector overlap.

Programs are cached by the communicator: nothing is planned twice.
"""

from __future__ import annotations

import msgspec
import numpy as np

from atoll.errors import InternalError, SpecError
from atoll.schedule.contract import Contract, IntArray
from atoll.schedule.dependencies import APPLY, READ, Dependencies, derive
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import ProvenSchedule
from atoll.schedule.runs import expand
from atoll.schedule.table import REPLACE, Columns

INPUT, OUTPUT, SCRATCH = 0, 1, 2
LOCAL = -1

Guard = tuple[int, int, int, int]  # before, start, before_start, num_bytes


class Operation(msgspec.Struct):
    """``source`` is what a send or a local move reads, ``target`` what a receive or a local move writes.

    Places are (buffer, byte offset). ``operand`` is set where received bytes are reduced, ``received_first`` says
    which operand of the operation they are. ``lend`` says of a send that its memory may be left with the receiver until
    that has read it: nothing of the same step waits to overwrite it. Where two ranks exchange one place (recursive
    doubling in place), each would wait for the other to read first; between steps there is no such circle, since what
    a step waits for lies in earlier steps. ``chunk`` is the lowest number of the chunks that it moves, for a trace.
    """

    number: int
    num_bytes: int
    step: int
    source: tuple[int, int] | None = None
    target: tuple[int, int] | None = None
    operand: tuple[int, int] | None = None
    received_first: bool = False
    lend: bool = True
    guards: list[Guard] = []
    chunk: int = 0


class Lane(msgspec.Struct):
    """Operations of one direction of one connection, in order: ``num_bytes`` of payload, then ``token_bytes``."""

    number: int
    peer: int
    channel: int
    incoming: bool
    operations: list[Operation] = []
    num_bytes: int = 0
    token_bytes: int = 0


class Program(msgspec.Struct):
    """``lanes[i].number == i``; ``wakes[operation]`` are the lanes that an advance of its mark may unblock.

    ``operations[payload_operations:]`` are tokens. A block has ``num_steps`` steps; those of the next block follow.
    """

    name: str
    rank: int
    length: int
    itemsize: int
    scratch_bytes: int
    operations: list[Operation]
    lanes: list[Lane]
    wakes: list[tuple[int, ...]]
    input_bytes: int
    output_bytes: int
    needs_reduction: bool
    payload_operations: int
    num_steps: int = 1

    @property
    def sent_bytes(self) -> int:
        return sum(lane.num_bytes for lane in self.lanes if not lane.incoming and lane.peer != LOCAL)

    @property
    def received_bytes(self) -> int:
        return sum(lane.num_bytes for lane in self.lanes if lane.incoming)


def compile_program(
    proven: ProvenSchedule, rank: int, length: int, itemsize: int, block_bytes: int | None = None
) -> Program:
    """The program of ``rank`` for a whole vector of ``length`` elements of ``itemsize`` bytes.

    In blocks of ``block_bytes`` of each chunk, whole elements, where given.

    Raises ``SpecError`` where the schedule keeps chunks in places of other sizes and ``length`` makes them differ.
    """
    terms = proven.contract
    sizes = chunk_sizes(terms, length) * itemsize
    if length and len(set(sizes.tolist())) > 1 and not keeps_places(proven):
        raise SpecError(
            f"{proven.name}: keeps chunks in places meant for others, so all {terms.chunks} must have one size: "
            f"expected a length in a multiple of {terms.chunks}, got {length}; pad the array"
        )
    rows = proven.schedule.rows_of(rank)
    chunks, place = expand(rows)
    entry = proven.row_start[chunks.row] + place
    number = proven.chunk_number[entry].astype(np.int64)
    layout = _Layout(proven, rank, sizes, chunks, number)
    builder = _Builder(proven.name, rank, layout, chunks, number, proven.received_first[entry])
    edges = derive(proven, rank)
    largest = int(sizes.max()) if len(sizes) else 0
    # All chunks are cut at the same places, so that blocks are apart also where a place holds one after another.
    block = largest if block_bytes is None else max(block_bytes // itemsize, 1) * itemsize
    for start in range(0, largest, max(block, 1)):
        builder.place_operations(start, np.clip(sizes - start, 0, block))
        builder.place_guards(edges, rows)
    builder.payload_operations = len(builder.operations)
    if not _all_wait_for_all(terms, sizes):
        builder.place_tokens(proven.header.world_size)
    input_bytes, output_bytes = (
        int(sizes[held].sum()) for held in (terms.input_chunks(rank), terms.output_chunks(rank))
    )
    return builder.program(length, itemsize, input_bytes, output_bytes)


def transfer_program(rank: int, length: int, itemsize: int) -> Program:
    """A transfer of ``length`` elements from rank 0's input to rank 1's output, as one rank's program."""
    num_bytes = length * itemsize
    lane = Lane(0, 1 - rank, 0, incoming=rank == 1, num_bytes=num_bytes)
    place = (OUTPUT, 0) if rank == 1 else (INPUT, 0)
    move = Operation(0, num_bytes, 0, source=place if rank == 0 else None, target=place if rank == 1 else None)
    lane.operations.append(move)
    held = (num_bytes, 0) if rank == 0 else (0, num_bytes)
    some = num_bytes > 0
    return Program(
        "send", rank, length, itemsize, 0, [move] * some, [lane] * some, [()] * some, *held, False, int(some)
    )  # fmt: skip


def _all_wait_for_all(terms: Contract, sizes: IntArray) -> bool:
    """Whether no rank can end before all ranks have begun: each output holds bytes that depend on every rank."""
    if terms.world_size == 1:
        return True
    if terms.collective.rooted:
        return False
    blocks = sizes.reshape(terms.blocks, terms.chunks_per_block).sum(axis=1)
    return bool((blocks > 0).all())


def keeps_places(proven: ProvenSchedule) -> bool:
    """Whether all chunks written into inputs and outputs lie where their own number belongs."""
    header, terms = proven.header, proven.contract
    memory = np.asarray(header.memory_chunks, dtype=np.int64)
    base = np.cumsum(memory) - memory
    belongs = np.full(int(memory.sum()), -1, dtype=np.int64)
    for rank in range(header.world_size):
        for offset, numbers in (
            (header.input_offset[rank], terms.input_chunks(rank)),
            (header.output_offset[rank], terms.output_chunks(rank)),
        ):
            belongs[base[rank] + offset + np.arange(len(numbers))] = numbers
    chunks, _ = expand(proven.schedule.columns())
    there = belongs[base[chunks.dst] + chunks.dst_chunk]
    return bool(np.all((there < 0) | (there == proven.chunk_number)))


class _Layout:
    """Where each chunk of the rank's memory lies: a buffer and a byte offset."""

    def __init__(self, proven: ProvenSchedule, rank: int, sizes: IntArray, chunks: Columns, number: IntArray) -> None:
        header, terms = proven.header, proven.contract
        count = header.memory_chunks[rank]
        self.buffer = np.full(count, SCRATCH, dtype=np.int64)
        self.offset = np.full(count, -1, dtype=np.int64)
        # The output comes second: what input and output share has the output's name.
        for buffer, start, numbers in (
            (INPUT, header.input_offset[rank], terms.input_chunks(rank)),
            (OUTPUT, header.output_offset[rank], terms.output_chunks(rank)),
        ):
            held = sizes[numbers]
            self.buffer[start : start + len(numbers)] = buffer
            self.offset[start : start + len(numbers)] = np.cumsum(held) - held
        room = np.zeros(count, dtype=np.int64)
        received = chunks.dst == rank
        np.maximum.at(room, chunks.dst_chunk[received], sizes[number[received]])
        scratch = self.buffer == SCRATCH
        room = np.where(scratch, room, 0)
        self.offset = np.where(scratch, np.cumsum(room) - room, self.offset)
        self.scratch_bytes = int(room.sum())

    def place(self, chunk: int, start: int) -> tuple[int, int]:
        return int(self.buffer[chunk]), int(self.offset[chunk]) + start


class _Builder:
    """Operations from single-chunk rows, then guards from dependencies."""

    def __init__(
        self,
        name: str,
        rank: int,
        layout: _Layout,
        chunks: Columns,
        number: IntArray,
        received_first: np.ndarray[tuple[int], np.dtype[np.bool_]],
    ) -> None:
        self.name = name
        self.rank = rank
        self.layout = layout
        self.chunks = chunks
        self.number = number
        self.size: list[int] = []
        self.steps = int(chunks.step.max()) + 1 if len(chunks.step) else 0
        self.blocks = 0
        self.received_first = received_first.tolist()
        self.operations: list[Operation] = []
        self.lanes: dict[tuple[int, int, bool], Lane] = {}
        self.lane_of: list[int] = []
        self.token_bytes = 0
        self.payload_operations = 0
        # (operation, byte offset in it) of each single-chunk row, by side; None where it moves no bytes.
        nowhere: tuple[int, int] | None = None
        self.at = ([nowhere], [nowhere])

    def place_operations(self, start: int, sizes: IntArray) -> None:
        """Of one block: bytes ``start`` and on of every chunk, ``sizes`` of them by chunk number."""
        chunks = self.chunks
        self.size = sizes[self.number].tolist()
        self.at = ([None] * len(self.size), [None] * len(self.size))
        first_step = self.blocks * self.steps
        self.blocks += 1
        columns = (chunks.row, chunks.step, chunks.src, chunks.dst, chunks.src_chunk, chunks.dst_chunk,
                   chunks.operand_chunk, chunks.channel, self.number)  # fmt: skip
        previous_row = -1
        for entry, (row, step, src, dst, src_chunk, dst_chunk, operand_chunk, channel, number) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            num_bytes = self.size[entry]
            if num_bytes == 0:
                continue
            joins = row == previous_row
            previous_row = row
            source = self.layout.place(src_chunk, start) if src == self.rank else None
            target = self.layout.place(dst_chunk, start) if dst == self.rank else None
            operand = (
                self.layout.place(operand_chunk, start) if target is not None and operand_chunk != REPLACE else None
            )  # fmt: skip
            received_first = target is not None and self.received_first[entry]
            if src == dst:
                lane = self._lane(LOCAL, 0, incoming=False)
            elif src == self.rank:
                lane = self._lane(dst, channel, incoming=False)
            else:
                lane = self._lane(src, channel, incoming=True)
            last = lane.operations[-1] if lane.operations and joins else None
            lane.num_bytes += num_bytes
            if last is not None and _continues(last, source, target, operand, received_first):
                where = (last.number, last.num_bytes)
                last.num_bytes += num_bytes
                last.chunk = min(last.chunk, number)
            else:
                operation = Operation(
                    len(self.operations), num_bytes, first_step + step, source, target, operand, received_first,
                    guards=[], chunk=number,
                )  # fmt: skip
                self.operations.append(operation)
                self.lane_of.append(lane.number)
                lane.operations.append(operation)
                where = (operation.number, 0)
            if source is not None:
                self.at[READ][entry] = where
            if target is not None:
                self.at[APPLY][entry] = where

    def place_guards(self, edges: Dependencies, rows: Columns) -> None:
        first_entry = dict(zip(rows.row.tolist(), (np.cumsum(rows.num_chunks) - rows.num_chunks).tolist(), strict=True))
        columns = (edges.before, edges.before_side, edges.before_index, edges.after, edges.after_side,
                   edges.after_index, edges.num_chunks)  # fmt: skip
        for before, before_side, before_index, after, after_side, after_index, count in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            first_before = first_entry[before] + before_index
            first_after = first_entry[after] + after_index
            for step in range(count):
                earlier = self.at[before_side][first_before + step]
                later = self.at[after_side][first_after + step]
                if earlier is None or later is None:
                    continue
                num_bytes = min(self.size[first_before + step], self.size[first_after + step])
                self._guard(later, earlier, num_bytes)

    def place_tokens(self, world_size: int) -> None:
        """In round k, rank r tells r + 2^k that it and all that it has heard of have begun."""
        last_step = self.operations[-1].step if self.operations else -1
        heard: Operation | None = None
        for round_number in range((world_size - 1).bit_length()):
            for incoming in (False, True):
                distance = -(1 << round_number) if incoming else 1 << round_number
                lane = self._lane((self.rank + distance) % world_size, 0, incoming)
                place = (SCRATCH, self.layout.scratch_bytes + self.token_bytes)
                token = Operation(
                    len(self.operations), 1, last_step + 1 + round_number, None if incoming else place,
                    place if incoming else None, guards=[] if heard is None or incoming else [(heard.number, 0, 0, 1)],
                )  # fmt: skip
                self.token_bytes += 1
                self.operations.append(token)
                self.lane_of.append(lane.number)
                lane.operations.append(token)
                lane.token_bytes += 1
            heard = token

    def program(self, length: int, itemsize: int, input_bytes: int, output_bytes: int) -> Program:
        wakes: list[set[int]] = [set() for _ in self.operations]
        for operation in self.operations:
            for before, *_ in operation.guards:
                wakes[before].add(self.lane_of[operation.number])
                if self.operations[before].step == operation.step:
                    self.operations[before].lend = False
        return Program(
            name=self.name,
            rank=self.rank,
            length=length,
            itemsize=itemsize,
            scratch_bytes=self.layout.scratch_bytes + self.token_bytes,
            operations=self.operations,
            lanes=list(self.lanes.values()),
            wakes=[tuple(sorted(lanes)) for lanes in wakes],
            input_bytes=input_bytes,
            output_bytes=output_bytes,
            needs_reduction=any(operation.operand is not None for operation in self.operations),
            payload_operations=self.payload_operations,
            num_steps=max(self.steps, 1),
        )

    def _lane(self, peer: int, channel: int, incoming: bool) -> Lane:
        key = (peer, channel, incoming)
        if key not in self.lanes:
            self.lanes[key] = Lane(len(self.lanes), peer, channel, incoming, [])
        return self.lanes[key]

    def _guard(self, later: tuple[int, int], earlier: tuple[int, int], num_bytes: int) -> None:
        after, start = later
        before, before_start = earlier
        if after == before or (self.lane_of[after] == self.lane_of[before] and before < after):
            return  # a lane runs in order anyway
        if self.lane_of[after] == self.lane_of[before]:
            raise InternalError(f"{self.name}: operation {after} waits for a later one of its own lane")
        guards = self.operations[after].guards
        if guards:
            last = guards[-1]
            if last[0] == before and last[1] + last[3] == start and last[2] + last[3] == before_start:
                guards[-1] = (before, last[1], last[2], last[3] + num_bytes)
                return
        guards.append((before, start, before_start, num_bytes))


def _continues(
    last: Operation,
    source: tuple[int, int] | None,
    target: tuple[int, int] | None,
    operand: tuple[int, int] | None,
    received_first: bool,
) -> bool:
    """Whether a chunk follows the operation in all the memory that it touches."""
    pairs = ((last.source, source), (last.target, target), (last.operand, operand))
    return last.received_first == received_first and all(
        (old is None and new is None)
        or (old is not None and new is not None and old[0] == new[0] and old[1] + last.num_bytes == new[1])
        for old, new in pairs
    )
