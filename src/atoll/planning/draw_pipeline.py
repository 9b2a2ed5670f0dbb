"""A played pipeline schedule as text and as SVG: a row for each stage, time to the right.

In text a task is the number of its micro-batch, then ``-`` for a forward and ``=`` for a backward pass; a point is a
time in which a stage waits. With interleaving a letter behind the number names the chunk. A picture too wide for its
columns shows only what is done: ``f``, ``b`` or a point. In SVG forwards are blue and backwards orange, darker for
later chunks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from atoll.planning.paper import Paper
from atoll.planning.pipeline import Task, Timeline

_FORWARD = ("#0078c8", "#005a96", "#003f6b", "#4da3dc")
_BACKWARD = ("#d55e00", "#a04600", "#733200", "#e08c45")


def draw_text(timeline: Timeline, *, width: int = 110) -> str:
    """Lines of at most ``width`` columns, ending in a newline; the bubble and the memory of each stage beside it."""
    unit = _unit(timeline)
    cell = len(str(timeline.microbatches - 1)) + (2 if timeline.interleave == 1 else 3)
    columns = int(timeline.end / unit) * cell
    left = len(f"stage {timeline.stages - 1}") + 2
    tails = [
        f"  {f'{float(timeline.bubble(stage)):.1%}':>6}  {_number(timeline.peak[stage])}"
        for stage in range(timeline.stages)
    ]
    right = max(14, *map(len, tails))  # the same for most, so that drawings can be laid over each other
    fits = columns + left + right <= width
    if not fits:
        columns = max(20, width - left - right)
    lines = [f"{_title(timeline)}; right: time waiting, micro-batches in memory"]
    for stage, tasks in enumerate(timeline.tasks):
        if fits:
            row = _labelled(tasks, unit, cell, columns, timeline.interleave)
        else:
            row = _sampled(tasks, timeline.end, columns)
        lines.append(f"{f'stage {stage}'.ljust(left)}{row}{tails[stage]}")
    return "\n".join(lines) + "\n"


def draw_svg(timelines: Sequence[Timeline], title: str) -> str:
    """One SVG document with the timelines below each other, on one scale of time."""
    left, right, row, full = 76.0, 116.0, 24.0, 720.0
    longest = max(timeline.end for timeline in timelines)
    scale = full / float(longest)
    height = 58 + sum(48 + row * timeline.stages for timeline in timelines)
    told = "; ".join(_title(timeline) for timeline in timelines)
    paper = Paper(left + full + right, height, title, f"{told}. A row is a stage, time runs to the right.")
    paper.text(16, 26, title, bold=True, size=15)
    paper.box(16, 37, 12, 12, fill=_FORWARD[0])
    paper.text(34, 48, "forward", css="soft", size=12)
    paper.box(92, 37, 12, 12, fill=_BACKWARD[0])
    paper.text(110, 48, "backward; the number is the micro-batch, a darker shade a later chunk", css="soft", size=12)
    y = 58.0
    for timeline in timelines:
        paper.text(16, y + 26, _title(timeline), bold=True)
        for word, x in (("waits", 52), ("kept", 100)):
            paper.text(left + full + x, y + 26, word, css="soft", anchor="end", size=12)
        y += 36
        for stage, tasks in enumerate(timeline.tasks):
            paper.text(left - 10, y + 16, f"stage {stage}", css="soft", anchor="end", size=12)
            paper.box(left, y + 2, float(timeline.end) * scale, row - 4, css="empty")
            for task in tasks:
                _box(paper, task, left, y, row, scale)
            share = f"{float(timeline.bubble(stage)):.1%}"
            for words, x in ((share, 52), (_number(timeline.peak[stage]), 100)):
                paper.text(left + full + x, y + 16, words, css="soft", anchor="end", size=12)
            y += row
        y += 12
    return paper.document()


def _box(paper: Paper, task: Task, left: float, y: float, row: float, scale: float) -> None:
    shades = _FORWARD if task.forward else _BACKWARD
    x, width = left + float(task.start) * scale, float(task.end - task.start) * scale
    what = "forward" if task.forward else "backward"
    told = f"micro-batch {task.microbatch}, {what}, chunk {task.chunk}: {_number(task.start)} to {_number(task.end)}"
    gap = min(1.0, width / 8)
    paper.box(x, y + 2, max(width - gap, 0.5), row - 4, fill=shades[task.chunk % len(shades)], told=told)
    if width >= 7 + 7 * len(str(task.microbatch)):
        paper.label(x + width / 2, y + row / 2, str(task.microbatch), size=11)


def _title(timeline: Timeline) -> str:
    return (
        f"{timeline.name}: {timeline.stages} stages, {timeline.microbatches} micro-batches, "
        f"bubble {float(timeline.mean_bubble):.1%}, {_number(timeline.end)} units of time"
    )


def _unit(timeline: Timeline) -> Fraction:
    """The longest time of which every start and end is a multiple."""
    times = {time for row in timeline.tasks for task in row for time in (task.start, task.end)}
    bottom = math.lcm(*(time.denominator for time in times))
    return Fraction(math.gcd(*(int(time * bottom) for time in times)), bottom)


def _labelled(tasks: Sequence[Task], unit: Fraction, cell: int, columns: int, interleave: int) -> str:
    row = [" "] * columns
    row[::cell] = ["."] * len(row[::cell])
    for task in tasks:
        first, width = int(task.start / unit) * cell, int((task.end - task.start) / unit) * cell
        label = str(task.microbatch) + (chr(ord("a") + task.chunk % 26) if interleave > 1 else "")
        row[first : first + width] = label.ljust(width - 1, "-" if task.forward else "=") + " "
    return "".join(row)


def _sampled(tasks: Sequence[Task], end: Fraction, columns: int) -> str:
    row = ["."] * columns
    at = 0
    for column in range(columns):
        time = end * (2 * column + 1) / (2 * columns)
        while at < len(tasks) and tasks[at].end <= time:
            at += 1
        if at < len(tasks) and tasks[at].start <= time:
            row[column] = "f" if tasks[at].forward else "b"
    return "".join(row)


def _number(value: Fraction) -> str:
    return f"{float(value):.4g}"
