"""``atoll bench`` as a shell sees it: the table of nccl-tests, bytes, JSON, Ctrl-C, a rank that dies, bad input."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll.cli.main import entry_point

TIMEOUT_S = 120
FLOAT = r"\d+(?:\.\d+)?(?:e[+-]\d\d)?"
# size, count, type, redop, root, then twice time, algbw, busbw, #wrong: the widths of nccl-tests.
ROW = re.compile(
    rf"^ {{0,11}}(?P<size>\d+) +(?P<count>\d+) +(?P<type>\w+) +(?P<op>\w+) +(?P<root>-?\d+)"
    rf"(?:  +({FLOAT})  +({FLOAT})  +({FLOAT})  +(\d+)){{2}}$"
)


def atoll(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "atoll", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def ranks_of(pid: int) -> list[int]:
    """The processes of ``bench_rank`` that are children of ``pid``."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            if b"bench_rank" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
        except OSError:
            continue
    return found


def test_the_table_is_that_of_nccl_tests_to_the_column(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    ran = atoll("all-reduce", "--world", "3", "-b", "40", "-e", "4000", "-f", "10", "-n", "2", "-J", str(file))
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    assert lines[:3] == [
        "# all-reduce among 3 processes on one machine over tcp, algorithm ring",
        "# minBytes 40 maxBytes 4000 step: 10(factor) warmup iters: 1 iters: 2 validation: 1",
        "# ring: proven, 12 transfers in 4 steps; all ranks end with the same bits, at most 2 operations deep",
    ]
    assert lines[3:7] == [
        "#",
        "#                                                              out-of-place                       in-place"
        "          ",
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw"
        "  #wrong ",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)"
        "         ",
    ]
    rows = [ROW.match(line) for line in lines[7:10]]
    assert all(rows), lines[7:10]
    facts = [(row["size"], row["count"], row["type"], row["op"], row["root"]) for row in rows if row]
    assert facts == [
        (size, count, "float", "sum", "-1") for size, count in (("40", "10"), ("400", "100"), ("4000", "1000"))
    ]
    assert {len(line) for line in lines[7:10]} == {12 + 14 + 10 + 8 + 8 + 2 * (9 + 8 + 8 + 8)}
    # Every column ends where its title ends.
    for title in ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"):
        end = lines[5].index(title) + len(title)
        assert all(line[end - 1] != " " and line[end : end + 1] in ("", " ") for line in lines[7:10]), title
    assert lines[10] == "# Out of bounds values : 0 OK"
    assert re.fullmatch(rf"# Avg bus bandwidth    : {FLOAT} ", lines[11])
    wire = "\n".join(lines[13:])
    assert "bytes of one ring of 3.91 KiB, as passed to the sockets; bound 5333 (2(N-1)/N n)" in wire
    # 1000 elements in chunks of 1336, 1332 and 1332 bytes: rank r sends all but r, and then all but r + 1.
    table = [[int(cell) for cell in line.split()[1:7]] for line in lines[15:18]]
    assert table == [
        [0, 5332, 5332, 5332, 5332, 16],
        [1, 5336, 5336, 5332, 5332, 16],
        [2, 5332, 5332, 5336, 5336, 16],
    ]
    assert wire.endswith("# measured equals the schedule's count on every rank")
    document = json.loads(file.read_text())
    assert [result["size"] for result in document["results"]] == [40, 400, 4000]
    for result in document["results"]:
        assert sum(result["wire"]["sent_bytes"]) == 4 * result["size"] == sum(result["wire"]["received_bytes"])


def test_json_is_one_document_and_nothing_else() -> None:
    ran = atoll("reduce-scatter", "--world", "2", "-b", "4K", "-e", "8K", "-f", "2", "-n", "2", "-d", "half", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    document = json.loads(ran.stdout)
    assert document["schema_version"] == 1
    assert (document["collective"], document["world_size"], document["complete"]) == ("reduce_scatter", 2, True)
    assert document["out_of_bounds"] == {"count": 0, "okay": True}
    assert document["config"]["iterations"] == 2
    first = document["results"][0]
    assert {key: first[key] for key in ("size", "count", "type", "redop", "root", "algorithm")} == {
        "size": 4096, "count": 1024, "type": "half", "redop": "sum", "root": -1, "algorithm": "ring",
    }  # fmt: skip
    assert first["wire"] == {
        "sent_bytes": [2048, 2048],
        "received_bytes": [2048, 2048],
        "overhead_bytes": [16, 16],
        "ways": {"socket": 4096},
    }
    for way in ("out_of_place", "in_place"):
        measured = first[way]
        assert measured["nwrong"] == 0
        assert measured["alg_bw"] == pytest.approx(4096 / measured["time"] / 1e3)
        assert measured["bus_bw"] == pytest.approx(measured["alg_bw"] / 2)
    means = [result[way]["bus_bw"] for result in document["results"] for way in ("out_of_place", "in_place")]
    assert document["average_bus_bandwidth"]["bandwidth"] == pytest.approx(sum(means) / 4)


def test_several_algorithms_stand_side_by_side() -> None:
    ran = atoll("--world", "2", "-b", "1K", "-e", "4K", "-n", "2", "--algorithm", "ring,recursive-doubling,auto")
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    head = next(number for number, line in enumerate(lines) if "size(B)" in line)
    assert lines[head].split() == ["#", "size(B)", "count", "type", "ring", "recursive_doubling", "auto"]
    rows = [line.split() for line in lines[head + 2 : head + 4]]
    for row, size in zip(rows, (1024, 4096), strict=True):
        assert row[:3] == [str(size), str(size // 4), "float"]
        assert len(row) == 3 + 2 * 3 + 1
        times = [float(time) for time in row[3:9:2]]
        assert row[-1] in ("ring", "recursive_doubling", "auto")
        assert times[["ring", "recursive_doubling", "auto"].index(row[-1])] == min(times)
    assert ran.stdout.count("measured equals the schedule's count on every rank") == 3


@pytest.mark.parametrize(
    "collective", ["all-gather", "all-to-all", "broadcast", "reduce", "gather", "scatter", "barrier"]
)
def test_every_collective_is_measured_and_checked(collective: str) -> None:
    ran = atoll(collective, "--world", "2", "-b", "1000", "-e", "1000", "-n", "1", "-d", "int32", "-r", "1")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "# Out of bounds values : 0 OK" in ran.stdout
    if collective != "barrier":
        assert "measured equals the schedule's count on every rank" in ran.stdout


@pytest.fixture
def endless() -> Iterator[Any]:
    """A sweep that will not end by itself; two rows have been printed when it is handed out."""
    started = []

    def start(*arguments: str) -> tuple[subprocess.Popen[str], list[str]]:
        command = [sys.executable, "-m", "atoll", "bench", "--world", "3", "-b", "8", "-e", "64M", "-i", "8", "-n", "5"]
        process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        lines = [""]
        while sum(not line.startswith("#") for line in lines) < 3:
            lines.append(process.stdout.readline())
            assert lines[-1], "it ended"
        return process, lines

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_ctrl_c_prints_the_rows_so_far_and_leaves_no_process(endless: Any, tmp_path: Path) -> None:
    file = tmp_path / "partial.json"
    process, lines = endless("-J", str(file))
    ranks = ranks_of(process.pid)
    assert len(ranks) == 3
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    rows = [line for line in ("".join(lines) + out).splitlines() if ROW.match(line)]
    assert [int(row.split()[0]) for row in rows] == [8 * (n + 1) for n in range(len(rows))]
    assert len(rows) >= 2
    assert "# Out of bounds values : 0 OK" in out
    assert "Traceback" not in err
    assert "stopped by SIGINT" in err
    document = json.loads(file.read_text())
    assert document["complete"] is False
    assert len(document["results"]) == len(rows)
    assert not [rank for rank in ranks if os.path.exists(f"/proc/{rank}")]


def test_a_rank_that_dies_is_named_and_the_rows_so_far_are_kept(endless: Any) -> None:
    process, lines = endless()
    ranks = ranks_of(process.pid)
    victim = next(
        pid for pid in ranks if b"ATOLL_RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes().replace(b"\n", b"\0")
    )
    os.kill(victim, signal.SIGKILL)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert "rank 1 failed first: killed by SIGKILL" in err
    for rank in (0, 2):
        assert f"rank {rank}: PeerLost: rank 1 (pid {victim}" in err
    assert "Traceback" not in err
    assert "# Out of bounds values : 0 OK" in out
    assert sum(bool(ROW.match(line.rstrip("\n"))) for line in lines) == 2
    assert not [rank for rank in ranks if os.path.exists(f"/proc/{rank}")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--world", "0"], "--world: expected 1 to"),
        (["--world", "-3"], "--world: expected 1 to"),
        (["-b", "-5"], "-b: expected a size"),
        (["-e", "-1M"], "-e: expected a size"),
        (["-b", "1M", "-e", "1K"], "first size to be at most the last"),
        (["-f", "1"], "-f: expected a factor of at least 2"),
        (["-f", "2", "-i", "4"], "expected one of them"),
        (["-i", "0"], "-i: expected at least 1 byte"),
        (["all-redcue"], "did you mean 'all-reduce'?"),
        (["all-reduce", "--collective", "barrier"], "expected one of them"),
        (["--algorithm", "rign"], "did you mean 'ring'?"),
        (["--algorithm", "ring,ring"], "named twice"),
        (["-d", "flaot64"], "did you mean 'float64'?"),
        (["-d", "int32", "-o", "avg"], "avg of int32"),
        (["-o", "summ"], "did you mean 'sum'?"),
        (["-n", "0"], "at least 1 timed"),
        (["-w", "-1"], "0 warm-up calls"),
        (["-c", "-1"], "-c: expected 0 or 1"),
        (["-T", "0s"], "--timeout: expected more than 0"),
        (["broadcast", "-r", "4"], "--root: expected a rank between 0 and 3"),
        (["--transport", "pigeon"], "unknown transport 'pigeon'"),
        (["-J", "/nonexistent/out.json"], "-J: cannot write"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["atoll", "bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        entry_point()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1
