"""The table of ``atoll launch --watch``: drawn over itself on a terminal, once at the end elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from atoll.runtime.watch import SILENT_S, Row
from atoll.units import format_duration


class WatchTable:
    """Writes to ``stream``; ``live`` if it is a terminal. Whoever else writes there calls ``clear`` first."""

    def __init__(self, stream: TextIO, live: bool, width: int) -> None:
        self._stream = stream
        self._live = live
        self._width = width
        self._lines = 0

    def update(self, rows: Sequence[Row]) -> None:
        """Show ``rows`` in the place of what was shown before."""
        if self._live and rows:
            self.clear()
            text = render(rows, self._width)
            self._stream.write(text)
            self._stream.flush()
            self._lines = text.count("\n")

    def clear(self) -> None:
        """Take the table away."""
        if self._lines:
            self._stream.write(f"\x1b[{self._lines}A\x1b[J")
            self._stream.flush()
            self._lines = 0

    def close(self, rows: Sequence[Row]) -> None:
        """Leave the last state behind."""
        self.clear()
        if rows:
            self._stream.write(render(rows, self._width))
            self._stream.flush()


def render(rows: Sequence[Row], width: int) -> str:
    """The table as text; what does not fit into ``width`` is cut off at the end of a line."""
    cells = [("rank", "calls", "comes late by", "share", "", "doing")]
    for row in rows:
        late = row.lateness
        cells.append(
            (
                str(row.rank) if row.rank == row.world_rank else f"{row.rank} (world rank {row.world_rank})",
                str(row.calls),
                "" if late is None else format_duration(round(late.score_s, 6)),
                "" if late is None else f"{late.share:.0%}",
                "SLOW" if late is not None and late.slow else "",
                _doing(row),
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    lines = ["  ".join((*map(str.rjust, line, widths), line[5])) for line in cells]
    return "".join(f"{line[: width - 1].rstrip()}\n" for line in lines)


def _doing(row: Row) -> str:
    if row.silent_s > SILENT_S:
        return f"has not reported for {format_duration(round(row.silent_s))}"
    for_s = format_duration(round(row.for_s, 2))
    return f"in {row.doing} for {for_s}" if row.inside else f"elsewhere, {for_s} after it began {row.doing}"
