"""Process rules: who ended, by what, and who was only taken along (P01 to P09)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from atoll.doctor.evidence import Evidence, merge_sources
from atoll.doctor.finding import Confidence, Hit, Role, Severity, Subject
from atoll.doctor.rule import Rule
from atoll.readers.kernel_log import OutOfMemoryKill, ProcessFault
from atoll.readers.slurm import SlurmCancelled, SlurmNodeFailure, SlurmOutOfMemory, SlurmTaskEnd
from atoll.readers.torch_log import (
    AsyncError,
    ClosingSignal,
    CudaError,
    GpuOutOfMemory,
    ProcessExit,
    PythonException,
    StoreError,
)
from atoll.units import format_size

SIGKILL: Final = -9
SIGNALS: Final = {-11: "SIGSEGV", -6: "SIGABRT", -7: "SIGBUS", -4: "SIGILL", -8: "SIGFPE", -9: "SIGKILL"}
AFTERMATH_SIGNALS: Final = frozenset({-15, -6, -1})
"""SIGTERM comes from the agent, SIGABRT from the watchdog."""
_OF_THE_WORLD: Final = re.compile(
    r"DistBackendError|DistStoreError|DistNetworkError|DistError|ChildFailedError|Rendezvous\w*|SignalException|"
    r"SystemExit|KeyboardInterrupt|BrokenPipeError|ConnectionResetError"
)
_OF_THE_WORLD_TEXT: Final = re.compile(
    r"NCCL|ncclRemoteError|watchdog|Watchdog|Connection (?:closed|reset)|Broken pipe|store|Socket Timeout|timed out|"
    r"collective|process group",
    re.IGNORECASE,
)


def _p01(evidence: Evidence) -> Iterable[Hit]:
    kernel, slurm = evidence.kernel_of(OutOfMemoryKill), evidence.slurm_of(SlurmOutOfMemory)
    tasks = [end for end in evidence.slurm_of(SlurmTaskEnd) if end.out_of_memory]
    ends = [end for end in evidence.torch_of(ProcessExit) if end.exit_code == SIGKILL]
    killed = {kill.pid for kill in kernel}
    matching = [end for end in ends if end.pid in killed] or ends
    if not kernel and not slurm and not tasks:
        return
    what = (
        f"the kernel killed {kernel[0].process or 'a process'} (pid {kernel[0].pid})"
        + (f" with {format_size(kernel[0].resident_bytes)} resident" if kernel[0].resident_bytes else "")
        + (" at its memory cgroup's limit" if kernel[0].cgroup else " because the host ran out of memory")
        if kernel
        else "Slurm reports a kill for lack of memory"
    )
    ranks = [end.rank for end in matching if end.rank is not None]
    yield Hit(
        what + (f"; rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:4]))} ended with SIGKILL"
        if ranks else ""),
        merge_sources([[k.source for k in kernel], [s.source for s in slurm], [t.source for t in tasks],
                       [e.source for e in matching]]),
        tuple(evidence.place(end.rank, host=end.host) for end in matching[:4])
        or tuple(Subject(host=kill.stamp.host) for kill in kernel[:1] if kill.stamp.host)
        or tuple(Subject(host=task.host) for task in tasks[:2]),
        confidence=Confidence.HIGH if matching or tasks or slurm else Confidence.MEDIUM,
    )  # fmt: skip


def _p02(evidence: Evidence) -> Iterable[Hit]:
    found = evidence.torch_of(GpuOutOfMemory)
    if found:
        first = found[0]
        asked = f" ({format_size(first.tried_bytes)} asked for)" if first.tried_bytes else ""
        who = f"rank {first.rank}" if first.rank is not None else "a rank"
        others = len({fact.rank for fact in found}) - 1
        yield Hit(
            f"{who} ran out of GPU memory{asked}"
            + (f", and {others} more" if others > 0 else "; the others wait for it"),
            tuple(fact.source for fact in found[:3]),
            (evidence.place(first.rank),) if first.rank is not None else (),
        )


def _own_exceptions(evidence: Evidence) -> list[PythonException]:
    """Exceptions that a rank raised by itself, not because another one failed."""
    return [
        fact
        for fact in evidence.torch_of(PythonException)
        if not _OF_THE_WORLD.search(fact.exception)
        and not _OF_THE_WORLD_TEXT.search(fact.message)
        and "OutOfMemory" not in fact.exception
        and "out of memory" not in fact.message
        and not fact.message.startswith("CUDA error")
    ]


def _p03(evidence: Evidence) -> Iterable[Hit]:
    found = _own_exceptions(evidence)
    if not found:
        return
    first = found[0]
    ranks = sorted({fact.rank for fact in found if fact.rank is not None})
    everybody = evidence.world_size is not None and len(ranks) >= evidence.world_size > 1
    who = "all ranks" if everybody else f"rank {first.rank}" if first.rank is not None else "a process"
    yield Hit(
        f"{who} raised {first.exception}: {first.message[:200]}",
        tuple(fact.source for fact in found[:3]),
        tuple(evidence.place(rank) for rank in ranks[:4]),
    )


def _p04(evidence: Evidence) -> Iterable[Hit]:
    errors = evidence.torch_of(AsyncError)
    raised = [
        fact
        for fact in evidence.torch_of(PythonException)
        if _OF_THE_WORLD.search(fact.exception) or _OF_THE_WORLD_TEXT.search(fact.message)
    ]
    if errors or raised:
        text = errors[0].message if errors else f"{raised[0].exception}: {raised[0].message}"
        named = [*(error.rank for error in errors), *(fact.rank for fact in raised)]
        ranks = sorted({rank for rank in named if rank is not None})
        yield Hit(
            f"PyTorch reports what NCCL or a peer told it: {text[:160]}",
            merge_sources([[fact.source for fact in errors], [fact.source for fact in raised]], 3),
            tuple(evidence.place(rank) for rank in ranks[:4]),
        )


def _p05(evidence: Evidence) -> Iterable[Hit]:
    faults = evidence.kernel_of(ProcessFault)
    for end in evidence.torch_of(ProcessExit):
        code = end.exit_code
        if code is None or code >= 0 or code in AFTERMATH_SIGNALS:
            continue
        name = SIGNALS.get(code, f"signal {-code}")
        fault = next((f for f in faults if f.pid == end.pid), None)
        who = f"rank {end.rank}" if end.rank is not None else "a process"
        suspicion = ": perhaps for lack of memory, but nothing here confirms it" if code == SIGKILL else ""
        yield Hit(
            f"{who} ended with {name}" + (f" ({fault.message[:120]})" if fault else "") + suspicion,
            merge_sources([[end.source], [fault.source] if fault else []]),
            (evidence.place(end.rank, host=end.host),),
            confidence=Confidence.LOW if code == SIGKILL else Confidence.MEDIUM,
        )
        return


def _p06(evidence: Evidence) -> Iterable[Hit]:
    cancelled = [fact for fact in evidence.slurm_of(SlurmCancelled) if not fact.node_failure and not fact.preemption]
    closing = evidence.torch_of(ClosingSignal)
    ended = [end for end in evidence.slurm_of(SlurmTaskEnd) if not end.out_of_memory]
    exits = [end for end in evidence.torch_of(ProcessExit) if (end.exit_code or 0) in AFTERMATH_SIGNALS]
    if cancelled:
        first = cancelled[0]
        what = f"Slurm ended the job{' at its time limit' if first.time_limit else ''}"
    elif closing or exits:
        what = "the agent ended workers because another had failed"
    elif ended:
        end = ended[0]
        how = f"exit code {end.exit_code}" if end.exit_code is not None else end.signal
        what = f"tasks on {end.host} ended with {how}"
    else:
        return
    yield Hit(
        what,
        merge_sources([[f.source for f in cancelled], [f.source for f in closing], [f.source for f in ended],
                       [f.source for f in exits]], 4),
        tuple(Subject(host=host) for host in [*(c.host for c in cancelled), *(t.host for t in ended)][:2] if host),
    )  # fmt: skip


def _p07(evidence: Evidence) -> Iterable[Hit]:
    lost = evidence.torch_of(StoreError)
    if lost:
        yield Hit(
            f"the rendezvous store is unreachable ({lost[0].kind.replace('_', ' ')}): the process that holds "
            "it ended first",
            tuple(fact.source for fact in lost[:2]),
            tuple(evidence.place(fact.rank) for fact in lost[:4] if fact.rank is not None),
        )


def _p08(evidence: Evidence) -> Iterable[Hit]:
    failures = evidence.slurm_of(SlurmNodeFailure)
    cancelled = [fact for fact in evidence.slurm_of(SlurmCancelled) if fact.node_failure or fact.preemption]
    if failures or cancelled:
        preempted = bool(cancelled) and cancelled[0].preemption
        host = failures[0].host if failures else cancelled[0].host
        yield Hit(
            "the job was preempted" if preempted and not failures else f"node {host or '(not named)'} failed",
            merge_sources([[f.source for f in failures], [f.source for f in cancelled]]),
            (Subject(host=host),) if host else (),
        )


def _p09(evidence: Evidence) -> Iterable[Hit]:
    found = evidence.torch_of(CudaError)
    if found:
        first = found[0]
        yield Hit(
            f"{f'rank {first.rank}' if first.rank is not None else 'a rank'}: CUDA error: {first.message[:160]}",
            tuple(fact.source for fact in found[:3]),
            (evidence.place(first.rank),) if first.rank is not None else (),
        )


_AFTERMATH: Final = ("H01", "H02", "H06", "H12", "N11", "P04", "P06", "P07", "U01", "W05")

RULES: tuple[Rule, ...] = (
    Rule(
        "P01", "The host ran out of memory",
        "The kernel or Slurm's cgroup killed a process for lack of memory; the others then hang or time out.",
        "An oom-kill record in the kernel log, or Slurm's own (`oom_kill event`, `Out Of Memory`), with exit code -9.",
        "Exit code -9 or a bare `Killed` alone is a suspicion (P05), never this.",
        Severity.FATAL, Role.ROOT, "Load with mmap, fewer copies and loader workers; ask for more memory.",
        _p01, Confidence.HIGH,
        explains=(*_AFTERMATH, "P05"),
    ),
    Rule(
        "P02", "A GPU ran out of memory",
        "One rank fails to allocate and stops; the others wait in the next collective.",
        "`CUDA out of memory` on a rank, before the others' timeouts.",
        "The first by line counts.",
        Severity.FATAL, Role.ROOT, "Smaller batch or longer sequence limit on that rank; catch and abort on "
                                   "all ranks.", _p02,
        Confidence.HIGH, explains=(*_AFTERMATH, "P03", "P05"),
    ),
    Rule(
        "P03", "A rank raised an exception of its own",
        "A program error on one rank; the others wait for it until they time out.",
        "A traceback whose exception is not about the network, the store or another rank.",
        "Errors about NCCL, the store or timeouts are aftermath (P04).",
        Severity.FATAL, Role.ROOT, "Read that traceback first.", _p03, Confidence.HIGH, collect="the full log "
                                                                                                "of that rank",
        explains=(*_AFTERMATH, "P05"),
    ),
    Rule(
        "P04", "PyTorch reports a failure of NCCL or a peer",
        "An error that travelled here: the message names the symptom, not the cause.",
        "`ncclRemoteError`, `DistBackendError`, `Connection reset by peer` and the like.",
        "Never a root.",
        Severity.FATAL, Role.CASCADE, "Look for the first error by time, on another rank.", _p04, Confidence.HIGH,
        collect="the logs of all ranks, NCCL_DEBUG=INFO",
    ),
    Rule(
        "P05", "A process was ended by a signal",
        "SIGSEGV is a crash; SIGKILL has an unknown sender.",
        "torchrun's exit code below zero, other than SIGTERM and SIGABRT.",
        "SIGKILL alone does not prove an out-of-memory kill.",
        Severity.FATAL, Role.EITHER, "For SIGKILL read dmesg of that host; for SIGSEGV get a core dump.",
        _p05, Confidence.MEDIUM,
        collect="dmesg of that host around that time", explains=_AFTERMATH,
    ),
    Rule(
        "P06", "The job was taken down",
        "Slurm or the elastic agent ended the rest. It says when, not why.",
        "`CANCELLED ... DUE TO TIME LIMIT`, closing signals, task ends.",
        "Never a root: a job that ends at its limit without output was stuck before.",
        Severity.FATAL, Role.CASCADE, "Look for what happened before.", _p06, Confidence.HIGH,
    ),
    Rule(
        "P07", "The store is gone",
        "The process that holds the rendezvous store (rank 0 or the agent) ended first.",
        "TCPStore errors: connection lost, timeout, connect failed.",
        "Never a root.",
        Severity.FATAL, Role.CASCADE, "Look at rank 0's log.", _p07, Confidence.HIGH, collect="rank 0's log",
    ),
    Rule(
        "P08", "A node failed, or the job was preempted",
        "Slurm took the node away.",
        "`Node failure on ...`, `DUE TO NODE FAILURE`, `DUE TO PREEMPTION`.",
        "None: Slurm says it.",
        Severity.FATAL, Role.ROOT, "Resubmit without that node; checkpoint on SIGTERM for preemption.",
        _p08, Confidence.HIGH,
        explains=(*_AFTERMATH, "P05"),
    ),
    Rule(
        "P09", "A CUDA error",
        "A kernel failed on one rank: an illegal access is a program's fault, an uncorrectable ECC error the GPU's.",
        "`CUDA error: ...` in a traceback.",
        "With an Xid the Xid tells which.",
        Severity.FATAL, Role.EITHER, "`CUDA_LAUNCH_BLOCKING=1` finds the kernel; `compute-sanitizer` the access.", _p09,
        collect="dmesg of that host (Xid)", explains=(*_AFTERMATH, "P03", "P05"),
    ),
)  # fmt: skip
