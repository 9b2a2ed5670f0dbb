"""Comparing what is measured with what is simulated: which ranks are together, what is asked, how it is judged."""

import json

import pytest
from click.testing import CliRunner, Result

from atoll.cli.compare import command
from atoll.emulator.comparison import (
    ALL,
    Row,
    cases,
    errors,
    latency_case,
    latency_of,
    predicted_s,
    ratios,
    repeated,
)
from atoll.emulator.layout import ACROSS, INSIDE, PAYLOAD_SHARE, Layout, Rates, placements
from atoll.emulator.measure import Case, Timing
from atoll.emulator.queues import BURST_S
from atoll.errors import SpecError

SIZE = 1 << 20


@pytest.mark.parametrize("layout", [Layout(2, 2), Layout(4, 2), Layout(2, 4), Layout(3, 5)])
def test_groups_are_as_large_as_a_node_and_lie_in_one_or_in_as_many_as_can_be(layout: Layout) -> None:
    for name, groups in placements(layout).items():
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
        for group in groups:
            assert len(group) == layout.ranks_per_node
            nodes = {layout.node_of(rank) for rank in group}
            assert len(nodes) == (1 if name == INSIDE else min(layout.nodes, layout.ranks_per_node))


def test_a_cluster_without_islands_or_network_is_refused() -> None:
    for layout in (Layout(1, 4), Layout(4, 1)):
        with pytest.raises(SpecError, match="at least 2 nodes of 2 ranks"):
            placements(layout)


def test_across_nodes_takes_longer_by_the_ratio_of_the_bandwidths() -> None:
    layout, rates = Layout(2, 2), Rates(90e6, 10e6)
    inside, across = (predicted_s(Case(name, placements(layout)[name], "ring", 64 * SIZE), layout, rates, 0.0)
                      for name in (INSIDE, ACROSS))  # fmt: skip
    assert inside + BURST_S == pytest.approx(64 * SIZE / (90e6 * PAYLOAD_SHARE))
    assert across / inside == pytest.approx(9, rel=0.05)


def test_a_bucket_makes_up_for_a_latency_that_is_shorter_than_it() -> None:
    layout, rates = Layout(2, 2), Rates(90e6, 10e6)
    case = Case(ALL, (tuple(range(4)),), "ring", SIZE)
    exact = 6 * SIZE / 4 / (10e6 * PAYLOAD_SHARE)
    assert predicted_s(case, layout, rates, 0.0) == pytest.approx(exact - BURST_S)
    assert predicted_s(case, layout, rates, BURST_S) == predicted_s(case, layout, rates, 0.0)
    assert predicted_s(case, layout, rates, BURST_S + 1e-3) > predicted_s(case, layout, rates, 0.0)


def test_the_latency_of_a_message_is_that_of_a_step_of_the_ring() -> None:
    layout = Layout(2, 2)
    assert latency_case(layout).groups == ((0, 1, 2, 3),)
    assert latency_of(Timing(0, (0.9, 0.012, 0.006), 0), layout) == pytest.approx(0.012 / 6)


def test_short_cases_are_repeated_and_long_ones_not() -> None:
    case = Case(ALL, ((0, 1),), "ring", SIZE)
    assert [repeated(case, seconds).repetitions for seconds in (0.01, 0.3, 20.0)] == [5, 3, 1]


def row(name: str, algorithm: str, simulated_s: float, measured_s: float) -> Row:
    return Row(Case(name, ((0, 1),), algorithm, SIZE), simulated_s, measured_s)


def test_ratios_and_errors() -> None:
    rows = [
        row(INSIDE, "ring", 1.0, 1.25),
        row(ACROSS, "ring", 9.0, 10.0),
        row(ALL, "ring", 4.0, 4.0),
        row(ALL, "hierarchical", 2.0, 1.6),
    ]
    assert [(ratio.simulated, ratio.measured) for ratio in ratios(rows)] == [(9.0, 8.0), (2.0, 2.5)]
    found = errors(rows)
    assert (found.median, found.worst, found.rows) == (pytest.approx(0.15), pytest.approx(0.25), 4)
    assert ratios(rows[:1]) == []


def test_every_size_has_both_placements_and_all_algorithms() -> None:
    found = cases(Layout(4, 2), [SIZE, 4 * SIZE], ["ring", "hierarchical"])
    assert [(case.size_bytes, case.name, case.algorithm) for case in found[:4]] == [
        (SIZE, INSIDE, "ring"), (SIZE, ACROSS, "ring"), (SIZE, ALL, "ring"), (SIZE, ALL, "hierarchical"),
    ]  # fmt: skip
    assert len(found) == 8
    assert all(case.island_size == 2 for case in found if case.name == ALL)


def compare(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--nodes", "1"), "at least 2 nodes of 2 ranks"),
        (("-b", "2", "-e", "4"), "expected at least 4 bytes"),
        (("-b", "2M", "-e", "1M"), "the first size to be at most the last"),
    ],
)
def test_bad_arguments_are_one_line(arguments: tuple[str, ...], words: str) -> None:
    result = compare(*arguments)
    assert isinstance(result.exception, SpecError)
    assert words in str(result.exception)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("algorithm", "words"), [("rign", "did you mean 'ring'"), ("ring,ring", "named twice")])
def test_bad_algorithms_are_one_line(algorithm: str, words: str) -> None:
    result = compare("--algorithm", algorithm)
    assert isinstance(result.exception, SpecError)
    assert words in str(result.exception)


@pytest.mark.usefixtures("alone")
def test_the_command_measures_what_it_predicts() -> None:
    result = compare("--island-bandwidth", "90MB/s", "-b", "256K", "-e", "256K", "--algorithm", "ring,hierarchical",
                     "--json")  # fmt: skip
    assert result.exception is None, result.output
    assert result.return_value == 0
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    assert document["complete"] is True
    assert document["rates_bytes_per_s"] == {"island": 90e6, "network": 10e6}
    assert [(found["ranks"], found["algorithm"]) for found in document["rows"]] == [
        (INSIDE, "ring"), (ACROSS, "ring"), (ALL, "ring"), (ALL, "hierarchical"),
    ]  # fmt: skip
    assert [found["wrong"] for found in document["rows"]] == [0] * 4
    assert document["latency_s"] > 0
    # A bucket lets nothing pass that it has no tokens for: no case is faster than its bytes, whatever the machine does.
    floor = 256 * 1024 / PAYLOAD_SHARE / 10e6 - 2 * BURST_S
    across = next(found for found in document["rows"] if found["ranks"] == ACROSS)
    assert min(across["times_s"]) >= floor
