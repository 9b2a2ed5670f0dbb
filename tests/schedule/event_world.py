"""A world in miniature that knows only a proven schedule and edges: lanes, one staging segment, elements in any order.

Independent of ``interpret`` and of the runtime: every element that a row reads or applies is one event. An event may
happen once the edges and the order of its lane allow it; which of the possible ones happens is up to ``random``. A
lane has a priority, so that some run far ahead while others starve.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import NamedTuple

import numpy as np
from random_schedules import Words, mix

from atoll.schedule.dependencies import APPLY, READ, Dependencies
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import ProvenSchedule
from atoll.schedule.table import REPLACE


class Stuck(Exception):
    """No event is possible, though not all have happened."""


class Guard(NamedTuple):
    """A side of a chunk of a row (``entry``), element by element."""

    entry: int
    side: int


def guards_of(proven: ProvenSchedule, edges: Dependencies, skip: int | None = None) -> dict[Guard, list[Guard]]:
    """What each side of each entry waits for, the edge numbered ``skip`` left out."""
    waits: dict[Guard, list[Guard]] = defaultdict(list)
    for edge in range(len(edges)):
        if edge == skip:
            continue
        before = int(proven.row_start[edges.before[edge]] + edges.before_index[edge])
        after = int(proven.row_start[edges.after[edge]] + edges.after_index[edge])
        for index in range(int(edges.num_chunks[edge])):
            waits[Guard(after + index, int(edges.after_side[edge]))].append(
                Guard(before + index, int(edges.before_side[edge]))
            )
    return waits


def execute(
    proven: ProvenSchedule,
    waits: dict[Guard, list[Guard]],
    inputs: list[Words],
    length: int,
    segment: int,
    rng: random.Random,
    priorities: dict[tuple[int, int, int], float] | None = None,
) -> list[Words]:
    """Every rank's output after all events in some order that respects ``waits``; raises ``Stuck``.

    Fixed ``priorities`` by lane (the higher, the sooner) replace the random ones.
    """
    terms, header = proven.contract, proven.header
    sizes = chunk_sizes(terms, length)
    memory = [[[0] * int(sizes.max()) for _ in range(count)] for count in header.memory_chunks]
    for rank in range(terms.world_size):
        at = 0
        for place, number in enumerate(terms.input_chunks(rank).tolist()):
            size = int(sizes[number])
            memory[rank][header.input_offset[rank] + place][:size] = inputs[rank][at : at + size].tolist()
            at += size

    entries: list[tuple[int, int, int, int, int | None]] = []  # src, dst, source, target, operand
    lanes: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for row in proven.schedule.rows():
        for index in range(row.num_chunks):
            operand = None if row.operand_chunk == REPLACE else row.operand_chunk + index
            lanes[row.src, row.dst, 0 if row.src == row.dst else row.channel].append(len(entries))
            entries.append((row.src, row.dst, row.src_chunk + index, row.dst_chunk + index, operand))
    size_of = sizes[proven.chunk_number].tolist()
    marks = ([0] * len(entries), [0] * len(entries))
    staged: dict[tuple[int, int, int], deque[int]] = {lane: deque() for lane in lanes}
    to_read = {lane: deque(numbers) for lane, numbers in lanes.items()}
    to_apply = {lane: deque(numbers) for lane, numbers in lanes.items()}

    def head(queue: deque[int], side: int) -> int | None:
        while queue and marks[side][queue[0]] >= size_of[queue[0]]:
            queue.popleft()
        return queue[0] if queue else None

    def free(entry: int, side: int) -> bool:
        mark = marks[side][entry] + 1
        return all(
            marks[before.side][before.entry] >= min(mark, size_of[before.entry])
            for before in waits.get(Guard(entry, side), ())
        )

    def read(lane: tuple[int, int, int], entry: int) -> None:
        src, _, source, _, _ = entries[entry]
        staged[lane].append(memory[src][source][marks[READ][entry]])
        marks[READ][entry] += 1

    def apply(lane: tuple[int, int, int], entry: int) -> None:
        _, dst, _, target, operand = entries[entry]
        element = marks[APPLY][entry]
        received = staged[lane].popleft()
        if operand is not None:
            held = memory[dst][operand][element]
            pair = (received, held) if proven.received_first[entry] else (held, received)
            received = int(mix(*(np.array([value], dtype=np.uint64) for value in pair))[0])
        memory[dst][target][element] = received
        marks[APPLY][entry] += 1

    def advance(lane: tuple[int, int, int]) -> bool:
        local = lane[0] == lane[1]
        choices = ["apply", "read"]
        if priorities is None and rng.random() < 0.5:
            choices.reverse()
        for choice in choices:
            entry = head(to_read[lane], READ) if choice == "read" else head(to_apply[lane], APPLY)
            if entry is None:
                continue
            if local:
                if not (free(entry, READ) and free(entry, APPLY)):
                    return False
                read(lane, entry)
                apply(lane, entry)
                return True
            if choice == "read" and len(staged[lane]) < segment and free(entry, READ):
                read(lane, entry)
                return True
            if choice == "apply" and staged[lane] and free(entry, APPLY):
                apply(lane, entry)
                return True
        return False

    alive = list(lanes)
    order = dict(priorities) if priorities is not None else {lane: rng.random() for lane in lanes}
    while alive:
        if priorities is None and rng.random() < 0.05:
            order = {lane: rng.random() for lane in lanes}
        alive.sort(key=lambda lane: -order[lane])
        if not any(advance(lane) for lane in alive):
            alive = [lane for lane in alive if head(to_apply[lane], APPLY) is not None]
            if alive:
                raise Stuck(f"{proven!r}: {len(alive)} lanes are stuck, segment {segment}, length {length}")
    outputs = []
    for rank in range(terms.world_size):
        parts = [
            memory[rank][header.output_offset[rank] + place][: int(sizes[number])]
            for place, number in enumerate(terms.output_chunks(rank).tolist())
        ]
        outputs.append(np.array([value for part in parts for value in part], dtype=np.uint64))
    return outputs
