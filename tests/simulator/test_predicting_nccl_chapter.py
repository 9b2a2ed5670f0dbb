"""The handbook's chapter on predicting NCCL: its commands print what it says, its figures are the scoreboard's."""

from __future__ import annotations

from pathlib import Path

from documents import REPOSITORY, all_blocks, run_console_blocks

CHAPTER = REPOSITORY / "docs" / "handbook" / "predicting_nccl.md"


def test_every_command_prints_what_the_chapter_says(tmp_path: Path) -> None:
    commands = sum(line.startswith("$ ") for _, _, text in all_blocks(CHAPTER) for line in text.splitlines())
    assert run_console_blocks(CHAPTER, tmp_path) == commands >= 6


def test_the_measured_figures_are_those_of_the_scoreboard() -> None:
    measured = (REPOSITORY / "benchmarks" / "measured" / "clusters.csv").read_text(encoding="utf-8")
    for system, ranks, said in (("oci_gb200_1_rack", 64, 624), ("oci_gb200_2_racks", 128, 90)):
        row = next(line for line in measured.splitlines() if line.startswith(system) and f",{8 << 30}," in line)
        busbw = (8 << 30) / (float(row.rsplit(",", 1)[1]) * 1e-6) * (ranks - 1) / ranks / 1e9
        assert round(busbw) == said
    assert "624 and 90 GB/s" in CHAPTER.read_text(encoding="utf-8")
