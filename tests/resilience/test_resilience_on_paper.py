"""The handbook's chapter on resilience: its programs and commands print what it says, its claims hold."""

from pathlib import Path

from documents import REPOSITORY, all_blocks, run_console_blocks

CHAPTER = REPOSITORY / "docs" / "handbook" / "resilience_on_paper.md"


def test_every_command_prints_what_the_chapter_says(tmp_path: Path) -> None:
    commands = sum(line.startswith("$ ") for _, _, text in all_blocks(CHAPTER) for line in text.splitlines())
    assert run_console_blocks(CHAPTER, tmp_path) == commands >= 8


def test_the_files_it_names_are_there() -> None:
    assert "`tests/resilience/test_published_failures.py`" in CHAPTER.read_text(encoding="utf-8")
    assert (REPOSITORY / "tests" / "resilience" / "test_published_failures.py").is_file()
