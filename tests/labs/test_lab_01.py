"""Lab 01: the solution holds what it claims, the judge explains what learners get wrong, nothing is left behind."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from lab_variants import BEGIN, END, LAB, VARIANTS, run_lab, write_variant

from atoll.errors import SpecError

# What the judge must say about each variant: the case that fails, and the words that teach.
EXPLAINED = {
    "starter": ("exchange:", "exchange is still to be written"),
    # Whichever case first finds a socket not ready: that is a matter of timing, what is said of it is not.
    "no select": ("", "The sockets do not block.*Ask select"),
    "off by one chunk": ("chunks of one size: 2", "chunk 0: it holds values that belong to other positions"),
    "no all-gather": ("chunks of one size: 2", "what is missing is the all-gather"),
    "all-gather adds": ("chunks of one size: 2", "more than once.*must replace, not be added"),
    "all-gather one step short": ("chunks of one size: 4", "lacks rank .*N - 1 steps"),
    "not in place": ("chunks of one size: 2", "no rank's vector has changed.*in place"),
    "returns the sum": ("chunks of one size: 2", "no rank's vector has changed.*returned"),
    "whole vectors": ("chunks of one size: 3", r"\[192, 192, 192\].*\[128, 128, 128\].*naive all-gather-then-sum"),
    "padded chunks": ("N does not divide the length: 2", "do not pad"),
    "an extra exchange": ("a world of one", r"the ranks sent \[40\], a ring sends \[0\]"),
    "smaller chunks first": ("order of summing: 3", "right but for rounding.*np.array_split"),
    "chunks of one size": ("N does not divide the length: 2", "Two chunks of different sizes met"),
    "does not count": ("exchange:", "counter of rank 0 says 0 bytes sent and 32 received; 40 and 32 really passed"),
    "keeps a copy": ("no second vector in memory: 3", "took [0-9.]+ MiB of memory for a vector of 2 MiB"),
    "to the left": ("chunks of one size: 2", "went the wrong way on rank 0"),
    "in float32": ("chunks of one size: 2", "another dtype"),
    "raises": ("chunks of one size: 2", r"IndexError.*line \d+ in ring_all_reduce: outgoing = chunks\[rank"),
    "dies": ("chunks of one size: 2", "process of rank 1 ended without a result .exit status 3"),
    "no guard": ("mine.py ends the program when it is imported", "__main__"),
    "no Python": ("Python does not understand line", "of mine.py"),
    "no ring": ("mine.py does not define ring_all_reduce", "starter.py"),
}
EXPLAINED_AFTER_DEADLINE = {
    "send all, then receive": (
        "exchange, larger than the socket buffers",
        "rank 0 sits in send: line .*sendall.*rank 1 sits in send: .*every rank sits in send",
    ),
    "select to send all, then to receive": (
        "exchange, larger than the socket buffers",
        "every rank waits in select. Is only one of the two sockets asked for",
    ),
    "receive all, then send": ("exchange:", "every rank sits in recv, and nobody sends"),
    "one send, one receive": (
        "exchange, larger than the socket buffers",
        "send may take fewer bytes than it is offered",
    ),
    "never ends": ("chunks of one size: 2", "rank 1 is running: line .*endless loop in rank 1"),
    "rank 0 does nothing": ("chunks of one size: 2", "rank 0 has finished.*Some ranks have finished and others"),
}
ACCEPTED = {"turned"}


@pytest.fixture(scope="module")
def lab() -> Iterator[ModuleType]:
    """Imports a module of the lab, whose modules find each other as in a script's own folder."""
    sys.path.insert(0, str(LAB))
    yield importlib.import_module
    sys.path.remove(str(LAB))
    for name in [path.stem for path in LAB.glob("*.py")]:
        sys.modules.pop(name, None)


def test_starter_is_the_solution_without_the_exercise() -> None:
    parts = []
    for name in ("solution.py", "starter.py"):
        text = (LAB / name).read_text()
        before, rest = text.split(BEGIN)
        inside, after = rest.split(END)
        functions = [node for node in ast.parse(inside).body if isinstance(node, ast.FunctionDef)]
        parts.append((before, after, [(node.name, ast.unparse(node.args)) for node in functions]))
        assert ("raise NotImplementedError" in inside) == (name == "starter.py")
    assert parts[0] == parts[1]
    assert [name for name, _ in parts[0][2]] == ["exchange", "ring_all_reduce"]


def test_the_ring_itself_is_short_and_plain() -> None:
    inside = (LAB / "solution.py").read_text().split(BEGIN)[1].split(END)[0]
    assert "atoll" not in inside
    assert len(inside.splitlines()) <= 65


# -- the solution ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world_size", "arguments", "length", "itemsize"),
    [
        (4, (), 1 << 20, 4),
        (1, ("--size", "100"), 25, 4),
        (3, ("--size", "1003", "--dtype", "int8"), 1003, 1),
        (5, ("--size", "24", "--dtype", "complex64", "--seed", "7"), 3, 8),
        (2, ("--size", "0"), 0, 4),
    ],
)
def test_ring_is_checked_and_every_byte_counted(
    world_size: int, arguments: tuple[str, ...], length: int, itemsize: int
) -> None:
    done = run_lab("solution.py", "--world", str(world_size), "--json", "--repeat", "1", *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["schema_version"] == 1
    assert (report["length"], report["size_bytes"]) == (length, length * itemsize)
    assert len(report["checks"]) == 5
    assert all(report["checks"].values())
    # Rank r sends every chunk but its own in the all-gather's turn, r + 1's, and every chunk but its own, r.
    sizes = [length // world_size + (chunk < length % world_size) for chunk in range(world_size)]
    for row in report["bytes"]:
        rank = row["rank"]
        expected = itemsize * (2 * length - sizes[rank] - sizes[(rank + 1) % world_size])
        assert row["sent"] == row["count_sent"] == (expected if world_size > 1 else 0)
    assert sum(row["sent"] for row in report["bytes"]) == pytest.approx(world_size * report["bound_bytes"])
    assert report["naive_sent"] == [(world_size - 1) * length * itemsize] * world_size


def test_table_says_what_was_checked() -> None:
    done = run_lab("solution.py", "--world", "3", "--size", "10", "--dtype", "int16", "--repeat", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("all-reduce of 10 B (5 x int16) among 3 processes, over TCP\n")
    assert done.stdout.count("equal to") == 3
    assert "NOT" not in done.stdout
    # Chunks of 2, 2 and 1 elements: rank 0 sends all but chunk 0, then all but chunk 1; and so on round.
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r" +\d ", line)]
    assert [row[:4] for row in rows] == [["0", "12", "14", "12"], ["1", "14", "12", "14"], ["2", "14", "14", "14"]]
    assert re.search(r"naive / ring: bytes 1\.500 \(N/2 = 1\.5\)", done.stdout)


def test_a_wrong_ring_fails_its_checks(tmp_path: Path) -> None:
    done = run_lab(write_variant("no all-gather", tmp_path), "--world", "3", "--size", "1K", "--repeat", "1")
    assert done.returncode == 1
    assert done.stdout.count("NOT EQUAL to") == 3
    assert re.fullmatch(r"error: wrong: the sum of whole numbers; .*python check.py mine.py says why\n", done.stderr)


@pytest.mark.parametrize(("name", "says"), [("raises", "rank [0-2] raised IndexError: .* at mine.py line [0-9]+"),
                                            ("dies", "the process of rank 1 ended without a result")])  # fmt: skip
def test_a_broken_ring_is_one_line(name: str, says: str, tmp_path: Path) -> None:
    done = run_lab(write_variant(name, tmp_path), "--world", "3", "--size", "1K", "--repeat", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(f"error: {says}.*; python check.py mine.py says more\n", done.stderr)


def test_a_turned_ring_is_a_ring(tmp_path: Path) -> None:
    done = run_lab(write_variant("turned", tmp_path), "--world", "3", "--size", "1000", "--repeat", "1")
    assert done.returncode == 0, done.stderr
    assert "equal to the library's ring schedule, turned by 1, bit for bit" in done.stdout


def test_tree_is_checked_and_swept() -> None:
    done = run_lab("solution.py", "--algorithm", "tree", "--size", "4K", "--repeat", "1", "--world", "5", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert all(report["checks"].values())
    assert [row["size_bytes"] for row in report["rows"]] == [8 << shift for shift in range(10)]
    assert all(row["ring_s"] > 0 and row["tree_s"] > 0 for row in report["rows"])


def test_crossover_is_the_best_cut(lab: ModuleType) -> None:
    crossover = lab("sweep").crossover
    ring, tree = (1.0, 2.0), (2.0, 1.0)  # (ring_s, tree_s): who is faster

    def measure(*rows: tuple[float, float]) -> list[tuple[int, float, float]]:
        return [(8 << shift, *row) for shift, row in enumerate(rows)]

    assert crossover(measure(tree, tree, ring, ring)) == (16, 32)
    assert crossover(measure(tree, ring, tree, tree, ring, ring)) == (64, 128)
    assert crossover(measure(ring, ring)) == (None, 8)
    assert crossover(measure(tree, tree)) == (16, None)


def test_buckets_move_bytes_before_wait() -> None:
    done = run_lab("solution.py", "--buckets", "--world", "2", "--repeat", "1", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong_elements"] == 0
    rows = {(row["way"], row["capacity_bytes"]): row for row in report["rows"]}
    mib = 1 << 20
    calls = {capacity: rows["bucketed", capacity]["all_reduces"] for capacity in (mib, 4 * mib, 25 * mib)}
    assert rows["one each", None]["all_reduces"] == report["gradients"] == 200
    assert 200 > calls[mib] > calls[4 * mib] > calls[25 * mib] == 1
    for (way, capacity), row in rows.items():
        if way == "compute alone":
            continue
        # Two ranks, each sending and receiving a vector's worth in all, however it is cut.
        assert row["moved_bytes"] == 2 * 2 * report["total_bytes"]
        overlaps = way == "overlapped" and capacity == mib
        assert (row["moved_before_wait"] > 0) if overlaps else (0 <= row["moved_before_wait"] <= 1)


def test_a_lost_rank_is_a_hang_then_a_culprit_then_a_job_that_goes_on() -> None:
    done = run_lab("solution.py", "--kill-rank", "1", "--world", "3", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["silent"] == [1]
    assert set(document["waiting_in"]) == {"0", "2"}
    assert document["recovery"]["culprits"] == [1]
    assert document["recovery"]["sums"] == {"0": 6.0, "1": 6.0, "2": 6.0}
    for arguments in (["--world", "2"], ["--world", "3", "--buckets"]):
        done = run_lab("solution.py", "--kill-rank", "1", *arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_buckets_hold_consecutive_gradients_up_to_the_capacity(lab: ModuleType) -> None:
    fill = lab("buckets").fill_buckets
    assert fill([10, 10, 10, 100, 1], 80) == [range(2), range(2, 3), range(3, 4), range(4, 5)]
    assert fill([], 80) == []
    lengths = lab("buckets").gradient_lengths(3)
    assert len(lengths) == 200
    assert 4096 <= 4 * min(lengths) < 4 * max(lengths) <= 65536
    for bucket in (buckets := fill(lengths, 1 << 20)):
        assert sum(4 * lengths[index] for index in bucket) <= 1 << 20
    assert [index for bucket in buckets for index in bucket] == list(range(200))


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--world", "0"], "--world: expected a whole number from 1 to 64, got '0'"),
        (["--world", "four"], "got 'four'"),
        (["--size", "-4M"], "--size"),
        (["--size", "4X"], "--size: expected a size such as 8, 64K, 128M or 1G, got '4X'"),
        (["--size", "1G"], "at most 2 GiB in all, .*at most 512M a rank"),
        (["--algorithm", "rign"], "--algorithm: unknown, got 'rign'; did you mean 'ring'"),
        (["--dtype", "flaot32"], "did you mean 'float32'"),
        (["--seed", "-1"], "--seed: expected a whole number from 0"),
        (["--repeat", "0"], "--repeat"),
        (["--buckets", "--algorithm", "tree"], "--buckets has gradients of its own"),
        (["--wrold", "4"], "unrecognized arguments"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], says: str, lab: ModuleType) -> None:
    with pytest.raises(SpecError, match=says):
        lab("harness").parse(arguments)


def test_bad_arguments_are_one_line() -> None:
    done = run_lab("solution.py", "--world", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --world: expected a whole number from 1 to 64, got '0'\n"


def test_starter_asks_to_be_written() -> None:
    for arguments in ([], ["--algorithm", "tree", "--size", "8"]):
        done = run_lab("starter.py", "--world", "2", *arguments)
        assert done.returncode == 1
        assert re.fullmatch(
            r"error: \w+ is still to be written: .* python check.py starter.py judges it.\n", done.stderr
        )


# -- the judge -------------------------------------------------------------------------------------------------------


def test_every_variant_has_an_explanation() -> None:
    assert set(VARIANTS) == set(EXPLAINED) | set(EXPLAINED_AFTER_DEADLINE) | ACCEPTED


@pytest.mark.parametrize("name", EXPLAINED)
def test_judge_explains(name: str, tmp_path: Path) -> None:
    done = run_lab("check.py", write_variant(name, tmp_path), "--deadline", "60s")
    _assert_explained(done, *EXPLAINED[name])


def test_judge_explains_what_does_not_end(tmp_path: Path) -> None:
    # All at once: they mostly wait for the deadline.
    def judge(name: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / name.replace(" ", "_")
        folder.mkdir()
        return run_lab("check.py", write_variant(name, folder), "--deadline", "6s")

    with ThreadPoolExecutor(len(EXPLAINED_AFTER_DEADLINE)) as pool:
        judged = dict(zip(EXPLAINED_AFTER_DEADLINE, pool.map(judge, EXPLAINED_AFTER_DEADLINE), strict=True))
    for name, done in judged.items():
        _assert_explained(done, *EXPLAINED_AFTER_DEADLINE[name])


def _assert_explained(done: subprocess.CompletedProcess[str], case: str, says: str) -> None:
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    failed = done.stdout[done.stdout.index("FAIL") :]
    assert failed.startswith(f"FAIL  {case}"), failed
    assert re.search(says, failed, re.DOTALL), failed


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_judge_accepts(name: str, tmp_path: Path) -> None:
    done = run_lab("check.py", write_variant(name, tmp_path), "--deadline", "60s")
    assert done.returncode == 0, done.stdout
    passed = [line for line in done.stdout.splitlines() if line.startswith("ok ")]
    assert done.stdout.splitlines()[-1].startswith(f"All {len(passed)} cases pass")
    worlds = {int(match[1]) for line in passed if (match := re.search(r"(\d+) ranks?,", line))}
    assert worlds == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.py"], "nothing.py: No such file or directory"),
        (["."], "Is a directory"),
        (["solution.py", "--deadline", "soon"], "--deadline: expected a duration"),
        (["solution.py", "--deadline", "0"], "more than 0 seconds"),
    ],
)
def test_judge_refuses_bad_arguments(arguments: list[str], says: str) -> None:
    done = run_lab("check.py", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(f"error: .*{says}.*\n", done.stderr)


def test_coded_sums_name_who_is_missing_and_who_is_counted_twice(lab: ModuleType) -> None:
    diagnose = lab("diagnose")
    inputs = [diagnose.coded(9, rank) for rank in range(3)]
    total = np.sum(inputs, axis=0)
    assert diagnose.explain_result([total] * 3) is None

    def explain(element: int) -> str:
        wrong = total.copy()
        wrong[4] = element
        text = diagnose.explain_result([total, wrong, total])
        assert text.startswith("rank 1 has a wrong element 4, in chunk 1: ")
        return str(text)

    assert "it lacks rank 2" in explain(inputs[0][4] + inputs[1][4])
    assert "it counts rank 0 more than once, and lacks ranks 1, 2" in explain(2 * inputs[0][4])
    assert "it counts ranks 0, 1 more than once." in explain(total[4] + inputs[0][4] + inputs[1][4])
    assert "values that belong to other positions" in explain(total[5])


# -- the world ---------------------------------------------------------------------------------------------------------


def test_order_sensitive_data_shows_the_order(lab: ModuleType) -> None:
    vectors = lab("vectors")
    for name in ("float16", "float32", "float64", "complex64"):
        inputs = [vectors.order_sensitive(np.dtype(name), 1000, rank, 0) for rank in range(4)]
        ring = vectors.ring_outputs(vectors.library_ring(4), inputs)[0]
        assert np.isfinite(ring).all()
        assert len(vectors.wrong_elements(ring, vectors.exact_sum(inputs))) > 50
        assert len(vectors.wrong_elements(ring, vectors.ring_outputs(vectors.library_ring(4), inputs, 1)[0])) > 50


def test_whole_numbers_sum_exactly_in_every_dtype(lab: ModuleType) -> None:
    vectors = lab("vectors")
    for name in vectors.DTYPES:
        for world_size in (1, 5, 64):
            inputs = [vectors.whole_numbers(np.dtype(name), 50, rank, world_size, 3) for rank in range(world_size)]
            exact = np.sum([vector.real.astype(np.int64) for vector in inputs], axis=0)
            assert np.array_equal(vectors.exact_sum(inputs).real.astype(np.int64), exact)
            assert any(vector.any() for vector in inputs)


@contextlib.contextmanager
def _running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=LAB,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _others_in_session(leader: int) -> set[int]:
    """Processes of the session that ``leader`` leads, without itself and those that have ended."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == leader and state != "Z" and int(entry.name) != leader:
                    found.add(int(entry.name))
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_or_killed_leaves_no_process(how: signal.Signals) -> None:
    with _running("solution.py", "--algorithm", "tree", "--repeat", "10000", "--size", "8") as process:
        assert process.stdout is not None
        process.stdout.readline()  # the ranks are about to be started
        _until(lambda: len(_others_in_session(process.pid)) == 4)
        os.killpg(process.pid, how) if how == signal.SIGINT else process.kill()
        _, talk = process.communicate(timeout=60)
        assert (process.returncode, talk) == ((130, "interrupted\n") if how == signal.SIGINT else (-how, ""))
        _until(lambda: not _others_in_session(process.pid))


def test_a_stranger_at_the_door_does_no_harm(lab: ModuleType) -> None:
    script = (
        "import socket, world\n"
        "create = socket.create_server\n"
        "def opened(*arguments, **options):\n"
        "    listener = create(*arguments, **options)\n"
        "    stranger = socket.create_connection(listener.getsockname())\n"
        "    stranger.sendall(b'GET / HTTP/1.1 and so on, at length')\n"
        "    strangers.append(stranger)\n"
        "    return listener\n"
        "strangers = []\n"
        "socket.create_server = opened\n"
        "def body(place):\n"
        "    place.right.setblocking(True), place.left.setblocking(True)\n"
        "    place.right.sendall(bytes([place.rank]))\n"
        "    return place.left.recv(1)[0]\n"
        "print(world.run_world(3, body, deadline_s=60.0))\n"
    )
    done = run_lab("-c", script)
    assert done.stdout == "[2, 0, 1]\n", done.stderr


def _until(condition: Callable[[], object]) -> None:
    """Return once ``condition()`` holds; the test's own timeout ends what never does."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        select.select([], [], [], 0.01)
