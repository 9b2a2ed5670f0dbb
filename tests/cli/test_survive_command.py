"""``atoll survive``, as a user calls it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from atoll.cli.main import main
from atoll.errors import SpecError

QUICK = ("--runs", "20")


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["survive", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def planned(*arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(shown(*arguments, "--runs", "0", "--json"))
    assert document["schema_version"] == 1
    return document


def refused(*arguments: str) -> str:
    with pytest.raises(SpecError) as caught:
        CliRunner().invoke(main, ["survive", "--gpus", "1024", "--runs", "0", *arguments], catch_exceptions=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_plan_of_a_job() -> None:
    lines = shown(
        "--gpus", "16384", "--mtbf-node", "100d", "--checkpoint", "2.3TB", "--storage", "57.5GB/s", *QUICK
    ).splitlines()  # fmt: skip
    assert lines[0] == "16,384 GPUs, 2,048 nodes of 8: interrupted every 70.3 min, 20.5 times a day"
    assert lines[1] == "  rate       10 per 1,000 node-days; one node, once in 100 d"
    assert "checkpoint to storage every 9.24 min; each blocks 40 s" in lines
    assert any(line.startswith("  simulated  68.") and line.endswith("the formula agrees") for line in lines)
    assert "  checkpoint  2.3 TB (given) in 40 s at 57.5 GB/s (given)" in lines
    assert "  detect      10 min (PyTorch's default timeout of NCCL process groups)" in lines
    assert max(map(len, lines)) <= 110


def test_the_same_seed_prints_the_same() -> None:
    arguments = ("--gpus", "4096", "--days", "5", *QUICK)
    assert shown(*arguments) == shown(*arguments)
    assert shown(*arguments) != shown(*arguments, "--seed", "1")


def test_every_way_to_say_how_often_it_breaks() -> None:
    """The same 10 per 1,000 node-days, said in six ways for 2,048 nodes."""
    ways = (
        ("--rate", "field"), ("--mtbf-node", "100d"), ("--mtbf-job", "4218.75s"), ("--nodes-per-day", "1%"),
        ("--observed", "2048/100d"), ("--observed", "20.48/2d/8192"),
    )  # fmt: skip
    for way in ways:
        assert planned("--gpus", "16384", *way)["plan"]["mtbf_s"] == pytest.approx(86400 / 20.48, rel=1e-6)


def test_the_default_rate_is_llama_3_and_says_so() -> None:
    document = planned("--gpus", "16384")
    assert document["plan"]["mtbf_s"] == pytest.approx(3.093 * 3600, rel=1e-3)
    assert document["assumptions"]["rate"].startswith("llama3: 419 unexpected interruptions")
    assert "arXiv:2407.21783" in document["assumptions"]["source"]


def test_a_published_rate_is_scaled_to_smaller_nodes() -> None:
    whole, half = (
        planned("--gpus", "64", "--rate", "rsc-1"),
        planned("--gpus", "64", "--rate", "rsc-1", "--gpus-per-node", "4"),
    )
    assert half["plan"]["num_nodes"] == 16
    assert half["plan"]["mtbf_s"] == pytest.approx(whole["plan"]["mtbf_s"])


def test_sizes_in_storage_are_decimal() -> None:
    def write_s(size: str) -> float:
        job = planned("--gpus", "1024", "--checkpoint", size, "--storage", "1GB/s")["job"]
        return float(job["checkpoint"]["blocking_s"])

    assert write_s("2.3TB") == 2300
    assert write_s("1TiB") == pytest.approx(1099.511627776)
    assert (
        planned("--gpus", "8", "--parameters", "405B", "--storage", "2TB/s")["job"]["checkpoint"]["blocking_s"] == 2.835
    )


def test_asynchronous_checkpoints() -> None:
    job = planned("--gpus", "1024", "--checkpoint-time", "90s", "--blocking", "5s", "--slowdown", "3%")["job"]
    assert job["checkpoint"] == {"blocking_s": 5.0, "background_s": 90.0, "slowdown": 0.03}
    text = shown("--gpus", "1024", "--checkpoint-time", "90s", "--blocking", "5s", "--slowdown", "3%", *QUICK)
    assert "each blocks 5 s, then 90 s in the background at 3.0 % less speed" in text


def test_domains_lemons_memory_and_shrinking() -> None:
    text = shown(
        "--gpus", "16384", "--domain", "16/2y", "--in-place", "15%", "--lemons", "1%x20", "--memory", "0.2s",
        "--elastic", "--spares", "4", "--replica-nodes", "16", *QUICK,
    )  # fmt: skip
    for part in (
        "16 nodes", "in place", "lemon nodes taken out", "and into host memory every", "4 hot spares, then shrink",
        "nodes missing",
    ):  # fmt: skip
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--rate", "lama3"), "did you mean 'llama3'"),
        (("--rate", "opt", "--mtbf-job", "3h"), "--rate and --mtbf-job"),
        (("--checkpoint", "2.3T"), "2.3TB (decimal)"),
        (("--checkpoint", "2TB", "--parameters", "405B"), "give one"),
        (("--checkpoint-time", "9s", "--storage", "1GB/s"), "stands for size and bandwidth"),
        (("--parameters", "many"), "405B"),
        (("--observed", "419"), "419/54d/16384"),
        (("--observed", "1.2.3/54d"), "--observed"),
        (("--domain", "16"), "16/2y"),
        (("--lemons", "1%"), "1%x20"),
        (("--slowdown", "5%"), "--blocking"),
        (("--nodes-per-day", "0"), "above 0"),
        (("--in-place", "120%"), "--in-place"),
        (("--interval", "1s", "--blocking", "1s"), "background write"),
        (("--gpus", "0"), "--gpus"),
        (("--gpus-per-node", "0"), "--gpus-per-node"),
        (("--availability", "1"), "0.999"),
        (("--repair", "0s"), "repair"),
        (("--days", "nan"), "duration"),
    ],
)
def test_nonsense_is_one_line_that_says_what_to_do(arguments: tuple[str, ...], told: str) -> None:
    assert told in refused(*arguments)
