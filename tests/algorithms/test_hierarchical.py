"""The hierarchical all-reduce: every shape of island, any algorithm inside and across, and what crosses the sea."""

from __future__ import annotations

import numpy as np
import pytest
from algorithm_tables import measured, proven
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.algorithms import catalog
from atoll.algorithms.hierarchical import all_reduce
from atoll.errors import SpecError
from atoll.schedule.contract import IntArray
from atoll.schedule.interpret import interpret
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.schedule.runs import expand

INNER = ["ring", "bidirectional_ring", "recursive_halving", "direct", "bruck", "pat"]
OUTER = [name for name in catalog.names("all_reduce") if name != "hierarchical"]


def crossing(schedule: ProvenSchedule, islands: IntArray, length: int) -> IntArray:
    """Bytes that each rank sends to another island."""
    rows = expand(schedule.schedule.columns()).columns
    size = chunk_sizes(schedule.contract, length)[schedule.chunk_number]
    away = islands[rows.src] != islands[rows.dst]
    return np.bincount(rows.src[away], size[away], minlength=schedule.world_size).astype(np.int64)


def test_by_default_the_islands_are_as_square_as_can_be() -> None:
    for world_size in range(1, 65):
        group = max(g for g in range(1, world_size + 1) if world_size % g == 0 and g * g <= world_size)
        count = world_size // group
        schedule = proven("all_reduce", "hierarchical", world_size, None)
        if world_size <= 24:
            assert schedule.schedule == all_reduce(world_size, group_size=group)
        [got] = measured(schedule, 3 * world_size)
        assert got.steps == 2 * (group - 1) + 2 * (count - 1)
        assert got.messages == 2 * world_size * (group - 1) + 2 * world_size * (count - 1)
        assert got.sent.tolist() == [2 * (world_size - 1) * 3] * world_size
        islands = np.arange(world_size) // group
        assert crossing(schedule, islands, 3 * world_size).tolist() == [2 * (count - 1) * 3] * world_size


@pytest.mark.parametrize("order", ["contiguous", "strided"])
def test_a_group_size_that_does_not_divide_the_world(order: str) -> None:
    for world_size, group_size in [(7, 2), (10, 4), (11, 4), (13, 5), (17, 8), (9, 9), (9, 1), (14, 13)]:
        schedule = prove(all_reduce(world_size, group_size=group_size, order=order))
        count = -(-world_size // group_size)
        ranks = np.arange(world_size)
        islands = ranks // group_size if order == "contiguous" else ranks % count
        # Whatever the sizes: g - 1 vectors twice inside an island of g, and 2(M - 1) vectors across in all.
        length = 100 * schedule.contract.chunks + 17
        assert crossing(schedule, islands, length).sum() == 2 * (count - 1) * length
        [got] = measured(schedule, length)
        assert got.sent.sum() == 2 * (world_size - 1) * length


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_islands_with_any_algorithms(data: st.DataObject) -> None:
    islands = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=9))
    inner, outer = data.draw(st.sampled_from(INNER)), data.draw(st.sampled_from(OUTER))
    schedule = all_reduce(len(islands), islands=islands, inner=inner, outer=outer)
    assert schedule.header.collective == "all_reduce"
    numbers = np.random.default_rng(0).integers(-99, 99, (len(islands), 23))
    for variant in (schedule, out_of_place(schedule)):
        for output in interpret(prove(variant), list(numbers)):
            assert output.tolist() == numbers.sum(axis=0).tolist()


def test_three_tiers_by_nesting() -> None:
    schedule = prove(all_reduce(24, group_size=2, outer=lambda islands: all_reduce(islands, group_size=3)))
    nodes, pods = np.arange(24) // 2, np.arange(24) // 6
    # Two ranks a node, three nodes a pod, four pods. Of 24 bytes a rank stands for 12 in its node and 4 in its pod:
    # across nodes 2 (3-1)/3 of 12, across pods 2 (4-1)/4 of 4, and inside the node 2 (2-1)/2 of 24.
    assert crossing(schedule, pods, 24).tolist() == [6] * 24
    assert crossing(schedule, nodes, 24).tolist() == [6 + 16] * 24
    assert measured(schedule, 24)[0].sent.tolist() == [6 + 16 + 24] * 24


def test_unequal_islands_cut_the_vector_where_any_of_them_does() -> None:
    schedule = all_reduce(5, islands=[0, 0, 1, 1, 1])
    rows = prove(schedule).schedule.columns()
    island = np.array([0, 0, 1, 1, 1])
    across = island[rows.src] != island[rows.dst]
    pairs = sorted(set(zip(rows.src[across].tolist(), rows.dst[across].tolist(), strict=True)))
    # Halves meet thirds: the first two thirds' owners 2 and 3 both meet rank 0 or 1 where their parts overlap.
    assert pairs == [(0, 2), (0, 3), (1, 3), (1, 4), (2, 0), (3, 0), (3, 1), (4, 1)]
    assert rows.channel.max() == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 0}, "group_size between 1 and 8, got 0"),
        ({"group_size": 9}, "group_size between 1 and 8, got 9"),
        ({"group_size": 2, "order": "diagonal"}, "'contiguous' or 'strided', got 'diagonal'"),
        ({"islands": [0, 1]}, "an island for each of 8 ranks, got 2"),
        ({"group_size": 2, "islands": [0] * 8}, "group_size or islands, got both"),
        ({"inner": "rign"}, "did you mean 'ring'"),
        ({"outer": "tree"}, "unknown algorithm 'tree' for all_reduce"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        catalog.build("all_reduce", "hierarchical", 8, **options)


def test_islands_that_would_cut_the_vector_to_dust_are_refused() -> None:
    sizes = [5, 7, 9, 11, 13]
    islands = np.repeat(np.arange(len(sizes)), sizes).tolist()
    with pytest.raises(SpecError, match="smaller common multiple"):
        all_reduce(len(islands), islands=islands)
