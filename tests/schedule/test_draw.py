"""Diagrams: every message is there once, nothing runs over the edge, and what is left out is said."""

import re
import textwrap
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_schedules import proven_schedules
from schedule_samples import (
    binomial_broadcast,
    direct_all_reduce,
    halving_doubling_all_reduce,
    one_shot_all_reduce,
    ring_all_gather,
    ring_all_reduce,
)

from atoll.errors import SpecError
from atoll.schedule import draw_text as draw_text_module
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.count import count
from atoll.schedule.draw_svg import draw_svg
from atoll.schedule.draw_text import draw_text
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.schedule.table import Schedule

SVG = "{http://www.w3.org/2000/svg}"


def body(text: str) -> str:
    """The picture without title and legend."""
    return text.split("\nstep ", 1)[1].split("\n\n", 1)[0]


def local_moves(proven: ProvenSchedule) -> int:
    return len({(row.step, row.src, row.channel) for row in proven.schedule.rows() if row.src == row.dst})


def test_a_ring_of_three_is_drawn_so() -> None:
    want = """
        all-gather, ring: 3 ranks
        3 chunks, 9 rows, 2 steps

        step   0            1            2
           0   ●↺0          ●↺1          ●↺2
               ●─────0─────▶●─────1─────▶│
               │◀───────────┼─────2──────●
               │            │            │
           1   ●─────2─────▶●─────0─────▶│
               │◀───────────┼─────1──────●
               │            │            │

        ●──3──▶  chunk 3 is sent and replaces what is there
        ●↺3      chunk 3 is moved within the rank's memory
        All messages of a step are read before any is written.
    """
    assert draw_text(prove(out_of_place(ring_all_gather(3)))) == textwrap.dedent(want).strip()


def test_the_picture_in_the_module_is_real() -> None:
    picture = re.search(r"( {4}step .*?)\n\n", draw_text_module.__doc__ or "", re.DOTALL)
    assert picture is not None
    assert textwrap.dedent(picture[1]) in draw_text(prove(ring_all_reduce(4)), width=40)


def test_ascii_has_the_same_shape() -> None:
    proven = prove(out_of_place(ring_all_reduce(4)))
    plain, text = draw_text(proven, ascii_only=True), draw_text(proven)
    assert plain.isascii()
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in text.splitlines()]
    assert "o----+0----->o" in plain


@given(proven_schedules(max_world=9), st.integers(40, 160))
def test_every_message_has_one_head_and_no_line_is_too_long(proven: ProvenSchedule, width: int) -> None:
    text = draw_text(proven, width=width, max_steps=10**6)
    assert all(len(line) <= width for line in text.splitlines())
    if "ranks shown" not in text and len(proven.schedule):
        heads = len(re.findall("[▶◀]", body(text)))
        assert heads == count(proven).messages
        assert body(text).count("↺") == local_moves(proven)


@pytest.mark.parametrize("width", [40, 100])
@pytest.mark.parametrize("n", [2, 16, 40])
def test_large_worlds_are_abridged_with_a_statement(n: int, width: int) -> None:
    for schedule in (ring_all_reduce(n), direct_all_reduce(n), one_shot_all_reduce(min(n, 16), chunks=11)):
        text = draw_text(prove(schedule), width=width)
        assert all(len(line) <= width for line in text.splitlines()), text
        heading = next(line for line in text.splitlines() if line.startswith("step "))
        shown = re.search(rf"\((\d+) of {schedule.world_size} ranks shown: 0", text)
        assert ("others" in heading) == (shown is not None)
        assert len(heading.split()) - 1 == (int(shown[1]) + 1 if shown else schedule.world_size)
        assert len(text.splitlines()) < 24 * 44
    assert "(24 of 126 steps shown: 0-15, 118-125)" in draw_text(prove(ring_all_reduce(64)))
    assert "102 steps not shown" in draw_text(prove(ring_all_reduce(64)))


def test_messages_with_others_are_joined_and_counted() -> None:
    text = draw_text(prove(direct_all_reduce(64)))
    assert "8 of 64 ranks shown: 0-7" in text
    assert text.count("+56 msgs") == 2 * 8
    crowd = draw_text(prove(direct_all_reduce(14)), width=200)
    more = re.findall(r"and (\d+) more messages in this step", crowd)
    assert len(re.findall("[▶◀]", body(crowd))) + sum(map(int, more)) == 2 * 14 * 13
    assert more


def test_chosen_ranks_and_steps() -> None:
    text = draw_text(prove(halving_doubling_all_reduce(3)), ranks=[0, 4], steps=[0])
    assert "(2 of 8 ranks shown: 0, 4; the rest are the others)" in text
    assert "(1 of 6 steps shown: 0)" in text
    assert len(re.findall("[▶◀]", body(text))) == 2
    for bad in ({"ranks": [8]}, {"ranks": []}, {"steps": [6]}, {"steps": []}, {"width": 39}, {"max_steps": 0}):
        with pytest.raises(SpecError):
            draw_text(prove(halving_doubling_all_reduce(3)), **bad)


def test_labels_name_the_chunks_of_the_vector() -> None:
    even = np.arange(12, 24, 2)
    gather = ScheduleBuilder("all_gather", 2, chunks=24, name="odd", scratch_chunks=24)
    gather.copy(0, 0, 0, 0, gather.scratch, num_chunks=12)
    gather.copy(1, 0, 1, gather.scratch, 0, num_chunks=12)
    gather.copy(1, 1, 0, even, even)
    gather.copy(2, 1, 0, even + 1, even + 1, channel=3)
    text = draw_text(prove(gather.build()))
    assert "↺0-11@0" in text
    assert "─0-11@0─" in text
    assert "6 chunks@0" in text
    assert "6 chunks@3" in text


def test_nothing_moves_in_a_world_of_one() -> None:
    assert "Nothing moves" in draw_text(prove(ring_all_reduce(1)))
    assert "Nothing moves" in draw_svg(prove(ring_all_reduce(1)))


def svg_arrows(root: ET.Element) -> list[ET.Element]:
    """Arrows of messages and local moves: those that tell what they are."""
    return [
        element
        for tag in ("line", "path")
        for element in root.iter(SVG + tag)
        if element.find(SVG + "title") is not None
    ]


@given(proven_schedules(max_world=6))
def test_svg_has_every_message_inside_the_picture(proven: ProvenSchedule) -> None:
    document = draw_svg(proven, max_steps=10**6)
    root = ET.fromstring(document)
    lines = [element for element in svg_arrows(root) if element.tag == SVG + "line"]
    assert len(lines) == count(proven).messages
    assert len(svg_arrows(root)) - len(lines) == local_moves(proven)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for line in lines:
        assert 0 < float(line.get("x1", -1)) < width
        assert 0 < float(line.get("y2", -1)) < height
        assert float(line.get("y1", 0)) < float(line.get("y2", 0)), "time runs down"


def test_svg_stands_alone_and_says_what_it_shows() -> None:
    document = draw_svg(prove(ring_all_reduce(4)))
    root = ET.fromstring(document)
    assert root.get("role") == "img"
    title, description = root.find(SVG + "title"), root.find(SVG + "desc")
    assert title is not None
    assert description is not None
    assert title.text == "all-reduce, ring: 4 ranks"
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert set(re.findall(r"url\((.)", document)) == {"#"}
    for outside in ("href", "<script", "@import", "font-face", "<image"):
        assert outside not in document
    assert "prefers-color-scheme:dark" in document
    told = [element.findtext(SVG + "title") for element in svg_arrows(root)]
    assert told[0] == "rank 0 to rank 1: chunk 0, reduced"
    assert document == draw_svg(prove(ring_all_reduce(4)))


def test_svg_of_a_large_world_is_abridged_and_says_so() -> None:
    ring = draw_svg(prove(ring_all_reduce(64)))
    assert "24 of 64 ranks shown: 0-23" in ring
    assert "102 steps not shown" in ring
    root = ET.fromstring(draw_svg(prove(direct_all_reduce(64))))
    assert len(svg_arrows(root)) < 400
    assert "12 of 64 ranks shown" in ET.tostring(root, encoding="unicode")
    assert "rank 0 to 52 other ranks: 52 msgs, reduced" in ET.tostring(root, encoding="unicode")


def test_svg_escapes_names() -> None:
    builder = ScheduleBuilder("broadcast", 2, chunks=1, root=0, name="<b>&\"'")
    builder.copy(0, 0, 1, 0)
    title = ET.fromstring(draw_svg(prove(builder.build()))).findtext(SVG + "title")
    assert title == "broadcast, <b>&\"': 2 ranks, root 0"


def test_dashed_replaces_and_solid_reduces() -> None:
    def dashed(schedule: Schedule) -> list[bool]:
        root = ET.fromstring(draw_svg(prove(schedule)))
        return [element.get("stroke-dasharray") is not None for element in svg_arrows(root)]

    assert dashed(ring_all_reduce(2)) == [False, False, True, True]
    assert all(dashed(binomial_broadcast(4)))
