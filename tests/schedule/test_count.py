"""Counts against closed forms written out here, and against the rows and the dependencies added up one by one."""

import math
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import proven_schedules
from schedule_samples import (
    binomial_broadcast,
    chain_broadcast,
    direct_all_reduce,
    halving_doubling_all_reduce,
    one_shot_all_reduce,
    recursive_doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)

from atoll.errors import SpecError
from atoll.schedule.bounds import latency_steps
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.count import Counts, count, tiers
from atoll.schedule.dependencies import APPLY, READ, derive
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import ProvenSchedule, prove


def parts(length: int, n: int) -> list[int]:
    return [len(part) for part in np.array_split(np.zeros(length), n)]


@pytest.mark.parametrize("length", [0, 1, 7, 103, 4096])
@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_ring_all_reduce_closed_form(n: int, length: int) -> None:
    """Rank r sends every chunk but r+1 while reducing, and every chunk but r+2 while gathering."""
    counts = count(prove(ring_all_reduce(n)), length, itemsize=4)
    size = parts(length, n)
    assert counts.sent.tolist() == [4 * (2 * length - size[(r + 1) % n] - size[(r + 2) % n]) for r in range(n)]
    assert counts.received.tolist() == np.roll(counts.sent, 1).tolist()
    # It reduces every chunk but r, the one that starts with it.
    assert counts.reduced.tolist() == [4 * (length - size[r]) for r in range(n)]
    assert (counts.steps, counts.critical_path, counts.messages) == (2 * (n - 1), 2 * (n - 1), 2 * n * (n - 1))
    assert counts.bounds.bandwidth_bytes == pytest.approx(4 * 2 * (n - 1) / n * length)
    if length % n == 0 and length:
        assert counts.bandwidth_ratio == pytest.approx(1)
        assert counts.reduced_ratio == pytest.approx(1)
    assert counts.pair_dst.tolist() == ((counts.pair_src + 1) % n).tolist()
    assert counts.pair_bytes.tolist() == counts.sent.tolist()


@pytest.mark.parametrize("log_n", [1, 2, 3, 4])
def test_recursive_algorithms_closed_form(log_n: int) -> None:
    n = 2**log_n
    length = 64 * n
    doubling = count(prove(recursive_doubling_all_reduce(log_n)), length)
    assert (doubling.steps, doubling.critical_path) == (log_n, log_n)
    assert doubling.sent.tolist() == doubling.reduced.tolist() == [log_n * length] * n
    assert doubling.latency_ratio == 1
    halving = count(prove(halving_doubling_all_reduce(log_n)), length)
    assert (halving.steps, halving.critical_path, halving.messages) == (2 * log_n, 2 * log_n, 2 * log_n * n)
    assert halving.sent.tolist() == [2 * (length - 64)] * n
    assert halving.reduced.tolist() == [length - 64] * n
    assert halving.bandwidth_ratio == pytest.approx(1)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_direct_and_one_shot_use_many_ports(n: int) -> None:
    direct = count(prove(direct_all_reduce(n)), 10 * n)
    assert direct.sent.tolist() == [2 * 10 * (n - 1)] * n
    assert (direct.steps, direct.messages, direct.bounds.ports) == (2, 2 * n * (n - 1), n - 1)
    assert direct.bounds.latency_steps == 1
    one_shot = count(prove(one_shot_all_reduce(n)), 10 * n)
    assert one_shot.sent.tolist() == one_shot.reduced.tolist() == [10 * n * (n - 1)] * n
    assert one_shot.bandwidth_ratio == pytest.approx(n / 2)
    assert one_shot.step_loads.messages.tolist() == [n - 1]
    assert one_shot.step_loads.pair.tolist() == [10 * n]


@pytest.mark.parametrize("n", [2, 3, 6, 8, 13])
def test_broadcasts_closed_form(n: int) -> None:
    chain = count(prove(chain_broadcast(n)), 100)
    assert chain.received.tolist() == [0] + [100] * (n - 1)
    assert (chain.steps, chain.critical_path, chain.bandwidth_ratio) == (n - 1, n - 1, 1)
    tree = count(prove(binomial_broadcast(n)), 100)
    assert tree.steps == math.ceil(math.log2(n)) == tree.bounds.latency_steps
    # The root need not wait between its messages, so the chain to rank r has one link per one bit of r.
    assert tree.critical_path == max(rank.bit_count() for rank in range(n))
    assert int(tree.sent.max()) == 100 * math.ceil(math.log2(n))
    assert tree.reduced_ratio is None


@pytest.mark.parametrize(("n", "length"), [(4, 102), (5, 3), (8, 80)])
def test_blocks_that_the_length_does_not_fill(n: int, length: int) -> None:
    size = parts(length, n)
    for build in (ring_reduce_scatter, ring_all_gather):
        counts = count(prove(build(n)), length)
        assert counts.busiest_bytes == length - min(size) == counts.bounds.bandwidth_bytes
        assert counts.bandwidth_ratio == 1


@settings(max_examples=150)
@given(proven_schedules(), st.integers(0, 50))
def test_totals_are_the_rows_added_up(proven: ProvenSchedule, length: int) -> None:
    terms = proven.contract
    n = terms.world_size
    if terms.collective.name == "all_to_all":
        length *= n
    counts = count(proven, length, itemsize=2)
    size = (2 * chunk_sizes(terms, length)).tolist()
    want = {name: Counter() for name in ("sent", "received", "reduced", "copied", "pairs")}
    messages = set()
    for row, start in zip(proven.schedule.rows(), proven.row_start, strict=True):
        moved = sum(size[number] for number in proven.chunk_number[start : start + row.num_chunks])
        if row.src != row.dst:
            messages.add((row.step, row.src, row.dst, row.channel))
            want["sent"][row.src] += moved
            want["received"][row.dst] += moved
            want["pairs"][row.src, row.dst] += moved
        elif row.operand_chunk < 0:
            want["copied"][row.src] += moved
        if row.operand_chunk >= 0:
            want["reduced"][row.dst] += moved
    for name in ("sent", "received", "reduced", "copied"):
        assert getattr(counts, name).tolist() == [want[name][rank] for rank in range(n)]
    pairs = zip(counts.pair_src.tolist(), counts.pair_dst.tolist(), strict=True)
    assert dict(zip(pairs, counts.pair_bytes.tolist(), strict=True)) == want["pairs"]
    assert counts.messages == len(messages) == int(counts.pair_messages.sum())
    assert counts.steps == len({message[0] for message in messages})
    assert counts.messages_sent.tolist() == [sum(m[1] == r for m in messages) for r in range(n)]
    assert counts.messages_received.tolist() == [sum(m[2] == r for m in messages) for r in range(n)]
    assert counts.critical_path == longest_chain(proven) <= counts.steps
    for ratio in (counts.bandwidth_ratio, counts.latency_ratio, counts.reduced_ratio):
        assert ratio is None or ratio >= 1 - 1e-12


@given(proven_schedules())
def test_long_schedules_are_folded_pair_by_pair(proven: ProvenSchedule) -> None:
    whole = count(proven, 60)
    with mock.patch("atoll.schedule.count._MAX_PENDING", 2):
        folded = count(proven, 60)
    for name in ("pair_src", "pair_dst", "pair_bytes", "pair_messages"):
        assert getattr(folded, name).tolist() == getattr(whole, name).tolist()


def longest_chain(proven: ProvenSchedule) -> int:
    """The critical path from the derived edges, message by message, relaxed until nothing changes."""
    rows = list(proven.schedule.rows())
    group = [
        (row.step, row.src, row.dst, row.channel if row.src != row.dst else -1 - at) for at, row in enumerate(rows)
    ]
    far = {key: int(key[1] != key[2]) for key in group}
    mark = {(key, side): 0 for key in group for side in (READ, APPLY)}
    edges = derive(proven)
    arcs = {
        ((group[before], before_side), (group[after], after_side), 0)
        for before, before_side, after, after_side in zip(
            edges.before.tolist(), edges.before_side.tolist(), edges.after.tolist(), edges.after_side.tolist(),
            strict=True,
        )
    }  # fmt: skip
    arcs |= {((key, READ), (key, APPLY), far[key]) for key in group}
    changed = True
    while changed:
        changed = False
        for before, after, cost in arcs:
            if mark[before] + cost > mark[after]:
                mark[after] = mark[before] + cost
                changed = True
    return max(mark.values(), default=0)


@pytest.mark.parametrize("n", [3, 4, 6])
def test_critical_path_follows_the_dependencies_of_known_algorithms(n: int) -> None:
    for schedule in (ring_all_reduce(n), one_shot_all_reduce(n), direct_all_reduce(n), chain_broadcast(n, chunks=2)):
        for proven in (prove(schedule), prove(out_of_place(schedule))):
            assert count(proven).critical_path == longest_chain(proven)


def test_steps_that_do_not_wait_for_each_other_are_one_hop() -> None:
    """A root that serves its leaves one after the other takes many steps but no chain."""
    star = ScheduleBuilder("broadcast", 5, chunks=1, root=0, name="star")
    for step in range(4):
        star.copy(step, 0, step + 1, 0)
    counts = count(prove(star.build()), 8)
    assert (counts.steps, counts.critical_path) == (4, 1)


def test_a_chunk_is_not_overwritten_before_its_message_has_left() -> None:
    """The message waits for another chunk that it carries, and what overwrites the first waits for the message."""
    builder = ScheduleBuilder("all_reduce", 2, chunks=1, name="wait", scratch_chunks=4)
    early, late, there = builder.scratch, builder.scratch + 1, builder.scratch + 2
    builder.copy(0, 0, 1, 0, early)  # lands 1
    builder.copy(1, 1, 0, early, late)  # lands 2
    builder.copy(1, 0, 0, 0, early)  # local: there from the start
    builder.copy(2, 0, 1, early, there, num_chunks=2)  # leaves 2, lands 3
    builder.copy(3, 1, 0, 0, early)  # could land 1, but lands 2
    builder.copy(4, 0, 1, early, early)  # lands 3
    builder.copy(5, 1, 0, early, early)  # lands 4
    builder.reduce(6, [0, 1], [1, 0], 0)
    proven = prove(builder.build())
    assert count(proven).critical_path == longest_chain(proven) == 4


@pytest.mark.parametrize("same_step", [False, True])
def test_an_operand_is_not_overwritten_before_it_has_been_used(same_step: bool) -> None:
    """It is used when the other operand has come, after two more messages."""
    builder = ScheduleBuilder("all_reduce", 2, chunks=1, name="wait", scratch_chunks=4)
    here, operand, result, on = (builder.scratch + place for place in range(4))
    builder.copy(0, 1, 0, 0, here)  # lands 1
    builder.copy(0, 0, 0, 0, operand)  # local: there from the start
    builder.copy(1, 0, 1, here, here)  # lands 2
    builder.reduce(2, 1, 0, here, result, operand_chunk=operand)  # lands 3
    builder.copy(2 if same_step else 3, 1, 0, 0, operand, channel=1)  # could land 1, but lands 3
    builder.copy(4, 0, 1, operand, on)  # lands 4
    builder.copy(5, 1, 0, on, on)  # lands 5
    builder.reduce(6, [0, 1], [1, 0], 0)
    proven = prove(builder.build())
    assert count(proven).critical_path == longest_chain(proven) == 5


def test_waits_within_a_step_go_through_several_rows() -> None:
    """A uses an operand that B overwrites, and B uses one that C overwrites, all in one step."""
    builder = ScheduleBuilder("all_reduce", 2, chunks=1, name="wait", scratch_chunks=5)
    here, first, second, result, on = (builder.scratch + place for place in range(5))
    builder.copy(0, 1, 0, 0, here)  # lands 1
    builder.copy(0, 0, 0, 0, [first, second])
    builder.copy(1, 0, 1, here, here)  # lands 2
    builder.reduce(2, 1, 0, here, result, operand_chunk=first)  # A lands 3
    builder.reduce(2, 1, 0, 0, first, operand_chunk=second, channel=1)  # B could land 1
    builder.copy(2, 1, 0, 0, second, channel=2)  # C could land 1, but lands 3
    builder.copy(4, 0, 1, second, on)  # lands 4
    builder.copy(5, 1, 0, on, on)  # lands 5
    builder.reduce(6, [0, 1], [1, 0], 0)
    proven = prove(builder.build())
    assert count(proven).critical_path == longest_chain(proven) == 5


def test_a_write_that_nobody_reads_is_still_waited_for() -> None:
    builder = ScheduleBuilder("all_reduce", 2, chunks=1, name="wait", scratch_chunks=2)
    place, on = builder.scratch, builder.scratch + 1
    builder.copy(0, 0, 1, 0, on)  # lands 1
    builder.copy(1, 1, 0, on, place)  # lands 2
    builder.reduce(2, 1, 0, 0, place, operand_chunk=0)  # could land 1, but lands 2
    builder.copy(3, 0, 1, place, place)  # lands 3
    builder.copy(4, 1, 0, place, on)  # lands 4
    builder.reduce(5, [0, 1], [1, 0], 0)
    proven = prove(builder.build())
    assert count(proven).critical_path == longest_chain(proven) == 4


def test_channels_are_messages_of_one_pair() -> None:
    builder = ScheduleBuilder("broadcast", 2, chunks=2, root=0, name="two channels")
    builder.copy(0, 0, 1, [0, 1], channel=[0, 5])
    counts = count(prove(builder.build()), 10)
    assert (counts.messages, counts.steps, counts.bounds.ports) == (2, 1, 1)
    assert counts.step_loads.messages.tolist() == [2]
    assert counts.step_loads.pair.tolist() == [10]


def test_without_a_length_chunks_are_counted() -> None:
    counts = count(prove(ring_all_reduce(4)))
    assert counts.in_chunks
    assert counts.vector_bytes == 4
    assert counts.sent.tolist() == [6] * 4


def test_tiers() -> None:
    """A ring over two islands of four crosses twice; over three tiers each hop counts where its ends first meet."""
    counts = count(prove(ring_all_reduce(8)), 80)
    inside, across = tiers(counts, [0, 0, 0, 0, 1, 1, 1, 1])
    assert (inside.total_bytes, across.total_bytes) == (6 * 140, 2 * 140)
    assert (across.messages, across.max_sent_bytes, across.max_island_sent_bytes) == (28, 140, 140)
    pairs, quads, rest = tiers(counts, [0, 0, 1, 1, 2, 2, 3, 3], [9, 9, 9, 9, 4, 4, 4, 4])
    assert [tier.total_bytes for tier in (pairs, quads, rest)] == [4 * 140, 2 * 140, 2 * 140]
    assert quads.max_island_sent_bytes == 140
    (everything,) = tiers(counts)
    assert everything.total_bytes == 8 * 140
    with pytest.raises(SpecError, match="expected 8 whole numbers"):
        tiers(counts, [0, 1])


def test_latency_bound_in_integers() -> None:
    for ports in (1, 2, 7):
        for n in range(1, 200):
            steps = latency_steps(n, ports)
            assert (ports + 1) ** steps >= n > (0 if steps == 0 else (ports + 1) ** (steps - 1))


def test_what_cannot_be_counted_is_refused() -> None:
    proven = prove(ring_all_reduce(2))
    for length, itemsize, message in ((-1, 1, "at least 0"), (4, 0, "at least 1 byte"), (2**61, 8, "below 2\\^63")):
        with pytest.raises(SpecError, match=message):
            count(proven, length, itemsize)


def test_a_large_vector_is_counted_in_integers() -> None:
    counts: Counts = count(prove(ring_all_reduce(2)), 2**56 + 1)
    assert counts.sent.tolist() == [2**56 + 1, 2**56 + 1]
