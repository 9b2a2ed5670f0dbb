"""Lowered programs: proven where they are right, refused where they are wrong, and the same as the program itself."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msccl_programs import (
    Draft,
    DraftGpu,
    all_to_all,
    all_to_one,
    fused_ring_all_reduce,
    one_to_all,
    play,
    reduce_scatter_direct,
    ring_all_gather,
    tree_all_reduce,
)
from random_programs import drafts, drop_dependencies

from atoll.errors import ScheduleError, SpecError
from atoll.schedule.certify import certify
from atoll.schedule.interpret import interpret
from atoll.schedule.msccl_check import check
from atoll.schedule.msccl_lower import lower
from atoll.schedule.msccl_program import layout
from atoll.schedule.msccl_read import read_msccl_xml
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import prove
from atoll.schedule.table import REPLACE


def through(draft: Draft, **options):
    checked = check(read_msccl_xml(draft.xml(), "x"), **options)
    return checked, lower(checked)


RIGHT = {
    **{f"fused ring {n}": fused_ring_all_reduce(n) for n in (2, 3, 5, 8)},
    "fused ring, channels": fused_ring_all_reduce(6, channels=4),
    "fused ring, out of place": fused_ring_all_reduce(4, out_of_place=True),
    "all-gather in place": ring_all_gather(5, inplace=True, cnt=2),
    "all-gather": ring_all_gather(5, inplace=False, cnt=3),
    "reduce-scatter in place": reduce_scatter_direct(4, inplace=True),
    "reduce-scatter": reduce_scatter_direct(4, inplace=False),
    "tree": tree_all_reduce(7),
    "all-to-all": all_to_all(5, relay=False),
    "all-to-all through scratch": all_to_all(5, relay=True),
    **{f"{coll} {inplace}": one_to_all(4, 2, coll, inplace) for coll in ("broadcast", "scatter") for inplace in (0, 1)},
    **{f"{coll} {inplace}": all_to_one(4, 2, coll, inplace) for coll in ("reduce", "gather") for inplace in (0, 1)},
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_proven_and_computes_what_the_program_computes(name):
    checked, schedule = through(RIGHT[name])
    proven = prove(schedule)
    terms, program = proven.contract, checked.program
    assert terms.root == (2 if terms.collective.rooted else None)
    assert schedule.header.in_place == checked.in_place
    remote = schedule.column("src") != schedule.column("dst")
    assert int(remote.sum()) == checked.messages

    rng = np.random.default_rng(7)
    length = terms.chunks * 3
    sizes = chunk_sizes(terms, length)
    inputs = [rng.standard_normal(int(sizes[terms.input_chunks(r)].sum())).astype(np.float32)
              for r in range(terms.world_size)]  # fmt: skip
    memory = []
    for rank, values in enumerate(inputs):
        place = layout(program, rank, checked.in_place)
        own = [None] * place.memory_chunks
        for at in range(terms.input_size(rank)):
            own[place.input + at] = (rank, values[3 * at : 3 * at + 3])
        memory.append(own)

    def combine(received, own):
        first, second = (received, own) if received[0] < own[0] else (own, received)
        return first[0], first[1] + second[1]

    assert play(program, memory, combine, random.Random(3))
    outputs = interpret(proven, inputs)
    for rank in range(terms.world_size):
        start = layout(program, rank, checked.in_place).output
        mine = [value for _, value in memory[rank][start : start + terms.output_size(rank)]]
        np.testing.assert_array_equal(outputs[rank], np.concatenate([*mine, np.zeros(0, np.float32)]))


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_a_ring_takes_the_steps_of_a_ring(n):
    _, schedule = through(fused_ring_all_reduce(n))
    assert schedule.num_steps == 2 * (n - 1)
    assert len(schedule) == 2 * n * (n - 1)
    # One relay chunk a thread block, for partial sums that are only passed on.
    assert schedule.header.memory_chunks == ((n + 1,) if n > 2 else (n,)) * n
    certificate = certify(prove(schedule))
    assert certificate.same_bits
    assert (certificate.num_orders, certificate.depth) == (n if n > 2 else 1, n - 1)


@pytest.mark.parametrize("change", ["srcoff", "dstoff", "type"])
def test_a_wrong_program_is_refused_by_the_proof(change):
    draft = fused_ring_all_reduce(4)
    step = draft.gpus[2].blocks[0].steps[3]
    assert step.type == "rrcs"
    if change == "srcoff":
        step.src = ("i", 0)
    elif change == "dstoff":
        step.dst = ("i", 0)
    else:
        step.type = "rcs"
    _, schedule = through(draft)
    with pytest.raises(ScheduleError, match="expected"):
        prove(schedule)


def test_the_executor_reads_its_own_buffer_at_srcoff_of_rrc():
    """Compilers write the sender's index there. Right only where both agree, and so it is refused here."""
    draft = all_to_one(2, 0, "reduce", False)
    assert draft.gpus[0].blocks[1].steps[0].type == "rrc"
    draft.gpus[0].blocks[1].steps[0].src = ("i", 0)
    prove(through(draft)[1])  # i[0] of the root holds the same
    draft.gpus[0].s_chunks = 1
    draft.gpus[0].blocks[1].steps[0].src = ("s", 0)
    with pytest.raises(ScheduleError, match="reduces into what is not there"):
        prove(through(draft)[1])


def test_the_order_of_reductions_is_the_programs():
    draft = reduce_scatter_direct(4, inplace=True)
    proven = prove(through(draft)[1])
    block = next(block for block in draft.gpus[0].blocks if any(step.type == "re" for step in block.steps))
    reductions = [step for step in block.steps if step.type == "re"]
    reductions[0].src, reductions[2].src = reductions[2].src, reductions[0].src
    for step in block.steps:
        step.dep = (-1, -1)
    # All three messages are waited for before the first reduction.
    receives = [
        (number, 0) for number, other in enumerate(draft.gpus[0].blocks) if other.steps and other.steps[0].type == "r"
    ]
    reductions[0].dep, reductions[1].dep, reductions[2].dep = receives[2], receives[1], receives[0]
    other = prove(through(draft)[1])
    inputs = [np.array([x, 0, 0, 0], np.float32) for x in (1e8, 1.0, -1e8, 3.0)]
    # ((x0 + x1) + x2) + x3, and ((x0 + x3) + x2) + x1.
    assert interpret(proven, inputs)[0].tolist() == [3.0]
    assert interpret(other, inputs)[0].tolist() == [np.float32(np.float32(1e8) + 3) + np.float32(-1e8) + 1]


def test_ranks_that_exchange_a_chunk_share_a_step():
    draft = Draft("allreduce", 1, [DraftGpu(1, 0) for _ in range(2)], inplace=1)
    for rank in range(2):
        block = draft.block(rank, send=1 - rank, recv=1 - rank)
        block.add("s", ("i", 0))
        block.add("rrc", ("i", 0), ("i", 0))
    _, schedule = through(draft)
    assert (len(schedule), schedule.num_steps) == (2, 1)
    prove(schedule)


def late_receive() -> Draft:
    """Rank 0 broadcasts. Its first message is received after its source was overwritten and came back around.

    Rank 0 sends o[0] to rank 1, overwrites it and sends it again over channel 1; rank 1 uses what came last to
    overwrite the chunk into which it then receives what was sent first. As one row each, both would be first.
    """
    draft = Draft("broadcast", 1, [DraftGpu(1, 1, 1), DraftGpu(0, 1, 1)])
    one = draft.block(0, send=1)
    one.add("cpy", ("i", 0), ("o", 0))
    one.add("cpy", ("i", 0), ("s", 0))
    one.add("s", ("o", 0))
    one.add("cpy", ("s", 0), ("o", 0))
    draft.block(0, send=1, chan=1).add("s", ("o", 0), dep=(0, 3))
    draft.block(1, recv=0, chan=1).add("r", dst=("s", 0))
    other = draft.block(1, recv=0)
    other.add("cpy", ("s", 0), ("o", 0), dep=(0, 0))
    other.add("r", dst=("o", 0))
    return draft


def test_a_message_that_waits_while_its_source_is_overwritten_is_split():
    checked, schedule = through(late_receive())
    prove(schedule)
    remote = schedule.column("src") != schedule.column("dst")
    assert int(remote.sum()) == checked.messages == 2
    # Four copies of the program, and the second half of both messages of the circle.
    assert int((~remote).sum()) == 6
    assert schedule.header.memory_chunks == (3, 2 + 2)


def test_an_exchange_that_one_staging_segment_cannot_hold_is_split():
    """Each rank's first chunk overwrites the other's last one, while that is still to be sent."""
    n, cnt = 2, 2
    draft = Draft("alltoall", 4, [DraftGpu(4, 4, 3) for _ in range(n)])
    for rank in range(n):
        copy = draft.block(rank)
        copy.add("cpy", ("i", 2 * rank), ("o", 2 * rank), cnt=2)
        copy.add("cpy", ("i", 2 * (1 - rank)), ("s", 0), cnt=2)
        block = draft.block(rank, send=1 - rank, recv=1 - rank)
        block.add("s", ("s", 0), cnt=cnt, dep=(0, 1))
        block.add("r", dst=("s", 1), cnt=cnt)
        block.add("cpy", ("s", 1), ("o", 2 * (1 - rank)), cnt=cnt)
    _, schedule = through(draft)
    prove(schedule)
    local = schedule.column("src") == schedule.column("dst")
    assert int(local.sum()) > 6
    assert int((~local).sum()) == 2


def test_a_root_that_nothing_tells_is_asked_for_and_a_wrong_one_refused():
    draft = one_to_all(3, 1, "broadcast", inplace=True)
    draft.gpus[0].i_chunks = draft.gpus[2].i_chunks = 1
    checked, schedule = through(draft)
    assert schedule.header.root == 1
    with pytest.raises(ScheduleError, match=r"wrong output|reads what is not there"):
        prove(lower(checked, root=0))
    with pytest.raises(SpecError, match="expected a root between 0 and 2, got 3"):
        lower(checked, root=3)
    named = draft.xml().replace("<algo ", '<algo root="2" ')
    assert lower(check(read_msccl_xml(named))).header.root == 2


def test_where_no_rank_is_a_root_the_proofs_error_is_raised():
    draft = one_to_all(3, 1, "broadcast", inplace=True)
    for gpu in draft.gpus:
        gpu.i_chunks = 1
    draft.gpus[1].blocks[0].steps.pop()
    draft.gpus[0].blocks[0].steps.pop()
    with pytest.raises(ScheduleError, match=r"wrong output|reads what is not there"):
        through(draft)


def play_table(schedule, memory, combine):
    """The table's meaning in six lines: a step gathers all it reads, then writes."""
    for _, rows in schedule.steps():
        writes = []
        for at in range(len(rows.row)):
            for k in range(int(rows.num_chunks[at])):
                value = memory[rows.src[at]][rows.src_chunk[at] + k]
                if rows.operand_chunk[at] != REPLACE:
                    value = combine(value, memory[rows.dst[at]][rows.operand_chunk[at] + k])
                writes.append((rows.dst[at], rows.dst_chunk[at] + k, value))
        assert len({write[:2] for write in writes}) == len(writes)
        for rank, chunk, value in writes:
            memory[rank][chunk] = value


@settings(max_examples=250)
@given(drafts(), st.integers(0, 2**32))
def test_the_table_of_any_program_that_passes_does_what_the_program_does(made, seed):
    draft, _ = made
    drop_dependencies(draft, random.Random(seed), chance=0.1)
    try:
        checked, schedule = through(draft)
    except ScheduleError:
        return

    def combine(received, own):
        first, second = (received, own) if received[0] < own[0] else (own, received)
        return first[0], (first[1], second[1])

    sizes = [place.memory_chunks for place in checked.layouts]
    memory = [[(rank, (rank, at)) for at in range(size)] for rank, size in enumerate(sizes)]
    table = [
        own + [None] * (total - len(own)) for own, total in zip(memory, schedule.header.memory_chunks, strict=True)
    ]
    assert play(checked.program, memory, combine, random.Random(seed))
    play_table(schedule, table, combine)
    assert [own[:size] for own, size in zip(table, sizes, strict=True)] == memory
    # A connection carries the same messages in the same order, each a row of a step of its own.
    rows = schedule.columns()
    remote = np.flatnonzero(rows.src != rows.dst)
    lanes = list(zip(rows.src[remote], rows.dst[remote], rows.channel[remote], rows.step[remote], strict=True))
    assert len(set(lanes)) == len(lanes) == checked.messages


REAL = {
    "a2a2ll.xml": 1, "a2a_2step_2x4.xml": 1, "ag-1k-512k.xml": 1, "ag-4m.xml": 1, "ag_recdbl_8.xml": 1,
    "alltoall-8n-0-9kb.xml": 1, "alltoall-8n-9kb-190kb.xml": 1, "ap-1pass.xml": 1, "ap2ll.xml": 1, "ar_rhd_8.xml": 1,
    "ar_ring_4.xml": 2, "ar_ring_8_4ch_2inst.xml": 1, "ar_tree_12_LL.xml": 1, "hier_ar_4x2.xml": 1, "r48ll.xml": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_published_programs_are_proven(cases, name):
    checked = check(read_msccl_xml((cases / "schedules" / name).read_bytes(), name))
    assert checked.min_slots == REAL[name]
    proven = prove(lower(checked))
    # Only the one-pass all-reduce leaves ranks with different bits: each adds in its own order.
    assert certify(proven).same_bits == (name != "ap-1pass.xml")


def test_every_published_file_has_its_verdict(cases):
    refused = {"ar_pcie_hier.xml", "simple_custom.xml"}
    assert {path.name for path in (cases / "schedules").glob("*.xml")} == REAL.keys() | refused


def test_the_published_wrong_all_reduce_is_refused(cases):
    schedule = lower(check(read_msccl_xml((cases / "schedules" / "ar_pcie_hier.xml").read_bytes())))
    with pytest.raises(ScheduleError, match="reduces two different chunks"):
        prove(schedule)


def test_the_published_malformed_file_is_refused(cases):
    with pytest.raises(SpecError, match=r"simple_custom.xml:21: not well-formed XML: junk after document element"):
        read_msccl_xml((cases / "schedules" / "simple_custom.xml").read_bytes(), "simple_custom.xml")


def test_three_quarters_of_the_published_trees_dependencies_are_implied_by_others(cases):
    checked = check(read_msccl_xml((cases / "schedules" / "ar_tree_12_LL.xml").read_bytes()))
    assert (checked.dependencies, checked.redundant) == (96, 72)
