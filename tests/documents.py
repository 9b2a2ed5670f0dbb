"""Documents as tests see them: their fenced blocks, to be executed."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def blocks(document: Path, language: str) -> list[tuple[int, str]]:
    """(line number of the first line, text) of every fenced block of a language."""
    text = document.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start(1)) + 1, match[1])
        for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def run_python_blocks(document: Path) -> dict[str, object]:
    """Execute a document's Python blocks one after the other, in one namespace; errors name the document's lines."""
    namespace: dict[str, object] = {"__name__": document.stem}
    for line, source in blocks(document, "python"):
        exec(compile("\n" * (line - 1) + source, str(document), "exec"), namespace)
    return namespace
