"""``atoll tune`` and ``atoll explain --size``: what is measured becomes rules, and the rules can be asked why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from atoll.algorithms.catalog import names
from atoll.cli.explain import command as explain_command
from atoll.cli.tune import command as tune_command
from atoll.errors import SpecError
from atoll.runtime.choice import Chooser, Layout
from atoll.runtime.tune import Timing, distinct, models_of, table_of
from atoll.runtime.tuning import Tuning, format_tuning, load_tuning
from atoll.schedule.cost import Link

LINK = Link(30e-6, 2e9, 4e9)


def timings(link: Link, world_size: int = 4) -> list[Timing]:
    """What a machine that is exactly such a link would measure."""
    models = models_of("all_reduce", world_size, names("all_reduce"))
    return [
        Timing("all_reduce", size, {name: float(model.stepwise_s(size, link)) for name, model in models.items()})
        for size in (64, 4096, 65536, 1 << 20, 1 << 24)
    ]


def test_the_fastest_at_a_size_is_what_is_taken_there() -> None:
    measured = timings(LINK)
    table = table_of(measured, "tcp", 4)
    chooser = Chooser(Tuning((table,)), Layout(4, "tcp"))
    for timing in measured:
        best = min(timing.seconds.values())
        assert timing.seconds[chooser.choose("all_reduce", timing.size_bytes)] <= best * 1.11
    assert len(table.rules["any"]) >= 2
    assert table.rules["any"][0] == (0, "one_shot")
    assert {name for _, name in table.rules["fixed"]} <= {"recursive_doubling", "halving_doubling"}
    assert table.rules["rank"][0] == (0, "one_shot")


def test_the_link_that_made_the_times_is_found_again() -> None:
    fit = table_of(timings(LINK), "tcp", 4).fit
    assert fit is not None
    assert fit.link.latency_s == pytest.approx(LINK.latency_s)
    assert fit.link.bandwidth_bytes_per_s == pytest.approx(LINK.bandwidth_bytes_per_s)
    assert fit.link.reduce_bytes_per_s == pytest.approx(LINK.reduce_bytes_per_s)
    # The pipelined form, which predictions may use too, only ever makes them smaller.
    assert 0 <= fit.off < 0.2


def test_what_is_one_schedule_is_timed_once() -> None:
    assert distinct("scatter", 2) == {"binomial_tree": ["binomial_tree", "direct"]}
    alike = distinct("all_reduce", 2)
    assert {"ring", "halving_doubling", "direct", "bruck", "swing"} <= set(alike["ring"])
    assert alike["recursive_doubling"] == ["recursive_doubling"]
    assert sorted(name for names_ in alike.values() for name in names_) == sorted(names("all_reduce"))
    assert all(len(names_) == 1 for names_ in distinct("all_gather", 5).values())


def rules(*timings: dict[str, float]) -> tuple[tuple[int, str], ...]:
    sizes = (64, 256, 1024, 4096)
    measured = [Timing("all_gather", size, seconds) for size, seconds in zip(sizes, timings, strict=False)]
    return table_of(measured, "shm", 2).rules["any"]


def test_a_change_must_be_worth_it_over_all_sizes() -> None:
    direct, ring = {"ring": 1.0, "direct": 0.9}, {"ring": 0.9, "direct": 1.0}
    assert rules(direct, ring, direct, direct) == ((0, "direct"),)
    assert rules(direct, direct, ring, ring) == ((0, "direct"), (512, "ring"))
    assert rules({"ring": 1.0, "direct": 0.97}, {"ring": 0.97, "direct": 1.0}) in (((0, "direct"),), ((0, "ring"),))
    assert rules(direct, direct) == ((0, "direct"),)
    assert rules({"ring": 1.0, "direct": 1.0}, {"ring": 1.0, "direct": 1.0}) == ((0, "ring"),)
    clear = {"ring": 1.0, "direct": 0.5}
    assert rules(clear, {"ring": 0.5, "direct": 1.0}, clear) == ((0, "direct"), (128, "ring"), (512, "direct"))


def test_an_algorithm_that_was_given_up_is_not_held_on_to() -> None:
    assert rules({"ring": 1.0, "direct": 0.8}, {"ring": 1.0}) == ((0, "direct"), (128, "ring"))


def tune(*arguments: str) -> Result:
    return CliRunner().invoke(tune_command, list(arguments), catch_exceptions=True)


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(explain_command, list(arguments), catch_exceptions=True)


def test_it_measures_writes_and_explains(tmp_path: Path) -> None:
    file, base = str(tmp_path / "mine.toml"), str(tmp_path / "base.toml")
    kept = table_of(timings(LINK, 8), "tcp", 8)
    Path(base).write_text(format_tuning(Tuning((kept,))))
    done = tune("all-reduce", "barrier", "--world", "2", "--transport", "tcp", "-b", "64", "-e", "1K", "-f", "16",
                "--turn", "1ms", "-o", file, "--from", base, "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert document["complete"]
    tables = {(entry["collective"], entry["world_size"]): entry for entry in document["tables"]}
    assert set(tables) == {("all_reduce", 2), ("barrier", 2), ("all_reduce", 8)}
    measured = tables["all_reduce", 2]
    assert measured["sizes_bytes"] == [64, 1024]
    assert set(measured["measured_s"]) <= set(names("all_reduce"))
    winner = measured["rules"]["any"][0][1]
    assert measured["measured_s"][winner][0] > 0
    assert load_tuning(file).table("all_reduce", "tcp", 8) is not None
    assert f"ATOLL_TUNING={file}" in done.stderr

    said = explain("all-reduce", "--size", "64", "--world", "2", "--transport", "tcp", "--tuning", file)
    assert said.exit_code == 0, said.output
    assert f"auto takes {winner}" in said.output
    assert "measured among 2 ranks at 64 B" in said.output
    assert f"the rule '{winner} from 0 B up' of the table for tcp among 2 says so" in said.output


def test_an_explanation_as_json_has_every_candidate() -> None:
    said = explain("reduce-scatter", "--size", "1M", "--world", "6", "--transport", "tcp", "--order", "rank", "--json")
    facts = json.loads(said.stdout)["choice"]
    assert facts["winner"] == "ordered"
    assert {candidate["name"] for candidate in facts["candidates"]} == set(names("reduce_scatter"))
    assert [candidate["name"] for candidate in facts["candidates"] if candidate["allowed"]] == ["ordered"]
    ring = next(candidate for candidate in facts["candidates"] if candidate["name"] == "ring")
    assert (ring["steps"], ring["messages"]) == (5, 30)
    assert facts["bound_steps"] == 3
    assert facts["bandwidth_bound_bytes"] == pytest.approx(5 / 6 * 2**20, rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["all-redcue"], "all-reduce"),
        (["--world", "1"], "--world: expected numbers from 2"),
        (["--world", "2,x"], "--world"),
        (["--transport", "ib"], "tcp, shm or both"),
        (["-b", "2"], "at least 4 bytes"),
        (["-b", "1M", "-e", "1K"], "at most the last"),
        (["-f", "1"], "factor of at least 2"),
        (["--turn", "0ms"], "more than 0"),
        (["-o", "/nowhere/at/all.toml"], "no folder"),
        (["--from", "nowhere.toml"], "cannot be read"),
    ],
)
def test_mistakes_are_named_before_anything_runs(arguments: list[str], words: str) -> None:
    done = tune(*arguments)
    assert isinstance(done.exception, SpecError)
    assert words in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--size", "1M"], "explain one collective"),
        (["all-reduce", "broadcast", "--size", "1M"], "explain one collective"),
        (["all-reduce", "--world", "4"], "expected a --size"),
        (["all-reduce", "--size", "1M", "--world", "0"], "expected 1 to"),
        (["all-reduce", "--size", "1M", "--order", "rnak"], "rank"),
        (["all-reduce", "--size", "1M", "--transport", "smh"], "shm"),
        (["ring", "--size", "1M"], "ring"),
    ],
)
def test_what_cannot_be_explained_is_named(arguments: list[str], words: str) -> None:
    done = explain(*arguments)
    assert isinstance(done.exception, SpecError)
    assert words in str(done.exception)
