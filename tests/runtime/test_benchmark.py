"""The benchmark's own data: sums that no order can change, and checks that see a wrong element."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atoll.errors import SpecError
from atoll.runtime.benchmark import Case, Spec, dtype_named
from atoll.runtime.reduction import reduction

WIDTHS = ["bool", "int8", "uint8", "int32", "float16", "float32", "float64", "complex64", "bfloat16", "float8_e4m3fn",
          "float8_e5m2"]  # fmt: skip


def case(collective: str, dtype: str, op: str, world_size: int, rank: int = 0, size_bytes: int = 4096) -> Case:
    comm: Any = SimpleNamespace(rank=rank, world_size=world_size, all_reduce=lambda array: array)
    return Case(comm, Spec(collective, ("auto",), (size_bytes,), dtype, op), "auto", dtype_named(dtype), size_bytes)


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("world_size", [2, 7, 64, 300])
def test_the_result_is_exact_in_any_order(dtype: str, op: str, world_size: int) -> None:
    measured = case("all_reduce", dtype, op, world_size, size_bytes=2048)
    inputs = [measured._input(rank) for rank in range(world_size)]
    chosen = reduction(op, measured.dtype)
    want = measured._expected()
    orders = [range(world_size), reversed(range(world_size)), np.random.default_rng(1).permutation(world_size)]
    for order in orders:
        total: Any = None
        for rank in order:
            total = inputs[rank] if total is None else chosen.ufunc(total, inputs[rank]).astype(measured.dtype)
        np.testing.assert_array_equal(total, want, strict=True)
    # As a tree, which rounds elsewhere.
    while len(inputs) > 1:
        inputs = [
            pair[0] if pair[1] is None else chosen.ufunc(*pair).astype(measured.dtype)
            for pair in itertools.zip_longest(inputs[::2], inputs[1::2])
        ]
    np.testing.assert_array_equal(inputs[0], want, strict=True)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"])
def test_one_wrong_element_is_one_wrong_element(collective: str) -> None:
    measured = case(collective, "float32", "sum", 4, rank=1)
    right = measured._expected()
    assert len(right) == measured.output_count > 0
    assert measured._wrong(measured._input(1), right.copy()) == 0
    right[3] += 1
    assert measured._wrong(measured._input(1), right) == 1


@pytest.mark.parametrize(("dtype", "ranks"), [("uint8", 8), ("int8", 8), ("float32", 64), ("bfloat16", 64),
                                              ("float8_e4m3fn", 8), ("float8_e5m2", 7), ("bool", 2)])  # fmt: skip
def test_what_moves_shows_where_it_comes_from(dtype: str, ranks: int) -> None:
    """A block of a wrong rank, or shifted by an element, is not taken for the right one."""
    measured = case("all_gather", dtype, "sum", ranks)
    inputs = [measured._input(rank) for rank in range(ranks)]
    for one, other in itertools.combinations(range(ranks), 2):
        assert not (inputs[one] == inputs[other]).any()
    assert not (inputs[0][1:] == inputs[0][:-1]).any()


def test_sizes_are_those_of_nccl_tests_where_ranks_share_the_vector() -> None:
    measured = case("reduce_scatter", "float32", "sum", 3, size_bytes=40)
    assert (measured.count, measured.length, measured.input_count, measured.output_count) == (3, 9, 9, 3)
    measured = case("all_gather", "float32", "sum", 3, size_bytes=40)
    assert (measured.count, measured.input_count, measured.output_count) == (3, 3, 9)


@pytest.mark.parametrize(("name", "full"), [("half", "float16"), ("float", "float32"), ("f8e4m3", "float8_e4m3fn")])
def test_types_have_the_names_of_nccl_tests_too(name: str, full: str) -> None:
    assert str(dtype_named(name)) == full


@pytest.mark.parametrize("name", ["flaot", "object", "U5", "M8[s]", "bfloat17", ""])
def test_an_unknown_type_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(SpecError, match=r"unknown dtype .*float32"):
        dtype_named(name)
