"""Processes that are killed while they write checkpoints: the last complete one is always there, whole."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from atoll.resilience.checkpoint import Checkpointer, checkpoints
from atoll.resilience.checkpoint_store import Disk

# One process that forks once per point of death, before it has any thread. The child dies by SIGKILL at its n-th file
# operation or in the middle of it, and reports every save that was complete before. Prints "n complete-steps".
DYING = """
import os, signal, sys
from pathlib import Path
import numpy as np
from atoll.resilience.checkpoint import Checkpointer
from atoll.resilience.checkpoint_store import Disk

class Dying(Disk):
    def __init__(self, point):
        self.left = point

    def _count(self):
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, path, *parts):
        self._count()
        whole = b"".join(parts)
        super().write(path, whole[: len(whole) // 2])
        self._count()
        super().write(path, whole)

    def make_folder(self, path): self._count(); super().make_folder(path)
    def rename(self, source, target): self._count(); super().rename(source, target)
    def flush_folder(self, path): self._count(); super().flush_folder(path)
    def delete(self, path): self._count(); super().delete(path)
    def delete_folder(self, path): self._count(); super().delete_folder(path)

base = Path(sys.argv[1])
point = 0
while True:
    child = os.fork()
    if child == 0:
        checkpointer = Checkpointer(base / str(point), keep_last=2, disk=Dying(point))
        for step in range(1, 5):
            checkpointer.save(step, {"x": np.full(1000, step)})
            checkpointer.wait()
            (base / f"{point}.done").write_text(str(step))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(point, flush=True)
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    point += 1
"""


def test_death_at_every_single_file_operation_loses_at_most_the_save_under_way(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", DYING, str(tmp_path)], capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    points = [int(line) for line in result.stdout.split()]
    assert len(points) > 50, "deaths everywhere in four saves"
    for point in points:
        done_file = tmp_path / f"{point}.done"
        done = int(done_file.read_text()) if done_file.exists() else 0
        checkpointer = Checkpointer(tmp_path / str(point), keep_last=2)
        restored = checkpointer.restore()
        step = 0 if restored is None else restored.step
        assert done <= step <= done + 1, f"died at operation {point}"
        if restored is not None:
            assert restored.refused == (), f"died at operation {point}: what is complete is whole"
            assert np.array_equal(restored.arrays["x"], np.full(1000, step))
        damaged = [listed.damage for listed in checkpoints(tmp_path / str(point), verify=True) if listed.damage]
        assert not damaged, f"died at operation {point}: what is half deleted is not complete"
        # Whoever comes next clears away what the dead one left.
        checkpointer.save(9, {"x": np.zeros(1)})
        checkpointer.wait()
        assert len(os.listdir(tmp_path / str(point))) == min(2, 1 + (step > 0))


# A data-parallel job: rank 0 says what is complete; each rank's state follows from the step alone.
JOB = """
import sys
import numpy as np
import atoll
from atoll.resilience.checkpoint import Checkpointer
from atoll.resilience.checkpoint_layout import Region, Shard

def state(step, rank, size):
    whole = np.arange(3000.0).reshape(30, 100) * step
    part = Region.part(whole.shape, rank, size)
    moments = Shard(whole[part.slices((0, 0))], part.start, whole.shape)
    return whole, {"weights": np.full(5000, step), "moments": moments}

with atoll.init() as comm:
    checkpointer = Checkpointer(sys.argv[1], comm, keep_last=2)
    part = Region.part((30, 100), comm.rank, comm.world_size)
    restored = checkpointer.restore({"weights": None, "moments": part})
    first = 1
    if restored is not None:
        first = restored.step + 1
        whole, _ = state(restored.step, comm.rank, comm.world_size)
        right = np.array_equal(restored.arrays["weights"], np.full(5000, restored.step))
        right = right and np.array_equal(restored.arrays["moments"], whole[part.slices((0, 0))])
        if comm.rank == 0:
            print("restored", restored.step, restored.world_size, right, len(restored.refused), flush=True)
    for step in range(first, int(sys.argv[2]) + first):
        comm.all_reduce(np.ones(10))
        checkpointer.save(step, state(step, comm.rank, comm.world_size)[1])
        if comm.rank == 0 and step > first:
            print("complete", step - 1, flush=True)  # a save waits for the one before it
    checkpointer.wait()
"""


def job(path: Path, directory: Path, world_size: int, steps: int) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "atoll", "launch", "-n", str(world_size), str(path), str(directory), str(steps)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True,
    )  # fmt: skip


def test_a_job_killed_at_random_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    script, directory = tmp_path / "job.py", tmp_path / "checkpoints"
    script.write_text(JOB)
    chance = random.Random(5)
    complete, saved_by = 0, 0
    for world_size in (3, 2):
        process = job(script, directory, world_size, 100_000)
        try:
            lines_before_death = chance.randrange(3, 40)
            for line in process.stdout:
                said = line.split()
                if said[0] == "restored":
                    assert complete <= int(said[1]), "nothing that was complete is lost"
                    assert int(said[1]) <= complete + 2, "at most the save under way is more than was said"
                    assert said[2:] == [str(saved_by), "True", "0"]
                if said[0] == "complete":
                    complete = int(said[1])
                lines_before_death -= 1
                if lines_before_death == 0:
                    victims = children_of(process.pid)
                    # All at once, as a power cut: the launcher first, so that it cannot end the others in order.
                    for pid in (process.pid, *victims):
                        os.kill(pid, signal.SIGKILL)
                    break
            rest = process.stdout.read()
            complete = max(
                [complete, *(int(line.split()[1]) for line in rest.splitlines() if line.startswith("compl"))]
            )
        finally:
            process.kill()
            process.communicate(timeout=60)
        saved_by = world_size
        assert complete > 0
    process = job(script, directory, 4, 3)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    first = out.split()
    assert first[0] == "restored"
    assert complete <= int(first[1]) <= complete + 2
    assert first[2:5] == ["2", "True", "0"]
    assert checkpoints(directory, verify=True)[0].step == int(first[1]) + 3


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def test_one_rank_that_dies_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    """Without its receipt nothing is complete, however long the others go on."""

    class Lost(Disk):
        def write(self, path: Path, *parts: bytes | memoryview) -> None:
            if path.name.startswith("00001.receipt"):
                raise OSError(5, "Input/output error", str(path))
            super().write(path, *parts)

    from checkpoint_world import on_ranks

    def save(group) -> None:
        checkpointer = Checkpointer(tmp_path, group, disk=Lost() if group.rank else None)
        checkpointer.save(1, {"x": np.ones(100)})
        checkpointer.close()

    assert on_ranks(2, save) == [None, None]
    assert checkpoints(tmp_path) == []
    assert Checkpointer(tmp_path).restore() is None
