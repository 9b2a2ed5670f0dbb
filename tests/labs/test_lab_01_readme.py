"""Every block of lab 01's README is run, in order, and must print what stands there.

Times, bandwidths and what follows from them are masked: they are the machine's. All else must be equal.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lab_variants import LAB, run_lab

FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w+)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)
MASKS = [
    (re.compile(r"\b[\d.]+ (ns|us|ms|s|min|B/s|KB/s|MB/s|GB/s)(?=[ ;,.\n]|$)"), "<measured>"),
    (re.compile(r"[\d.]+%"), "<measured>"),
    (re.compile(r"(?<=time )[\d.]+"), "<measured>"),
    (re.compile(r"(?<=<measured>) +[\d.]+$", re.MULTILINE), " <measured>"),
    (re.compile(r"^(no )?crossover.*", re.MULTILINE), "<measured>"),
    (re.compile(r" +"), " "),
]


def blocks() -> list[tuple[str, str]]:
    """(kind, text) of every fenced block."""
    text = (LAB / "README.md").read_text()
    return [
        (match["kind"], re.sub(f"^{match['indent']}", "", match["body"], flags=re.MULTILINE))
        for match in FENCE.finditer(text)
    ]


def masked(text: str) -> list[str]:
    for pattern, replacement in MASKS:
        text = pattern.sub(replacement, text)
    return [line.rstrip() for line in text.strip().splitlines()]


def split_console(block: str) -> list[tuple[str, str]]:
    """(command, output) of each ``$`` line."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
    assert parts[0] == "", f"a console block begins with a command: {block[:60]!r}"
    return list(zip(parts[1::2], parts[2::2], strict=True))


CONSOLE = [block for kind, block in blocks() if kind == "console"]
PYTHON = [
    (block, after) for (kind, block), (_, after) in zip(blocks(), [*blocks()[1:], ("", "")], strict=True)
    if kind == "python"
]  # fmt: skip


def test_every_block_is_of_a_kind_that_is_run() -> None:
    kinds = [kind for kind, _ in blocks()]
    assert set(kinds) == {"console", "python", "text"}
    assert all(before == "python" for before, kind in itertools.pairwise(kinds) if kind == "text")
    assert kinds.count("text") == len(PYTHON)
    assert len(CONSOLE) >= 7


@pytest.mark.parametrize("block", CONSOLE, ids=[block.splitlines()[0] for block in CONSOLE])
def test_console_block(block: str, tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    shutil.copytree(LAB, folder)
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "100"}
    for command, expected in split_console(block):
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=240, check=False,
        )  # fmt: skip
        assert masked(done.stdout) == masked(expected), f"$ {command}\n{done.stdout}"


@pytest.mark.parametrize(("code", "expected"), PYTHON, ids=[f"block-{number}" for number in range(len(PYTHON))])
def test_python_block(code: str, expected: str) -> None:
    done = run_lab("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected


def test_masks_leave_counts_alone() -> None:
    line = "  ring        6291456       1.000    77.6 ms      54 MB/s    81.1 MB/s"
    assert masked(line) == ["ring 6291456 1.000 <measured> <measured> <measured>"]
    assert masked("    64 KiB    1.15 ms    1.69 ms       1.47") == ["64 KiB <measured> <measured> <measured>"]
    assert masked("naive / ring: bytes 2.000 (N/2 = 2), time 3.259") == [
        "naive / ring: bytes 2.000 (N/2 = 2), time <measured>"
    ]
