"""What comes out: the collective's definition on integers, the same bits everywhere, and the promised orders."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from algorithm_tables import ENTRIES, proven, roots

from atoll.schedule.certify import certify
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.interpret import interpret
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.prove import prove

WORLDS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12]
REDUCING = [(collective, name) for collective, name in ENTRIES if COLLECTIVES[collective].reduces]
Array = npt.NDArray[np.int64]


def inputs_of(collective: str, root: int | None, vectors: Array) -> list[Array]:
    """What each rank gives of its row of ``vectors``."""
    n = len(vectors)
    if collective in ("all_gather", "gather"):
        return [np.array_split(vectors[rank], n)[rank] for rank in range(n)]
    if collective in ("broadcast", "scatter"):
        return [vectors[rank] if rank == root else vectors[rank][:0] for rank in range(n)]
    return list(vectors)


def defined(collective: str, root: int | None, vectors: Array) -> list[list[int]]:
    """What each rank must end with, written from the collective's definition."""
    n = len(vectors)
    blocks = [np.array_split(vector, n) for vector in vectors]
    total = vectors.sum(axis=0)
    everything = np.concatenate([blocks[rank][rank] for rank in range(n)])
    ends = {
        "all_reduce": lambda rank: total,
        "reduce_scatter": lambda rank: np.array_split(total, n)[rank],
        "all_gather": lambda rank: everything,
        "broadcast": lambda rank: vectors[root],
        "reduce": lambda rank: total if rank == root else total[:0],
        "all_to_all": lambda rank: np.concatenate([blocks[source][rank] for source in range(n)]),
        "gather": lambda rank: everything if rank == root else everything[:0],
        "scatter": lambda rank: blocks[root][rank],
    }
    return [ends[collective](rank).tolist() for rank in range(n)]


@pytest.mark.parametrize(("collective", "name"), [entry for entry in ENTRIES if entry[0] != "barrier"])
def test_integers_come_out_as_the_collective_defines_them(collective: str, name: str) -> None:
    rng = np.random.default_rng(7)
    for world_size in WORLDS:
        lengths = [3 * world_size] if collective == "all_to_all" else [0, world_size - 1, 3 * world_size + 2]
        for root in roots(collective, world_size)[-2:]:
            schedule = proven(collective, name, world_size, root)
            for length in lengths:
                vectors = rng.integers(-(2**40), 2**40, (world_size, length))
                inputs = inputs_of(collective, root, vectors)
                outputs = [output.tolist() for output in interpret(schedule, inputs)]
                assert outputs == defined(collective, root, vectors), f"{world_size} ranks, {length} elements"


def test_nobody_leaves_the_barrier_before_all_have_come() -> None:
    for world_size in WORLDS:
        tokens = [np.array([1 << rank]) for rank in range(world_size)]
        for output in interpret(proven("barrier", "dissemination", world_size, None), tokens, np.bitwise_or):
            assert output.tolist() == [(1 << world_size) - 1]


@pytest.mark.parametrize(("collective", "name"), [entry for entry in REDUCING if entry[0] != "barrier"])
def test_floats_have_the_same_bits_on_all_ranks_and_out_of_place(collective: str, name: str) -> None:
    rng = np.random.default_rng(11)
    for world_size in WORLDS:
        for root in roots(collective, world_size)[-1:]:
            schedule = proven(collective, name, world_size, root)
            # Magnitudes from 2^-12 to 2^12, so that almost every change of order changes a bit.
            shape = (world_size, 5 * world_size + 3)
            values = (rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 12, shape)).astype(np.float32)
            outputs = [output.tobytes() for output in interpret(schedule, list(values))]
            apart = prove(out_of_place(schedule.schedule))
            assert [output.tobytes() for output in interpret(apart, list(values))] == outputs
            if collective == "all_reduce":
                assert len(set(outputs)) == 1, f"{world_size} ranks end with different bits"
            assert certify(schedule).same_bits


ONE_ORDER = [
    ("all_reduce", "recursive_doubling"),
    ("all_reduce", "halving_doubling"),
    ("all_reduce", "binomial_tree"),
    ("all_reduce", "one_shot"),
    ("all_reduce", "naive"),
    ("reduce", "binomial_tree"),
    ("reduce", "chain"),
]
ONE_ORDER_AT_POWERS_OF_TWO = [
    ("all_reduce", "bruck"),
    ("reduce_scatter", "bruck"),
    ("reduce_scatter", "recursive_halving"),
]


@pytest.mark.parametrize(("collective", "name"), ONE_ORDER)
def test_the_order_does_not_depend_on_the_position(collective: str, name: str) -> None:
    for world_size in range(1, 34):
        for root in roots(collective, world_size):
            assert certify(proven(collective, name, world_size, root)).position_independent


@pytest.mark.parametrize(("collective", "name"), ONE_ORDER_AT_POWERS_OF_TWO)
def test_the_order_does_not_depend_on_the_position_at_powers_of_two(collective: str, name: str) -> None:
    for world_size in range(2, 34):
        certificate = certify(proven(collective, name, world_size, None))
        power_of_two = world_size & (world_size - 1) == 0
        assert certificate.position_independent == (power_of_two or world_size == 2)


def test_depths_and_orders() -> None:
    """The height of the deepest sum, and the number of different sums, at 12 and at 16 ranks."""
    found = {
        (name, world_size): (certificate.num_orders, certificate.depth)
        for name in ("ring", "recursive_doubling", "halving_doubling", "binomial_tree", "direct", "naive", "one_shot")
        for world_size in (12, 16)
        for certificate in [certify(proven("all_reduce", name, world_size, None))]
    }
    assert found == {
        ("ring", 12): (12, 11),
        ("ring", 16): (16, 15),
        ("recursive_doubling", 12): (1, 4),
        ("recursive_doubling", 16): (1, 4),
        ("halving_doubling", 12): (1, 4),
        ("halving_doubling", 16): (1, 4),
        ("binomial_tree", 12): (1, 4),
        ("binomial_tree", 16): (1, 4),
        ("direct", 12): (11, 11),
        ("direct", 16): (15, 15),
        ("naive", 12): (1, 11),
        ("naive", 16): (1, 15),
        ("one_shot", 12): (1, 11),
        ("one_shot", 16): (1, 15),
    }


@pytest.mark.parametrize("name", ["naive", "one_shot"])
def test_whole_vectors_are_added_as_one_would_write_it(name: str) -> None:
    for world_size in range(2, 10):
        rng = np.random.default_rng(world_size)
        values = [rng.standard_normal(5).astype(np.float32) for _ in range(world_size)]
        total = values[0]
        for value in values[1:]:
            total = total + value
        for output in interpret(proven("all_reduce", name, world_size, None), values):
            assert output.tobytes() == total.tobytes()


@pytest.mark.parametrize(
    "name",
    ["recursive_doubling", "halving_doubling", "binomial_tree", "double_binary_tree", "naive", "one_shot", "chain"],
)
def test_rank_order_is_kept_for_operations_that_do_not_commute(name: str) -> None:
    """Composition of affine maps x -> a x + b, packed in a complex number: associative, but not commutative."""

    def after(first: npt.NDArray[np.complex128], second: npt.NDArray[np.complex128]) -> npt.NDArray[np.complex128]:
        return first.real * second.real + 1j * (first.real * second.imag + first.imag)

    for world_size in range(2, 15, 2) if name == "double_binary_tree" else range(1, 14):
        collective = "reduce" if name == "chain" else "all_reduce"
        root = 0 if collective == "reduce" else None
        maps = [np.full(2, (-1) ** rank * 2.0 + 1j * rank) for rank in range(world_size)]
        total = maps[0]
        for each in maps[1:]:
            total = after(total, each)
        output = interpret(proven(collective, name, world_size, root), maps, after)[0]
        assert output.tolist() == total.tolist()
