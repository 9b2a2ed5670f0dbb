"""``atoll simulate``: its table, its document, and what it refuses."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from atoll.cli.main import main
from atoll.errors import SpecError

TWO_NODES = ["simulate", "all-reduce", "--cluster", "dgx-h100", "--nodes", "2"]


def said(*arguments: str) -> str:
    return CliRunner().invoke(main, [*TWO_NODES, *arguments], catch_exceptions=False).stdout


def test_the_document_has_times_and_links_of_each_algorithm() -> None:
    document = json.loads(said("--algorithm", "ring,hierarchical", "--channels", "1", "--size", "64M", "--json"))
    ring, hierarchical = document["results"]
    assert (document["schema_version"], document["ranks"]) == (1, 16)
    assert hierarchical["time_s"] < ring["time_s"] / 3  # eight NICs a node against one
    assert ring["busbw_bytes_per_s"] == pytest.approx(2 * 15 / 16 * (64 << 20) / ring["time_s"])
    assert ring["critical_path"][0]["waits_for"] == "node1/nic0"
    assert ring["critical_path"][0]["alike"] == 1  # node 0's
    assert sum(step["share"] for step in ring["critical_path"]) == pytest.approx(1)
    crossing = {link["link"]: link["bytes"] for link in ring["links"] if "leaf" in link["link"]}
    assert len(crossing) == 4  # out of and into each node
    assert list(crossing.values()) == pytest.approx([2 * 15 / 16 * (64 << 20)] * 4)
    assert (ring["count"], ring["type"], ring["redop"], ring["root"]) == (16 << 20, "float", "sum", -1)


def test_a_ring_runs_on_a_channel_for_each_nic_unless_told_otherwise() -> None:
    lines = said("--size", "4M", "--algorithm", "ring,hierarchical").splitlines()
    assert lines[1].startswith("# ring: 8 channels on 8 orders of ranks, rotated")
    assert lines[2] == "# hierarchical: 1 channel: uses every NIC of a node as it is"
    document = json.loads(said("--size", "4M", "--algorithm", "ring,bidirectional_ring", "--json"))
    assert [one["channels"] for one in document["algorithms"].values()] == [8, 8]
    for result in document["results"]:
        cables = [link["bytes"] for link in result["links"] if "leaf" in link["link"]]
        assert len(cables) == 2 * 2 * 8  # every NIC of two nodes, both ways
    ring = document["results"][0]["links"]
    assert [link["bytes"] for link in ring if "leaf" in link["link"]] == pytest.approx([2 * 15 / 16 * (512 << 10)] * 32)


def test_the_table_has_the_columns_of_nccl_tests() -> None:
    lines = said("--size", "8,1M", "--algorithm", "tree,nccl", "-d", "half").splitlines()
    assert lines[0] == "# all-reduce of 16 ranks on 2 x dgx-h100, simulated"
    head = next(line for line in lines if "redop" in line)
    assert head.split() == ["#", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "algorithm",
                            "waits", "for"]  # fmt: skip
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [row[:5] for row in rows] == 2 * [["8", "4", "half", "sum", "-1"]] + 2 * [
        ["1048576", "524288", "half", "sum", "-1"]
    ]
    assert [row[8] for row in rows] == ["tree", "nccl"] * 2
    assert "100% waits for latency" in lines[len(lines) - 4]
    scattered = said("--size", "64M", "--gpus", "4", "--json").replace("all_reduce", "")
    assert json.loads(scattered)["results"][0]["count"] == 16 << 20
    outcome = CliRunner().invoke(main, ["simulate", "all-gather", *TWO_NODES[2:], "--size", "64M", "--json"])
    assert [(row["count"], row["redop"]) for row in json.loads(outcome.stdout)["results"]] == [(1 << 20, "none")]


def test_the_busiest_links_are_listed() -> None:
    lines = said("--size", "4M", "--algorithm", "ring,nccl", "--channels", "1", "--links", "2").splitlines()[-4:]
    assert (
        lines[0] == "# ring at 4 MiB: the 2 busiest of 44 links in use"
    )  # 14 + 2 by NVLink, 6 by PCIe and cable in each node
    links = [line.split(maxsplit=4) for line in lines[1:3]]
    assert [link[2:4] for link in links] == [["7.5", "MiB"]] * 2
    assert all("leaf" in link[4] or "nic" in link[4] for link in links)
    assert lines[3] == "# nccl at 4 MiB: links are not told apart"


def test_nccl_is_what_predict_says() -> None:
    asked = ["all-reduce", "--cluster", "dgx-h100:4", "--size", "64M", "--json", "-x", "NCCL_ALGO=Ring"]
    predicted = json.loads(CliRunner().invoke(main, ["predict", *asked]).stdout)["predictions"][0]
    simulated = json.loads(CliRunner().invoke(main, ["simulate", *asked, "--algorithm", "nccl"]).stdout)["results"][0]
    assert simulated["time_s"] == predicted["time_s"]
    assert simulated["busbw_bytes_per_s"] == predicted["busbw_bytes_per_s"]
    assert simulated["interval_s"] == predicted["interval"]
    assert simulated["choice"] == f"Ring {predicted['protocol']}, {predicted['channels']} channels"
    assert sum(wait["share"] for wait in simulated["critical_path"]) == pytest.approx(1)


@pytest.mark.parametrize("part", ["node1/nic2", "node0/nic7"])
def test_the_critical_path_finds_a_slow_nic_among_the_channels(part: str) -> None:
    plain = json.loads(said("--size", "64M", "--json"))["results"][0]
    slow = json.loads(said("--size", "64M", "--slow", f"{part}=50%", "--json"))["results"][0]
    assert plain["critical_path"][0]["alike"] == 15
    first = slow["critical_path"][0]
    assert (first["waits_for"], first["alike"]) == (part, 0)
    assert first["share"] > 0.8
    assert f"waits for {part} (" in slow["words"]
    assert slow["time_s"] > 1.5 * plain["time_s"]


def test_sizes_are_swept() -> None:
    lines = said("-b", "1M", "-e", "16M", "-f", "4").splitlines()
    assert [line.split()[0] for line in lines if line[0] != "#"] == ["1048576", "4194304", "16777216"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--gpus", "17"], "expected 2 to 16 ranks"), (["--algorithm", "rng"], "did you mean 'ring'"),
     (["--algorithm", "nccl", "--trace", "x.json"], "predicted, not played"),
     (["--nodes", "129"], "plays 1024 ranks at most"),
     (["--size", "0"], "at least 1 byte"), (["--segment", "0"], "segment_bytes: expected more than 0")],
)  # fmt: skip
def test_mistakes_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        said("--nodes", "2", *arguments)
