"""Joining under the real launchers of others, with no variable of ours set. Skipped, saying so, where one is absent."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 100.0
PROGRAM = """
import os, sys, time
from atoll.runtime.control import Control
from atoll.runtime.endpoint import Endpoint
from atoll.runtime.environment import read_placement
from atoll.runtime.join import join

placement = read_placement(os.environ)
membership = join(placement, timeout_s=60)
control = Control(membership, Endpoint(membership))
control.start(time.monotonic() + 60)
control.close()
facts = (placement.launcher, membership.rank, membership.world_size, placement.local_rank, len(membership.local_ranks))
os.write(1, (" ".join(map(str, (*facts, membership.world_id.hex()))) + chr(10)).encode())
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def run(*command: str, **environ: str) -> list[list[str]]:
    """The words of each rank's line."""
    mine = ("ATOLL_", "OMPI_", "PMI", "MPI_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env={**clean, **environ})
    assert result.returncode == 0, result.stderr
    return sorted(line.replace("Open MPI", "Open-MPI").split() for line in result.stdout.splitlines())


def check(lines: list[list[str]], launcher: str, world_size: int) -> None:
    assert [line[:5] for line in lines] == [
        [launcher, str(r), str(world_size), str(r), str(world_size)] for r in range(world_size)
    ]
    assert len({line[5] for line in lines}) == 1, "one world"


def mpiexec(*names: str, family: str) -> str:
    """An mpiexec of this family, or a skip."""
    for name in names:
        path = shutil.which(name)
        if path is not None:
            version = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=PATIENCE_S)
            if family in version.stdout + version.stderr:
                return path
    pytest.skip(f"no mpiexec of {family} here: looked for {', '.join(names)}")


def test_hydra(program: str) -> None:
    path = mpiexec("mpiexec.hydra", "mpiexec.mpich", "mpiexec", family="HYDRA")
    check(run(path, "-n", "3", sys.executable, program), "PMI", 3)


def test_hydra_with_a_shell_in_between(program: str) -> None:
    path = mpiexec("mpiexec.hydra", "mpiexec.mpich", "mpiexec", family="HYDRA")
    check(run(path, "-n", "2", "sh", "-c", f"'{sys.executable}' '{program}'; exit $?"), "PMI", 2)


def test_two_jobs_of_hydra_at_once_do_not_meet(program: str) -> None:
    path = mpiexec("mpiexec.hydra", "mpiexec.mpich", "mpiexec", family="HYDRA")
    job = f"'{path}' -n 2 '{sys.executable}' '{program}'"
    lines = run("sh", "-c", f"{job} & {job}; first=$?; wait $! && exit $first")
    assert len(lines) == 4
    assert len({line[5] for line in lines}) == 2


def test_open_mpi(program: str) -> None:
    path = mpiexec("mpirun.openmpi", "mpirun", family="Open MPI")
    options = ["--oversubscribe", *(["--allow-run-as-root"] if os.getuid() == 0 else [])]
    check(run(path, *options, "-n", "3", sys.executable, program), "Open-MPI", 3)


@pytest.mark.parametrize("options", [["--standalone"], ["--master-port", "29511"]])
def test_torchrun(program: str, options: list[str]) -> None:
    """With the real agent, which holds MASTER_PORT; its workers run this Python."""
    path = os.environ.get("ATOLL_TEST_TORCHRUN") or shutil.which("torchrun")
    if path is None:
        pytest.skip("no torchrun here: pip install torch, or name one in ATOLL_TEST_TORCHRUN")
    check(run(path, *options, "--nproc-per-node", "3", "--no-python", sys.executable, program), "torchrun", 3)


def test_srun(program: str) -> None:
    path = shutil.which("srun")
    if path is None:
        pytest.skip("no srun here")
    check(run(path, "-n", "2", sys.executable, program), "Slurm", 2)
