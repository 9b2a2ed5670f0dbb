"""How far off the simulator is on emulated clusters: what was measured there, predicted anew.

    python benchmarks/emulated.py                  the documents in benchmarks/emulated
    python benchmarks/emulated.py FILE FOLDER      others: what ``atoll compare --json`` printed

Every row is predicted from the cluster's layout and bandwidths and the latency of a message, which was measured at 8
bytes; nothing else is fitted. An error is |predicted / measured - 1|.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from atoll.emulator.comparison import Row, errors, predicted_s
from atoll.emulator.layout import Layout, Rates
from atoll.emulator.measure import Case
from atoll.errors import SpecError
from atoll.units import format_bandwidth, format_size

FOLDER = Path(__file__).resolve().parent / "emulated"


class MeasuredRow(msgspec.Struct, frozen=True):
    """One row of ``atoll compare --json``; what it predicted then is left out."""

    ranks: str
    groups: tuple[tuple[int, ...], ...]
    algorithm: str
    size_bytes: int
    measured_s: float


class Document(msgspec.Struct, frozen=True):
    """What ``atoll compare --json`` printed."""

    layout: Layout
    rates_bytes_per_s: Rates
    latency_s: float
    rows: tuple[MeasuredRow, ...]
    source: str = ""


def read(path: Path) -> Document:
    """Raises ``SpecError`` for a file that is no such document."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Document)
    except (OSError, msgspec.MsgspecError) as error:
        raise SpecError(f"{path}: not what atoll compare --json prints: {error}") from None


def score(document: Document) -> list[Row]:
    """Every row predicted anew."""
    rows = []
    for found in document.rows:
        case = Case(found.ranks, found.groups, found.algorithm, found.size_bytes, document.layout.ranks_per_node)
        predicted = predicted_s(case, document.layout, document.rates_bytes_per_s, document.latency_s)
        rows.append(Row(case, predicted, found.measured_s))
    return rows


def main(arguments: Sequence[str]) -> None:
    """Print the scoreboard of the named files and folders."""
    paths = [path for name in arguments or [str(FOLDER)]
             for path in (sorted(Path(name).glob("*.json")) if Path(name).is_dir() else [Path(name)])]  # fmt: skip
    every: list[Row] = []
    for path in paths:
        document = read(path)
        rates = document.rates_bytes_per_s
        print(f"{path.name}: {document.layout.describe()}, {format_bandwidth(rates.island)} in the island, "
              f"{format_bandwidth(rates.network)} in the network")  # fmt: skip
        rows = score(document)
        every += rows
        for algorithm in dict.fromkeys(row.case.algorithm for row in rows):
            mine = [row for row in rows if row.case.algorithm == algorithm]
            each = "  ".join(f"{format_size(row.case.size_bytes)} {row.error:+.1%}" for row in mine)
            print(f"  {algorithm:<19} median {errors(mine).median:5.1%}   {each}")
    found = errors(every)
    print(f"{found.rows} rows: median {found.median:.1%}, worst {found.worst:.1%}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SpecError as problem:
        sys.exit(str(problem))
