"""What Slurm writes into a job's output: cancelled steps, task ends, OOM kills, node failures."""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


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
