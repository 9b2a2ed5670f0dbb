"""Written MSCCL XML: within the executors' limits, and read back to an equal schedule; equality itself."""

import contextlib
import re

import numpy as np
import pytest
from hypothesis import given, settings
from random_schedules import proven_schedules

from atoll.algorithms.catalog import CATALOG, build
from atoll.errors import SpecError
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.interpret import interpret
from atoll.schedule.meaning import difference
from atoll.schedule.msccl_check import check
from atoll.schedule.msccl_lower import lower
from atoll.schedule.msccl_read import read_msccl_xml
from atoll.schedule.msccl_write import write_msccl_xml
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import prove
from atoll.schedule.table import COLUMNS, Header, Schedule

ENTRIES = [entry for entry in CATALOG if entry.collective != "barrier"]


def read_back(text: str):
    return prove(lower(check(read_msccl_xml(text, "written"), slots=2)))


def results(proven, seed=3):
    terms = proven.contract
    length = 3 * terms.chunks
    sizes = chunk_sizes(terms, length)
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(int(sizes[terms.input_chunks(rank)].sum())).astype(np.float32)
              for rank in range(terms.world_size)]  # fmt: skip
    return interpret(proven, inputs)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.collective}-{entry.name}")
def test_every_algorithm_is_written_and_reads_back_to_an_equal_schedule(entry, in_place):
    for n in (1, 2, 3, 4, 8):
        root = n - 1 if COLLECTIVES[entry.collective].rooted else None
        try:
            schedule = build(entry.collective, entry.name, n, root=root)
        except SpecError:
            continue  # not for this world
        proven = prove(schedule if in_place else out_of_place(schedule))
        text = write_msccl_xml(proven)
        assert within_limits(text)
        again = read_back(text)
        assert again.contract == proven.contract
        assert difference(proven, again) is None
        for one, other in zip(results(proven), results(again), strict=True):
            np.testing.assert_array_equal(one, other)


def within_limits(text: str) -> bool:
    program = read_msccl_xml(text)
    header = text.splitlines()[0]
    return (
        not program.notes
        and all(re.search(rf' {name}="\d+"', header) for name in ("minBytes", "maxBytes", "inplace", "outofplace"))
        and all(len(gpu.blocks) <= 64 for gpu in program.gpus)
        and all(len(block.steps) <= 64 for gpu in program.gpus for block in gpu.blocks)
        and all(step.count < 72 for gpu in program.gpus for block in gpu.blocks for step in block.steps)
    )


def test_sizes_and_protocol_are_written():
    proven = prove(build("all_reduce", "ring", 2))
    text = write_msccl_xml(proven, protocol="LL128", min_bytes=1024, max_bytes=4096)
    assert text.startswith(
        '<algo name="ring" proto="LL128" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="1" '
        'outofplace="0" minBytes="1024" maxBytes="4096">\n'
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "LL12"}, r"unknown protocol 'LL12': did you mean 'LL128'"),
        ({"min_bytes": -1}, r"expected 0 <= min_bytes <= max_bytes"),
        ({"min_bytes": 8, "max_bytes": 4}, r"got 8 and 4"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        write_msccl_xml(prove(build("all_reduce", "ring", 2)), **options)


def test_a_ring_of_33_ranks_is_the_longest_that_fits():
    text = write_msccl_xml(prove(build("all_reduce", "ring", 33)))
    assert max(len(block.steps) for gpu in read_msccl_xml(text).gpus for block in gpu.blocks) == 64
    with pytest.raises(SpecError, match=r"ring: rank 0 sends too many messages to rank 1 .* at most 64, .* got 66"):
        write_msccl_xml(prove(build("all_reduce", "ring", 34)))


def test_too_many_peers_are_refused_and_many_share_thread_blocks():
    text = write_msccl_xml(prove(build("all_gather", "direct", 40)))
    blocks = read_msccl_xml(text).gpus[0].blocks
    assert len(blocks) == 39
    assert all(block.send >= 0 and block.recv >= 0 for block in blocks)
    with pytest.raises(SpecError, match=r"sends to too many peers.* at most 64, .* got 65"):
        write_msccl_xml(prove(build("all_gather", "direct", 66)))


def test_long_runs_are_cut_below_72_chunks():
    builder = ScheduleBuilder("broadcast", 2, chunks=200, root=0, name="one message")
    builder.copy(0, 0, 1, 0, num_chunks=200)
    text = write_msccl_xml(prove(builder.build()))
    assert re.findall(r'type="s" .*cnt="(\d+)"', text) == ["71", "71", "58"]
    assert difference(prove(builder.build()), read_back(text)) is None


def many_channels(num_chunks):
    """An all-gather of 3 ranks over 17 channels, which is 68 thread blocks unless sends and receives share them."""
    builder = ScheduleBuilder("all_gather", 3, chunks=3 * 17 * num_chunks, name="wide")
    rank, channel = np.repeat(np.arange(3), 17), np.tile(np.arange(17), 3)
    first = (rank * 17 + channel) * num_chunks
    for distance in (1, 2):
        builder.copy(0, rank, (rank + distance) % 3, first, num_chunks=num_chunks, channel=channel)
    return prove(builder.build())


def test_shared_thread_blocks_need_a_slot_for_every_message_of_a_step():
    text = write_msccl_xml(many_channels(142))
    assert len(read_msccl_xml(text).gpus[0].blocks) == 34
    assert check(read_msccl_xml(text)).min_slots == 2
    with pytest.raises(SpecError, match=r"wide: expected to need at most 2 slots a connection, got 3"):
        write_msccl_xml(many_channels(143))


def test_more_chunks_than_an_offset_can_tell_are_refused():
    builder = ScheduleBuilder("broadcast", 2, chunks=32_768, root=0, name="fine")
    builder.copy(0, 0, 1, 0, num_chunks=32_768)
    with pytest.raises(SpecError, match=r"fine: expected at most 32767 chunks of memory at rank 0, got 32768"):
        write_msccl_xml(prove(builder.build()))


def test_a_reduction_whose_operand_overlaps_its_destination_is_cut():
    """The runs are shifted by a chunk: no executor may make them one step."""
    builder = ScheduleBuilder("reduce", 2, chunks=3, root=0, name="shifted", scratch_chunks=4)
    builder.copy(0, 0, 0, 0, builder.scratch + 1, num_chunks=3)
    builder.reduce(1, 1, 0, 0, builder.scratch, operand_chunk=builder.scratch + 1, num_chunks=3)
    builder.copy(2, 0, 0, builder.scratch, 0, num_chunks=3)
    proven = prove(builder.build())
    text = write_msccl_xml(proven)
    assert re.findall(r'type="rrc" .*srcoff="(\d)" .*dstoff="(\d)"', text) == [("1", "0"), ("2", "1"), ("3", "2")]
    assert difference(proven, read_back(text)) is None


def test_a_barrier_has_no_name_in_the_format():
    with pytest.raises(SpecError, match="MSCCL has no barrier"):
        write_msccl_xml(prove(build("barrier", "dissemination", 4)))


def test_a_placement_that_the_format_has_not_is_refused():
    """An all-gather of two ranks, each of which has its input where the other's block ends up."""
    builder = ScheduleBuilder("all_gather", 2, chunks=2, name="crossed")
    builder.copy(0, [0, 1], [0, 1], [1, 0], [0, 1])
    builder.copy(1, [0, 1], [1, 0], [0, 1])
    schedule = builder.build()
    header = Header(
        "all_gather", 2, 2, None, "crossed", input_offset=(1, 0), output_offset=(0, 0), memory_chunks=(2, 2)
    )
    crossed = prove(Schedule(header, {name: schedule.column(name) for name in COLUMNS}))
    with pytest.raises(SpecError, match=r"rank 0 works in place in a way that MSCCL has not: .* 0 chunks .*, got 1"):
        write_msccl_xml(crossed)
    assert 'inplace="0"' in write_msccl_xml(prove(out_of_place(crossed.schedule)))


def test_a_name_that_executors_could_not_scan_is_replaced():
    builder = ScheduleBuilder("broadcast", 1, chunks=1, root=0, name='a "b" <c>&')
    assert 'name="a _b_ _c__"' in write_msccl_xml(prove(builder.build()))


@settings(max_examples=100)
@given(proven_schedules(collectives=tuple(name for name in COLLECTIVES if name != "barrier")))
def test_random_schedules_read_back_equal_or_are_refused(proven):
    with contextlib.suppress(SpecError):
        assert difference(proven, read_back(write_msccl_xml(proven))) is None


def ring():
    return prove(build("all_reduce", "ring", 4))


def altered(proven, **columns):
    schedule = proven.schedule
    changed = {name: columns.get(name, schedule.column(name)) for name in COLUMNS}
    return prove(type(schedule)(schedule.header, changed))


def test_equal_schedules_may_number_their_steps_otherwise():
    proven = ring()
    assert difference(proven, altered(proven, step=proven.schedule.column("step") * 3 + 5)) is None


def test_what_crosses_a_connection_tells_schedules_apart():
    proven = ring()
    moved = altered(proven, channel=proven.schedule.column("channel") + 1)
    assert "connection from rank 0 to rank 1 on channel 0 differs: 6 and 0 chunks cross it" in difference(proven, moved)
    other = prove(build("all_reduce", "recursive_doubling", 4))
    assert "the contracts differ" in difference(proven, other)


def test_messages_have_an_order_and_the_chunks_of_one_have_none():
    def pair(*steps):
        builder = ScheduleBuilder("all_gather", 2, chunks=4, name="pair")
        for step, place in enumerate(steps):
            builder.copy(step, [0, 1], [1, 0], [place, 2 + place])
        return prove(builder.build())

    builder = ScheduleBuilder("all_gather", 2, chunks=4, name="one message")
    builder.copy(0, [0, 1], [1, 0], [0, 2], num_chunks=2)
    whole = prove(builder.build())
    assert difference(pair(0, 1), pair(1, 0)) == (
        "the connection from rank 0 to rank 1 on channel 0 differs: other values among its chunks 0 to 0"
    )
    assert difference(pair(0, 1), whole) is None
    assert difference(whole, pair(1, 0)) is None


def test_the_order_of_a_reduction_tells_schedules_apart():
    def star(order):
        builder = ScheduleBuilder("reduce", 4, chunks=1, root=0, name="star")
        for step, rank in enumerate(order):
            builder.reduce(step, rank, 0, 0)
        return prove(builder.build())

    assert difference(star([1, 2, 3]), star([1, 2, 3])) is None
    assert difference(star([1, 2, 3]), star([3, 2, 1])) == "output chunk 0 of rank 0 holds another value"


def test_in_place_and_out_of_place_are_not_equal():
    proven = ring()
    assert difference(proven, prove(out_of_place(proven.schedule))) == "one works in place, the other does not"
