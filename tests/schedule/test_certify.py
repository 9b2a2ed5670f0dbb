"""The certificate against the reference executor run on text, and against orders written out by hand."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from random_schedules import proven_schedules
from schedule_samples import (
    direct_all_reduce,
    halving_doubling_all_reduce,
    one_shot_all_reduce,
    recursive_doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)

from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.certify import MAX_ORDERS_LISTED, certify
from atoll.schedule.interpret import interpret
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.prove import ProvenSchedule, prove

Outputs = dict[tuple[int, int], str]


def written_out(proven: ProvenSchedule) -> Outputs:
    """What each (rank, chunk number) ends with, from the reference executor on names with an operation that writes."""
    terms = proven.contract
    inputs = [np.full(terms.input_size(rank), str(rank), dtype=object) for rank in range(terms.world_size)]

    def write(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return np.array([f"({a}+{b})" for a, b in zip(left, right, strict=True)], dtype=object)

    return {
        (rank, int(chunk)): text
        for rank, output in enumerate(interpret(proven, inputs, write))
        for chunk, text in zip(terms.output_chunks(rank), output.tolist(), strict=True)
    }


def check_against_text(proven: ProvenSchedule) -> None:
    outputs = written_out(proven)
    certificate = certify(proven)
    by_chunk: dict[int, set[str]] = defaultdict(set)
    by_rank: dict[int, set[str]] = defaultdict(set)
    for (rank, chunk), text in outputs.items():
        by_chunk[chunk].add(text)
        by_rank[rank].add(text)
    distinct = set(outputs.values())
    assert certificate.same_bits == all(len(texts) == 1 for texts in by_chunk.values())
    if proven.contract.collective.name == "reduce_scatter":
        assert certificate.position_independent == (len(distinct) == 1)
    else:
        assert certificate.position_independent == all(len(texts) == 1 for texts in by_rank.values())
    assert certificate.num_orders == len(distinct)
    assert certificate.depth == max(height(text) for text in distinct)
    listed = {order.expression for order in certificate.orders}
    assert listed <= distinct
    assert len(listed) == min(len(distinct), MAX_ORDERS_LISTED)
    for order in certificate.orders:
        assert outputs[order.first_rank, order.first_chunk] == order.expression
        assert order.num_chunks == sum(order.expression in texts for texts in by_chunk.values())
        assert order.num_ranks == sum(order.expression in texts for texts in by_rank.values())
        assert order.terms == proven.world_size
        assert order.depth == height(str(order.expression))
    if certificate.disagreement is not None:
        chunk, (first, second) = certificate.disagreement.chunk, certificate.disagreement.ranks
        assert certificate.disagreement.expressions == (outputs[first, chunk], outputs[second, chunk])
        assert outputs[first, chunk] != outputs[second, chunk]
        assert all(len(by_chunk[lower]) == 1 for lower in range(chunk))


def height(text: str) -> int:
    deepest = level = 0
    for character in text:
        level += (character == "(") - (character == ")")
        deepest = max(deepest, level)
    return deepest


@settings(max_examples=200)
@given(proven_schedules(max_world=7, collectives=("all_reduce", "reduce_scatter", "reduce")))
def test_certificate_is_what_the_reference_executor_writes(proven: ProvenSchedule) -> None:
    check_against_text(proven)


@given(proven_schedules())
def test_out_of_place_has_the_same_certificate(proven: ProvenSchedule) -> None:
    assert certify(prove(out_of_place(proven.schedule))) == certify(proven)
    reduces = proven.contract.collective.reduces and proven.contract.collective.name != "barrier"
    assert certify(proven).reduces == reduces


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_known_algorithms_against_the_reference_executor(n: int) -> None:
    for schedule in (ring_all_reduce(n), one_shot_all_reduce(n, chunks=2), direct_all_reduce(n)):
        check_against_text(prove(schedule))


def test_the_ring_of_four_by_hand() -> None:
    """Chunk c starts at rank c and meets c+1, c+2, c+3; the lower lowest contributor stands to the left."""
    certificate = certify(prove(ring_all_reduce(4)))
    assert {order.first_chunk: order.expression for order in certificate.orders} == {
        0: "(((0+1)+2)+3)",
        1: "(0+((1+2)+3))",
        2: "((0+(2+3))+1)",
        3: "(((0+3)+1)+2)",
    }
    assert certificate.verdict() == "same bits, 4 orders, depth 3"
    assert "more order" not in certificate.statement()
    assert certify(prove(ring_all_reduce(5))).statement().endswith("  and 1 more order")


@pytest.mark.parametrize("n", [2, 3, 7, 16, 70])
def test_the_ring_has_n_orders_of_depth_n_minus_1(n: int) -> None:
    certificate = certify(prove(ring_all_reduce(n)))
    assert (certificate.same_bits, certificate.num_orders, certificate.depth) == (True, 1 if n == 2 else n, n - 1)
    assert certificate.position_independent == (n == 2)


@pytest.mark.parametrize("log_n", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("build", [recursive_doubling_all_reduce, halving_doubling_all_reduce])
def test_recursive_algorithms_have_one_order_of_logarithmic_depth(build, log_n: int) -> None:
    certificate = certify(prove(build(log_n)))
    assert certificate.same_bits
    assert certificate.position_independent
    assert (certificate.num_orders, certificate.depth) == (1, log_n)
    assert certificate.orders[0].num_ranks == 2**log_n
    assert (certificate.orders[0].expression is None) == (2**log_n > 64)


def test_recursive_doubling_of_four_reads_as_a_tree() -> None:
    certificate = certify(prove(recursive_doubling_all_reduce(2)))
    assert certificate.orders[0].expression == "((0+1)+(2+3))"
    assert "chunk 0 on rank 0: ((0+1)+(2+3))" in certificate.statement()


def test_one_shot_ranks_disagree_and_the_certificate_shows_the_two_orders() -> None:
    certificate = certify(prove(one_shot_all_reduce(3)))
    assert not certificate.same_bits
    assert certificate.position_independent
    assert certificate.disagreement is not None
    assert certificate.disagreement.ranks == (1, 2)
    assert certificate.disagreement.expressions == ("((0+1)+2)", "((0+2)+1)")
    assert "RANKS END WITH DIFFERENT BITS" in certificate.statement()
    assert certificate.verdict() == "ranks end with different bits, 2 orders, depth 2"


def test_different_expressions_are_different_bits_in_float32() -> None:
    """The claim itself: where the certificate says so, some input does show it."""
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=999).astype(np.float32) for _ in range(4)]
    same = interpret(prove(ring_all_reduce(4)), inputs)
    different = interpret(prove(one_shot_all_reduce(4)), inputs)
    assert all(output.tobytes() == same[0].tobytes() for output in same)
    assert any(output.tobytes() != different[0].tobytes() for output in different)


def test_reduce_scatter_compares_positions_across_ranks() -> None:
    ring = certify(prove(ring_reduce_scatter(5)))
    assert (ring.same_bits, ring.position_independent, ring.num_orders, ring.depth) == (True, False, 5, 4)
    direct = ScheduleBuilder("reduce_scatter", 5, chunks=5, name="direct")
    for peer in range(5):
        others = np.delete(np.arange(5), peer)
        direct.reduce(0, others, peer, peer)
    certificate = certify(prove(direct.build()))
    # Rank r starts from its own contribution, so the orders differ although each adds in ascending order.
    assert {order.expression for order in certificate.orders} == {
        "((((0+1)+2)+3)+4)", "((((0+2)+1)+3)+4)", "((((0+3)+1)+2)+4)", "((((0+4)+1)+2)+3)",
    }  # fmt: skip


def test_equal_expressions_made_in_different_steps_are_one() -> None:
    late = ScheduleBuilder("all_reduce", 2, chunks=2, name="late")
    late.reduce(0, 0, 1, 0)
    late.reduce(3, 1, 0, 1)
    late.copy(4, [1, 0], [0, 1], [0, 1])
    certificate = certify(prove(late.build()))
    assert (certificate.num_orders, certificate.orders[0].num_chunks) == (1, 2)


def test_moves_only() -> None:
    certificate = certify(prove(ring_all_gather(4)))
    assert not certificate.reduces
    assert certificate.verdict() == "moves only"
    assert "moves only" in certificate.statement()
    barrier = ScheduleBuilder("barrier", 2, chunks=1, name="exchange")
    barrier.reduce(0, [0, 1], [1, 0], 0)
    assert "token" in certify(prove(barrier.build())).statement()


def test_a_world_of_one_has_nothing_to_order() -> None:
    certificate = certify(prove(ScheduleBuilder("all_reduce", 1, chunks=3, name="alone").build()))
    assert (certificate.num_orders, certificate.depth, certificate.orders[0].expression) == (1, 0, "0")


def test_expressions_too_long_to_read_are_counted_and_not_written() -> None:
    certificate = certify(prove(ring_all_reduce(256)))
    assert (certificate.num_orders, certificate.depth) == (256, 255)
    assert len(certificate.orders) == MAX_ORDERS_LISTED
    assert certificate.orders[0].expression is None
    assert certificate.statement().endswith("  too long to write out: 256 terms")
