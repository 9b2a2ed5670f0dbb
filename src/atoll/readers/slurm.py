"""What Slurm writes into a job's output: cancelled steps, task ends, OOM kills, node failures."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from atoll.readers.source import Source
from atoll.readers.text_stream import Line, text_lines


class SlurmCancelled(msgspec.Struct, frozen=True):
    """``*** STEP 123.0 ON node1 CANCELLED AT ... DUE TO TIME LIMIT ***``; ``reason`` as written, empty when none is."""

    step: str
    source: Source
    host: str = ""
    time: str = ""
    reason: str = ""
    time_limit: bool = False
    node_failure: bool = False
    preemption: bool = False


class SlurmTaskEnd(msgspec.Struct, frozen=True):
    """``srun: error: node3: tasks 4-7: Exited with exit code 1`` / ``Killed`` / ``Out Of Memory``.

    ``tasks`` are the ranks that srun names; exactly one of ``exit_code`` and ``signal`` (a name) is set where printed.
    """

    host: str
    tasks: tuple[int, ...]
    source: Source
    exit_code: int | None = None
    signal: str = ""
    out_of_memory: bool = False
    core_dumped: bool = False


class SlurmOutOfMemory(msgspec.Struct, frozen=True):
    """``slurmstepd: error: Detected 1 oom_kill event in StepId=...``: the cgroup's own record of a memory kill."""

    step: str
    num_events: int | None
    source: Source


class SlurmNodeFailure(msgspec.Struct, frozen=True):
    """``Node failure on node7``, or a task launch that failed on a node."""

    host: str
    source: Source
    message: str = ""


class SlurmNotice(msgspec.Struct, frozen=True):
    """Any other line of srun or slurmstepd (``Force Terminated``, ``Terminating job step``): its text."""

    program: str
    message: str
    error: bool
    source: Source
    host: str = ""


SlurmFact = SlurmCancelled | SlurmTaskEnd | SlurmOutOfMemory | SlurmNodeFailure | SlurmNotice


_STEP_CANCELLED: Final = re.compile(
    r"\*\*\* (?:STEP|JOB) ([\w.+-]{1,60})(?: ON (\S{1,253}))? CANCELLED AT (\S{1,40})"
    r"(?: DUE TO ([A-Z][A-Z ,()a-z0-9-]{0,120}?))?\s*\*\*\*"
)
_TASKS: Final = re.compile(
    r"(?:srun|slurmstepd): error: (?P<host>[A-Za-z0-9][\w.\[\],-]{0,253}): tasks? (?P<tasks>[\d,\-\[\] ]{1,4000}): "
    r"(?P<what>.{1,200})"
)
_OOM: Final = re.compile(r"Detected (\d{1,9}) oom[_-]kill events?(?:\(s\))? in (?:StepId=|step )([\w.+-]{1,60})")
_OLD_OOM: Final = re.compile(r"(?:Exceeded (?:job|step) memory limit|Step (\S{1,40}) exceeded memory limit)")
_NODE_FAILURE: Final = re.compile(r"Node failure on (\S{1,253})")
_LAUNCH_FAILURE: Final = re.compile(r"Task launch for (?:StepId=)?\S{1,60} failed on node (\S{1,253}): (.{1,200})")
_PROGRAM: Final = re.compile(r"(slurmstepd|srun|salloc|sbatch|slurmd)(?:-(\S{1,253}?))?: (error: |fatal: )?(.{1,500})")
_EXIT: Final = re.compile(r"Exited with exit code (\d{1,5})")
_MAX_TASKS: Final = 1_000_000
_MAX_NOTICES: Final = 1_000_000
# What srun calls a task that ended by a signal; the words are strsignal's.
_SIGNALS: Final = {
    "Killed": "SIGKILL", "Terminated": "SIGTERM", "Aborted": "SIGABRT", "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS", "Floating point exception": "SIGFPE", "Illegal instruction": "SIGILL",
    "Interrupt": "SIGINT", "Hangup": "SIGHUP", "User defined signal 1": "SIGUSR1", "User defined signal 2": "SIGUSR2",
    "CPU time limit exceeded": "SIGXCPU",
}  # fmt: skip


class SlurmReader:
    """A line-oriented reader; ``facts`` holds what it has found, in order."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._facts: list[SlurmFact] = []

    @property
    def facts(self) -> tuple[SlurmFact, ...]:
        return tuple(self._facts)

    def feed(self, line: Line) -> None:
        text = line.text
        if "slurm" not in text and "srun" not in text and "salloc" not in text and "sbatch" not in text:
            return
        match = _PROGRAM.search(text)
        if match is None or len(self._facts) >= _MAX_NOTICES:
            return
        self._facts.append(self._fact(match, text, line.source(self.file)))

    def _fact(self, match: re.Match[str], text: str, source: Source) -> SlurmFact:
        host, message = match[2] or "", match[4]
        if (cancelled := _STEP_CANCELLED.search(text)) is not None:
            reason = (cancelled[4] or "").strip()
            return SlurmCancelled(
                cancelled[1], source, cancelled[2] or host, cancelled[3], reason, "TIME LIMIT" in reason,
                "NODE FAIL" in reason, "PREEMPT" in reason,
            )  # fmt: skip
        if (oom := _OOM.search(text)) is not None:
            return SlurmOutOfMemory(oom[2].rstrip("."), int(oom[1]), source)
        if (old := _OLD_OOM.search(text)) is not None:
            return SlurmOutOfMemory(old[1] or "", None, source)
        if (node := _NODE_FAILURE.search(text)) is not None:
            return SlurmNodeFailure(node[1].rstrip(".,"), source, message)
        if (launch := _LAUNCH_FAILURE.search(text)) is not None:
            return SlurmNodeFailure(launch[1], source, launch[2])
        if (tasks := _TASKS.search(text)) is not None and (numbers := _task_numbers(tasks["tasks"])) is not None:
            what = tasks["what"]
            code = _EXIT.search(what)
            word = what.partition(" (core dumped)")[0].strip()
            if code is not None or word in _SIGNALS or "Out Of Memory" in what:
                return SlurmTaskEnd(
                    tasks["host"], numbers, source, int(code[1]) if code else None, _SIGNALS.get(word, ""),
                    "Out Of Memory" in what, "(core dumped)" in what,
                )  # fmt: skip
        return SlurmNotice(match[1], message.strip(), match[3] is not None, source, host)


def read_slurm(text: str | bytes, file: str) -> tuple[SlurmFact, ...]:
    """Every line of Slurm's in ``text``; none where there is none."""
    reader = SlurmReader(file)
    for line in text_lines(text):
        reader.feed(line)
    return reader.facts


def _task_numbers(text: str) -> tuple[int, ...] | None:
    """``0,4-7`` or ``[0-3,8]`` as numbers; ``None`` where it is no such list or a hostile one."""
    numbers: list[int] = []
    for part in text.strip().strip("[]").split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or len(part) > 20:
            return None
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high - low + len(numbers) >= _MAX_TASKS:
            return None
        numbers.extend(range(low, high + 1))
    return tuple(numbers)
