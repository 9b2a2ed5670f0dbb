"""What srun and slurmstepd write into a job's output."""

# ruff: noqa: E501 (lines as programs print them)

from pathlib import Path

import pytest

from atoll.readers.slurm import (
    SlurmCancelled,
    SlurmFact,
    SlurmNodeFailure,
    SlurmNotice,
    SlurmOutOfMemory,
    SlurmTaskEnd,
    read_slurm,
)


@pytest.mark.parametrize(
    ("line", "kind", "values"),
    [
        ("slurmstepd: error: *** STEP 4165.0 ON cgpu08 CANCELLED AT 2020-01-27T14:51:17 DUE TO TIME LIMIT ***",
         SlurmCancelled, {"step": "4165.0", "host": "cgpu08", "time_limit": True, "reason": "TIME LIMIT"}),
        ("slurmstepd-n5: error: *** JOB 12 ON n5 CANCELLED AT 2024-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***",
         SlurmCancelled, {"step": "12", "node_failure": True, "time_limit": False}),
        ("slurmstepd: error: *** JOB 12 ON n5 CANCELLED AT 2024-01-01T00:00:00 DUE TO PREEMPTION ***",
         SlurmCancelled, {"preemption": True}),
        ("slurmstepd: error: *** STEP 1.0 ON n5 CANCELLED AT 2024-01-01T00:00:00 ***", SlurmCancelled, {"reason": ""}),
        ("srun: error: n1: tasks 0-3,7: Exited with exit code 134", SlurmTaskEnd,
         {"host": "n1", "tasks": (0, 1, 2, 3, 7), "exit_code": 134, "signal": ""}),
        ("[1,0]<stderr>:srun: error: n1: task 4: Killed", SlurmTaskEnd, {"tasks": (4,), "exit_code": None, "signal": "SIGKILL"}),
        ("srun: error: n1: task 4: Segmentation fault (core dumped)", SlurmTaskEnd,
         {"signal": "SIGSEGV", "core_dumped": True}),
        ("srun: error: Orion-01-01: task 4: Out Of Memory", SlurmTaskEnd, {"out_of_memory": True, "host": "Orion-01-01"}),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=113.0. Some of the step tasks have been OOM Killed.",
         SlurmOutOfMemory, {"step": "113.0", "num_events": 1}),
        ("slurmstepd: error: Detected 2 oom-kill event(s) in step 3756240.batch cgroup.", SlurmOutOfMemory,
         {"step": "3756240.batch", "num_events": 2}),
        ("srun: error: Node failure on node7", SlurmNodeFailure, {"host": "node7"}),
        ("srun: error: Task launch for StepId=1.0 failed on node n9: Communication connection failure", SlurmNodeFailure,
         {"host": "n9", "message": "Communication connection failure"}),
        ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", SlurmNotice,
         {"program": "srun", "error": False}),
    ],
)  # fmt: skip
def test_line(line: str, kind: type[SlurmFact], values: dict[str, object]) -> None:
    (fact,) = read_slurm("noise\n" + line + "\n", "slurm.out")
    assert type(fact) is kind
    assert {name: getattr(fact, name) for name in values} == values
    assert fact.source.line == 2


@pytest.mark.parametrize("line", ["slurm is a scheduler", "srun python train.py", "export SLURM_JOB_ID=3", "Killed"])
def test_lines_that_are_not_slurms(line: str) -> None:
    assert read_slurm(line, "slurm.out") == ()


def test_a_hostile_task_list_is_kept_as_text() -> None:
    (fact,) = read_slurm("srun: error: n1: tasks 0-999999999: Exited with exit code 1", "slurm.out")
    assert isinstance(fact, SlurmNotice)


def test_real_job(cases: Path) -> None:
    facts = read_slurm((cases / "nccl_logs/r07_cori_v100_2.4.8_srun_prefix.log").read_bytes(), "r07")
    job, notice, step = facts
    assert isinstance(job, SlurmCancelled)
    assert isinstance(step, SlurmCancelled)
    assert isinstance(notice, SlurmNotice)
    assert [(fact.step, fact.source.line, fact.time_limit) for fact in (job, step)] == [
        ("416593", 779, True),
        ("416593.0", 781, True),
    ]
