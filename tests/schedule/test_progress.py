"""One staging segment per connection is enough for every proven schedule, whatever its size.

The oracle plays the rows of one step byte by byte, straight from the definition: a lane reads at most one segment
ahead of what it has applied, a byte is applied once every other row that still reads it has read it. It is
monotone (nothing that may happen is ever forbidden later), so that one order of events getting stuck means all do.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import ScheduleError
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.progress import check_progress
from atoll.schedule.prove import prove
from atoll.schedule.table import REPLACE, Header, Schedule


class Move(NamedTuple):
    """One row of a step."""

    src: int
    dst: int
    src_chunk: int
    dst_chunk: int
    num_chunks: int = 1
    operand_chunk: int = REPLACE
    channel: int = 0


class Entry(NamedTuple):
    """One chunk of a row."""

    src: int
    dst: int
    source: tuple[int, int]
    target: tuple[int, int]
    operand: tuple[int, int] | None  # an operand other than the target
    reduces: bool
    channel: int


MEMORY = 6


def schedule_of(moves: list[Move], world_size: int) -> Schedule:
    header = Header(
        "barrier", world_size, 1, None, "step", (0,) * world_size, (0,) * world_size, (MEMORY,) * world_size
    )
    columns = {
        "step": [0] * len(moves),
        **{name: [getattr(move, name) for move in moves] for name in Move._fields},
    }
    return Schedule(header, columns)


def is_refused(moves: list[Move], world_size: int) -> bool:
    schedule = schedule_of(moves, world_size)
    (_, rows), *_ = schedule.steps()
    try:
        check_progress(schedule, 0, rows)
    except ScheduleError as error:
        return "wait for each other" in error.what
    return False


def entries_of(moves: list[Move]) -> list[Entry]:
    entries = []
    for move in moves:
        for index in range(move.num_chunks):
            reduces = move.operand_chunk != REPLACE
            foreign = reduces and move.operand_chunk != move.dst_chunk
            entries.append(
                Entry(
                    move.src, move.dst, (move.src, move.src_chunk + index), (move.dst, move.dst_chunk + index),
                    (move.dst, move.operand_chunk + index) if foreign else None, reduces, move.channel,
                )
            )  # fmt: skip
    return entries


def gets_stuck(moves: list[Move], sizes: list[int], segment: int, rng: random.Random) -> bool:
    """Whether the step, entry e moving ``sizes[e]`` bytes, ends with bytes that can never be applied."""
    entries = entries_of(moves)
    lanes: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for number, entry in enumerate(entries):
        lanes[entry.src, entry.dst, 0 if entry.src == entry.dst else entry.channel].append(number)
    read, applied = [0] * len(entries), [0] * len(entries)
    source_readers: dict[tuple[int, int], list[int]] = defaultdict(list)
    operand_readers: dict[tuple[int, int], list[int]] = defaultdict(list)
    writers: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, entry in enumerate(entries):
        source_readers[entry.source].append(number)
        writers[entry.target].append(number)
        if entry.operand is not None:
            operand_readers[entry.operand].append(number)
    for queue in writers.values():
        queue.sort(key=lambda number: (entries[number].src, number))

    def may_apply(number: int) -> bool:
        entry, byte = entries[number], applied[number] + 1
        queue = writers[entry.target]
        return (
            all(read[other] >= min(byte, sizes[other]) for other in source_readers[entry.target] if other != number)
            and all(
                applied[other] >= min(byte, sizes[other]) for other in operand_readers[entry.target] if other != number
            )
            and all(applied[other] >= min(byte, sizes[other]) for other in queue[: queue.index(number)])
        )

    def advance(lane: tuple[int, int, int]) -> bool:
        numbers = lanes[lane]
        pending = next((number for number in numbers if applied[number] < sizes[number]), None)
        if pending is None:
            return False
        if lane[0] == lane[1]:
            if not may_apply(pending):
                return False
            read[pending] += 1
            applied[pending] += 1
            return True
        staged = sum(read[number] - applied[number] for number in numbers)
        unread = next((number for number in numbers if read[number] < sizes[number]), None)
        choices = []
        if unread is not None and staged < segment:
            choices.append("read")
        if read[pending] > applied[pending] and may_apply(pending):
            choices.append("apply")
        if not choices:
            return False
        if rng.choice(choices) == "read":
            assert unread is not None
            read[unread] += 1
        else:
            applied[pending] += 1
        return True

    alive = list(lanes)
    while alive:
        rng.shuffle(alive)
        if not any(advance(lane) for lane in alive):
            return any(applied[number] < sizes[number] for number in range(len(entries)))
    return False


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[Move], int]:
    """Moves of one step whose writes do not conflict."""
    world_size = draw(st.integers(1, 4))
    ranks = st.integers(0, world_size - 1)
    moves: list[Move] = []
    writers: dict[tuple[int, int], list[Move]] = defaultdict(list)
    for _ in range(draw(st.integers(1, 9))):
        num_chunks = draw(st.integers(1, 3))
        chunk = st.integers(0, MEMORY - num_chunks)
        dst_chunk = draw(chunk)
        operand = draw(st.one_of(st.just(REPLACE), st.just(dst_chunk), chunk))
        move = Move(draw(ranks), draw(ranks), draw(chunk), dst_chunk, num_chunks, operand, draw(st.integers(0, 1)))
        places = [(move.dst, dst_chunk + index) for index in range(num_chunks)]
        if any(writers[place] for place in places) and (
            move.operand_chunk != dst_chunk
            or any(other.operand_chunk != other.dst_chunk for place in places for other in writers[place])
        ):
            continue
        for place in places:
            writers[place].append(move)
        moves.append(move)
    return moves, world_size


@settings(max_examples=400, deadline=None)
@given(steps(), st.data())
def test_what_is_accepted_never_gets_stuck(case: tuple[list[Move], int], data: st.DataObject) -> None:
    moves, world_size = case
    if is_refused(moves, world_size):
        return
    count = len(entries_of(moves))
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    segment = data.draw(st.integers(1, 7))
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    assert not gets_stuck(moves, sizes, segment, rng)


@settings(max_examples=400, deadline=None)
@given(steps(), st.integers(0, 2**32))
def test_what_is_refused_gets_stuck_with_small_segments(case: tuple[list[Move], int], seed: int) -> None:
    moves, world_size = case
    # Each of the rows that move side by side may be a segment ahead of the next: long chunks tell that from done.
    sizes = [len(entries_of(moves)) + 2] * len(entries_of(moves))
    assert is_refused(moves, world_size) == gets_stuck(moves, sizes, 1, random.Random(seed))


SHIFTED = [
    # Ranks 0 and 1 exchange chunks 0-1, rank 0 in rising order, rank 1 in falling order.
    Move(0, 1, 0, 0), Move(0, 1, 1, 1), Move(1, 0, 1, 1), Move(1, 0, 0, 0),
]  # fmt: skip
SAME_ORDER = [Move(0, 1, 0, 0), Move(0, 1, 1, 1), Move(1, 0, 0, 0), Move(1, 0, 1, 1)]
BEHIND_HALF_A_CHUNK = [
    # With a segment as large as a chunk this gets through. With a smaller one rank 2's first chunk covers only as much
    # of rank 0's chunk 0 as rank 0 has sent, and rank 2's second chunk, which rank 1 waits for, is never sent.
    Move(0, 1, 0, 0),
    Move(1, 2, 1, 0), Move(1, 2, 0, 4),
    Move(2, 0, 1, 0), Move(2, 0, 0, 5),
]  # fmt: skip


@pytest.mark.parametrize(
    ("moves", "refused"),
    [
        pytest.param(SAME_ORDER, False, id="exchange in the same order"),
        pytest.param(SHIFTED, True, id="exchange in opposite orders"),
        pytest.param([Move(0, 1, 0, 0, 4), Move(1, 0, 0, 0, 4)], False, id="exchange of runs"),
        pytest.param([Move(0, 1, 0, 1, 3), Move(1, 0, 1, 0, 3)], False, id="exchange of runs that lie elsewhere"),
        pytest.param([Move(0, 1, 0, 1, 3), Move(1, 0, 0, 0, 3)], True, id="exchange of runs, one chunk off"),
        pytest.param([Move(0, 1, 0, 0, 3), Move(1, 0, 1, 1, 2), Move(1, 0, 0, 0)], True, id="shifted runs"),
        pytest.param(
            [Move(0, 1, 0, 0), Move(1, 2, 0, 0), Move(2, 3, 0, 0), Move(3, 0, 0, 0)], False, id="rotation of four ranks"
        ),
        pytest.param(
            [Move(0, 1, 0, 0, operand_chunk=0), Move(1, 0, 0, 0, operand_chunk=0)], False, id="recursive doubling"
        ),
        pytest.param(
            [Move(0, 1, 0, 0, 6, 0), Move(1, 0, 0, 0, 6, 0), Move(2, 3, 0, 0, 6, 0), Move(3, 2, 0, 0, 6, 0)], False,
            id="recursive doubling of runs",
        ),
        pytest.param(
            [Move(0, 1, 3, 3, 3, 3), Move(1, 0, 0, 0, 3, 0)], False, id="recursive halving: what is sent is kept"
        ),
        pytest.param([Move(0, 1, 0, 0), Move(0, 1, 1, 1, channel=1), Move(1, 0, 1, 1), Move(1, 0, 0, 0, channel=1)],
                     False, id="opposite orders on different channels"),
        pytest.param([Move(0, 0, 0, 1)], False, id="local move"),
        pytest.param([Move(0, 0, 0, 0)], False, id="local move onto itself"),
        pytest.param([Move(0, 0, 0, 1), Move(0, 0, 1, 0)], True, id="local swap"),
        pytest.param([Move(0, 0, 1, 0, 3)], False, id="local run moved down"),
        pytest.param([Move(0, 0, 0, 1, 3)], True, id="local run moved up over itself"),
        pytest.param([Move(0, 0, 1, 2), Move(0, 0, 0, 1)], False, id="local moves, the later overwrites"),
        pytest.param([Move(0, 0, 0, 1), Move(0, 0, 1, 2)], True, id="local moves, the earlier overwrites"),
        pytest.param(
            [Move(1, 0, 0, 0, operand_chunk=1), Move(2, 0, 0, 1, operand_chunk=0)], True,
            id="two results that are each other's operands",
        ),
        pytest.param(
            [Move(1, 0, 0, 1, 2, operand_chunk=0)], True, id="run reduced over its own later operand",
        ),
        pytest.param(
            [Move(1, 0, 0, 0, 2, operand_chunk=1)], False, id="run reduced over its own earlier operand",
        ),
        pytest.param(BEHIND_HALF_A_CHUNK, True, id="gets through with large segments only"),
    ],
)  # fmt: skip
def test_sensible_steps_pass_and_circles_do_not(moves: list[Move], refused: bool) -> None:
    assert is_refused(moves, 4) == refused
    sizes = [30] * len(entries_of(moves))
    assert gets_stuck(moves, sizes, 1, random.Random(0)) == refused


def test_a_large_segment_would_have_hidden_it() -> None:
    """Why the check cannot be played with whole chunks of staging."""
    sizes = [4] * len(entries_of(BEHIND_HALF_A_CHUNK))
    assert not gets_stuck(BEHIND_HALF_A_CHUNK, sizes, 4, random.Random(0))
    assert gets_stuck(BEHIND_HALF_A_CHUNK, sizes, 2, random.Random(0))


def test_the_error_says_where_and_what_to_do() -> None:
    schedule = schedule_of(SHIFTED, 2)
    (_, rows), *_ = schedule.steps()
    with pytest.raises(ScheduleError) as caught:
        check_progress(schedule, 7, rows)
    error = caught.value
    assert (error.schedule, error.step, error.rank, error.chunk) == ("step", 7, 1, 0)
    assert error.expected.startswith("every exchange to get through with one staging segment a connection")
    assert error.got == "row 0 overwriting what another row of the step has still to read"
    assert "same order" in error.hint


def test_prove_asks() -> None:
    """A barrier whose data is right but whose steps exchange two chunks in opposite orders is not proven."""
    builder = ScheduleBuilder("barrier", 2, chunks=2, name="opposite")
    builder.reduce(0, [0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0])
    with pytest.raises(ScheduleError, match="wait for each other"):
        prove(builder.build())
    builder = ScheduleBuilder("barrier", 2, chunks=2, name="same")
    builder.reduce(0, [0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1])
    prove(builder.build())


@pytest.mark.parametrize("world_size", [2, 4, 8, 16])
def test_recursive_doubling_in_place_is_never_refused(world_size: int) -> None:
    """All chunks to all partners in place, which is one big exchange a step; also 37 chunks as one run."""
    for chunks in (1, 5, 37):
        builder = ScheduleBuilder("all_reduce", world_size, chunks, name="doubling")
        rank = np.arange(world_size)
        for step in itertools.count():
            if 1 << step >= world_size:
                break
            builder.reduce(step, rank, rank ^ (1 << step), 0, num_chunks=chunks)
        prove(builder.build())
