"""What ranks hold, as grids: a row per rank, a column per chunk, a cell that shows whose contributions are in it.

A cell of one colour is that rank's data. A cell in stripes is a partial sum: stripe r is filled if rank r's
contribution is in. ``before_and_after`` reads a collective's contract, ``progress`` replays a schedule step by step.
"""

from __future__ import annotations

from atoll.algorithms.catalog import build
from atoll.planning.paper import COLOURS, Paper
from atoll.schedule.contract import COLLECTIVES, contract
from atoll.schedule.prove import prove
from atoll.schedule.table import REPLACE

WORLD = 4
LETTERS = "ABCD"
_CELL = 44.0

Cell = tuple[str, frozenset[int]]


def before_and_after(collective: str) -> str:
    """Four ranks' input and output, laid out by position in the array; the root is rank 0."""
    terms = contract(collective, WORLD, WORLD, 0 if COLLECTIVES[collective].rooted else None)
    everyone = frozenset(range(WORLD))
    before, after = [], []
    for rank in range(WORLD):
        inputs, outputs = [None] * WORLD, [None] * WORLD
        for number in terms.input_chunks(rank).tolist():
            inputs[number] = (f"{LETTERS[rank]}{number}", frozenset({rank}))
        pairs = zip(terms.output_chunks(rank).tolist(), terms.output_origins(rank).tolist(), strict=True)
        for place, (number, origin) in enumerate(pairs, start=terms.output_start(rank)):
            whose = everyone if origin < 0 else frozenset({origin})
            outputs[place] = (f"{'Σ' if origin < 0 else LETTERS[origin]}{number}", whose)
        before.append(inputs)
        after.append(outputs)

    name = collective.replace("_", "-")
    paper = Paper(620, 268, f"{name}: before and after", _spoken(name, before, after))
    grid = WORLD * _CELL
    paper.text(16, 26, name, bold=True, size=15)
    left, right, top = 84.0, 84.0 + grid + 120, 60.0
    paper.text(left + grid / 2, top - 12, "before", css="soft", anchor="middle")
    paper.text(right + grid / 2, top - 12, "after", css="soft", anchor="middle")
    paper.arrow(left + grid + 34, top + grid / 2, 52)
    for cells, x in ((before, left), (after, right)):
        for rank, row in enumerate(cells):
            _row(paper, x, top + rank * _CELL, row, _CELL)
    for rank in range(WORLD):
        paper.text(left - 12, top + (rank + 0.5) * _CELL + 5, f"rank {rank}", css="soft", anchor="end")
    legend = "A to D: data of ranks 0 to 3"
    if terms.collective.reduces:
        legend += "; Σ, in stripes: the sum of all four"
    paper.text(left, top + grid + 22, legend, css="soft", size=12)
    return paper.document()


def progress(name: str, title: str) -> str:
    """An all-reduce of four ranks in as many pictures as it has steps, and one before; replayed from the table."""
    proven = prove(build("all_reduce", name, WORLD))
    chunks = proven.header.chunks
    memory = [[frozenset({rank}) for _ in range(chunks)] for rank in range(WORLD)]
    pictures = [[list(row) for row in memory]]
    for _, rows in proven.schedule.steps():
        held = [list(row) for row in memory]
        for src, dst, at, to, count, operand in zip(
            rows.src, rows.dst, rows.src_chunk, rows.dst_chunk, rows.num_chunks, rows.operand_chunk, strict=True
        ):
            for place in range(count):
                mine = frozenset() if operand == REPLACE else memory[dst][operand + place]
                memory[dst][to + place] = mine | held[src][at + place]
        pictures.append([list(row) for row in memory])

    cell, gap, per_line = 30.0, 34.0, 4
    wide = chunks * cell
    lines = -(-len(pictures) // per_line)
    height = 44 + lines * (WORLD * cell + 46) + 24
    told = f"{len(pictures)} grids of {WORLD} ranks by {chunks} chunks; stripes fill up as contributions arrive."
    paper = Paper(70 + per_line * (wide + gap), height, title, told)
    paper.text(16, 24, title, bold=True, size=15)
    for index, picture in enumerate(pictures):
        x = 70 + index % per_line * (wide + gap)
        y = 62 + index // per_line * (WORLD * cell + 46)
        paper.text(x + wide / 2, y - 8, f"after step {index - 1}" if index else "before", css="soft", anchor="middle")
        for rank, row in enumerate(picture):
            if index % per_line == 0:
                paper.text(x - 10, y + (rank + 0.5) * cell + 4, f"rank {rank}", css="soft", anchor="end", size=12)
            _row(paper, x, y + rank * cell, [("", held) for held in row], cell)
    legend = "rows: ranks; columns: chunks 0 to 3; a stripe is one rank's contribution, all four are the sum"
    paper.text(16, height - 14, legend, css="soft", size=12)
    return paper.document()


def _row(paper: Paper, x: float, y: float, row: list[Cell | None], cell: float) -> None:
    for place, content in enumerate(row):
        left, inner = x + place * cell + 1.5, cell - 3
        paper.box(left, y + 1.5, inner, inner, css="empty")
        if content is None:
            continue
        label, holders = content
        stripe = inner / WORLD
        for rank in sorted(holders):
            # Named data fills its cell; in a sum every rank has a stripe of its own.
            alone = bool(label) and len(holders) == 1
            at, width = (left, inner) if alone else (left + rank * stripe, stripe)
            paper.box(at, y + 1.5, width, inner, fill=COLOURS[rank])
        if label:
            paper.label(left + inner / 2, y + cell / 2, label)


def _spoken(name: str, before: list[list[Cell | None]], after: list[list[Cell | None]]) -> str:
    lines = []
    for rank in range(WORLD):
        held, gets = (
            " ".join(cell[0] for cell in cells[rank] if cell is not None) or "nothing" for cells in (before, after)
        )
        lines.append(f"rank {rank} holds {held} and ends with {gets}")
    return f"{name}: {'; '.join(lines)}."
