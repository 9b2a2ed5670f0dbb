"""A rule: what it claims, what it needs to see, when it must stay silent, and the check that decides.

A rule is a row of a table (``rules_*.py``) with one small function. Its texts are the page of the handbook's
catalogue and the answer to ``atoll doctor --explain``; nothing is said twice. ``check`` takes all the evidence and
yields hits; it reads no file and keeps no state. A rule without a check documents a cause whose evidence no reader
reads yet: it never fires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from atoll.doctor.evidence import Evidence, merge_sources
from atoll.doctor.finding import Confidence, Finding, Hit, Role, Severity

Check = Callable[[Evidence], Iterable[Hit]]


class Rule(msgspec.Struct, frozen=True):
    """One cause. ``explains`` are the ids of the rules whose findings follow from this one.

    ``versions`` says where the cause exists when it does not exist everywhere.
    """

    id: str
    title: str
    claim: str
    evidence: str
    guard: str
    severity: Severity
    role: Role
    fix: str
    check: Check | None = None
    confidence: Confidence = Confidence.MEDIUM
    collect: str = ""
    explains: tuple[str, ...] = ()
    versions: str = ""

    @property
    def family(self) -> str:
        return FAMILIES[self.id[0]]

    def findings(self, evidence: Evidence) -> list[Finding]:
        """What this rule says about the evidence. The same sentence about several places is one finding."""
        if self.check is None:
            return []
        merged: dict[tuple[str, Severity | None, Confidence | None, str, str], list[Hit]] = {}
        for hit in self.check(evidence):
            merged.setdefault((hit.what, hit.severity, hit.confidence, hit.fix, hit.collect), []).append(hit)
        return [
            Finding(
                self.id,
                self.title,
                what,
                self.severity if severity is None else severity,
                self.confidence if confidence is None else confidence,
                self.role,
                merge_sources((hit.sources for hit in hits), MAX_SOURCES),
                tuple(dict.fromkeys(subject for hit in hits for subject in hit.subjects)),
                fix or self.fix,
                collect or self.collect,
            )
            for (what, severity, confidence, fix, collect), hits in merged.items()
        ]


MAX_SOURCES = 6
FAMILIES = {
    "N": "network",
    "G": "GPUDirect and PCIe",
    "L": "layout and speed",
    "H": "hangs",
    "P": "processes",
    "X": "GPU and kernel errors",
    "U": "unexplained",
    "W": "warnings that look bad and are not",
}
