"""Links calibrated by what ``atoll bench`` measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from atoll.cli.main import main
from atoll.errors import SpecError
from atoll.readers.bench_json import BenchRow, is_bench_json, read_bench_json
from atoll.simulator.calibration_links import calibrate_links
from atoll.simulator.closed_form import closed_form
from atoll.topology.load import load_cluster
from atoll.topology.presets import preset

ALGORITHMS = ("ring", "hierarchical", "direct")


def rows(latency: float, bandwidth: float) -> list[BenchRow]:
    """What two nodes would measure if their latencies and rates were so many times the preset's."""
    cluster = preset("dgx-h100", 2)
    found = []
    for algorithm in ALGORITHMS:
        for exponent in range(10, 31, 4):
            form = closed_form(cluster, "all_reduce", algorithm, 1 << exponent)
            time_s = latency * form.latency_s + (form.time_s - form.latency_s) / bandwidth
            found.append(BenchRow("all_reduce", algorithm, 16, 1 << exponent, time_s))
    return found


def document() -> str:
    results = [
        {"size": row.size_bytes, "algorithm": row.algorithm, "out_of_place": {"time": row.time_s * 1e6},
         "in_place": {"time": row.time_s * 2e6}}
        for row in rows(3.0, 0.25)
    ]  # fmt: skip
    results.append({"size": 8, "algorithm": "swing", "out_of_place": {"time": 1.0}, "in_place": None})
    return json.dumps({"schema_version": 1, "collective": "all_reduce", "world_size": 16, "results": results})


def test_both_factors_are_found_again_and_put_into_the_cluster() -> None:
    found = calibrate_links(preset("dgx-h100", 2), rows(3.0, 0.25), "made up")
    assert found.latency == pytest.approx(3.0, rel=0.01)
    assert found.bandwidth == pytest.approx(0.25, rel=0.01)
    for row in rows(3.0, 0.25):
        form = closed_form(found.cluster, row.collective, row.algorithm, row.size_bytes)
        # Where phases of latency and bytes overlap, the two parts do not quite add up.
        assert form.time_s == pytest.approx(row.time_s, rel=0.05)
    speed = found.cluster.groups[0].node_type.groups[0].speed
    assert "calibrated with made up" in speed.bandwidth.source
    assert speed.bandwidth.value == pytest.approx(450e9 * 0.25, rel=0.01)


def test_only_large_messages_leave_the_latency_at_next_to_nothing_but_never_below() -> None:
    large = [row for row in rows(1e-9, 0.5) if row.size_bytes > 1 << 20]
    found = calibrate_links(preset("dgx-h100", 2), large, "made up")
    assert found.bandwidth == pytest.approx(0.5, rel=0.01)
    assert 0 < found.latency < 0.1


def test_algorithms_without_a_closed_form_are_left_out_and_said() -> None:
    more = [*rows(2.0, 0.5), BenchRow("all_reduce", "swing", 16, 1 << 20, 1.0)]
    found = calibrate_links(preset("dgx-h100", 2), more, "made up")
    assert found.rows == len(more) - 1
    assert "no closed form of 'swing'" in found.left_out[0]
    with pytest.raises(SpecError, match="0 rows have a closed form"):
        calibrate_links(preset("dgx-h100", 2), more[-1:], "made up")


def test_the_document_of_atoll_bench_is_read() -> None:
    text = document().encode()
    assert is_bench_json(text)
    assert not is_bench_json(b'{"schema_version": 1, "routes": []}')
    found = read_bench_json(text, "b.json")
    assert found[0] == rows(3.0, 0.25)[0]
    assert found[-1].algorithm == "swing"
    for broken, word in ((text[:-20], "cut in the middle"), (b'{"schema_version": 1}', "KeyError")):
        with pytest.raises(SpecError, match=word):
            read_bench_json(broken, "b.json")


def test_at_the_command_line_the_result_is_a_cluster(tmp_path: Path) -> None:
    bench, stored = tmp_path / "bench.json", tmp_path / "ours.toml"
    bench.write_text(document())
    arguments = ["calibrate", str(bench), "--cluster", "dgx-h100:2", "-o", str(stored)]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False, standalone_mode=False)
    assert "latency of links   x 3" in result.stdout
    assert "left out: no closed form of 'swing'" in result.stdout
    cluster = load_cluster(str(stored)).cluster
    assert cluster.name == "2 x dgx-h100, calibrated"
    assert closed_form(cluster, "all_reduce", "ring", 1 << 30).busbw_bytes_per_s == pytest.approx(12e9, rel=0.02)
    other = tmp_path / "all_reduce.log"
    other.write_text("8 2 float sum 6.2 0 0 0\n")
    with pytest.raises(SpecError, match="one kind at a time"):
        CliRunner().invoke(
            main, [*arguments[:2], str(other), *arguments[2:]], catch_exceptions=False, standalone_mode=False
        )
