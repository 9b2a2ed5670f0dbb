"""What a space-time diagram shows: which ranks and steps, and one arrow per message, for text and SVG alike.

Ranks are lanes, time runs down, an arrow is a message (rows of one step, source, destination and channel). A picture
that cannot hold everything is **abridged** and says so: the first ranks, and the first and last steps; what the ranks
in the picture exchange with those that are not goes to one more lane, "others". Several such messages of one rank in
one step and direction are one arrow with their number.

A label names the chunks of the collective's vector (not places in memory) that travel, ``+`` where the receiver
reduces them: ``+3``, ``4-7``, ``12 chunks``.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from atoll.errors import SpecError
from atoll.schedule.contract import IntArray
from atoll.schedule.prove import ProvenSchedule
from atoll.schedule.runs import expand
from atoll.schedule.table import REPLACE, Columns

OTHERS = -1
_LONGEST_LABEL = 10


class Arrow(msgspec.Struct, frozen=True):
    """A message between two lanes, or a local move where they are one; ``OTHERS`` stands for a rank not shown.

    ``peer`` is the real rank behind ``OTHERS``, None where ``messages`` are joined. ``chunk`` is the lowest chunk
    number, for colour.
    """

    src: int
    dst: int
    label: str
    reduces: bool
    chunk: int
    messages: int = 1
    peer: int | None = None


class Diagram(msgspec.Struct, frozen=True):
    """What to draw. ``steps`` pairs a step with its arrows; ``gaps`` are positions in it before which steps are left
    out; ``notes`` say what is not shown."""

    title: str
    subtitle: str
    world_size: int
    ranks: tuple[int, ...]
    has_others: bool
    steps: tuple[tuple[int, tuple[Arrow, ...]], ...]
    gaps: dict[int, int]
    notes: tuple[str, ...]
    channels: bool


def layout(
    proven: ProvenSchedule,
    ranks: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    *,
    max_ranks: int,
    max_steps: int,
) -> Diagram:
    """The diagram of the given ranks and steps, by default as many as fit.

    Raises ``SpecError`` for a rank outside the world, a step without rows, and limits below 1.
    """
    schedule, header = proven.schedule, proven.header
    shown_ranks = _choose_ranks(header.world_size, ranks, max_ranks)
    has_others = len(shown_ranks) < header.world_size
    every_step = np.unique(schedule.column("step"))
    chosen = _choose_steps(every_step, steps, max_steps)
    gaps: dict[int, int] = {}
    position = np.searchsorted(every_step, chosen)
    previous = -1
    for index, at in enumerate(position.tolist()):
        if at - previous > 1:
            gaps[index] = at - previous - 1
        previous = at
    if len(every_step) - 1 - previous > 0:
        gaps[len(chosen)] = len(every_step) - 1 - previous

    channels = bool(schedule.column("channel").max(initial=0))
    column = schedule.column("step")
    drawn = []
    for step in chosen.tolist():
        first, last = np.searchsorted(column, [step, step + 1])
        rows = schedule.columns(slice(int(first), int(last)))
        drawn.append((int(step), _arrows(proven, rows, shown_ranks, channels)))

    notes = []
    if has_others:
        notes.append(
            f"{len(shown_ranks)} of {header.world_size:,} ranks shown: {_runs(shown_ranks)}; the rest are the others"
        )
    if gaps:
        notes.append(f"{len(chosen)} of {len(every_step):,} steps shown: {_runs(chosen.tolist())}")
    root = "" if header.root is None else f", root {header.root}"
    name = header.collective.replace("_", "-")
    return Diagram(
        title=f"{name}, {header.name}: {_number(header.world_size, 'rank')}{root}",
        subtitle=f"{_number(header.chunks, 'chunk')}, {_number(len(schedule), 'row')}, "
        f"{_number(len(every_step), 'step')}",
        world_size=header.world_size,
        ranks=shown_ranks,
        has_others=has_others,
        steps=tuple(drawn),
        gaps=gaps,
        notes=tuple(notes),
        channels=channels,
    )


def _choose_ranks(world_size: int, ranks: Sequence[int] | None, max_ranks: int) -> tuple[int, ...]:
    if max_ranks < 1:
        raise SpecError(f"expected room for at least 1 rank, got {max_ranks}")
    if ranks is None:
        return tuple(range(min(world_size, max_ranks)))
    outside = [rank for rank in ranks if not 0 <= rank < world_size]
    if outside or not ranks:
        raise SpecError(f"expected ranks between 0 and {world_size - 1}, got {outside or 'none'}")
    return tuple(sorted(set(ranks)))[:max_ranks]


def _choose_steps(every_step: IntArray, steps: Sequence[int] | None, max_steps: int) -> IntArray:
    if max_steps < 1:
        raise SpecError(f"expected room for at least 1 step, got {max_steps}")
    if steps is not None:
        wanted = np.unique(np.asarray(steps, dtype=np.int64))
        absent = np.setdiff1d(wanted, every_step)
        if len(absent) or not len(wanted):
            last = int(every_step[-1]) if len(every_step) else None
            known = "this schedule has no steps" if last is None else f"its last is step {last}"
            raise SpecError(f"no rows in step {absent.tolist() or 'none'}: {known}")
        return wanted[:max_steps]
    if len(every_step) <= max_steps:
        return every_step
    tail = max_steps // 3
    return np.concatenate([every_step[: max_steps - tail], every_step[len(every_step) - tail :]])


def _arrows(proven: ProvenSchedule, rows: Columns, shown: tuple[int, ...], channels: bool) -> tuple[Arrow, ...]:
    """The arrows of one step, by source and destination; those with others come last."""
    is_shown = np.zeros(proven.world_size, dtype=np.bool_)
    is_shown[list(shown)] = True
    touched = is_shown[rows.src] | is_shown[rows.dst]
    chunks, place = expand(Columns(*(column[touched] for column in rows)))
    number = proven.chunk_number[proven.row_start[chunks.row] + place].astype(np.int64)
    order = np.lexsort((number, chunks.channel, chunks.dst, chunks.src))
    key = np.stack([chunks.src, chunks.dst, chunks.channel])[:, order]
    starts = np.flatnonzero(np.r_[True, np.any(key[:, 1:] != key[:, :-1], axis=0)]) if len(order) else order
    arrows: list[Arrow] = []
    outside: dict[tuple[int, bool, bool], list[Arrow]] = {}
    for part in np.split(order, starts[1:]) if len(order) else []:
        src, dst = int(chunks.src[part[0]]), int(chunks.dst[part[0]])
        reduces = bool(np.any(chunks.operand_chunk[part] != REPLACE))
        label = ("+" if reduces else "") + _chunk_label(number[part])
        if channels:
            label += f"@{int(chunks.channel[part[0]])}"
        arrow = Arrow(src=src, dst=dst, label=label, reduces=reduces, chunk=int(number[part[0]]))
        if is_shown[src] and is_shown[dst]:
            arrows.append(arrow)
        elif is_shown[src]:
            away = msgspec.structs.replace(arrow, dst=OTHERS, peer=dst)
            outside.setdefault((src, True, reduces), []).append(away)
        else:
            back = msgspec.structs.replace(arrow, src=OTHERS, peer=src)
            outside.setdefault((dst, False, reduces), []).append(back)
    for group in outside.values():
        if len(group) <= 2:
            arrows += group
            continue
        joined = f"{'+' if group[0].reduces else ''}{len(group)} msgs"
        arrows.append(msgspec.structs.replace(group[0], label=joined, messages=len(group), peer=None))
    return tuple(arrows)


def _chunk_label(numbers: IntArray) -> str:
    """``3``, ``4-7``, ``0,2`` or ``12 chunks``: ascending numbers as short as they go, never cut."""
    distinct = np.unique(numbers)
    if len(distinct) == len(numbers):
        text = _runs(distinct.tolist()).replace(" ", "")
        if len(text) <= _LONGEST_LABEL - 1:
            return text
    return f"{len(numbers)} chunks"


def _runs(numbers: Sequence[int]) -> str:
    """Ascending numbers as ``0-3, 7``."""
    array = np.asarray(numbers)
    runs = np.split(array, np.flatnonzero(np.diff(array) != 1) + 1)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
