"""What PyTorch prints about a job that fails: watchdog, heartbeat monitor, store, mismatch, torchrun's report.

Line shapes of PyTorch 1.9 to 2.9. All facts carry ``rank`` (the global rank from ``[rank3]:``, or the ``[Rank 3]``
of the message, or ``None``) and ``time`` as printed (glog's ``0619 12:34:56.789``), empty when there is none.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from atoll.readers.collective_names import collective_name
from atoll.readers.source import Source
from atoll.readers.text_stream import Line, text_lines


class WorkInfo(msgspec.Struct, frozen=True):
    """``WorkNCCL(SeqNum=..., OpType=...)``: a collective as its process group counts it."""

    sequence: int
    op: str
    numel_in: int | None = None
    numel_out: int | None = None
    timeout_s: float | None = None


class WatchdogTimeout(msgspec.Struct, frozen=True):
    """``Watchdog caught collective operation timeout``: ``work`` of ``rank`` did not end in ``ran_for_s``."""

    work: WorkInfo
    source: Source
    rank: int | None = None
    group_rank: int | None = None
    ran_for_s: float | None = None
    time: str = ""


class WatchdogStatus(msgspec.Struct, frozen=True):
    """Where one rank stood in one group: last enqueued and last completed work; -1 is none, ``None`` not printed.

    ``kind``: ``exception``, ``timeout``, ``failure`` or ``dump_signal``. ``group_id`` is local to the process,
    ``group_uid`` and ``group_desc`` (``default_pg``) are the same everywhere. ``from_rank`` is whose timeout a dump
    signal reports (``None``: its own, or not said).
    """

    kind: str
    source: Source
    rank: int | None = None
    group_rank: int | None = None
    group_id: str = ""
    group_uid: str = ""
    group_desc: str = ""
    failed_sequence: int | None = None
    last_enqueued: int | None = None
    last_started: int | None = None
    last_completed: int | None = None
    from_rank: int | None = None
    time: str = ""


class HeartbeatStuck(msgspec.Struct, frozen=True):
    """The heartbeat monitor: the watchdog made no progress for ``stuck_for_s`` (``None``: not printed on this line)."""

    source: Source
    rank: int | None = None
    stuck_for_s: float | None = None
    time: str = ""


class CollectiveMismatchReport(msgspec.Struct, frozen=True):
    """``TORCH_DISTRIBUTED_DEBUG=DETAIL``: rank ``rank_a`` runs ``fingerprint_a`` while ``rank_b`` runs
    ``fingerprint_b``.

    A fingerprint maps ``SequenceNumber``, ``OpType``, ``TensorShape``, ``TensorDtypes`` ... to their text.
    """

    rank_a: int
    fingerprint_a: dict[str, str]
    rank_b: int
    fingerprint_b: dict[str, str]
    source: Source
    rank: int | None = None


class AsyncError(msgspec.Struct, frozen=True):
    """NCCL reported an error to PyTorch (``nccl_error``: ``ncclRemoteError``; ``message`` its text; ``work`` if
    named).
    """

    message: str
    source: Source
    nccl_error: str = ""
    work: WorkInfo | None = None
    rank: int | None = None
    time: str = ""


class StoreError(msgspec.Struct, frozen=True):
    """The rendezvous store is unreachable: ``kind`` is ``connection_lost``, ``timeout`` or ``connect_failed``."""

    kind: str
    source: Source
    rank: int | None = None
    time: str = ""


class GpuOutOfMemory(msgspec.Struct, frozen=True):
    """``CUDA out of memory``, with the size that was asked for where it is printed."""

    source: Source
    rank: int | None = None
    tried_bytes: int | None = None
    device: int | None = None


class PythonException(msgspec.Struct, frozen=True):
    """The last line of a Python traceback: ``exception`` its type (``RuntimeError``), ``message`` the rest."""

    exception: str
    message: str
    source: Source
    rank: int | None = None


class CudaError(msgspec.Struct, frozen=True):
    """``CUDA error: <message>`` (an illegal memory access, uncorrectable ECC, unspecified launch failure ...)."""

    message: str
    source: Source
    rank: int | None = None


class ProcessExit(msgspec.Struct, frozen=True):
    """A worker's end, as torchrun tells it. A negative ``exit_code`` is minus the signal that ended the process.

    ``root`` is whether torchrun names it the first observed failure; ``origin`` is ``report`` (the ChildFailedError
    table) or ``agent`` (``failed (exitcode: -9) local_rank: 0``); ``closed_by_agent``: the agent sent it a signal.
    """

    source: Source
    rank: int | None = None
    local_rank: int | None = None
    exit_code: int | None = None
    pid: int | None = None
    host: str = ""
    time: str = ""
    message: str = ""
    root: bool = False
    origin: str = "report"


class ClosingSignal(msgspec.Struct, frozen=True):
    """``Sending process 123 closing signal SIGTERM``: the agent ended this worker because another had failed."""

    pid: int
    signal: str
    source: Source
    time: str = ""


class DumpNotice(msgspec.Struct, frozen=True):
    """A rank wrote its flight recorder (``path`` if printed), or (``empty``) says that the recorder is off."""

    source: Source
    rank: int | None = None
    path: str = ""
    empty: bool = False


TorchFact = (
    WatchdogTimeout
    | WatchdogStatus
    | HeartbeatStuck
    | CollectiveMismatchReport
    | AsyncError
    | StoreError
    | GpuOutOfMemory
    | PythonException
    | CudaError
    | ProcessExit
    | ClosingSignal
    | DumpNotice
)


# A line is looked at further only if one of these is in it: cheap tests that nearly every line fails.
_MARKS: Final = (
    "atchdog", "ProcessGroupNCCL", "WorkNCCL", "CollectiveFingerPrint", "CUDA", "exitcode", "closing signal", "Error",
    "TCPStore", "client socket", "Exception", "Recorder", "rank      :", "local_rank", "Signal ",
)  # fmt: skip

_RANK_LABEL: Final = re.compile(r"\[rank ?(\d{1,7})\]:?")
_GROUP_RANK: Final = re.compile(r"\[(?:PG [^\]]{0,200}?)?Rank (\d{1,7})\]")
_GLOG: Final = re.compile(r"\[?[EWIF](\d{3,4} \d\d:\d\d:\d\d(?:\.\d{1,9})?)")
_WORK: Final = re.compile(
    r"WorkNCCL\(SeqNum=(\d{1,18}),? ?OpType=(\w{1,60})"
    r"(?:,? ?(?:TensorShape=\[[^\]]{0,200}\],? ?)?(?:NumelIn=(\d{1,18}),? ?NumelOut=(\d{1,18}))?)?"
    r"(?:,? ?Timeout\(ms\)=(\d{1,15}))?"
)
_RAN_FOR: Final = re.compile(r"ran for (\d{1,15}) milliseconds")
_GROUP: Final = re.compile(
    r"\[PG (?:ID )?(?P<id>\d{1,9})(?: PG GUID (?P<uid>[^\s(\]]{1,200})(?:\((?P<desc>[^)]{0,200})\))?"
    r"|(?: \((?P<old_desc>[^)]{0,200})\)))? Rank (?P<rank>\d{1,7})\]"
)
_STATUS: Final = re.compile(
    r"[Ll]ast enqueued(?: NCCL)? work: (-?\d{1,18})(?:, last started(?: NCCL)? work: (-?\d{1,18}))?"
    r", last completed(?: NCCL)?(?: work)?: (-?\d{1,18})"
)
_FAILED_AT: Final = re.compile(r"at(?: NCCL)? work(?: sequence id)?: (\d{1,18})")
_DUMP_FROM: Final = re.compile(r"collective timeout from\s+(?:rank (\d{1,7})|this local rank)")
_STUCK: Final = re.compile(r"watchdog got stuck for (\d{1,9}) seconds")
_FINGERPRINT: Final = re.compile(
    r"Rank (\d{1,7}) is running collective: CollectiveFingerPrint\((.{0,2000}?)\),? but "
    r"Rank (\d{1,7}) is running collective: CollectiveFingerPrint\((.{0,2000})"
)
_FIELD: Final = re.compile(
    r"(SequenceNumber|OpType|TensorShape|TensorDtypes|TensorDeviceTypes)=(\d{1,18}|\[[^\]]{0,400}\]|\w{1,80})"
)
_ERROR_WORDS: Final = {
    "unhandled cuda error": "ncclUnhandledCudaError",
    "unhandled system error": "ncclSystemError",
    "internal error": "ncclInternalError",
    "invalid argument": "ncclInvalidArgument",
    "invalid usage": "ncclInvalidUsage",
    "remote process exited or there was a network error": "ncclRemoteError",
}
_NCCL_ERROR: Final = re.compile(r"\b(nccl(?:UnhandledCuda|System|Internal|InvalidArgument|InvalidUsage|Remote)\w*)\b")
_NCCL_MESSAGE: Final = re.compile(r"NCCL error(?: in: \S{1,300})?:? ?,? ?(.{0,600})")
_EXCEPTION: Final = re.compile(
    r"((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit))(?::\s*(.{0,600}))?$"
)
_TRIED: Final = re.compile(r"Tried to allocate (\d{1,9}(?:\.\d{1,6})?) ([KMGT]?i?B|bytes)")
_DEVICE: Final = re.compile(r"\bGPU (\d{1,4})")
_CUDA_ERROR: Final = re.compile(r"CUDA (?:driver )?error: (.{1,200})")
_AGENT: Final = re.compile(r"failed \(exitcode: (-?\d{1,5})\)(?: local_rank: (\d{1,5}))?(?: \(pid: (\d{1,10})\))?")
_CLOSING: Final = re.compile(r"Sending process (\d{1,10}) closing signal (\w{1,20})")
_REPORT_KEY: Final = re.compile(r"\s*(time|host|rank|exitcode|error_file|traceback)\s*:\s?(.{0,500})")
_REPORT_INDEX: Final = re.compile(r"\s*\[(\d{1,6})\]:\s*")
_DUMP_PATH: Final = re.compile(
    r"(?:[Ww]riting|[Ff]inished writing|[Dd]umping).{0,80}?(?:Flight Recorder|debug info|trace).{0,40}? "
    r"to (?:file |disk: )?(\S{1,300})"
)
_BYTES: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MAX_FACTS: Final = 2_000_000


class TorchLogReader:
    """A line-oriented reader; ``facts`` holds what it has found, in order.

    torchrun's report is a block: ``feed`` keeps the failure that is being listed and adds it with its last line, or
    with ``facts`` when the text ends inside it.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self._facts: list[TorchFact] = []
        self._report: dict[str, str] | None = None
        self._report_source: Source | None = None
        self._root = False
        self._in_report = 0

    @property
    def facts(self) -> tuple[TorchFact, ...]:
        self._close_report()
        return tuple(self._facts)

    def feed(self, line: Line) -> None:
        text = line.text
        if self._in_report:
            self._feed_report(text, line)
        for mark in _MARKS:
            if mark in text:
                break
        else:
            if "Root Cause (first observed failure)" in text:
                self._root, self._in_report = True, 40
            elif text.rstrip() == "Failures:" or text.rstrip().endswith(" FAILED"):
                self._root, self._in_report = False, 40
            return
        if len(self._facts) < _MAX_FACTS:
            found = self._fact(text, line)
            if found is not None:
                self._facts.append(found)

    def _rank(self, line: Line) -> int | None:
        """The global rank: of the launcher's label, or of torch's own ``[rank3]:`` further inside."""
        if line.launcher.rank is not None:
            return line.launcher.rank
        label = _RANK_LABEL.search(line.raw)
        return int(label[1]) if label else None

    def _common(self, text: str, line: Line) -> tuple[Source, int | None, str]:
        stamp = _GLOG.search(text)
        return line.source(self.file), self._rank(line), stamp[1] if stamp else line.launcher.time

    def _fact(self, text: str, line: Line) -> TorchFact | None:
        if "atchdog" in text or "WorkNCCL" in text or "ProcessGroupNCCL" in text or "Recorder" in text:
            found = self._group_fact(text, line)
            if found is not None:
                return found
        if "CollectiveFingerPrint" in text and (match := _FINGERPRINT.search(text)) is not None:
            return CollectiveMismatchReport(
                int(match[1]), dict(_FIELD.findall(match[2])), int(match[3]), dict(_FIELD.findall(match[4])),
                line.source(self.file), self._rank(line),
            )  # fmt: skip
        if "exitcode" in text and (match := _AGENT.search(text)) is not None:
            return ProcessExit(
                line.source(self.file), None, int(match[2]) if match[2] else None, int(match[1]),
                int(match[3]) if match[3] else None, line.launcher.host, "", "", False, "agent",
            )  # fmt: skip
        if "closing signal" in text and (match := _CLOSING.search(text)) is not None:
            source, _, time = self._common(text, line)
            return ClosingSignal(int(match[1]), match[2], source, time)
        if "out of memory" in text and "CUDA" in text:
            return _out_of_memory(text, line.source(self.file), self._rank(line))
        if "CUDA error: " in text or "CUDA driver error: " in text:
            message = _CUDA_ERROR.search(text)
            if message is not None:
                return CudaError(message[1].strip(), line.source(self.file), self._rank(line))
        if "TCPStore" in text or "client socket" in text or "Rendezvous" in text:
            return self._store_error(text, line)
        return self._exception(text, line)

    def _group_fact(self, text: str, line: Line) -> TorchFact | None:
        """What ProcessGroupNCCL says: its watchdog, its heartbeat monitor, its dumps."""
        source, rank, time = self._common(text, line)
        group_rank = _GROUP_RANK.search(text)
        local = int(group_rank[1]) if group_rank else None
        if rank is None:
            # The rank in the message counts in its group; that is the global one in the default group only, but it is
            # all that logs before PyTorch 2.2 say.
            rank = local
        if "caught collective operation timeout" in text and (work := _WORK.search(text)) is not None:
            ran = _RAN_FOR.search(text)
            return WatchdogTimeout(_work(work), source, rank, local, int(ran[1]) / 1e3 if ran else None, time)
        if "watchdog got stuck" in text or "Heartbeat monitor timed out" in text:
            stuck = _STUCK.search(text)
            return HeartbeatStuck(source, rank, float(stuck[1]) if stuck else None, time)
        status = _STATUS.search(text)
        if status is not None:
            group = _GROUP.search(text)
            failed = _FAILED_AT.search(text)
            signal = _DUMP_FROM.search(text)
            if signal is not None or "dump signal" in text:
                kind = "dump_signal"
            elif "Exception" in text:
                kind = "exception"
            elif "failure detected" in text:
                kind = "failure"
            else:
                kind = "timeout"
            return WatchdogStatus(
                kind, source, rank, local,
                group["id"] if group else "",
                (group["uid"] or "") if group else "",
                (group["desc"] or group["old_desc"] or "") if group else "",
                int(failed[1]) if failed else None,
                int(status[1]), int(status[2]) if status[2] else None, int(status[3]),
                int(signal[1]) if signal and signal[1] else None, time,
            )  # fmt: skip
        if "async exception" in text or "async error" in text or ("WorkNCCL" in text and "NCCL error" in text):
            work = _WORK.search(text)
            named = _nccl_error(text)
            message = _NCCL_MESSAGE.search(text)
            return AsyncError(
                message[1].strip() if message else text.strip()[:600], source, named,
                _work(work) if work else None, rank, time,
            )  # fmt: skip
        if "potentially because FlightRecorder is disabled" in text or "Flight Recorder is disabled" in text:
            return DumpNotice(source, rank, empty=True)
        if "to" in text and (path := _DUMP_PATH.search(text)) is not None:
            return DumpNotice(source, rank, path[1].rstrip(".,"))
        return None

    def _store_error(self, text: str, line: Line) -> TorchFact | None:
        source, rank, time = self._common(text, line)
        if "timed out" in text or "Timeout" in text or "timeout after" in text:
            return StoreError("timeout", source, rank, time)
        if "failed to connect" in text or "The client socket has failed" in text or "Connection refused" in text:
            return StoreError("connect_failed", source, rank, time)
        lost = (
            "Broken pipe",
            "reset by peer",
            "recvValue failed",
            "recvBytes",
            "Connection was closed",
            "sendBytes failed",
        )
        if any(words in text for words in lost):
            return StoreError("connection_lost", source, rank, time)
        return self._exception(text, line)

    def _exception(self, text: str, line: Line) -> TorchFact | None:
        body = text
        label = _RANK_LABEL.match(body)
        if label is not None:
            body = body[label.end() :].lstrip()
        match = _EXCEPTION.match(body)
        if match is None or "ChildFailedError" in match[1]:
            return None
        message = match[2] or ""
        if "NCCL" in match[1] or "DistBackendError" in match[1] or "NCCL error" in message:
            named = _nccl_error(message)
            return AsyncError(message, line.source(self.file), named, None, self._rank(line))
        return PythonException(match[1], message, line.source(self.file), self._rank(line))

    def _feed_report(self, text: str, line: Line) -> None:
        """A line inside torchrun's report."""
        self._in_report -= 1
        if _REPORT_INDEX.fullmatch(text):
            self._close_report()
            self._report, self._report_source = {}, line.source(self.file)
            self._in_report = 40
        elif self._report is not None and (match := _REPORT_KEY.fullmatch(text)) is not None:
            self._report[match[1]] = match[2].strip()
            if match[1] == "exitcode":
                self._report_source = line.source(self.file)
            if match[1] == "traceback":
                self._close_report()
        elif text.startswith(("====", "----")):
            self._close_report()

    def _close_report(self) -> None:
        report, source = self._report, self._report_source
        self._report = None
        if report is None or source is None or not report:
            return
        ranks = re.match(r"(\d{1,7})(?: \(local_rank: (\d{1,5})\))?", report.get("rank", ""))
        code = re.match(r"(-?\d{1,5})(?: \(pid: (\d{1,10})\))?", report.get("exitcode", ""))
        message = report.get("traceback", "")
        self._facts.append(
            ProcessExit(
                source, int(ranks[1]) if ranks else None, int(ranks[2]) if ranks and ranks[2] else None,
                int(code[1]) if code else None, int(code[2]) if code and code[2] else None,
                report.get("host", ""), report.get("time", ""),
                "" if message.startswith("To enable traceback") else message, self._root, "report",
            )
        )  # fmt: skip


def read_torch_log(text: str | bytes, file: str) -> tuple[TorchFact, ...]:
    """Every fact in ``text``, in order; none where PyTorch has not failed."""
    reader = TorchLogReader(file)
    for line in text_lines(text):
        reader.feed(line)
    return reader.facts


def _nccl_error(text: str) -> str:
    """The name of NCCL's result code in ``text``, by its name or by NCCL's words for it."""
    if (named := _NCCL_ERROR.search(text)) is not None:
        return named[1]
    return next((name for words, name in _ERROR_WORDS.items() if words in text), "")


def _work(match: re.Match[str]) -> WorkInfo:
    return WorkInfo(
        int(match[1]), collective_name(match[2]), int(match[3]) if match[3] else None,
        int(match[4]) if match[4] else None, int(match[5]) / 1e3 if match[5] else None,
    )  # fmt: skip


def _out_of_memory(text: str, source: Source, rank: int | None) -> GpuOutOfMemory:
    tried = _TRIED.search(text)
    device = _DEVICE.search(text)
    size = None
    if tried is not None:
        size = int(float(tried[1]) * _BYTES.get(tried[2], 1))
    return GpuOutOfMemory(source, rank, size, int(device[1]) if device else None)
