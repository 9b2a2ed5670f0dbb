"""``atoll calibrate``, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from atoll.cli.main import main
from atoll.errors import SpecError
from atoll.simulator.calibration_file import read_calibration


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["calibrate", *arguments], catch_exceptions=False, standalone_mode=False)


LOG = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 128(factor) warmup iters: 5 iters: 20
# Using devices
[1,0]<stdout>:#  Rank  0 Group  0 Pid 10 on host1 device  0 [0x1b] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 11 on host1 device  1 [0x2b] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
           8             2     float     sum      -1     6.20    0.00    0.00      0     6.10    0.00    0.00      0
host1:10:10 [0] NCCL INFO Launch mode Parallel
        1024           256     float     sum      -1     6.30    0.16    0.16      0     6.20    0.17    0.17      0
      131072         32768     float     sum      -1     7.70   17.02   17.02      0     7.70   17.02   17.02      0
    16777216       4194304     float     sum      -1    82.00  204.60  204.60      0    82.20  204.10  204.10      0
  1073741824     268435456     float     sum      -1   3400.0  315.81  315.81      0   3390.0  316.74  316.74      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 100
"""


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "all_reduce.log"
    path.write_text(LOG)
    return str(path)


def test_it_fits_prints_residuals_and_stores_a_file(log: str, tmp_path: Path) -> None:
    stored = tmp_path / "mine.toml"
    result = run(log, "--cluster", "dgx-h100", "-o", str(stored), "--name", "ours")
    assert "ours: 5 times, 4 factors fitted" in result.stdout
    assert "residual, measured over predicted:" in result.stdout
    assert "to 64 MiB" in result.stdout
    found = read_calibration(stored.read_bytes(), "mine.toml")
    assert found.sources[0].file == "all_reduce.log"
    assert (found.sources[0].collective, found.sources[0].ranks, found.sources[0].rows) == ("all_reduce", 2, 5)
    assert 0.7 < found.factors.ll_base < 0.95


def test_without_a_file_the_calibration_is_the_output(log: str) -> None:
    result = run(log, "--cluster", "dgx-h100")
    found = read_calibration(result.stdout.encode(), "stdout")
    assert found.cluster == "dgx-h100"
    assert "residual" in result.stderr


def test_json(log: str) -> None:
    document = json.loads(run(log, "--cluster", "dgx-h100", "--json").stdout)
    assert document["schema_version"] == 1
    assert document["calibration"]["sources"][0]["ranks"] == 2
    assert len(document["calibration"]["spreads"]) == 4


def test_variables_that_were_set_change_what_is_fitted(log: str) -> None:
    simple = json.loads(run(log, "--cluster", "dgx-h100", "-x", "NCCL_PROTO=Simple", "--json").stdout)
    assert "ll_base" not in simple["calibration"]["fitted"]


@pytest.mark.parametrize(
    ("text", "arguments", "word"),
    [
        ("nothing\n", (), "no measured times"),
        ("   8 2 float sum 6.2 0 0 0 6.1 0 0 0\n   16 4 float sum 6.2 0 0 0 6.1 0 0 0\n", (), "give --ranks"),
        (LOG, ("-x", "NCCL_ALGO"), "NAME=VALUE"),
        (LOG, ("-x", "NCCL_ALGO=Rong"), "none of NCCL's"),
        (LOG, ("--ranks", "9"), "has 8 GPUs"),
        (LOG.replace("NVIDIA", "N"), ("-o", "/nowhere/x.toml"), "cannot be written"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, text: str, arguments: tuple[str, ...], word: str) -> None:
    path = tmp_path / "all_reduce.log"
    path.write_text(text)
    with pytest.raises(SpecError, match=word):
        run(str(path), "--cluster", "dgx-h100", *arguments)


def test_no_such_file() -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        run("/nowhere.log", "--cluster", "dgx-h100")


def test_real_logs(cases: Path, tmp_path: Path) -> None:
    """A log with a line of NCCL in its table, and one as a page shows it; both fit within a tenth where bytes count."""
    for file, cluster in (
        ("nccl_tests/sb_nccl_allreduce.log", "dgx-a100"),
        ("collective_times/issue309_h100_2node_16gpu_allreduce.txt", "dgx-h100:2"),
    ):
        stored = tmp_path / "one.toml"
        run(str(cases / file), "--cluster", cluster, "-o", str(stored))
        found = read_calibration(stored.read_bytes(), "one.toml")
        assert 0.9 < found.spreads[3].low <= found.spreads[3].high < 1.1
        assert sum(one.rows for one in found.sources) >= 30
