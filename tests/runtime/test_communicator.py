"""Collectives among real processes over real sockets: the right bits, the right bytes, on every rank."""

from functools import cache
from threading import Thread
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ranks import run_ranks

from atoll.algorithms.catalog import CATALOG, build, names
from atoll.errors import SpecError
from atoll.runtime.communicator import Communicator
from atoll.runtime.link import HEADER
from atoll.runtime.shared_ring import RECORD
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.count import count
from atoll.schedule.interpret import interpret
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.partition import balanced
from atoll.schedule.prove import ProvenSchedule, prove

WORLDS = [1, 2, 3, 4, 5, 8]
TRANSPORTS = ["tcp", "shm"]
LENGTHS = [0, 1, 7, 40_003]


@cache
def proven(collective: str, name: str, world_size: int, root: int | None = None) -> ProvenSchedule | None:
    try:
        return prove(out_of_place(build(collective, name, world_size, root)))
    except SpecError:
        return None


def vector(rank: int, length: int, dtype: str = "float32") -> np.ndarray:
    """Order-sensitive where ``dtype`` is floating: sums depend on the order."""
    rng = np.random.default_rng(1000 * rank + length)
    return (rng.standard_normal(length) * 10.0 ** rng.integers(-5, 6, length)).astype(dtype)


# -- every algorithm, against the definition -----------------------------------------------------------------


def all_reduce_with_everything(comm: Communicator) -> list[tuple[str, int, bytes, bool]]:
    results = []
    for name in names("all_reduce"):
        if proven("all_reduce", name, comm.world_size) is None:
            continue
        for length in LENGTHS:
            mine = vector(comm.rank, length)
            kept = mine.copy()
            result = comm.all_reduce(mine, algorithm=name)
            in_place = mine.copy()
            assert comm.all_reduce(in_place, out=in_place, algorithm=name) is in_place
            same = bool(np.array_equal(mine, kept) and np.array_equal(in_place, result))
            results.append((name, length, result.tobytes(), same))
    return results


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_all_reduce_equals_the_reference_executor_bit_for_bit(world_size: int, transport: str) -> None:
    ranks = run_ranks(world_size, all_reduce_with_everything, transport=transport)
    assert len(ranks[0]) >= 5 * len(LENGTHS)
    for case in zip(*ranks, strict=True):
        name, length, _, _ = case[0]
        ready = proven("all_reduce", name, world_size)
        assert ready is not None
        want = interpret(ready, [vector(rank, length) for rank in range(world_size)])
        for rank, (_, _, got, untouched) in enumerate(case):
            assert got == want[rank].tobytes(), (name, length, rank)
            assert untouched, (name, length, rank)


def every_other_collective(comm: Communicator) -> list[tuple[str, str, int, bytes | None]]:
    results = []
    world_size, rank = comm.world_size, comm.rank
    root = world_size - 1
    for entry in CATALOG:
        collective, name = entry.collective, entry.name
        rooted = COLLECTIVES[collective].rooted
        if (
            collective in ("all_reduce", "barrier")
            or proven(collective, name, world_size, root if rooted else None) is None
        ):
            continue
        for count_per_rank in (0, 1, 33, 5000):
            length = count_per_rank * world_size
            mine, part = vector(rank, length), vector(rank, count_per_rank)
            got: Any
            match collective:
                case "reduce_scatter":
                    got = comm.reduce_scatter(mine, algorithm=name)
                case "all_gather":
                    got = comm.all_gather(part, algorithm=name)
                case "broadcast":
                    got = comm.broadcast(mine.copy(), root, algorithm=name)
                case "reduce":
                    got = comm.reduce(mine, root=root, algorithm=name)
                case "all_to_all":
                    got = comm.all_to_all(mine, algorithm=name)
                case "gather":
                    got = comm.gather(part, root, algorithm=name)
                case "scatter":
                    out = np.empty(count_per_rank, np.float32)
                    got = comm.scatter(mine if rank == root else None, root, out=out, algorithm=name)
            results.append((collective, name, count_per_rank, None if got is None else got.tobytes()))
    return results


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_every_other_collective_equals_the_reference_executor(world_size: int, transport: str) -> None:
    ranks = run_ranks(world_size, every_other_collective, transport=transport)
    root = world_size - 1
    assert {case[0] for case in ranks[0]} == set(COLLECTIVES) - {"all_reduce", "barrier"}
    for case in zip(*ranks, strict=True):
        collective, name, count_per_rank, _ = case[0]
        ready = proven(collective, name, world_size, root if COLLECTIVES[collective].rooted else None)
        assert ready is not None
        length = count_per_rank if collective in ("all_gather", "gather") else count_per_rank * world_size
        want = interpret(ready, [vector(rank, length) for rank in range(world_size)])
        for rank, (_, _, _, got) in enumerate(case):
            if got is None:
                assert collective in ("reduce", "gather")
                assert rank != root
            else:
                assert got == want[rank].tobytes(), (collective, name, count_per_rank, rank)


# -- dtypes and operations -----------------------------------------------------------------------------------

DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
]
OPS = ["sum", "prod", "min", "max", "avg", "band", "bor", "bxor"]


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name) if name.startswith(("bf", "float8")) else name)


def whole_numbers(rank: int, dtype: np.dtype[Any]) -> np.ndarray:
    return ((np.arange(37) * 3 + rank * 5) % 3).astype(dtype)


def every_dtype_and_op(comm: Communicator) -> list[tuple[str, str, bytes | str]]:
    results: list[tuple[str, str, bytes | str]] = []
    for name in DTYPES:
        for op in OPS:
            mine = whole_numbers(comm.rank, dtype_of(name))
            try:
                results.append((name, op, comm.all_reduce(mine, op).tobytes()))
            except SpecError as error:
                results.append((name, op, str(error)))
    return results


def test_every_dtype_and_operation() -> None:
    world_size = 3
    ufuncs = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add,
              "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}  # fmt: skip
    ranks = run_ranks(world_size, every_dtype_and_op)
    refused = set()
    for case in zip(*ranks, strict=True):
        name, op, first = case[0]
        assert all(other == case[0] for other in case)
        dtype = dtype_of(name)
        if isinstance(first, str):
            refused.add((name, op))
            continue
        values = [whole_numbers(rank, dtype) for rank in range(world_size)]
        want = ufuncs[op](ufuncs[op](values[0], values[1]), values[2])
        if op == "avg":
            want = np.divide(want, np.asarray(world_size, dtype=dtype)).astype(dtype)
        assert first == want.astype(dtype).tobytes(), (name, op)
    whole = {name for name in DTYPES if np.dtype(dtype_of(name)).kind in "biu"}
    bitwise = {"band", "bor", "bxor"}
    assert refused == {(name, "avg") for name in whole} | {(name, op) for name in set(DTYPES) - whole for op in bitwise}


# -- shapes and memory ---------------------------------------------------------------------------------------


def shapes_and_memory(comm: Communicator) -> None:
    n, rank = comm.world_size, comm.rank
    total = n * (n - 1) // 2
    square = np.full((4, 6), float(rank))
    assert comm.all_reduce(square).shape == (4, 6)
    assert comm.all_reduce(3.0 * rank).shape == ()
    # Not contiguous: columns in, every other element out.
    wide = np.zeros((4, 12))
    wide[:, ::2] = rank
    np.testing.assert_array_equal(comm.all_reduce(wide[:, ::2]), np.full((4, 6), float(total)))
    out = np.full((4, 12), -1.0)
    assert comm.all_reduce(square, out=out[:, 1::2]).base is not None
    np.testing.assert_array_equal(out[:, 1::2], np.full((4, 6), float(total)))
    np.testing.assert_array_equal(out[:, ::2], -1.0)
    # Overlapping input and output that are not what in place means: as if the input had been copied.
    ramp = np.arange(10.0) + rank
    want = comm.all_reduce(ramp[:8])
    comm.all_reduce(ramp[:8], out=ramp[2:])
    np.testing.assert_array_equal(ramp[2:], want)
    # Blocks along the first axis; blocks of a flat array that N does not divide.
    assert comm.reduce_scatter(np.ones((2 * n, 3))).shape == (2, 3)
    flat = np.arange(3 * n + 1, dtype=np.int64)
    sizes = balanced(len(flat), n)
    start = int(sizes[:rank].sum())
    mine = comm.reduce_scatter(flat)
    np.testing.assert_array_equal(mine, n * flat[start : start + sizes[rank]])
    whole = np.empty(len(flat), np.int64)
    comm.all_gather(mine, out=whole)
    np.testing.assert_array_equal(whole, n * flat)
    # In place: the block within the vector.
    vector_ = np.arange(2.0 * n) + rank
    block = vector_[2 * rank : 2 * rank + 2]
    comm.reduce_scatter(vector_, out=block)
    np.testing.assert_array_equal(block, n * np.arange(2.0 * rank, 2 * rank + 2) + total)
    gathered = np.full(2 * n, -1.0)
    gathered[2 * rank : 2 * rank + 2] = rank
    comm.all_gather(gathered[2 * rank : 2 * rank + 2], out=gathered)
    np.testing.assert_array_equal(gathered, np.repeat(np.arange(float(n)), 2))
    exchanged = np.arange(float(n)) + 10 * rank
    comm.all_to_all(exchanged, out=exchanged)
    np.testing.assert_array_equal(exchanged, 10 * np.arange(float(n)) + rank)
    assert comm.all_gather(np.ones((2, 3))).shape == (2 * n, 3)
    assert comm.all_gather(5).shape == (n,)
    locked = np.ones(4)
    locked.flags.writeable = False
    np.testing.assert_array_equal(comm.all_reduce(locked), np.full(4, float(n)))
    np.testing.assert_array_equal(comm.broadcast(locked if rank == 0 else np.zeros(4), 0), np.ones(4))
    # Every operation's result equals NumPy's own on structured moves too.
    records = np.array([(rank, 1.5)], dtype=[("rank", "i4"), ("value", "f8")])
    assert [tuple(record) for record in comm.all_gather(records)] == [(other, 1.5) for other in range(n)]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_shapes_and_memory(world_size: int) -> None:
    run_ranks(world_size, shapes_and_memory)


def forms_that_differ_by_rank(comm: Communicator) -> None:
    """In place on even ranks, out of place on odd ones, and from or into memory that is not contiguous on the last."""
    n, rank = comm.world_size, comm.rank
    in_place, strided = rank % 2 == 0, rank == n - 1

    def memory(values: np.ndarray) -> np.ndarray:
        if not strided:
            return values.copy()
        wide = np.zeros(2 * len(values))
        wide[::2] = values
        return wide[::2]

    for length in (0, 1, n, 2 * n + 1, 4000 * n + 3):
        mine = np.arange(length) * 1.0 + rank
        total = n * np.arange(length) + n * (n - 1) / 2
        sizes = balanced(length, n)
        part = slice(int(sizes[:rank].sum()), int(sizes[: rank + 1].sum()))
        for name in names("all_reduce"):
            if proven("all_reduce", name, n) is None:
                continue
            array = memory(mine)
            got = comm.all_reduce(array, out=array if in_place else None, algorithm=name)
            np.testing.assert_array_equal(got, total)
            np.testing.assert_array_equal(array, total if in_place else mine)
        for name in names("reduce_scatter"):
            if proven("reduce_scatter", name, n) is None:
                continue
            array = memory(mine)
            got = comm.reduce_scatter(array, out=array[part] if in_place else None, algorithm=name)
            np.testing.assert_array_equal(got, total[part])
        for name in names("all_gather"):
            if proven("all_gather", name, n) is None:
                continue
            whole = memory(np.full(length, -1.0))
            whole[part] = rank
            comm.all_gather(whole[part] if in_place else whole[part].copy(), out=whole, algorithm=name)
            np.testing.assert_array_equal(whole, np.repeat(np.arange(n), sizes))


@pytest.mark.parametrize("world_size", [3, 4])
def test_ranks_may_differ_in_how_they_hold_their_arrays(world_size: int) -> None:
    run_ranks(world_size, forms_that_differ_by_rank)


def unusual_arrays(comm: Communicator) -> None:
    n, rank = comm.world_size, comm.rank
    total = n * (n - 1) / 2
    # Bytes in the other order, Fortran order, backwards, not aligned, no dimension, integers of NumPy as arguments.
    swapped = np.full(5, float(rank), ">f4")
    assert comm.all_reduce(swapped).tolist() == [total] * 5
    fortran = np.asfortranarray(np.arange(12.0).reshape(3, 4) + rank)
    np.testing.assert_array_equal(comm.all_reduce(fortran), n * np.arange(12.0).reshape(3, 4) + total)
    comm.all_reduce(fortran, out=fortran)
    np.testing.assert_array_equal(fortran, n * np.arange(12.0).reshape(3, 4) + total)
    backwards = np.arange(6.0)[::-1]
    comm.all_reduce(backwards, out=backwards)
    assert backwards.tolist() == [n * value for value in (5, 4, 3, 2, 1, 0)]
    crooked = np.frombuffer(bytearray(41), np.uint8)[1:].view(np.float64)
    crooked[:] = rank
    assert not crooked.flags.aligned
    comm.all_reduce(crooked, out=crooked)
    assert crooked.tolist() == [total] * 5
    scalar = np.array(float(rank))
    assert comm.all_reduce(scalar, out=scalar) is scalar
    assert scalar == total
    root = np.int64(n - 1)
    assert comm.broadcast(np.full(2, float(rank)), root).tolist() == [n - 1.0] * 2
    part = comm.split(np.uint8(0), key=np.int16(-rank))  # type: ignore[arg-type]
    assert part is not None
    assert part.rank == n - 1 - rank
    # The input is locked, its block is not: partial results must not go where nothing may be written.
    vector_ = np.arange(2.0 * n)
    block = vector_[2 * rank : 2 * rank + 2]
    vector_.flags.writeable = False
    for name in names("reduce_scatter"):
        if proven("reduce_scatter", name, n) is not None:
            block[:] = [2 * rank, 2 * rank + 1]
            comm.reduce_scatter(vector_, out=block, algorithm=name)
            assert block.tolist() == [n * 2 * rank, n * (2 * rank + 1)], name
    padded = np.zeros(3, np.dtype([("flag", "u1"), ("value", "f8")], align=True))
    padded["value"] = rank
    assert comm.all_gather(padded)["value"].tolist() == list(np.repeat(np.arange(float(n)), 3))
    # The mean is the sum divided once, and every rank has the same bits.
    thirds = comm.all_reduce(np.array([1.0 + rank], np.float32), "avg")
    assert thirds.dtype == np.float32
    assert thirds[0] == np.float32(n * (n + 1) / 2) / np.float32(n)
    mean = comm.reduce(np.array([rank + 0.5j]), "avg", 0)
    assert mean is None if rank else mean[0] == (total / n) + 0.5j


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_unusual_arrays_are_handled(world_size: int) -> None:
    run_ranks(world_size, unusual_arrays)


def splits_while_in_flight(comm: Communicator) -> float:
    arrays = [np.full(200_000, float(comm.rank)) for _ in range(3)]
    works = [comm.all_reduce(array, out=array, async_op=True) for array in arrays]
    parts = [comm.split(comm.rank % (2 + number), key=-comm.rank) for number in range(3)]
    inner = [part.all_reduce(np.ones(70_000), async_op=True) for part in parts if part is not None]
    for part, work in zip(parts, inner, strict=True):
        assert part is not None
        assert (work.wait() == part.world_size).all()
    for work in works:
        assert (work.wait() == comm.world_size * (comm.world_size - 1) / 2).all()
    for part in reversed(parts):
        assert part is not None
        part.close()
    return float(comm.all_reduce(np.ones(1))[0])


def test_a_communicator_may_be_split_while_collectives_are_in_flight() -> None:
    assert run_ranks(4, splits_while_in_flight) == [4.0] * 4


def a_thread_each(comm: Communicator) -> list[Any]:
    parts = [comm.split(0) for _ in range(3)]
    wrong: list[Any] = []

    def work(number: int, part: Communicator) -> None:
        try:
            for turn in range(25):
                result = part.all_reduce(np.full(turn * 500 + number, 1.0 + comm.rank), algorithm="ring")
                if not (result == comm.world_size * (comm.world_size + 1) / 2).all():
                    wrong.append((number, turn))
            part.close()
        except BaseException as error:
            wrong.append(f"{type(error).__name__}: {error}")

    threads = [Thread(target=work, args=(number, part)) for number, part in enumerate(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def test_communicators_may_be_called_by_threads_of_their_own() -> None:
    assert run_ranks(2, a_thread_each) == [[], []]


def refusals(comm: Communicator) -> list[str]:
    readonly = np.ones(4)
    readonly.flags.writeable = False
    attempts = [
        lambda: comm.all_reduce(np.ones(4), out=np.ones(5)),
        lambda: comm.all_reduce(np.ones(4), out=np.ones(4, "f4")),
        lambda: comm.all_reduce(np.ones(4), out=readonly),
        lambda: comm.all_reduce(np.ones(4), out=[1, 2, 3, 4]),  # type: ignore[arg-type]
        lambda: comm.all_reduce(np.array(["a"])),
        lambda: comm.all_reduce(np.array([None])),
        lambda: comm.all_reduce(np.ones(4), "summ"),
        lambda: comm.all_reduce(np.ones(4), algorithm="rign"),
        lambda: comm.all_reduce(np.ones(4), timeout=0),
        lambda: comm.all_reduce(np.ones(4), timeout=float("nan")),
        lambda: comm.broadcast(np.ones(4), root=2),
        lambda: comm.all_to_all(np.ones(5)),
        lambda: comm.scatter(None, root=comm.rank),
        lambda: comm.scatter(np.ones(4), root=1 - comm.rank),
        lambda: comm.send(np.ones(1), comm.rank),
        lambda: comm.recv(np.ones(1), 7),
        lambda: comm.recv([1], 1 - comm.rank),  # type: ignore[arg-type]
        lambda: comm.broadcast([1.0], root=1 - comm.rank),  # type: ignore[arg-type]
        lambda: comm.split(-3),
        lambda: comm.all_gather(np.ones(3), out=np.ones(8)),
        lambda: comm.all_reduce(np.ma.masked_array([1.0, 2.0], [True, False])),
        lambda: comm.all_reduce(np.ones(2), out=np.ma.masked_array([1.0, 2.0], [True, False])),
        lambda: comm.all_reduce([[1.0], [1.0, 2.0]]),
        lambda: comm.broadcast(np.ones(2), root=0.0),  # type: ignore[arg-type]
        lambda: comm.split(0.5),  # type: ignore[arg-type]
        lambda: comm.split(0, key=1 << 63),
        lambda: comm.all_reduce(np.ones(2), timeout="soon"),  # type: ignore[arg-type]
    ]
    messages = []
    for attempt in attempts:
        try:
            attempt()
            messages.append("accepted")
        except SpecError as error:
            messages.append(str(error))
    # Refused calls were no calls: the ranks still agree.
    assert comm.all_reduce(np.ones(2)).tolist() == [2.0, 2.0]
    return messages


def test_bad_arguments_are_refused_before_anything_is_sent() -> None:
    first, second = run_ranks(2, refusals)
    wanted = [
        "expected 4 elements, got 5",
        "expected dtype float64, got float32",
        "read-only",
        "expected a NumPy array",
        "is not supported",
        "cannot be sent",
        "did you mean 'sum'",
        "did you mean 'ring'",
        "more than 0 seconds",
        "more than 0 seconds",
        "root between 0 and 1, got 2",
        "multiple of 2 ranks, got 5",
        "expected an array on rank",
        "expected array=None",
        "another rank between 0 and 1",
        "another rank between 0 and 1",
        "expected a NumPy array",
        "expected a NumPy array",
        "color of at least 0",
        "expected 6 elements",
        "masked arrays are not supported",
        "masked arrays are not supported",
        "expected an array or what makes one",
        "root: expected a whole number, got 0.0",
        "color: expected a whole number, got 0.5",
        "key: expected a number of 64 bits",
        "more than 0 seconds, got 'soon'",
    ]
    for messages in (first, second):
        for message, part in zip(messages, wanted, strict=True):
            assert part in message


# -- asynchronous, point to point, parts of the world --------------------------------------------------------


def several_in_flight(comm: Communicator) -> None:
    n = comm.world_size
    arrays = [np.full(size, float(comm.rank + 1)) for size in (1, 1000, 300_000, 7, 50_000)]
    works = [comm.all_reduce(array, out=array, async_op=True) for array in arrays]
    between = comm.all_reduce(np.ones(3))
    barrier = comm.barrier(async_op=True)
    for work, array in reversed(list(zip(works, arrays, strict=True))):
        assert work.wait() is array
        assert work.done()
        np.testing.assert_array_equal(array, n * (n + 1) / 2)
    assert barrier.wait() is None
    assert between.tolist() == [n] * 3
    # Nobody waits: the background moves it.
    lonely = comm.all_reduce(np.ones(100_000), async_op=True)
    comm.barrier()
    np.testing.assert_array_equal(lonely.wait(timeout=10), n)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_several_collectives_in_flight(world_size: int, transport: str) -> None:
    run_ranks(world_size, several_in_flight, transport=transport)


def round_and_round(comm: Communicator) -> list[float]:
    n, rank = comm.world_size, comm.rank
    token = np.array([0.0])
    if rank == 0:
        comm.send(token + 1, 1 % n)
        comm.recv(token, n - 1)
    else:
        comm.recv(token, rank - 1)
        comm.send(token + 1, (rank + 1) % n)
    # Both directions at once, larger than any socket buffer, sends first on both sides.
    big = np.full(3_000_000, float(rank))
    other = np.empty_like(big)
    partner = rank ^ 1
    sending = comm.send(big, partner, async_op=True)
    comm.recv(other, partner)
    sending.wait()
    assert (other == partner).all()
    strided = np.zeros(10)
    if rank % 2:
        comm.send(np.zeros(0), partner)
        comm.send(np.arange(5.0), partner)
    else:
        comm.recv(np.zeros(0), partner)
        comm.recv(strided[::2], partner)
        assert strided[::2].tolist() == [0, 1, 2, 3, 4]
    return token.tolist()


def test_point_to_point() -> None:
    assert [value[0] for value in run_ranks(4, round_and_round)] == [4.0, 1.0, 2.0, 3.0]


def rows_and_columns(comm: Communicator) -> tuple[float, float, Any]:
    rank = comm.rank
    row = comm.split(rank // 2)
    column = comm.split(rank % 2, key=-rank)
    assert row is not None
    assert column is not None
    assert (row.world_size, row.rank) == (2, rank % 2)
    assert (column.world_size, column.rank) == (3, 2 - rank // 2)
    some = comm.split(None if rank == 0 else 7)
    left_out = some is None
    total = float(row.all_reduce(np.array([rank]))[0])
    # Different orders of calls on different communicators are fine.
    first = column.all_reduce(np.array([1.0 * rank]), async_op=True)
    second = comm.all_reduce(np.array([1.0]), async_op=True)
    assert second.wait().tolist() == [6.0]
    down = float(first.wait()[0])
    if some is not None:
        assert some.all_gather(np.array([rank])).tolist() == [1, 2, 3, 4, 5]
        again = some.split(0)
        assert again is not None
        again.barrier()
        again.close()
        some.close()
    row.close()
    with pytest.raises(SpecError, match="closed"):
        row.barrier()
    comm.barrier()
    return total, down, left_out


def test_split_makes_communicators_of_their_own() -> None:
    ranks = run_ranks(6, rows_and_columns)
    assert [total for total, _, _ in ranks] == [1, 1, 5, 5, 9, 9]
    assert [down for _, down, _ in ranks] == [6, 9, 6, 9, 6, 9]
    assert [left_out for _, _, left_out in ranks] == [True] + [False] * 5


def one_of_my_own(comm: Communicator) -> list[float]:
    builder = ScheduleBuilder("all_reduce", comm.world_size, 1, name="star")
    others = np.arange(1, comm.world_size)
    builder.reduce(0, others, 0, 0)
    builder.copy(1, 0, others, 0)
    result: list[float] = comm.all_reduce(np.array([1.0, 2.0]), algorithm=builder.build()).tolist()
    broken = ScheduleBuilder("all_reduce", comm.world_size, 1, name="lazy").build()
    with pytest.raises(Exception, match="lazy: wrong output"):
        comm.all_reduce(np.array([1.0]), algorithm=broken)
    with pytest.raises(SpecError, match="expected a schedule of broadcast"):
        comm.broadcast(np.array([1.0]), algorithm=builder.build())
    return result


def test_a_schedule_of_ones_own_is_proven_before_it_runs() -> None:
    assert run_ranks(3, one_of_my_own) == [[3.0, 6.0]] * 3


# -- counted bytes -------------------------------------------------------------------------------------------


def moved_bytes(comm: Communicator) -> list[tuple[str, str, dict[int, tuple[int, int, int, int]]]]:
    def snapshot() -> dict[int, np.ndarray]:
        return {
            peer: np.array([n.payload_sent, n.payload_received, n.overhead_sent, n.overhead_received])
            for peer, n in comm.traffic().items()
        }

    results = []
    length = 1003 * comm.world_size
    for entry in CATALOG:
        if entry.collective not in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
            continue
        if proven(entry.collective, entry.name, comm.world_size) is None:
            continue
        for odd in (0, 1):
            if entry.collective == "all_to_all" and odd:
                continue
            before = snapshot()
            if entry.collective == "all_gather":
                out = np.empty(length + odd, np.float32)
                part = np.ones(int(balanced(length + odd, comm.world_size)[comm.rank]), np.float32)
                comm.all_gather(part, out=out, algorithm=entry.name)
            else:
                getattr(comm, entry.collective)(np.ones(length + odd, np.float32), algorithm=entry.name)
            after = snapshot()
            moved = {peer: after[peer] - before.get(peer, np.zeros(4, int)) for peer in after}
            results.append(
                (entry.collective, entry.name, odd, {p: tuple(m.tolist()) for p, m in moved.items() if m.any()})
            )
    return results  # type: ignore[return-value]


@pytest.mark.parametrize(("transport", "header_bytes"), [("tcp", HEADER.size), ("shm", RECORD.size)])
@pytest.mark.parametrize("world_size", [2, 3, 4, 6])
def test_bytes_on_the_wire_are_the_bytes_of_the_schedule(world_size: int, transport: str, header_bytes: int) -> None:
    ranks: list[Any] = run_ranks(world_size, moved_bytes, transport=transport)
    assert len(ranks[0]) > 20
    for case in zip(*ranks, strict=True):
        collective, name, odd, _ = case[0]
        ready = proven(collective, name, world_size)
        assert ready is not None
        counts = count(ready, 1003 * world_size + odd, 4)
        pairs = dict(zip(zip(counts.pair_src, counts.pair_dst, strict=True), counts.pair_bytes, strict=True))
        for rank, (_, _, _, moved) in enumerate(case):
            assert {p: m[0] for p, m in moved.items() if m[0]} == {d: b for (s, d), b in pairs.items() if s == rank}, (
                case[0]
            )
            assert {p: m[1] for p, m in moved.items() if m[1]} == {s: b for (s, d), b in pairs.items() if d == rank}, (
                case[0]
            )
            # One header for each connection and direction in use, or one for each piece in shared memory.
            assert all(m[2] % header_bytes == 0 == m[3] % header_bytes for m in moved.values())
            assert all(m[2] + m[3] > 0 for m in moved.values())


# -- larger worlds -------------------------------------------------------------------------------------------


def a_sum(comm: Communicator) -> bool:
    result = comm.all_reduce(np.full(10_001, float(comm.rank)), algorithm="ring")
    comm.barrier()
    return bool((result == comm.world_size * (comm.world_size - 1) / 2).all())


@pytest.mark.parametrize("world_size", [16, 32])
def test_many_processes(world_size: int) -> None:
    assert all(run_ranks(world_size, a_sum, timeout=50.0))
