"""Every algorithm for every world size from 1 to 64: proven, and as cheap as its closed form says."""

from __future__ import annotations

import numpy as np
import pytest
from algorithm_tables import ENTRIES, Counts, measured, proven, roots
from closed_forms import FORMS, pat_all_gather, pat_reduce_scatter, swing_all_reduce

from atoll.algorithms import catalog
from atoll.errors import SpecError
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.prove import prove

WORLDS = range(1, 65)
# Out of place costs a second proof: powers of two and their neighbours, primes, and numbers with many divisors.
SPREAD = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 15, 16, 17, 24, 31, 33, 48, 63, 64]
# They have no entry in FORMS, since only totals have a closed form for every length; own tests below and elsewhere.
BY_TOTALS = {("all_reduce", "swing"), ("all_reduce", "hierarchical")}


def lengths(collective: str, world_size: int) -> list[int]:
    """A length that nothing divides; in small worlds also one that N divides, one with empty chunks, and none."""
    if collective == "barrier":
        return [1]
    if collective == "all_to_all":
        return [7 * world_size]
    odd = 5 * world_size + world_size // 2 + 1
    return [odd, world_size // 2, 7 * world_size, 0] if world_size <= 16 else [odd]


def check(got: Counts, want: Counts, where: str) -> None:
    assert got.steps == want.steps, f"{where}: steps"
    assert got.messages == want.messages, f"{where}: messages"
    assert got.sent.tolist() == want.sent.tolist(), f"{where}: bytes sent"
    assert got.received.tolist() == want.received.tolist(), f"{where}: bytes received"


@pytest.mark.parametrize(("collective", "name"), ENTRIES)
def test_proven_for_every_world_and_as_cheap_as_its_closed_form(collective: str, name: str) -> None:
    for world_size in WORLDS:
        for root in roots(collective, world_size):
            schedule = proven(collective, name, world_size, root)
            header = schedule.header
            assert (header.collective, header.world_size, header.root) == (collective, world_size, root)
            if (collective, name) in BY_TOTALS:
                continue
            tried = lengths(collective, world_size)
            for length, got in zip(tried, measured(schedule, *tried), strict=True):
                want = FORMS[collective, name](world_size, length, root or 0)
                check(got, want, f"{collective} {name}, {world_size} ranks, root {root}, {length} bytes")


@pytest.mark.parametrize(("collective", "name"), ENTRIES)
def test_proven_out_of_place_with_the_input_left_alone(collective: str, name: str) -> None:
    for world_size in SPREAD:
        for root in roots(collective, world_size)[-2:]:
            schedule = proven(collective, name, world_size, root)
            apart = prove(out_of_place(schedule.schedule))
            header = apart.header
            assert not header.in_place
            rows = apart.schedule.columns()
            start = np.array(header.input_offset)[rows.dst]
            size = np.array([apart.contract.input_size(rank) for rank in range(world_size)])[rows.dst]
            into_input = (rows.dst_chunk < start + size) & (rows.dst_chunk + rows.num_chunks > start)
            assert not into_input.any(), f"{world_size} ranks, root {root}: writes into the input"
            length = lengths(collective, world_size)[0]
            check(measured(apart, length)[0], measured(schedule, length)[0], f"{world_size} ranks, root {root}")


def test_every_entry_has_a_closed_form() -> None:
    assert set(FORMS) | BY_TOTALS == set(ENTRIES)


def test_swing_counts() -> None:
    for world_size in WORLDS:
        schedule = proven("all_reduce", "swing", world_size, None)
        core = max(world_size - world_size % 2, 1)
        # A length that nothing divides: as much is sent in all, whoever has the longer chunks.
        odd = 6 * core + core // 2
        *even, uneven = measured(schedule, core, 6 * core, odd)
        assert uneven.sent.sum() == 2 * (core - 1) * odd + (2 * odd if world_size > core else 0)
        for length, got in zip((core, 6 * core), even, strict=True):
            want = swing_all_reduce(world_size, length, 0)
            assert got.steps == want.steps
            assert got.sent.tolist() == want.sent.tolist()
            assert got.received.tolist() == want.received.tolist()
            if world_size & (world_size - 1) == 0:
                assert got.messages == want.messages
            assert got.messages <= want.messages


def test_swing_partners_are_nearer_than_recursive_doublings() -> None:
    """Bytes times hops on a ring of 64, the shorter way: the reason that Swing is there for."""

    def byte_hops(name: str) -> int:
        rows = proven("all_reduce", name, 64, None).schedule.columns()
        distance = np.abs(rows.src - rows.dst)
        return int((np.minimum(distance, 64 - distance) * rows.num_chunks).sum())

    assert byte_hops("swing") < byte_hops("halving_doubling")


@pytest.mark.parametrize("max_blocks", [1, 2, 3, 4, 7, 8, 16, 100])
def test_pat_with_a_buffer_limit(max_blocks: int) -> None:
    for world_size in [*range(1, 20), 31, 32, 33, 47, 64]:
        full = 1 << (world_size - 1).bit_length()
        aggregate = min(2 ** int(np.log2(max_blocks)), max(full // 2, 1))
        for collective, form in (("all_gather", pat_all_gather), ("reduce_scatter", pat_reduce_scatter)):
            schedule = prove(catalog.build(collective, "pat", world_size, max_blocks=max_blocks))
            rows = schedule.schedule.columns()
            if len(rows.row):
                _, blocks = np.unique(np.stack([rows.step, rows.src]), axis=1, return_counts=True)
                assert blocks.max() <= max_blocks
            length = 5 * world_size + 3
            check(measured(schedule, length)[0], form(world_size, length, 0, aggregate), f"{world_size} ranks")


def test_pat_holds_few_blocks_that_are_still_to_be_passed_on() -> None:
    """Received and not yet sent for the last time: at most a log2(P/a) blocks after the first log2 a steps."""
    for world_size, aggregate in ((64, 1), (64, 4), (50, 2), (33, 8)):
        rows = catalog.build("all_gather", "pat", world_size, max_blocks=aggregate).columns()
        arrives: dict[tuple[int, int], int] = {}
        leaves: dict[tuple[int, int], int] = {}
        for step, src, dst, chunk in zip(rows.step, rows.src, rows.dst, rows.src_chunk, strict=True):
            arrives[int(dst), int(chunk)] = int(step)
            leaves[int(src), int(chunk)] = int(step)
        full = 1 << (world_size - 1).bit_length()
        limit = aggregate * int(np.log2(full // aggregate))
        for step in range(int(rows.step.max()) + 1):
            for rank in range(0, world_size, 7):
                held = [
                    chunk
                    for (where, chunk), since in arrives.items()
                    if where == rank and since <= step < leaves.get((where, chunk), -1)
                ]
                assert len(held) <= limit


def test_double_binary_tree_has_no_rank_inner_in_both() -> None:
    for world_size in WORLDS:
        rows = proven("all_reduce", "double_binary_tree", world_size, None).schedule.columns()
        up = rows.operand_chunk >= 0
        first, second = (set(rows.dst[up & (rows.channel == tree)].tolist()) for tree in (0, 1))
        assert not first & second
        for tree in (0, 1):
            _, below = np.unique(rows.dst[up & (rows.channel == tree)], return_counts=True)
            assert below.max(initial=0) <= 2


@pytest.mark.parametrize("max_blocks", [0, -3])
def test_pat_refuses_no_buffer(max_blocks: int) -> None:
    with pytest.raises(SpecError, match="max_blocks of at least 1"):
        catalog.build("all_gather", "pat", 8, max_blocks=max_blocks)
