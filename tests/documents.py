"""Documents as tests see them: their fenced blocks, to be executed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def blocks(document: Path, language: str) -> list[tuple[int, str]]:
    """(line number of the first line, text) of every fenced block of a language."""
    return [(line, text) for kind, line, text in all_blocks(document) if kind == language]


def all_blocks(document: Path) -> list[tuple[str, int, str]]:
    """(language, line number of the first line, text) of every fenced block, in order."""
    text = document.read_text(encoding="utf-8")
    return [
        (match[1].strip(), text.count("\n", 0, match.start(2)) + 1, match[2])
        for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def run_python_blocks(document: Path) -> dict[str, object]:
    """Execute a document's Python blocks one after the other, in one namespace; errors name the document's lines."""
    namespace: dict[str, object] = {"__name__": document.stem}
    for line, source in blocks(document, "python"):
        exec(compile("\n" * (line - 1) + source, str(document), "exec"), namespace)
    return namespace


def run_console_blocks(document: Path, folder: Path) -> int:
    """Run a document's ``console`` blocks in ``folder`` and compare what they print; how many commands were run.

    A command is a line that begins with ``$``, what follows is its output. In a block marked ``console measured``
    numbers may differ: they are compared as numbers of whatever value. A Python block whose first line is a comment
    with a file name becomes that file first. ``make demo`` stands for the command in the Makefile's recipe.
    """
    ran = 0
    for kind, line, text in all_blocks(document):
        named = re.match(r"# ([\w.]+\.py)\n", text)
        if kind == "python" and named:
            (folder / named[1]).write_text(text, encoding="utf-8")
        if not kind.startswith("console"):
            continue
        for command, expected in _commands(text):
            got = run_command(command, folder)
            mask = _masked if kind == "console measured" else str
            where = f"{document.name}, block at line {line}: {command}"
            assert mask(got) == mask(expected), f"{where}\nprints\n{got}\nand the document says\n{expected}"
            ran += 1
    return ran


def run_command(command: str, folder: Path) -> str:
    """What a shell command prints on both streams, trailing blanks of lines left out."""
    if command == "make demo":
        recipe = re.search(r"^demo:.*\n\t\$\(BIN\)/(.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
        assert recipe is not None
        command = recipe[1]
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "100"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=120, check=False,
    )  # fmt: skip
    return "\n".join(part.rstrip() for part in done.stdout.decode().rstrip("\n").split("\n"))


def _commands(block: str) -> list[tuple[str, str]]:
    """(command, its output) in a console block."""
    parts = re.split(r"^\$ (.*)$", block, flags=re.MULTILINE)
    outputs = ["\n".join(part.rstrip() for part in output.strip("\n").split("\n")) for output in parts[2::2]]
    return list(zip(parts[1::2], outputs, strict=True))


def _masked(text: str) -> str:
    """Numbers, and the blanks that align them, made alike."""
    return re.sub(r" +", " ", re.sub(r"\d[\d.]*(e[+-]?\d+)?", "0", text))


def fill_console_blocks(document: Path, folder: Path) -> None:
    """Write what the commands print now into the document: ``python tests/documents.py FILE``."""
    text = document.read_text(encoding="utf-8")
    for kind, _, block in all_blocks(document):
        named = re.match(r"# ([\w.]+\.py)\n", block)
        if kind == "python" and named:
            (folder / named[1]).write_text(block, encoding="utf-8")
        if kind.startswith("console"):
            filled = "".join(f"$ {command}\n{run_command(command, folder)}\n" for command, _ in _commands(block))
            text = text.replace(f"```{kind}\n{block}```", f"```{kind}\n{filled}```", 1)
    document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    import tempfile

    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as work:
            fill_console_blocks(Path(name), Path(work))
