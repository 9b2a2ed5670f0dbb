"""``atoll algorithms``, as a user calls it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from atoll.algorithms import catalog
from atoll.cli.main import main
from atoll.errors import SpecError


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["algorithms", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_whole_list_names_every_algorithm_once() -> None:
    lines = shown().splitlines()
    assert sum(line.startswith("  ") and not line.startswith("  algorithm") for line in lines) == len(catalog.CATALOG)
    for collective in ("all-reduce", "reduce-scatter", "all-to-all", "barrier"):
        assert collective in lines


def test_the_table_of_one_collective() -> None:
    assert shown("scatter").splitlines() == [
        "scatter",
        "  algorithm        steps  bytes sent  order of a sum  N",
        "  binomial-tree *  L      (N-1)/N n   -               any N",
        "  direct           1      (N-1)/N n   -               any N",
        "",
        "  binomial-tree: runs of blocks down the tree",
        "  direct: the root to everyone",
        "",
        "steps and bytes sent are the busiest rank's, for a vector of n bytes among N ranks;",
        "L: log2 N rounded up; p: the largest power of two not above N; *: the default",
    ]


def test_options_are_shown() -> None:
    lines = shown("all-gather").splitlines()
    assert "      -O max_blocks  int | None = None" in lines


def test_counted_for_a_world() -> None:
    assert shown("all_gather", "--world", "6").splitlines()[:8] == [
        "all-gather",
        "  algorithm           steps  messages  bytes     bytes/bound  order",
        "  ring *              5      30        0.8333 n  1            moves only",
        "  recursive-doubling  4      12        1.833 n   2.2          moves only",
        "  direct              1      30        0.8333 n  1            moves only",
        "  bidirectional-ring  5      60        0.8333 n  1            moves only",
        "  bruck               3      18        0.8333 n  1            moves only",
        "  pat                 3      18        0.8333 n  1            moves only",
    ]


def test_json() -> None:
    document = json.loads(shown("reduce", "--world", "4", "--json"))
    assert document["schema_version"] == 1
    chain = document["algorithms"][1]
    assert (chain["collective"], chain["name"], chain["default"], chain["options"]) == ("reduce", "chain", False, {})
    assert chain["counted"] == {
        "world_size": 4,
        "steps": 3,
        "messages": 3,
        "busiest": 1.0,
        "bandwidth_ratio": 1.0,
        "same_bits": True,
        "position_independent": True,
        "num_orders": 1,
        "depth": 3,
        "order": "same bits, 1 order, depth 3",
    }
    assert all(entry["counted"] is None for entry in json.loads(shown("--json"))["algorithms"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all-reduse"], "did you mean 'all-reduce'"),
        (["--world", "0"], "1 to 256 ranks, got 0"),
        (["--world", "300"], "1 to 256 ranks, got 300"),
    ],
)
def test_bad_input_is_one_clear_error(arguments: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        CliRunner().invoke(main, ["algorithms", *arguments], catch_exceptions=False)
