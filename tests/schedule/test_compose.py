"""Composition: whatever is put together from right parts in a right way is proven, and the rest is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.algorithms import catalog
from atoll.errors import ScheduleError, SpecError
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.compose import Part, compose, embed, mirror, parallel, sequence
from atoll.schedule.interpret import interpret
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.prove import prove
from atoll.schedule.table import Row, Schedule


def algorithms(collective: str) -> st.SearchStrategy[str]:
    return st.sampled_from(catalog.names(collective))


@st.composite
def all_reduces(draw: st.DrawFn, world_size: int, depth: int) -> Schedule:
    """An all-reduce made at random: an algorithm, or two halves of one in sequence, or several side by side."""
    kind = draw(st.sampled_from(["algorithm", "rooted", "scattered", "beside"])) if depth else "algorithm"
    if kind == "algorithm":
        return catalog.build("all_reduce", draw(algorithms("all_reduce")), world_size)
    everyone = draw(st.permutations(range(world_size)))
    if kind == "beside":
        inner = [draw(all_reduces(world_size, depth - 1)) for _ in range(draw(st.integers(2, 3)))]
        widths = [draw(st.integers(1, 2)) for _ in inner]
        sizes = [schedule.header.chunks * width for schedule, width in zip(inner, widths, strict=True)]
        # Every one gets any chunks that no other has, in any order.
        chunks = draw(st.permutations(range(len(inner))))
        base = dict(zip(chunks, np.cumsum([0, *(sizes[which] for which in chunks)]).tolist(), strict=False))
        parts: list[Part] = []
        for which, (schedule, width) in enumerate(zip(inner, widths, strict=True)):
            starts = base[which] + np.array(draw(st.permutations(range(schedule.header.chunks)))) * width
            ranks = draw(st.permutations(range(world_size)))
            parts.append(embed(schedule, ranks, sum(sizes), starts=starts, width=width))
        return compose(parallel(*parts), "all_reduce", world_size, sum(sizes), name="beside")
    if kind == "rooted":
        root = draw(st.integers(0, world_size - 1))
        first = catalog.build("reduce", draw(algorithms("reduce")), world_size, root)
        second = catalog.build("broadcast", draw(algorithms("broadcast")), world_size, root)
    else:
        first = catalog.build("reduce_scatter", draw(algorithms("reduce_scatter")), world_size)
        second = catalog.build("all_gather", draw(algorithms("all_gather")), world_size)
    chunks_needed = int(np.lcm(first.header.chunks, second.header.chunks))
    whole = sequence(embed(first, everyone, chunks_needed), embed(second, everyone, chunks_needed))
    return compose(whole, "all_reduce", world_size, chunks_needed, name=kind)


@given(data=st.data(), world_size=st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_random_compositions_of_all_reduces_are_all_reduces(data: st.DataObject, world_size: int) -> None:
    schedule = data.draw(all_reduces(world_size, depth=2))
    numbers = np.random.default_rng(1).integers(-1000, 1000, (world_size, schedule.header.chunks + 3))
    total = numbers.sum(axis=0).tolist()
    for variant in (schedule, out_of_place(schedule)):
        assert [output.tolist() for output in interpret(prove(variant), list(numbers))] == [total] * world_size


@given(data=st.data(), world_size=st.integers(2, 9))
@settings(max_examples=30, deadline=None)
def test_a_broadcast_in_two_tiers(data: st.DataObject, world_size: int) -> None:
    """Among the leaders, then among each leader's own ranks: disjoint ranks side by side share channel and scratch."""
    islands = data.draw(st.lists(st.integers(0, 3), min_size=world_size, max_size=world_size))
    root = data.draw(st.integers(0, world_size - 1))
    members = {island: [rank for rank in range(world_size) if islands[rank] == island] for island in islands}
    leaders = [root if islands[root] == island else ranks[0] for island, ranks in members.items()]
    name = data.draw(algorithms("broadcast"))
    across = catalog.build("broadcast", name, len(leaders), leaders.index(root))
    inside = [
        catalog.build("broadcast", name, len(ranks), ranks.index(leader))
        for ranks, leader in zip(members.values(), leaders, strict=True)
    ]
    chunks = int(np.lcm.reduce([schedule.header.chunks for schedule in (across, *inside)]))
    parts = [embed(schedule, ranks, chunks) for schedule, ranks in zip(inside, members.values(), strict=True)]
    whole = sequence(embed(across, leaders, chunks), parallel(*parts))
    schedule = prove(compose(whole, "broadcast", world_size, chunks, name="two tiers", root=root))
    assert schedule.schedule.column("channel").max(initial=0) == 0
    assert schedule.schedule.num_steps == across.num_steps + max(part.num_steps for part in inside)


def test_parts_that_share_a_rank_get_channels_and_scratch_of_their_own() -> None:
    one = catalog.build("all_reduce", "one_shot", 2)
    pairs = [(0, 1), (1, 2), (2, 3), (0, 3)]
    parts = [embed(one, pair, 4, starts=[chunk]) for chunk, pair in enumerate(pairs)]
    whole = parallel(*parts)
    assert whole.ranks == {0, 1, 2, 3}
    assert (whole.num_channels, whole.scratch_chunks) == (2, 2)
    lanes = {
        frozenset((int(src), int(dst))): int(channel)
        for src, dst, channel in zip(*(whole.columns[name] for name in ("src", "dst", "channel")), strict=True)
        if src != dst
    }
    assert lanes == {frozenset(pair): lane for pair, lane in zip(pairs, [0, 1, 0, 1], strict=True)}


def test_parts_in_sequence_use_one_scratch_that_is_as_large_as_the_largest() -> None:
    halves = ["recursive_doubling", "one_shot", "naive"]
    for first in halves:
        for second in halves:
            parts = [embed(catalog.build("all_reduce", name, 4), range(4), 2, starts=[at])
                     for at, name in enumerate((first, second))]  # fmt: skip
            whole = compose(sequence(*parts), "all_reduce", 4, 2, name="in turn")
            assert set(whole.header.memory_chunks) == {2 + 3 * ((first, second) != (halves[0], halves[0]))}
            prove(whole)


def test_the_rows_of_a_small_composition() -> None:
    ring = catalog.build("all_reduce", "ring", 2)
    whole = compose(embed(ring, [3, 1], 6, starts=[4, 0], width=2), "all_reduce", 4, 6, name="corner")
    assert list(whole.rows()) == [
        Row(0, 3, 1, 0, 0, 2, 0, 0),
        Row(0, 1, 3, 4, 4, 2, 4, 0),
        Row(1, 3, 1, 4, 4, 2, -1, 0),
        Row(1, 1, 3, 0, 0, 2, -1, 0),
    ]
    # It moves what it should, but it is no all-reduce of four ranks, and the proof says so.
    with pytest.raises(ScheduleError, match="wrong output"):
        prove(whole)


def test_runs_stay_runs_where_their_places_allow_it() -> None:
    """A run of chunks that lie side by side is one row, one that is torn apart is several rows of one message."""
    whole = ScheduleBuilder("broadcast", 2, chunks=4, root=0, name="whole")
    whole.copy(0, 0, 1, 0, num_chunks=4)
    together = embed(whole.build(), [0, 1], 8, starts=[0, 2, 4, 6], width=2)
    apart = embed(whole.build(), [0, 1], 8, starts=[6, 4, 0, 2], width=2)
    assert together.columns["num_chunks"].tolist() == [8]
    assert apart.columns["src_chunk"].tolist() == [6, 4, 0]
    assert apart.columns["num_chunks"].tolist() == [2, 2, 4]


def test_side_by_side_on_one_chunk_is_refused() -> None:
    ring = catalog.build("all_reduce", "recursive_doubling", 2)
    part = embed(ring, [0, 1], 1)
    with pytest.raises(ScheduleError, match="counts a contribution twice"):
        prove(compose(parallel(part, part), "all_reduce", 2, 1, name="twice"))


def test_the_second_half_alone_is_refused() -> None:
    gather = embed(catalog.build("all_gather", "ring", 4), range(4), 4)
    with pytest.raises(ScheduleError, match="wrong output"):
        prove(compose(gather, "all_reduce", 4, 4, name="half"))


@pytest.mark.parametrize("collective", ["all_gather", "broadcast", "gather", "scatter"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8, 12])
def test_mirrors_are_proven_and_send_what_the_original_receives(collective: str, world_size: int) -> None:
    back = {"all_gather": "reduce_scatter", "broadcast": "reduce", "gather": "scatter", "scatter": "gather"}
    root = None if collective == "all_gather" else world_size // 2
    for name in catalog.names(collective):
        schedule = catalog.build(collective, name, world_size, root)
        mirrored = prove(mirror(schedule, name="mirror")).schedule
        assert mirrored.header.collective == back[collective]
        assert sorted(mirrored.column("src").tolist()) == sorted(schedule.column("dst").tolist())
        if collective in ("gather", "scatter"):
            again = mirror(mirrored, name=name)
            assert again.header == schedule.header
            assert sorted(again.rows()) == sorted(schedule.rows())


def test_an_all_to_all_within_a_larger_world() -> None:
    """Two all-to-alls among halves of the ranks, each on its own blocks, and the rest by a second pair of them."""
    pair = catalog.build("all_to_all", "pairwise", 2)
    parts = []
    # Ranks a and b exchange block b of a and block a of b, for all pairs; what a rank keeps, each does once.
    for a, b in [(0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)]:
        parts.append(embed(pair, [a, b], 8, starts=[a, b, 4 + a, 4 + b]))
    whole = compose(sequence(*parts), "all_to_all", 4, 4, name="by pairs")
    values = [np.arange(4) + 10 * rank for rank in range(4)]
    outputs = [output.tolist() for output in interpret(prove(whole), values)]
    assert outputs == [[10 * source + rank for source in range(4)] for rank in range(4)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ring: embed(ring, [0, 1, 1], 3), "3 different ranks"),
        (lambda ring: embed(ring, [0, 1], 3), "3 different ranks"),
        (lambda ring: embed(ring, [0, 1, -1], 3), "3 different ranks"),
        (lambda ring: embed(ring, range(3), 4), "multiple of its 3 chunks, got 4"),
        (lambda ring: embed(ring, range(3), 4, starts=[0, 1]), "3 runs of 1 within 4 positions"),
        (lambda ring: embed(ring, range(3), 4, starts=[0, 1, 3], width=2), "3 runs of 2 within 4 positions"),
        (lambda ring: embed(out_of_place(ring), range(3), 3), "input and output in one vector"),
        (lambda ring: mirror(ring, "back"), "expected one of all_gather, broadcast, scatter, gather, got all_reduce"),
        (lambda ring: sequence(embed(ring, range(3), 3), embed(ring, range(3), 6)), "one number of positions"),
        (lambda ring: parallel(), "one number of positions, got \\[\\]"),
        (lambda ring: compose(embed(ring, [0, 1, 5], 3), "all_reduce", 4, 3, name="x"), "ranks below 4, got \\[5\\]"),
        (lambda ring: compose(embed(ring, range(3), 3), "all_reduce", 3, 6, name="x"), "at least 6 positions, got 3"),
    ],
)
def test_what_does_not_fit_is_refused(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(SpecError, match=message):
        call(catalog.build("all_reduce", "ring", 3))
