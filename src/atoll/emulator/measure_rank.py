"""One rank of ``measure``: runs the cases, and rank 0 says each result as one line of JSON."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from atoll.emulator.measure import Case, Job, Timing
from atoll.runtime.communicator import Communicator
from atoll.runtime.rank_program import run_rank, say
from atoll.runtime.start import init

LARGEST = 10
"""Of the whole numbers that are summed: exact in any order in float32."""


def main(job_json: str) -> None:
    """Measure ``job_json`` in the world that this process was launched in."""
    job = msgspec.json.decode(job_json, type=Job)
    with init(timeout=job.timeout_s) as world:
        groups: dict[tuple[tuple[int, ...], ...], Communicator | None] = {}
        for number, case in enumerate(job.cases):
            if case.groups not in groups:
                groups[case.groups] = _group_of(world, case)
            timing = _measure(world, groups[case.groups], case, number)
            say(world, timing)
        world.barrier()


def _group_of(world: Communicator, case: Case) -> Communicator | None:
    """This rank's group; ``None`` where it is in none."""
    mine = next((at for at, group in enumerate(case.groups) if world.rank in group), None)
    return world.split(mine, 0 if mine is None else case.groups[mine].index(world.rank))


def _measure(world: Communicator, group: Communicator | None, case: Case, number: int) -> Timing:
    count = case.size_bytes // 4
    schedule = case.schedule()
    values = np.arange(count, dtype=np.int64)
    times, wrong = [], 0
    for repetition in range(case.repetitions + 1):  # the first one makes connections, and is checked
        data = ((values * 7 + world.rank * 13) % (LARGEST + 1)).astype(np.float32)
        world.barrier()
        began = time.perf_counter()
        if group is not None:
            group.all_reduce(data, out=data, algorithm=schedule)
        ended = time.perf_counter()
        spans = world.all_gather(np.array([began, ended])).reshape(world.world_size, 2)
        if repetition:
            times.append(float(spans[:, 1].max() - spans[:, 0].max()))
        elif group is not None:
            members = next(members for members in case.groups if world.rank in members)
            total = sum((values * 7 + member * 13) % (LARGEST + 1) for member in members)
            wrong = int(np.count_nonzero(data != total))
    everyone = int(world.all_reduce(np.array([wrong], dtype=np.int64))[0])
    return Timing(number, tuple(times), everyone)


if __name__ == "__main__":
    run_rank(main)
