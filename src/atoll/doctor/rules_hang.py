"""Hang rules: who never came, who came with something else, and what only looks like a hang (H01 to H12)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from atoll.doctor.evidence import Evidence, merge_sources
from atoll.doctor.finding import Confidence, Hit, Role, Severity, Subject
from atoll.doctor.hang import Blame, BlameKind
from atoll.doctor.hang_evidence import analyses
from atoll.doctor.lint_timeouts import ladder, problems
from atoll.doctor.rule import Rule
from atoll.readers.nccl_log_facts import (
    DuplicateGpu,
    InitTimings,
    MismatchedCollective,
    SharedMemoryFailed,
    Version,
    VersionMismatch,
    bus_id_text,
)
from atoll.readers.torch_log import (
    CollectiveMismatchReport,
    HeartbeatStuck,
    ProcessExit,
    WatchdogStatus,
    WatchdogTimeout,
)
from atoll.units import format_duration

EARLY_SEQUENCE: Final = 10
TINY_NUMEL: Final = 64
LATE_BOOTSTRAP_S: Final = 30.0
SIGBUS: Final = -7
_SIGNS_OF_H01: Final = (BlameKind.NEVER_ENTERED, BlameKind.NO_EVIDENCE, BlameKind.STUCK)


def _subject(evidence: Evidence, blame: Blame) -> Subject:
    place = evidence.place(blame.rank)
    group = f"{blame.group} ({blame.description})" if blame.description else blame.group
    return Subject(place.rank, place.host, place.gpu, place.bus_id, place.nic, group=group)


def _h01(evidence: Evidence) -> Iterable[Hit]:
    if _is_rank_zero_alone(evidence) is not None:
        return
    for told in analyses(evidence):
        guilty = [blame for blame in told.analysis.culprits if blame.kind in _SIGNS_OF_H01]
        if not guilty:
            continue
        ranks = ", ".join(str(rank) for rank in sorted({blame.rank for blame in guilty})[:16])
        suspects = sorted({blame.rank for blame in told.analysis.suspects} | set(told.analysis.unread))
        unread = (
            f"; of rank{'s' if len(suspects) > 1 else ''} {', '.join(map(str, suspects[:8]))} nothing was read"
            if suspects
            else ""
        )
        silent = all(blame.kind is BlameKind.NO_EVIDENCE for blame in guilty)
        yield Hit(
            f"rank{'s' if len({b.rank for b in guilty}) > 1 else ''} {ranks} by {told.origin}: "
            + "; ".join(blame.what for blame in guilty[:4]) + unread,
            merge_sources([*(blame.sources for blame in guilty[:4]), told.confirmed_by]),
            tuple(_subject(evidence, blame) for blame in guilty[:16]),
            confidence=Confidence.MEDIUM if silent else Confidence.HIGH,
        )  # fmt: skip


def _h02(evidence: Evidence) -> Iterable[Hit]:
    if _first_on_all(evidence) is not None:
        return
    for told in analyses(evidence):
        if told.analysis.stuck and not told.analysis.culprits and not told.analysis.disputed:
            first = told.analysis.stuck[0]
            yield Hit(
                f"{first.what} (by {told.origin}): no rank is missing, so look at the network or a GPU",
                merge_sources(blame.sources for blame in told.analysis.stuck[:3]),
                tuple(_subject(evidence, blame) for blame in told.analysis.stuck[:8]),
            )


def _h03(evidence: Evidence) -> Iterable[Hit]:
    for told in analyses(evidence):
        wrong = [b for b in told.analysis.culprits if b.kind in (BlameKind.OTHER_COLLECTIVE, BlameKind.WRONG_SHAPE)]
        if wrong:
            yield Hit(
                f"by {told.origin}: " + "; ".join(blame.what for blame in wrong[:3]),
                merge_sources(blame.sources for blame in wrong[:4]),
                tuple(_subject(evidence, blame) for blame in wrong[:16]),
                confidence=Confidence.HIGH,
            )
        elif told.analysis.disputed:
            blame = told.analysis.disputed[0]
            yield Hit(
                f"by {told.origin}, without a majority that tells whose fault it is: {blame.what}",
                merge_sources(blame.sources for blame in told.analysis.disputed[:4]),
                tuple(Subject(group=blame.group) for blame in told.analysis.disputed[:1]),
                confidence=Confidence.MEDIUM,
            )
    for report in evidence.torch_of(CollectiveMismatchReport):
        differ = sorted(
            key
            for key in report.fingerprint_a.keys() | report.fingerprint_b.keys()
            if report.fingerprint_a.get(key) != report.fingerprint_b.get(key)
        )
        said = ", ".join(f"{k} {report.fingerprint_a.get(k)} and {report.fingerprint_b.get(k)}" for k in differ)
        yield Hit(
            f"ranks {report.rank_a} and {report.rank_b} run different collectives: {said}",
            (report.source,),
            (evidence.place(report.rank_a), evidence.place(report.rank_b)),
            confidence=Confidence.HIGH,
        )
        break
    for mismatch, statement in evidence.said(MismatchedCollective):
        yield Hit(
            f"a peer sends {mismatch.size_bytes} bytes where {mismatch.other_size_bytes} are received",
            (statement.source,),
            evidence.speakers_of(statement),
        )
        break


def _timeouts(evidence: Evidence) -> dict[int, WatchdogTimeout]:
    """The first timeout of each rank."""
    found: dict[int, WatchdogTimeout] = {}
    for line in evidence.torch_of(WatchdogTimeout):
        if line.rank is not None:
            found.setdefault(line.rank, line)
    return found


def _is_rank_zero_alone(evidence: Evidence) -> WatchdogTimeout | None:
    """A timeout of the pattern of H04: an early, tiny operation in which every rank but 0 waits."""
    lines = _timeouts(evidence)
    if len(lines) < 2 or 0 in lines:
        return None
    first = min(lines.values(), key=lambda line: line.rank or 0)
    works = {line.work.sequence for line in lines.values()}
    small = all(line.work.numel_in is None or line.work.numel_in <= TINY_NUMEL for line in lines.values())
    kind = re.search(r"broadcast|barrier|all_?reduce|all_?gather", first.work.op, re.IGNORECASE)
    everybody = evidence.world_size is None or len(lines) >= 0.75 * (evidence.world_size - 1)
    heard_zero = any(status.rank == 0 for status in evidence.torch_of(WatchdogStatus))
    early = max(works) <= EARLY_SEQUENCE and len(works) == 1
    return first if early and small and kind and everybody and not heard_zero else None


def _h04(evidence: Evidence) -> Iterable[Hit]:
    line = _is_rank_zero_alone(evidence)
    if line is not None:
        ranks = sorted(_timeouts(evidence))
        yield Hit(
            f"ranks {ranks[0]} to {ranks[-1]} wait in {line.work.op.lower()} {line.work.sequence} for rank 0, "
            "which is busy with "
            "something of its own (download, data preparation, compilation)",
            tuple(_timeouts(evidence)[rank].source for rank in ranks[:3]),
            (evidence.place(0),),
        )


def _first_on_all(evidence: Evidence) -> dict[int, WatchdogTimeout] | None:
    """Timeouts of the first collective on every rank, rank 0 included."""
    lines = _timeouts(evidence)
    if len(lines) < 2 or 0 not in lines or any(line.work.sequence != 1 for line in lines.values()):
        return None
    if evidence.world_size is not None and len(lines) < evidence.world_size:
        return None
    return lines


def _h05(evidence: Evidence) -> Iterable[Hit]:
    lines = _first_on_all(evidence)
    if lines is not None:
        yield Hit(
            f"the first collective ({lines[0].work.op.lower()}) never ends on any rank, its source included",
            tuple(line.source for _, line in sorted(lines.items())[:3]),
            tuple(evidence.place(rank) for rank in sorted(lines)[:8]),
        )


def _h06(evidence: Evidence) -> Iterable[Hit]:
    stuck = evidence.torch_of(HeartbeatStuck)
    if stuck:
        first = min(stuck, key=lambda line: (line.time or "~", line.source.line))
        before = [
            line for line in evidence.torch_of(WatchdogTimeout) if line.time and first.time and line.time < first.time
        ]
        said = f" for {format_duration(first.stuck_for_s)}" if first.stuck_for_s else ""
        who = f"rank {first.rank}" if first.rank is not None else "a rank"
        yield Hit(
            f"the watchdog thread of {who} made no progress{said}: a lock, the GIL, or a CUDA call holds it"
            + ("; a timeout came before it, so it is secondary" if before else ""),
            (first.source, *(line.source for line in before[:1])),
            (evidence.place(first.rank),) if first.rank is not None else (),
            Severity.NOTICE if before else None,
            Confidence.LOW if before else Confidence.MEDIUM,
        )


def _h07(evidence: Evidence) -> Iterable[Hit]:
    names = ("NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")
    settings = {name: found for name in names if (found := evidence.setting(name)) is not None}
    given: dict[str, float] = {}
    recorded = [entry.timeout_s for dump in evidence.dumps for entry in dump.entries if entry.timeout_s]
    watched = [line.work.timeout_s for line in evidence.torch_of(WatchdogTimeout) if line.work.timeout_s]
    if recorded or watched:
        given["process_group"] = max((*recorded, *watched))
    if not settings:
        return
    version = ".".join(map(str, evidence.nccl_version))
    rungs = ladder({name: found.value for name, found in settings.items()}, given, version)
    for problem in problems(rungs):
        sources = [
            found.source for name, found in settings.items() if name in problem.inner.origin + problem.outer.origin
        ]
        yield Hit(problem.what, tuple(sources[:2]) or tuple(s.source for s in settings.values())[:2], fix=problem.fix)


def _h08(evidence: Evidence) -> Iterable[Hit]:
    worst = [
        (fact, statement) for fact, statement in evidence.said(InitTimings) if fact.bootstrap_s >= LATE_BOOTSTRAP_S
    ]
    if not worst:
        return
    fact, statement = max(worst, key=lambda item: item[0].bootstrap_s)
    early = [
        f.rank
        for f, _ in evidence.said(InitTimings)
        if f.nranks == fact.nranks and f.bootstrap_s < 0.2 * fact.bootstrap_s
    ]
    late = f"; rank{'s' if len(early) > 1 else ''} {', '.join(map(str, sorted(early)[:8]))} came last" if early else ""
    yield Hit(
        f"ranks wait {format_duration(fact.bootstrap_s)} for each other before the first communicator is up{late}",
        (statement.source,),
        tuple(evidence.place(rank) for rank in sorted(early)[:8]),
    )


def _h09(evidence: Evidence) -> Iterable[Hit]:
    mig = any(gpu.mig for smi in evidence.smi for gpu in smi.gpus)
    for fact, statement in evidence.said(DuplicateGpu):
        named = fact.rank >= 0 and fact.other_rank >= 0
        yield Hit(
            (f"ranks {fact.rank} and {fact.other_rank} use one GPU" + (f" ({bus_id_text(fact.bus_id)})"
            if fact.bus_id >= 0 else "")
             if named else "several ranks use one GPU")
            + ("; MIG is on, so it may be meant" if mig else ""),
            (statement.source,),
            (evidence.place(fact.rank), evidence.place(fact.other_rank)) if named else evidence.speakers_of(statement),
            confidence=Confidence.LOW if mig else Confidence.HIGH,
        )  # fmt: skip
        return


def _h10(evidence: Evidence) -> Iterable[Hit]:
    for fact, statement in evidence.said(VersionMismatch):
        yield Hit(
            f"rank {fact.rank} runs version {fact.version}, rank {fact.other_rank} version {fact.other_version}"
            if fact.rank >= 0 and fact.other_rank >= 0
            else f"NCCL versions differ: {fact.version} here, {fact.other_version} at the peer",
            (statement.source,),
            evidence.speakers_of(statement),
            confidence=Confidence.HIGH,
        )
        return
    world = evidence.world
    if world is None:
        return
    inside = {(member.host, member.pid) for member in world.members.values()}
    by_version: dict[str, tuple[str, Subject]] = {}
    sources = []
    for version, statement in evidence.said(Version):
        speakers = [evidence.nccl.speakers[index] for index in statement.speakers]
        mine = [s for s in speakers if (s.host, s.pid) in inside]
        if mine:
            by_version.setdefault(version.version, (mine[0].host, Subject(host=mine[0].host)))
            sources.append(statement.source)
    if len(by_version) > 1:
        yield Hit(
            "one communicator runs several versions: "
            + ", ".join(f"{v} on {host}" for v, (host, _) in by_version.items()),
            tuple(sources[:4]),
            tuple(subject for _, subject in by_version.values()),
        )


def _h11(evidence: Evidence) -> Iterable[Hit]:
    for fact, statement in evidence.said(SharedMemoryFailed):
        full = re.search(r"no space|ENOSPC|\b28\b", f"{fact.error} {statement.source.text}", re.IGNORECASE)
        yield Hit(
            f"shared memory {'is full' if full else 'fails'}: {fact.path or '/dev/shm'}"
            + (f", {fact.size_bytes} bytes wanted" if fact.size_bytes > 0 else ""),
            (statement.source,),
            evidence.speakers_of(statement),
            confidence=Confidence.HIGH if full else Confidence.MEDIUM,
        )
        return
    for end in evidence.torch_of(ProcessExit):
        if end.exit_code == SIGBUS:
            yield Hit(
                "a process ended with SIGBUS, as it does when /dev/shm is full",
                (end.source,),
                (evidence.place(end.rank, host=end.host),),
                confidence=Confidence.LOW,
            )
            return


def _h12(evidence: Evidence) -> Iterable[Hit]:
    lines = _timeouts(evidence)
    every = evidence.torch_of(WatchdogTimeout)
    if every:
        first = every[0]
        yield Hit(
            f"PyTorch's watchdog gave {first.work.op.lower()} {first.work.sequence} up on "
            f"{len(lines) or len(every)} rank"
            f"{'s' if len(lines) > 1 else ''}"
            + (f" after {format_duration(first.work.timeout_s)}" if first.work.timeout_s else ""),
            tuple(line.source for line in every[:2]),
            tuple(evidence.place(rank) for rank in sorted(lines)[:8]),
        )


_AFTERMATH: Final = ("H12", "H06", "N11", "P04", "P05", "P06", "P07", "U01", "W05")

RULES: tuple[Rule, ...] = (
    Rule(
        "H01", "A rank never entered the collective",
        "The others wait in a collective that this rank has not enqueued: it is stuck or busy elsewhere, or "
        "its process is gone.",
        "Flight-recorder dumps (a member without the operation, an empty or missing dump), watchdog lines (a "
        "rank that is "
        "behind, or silent), RAS counts that stay lower.",
        "A rank that waits for others itself is a victim. Missing dumps only accuse where nothing else "
        "explains the hang.",
        Severity.FATAL, Role.ROOT, "Look at that rank: `py-spy dump`, dmesg of its host, the last line of its "
                                   "log; then its control flow.",
        _h01, Confidence.HIGH, collect="`py-spy dump --pid <rank's process>`, dmesg of its host, its own log",
        explains=(*_AFTERMATH, "H02", "H04", "H05"),
    ),
    Rule(
        "H02", "All ranks entered, and none gets out",
        "The collective itself is stuck: the network, a GPU, or the fabric manager.",
        "Every member has enqueued the operation, it is first in line for all, and none has completed it.",
        "With a mismatch it is H03.",
        Severity.FATAL, Role.EITHER, "Look for N09, N10 and Xid on the members; use RAS while it hangs.", _h02,
        collect="NCCL_DEBUG=INFO of all ranks, dmesg of all hosts, `ncclras`", explains=_AFTERMATH,
    ),
    Rule(
        "H03", "Ranks entered different collectives",
        "At the same place of a group's sequence ranks run another operation, size or type, or wait for each "
        "other in a ring.",
        "Flight-recorder entries of one sequence number that differ, `CollectiveFingerPrint` reports.",
        "All-to-all sizes differ legally. Without a majority nobody is named.",
        Severity.FATAL, Role.ROOT, "Make all ranks take the same branch; pad uneven batches; use `join` for "
                                   "uneven inputs.", _h03,
        Confidence.HIGH, collect="stack frames in the flight recorder (`TORCH_NCCL_TRACE_CPP_STACK`), "
                                 "`TORCH_DISTRIBUTED_DEBUG=DETAIL`",
        explains=(*_AFTERMATH, "H01", "H02"),
    ),
    Rule(
        "H04", "Rank 0 works while the others wait",
        "The others time out in an early, tiny broadcast or barrier because rank 0 downloads, prepares or "
        "compiles alone.",
        "Watchdog lines of all ranks but 0, one sequence number up to 10, few elements.",
        "Sequence 1 on all ranks, 0 included, is H05.",
        Severity.FATAL, Role.ROOT, "Do that work before the process group, or give the first group a longer "
                                   "timeout.", _h04,
        collect="rank 0's own log", explains=(*_AFTERMATH, "H01", "H02"),
    ),
    Rule(
        "H05", "The first collective never ends",
        "Initialisation works and the first data never arrives: peer access, ACS, IOMMU or a wrong GID.",
        "Watchdog lines with sequence 1 on every rank.",
        "A rank that is silent is H01 or H04.",
        Severity.FATAL, Role.EITHER, "Try `NCCL_P2P_DISABLE=1`: if it helps, G04 or G05; else N09.", _h05,
        collect="`lspci -vvv | grep ACSCtl`, kernel boot line, `show_gids`", explains=(*_AFTERMATH, "H02"),
    ),
    Rule(
        "H06", "The watchdog itself was stuck",
        "A thread that holds a lock or the GIL, or a CUDA call that never returns, keeps the watchdog from looking.",
        "`watchdog got stuck for 480 seconds`, before any timeout.",
        "Usually secondary: after a timeout it is aftermath.",
        Severity.FATAL, Role.EITHER, "Dump the stacks of that process; look for a CUDA call under a lock.", _h06,
        collect="`py-spy dump --native`, flight-recorder dumps", explains=("H12", "P04", "P05", "P06", "P07",
        "U01", "W05"),
    ),
    Rule(
        "H07", "Timeouts are not nested",
        "A layer gives up before the layer inside it can say what is wrong.",
        "NCCL's, the process group's and the heartbeat's timeouts, from variables, dumps and watchdog lines.",
        "Two defaults are never told.",
        Severity.NOTICE, Role.EITHER, "Make each layer strictly longer than the one inside (`atoll lint "
                                      "timeouts`).", _h07,
    ),
    Rule(
        "H08", "Ranks come late",
        "Some ranks start long after the others: image pull, a slow node, a queue.",
        "`Init timings` with a bootstrap of 30 s or more; the late ranks have a short one.",
        "Waiting is only wasted time unless a timeout strikes.",
        Severity.NOTICE, Role.EITHER, "Pre-pull images; raise the rendezvous timeout.", _h08,
    ),
    Rule(
        "H09", "Two ranks use one GPU",
        "`LOCAL_RANK` is not used to select the device.",
        "`Duplicate GPU detected`, or 2.30's wording.",
        "MIG or MPS may mean it.",
        Severity.FATAL, Role.ROOT, "`torch.cuda.set_device(LOCAL_RANK)` before the process group.",
        _h09, Confidence.HIGH,
        explains=("N11", "H12", "P04", "P06", "U01"),
    ),
    Rule(
        "H10", "NCCL versions differ within the job",
        "Ranks run different NCCL versions, which do not talk to each other.",
        "`Mismatched NCCL version detected`, or version lines of members of one communicator that differ.",
        "Logs of different jobs in one folder are not compared.",
        Severity.FATAL, Role.ROOT, "Use one image; check LD_LIBRARY_PATH and pip's nvidia-nccl.", _h10, Confidence.HIGH,
        explains=("N11", "H12", "P04", "P06", "U01", "H02", "N08"),
    ),
    Rule(
        "H11", "/dev/shm is full",
        "NCCL cannot make its shared-memory segments.",
        "`failed to extend /dev/shm/nccl-...`, `posix_fallocate ... No space left`; SIGBUS (exit -7) as a suspicion.",
        "Stale nccl-* files of killed jobs fill it too.",
        Severity.FATAL, Role.ROOT, "`--shm-size=1g` (or more), an emptyDir of medium Memory; remove stale "
                                   "/dev/shm/nccl-*.", _h11,
        collect="`df -h /dev/shm; ls -la /dev/shm` inside the container", explains=("N11", "H12", "P04", "P05",
        "P06", "U01"),
    ),
    Rule(
        "H12", "A collective timed out",
        "The watchdog gave a collective up. It says that something hung, not what.",
        "`Watchdog caught collective operation timeout`.",
        "Never a root.",
        Severity.FATAL, Role.CASCADE, "Find who did not come (H01) or what is stuck (H02).", _h12, Confidence.HIGH,
        collect="flight-recorder dumps of all ranks (`TORCH_NCCL_TRACE_BUFFER_SIZE=2000`, "
                "`TORCH_NCCL_DUMP_ON_TIMEOUT=1`)",
    ),
)  # fmt: skip
