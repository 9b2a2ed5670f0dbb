"""Charts whose points the library computes: bandwidths as bars, times as lines on logarithmic scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from atoll.planning.paper import COLOURS, Paper

Points = Sequence[tuple[float, float]]


def bars(title: str, rows: Sequence[tuple[str, float, str]], *, note: str) -> str:
    """One bar per (name, value, value in words), on a linear scale from zero."""
    left, full, line = 236.0, 372.0, 30.0
    told = "; ".join(f"{name}: {words}" for name, _, words in rows)
    paper = Paper(left + full + 112, 56 + line * len(rows) + 34, title, told)
    paper.text(16, 26, title, bold=True, size=15)
    most = max(value for _, value, _ in rows)
    for index, (name, value, words) in enumerate(rows):
        y = 48 + index * line
        paper.text(left - 12, y + 16, name, anchor="end")
        paper.box(left, y + 3, max(full * value / most, 1.5), line - 12, fill=COLOURS[0])
        paper.text(left + full * value / most + 8, y + 16, words)
    paper.text(16, 56 + line * len(rows) + 18, note, css="soft", size=12)
    return paper.document()


def lines(
    title: str, subtitle: str, series: Sequence[tuple[str, Points]], *,
    x_axis: tuple[str, Sequence[float], Callable[[float], str]],
    y_axis: tuple[str, Sequence[float], Callable[[float], str]],
) -> str:  # fmt: skip
    """Named lines, each labelled at its right end. An axis is its name, its ticks and how they are printed."""
    (x_name, x_ticks, x_print), (y_name, y_ticks, y_print) = x_axis, y_axis
    left, right, top, bottom = 84.0, 560.0, 76.0, 396.0
    told = f"{subtitle}. " + "; ".join(
        f"{name}: from {y_print(points[0][1])} at {x_print(points[0][0])} to {y_print(points[-1][1])} "
        f"at {x_print(points[-1][0])}"
        for name, points in series
    )
    paper = Paper(760, 450, title, told)
    paper.text(16, 26, title, bold=True, size=15)
    paper.text(16, 46, subtitle, css="soft")

    def x_of(value: float) -> float:
        return left + (right - left) * _share(value, x_ticks)

    def y_of(value: float) -> float:
        return bottom - (bottom - top) * _share(value, y_ticks)

    for tick in x_ticks:
        paper.line([(x_of(tick), top), (x_of(tick), bottom)])
        paper.text(x_of(tick), bottom + 18, x_print(tick), css="soft", anchor="middle", size=12)
    for tick in y_ticks:
        paper.line([(left, y_of(tick)), (right, y_of(tick))])
        paper.text(left - 8, y_of(tick) + 4, y_print(tick), css="soft", anchor="end", size=12)
    paper.text((left + right) / 2, bottom + 40, x_name, css="soft", anchor="middle")
    paper.text(left - 8, top - 10, y_name, css="soft", anchor="end")
    ends = []
    for index, (name, points) in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        paper.line([(x_of(x), y_of(y)) for x, y in points], stroke=colour, width=2.5)
        ends.append((y_of(points[-1][1]), name, colour))
    for (y, name, colour), place in zip(sorted(ends), _apart([end[0] for end in sorted(ends)], 17), strict=True):
        paper.line([(right + 3, y), (right + 14, place)], stroke=colour)
        paper.text(right + 18, place + 4, name, fill=colour, bold=True)
    return paper.document()


def _share(value: float, ticks: Sequence[float]) -> float:
    """Where ``value`` lies between the first tick (0) and the last (1), by its logarithm."""
    return math.log(value / ticks[0]) / math.log(ticks[-1] / ticks[0])


def _apart(places: Sequence[float], distance: float) -> list[float]:
    """Ascending places, moved as little as it takes for neighbours to be ``distance`` apart."""
    moved = list(places)
    for _ in range(len(moved)):
        for index in range(len(moved) - 1):
            short = distance - (moved[index + 1] - moved[index])
            if short > 0:
                moved[index] -= short / 2
                moved[index + 1] += short / 2
    return moved
