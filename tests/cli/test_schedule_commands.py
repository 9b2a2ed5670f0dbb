"""``atoll prove``, ``draw`` and ``explain`` as a shell sees them: standard output, standard error, exit status."""

import io
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from atoll.algorithms.catalog import CATALOG, build
from atoll.cli import topics
from atoll.cli.main import COMMANDS, entry_point
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.count import count
from atoll.schedule.msccl_write import write_msccl_xml
from atoll.schedule.prove import prove
from atoll.schedule.table import Schedule


class Run(NamedTuple):
    status: int
    out: str
    err: str


Atoll = Callable[..., Run]


@pytest.fixture
def atoll(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Atoll:
    def run(*arguments: str, stdin: bytes = b"") -> Run:
        monkeypatch.setattr(sys, "argv", ["atoll", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit_info:
            entry_point()
        captured = capsys.readouterr()
        assert "\x1b" not in captured.out + captured.err, "no colour when piped"
        return Run(int(exit_info.value.code or 0), captured.out, captured.err)

    return run


def wrong_schedule() -> Schedule:
    """Rank 2's contribution never reaches rank 0."""
    builder = ScheduleBuilder("all_reduce", 3, chunks=1, name="lame")
    builder.reduce(0, 1, 0, 0)
    builder.copy(1, 0, [1, 2], 0)
    return builder.build()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with good and bad files, made the current one."""
    monkeypatch.chdir(tmp_path)
    ring = build("all_reduce", "ring", 4)
    (tmp_path / "good.json").write_bytes(ring.to_json())
    (tmp_path / "good.xml").write_text(write_msccl_xml(prove(ring)))
    (tmp_path / "wrong.json").write_bytes(wrong_schedule().to_json())
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "cut.json").write_bytes(ring.to_json()[:200])
    (tmp_path / "binary.xml").write_bytes(bytes(range(256)))
    (tmp_path / "old.json").write_text('{"schema_version": 99}')
    (tmp_path / "list.txt").write_text("[1, 2]")
    (tmp_path / "folder").mkdir()
    return tmp_path


# --- prove ----------------------------------------------------------------------------------------------------------


def test_prove_an_algorithm(atoll: Atoll) -> None:
    status, out, err = atoll("prove", "ring", "--world", "4", "--size", "1M")
    assert (status, err) == (0, "")
    assert out.startswith("PROVEN  ring\n")
    assert "all-reduce among 4 ranks: 4 chunks, 24 rows, 6 steps, in place" in out
    assert "(4 distinct orders)" in out
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["bytes"])
    assert row[:6] == ["bytes", "1.5", "MiB", "1.5", "MiB", "1"]
    assert "24 messages, at most 6 a rank; longest chain of messages 6" in out


def test_prove_counts_are_those_of_count(atoll: Atoll) -> None:
    status, out, _ = atoll("prove", "halving-doubling", "--world", "6", "--size", "1000", "--json")
    document = json.loads(out)
    assert (status, document["schema_version"]) == (0, 1)
    (result,) = document["results"]
    schedule = build("all_reduce", "halving_doubling", 6)
    counts = count(prove(schedule), 250, 4)
    assert result["schedule"]["fingerprint"] == schedule.fingerprint()
    assert result["counts"]["unit"] == "bytes"
    assert result["counts"]["sent"] == counts.sent.tolist()
    assert result["counts"]["received"] == counts.received.tolist()
    assert sum(pair["moved"] for pair in result["counts"]["pairs"]) == int(counts.sent.sum())
    assert result["counts"]["ratios"]["bandwidth"] == counts.bandwidth_ratio
    assert result["certificate"]["num_orders"] == 1
    assert result["error"] is None


def test_prove_defaults_and_spellings(atoll: Atoll) -> None:
    """A name that is no all-reduce finds its collective; hyphens and underscores are one; the root is 0."""
    assert "all-to-all among 5 ranks" in atoll("prove", "pairwise", "--world", "5").out
    assert "broadcast among 5 ranks, root 0" in atoll("prove", "chain", "--world", "5").out
    assert (
        "reduce among 5 ranks, root 3"
        in atoll("prove", "chain", "--world", "5", "--collective", "reduce", "--root", "3").out
    )
    assert "all-gather among 5 ranks" in atoll("prove", "ring", "--world", "5", "--collective", "all_gather").out
    assert atoll("prove", "recursive_doubling", "--world", "4").out == atoll(
        "prove", "recursive-doubling", "--world", "4"
    ).out.replace("recursive-doubling", "recursive_doubling")
    assert "out of place" in atoll("prove", "ring", "--world", "3", "--out-of-place").out


def test_prove_with_islands_and_options(atoll: Atoll) -> None:
    out = atoll("prove", "hierarchical", "--world", "8", "-O", "group_size=4", "--islands", "4").out
    across = next(line for line in out.splitlines() if line.lstrip().startswith("across islands"))
    # Each of four members takes a quarter of 2(M-1)/M n = n across: n leaves an island, 2 n in all.
    assert across.split()[2:] == ["2", "n", "0.25", "n", "1", "n", "16"]
    assert "18 chunks" in atoll("prove", "hierarchical", "--world", "8", "-O", "group-size=3").out
    assert "whole number" in atoll("prove", "hierarchical", "--world", "8", "-O", "group_size=x").err
    assert "expected NAME=VALUE" in atoll("prove", "hierarchical", "--world", "8", "-O", "group_size").err
    assert "did you mean 'group_size'" in atoll("prove", "hierarchical", "--world", "8", "-O", "groupsize=2").err
    assert "it has none" in atoll("prove", "ring", "--world", "8", "-O", "x=2").err


def test_prove_refuses_a_wrong_schedule_and_says_where(atoll: Atoll, files: Path) -> None:
    status, out, err = atoll("prove", "wrong.json")
    assert (status, err) == (1, "")
    assert out.startswith("REFUSED  wrong.json\n")
    assert "lame: wrong output at rank 0, chunk 0: expected chunk 0 of ranks 0-2, got chunk 0 of ranks 0-1" in out
    document = json.loads(atoll("prove", "wrong.json", "--json").out)
    error = document["results"][0]["error"]
    assert (error["type"], error["rank"], error["chunk"]) == ("ScheduleError", 0, 0)


def test_prove_several_files(atoll: Atoll, files: Path) -> None:
    status, out, _ = atoll("prove", "good.json", "good.xml", "wrong.json")
    assert status == 1
    verdicts = [line.split()[0] for line in out.splitlines()[1:4]]
    assert verdicts == ["PROVEN", "PROVEN", "REFUSED"]
    assert out.splitlines()[-1] == "2 proven, 1 refused"
    status, out, _ = atoll("prove", "good.json", "cut.json", "wrong.json")
    assert status == 2, "unusable input outweighs a refusal"
    assert out.splitlines()[-1] == "1 proven, 1 refused, 1 unusable"
    document = json.loads(atoll("prove", "good.json", "nope.json", "--json").out)
    assert [result["verdict"] for result in document["results"]] == ["proven", "unusable"]


def test_prove_shows_what_it_found_before_ctrl_c(atoll: Atoll, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("atoll.schedule.msccl_check.check", interrupted)
    status, out, err = atoll("prove", "good.json", "good.xml", "wrong.json")
    assert (status, err.strip()) == (130, "atoll: interrupted")
    assert out.splitlines()[-1] == "1 proven"


@pytest.mark.parametrize("name", ["empty.json", "cut.json", "binary.xml", "old.json", "list.txt", "folder", "no.xml"])
def test_unusable_files_are_one_line_and_status_2(atoll: Atoll, files: Path, name: str) -> None:
    for command in ("prove", "draw"):
        status, out, err = atoll(command, name)
        assert status == 2
        said = err or out.split("\n", 1)[1]
        assert name in said
        assert len(said.strip().splitlines()) == 1
        assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rign", "--world", "4"), "did you mean 'ring'"),
        (("ring", "--world", "4", "--collective", "al-reduce"), "did you mean 'all-reduce'"),
        (("ring", "--world", "4", "--collective", "broadcast"), "unknown algorithm 'ring' for broadcast"),
        (("ring",), "add --world"),
        (("ring", "--world", "0"), "--world: expected 1 to"),
        (("ring", "--world", "-3"), "--world: expected 1 to"),
        (("ring", "--world", "100000000"), "--world: expected 1 to"),
        (("chain", "--world", "4", "--root", "4"), "root"),
        (("ring", "--world", "4", "--root", "0"), "has no root"),
        (("ring", "--world", "4", "--size", "-8"), "--size"),
        (("ring", "--world", "4", "--size", "10"), "no whole number of elements of 4 bytes"),
        (("ring", "--world", "4", "--size", "8", "--itemsize", "0"), "--itemsize"),
        (("pairwise", "--world", "4", "--size", "4"), "multiple of 4"),
        (("ring", "--world", "4", "--islands", "0"), "--islands"),
        (("ring", "--world", "2048", "--out-of-place", "--collective", "all-to-all"), "unknown algorithm"),
        (("a\0b", "--world", "4"), "neither a file nor an algorithm"),
        (("x" * 5000, "--world", "4"), "file name"),
    ],
)
def test_bad_arguments_are_one_line_and_status_2(atoll: Atoll, arguments: tuple[str, ...], message: str) -> None:
    status, out, err = atoll("prove", *arguments)
    assert status == 2
    said = err + out
    assert message in said
    assert "Traceback" not in said


def test_what_a_file_says_is_not_overruled(atoll: Atoll, files: Path) -> None:
    assert atoll("prove", "good.json", "--world", "4", "--collective", "all-reduce").status == 0
    assert "--world 5, but the file has 4" in atoll("prove", "good.json", "--world", "5").out
    assert (
        "--collective all_gather, but the file has all_reduce"
        in atoll("prove", "good.xml", "--collective", "all-gather").out
    )


def test_prove_reads_standard_input(atoll: Atoll) -> None:
    status, out, _ = atoll("prove", "-", stdin=build("all_gather", "ring", 3).to_json())
    assert status == 0
    assert out.startswith("PROVEN  stdin\n")


def test_prove_writes_what_it_has_proven(atoll: Atoll, files: Path) -> None:
    assert atoll("prove", "ring", "--world", "4", "--write", "out.json").status == 0
    assert Schedule.from_json((files / "out.json").read_bytes()) == build("all_reduce", "ring", 4)
    assert atoll("prove", "ring", "--world", "4", "--write", "out.xml").err == "wrote out.xml\n"
    assert atoll("prove", "out.xml").status == 0
    for arguments in (
        ("wrong.json", "--write", "w.json"),
        ("good.json", "--write", "w.txt"),
        ("good.json", "--write", "no/w.json"),
        ("good.json", "good.xml", "--write", "w.json"),
    ):
        assert atoll("prove", *arguments).status == 2
    assert not list(files.glob("w.*"))


def test_published_msccl_files(atoll: Atoll, cases: Path) -> None:
    """The wrong one is refused, the malformed one unusable, the one whose ranks disagree says so, the rest proven."""
    paths = sorted((cases / "schedules").glob("*.xml"))
    status, out, _ = atoll("prove", *map(str, paths), "--json")
    assert status == 2
    results = {Path(result["target"]).name: result for result in json.loads(out)["results"]}
    assert {name for name, result in results.items() if result["verdict"] == "refused"} == {"ar_pcie_hier.xml"}
    assert {name for name, result in results.items() if result["verdict"] == "unusable"} == {"simple_custom.xml"}
    reducing = {name: r["certificate"] for name, r in results.items() if r["verdict"] == "proven"}
    assert {name for name, certificate in reducing.items() if not certificate["same_bits"]} == {"ap-1pass.xml"}
    # Its ranks send their whole vector to the seven others: 7 n, four times the bound of 1.75 n.
    assert results["ap-1pass.xml"]["counts"]["ratios"]["bandwidth"] == pytest.approx(4)
    for name in ("ar_ring_4.xml", "ar_rhd_8.xml", "hier_ar_4x2.xml", "r48ll.xml", "ap2ll.xml"):
        assert results[name]["counts"]["ratios"]["bandwidth"] == pytest.approx(1)
    assert results["ar_rhd_8.xml"]["certificate"]["depth"] == 3


# --- draw -----------------------------------------------------------------------------------------------------------


def test_draw_text_and_svg(atoll: Atoll, files: Path) -> None:
    status, out, err = atoll("draw", "good.json", "--steps", "0-1,5")
    assert (status, err) == (0, "")
    assert "(3 of 6 steps shown: 0-1, 5)" in out
    assert all(len(line) <= 100 for line in out.splitlines())
    assert atoll("draw", "good.json", "--ascii").out.isascii()
    assert "of 78 steps" not in atoll("draw", "ring", "--world", "40", "--all-steps").out
    assert atoll("draw", "good.xml", "-o", "picture.svg") == Run(0, "", "wrote picture.svg\n")
    assert ET.parse(files / "picture.svg").getroot().tag.endswith("svg")
    assert atoll("draw", "good.xml", "--svg").out == (files / "picture.svg").read_text()
    assert "(2 of 64 ranks shown: 5, 7" in atoll("draw", "ring", "--world", "64", "--ranks", "5,7", "--width", "60").out


def test_draw_refuses_what_is_not_proven(atoll: Atoll, files: Path) -> None:
    status, out, err = atoll("draw", "wrong.json")
    assert (status, out) == (1, "")
    assert "wrong output" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ranks", "9"), ("--ranks", "a"), ("--ranks", "3-1"), ("--ranks", ""), ("--ranks", "0-99999999999"),
        ("--steps", "77"), ("--steps", "-1"), ("--width", "3"), ("--width", "0"), ("--steps", "0", "--all-steps"),
        ("-o", "no/such/folder.svg"), ("-o", "."), ("--svg", "--ranks", "4"),
    ],
)  # fmt: skip
def test_draw_bad_arguments(atoll: Atoll, files: Path, arguments: tuple[str, ...]) -> None:
    status, out, err = atoll("draw", "good.json", *arguments)
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1


def test_draw_where_the_terminal_has_no_unicode(files: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "atoll", "draw", "good.json"], capture_output=True, check=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
    )  # fmt: skip
    assert b"o----+" in finished.stdout


# --- explain --------------------------------------------------------------------------------------------------------


def test_explain_lists_terms_collectives_and_algorithms(atoll: Atoll) -> None:
    status, out, _ = atoll("explain")
    names = [line.split()[0] for line in out.splitlines()]
    assert status == 0
    assert {"busbw", "algbw", "alpha", "beta", "order"} <= set(names)
    assert {name.replace("_", "-") for name in COLLECTIVES} <= set(names)
    assert {entry.name.replace("_", "-") for entry in CATALOG} <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", list(topics.topics()))
def test_every_topic_is_explained_within_88_columns(name: str) -> None:
    topic = topics.find(name)
    page = topic.page()
    assert all(len(line) <= 88 for line in page.splitlines()[1:])
    assert len(page.splitlines()) > 4
    assert set(topic.see) <= set(topics.topics())


def test_aliases_lead_somewhere() -> None:
    for alias in topics._ALIASES:
        assert topics.find(alias).name != alias


def test_explain_busbw_by_hand(atoll: Atoll) -> None:
    """1 GiB in 8 ms is 2^30 / 0.008 bytes a second; times 2 x 7 / 8."""
    out = atoll("explain", "busbw").out
    assert f"algbw = {round(2**30 / 8e-3 / 1e9)} GB/s" in out
    assert f"busbw = {round(2**30 / 8e-3 * 2 * 7 / 8 / 1e9)} GB/s" in out


def test_explain_shows_what_a_collective_does(atoll: Atoll) -> None:
    assert "   2   C0 C1 C2 C3  A2 B2 C2 D2" in atoll("explain", "all-to-all").out
    assert "   1   B0 B1 B2 B3  S1\n" in atoll("explain", "reduce_scatter").out
    assert "   3   -            A0 A1 A2 A3" in atoll("explain", "broadcast").out


def test_explain_costs_are_counted(atoll: Atoll) -> None:
    out = atoll("explain", "ring").out
    assert "all-reduce          14     1.75       0.875      14" in out
    document = json.loads(atoll("explain", "ring", "alpha", "--json").out)
    assert document["schema_version"] == 1
    assert [topic["name"] for topic in document["topics"]] == ["ring", "alpha"]


def test_explain_unknown(atoll: Atoll) -> None:
    status, out, err = atoll("explain", "busbwx")
    assert (status, out) == (2, "")
    assert "did you mean 'busbw'" in err


# --- all ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["prove", "draw", "explain"])
def test_help_teaches_and_imports_nothing_heavy(name: str) -> None:
    code = (
        "import sys, atexit; from atoll.cli.main import entry_point; sys.argv = ['atoll', sys.argv[1], '--help'];"
        "atexit.register(lambda: print(sorted({'numpy', 'rich', 'msgspec'} & set(sys.modules)), file=sys.stderr));"
        "entry_point()"
    )
    finished = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=True)
    assert finished.stderr.strip() == "[]"
    assert f"atoll {name} ring" in finished.stdout or f"atoll {name} busbw" in finished.stdout
    assert name in COMMANDS


def test_numbers_of_pairs_are_bounded_in_json(atoll: Atoll, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.cli.prove._MAX_PAIRS", 11)
    many = json.loads(atoll("prove", "direct", "--world", "4", "--json").out)["results"][0]["counts"]
    assert many["pairs"] is None
    assert np.sum(many["sent"]) == np.sum(many["received"])
