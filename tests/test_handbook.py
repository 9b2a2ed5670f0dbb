"""The handbook's chapters are executed, their figures are current, and what they point to is there."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from documents import REPOSITORY, all_blocks, blocks, run_console_blocks

HANDBOOK = REPOSITORY / "docs" / "handbook"
FIGURES = HANDBOOK / "figures"
CHAPTERS = sorted(HANDBOOK.glob("[0-9][0-9]_*.md"))
PAGES = [HANDBOOK / "README.md", *CHAPTERS]


def by_name(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("chapter", CHAPTERS, ids=by_name)
def test_every_program_prints_what_the_chapter_says(chapter: Path, tmp_path: Path) -> None:
    commands = [line for kind, _, text in all_blocks(chapter) if "console" in kind for line in text.split("\n")]
    programs = blocks(chapter, "python")
    assert len(programs) >= 2
    for line, source in programs:
        named = re.match(r"# ([\w.]+\.py)\n", source)
        assert named is not None, f"{chapter.name}:{line}: a program without a file name is never run"
        runs = re.compile(rf"\$ (python|atoll launch -n \d+) {re.escape(named[1])}")
        assert any(map(runs.match, commands)), f"{chapter.name}:{line}: {named[1]} is never run"
    assert run_console_blocks(chapter, tmp_path) == sum(command.startswith("$ ") for command in commands)


def check(folder: Path) -> tuple[int, str]:
    command = [sys.executable, str(FIGURES / "make.py"), "--check", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def test_figures_are_what_the_library_draws_now() -> None:
    assert check(FIGURES) == (0, ""), "python docs/handbook/figures/make.py"


def test_old_missing_and_foreign_figures_are_told(tmp_path: Path) -> None:
    for figure in FIGURES.glob("*.svg"):
        (tmp_path / figure.name).write_bytes(figure.read_bytes())
    (tmp_path / "scatter.svg").unlink()
    ring = tmp_path / "ring-4.svg"
    ring.write_text(ring.read_text().replace("step 5", "step 6"))
    (tmp_path / "mine.svg").write_text("<svg/>")
    status, told = check(tmp_path)
    assert status == 1
    assert sorted(line.split()[0] for line in told.splitlines()) == ["mine.svg", "ring-4.svg", "scatter.svg"]


def test_every_figure_is_shown_told_in_words_and_well_formed() -> None:
    shown = set()
    for page in PAGES:
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert len(words) >= 30, f"{page.name}: {target} has no description"
            shown.add(target)
    assert shown == {f"figures/{figure.name}" for figure in FIGURES.glob("*.svg")}
    for figure in FIGURES.glob("*.svg"):
        root = ET.fromstring(figure.read_text(encoding="utf-8"))
        texts = {name: root.find(f"{{http://www.w3.org/2000/svg}}{name}") for name in ("title", "desc")}
        assert all(text is not None and text.text for text in texts.values()), figure.name


def test_the_ladder_is_the_one_in_the_text() -> None:
    rungs = re.findall(r">([\d.]+ [GT]B/s)<", (FIGURES / "ladder.svg").read_text(encoding="utf-8"))
    table = re.findall(r"^\| [^|]+ \| ([\d.]+ [GT]B/s)", (HANDBOOK / CHAPTERS[0]).read_text(encoding="utf-8"), re.M)
    assert len(rungs) >= 8
    assert table == rungs


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8"))
    assert len(links) >= 2
    for link in links:
        assert (page.parent / link).exists(), link


def test_the_index_names_every_page() -> None:
    links = re.findall(r"\]\(([^)#\s]+)\)", PAGES[0].read_text(encoding="utf-8"))
    pages = {path.relative_to(HANDBOOK).as_posix() for path in (*CHAPTERS, *(HANDBOOK / "doctor").glob("*.md"))}
    assert pages <= set(links)
    assert {"doctor/rules/README.md", "../../labs/lab_01_ring_all_reduce/README.md"} <= set(links)
