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
    document = json.loads(said("--algorithm", "ring,hierarchical", "--size", "64M", "--json"))
    ring, hierarchical = document["results"]
    assert (document["schema_version"], document["ranks"]) == (1, 16)
    assert hierarchical["time_s"] < ring["time_s"] / 3  # eight NICs a node against one
    assert ring["busbw_bytes_per_s"] == pytest.approx(2 * 15 / 16 * (64 << 20) / ring["time_s"])
    assert ring["critical_path"][0]["waits_for"].startswith("leaf0 -> node")
    assert sum(step["share"] for step in ring["critical_path"]) == pytest.approx(1)
    crossing = {link["link"]: link["bytes"] for link in ring["links"] if "leaf" in link["link"]}
    assert len(crossing) == 4  # out of and into each node
    assert list(crossing.values()) == pytest.approx([2 * 15 / 16 * (64 << 20)] * 4)


def test_the_table_says_what_is_waited_for() -> None:
    lines = said("--size", "8", "--algorithm", "tree").splitlines()
    assert lines[0] == "# all-reduce of 16 ranks on 2 x dgx-h100, simulated"
    assert "100% waits for latency" in lines[2]


def test_sizes_are_swept() -> None:
    lines = said("-b", "1M", "-e", "16M", "-f", "4").splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["1048576", "4194304", "16777216"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--gpus", "17"], "expected 2 to 16 ranks"), (["--algorithm", "rng"], "did you mean 'ring'"),
     (["--size", "0"], "at least 1 byte"), (["--segment", "0"], "segment_bytes: expected more than 0")],
)  # fmt: skip
def test_mistakes_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        said("--nodes", "2", *arguments)
