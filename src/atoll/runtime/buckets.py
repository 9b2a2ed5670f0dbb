"""Many small arrays summed as a few large ones, while the program goes on computing.

An all-reduce per gradient pays its latency per gradient. A **bucket** is one piece of memory in which consecutive
arrays lie side by side, up to a capacity; it is reduced in one call. A bucket's all-reduce starts by itself as soon as
the last of its arrays is ready, and moves bytes while the next arrays are computed; ``wait`` at the end collects what
is still under way. This is how data-parallel training hides its communication (Li et al. 2020, "PyTorch Distributed:
Experiences on Accelerating Data Parallel Training", VLDB 13(12); its buckets hold 25 MB, the first one 1 MB)::

    buckets = atoll.Buckets(comm, gradients, op="avg")   # in the order in which they will be ready: last layer first
    for step in range(steps):
        for index, layer in enumerate(reversed(model)):
            layer.backward(out=buckets.arrays[index])     # or buckets.put(index, gradient), which copies
            buckets.ready(index)
        buckets.wait()                                    # buckets.arrays are the sums

Rules. Arrays become ready in any order and on every rank in its own, but buckets start in their own order, the same on
all ranks: a full bucket waits for those before it. From ``ready`` to ``wait`` an array belongs to its bucket. Every
array must be ready before ``wait``. A bucket holds arrays of one dtype. With ``deterministic=True`` or
``order="rank"`` sums have the bits that they have without buckets; else they may differ with the capacity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.errors import SpecError
from atoll.runtime.arrays import Array
from atoll.runtime.communicator import Communicator
from atoll.runtime.plans import AlgorithmLike
from atoll.runtime.reduction import OperationLike
from atoll.runtime.work import Work
from atoll.units import format_size

# Those of PyTorch's DistributedDataParallel: bucket_cap_mb and the first bucket's.
CAPACITY_BYTES = 25 << 20
FIRST_CAPACITY_BYTES = 1 << 20


class Overlap(msgspec.Struct, frozen=True):
    """What one step has moved on this rank, sent and received, in payload bytes; and what of it before ``wait``."""

    num_buckets: int
    moved_bytes: int
    moved_before_wait_bytes: int

    @property
    def fraction(self) -> float:
        """The part of the bytes that had moved when ``wait`` was called; 1 where there was nothing to move."""
        return self.moved_before_wait_bytes / self.moved_bytes if self.moved_bytes else 1.0


class _Bucket:
    """One piece of memory; ``missing`` arrays are not ready yet."""

    def __init__(self, indices: Sequence[int], memory: Array) -> None:
        self.indices = tuple(indices)
        self.memory = memory
        self.missing = len(self.indices)


class Buckets:
    """The arrays of one communicator that are reduced together, step after step.

    ``arrays[i]`` lies in its bucket's memory and has the shape and dtype of the i-th of ``like``.
    """

    def __init__(
        self, comm: Communicator, like: Iterable[npt.ArrayLike], *, op: OperationLike = "sum",
        capacity_bytes: int = CAPACITY_BYTES, first_capacity_bytes: int | None = None,
        algorithm: AlgorithmLike = "auto", deterministic: bool | None = None, order: str | None = None,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Make room for arrays such as ``like``, in the order in which they will be ready; the same on every rank.

        The first bucket is smaller (1 MiB, or the capacity where that is less): it starts early. The other options are
        those of ``all_reduce``.
        """
        first = min(FIRST_CAPACITY_BYTES, capacity_bytes) if first_capacity_bytes is None else first_capacity_bytes
        if min(capacity_bytes, first) < 1:
            raise SpecError(f"buckets: expected capacities of at least 1 byte, got {capacity_bytes} and {first}")
        shapes = [np.asarray(array) for array in like]
        self._comm = comm
        self._options: dict[str, Any] = {
            "algorithm": algorithm, "deterministic": deterministic, "order": order, "timeout": timeout,
        }  # fmt: skip
        self._op = op
        self._buckets: list[_Bucket] = []
        self._bucket_of = [0] * len(shapes)
        self._ready = [False] * len(shapes)
        self._works: list[Work] = []
        self._overlap: Overlap | None = None
        views: list[Array | None] = [None] * len(shapes)
        for indices in fill([(array.nbytes, array.dtype) for array in shapes], capacity_bytes, first):
            dtype = shapes[indices[0]].dtype
            memory = comm.empty(sum(shapes[index].size for index in indices), dtype)
            start = 0
            for index in indices:
                end = start + shapes[index].size
                views[index] = memory[start:end].reshape(shapes[index].shape)
                self._bucket_of[index] = len(self._buckets)
                start = end
            self._buckets.append(_Bucket(indices, memory))
        self.arrays: tuple[Array, ...] = tuple(view for view in views if view is not None)

    def __repr__(self) -> str:
        total = sum(bucket.memory.nbytes for bucket in self._buckets)
        return (
            f"<Buckets {len(self.arrays)} arrays of {format_size(total)} in {len(self._buckets)} buckets, "
            f"{sum(self._ready)} ready, {len(self._works)} started>"
        )

    def __len__(self) -> int:
        """How many buckets there are."""
        return len(self._buckets)

    @property
    def overlap(self) -> Overlap | None:
        """What the last step moved, and what of it before ``wait``; None before the first step."""
        return self._overlap

    def put(self, index: int, array: npt.ArrayLike) -> None:
        """Copy ``array`` to its place and say that it is ready."""
        self._check(index)
        self.arrays[index][...] = array
        self.ready(index)

    def ready(self, index: int) -> None:
        """``arrays[index]`` holds this rank's part: its bucket starts once all of it is, and all before it have."""
        self._check(index)
        self._ready[index] = True
        self._buckets[self._bucket_of[index]].missing -= 1
        while len(self._works) < len(self._buckets) and self._buckets[len(self._works)].missing == 0:
            memory = self._buckets[len(self._works)].memory
            self._works.append(self._comm.all_reduce(memory, self._op, out=memory, async_op=True, **self._options))

    def done(self) -> bool:
        """Whether every bucket has been reduced, so that ``wait`` returns at once."""
        return len(self._works) == len(self._buckets) and all(work.done() for work in self._works)

    def wait(self) -> tuple[Array, ...]:
        """The reduced ``arrays``; then the next step begins.

        Raises ``SpecError`` where an array is not ready, before waiting for any; else what the all-reduces raise.
        """
        absent = [index for index, is_ready in enumerate(self._ready) if not is_ready]
        if absent:
            shown = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
            raise SpecError(
                f"buckets: wait: {len(absent)} of {len(self.arrays)} arrays are not ready: {shown}; an array that has "
                "no part in this step must be filled with zeros and said to be ready, on this rank too"
            )
        works, self._works = self._works, []
        before = sum(work.bytes_moved for work in works)
        for bucket in self._buckets:
            bucket.missing = len(bucket.indices)
        self._ready = [False] * len(self._ready)
        for work in works:
            work.wait()
        self._overlap = Overlap(len(works), sum(work.bytes_moved for work in works), before)
        return self.arrays

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self.arrays):
            raise SpecError(f"buckets: expected an array from 0 to {len(self.arrays) - 1}, got {index}")
        if self._ready[index]:
            raise SpecError(f"buckets: array {index} was ready before in this step; wait ends a step")


def fill(
    arrays: Sequence[tuple[int, np.dtype[Any]]], capacity_bytes: int, first_capacity_bytes: int
) -> list[list[int]]:
    """Which arrays, given by (bytes, dtype), go together: consecutive ones of a dtype, as many as the capacity holds.

    At least one array is in each bucket, however large it is. Buckets are ordered by when they can be full at last, if
    arrays become ready in the order given.
    """
    buckets: list[list[int]] = []
    open_ones: dict[np.dtype[Any], tuple[list[int], int, float]] = {}
    for index, (num_bytes, dtype) in enumerate(arrays):
        bucket, filled, capacity = open_ones.get(dtype, ([], 0, math.inf))
        if not bucket or filled + num_bytes > capacity:
            capacity = first_capacity_bytes if not buckets else capacity_bytes
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(index)
        open_ones[dtype] = (bucket, filled + num_bytes, capacity)
    return sorted(buckets, key=lambda bucket: bucket[-1])
