"""``atoll place``, as a user calls it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from atoll.cli.main import main
from atoll.errors import SpecError
from atoll.simulator.calibration import Calibration
from atoll.simulator.calibration_file import write_calibration
from atoll.simulator.nccl_time import Factors
from atoll.simulator.prediction import Spread


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["place", *arguments], catch_exceptions=False, standalone_mode=False)


def test_text_has_map_groups_times_mistakes_and_the_best() -> None:
    text = run("--cluster", "dgx-h100:16", "--tp", "8", "--pp", "2", "--blast-radius", "--racks-per-feed", "2").stdout
    assert text.startswith("tp 8, pp 2, dp 8, order tp-dp-pp on 16 x dgx-h100, packed: 128 ranks\n")
    assert "\n  node1  8-15\n" in text
    assert "\n  tp    aaaaaaaa bbbbbbbb" in text
    assert re.search(r"\n  tp +16 +8 +1  inside an island +island\n", text)
    assert "\n  dp0: ranks 0,8,16,...,56 on node0, node1, node2, node3, ... node7 (8) through leaf0\n" in text
    assert re.search(r"\n  tp across nodes .* leaf +island +leaf\n", text)
    assert "\nbest: as given, " in text
    assert re.search(r"\n  power feed of 2 racks +2 +64 +64 ", text)


def test_json_is_whole(tmp_path: Path) -> None:
    picture = tmp_path / "placement.svg"
    result = run("--cluster", "dgx-h100:4", "--tp", "8", "--order", "dp-tp", "--json", "--svg", str(picture))
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    assert document["degrees"] == {"tp": 8, "pp": 1, "dp": 4, "cp": 1, "ep": 1, "etp": 8}
    assert document["gpu_of_rank"] == list(range(32))
    assert document["groups"]["tp"][0]["ranks"] == list(range(0, 32, 4))
    assert document["groups"]["tp"][0]["reaches"] == "leaf"
    assert document["best"] == "tp-dp"
    assert document["candidates"][0]["ratio"] < 0.5
    assert {cost["kind"] for cost in document["costs"]} == {"tp", "dp"}
    root = ET.fromstring(picture.read_text())
    assert len([one for one in root.iter("{http://www.w3.org/2000/svg}rect") if len(one)]) == 2 * 32


def test_sizes_and_times_are_given(tmp_path: Path) -> None:
    document = json.loads(
        run("--cluster", "dgx-h100:2", "--tp", "8", "--traffic", "tp=1M*3", "--traffic", "dp=2G", "--json").stdout
    )
    found = {cost["kind"]: (cost["size_bytes"], cost["times"]) for cost in document["costs"]}
    assert found == {"tp": (1 << 20, 3), "dp": (2 << 30, 1)}
    ranks = tmp_path / "ranks.txt"
    ranks.write_text("8 9 10 11, 12 13 14 15\n0 1 2 3 4 5 6 7")
    document = json.loads(run("--cluster", "dgx-h100:2", "--tp", "8", "--rank-map", str(ranks), "--json").stdout)
    assert document["gpu_of_rank"][:2] == [8, 9]
    assert document["mapping"] == "as listed"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--tp", "16"), "tp 16 x pp 1 x cp 1 = 16 ranks, and dgx-h100 has 8 GPUs"),
        (("--tp", "8", "--dp", "2"), "tp 8, dp 2, order tp-dp: 16 ranks"),
        (("--tp", "4", "--ep", "3"), "ep 3 x etp 4 = 12 does not divide"),
        (("--tp", "8", "--order", "tp-qq"), "'qq' is no axis"),
        (("--tp", "8", "--mapping", "pack"), "unknown mapping 'pack': did you mean 'packed'?"),
        (("--tp", "8", "--traffic", "pp=1M"), "expected KIND=SIZE[*TIMES] with a kind of group"),
        (("--tp", "8", "--traffic", "tp=1M*x"), "expected a number of times such as tp=64M*80, got 'x'"),
        (("--tp", "8", "--traffic", "tp=1Q"), "expected a size such as"),
        (("--tp", "8", "--svg", "/no/such/folder/x.svg"), "cannot be written"),
        (("--tp", "8", "--rank-map", "/no/such/file"), "cannot be read"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(SpecError, match=re.escape(says)) as error:
        run("--cluster", "dgx-h100", *arguments)
    assert "\n" not in str(error.value)


def test_a_rank_map_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "map.txt"
    file.write_text("0 1 two")
    with pytest.raises(SpecError, match="entry 3: expected a GPU number, got 'two'"):
        run("--cluster", "dgx-h100", "--dp", "3", "--rank-map", str(file))


def test_a_calibration_gives_intervals_and_ranks(tmp_path: Path) -> None:
    stored = tmp_path / "mine.toml"
    made = Calibration("mine", "dgx-h100", Factors(bandwidth=0.5), ("bandwidth",), (Spread(9, 1.0, 0.98, 1.02),) * 4)
    stored.write_text(write_calibration(made))
    arguments = ("--cluster", "dgx-h100:2", "--tp", "8", "--order", "dp-tp")
    text = run(*arguments, "--calibration", str(stored)).stdout
    assert text.startswith("tp 8, dp 2, order dp-tp on 2 x dgx-h100, calibrated, packed: 16 ranks\n")
    assert re.search(r"all of the kind +interval +everything", text)
    assert re.search(r"\n +rank +a step +interval +against it", text)
    plain, known = (
        json.loads(run(*arguments, *more, "--json").stdout) for more in ((), ("--calibration", str(stored)))
    )
    assert plain["step_interval_s"] is None
    assert plain["costs"][0]["kind_interval_s"] is None
    low, high = known["step_interval_s"]
    assert low < known["step_s"] < high
    assert known["candidates"][0]["rank"] == 1
    within = {one["name"]: one["step_s"] for one in known["candidates"]}["tp-dp"]
    assert within > 1.5 * {one["name"]: one["step_s"] for one in plain["candidates"]}["tp-dp"]
    # The best one's map can be given back.
    ranks = tmp_path / "ranks.txt"
    ranks.write_text(" ".join(map(str, known["best_gpu_of_rank"])))
    again = json.loads(
        run("--cluster", "dgx-h100:2", "--tp", "8", "--order", known["best_order"], "--rank-map", str(ranks),
            "--calibration", str(stored), "--json").stdout
    )  # fmt: skip
    assert again["step_s"] == pytest.approx(known["candidates"][0]["step_s"])
    with pytest.raises(SpecError, match="cannot be read"):
        run(*arguments, "--calibration", str(tmp_path / "none.toml"))
