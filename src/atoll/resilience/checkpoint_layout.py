"""Who writes which part of a job's state, and which parts of files make up the part that is asked for; no I/O.

**State** is a mapping of names to arrays. A plain array is *replicated*: every rank holds the same, and the ranks
share the writing. All replicated arrays form one line of bytes, in order of their names, and rank r writes the r-th of
N equal parts of that line, cut at elements: the load is even and there are few pieces, however many arrays there are.
A ``Shard`` is the box of a global array that this rank holds, as in sharded optimizers or pipelines: its holder writes
it, where several hold the same box the lowest of them. The boxes of a name must tile its global array exactly.

A **piece** is what one rank writes of one array: a run of elements of a replicated array, which is *flat*, or a box.
What is read back is any ``Region`` of any array, by any number of ranks: that is resharding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.errors import SpecError
from atoll.runtime.arrays import Array, as_input
from atoll.runtime.descriptor import name_ranks
from atoll.schedule.partition import balanced

MAX_NAME = 1024


class Region(NamedTuple):
    """A box of an array: where it starts and its shape, one number for each axis."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Region:
        """All of an array of ``shape``."""
        return cls((0,) * len(shape), tuple(shape))

    @classmethod
    def part(cls, shape: Sequence[int], rank: int, world_size: int, axis: int = 0) -> Region:
        """Part ``rank`` of ``world_size`` balanced parts along ``axis``, as ``numpy.array_split`` cuts."""
        if not -len(shape) <= axis < len(shape):
            raise SpecError(f"axis: expected an axis of an array with {len(shape)}, got {axis}")
        if not 0 <= rank < world_size:
            raise SpecError(f"rank: expected a rank between 0 and {world_size - 1}, got {rank}")
        sizes = balanced(int(shape[axis]), world_size)
        start, size = [0] * len(shape), [int(length) for length in shape]
        start[axis], size[axis] = int(sizes[:rank].sum()), int(sizes[rank])
        return cls(tuple(start), tuple(size))

    @property
    def size(self) -> int:
        """Elements in the box."""
        return math.prod(self.shape)

    def within(self, shape: Sequence[int]) -> bool:
        """Whether the box lies inside an array of ``shape``."""
        return len(self.start) == len(self.shape) == len(shape) and all(
            min(first, length) >= 0 and first + length <= whole
            for first, length, whole in zip(self.start, self.shape, shape, strict=True)
        )

    def overlap(self, other: Region) -> Region | None:
        """The box that both contain, ``None`` where there is none."""
        start = tuple(map(max, self.start, other.start))
        end = tuple(
            min(a + m, b + n) for a, m, b, n in zip(self.start, self.shape, other.start, other.shape, strict=True)
        )
        if any(last <= first for first, last in zip(start, end, strict=True)):
            return None
        return Region(start, tuple(last - first for first, last in zip(start, end, strict=True)))

    def slices(self, origin: Sequence[int]) -> tuple[slice, ...]:
        """The box as an index into an array whose first element is at ``origin``."""
        return tuple(slice(a - zero, a - zero + n) for a, n, zero in zip(self.start, self.shape, origin, strict=True))


class Shard:
    """The box of a global array of ``global_shape``, beginning at ``start``, that this rank holds as ``array``."""

    def __init__(self, array: npt.ArrayLike, start: Sequence[int], global_shape: Sequence[int]) -> None:
        self.array = as_input("Shard", array)
        self.region = Region(tuple(int(first) for first in start), self.array.shape)
        self.global_shape = tuple(int(length) for length in global_shape)
        if not self.region.within(self.global_shape):
            raise SpecError(
                f"Shard: a box of shape {self.array.shape} that starts at {self.region.start} is not inside an array "
                f"of shape {self.global_shape}"
            )


class ArrayRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A global array of the state. ``flat``: its pieces are runs of elements, not boxes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    flat: bool

    @property
    def index_shape(self) -> tuple[int, ...]:
        """The shape in which pieces count."""
        return (math.prod(self.shape),) if self.flat else self.shape


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rank writes of array ``name``, in the array's ``index_shape``."""

    name: str
    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def region(self) -> Region:
        """As a box."""
        return Region(self.start, self.shape)


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rank says about one of its arrays; ``start`` and ``held`` are of its shard, ``None``: replicated."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: tuple[int, ...] | None = None
    held: tuple[int, ...] | None = None


class Layout(msgspec.Struct, frozen=True):
    """The arrays of a state in order of their names, and the pieces of each rank in the order of its file."""

    arrays: tuple[ArrayRecord, ...]
    pieces: tuple[tuple[Piece, ...], ...]


State = Mapping[str, npt.ArrayLike | Shard]


def dtype_text(dtype: np.dtype[Any]) -> str:
    """A dtype as text that ``parse_dtype`` reads back. ``SpecError`` for what cannot be kept."""
    text = dtype.str if dtype.kind in "biufcmMSU" else dtype.name
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise SpecError(f"a checkpoint cannot hold dtype {dtype}: expected numbers; save the fields as arrays")
    return text


def declare(state: State) -> tuple[dict[str, Array], list[Declared]]:
    """This rank's arrays by name, C-contiguous, and what it tells the others about them."""
    arrays: dict[str, Array] = {}
    declared = []
    for name in sorted(_names(state)):
        value = state[name]
        array = value.array if isinstance(value, Shard) else as_input(f"state {name!r}", value)
        arrays[name] = array
        text = dtype_text(array.dtype)
        if isinstance(value, Shard):
            declared.append(Declared(name, text, value.global_shape, value.region.start, value.region.shape))
        else:
            declared.append(Declared(name, text, array.shape))
    return arrays, declared


def assign(declarations: Sequence[Sequence[Declared]], itemsizes: Mapping[str, int]) -> Layout:
    """Who writes what, from what every rank has declared; ``itemsizes`` gives the bytes of an element by dtype text.

    ``SpecError``, the same on every rank, where ranks contradict each other or boxes do not tile their array.
    """
    world_size = len(declarations)
    by_name: dict[str, dict[int, Declared]] = {}
    for rank, declared in enumerate(declarations):
        for entry in declared:
            by_name.setdefault(entry.name, {})[rank] = entry
    arrays = [_agree(name, by_name[name], world_size) for name in sorted(by_name)]
    pieces: list[list[Piece]] = [[] for _ in range(world_size)]
    for rank, piece in _line(arrays, itemsizes, world_size):
        pieces[rank].append(piece)
    for record in arrays:
        if not record.flat:
            for region, rank in _tiles(record, by_name[record.name]).items():
                pieces[rank].append(Piece(record.name, region.start, region.shape))
    return Layout(tuple(arrays), tuple(map(tuple, pieces)))


def piece_view(array: Array, piece: Piece, held: Sequence[int] | None) -> Array:
    """The elements of ``piece`` in a rank's ``array``, no copy; ``held`` is where its shard starts, else it is flat."""
    if held is None:
        return array.reshape(-1)[piece.start[0] : piece.start[0] + piece.shape[0]]
    return array[piece.region.slices(held)]


def rows_of(record: ArrayRecord, region: Region) -> Region:
    """What must be read of a record's index space to have ``region``: itself, or for flat arrays the rows it is in."""
    if not record.flat:
        return region
    if not record.shape:
        return Region((0,), (1,))
    row = math.prod(record.shape[1:])
    return Region((region.start[0] * row,), (region.shape[0] * row,))


def cut(record: ArrayRecord, region: Region, rows: Array) -> Array:
    """``region`` out of what ``rows_of`` asked for."""
    if not record.flat:
        return rows
    if not record.shape:
        return rows.reshape(())
    table = rows.reshape(region.shape[0], *record.shape[1:])
    inner = Region((0, *region.start[1:]), region.shape)
    return np.ascontiguousarray(table[inner.slices((0,) * len(record.shape))])


def _names(state: State) -> Iterator[str]:
    for name in state:
        if not isinstance(name, str) or not name or len(name) > MAX_NAME:
            raise SpecError(f"state: expected names of 1 to {MAX_NAME} characters, got {name!r}")
        yield name


def _agree(name: str, said: Mapping[int, Declared], world_size: int) -> ArrayRecord:
    """The array that all ranks mean by ``name``."""
    first_rank, first = next(iter(said.items()))
    for rank, entry in said.items():
        if (entry.dtype, entry.shape, entry.start is None) != (first.dtype, first.shape, first.start is None):
            raise SpecError(
                f"state {name!r} differs: rank {first_rank} has {_words(first)}, rank {rank} has {_words(entry)}"
            )
    if first.start is None and len(said) < world_size:
        missing = [rank for rank in range(world_size) if rank not in said]
        raise SpecError(
            f"state {name!r} is missing on {name_ranks(missing)}: a plain array is held by all ranks alike; "
            "expected a Shard where only some hold it"
        )
    return ArrayRecord(name, first.dtype, first.shape, first.start is None)


def _words(entry: Declared) -> str:
    kind = "a plain array" if entry.start is None else "a shard of an array"
    return f"{kind} of shape {entry.shape} and dtype {entry.dtype}"


def _line(arrays: Sequence[ArrayRecord], itemsizes: Mapping[str, int], world_size: int) -> Iterator[tuple[int, Piece]]:
    """The flat arrays, one after the other, cut into even parts of bytes at whole elements."""
    flat = [(record, itemsizes[record.dtype], record.index_shape[0]) for record in arrays if record.flat]
    total = sum(itemsize * size for _, itemsize, size in flat)
    cuts = [total * rank // world_size for rank in range(world_size + 1)]
    begin = 0
    for record, itemsize, size in flat:
        # An element belongs to the part in which its first byte lies.
        marks = [min(max(-(-(position - begin) // itemsize), 0), size) for position in cuts]
        marks[-1] = size
        for rank, (first, last) in enumerate(pairwise(marks)):
            if last > first:
                yield rank, Piece(record.name, (first,), (last - first,))
        begin += itemsize * size


def _tiles(record: ArrayRecord, said: Mapping[int, Declared]) -> dict[Region, int]:
    """The boxes of a sharded array and who writes each. ``SpecError`` when they are no tiling."""
    holders: dict[Region, int] = {}
    for rank, entry in said.items():
        assert entry.start is not None
        assert entry.held is not None
        region = Region(entry.start, entry.held)
        if region.size:
            holders.setdefault(region, rank)
    regions = list(holders)
    if not regions or not record.shape:
        if math.prod(record.shape) and not regions:
            raise SpecError(f"state {record.name!r}: no rank holds any of its {math.prod(record.shape)} elements")
        return holders
    starts = np.array([region.start for region in regions])
    ends = starts + np.array([region.shape for region in regions])
    for index in range(len(regions) - 1):
        meet = (np.maximum(starts[index], starts[index + 1 :]) < np.minimum(ends[index], ends[index + 1 :])).all(axis=1)
        if meet.any():
            other = regions[index + 1 + int(meet.argmax())]
            raise SpecError(
                f"state {record.name!r}: the shards of ranks {holders[regions[index]]} and {holders[other]} overlap: "
                f"{_box(regions[index])} and {_box(other)}"
            )
    covered = sum(region.size for region in regions)
    if covered != math.prod(record.shape):
        raise SpecError(
            f"state {record.name!r}: the ranks' shards hold {covered} of the {math.prod(record.shape)} elements of "
            f"shape {record.shape}: {', '.join(map(_box, regions[:8]))}{', ...' * (len(regions) > 8)}"
        )
    return holders


def _box(region: Region) -> str:
    return "[" + ", ".join(f"{a}:{a + n}" for a, n in zip(region.start, region.shape, strict=True)) + "]"
