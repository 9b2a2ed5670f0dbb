"""The scoreboard: what predictions must reach, on what they were not fitted to; run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atoll.simulator.accuracy_record import HELD_OUT_SPREADS, PRESET_SPREADS
from atoll.simulator.calibration import MAX_FITTED

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "benchmarks" / "accuracy.py"


def scoreboard(*arguments: str) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--json", *arguments], capture_output=True, text=True, check=True, timeout=200
    )
    board: dict[str, Any] = json.loads(done.stdout)
    return board, done.stderr


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    return scoreboard()[0]


def rows(board: dict[str, Any], table: str, of: str) -> dict[str, dict[str, Any]]:
    found = {row["system"]: row for row in board[table] if row["of"] == of}
    assert found
    return found


def test_calibrated_predictions_of_what_was_held_out(board: dict[str, Any]) -> None:
    for row in rows(board, "calibrated", "held out").values():
        assert len(row["factors"]) <= MAX_FITTED
        assert row["gpus"] == [2, 8]
        assert row["rows"] == [140, 140, 80, 60]
        assert max(row["median"]) <= 0.10
    for name in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter"):
        for row in rows(board, "calibrated", f"held out: {name}").values():
            assert max(row["median"]) <= 0.10


def test_calibration_beats_plain_interpolation(board: dict[str, Any]) -> None:
    """All-reduce on 4 GPUs from 2 and 8; over all sizes, and above all where bandwidth counts."""
    plain = rows(board, "calibrated", "interpolated: all_reduce")
    for system, row in rows(board, "calibrated", "held out: all_reduce").items():
        assert row["all"] < plain[system]["all"]
        assert row["median"][2] < plain[system]["median"][2]
        assert row["median"][3] < plain[system]["median"][3] / 2


def test_predictions_from_presets_alone(board: dict[str, Any]) -> None:
    for row in rows(board, "presets_only", "all").values():
        assert sum(row["rows"]) == 504
        assert max(row["median"]) <= 0.25


def test_another_cluster_from_a_calibration_on_two_nodes(board: dict[str, Any]) -> None:
    table = rows(board, "another_cluster", "held out")
    assert table["coreweave_h100"]["worst"] <= 0.20


def test_the_cliff_between_racks(board: dict[str, Any]) -> None:
    one, two, three = board["nvl72_all_to_all"]
    assert (one["racks"], two["racks"], three["racks"]) == (1, 2, 3)
    assert one["error"] <= 0.25
    assert two["error"] <= 0.25
    assert one["predicted"] > 5 * two["predicted"] > 5 * three["predicted"] > 0


def test_the_record_that_intervals_come_from_is_this_one(board: dict[str, Any]) -> None:
    for name, spreads in (("presets", PRESET_SPREADS), ("held_out", HELD_OUT_SPREADS)):
        for kept, found in zip(spreads, board["record"][name], strict=True):
            assert kept.rows == found["rows"]
            for end in ("median", "low", "high"):
                assert getattr(kept, end) == pytest.approx(found[end], abs=6e-4)


def test_the_page_shows_this_scoreboard(board: dict[str, Any]) -> None:
    page = (REPOSITORY / "docs" / "accuracy.md").read_text()
    for table in ("calibrated", "presets_only", "another_cluster", "presets_elsewhere"):
        for row in board[table]:
            cells = " | ".join(
                "-" if value is None else f"{value * 100:.1f} %" for value in [*row["median"], row["all"], row["worst"]]
            )
            assert f"| {row['system']} | {row['of'].replace('_', '-')} | {cells} |" in page


def test_further_files_are_scored_and_what_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "sweep.csv").write_text(
        "system,lib_version,op_name,nccl_dtype,num_gpus,bytes,median\n"
        + "".join(
            f"h200_sxm,unknown,all_reduce,half,{gpus},{1 << exponent},{5 + gpus + (1 << exponent) / 2e5:.2f}\n"
            for gpus in (2, 4, 8)
            for exponent in range(10, 30, 2)
        )
    )
    (tmp_path / "strange.csv").write_text("system,op_name,num_gpus,bytes,median\nsun_4,all_reduce,2,8,5\n")
    (tmp_path / "notes.txt").write_text("nothing here\n")
    found, said = scoreboard(str(tmp_path), "--only")
    assert [row["system"] for row in found["further_presets_only"]] == ["h200_sxm"]
    assert {row["of"] for row in found["further_calibrated"]} >= {"fitted", "held out", "interpolated: all_reduce"}
    assert "sun_4" in said
    assert "notes.txt" in said


def test_the_measurements_that_come_with_the_cases_can_all_be_scored(cases: Path) -> None:
    found, said = scoreboard(str(cases / "collective_times"), str(cases / "nccl_tests"), "--only")
    scored = {row["system"]: row for row in found["further_presets_only"] if row["of"] == "all"}
    assert max(scored["h100_sxm"]["median"]) <= 0.25
    assert max(scored["a100_sxm"]["median"]) <= 0.25
    assert "misconfigured" in said
    assert any("hosts" in line for line in found["presumed"])
