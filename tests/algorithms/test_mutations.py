"""Break every row of every small schedule: what the proof still accepts must really be right.

A row is deleted, doubled, sent to each other rank, taken from each other rank, or moved by one chunk at either end. The
proof refuses the mutant, or the reference executor, which knows no proof, shows that it does what the original does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from algorithm_tables import ENTRIES, proven, roots

from atoll.errors import ScheduleError
from atoll.schedule.interpret import interpret
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.schedule.table import COLUMNS, REPLACE, Schedule


def mutants(schedule: Schedule) -> Iterator[tuple[str, Schedule]]:
    rows = [list(row) for row in schedule.rows()]
    place = {name: index for index, name in enumerate(COLUMNS)}

    def table(changed: list[list[int]]) -> Schedule:
        columns = np.array(changed, dtype=np.int64).reshape(-1, len(COLUMNS))
        return Schedule(schedule.header, {name: columns[:, index] for name, index in place.items()})

    for at, row in enumerate(rows):
        yield f"row {at} deleted", table(rows[:at] + rows[at + 1 :])
        yield f"row {at} twice", table([*rows[: at + 1], row, *rows[at + 1 :]])
        for column in ("src", "dst"):
            for rank in range(schedule.world_size):
                if rank != row[place[column]]:
                    changed = row.copy()
                    changed[place[column]] = rank
                    yield f"row {at} with {column} {rank}", table([*rows[:at], changed, *rows[at + 1 :]])
        for column in ("src_chunk", "dst_chunk"):
            for shift in (-1, 1):
                changed = row.copy()
                changed[place[column]] += shift
                if column == "dst_chunk" and row[place["operand_chunk"]] != REPLACE:
                    changed[place["operand_chunk"]] += shift
                yield f"row {at} with {column} {shift:+}", table([*rows[:at], changed, *rows[at + 1 :]])


def outputs(schedule: ProvenSchedule) -> list[list[int]]:
    """All ranks' outputs for bits that no two (rank, element) share, so that nothing can stand in for another."""
    terms = schedule.contract
    inputs = []
    for rank in range(terms.world_size):
        own = len(terms.input_chunks(rank)) * 2
        start = int(terms.input_chunks(rank)[0]) * 2 if own else 0
        element = np.arange(start, start + own, dtype=np.int64)
        inputs.append((np.int64(1) << rank) + (element << 20))
    # Summed, a missing or a doubled contribution shows; a barrier asks only that everyone is in.
    operation = np.add if terms.collective.exactly_once else np.bitwise_or
    return [output.tolist() for output in interpret(schedule, inputs, operation)]


@pytest.mark.parametrize(("collective", "name"), ENTRIES)
def test_what_the_proof_accepts_is_right(collective: str, name: str) -> None:
    accepted = refused = 0
    for world_size in (2, 3, 4):
        for root in roots(collective, world_size)[-1:]:
            original = proven(collective, name, world_size, root)
            want = outputs(original)
            for what, mutant in mutants(original.schedule):
                try:
                    still = prove(mutant)
                except ScheduleError:
                    refused += 1
                    continue
                accepted += 1
                assert outputs(still) == want, f"{world_size} ranks, {what}: proven, and wrong"
    assert refused > accepted, f"{accepted} mutants accepted, only {refused} refused"
