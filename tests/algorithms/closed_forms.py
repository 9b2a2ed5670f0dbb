"""What every algorithm must cost, from arithmetic on N and the length alone: no table is read here.

Each function gives steps, messages, and the bytes that every rank sends and receives, for a vector of ``length`` bytes
in the balanced partition: ``parts(length, k)`` are k parts, the first ``length % k`` one byte longer.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2

import numpy as np
from algorithm_tables import Bytes, Counts

Form = Callable[[int, int, int], Counts]


def parts(length: int, count: int) -> Bytes:
    return np.array([length // count + (part < length % count) for part in range(count)], dtype=np.int64)


def log_up(n: int) -> int:
    return ceil(log2(n))


def power_below(n: int) -> int:
    return 2 ** int(log2(n))


def arc(sizes: Bytes, start: int, count: int) -> int:
    """The sum of ``count`` sizes from ``start`` on, around a circle."""
    start %= len(sizes)
    return int(np.concatenate([sizes, sizes])[start : start + count].sum())


def counts(steps: int, messages: int, sent: list[int], received: list[int]) -> Counts:
    return Counts(steps, messages, np.array(sent, dtype=np.int64), np.array(received, dtype=np.int64))


def backwards(form: Counts) -> Counts:
    return Counts(form.steps, form.messages, form.received, form.sent)


def plus(*forms: Counts) -> Counts:
    return Counts(
        sum(form.steps for form in forms),
        sum(form.messages for form in forms),
        np.sum([form.sent for form in forms], axis=0),
        np.sum([form.received for form in forms], axis=0),
    )


# Around a ring. A rank passes on every block but the one that ends with it (reduce-scatter), or that its neighbour
# started with (all-gather).


def ring_all_gather(n: int, length: int, root: int) -> Counts:
    block = parts(length, n)
    sent = [length - block[(r + 1) % n] for r in range(n)]
    return counts(n - 1, n * (n - 1), sent, [length - block[r] for r in range(n)])


def ring_reduce_scatter(n: int, length: int, root: int) -> Counts:
    block = parts(length, n)
    received = [length - block[(r - 1) % n] for r in range(n)]
    return counts(n - 1, n * (n - 1), [length - block[r] for r in range(n)], received)


def ring_all_reduce(n: int, length: int, root: int) -> Counts:
    return plus(ring_reduce_scatter(n, length, root), ring_all_gather(n, length, root))


def _both_ways(halves: list[Bytes], gather: bool) -> Counts:
    """Lane 0 to the right, lane 1 to the left; ``halves[lane][block]``."""
    n = len(halves[0])
    kept = [sum(int(lane[r]) for lane in halves) for r in range(n)]
    passed = [int(halves[0][(r + 1) % n] + halves[1][(r - 1) % n]) for r in range(n)]
    total = sum(kept)
    form = counts(n - 1, 2 * n * (n - 1), [total - p for p in passed], [total - k for k in kept])
    if gather:
        return form
    came = [int(halves[0][(r - 1) % n] + halves[1][(r + 1) % n]) for r in range(n)]
    return counts(n - 1, 2 * n * (n - 1), [total - k for k in kept], [total - c for c in came])


def _halves_of_blocks(n: int, length: int) -> list[Bytes]:
    blocks = [parts(int(block), 2) for block in parts(length, n)]
    return [np.array([block[lane] for block in blocks]) for lane in range(2)]


def bidirectional_all_gather(n: int, length: int, root: int) -> Counts:
    return _both_ways(_halves_of_blocks(n, length), gather=True)


def bidirectional_reduce_scatter(n: int, length: int, root: int) -> Counts:
    return _both_ways(_halves_of_blocks(n, length), gather=False)


def bidirectional_all_reduce(n: int, length: int, root: int) -> Counts:
    chunks = parts(length, 2 * n)
    halves = [chunks[0::2], chunks[1::2]]
    return plus(_both_ways(halves, gather=False), _both_ways(halves, gather=True))


# Folded to a power of two: of the first 2e ranks the even ones are hosts, the odd ones guests.


def _folded(n: int) -> tuple[int, int, list[int]]:
    power = power_below(n)
    extra = n - power
    return power, extra, [2 * j if j < extra else j + extra for j in range(power)]


def doubling_all_reduce(n: int, length: int, root: int) -> Counts:
    power, extra, core = _folded(n)
    levels = int(log2(power))
    volume = [0] * n
    for rank in core:
        volume[rank] = levels * length
    for pair in range(extra):
        volume[2 * pair] += length
        volume[2 * pair + 1] += length
    return counts(levels + 2 * (extra > 0), power * levels + 2 * extra, volume, volume)


def doubling_all_gather(n: int, length: int, root: int) -> Counts:
    power, extra, core = _folded(n)
    block = parts(length, n)
    # What a member of the core brings in: its own block, and its guest's.
    brings = [int(block[rank] + (block[rank + 1] if j < extra else 0)) for j, rank in enumerate(core)]
    levels = int(log2(power))
    sent, received = [0] * n, [0] * n
    for j, rank in enumerate(core):
        for level in range(levels):
            mine = (j >> level) << level
            theirs = mine ^ (1 << level)
            sent[rank] += sum(brings[mine : mine + 2**level])
            received[rank] += sum(brings[theirs : theirs + 2**level])
    for pair in range(extra):
        host, guest = 2 * pair, 2 * pair + 1
        sent[guest], received[guest] = int(block[guest]), length - int(block[guest])
        sent[host] += received[guest]
        received[host] += sent[guest]
    return counts(levels + 2 * (extra > 0), power * levels + 2 * extra, sent, received)


def halving_reduce_scatter(n: int, length: int, root: int) -> Counts:
    return backwards(doubling_all_gather(n, length, root))


def halving_doubling_all_reduce(n: int, length: int, root: int) -> Counts:
    power, extra, core = _folded(n)
    levels = int(log2(power))
    chunk = parts(length, power)
    volume = [0] * n
    for j, rank in enumerate(core):
        own = int(f"{j:0{levels}b}"[::-1], 2) if levels else 0
        around = [sum(chunk[(own >> m) << m : ((own >> m) + 1) << m]) for m in range(levels)]
        # What it gives away on the way down comes back on the way up, and the other way round.
        volume[rank] = int(length - chunk[own] + sum(around))
    for pair in range(extra):
        volume[2 * pair] += length
        volume[2 * pair + 1] += length
    return counts(2 * levels + 2 * (extra > 0), 2 * power * levels + 2 * extra, volume, volume)


# Trees. Vertex v's parent is v without its lowest bit; below v stand the vertices up to v + lowest bit - 1.


def children(v: int, n: int) -> list[int]:
    steps = [2**k for k in range(n.bit_length()) if v == 0 or 2**k < (v & -v)]
    return [v + step for step in steps if v + step < n]


def below(v: int, n: int) -> int:
    return n if v == 0 else min(v & -v, n - v)


def binomial_broadcast(n: int, length: int, root: int) -> Counts:
    sent = [length * len(children((r - root) % n, n)) for r in range(n)]
    return counts(log_up(n), n - 1, sent, [length * (r != root) for r in range(n)])


def binomial_reduce(n: int, length: int, root: int) -> Counts:
    return backwards(binomial_broadcast(n, length, root))


def binomial_all_reduce(n: int, length: int, root: int) -> Counts:
    return plus(binomial_reduce(n, length, 0), binomial_broadcast(n, length, 0))


def binomial_scatter(n: int, length: int, root: int) -> Counts:
    block = parts(length, n)
    sent, received = [], []
    for r in range(n):
        v = (r - root) % n
        sent.append(sum(arc(block, root + child, below(child, n)) for child in children(v, n)))
        received.append(arc(block, root + v, below(v, n)) if v else 0)
    return counts(log_up(n), n - 1, sent, received)


def binomial_gather(n: int, length: int, root: int) -> Counts:
    return backwards(binomial_scatter(n, length, root))


def chain_broadcast(n: int, length: int, root: int) -> Counts:
    last = (root - 1) % n
    return counts(
        n - 1, n - 1, [length * (r != last) for r in range(n)], [length * (r != root) for r in range(n)]
    )  # fmt: skip


def chain_reduce(n: int, length: int, root: int) -> Counts:
    return backwards(chain_broadcast(n, length, root))


def scatter_all_gather_broadcast(n: int, length: int, root: int) -> Counts:
    """The ring brings every vertex but the root what the scatter did not, from the vertex before."""
    block = parts(length, n)
    scatter = binomial_scatter(n, length, root)
    sent, received, messages = [], [], 0
    for r in range(n):
        v = (r - root) % n
        lacks = length - arc(block, root + v, below(v, n)) if v else 0
        received.append(lacks)
        following = v + 1
        sent.append(length - arc(block, root + following, below(following, n)) if following < n else 0)
        messages += n - below(v, n)
    return plus(scatter, counts(n - 1, messages, sent, received))


def reduce_scatter_gather_reduce(n: int, length: int, root: int) -> Counts:
    return backwards(scatter_all_gather_broadcast(n, length, root))


def _in_order(low: int, high: int, parent: int, tree: dict[int, int]) -> None:
    """Numbers low ... high: the one with the most zeros at its end is the root."""
    if low > high:
        return
    top = max(range(low, high + 1), key=lambda number: number & -number)
    tree[top] = parent
    _in_order(low, top - 1, top, tree)
    _in_order(top + 1, high, top, tree)


def double_tree_all_reduce(n: int, length: int, root: int) -> Counts:
    half = parts(length, 2)
    volume = [0] * n
    tree: dict[int, int] = {}
    _in_order(1, n, 0, tree)
    mirrored = (lambda i: n + 1 - i) if n % 2 == 0 else (lambda i: i % n + 1)
    for which, rename in enumerate((lambda i: i, mirrored)):
        for child, parent in tree.items():
            if parent:
                for end in (child, parent):
                    volume[rename(end) - 1] += int(half[which])
    return counts(2 * int(log2(n)), 4 * (n - 1), volume, volume)


# Everybody to everybody.


def direct_all_gather(n: int, length: int, root: int) -> Counts:
    block = parts(length, n)
    sent = [(n - 1) * int(size) for size in block]
    return counts(int(n > 1), n * (n - 1), sent, [length - int(size) for size in block])


def direct_reduce_scatter(n: int, length: int, root: int) -> Counts:
    return backwards(direct_all_gather(n, length, root))


def direct_all_reduce(n: int, length: int, root: int) -> Counts:
    return plus(direct_reduce_scatter(n, length, root), direct_all_gather(n, length, root))


def one_shot_all_reduce(n: int, length: int, root: int) -> Counts:
    return counts(int(n > 1), n * (n - 1), [(n - 1) * length] * n, [(n - 1) * length] * n)


def naive_all_reduce(n: int, length: int, root: int) -> Counts:
    return counts(n - 1, n * (n - 1), [(n - 1) * length] * n, [(n - 1) * length] * n)


def direct_all_to_all(n: int, length: int, root: int) -> Counts:
    volume = [length - length // n] * n
    return counts(int(n > 1), n * (n - 1), volume, volume)


def pairwise_all_to_all(n: int, length: int, root: int) -> Counts:
    volume = [length - length // n] * n
    return counts(n - 1, n * (n - 1), volume, volume)


def bruck_all_to_all(n: int, length: int, root: int) -> Counts:
    hops = sum(distance.bit_count() for distance in range(n))
    volume = [hops * (length // n)] * n
    return counts(log_up(n), n * log_up(n), volume, volume)


def direct_scatter(n: int, length: int, root: int) -> Counts:
    block = parts(length, n)
    sent = [(length - int(block[root])) * (r == root) for r in range(n)]
    return counts(int(n > 1), n - 1, sent, [int(block[r]) * (r != root) for r in range(n)])


def direct_gather(n: int, length: int, root: int) -> Counts:
    return backwards(direct_scatter(n, length, root))


# At distances that are powers of two.


def bruck_all_gather(n: int, length: int, root: int) -> Counts:
    block = parts(length, n)
    steps = [(2**k, min(2**k, n - 2**k)) for k in range(log_up(n))]
    sent = [sum(arc(block, r, count) for _, count in steps) for r in range(n)]
    received = [sum(arc(block, r + distance, count) for distance, count in steps) for r in range(n)]
    return counts(log_up(n), n * log_up(n), sent, received)


def bruck_reduce_scatter(n: int, length: int, root: int) -> Counts:
    return backwards(bruck_all_gather(n, length, root))


def bruck_all_reduce(n: int, length: int, root: int) -> Counts:
    return plus(bruck_reduce_scatter(n, length, root), bruck_all_gather(n, length, root))


def pat_all_gather(n: int, length: int, root: int, aggregate: int | None = None) -> Counts:
    """Every rank is vertex o of the tree of the block o ranks before it."""
    block = parts(length, n)
    sent = [sum(len(children(o, n)) * int(block[(r - o) % n]) for o in range(n)) for r in range(n)]
    full = 2 ** log_up(n)
    a = max(full // 2, 1) if aggregate is None else aggregate
    steps = int(log2(a)) + min(full // a, n) - 1
    return counts(steps, n * steps, sent, [length - int(size) for size in block])


def pat_reduce_scatter(n: int, length: int, root: int, aggregate: int | None = None) -> Counts:
    return backwards(pat_all_gather(n, length, root, aggregate))


def dissemination_barrier(n: int, length: int, root: int) -> Counts:
    volume = [log_up(n) * length] * n
    return counts(log_up(n), n * log_up(n), volume, volume)


def swing_all_reduce(n: int, length: int, root: int) -> Counts:
    """For a length that the chunks divide: which rank completes a longer chunk is the algorithm's choice."""
    core = max(n - n % 2, 1)
    assert length % core == 0
    chunk = length // core
    volume = [2 * (core - 1) * chunk + (n > core) * chunk] * core + [length] * (n - core)
    levels = log_up(core)
    # Every core rank meets a partner in every step; the last rank of an odd world meets every one once, each way.
    return counts(2 * levels, 2 * core * levels + 2 * core * (n > core), volume, volume)


def ordered_reduce(n: int, length: int, root: int) -> Counts:
    return plus(direct_reduce_scatter(n, length, root), direct_gather(n, length, root))


FORMS: dict[tuple[str, str], Form] = {
    ("all_reduce", "ring"): ring_all_reduce,
    ("all_reduce", "bidirectional_ring"): bidirectional_all_reduce,
    ("all_reduce", "recursive_doubling"): doubling_all_reduce,
    ("all_reduce", "halving_doubling"): halving_doubling_all_reduce,
    ("all_reduce", "binomial_tree"): binomial_all_reduce,
    ("all_reduce", "double_binary_tree"): double_tree_all_reduce,
    ("all_reduce", "direct"): direct_all_reduce,
    ("all_reduce", "ordered"): direct_all_reduce,
    ("reduce_scatter", "ordered"): direct_reduce_scatter,
    ("reduce", "ordered"): ordered_reduce,
    ("all_reduce", "one_shot"): one_shot_all_reduce,
    ("all_reduce", "naive"): naive_all_reduce,
    ("all_reduce", "bruck"): bruck_all_reduce,
    ("reduce_scatter", "ring"): ring_reduce_scatter,
    ("reduce_scatter", "bidirectional_ring"): bidirectional_reduce_scatter,
    ("reduce_scatter", "recursive_halving"): halving_reduce_scatter,
    ("reduce_scatter", "direct"): direct_reduce_scatter,
    ("reduce_scatter", "bruck"): bruck_reduce_scatter,
    ("reduce_scatter", "pat"): pat_reduce_scatter,
    ("all_gather", "ring"): ring_all_gather,
    ("all_gather", "bidirectional_ring"): bidirectional_all_gather,
    ("all_gather", "recursive_doubling"): doubling_all_gather,
    ("all_gather", "direct"): direct_all_gather,
    ("all_gather", "bruck"): bruck_all_gather,
    ("all_gather", "pat"): pat_all_gather,
    ("broadcast", "binomial_tree"): binomial_broadcast,
    ("broadcast", "chain"): chain_broadcast,
    ("broadcast", "scatter_all_gather"): scatter_all_gather_broadcast,
    ("reduce", "binomial_tree"): binomial_reduce,
    ("reduce", "chain"): chain_reduce,
    ("reduce", "reduce_scatter_gather"): reduce_scatter_gather_reduce,
    ("all_to_all", "pairwise"): pairwise_all_to_all,
    ("all_to_all", "direct"): direct_all_to_all,
    ("all_to_all", "bruck"): bruck_all_to_all,
    ("gather", "binomial_tree"): binomial_gather,
    ("gather", "direct"): direct_gather,
    ("scatter", "binomial_tree"): binomial_scatter,
    ("scatter", "direct"): direct_scatter,
    ("barrier", "dissemination"): dissemination_barrier,
}
