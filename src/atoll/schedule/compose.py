"""Schedules made of schedules: put one on some ranks and chunks, one after the other, side by side, backwards.

A **part** is a set of rows in the coordinates of a composite: which ranks and which positions of the composite's
vector they concern. It promises nothing. ``embed`` makes a part of a schedule, ``sequence`` and ``parallel`` make a
part of parts, and ``compose`` gives a part the header, and with it the contract, that the whole declares. What comes
out is a schedule like any other: it must be proven, and the proof knows nothing of how it was made.

Positions below ``positions`` are the composite's vector (two of them, input and output, for an all-to-all), and, if
the caller wants, scratch that parts share. A part's own scratch follows; parts in sequence use the same scratch, parts
side by side on a common rank get scratch and channels of their own.

``mirror`` turns a schedule that spreads values into the one that gathers or sums them: an all-gather run backwards is
a reduce-scatter, a broadcast run backwards a reduce.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.errors import SpecError
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import IntArray
from atoll.schedule.runs import coalesce, expand
from atoll.schedule.table import COLUMNS, REPLACE, Schedule

_MIRROR = {
    "all_gather": "reduce_scatter",
    "broadcast": "reduce",
    "scatter": "gather",
    "gather": "scatter",
}


class Part(msgspec.Struct, frozen=True, eq=False):
    """Rows in a composite's coordinates. ``ranks`` take part; own scratch is ``scratch_chunks`` from ``positions``."""

    positions: int
    columns: dict[str, IntArray]
    ranks: frozenset[int]
    num_steps: int
    num_channels: int
    scratch_chunks: int


def embed(
    schedule: Schedule, ranks: Sequence[int] | IntArray, positions: int, *, starts: npt.ArrayLike | None = None,
    width: int | None = None,
) -> Part:  # fmt: skip
    """``schedule`` on some ranks and positions of a composite with ``positions`` positions.

    ``ranks[i]`` plays the schedule's rank i. The schedule's chunk c becomes the run of ``width`` composite chunks from
    ``starts[c]`` on; by default the schedule's vector is laid over all positions. Raises ``SpecError`` where ranks or
    runs do not fit, and for a schedule whose input and output do not lie in one vector, as ``ScheduleBuilder`` lays
    them.
    """
    header = schedule.header
    terms = header.contract
    vector = terms.chunks * (2 if terms.collective.name == "all_to_all" else 1)
    _check_layout(schedule)
    members = np.asarray(ranks, dtype=np.int64)
    if len(members) != header.world_size or len(np.unique(members)) != len(members) or np.any(members < 0):
        raise SpecError(
            f"embedding {header.name}: expected {header.world_size} different ranks, got {members.tolist()}"
        )
    if starts is None:
        if positions % vector:
            raise SpecError(
                f"embedding {header.name}: expected positions in a multiple of its {vector} chunks, got {positions}; "
                f"or say where each chunk starts"
            )
        width = positions // vector
        starts = np.arange(vector) * width
    first = np.asarray(starts, dtype=np.int64)
    wide = 1 if width is None else width
    if first.shape != (vector,) or wide < 1 or np.any(first < 0) or np.any(first + wide > positions):
        raise SpecError(
            f"embedding {header.name}: expected {vector} runs of {wide} within {positions} positions, "
            f"got starts {first.tolist()}"
        )
    scratch = (max(header.memory_chunks) - vector) * wide
    # In chunks of the composite, every row is expanded, moved, and joined again where it is still one run.
    fine = np.concatenate([(first[:, None] + np.arange(wide)).reshape(-1), positions + np.arange(scratch)])
    rows = schedule.columns()
    scaled = rows._replace(
        src_chunk=rows.src_chunk * wide,
        dst_chunk=rows.dst_chunk * wide,
        num_chunks=rows.num_chunks * wide,
        operand_chunk=np.where(rows.operand_chunk == REPLACE, REPLACE, rows.operand_chunk * wide),
    )
    chunks, _ = expand(scaled)
    reduces = chunks.operand_chunk != REPLACE
    columns = coalesce(
        chunks._replace(
            src=members[chunks.src],
            dst=members[chunks.dst],
            src_chunk=fine[chunks.src_chunk],
            dst_chunk=fine[chunks.dst_chunk],
            operand_chunk=np.where(reduces, fine[np.where(reduces, chunks.operand_chunk, 0)], REPLACE),
        )
    )
    channels = int(rows.channel.max(initial=-1)) + 1
    return Part(positions, columns, frozenset(members.tolist()), schedule.num_steps, channels, scratch)


def sequence(*parts: Part) -> Part:
    """The parts one after the other: each starts where the one before has ended."""
    _check_parts(parts)
    moved = []
    step = 0
    for part in parts:
        moved.append({**part.columns, "step": part.columns["step"] + step})
        step += part.num_steps
    return Part(
        positions=parts[0].positions,
        columns=_join(moved),
        ranks=frozenset().union(*(part.ranks for part in parts)),
        num_steps=step,
        num_channels=max(part.num_channels for part in parts),
        scratch_chunks=max(part.scratch_chunks for part in parts),
    )


def parallel(*parts: Part) -> Part:
    """The parts side by side. Those that share a rank get channels and scratch of their own."""
    _check_parts(parts)
    positions = parts[0].positions
    channels: dict[int, list[tuple[int, int]]] = defaultdict(list)
    scratch: dict[int, list[tuple[int, int]]] = defaultdict(list)
    moved = []
    for part in parts:
        channel = _take(channels, part.ranks, part.num_channels)
        offset = _take(scratch, part.ranks, part.scratch_chunks)
        columns = {**part.columns, "channel": part.columns["channel"] + channel}
        for name in ("src_chunk", "dst_chunk", "operand_chunk"):
            columns[name] = np.where(columns[name] >= positions, columns[name] + offset, columns[name])
        moved.append(columns)
    return Part(
        positions=positions,
        columns=_join(moved),
        ranks=frozenset().union(*(part.ranks for part in parts)),
        num_steps=max(part.num_steps for part in parts),
        num_channels=max(end for runs in channels.values() for _, end in runs),
        scratch_chunks=max(end for runs in scratch.values() for _, end in runs),
    )


def _take(taken: dict[int, list[tuple[int, int]]], ranks: frozenset[int], size: int) -> int:
    """The start of the lowest run of ``size`` numbers that is free at all ``ranks``; it is taken then."""
    start = 0
    for low, high in sorted(run for rank in ranks for run in taken[rank]):
        if low >= start + size:
            break
        start = max(start, high)
    for rank in ranks:
        taken[rank].append((start, start + size))
    return start


def compose(
    part: Part, collective: str, world_size: int, chunks: int, *, name: str, root: int | None = None
) -> Schedule:
    """``part`` as a schedule that claims to be ``collective``; whether it is, ``prove`` says."""
    vector = chunks * (2 if collective == "all_to_all" else 1)
    if part.positions < vector:
        raise SpecError(f"composing {name}: expected a part of at least {vector} positions, got {part.positions}")
    outside = sorted(rank for rank in part.ranks if rank >= world_size)
    if outside:
        raise SpecError(f"composing {name}: expected ranks below {world_size}, got {outside}")
    scratch_chunks = part.positions - vector + part.scratch_chunks
    frame = ScheduleBuilder(collective, world_size, chunks, name=name, root=root, scratch_chunks=scratch_chunks)
    return Schedule(frame.build().header, part.columns)


def mirror(schedule: Schedule, name: str) -> Schedule:
    """``schedule`` run backwards: the last step first, every transfer turned round, copies of it become reductions.

    An all-gather in which every rank receives every block once becomes a reduce-scatter, a broadcast a reduce, a
    scatter a gather and a gather a scatter. Raises ``SpecError`` for any other collective.
    """
    header = schedule.header
    if header.collective not in _MIRROR:
        raise SpecError(f"mirroring {header.name}: expected one of {', '.join(_MIRROR)}, got {header.collective}")
    collective = _MIRROR[header.collective]
    rows = schedule.columns()
    reduces = collective in ("reduce_scatter", "reduce")
    columns = {
        **{column: getattr(rows, column) for column in COLUMNS},
        "step": schedule.num_steps - 1 - rows.step,
        "src": rows.dst,
        "dst": rows.src,
        "src_chunk": rows.dst_chunk,
        "dst_chunk": rows.src_chunk,
        "operand_chunk": rows.src_chunk if reduces else rows.operand_chunk,
    }
    terms = header.contract
    scratch_chunks = max(header.memory_chunks) - terms.chunks
    _check_layout(schedule)
    frame = ScheduleBuilder(
        collective, header.world_size, terms.chunks, name=name, root=header.root, scratch_chunks=scratch_chunks
    )
    return Schedule(frame.build().header, columns)


def _check_layout(schedule: Schedule) -> None:
    header = schedule.header
    terms = header.contract
    two = terms.collective.name == "all_to_all"
    for rank in range(header.world_size):
        output = terms.chunks if two else terms.output_start(rank)
        if (terms.input_size(rank) and header.input_offset[rank] != terms.input_start(rank)) or (
            terms.output_size(rank) and header.output_offset[rank] != output
        ):
            raise SpecError(
                f"{header.name}: expected input and output in one vector, as a schedule that works in place has "
                f"them, got input at {header.input_offset[rank]} and output at {header.output_offset[rank]} of "
                f"rank {rank}"
            )


def _check_parts(parts: Sequence[Part]) -> None:
    sizes = {part.positions for part in parts}
    if len(sizes) != 1:
        raise SpecError(f"composing: expected parts of one number of positions, got {sorted(sizes)}")


def _join(columns: Sequence[dict[str, IntArray]]) -> dict[str, IntArray]:
    return {name: np.concatenate([part[name] for part in columns]) for name in COLUMNS}
