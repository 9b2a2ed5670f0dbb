"""The handbook's chapter on failure: every program and command in it prints what stands there."""

from pathlib import Path

from documents import REPOSITORY, run_console_blocks


def test_the_chapter_is_what_its_programs_print(tmp_path: Path) -> None:
    assert run_console_blocks(REPOSITORY / "docs" / "handbook" / "when_a_rank_fails.md", tmp_path) == 4
