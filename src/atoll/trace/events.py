"""What happened in collectives, in virtual time or in a real run: when each rank's messages were on their way.

Vocabulary. A **transfer** is one message of a schedule, seen by one of its two ranks: all that goes from one rank to
another on one channel in one step. So each message is two transfers, one that sends and one that receives. ``chunk``
is the lowest number of the chunks in it. A **lane** is one direction of one connection, (rank, channel, sends, peer);
its transfers come one after the other. A **collective** spans its transfers on each rank. Local moves are no transfers.

A transfer *starts* when its first byte could go: what it depends on is there and its lane is free. It *ends* when its
last byte is there (receives) or out of the sender's hands (sends). So the wait for its first byte is outside, and
inside are latency, the wait for a full link, and the rest of its data, which may come no faster than it goes. Times
are seconds from the earliest start in the trace.

Transfers are held as columns. Who made them does not show, so that a simulated trace and a real one of the same
schedule have the same keys, and can be laid over each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.errors import SpecError

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Key(NamedTuple):
    """Which transfer it is, whoever recorded it."""

    rank: int
    channel: int
    step: int
    chunk: int
    peer: int
    sends: bool


class Transfers(msgspec.Struct, frozen=True, eq=False):
    """Columns of one length, in the order of each lane."""

    rank: Integers
    peer: Integers
    sends: Bools
    channel: Integers
    step: Integers
    chunk: Integers
    num_bytes: Floats
    start_s: Floats
    end_s: Floats

    def __len__(self) -> int:
        return len(self.rank)

    @classmethod
    def of(cls, columns: Sequence[npt.ArrayLike]) -> Transfers:
        """From columns in the order of the fields, whatever their types."""
        return cls(
            *(np.asarray(column, dtype=_TYPES.get(name, np.int64))
              for name, column in zip(TRANSFER_COLUMNS, columns, strict=True))
        )  # fmt: skip

    def keys(self) -> list[Key]:
        columns = (self.rank, self.channel, self.step, self.chunk, self.peer, self.sends)
        return [Key(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


TRANSFER_COLUMNS = Transfers.__struct_fields__
_TYPES: dict[str, Any] = {"sends": np.bool_, "num_bytes": np.float64, "start_s": np.float64, "end_s": np.float64}


class Collective(msgspec.Struct, frozen=True, eq=False):
    """One call: ``start_s[r]`` and ``end_s[r]`` of rank r. ``name`` is the collective's and the algorithm's."""

    name: str
    size_bytes: float
    start_s: Floats
    end_s: Floats
    transfers: Transfers


class Trace(msgspec.Struct, frozen=True, eq=False):
    """Collectives in the order of the calls. ``source`` says whose time it is, ``places[r]`` where rank r was."""

    source: str
    places: tuple[str, ...]
    collectives: tuple[Collective, ...]


class Part(msgspec.Struct, frozen=True, eq=False):
    """One call as one rank recorded it, in seconds of its own clock; ``transfers`` are its own."""

    name: str
    size_bytes: float
    start_s: float
    end_s: float
    transfers: Transfers


def join(source: str, places: Sequence[str], parts: Sequence[Sequence[Part]], shifts_s: Sequence[float]) -> Trace:
    """One trace of what each rank recorded; ``shifts_s[r]`` is added to rank r's times.

    What a rank receives has started when its sender could send it. Raises ``SpecError`` where ranks recorded different
    calls.
    """
    calls = [[part.name for part in mine] for mine in parts]
    for rank, mine in enumerate(calls):
        if mine != calls[0]:
            raise SpecError(
                f"trace: expected the same calls on every rank, got {len(calls[0])} on rank 0 and {len(mine)} on rank "
                f"{rank}, or other ones; record from the same call to the same call on all ranks"
            )
    begin = min((part.start_s + shift for mine, shift in zip(parts, shifts_s, strict=True) for part in mine), default=0)
    moved = [shift - begin for shift in shifts_s]
    collectives = []
    for number in range(len(calls[0]) if calls else 0):
        call = [each[number] for each in parts]
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part.transfers, name) for part in call]) for name in TRANSFER_COLUMNS
        }
        lengths = [len(part.transfers) for part in call]
        for name in ("start_s", "end_s"):
            columns[name] = columns[name] + np.repeat(moved, lengths)
        start, end = (
            np.array([getattr(part, name) for part in call]) + np.array(moved) for name in ("start_s", "end_s")
        )
        transfers = _with_senders(Transfers(**columns))
        collectives.append(Collective(call[0].name, call[0].size_bytes, start, end, transfers))
    return Trace(source, tuple(places), tuple(collectives))


def _with_senders(transfers: Transfers) -> Transfers:
    """Both sides of a message start when its sender could send, where both were recorded. The n-th of a lane is the
    n-th of its other side."""
    src = np.where(transfers.sends, transfers.rank, transfers.peer)
    dst = np.where(transfers.sends, transfers.peer, transfers.rank)
    order = np.lexsort((np.arange(len(src)), transfers.channel, dst, src))
    sends = order[transfers.sends[order]]
    receives = order[~transfers.sends[order]]
    start = transfers.start_s.copy()
    same = len(sends) == len(receives) and all(
        np.array_equal(column[sends], column[receives]) for column in (src, dst, transfers.channel)
    )
    if same:
        # A sender may learn late that memory it lent has been read.
        start[sends] = start[receives] = np.minimum(start[sends], transfers.end_s[receives])
    return msgspec.structs.replace(transfers, start_s=start)


def one_after_the_other(traces: Sequence[Trace]) -> Trace:
    """Traces of the same ranks as one, in which each begins when the one before has ended on all ranks."""
    calls, now = [], 0.0
    for trace in traces:
        end = now
        for call in trace.collectives:
            columns = [
                getattr(call.transfers, name) + now if name in ("start_s", "end_s") else getattr(call.transfers, name)
                for name in TRANSFER_COLUMNS
            ]
            later = Collective(
                call.name, call.size_bytes, call.start_s + now, call.end_s + now, Transfers.of(columns)
            )  # fmt: skip
            end = max(end, float(later.end_s.max()))
            calls.append(later)
        now = end
    return Trace(traces[0].source, traces[0].places, tuple(calls))


class _Packed(msgspec.Struct):
    source: str
    places: list[str]
    calls: list[tuple[str, float, list[float], list[float], list[list[float]]]]


def pack(trace: Trace) -> bytes:
    """As bytes, to be sent to another process."""
    calls = [
        (call.name, call.size_bytes, call.start_s.tolist(), call.end_s.tolist(), plain_columns(call.transfers))
        for call in trace.collectives
    ]
    return msgspec.msgpack.encode(_Packed(trace.source, list(trace.places), calls))


def unpack(packed: bytes) -> Trace:
    """What ``pack`` has made. Raises ``msgspec.MsgspecError`` for anything else."""
    said = msgspec.msgpack.decode(packed, type=_Packed)
    calls = [
        Collective(name, size, np.array(start), np.array(end), Transfers.of(columns))
        for name, size, start, end, columns in said.calls
    ]
    return Trace(said.source, tuple(said.places), tuple(calls))


def plain_columns(transfers: Transfers) -> list[list[float]]:
    """Columns as lists of numbers, for ``Transfers.of``."""
    return [getattr(transfers, name).astype(np.float64).tolist() for name in TRANSFER_COLUMNS]


class Lane(NamedTuple):
    """One direction of one connection."""

    rank: int
    channel: int
    sends: bool
    peer: int


class Spans(NamedTuple):
    """A collective on one lane, and its transfers there: rows of the collective's columns, with strictly nested times.

    ``collective`` is its number in the trace; ``rows`` are in order, ``start_s`` and ``end_s`` theirs.
    """

    collective: int
    start_s: float
    end_s: float
    rows: list[int]
    starts_s: list[float]
    ends_s: list[float]


def lanes(trace: Trace) -> Iterator[tuple[Lane, list[Spans]]]:
    """Every lane in order with all that happened on it, strictly nested: no two spans overlap unless one holds the
    other. A lane's bytes go in order, so nothing on it starts before what came before has ended."""
    spans: dict[Lane, list[Spans]] = {}
    for number, one in enumerate(trace.collectives):
        transfers = one.transfers
        order = np.lexsort((np.arange(len(transfers)), transfers.peer, ~transfers.sends, transfers.channel,
                            transfers.rank))  # fmt: skip
        columns = (transfers.rank, transfers.channel, transfers.sends, transfers.peer)
        keys = list(zip(*(column[order].tolist() for column in columns), strict=True))
        starts, ends = transfers.start_s[order].tolist(), transfers.end_s[order].tolist()
        rows = order.tolist()
        begin = 0
        for at in range(1, len(keys) + 1):
            if at < len(keys) and keys[at] == keys[begin]:
                continue
            lane = Lane(*keys[begin])
            earlier = spans.setdefault(lane, [])
            floor = max(float(one.start_s[lane.rank]), earlier[-1].end_s if earlier else 0.0)
            clear = floor
            for place in range(begin, at):
                starts[place] = max(starts[place], clear)
                ends[place] = clear = max(ends[place], starts[place])
            end = max(float(one.end_s[lane.rank]), clear)
            earlier.append(Spans(number, floor, end, rows[begin:at], starts[begin:at], ends[begin:at]))
            begin = at
    for lane in sorted(spans, key=lambda lane: (lane.rank, lane.channel, not lane.sends, lane.peer)):
        yield lane, spans[lane]
