"""The handbook's doctor chapter: generated pages are current, and every story is run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from atoll.cli.doctor import command
from atoll.doctor.catalogue import RULES
from atoll.doctor.handbook import pages, write

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "handbook" / "doctor"
CHAPTER = FOLDER / "survival-kit.md"
_FILE = re.compile(r"^```\w+ file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^```console\n\$ atoll doctor (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_generated_pages_are_current() -> None:
    for name, text in pages().items():
        path = FOLDER / name
        assert path.is_file(), f"{name} is missing: atoll doctor --write-handbook docs/handbook/doctor"
        assert path.read_text() == text, f"{name} is old: atoll doctor --write-handbook docs/handbook/doctor"
    on_disk = {f"rules/{path.name}" for path in (FOLDER / "rules").glob("*.md")}
    assert on_disk == {name for name in pages() if name.startswith("rules/")}


def test_every_rule_has_a_page_that_says_everything() -> None:
    for rule in RULES:
        page = pages()[f"rules/{rule.id}.md"]
        for part in (rule.title, rule.claim, rule.evidence, rule.guard, rule.fix):
            assert part, rule.id
            assert part in page


def test_links_between_pages_lead_somewhere() -> None:
    for name, text in [*pages().items(), ("survival-kit.md", CHAPTER.read_text())]:
        for target in re.findall(r"\]\(([^)#]+\.md)\)", text):
            assert (FOLDER / name).parent.joinpath(target).resolve().is_file(), f"{name} -> {target}"


def test_writing_removes_pages_of_rules_that_are_gone(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "Z99.md").write_text("old")
    assert write(tmp_path) == len(pages())
    assert not (tmp_path / "rules" / "Z99.md").exists()


def test_explained_rules_exist() -> None:
    known = {rule.id for rule in RULES}
    assert len(known) == len(RULES)
    for rule in RULES:
        assert set(rule.explains) <= known, rule.id
        assert rule.id not in rule.explains, rule.id


STORIES = dict(_CONSOLE.findall(CHAPTER.read_text()))


def test_the_four_stories_of_the_field_are_told() -> None:
    told = " ".join(STORIES.values())
    for rule in ("L01", "H01", "N01", "L02", "L04"):
        assert f"FINDINGS: {rule} " in told


@pytest.mark.parametrize("story", sorted(STORIES))
def test_a_story_ends_as_it_is_told(story: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in _FILE.findall(CHAPTER.read_text()):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    monkeypatch.chdir(tmp_path)
    assert os.path.isdir(story)
    result = CliRunner().invoke(command, [story], standalone_mode=False)
    assert result.return_value == 1
    assert result.output == STORIES[story]
