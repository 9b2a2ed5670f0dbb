"""examples/elastic_training.py: the loss that is known, whatever breaks on the way."""

import re
import subprocess
import sys
from pathlib import Path

from documents import REPOSITORY

SCRIPT = REPOSITORY / "examples" / "elastic_training.py"


def train(*arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def losses(text: str) -> tuple[str, str]:
    (found,) = re.findall(r"loss (\S+), the best possible is (\S+)", text)
    return found


def test_training_reaches_the_best_loss_though_rank_0_is_killed_and_another_one_stopped() -> None:
    text = train()
    loss, best = losses(text)
    assert loss == best
    assert "gets SIGKILL" in text
    assert "gets SIGSTOP" in text
    assert re.findall(r"^(\d) ranks work", text, re.MULTILINE) == ["4", "4", "3"], "a spare, then one fewer"
    saves = [int(step) for step in re.findall(r"work from step (\d+) on", text)]
    broke = [int(step) for step in re.findall(r"^step (\d+): the process", text, re.MULTILINE)]
    assert saves[0] == 0
    for step, resumed in zip(broke, saves[1:], strict=True):
        assert step - 10 < resumed <= step, "at most the steps since the last complete checkpoint, or the one before"


def test_a_second_run_goes_on_from_the_checkpoints_with_other_ranks(tmp_path: Path) -> None:
    first = train("--faults", "0", "--steps", "20", "--ranks", "3", "--checkpoints", str(tmp_path))
    second = train("--faults", "0", "--steps", "60", "--ranks", "2", "--checkpoints", str(tmp_path))
    assert "3 ranks work from step 0 on" in first
    assert "2 ranks work from step 20 on" in second
    loss, best = losses(second)
    assert loss == best
    assert losses(first)[0] > best, "it was not there yet"
