"""Random schedules that fulfil a contract: runs of chunks travel along random trees at random times.

A reducing collective gathers each run along a random in-tree to a hub, and hands the result out along a random tree;
any other hands the source's run out. A transfer may stop over in scratch, whose places are taken again as soon as they
have been read, also within a step. Rows of a step are shuffled, channels are random. Such schedules have data hazards
of every kind, several reductions into one chunk in a step, and scratch that holds chunks of different numbers.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import reject
from hypothesis import strategies as st

from atoll.errors import ScheduleError
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import COLLECTIVES, Extent
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.schedule.table import Schedule

Words = npt.NDArray[np.uint64]


class Transfer(NamedTuple):
    """A run of chunks from place to place, once all of ``after`` (transfer numbers) are over."""

    src: int
    dst: int
    src_chunk: int | None  # None: where the transfer before it stopped over
    dst_chunk: int | None  # None: somewhere in scratch
    num_chunks: int
    reduces: bool
    after: frozenset[int]


def mix(first: Words, second: Words) -> Words:
    """An operation that neither commutes nor associates, element by element: any wrong order shows."""
    mixed: Words = first * np.uint64(6364136223846793005) ^ (
        second * np.uint64(2862933555777941757) + np.uint64(3037000493)
    )
    return mixed


def random_inputs(schedule: Schedule, sizes: npt.NDArray[np.int64], rng: random.Random) -> list[Words]:
    """Inputs of a vector whose chunks have ``sizes``, every element different."""
    terms = schedule.header.contract
    return [
        np.array([rng.getrandbits(64) for _ in range(int(sizes[terms.input_chunks(rank)].sum()))], dtype=np.uint64)
        for rank in range(terms.world_size)
    ]


def random_schedule(rng: random.Random, collective: str, world_size: int) -> Schedule:
    """A schedule that fulfils its contract, though its steps may not make progress."""
    known = COLLECTIVES[collective]
    root = rng.randrange(world_size) if known.rooted else None
    per_block = rng.randint(1, 3) if known.blocked else rng.randint(1, 5)
    chunks = per_block * (world_size if known.blocked else 1)
    builder = ScheduleBuilder(
        collective, world_size, chunks, name=f"random {collective}", root=root, scratch_chunks=rng.randint(per_block, 6)
    )
    transfers: list[Transfer] = []
    detour = rng.choice((0.0, 0.5, 0.9))

    def add(src: int, dst: int, src_chunk: int, dst_chunk: int, count: int, reduces: bool, after: set[int]) -> int:
        if rng.random() < detour:
            transfers.append(Transfer(src, dst, src_chunk, None, count, False, frozenset(after)))
            transfers.append(
                Transfer(dst, dst, None, dst_chunk, count, reduces, frozenset(after | {len(transfers) - 1}))
            )  # fmt: skip
        else:
            transfers.append(Transfer(src, dst, src_chunk, dst_chunk, count, reduces, frozenset(after)))
        return len(transfers) - 1

    for start, count in _runs(rng, chunks, per_block):
        block = start // per_block
        if collective == "all_to_all":
            for source in range(world_size):
                add(source, block, start, builder.output + source * per_block + start % per_block, count, False, set())
            continue
        if known.reduces:
            hub = rng.randrange(world_size)
            inner = rng.sample(range(world_size), world_size)
            inner.remove(hub)
            children: dict[int, set[int]] = {rank: set() for rank in range(world_size)}
            while inner:  # leaves last in, first out: a parent sends once its children have sent
                rank = inner.pop()
                parent = rng.choice([hub, *inner])
                children[parent].add(add(rank, parent, start, start, count, True, children[rank]))
            holders = {hub: children[hub]}
        elif known.input is Extent.BLOCK:
            holders = {block: set()}
        else:
            holders = {root or 0: set()}
        wanted = {Extent.ALL: range(world_size), Extent.BLOCK: (block,), Extent.ROOT_ALL: (root or 0,)}[known.output]
        relays = rng.sample(range(world_size), rng.randint(0, world_size - 1)) if rng.random() < 0.3 else []
        for rank in rng.sample(sorted({*wanted, *relays}), len({*wanted, *relays})):
            if rank not in holders:
                source = rng.choice(sorted(holders))
                holders[rank] = {add(source, rank, start, start, count, False, holders[source])}
    _play(rng, builder, transfers, rng.choice((0.3, 0.7, 1.0)))
    return builder.build()


def _runs(rng: random.Random, chunks: int, per_block: int) -> list[tuple[int, int]]:
    """All chunk numbers as runs within blocks, shuffled."""
    runs, start = [], 0
    while start < chunks:
        count = rng.randint(1, per_block - start % per_block)
        runs.append((start, count))
        start += count
    rng.shuffle(runs)
    return runs


def _play(rng: random.Random, builder: ScheduleBuilder, transfers: list[Transfer], eagerness: float) -> None:
    """Add rows, step by step, of transfers whose predecessors ended in an earlier step."""
    num_scratch = builder._memory_chunks - builder.scratch
    free = [[True] * num_scratch for _ in range(builder.contract.world_size)]
    stop: dict[int, int] = {}
    over: set[int] = set()
    step = 0
    while len(over) < len(transfers):
        ready = [number for number, t in enumerate(transfers) if number not in over and t.after <= over]
        rng.shuffle(ready)
        now: list[tuple[int, int, int]] = []
        # Stop-overs end before others begin: then their places are free again within the step.
        for number in sorted(ready, key=lambda number: transfers[number].src_chunk is not None and rng.random() < 0.8):
            transfer = transfers[number]
            if rng.random() > eagerness:
                continue
            source, target = transfer.src_chunk, transfer.dst_chunk
            if source is None:
                source = stop[number - 1]
                begin = source - builder.scratch
                free[transfer.src][begin : begin + transfer.num_chunks] = [True] * transfer.num_chunks
            if target is None:
                begins = [
                    begin for begin in range(num_scratch - transfer.num_chunks + 1)
                    if all(free[transfer.dst][begin : begin + transfer.num_chunks])
                ]  # fmt: skip
                if not begins:
                    continue
                begin = rng.choice(begins)
                free[transfer.dst][begin : begin + transfer.num_chunks] = [False] * transfer.num_chunks
                target = stop[number] = builder.scratch + begin
            now.append((number, source, target))
        rng.shuffle(now)
        for number, source, target in now:
            transfer = transfers[number]
            write = builder.reduce if transfer.reduces else builder.copy
            write(
                step, transfer.src, transfer.dst, source, target, num_chunks=transfer.num_chunks,
                channel=rng.choice((0, 0, 1)),
            )  # fmt: skip
            over.add(number)
        step += 1


def exchanges(rng: random.Random, dimensions: int) -> Schedule:
    """All-reduce by exchanging everything, in place, with one partner after the other, in random order of rows."""
    world_size = 1 << dimensions
    chunks = rng.randint(1, 4)
    builder = ScheduleBuilder("all_reduce", world_size, chunks, name="random exchange")
    for step, bit in enumerate(rng.sample(range(dimensions), dimensions)):
        runs = _runs(rng, chunks, chunks)
        shuffles = rng.random() < 0.2
        for rank in range(world_size):
            for start, count in rng.sample(runs, len(runs)) if shuffles else runs:
                builder.reduce(step, rank, rank ^ (1 << bit), start, num_chunks=count)
    return builder.build()


@st.composite
def schedules(draw: st.DrawFn, max_world: int = 5, collectives: tuple[str, ...] = tuple(COLLECTIVES)) -> Schedule:
    """Schedules that move the right data, in place or out of place; some would not make progress."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    if "all_reduce" in collectives and draw(st.integers(0, 7)) == 0:
        schedule = exchanges(rng, draw(st.integers(0, 2)))
    else:
        schedule = random_schedule(rng, draw(st.sampled_from(collectives)), draw(st.integers(1, max_world)))
    return out_of_place(schedule) if draw(st.booleans()) else schedule


@st.composite
def proven_schedules(
    draw: st.DrawFn, max_world: int = 5, collectives: tuple[str, ...] = tuple(COLLECTIVES)
) -> ProvenSchedule:
    """Those of ``schedules`` that make progress."""
    schedule = draw(schedules(max_world, collectives))
    try:
        return prove(schedule)
    except ScheduleError as error:
        if "wait for each other" not in error.what:
            raise
        reject()
