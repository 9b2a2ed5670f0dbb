"""nccl-tests output as it is pasted: any version's columns, launcher prefixes and log lines in between, or ``-J`` JSON.

Vocabulary. A *run* is one ``*_perf`` program: header lines, *ranks* (``Using devices``), then a table with one *row*
per size, each with an out-of-place and an in-place *measurement*, then the footer. One file may hold several runs.
``GB/s`` is 1e9 bytes a second; ``algbw`` is size/time and ``busbw`` is algbw times the collective's factor, both per
rank.

A row is printed in three writes (size to root, out-of-place, in-place), so log lines of other threads cut it: an MPI
tag before each piece, ``-1mew0:657:657 [1] NCCL INFO ...`` where a line began right behind a piece, and the next
piece alone on a later line. A row is therefore *open* until both halves have come; pieces are matched from the left.
Which numbers a half has is taken from the column header; without one it is time, algbw, busbw and #wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from atoll.readers.collective_names import collective_name, known_collective
from atoll.readers.source import Source
from atoll.readers.text_stream import Line, text_lines


class Measurement(msgspec.Struct, frozen=True):
    """One of the two halves of a row. ``wrong`` is ``None`` for ``N/A`` (not checked).

    A quantity is ``None`` where its column was cut away. ``further`` holds other columns by their printed name in
    their printed unit (``i_min`` in us, ``i_cv%``).
    """

    time_s: float | None = None
    algbw_bytes_per_s: float | None = None
    busbw_bytes_per_s: float | None = None
    wrong: float | None = None
    further: dict[str, float] = {}


class NcclTestRow(msgspec.Struct, frozen=True):
    """One line of the table; ``root`` -1 where the collective has none (or an old version did not print it)."""

    size_bytes: int
    count: int | None
    dtype: str
    redop: str
    source: Source
    root: int = -1
    out_of_place: Measurement | None = None
    in_place: Measurement | None = None


class NcclTestRank(msgspec.Struct, frozen=True):
    """One line of ``Using devices``; ``bus_id`` as printed (``0000:1b:00``, or ``0x00`` in old versions)."""

    rank: int
    host: str
    device: int
    source: Source
    pid: int | None = None
    group: int | None = None
    bus_id: str = ""
    gpu_name: str = ""


class NcclTestFailure(msgspec.Struct, frozen=True):
    """A line that says that the program failed, as ``host: Test NCCL failure common.cu:401 '...'``."""

    message: str
    source: Source
    host: str = ""


class NcclTestRun(msgspec.Struct, frozen=True):
    """One run. ``collective`` is the library's name (``all_reduce``), empty when nothing in the text gives it.

    ``collective_from`` says how it is known: ``header``, ``command``, ``file`` (its name), ``factor`` (busbw over
    algbw) or ``""``; likewise ``world_size_from``: ``ranks`` (listed) or ``factor`` (all-reduce only). ``options``
    are those of the header (``minBytes``, ``iters``). ``finished``: the footer is there.
    """

    rows: tuple[NcclTestRow, ...]
    source: Source
    collective: str = ""
    collective_from: str = ""
    ranks: tuple[NcclTestRank, ...] = ()
    world_size: int | None = None
    world_size_from: str = ""
    failures: tuple[NcclTestFailure, ...] = ()
    nccl_tests_version: str = ""
    nccl_version: str = ""
    options: dict[str, str] = {}
    average_busbw_bytes_per_s: float | None = None
    out_of_bounds: int | None = None
    finished: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of its ranks, in order of first appearance."""
        return tuple(dict.fromkeys(rank.host for rank in self.ranks))


_PROGRAM: Final = re.compile(r"\b([a-z_0-9]{3,40}?)_perf(?:_mpi)?\b")
_FILE_COLLECTIVE: Final = re.compile(
    r"(?<![a-z])(all_?reduce|all_?gather|reduce_?scatter|all_?to_?allv|all_?to_?all|send_?recv|broadcast|hypercube)(?![a-z])"
)
_MPI_TAG: Final = re.compile(r"\[(?:[^\[\]\s]{0,80}@)?\d{1,5},\d{1,7}\]<std(?:out|err|diag)> ?:?")
_PREAMBLE: Final = re.compile(
    r"\s*(\d{1,20})\s+(\d{1,20})\s+"
    r"(float|double|half|bfloat16|u?int\d{1,2}|char|int|f8e4m3|f8e5m2|fp8\w*|fp16|fp32|bf16)(?![\w.])"
)
_REDOP: Final = re.compile(r"\s+(sum|prod|max|min|avg|mulsum|premulsum|none|all)(?![A-Za-z])")
_ROOT: Final = re.compile(r"\s+(-1|\d{1,7})(?![\d.])")
_CELL: Final = re.compile(r"\s+(\d{1,15}(?:\.\d{0,6})?(?:e[+-]?\d{1,3})?|N/A|-?nan|inf)(?![\d.])")
_PIECE: Final = re.compile(r"\s{2,}\d{1,9}(?:\.\d{1,3})?(?:e[+-]\d\d)?\s+\d")
_RANK: Final = re.compile(
    r"#\s+Rank\s+(\d{1,7})\s+(?:Group\s+(\d{1,7})\s+)?Pid\s+(\d{1,10})\s+on\s+(\S{1,253})\s+device\s+(\d{1,4})\s+"
    r"(?:\[([^\]]{1,40})\]\s*)?(.{0,100})"
)
_OPTION: Final = re.compile(r"([A-Za-z][A-Za-z ]{0,30}?) ?:? (-?\d{1,20}(?:\((?:factor|bytes)\))?)(?= |$)")
_VERSION: Final = re.compile(r"# nccl-tests version (\S{1,40})(?:.*nccl-library=(\d{1,8}))?")
_NCCL_VERSION: Final = re.compile(r"\b(?:NCCL|RCCL) version (\d{1,3}\.\d{1,3}(?:\.\d{1,3})?[\w.+-]{0,20})")
_OUT_OF_BOUNDS: Final = re.compile(r"# Out of bounds values\s*:\s*(\d{1,15})")
_AVERAGE: Final = re.compile(r"# Avg bus bandwidth\s*:\s*(\d{1,12}(?:\.\d{0,9})?(?:e[+-]?\d{1,3})?)")
_FAILURE: Final = re.compile(
    r"(?:(\S{1,253}): )?(Test (?:NCCL|CUDA) failure .{1,300}|.{0,200}Test CUDA failure .{1,300})"
)

_SOURCE_FILE: Final = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast|reduce)\.cu:\d")
_COLUMN_NAMES: Final = {
    "bytes": "size",
    "N": "count",
    "op": "redop",
    "res": "#wrong",
    "error": "#wrong",
    "cputime": "time",
}
_META: Final = ("size", "count", "type", "redop", "root")
_HALF: Final = ("time", "algbw", "busbw", "#wrong")
_MAX_RANKS: Final = 1_000_000

_HEADER, _DEVICES, _TABLE, _FOOTER = range(4)


class _Row:
    """A row whose halves are still coming: the numbers of each half, as text."""

    def __init__(self, row: NcclTestRow, half: tuple[str, ...]) -> None:
        self.row = row
        self.names = half
        self.halves: list[list[str]] = []
        self.null_out_of_place = False

    def add(self, cells: list[str]) -> None:
        for cell in cells:
            if not self.halves or len(self.halves[-1]) == len(self.names):
                if len(self.halves) == 2:
                    return
                self.halves.append([])
            self.halves[-1].append(cell)

    def may_be_mine(self, cells: list[str]) -> bool:
        """Whether numbers that came on a later line fit this row: where lines are lost, they may be another row's.

        They do not when size/time is further than a factor of two from the printed algbw.
        """
        if self.halves and len(self.halves[-1]) < len(self.names):
            return True
        half = _measurement(self.names, cells)
        if not half.time_s or not half.algbw_bytes_per_s or half.algbw_bytes_per_s < 5e8:
            return True
        return 0.5 < self.row.size_bytes / half.time_s / half.algbw_bytes_per_s < 2.0

    @property
    def complete(self) -> bool:
        wanted = 1 if self.null_out_of_place else 2
        return len(self.halves) == wanted and len(self.halves[-1]) == len(self.names)

    def finish(self) -> NcclTestRow:
        measured = [_measurement(self.names, half) for half in self.halves]
        if self.null_out_of_place and len(measured) == 1:
            return msgspec.structs.replace(self.row, in_place=measured[0])
        return msgspec.structs.replace(
            self.row,
            out_of_place=measured[0] if measured else None,
            in_place=measured[1] if len(measured) > 1 else None,
        )


class _Run:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.stage = _HEADER
        self.rows: list[NcclTestRow] = []
        self.ranks: dict[int, NcclTestRank] = {}
        self.failures: list[NcclTestFailure] = []
        self.options: dict[str, str] = {}
        self.collective = self.collective_from = self.tests_version = self.nccl_version = ""
        self.average: float | None = None
        self.out_of_bounds: int | None = None
        self.columns: tuple[str, ...] = ()
        self.half: tuple[str, ...] = _HALF
        self.has_root: bool | None = None


class NcclTestsReader:
    """A line-oriented reader: ``feed`` it every line, then ask for ``runs()``.

    Lines of other programs are ignored, and rows without any header are a run of their own.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self._done: list[_Run] = []
        self._run: _Run | None = None
        self._row: _Row | None = None
        self._command: str = ""
        self._nccl_version: str = ""

    def feed(self, line: Line) -> None:
        text = line.text
        if "<std" in text:
            text = _MPI_TAG.sub("", text)
        first = text[:40].lstrip()[:1]
        if first == "#":
            self._comment(text.lstrip(), line)
        elif first.isdigit() and first.isascii():
            if (match := _PREAMBLE.match(text)) is not None:
                self._preamble(text, match, line)
            elif self._row is not None and _PIECE.match(text):
                if self._row.may_be_mine(_cells(text, 0)):
                    self._piece(text, 0)
                else:
                    self._close_row()
        elif "Test " in text and (failure := _FAILURE.search(text)) is not None:
            self._at_least(line, _HEADER).failures.append(
                NcclTestFailure(failure[2].strip(), line.source(self.file), failure[1] or line.launcher.host)
            )
        elif "_perf" in text and (program := _PROGRAM.search(text)) is not None and known_collective(program[1]):
            self._command = known_collective(program[1])
        elif " version " in text and (version := _NCCL_VERSION.search(text)) is not None:
            self._nccl_version = version[1]
            if self._run is not None and not self._run.nccl_version:
                self._run.nccl_version = version[1]

    def runs(self) -> tuple[NcclTestRun, ...]:
        """The runs so far, in order; a run without rows, ranks and failures is none."""
        self._close_row()
        runs = [*self._done, *([self._run] if self._run is not None else [])]
        return tuple(self._finish(run) for run in runs if run.rows or run.ranks or run.failures)

    def _at_least(self, line: Line, stage: int, *, new: bool = False) -> _Run:
        """The current run, or a new one where there is none, ``new`` is set or its footer was already there."""
        if self._run is None or new:
            self._close_row()
            if self._run is not None:
                self._done.append(self._run)
            self._run = _Run(line.source(self.file))
            self._run.nccl_version = self._nccl_version
            if self._command:
                self._run.collective, self._run.collective_from = self._command, "command"
        self._run.stage = max(self._run.stage, stage)
        return self._run

    def _comment(self, text: str, line: Line) -> None:
        run = self._run
        if (version := _VERSION.match(text)) is not None:
            run = self._at_least(line, _HEADER, new=run is not None and (run.stage > _HEADER or bool(run.options)))
            run.tests_version = version[1]
            if version[2]:
                run.nccl_version = version_from_code(int(version[2]))
        elif text.startswith("# Collective test starting"):
            run = self._at_least(line, _HEADER, new=run is not None and (run.stage > _HEADER or bool(run.options)))
            if (program := _PROGRAM.search(text)) is not None:
                run.collective, run.collective_from = collective_name(program[1]), "header"
        elif text.startswith("# nThread"):
            run = self._at_least(line, _HEADER, new=run is not None and (run.stage > _HEADER or bool(run.options)))
            run.options = dict(_OPTION.findall(" ".join(text[2:1000].split())))
        elif (rank := _RANK.match(text)) is not None:
            number = int(rank[1])
            again = run is not None and (run.stage > _DEVICES or number in run.ranks)
            run = self._at_least(line, _DEVICES, new=again)
            if len(run.ranks) < _MAX_RANKS:
                run.ranks[number] = NcclTestRank(
                    number, rank[4], int(rank[5]), line.source(self.file), int(rank[3]),
                    int(rank[2]) if rank[2] else None, rank[6] or "", rank[7].strip(),
                )  # fmt: skip
        elif (columns := _columns(text)) is not None:
            run = self._at_least(line, _TABLE, new=run is not None and run.stage == _FOOTER)
            run.columns = columns
            self._set_columns(run)
        elif run is not None and (average := _AVERAGE.match(text)) is not None:
            run.average, run.stage = float(average[1]) * 1e9, _FOOTER
            self._close_row()
        elif run is not None and (bounds := _OUT_OF_BOUNDS.match(text)) is not None:
            run.out_of_bounds, run.stage = int(bounds[1]), _FOOTER
            self._close_row()

    @staticmethod
    def _set_columns(run: _Run) -> None:
        measured = [name for name in run.columns if name not in _META and name != "timestamp"]
        if measured:
            again = measured.index(measured[0], 1) if measured[0] in measured[1:] else len(measured)
            run.half = tuple(measured[:again])
            run.has_root = "root" in run.columns

    def _preamble(self, text: str, match: re.Match[str], line: Line) -> None:
        run = self._run
        run = self._at_least(line, _TABLE, new=run is not None and run.stage == _FOOTER)
        self._close_row()
        at = match.end()
        redop = ""
        if (found := _REDOP.match(text, at)) is not None:
            redop, at = found[1], found.end()
        cells = _cells(text, at)
        root = -1
        found = _ROOT.match(text, at)
        has_root = run.has_root
        if has_root is None:
            # Without a header: -1 can only be the root, and so is one number more than whole halves have.
            has_root = found is not None and (found[1] == "-1" or len(cells) % len(run.half) == 1)
        if has_root and found is not None:
            root, at = int(found[1]), found.end()
        row = NcclTestRow(int(match[1]), int(match[2]), match[3], redop, line.source(self.file), root)
        self._row = _Row(row, run.half)
        self._piece(text, at)

    def _piece(self, text: str, at: int) -> None:
        """Numbers for the open row."""
        row = self._row
        if row is None:
            return
        cells = _cells(text, at)
        if cells and not row.halves and len(cells) == len(row.names):
            gap = len(text) - at - len(text[at:].lstrip())
            # A replayed trace leaves the out-of-place half blank: 32 spaces more.
            row.null_out_of_place = gap >= 32
        row.add(cells)
        if row.complete:
            self._close_row()

    def _close_row(self) -> None:
        if self._row is not None and self._run is not None:
            self._run.rows.append(self._row.finish())
        self._row = None

    def _finish(self, run: _Run) -> NcclTestRun:
        rows = tuple(run.rows)
        collective, known_from = run.collective, run.collective_from
        if not collective and (named := _FILE_COLLECTIVE.search(self.file.rpartition("/")[2].lower())) is not None:
            collective, known_from = known_collective(named[1]), "file"
        if not collective and run.failures and (named := _SOURCE_FILE.search(run.failures[0].message)) is not None:
            collective, known_from = known_collective(named[1]), "failure"
        factor_world = world_size_of(rows, collective or "all_reduce")
        if not collective and factor_world is not None:
            collective, known_from = "all_reduce", "factor"
        world_size: int | None = len(run.ranks) or None
        world_from = "ranks" if world_size else ""
        if world_size is None and factor_world is not None:
            world_size, world_from = factor_world, "factor"
        return NcclTestRun(
            rows, run.source, collective, known_from, tuple(run.ranks[rank] for rank in sorted(run.ranks)),
            world_size, world_from, tuple(run.failures), run.tests_version, run.nccl_version, run.options,
            run.average, run.out_of_bounds, run.stage == _FOOTER,
        )  # fmt: skip


def read_nccl_tests(text: str | bytes, file: str) -> tuple[NcclTestRun, ...]:
    """Every run in ``text``; none where it holds no nccl-tests output."""
    return runs_in(text_lines(text), file)


def runs_in(lines: Iterable[Line], file: str) -> tuple[NcclTestRun, ...]:
    reader = NcclTestsReader(file)
    for line in lines:
        reader.feed(line)
    return reader.runs()


def world_size_of(rows: Iterable[NcclTestRow], collective: str = "all_reduce") -> int | None:
    """The ranks n by the factor busbw/algbw, 2(n-1)/n or (n-1)/n, where large rows agree on one n of at least 3.

    Printed figures have two decimals, so rows below 10 GB/s do not tell, nor does a factor too near to its limit.
    """
    limit = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}.get(collective)
    figures = [
        (half.algbw_bytes_per_s, half.busbw_bytes_per_s)
        for row in rows
        for half in (row.out_of_place, row.in_place)
        if half is not None and half.busbw_bytes_per_s and half.algbw_bytes_per_s and half.algbw_bytes_per_s >= 1e10
    ]
    if not figures or limit is None:
        return None
    factors = [busbw / algbw for algbw, busbw in figures]
    algbw, busbw = max(figures)
    factor = busbw / algbw
    if not limit * 0.6 < factor < limit * 0.9999 or max(factors) - min(factors) > 0.01:
        return None
    n = limit / (limit - factor)
    # Both figures are rounded to 0.005 GB/s: n is only told where that moves it by less than half a rank.
    doubt = n * n / limit * 0.005e9 * (1 + factor) / algbw
    return round(n) if n > 2.5 and abs(n - round(n)) <= max(0.05, doubt) and doubt < 0.45 else None


def version_from_code(code: int) -> str:
    """NCCL_VERSION_CODE as text: 22707 is 2.27.7; before 2.9 it was 2708 for 2.7.8."""
    if code < 10000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def _columns(text: str) -> tuple[str, ...] | None:
    tokens = text[1:].split()
    if len(tokens) < 4 or tokens[0] not in ("size", "bytes"):
        return None
    return tuple(_COLUMN_NAMES.get(token, token) for token in tokens)


def _cells(text: str, at: int) -> list[str]:
    cells = []
    while (match := _CELL.match(text, at)) is not None:
        cells.append(match[1])
        at = match.end()
    return cells


def _measurement(names: tuple[str, ...], cells: list[str]) -> Measurement:
    found = {
        name: cell
        for name, cell in zip(names, cells, strict=False)
        if cell not in ("N/A", "inf") and "nan" not in cell and float(cell) < 1e300
    }
    wrong = found.get("#wrong")
    return Measurement(
        _scaled(found.get("time"), -6),
        _scaled(found.get("algbw"), 9),
        _scaled(found.get("busbw"), 9),
        None if wrong is None else float(wrong),
        {name: float(cell) for name, cell in found.items() if name not in _HALF},
    )


def _scaled(cell: str | None, exponent: int) -> float | None:
    """A printed decimal times a power of ten, without a rounding of its own: 85.13 us is 8.513e-05 s."""
    if cell is None:
        return None
    return float(cell) * 10.0**exponent if "e" in cell else float(f"{cell}e{exponent}")
