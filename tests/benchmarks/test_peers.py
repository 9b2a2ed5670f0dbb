"""The comparison with the peers: its arithmetic on made-up times, and the turns of real worlds without any peer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from peers_rank import Machine, Measured  # noqa: E402
from peers_report import scale_table, table, table_document  # noqa: E402
from peers_rounds import Contestant, Pair, Row, measure  # noqa: E402
from peers_world import PeerError, Side, World, peer_side  # noqa: E402
from performance_page import blocks, fill  # noqa: E402

PAIR = Pair("tcp", "gloo")


def row(size_bytes: int, ours: list[float], theirs: list[float]) -> Row:
    return Row("all_reduce", 2, size_bytes, {"tcp": ours, "gloo": theirs})


def test_a_ratio_compares_turns_of_one_round() -> None:
    # Everybody is ten times slower in the second round: the medians of the sides alone would say 2x.
    found = row(8, [1.0, 10.0, 1.0], [3.0, 20.0, 1.5])
    assert found.ratios(PAIR) == [3.0, 2.0, 1.5]
    assert found.ratio(PAIR) == 2.0
    assert row(8, [1.0], []).ratio(PAIR) is None


def test_the_table_has_times_ratios_the_least_and_the_geometric_mean() -> None:
    rows = [row(8, [1e-6] * 3, [9e-6] * 3), row(64 << 10, [1e-3] * 3, [1e-3] * 3), row(1 << 20, [1e-3] * 3, [4e-3] * 3)]
    lines = table("all_reduce", 2, rows, [Contestant("tcp", "tcp"), Contestant("gloo", "gloo")], [PAIR])
    assert lines[0].startswith("all-reduce, world 2, float32")
    assert [line.split() for line in lines[2:]] == [
        ["size", "tcp", "gloo", "tcp/gloo"],
        ["8", "B", "1", "us", "9", "us", "9.00x"],
        ["64", "KiB", "1", "ms", "1", "ms", "1.00x"],
        ["1", "MiB", "1", "ms", "4", "ms", "4.00x"],
        ["least", "1.00x"],
        ["geometric", "mean", "3.30x"],
        ["least,", "64", "KiB", "up", "1.00x"],
        ["mean,", "64", "KiB", "up", "2.00x"],
    ]


def test_a_side_that_failed_leaves_its_columns_empty_and_says_why() -> None:
    found = row(8, [1e-6], [])
    found.failed["gloo"] = "gloo: a rank ended in time"
    lines = table("all_reduce", 2, [found], [Contestant("tcp", "tcp"), Contestant("gloo", "gloo")], [PAIR])
    assert lines[3].split() == ["8", "B", "1", "us", "-", "-"]
    assert lines[-1] == "! gloo failed: gloo: a rank ended in time"


def test_the_machines_bound_touches_two_and_a_half_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_RANK", "0")
    touched = 0

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        @staticmethod
        def add(left: Any, right: Any, out: Any) -> None:
            nonlocal touched
            touched += left.nbytes + right.nbytes + out.nbytes

        @staticmethod
        def copyto(out: Any, source: Any) -> None:
            nonlocal touched
            touched += out.nbytes + source.nbytes

    for world_size, factor in ((2, 2.5), (4, 3 * 3 / 4 + 2 * 3 / 4)):
        monkeypatch.setenv("ATOLL_WORLD_SIZE", str(world_size))
        source, out = np.zeros(1024, np.float32), np.zeros(1024, np.float32)
        call = Machine().call("all_reduce", source, out)
        monkeypatch.setattr("peers_rank.np", Counting())
        touched = 0
        call()
        monkeypatch.undo()
        monkeypatch.setenv("ATOLL_RANK", "0")
        assert touched == factor * source.nbytes


class WrongSide:
    """A library that forgets the last element."""

    rank, world_size = 0, 1

    def empty(self, count: int, shared: bool) -> Any:
        return np.empty(count, np.float32)

    def call(self, collective: str, source: Any, out: Any) -> Any:
        def call() -> None:
            out[:-1] = source[:-1]

        return call

    def barrier(self) -> None:
        pass


def test_wrong_elements_are_counted() -> None:
    assert Measured(WrongSide(), "all_reduce", 4096, in_place=False, shared=False, check=True).wrong == 1


def test_a_world_that_does_not_start_says_what_it_said() -> None:
    side = Side("broken", "atoll", (sys.executable, "-c", "import sys; sys.exit('no such library')"), "python")
    with World(side, 2) as world, pytest.raises(PeerError, match=r"broken: its 2 ranks did not start; no such library"):
        world.ready()


def test_a_side_that_dies_is_taken_out_and_the_others_go_on() -> None:
    launcher = (sys.executable, "-m", "atoll", "launch", "-n", "{n}", "--")
    good, bad = Side("good", "machine", launcher, sys.executable), Side("bad", "machine", launcher, sys.executable)
    with World(good, 2) as first, World(bad, 2) as second:
        first.ready()
        second.ready()
        worlds = {"good": first, "bad": second}
        second.tell("stop")
        found = measure(worlds, [Contestant("good", "good"), Contestant("bad", "bad")], "all_reduce", 1024, 3, 1e-4)
    assert len(found.seconds["good"]) == 3
    assert "bad" not in found.seconds
    assert "bad: a rank" in found.failed["bad"]
    assert set(worlds) == {"good"}


def test_a_peers_settings_follow_from_ranks_and_cores(tmp_path: Path) -> None:
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text("")
    pythons = dict.fromkeys(("gloo", "mpich", "openmpi"), str(tmp_path / "python"))
    many = len(os.sched_getaffinity(0)) + 1
    for name, word in (("mpich", "yields after"), ("openmpi", "mpi_yield_when_idle 1")):
        assert word in peer_side(name, tmp_path, many, pythons).settings
        assert peer_side(name, tmp_path, many - 1, pythons).settings == "its defaults"
    mpiexec.unlink()
    with pytest.raises(PeerError, match="expected its mpiexec beside"):
        peer_side("mpich", tmp_path, 2, pythons)


def test_atoll_alone_takes_its_turns_and_writes_everything_down(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    ran = subprocess.run(
        [sys.executable, str(BENCHMARKS / "peers.py"), "--table", "scale", "--transports", "tcp", "--worlds", "2,3",
         "--sizes", "8,64K", "--rounds", "3", "--turn", "0.0005", "--json", str(file)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    document = json.loads(file.read_text())
    assert document["schema_version"] == 1
    assert [part["world_size"] for part in document["tables"]] == [2, 3]
    for part in document["tables"]:
        assert [found["size_bytes"] for found in part["rows"]] == [8, 64 << 10]
        for found in part["rows"]:
            assert found["failed"] == {}
            assert len(found["seconds"]["tcp"]) == 3
            assert min(found["seconds"]["tcp"]) > 0
            assert found["schedules"]["tcp"]["steps"] >= 1
    text = "\n".join(scale_table("tcp", document["tables"]))
    assert text in ran.stdout


def test_pages_are_filled_with_what_was_measured() -> None:
    rows = [row(8, [1e-6] * 5, [2e-6] * 5), row(1 << 20, [1e-3] * 5, [8e-3] * 5)]
    contestants = [Contestant("tcp", "tcp", in_place=True), Contestant("gloo", "gloo", in_place=True)]
    part = table_document({"gloo": ("Gloo 1", "sleeps"), "tcp": ("Atoll", "")}, 2, rows, contestants, [PAIR])
    machine = {"processor": "P", "cores": 2, "kernel": "6", "python": "3", "load_average": 0.5}
    document = {"date": "now", "command": ["peers.py"], "machine": machine, "table": "all-reduce", "tables": [part]}
    found = blocks([json.loads(json.dumps(document))])
    page = "a\n<!-- begin summary -->\nold\n<!-- end -->\nb\n<!-- begin all-reduce 4 -->\nkept\n<!-- end -->\n"
    filled = fill(page, found)
    assert "| all-reduce | TCP | Gloo | 2 | 8 B to 1 MiB | 2.00x | 4.00x |" in filled
    assert "old" not in filled
    assert "<!-- begin all-reduce 4 -->\nkept\n<!-- end -->" in filled
    assert fill(filled, found) == filled
    lines = found["all-reduce 2"].splitlines()
    assert lines[0] == "```text"
    assert lines[1] == "# now: peers.py"
    assert "#   gloo: Gloo 1; sleeps" in lines
    assert ["least", "2.00x"] in [line.split() for line in lines]


def test_whoever_ends_it_gets_the_rows_so_far(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    command = [sys.executable, str(BENCHMARKS / "peers.py"), "--table", "scale", "--transports", "tcp", "--worlds", "2",
               "--sizes", "8,64M", "--rounds", "1000", "--turn", "0.0001", "--json", str(file)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("#   tcp"):
            pass  # until the world is there; a thousand rounds of the larger size take minutes
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out + err
    assert "interrupted" in err
    parts = json.loads(file.read_text())["tables"]
    assert len(parts) <= 1, "none where it ended before the first turn"
    for part in parts:
        assert part["interrupted"]
        assert len(part["rows"]) <= 1
