"""Pipeline schedules: formulas met exactly, orders legal, memory as the papers have it, pictures that show it."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.planning.draw_pipeline import draw_svg, draw_text
from atoll.planning.pipeline import Timeline, bubble_share, microbatches_for, play

PASS_TIMES = st.fractions(min_value=Fraction(1, 8), max_value=8, max_denominator=8)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    stages = draw(st.integers(1, 6))
    interleave = draw(st.integers(1, 3)) if stages > 1 else 1
    microbatches = draw(st.integers(1, 12)) if interleave == 1 else stages * draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["gpipe", "1f1b"])) if interleave == 1 else "1f1b"
    slow = draw(st.dictionaries(st.integers(0, stages - 1), PASS_TIMES, max_size=2))
    return play(
        kind, stages, microbatches, interleave=interleave, forward=draw(PASS_TIMES), backward=draw(PASS_TIMES),
        send_time=draw(st.sampled_from([0, Fraction(1, 3), 2])), slow=slow,
    )  # fmt: skip


@given(timelines())
def test_every_task_runs_once_after_what_it_reads_and_alone_on_its_stage(line: Timeline) -> None:
    tasks = [task for row in line.tasks for task in row]
    blocks = line.stages * line.interleave
    ends = {(task.chunk * line.stages + task.stage, task.microbatch, task.forward): task for task in tasks}
    assert len(ends) == len(tasks) == 2 * blocks * line.microbatches
    for (block, microbatch, forward), task in ends.items():
        before = block - 1 if forward else block + 1
        if 0 <= before < blocks:
            assert ends[before, microbatch, forward].end <= task.start
        if not forward:
            assert ends[block, microbatch, True].end <= task.start
    for row in line.tasks:
        assert all(first.end <= second.start for first, second in itertools.pairwise(row))
    assert line.end == max(task.end for task in tasks)


@given(st.integers(1, 9), st.integers(1, 20), PASS_TIMES, PASS_TIMES, st.sampled_from(["gpipe", "1f1b"]))
def test_the_bubble_is_the_formula_whatever_passes_take(
    stages: int, microbatches: int, forward: Fraction, backward: Fraction, kind: str
) -> None:
    line = play(kind, stages, microbatches, forward=forward, backward=backward)  # type: ignore[arg-type]
    expected = Fraction(stages - 1, microbatches + stages - 1)
    assert {line.bubble(stage) for stage in range(stages)} == {expected}
    assert bubble_share(stages, microbatches) == expected
    assert line.end == (microbatches + stages - 1) * (forward + backward)


@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 4), PASS_TIMES, PASS_TIMES)
def test_interleaving_divides_the_bubble(
    stages: int, runs: int, interleave: int, forward: Fraction, backward: Fraction
) -> None:
    line = play("1f1b", stages, runs * stages, interleave=interleave, forward=forward, backward=backward)
    assert line.mean_bubble == Fraction(stages - 1, interleave * runs * stages + stages - 1)
    assert line.mean_bubble == bubble_share(stages, runs * stages, interleave)
    # The idle time itself is 1/v of the plain schedule's.
    plain = play("1f1b", stages, runs * stages, forward=forward, backward=backward)
    assert (line.end - line.busy(0)) * interleave == plain.end - plain.busy(0)


@given(st.integers(1, 8), st.integers(1, 16))
def test_gpipe_keeps_all_and_1f1b_a_pipelines_depth(stages: int, microbatches: int) -> None:
    assert play("gpipe", stages, microbatches).peak == (microbatches,) * stages
    kept = play("1f1b", stages, microbatches).peak
    assert kept == tuple(min(stages - stage, microbatches) for stage in range(stages))


def test_interleaving_pays_for_time_with_memory() -> None:
    plain, woven = play("1f1b", 4, 8), play("1f1b", 4, 8, interleave=2)
    # 2(p - 1) + (v - 1) p + 1 chunks of half a stage on the first stage.
    assert woven.peak[0] == Fraction(2 * 3 + 4 + 1, 2) > plain.peak[0] == 4


def test_a_slow_stage_sets_the_pace() -> None:
    # All micro-batches through the slow one, and one through each of the others on the way there and back.
    assert play("gpipe", 4, 100, slow={2: Fraction(3, 2)}).end == Fraction(3, 2) * 3 * 100 + 3 * 3
    line = play("1f1b", 4, 100, slow={2: Fraction(3, 2)})
    assert 450 + 2 * 3 <= line.end <= 450 + 3 * 3
    assert line.bubble(2) < line.bubble(0)


def test_sending_costs_the_fill_and_each_wait_in_steady_state() -> None:
    free, paid = play("1f1b", 4, 8), play("1f1b", 4, 8, send_time=Fraction(1, 10))
    assert paid.end > free.end
    # GPipe pays on its way in and out only: p - 1 hops each way.
    assert play("gpipe", 4, 8, send_time=Fraction(1, 10)).end == free.end + Fraction(6, 10)


@given(st.integers(2, 9), st.fractions(min_value=Fraction(1, 50), max_value=Fraction(9, 10)), st.integers(1, 3))
def test_microbatches_for_a_bubble_are_the_fewest(stages: int, share: Fraction, interleave: int) -> None:
    needed = microbatches_for(stages, share, interleave)
    assert bubble_share(stages, needed, interleave) <= share
    fewer = needed - (1 if interleave == 1 else stages)
    assert fewer < 1 or bubble_share(stages, fewer, interleave) > share


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("zb", 4, 8, 1), "expected one of gpipe, 1f1b, got 'zb'"),
        (("1f1b", 0, 8, 1), "at least one stage"),
        (("gpipe", 4, 8, 2), "gpipe has one chunk a stage"),
        (("1f1b", 4, 6, 2), "6 is no multiple of 4"),
        (("1f1b", 1, 6, 2), "at least two stages"),
        (("1f1b", 1000, 100_000, 1), "200000000 tasks"),
    ],
)
def test_what_cannot_be_played_is_told(arguments: tuple[str, int, int, int], says: str) -> None:
    kind, stages, microbatches, interleave = arguments
    with pytest.raises(SpecError, match=re.escape(says)):
        play(kind, stages, microbatches, interleave=interleave)  # type: ignore[arg-type]


def test_text_golden() -> None:
    assert draw_text(play("1f1b", 2, 3)).splitlines() == [
        "1f1b: 2 stages, 3 micro-batches, bubble 25.0%, 12 units of time; right: time waiting, micro-batches in memory",
        "stage 0  0- 1- .  .  0==== 2- 1==== .  2====    25.0%  2",
        "stage 1  .  0- 0==== 1- 1==== 2- 2==== .  .     25.0%  1",
    ]


@given(timelines(), st.integers(40, 160))
def test_text_keeps_to_its_width_and_shows_every_stage(line: Timeline, width: int) -> None:
    rows = draw_text(line, width=width).splitlines()[1:]
    assert len(rows) == line.stages
    assert all(len(row) <= max(width, 60) for row in rows)


@given(timelines())
def test_svg_has_a_box_for_every_task_in_its_place(line: Timeline) -> None:
    root = ET.fromstring(draw_svg([line], "a pipeline"))
    boxes = [element for element in root.iter("{http://www.w3.org/2000/svg}rect") if len(element)]
    tasks = [task for row in line.tasks for task in row]
    assert len(boxes) == len(tasks)
    scale = 720 / float(line.end)
    for box, task in zip(boxes, tasks, strict=True):
        assert float(box.attrib["x"]) == pytest.approx(76 + float(task.start) * scale, abs=0.06)
