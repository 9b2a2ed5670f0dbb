"""NCCL RAS (2.24 and later): what ``ncclras`` or port 28028 answers, as text or as JSON (2.28 and later).

Vocabulary. Communicators are *grouped* by size and state; ``#0-1 (hash)`` is communicator 1 of group 0. *Errors* are
INCOMPLETE (ranks did not answer), DEAD (processes given up) and ERROR (a rank's init or asynchronous error);
*warnings* are TIMEOUT and MISMATCH (ranks differ in status or in how many operations they have launched). The text
lists single ranks only for small minorities; the rest is counts. The JSON lists every rank.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from atoll.errors import SpecError
from atoll.readers.collective_names import collective_name
from atoll.readers.source import Source
from atoll.readers.text_stream import Line, text_lines


class RasRank(msgspec.Struct, frozen=True):
    """What is told of one rank of one communicator. ``status`` is INIT, RUNNING, FINALIZE, ABORT or NOCOMM, if known.

    ``launched`` maps a collective (``all_reduce``) to the operations that this rank has launched. ``missing`` is
    whether its data did not arrive, ``dead`` whether RAS has given its process up. ``init_error`` and ``async_error``
    are NCCL's words (``Remote process error``), empty when there is none.
    """

    rank: int
    source: Source
    host: str = ""
    pid: int | None = None
    cuda_device: int | None = None
    nvml_device: int | None = None
    status: str = ""
    launched: dict[str, int] = {}
    missing: bool = False
    dead: bool = False
    init_error: str = ""
    async_error: str = ""


class RasCount(msgspec.Struct, frozen=True):
    """``num_ranks`` ranks share one value: a ``status`` (collective then empty), or ``launched`` operations of one
    kind.
    """

    num_ranks: int
    source: Source
    collective: str = ""
    launched: int | None = None
    status: str = ""
    ranks: tuple[int, ...] = ()
    """The ranks by name, where the text lists them (minorities only)."""


class RasCommunicator(msgspec.Struct, frozen=True):
    """One communicator. ``problems`` are of INCOMPLETE, ERROR, MISMATCH as written; ``counts`` largest group first."""

    communicator: str
    source: Source
    group: int | None = None
    world_size: int | None = None
    num_nodes: int | None = None
    status: str = ""
    problems: tuple[str, ...] = ()
    ranks: tuple[RasRank, ...] = ()
    counts: tuple[RasCount, ...] = ()


class RasGroup(msgspec.Struct, frozen=True):
    """A row of the summary table: ``num_communicators`` communicators of ``world_size`` ranks, status and errors as
    written.
    """

    group: int
    num_communicators: int
    num_nodes: int
    ranks_per_node: str
    world_size: int
    num_ranks: int
    status: str
    errors: str
    source: Source


class RasProcess(msgspec.Struct, frozen=True):
    """A process that did not answer (``dead`` False) or was given up (``dead`` True)."""

    pid: int
    host: str
    devices: str
    dead: bool
    source: Source


class RasReport(msgspec.Struct, frozen=True):
    """One answer of RAS. ``num_dead`` and ``num_missing`` count processes even where they are not listed."""

    source: Source
    nccl_version: str = ""
    timestamp: str = ""
    num_nodes: int | None = None
    num_processes: int | None = None
    num_gpus: int | None = None
    groups: tuple[RasGroup, ...] = ()
    communicators: tuple[RasCommunicator, ...] = ()
    processes: tuple[RasProcess, ...] = ()
    num_dead: int = 0
    num_missing: int = 0
    num_timeouts: int = 0


MAX_BYTES: Final = 256 << 20
_MAX_RANKS: Final = 1_000_000

_VERSION: Final = re.compile(r"(?:NCCL|RCCL) version (\S{1,40}) compiled with")
_TITLE: Final = re.compile(r"(Job summary|Errors|Warnings)\s*$|(Communicators)\.\.\.")
_SUMMARY_ROW: Final = re.compile(r"\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s*$")
_TOTAL_ROW: Final = re.compile(r"\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s*$")
_GROUP: Final = re.compile(
    r"\s*(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9}(?:-\d{1,9})?)\s+(\d{1,9})\s+(\d{1,9})\s+([A-Z]{2,12})\s+([A-Z,]{2,40})\s*$"
)
_COMMUNICATOR: Final = re.compile(r"\s*#(\d{1,9})-(\d{1,9}) \(([0-9a-f]{1,20})\) ([A-Z]{2,20})\s*$")
_MISSING_RANKS: Final = re.compile(r"\s+Missing communicator data from (\d{1,9}) ranks?")
_MISSING_PROCESSES: Final = re.compile(r"\s+Missing communicator data from (\d{1,9}) job process")
_DEAD: Final = re.compile(r"\s+(\d{1,9}) job process(?:es are| is) considered dead")
_TIMEOUTS: Final = re.compile(r"\s+Encountered (\d{1,9}) communication timeout")
_PROCESS: Final = re.compile(r"\s+Process (\d{1,10}) on node (\S{1,253}) managing GPUs? (.{1,200}?)\s*$")
_WHERE: Final = (
    r"(?: -- (?:GPU (?P<gpu>\d{1,5})(?: \(NVML (?P<nvml>\d{1,5})\))? "
    r"managed by process (?P<pid>\d{1,10}) on node (?P<host>\S{1,253})|\[.{1,80}\]))"
)
_RANK: Final = re.compile(
    r"\s+Rank (?P<rank>\d{1,9})(?: (?P<what>has status (?P<status>[A-Z]{2,12})"
    r"|has launched up to operation (?P<launched>\d{1,18})"
    r"|has not launched any operations|reported (?P<error>.{1,80}?)))?" + _WHERE + r"\s*$"
)
_STATUS_COUNT: Final = re.compile(r"\s+(\d{1,9}) ranks have status ([A-Z]{2,12})")
_LAUNCHED_COUNT: Final = re.compile(
    r"\s+(\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)"
)
_ERROR_COUNT: Final = re.compile(r"\s+(\d{1,9}) ranks reported (.{1,80}?)\s*$")
_DIFFERENT: Final = re.compile(r"\s+Communicator ranks have different (?:(status)|(\w{1,40}) operation counts)")
_ERROR_KIND: Final = re.compile(r"\s+(Initialization|Asynchronous) errors? on (\d{1,9}) ranks?")

_RESULTS: Final = {
    1: "Unhandled CUDA error", 2: "System error", 3: "Internal error", 4: "Invalid argument", 5: "Invalid usage",
    6: "Remote process error",
}  # fmt: skip
"""NCCL's words for its result codes; 0 is success and 7 in progress."""


class _Communicator:
    """A communicator being read: what its ranks and counts say so far, and what the lines that follow are about."""

    def __init__(self, name: str, group: int, source: Source) -> None:
        self.name = name
        self.group = group
        self.source = source
        self.problems: list[str] = []
        self.ranks: dict[int, RasRank] = {}
        self.counts: list[RasCount] = []
        self.about = ""
        self.collective = ""
        self.open_count: int | None = None
        self.error = ""
        self.asynchronous = False


class RasReader:
    """A line-oriented reader of the text form; ``reports`` holds one report for each answer, in order."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._reports: list[RasReport] = []
        self._clear()

    def _clear(self) -> None:
        """Everything that is of one report."""
        self._section = ""
        self._version = ""
        self._start: Source | None = None
        self._totals: tuple[int, int, int] | None = None
        self._groups: list[RasGroup] = []
        self._communicators: dict[str, _Communicator] = {}
        self._current: _Communicator | None = None
        self._processes: list[RasProcess] = []
        self._about_dead = False
        self._num_dead = self._num_missing = self._num_timeouts = 0

    @property
    def reports(self) -> tuple[RasReport, ...]:
        return (*self._reports, *([self._report()] if self._start is not None else []))

    def feed(self, line: Line) -> None:
        text = line.text
        if (version := _VERSION.match(text)) is not None:
            self._begin(line)
            self._version = version[1]
            return
        title = _TITLE.match(text)
        if title is not None:
            name = title[1] or title[2]
            if name == "Job summary" and self._section:
                self._begin(line)
            if name in ("Job summary", "Communicators") and self._start is None:
                self._begin(line)
            self._section, self._current = name, None
            return
        if self._start is None:
            return
        if self._section == "Job summary":
            if (row := _SUMMARY_ROW.match(text)) is not None:
                self._totals = (int(row[1]), int(row[4]), int(row[5]))
            elif (row := _TOTAL_ROW.match(text)) is not None:
                self._totals = (int(row[1]), int(row[2]), int(row[3]))
        elif self._section == "Communicators":
            if (row := _GROUP.match(text)) is not None:
                self._groups.append(
                    RasGroup(
                        int(row[1]), int(row[2]), int(row[3]), row[4], int(row[5]), int(row[6]), row[7], row[8],
                        line.source(self.file),
                    )
                )  # fmt: skip
        elif self._section in ("Errors", "Warnings"):
            self._problem(text, line)

    def _begin(self, line: Line) -> None:
        if self._start is not None:
            self._reports.append(self._report())
        self._clear()
        self._start = line.source(self.file)

    def _problem(self, text: str, line: Line) -> None:
        source = line.source(self.file)
        if (head := _COMMUNICATOR.match(text)) is not None:
            current = self._communicators.get(head[3])
            if current is None:
                current = self._communicators[head[3]] = _Communicator(head[3], int(head[1]), source)
            current.problems.append(head[4])
            current.about, current.open_count, current.error = head[4], None, ""
            self._current = current
            return
        if (count := _MISSING_PROCESSES.match(text)) is not None:
            self._num_missing, self._about_dead, self._current = int(count[1]), False, None
        elif (count := _DEAD.match(text)) is not None:
            self._num_dead, self._about_dead, self._current = int(count[1]), True, None
        elif (count := _TIMEOUTS.match(text)) is not None:
            self._num_timeouts, self._current = int(count[1]), None
        elif (process := _PROCESS.match(text)) is not None:
            self._processes.append(RasProcess(int(process[1]), process[2], process[3], self._about_dead, source))
        elif self._current is not None:
            self._of_communicator(self._current, text, source)

    def _of_communicator(self, current: _Communicator, text: str, source: Source) -> None:
        if (different := _DIFFERENT.match(text)) is not None:
            current.about = "status" if different[1] else "launched"
            current.collective, current.open_count = collective_name(different[2] or ""), None
        elif (kind := _ERROR_KIND.match(text)) is not None:
            current.about, current.asynchronous, current.error = "error", kind[1] == "Asynchronous", ""
        elif (count := _STATUS_COUNT.match(text)) is not None:
            current.counts.append(RasCount(int(count[1]), source, status=count[2]))
            current.open_count = len(current.counts) - 1
        elif (count := _LAUNCHED_COUNT.match(text)) is not None:
            launched = int(count[2]) if count[2] else 0
            current.counts.append(RasCount(int(count[1]), source, current.collective, launched))
            current.open_count = len(current.counts) - 1
        elif (count := _ERROR_COUNT.match(text)) is not None:
            current.error, current.open_count = count[2], None
        elif (rank := _RANK.match(text)) is not None and len(current.ranks) < _MAX_RANKS:
            self._rank(current, rank, source)

    def _rank(self, current: _Communicator, match: re.Match[str], source: Source) -> None:
        number = int(match["rank"])
        before = current.ranks.get(number) or RasRank(number, source)
        changes: dict[str, object] = {"source": source}
        if match["host"] is not None:
            device = int(match["gpu"])
            changes |= {
                "host": match["host"],
                "pid": int(match["pid"]),
                "cuda_device": device,
                "nvml_device": int(match["nvml"]) if match["nvml"] else device,
            }
        listed = None if current.open_count is None else current.counts[current.open_count]
        status, launched, error = match["status"], match["launched"], match["error"]
        if match["what"] == "has not launched any operations":
            launched = "0"
        if current.about == "INCOMPLETE":
            changes["missing"] = True
        elif status is not None or (current.about == "status" and listed is not None):
            changes["status"] = status or (listed.status if listed else "")
        elif launched is not None or (current.about == "launched" and listed is not None):
            operations = int(launched) if launched is not None else (listed.launched or 0 if listed else 0)
            changes["launched"] = {**before.launched, current.collective: operations}
        elif error is not None or current.error:
            changes["async_error" if current.asynchronous else "init_error"] = error or current.error
        if match["what"] is None and listed is not None and current.open_count is not None:
            current.counts[current.open_count] = msgspec.structs.replace(listed, ranks=(*listed.ranks, number))
        elif launched is not None:
            current.counts.append(RasCount(1, source, current.collective, int(launched), "", (number,)))
        elif status is not None:
            current.counts.append(RasCount(1, source, status=status, ranks=(number,)))
        current.ranks[number] = msgspec.structs.replace(before, **changes)

    def _report(self) -> RasReport:
        assert self._start is not None
        by_group = {group.group: group for group in self._groups}
        communicators = []
        for entry in self._communicators.values():
            group = by_group.get(entry.group)
            communicators.append(
                RasCommunicator(
                    entry.name, entry.source, entry.group, group.world_size if group else None,
                    group.num_nodes if group else None, group.status if group else "",
                    tuple(dict.fromkeys(entry.problems)), tuple(entry.ranks[rank] for rank in sorted(entry.ranks)),
                    tuple(entry.counts),
                )
            )  # fmt: skip
        nodes, processes, gpus = self._totals or (None, None, None)
        return RasReport(
            self._start, self._version, "", nodes, processes, gpus, tuple(self._groups), tuple(communicators),
            tuple(self._processes), self._num_dead, self._num_missing, self._num_timeouts,
        )  # fmt: skip


def read_ras(text: str | bytes, file: str) -> tuple[RasReport, ...]:
    """Every report in ``text``, of either form. Raises ``SpecError`` where there is none, or the JSON is cut."""
    if text.lstrip()[:1] in ("{", b"{"):
        return (_from_json(text, file),)
    reader = RasReader(file)
    for line in text_lines(text):
        reader.feed(line)
    if not reader.reports:
        raise SpecError(
            f"{file}: no RAS report: expected the output of ncclras, with 'Job summary' and 'Communicators...'"
        )
    return reader.reports


class _JsonRank(msgspec.Struct):
    rank: int
    host: str = ""
    pid: int | None = None
    cuda_dev: int | None = None
    nvml_dev: int | None = None
    status: dict[str, int | bool] = {}
    collective_counts: dict[str, int] = {}


class _JsonCommunicator(msgspec.Struct):
    hash: str
    size: int | None = None
    secondary_hash: str = ""
    ranks: list[_JsonRank] = []
    missing_ranks: list[_JsonRank] = []


class _JsonReport(msgspec.Struct):
    communicators: list[_JsonCommunicator]
    nccl_version: str = ""
    timestamp: str = ""
    ras: dict[str, float] = {}


def _from_json(text: str | bytes, file: str) -> RasReport:
    if len(text) > MAX_BYTES:
        raise SpecError(f"{file}: {len(text)} bytes; a RAS report has at most {MAX_BYTES}")
    try:
        document = msgspec.json.decode(text, type=_JsonReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{file}: no RAS report in JSON, or cut in the middle: {error}") from error
    source = Source(file, 0)
    communicators = []
    hosts: set[str] = set()
    processes: set[tuple[str, int | None]] = set()
    for entry in document.communicators:
        ranks = [_json_rank(rank, source, missing=False) for rank in entry.ranks]
        ranks += [_json_rank(rank, source, missing=True) for rank in entry.missing_ranks]
        ranks.sort(key=lambda rank: rank.rank)
        hosts |= {rank.host for rank in ranks if rank.host}
        processes |= {(rank.host, rank.pid) for rank in ranks}
        counts = _count(ranks, source)
        problems = []
        if any(rank.missing and rank.status != "NOCOMM" for rank in ranks):
            problems.append("INCOMPLETE")
        if any(rank.init_error or rank.async_error for rank in ranks):
            problems.append("ERROR")
        if any(count.num_ranks != len(ranks) - sum(rank.missing for rank in ranks) for count in counts):
            problems.append("MISMATCH")
        status = {rank.status for rank in ranks if rank.status}
        communicators.append(
            RasCommunicator(
                entry.hash.removeprefix("0x"), source, None, entry.size, len({rank.host for rank in ranks}) or None,
                status.pop() if len(status) == 1 else "", tuple(problems), tuple(ranks), tuple(counts),
            )
        )  # fmt: skip
    gone = {(rank.host, rank.pid, rank.dead) for entry in communicators for rank in entry.ranks if rank.missing}
    return RasReport(
        source, document.nccl_version, document.timestamp, len(hosts) or None, len(processes) or None, None, (),
        tuple(communicators),
        tuple(RasProcess(pid, host, "", dead, source) for host, pid, dead in sorted(gone, key=str) if pid is not None),
        sum(dead for _, _, dead in gone), sum(not dead for _, _, dead in gone),
        int(document.ras.get("timeouts_count", 0)),
    )  # fmt: skip


def _json_rank(rank: _JsonRank, source: Source, *, missing: bool) -> RasRank:
    status = rank.status
    unresponsive = bool(status.get("unresponsive", missing))
    dead = bool(status.get("considered_dead", False))
    word = ""
    if missing:
        word = "" if unresponsive or dead else "NOCOMM"
    elif status.get("abort_flag"):
        word = "ABORT"
    elif status.get("finalize_called") or status.get("destroy_flag"):
        word = "FINALIZE"
    elif "init_state" in status:
        word = "RUNNING" if status["init_state"] == 0 else "INIT"
    return RasRank(
        rank.rank, source, rank.host, rank.pid, rank.cuda_dev, rank.nvml_dev, word,
        {} if missing else {collective_name(name): count for name, count in rank.collective_counts.items()},
        missing, dead,
        _RESULTS.get(int(status.get("init_state", 0)), ""), _RESULTS.get(int(status.get("async_error", 0)), ""),
    )  # fmt: skip


def _count(ranks: list[RasRank], source: Source) -> list[RasCount]:
    """The text form's counts: ranks that share a status, or the operations launched, largest group first."""
    here = [rank for rank in ranks if not rank.missing]
    groups: dict[tuple[str, int | None, str], list[int]] = {}
    for rank in here:
        groups.setdefault(("", None, rank.status), []).append(rank.rank)
        for collective, launched in rank.launched.items():
            groups.setdefault((collective, launched, ""), []).append(rank.rank)
    counts = [
        RasCount(len(members), source, collective, launched, status, tuple(members))
        for (collective, launched, status), members in groups.items()
    ]
    return sorted(counts, key=lambda count: (count.collective, -count.num_ranks))
