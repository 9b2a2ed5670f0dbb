"""Buckets: the sums are those of the arrays one by one, they start in one order, and they move before anybody waits."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks

from atoll.errors import SpecError
from atoll.runtime.buckets import Buckets, Overlap, fill
from atoll.runtime.communicator import Communicator

DEADLINE_S = 20.0
F32, F64, I64 = np.dtype("float32"), np.dtype("float64"), np.dtype("int64")


@given(st.lists(st.tuples(st.integers(0, 100), st.sampled_from([F32, F64])), max_size=30), st.integers(1, 200),
       st.integers(1, 200))  # fmt: skip
def test_buckets_hold_consecutive_arrays_of_a_dtype_up_to_the_capacity(
    arrays: list[tuple[int, np.dtype[Any]]], capacity: int, first: int
) -> None:
    buckets = fill(arrays, capacity, first)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(arrays)))
    assert [bucket[-1] for bucket in buckets] == sorted(bucket[-1] for bucket in buckets)
    opened = sorted(buckets, key=lambda bucket: bucket[0])
    for dtype in (F32, F64):
        of_dtype = [bucket for bucket in opened if arrays[bucket[0]][1] == dtype]
        together = [index for bucket in of_dtype for index in bucket]
        assert together == [index for index, (_, other) in enumerate(arrays) if other == dtype]
        filled = [sum(arrays[index][0] for index in bucket) for bucket in of_dtype]
        room = [first if bucket is opened[0] else capacity for bucket in of_dtype]
        assert all(held <= most or len(bucket) == 1 for held, most, bucket in zip(filled, room, of_dtype, strict=True))
        for held, most, following in zip(filled, room, of_dtype[1:], strict=False):
            assert held + arrays[following[0]][0] > most


def gradients(rank: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng([seed, rank])
    shapes = [(300,), (40, 50), (), (7, 3, 2), (0,), (5000,), (64, 64), (9,)]
    kinds = [F32, F32, F64, F32, F32, F64, F32, I64]
    return [
        (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape) * (1000 if kind is I64 else 1)).astype(kind)
        for shape, kind in zip(shapes, kinds, strict=True)
    ]


def steps_of_training(comm: Communicator) -> dict[str, Any]:
    like = gradients(comm.rank)
    found: dict[str, Any] = {}
    buckets = Buckets(comm, like, capacity_bytes=16 << 10, first_capacity_bytes=2000, deterministic=True)
    found["count"] = len(buckets)
    for step in range(3):
        mine = gradients(comm.rank, step)
        order = np.random.default_rng([step, comm.rank, 99]).permutation(len(mine)).tolist()  # each rank in its own
        for index in order:
            if index % 2:
                buckets.put(index, mine[index])
            else:
                buckets.arrays[index][...] = mine[index]
                buckets.ready(index)
        sums = [array.copy() for array in buckets.wait()]
        alone = [comm.all_reduce(array, deterministic=True) for array in mine]
        found[f"step {step}"] = all(
            ours.tobytes() == theirs.tobytes() and ours.shape == theirs.shape
            for ours, theirs in zip(sums, alone, strict=True)
        )
    return found


@pytest.mark.parametrize("world_size", [1, 3])
def test_the_sums_have_the_bits_of_the_arrays_one_by_one(world_size: int) -> None:
    for found in run_ranks(world_size, steps_of_training):
        assert found == {"count": 6, "step 0": True, "step 1": True, "step 2": True}


LENGTH = 200_000


def overlapping(comm: Communicator) -> tuple[bool, Overlap | None, list[float], int]:
    """Eight buckets that nobody waits for: they are reduced all the same, beside what NumPy computes."""
    like = [np.empty(LENGTH, np.float32)] * 8
    buckets = Buckets(comm, like, op="avg", capacity_bytes=4 * LENGTH, first_capacity_bytes=4 * LENGTH)
    before = sum(count.payload_sent for count in comm.traffic().values())
    for index in range(len(like)):
        buckets.put(index, np.full(LENGTH, comm.rank + index, np.float32))
    until = time.monotonic() + DEADLINE_S
    matrix = np.ones((64, 64))
    while not buckets.done() and time.monotonic() < until:
        matrix @ matrix
    done = buckets.done()
    averages = [float(array[-1]) for array in buckets.wait()]
    sent = sum(count.payload_sent for count in comm.traffic().values()) - before
    return done, buckets.overlap, averages, sent


def test_bytes_move_while_numpy_computes() -> None:
    world_size = 2
    for done, overlap, averages, sent in run_ranks(world_size, overlapping):
        assert done
        assert averages == [index + 0.5 for index in range(8)]
        assert overlap is not None
        assert overlap.num_buckets == 8
        assert overlap.fraction == 1.0
        assert overlap.moved_bytes >= 8 * 4 * LENGTH  # what is sent, and what comes
        assert sent >= 8 * 4 * LENGTH // 2


def mistakes(comm: Communicator) -> list[str]:
    said = []
    buckets = Buckets(comm, [np.zeros(3), np.zeros(4), np.zeros(5)])
    buckets.ready(0)
    for call in (buckets.wait, lambda: buckets.ready(0), lambda: buckets.put(3, 0.0), lambda: buckets.ready(-1)):
        try:
            call()
        except SpecError as error:
            said.append(str(error))
    buckets.put(1, np.ones(4))
    buckets.put(2, np.ones(5))
    said.append(repr(buckets))
    buckets.wait()
    said.append(repr(buckets))
    try:
        Buckets(comm, [np.zeros(1)], capacity_bytes=0)
    except SpecError as error:
        said.append(str(error))
    return said


def test_mistakes_are_named_and_leave_the_step_as_it_was() -> None:
    (said,) = run_ranks(1, mistakes)
    absent, twice, beyond, below, full, empty, capacity = said
    assert "2 of 3 arrays are not ready: 1, 2" in absent
    assert "array 0 was ready before" in twice
    assert "expected an array from 0 to 2, got 3" in beyond
    assert "got -1" in below
    assert full == "<Buckets 3 arrays of 96 B in 1 buckets, 3 ready, 1 started>"
    assert empty == "<Buckets 3 arrays of 96 B in 1 buckets, 0 ready, 0 started>"
    assert "at least 1 byte, got 0" in capacity


def test_nothing_to_reduce_is_a_step_too() -> None:
    assert run_ranks(2, nothing) == [(0, 1.0)] * 2


def nothing(comm: Communicator) -> tuple[int, float]:
    buckets = Buckets(comm, [])
    buckets.wait()
    assert buckets.overlap is not None
    return len(buckets), buckets.overlap.fraction
