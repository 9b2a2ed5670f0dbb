"""CONTRIBUTING.md is executed, and what it points to is there."""

from __future__ import annotations

import re

from documents import REPOSITORY, blocks, run_python_blocks

CONTRIBUTING = REPOSITORY / "CONTRIBUTING.md"


def test_its_code_runs() -> None:
    assert len(blocks(CONTRIBUTING, "python")) == 5
    namespace = run_python_blocks(CONTRIBUTING)
    assert repr(namespace["proven"]) == "<Proven <Schedule star: all_reduce, 5 ranks, 32 rows>>"


def test_the_files_and_targets_that_it_names_exist() -> None:
    text = CONTRIBUTING.read_text(encoding="utf-8")
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`make (\w+)`", text))
    assert targets == {"test", "lint", "types", "imports", "unit"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    paths = set(re.findall(r"(?:`|\()((?:src|tests|docs|algorithms|runtime)/[\w/.*]*)", text))
    assert len(paths) >= 8
    for path in paths:
        roots = (REPOSITORY, REPOSITORY / "src" / "atoll")
        assert any(list(root.glob(path.rstrip("/"))) for root in roots), path
