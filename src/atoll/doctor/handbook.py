"""The rule catalogue and the table of variables as pages of the handbook, written from the rules themselves.

``pages`` is pure: file name to text. ``atoll doctor --write-handbook FOLDER`` writes them, and a test compares what
lies in the repository with what this would write, so that a page never tells of a rule that has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from atoll.doctor.catalogue import RULES
from atoll.doctor.finding import Role, Severity
from atoll.doctor.lint_env import LINTS as ENVIRONMENT_LINTS
from atoll.doctor.rule import FAMILIES, Rule
from atoll.doctor.variables import VARIABLES, is_torch
from atoll.topology.lint import LINTS as TOPOLOGY_LINTS

_ROLES = {
    Role.ROOT: "a root: it starts the chain",
    Role.CASCADE: "a cascade: it only ever follows, and is never named as the cause",
    Role.CONFIRMATION: "a confirmation of another finding",
    Role.EITHER: "a root, unless another finding explains it",
}
_WEIGHTS = {
    Severity.HARMLESS: "harmless: shown with `--all` only",
    Severity.NOTICE: "a notice: a risk or an advice",
    Severity.SLOW: "slow: the job runs below what the machine gives",
    Severity.FATAL: "fatal: the job hangs, crashes or computes wrong results",
}
GENERATED = "<!-- Written by `atoll doctor --write-handbook docs/handbook/doctor`; change the rule, not this page. -->"


def pages() -> dict[str, str]:
    """Every generated page by its path below the handbook's doctor folder."""
    found = {f"rules/{rule.id}.md": "\n".join(_rule(rule)) + "\n" for rule in RULES}
    found["rules/README.md"] = "\n".join(_index()) + "\n"
    found["variables.md"] = "\n".join(_variables()) + "\n"
    return found


def write(folder: Path) -> int:
    """Write all pages below ``folder``; the number of pages. Pages of rules that are gone are removed."""
    wanted = pages()
    for name, text in wanted.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for old in (folder / "rules").glob("*.md"):
        if f"rules/{old.name}" not in wanted:
            old.unlink()
    return len(wanted)


def _rule(rule: Rule) -> Iterator[str]:
    followers = [other for other in RULES if other.id in rule.explains]
    causes = [other for other in RULES if rule.id in other.explains]
    yield GENERATED
    yield f"# {rule.id} {rule.title}"
    yield ""
    yield rule.claim
    yield ""
    yield f"- **Family**: {rule.family}"
    yield f"- **Weight**: {_WEIGHTS[rule.severity]}"
    yield f"- **Role**: {_ROLES[rule.role]}"
    yield f"- **Confidence**: {rule.confidence.name.lower()}, where the evidence is whole"
    if rule.versions:
        yield f"- **Versions**: NCCL {rule.versions}"
    if rule.check is None:
        yield "- **Checked**: not by itself; no reader reads its evidence yet"
    for title, text in (
        ("Evidence", rule.evidence), ("Guard against a false alarm", rule.guard), ("Fix", rule.fix),
        ("Collect next", rule.collect),
    ):  # fmt: skip
        if text:
            yield ""
            yield f"## {title}"
            yield ""
            yield text
    for title, others in (("What follows from it", followers), ("What may explain it", causes)):
        if others:
            yield ""
            yield f"## {title}"
            yield ""
            yield from (f"- [{other.id} {other.title}]({other.id}.md)" for other in others)


def _index() -> Iterator[str]:
    yield GENERATED
    yield "# Rules of the doctor"
    yield ""
    yield f"{len(RULES)} rules. `atoll doctor --explain N09` prints a page; `atoll doctor --rules` lists them all."
    for letter, family in FAMILIES.items():
        yield ""
        yield f"## {letter}: {family}"
        yield ""
        yield "| rule | what it says | weight | role |"
        yield "|---|---|---|---|"
        for rule in RULES:
            if rule.id[0] == letter:
                weight = rule.severity.name.lower()
                yield f"| [{rule.id}]({rule.id}.md) | {rule.title} | {weight} | {rule.role.value} |"


def _variables() -> Iterator[str]:
    yield GENERATED
    yield "# Variables"
    yield ""
    yield "What `atoll lint env` knows. *Since* and *until* are NCCL versions, for `TORCH_` variables PyTorch versions."
    yield ""
    yield "| variable | value | since | until | note |"
    yield "|---|---|---|---|---|"
    for name in sorted(VARIABLES):
        variable = VARIABLES[name]
        value = ", ".join(variable.words) if variable.words else variable.kind
        if variable.minimum is not None or variable.maximum is not None:
            low = "" if variable.minimum is None else str(variable.minimum)
            high = "" if variable.maximum is None else str(variable.maximum)
            value += f" {low}..{high}"
        notes = []
        if variable.replaced_by:
            notes.append(f"use `{variable.replaced_by}`")
        if variable.left_on[0]:
            notes.append(f"`{variable.left_on[0]}`: {variable.left_on[1]}")
        if is_torch(name):
            notes.append("PyTorch")
        yield f"| `{name}` | {value} | {variable.since} | {variable.until} | {'; '.join(notes)} |"
    for title, lints in (
        ("What `atoll lint env` finds", ENVIRONMENT_LINTS),
        ("What `atoll topology check` (or `atoll lint topology`) finds", TOPOLOGY_LINTS),
    ):
        yield ""
        yield f"## {title}"
        yield ""
        yield from (f"- **{lint}**: {text}" for lint, text in lints.items())
