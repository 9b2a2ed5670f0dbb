"""A placement as text and as SVG: which groups share which GPUs, and how high the traffic of each kind climbs.

Both show the first nodes side by side, a row for each kind of group, and a mark (a letter, a colour) for each group:
GPUs with one mark in a row work together. Marks repeat where there are more groups than marks. In SVG the bands above
are the tiers of the network; the first group of each kind is drawn as a line in the band that its traffic reaches, with
a drop to each of its GPUs.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np

from atoll.planning.paper import COLOURS, Paper
from atoll.planning.placement import TIERS, Crossing, Placement, group_text, runs

_MARKS = string.ascii_lowercase + string.ascii_uppercase + string.digits
_SHADES = (*COLOURS, "#2f9fd8", "#a0643c", "#5b8c5a", "#8a4f7d", "#c7882f", "#4c6a92")


def map_text(placement: Placement, *, most: int | None = 8) -> str:
    """The ranks of each node in the order of its GPUs, a line a node; ``most`` nodes, ``None`` all."""
    cluster = placement.cluster
    ranks_of = np.full(cluster.num_gpus, -1, dtype=np.int64)
    ranks_of[placement.gpus] = np.arange(len(placement.gpus))
    nodes = np.unique(placement.nodes)
    shown = nodes if most is None or len(nodes) <= most else nodes[: most - 1]
    width = max(len(cluster.node_name(int(node))) for node in shown)
    lines = []
    for node in shown:
        first = int(cluster.first_gpu_of_node(node))
        mine = ranks_of[first : first + len(cluster.node_type(int(node)).gpus)]
        whole = runs(mine.tolist()) if (mine >= 0).all() else " ".join("-" if r < 0 else str(r) for r in mine.tolist())
        lines.append(f"  {cluster.node_name(int(node)).ljust(width)}  {whole}")
    if len(shown) < len(nodes):
        lines.append(f"  {len(nodes) - len(shown)} more nodes")
    return "\n".join(lines) + "\n"


def draw_text(placement: Placement, *, width: int = 100) -> str:
    """Rows of letters under node names, as many nodes as fit into ``width`` columns."""
    nodes, gpus, left_out = _shown(placement, (width - 8) // 9)
    names = [placement.cluster.node_name(int(node)) for node in nodes]
    widths = [max(len(name), len(row)) for name, row in zip(names, gpus, strict=True)]
    while len(widths) > 1 and sum(widths) + len(widths) > width - 8:
        names, gpus, widths = names[:-1], gpus[:-1], widths[:-1]
        left_out += 1
    lines = [" " * 8 + " ".join(name.ljust(wide) for name, wide in zip(names, widths, strict=True))]
    for kind in placement.parallelism.kinds:
        group = _group_of_gpu(placement, kind)
        cells = [
            "".join("." if group[gpu] < 0 else _MARKS[group[gpu] % len(_MARKS)] for gpu in row).ljust(wide)
            for row, wide in zip(gpus, widths, strict=True)
        ]
        lines.append(f"  {kind.ljust(6)}" + " ".join(cells))
    if left_out:
        lines.append(f"  and {left_out} more node{'s' if left_out > 1 else ''}; one letter in a row is one group")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def crossing_words(crossing: Crossing) -> str:
    """``64 groups of 8: inside an island``, ``4 nodes, 1 leaf``."""
    if crossing.highest == "island":
        islands = "inside an island"
        return islands if crossing.nodes.max() == 1 else f"{_span(crossing.nodes)} nodes, {islands}"
    parts = [
        f"{_span(values)} {one if values.max() == 1 else many}"
        for values, one, many in (
            (crossing.islands, "island", "islands"), (crossing.rails, "rail", "rails"),
            (crossing.leaves, "leaf", "leaves"), (crossing.spines, "spine", "spines"),
        )
        if values.max() > 0
    ]  # fmt: skip
    return ", ".join(parts) + (", cores" if crossing.highest == "core" else "")


def draw_svg(placement: Placement, *, max_nodes: int = 12) -> str:
    """One SVG document."""
    return _Picture(placement, max_nodes).document()


class _Picture:
    """Columns are GPUs, rows kinds of groups; coordinates are pixels."""

    def __init__(self, placement: Placement, max_nodes: int) -> None:
        self.placement = placement
        self.kinds = placement.parallelism.kinds
        self.nodes, self.gpus, self.left_out = _shown(placement, max_nodes)
        most = max(len(row) for row in self.gpus)
        self.cell = max(5.0, min(14.0, 64.0 / most))
        self.left, self.top = 100.0, 62.0
        self.x: dict[int, float] = {}
        x = self.left
        for row in self.gpus:
            for gpu in row:
                self.x[gpu] = x
                x += self.cell
            x += 10
        self.right = x
        self.lane = 15.0

    def document(self) -> str:
        placement = self.placement
        climbs = {kind: TIERS[int(placement.crossing(kind).tier[0])] for kind in self.kinds}
        lanes = {tier: [kind for kind in self.kinds if climbs[kind] == tier] for tier in TIERS}
        bands = {tier: 14 + self.lane * len(lanes[tier]) for tier in reversed(TIERS) if lanes[tier]}
        cells_top = self.top + sum(bands.values()) + 8 * len(bands) + 24
        row_height = 24.0
        height = cells_top + row_height * len(self.kinds) + 34 + 17 * len(self.kinds)
        longest = max((len(crossing_words(placement.crossing(kind))) for kind in self.kinds), default=0)
        width = max(self.right + 110 + 6.6 * longest, 720)
        title = f"{placement.parallelism.text()} on {placement.cluster.name}, {placement.name}"
        told = "; ".join(f"{kind}: {crossing_words(placement.crossing(kind))}" for kind in self.kinds)
        paper = Paper(width, height, title, told)
        paper.text(16, 26, title, bold=True, size=15)
        paper.text(16, 46, "one colour in a row is one group; lines: the first group of each kind, in the tier that "
                   "its traffic reaches", css="soft", size=12)  # fmt: skip
        rows = {kind: cells_top + row_height * at for at, kind in enumerate(self.kinds)}
        y = self.top
        lane_y: dict[str, float] = {}
        for tier, band in bands.items():
            paper.box(self.left - 8, y, self.right - self.left + 6, band, css="empty")
            paper.text(16, y + band / 2 + 4, tier, css="soft", size=12)
            lane_y |= {kind: y + 14 + self.lane * at for at, kind in enumerate(lanes[tier])}
            y += band + 8
        for kind, lane in lane_y.items():
            self._bus(paper, kind, lane, rows[kind])
        for node, row in zip(self.nodes, self.gpus, strict=True):
            middle = (self.x[row[0]] + self.x[row[-1]] + self.cell) / 2
            paper.text(middle, cells_top - 8, placement.cluster.node_name(int(node)), css="soft", anchor="middle",
                       size=11)  # fmt: skip
        for kind, row_y in rows.items():
            self._row(paper, kind, row_y)
        y = cells_top + row_height * len(self.kinds) + 20
        if self.left_out:
            words = f"and {self.left_out} more node{'s' if self.left_out > 1 else ''}"
            paper.text(self.right + 4, cells_top - 8, words, css="soft", size=11)
        for kind in self.kinds:
            paper.text(16, y, group_text(placement, kind, 0), css="soft", size=12)
            y += 17
        return paper.document()

    def _row(self, paper: Paper, kind: str, y: float) -> None:
        placement = self.placement
        crossing = placement.crossing(kind)
        group = _group_of_gpu(placement, kind)
        ranks = {int(gpu): rank for rank, gpu in enumerate(placement.gpus.tolist())}
        paper.text(self.left - 16, y + 15, kind, bold=True, anchor="end")
        # Neighbours get different colours: by first appearance, not by number.
        shades: dict[int, str] = {}
        for gpu, x in self.x.items():
            if group[gpu] < 0:
                paper.box(x, y + 3, self.cell - 1, 16, css="empty")
                continue
            told = f"{placement.cluster.gpu_name(gpu)}: rank {ranks[gpu]}, {kind} group {group[gpu]}"
            shade = shades.setdefault(int(group[gpu]), _SHADES[len(shades) % len(_SHADES)])
            paper.box(x, y + 3, self.cell - 1, 16, fill=shade, told=told)
        words = f"{crossing.groups} x {crossing.ranks}: {crossing_words(crossing)}"
        paper.text(self.right + 4, y + 15, words, size=12)

    def _bus(self, paper: Paper, kind: str, y: float, row_y: float) -> None:
        members = [int(gpu) for gpu in self.placement.group_gpus(kind)[0] if int(gpu) in self.x]
        colour = COLOURS[self.kinds.index(kind) % len(COLOURS)]
        middles = sorted(self.x[gpu] + (self.cell - 1) / 2 for gpu in members)
        # Members that are not shown lie to the right.
        end = self.right - 4 if len(members) < self.placement.crossing(kind).ranks else middles[-1]
        paper.line([(middles[0], y), (end, y)], stroke=colour, width=3)
        for x in middles:
            paper.line([(x, y), (x, row_y + 3)], stroke=colour, width=1)
        paper.text(self.left - 14, y + 4, kind, anchor="end", size=11, fill=colour, bold=True)


def _shown(placement: Placement, most: int) -> tuple[list[int], list[list[int]], int]:
    """The first nodes that hold ranks, the GPUs of each, and how many nodes are left out."""
    cluster = placement.cluster
    nodes = np.unique(placement.nodes).tolist()
    shown = nodes[: max(1, most)]
    gpus = [
        [int(cluster.first_gpu_of_node(node)) + at for at in range(len(cluster.node_type(node).gpus))] for node in shown
    ]
    return shown, gpus, len(nodes) - len(shown)


def _group_of_gpu(placement: Placement, kind: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The group of each GPU of the cluster, -1 where no rank is."""
    groups = placement.group_gpus(kind)
    found = np.full(placement.cluster.num_gpus, -1, dtype=np.int64)
    found[groups] = np.arange(len(groups))[:, None]
    return found


def _span(values: Sequence[int] | np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> str:
    low, high = int(np.min(values)), int(np.max(values))
    return str(low) if low == high else f"{low}-{high}"
