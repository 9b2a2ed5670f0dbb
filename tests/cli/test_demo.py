"""``atoll demo hang``: the hang, the culprit and the recovery, with real processes."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from atoll.cli.main import main
from atoll.errors import CollectiveTimeout, PeerLost, SpecError
from atoll.resilience import hang_demo
from atoll.resilience.chaos_rank import Voice
from atoll.runtime.arrays import Array


def demo(*arguments: str) -> str:
    command = [sys.executable, "-m", "atoll", "demo", "hang", "--show", "100ms", "--heartbeat-timeout", "3s"]
    command += arguments
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_chain_of_waiting_ends_at_the_culprit_and_the_job_goes_on() -> None:
    document = json.loads(demo("--rank", "0", "--world", "3", "--json"))
    assert document["schema_version"] == 1
    waits = document["hang"]["waits_on"]
    assert set(waits) == {"1", "2"}, "the victims, and not the culprit"
    assert waits["1"] == [0]
    assert waits["2"] in ([0], [1]), "by how far the call had come: on the culprit, or on one that waits for it"
    assert document["hang"]["raised"] == 0
    recovery = document["recovery"]
    assert recovery["culprits"] == [0]
    assert set(recovery["errors"]) == {"1", "2"}
    assert len(set(recovery["errors"].values())) == 1, "the same on all survivors"
    assert recovery["members"] == [3, 1, 2], "the spare has the number of the lost"
    assert recovery["sums"] == {"0": 6.0, "1": 6.0, "2": 6.0}


def test_it_tells_people_all_three_parts() -> None:
    text = demo("--world", "3", "--rank", "1")
    assert "nobody has raised anything" in text
    assert "waits for rank 1\n     rank 1 says nothing" in text
    assert "ranks 0, 2 have raised PeerLost, the same on all" in text
    assert "did not answer and was given up" in text
    assert "6, expected 6: right" in text
    assert "began as ranks 0, 3, 2." in text


def _one_ends(environ: Mapping[str, str], voice: Voice, results: Array) -> None:
    if environ["ATOLL_RANK"] == "1":
        raise ValueError("there is no more coffee")
    signal.pause()


def _all_stand_still(environ: Mapping[str, str], voice: Voice, results: Array) -> None:
    signal.pause()


def test_a_rank_that_ends_by_itself_ends_the_demonstration_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_demo, "_wait_for_ever", _one_ends)
    with pytest.raises(PeerLost, match="rank 1 of the demonstration ended by itself") as caught:
        hang_demo.hang(3, 2, 0.1)
    assert caught.value.culprits == (1,)
    assert caught.value.story[-1] == "ValueError: there is no more coffee"
    shutil.rmtree(folder_in(caught.value))


def test_a_job_that_stands_still_leaves_where_every_rank_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_demo, "_wait_for_ever", _all_stand_still)
    monkeypatch.setattr(hang_demo, "PATIENCE_S", 1.0)
    with pytest.raises(CollectiveTimeout, match="did not begin to work within 1 s") as caught:
        hang_demo.hang(3, 2, 0.1)
    stacks = [file.read_text() for file in sorted(folder_in(caught.value).iterdir())]
    assert len(stacks) == 3
    assert any("in _all_stand_still" in stack for stack in stacks)
    shutil.rmtree(folder_in(caught.value))


def folder_in(error: Exception) -> Path:
    return Path(str(error).split("\n")[0].rpartition(" ")[2])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--world", "2"), "at least 3 ranks"),
        (("--rank", "4"), "a rank between 0 and 3, got 4"),
        (("--show", "soon"), "--show: expected a duration"),
        (("--heartbeat-timeout", "0"), "more than 0"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        main(["demo", "hang", *arguments], standalone_mode=False)
