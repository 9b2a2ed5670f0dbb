"""MSCCL XML: what is a file of the format, and what is refused with a line that says where and why."""

import contextlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msccl_programs import Draft, DraftGpu, all_to_all, fused_ring_all_reduce, ring_all_gather, tree_all_reduce

from atoll.errors import ScheduleError, SpecError
from atoll.schedule.msccl_check import check
from atoll.schedule.msccl_lower import lower
from atoll.schedule.msccl_program import Address
from atoll.schedule.msccl_read import read_msccl_xml
from atoll.schedule.prove import prove


def test_every_field_is_read():
    draft = Draft("allreduce", 4, [DraftGpu(4, 0, 2), DraftGpu(4, 0, 2)], inplace=1)
    draft.block(0, send=1, recv=1, chan=3).add("rrs", ("i", 2), cnt=2, dep=(1, 0))
    draft.block(0).add("cpy", ("i", 0), ("s", 1))
    program = read_msccl_xml(draft.xml(), "x.xml")
    assert (program.collective, program.world_size, program.chunks) == ("all_reduce", 2, 4)
    assert (program.name, program.protocol, program.placements) == ("draft", "Simple", (True,))
    block, other = program.gpus[0].blocks
    assert (block.send, block.recv, block.channel) == (1, 1, 3)
    step = block.steps[0]
    assert (step.kind.name, step.src, step.dst, step.count) == ("rrs", Address("i", 2), None, 2)
    assert (step.waits_for, step.signals, step.line) == ((1, 0), False, 4)
    assert other.steps[0].signals
    assert program.notes == ()


def test_bytes_comments_and_a_declaration_are_fine():
    text = "<?xml version='1.0'?>\n<!-- by hand -->\n" + fused_ring_all_reduce(2).xml()
    assert read_msccl_xml(text.encode(), "x").world_size == 2


def broken(old: str, new: str, count: int = 1) -> str:
    text = fused_ring_all_reduce(3).xml()
    assert old in text
    return text.replace(old, new, count)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"x:1: not well-formed XML: no element found"),
        ("<algo", r"x:1: not well-formed XML"),
        ("<system/>", r"x:1: expected <algo> as the root element, got <system>"),
        ("<!DOCTYPE algo [<!ENTITY a 'b'>]><algo/>", r"x:1: a DOCTYPE or entity: refused"),
        (fused_ring_all_reduce(2).xml() + "\n<algo/>", r"x:\d+: not well-formed XML: junk after document element"),
        ("<algo><algo/></algo>", r"x:1: expected <gpu> inside <algo>, got <algo>"),
        (broken("<step", "<x/><step"), r"x:4: expected <step> inside <tb>, got <x>"),
        (broken("<gpu", "words<gpu"), r"x:2: expected elements only, got the text 'words'"),
        (broken('coll="allreduce"', 'coll="custom"'), r"x:1: coll: no contract is known for 'custom'"),
        (broken('coll="allreduce"', 'coll="alreduce"'), r"did you mean 'allreduce'"),
        (broken(' coll="allreduce"', ""), r"x:1: <algo>: expected the attribute 'coll', got none"),
        (broken('ngpus="3"', 'ngpus="4"'), r"x:1: expected 4 gpus, got 3: gpu 3 is missing"),
        (broken('ngpus="3"', 'ngpus="2"'), r"<gpu>: id: expected a whole number from 0 to 1, got '2'"),
        (broken('ngpus="3"', 'ngpus="9999999"'), r"ngpus: expected a whole number from 1 to"),
        (broken('nchunksperloop="3"', 'nchunksperloop="99999999999999999999"'), r"nchunksperloop: expected a whole"),
        (broken('nchunksperloop="3"', 'nchunksperloop="6"'), r"gpu 0: i_chunks: expected 0 or 6 in all_reduce"),
        (broken('proto="Simple"', 'proto="TCP"'), r"proto: expected one of Simple, LL, LL128, got 'TCP'"),
        (broken('inplace="1"', 'inplace="yes"'), r"inplace: expected a whole number from 0 to 1, got 'yes'"),
        (broken('gpu id="1"', 'gpu id="0"'), r"expected each gpu once, got gpu 0 again"),
        (broken('s_chunks="0"', 's_chunks="-1"'), r"s_chunks: expected a whole number from 0"),
        (broken('tb id="0"', 'tb id="1"'), r"x:2: gpu 0: expected tb ids 0 to 0, got none of id 0"),
        (broken('send="1"', 'send="0"'), r"x:3: gpu 0 tb 0: send: expected another gpu, got gpu 0 itself"),
        (broken('send="1"', 'send="3"'), r"send: expected a whole number from -1 to 2, got '3'"),
        (broken('send="1"', 'send="-1"'), r"x:4: gpu 0 tb 0 step 0 \(s\): expected its tb to name a peer in send"),
        (broken('recv="2"', 'recv="-1"'), r"x:5: gpu 0 tb 0 step 1 \(rrs\): expected its tb to name a peer in recv"),
        (broken('chan="0"', 'chan="7"'), r"<tb>: chan: expected a whole number from 0 to 0, got '7'"),
        (broken(' s="1"', ' s="4"'), r"x:5: gpu 0 tb 0: expected steps in order, s=1, got s=4"),
        (broken('type="rrs"', 'type="rrx"'), r"x:5: gpu 0 tb 0 step 1: type: expected one of s, r, .*, got 'rrx'"),
        (broken('cnt="1"', 'cnt="0"'), r"x:4: <step>: cnt: expected a whole number from 1 to"),
        (broken(' cnt="1"', ""), r"<step>: expected the attribute 'cnt', got none"),
        (broken('srcbuf="i"', 'srcbuf="x"'), r"gpu 0 tb 0 step 0 \(s\): srcbuf: expected i, o or s, got 'x'"),
        (broken('srcoff="0"', 'srcoff="3"'), r"x:4: gpu 0 tb 0 step 0 \(s\): src outside the buffer: expected at"),
        (broken('srcoff="2" dstbuf="o" dstoff="-1" cnt="1"', 'srcoff="2" dstbuf="o" dstoff="-1" cnt="2"'),
         r"src outside the buffer: expected at most 3 chunks in 'i', got 2 to 3"),
        (broken('srcoff="0"', 'srcoff="-1"'), r"srcoff: expected a whole number from 0 to"),
        (broken('depid="-1"', 'depid="0"'), r"expected depid and deps both or neither, got 0 and -1"),
        (broken('depid="-1" deps="-1"', 'depid="0" deps="9"'), r"a dependency on a step of this gpu, got tb 0"),
        (broken('depid="-1" deps="-1"', 'depid="1" deps="0"'), r"a dependency on a step of this gpu, got tb 1"),
        (broken('depid="-1" deps="-1"', 'depid="0" deps="1"'), r"expected hasdep=1 there, got 0"),
        (broken('hasdep="0"', 'hasdep="2"'), r"hasdep: expected a whole number from 0 to 1, got '2'"),
        ("<algo name=\"\ud800\"/>", r"x: not readable as text"),
        (b"\xff\xfe<", r"x:1: not "),
    ],
)  # fmt: skip
def test_what_is_malformed_is_refused_with_its_place(text, message):
    with pytest.raises(SpecError, match=message):
        read_msccl_xml(text, "x")


def test_a_buffer_that_the_collective_does_not_have_that_long_is_refused():
    draft = ring_all_gather(4, inplace=False)
    draft.gpus[2].i_chunks = 4
    with pytest.raises(SpecError, match=r"gpu 2: i_chunks: expected 0 or 1 in all_gather of 4 chunks .*, got 4"):
        read_msccl_xml(draft.xml())


def test_a_vector_that_ranks_do_not_divide_is_refused():
    draft = all_to_all(3, relay=False)
    draft.chunks = 4
    with pytest.raises(SpecError, match=r"nchunksperloop: expected a multiple of 3 gpus in all_to_all, got 4"):
        read_msccl_xml(draft.xml())


def test_what_executors_would_ignore_is_noted_not_refused():
    draft = fused_ring_all_reduce(2)
    draft.extra = ""
    draft.gpus[0].blocks[0].add("nop", cnt=0, dep=(0, 0))
    draft.gpus[1].s_chunks = 200
    block = draft.block(1)
    block.add("cpy", ("s", 0), ("s", 100), cnt=80)
    for _ in range(70):
        block.add("nop", cnt=0)
    notes = " / ".join(read_msccl_xml(draft.xml()).notes)
    assert re.search(r"attributes outofplace, minBytes, maxBytes", notes)
    assert re.search(r"has 71 steps; executors take at most 64", notes)
    assert re.search(r"moves 80 chunks; executors take at most 71", notes)
    assert re.search(r"nop is not followed", notes)


def test_a_missing_placement_is_out_of_place():
    draft = ring_all_gather(2, inplace=False)
    draft.extra = ""
    assert read_msccl_xml(draft.xml()).placements == (False,)
    assert read_msccl_xml(draft.xml().replace('inplace="0"', 'inplace="1" outofplace="1"')).placements == (True, False)


SEEDS = [fused_ring_all_reduce(3).xml(), all_to_all(3, relay=True).xml(), tree_all_reduce(3).xml()]


@settings(max_examples=150)
@given(st.data())
def test_no_edit_of_a_file_does_more_than_raise_one_of_our_errors(data):
    text = data.draw(st.sampled_from(SEEDS))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 30))
        new = data.draw(st.one_of(st.sampled_from(['"', "<", "/>", "-1", "99", "0", "s", "rrc", "</tb>"]), st.text()))
        text = text[:start] + new + text[start + length :]
    _through(text)


@settings(max_examples=150)
@given(st.data())
def test_no_changed_number_does_more_than_raise_one_of_our_errors(data):
    text = data.draw(st.sampled_from(SEEDS))
    numbers = list(re.finditer(r'"-?\d+"', text))
    for _ in range(data.draw(st.integers(1, 4))):
        found = data.draw(st.sampled_from(numbers))
        text = text[: found.start()] + f'"{data.draw(st.integers(-2, 4))}"' + text[found.end() :]
        numbers = list(re.finditer(r'"-?\d+"', text))
    _through(text)


def _through(text: str) -> None:
    with contextlib.suppress(SpecError, ScheduleError):
        assert len(prove(lower(check(read_msccl_xml(text)))).schedule) > 0
