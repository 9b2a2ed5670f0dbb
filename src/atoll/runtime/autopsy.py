"""What the kernel of this host says about a process that gives no sign of life.

Only for a rank on the same host whose process numbers mean the same here. A stopped process (SIGSTOP, a debugger, a
frozen job) and one that has ended cannot answer: that is proof. One that runs may still be busy with something that
holds the interpreter's lock: that is said, and proves nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from atoll.runtime.membership import Host, Peer

# Field 3 of /proc/PID/stat (proc(5)).
_CANNOT_ANSWER: Final = {"T": "is stopped (SIGSTOP or job control)", "t": "is stopped by a debugger", "Z": "has ended"}
_ALIVE: Final = {
    "R": "runs, but nothing answers: something may hold the interpreter's lock",
    "S": "sleeps, but nothing answers: something may hold the interpreter's lock, or the network lets nothing through",
    "D": "waits for a disk or a device",
}


class Found(NamedTuple):
    """``conclusive``: the process cannot answer. ``words`` for the error; empty when nothing is known."""

    conclusive: bool
    words: str


def look_at(peer: Peer, host: Host) -> Found:
    """What ``host``, which is this one, knows about the process of ``peer``."""
    if peer.host != host:
        return Found(False, "")
    state = state_of(peer.pid)
    if not state:
        return Found(True, "its process does not exist any more")
    if state in _CANNOT_ANSWER:
        return Found(True, f"its process {_CANNOT_ANSWER[state]}")
    return Found(False, f"its process {_ALIVE[state]}" if state in _ALIVE else "")


def state_of(pid: int) -> str:
    """The letter of a process's state; empty when there is no such process."""
    try:
        # The command name, in parentheses, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
