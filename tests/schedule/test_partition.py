"""Lengths cut into chunks: like ``numpy.array_split``, block by block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.schedule.contract import COLLECTIVES, contract
from atoll.schedule.partition import balanced, chunk_sizes


@given(st.integers(0, 500), st.integers(1, 40))
def test_balanced_is_array_split(length: int, parts: int) -> None:
    assert balanced(length, parts).tolist() == [len(part) for part in np.array_split(np.zeros(length), parts)]
    assert balanced(length, parts).dtype == np.int64


@given(st.sampled_from(sorted(COLLECTIVES)), st.integers(1, 9), st.integers(1, 5), st.integers(0, 300))
def test_blocks_first_then_chunks(name: str, world_size: int, per_block: int, length: int) -> None:
    known = COLLECTIVES[name]
    blocks = world_size if known.blocked else 1
    terms = contract(name, world_size, blocks * per_block, 0 if known.rooted else None)
    if name == "all_to_all":
        length *= world_size
    split = [
        len(chunk)
        for block in np.array_split(np.zeros(length), blocks)
        for chunk in np.array_split(block, per_block)
    ]  # fmt: skip
    sizes = chunk_sizes(terms, length)
    assert sizes.tolist() == split
    assert sizes.dtype == np.int64
    # A block is the same elements whatever the number of chunks, and an element is in one chunk.
    assert sizes.reshape(blocks, per_block).sum(axis=1).tolist() == balanced(length, blocks).tolist()
    assert int(sizes.sum()) == length


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 300))
def test_which_of_two_chunks_is_longer_does_not_depend_on_the_length(
    world_size: int, per_block: int, length: int
) -> None:
    """Dependencies count on it: first chunks of blocks in order of blocks, then second ones, and so on."""
    sizes = chunk_sizes(contract("all_gather", world_size, world_size * per_block), length)
    in_order = sizes.reshape(world_size, per_block).T.reshape(-1)
    assert (np.diff(in_order) <= 0).all()


def test_lengths_that_fit_no_contract_are_refused() -> None:
    with pytest.raises(SpecError, match="at least 0 elements, got -1"):
        balanced(-1, 3)
    with pytest.raises(SpecError, match="at least 0 elements, got -5"):
        chunk_sizes(contract("all_reduce", 2, 2), -5)
    with pytest.raises(SpecError, match="all_to_all: expected a length in a multiple of 4 ranks, got 6; pad the array"):
        chunk_sizes(contract("all_to_all", 4, 8), 6)


def test_large_lengths_do_not_wrap() -> None:
    sizes = chunk_sizes(contract("all_reduce", 3, 3), 10**13 + 1)
    assert sizes.tolist() == [3333333333334, 3333333333334, 3333333333333]
