"""The glossary defines every public word of the table, the contracts and the errors, each once and briefly."""

from __future__ import annotations

import re

from atoll import errors
from atoll.schedule.contract import COLLECTIVES, contract
from atoll.schedule.table import COLUMNS, Header
from documents import REPOSITORY

TEXT = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8")
ENTRIES = re.findall(r"^- (.*(?:\n  .*)*)", TEXT, re.MULTILINE)
TERMS = re.findall(r"\*\*(.+?)\*\*", TEXT)

# Fixed by the house's second rule.
FIELD_WORDS = {
    "rank", "world_size", "local_rank", "chunk", "segment", "step", "channel", "island", "rail", "node", "link",
    "algbw", "busbw", "reduce_scatter",
}  # fmt: skip


def test_every_public_word_is_defined() -> None:
    world_errors = {"CollectiveMismatch", "PeerLost", "CollectiveTimeout"}
    needed = {*FIELD_WORDS, *COLUMNS, *COLLECTIVES, *world_errors, "SpecError", "ScheduleError", "InternalError"}
    assert all(issubclass(getattr(errors, name), errors.AtollError) for name in needed if name.endswith("Error"))
    assert needed - set(TERMS) == set()
    assert {"world_size", "root"} <= {*Header.__struct_fields__} & set(TERMS)


def test_every_term_is_defined_once_and_briefly() -> None:
    assert len(TERMS) == len(set(TERMS))
    assert re.findall(r"\*\*(.+?)\*\*", "\n".join(ENTRIES)) == TERMS  # no bold text elsewhere
    for entry in ENTRIES:
        assert entry.startswith("**")
        assert ": " in entry.replace("\n", " ")
        assert len(entry.split()) <= 60
        assert entry.endswith((".", ";"))


def test_collectives_are_spelt_as_on_the_command_line() -> None:
    for name in COLLECTIVES:
        if "_" in name:
            assert f"**{name}** ({name.replace('_', '-')}): " in TEXT


def test_collectives_cut_by_rank_are_said_to_be_made_of_blocks() -> None:
    for name, known in COLLECTIVES.items():
        (entry,) = [entry for entry in ENTRIES if entry.startswith(f"**{name}**")]
        assert ("block" in entry) == (contract(name, 2, 2, 0 if known.rooted else None).blocks == 2)
        assert ("root" in entry) == known.rooted
