"""A verdict as text for people, as JSON, and as Markdown for an issue.

The JSON document has ``schema_version``; a field may be added within a version, and is never removed or renamed. The
order of the text is the order of work at 3 am: what is wrong, whose fault, the lines that prove it, what to do, what
to collect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from atoll.doctor.evidence import Evidence
from atoll.doctor.finding import Finding, Severity
from atoll.doctor.rule import Rule
from atoll.doctor.verdict import Verdict
from atoll.readers.source import Source

SCHEMA_VERSION: Final = 1
MAX_QUOTE: Final = 200
MAX_LISTED: Final = 8
MAX_OF_ONE_RULE: Final = 4
"""Causes of one rule that are told at length; the JSON has all."""


def document(verdict: Verdict, evidence: Evidence) -> dict[str, Any]:
    """The verdict as plain data: dictionaries, lists, strings and numbers."""
    coverage = evidence.nccl.coverage
    return {
        "schema_version": SCHEMA_VERSION,
        "status": verdict.status.value,
        "exit_status": verdict.status.exit_status,
        "summary": verdict.summary,
        "causes": [
            {"root": _finding(cause.root), "cascade": [_finding(finding) for finding in cause.cascade]}
            for cause in verdict.causes
        ],
        "also": [_finding(finding) for finding in verdict.also],
        "unexplained": [_finding(finding) for finding in verdict.unexplained],
        "harmless": [_finding(finding) for finding in verdict.harmless],
        "collect": list(verdict.collect),
        "job": {
            "num_nodes": evidence.num_nodes,
            "world_size": evidence.world_size,
            "nccl_versions": list(evidence.nccl.versions),
            "gpu": evidence.gpu_name,
            "networks": list(evidence.networks),
        },
        "files": [{"name": file.name, "kind": file.kind, "num_facts": file.num_facts} for file in evidence.files],
        "skipped": [{"name": skipped.name, "reason": skipped.reason} for skipped in evidence.skipped],
        "coverage": {
            "lines": coverage.lines,
            "nccl_lines": coverage.nccl_lines,
            "recognised": coverage.recognised,
            "fraction": coverage.fraction,
            "unknown": [
                {"text": shape.text, "count": shape.count, "file": shape.example.file, "line": shape.example.line}
                for shape in coverage.unknown[:20]
            ],
        },
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "page": f"handbook/doctor/rules/{finding.rule}.md",
        "title": finding.title,
        "what": finding.what,
        "severity": finding.severity.name.lower(),
        "confidence": finding.confidence.name.lower(),
        "role": finding.role.value,
        "subjects": [
            {name: value for name in subject.__struct_fields__ if (value := getattr(subject, name)) not in (None, "")}
            for subject in finding.subjects
        ],
        "sources": [{"file": s.file, "line": s.line, "text": s.text} for s in finding.sources],
        "fix": finding.fix,
        "collect": finding.collect,
    }


def text_lines(verdict: Verdict, evidence: Evidence, *, everything: bool = False) -> Iterator[str]:
    """The verdict for people, line by line, without colour."""
    yield f"{verdict.status.value.upper()}: {verdict.summary}"
    told: Counter[str] = Counter()
    for number, cause in enumerate(verdict.causes, 1):
        told[cause.root.rule] += 1
        if told[cause.root.rule] > MAX_OF_ONE_RULE and not everything:
            continue
        yield ""
        yield from _long(f"{number}. {cause.root.rule} {cause.root.title}", cause.root)
        if cause.cascade:
            yield "   what followed:"
            for finding in _unique(cause.cascade):
                yield f"     {finding.rule} {finding.what}{_at(finding)}"
    for rule, count in told.items():
        if count > MAX_OF_ONE_RULE and not everything:
            yield ""
            yield f"{count - MAX_OF_ONE_RULE} more of {rule} (--all lists them)"
    if verdict.unexplained:
        yield ""
        yield "Aftermath without a known cause:"
        for finding in verdict.unexplained:
            yield f"  {finding.rule} {finding.what}"
            yield from (f"       {line}" for line in _quotes(finding.sources))
    if verdict.also:
        yield ""
        yield "Also found:"
        for finding in _unique(verdict.also):
            yield f"  {finding.rule} {finding.title}: {finding.what}{_at(finding)}"
            yield f"       do: {finding.fix}"
    if everything and verdict.harmless:
        yield ""
        yield "Looks bad and is harmless:"
        for finding in _unique(verdict.harmless):
            yield f"  {finding.rule} {finding.title}: {finding.what}{_at(finding)}"
    if verdict.collect:
        yield ""
        yield "Collect next:"
        yield from (f"  - {item}" for item in verdict.collect)
    yield ""
    yield from _read(evidence, everything)


def _long(head: str, finding: Finding) -> Iterator[str]:
    yield head
    yield f"   {finding.what}"
    if finding.subjects:
        shown = [str(subject) for subject in finding.subjects[:MAX_LISTED] if str(subject)]
        more = len(finding.subjects) - MAX_LISTED
        yield f"   where:  {'; '.join(shown)}" + (f"; and {more} more" if more > 0 else "")
    yield f"   weight: {finding.severity.name.lower()}, confidence {finding.confidence.name.lower()}"
    if finding.sources:
        yield "   proof:"
        yield from (f"     {line}" for line in _quotes(finding.sources))
    yield f"   do:     {finding.fix}"


def _quotes(sources: Iterable[Source]) -> Iterator[str]:
    for source in sources:
        text = source.text.strip()
        cut = text[:MAX_QUOTE] + ("..." if len(text) > MAX_QUOTE else "")
        yield f"{source}: {cut}" if cut else str(source)


def _at(finding: Finding) -> str:
    return f" [{finding.sources[0]}]" if finding.sources else ""


def _unique(findings: Iterable[Finding]) -> list[Finding]:
    """One of each rule and text."""
    return list({(finding.rule, finding.what): finding for finding in findings}.values())


def _read(evidence: Evidence, everything: bool) -> Iterator[str]:
    coverage = evidence.nccl.coverage
    said = f"Read: {len(evidence.files)} file{'s' if len(evidence.files) != 1 else ''}"
    if coverage.nccl_lines:
        said += f", {coverage.nccl_lines} NCCL lines of which {coverage.fraction:.2%} are understood"
    job = []
    if evidence.world_size:
        job.append(f"{evidence.world_size} ranks")
    if evidence.num_nodes:
        job.append(f"{evidence.num_nodes} node{'s' if evidence.num_nodes > 1 else ''}")
    if evidence.nccl.versions:
        job.append(f"NCCL {', '.join(evidence.nccl.versions[:4])}")
    yield said + (f"; the job: {', '.join(job)}" if job else "")
    shown = evidence.skipped if everything else evidence.skipped[:MAX_LISTED]
    for skipped in shown:
        yield f"  not read: {skipped.name}: {skipped.reason}"
    if len(evidence.skipped) > len(shown):
        yield f"  not read: {len(evidence.skipped) - len(shown)} more (--all lists them)"
    if everything:
        for file in evidence.files:
            yield f"  read: {file.name} ({file.kind}, {file.num_facts} facts)"
        for shape in coverage.unknown[:10]:
            yield f"  not understood, {shape.count} times: {shape.text[:MAX_QUOTE]} [{shape.example}]"


def markdown_lines(verdict: Verdict, evidence: Evidence) -> Iterator[str]:
    """The verdict for an issue tracker."""
    yield f"## Atoll doctor: {verdict.status.value}"
    yield ""
    yield verdict.summary
    for cause in verdict.causes:
        yield ""
        yield f"### {cause.root.rule} {cause.root.title}"
        yield ""
        yield _escape(cause.root.what)
        yield ""
        where = "; ".join(str(subject) for subject in cause.root.subjects[:MAX_LISTED] if str(subject))
        yield f"- **Where**: {_escape(where) or 'not known'}"
        yield f"- **Severity**: {cause.root.severity.name.lower()}, confidence {cause.root.confidence.name.lower()}"
        yield f"- **Fix**: {cause.root.fix}"
        yield from _fenced(cause.root.sources)
        if cause.cascade:
            yield ""
            yield "What followed:"
            yield ""
            yield from (f"- {finding.rule}: {_escape(finding.what)}" for finding in _unique(cause.cascade))
    for title, findings in (("Aftermath without a known cause", verdict.unexplained), ("Also found", verdict.also)):
        if findings:
            yield ""
            yield f"### {title}"
            yield ""
            yield from (f"- {f.rule} {f.title}: {_escape(f.what)}{_at(f)}" for f in _unique(findings))
            yield from _fenced([source for finding in findings[:4] for source in finding.sources[:2]])
    if verdict.collect:
        yield ""
        yield "### To collect"
        yield ""
        yield from (f"- {item}" for item in verdict.collect)
    yield ""
    yield from _read(evidence, False)


def _fenced(sources: Iterable[Source]) -> Iterator[str]:
    quotes = list(_quotes(sources))
    if quotes:
        # A fence longer than any run of backticks in the text: a log line must not end it.
        fence = "```" + "`" * max((quote.count("`") for quote in quotes), default=0)
        yield ""
        yield fence
        yield from quotes
        yield fence


def _escape(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "\\|")


def explanation_lines(rule: Rule) -> Iterator[str]:
    """A rule's own page as text."""
    yield f"{rule.id} {rule.title}  ({rule.family})"
    yield ""
    yield f"claim:      {rule.claim}"
    yield f"evidence:   {rule.evidence}"
    yield f"guard:      {rule.guard}"
    kind = "harmless" if rule.severity is Severity.HARMLESS else rule.severity.name.lower()
    yield f"weight:     {kind}; {rule.role.value}; confidence {rule.confidence.name.lower()}"
    if rule.versions:
        yield f"versions:   {rule.versions}"
    yield f"fix:        {rule.fix}"
    if rule.collect:
        yield f"collect:    {rule.collect}"
    if rule.explains:
        yield f"explains:   {', '.join(rule.explains)}"
    if rule.check is None:
        yield "checked:    not by itself: no reader for its evidence yet"
