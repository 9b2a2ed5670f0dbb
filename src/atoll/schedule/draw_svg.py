"""The space-time diagram as SVG: lanes downwards, slanted arrows, one colour per chunk.

The file stands alone: no script, no font, no picture from elsewhere. It follows the reader's light or dark setting,
carries a title and a description for screen readers, and every arrow tells its message when pointed at. A solid arrow
reduces at its end, a dashed one replaces. In a step with more arrows than lanes can label, labels are left to
pointing; what is left out altogether is said under the title (see ``draw_layout``).
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from atoll.schedule.draw_layout import OTHERS, Arrow, Diagram, layout
from atoll.schedule.prove import ProvenSchedule

# Okabe and Ito's palette, its yellow and black replaced by colours that stand on white and on black alike.
_COLOURS = ("#0078c8", "#d55e00", "#009e73", "#c46ba0", "#b08800", "#8566d9", "#2f9fd8", "#a0643c")
_CROWD = 160  # arrows in a step; with more of them fewer ranks are shown
_LEFT, _TOP, _RIGHT = 72.0, 96.0, 40.0
_STYLE = """
.atoll-paper{fill:#ffffff}.atoll-ink{fill:#1f2328}.atoll-soft{fill:#59636e}
.atoll-lane{stroke:#c4ccd4;stroke-width:1.5}.atoll-rule{stroke:#eaeef2;stroke-width:1}
.atoll-halo{stroke:#ffffff;stroke-width:4;stroke-linejoin:round;fill:none}
@media (prefers-color-scheme:dark){
.atoll-paper{fill:#0d1117}.atoll-ink{fill:#e6edf3}.atoll-soft{fill:#9198a1}
.atoll-lane{stroke:#3d444d}.atoll-rule{stroke:#21262d}.atoll-halo{stroke:#0d1117}}
""".replace("\n", "")


def draw_svg(
    proven: ProvenSchedule,
    *,
    ranks: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    max_ranks: int = 24,
    max_steps: int = 24,
) -> str:
    """One SVG document. Raises ``SpecError`` for ranks and steps that are not there."""
    diagram = layout(proven, ranks, steps, max_ranks=max_ranks, max_steps=max_steps)
    while ranks is None and max_ranks > 4 and any(len(arrows) > _CROWD for _, arrows in diagram.steps):
        max_ranks = min(max_ranks, len(diagram.ranks)) // 2
        diagram = layout(proven, ranks, steps, max_ranks=max_ranks, max_steps=max_steps)
    return _Picture(diagram, proven.schedule.fingerprint()[:8]).document()


class _Picture:
    """Places lanes and steps, then collects the elements; coordinates are pixels."""

    def __init__(self, diagram: Diagram, mark: str) -> None:
        self.diagram = diagram
        self.mark = mark  # keeps the ids of several pictures on one page apart
        lanes = len(diagram.ranks) + diagram.has_others
        self.longest = max((len(arrow.label) for _, arrows in diagram.steps for arrow in arrows), default=1)
        spacing = min(120.0, max(30.0, 900.0 / max(lanes, 6), 7.5 * self.longest + 18))
        self.x = {rank: _LEFT + 24 + index * spacing for index, rank in enumerate(diagram.ranks)}
        if diagram.has_others:
            self.x[OTHERS] = _LEFT + 24 + len(diagram.ranks) * spacing
        self.spacing = spacing
        self.width = max(_LEFT + 24 + (lanes - 1) * spacing + _RIGHT + 7.5 * self.longest, 640.0)
        self.body: list[str] = []

    def document(self) -> str:
        diagram = self.diagram
        bottom = self._steps()
        notes = [diagram.subtitle, *diagram.notes]
        legend = self._legend(bottom + 34)
        height = bottom + 56
        described = f"Space-time diagram: {'; '.join(notes)}. Lanes are ranks, time runs down, arrows are messages."
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:.0f} {height:.0f}" '
            f'width="{self.width:.0f}" height="{height:.0f}" role="img" '
            f'aria-labelledby="t{self.mark} d{self.mark}" font-family="system-ui, sans-serif" font-size="13">',
            f'<title id="t{self.mark}">{escape(diagram.title)}</title>',
            f'<desc id="d{self.mark}">{escape(described)}</desc>',
            f"<style>{_STYLE}</style>",
            self._arrow_heads(),
            f'<rect class="atoll-paper" width="{self.width:.0f}" height="{height:.0f}"/>',
            f'<text class="atoll-ink" x="16" y="28" font-size="17" font-weight="600">{escape(diagram.title)}</text>',
            f'<text class="atoll-soft" x="16" y="50">{escape("; ".join(notes))}</text>',
        ]
        return "\n".join([*head, *self._lanes(bottom), *self.body, *legend, "</svg>", ""])

    def _steps(self) -> float:
        """Draw every step; the y coordinate where the lanes end."""
        diagram = self.diagram
        y = _TOP
        if not diagram.steps:
            self.body.append(self._text(self.width / 2, y + 30, "Nothing moves: every rank holds its output already."))
            return y + 48
        for index, (step, arrows) in enumerate(diagram.steps):
            y = self._gap(index, y)
            y = self._step(step, arrows, y)
        return self._gap(len(diagram.steps), y)

    def _gap(self, index: int, y: float) -> float:
        skipped = self.diagram.gaps.get(index)
        if skipped is None:
            return y
        text = f"{skipped:,} step{'' if skipped == 1 else 's'} not shown"
        self.body.append(f'<rect class="atoll-paper" x="0" y="{y + 4:.1f}" width="{self.width:.0f}" height="26"/>')
        self.body.append(self._text(16, y + 21, text, anchor="start", soft=True))
        return y + 34

    def _step(self, step: int, arrows: tuple[Arrow, ...], y: float) -> float:
        far = [arrow for arrow in arrows if arrow.src != arrow.dst]
        local = [arrow for arrow in arrows if arrow.src == arrow.dst]
        labelled = len(far) <= 3 * len(self.x)
        # Long arrows need height, else their slant vanishes; crowds need it to be told apart.
        height = 46.0 + min(100.0, 2.0 * len(far))
        self.body.append(
            f'<line class="atoll-rule" x1="16" x2="{self.width - 16:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            + self._text(16, y + 22, f"step {step}", anchor="start", soft=True)
        )
        moves = 18.0 * max((sum(1 for arrow in local if arrow.src == rank) for rank in self.x), default=0)
        for rank in self.x:
            for place, arrow in enumerate(arrow for arrow in local if arrow.src == rank):
                self._local(arrow, y + 8 + 18 * place)
        top, bottom = y + moves + 10, y + moves + height
        for arrow in far:
            self._line(arrow, top, bottom)
        if labelled:
            # Of several arrows to one side of a lane, each longer one is labelled a lane further on.
            beside: dict[tuple[int, bool], int] = {}
            for arrow in sorted(far, key=lambda arrow: abs(self.x[arrow.dst] - self.x[arrow.src])):
                side = (arrow.src, self.x[arrow.dst] > self.x[arrow.src])
                beside[side] = beside.get(side, -1) + 1
                self._label(arrow, top, bottom, beside[side])
        for src in {arrow.src for arrow in far}:
            self.body.append(f'<circle class="atoll-ink" cx="{self.x[src]:.1f}" cy="{top:.1f}" r="3.5"/>')
        return bottom + 10 if far else y + max(moves + 14, 30)

    def _line(self, arrow: Arrow, top: float, bottom: float) -> None:
        x1, x2 = self.x[arrow.src], self.x[arrow.dst]
        colour = arrow.chunk % len(_COLOURS)
        # End short of the lane, along the slant, so that heads that meet in one point stay readable.
        length = ((x2 - x1) ** 2 + (bottom - top) ** 2) ** 0.5
        short = 1 - 4 / length
        dash = "" if arrow.reduces else ' stroke-dasharray="6 4"'
        self.body.append(
            f'<line x1="{x1:.1f}" y1="{top:.1f}" x2="{x1 + (x2 - x1) * short:.1f}" '
            f'y2="{top + (bottom - top) * short:.1f}" stroke="{_COLOURS[colour]}" stroke-width="2"{dash} '
            f'marker-end="url(#a{self.mark}-{colour})"><title>{escape(_told(arrow))}</title></line>'
        )

    def _label(self, arrow: Arrow, top: float, bottom: float, lanes_on: int) -> None:
        x1, x2 = self.x[arrow.src], self.x[arrow.dst]
        # Near its sender, so that arrows that cross between two lanes keep their labels apart.
        near = min(max(0.28 * self.spacing, 3.75 * len(arrow.label) + 6), 0.5 * self.spacing)
        along = min(0.5, near / abs(x2 - x1)) if not lanes_on else (near + lanes_on * self.spacing) / abs(x2 - x1)
        along = min(along, 0.8)
        x, y = x1 + (x2 - x1) * along, top + (bottom - top) * along + 4
        for style in ('class="atoll-halo"', f'fill="{_COLOURS[arrow.chunk % len(_COLOURS)]}"'):
            self.body.append(
                f'<text {style} x="{x:.1f}" y="{y:.1f}" text-anchor="middle" font-size="12" font-weight="600">'
                f"{escape(arrow.label)}</text>"
            )

    def _local(self, arrow: Arrow, y: float) -> None:
        x = self.x[arrow.src]
        index = arrow.chunk % len(_COLOURS)
        colour = _COLOURS[index]
        self.body.append(
            f'<path d="M{x:.1f} {y:.1f}c12 1 12 11 1.5 12" fill="none" stroke="{colour}" stroke-width="2" '
            f'marker-end="url(#a{self.mark}-{index})"><title>{escape(_told(arrow))}</title></path>'
            f'<text fill="{colour}" x="{x + 13:.1f}" y="{y + 11:.1f}" font-size="12" font-weight="600">'
            f"{escape(arrow.label)}</text>"
        )

    def _lanes(self, bottom: float) -> list[str]:
        elements = []
        for rank, x in self.x.items():
            dash = ' stroke-dasharray="2 5"' if rank == OTHERS else ""
            name = "others" if rank == OTHERS else str(rank)
            elements.append(
                f'<line class="atoll-lane" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8:.1f}" y2="{bottom:.1f}"{dash}/>'
                + self._text(x, _TOP - 16, name, bold=True)
            )
        elements.append(self._text(16, _TOP - 16, "rank", anchor="start", soft=True))
        return elements

    def _legend(self, y: float) -> list[str]:
        arrows = [arrow for _, step in self.diagram.steps for arrow in step if arrow.src != arrow.dst]
        entries = []
        if any(arrow.reduces for arrow in arrows):
            entries.append(("+3", "", "chunk 3, reduced by its receiver"))
        if any(not arrow.reduces for arrow in arrows):
            entries.append(("3", ' stroke-dasharray="6 4"', "chunk 3, replaces what is there"))
        elements, x = [], 16.0
        for label, dash, text in entries:
            elements.append(
                f'<line x1="{x:.0f}" x2="{x + 36:.0f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_COLOURS[3]}" '
                f'stroke-width="2"{dash} marker-end="url(#a{self.mark}-3)"/>'
                + self._text(x + 46, y + 4, f"{label}: {text}", anchor="start", soft=True)
            )
            x += 46 + 7 * len(f"{label}: {text}") + 16
        return elements

    def _arrow_heads(self) -> str:
        heads = "".join(
            f'<marker id="a{self.mark}-{index}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0.5L8 4L0 7.5z" fill="{colour}"/></marker>'
            for index, colour in enumerate(_COLOURS)
        )
        return f"<defs>{heads}</defs>"

    def _text(
        self, x: float, y: float, text: str, *, anchor: str = "middle", soft: bool = False, bold: bool = False
    ) -> str:
        weight = ' font-weight="600"' if bold else ""
        return (
            f'<text class="atoll-{"soft" if soft else "ink"}" x="{x:.1f}" y="{y:.1f}" '
            f'text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )


def _told(arrow: Arrow) -> str:
    """One message in words, for pointing at."""
    ends = [f"rank {arrow.peer if end == OTHERS else end}" for end in (arrow.src, arrow.dst)]
    if arrow.messages > 1:
        ends = [f"{arrow.messages} other ranks" if end == OTHERS else f"rank {end}" for end in (arrow.src, arrow.dst)]
    verb = "reduced" if arrow.reduces else "moved locally" if arrow.src == arrow.dst else "replaces"
    what = arrow.label.lstrip("+")
    what = what if "chunks" in what or "msgs" in what else f"chunk {what}"
    return f"{ends[0]} to {ends[1]}: {what}, {verb}"
