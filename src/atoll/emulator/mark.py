"""Whose a process is: the mark that every rank of an emulated cluster carries, and what became of its owner.

A mark is ``atoll-emulate-<pid namespace>-<owner's pid>-<owner's start time>``, in the environment variable
ATOLL_EMULATION: a process number may be given again, with its start time and the namespace it counts in it may not.

Ranks die with the process that started them, and their networks with them. What may be left is a process that a rank
has started and that has taken itself out of the rank's group; it keeps a namespace alive that nobody can use. The next
start ends it. It takes a process to be such a leftover only if all of this holds: it carries a mark, the mark counts in
this process's own pid namespace, the owner is gone, and the process lives in another network namespace than this one.
Whatever else there is, is none of ours: no network namespace, interface or process is ever looked up by its name.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path
from typing import Final

import msgspec

VARIABLE: Final = "ATOLL_EMULATION"
_MARK: Final = re.compile(r"atoll-emulate-([0-9]{1,20})-([0-9]{1,10})-([0-9]{1,20})")


class Mark(msgspec.Struct, frozen=True):
    """See the module's text."""

    pid_namespace: int
    pid: int
    start_time: int

    def __str__(self) -> str:
        return f"atoll-emulate-{self.pid_namespace}-{self.pid}-{self.start_time}"


class Leftover(msgspec.Struct, frozen=True):
    """A process that outlived the emulated cluster that ``mark`` names."""

    pid: int
    start_time: int
    mark: Mark


def own_mark() -> Mark:
    """Of this process."""
    start_time = _start_time(os.getpid())
    assert start_time is not None
    return Mark(_pid_namespace(), os.getpid(), start_time)


def parse_mark(text: str) -> Mark | None:
    """The mark in ``text``; ``None`` where it is none."""
    match = _MARK.fullmatch(text)
    return Mark(*(int(part) for part in match.groups())) if match else None


def leftovers() -> tuple[Leftover, ...]:
    """Processes of clusters whose owner is gone."""
    found = []
    here, home = _pid_namespace(), os.stat("/proc/self/ns/net")
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        pid = int(entry)
        mark = _mark_of(pid)
        if mark is None or mark.pid_namespace != here or _start_time(mark.pid) == mark.start_time:
            continue
        try:
            namespace = os.stat(f"/proc/{pid}/ns/net")
        except OSError:
            continue
        start_time = _start_time(pid)
        if start_time is not None and (namespace.st_dev, namespace.st_ino) != (home.st_dev, home.st_ino):
            found.append(Leftover(pid, start_time, mark))
    return tuple(found)


def end(leftover: Leftover) -> bool:
    """Kill it, if it still is what it was; whether it was."""
    try:
        pidfd = os.pidfd_open(leftover.pid)
    except OSError:
        return False
    try:
        # The descriptor holds whoever has the number now, so look again who that is.
        if _start_time(leftover.pid) != leftover.start_time or _mark_of(leftover.pid) != leftover.mark:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return True
        return False
    finally:
        os.close(pidfd)


def _mark_of(pid: int) -> Mark | None:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None  # Of another user, or gone.
    head = f"{VARIABLE}=".encode()
    for entry in environ.split(b"\0"):
        if entry.startswith(head):
            return parse_mark(entry[len(head) :].decode(errors="replace"))
    return None


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start_time(pid: int) -> int | None:
    """In clock ticks since boot (proc(5), stat, field 22); ``None`` when no such process runs."""
    try:
        # The command name, in parentheses, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
