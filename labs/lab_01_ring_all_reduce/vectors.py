"""Two kinds of vectors, and what an all-reduce must make of them.

``whole_numbers``    small integers, whatever the dtype: every partial sum is exact, so every order of summing gives the
                     same bits, those of the mathematical sum
``order_sensitive``  floats of very different magnitudes: each order of summing rounds differently, so only what adds in
                     the same order as the library's ring schedule gets the same bits

A ring may be turned: if every rank plays the part of the rank ``turn`` places to its right, chunks end up (and are
summed) elsewhere, but it is a ring all the same. ``ring_outputs`` and ``ring_bytes`` take the turn as an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.algorithms.catalog import build
from atoll.schedule.count import count
from atoll.schedule.interpret import interpret
from atoll.schedule.prove import ProvenSchedule, prove

Array = npt.NDArray[Any]
DTYPES = (
    "float16", "float32", "float64", "complex64", "complex128",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip


def whole_numbers(dtype: np.dtype[Any], length: int, rank: int, world_size: int, seed: int) -> Array:
    """Rank's vector, values so small that the sum over all ranks is exact in ``dtype``."""
    if dtype.kind in "iu":
        largest = min(int(np.iinfo(dtype).max), 1 << 20)
    else:
        largest = min(1 << (np.finfo(dtype).nmant + 1), 1 << 20)
    return np.random.default_rng([seed, rank]).integers(0, largest // world_size + 1, length).astype(dtype)


def order_sensitive(dtype: np.dtype[Any], length: int, rank: int, seed: int) -> Array:
    """Rank's vector; integers, which no order can hurt, take all their values and wrap around."""
    rng = np.random.default_rng([seed, rank, 1])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, length, dtype=dtype, endpoint=True)
    spread = 2.0 ** rng.integers(-6, 7, length)
    values = rng.standard_normal(length) * spread
    return (values + 1j * rng.permutation(values) if dtype.kind == "c" else values).astype(dtype)


def exact_sum(inputs: Sequence[Array]) -> Array:
    """The sum over ranks, of ``whole_numbers``."""
    total = inputs[0].copy()
    for vector in inputs[1:]:
        total += vector
    return total


def wrong_elements(got: Array, expected: Array) -> Array:
    """Positions at which the bits differ."""
    width = expected.dtype.itemsize
    differs = got.view(np.uint8).reshape(-1, width) != expected.view(np.uint8).reshape(-1, width)
    return np.flatnonzero(differs.any(axis=1))


def library_ring(world_size: int) -> ProvenSchedule:
    return prove(build("all_reduce", "ring", world_size))


def ring_outputs(proven: ProvenSchedule, inputs: Sequence[Array], turn: int = 0) -> list[Array]:
    """What the library's ring, turned by ``turn``, leaves on each rank, bit for bit."""
    world_size = proven.world_size
    outputs = interpret(proven, [inputs[(part - turn) % world_size] for part in range(world_size)])
    return [outputs[(rank + turn) % world_size] for rank in range(world_size)]


def ring_bytes(proven: ProvenSchedule, length: int, itemsize: int, turn: int = 0) -> list[tuple[int, int]]:
    """(sent, received) of each rank in the library's ring, turned by ``turn``."""
    counts = count(proven, length, itemsize)
    pairs = list(zip(counts.sent.tolist(), counts.received.tolist(), strict=True))
    return pairs[turn:] + pairs[:turn]
