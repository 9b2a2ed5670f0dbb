"""Warnings that look bad and are not (W01 to W05), and errors that no rule explains (U01).

The W rules exist to be asked about: they are harmless, shown with ``--all``, and each says why. W rules that turn out
not to be harmless would be found by U01, which looks at every warning that no finding has used as proof.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from atoll.doctor.evidence import Evidence
from atoll.doctor.finding import Confidence, Hit, Role, Severity
from atoll.doctor.rule import Rule
from atoll.readers.nccl_log_facts import (
    ErrorReturn,
    GdrSupport,
    LibraryMissing,
    NoIbDevice,
    Plugin,
    Statement,
)

_BENIGN: Final = re.compile(
    r"Failed to open lib|No plugin found|Could not find|symbol|MSCCL|Ignoring|NET/OFI|No device found|Cuda driver|"
    r"retrying|NCCL_\w+ (?:is|was) |deprecated|HINT",
    re.IGNORECASE,
)
_NOT_BENIGN_SHAPES: Final = frozenset(
    {"no_transport", "fatal", "completion", "remote_error", "cuda_failure", "group_misuse", "no_algorithm"}
)


def _w01(evidence: Evidence) -> Iterable[Hit]:
    if evidence.num_nodes != 1:
        return
    found: list[Statement] = [statement for _, statement in evidence.said(NoIbDevice)]
    found += [statement for fact, statement in evidence.said(LibraryMissing) if "ibverbs" in fact.library]
    if found:
        yield Hit(
            "no InfiniBand was found, and none is needed: the job runs on one node",
            tuple(statement.source for statement in found[:2]),
        )


def _w02(evidence: Evidence) -> Iterable[Hit]:
    loaded = any(fact.outcome == "loaded" and fact.kind == "NET" for fact, _ in evidence.said(Plugin))
    found = [s for fact, s in evidence.said(Plugin) if fact.outcome in ("missing", "symbol_missing") and (
        fact.kind != "NET" or not loaded)]  # fmt: skip
    if found:
        yield Hit(
            "optional plugins are not there, on all hosts alike; NCCL uses its own",
            tuple(statement.source for statement in found[:2]),
        )


def _w03(evidence: Evidence) -> Iterable[Hit]:
    found = list(evidence.nccl.of_shape("library_symbol"))
    if found:
        yield Hit(
            "an older rdma-core lacks newer optional calls; NCCL does without them",
            tuple(statement.source for statement in found[:2]),
        )


def _w04(evidence: Evidence) -> Iterable[Hit]:
    if evidence.num_nodes != 1:
        return
    found = [statement for fact, statement in evidence.said(GdrSupport) if not fact.enabled]
    if found:
        yield Hit(
            "GPUDirect RDMA is off, and not needed: no data leaves the node",
            tuple(statement.source for statement in found[:2]),
        )


def _w05(evidence: Evidence) -> Iterable[Hit]:
    """The way of an error up the stack: it repeats what was said before."""
    found = [statement for fact, statement in evidence.said(ErrorReturn) if fact.code not in (6, 7)]
    if found:
        yield Hit(
            f"an error travels up through NCCL's calls ({len(found)} places): it repeats an earlier line",
            tuple(statement.source for statement in found[:2]),
        )


def _u01(evidence: Evidence) -> Iterable[Hit]:
    failed = [
        failure for run in evidence.runs for failure in run.failures if "remote process exited" not in failure.message
    ]
    returned = [statement for fact, statement in evidence.said(ErrorReturn) if fact.code in (1, 2, 3, 4, 5)]
    warned = [
        statement
        for statement in evidence.nccl.warnings()
        if statement.shape in _NOT_BENIGN_SHAPES or not _BENIGN.search(statement.source.text)
    ]
    if not failed and not returned and not any(s.shape in _NOT_BENIGN_SHAPES for s in warned):
        return
    if not failed and evidence.runs and all(run.finished for run in evidence.runs):
        # A benchmark that came to its end has survived whatever was warned about.
        return
    sources = [statement.source for statement in warned[:3]] or [s.source for s in returned[:2]]
    sources += [failure.source for failure in failed[:2]]
    first = warned[0] if warned else returned[0] if returned else None
    said = (
        re.sub(r"^.*?NCCL (?:WARN|INFO) ", "", first.source.text)[:160]
        if first is not None
        else failed[0].message[:160]
    )
    yield Hit(
        f"the run ended in an error: {said}",
        tuple(sources),
        evidence.speakers_of(first) if first is not None else (),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "U01", "An error that no rule explains",
        "NCCL warned or returned an error, and no cause is known for it.",
        "WARN lines, `-> 1` to `-> 5`, or a failure of nccl-tests.",
        "Never a root: with a cause found it is its aftermath, and without one the verdict is unknown.",
        Severity.FATAL, Role.CASCADE, "Send the log with `NCCL_DEBUG=INFO` of all ranks.", _u01, Confidence.LOW,
        collect="NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=ALL of all ranks, and dmesg",
    ),
    Rule(
        "W01", "No InfiniBand on one node",
        "NCCL looks for adapters first and says that there are none.",
        "`NET/IB : No device found.` or `Failed to open libibverbs.so` on a job of one node.",
        "Over several nodes N04 and N05 judge.",
        Severity.HARMLESS, Role.EITHER, "Nothing to do.", _w01, Confidence.HIGH,
    ),
    Rule(
        "W02", "No plugin",
        "Network, tuner and profiler plugins are optional.",
        "`Could not find: libnccl-net.so` and the like.",
        "Missing on some hosts only is N08.",
        Severity.HARMLESS, Role.EITHER, "Nothing to do, unless the fabric needs its plugin (EFA, TCPX).",
        _w02, Confidence.HIGH,
    ),
    Rule(
        "W03", "A missing symbol of libmlx5",
        "Newer NCCL asks for calls that an older rdma-core lacks.",
        "`dlvsym failed on mlx5dv_...`.",
        "None.",
        Severity.HARMLESS, Role.EITHER, "Nothing to do.", _w03, Confidence.HIGH,
    ),
    Rule(
        "W04", "No GPUDirect RDMA on one node",
        "NCCL says whether each adapter could be used, also where none will be.",
        "`GPU Direct RDMA Disabled for HCA` on a job of one node.",
        "Over several nodes G01 judges.",
        Severity.HARMLESS, Role.EITHER, "Nothing to do.", _w04, Confidence.HIGH,
    ),
    Rule(
        "W05", "An error on its way up",
        "Each call that an error passes prints its place; the first line is the one that counts.",
        "`file.cc:123 -> 3` lines.",
        "Codes 6 and 7 are told by N11 or mean in progress.",
        Severity.HARMLESS, Role.CASCADE, "Read the first WARN above them.", _w05, Confidence.HIGH,
    ),
)  # fmt: skip
