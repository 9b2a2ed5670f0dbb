"""The pair-matrix solver names what was made slow, and nothing in noise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.doctor.pair_matrix import Pair, solve


def matrix(nodes: int, bandwidth: object, seed: int = 0, missing: float = 0.0, rail: str = "") -> list[Pair]:
    chance = random.Random(seed)
    pairs = []
    for a in range(nodes):
        for b in range(a + 1, nodes):
            value = bandwidth(a, b) * chance.uniform(0.97, 1.03)  # type: ignore[operator]
            pairs.append(Pair(f"n{a}", f"n{b}", None if chance.random() < missing else value, rail))
    return pairs


@settings(max_examples=50, deadline=None)
@given(st.integers(8, 24), st.integers(0, 2), st.integers(0, 1000), st.floats(0.0, 0.15))
def test_slow_nodes_are_named_exactly(nodes: int, slow: int, seed: int, missing: float) -> None:
    verdict = solve(matrix(nodes, lambda a, b: 10e9 if a < slow or b < slow else 23e9, seed, missing))
    assert verdict is not None
    assert {blame.node for blame in verdict.nodes} == {f"n{i}" for i in range(slow)}
    assert verdict.groups == ()


@settings(max_examples=50, deadline=None)
@given(st.integers(8, 20), st.integers(0, 1000), st.integers(1, 4))
def test_scattered_slow_pairs_blame_no_node(nodes: int, seed: int, count: int) -> None:
    chance = random.Random(seed)
    pairs = matrix(nodes, lambda a, b: 23e9, seed)
    # Each node at most twice: three of one node's few pairs would be evidence.
    slow: list[int] = []
    users: dict[str, int] = {}
    for at in chance.sample(range(len(pairs)), len(pairs)):
        ends = (pairs[at].node_a, pairs[at].node_b)
        if len(slow) < count and all(users.get(end, 0) < 1 for end in ends):
            slow.append(at)
            users.update({end: users.get(end, 0) + 1 for end in ends})
    pairs = [Pair(p.node_a, p.node_b, 8e9 if at in slow else p.bandwidth_bytes_per_s) for at, p in enumerate(pairs)]
    verdict = solve(pairs)
    assert verdict is not None
    assert verdict.nodes == ()
    assert len(verdict.pairs) == len(slow)


@settings(max_examples=30, deadline=None)
@given(st.integers(4, 10), st.integers(4, 10), st.integers(0, 1000))
def test_two_groups_blame_what_is_between_them(left: int, right: int, seed: int) -> None:
    verdict = solve(matrix(left + right, lambda a, b: 23e9 if (a < left) == (b < left) else 12e9, seed))
    assert verdict is not None
    assert verdict.nodes == ()
    assert {frozenset(group) for group in verdict.groups} == {
        frozenset(f"n{i}" for i in range(left)),
        frozenset(f"n{i}" for i in range(left, left + right)),
    }


def test_a_slow_rail_is_named_and_no_node() -> None:
    pairs = [
        pair
        for rail in range(4)
        for pair in matrix(8, lambda a, b, r=rail: 10e9 if r == 2 else 48e9, rail, rail=f"mlx5_{rail}")
    ]
    verdict = solve(pairs)
    assert verdict is not None
    assert [blame.node for blame in verdict.rails] == ["mlx5_2"]
    assert verdict.nodes == ()


def test_a_uniformly_slow_cluster_has_no_outlier() -> None:
    verdict = solve(matrix(10, lambda a, b: 3e9))
    assert verdict is not None
    assert verdict.num_slow == 0


@pytest.mark.parametrize("pairs", [[], [Pair("a", "b", 1e9)], [Pair("a", "b", None)] * 5])
def test_too_few_pairs_say_nothing(pairs: list[Pair]) -> None:
    assert solve(pairs) is None
