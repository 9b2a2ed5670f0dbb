"""The schedule: a collective algorithm as a table of transfers. Everything else in Atoll is a reading of it.

One row moves one run of chunks:

``step``           logical time: step s reads the state that step s-1 left; all its reads come before its writes
``src, dst``       ranks; ``src == dst`` is a local move
``src_chunk, dst_chunk, num_chunks``  what moves, in chunks of each rank's memory
``operand_chunk``  -1: replace. Else ``destination = operand (op) received``; the operand is a chunk of the receiver
``channel``        independent parallel lane

Exact meaning, so that every reading agrees:

* Rows with equal (step, src, dst, channel) are **one message**.
* Several reducing writes to one chunk in one step are legal and apply in ascending (src, row) order: the first may
  name any operand, each later one names the destination itself, which then holds the running value. A replace
  together with any other write to that chunk in that step is an error.
* The two operands of an operation are ordered by the lowest rank that contributed to each.
* ``step`` is a proof's time, not a barrier at run time (see ``dependencies``).

The header says what the table is for: the collective, the world, the number of chunks of its vector, the root, and
where each rank's input and output lie in its memory. Regions may coincide: whether a schedule works in place is a
fact of the header. Memory that is neither input nor output is scratch.

The table is held as columns, each in the narrowest integer type that fits it: a 1,024-rank ring all-reduce has two
million rows. ``column`` and ``steps`` hand out int64, so that a reader's arithmetic cannot overflow. A ``Schedule``
promises nothing; ``prove`` turns it into a ``ProvenSchedule``, which is what every other reading accepts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.errors import ScheduleError, SpecError
from atoll.schedule.contract import Contract, IntArray, contract

COLUMNS = ("step", "src", "dst", "src_chunk", "dst_chunk", "num_chunks", "operand_chunk", "channel")
REPLACE = -1
SCHEMA_VERSION = 1
_MAX_CHUNKS = 2**31 - 1  # that the columns can address


class Row(NamedTuple):
    """One row, for people."""

    step: int
    src: int
    dst: int
    src_chunk: int
    dst_chunk: int
    num_chunks: int
    operand_chunk: int
    channel: int

    def __str__(self) -> str:
        what = f"chunk {self.src_chunk}" if self.num_chunks == 1 else f"chunks {self.src_chunk}+{self.num_chunks}"
        into = f"chunk {self.dst_chunk}"
        if self.operand_chunk != REPLACE:
            operand = "it" if self.operand_chunk == self.dst_chunk else f"chunk {self.operand_chunk}"
            into += f", reduced with {operand}"
        lane = f" on channel {self.channel}" if self.channel else ""
        return f"step {self.step}: rank {self.src} {what} -> rank {self.dst} {into}{lane}"


class Columns(NamedTuple):
    """Rows as int64 arrays of one length; ``row`` is each row's number in the table."""

    step: IntArray
    src: IntArray
    dst: IntArray
    src_chunk: IntArray
    dst_chunk: IntArray
    num_chunks: IntArray
    operand_chunk: IntArray
    channel: IntArray
    row: IntArray


class Header(msgspec.Struct, frozen=True):
    """What the table is for. Per rank: where input and output start, and how many chunks of memory it has."""

    collective: str
    world_size: int
    chunks: int
    root: int | None
    name: str
    input_offset: tuple[int, ...]
    output_offset: tuple[int, ...]
    memory_chunks: tuple[int, ...]

    @property
    def contract(self) -> Contract:
        return contract(self.collective, self.world_size, self.chunks, self.root)

    @property
    def in_place(self) -> bool:
        """Whether some rank's input and output share memory."""
        terms = self.contract
        for rank in range(self.world_size):
            first = max(self.input_offset[rank], self.output_offset[rank])
            input_end = self.input_offset[rank] + terms.input_size(rank)
            output_end = self.output_offset[rank] + terms.output_size(rank)
            if first < min(input_end, output_end):
                return True
        return False


class _Document(msgspec.Struct):
    """The JSON form."""

    schema_version: int
    header: Header
    columns: dict[str, list[int]]


class Schedule:
    """A header and a table, sorted by step; rows of one step keep the order they were given in."""

    def __init__(self, header: Header, columns: Mapping[str, npt.ArrayLike]) -> None:
        """``columns`` holds every name of ``COLUMNS``, arrays of one length. Raises ``SpecError`` otherwise."""
        missing = [name for name in COLUMNS if name not in columns]
        unknown = [name for name in columns if name not in COLUMNS]
        if missing or unknown:
            raise SpecError(f"schedule {header.name}: columns missing: {missing}, unknown: {unknown}; needs {COLUMNS}")
        arrays = {name: _narrow(name, columns[name]) for name in COLUMNS}
        lengths = {len(array) for array in arrays.values()}
        if len(lengths) != 1:
            raise SpecError(f"schedule {header.name}: columns differ in length: {sorted(lengths)}")
        step = arrays["step"]
        if np.any(step[1:] < step[:-1]):
            order = np.argsort(step, kind="stable")
            arrays = {name: array[order] for name, array in arrays.items()}
        for array in arrays.values():
            array.setflags(write=False)
        self._header = header
        self._columns = arrays

    def __len__(self) -> int:
        return len(self._columns["step"])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return self.header == other.header and all(
            np.array_equal(self._columns[name], other._columns[name]) for name in COLUMNS
        )

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    def __repr__(self) -> str:
        header = self.header
        return f"<Schedule {header.name}: {header.collective}, {header.world_size} ranks, {len(self)} rows>"

    @property
    def header(self) -> Header:
        return self._header

    @property
    def name(self) -> str:
        return self.header.name

    @property
    def world_size(self) -> int:
        return self.header.world_size

    @property
    def num_steps(self) -> int:
        """One more than the last step's number; 0 for an empty table."""
        return int(self._columns["step"][-1]) + 1 if len(self) else 0

    @property
    def size_bytes(self) -> int:
        """Memory that the columns hold."""
        return sum(array.nbytes for array in self._columns.values())

    def column(self, name: str) -> IntArray:
        """One column as int64, a copy."""
        return self._columns[name].astype(np.int64)

    def rows(self) -> Iterator[Row]:
        """Rows one by one, for people and small tables."""
        for values in zip(*(self._columns[name].tolist() for name in COLUMNS), strict=True):
            yield Row(*values)

    def steps(self) -> Iterator[tuple[int, Columns]]:
        """(step, its rows as int64 columns), in order, steps without rows left out."""
        step = self._columns["step"]
        if not len(self):
            return
        starts = np.flatnonzero(np.r_[True, step[1:] != step[:-1]])
        for start, stop in zip(starts, np.r_[starts[1:], len(self)], strict=True):
            yield int(step[start]), self.columns(slice(int(start), int(stop)))

    def columns(self, which: slice | IntArray = slice(None)) -> Columns:
        """The rows ``which`` (all of them by default) as int64 columns."""
        row = np.arange(*which.indices(len(self)), dtype=np.int64) if isinstance(which, slice) else which
        return Columns(**{name: self._columns[name][which].astype(np.int64) for name in COLUMNS}, row=row)

    def rows_of(self, rank: int | range) -> Columns:
        """The rows that the rank, or one of a range without gaps, sends, receives or moves, in table order."""
        first, last = (rank.start, rank.stop - 1) if isinstance(rank, range) else (rank, rank)
        src, dst = self._columns["src"], self._columns["dst"]
        mine = ((src >= first) & (src <= last)) | ((dst >= first) & (dst <= last))
        return self.columns(np.flatnonzero(mine))

    def fingerprint(self) -> str:
        """A SHA-256 over header and rows: equal for equal schedules, on any machine."""
        digest = hashlib.sha256(msgspec.json.encode(self.header))
        for name in COLUMNS:
            digest.update(self._columns[name].astype("<i4").tobytes())
        return digest.hexdigest()

    def to_json(self) -> bytes:
        """One JSON document that ``from_json`` reads back to an equal schedule."""
        columns = {name: self._columns[name].tolist() for name in COLUMNS}
        return msgspec.json.encode(_Document(SCHEMA_VERSION, self.header, columns))

    @classmethod
    def from_json(cls, text: bytes | str, what: str = "schedule") -> Schedule:
        """Read ``to_json``'s document. Raises ``SpecError`` naming ``what`` and where it is malformed."""
        try:
            document = msgspec.json.decode(text, type=_Document)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise SpecError(f"{what}: is not a schedule in JSON: {error}") from None
        if document.schema_version != SCHEMA_VERSION:
            raise SpecError(f"{what}: expected schema_version {SCHEMA_VERSION}, got {document.schema_version}")
        try:
            return cls(document.header, document.columns)
        except SpecError as error:
            raise SpecError(f"{what}: {error}") from None


def check_structure(schedule: Schedule) -> None:
    """Raise ``ScheduleError`` unless every row names ranks and chunks that the header has.

    ``SpecError`` where the header itself is no contract (unknown collective, root outside the world, ...).
    """
    header = schedule.header
    terms = header.contract
    world_size = header.world_size
    for field in ("input_offset", "output_offset", "memory_chunks"):
        if len(getattr(header, field)) != world_size:
            raise ScheduleError(
                f"header field {field}", schedule=header.name, expected=f"{world_size} entries, one a rank",
                got=f"{len(getattr(header, field))}",
            )  # fmt: skip
    for rank in range(world_size):
        if not 0 <= header.memory_chunks[rank] <= _MAX_CHUNKS:
            raise ScheduleError(
                "memory_chunks", schedule=header.name, rank=rank, expected=f"0 to {_MAX_CHUNKS} chunks",
                got=f"{header.memory_chunks[rank]}",
            )  # fmt: skip
        for region, offset, size in (
            ("input", header.input_offset[rank], terms.input_size(rank)),
            ("output", header.output_offset[rank], terms.output_size(rank)),
        ):
            if offset < 0 or offset + size > header.memory_chunks[rank]:
                raise ScheduleError(
                    f"{region} region outside memory", schedule=header.name, rank=rank,
                    expected=f"within {header.memory_chunks[rank]} chunks", got=f"{offset} to {offset + size}",
                )  # fmt: skip
    rows = schedule.columns()
    memory = np.asarray(header.memory_chunks, dtype=np.int64)
    safe_src = np.clip(rows.src, 0, world_size - 1)
    safe_dst = np.clip(rows.dst, 0, world_size - 1)
    checks: tuple[tuple[str, npt.NDArray[np.bool_], str], ...] = (
        ("src", (rows.src >= 0) & (rows.src < world_size), f"a rank below {world_size}"),
        ("dst", (rows.dst >= 0) & (rows.dst < world_size), f"a rank below {world_size}"),
        ("step", rows.step >= 0, "a step of at least 0"),
        ("channel", rows.channel >= 0, "a channel of at least 0"),
        ("num_chunks", rows.num_chunks >= 1, "at least 1 chunk"),
        ("src_chunk", (rows.src_chunk >= 0) & (rows.src_chunk + rows.num_chunks <= memory[safe_src]),
         "a run inside the sender's memory"),
        ("dst_chunk", (rows.dst_chunk >= 0) & (rows.dst_chunk + rows.num_chunks <= memory[safe_dst]),
         "a run inside the receiver's memory"),
        ("operand_chunk", (rows.operand_chunk == REPLACE)
         | ((rows.operand_chunk >= 0) & (rows.operand_chunk + rows.num_chunks <= memory[safe_dst])),
         "-1 or a run inside the receiver's memory"),
    )  # fmt: skip
    for column, good, expected in checks:
        if not good.all():
            row = int(np.argmin(good))
            bad = Row(*(int(rows[index][row]) for index in range(len(COLUMNS))))
            raise ScheduleError(
                f"row {row} ({bad})", schedule=header.name, step=bad.step, rank=bad.dst, chunk=bad.dst_chunk,
                expected=f"{column}: {expected}", got=str(getattr(bad, column)),
            )  # fmt: skip


def _narrow(name: str, values: npt.ArrayLike) -> npt.NDArray[np.signedinteger]:
    """``values`` as a contiguous copy in the narrowest of int8, int16, int32 that holds it."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise SpecError(f"column {name}: expected one dimension, got lists of different lengths") from None
    if array.ndim != 1:
        raise SpecError(f"column {name}: expected one dimension, got shape {array.shape}")
    if array.size == 0:
        return np.zeros(0, dtype=np.int8)
    if array.dtype.kind not in "iu":
        raise SpecError(f"column {name}: expected integers, got {array.dtype}")
    low, high = int(array.min()), int(array.max())
    for dtype in (np.int8, np.int16, np.int32):
        info = np.iinfo(dtype)
        if info.min <= low and high <= info.max:
            return np.array(array, dtype=dtype, order="C", copy=True)
    raise SpecError(f"column {name}: expected values below 2^31, got {low} to {high}")
