"""The catalogue: complete, lazy, and clear about what it does not know."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from math import ceil, log2

import pytest
from algorithm_tables import ENTRIES, proven, roots

from atoll.algorithms import catalog
from atoll.errors import SpecError
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.count import count
from atoll.schedule.prove import prove


def test_every_collective_has_algorithms_and_no_name_twice() -> None:
    assert {collective for collective, _ in ENTRIES} == set(COLLECTIVES)
    assert max(Counter(ENTRIES).values()) == 1


def test_schedules_are_named_as_they_are_found() -> None:
    for collective, name in ENTRIES:
        root = 1 if COLLECTIVES[collective].rooted else None
        header = catalog.build(collective, name, 4, root).header
        assert (header.collective, header.name, header.root) == (collective, name, root)


def test_the_same_arguments_make_the_same_schedule() -> None:
    for collective, name in ENTRIES:
        root = 2 if COLLECTIVES[collective].rooted else None
        first, second = (catalog.build(collective, name, 6, root).fingerprint() for _ in range(2))
        assert first == second


def test_default_is_the_first_name() -> None:
    assert {collective: catalog.default(collective) for collective in COLLECTIVES} == {
        "all_reduce": "ring",
        "reduce_scatter": "ring",
        "all_gather": "ring",
        "broadcast": "binomial_tree",
        "reduce": "binomial_tree",
        "all_to_all": "pairwise",
        "gather": "binomial_tree",
        "scatter": "binomial_tree",
        "barrier": "dissemination",
    }


def test_entries_say_what_they_cost() -> None:
    for entry in catalog.CATALOG:
        assert entry.steps
        assert entry.sent
        assert entry.constraint
        assert entry.summary
        known = COLLECTIVES[entry.collective]
        assert bool(entry.order) == (known.reduces and known.exactly_once)


def evaluated(text: str, world_size: int) -> float | None:
    """A cost as the catalogue writes it, in steps or in vectors of n bytes; None where it is no plain formula."""
    if re.search(r"up to|times|tokens", text):
        return None
    n, power = world_size, 1 << (world_size.bit_length() - 1)
    values = {
        "N": n, "p": power, "m": max(n - n % 2, 1), "L": ceil(log2(n)), "n": 1,
        "g": max(g for g in range(1, n + 1) if n % g == 0 and g * g <= n),
        "log2": lambda value: ceil(log2(value)),
    }  # fmt: skip

    def value(formula: str) -> float:
        product = re.sub(r"log2 (\w)", r"log2(\1)", formula)
        product = re.sub(r"(?<=[\dLNpmn)]) (?=[nLl])|(?<=[\dn])(?<!log2)\(", lambda gap: "*" + gap[0].strip(), product)
        return float(eval(product, {"__builtins__": {}}, values))

    formula = re.split(r";| \(the root| with rings| rounded up|, then|, half", text)[0]
    plain, *extra = re.split(r", \+", formula)
    total = value(plain)
    for part in extra:
        amount, condition = part.split(" if ")
        total += value(amount) if {"N != p": n != power, "N is odd": n % 2 == 1}[condition] else 0
    return total


@pytest.mark.parametrize("entry", catalog.CATALOG, ids=lambda entry: f"{entry.collective}-{entry.name}")
def test_the_costs_that_are_shown_are_the_costs(entry: catalog.Entry) -> None:
    for world_size in (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 23):
        schedule = proven(entry.collective, entry.name, world_size, roots(entry.collective, world_size)[0])
        counts = count(schedule)
        assert evaluated(entry.steps, world_size) == counts.steps
        sent = evaluated(entry.sent, world_size)
        if sent is not None:
            assert counts.sent.max() / counts.vector_bytes == pytest.approx(sent), f"{world_size} ranks"


def test_options_are_known_before_anything_is_built() -> None:
    options = {(entry.collective, entry.name): set(entry.options()) for entry in catalog.CATALOG}
    assert {key: value for key, value in options.items() if value} == {
        ("all_reduce", "hierarchical"): {"group_size", "order", "islands", "inner", "outer"},
        ("all_gather", "pat"): {"max_blocks"},
        ("reduce_scatter", "pat"): {"max_blocks"},
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reduse", "ring", 4), "unknown collective 'all_reduse': did you mean 'all_reduce'"),
        (("all_reduce", "rign", 4), "unknown algorithm 'rign' for all_reduce: did you mean 'ring'"),
        (("barrier", "ring", 4), "unknown algorithm 'ring' for barrier"),
        (("all_reduce", "ring", 0), "a world of at least 1 rank, got 0"),
        (("all_reduce", "ring", -1), "a world of at least 1 rank, got -1"),
        (("all_reduce", "ring", 4, 0), "has no root, got root 0"),
        (("broadcast", "chain", 4), "a root between 0 and 3, got None"),
        (("broadcast", "chain", 4, 4), "a root between 0 and 3, got 4"),
        (("broadcast", "chain", 4, -1), "a root between 0 and 3, got -1"),
    ],
)
def test_what_does_not_exist_is_named(arguments: tuple[str, str, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        catalog.build(*arguments)


def test_unknown_options_are_named() -> None:
    with pytest.raises(SpecError, match="unknown option 'max_block': did you mean 'max_blocks'"):
        catalog.build("all_gather", "pat", 4, max_block=2)
    with pytest.raises(SpecError, match="unknown option 'group_size': it has none"):
        catalog.build("all_reduce", "ring", 4, group_size=2)


def test_the_catalogue_imports_no_algorithm() -> None:
    program = (
        "import sys; from atoll.algorithms import catalog; catalog.names('all_reduce');"
        "print(sorted(name for name in sys.modules if name.startswith('atoll.algorithms.')))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "['atoll.algorithms.catalog']"


def test_a_ring_of_1024_ranks_is_built_in_100_megabytes() -> None:
    catalog.build("all_reduce", "ring", 2)
    tracemalloc.start()
    try:
        schedule = catalog.build("all_reduce", "ring", 1024)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(schedule) == 2 * 1023 * 1024 == 2_095_104
    assert peak < 100e6
    assert held < 32e6


@pytest.mark.parametrize(
    ("collective", "name", "rows"),
    [
        # In place a run that the algorithm moves as one is one row, or two where it passes the last block.
        ("all_reduce", "recursive_doubling", 10 * 1024),
        ("all_reduce", "halving_doubling", 2 * 10 * 1024),
        ("all_reduce", "swing", 2 * 10 * 1024),
        ("all_reduce", "binomial_tree", 2 * 1023),
        ("all_reduce", "double_binary_tree", 4 * 1023),
        ("all_gather", "recursive_doubling", 10 * 1024),
        ("all_gather", "bruck", 10 * 1024 + 1023 - 10),
    ],
)
def test_logarithmic_algorithms_stay_small_at_1024_ranks(collective: str, name: str, rows: int) -> None:
    schedule = catalog.build(collective, name, 1024)
    assert len(schedule) == rows
    prove(schedule)


def test_hierarchical_scales() -> None:
    schedule = catalog.build("all_reduce", "hierarchical", 256, group_size=8)
    # Each of 32 parts of a chunk's width inside, one row; across, rings of 32 islands.
    assert schedule.num_steps == 2 * 7 + 2 * 31
    assert len(schedule) == 256 * (2 * 7 + 2 * 31)
    prove(schedule)
