"""Edges are enough (any order of events that respects them gives the result of ``interpret``), real, and needed."""

from __future__ import annotations

import random
from collections import defaultdict
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from event_world import Guard, Stuck, execute, guards_of
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import mix, proven_schedules, random_inputs

from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.dependencies import APPLY, READ, Dependencies, derive
from atoll.schedule.interpret import interpret
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.schedule.table import COLUMNS, REPLACE, Header, Schedule
from atoll.testing.world import play

Edge = tuple[int, int, int, int, int, int]  # before, side, index, after, side, index


def chunk_edges(edges: Dependencies) -> list[Edge]:
    """Every edge chunk by chunk."""
    columns = (
        edges.before, edges.before_side, edges.before_index, edges.after, edges.after_side, edges.after_index,
        edges.num_chunks,
    )  # fmt: skip
    return [
        (before, before_side, before_index + index, after, after_side, after_index + index)
        for before, before_side, before_index, after, after_side, after_index, count in zip(
            *(column.tolist() for column in columns), strict=True
        )
        for index in range(count)
    ]


def conflicts(proven: ProvenSchedule) -> set[Edge]:
    """By definition: all pairs of accesses of different rows to one chunk of memory, one of them at least a write."""
    accesses: dict[tuple[int, int], list[tuple[tuple[int, int, int, int], bool, tuple[int, int, int]]]]
    accesses = defaultdict(list)
    for number, row in enumerate(proven.schedule.rows()):
        for index in range(row.num_chunks):
            read, write = (row.step, 0, 0, 0), (row.step, 1, row.src, number)
            accesses[row.src, row.src_chunk + index].append((read, False, (number, READ, index)))
            accesses[row.dst, row.dst_chunk + index].append((write, True, (number, APPLY, index)))
            if row.operand_chunk not in (REPLACE, row.dst_chunk):
                accesses[row.dst, row.operand_chunk + index].append((read, False, (number, APPLY, index)))
    return {
        (*first, *second)
        for history in accesses.values()
        for (when, writes, first), (later, rewrites, second) in permutations(history, 2)
        if (writes or rewrites) and when < later and first[0] != second[0]
    }


@settings(max_examples=300, deadline=None)
@given(proven_schedules(), st.data())
def test_any_order_that_respects_the_edges_gives_the_same_result(proven: ProvenSchedule, data: st.DataObject) -> None:
    """Elements one by one, any segment, chunks of unequal and of no length; and no order gets stuck."""
    equal = proven.header.collective == "all_to_all"
    length = data.draw(st.integers(0, 3 if equal else 13)) * (proven.world_size if equal else 1)
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    inputs = random_inputs(proven.schedule, chunk_sizes(proven.contract, length), rng)
    expected = interpret(proven, inputs, mix)
    outputs = execute(proven, guards_of(proven, derive(proven)), inputs, length, data.draw(st.integers(1, 5)), rng)
    for rank in range(proven.world_size):
        assert outputs[rank].tolist() == expected[rank].tolist()


@settings(max_examples=100, deadline=None)
@given(proven_schedules(), st.data())
def test_the_runtimes_machines_play_them_with_one_small_segment(proven: ProvenSchedule, data: st.DataObject) -> None:
    """Random schedules on the real state machines, bytes crossing in random pieces: the bits of ``interpret``."""
    unit = proven.world_size if proven.header.collective == "all_to_all" else 1
    length = data.draw(st.integers(0, 40 // unit)) * unit
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    inputs = [
        (words % 1000).astype(np.float32) * np.float32(1.1)
        for words in random_inputs(proven.schedule, chunk_sizes(proven.contract, length), rng)
    ]
    segment_bytes, wire_bytes = data.draw(st.sampled_from((16, 32))), data.draw(st.sampled_from((1, 4, 100)))
    outputs = play(proven, inputs, length, seed=rng.getrandbits(30), segment_bytes=segment_bytes, wire_bytes=wire_bytes)
    for ours, theirs in zip(outputs, interpret(proven, inputs), strict=True):
        assert ours.tobytes() == theirs.tobytes()


@settings(max_examples=150, deadline=None)
@given(proven_schedules())
def test_every_edge_is_a_conflict_by_definition(proven: ProvenSchedule) -> None:
    edges = chunk_edges(derive(proven))
    assert len(edges) == len(set(edges))
    assert set(edges) <= conflicts(proven)


@settings(max_examples=100, deadline=None)
@given(proven_schedules())
def test_all_conflicts_follow_from_the_edges(proven: ProvenSchedule) -> None:
    """A path from before to after, for every pair of accesses; a chunk is applied after it is read."""
    waits: dict[tuple[int, int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for before, before_side, before_index, after, after_side, after_index in chunk_edges(derive(proven)):
        waits[after, after_side, after_index].append((before, before_side, before_index))

    @cache
    def all_before(event: tuple[int, int, int]) -> frozenset[tuple[int, int, int]]:
        number, side, index = event
        direct = [*waits[event], (number, READ, index)] if side == APPLY else waits[event]
        return frozenset(direct).union(*(all_before(before) for before in direct))

    for pair in conflicts(proven):
        assert pair[:3] in all_before(pair[3:]), pair


@settings(max_examples=100, deadline=None)
@given(proven_schedules())
def test_edges_are_ordered_merged_and_split_by_rank(proven: ProvenSchedule) -> None:
    edges = derive(proven)
    src, dst = proven.schedule.column("src"), proven.schedule.column("dst")
    keys = list(
        zip(
            *(column.tolist() for column in (
                edges.after, edges.after_side, edges.before, edges.before_side,
                edges.after_index - edges.before_index, edges.after_index,
            )), strict=True,
        )
    )  # fmt: skip
    assert keys == sorted(keys)
    # An edge is at the rank that owns the memory, where both sides are.
    assert edges.rank.tolist() == np.where(edges.before_side == READ, src[edges.before], dst[edges.before]).tolist()
    assert edges.rank.tolist() == np.where(edges.after_side == READ, src[edges.after], dst[edges.after]).tolist()
    # No two edges could be one.
    chunkwise = chunk_edges(edges)
    ends = {
        (before, before_side, before_index + count, after, after_side, after_index + count)
        for (before, before_side, before_index, after, after_side, after_index), count in zip(
            zip(*(getattr(edges, name).tolist() for name in (
                "before", "before_side", "before_index", "after", "after_side", "after_index",
            )), strict=True), edges.num_chunks.tolist(), strict=True,
        )
    }  # fmt: skip
    assert not ends & set(chunkwise)
    # The edges of a rank, or of some in a row, are the whole's edges at them.
    size = proven.world_size
    for which in (*range(size), range(size // 2), range(size // 3, size - size // 3)):
        mine = derive(proven, rank=which)
        at = np.isin(edges.rank, which)
        for name in Dependencies.__struct_fields__:
            assert getattr(mine, name).tolist() == getattr(edges, name)[at].tolist()


def build(
    collective: str, world_size: int, rows: list[tuple[int, ...]], memory: int, chunks: int = 1
) -> ProvenSchedule:
    """A proven schedule from rows (step, src, dst, src_chunk, dst_chunk, num_chunks, operand_chunk)."""
    root = 0 if COLLECTIVES[collective].rooted else None
    builder = ScheduleBuilder(
        collective, world_size, chunks, name="case", root=root, scratch_chunks=memory - chunks
    )  # fmt: skip
    for step, src, dst, src_chunk, dst_chunk, num_chunks, operand in rows:
        if operand == REPLACE:
            builder.copy(step, src, dst, src_chunk, dst_chunk, num_chunks=num_chunks)
        else:
            builder.reduce(step, src, dst, src_chunk, dst_chunk, operand_chunk=operand, num_chunks=num_chunks)
    return prove(builder.build())


CASES: dict[str, tuple[ProvenSchedule, list[Edge]]] = {
    "a source waits for what an earlier row applied": (
        build("broadcast", 3, [(0, 0, 1, 0, 0, 1, -1), (1, 1, 2, 0, 0, 1, -1)], 1),
        [(0, APPLY, 0, 1, READ, 0)],
    ),
    "an operand waits for what an earlier row applied": (
        build("reduce", 3, [(0, 1, 0, 0, 1, 1, -1), (1, 2, 0, 0, 1, 1, 1), (2, 0, 0, 1, 0, 1, 0)], 2),
        [(0, APPLY, 0, 1, APPLY, 0), (1, APPLY, 0, 2, READ, 0)],
    ),
    "an operand elsewhere waits for what an earlier row applied": (
        build("reduce", 3, [(0, 1, 0, 0, 2, 1, -1), (1, 2, 0, 0, 1, 1, 2), (2, 0, 0, 1, 0, 1, 0)], 3),
        [(0, APPLY, 0, 1, APPLY, 0), (1, APPLY, 0, 2, READ, 0)],
    ),
    "a destination waits for the read of an earlier row": (
        # Two chunks pass rank 1, one after the other, through one place of scratch.
        build("broadcast", 3, [(0, 0, 1, 0, 2, 1, -1), (1, 1, 2, 2, 0, 1, -1), (2, 0, 1, 1, 2, 1, -1),
                               (3, 1, 2, 2, 1, 1, -1), (4, 0, 1, 0, 0, 2, -1)], 3, chunks=2),
        [(0, APPLY, 0, 1, READ, 0), (1, READ, 0, 2, APPLY, 0), (2, APPLY, 0, 3, READ, 0)],
    ),
    "a destination waits for a read of its own step": (
        build("all_reduce", 2, [(0, 0, 1, 0, 0, 1, 0), (0, 1, 0, 0, 0, 1, 0)], 1),
        [(1, READ, 0, 0, APPLY, 0), (0, READ, 0, 1, APPLY, 0)],
    ),
    "reductions of one step apply by source": (
        build("reduce", 3, [(0, 2, 0, 0, 0, 1, 0), (0, 1, 0, 0, 0, 1, 0)], 1),
        [(1, APPLY, 0, 0, APPLY, 0)],
    ),
    "a result that nothing reads is overwritten in order": (
        build("broadcast", 2, [(0, 0, 1, 0, 0, 1, -1), (1, 0, 1, 0, 0, 1, -1)], 1),
        [(0, APPLY, 0, 1, APPLY, 0)],
    ),
    "runs meet at an offset": (
        # Rank 1 passes on its chunks 1-2 as soon as row 0 applied them, though its run starts at chunk 0.
        build("broadcast", 3, [(0, 0, 1, 0, 0, 4, -1), (1, 1, 2, 1, 1, 2, -1), (1, 0, 2, 0, 0, 1, -1),
                               (1, 0, 2, 3, 3, 1, -1)], 4, chunks=4),
        [(0, APPLY, 1, 1, READ, 0), (0, APPLY, 2, 1, READ, 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_edges_of_cases_by_hand(name: str) -> None:
    proven, expected = CASES[name]
    assert sorted(chunk_edges(derive(proven))) == sorted(expected)


def test_chunks_of_a_run_join_into_one_edge() -> None:
    edges = derive(CASES["runs meet at an offset"][0])
    assert len(edges) == 1
    assert (edges.before_index[0], edges.after_index[0], edges.num_chunks[0], edges.rank[0]) == (1, 0, 2, 1)


@pytest.mark.parametrize("name", CASES)
def test_without_any_one_edge_some_order_goes_wrong(name: str) -> None:
    """All orders of lanes by priority, segments large and small: one of them shows that the edge was needed."""
    proven, _ = CASES[name]
    edges = derive(proven)
    length = 3 * proven.contract.chunks
    inputs = random_inputs(proven.schedule, chunk_sizes(proven.contract, length), random.Random(1))
    expected = [output.tolist() for output in interpret(proven, inputs, mix)]
    lanes = sorted({(row.src, row.dst, row.channel) for row in proven.schedule.rows()})

    def outcomes(skip: int | None) -> set[bool]:
        waits = guards_of(proven, edges, skip)
        return {
            [
                output.tolist()
                for output in execute(
                    proven, waits, inputs, length, segment, random.Random(0),
                    priorities={lane: -place for place, lane in enumerate(order)},
                )
            ] == expected
            for order in permutations(lanes)
            for segment in (1, 100)
        }  # fmt: skip

    assert outcomes(None) == {True}
    if name == "a result that nothing reads is overwritten in order":
        return  # one lane, which runs in order anyway
    for edge in range(len(edges)):
        assert False in outcomes(edge), chunk_edges(edges)[edge]


def test_a_row_may_meet_another_by_its_operand_and_by_its_target() -> None:
    """Row 1 reduces chunks 3-4 of rank 0's scratch with what arrives, into 5-6; row 0 wrote all four."""
    builder = ScheduleBuilder("reduce", 3, chunks=4, name="twice", root=0, scratch_chunks=4)
    place = builder.scratch
    builder.copy(0, 1, 0, 0, place, num_chunks=4)
    builder.reduce(1, 2, 0, 0, place + 2, operand_chunk=place, num_chunks=2)
    builder.reduce(2, 0, 0, place + 2, 0, num_chunks=2)
    builder.reduce(2, [1, 2], 0, 2, num_chunks=2)
    edges = derive(prove(builder.build()))
    columns = (edges.before, edges.before_index, edges.after, edges.after_index, edges.num_chunks)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        (0, 2, 1, 0, 2),  # its target, which row 0 wrote
        (0, 0, 1, 0, 2),  # its operand
        (1, 0, 2, 0, 2),
        (3, 0, 4, 0, 2),
    ]


def test_edges_at_different_distances_do_not_join() -> None:
    """Row 2's first operand is row 0's second chunk, and its second target is row 0's first."""
    builder = ScheduleBuilder("reduce", 3, chunks=4, name="crossed", root=0, scratch_chunks=4)
    place = builder.scratch
    builder.copy(0, 1, 0, 0, place + 1, num_chunks=2)
    builder.copy(0, 1, 0, 2, place + 3)
    builder.reduce(1, 2, 0, 1, place, operand_chunk=place + 2, num_chunks=2)
    builder.reduce(2, 0, 0, place, 1, num_chunks=2)
    builder.reduce(2, [1, 2, 1, 2], 0, [0, 0, 3, 3])
    edges = derive(prove(builder.build()))
    columns = (edges.before, edges.before_index, edges.after, edges.after_index, edges.num_chunks)
    assert list(zip(*(column.tolist() for column in columns), strict=True))[:3] == [
        (0, 1, 2, 0, 1),
        (0, 0, 2, 1, 1),
        (1, 0, 2, 1, 1),
    ]


def test_a_shorter_chunk_in_between_does_not_hide_a_longer_one() -> None:
    """Scratch holds chunk 0 (one element), then chunk 1 (none), then chunk 0 again, at a length of one element.

    What overwrites chunk 1 has no element of it to wait for, so it must wait for the readers of the first chunk 0.
    """
    builder = ScheduleBuilder("broadcast", 4, chunks=2, name="scratch", root=0, scratch_chunks=1)
    place = builder.scratch
    builder.copy(0, 0, 1, 0, place)  # row 0: chunk 0 to rank 1's scratch
    builder.copy(1, 1, 2, place, 0)  # row 1: ... and on to rank 2
    builder.copy(2, 0, 1, 1, place)  # row 2: chunk 1 to rank 1's scratch
    builder.copy(3, 1, 2, place, 1)  # row 3: ... and on to rank 2
    builder.copy(4, 0, 1, 0, place)  # row 4: chunk 0 again
    builder.copy(5, 1, 3, place, 0)
    builder.copy(6, 0, 3, 1, 1)
    builder.copy(6, 0, 1, 0, num_chunks=2)
    proven = prove(builder.build())
    edges = chunk_edges(derive(proven))
    assert (1, READ, 0, 4, APPLY, 0) in edges  # past chunk 1, which may be shorter
    assert (3, READ, 0, 4, APPLY, 0) in edges
    # Chunk 1 is never longer than chunk 0, so that who waits for chunk 0's reader has waited for chunk 1's, too.
    assert (0, APPLY, 0, 4, APPLY, 0) not in edges


def test_a_ring_of_runs_has_as_many_edges_as_its_definition() -> None:
    """Per rank: each send after the first waits for the receive before, each replace for the send it overwrites."""
    for world_size, run in ((2, 1), (5, 1), (6, 3)):
        builder = ScheduleBuilder("all_reduce", world_size, world_size * run, name="ring")
        rank = np.arange(world_size)
        for step in range(world_size - 1):
            builder.reduce(step, rank, (rank + 1) % world_size, (rank - step) % world_size * run, num_chunks=run)
        for step in range(world_size - 1):
            chunk = (rank + 1 - step) % world_size * run
            builder.copy(world_size - 1 + step, rank, (rank + 1) % world_size, chunk, num_chunks=run)
        edges = derive(prove(builder.build()))
        assert len(edges) == world_size * (2 * (world_size - 1) - 1 + world_size - 1)
        assert (edges.num_chunks == run).all()


def test_a_1024_rank_ring_is_derived() -> None:
    world_size = 1024
    builder = ScheduleBuilder("all_gather", world_size, world_size, name="ring")
    rank = np.arange(world_size)
    for step in range(world_size - 1):
        builder.copy(step, rank, (rank + 1) % world_size, (rank - step) % world_size)
    edges = derive(prove(builder.build()))
    assert len(edges) == world_size * (world_size - 2)
    assert (edges.before_side == APPLY).all()
    assert (edges.after_side == READ).all()


def test_a_schedule_without_rows_has_no_edges() -> None:
    proven = prove(ScheduleBuilder("all_reduce", 1, 1, name="alone").build())
    assert len(derive(proven)) == 0
    assert len(derive(proven, rank=0)) == 0


def test_the_miniature_world_notices_a_missing_edge_and_a_circle() -> None:
    """The oracle itself can fail: without edges results differ, with an edge back it is stuck."""
    proven, _ = CASES["a destination waits for a read of its own step"]
    inputs = random_inputs(proven.schedule, np.array([2]), random.Random(0))
    expected = [output.tolist() for output in interpret(proven, inputs, mix)]
    outputs = execute(proven, {}, inputs, 2, 9, random.Random(0), {(0, 1, 0): 1.0, (1, 0, 0): 0.0})
    assert [output.tolist() for output in outputs] != expected
    with pytest.raises(Stuck):
        execute(proven, {Guard(0, READ): [Guard(0, APPLY)]}, inputs, 2, 9, random.Random(0))


def test_memory_that_no_header_region_names_is_told_apart_by_rank() -> None:
    """Ranks may have memory of different sizes: equal positions of different ranks never meet."""
    header = Header("broadcast", 3, 1, 0, "uneven", (0, 0, 0), (0, 3, 1), (1, 4, 2))
    rows = {
        "step": [0, 1], "src": [0, 1], "dst": [1, 2], "src_chunk": [0, 3], "dst_chunk": [3, 1], "num_chunks": [1, 1],
        "operand_chunk": [-1, -1], "channel": [0, 0],
    }  # fmt: skip
    assert set(rows) == set(COLUMNS)
    edges = derive(prove(Schedule(header, rows)))
    assert chunk_edges(edges) == [(0, APPLY, 0, 1, READ, 0)]
    assert edges.rank.tolist() == [1]
