"""nccl-tests output as it is pasted: any version's columns, launcher prefixes and log lines in between, or ``-J`` JSON.

Vocabulary. A *run* is one ``*_perf`` program: header lines, *ranks* (``Using devices``), then a table with one *row*
per size, each with an out-of-place and an in-place *measurement*, then the footer. One file may hold several runs.
``GB/s`` is 1e9 bytes a second; ``algbw`` is size/time and ``busbw`` is algbw times the collective's factor, both per
rank.
"""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


class Measurement(msgspec.Struct, frozen=True):
    """One of the two halves of a row. ``wrong`` is ``None`` for ``N/A`` (not checked).

    ``per_iteration`` holds further columns by their printed name in their printed unit (``i_min`` in us, ``i_cv%``).
    """

    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    wrong: float | None = None
    per_iteration: dict[str, float] = {}


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
    """A line that says that the program failed: ``host: Test NCCL failure common.cu:401 '...'``; ``message`` its
    text.
    """

    message: str
    source: Source
    host: str = ""


class NcclTestRun(msgspec.Struct, frozen=True):
    """One run. ``collective`` is the library's name (``all_reduce``), empty when nothing in the text gives it.

    ``collective_from`` says how it is known: ``"header"``, ``"json"``, ``"file"`` name, ``"factor"`` (busbw over
    algbw) or empty. ``world_size`` is the number of listed ranks, or ``None``. ``finished`` is whether the footer is
    there.
    """

    rows: tuple[NcclTestRow, ...]
    source: Source
    collective: str = ""
    collective_from: str = ""
    ranks: tuple[NcclTestRank, ...] = ()
    world_size: int | None = None
    failures: tuple[NcclTestFailure, ...] = ()
    nccl_tests_version: str = ""
    nccl_version: str = ""
    options: dict[str, str] = {}
    average_busbw_bytes_per_s: float | None = None
    out_of_bounds: int | None = None
    finished: bool = False
