"""Bit-stable reductions: proven by certificate, and shown by real processes."""

from __future__ import annotations

import subprocess
import sys
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

from atoll.algorithms.catalog import build, names
from atoll.errors import SpecError
from atoll.runtime.choice import Chooser, Layout, assumed
from atoll.runtime.communicator import Communicator
from atoll.runtime.stability import ALGORITHMS, Order, check_order, order_asked, stable_algorithms
from atoll.runtime.tuning import TRANSPORTS, load_tuning
from atoll.schedule.certify import Certificate, certify
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.prove import ProvenSchedule, prove

WORLDS = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 96]
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")


@cache
def proven(collective: str, name: str, world_size: int) -> ProvenSchedule:
    root = world_size // 2 if COLLECTIVES[collective].rooted else None
    return prove(build(collective, name, world_size, root))


@cache
def certificate(collective: str, name: str, world_size: int) -> Certificate:
    return certify(proven(collective, name, world_size))


@pytest.mark.parametrize("order", ["fixed", "rank"])
@pytest.mark.parametrize("collective", REDUCTIONS)
def test_what_auto_may_take_has_one_order_in_every_world(collective: str, order: Order) -> None:
    for world_size in WORLDS:
        digests = set()
        for name in ALGORITHMS[order][collective]:
            found = certificate(collective, name, world_size)
            assert found.same_bits, (name, world_size)
            assert found.position_independent, (name, world_size)
            digests.add(found.order_digest)
            check_order(proven(collective, name, world_size), order)
        assert len(digests) == 1, (collective, world_size)
        assert None not in digests


@pytest.mark.parametrize("order", ["fixed", "rank"])
@pytest.mark.parametrize("collective", REDUCTIONS)
def test_the_choice_is_one_of_them_at_every_size(collective: str, order: Order) -> None:
    allowed = set(stable_algorithms(collective, order) or ())
    for world_size in WORLDS:
        assert {assumed(collective, world_size, 4**power, order) for power in range(16)} <= allowed
        for transport in TRANSPORTS:
            shipped = Chooser(load_tuning(None), Layout(world_size, transport))
            assert {shipped.choose(collective, 4**power, order) for power in range(16)} <= allowed


def test_rank_order_is_that_of_a_loop_in_all_collectives() -> None:
    for world_size in (2, 3, 6, 12):
        text = reduce(lambda left, rank: f"({left}+{rank})", range(1, world_size), "0")
        for collective in REDUCTIONS:
            for name in ALGORITHMS["rank"][collective]:
                assert [order.expression for order in certificate(collective, name, world_size).orders] == [text]
    digests = {certificate(collective, "ordered", 96).order_digest for collective in REDUCTIONS}
    assert len(digests) == 1


def test_an_order_has_one_digest_and_another_order_another() -> None:
    for world_size in (4, 5, 8):
        by_digest: dict[str | None, set[str | None]] = {}
        for name in names("all_reduce"):
            found = certificate("all_reduce", name, world_size)
            if found.num_orders == 1:
                by_digest.setdefault(found.order_digest, set()).add(found.orders[0].expression)
            else:
                assert found.order_digest is None
        texts = [text for texts in by_digest.values() for text in texts]
        assert len(texts) == len(set(texts)) == len(by_digest) >= 2


@pytest.mark.parametrize(
    ("collective", "name", "world_size", "order", "words"),
    [
        ("all_reduce", "ring", 4, "fixed", "4 orders, depending on the position.*take recursive_doubling or"),
        ("all_reduce", "direct", 3, "rank", "order 'rank' was asked for"),
        ("all_reduce", "halving_doubling", 4, "rank", r"another order than ordered, such as \(\(0\+1\)\+\(2\+3\)\)"),
        ("all_reduce", "binomial_tree", 5, "fixed", "another order than recursive_doubling"),
        ("reduce_scatter", "recursive_halving", 4, "fixed", "another order than ordered"),
        ("reduce", "chain", 3, "rank", r"\(0\+\(1\+2\)\)|another order"),
    ],
)
def test_another_order_is_refused(collective: str, name: str, world_size: int, order: Order, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        check_order(proven(collective, name, world_size), order)


def test_two_ranks_have_one_order_whatever_the_algorithm() -> None:
    for collective in REDUCTIONS:
        for name in names(collective):
            check_order(proven(collective, name, 2), "rank")


def test_what_the_arguments_mean() -> None:
    assert order_asked(None, None, "rank") == "rank"
    assert order_asked(True, None, "any") == "fixed"
    assert order_asked(True, "rank", "any") == "rank"
    assert order_asked(False, None, "rank") == "any"
    assert order_asked(True, "any", "rank") == "fixed"
    assert order_asked(None, "any", "rank") == "any"
    with pytest.raises(SpecError, match=r"unknown order 'rnak'.*rank"):
        order_asked(None, "rnak", "any")
    with pytest.raises(SpecError, match="deterministic=False"):
        order_asked(False, "rank", "any")


def values(rank: int, length: int) -> Any:
    """Floats of very different sizes: nearly every order of their sum has other bits. A prefix of the longest."""
    rng = np.random.default_rng(rank)
    return (rng.standard_normal(length) * 10.0 ** np.random.default_rng(rank + 100).integers(-4, 5, length)).astype(
        np.float32
    )


LONGEST = 600_000
SIZES = (1, 5, 1000, 30_000, LONGEST)  # across all thresholds of the choice


def stable_sums(comm: Communicator) -> dict[str, Any]:
    """The first element of everything, in tensors of many sizes and at several offsets."""
    mine = values(comm.rank, LONGEST)
    found: dict[str, Any] = {"fixed": set(), "rank": set(), "ring": set(), "collectives": set(), "names": set()}
    for length in SIZES:
        for start in (0, length // 2, length - 1):
            # What is summed is the same value on each rank, in another place of another tensor.
            tensor = np.roll(mine[:length], start)
            found["fixed"].add(comm.all_reduce(tensor, deterministic=True)[start].tobytes())
            found["rank"].add(comm.all_reduce(tensor, order="rank")[start].tobytes())
            found["ring"].add(comm.all_reduce(tensor, algorithm="ring")[start].tobytes())
    tensor = mine[: 1000 * comm.world_size]
    for name in ALGORITHMS["rank"]["all_reduce"]:
        found["names"].add(comm.all_reduce(tensor, order="rank", algorithm=name).tobytes())
    scattered = comm.reduce_scatter(tensor, order="rank")
    found["collectives"].add(comm.all_gather(scattered).tobytes())
    for root in range(comm.world_size):
        reduced = comm.reduce(tensor, root=root, order="rank")
        if reduced is not None:
            found["collectives"].add(reduced.tobytes())
    part = comm.split(0, key=-comm.rank)  # the same ranks, in reverse order
    assert part is not None
    found["reversed"] = part.all_reduce(tensor, order="rank").tobytes()
    try:
        comm.all_reduce(tensor, algorithm="ring", deterministic=True)
    except SpecError as error:
        found["refused"] = str(error)
    return found


@pytest.mark.parametrize("world_size", [3, 4])
def test_real_sums_have_the_same_bits_at_every_size_place_and_algorithm(world_size: int) -> None:
    ranks = run_ranks(world_size, stable_sums)
    vectors = [values(rank, LONGEST) for rank in range(world_size)]
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    loop = total[: 1000 * world_size].tobytes()
    backwards = vectors[-1][: 1000 * world_size].copy()
    for vector in reversed(vectors[:-1]):
        backwards += vector[: 1000 * world_size]
    for found in ranks:
        assert len(found["fixed"]) == 1
        assert found["rank"] == {total[0].tobytes()}
        assert found["names"] == found["collectives"] == {loop}
        assert found["reversed"] == backwards.tobytes() != loop
        assert "4 orders" in found["refused"] or "3 orders" in found["refused"]
    assert len({bits for found in ranks for bits in found["fixed"]}) == 1
    # These values do tell orders apart: the ring's result depends on where in the tensor they stand.
    assert len({bits for found in ranks for bits in found["ring"]}) > 1


SCRIPT = """
import sys
import numpy as np
import atoll

with atoll.init(order="rank") as comm:
    mine = np.array([1e8, 1.0, -1e8, 1.0], np.float32)[[comm.rank]]
    part = comm.split(0)
    sums = [comm.all_reduce(mine), part.all_reduce(mine), comm.all_reduce(mine, deterministic=True, order="any")]
    if comm.rank == 0:
        print([float(total[0]) for total in sums])
"""


def test_a_communicators_own_order_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, "-m", "atoll", "launch", "-n", "4", str(tmp_path / "job.py")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    # ((1e8 + 1) - 1e8) + 1 is 1 in float32; (1e8 + 1) + (-1e8 + 1) is 0.
    assert ran.stdout == "[1.0, 1.0, 0.0]\n", ran.stderr
