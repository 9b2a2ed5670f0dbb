"""``atoll predict``, as a user calls it."""

from __future__ import annotations

import json
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
    return CliRunner().invoke(main, ["predict", *arguments], catch_exceptions=False, standalone_mode=False)


TABLE = """\
# all-reduce of 16 ranks on 2 x dgx-h100, as NCCL 2.30.7 does it
#        size       time     algbw     busbw  interval               algorithm     protocol  waits for
#         (B)       (us)    (GB/s)    (GB/s)
            8      25.20      0.00      0.00  20.8 us to 29.5 us     Tree          LL        latency
   1073741824    4564.59    235.23    441.06  4.39 ms to 5.12 ms     NVLSTree      Simple    network
# Tree LL from 8 B: NCCL's tuner reckons 25.2 us, 40 us for Ring LL
# NVLSTree Simple from 1073741824 B: NCCL's tuner reckons 4.43 ms, 5.78 ms for Ring Simple
# not CollNetChain: SHARP is not enabled (NCCL_COLLNET_ENABLE=1)
# not CollNetDirect: SHARP is not enabled (NCCL_COLLNET_ENABLE=1)
# not NVLS: several nodes need SHARP (NCCL_COLLNET_ENABLE=1)
# interval: 80 % of how far off presets have been (docs/accuracy.md); atoll calibrate narrows it
"""


def test_the_table() -> None:
    assert run("all-reduce", "--cluster", "dgx-h100:2", "--size", "8,1G").stdout == TABLE


def test_a_version_of_nccl_changes_what_depends_on_it() -> None:
    """Until 2.28 messages of all-to-all up to 512 KiB go by LL."""
    found = {
        version: run("all-to-all", "--cluster", "dgx-a100", "--size", "1M", "--nccl", version).stdout
        for version in ("2.27.3", "2.29.2")
    }
    assert "as NCCL 2.27.3 does it" in found["2.27.3"]
    assert "P2P LL " in found["2.27.3"]
    assert "P2P Simple" in found["2.29.2"]
    with pytest.raises(SpecError, match="NCCL's version: expected numbers such as"):
        run("--cluster", "dgx-a100", "--nccl", "newest")


def test_what_if_stands_beside_what_is() -> None:
    said = run("--cluster", "dgx-h100:2", "--size", "1G", "-x", "NCCL_NVLS_ENABLE=0", "--compare").stdout
    lines = said.splitlines()
    assert "# not NVLSTree: NCCL_NVLS_ENABLE=0" in lines
    first, second = (line.split() for line in lines[-2:])
    assert (first[0], second[0]) == ("1", "2")
    assert second[1] == "NCCL_NVLS_ENABLE=0"
    near = run("--cluster", "dgx-h100:4", "--size", "1G", "--without", "node3/nic2", "--compare").stdout
    assert "# plans of one rank cannot be told apart: their intervals overlap" in near
    slow = run("--cluster", "dgx-h100:4", "--size", "1G", "--slow", "node3/nic2=10%", "--compare").stdout
    assert "slow node3/nic2=10%" in slow


def test_a_calibration_gives_the_interval(tmp_path: Path) -> None:
    stored = tmp_path / "mine.toml"
    made = Calibration("mine", "dgx-h100", Factors(bandwidth=0.5), ("bandwidth",), (Spread(9, 1.0, 0.99, 1.02),) * 4)
    stored.write_text(write_calibration(made))
    plain, mine = (
        json.loads(run("--cluster", "dgx-h100", "--size", "1G", "--json", *more).stdout)["predictions"][0]
        for more in ((), ("--calibration", str(stored)))
    )
    assert mine["calibration"] == "mine"
    assert mine["time_s"] == pytest.approx(2 * plain["time_s"], rel=0.05)
    assert (
        "what the calibration 'mine' missed by"
        in run("--cluster", "dgx-h100", "--size", "1G", "--calibration", str(stored)).stdout
    )


def test_json_and_sweeps() -> None:
    document = json.loads(
        run(
            "all-to-all", "--cluster", "gb200-nvl72:2", "--gpus", "128", "-b", "1M", "-e", "64M", "-f", "8", "--json"
        ).stdout
    )
    assert document["schema_version"] == 1
    assert [row["size_bytes"] for row in document["predictions"]] == [1 << 20, 1 << 23, 1 << 26]
    assert {row["ranks"] for row in document["predictions"]} == {128}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("all-redoce", "--cluster", "dgx-h100"), "did you mean 'all_reduce'"),
        (("--cluster", "dgx-h10"), "did you mean 'dgx-h100'"),
        (("--cluster", "dgx-h100", "--gpus", "9"), "has 8 GPUs"),
        (("--cluster", "dgx-h100", "-x", "NCCL_ALGO"), "NAME=VALUE"),
        (("--cluster", "dgx-h100", "--slow", "node0/nic0"), "PART=SHARE"),
        (("--cluster", "dgx-h100", "--without", "node0/nic9"), "nic9"),
        (("--cluster", "dgx-h100", "-b", "1G", "-e", "1M"), "not below"),
        (("--cluster", "dgx-h100", "--calibration", "/nowhere.toml"), "cannot be read"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], word: str) -> None:
    with pytest.raises(SpecError, match=word):
        run(*arguments)
