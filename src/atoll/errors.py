"""The error taxonomy: an error is named by whose fault it is.

``SpecError``            your input: an argument, a file, an environment variable
``ScheduleError``        the algorithm: a table that does not do what its contract says
``CollectiveMismatch``   the world: ranks called different things
``PeerLost``             the world: a rank is gone
``CollectiveTimeout``    the world: a collective did not end by its deadline
``InternalError``        us: a bug in Atoll

A message says what, where, expected, got, and what to do next. The same facts are attributes,
so that a program need not parse prose. The command line prints every ``AtollError`` as one line and
exits with ``exit_status``; only an ``InternalError`` shows a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class AtollError(Exception):
    """Base of everything Atoll raises on purpose."""

    exit_status = 1


class SpecError(AtollError, ValueError):
    """The caller's input is wrong. The command line exits with status 2."""

    exit_status = 2


class MissingExtra(SpecError):
    """An optional dependency is needed and absent; the message has the line that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'atoll[{extra}]'")


class ScheduleError(AtollError):
    """A schedule does not do what its collective's contract asks for.

    ``step``, ``rank`` and ``chunk`` say where (``None`` where a fact has no such place), ``expected`` and
    ``got`` what.
    """

    def __init__(
        self,
        what: str,
        *,
        schedule: str = "",
        step: int | None = None,
        rank: int | None = None,
        chunk: int | None = None,
        expected: str = "",
        got: str = "",
        hint: str = "",
    ) -> None:
        self.what = what
        self.schedule = schedule
        self.step = step
        self.rank = rank
        self.chunk = chunk
        self.expected = expected
        self.got = got
        self.hint = hint
        where = ", ".join(
            f"{name} {value}" for name, value in (("step", step), ("rank", rank), ("chunk", chunk)) if value is not None
        )
        message = f"{schedule}: {what}" if schedule else what
        if where:
            message += f" at {where}"
        if expected or got:
            message += f": expected {expected or 'nothing'}, got {got or 'nothing'}"
        if hint:
            message += f". {hint}"
        super().__init__(message)


class WorldError(AtollError):
    """Something happened to the world of ranks. ``culprits`` are the ranks to blame, ``story`` the last events."""

    def __init__(self, message: str, *, culprits: Iterable[int] = (), story: Sequence[str] = ()) -> None:
        self.culprits = tuple(sorted(set(culprits)))
        self.story = tuple(story)
        if self.story:
            message += "\n  what led here, last event last:\n" + "\n".join(f"    {line}" for line in self.story)
        super().__init__(message)


class CollectiveMismatch(WorldError):
    """Ranks called different collectives, or the same one with different arguments."""


class PeerLost(WorldError):
    """A rank is gone: its process ended, or its connection was cut."""


class CollectiveTimeout(WorldError):
    """A collective did not end before its deadline."""


class InternalError(AtollError):
    """A bug in Atoll; please report it with the message."""

    exit_status = 70


def nearest(name: str, known: Iterable[str]) -> str:
    """The tail of an 'unknown name' message: the nearest known name, and all of them when they are few.

    >>> nearest("rign", ["ring", "tree"])
    "did you mean 'ring'? Known: ring, tree"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f"did you mean {close[0]!r}? " if close else ""
    shown = names if len(names) <= 40 else [*names[:40], "..."]
    return f"{guess}Known: {', '.join(shown)}"
