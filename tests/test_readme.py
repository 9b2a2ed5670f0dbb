"""README.md is executed, and what it points to is there."""

import re
from pathlib import Path

from documents import REPOSITORY, blocks, run_command, run_console_blocks

README = REPOSITORY / "README.md"


def test_every_command_prints_what_the_page_says(tmp_path: Path) -> None:
    assert run_console_blocks(README, tmp_path) == 5
    assert len(blocks(README, "python")) == 2


def test_the_commands_of_the_table_exist(tmp_path: Path) -> None:
    commands = re.findall(r"`(atoll [^`]+)`", README.read_text(encoding="utf-8"))
    assert len(commands) >= 10
    for command in {" ".join(command.split()[:2]) for command in commands}:
        assert run_command(f"{command} --help", tmp_path).startswith("Usage: atoll"), command


def test_what_it_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert len(links) >= 10
    for link in links:
        assert (REPOSITORY / link).exists(), link
