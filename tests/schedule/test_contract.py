"""The contracts, against a second table written in terms of data: who starts with what, who ends with what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.schedule.contract import COLLECTIVES, Contract, contract

ROOTED = {"broadcast", "reduce", "gather", "scatter"}
BLOCKED = {"reduce_scatter", "all_gather", "all_to_all", "gather", "scatter"}
REDUCES = {"all_reduce", "reduce_scatter", "reduce", "barrier"}


@st.composite
def contracts(draw: st.DrawFn) -> Contract:
    name = draw(st.sampled_from(sorted(COLLECTIVES)))
    world_size = draw(st.integers(1, 9))
    chunks = draw(st.integers(1, 4)) * (world_size if name in BLOCKED else 1)
    return contract(name, world_size, chunks, draw(st.integers(0, world_size - 1)) if name in ROOTED else None)


def data_before(terms: Contract, rank: int) -> list[tuple[int, int]]:
    """(contributing rank, chunk number) of all that a rank starts with."""
    block = range(rank * terms.chunks // terms.world_size, (rank + 1) * terms.chunks // terms.world_size)
    match terms.collective.name:
        case "all_gather" | "gather":
            return [(rank, chunk) for chunk in block]
        case "broadcast" | "scatter":
            return [(rank, chunk) for chunk in range(terms.chunks)] if rank == terms.root else []
    return [(rank, chunk) for chunk in range(terms.chunks)]


def data_after(terms: Contract, rank: int) -> list[tuple[int, int]]:
    """(contributing rank or -1 for all, chunk number) of all that a rank must end with, in order."""
    ranks = range(terms.world_size)
    size = terms.chunks // terms.world_size

    def block(owner: int) -> range:
        return range(owner * size, (owner + 1) * size)

    match terms.collective.name:
        case "all_reduce" | "barrier":
            return [(-1, chunk) for chunk in range(terms.chunks)]
        case "reduce_scatter":
            return [(-1, chunk) for chunk in block(rank)]
        case "all_gather":
            return [(owner, chunk) for owner in ranks for chunk in block(owner)]
        case "broadcast":
            return [(terms.root or 0, chunk) for chunk in range(terms.chunks)]
        case "reduce":
            return [(-1, chunk) for chunk in range(terms.chunks)] if rank == terms.root else []
        case "all_to_all":
            return [(sender, chunk) for sender in ranks for chunk in block(rank)]
        case "gather":
            return [(owner, chunk) for owner in ranks for chunk in block(owner)] if rank == terms.root else []
        case "scatter":
            return [(terms.root or 0, chunk) for chunk in block(rank)]
    raise AssertionError(terms.collective.name)


@given(contracts())
def test_inputs_and_outputs_are_those_of_the_table(terms: Contract) -> None:
    for rank in range(terms.world_size):
        before, after = data_before(terms, rank), data_after(terms, rank)
        assert terms.input_chunks(rank).tolist() == [chunk for _, chunk in before]
        assert terms.input_size(rank) == len(before)
        assert terms.output_chunks(rank).tolist() == [chunk for _, chunk in after]
        assert terms.output_origins(rank).tolist() == [origin for origin, _ in after]
        assert terms.output_size(rank) == len(after)
        for array in (terms.input_chunks(rank), terms.output_chunks(rank), terms.output_origins(rank)):
            assert array.dtype == np.int64


@given(contracts())
def test_inputs_are_runs_that_start_where_stated(terms: Contract) -> None:
    for rank in range(terms.world_size):
        start = terms.input_start(rank)
        assert terms.input_chunks(rank).tolist() == list(range(start, start + terms.input_size(rank)))
        if terms.collective.name != "all_to_all" and terms.output_size(rank):
            assert terms.output_start(rank) == int(terms.output_chunks(rank)[0])


@given(contracts())
def test_every_contribution_that_is_asked_for_is_somebodys_input(terms: Contract) -> None:
    held = {pair for rank in range(terms.world_size) for pair in data_before(terms, rank)}
    for rank in range(terms.world_size):
        for origin, chunk in zip(terms.output_origins(rank).tolist(), terms.output_chunks(rank).tolist(), strict=True):
            wanted = range(terms.world_size) if origin < 0 else (origin,)
            assert {(contributor, chunk) for contributor in wanted} <= held


def test_what_each_collective_is() -> None:
    assert {name for name, known in COLLECTIVES.items() if known.rooted} == ROOTED
    assert {name for name, known in COLLECTIVES.items() if known.blocked} == BLOCKED
    assert {name for name, known in COLLECTIVES.items() if known.reduces} == REDUCES
    assert {name for name, known in COLLECTIVES.items() if not known.exactly_once} == {"barrier"}
    assert all(known.name == name for name, known in COLLECTIVES.items())
    assert len(COLLECTIVES) == 9


def test_blocks_cut_the_vector_by_rank() -> None:
    terms = contract("all_gather", 4, 12)
    assert (terms.blocks, terms.chunks_per_block) == (4, 3)
    terms = contract("all_reduce", 4, 12)
    assert (terms.blocks, terms.chunks_per_block) == (1, 12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_gahter", 2, 2), "unknown collective 'all_gahter': did you mean 'all_gather'?"),
        (("", 2, 2), "Known: all_gather, all_reduce, all_to_all, barrier"),
        (("all_reduce", 0, 1), "all_reduce: expected a world of at least 1 rank, got 0"),
        (("all_reduce", -3, 1), "got -3"),
        (("all_reduce", 1, 0), "all_reduce: expected at least 1 chunk, got 0"),
        (("all_reduce", 2, 1, 0), "all_reduce: has no root, got root 0"),
        (("broadcast", 2, 1), "broadcast: expected a root between 0 and 1, got None"),
        (("broadcast", 2, 1, 2), "broadcast: expected a root between 0 and 1, got 2"),
        (("gather", 2, 2, -1), "gather: expected a root between 0 and 1, got -1"),
        (("scatter", 3, 4, 0), "scatter: expected chunks in a multiple of 3 ranks, got 4"),
        (("all_to_all", 5, 4), "all_to_all: expected chunks in a multiple of 5 ranks, got 4"),
    ],
)
def test_what_is_no_contract_is_refused(arguments: tuple[str, int, int], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        contract(*arguments)
    assert message in str(caught.value)
