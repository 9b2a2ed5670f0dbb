"""Standalone SVG: the paper that pictures are drawn on, light or dark as the reader has it.

``Paper`` collects elements and gives the document. Coordinates are pixels. Ranks have the colours of ``COLOURS``, the
same in every picture; they are told apart on white and on black, and by most readers who do not see all colours (after
Okabe and Ito's palette).
"""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

COLOURS = ("#0078c8", "#d55e00", "#009e73", "#c46ba0", "#b08800", "#8566d9")

_STYLE = """
.paper{fill:#ffffff}.ink{fill:#1f2328}.soft{fill:#59636e}.edge{stroke:#8c959f;fill:none}.rule{stroke:#d8dee4}
.empty{fill:#f6f8fa;stroke:#d0d7de}.halo{stroke:#ffffff;stroke-width:4;stroke-linejoin:round;fill:none}
@media (prefers-color-scheme:dark){
.paper{fill:#0d1117}.ink{fill:#e6edf3}.soft{fill:#9198a1}.edge{stroke:#6e7681}.rule{stroke:#2a3038}
.empty{fill:#161b22;stroke:#30363d}.halo{stroke:#0d1117}}
""".replace("\n", "")


class Paper:
    """``title`` and ``description`` are for readers who hear the picture."""

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        self.width, self.height = width, height
        self.title, self.description = title, description
        self.elements: list[str] = []

    def document(self) -> str:
        size = f'viewBox="0 0 {self.width:.0f} {self.height:.0f}" width="{self.width:.0f}" height="{self.height:.0f}"'
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="system-ui, sans-serif" '
            f'font-size="13">',
            f"<title>{escape(self.title)}</title>",
            f"<desc>{escape(self.description)}</desc>",
            f"<style>{_STYLE}</style>",
            '<rect class="paper" width="100%" height="100%"/>',
        ]
        return "\n".join([*head, *self.elements, "</svg>"]) + "\n"

    def text(
        self, x: float, y: float, words: str, *, css: str = "ink", anchor: str = "start", size: int = 13,
        bold: bool = False, fill: str | None = None,
    ) -> None:  # fmt: skip
        """``y`` is the base line. With ``fill`` the words have that colour, on a halo of paper."""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
        weight = ' font-weight="600"' if bold else ""
        if fill is not None:
            self.elements.append(f'<text class="halo" {place}{weight}>{escape(words)}</text>')
        paint = f'class="{css}"' if fill is None else f'fill="{fill}"'
        self.elements.append(f"<text {paint} {place}{weight}>{escape(words)}</text>")

    def label(self, x: float, y: float, words: str, size: int = 12) -> None:
        """White words for coloured ground, centred on (x, y)."""
        self.elements.append(
            f'<text x="{x:.1f}" y="{y + size * 0.35:.1f}" text-anchor="middle" font-size="{size}" font-weight="600" '
            f'fill="#ffffff" stroke="#1f2328" stroke-width="2.5" stroke-linejoin="round" paint-order="stroke">'
            f"{escape(words)}</text>"
        )

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str | None = None, css: str = "", told: str = ""
    ) -> None:
        """``told`` is shown when the box is pointed at."""
        paint = f'fill="{fill}"' if fill is not None else f"class={quoteattr(css)}"
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        inside = f"><title>{escape(told)}</title></rect>" if told else "/>"
        self.elements.append(f"<rect {place} {paint}{inside}")

    def line(self, points: list[tuple[float, float]], *, stroke: str | None = None, width: float = 1) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        paint = f'fill="none" stroke="{stroke}"' if stroke is not None else 'class="rule" fill="none"'
        self.elements.append(
            f'<polyline points="{path}" {paint} stroke-width="{width:g}" stroke-linejoin="round" '
            f'stroke-linecap="round"/>'
        )

    def arrow(self, x: float, y: float, length: float) -> None:
        """To the right, its shaft at height ``y``."""
        tip = x + length
        self.elements.append(
            f'<path class="edge" stroke-width="2" d="M{x:.1f} {y:.1f}H{tip:.1f}m-7 -5l7 5l-7 5" '
            f'stroke-linejoin="round" stroke-linecap="round"/>'
        )
