"""The handbook's chapter on the emulated cluster: its program prints what it says, its options are there."""

import re
from pathlib import Path

from click.testing import CliRunner

from atoll.cli.compare import command as compare
from atoll.cli.emulate import command as emulate
from atoll.emulator.queues import BURST_S
from documents import REPOSITORY, run_console_blocks

CHAPTER = REPOSITORY / "docs" / "handbook" / "emulated_cluster.md"
TEXT = CHAPTER.read_text(encoding="utf-8")


def test_the_program_prints_what_the_chapter_says(tmp_path: Path) -> None:
    assert run_console_blocks(CHAPTER, tmp_path) == 1


def test_the_options_and_figures_it_names_are_those_of_the_code() -> None:
    helps = "".join(CliRunner().invoke(command, ["--help"]).output for command in (emulate, compare))
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) - {"--algorithm", "--net"}
    assert options >= {"--nodes", "--ranks-per-node", "--nics-per-node", "--oversubscription"}
    assert {option for option in options if option not in helps} == set()
    assert f"holds {BURST_S * 1000:g} ms worth" in TEXT
