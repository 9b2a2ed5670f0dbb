"""Calls like earlier ones skip what was worked out before, and nothing else: the arrays are looked at each time."""

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from ranks import run_ranks

import atoll
from atoll.errors import SpecError
from atoll.runtime.arrays import as_input
from atoll.runtime.communicator import Communicator


def long_ways(comm: Communicator) -> list[int]:
    """How many of three equal calls of each collective were checked at length."""
    counts = []
    for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
        array = np.arange(12, dtype=np.float32)
        size = {"reduce_scatter": 12 // comm.world_size, "all_gather": 12 * comm.world_size}.get(name, 12)
        out = np.empty(size, np.float32)
        with patch("atoll.runtime.communicator.as_input", wraps=as_input) as checked:
            for _ in range(3):
                getattr(comm, name)(array, out=out)
        counts.append(checked.call_count)
    return counts


def test_only_the_first_of_equal_calls_is_checked_at_length() -> None:
    assert run_ranks(2, long_ways) == [[1, 1, 1, 1]] * 2


def other_arrays(comm: Communicator) -> None:
    """After a call with plain arrays, the same signature with arrays that ask for more."""
    world = comm.world_size
    memory = np.zeros(40, np.float32)
    plain, out = np.arange(16, dtype=np.float32), np.empty(16, np.float32)
    expected = plain * world
    for _ in range(2):
        assert comm.all_reduce(plain, out=out) is out
        assert (out == expected).all()
    for name in ("ring", "direct"):  # which read the input after they have written some of the output
        comm.all_reduce(plain, out=out, algorithm=name)
        for shift in (-4, 3, 6):
            memory[10:26] = plain
            comm.all_reduce(memory[10:26], out=memory[10 + shift : 26 + shift], algorithm=name)
            assert (memory[10 + shift : 26 + shift] == expected).all(), (name, shift)
    apart, into = np.repeat(plain, 2)[::2], np.zeros((16, 2), np.float32)[:, 1]
    comm.all_reduce(apart, out=into)  # not contiguous
    assert (into == expected).all()
    unaligned = np.frombuffer(bytearray(65), np.uint8)[1:].view(np.float32)
    unaligned[...] = plain
    comm.all_reduce(unaligned, out=out)
    assert (out == expected).all()
    swapped = comm.all_reduce(plain.astype(">f4"), out=np.empty(16, ">f4"))
    assert (swapped == expected).all()
    comm.all_reduce(plain.astype(np.int32), out=np.empty(16, np.int32))
    square = np.empty((4, 4), np.float32)
    comm.all_reduce(plain.reshape(4, 4), out=square)
    assert (square == expected.reshape(4, 4)).all()
    assert (comm.all_reduce(plain, "max", out=out) == plain).all()
    assert (comm.all_reduce(plain, "avg", out=out) == plain).all()
    comm.all_reduce(plain, out=out)
    out.flags.writeable = False
    with pytest.raises(SpecError, match="read-only"):
        comm.all_reduce(plain, out=out)
    with pytest.raises(SpecError, match="masked"):
        comm.all_reduce(np.ma.masked_array(plain), out=np.empty(16, np.float32))
    with pytest.raises(SpecError, match="expected dtype float32"):
        comm.all_reduce(plain, out=np.empty(16, np.int32))
    with pytest.raises(SpecError, match="expected 16 elements"):
        comm.all_reduce(plain, out=np.empty(15, np.float32))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_arrays_are_looked_at_each_time(world_size: int) -> None:
    run_ranks(world_size, other_arrays)


def remembered(comm: Communicator) -> tuple[int, list[bytes]]:
    """How many signatures are kept after many calls whose dtypes are equal but objects of their own."""
    results = []
    for _ in range(20):
        array = np.arange(5).astype(np.dtype("f4").newbyteorder())
        results.append(comm.all_reduce(array, out=np.empty(5, np.dtype("f4").newbyteorder())).tobytes())
    empty, out = np.empty(0), np.empty(0)
    for _ in range(3):
        comm.all_reduce(empty, out=out)
        comm.all_gather(empty, out=out)
    return len(comm._caller.seen), results


def test_a_dtype_made_anew_for_each_call_is_not_kept_each_time() -> None:
    for kept, results in run_ranks(2, remembered):
        assert kept <= 3
        assert results == [(2 * np.arange(5)).astype(">f4").tobytes()] * 20


def after_the_end(comm: Communicator) -> str:
    array, out = np.ones(3), np.empty(3)
    for _ in range(3):
        comm.all_reduce(array, out=out)
        comm.barrier()
    comm.close()
    messages = set()
    for again in (partial(comm.all_reduce, array, out=out), comm.barrier):
        with pytest.raises(SpecError) as error:
            again()
        messages.add(str(error.value))
    (message,) = messages
    return message


def test_a_closed_communicator_makes_no_call_again() -> None:
    assert run_ranks(2, after_the_end) == ["the communicator is closed"] * 2


@pytest.fixture
def alone() -> Iterator[Communicator]:
    with atoll.init() as comm:
        yield comm


def test_threads_with_communicators_of_their_own_take_turns(alone: Communicator) -> None:
    """Each call takes the wheel and leaves it without the lock: nobody may be left waiting for it."""
    comms = [alone.split(0) for _ in range(4)]
    sums: list[Any] = []

    def work(comm: Communicator) -> None:
        array, out = np.ones(5), np.empty(5)
        for turn in range(300):
            comm.all_reduce(array, out=out)
            if turn % 10 == 0:
                comm.all_reduce(array, out=out, async_op=True).wait()
        sums.append(out.sum())

    threads = [threading.Thread(target=work, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [5.0] * 4
