"""The proof: replay a schedule on sets of contributions and compare with its contract.

State, per chunk of every rank's memory: which ranks have contributed (a bitset), to which chunk number of the
collective's vector (a tag, -1 where nothing is). A step gathers all it reads, then writes. Everything is vectorised
over the rows of a step, so a 1,024-rank ring of two million rows is proven in about a second.

A wrong schedule raises ``ScheduleError`` with step, rank, chunk, expected and got:

* it reads what is not there;
* it writes one chunk twice in a step, other than by reductions in order (see ``table``);
* it reduces contributions of two different chunk numbers, or one contribution twice;
* it could not make progress with one staging segment per connection (see ``progress``);
* an output does not end with exactly the contributions that the contract names.

``prove`` is the only way to a ``ProvenSchedule``, and every other reading accepts nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from atoll.errors import InternalError, ScheduleError, SpecError
from atoll.schedule.contract import Contract, IntArray
from atoll.schedule.progress import check_progress
from atoll.schedule.runs import expand
from atoll.schedule.table import REPLACE, Columns, Header, Schedule, check_structure
from atoll.units import format_size

STATE_LIMIT_BYTES = 4 << 30  # four times what a 2,048-rank ring all-reduce takes
_Bits = npt.NDArray[np.uint64]
_SEAL = object()


class ProvenSchedule:
    """A schedule with its proof. Made by ``prove`` alone, and read-only, so that the proof stays true.

    Beside the schedule it keeps what the replay learned, one entry per (row, chunk of the row) in table order,
    ``row_start[row]`` being the first entry of a row:

    ``chunk_number``    which chunk of the collective's vector is moved; its size follows from the partition
    ``received_first``  whether the received operand comes first, that is, has the lower lowest contributor
    """

    def __init__(
        self,
        schedule: Schedule,
        chunk_number: npt.NDArray[np.int32],
        received_first: npt.NDArray[np.bool_],
        *,
        seal: object,
    ) -> None:
        if seal is not _SEAL:
            raise InternalError("a ProvenSchedule is made by prove() alone")
        counts = schedule.column("num_chunks")
        self._schedule = schedule
        self._row_start: IntArray = np.cumsum(counts) - counts
        self._chunk_number = chunk_number
        self._received_first = received_first
        for array in (self._row_start, chunk_number, received_first):
            array.setflags(write=False)

    def __repr__(self) -> str:
        return f"<Proven {self.schedule!r}>"

    @property
    def schedule(self) -> Schedule:
        return self._schedule

    @property
    def row_start(self) -> IntArray:
        return self._row_start

    @property
    def chunk_number(self) -> npt.NDArray[np.int32]:
        return self._chunk_number

    @property
    def received_first(self) -> npt.NDArray[np.bool_]:
        return self._received_first

    @property
    def header(self) -> Header:
        return self.schedule.header

    @property
    def contract(self) -> Contract:
        return self.schedule.header.contract

    @property
    def name(self) -> str:
        return self.schedule.name

    @property
    def world_size(self) -> int:
        return self.schedule.world_size


def prove(schedule: Schedule, state_limit_bytes: int = STATE_LIMIT_BYTES) -> ProvenSchedule:
    """Prove that ``schedule`` fulfils its contract; raise ``ScheduleError`` where it does not.

    ``SpecError`` where the header is no contract, or where the replay would take more than ``state_limit_bytes`` of
    memory: a few numbers in a file must not be able to take the machine's.
    """
    check_structure(schedule)
    _check_size(schedule, state_limit_bytes)
    replay = _Replay(schedule)
    numbers: list[npt.NDArray[np.int32]] = []
    first: list[npt.NDArray[np.bool_]] = []
    for step, rows in schedule.steps():
        chunks, _ = expand(rows)
        number, received_first = replay.step(step, chunks)
        check_progress(schedule, step, rows)
        numbers.append(number)
        first.append(received_first)
    replay.check_outputs()
    return ProvenSchedule(
        schedule,
        np.concatenate(numbers) if numbers else np.zeros(0, np.int32),
        np.concatenate(first) if first else np.zeros(0, np.bool_),
        seal=_SEAL,
    )


def _check_size(schedule: Schedule, limit_bytes: int) -> None:
    words = (schedule.world_size + 63) // 64
    memory_chunks = sum(schedule.header.memory_chunks)
    busiest = max((int(rows.num_chunks.sum()) for _, rows in schedule.steps()), default=0)
    for what, chunks in (("memory in all ranks", memory_chunks), ("moves in one step", busiest)):
        needed = chunks * (words * 8 + 16)
        if needed > limit_bytes:
            raise SpecError(
                f"{schedule.name}: too large to prove: {what} come to {chunks} chunks, whose contributions take "
                f"{format_size(needed)}, above the limit of {format_size(limit_bytes)}"
            )


class _State(NamedTuple):
    """What some chunks of memory hold: contributions, chunk numbers, lowest contributors."""

    bits: _Bits
    number: npt.NDArray[np.int32]
    lowest: npt.NDArray[np.int32]

    def at(self, which: slice | IntArray) -> _State:
        return _State(self.bits[which], self.number[which], self.lowest[which])


class _Replay:
    """The state of every rank's memory, all ranks in one array; ``base[rank]`` is a rank's first chunk."""

    def __init__(self, schedule: Schedule) -> None:
        header = schedule.header
        self.schedule = schedule
        self.contract = header.contract
        self.exactly_once = self.contract.collective.exactly_once
        memory = np.asarray(header.memory_chunks, dtype=np.int64)
        self.base = np.cumsum(memory) - memory
        total = int(memory.sum())
        self.words = (header.world_size + 63) // 64
        self.bits: _Bits = np.zeros((total, self.words), dtype=np.uint64)
        self.number = np.full(total, -1, dtype=np.int32)
        self.lowest = np.zeros(total, dtype=np.int32)
        self._last_writer = np.zeros(total, dtype=np.int64)
        for rank in range(header.world_size):
            held = self.contract.input_chunks(rank)
            where = self.base[rank] + header.input_offset[rank] + np.arange(len(held))
            self.number[where] = held
            self.lowest[where] = rank
            self.bits[where, rank // 64] = np.uint64(1) << np.uint64(rank % 64)

    def step(self, step: int, rows: Columns) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Replay one step's single-chunk rows; chunk numbers moved, and whether the received operand comes first."""
        source = self.base[rows.src] + rows.src_chunk
        target = self.base[rows.dst] + rows.dst_chunk
        number = self.number[source]
        if number.min(initial=0) < 0:
            at = int(np.argmin(number))
            raise self._error("reads what is not there", step, rows.src[at], rows.src_chunk[at], "a value", "nothing")
        bits, lowest = self.bits.take(source, axis=0), self.lowest[source]
        reduces = rows.operand_chunk != REPLACE
        self._last_writer[target] = np.arange(len(target))
        shared = bool(np.any(self._last_writer[target] != np.arange(len(target))))
        join = np.flatnonzero(reduces)
        turns = self._turns(step, rows, target, reduces)[join] if shared else np.zeros(len(join), dtype=np.int64)

        # All reads of a step come before its writes; only a running value is read again.
        operand = (self.base[rows.dst] + rows.operand_chunk)[join]
        held = _State(self.bits.take(operand, axis=0), self.number[operand], self.lowest[operand])
        if len(join) < len(target):
            keep = np.flatnonzero(~reduces)
            self.bits[target[keep]] = bits if len(join) == 0 else bits.take(keep, axis=0)
            self.number[target[keep]] = number[keep]
            self.lowest[target[keep]] = lowest[keep]
            bits = bits.take(join, axis=0)
        received = _State(bits, number[join], lowest[join])
        received_first = np.zeros(len(target), dtype=np.bool_)
        for turn, now in enumerate(_in_turn(turns)):
            which, where, received_now, held_now = join[now], operand[now], received.at(now), held.at(now)
            if turn:
                held_now = _State(self.bits.take(where, axis=0), self.number[where], self.lowest[where])
            self._check_operands(step, rows, which, received_now, held_now)
            into = target[which]
            self.bits[into] = held_now.bits | received_now.bits
            self.number[into] = received_now.number
            self.lowest[into] = np.minimum(received_now.lowest, held_now.lowest)
            received_first[which] = received_now.lowest < held_now.lowest
        return number, received_first

    def check_outputs(self) -> None:
        """Compare every output with the contract."""
        header = self.schedule.header
        world_size = header.world_size
        everyone: _Bits = np.zeros(self.words, dtype=np.uint64)
        for rank in range(world_size):
            everyone[rank // 64] |= np.uint64(1) << np.uint64(rank % 64)
        for rank in range(world_size):
            chunks = self.contract.output_chunks(rank)
            origins = self.contract.output_origins(rank)
            where = int(self.base[rank]) + header.output_offset[rank] + np.arange(len(chunks))
            want: _Bits = np.zeros((len(chunks), self.words), dtype=np.uint64)
            want[origins < 0] = everyone
            single = np.flatnonzero(origins >= 0)
            want[single, origins[single] // 64] = np.uint64(1) << (origins[single] % 64).astype(np.uint64)
            good = (self.number[where] == chunks) & (self.bits[where] == want).all(axis=1)
            if good.all():
                continue
            at = int(np.argmin(good))
            raise self._error(
                "wrong output", None, rank, header.output_offset[rank] + at,
                _contributions(want[at], int(chunks[at])),
                _contributions(self.bits[where[at]], int(self.number[where[at]])),
                hint=_difference(want[at], self.bits[where[at]], int(chunks[at]), int(self.number[where[at]])),
            )  # fmt: skip

    def _turns(self, step: int, rows: Columns, target: IntArray, reduces: npt.NDArray[np.bool_]) -> IntArray:
        """Each row's turn among the writers of its target; refuses all but reductions in order."""
        order = np.lexsort((rows.row, rows.src, target))
        grouped = target[order]
        opens = np.r_[True, grouped[1:] != grouped[:-1]]
        start = np.maximum.accumulate(np.where(opens, np.arange(len(order)), 0))
        turns = np.empty(len(order), dtype=np.int64)
        turns[order] = np.arange(len(order)) - start
        shared = ~opens
        shared[:-1] |= ~opens[1:]
        bad = order[shared & ~reduces[order]]
        if len(bad):
            at = int(bad[0])
            writers = np.flatnonzero(target == target[at])
            raise self._error(
                "conflicting writes", step, rows.dst[at], rows.dst_chunk[at], "one writer, or reductions only",
                f"a replace among {len(writers)} writes, from {_ranks(np.unique(rows.src[writers]))}",
            )  # fmt: skip
        late = order[(turns[order] > 0) & (rows.operand_chunk[order] != rows.dst_chunk[order])]
        if len(late):
            at = int(late[0])
            raise self._error(
                "conflicting writes", step, rows.dst[at], rows.dst_chunk[at],
                "each later reduction to name the destination as its operand",
                f"operand chunk {rows.operand_chunk[at]}",
            )  # fmt: skip
        return turns

    def _check_operands(self, step: int, rows: Columns, join: IntArray, received: _State, held: _State) -> None:
        if not self.contract.collective.reduces:
            at = int(join[0])
            raise self._error(
                f"reduces, which {self.contract.collective.name} does not", step, rows.dst[at], rows.dst_chunk[at],
                "a replace", "a reduction",
            )  # fmt: skip
        wrong = np.flatnonzero(held.number != received.number)
        if len(wrong):
            first = int(wrong[0])
            at = int(join[first])
            empty = held.number[first] < 0
            raise self._error(
                "reduces into what is not there" if empty else "reduces two different chunks",
                step, rows.dst[at], rows.operand_chunk[at],
                _contributions(received.bits[first], int(received.number[first]), verb="an operand for"),
                "nothing" if empty else _contributions(held.bits[first], int(held.number[first])),
            )  # fmt: skip
        if self.exactly_once:
            twice = (held.bits & received.bits).any(axis=1)
            if twice.any():
                first = int(np.argmax(twice))
                at = int(join[first])
                raise self._error(
                    "counts a contribution twice", step, rows.dst[at], rows.dst_chunk[at],
                    "operands without a common rank",
                    f"{_ranks(_members(held.bits[first] & received.bits[first]))} in both "
                    f"{_ranks(_members(held.bits[first]))} (held) and {_ranks(_members(received.bits[first]))} "
                    f"(received from rank {rows.src[at]})",
                )  # fmt: skip

    def _error(
        self, what: str, step: int | None, rank: int, chunk: int, expected: str, got: str, hint: str = ""
    ) -> ScheduleError:
        return ScheduleError(
            what, schedule=self.schedule.name, step=step, rank=int(rank), chunk=int(chunk), expected=expected, got=got,
            hint=hint,
        )  # fmt: skip


def _in_turn(turns: IntArray) -> list[slice | IntArray]:
    """Indices of equal turns, in order; no chunk is written twice within one turn."""
    if not turns.any():
        return [slice(None)] if len(turns) else []
    order = np.argsort(turns, kind="stable")
    return list(np.split(order, np.flatnonzero(np.diff(turns[order])) + 1))


def _members(bits: _Bits) -> IntArray:
    return np.flatnonzero(np.unpackbits(bits.astype("<u8").view(np.uint8), bitorder="little"))


def _ranks(ranks: IntArray) -> str:
    """``ranks 0-3, 7``."""
    if len(ranks) == 0:
        return "no rank"
    runs = np.split(ranks, np.flatnonzero(np.diff(ranks) != 1) + 1)
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(parts)


def _contributions(bits: _Bits, number: int, verb: str = "") -> str:
    if number < 0:
        return "nothing"
    text = f"chunk {number} of {_ranks(_members(bits))}"
    return f"{verb} {text}" if verb else text


def _difference(want: _Bits, got: _Bits, want_number: int, got_number: int) -> str:
    if got_number < 0 or want_number != got_number:
        return ""
    missing, foreign = _members(want & ~got), _members(got & ~want)
    parts = [f"{_ranks(missing)} missing"] if len(missing) else []
    parts += [f"{_ranks(foreign)} foreign"] if len(foreign) else []
    return "; ".join(parts)
