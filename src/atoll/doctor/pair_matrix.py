"""Who is to blame in a matrix of pairwise bandwidths: a node, a rail, the fabric between groups, or single pairs.

A slow pair accuses two nodes and everything between them, so no single pair blames a node. The explanations are tried
from the one that says most to the one that says least, each with a guard, and each must be better than chance:

*node*    A node whose pairs are mostly slow, while the pairs of the others are mostly not. Its share of slow pairs must
          reach ``NODE_SHARE`` and must be improbable (binomial tail below ``NODE_P``) under the rate of slow pairs that
          do not involve it. Nodes are blamed one by one, worst first, each time without the pairs already explained.
*groups*  The fast pairs alone fall into groups of nodes: fast within, slow across. That is a fabric (leaf and spine,
          rail groups), and no node is at fault: each slow node would be fast with its own kind.
*rail*    The pairs carry a rail or NIC label and one label is slow for most nodes.
*pairs*   What is left, if few: single links, or noise. Nobody is blamed.

*Slow* is relative: below ``SLOW`` of the reference, the bandwidth that the better quarter of all pairs reaches. A pair
without a figure is *missing*; it accuses nobody, because a test that did not start says nothing about a link.
All figures are bytes per second.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

SLOW: Final = 0.7
NODE_SHARE: Final = 0.5
NODE_P: Final = 1e-3
REFERENCE_QUANTILE: Final = 0.75
MIN_PARTNERS: Final = 3
GROUP_PURITY: Final = 0.9
"""Share of pairs that agree with 'fast within, slow across' before groups are named."""


class Pair(msgspec.Struct, frozen=True):
    """One measurement between two nodes; ``None`` where no figure was reached. ``rail`` is a NIC or rail label."""

    node_a: str
    node_b: str
    bandwidth_bytes_per_s: float | None
    rail: str = ""


class NodeBlame(msgspec.Struct, frozen=True):
    """``num_slow`` of ``num_pairs`` pairs of ``node`` are slow; ``chance`` is the probability of that by bad luck."""

    node: str
    num_slow: int
    num_pairs: int
    median_bytes_per_s: float
    chance: float


class MatrixVerdict(msgspec.Struct, frozen=True):
    """``nodes``, ``groups`` or ``rails`` explain; ``pairs`` are the slow pairs that nothing explains."""

    reference_bytes_per_s: float
    num_pairs: int
    num_slow: int
    num_missing: int
    nodes: tuple[NodeBlame, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    rails: tuple[NodeBlame, ...] = ()
    pairs: tuple[Pair, ...] = ()


def solve(pairs: Iterable[Pair]) -> MatrixVerdict | None:
    """The verdict on one set of comparable measurements, or ``None`` where there are too few to compare (under 3)."""
    every = [pair for pair in pairs if pair.node_a != pair.node_b]
    measured = [(pair, pair.bandwidth_bytes_per_s) for pair in every if pair.bandwidth_bytes_per_s is not None]
    if len(measured) < 3:
        return None
    reference = _quantile(sorted(value for _, value in measured), REFERENCE_QUANTILE)
    slow = [pair for pair, value in measured if value < SLOW * reference]
    fast = [pair for pair, value in measured if value >= SLOW * reference]
    missing = len(every) - len(measured)
    if not slow:
        return MatrixVerdict(reference, len(every), 0, missing)
    rails = _rails(measured, reference)
    if rails:
        guilty = {blame.node for blame in rails}
        rest = tuple(pair for pair in slow if pair.rail not in guilty)
        return MatrixVerdict(reference, len(every), len(slow), missing, rails=rails, pairs=rest)
    groups = _groups(fast, slow)
    if groups:
        return MatrixVerdict(reference, len(every), len(slow), missing, groups=groups)
    nodes = _nodes(measured, reference)
    accused = {blame.node for blame in nodes}
    rest = tuple(pair for pair in slow if not {pair.node_a, pair.node_b} & accused)
    return MatrixVerdict(reference, len(every), len(slow), missing, nodes=nodes, pairs=rest)


def _nodes(measured: Sequence[tuple[Pair, float]], reference: float) -> tuple[NodeBlame, ...]:
    blamed: list[NodeBlame] = []
    left = list(measured)
    while True:
        found = _worst(left, reference, lambda pair: (pair.node_a, pair.node_b))
        if found is None:
            return tuple(blamed)
        blamed.append(found)
        left = [item for item in left if found.node not in (item[0].node_a, item[0].node_b)]


def _rails(measured: Sequence[tuple[Pair, float]], reference: float) -> tuple[NodeBlame, ...]:
    if len({pair.rail for pair, _ in measured}) < 2:
        return ()
    blamed: list[NodeBlame] = []
    left = [item for item in measured if item[0].rail]
    while (found := _worst(left, reference, lambda pair: (pair.rail,))) is not None:
        # A rail is slow for most nodes that use it; if two nodes make all its slow pairs, they are the suspects.
        own = [item for item in left if item[0].rail == found.node and item[1] < SLOW * reference]
        users = Counter(node for pair, _ in own for node in (pair.node_a, pair.node_b))
        if users and max(users.values()) < len(own):
            blamed.append(found)
        left = [item for item in left if item[0].rail != found.node]
    return tuple(blamed)


def _worst(
    measured: Sequence[tuple[Pair, float]], reference: float, labels: Callable[[Pair], tuple[str, ...]]
) -> NodeBlame | None:
    """The label with the most surprising share of slow pairs, if it passes the guard."""
    own: dict[str, list[float]] = {}
    for pair, value in measured:
        for label in labels(pair):
            own.setdefault(label, []).append(value)
    total = len(measured)
    total_slow = sum(1 for _, value in measured if value < SLOW * reference)
    best: NodeBlame | None = None
    for label, values in own.items():
        num_slow = sum(1 for value in values if value < SLOW * reference)
        if len(values) < MIN_PARTNERS or num_slow < NODE_SHARE * len(values):
            continue
        others = total - len(values)
        # One slow pair is added to the others, so that a clean rest does not make every accident impossible.
        base = (total_slow - num_slow + 1) / (others + 1) if others else 1.0
        chance = _binomial_tail(num_slow, len(values), base)
        if chance >= NODE_P and not (num_slow == len(values) and base <= 0.5):
            continue
        blame = NodeBlame(label, num_slow, len(values), _quantile(sorted(values), 0.5), chance)
        if best is None or (blame.num_slow / blame.num_pairs, -blame.chance) > (
            best.num_slow / best.num_pairs,
            -best.chance,
        ):
            best = blame
    return best


def _groups(fast: Sequence[Pair], slow: Sequence[Pair]) -> tuple[tuple[str, ...], ...]:
    """Two or more groups of at least three nodes, fast within and slow across, or nothing.

    Label propagation over the graph of fast pairs: every node takes the label that most of its fast partners have,
    minus those of its slow partners. Deterministic: nodes in name order, ties by name, at most 20 rounds.
    """
    nodes = sorted({node for pair in (*fast, *slow) for node in (pair.node_a, pair.node_b)})
    votes: dict[str, dict[str, int]] = {node: {} for node in nodes}
    for sign, pairs in ((1, fast), (-1, slow)):
        for pair in pairs:
            votes[pair.node_a][pair.node_b] = sign
            votes[pair.node_b][pair.node_a] = sign
    label = {node: node for node in nodes}
    for _ in range(20):
        changed = False
        for node in nodes:
            score: Counter[str] = Counter()
            for partner, sign in votes[node].items():
                score[label[partner]] += sign
            if not score:
                continue
            best = max(sorted(score), key=lambda name: score[name])
            if score[best] > 0 and best != label[node] and score[best] > score.get(label[node], 0):
                label[node] = best
                changed = True
        if not changed:
            break
    members: dict[str, list[str]] = {}
    for node in nodes:
        members.setdefault(label[node], []).append(node)
    groups = [tuple(group) for group in members.values() if len(group) >= 3]
    if len(groups) < 2 or sum(len(group) for group in groups) < 0.8 * len(nodes):
        return ()
    where = {node: index for index, group in enumerate(groups) for node in group}
    judged = [(pair, is_slow) for is_slow, some in ((False, fast), (True, slow)) for pair in some]
    judged = [(pair, is_slow) for pair, is_slow in judged if pair.node_a in where and pair.node_b in where]
    agree = sum(1 for pair, is_slow in judged if is_slow == (where[pair.node_a] != where[pair.node_b]))
    across = sum(1 for pair, is_slow in judged if is_slow and where[pair.node_a] != where[pair.node_b])
    return tuple(groups) if judged and agree >= GROUP_PURITY * len(judged) and across else ()


def _binomial_tail(successes: int, trials: int, probability: float) -> float:
    """P(at least ``successes`` of ``trials``)."""
    if probability >= 1:
        return 1.0
    return math.fsum(
        math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k) for k in range(successes, trials + 1)
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
