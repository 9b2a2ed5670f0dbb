"""Messages, deadlock and races of MSCCL programs, against programs made so and against running them."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msccl_programs import (
    Draft,
    DraftGpu,
    fused_ring_all_reduce,
    play,
    reduce_scatter_direct,
    ring_all_gather,
    tree_all_reduce,
)
from random_programs import drafts, drop_dependencies

from atoll.errors import ScheduleError
from atoll.schedule.msccl_check import check
from atoll.schedule.msccl_program import layout
from atoll.schedule.msccl_read import read_msccl_xml


def checked(draft, **options):
    return check(read_msccl_xml(draft.xml(), "x"), **options)


def pair(scratch: int = 0) -> Draft:
    return Draft("allreduce", 2, [DraftGpu(2, 0, scratch) for _ in range(2)], inplace=1)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_fused_ring_needs_the_slot_it_is_about_to_send_into(n):
    # Every rank holds the slot of what it receives while it waits for the slot that it sends into, all around.
    one = checked(fused_ring_all_reduce(n))
    assert one.min_slots == 2
    with pytest.raises(ScheduleError, match=r"deadlock with 1 slot a connection.*waits for the slot that is freed by"):
        checked(fused_ring_all_reduce(n), slots=1)
    assert one.messages == 2 * n * (n - 1)


def test_sends_that_come_before_all_receives_need_as_many_slots():
    draft = pair(scratch=8)
    for rank in range(2):
        block = draft.block(rank, send=1 - rank, recv=1 - rank)
        for _ in range(5):
            block.add("s", ("i", 0))
        for k in range(5):
            block.add("r", dst=("s", k))
    assert checked(draft).min_slots == 5
    assert checked(draft, slots=5).min_slots == 5
    with pytest.raises(ScheduleError, match=r"gpu 0 tb 0 step 4 \(s\): deadlock with 4 slots .* waits for the slot"):
        checked(draft, slots=4)


def test_ranks_that_receive_first_are_a_deadlock_with_any_number_of_slots():
    draft = pair()
    for rank in range(2):
        block = draft.block(rank, send=1 - rank, recv=1 - rank)
        block.add("r", dst=("i", 1))
        block.add("s", ("i", 0))
    with pytest.raises(ScheduleError, match="deadlock with any number of slots") as caught:
        checked(draft)
    assert "x:4: gpu 0 tb 0 step 0 (r)" in str(caught.value)
    assert "gpu 0 tb 0 step 0 (r) waits for the message of gpu 1 tb 0 step 1 (s)" in str(caught.value)
    assert "expected every step to end, got 4 of 4 steps stuck" in str(caught.value)
    assert caught.value.rank == 0


def test_a_dependency_on_a_later_step_of_its_own_thread_block_is_a_deadlock():
    draft = pair()
    block = draft.block(0)
    block.add("cpy", ("i", 0), ("i", 1), dep=(0, 1))
    block.add("cpy", ("i", 1), ("i", 0))
    with pytest.raises(ScheduleError, match=r"tb 0 step 0 \(cpy\) waits for the end of gpu 0 tb 0 step 1"):
        checked(draft)


def test_an_unmatched_send_is_refused():
    draft = pair()
    draft.block(0, send=1).add("s", ("i", 0))
    draft.block(1)
    with pytest.raises(
        ScheduleError,
        match=r"gpu 0 tb 0 step 0 \(s\): an unmatched message from gpu 0 to gpu 1 on channel 0.*"
        r"expected as many receives as sends, 1, got 0 receives: no receive for it",
    ):
        checked(draft)


def test_an_unmatched_receive_is_refused():
    draft = pair()
    draft.block(0, send=1).add("s", ("i", 0))
    block = draft.block(1, recv=0)
    block.add("r", dst=("i", 0))
    block.add("r", dst=("i", 1))
    with pytest.raises(ScheduleError, match=r"gpu 1 tb 0 step 1 \(r\): an unmatched .* no send for it"):
        checked(draft)


def test_channels_are_connections_of_their_own():
    draft = pair()
    draft.block(0, send=1, chan=0).add("s", ("i", 0))
    draft.block(1, recv=0, chan=1).add("r", dst=("i", 0))
    with pytest.raises(ScheduleError, match="unmatched message from gpu 0 to gpu 1 on channel 0"):
        checked(draft)


def test_messages_of_different_length_do_not_meet():
    draft = pair()
    sender = draft.block(0, send=1)
    sender.add("s", ("i", 0), cnt=2)
    sender.add("s", ("i", 0), cnt=1)
    receiver = draft.block(1, recv=0)
    receiver.add("r", dst=("i", 0), cnt=1)
    receiver.add("r", dst=("i", 0), cnt=2)
    with pytest.raises(
        ScheduleError,
        match=r"message 0 .* sent by x:4: gpu 0 tb 0 step 0 \(s\), received by x:\d+: gpu 1 tb 0 step 0 \(r\).*"
        r"expected 2 chunks, as sent, got 1",
    ):
        checked(draft)


def test_two_thread_blocks_on_one_end_of_a_connection_are_refused():
    draft = pair()
    draft.block(0, send=1).add("s", ("i", 0))
    draft.block(0, send=1).add("s", ("i", 1))
    block = draft.block(1, recv=0)
    block.add("r", dst=("i", 0))
    block.add("r", dst=("i", 1))
    with pytest.raises(ScheduleError, match="tb 0 and tb 1 of gpu 0 both send to gpu 1 on channel 0"):
        checked(draft)


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (("cpy", ("i", 0), ("s", 0)), ("cpy", ("i", 1), ("s", 0)), r"writes s\[0\], and .* writes s\[0\]"),
        (("cpy", ("i", 0), ("s", 0)), ("cpy", ("s", 0), ("s", 1)), r"writes s\[0\], and .* reads s\[0\]"),
        (("cpy", ("s", 0), ("s", 1)), ("cpy", ("i", 0), ("s", 0)), r"reads s\[0\], and .* writes s\[0\]"),
        (("re", ("s", 1), ("i", 0)), ("re", ("s", 2), ("i", 0)), r"writes i\[0\], and .* reads i\[0\]"),
        (("cpy", ("s", 0), ("o", 1)), ("cpy", ("i", 1), ("s", 3)), r"writes o\[1\], and .* reads i\[1\]"),
    ],
)
def test_two_thread_blocks_that_touch_one_chunk_race_until_a_dependency_orders_them(one, other, what):
    draft = pair(scratch=4)
    draft.block(0).add(*one)
    later = draft.block(0)
    later.add(*other)
    with pytest.raises(ScheduleError, match=r"data race: x:4: gpu 0 tb 0 step 0 .*" + what) as caught:
        checked(draft)
    assert "expected one to happen before the other, got nothing that orders them" in str(caught.value)
    later.steps[0].dep = (0, 0)
    assert checked(draft).dependencies == 1


def test_reads_do_not_race_with_reads():
    draft = pair(scratch=2)
    draft.block(0).add("cpy", ("i", 0), ("s", 0))
    draft.block(0).add("cpy", ("i", 0), ("s", 1))
    assert checked(draft).dependencies == 0


def test_a_run_races_where_it_overlaps():
    draft = pair(scratch=6)
    draft.block(0).add("cpy", ("s", 0), ("s", 3), cnt=3)
    draft.block(0).add("cpy", ("i", 0), ("s", 2), cnt=1)
    with pytest.raises(ScheduleError, match=r"reads s\[2\], and .* writes s\[2\]"):
        checked(draft)


def test_a_message_orders_what_came_before_its_send_and_what_comes_after_its_receive():
    draft = pair(scratch=1)
    there = draft.block(0, send=1)
    there.add("cpy", ("i", 0), ("s", 0))
    there.add("s", ("i", 1))
    middle = draft.block(1, send=0, recv=0)
    middle.add("rcs", dst=("i", 1))
    back = draft.block(0, recv=1)
    back.add("r", dst=("i", 1))
    back.add("cpy", ("s", 0), ("i", 0))
    assert checked(draft).min_slots == 1
    # Without the message through the other rank nothing orders tb 0 and tb 1.
    back.steps.reverse()
    with pytest.raises(ScheduleError, match="data race"):
        checked(draft)


def test_a_step_whose_own_runs_overlap_is_refused():
    draft = pair(scratch=4)
    draft.block(0).add("cpy", ("s", 0), ("s", 1), cnt=2)
    with pytest.raises(ScheduleError, match=r"step 0 \(cpy\): reads and writes runs that overlap.*the same run"):
        checked(draft)


def test_in_place_two_names_are_one_chunk_and_out_of_place_they_are_not():
    draft = ring_all_gather(4, inplace=False)
    assert checked(draft).in_place is False
    text = draft.xml().replace('inplace="0"', 'inplace="1"')
    both = read_msccl_xml(text, "x")
    assert both.placements == (True, False)
    # In place i[0] is o[rank]: the copy onto itself is no race, since one thread block makes it.
    assert check(both, in_place=True).in_place is True
    assert check(both, in_place=False).min_slots == 1


def test_dependencies_that_others_imply_are_counted():
    draft = pair(scratch=3)
    draft.block(0).add("cpy", ("i", 0), ("s", 0))
    draft.block(0).add("cpy", ("s", 0), ("s", 1), dep=(0, 0))
    third = draft.block(0)
    third.add("nop", cnt=0, dep=(1, 0))
    third.add("cpy", ("s", 1), ("s", 2), dep=(0, 0))
    one = checked(draft)
    assert (one.dependencies, one.redundant) == (3, 1)


@pytest.mark.parametrize(
    ("draft", "needed"),
    [
        (ring_all_gather(5, True, 2), 15),
        (reduce_scatter_direct(4, False), 12),
        (reduce_scatter_direct(4, True), 12),
        (tree_all_reduce(7), 11),
    ],
)
def test_a_dependency_that_is_needed_is_missed_when_it_is_gone(draft, needed):
    """A compiler writes more than are needed, since messages imply some (in the tree). Those change nothing."""
    given = checked(draft)
    steps = [step for gpu in draft.gpus for block in gpu.blocks for step in block.steps if step.dep != (-1, -1)]
    assert len(steps) == given.dependencies > 0
    races = 0
    for step in steps:
        kept, step.dep = step.dep, (-1, -1)
        try:
            without = checked(draft)
        except ScheduleError as error:
            races += "data race" in str(error)
        else:
            memory, expected = leaves(without.program, without.in_place), leaves(given.program, given.in_place)
            assert play(without.program, memory, combine, random.Random(1))
            assert play(given.program, expected, combine, random.Random(2))
            assert memory == expected
        step.dep = kept
    assert races == needed


def leaves(program, in_place):
    """Memory in which every chunk differs; a value is (lowest contributor, expression)."""
    places = [layout(program, rank, in_place) for rank in range(program.world_size)]
    return [[(rank, (rank, at)) for at in range(place.memory_chunks)] for rank, place in enumerate(places)]


def combine(received, own):
    first, second = (received, own) if received[0] < own[0] else (own, received)
    return (first[0], (first[1], second[1]))


@settings(max_examples=120)
@given(drafts(), st.integers(0, 2**32))
def test_a_program_with_all_its_dependencies_passes_and_its_fewest_slots_are_the_fewest(made, seed):
    draft, in_place = made
    one = checked(draft)
    rng = random.Random(seed)
    for slots in range(max(1, one.min_slots - 1), one.min_slots + 2):
        assert play(one.program, leaves(one.program, in_place), combine, rng, slots=slots) == (slots >= one.min_slots)


@settings(max_examples=200)
@given(drafts(), st.integers(0, 2**32))
def test_a_program_that_passes_ends_the_same_whoever_is_next(made, seed):
    draft, in_place = made
    rng = random.Random(seed)
    drop_dependencies(draft, rng)
    try:
        one = checked(draft)
    except ScheduleError:
        return
    ends = []
    for _ in range(4):
        memory = leaves(one.program, in_place)
        assert play(one.program, memory, combine, rng)
        ends.append(memory)
    assert all(end == ends[0] for end in ends)
