"""Jobs cut into pieces: what moves whole in virtual time, in which lane, and what waits for what.

A **piece** is a part of one row, at most ``segment_bytes`` long; all pieces of a row are equally long. A **lane** is
what one rank sends to another on one channel; its pieces move one after the other, and only the first piece of a
message pays the latency of the lane's route. A piece also waits for the pieces that its bytes depend on
(``schedule.dependencies``), except that an overwrite does not wait for a read of its own step: the receiver stages it.

Everything is a column, as narrow as it may be: a ring of 1,024 ranks is two million pieces. What depends on what is
derived for some ranks at a time, since both ends of a dependency are at one rank. Jobs that are alike are cut once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from atoll.errors import SpecError
from atoll.schedule.contract import IntArray
from atoll.schedule.dependencies import APPLY, READ, derive
from atoll.schedule.prove import ProvenSchedule
from atoll.schedule.sorting import order_by
from atoll.simulator.job import Job
from atoll.topology.cluster import Cluster, Floats, Integers
from atoll.topology.routes import Routes, Transport, find_routes

Numbers = NDArray[np.int32]
Bools = NDArray[np.bool_]

MAX_PIECES: Final = 20_000_000
_NEAR: Final = 1e-9
_CHUNKS_AT_A_TIME: Final = 1 << 18


class Pieces(msgspec.Struct, frozen=True, eq=False):
    """Columns, job by job and row by row; ``after[first[i]:first[i + 1]]`` and ``following[i]`` wait for piece i.

    ``following``: the next of the lane, -1 for none. ``needs``: for how many others a piece waits. ``first_piece``: of
    each row of all jobs, and the end; ``first_row``: of each job, and the end.
    """

    size: Floats
    lane: Numbers
    pays: Bools
    needs: Numbers
    following: Numbers
    first: Integers
    after: Numbers
    first_piece: Integers
    first_row: Integers

    def of_job(self, job: int) -> slice:
        return slice(int(self.first_piece[self.first_row[job]]), int(self.first_piece[self.first_row[job + 1]]))


class Lanes(msgspec.Struct, frozen=True, eq=False):
    """Of each lane: its job, the rank that receives, its route, and the latency of that."""

    job: Integers
    dst: Integers
    routes: Routes
    latency_s: Floats


class _Cut(msgspec.Struct, frozen=True, eq=False):
    """One job's pieces and lanes, numbered from 0; ``pairs`` has a lane's source, target and channel."""

    size: Floats
    lane: Numbers
    pays: Bools
    following: Numbers
    before: Numbers
    after: Numbers
    first_piece: Integers
    pairs: Integers


def cut(
    jobs: Sequence[Job], cluster: Cluster, segment_bytes: float | None, transport: Transport
) -> tuple[Pieces, Lanes]:
    """The pieces of all jobs, and their lanes. ``SpecError`` for too many pieces, or a pair that nothing joins."""
    made: dict[tuple[int, float], _Cut] = {}
    parts = []
    room = MAX_PIECES
    for job in jobs:
        key = (id(job.proven), job.size_bytes)
        if key not in made:
            made[key] = _cut_one(job.proven, job.size_bytes, segment_bytes, room)
        parts.append(made[key])
        room -= len(parts[-1].size)
    _check_room(room)
    pieces = np.cumsum([0, *(len(part.size) for part in parts)])
    lanes = np.cumsum([0, *(len(part.pairs) for part in parts)])

    def joined(columns: Iterator[NDArray[Any]], dtype: type) -> NDArray[Any]:
        return np.concatenate([np.zeros(0, dtype), *columns])

    following = joined(
        (np.where(part.following < 0, -1, part.following + np.int32(at))
         for part, at in zip(parts, pieces, strict=False)), np.int32,
    )  # fmt: skip
    before = joined((part.before + np.int32(at) for part, at in zip(parts, pieces, strict=False)), np.int32)
    after = joined((part.after + np.int32(at) for part, at in zip(parts, pieces, strict=False)), np.int32)
    count = int(pieces[-1])
    needs = np.bincount(after, minlength=count).astype(np.int32)
    needs[following[following >= 0]] += 1
    first = np.concatenate(([0], np.cumsum(np.bincount(before, minlength=count))))
    ends = [
        joined((np.array(job.gpus)[part.pairs[:, side]] for job, part in zip(jobs, parts, strict=True)), np.int64)
        for side in (0, 1)
    ]
    channel = joined((part.pairs[:, 2] for part in parts), np.int64)
    routes = find_routes(cluster, ends[0], ends[1], channel, transport)
    return Pieces(
        size=joined((part.size for part in parts), np.float64),
        lane=joined((part.lane + np.int32(at) for part, at in zip(parts, lanes, strict=False)), np.int32),
        pays=joined((part.pays for part in parts), np.bool_),
        needs=needs, following=following, first=first, after=after[order_by(before)],
        first_piece=np.append(
            joined((part.first_piece[:-1] + at for part, at in zip(parts, pieces, strict=False)), np.int64), count
        ),
        first_row=np.cumsum([0, *(len(part.first_piece) - 1 for part in parts)]),
    ), Lanes(
        job=np.repeat(np.arange(len(parts)), np.diff(lanes)),
        dst=joined((part.pairs[:, 1] for part in parts), np.int64),
        routes=routes,
        latency_s=routes.latency_s(cluster),
    )  # fmt: skip


def _check_room(room: int) -> None:
    if room < 0:
        raise SpecError(f"more than {MAX_PIECES} pieces to move; give longer segments or fewer ranks")


def _cut_one(proven: ProvenSchedule, size_bytes: float, segment_bytes: float | None, room: int) -> _Cut:
    table = proven.schedule
    step, chunks = table.column("step"), table.column("num_chunks")
    row_bytes = chunks * (size_bytes / table.header.chunks)
    cuts = np.ones(len(step), dtype=np.int64)
    if segment_bytes is not None:
        longest = max(segment_bytes, float(row_bytes.max(initial=0)) / (MAX_PIECES + 1))
        cuts = np.maximum(1, np.ceil(row_bytes / longest - _NEAR)).astype(np.int64)
    count = int(cuts.sum())
    _check_room(room - count)
    first_piece = np.concatenate(([0], np.cumsum(cuts)))
    first = first_piece[:-1]
    pairs, lane, order = _lanes(proven)
    # Which rows are of one lane with the next, and which of one message.
    earlier, later = order[:-1], order[1:]
    same = lane[earlier] == lane[later]
    opens = np.ones(len(step), dtype=bool)
    opens[later[same & (step[earlier] == step[later])]] = False
    pays = np.zeros(count, dtype=bool)
    pays[first[opens]] = True
    following = np.arange(1, count + 1, dtype=np.int32)
    following[first_piece[1:] - 1] = -1
    following[first_piece[earlier[same] + 1] - 1] = first[later[same]]
    edges = list(_edges(proven, step, chunks, cuts, first, lane))
    none = np.zeros(0, dtype=np.int32)
    return _Cut(
        size=np.repeat(row_bytes / cuts, cuts),
        lane=np.repeat(lane, cuts),
        pays=pays,
        following=following,
        before=np.concatenate([none, *(before for before, _ in edges)]),
        after=np.concatenate([none, *(after for _, after in edges)]),
        first_piece=first_piece,
        pairs=pairs,
    )


def _lanes(proven: ProvenSchedule) -> tuple[Integers, Numbers, IntArray]:
    """Source, target and channel of each lane; the lane of each row; the rows lane by lane, in order."""
    table = proven.schedule
    ranks, channel = table.header.world_size, table.column("channel")
    channels = int(channel.max(initial=0)) + 1
    key = (table.column("src") * ranks + table.column("dst")) * channels + channel
    order = order_by(key)
    opens = np.diff(key[order], prepend=-1) > 0
    kinds = key[order][opens]
    lane = np.empty(len(key), dtype=np.int32)
    lane[order] = np.cumsum(opens) - 1
    pair, on = np.divmod(kinds, channels)
    return np.stack((pair // ranks, pair % ranks, on), axis=1), lane, order


def _edges(
    proven: ProvenSchedule, step: IntArray, chunks: IntArray, cuts: IntArray, first: IntArray, lane: Numbers
) -> Iterator[tuple[Numbers, Numbers]]:
    """Pairs of pieces of different lanes, before and after, for some ranks at a time. Lengths are in chunks."""
    ranks = proven.schedule.header.world_size
    whole = len(cuts) == int(cuts.sum())
    batch = max(1, ranks * _CHUNKS_AT_A_TIME // max(1, int(chunks.sum())))
    for low_rank in range(0, ranks, batch):
        found = derive(proven, range(low_rank, min(low_rank + batch, ranks)))
        room = (found.before_side == READ) & (found.after_side == APPLY) & (step[found.before] == step[found.after])
        kept = np.flatnonzero(~room & (lane[found.before] != lane[found.after]))
        before, after = found.before[kept], found.after[kept]
        if whole:
            yield before.astype(np.int32), after.astype(np.int32)
            continue
        start, length = found.after_index[kept], found.num_chunks[kept]
        long_before, long_after = chunks[before] / cuts[before], chunks[after] / cuts[after]
        low = np.floor(start / long_after + _NEAR).astype(np.int64)
        high = np.minimum(np.ceil((start + length) / long_after - _NEAR).astype(np.int64), cuts[after])
        spans = np.maximum(high - low, 1)
        edge = np.repeat(np.arange(len(kept)), spans)
        piece = low[edge] + np.arange(len(edge)) - np.repeat(np.cumsum(spans) - spans, spans)
        upto = np.minimum((piece + 1) * long_after[edge], (start + length)[edge]) - start[edge]
        passed = np.ceil((upto + found.before_index[kept][edge]) / long_before[edge] - _NEAR).astype(np.int64) - 1
        passed = np.clip(passed, 0, cuts[before][edge] - 1)
        yield (first[before][edge] + passed).astype(np.int32), (first[after][edge] + piece).astype(np.int32)
