"""Measuring collectives as nccl-tests does: sizes swept, iterations averaged, every element checked.

Inputs are crafted so that the result is exact in any order: small whole numbers for sums, ones and twos for products.
A wrong element is therefore a wrong element, whatever the algorithm. Sizes are nccl-tests' sizes: the whole vector's
bytes; where the contract cuts it by rank, ``count`` is one rank's part, as there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.errors import SpecError, nearest
from atoll.runtime.communicator import Communicator
from atoll.runtime.reduction import reduction
from atoll.schedule.contract import COLLECTIVES
from atoll.trace.events import pack

Array = npt.NDArray[Any]
LARGEST = 10  # of the numbers that are summed
PERIODS = (2, 7, 13, 113, 251, 4093)  # of the numbers that are only moved: primes, one for each width of a format
WAYS = ("socket", "staged", "in place", "process_vm_readv")
AVERAGES = ("rank 0", "mean", "minimum", "maximum")  # nccl-tests' -a 0 to 3


class Spec(msgspec.Struct, frozen=True):
    """What to measure. ``sizes_bytes`` in order; ``average`` indexes ``AVERAGES``, ``transport`` is one of
    ``runtime.transport``. ``record``: also a trace of one out-of-place call of each."""

    collective: str
    algorithms: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    iterations: int = 20
    warmup: int = 1
    check: bool = True
    average: int = 1
    timeout_s: float = 60.0
    transport: str = "tcp"
    record: bool = False


class Measurement(msgspec.Struct, frozen=True):
    """One way of running one size: seconds per call, and elements that were wrong (``None``: not checked)."""

    time_s: float
    wrong: int | None


class Result(msgspec.Struct, frozen=True):
    """One row. ``in_place`` is None where the collective has no such way.

    ``sent_bytes`` and ``received_bytes`` are payload bytes of one out-of-place call, by rank, as really passed to the
    peers; ``overhead_bytes`` are the headers sent with them. ``ways`` are the payload bytes of all ranks by the way
    they took, those of ``WAYS`` that were taken. ``trace`` is packed, at rank 0; empty where none was asked for.
    """

    algorithm: str
    size_bytes: int
    count: int
    dtype: str
    op: str
    root: int
    out_of_place: Measurement
    in_place: Measurement | None
    sent_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]
    overhead_bytes: tuple[int, ...]
    ways: dict[str, int] = {}
    trace: bytes = b""


def dtype_named(name: str) -> np.dtype[Any]:
    """A NumPy dtype by its name or nccl-tests', ``bfloat16`` and ``float8_*`` through ``ml_dtypes``."""
    short = {
        "half": "float16",
        "float": "float32",
        "double": "float64",
        "f8e4m3": "float8_e4m3fn",
        "f8e5m2": "float8_e5m2",
    }
    full = short.get(name, name)
    if full.startswith(("bfloat", "float8")):
        try:
            import ml_dtypes
        except ImportError:
            from atoll.errors import MissingExtra

            raise MissingExtra("ml_dtypes", "lowprecision", f"dtype {full}") from None
        if hasattr(ml_dtypes, full):
            extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, full))
            return extended
    else:
        try:
            dtype = np.dtype(full)
        except TypeError:
            pass
        else:
            if dtype.kind in "biufc":
                return dtype
    known = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32",
             "float64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2"]  # fmt: skip
    raise SpecError(f"unknown dtype {name!r}: {nearest(name, known)}")


def sweep(comm: Communicator, spec: Spec) -> Iterator[Result]:
    """Measure every size with every algorithm; the same results on every rank."""
    dtype = dtype_named(spec.dtype)
    for size_bytes in spec.sizes_bytes:
        for algorithm in spec.algorithms:
            yield Case(comm, spec, algorithm, dtype, size_bytes).result()


class Case:
    """One size with one algorithm. Inputs and expectations of any rank follow from its number alone."""

    def __init__(self, comm: Communicator, spec: Spec, algorithm: str, dtype: np.dtype[Any], size_bytes: int) -> None:
        self.comm = comm
        self.spec = spec
        self.algorithm = algorithm
        self.dtype = dtype
        self.blocked = COLLECTIVES[spec.collective].blocked
        self.reduces = COLLECTIVES[spec.collective].reduces and spec.collective != "barrier"
        elements = size_bytes // dtype.itemsize
        self.count = elements // comm.world_size if self.blocked else elements
        self.length = self.count * comm.world_size if self.blocked else elements
        input_whole = spec.collective not in ("all_gather", "gather")
        self.input_count = self.length if input_whole else self.count
        output_whole = spec.collective not in ("reduce_scatter", "scatter")
        self.output_count = self.length if output_whole else self.count

    def result(self) -> Result:
        spec = self.spec
        source, out = self.buffers(in_place=False)
        before = self._traffic()
        self.call(source, out)()
        moved = [now - then for now, then in zip(self._traffic(), before, strict=True)]
        everyone = self.comm.all_gather(np.array(moved, dtype=np.int64)).reshape(self.comm.world_size, -1).T.tolist()
        wrong = self._wrong(source, out) if spec.check else None
        out_of_place = Measurement(self._time(in_place=False), wrong)
        in_place = None
        if spec.collective not in ("all_to_all", "broadcast", "barrier"):
            source, out = self.buffers(in_place=True)
            self.call(source, out)()
            wrong = self._wrong(source, out) if spec.check else None
            in_place = Measurement(self._time(in_place=True), wrong)
        elif spec.collective == "broadcast":
            in_place = out_of_place
        return Result(
            algorithm=self.algorithm, size_bytes=self.length * self.dtype.itemsize, count=self.count,
            dtype=str(self.dtype), op=spec.op if self.reduces else "none",
            root=spec.root if COLLECTIVES[spec.collective].rooted else -1, out_of_place=out_of_place, in_place=in_place,
            sent_bytes=tuple(everyone[0]), received_bytes=tuple(everyone[1]), overhead_bytes=tuple(everyone[2]),
            ways={way: sum(column) for way, column in zip(WAYS, everyone[3:], strict=True) if sum(column)},
            trace=self._trace() if spec.record else b"",
        )  # fmt: skip

    def call(self, source: Array, out: Array) -> Callable[[], Any]:
        """What one call does, from ``source`` to ``out``."""
        comm, spec = self.comm, self.spec
        options: dict[str, Any] = {"algorithm": self.algorithm, "timeout": spec.timeout_s}
        is_root = comm.rank == spec.root
        match spec.collective:
            case "all_reduce" | "reduce_scatter":
                method = getattr(comm, spec.collective)
                return lambda: method(source, spec.op, out=out, **options)
            case "all_gather" | "all_to_all":
                method = getattr(comm, spec.collective)
                return lambda: method(source, out=out, **options)
            case "broadcast":
                return lambda: comm.broadcast(source if is_root else out, spec.root, **options)
            case "reduce":
                return lambda: comm.reduce(source, spec.op, spec.root, out=out if is_root else None, **options)
            case "gather":
                return lambda: comm.gather(source, spec.root, out=out if is_root else None, **options)
            case "scatter":
                return lambda: comm.scatter(source if is_root else None, spec.root, out=out, **options)
            case _:
                return lambda: comm.barrier(**options)

    def buffers(self, in_place: bool) -> tuple[Array, Array]:
        """Input, filled, and output; parts of one array where in place."""
        source = self._input(self.comm.rank)
        if not in_place:
            return source, np.zeros(self.output_count, dtype=self.dtype)
        mine = slice(self.comm.rank * self.count, (self.comm.rank + 1) * self.count)
        if self.input_count < self.output_count:
            whole = np.zeros(self.output_count, dtype=self.dtype)
            whole[mine] = source
            return whole[mine], whole
        return source, source[mine] if self.output_count < self.input_count else source

    def _wrong(self, source: Array, out: Array) -> int:
        """Elements that are not what they should be after a call, over all ranks."""
        rank, spec = self.comm.rank, self.spec
        has_output = spec.collective not in ("reduce", "gather") or rank == spec.root
        if spec.collective == "barrier":
            has_output = False
        if spec.collective == "broadcast" and rank == spec.root:
            out = source
        mine = int(np.count_nonzero(out != self._expected())) if has_output else 0
        return int(self.comm.all_reduce(np.array([mine], dtype=np.int64))[0])

    def _time(self, in_place: bool) -> float:
        """Seconds per call."""
        call = self.call(*self.buffers(in_place))
        with np.errstate(all="ignore"):  # sums of sums grow without bound, and nobody looks at them
            for _ in range(self.spec.warmup):
                call()
            self.comm.barrier(timeout=self.spec.timeout_s)
            start = time.perf_counter()
            for _ in range(self.spec.iterations):
                call()
            mine = (time.perf_counter() - start) / self.spec.iterations
        times = self.comm.all_gather(np.array([mine]))
        return float((times[0], times.mean(), times.min(), times.max())[self.spec.average])

    def _trace(self) -> bytes:
        """When the messages of one more call were on their way; ranks begin it together."""
        call = self.call(*self.buffers(in_place=False))
        self.comm.barrier(timeout=self.spec.timeout_s)
        self.comm.record()
        call()
        trace = self.comm.trace()
        return b"" if trace is None else pack(trace)

    def _input(self, rank: int) -> Array:
        index = np.arange(self.input_count, dtype=np.int64)
        if self.spec.op == "prod" and self.reduces:
            return np.where(index % self.comm.world_size == rank, 2, 1).astype(self.dtype)
        if not self.reduces:
            # Position and rank show, as far as the format can tell them apart.
            period = max(prime for prime in PERIODS if prime <= _exact_up_to(self.dtype) + 1)
            values = (index * 3 + rank * 5) % period
        elif self.comm.world_size * LARGEST > _exact_up_to(self.dtype):
            # A one in one rank's turn: exact in the narrowest format.
            values = np.equal(index % self.comm.world_size, rank).astype(np.int64)
        else:
            values = (index * 7 + rank * 13) % (LARGEST + 1)
        return values.astype(self.dtype)

    def _expected(self) -> Array:
        """This rank's output."""
        comm, spec = self.comm, self.spec
        rank, count = comm.rank, self.count
        block = slice(rank * count, (rank + 1) * count)
        match spec.collective:
            case "all_reduce" | "reduce" | "reduce_scatter":
                chosen = reduction(spec.op, self.dtype)
                total = self._input(0)
                for other in range(1, comm.world_size):
                    total = chosen.ufunc(total, self._input(other)).astype(self.dtype, copy=False)
                if chosen.mean:
                    total = np.divide(total, np.asarray(comm.world_size, dtype=self.dtype)).astype(
                        self.dtype, copy=False
                    )
                return total[block] if spec.collective == "reduce_scatter" else total
            case "all_gather" | "gather":
                return np.concatenate([self._input(other) for other in range(comm.world_size)])
            case "all_to_all":
                return np.concatenate([self._input(other)[block] for other in range(comm.world_size)])
            case "scatter":
                return self._input(spec.root)[block]
            case _:
                return self._input(spec.root)

    def _traffic(self) -> list[int]:
        counts = self.comm.traffic().values()
        return [
            sum(count.payload_sent for count in counts),
            sum(count.payload_received for count in counts),
            sum(count.overhead_sent for count in counts),
            sum(count.payload_sent for count in counts if not count.shared),
            sum(count.payload_sent - count.lent_sent - count.remote_sent for count in counts if count.shared),
            sum(count.lent_sent for count in counts),
            sum(count.remote_sent for count in counts),
        ]


def _exact_up_to(dtype: np.dtype[Any]) -> int:
    """Whole numbers up to this one are exact in ``dtype``, all of them."""
    if dtype.kind == "b":
        return 1
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).max)
    if np.issubdtype(dtype, np.inexact):
        return 1 << (np.finfo(dtype).nmant + 1)
    import ml_dtypes  # it is there: the dtype is its own

    return 1 << (int(ml_dtypes.finfo(dtype).nmant) + 1)  # type: ignore[no-untyped-call]
