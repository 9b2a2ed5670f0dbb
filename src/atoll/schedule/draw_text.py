"""The space-time diagram as text: a lane per rank, time downwards, arrows packed into as few lines as they need.

    step   0        1        2        3
       0   ●──+0───▶●──+1───▶●──+2───▶│
           │◀───────┼────────┼───+3───●
           │        │        │        │

All messages of a step happen at once; that an arrow ends where another begins means nothing. ``●`` sends, ``▶``
arrives, ``+`` means that the receiver reduces, ``↺`` is a local move. Lines never exceed the width: lanes grow
narrower first, and where labels no longer fit, ranks are left out and a note says which (see ``draw_layout``).
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from atoll.errors import SpecError
from atoll.schedule.draw_layout import OTHERS, Arrow, Diagram, layout
from atoll.schedule.prove import ProvenSchedule

_MARGIN = 7
_WIDEST_LANE = 13
_LINES_PER_STEP = 40
_ASCII = str.maketrans({"│": "|", "●": "o", "─": "-", "▶": ">", "◀": "<", "┼": "|", "↺": "@", "⋮": ":"})
MIN_WIDTH = 40


def draw_text(
    proven: ProvenSchedule,
    *,
    width: int = 100,
    ranks: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    max_steps: int = 24,
    ascii_only: bool = False,
) -> str:
    """The diagram in lines of at most ``width`` columns, with a legend; no trailing newline.

    Raises ``SpecError`` for a width below ``MIN_WIDTH`` and for ranks and steps that are not there.
    """
    if width < MIN_WIDTH:
        raise SpecError(f"expected a width of at least {MIN_WIDTH} columns, got {width}")
    diagram, lane = _fit(proven, width, ranks, steps, max_steps)
    canvas = _Canvas(diagram, lane, width)
    lines = [diagram.title, diagram.subtitle, *(f"({note})" for note in diagram.notes), ""]
    if not diagram.steps:
        lines.append("Nothing moves: every rank holds its output from the start.")
    else:
        lines.append(canvas.heading())
        for index, (step, arrows) in enumerate(diagram.steps):
            if index in diagram.gaps:
                lines.append(canvas.gap(diagram.gaps[index]))
            lines += canvas.step(step, arrows)
        if len(diagram.steps) in diagram.gaps:
            lines.append(canvas.gap(diagram.gaps[len(diagram.steps)]))
        lines += ["", *_legend(diagram)]
    wrapped = [part for line in lines for part in (textwrap.wrap(line, width, subsequent_indent=" " * 9) or [""])]
    text = "\n".join(line.rstrip() for line in wrapped)
    return text.translate(_ASCII) if ascii_only else text


def _fit(
    proven: ProvenSchedule, width: int, ranks: Sequence[int] | None, steps: Sequence[int] | None, max_steps: int
) -> tuple[Diagram, int]:
    """As many ranks as fit beside each other with the labels they then have, and the width of a lane."""
    room = width - _MARGIN
    candidate = min(proven.world_size if ranks is None else len(set(ranks)), max(1, room // 4))
    while True:
        diagram = layout(proven, ranks, steps, max_ranks=candidate, max_steps=max_steps)
        gaps = len(diagram.ranks) - 1 + diagram.has_others
        longest = max((len(arrow.label) for _, arrows in diagram.steps for arrow in arrows), default=1)
        # The last lane needs room for a local move's label or the number of a rank that is not shown.
        tail = 2 + longest if _moves_locally(diagram) else 6
        lane = min(_WIDEST_LANE, (room - tail) // gaps) if gaps else _WIDEST_LANE
        needed = max(longest + 2, len(str(proven.world_size)) + 1)
        if candidate == 1 or lane >= needed:
            return diagram, max(lane, 3)
        candidate = max(1, min(candidate - 1, (room - tail) // needed))


def _moves_locally(diagram: Diagram) -> bool:
    return any(arrow.src == arrow.dst for _, arrows in diagram.steps for arrow in arrows)


def _legend(diagram: Diagram) -> list[str]:
    arrows = [arrow for _, step in diagram.steps for arrow in step]
    lines = ["●──3──▶  chunk 3 is sent and replaces what is there"]
    if any(arrow.reduces for arrow in arrows):
        lines.append("●─+3──▶  chunk 3 is sent and the receiver reduces it")
    if _moves_locally(diagram):
        lines.append("●↺3      chunk 3 is moved within the rank's memory")
    if diagram.channels:
        lines.append("3@1      chunk 3 on channel 1")
    lines.append("All messages of a step are read before any is written.")
    return lines


class _Canvas:
    """Lines of characters with lanes at fixed columns."""

    def __init__(self, diagram: Diagram, lane: int, width: int) -> None:
        self.width = width
        self.column = {rank: _MARGIN + index * lane for index, rank in enumerate(diagram.ranks)}
        if diagram.has_others:
            self.column[OTHERS] = _MARGIN + len(diagram.ranks) * lane

    def heading(self) -> str:
        line = list("step".ljust(self.width))
        for rank, column in self.column.items():
            _put(line, column, "others" if rank == OTHERS else str(rank))
        return "".join(line)

    def gap(self, steps: int) -> str:
        return f"{'⋮':>4}".ljust(_MARGIN) + f"{steps:,} step{'' if steps == 1 else 's'} not shown"

    def step(self, step: int, arrows: tuple[Arrow, ...]) -> list[str]:
        """The lines of one step, closed by a line of bare lanes."""
        packed = self._pack(arrows)
        lines = [self._line(arrows_of_line) for arrows_of_line in packed[:_LINES_PER_STEP]] or [self._line([])]
        lines[0] = f"{step:>4} " + lines[0][5:]
        left_out = sum(arrow.messages for line in packed[_LINES_PER_STEP:] for arrow in line)
        if left_out:
            lines.append(f"{'':{_MARGIN}}and {left_out:,} more messages in this step")
        return [*lines, self._line([])]

    def _pack(self, arrows: tuple[Arrow, ...]) -> list[list[Arrow]]:
        """Arrows on lines such that none overlap; short ones first, each on the first line with room."""
        lines: list[list[tuple[int, int]]] = []
        packed: list[list[Arrow]] = []
        for arrow in sorted(arrows, key=lambda arrow: (self._span(arrow)[1] - self._span(arrow)[0], self._span(arrow))):
            low, high = self._span(arrow)
            for taken, line in zip(lines, packed, strict=True):
                if all(high <= other_low or low >= other_high for other_low, other_high in taken):
                    taken.append((low, high))
                    line.append(arrow)
                    break
            else:
                lines.append([(low, high)])
                packed.append([arrow])
        return packed

    def _span(self, arrow: Arrow) -> tuple[int, int]:
        first, second = sorted((self.column[arrow.src], self.column[arrow.dst]))
        if arrow.src == arrow.dst:
            return first, first + 2 + len(arrow.label)
        return first, second

    def _line(self, arrows: list[Arrow]) -> str:
        line = list(" " * self.width)
        lanes = set(self.column.values())
        for column in lanes:
            line[column] = "│"
        for arrow in arrows:
            if arrow.src == arrow.dst:
                line[self.column[arrow.src]] = "●"
                _put(line, self.column[arrow.src] + 1, "↺" + arrow.label)
                continue
            start, end = self.column[arrow.src], self.column[arrow.dst]
            low, high = min(start, end), max(start, end)
            for column in range(low + 1, high):
                line[column] = "┼" if column in lanes else "─"
            line[end + (1 if end < start else -1)] = "◀" if end < start else "▶"
            # The label stands beside its sender, in the first gap between two lanes.
            left = end < start
            edge = (
                max(column for column in lanes if column < start)
                if left
                else min(column for column in lanes if column > start)
            )
            low, high = min(start, edge), max(start, edge)
            head = edge == end
            room = high - low - 1 - head
            at = low + 1 + (left and head) + max(0, (room - len(arrow.label)) // 2)
            _put(line, at, arrow.label)
            line[start] = "●"
        for arrow in arrows:
            if arrow.peer is not None:
                _put(line, self.column[OTHERS], str(arrow.peer))
        return "".join(line).rstrip()


def _put(line: list[str], at: int, text: str) -> None:
    for offset, character in enumerate(text):
        if at + offset < len(line):
            line[at + offset] = character
