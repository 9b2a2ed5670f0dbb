"""What a rule says when it fires: the words that rules, verdict and reports share.

Vocabulary
  *Subject*     the thing that a finding is about, by every name it has: rank, host, GPU, bus id, NIC, link, group.
  *Source*      the line that proves it (``readers.source``).
  *Finding*     a rule's claim about subjects, with its sources, a severity and a confidence.
  *Role*        where a kind of event can stand in a chain of events: a ``ROOT`` starts it, a ``CASCADE`` only ever
                follows, a ``CONFIRMATION`` supports another finding, ``EITHER`` is a root unless something explains it.

The last line of a log is nearly always cascade. A role is a property of the rule, not of the moment: a cascade never
becomes a root because nothing better was found; then the verdict is *unknown*.
"""

from __future__ import annotations

import enum

import msgspec

from atoll.readers.source import Source


class Severity(enum.IntEnum):
    """How much it matters. ``HARMLESS`` is only shown when asked about, and says why it is harmless."""

    HARMLESS = 0
    NOTICE = 1
    """A risk, or an advice: not what is wrong now."""
    SLOW = 2
    """The job runs below what the machine gives."""
    FATAL = 3
    """The job hangs, crashes or computes wrong results."""


class Confidence(enum.IntEnum):
    LOW = 0
    MEDIUM = 1
    HIGH = 2


class Role(enum.Enum):
    ROOT = "root"
    CASCADE = "cascade"
    CONFIRMATION = "confirmation"
    EITHER = "either"


class Subject(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every name of one thing; an unknown name is ``None`` or empty. ``link`` is ``a - b`` for a pair of things."""

    rank: int | None = None
    host: str = ""
    gpu: int | None = None
    bus_id: str = ""
    nic: str = ""
    link: str = ""
    group: str = ""
    variable: str = ""
    file: str = ""

    def __str__(self) -> str:
        names = (
            f"rank {self.rank}" if self.rank is not None else "",
            f"host {self.host}" if self.host else "",
            f"GPU {self.gpu}" if self.gpu is not None else "",
            f"bus id {self.bus_id}" if self.bus_id else "",
            f"NIC {self.nic}" if self.nic else "",
            f"link {self.link}" if self.link else "",
            f"group {self.group}" if self.group else "",
            self.variable,
            self.file,
        )
        return ", ".join(name for name in names if name)


class Hit(msgspec.Struct, frozen=True):
    """What a rule's check returns: one occurrence. ``None`` means the rule's own severity or confidence."""

    what: str
    sources: tuple[Source, ...] = ()
    subjects: tuple[Subject, ...] = ()
    severity: Severity | None = None
    confidence: Confidence | None = None
    fix: str = ""
    collect: str = ""


class Finding(msgspec.Struct, frozen=True):
    """A rule's claim about this evidence. ``rule`` is the rule's id; ``fix`` and ``collect`` are what to do next."""

    rule: str
    title: str
    what: str
    severity: Severity
    confidence: Confidence
    role: Role
    sources: tuple[Source, ...] = ()
    subjects: tuple[Subject, ...] = ()
    fix: str = ""
    collect: str = ""
