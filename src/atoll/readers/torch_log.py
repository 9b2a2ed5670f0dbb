"""What PyTorch prints about a job that fails: watchdog, heartbeat monitor, store, mismatch, torchrun's report.

Line shapes of PyTorch 1.9 to 2.9. All facts carry ``rank`` (the global rank from ``[rank3]:``, or the ``[Rank 3]``
of the message, or ``None``) and ``time`` as printed (glog's ``0619 12:34:56.789``), empty when there is none.
"""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


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
