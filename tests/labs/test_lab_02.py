"""Lab 02: the solution's claims hold, the judge explains what learners get wrong, the README is what is printed."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from documents import REPOSITORY, all_blocks, run_console_blocks

LAB = REPOSITORY / "labs" / "lab_02_topology_simulator"
BEGIN, END = (f"# {'-' * dashes} the exercise {word} here\n" for dashes, word in ((91, "begins"), (93, "ends")))


def run_lab(*arguments: str | Path, folder: Path = LAB) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, env={**os.environ, "PYTHONPATH": str(LAB)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[Path], tuple[int, str, str]]]:
    """``check.py FILE`` in this process: status, stdout, stderr. Other labs have modules of the same names."""
    names = {path.stem for path in LAB.glob("*.py")} | {"learners_exercise"}
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(LAB))

    def run(file: Path) -> tuple[int, str, str]:
        status = importlib.import_module("check").main([str(file)])
        return status, *capsys.readouterr()

    yield run
    sys.path.remove(str(LAB))
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(hidden)


def variant(folder: Path, before: str, after: str) -> Path:
    """The solution with one line changed."""
    text = (LAB / "solution.py").read_text()
    assert text.count(before) == 1, before
    file = folder / "mine.py"
    file.write_text(text.replace(before, after))
    return file


def test_starter_is_the_solution_without_the_exercise() -> None:
    parts = []
    for name in ("solution.py", "starter.py"):
        before, rest = (LAB / name).read_text().split(BEGIN)
        inside, after = rest.split(END)
        functions = [node for node in ast.parse(inside).body if isinstance(node, ast.FunctionDef)]
        parts.append((before, after, [(f.name, ast.unparse(f.args), ast.get_docstring(f)) for f in functions]))
        assert inside.count("raise NotImplementedError") == (3 if name == "starter.py" else 0)
        lines = sum((f.end_lineno or 0) - f.body[1].lineno + 1 for f in functions)
        assert lines <= 30
    assert parts[0] == parts[1]
    assert [name for name, _, _ in parts[0][2]] == ["groups_of", "link_bytes", "simulate"]


# -- the solution ----------------------------------------------------------------------------------------------------


def test_claims_hold_and_the_figures_are_those_of_the_links() -> None:
    done = run_lab("solution.py", "--json", "--size", "2G")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["schema_version"] == 1
    assert len(report["claims"]) >= 10
    assert all(claim["holds"] for claim in report["claims"])
    blocks = {block["title"]: block for block in report["blocks"]}
    nics, one = (blocks[title] for title in ("8 x dgx-h100, a NIC per GPU", "8 x dgx-h100, one NIC, for eight GPUs"))
    # 7/8 of the vector twice, over what payload reaches of 50 GB/s.
    assert nics["rows"][1]["seconds"] == pytest.approx(2 * 7 / 8 * (2 << 30) / 48e9, rel=0.01)
    assert one["rows"][1]["seconds"] == pytest.approx(8 * nics["rows"][1]["seconds"], rel=0.01)
    assert "9 by headlines" in nics["notes"][0]
    assert nics["notes"][1].startswith("18 where")
    assert "72 by headlines" in one["notes"][0]


@pytest.mark.parametrize(
    ("before", "after", "fails"),
    [
        # Groups that do not share links, an order turned round, latency counted as if it were a step's bytes.
        ("np.tile(rows.num_chunks[away] * chunk_bytes, len(groups))",
         "np.tile(rows.num_chunks[away] * chunk_bytes / len(groups), len(groups))", "rank order|one NIC: TP"),
        ("slowest_first = list(reversed(order))", "slowest_first = list(order)", "TP in the island beats"),
        ("float(step_s.max() + routes", "float(step_s.max() + 1e3 * routes", "TP in the island beats"),
    ],
)  # fmt: skip
def test_a_wrong_simulator_fails_its_claims(before: str, after: str, fails: str, tmp_path: Path) -> None:
    done = run_lab(variant(tmp_path, before, after), "--size", "64M", folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(f"  FAILS  .*({fails})", done.stdout)


def test_small_messages_are_shown_and_not_judged() -> None:
    done = run_lab("solution.py", "--size", "8")
    assert done.returncode == 0
    assert done.stdout.endswith("claims are of large messages, 64 MiB and more: none judged\n")


def test_bubbles_are_the_formulas_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "bubble.svg"
    done = run_lab("solution.py", "--bubble", "--stages", "3", "--microbatches", "6", "--interleave", "4", "--json",
                   "--svg", picture)  # fmt: skip
    assert done.returncode == 0, done.stderr
    shares = {(one["kind"], one["interleave"]): one["bubble"] for one in json.loads(done.stdout)["schedules"]}
    assert shares == {("gpipe", 1): 2 / 8, ("1f1b", 1): 2 / 8, ("1f1b", 4): pytest.approx(2 / 26)}
    assert picture.read_text().count("<title>micro-batch") == 2 * 18 * 2 + 2 * 18 * 4


def test_blast_radius_counts_jobs_of_both_placements() -> None:
    done = run_lab("solution.py", "--blast-radius", "--json")
    assert done.returncode == 0, done.stderr
    placements = json.loads(done.stdout)["placements"]
    jobs = {name: {row["part"]: row["jobs"] for row in rows} for name, rows in placements.items()}
    wanted = {"GPU", "NIC", "NVSwitch", "node", "leaf", "rail", "rack", "power feed of 4 racks"}
    assert wanted <= set(jobs["packed"])
    assert [jobs[name]["rack"] for name in ("packed", "dealt out")] == [1, 4]
    assert jobs["packed"]["spine"] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--bubble", "--blast-radius"), "choose one"),
        (("--svg", "x.svg"), "--svg draws the schedules of --bubble"),
        (("--size", "0"), "expected at least 1"),
        (("--bubble", "--microbatches", "7"), "7 is no multiple of 4"),
        (("--no-such",), "No such option"),
    ],
)
def test_bad_arguments_are_one_line(arguments: tuple[str, ...], says: str) -> None:
    done = run_lab("solution.py", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


# -- the judge -------------------------------------------------------------------------------------------------------


def test_the_solution_passes_and_the_starter_says_what_to_do() -> None:
    done = run_lab("check.py", "solution.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"\nAll \d\d cases pass\.\n$", done.stdout)
    done = run_lab("check.py", "starter.py")
    assert done.returncode == 1
    assert "groups_of is still to be written" in done.stdout


EXPLAINED = {
    "transposed": (".reshape(-1, degrees[axis])", ".reshape(-1, degrees[axis]).T", "That is the transpose"),
    "order turned": ("slowest_first = list(reversed(order))", "slowest_first = list(order)",
                     "the first axis named is the fastest"),
    "replaced": ("np.bincount(routes.links, weights=np.repeat(sizes, hops), minlength=num_links)",
                 "np.array([max([s for s, l in zip(np.repeat(sizes, hops), routes.links) if l == n], default=0.0) "
                 "for n in range(num_links)])", "add up, do not replace"),
    "headline": ("cluster.usable_bytes_per_s\n", "cluster.bandwidth_bytes_per_s\n", "That is by headline bandwidths"),
    "no latency": (" + routes.latency_s(cluster).max())", ")", "The latency of the routes is missing"),
    "first group": ("    chunk_bytes =", "    groups = groups[:1]\n    chunk_bytes =",
                    "of the first group alone|transfers that share"),
    "one chunk": ("rows.num_chunks[away] * chunk_bytes", "0 * rows.num_chunks[away] + chunk_bytes",
                  "A row moves num_chunks chunks"),
    "wrong link": ("int(busy_s.argmax())", "int(busy_s.argmin())", "the time is right; busiest is"),
    "a name": ("return total_s, link_name", "return total_s; link_name", "expected seconds and the name of a link"),
    "raises": ("total_s += float", "total_s += floot", r"NameError: .*\(line \d+ in simulate\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPLAINED)
def test_mistakes_are_explained(name: str, tmp_path: Path, check: Callable[[Path], tuple[int, str, str]]) -> None:
    before, after, says = EXPLAINED[name]
    status, told, _ = check(variant(tmp_path, before, after))
    assert status == 1
    assert "FAIL  " in told
    assert re.search(says, told), told


def test_local_moves_use_no_link_so_routing_them_does_no_harm(
    tmp_path: Path, check: Callable[[Path], tuple[int, str, str]]
) -> None:
    changed = variant(tmp_path, "away = rows.src != rows.dst", "away = np.ones(len(rows.src), dtype=bool)")
    assert check(changed)[0] == 0


def test_files_that_cannot_be_judged(tmp_path: Path, check: Callable[[Path], tuple[int, str, str]]) -> None:
    cases = {
        "broken.py": ("def f(:\n", "Python does not understand line 1 of broken.py"),
        "empty.py": ("", "does not define groups_of, link_bytes, simulate"),
        "ends.py": ("raise SystemExit\n", "ends the program when it is imported"),
    }
    for name, (text, says) in cases.items():
        (tmp_path / name).write_text(text)
        status, _, told = check(tmp_path / name)
        assert status == 2
        assert says in told
    assert "cannot be read" in check(tmp_path / "none.py")[2]


# -- the README ------------------------------------------------------------------------------------------------------


def test_the_readme_is_what_is_printed(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    shutil.copytree(LAB, folder, ignore=shutil.ignore_patterns("__pycache__"))
    readme = LAB / "README.md"
    kinds = [kind for kind, _, _ in all_blocks(readme)]
    assert set(kinds) == {"console"}, "answers are indented: see below"
    assert run_console_blocks(readme, folder) >= 10
    # Blocks inside of answers are indented; they are run the same way.
    answers = tmp_path / "answers.md"
    text = readme.read_text().split("## Answers")[1]
    answers.write_text(re.sub(r"^   ", "", text, flags=re.MULTILINE))
    assert run_console_blocks(answers, folder) == 3
