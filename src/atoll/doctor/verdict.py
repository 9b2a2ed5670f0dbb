"""From findings to one verdict: at most a few roots, what follows from each, and what cannot be known.

A finding is a *root* when its rule may be one and nothing that was found explains it. What is explained, and every
cascade, hangs below the root that explains it; with no root at all the verdict is *unknown*, because the last line of
a log is nearly always cascade. Roots are ordered by severity, then confidence, then how many other findings they
explain, then the catalogue. Beyond ``MAX_ROOTS`` roots the rest is told as *also found*.

Exit status: 0 nothing wrong in what was read, 1 findings, 3 not to be known (cascades only, or evidence that says too
little to call the job healthy); 2 is for input that is unusable, and is decided by ``status_of`` too.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from atoll.doctor.catalogue import RULES
from atoll.doctor.evidence import Evidence
from atoll.doctor.finding import Confidence, Finding, Role, Severity
from atoll.doctor.rule import Rule

MAX_ROOTS: Final = 3
UNEXPLAINED: Final = "U01"


class Status(enum.Enum):
    HEALTHY = "healthy"
    FINDINGS = "findings"
    UNUSABLE = "unusable"
    UNKNOWN = "unknown"

    @property
    def exit_status(self) -> int:
        return {Status.HEALTHY: 0, Status.FINDINGS: 1, Status.UNUSABLE: 2, Status.UNKNOWN: 3}[self]


class Cause(msgspec.Struct, frozen=True):
    """A root and, in order, what follows from it."""

    root: Finding
    cascade: tuple[Finding, ...] = ()


class Verdict(msgspec.Struct, frozen=True):
    """``also`` are further findings, ``unexplained`` cascades without a root, ``harmless`` what only looks bad."""

    status: Status
    summary: str
    causes: tuple[Cause, ...] = ()
    also: tuple[Finding, ...] = ()
    unexplained: tuple[Finding, ...] = ()
    harmless: tuple[Finding, ...] = ()
    collect: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that is not harmless, roots first."""
        under = [finding for cause in self.causes for finding in (cause.root, *cause.cascade)]
        return (*under, *self.also, *self.unexplained)


def diagnose(evidence: Evidence, rules: Sequence[Rule] = RULES) -> Verdict:
    """All rules on all evidence, ordered."""
    found = [finding for rule in rules for finding in rule.findings(evidence)]
    return judge(found, evidence, rules)


def judge(found: Sequence[Finding], evidence: Evidence, rules: Sequence[Rule] = RULES) -> Verdict:
    """Order findings into causes and cascades, and say how the job is."""
    order = {rule.id: place for place, rule in enumerate(rules)}
    explains = {rule.id: _closure(rule.id, {r.id: r.explains for r in rules}) for rule in rules}
    harmless = tuple(finding for finding in found if finding.severity is Severity.HARMLESS)
    real = [finding for finding in found if finding.severity is not Severity.HARMLESS]
    # An unexplained error whose line another finding already gives as its proof is explained.
    proven = {source for finding in real if finding.rule != UNEXPLAINED for source in finding.sources}
    real = [f for f in real if f.rule != UNEXPLAINED or not f.sources or f.sources[0] not in proven]
    roots = [finding for finding in real if _is_root(finding, real, explains)]
    rank = {
        id(finding): (
            -finding.severity,
            -finding.confidence,
            -sum(1 for other in real if other.rule in explains.get(finding.rule, frozenset())),
            order.get(finding.rule, 999),
        )
        for finding in real
    }
    roots.sort(key=lambda finding: rank[id(finding)])
    if roots:
        # What makes a job slow is told beside what stops it, and a mere risk beside either: not as the cause.
        roots = [finding for finding in roots if finding.severity is roots[0].severity]
    causes: list[Cause] = []
    placed: set[int] = set()
    # Roots of one rule are one cause with several places; they do not push other rules out.
    kept = list(dict.fromkeys(finding.rule for finding in roots))[:MAX_ROOTS]
    for root in roots:
        if root.rule not in kept:
            continue
        below = [
            finding
            for finding in real
            if id(finding) not in placed
            and finding.rule in explains.get(root.rule, frozenset())
            and finding not in roots
        ]
        below.sort(key=lambda finding: (finding.role is Role.CASCADE, rank[id(finding)]))
        placed.update(id(finding) for finding in (root, *below))
        causes.append(Cause(root, tuple(below)))
    # A cascade without a rule that names it still follows the worst root, if that is fatal.
    left = [finding for finding in real if id(finding) not in placed]
    fatal = next((at for at, cause in enumerate(causes) if cause.root.severity is Severity.FATAL), None)
    stray = [finding for finding in left if finding.role in (Role.CASCADE, Role.CONFIRMATION)]
    if fatal is not None and stray:
        causes[fatal] = Cause(causes[fatal].root, (*causes[fatal].cascade, *stray))
        left = [finding for finding in left if finding not in stray]
        stray = []
    also = tuple(sorted((finding for finding in left if finding not in stray), key=lambda finding: rank[id(finding)]))
    status = _status(evidence, causes, also, stray)
    wanted = [finding.collect for finding in (*stray, *(cause.root for cause in causes), *also) if finding.collect]
    collect = tuple(dict.fromkeys(wanted))[:5] or _missing(evidence, status)
    return Verdict(
        status, _summary(status, causes, stray, evidence), tuple(causes), also, tuple(stray), harmless, collect
    )


def _closure(rule_id: str, table: dict[str, tuple[str, ...]]) -> frozenset[str]:
    """Everything that follows from a rule, directly or through others, without itself."""
    seen: set[str] = set()
    pending = [rule_id]
    while pending:
        for follower in table.get(pending.pop(), ()):
            if follower not in seen:
                seen.add(follower)
                pending.append(follower)
    return frozenset(seen - {rule_id})


def _is_root(finding: Finding, real: Sequence[Finding], explains: dict[str, frozenset[str]]) -> bool:
    if finding.role in (Role.CASCADE, Role.CONFIRMATION):
        return False
    for other in real:
        if other is finding or finding.rule not in explains.get(other.rule, frozenset()):
            continue
        # Two rules that explain each other: the one that may only be a root wins, then the catalogue's direction.
        mutual = other.rule in explains.get(finding.rule, frozenset())
        if mutual and finding.role is Role.ROOT and other.role is not Role.ROOT:
            continue
        # A guess does not explain a certainty, and a notice does not explain a failure.
        if other.role not in (Role.CASCADE, Role.CONFIRMATION) and not (
            other.confidence is Confidence.LOW and finding.confidence is Confidence.HIGH
        ) and not (other.severity is Severity.NOTICE and finding.severity is Severity.FATAL):  # fmt: skip
            return False
    return True


def _status(evidence: Evidence, causes: Sequence[Cause], also: Sequence[Finding], stray: Sequence[Finding]) -> Status:
    if causes or also:
        return Status.FINDINGS
    if stray:
        return Status.UNKNOWN
    if not evidence.files:
        return Status.UNUSABLE
    return Status.HEALTHY if tells_health(evidence) else Status.UNKNOWN


def tells_health(evidence: Evidence) -> str:
    """What in the evidence would show trouble if there were any, in words; empty where nothing would."""
    told: list[str] = []
    communicators = evidence.nccl.job.communicators
    ready = [c for c in communicators if c.members and all(member.ready for member in c.members.values())]
    finished = [
        c for c in communicators if any(state == "destroy" for m in c.members.values() for state, _ in m.states)
    ]
    whole = evidence.world is not None and not evidence.world.missing
    if communicators and (finished or (len(ready) == len(communicators) and whole)):
        told.append("NCCL initialised on all ranks that were seen")
    if any(run.finished or (run.rows and not run.failures) for run in evidence.runs):
        told.append("benchmarks ended")
    if evidence.dumps:
        told.append("no collective is pending in the flight recorders")
    for name, some in (
        ("the topology is consistent", (evidence.matrices, evidence.topologies, evidence.rocm)),
        ("the ports are up", (evidence.ports,)),
        ("the kernel reports nothing", (evidence.kernel,)),
        ("the GPUs report nothing", (evidence.smi,)),
        ("pairs of nodes are alike", (evidence.pairs,)),
        ("RAS reports nothing", (evidence.ras,)),
        ("Inspector's bandwidths are not below what is known", (evidence.inspected,)),
        ("the variables do not fight", (evidence.environment,)),
        ("steps are even", (evidence.steps,)),
        ("no bridge redirects peer traffic", (evidence.access_control,)),
    ):
        if any(some_list for some_list in some):
            told.append(name)
    kernel_files = [file for file in evidence.files if "kernel_log" in file.kind]
    if kernel_files and not evidence.kernel:
        told.append("the kernel reports nothing")
    if communicators and not finished and not (len(ready) == len(communicators) and whole) and not evidence.runs:
        return ""
    return "; ".join(told)


def _summary(status: Status, causes: Sequence[Cause], stray: Sequence[Finding], evidence: Evidence) -> str:
    if causes:
        titles = list(dict.fromkeys(f"{cause.root.rule} {cause.root.title}" for cause in causes))
        return "; ".join(titles)
    if stray:
        return (
            f"cannot know: only aftermath was found ({', '.join(dict.fromkeys(f'{f.rule} {f.title}' for f in stray))})"
        )
    if status is Status.HEALTHY:
        return f"nothing wrong here: {tells_health(evidence)}"
    if status is Status.UNUSABLE:
        return "nothing was read that a diagnosis could start from"
    return "cannot know: what was read shows neither trouble nor a job that came up"


def _missing(evidence: Evidence, status: Status) -> tuple[str, ...]:
    """What to collect where nothing was found and nothing is known."""
    if status not in (Status.UNKNOWN, Status.UNUSABLE):
        return ()
    wanted = []
    if not evidence.nccl.statements:
        wanted.append("the logs of all ranks with `NCCL_DEBUG=INFO`")
    if not evidence.dumps:
        wanted.append(
            "flight-recorder dumps of all ranks (`TORCH_NCCL_TRACE_BUFFER_SIZE=2000`, `TORCH_NCCL_DUMP_ON_TIMEOUT=1`)"
        )
    if not evidence.kernel:
        wanted.append("`dmesg -T` of every host")
    if not evidence.matrices:
        wanted.append("`nvidia-smi topo -m` of one host of each kind")
    return tuple(wanted)
