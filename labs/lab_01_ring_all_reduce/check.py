"""Judge a version of the exercise: ``python check.py mine.py``.

Cases go from easy to hard, each in processes of its own, and the first one that fails is explained: what is wrong, on
which rank and chunk, and what it may come from. Judged are the results (of every dtype, length and world, bit for bit
where the order of summing shows), the bytes that really pass the sockets, that ``Counter`` agrees with them, that the
vector is changed in place without another one like it, and that messages larger than the socket buffers get through.

Exit status: 0 all cases pass, 1 one failed, 2 the file cannot be read or the arguments make no sense.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click
import diagnose
import numpy as np
import vectors
from exercise import CannotLoad, Exercise, load
from vectors import Array
from world import Place, WorldError, run_world

from atoll.errors import SpecError
from atoll.schedule.prove import ProvenSchedule
from atoll.units import format_size, parse_duration

SEED = 20_090
# A chunk of the large cases, a fourth of 2 MiB, cannot hide in buffers that small, which the kernel doubles.
SMALL_BUFFER_BYTES = 64 << 10
LARGE_LENGTH = 1 << 18


@dataclass(frozen=True)
class Case:
    """One run. ``data``: ``coded`` explains itself, ``whole`` is exact in every dtype, ``floats`` shows the order."""

    about: str
    world_size: int
    length: int
    data: str = "coded"
    dtype: str = "int64"
    calls: int = 1
    small_buffers: bool = False
    trace_memory: bool = False

    def title(self) -> str:
        ranks = f"{self.world_size} rank{'s' if self.world_size > 1 else ''}"
        return f"{self.about}: {ranks}, {self.length} x {self.dtype}"

    def inputs(self) -> list[Array]:
        ranks = range(self.world_size)
        dtype = np.dtype(self.dtype)
        if self.data == "coded":
            return [diagnose.coded(self.length, rank) for rank in ranks]
        if self.data == "whole":
            return [vectors.whole_numbers(dtype, self.length, rank, self.world_size, SEED) for rank in ranks]
        return [vectors.order_sensitive(dtype, self.length, rank, SEED) for rank in ranks]


EXCHANGES = (
    Case("exchange", 2, 5),
    Case("exchange, one side empty", 3, 0),
    Case("exchange, larger than the socket buffers", 2, LARGE_LENGTH, small_buffers=True),
)
RINGS = (
    Case("a world of one", 1, 5),
    *(Case("chunks of one size", world_size, 4 * world_size) for world_size in (2, 3, 4, 5)),
    Case("chunks larger than the socket buffers", 2, LARGE_LENGTH, small_buffers=True),
    Case("chunks larger than the socket buffers", 4, LARGE_LENGTH, small_buffers=True),
    *(Case("N does not divide the length", world_size, length) for world_size, length in ((2, 7), (3, 10), (4, 1003))),
    *(Case("shorter than the world", world_size, length) for world_size, length in ((2, 1), (4, 3), (5, 2), (3, 0))),
    Case("three in a row", 3, 11, calls=3),
    *(Case("dtype", 3, 100, "whole", dtype) for dtype in ("uint8", "int32", "float16", "float64", "complex64")),
    *(Case("order of summing", world_size, 1001, "floats", "float32") for world_size in (3, 4)),
    Case("no second vector in memory", 3, LARGE_LENGTH, trace_memory=True),
)


@dataclass
class Outcome:
    """What one rank ended with; bytes are (sent, received)."""

    vectors: list[Array]
    passed: tuple[int, int]
    backwards: int
    counter: tuple[int, int]
    peak_bytes: int


@cache
def _ring(world_size: int) -> ProvenSchedule:
    return vectors.library_ring(world_size)


# -- exchange -------------------------------------------------------------------------------------------------------


def judge_exchange(case: Case, exercise: Exercise, file: Path, deadline_s: float) -> str | None:
    """Each rank sends its own vector to the right; odd ranks one element less, so lengths differ."""

    def outgoing(rank: int) -> Array:
        return diagnose.coded(max(0, case.length - rank % 2) if case.length else 7 * (rank == 0), rank)

    def body(place: Place) -> Outcome:
        left_rank = (place.rank - 1) % place.world_size
        incoming = np.zeros_like(outgoing(left_rank))
        counter = exercise.counter()
        place.barrier()
        exercise.exchange(place.right, outgoing(place.rank), place.left, incoming, counter)
        place.barrier()
        return Outcome([incoming], place.passed(), _backwards(place), (counter.sent, counter.received), 0)

    try:
        outcomes = _run(case, body, deadline_s)
    except WorldError as error:
        return diagnose.explain_failure(error, file)
    for rank, outcome in enumerate(outcomes):
        expected = outgoing((rank - 1) % case.world_size)
        wrong = vectors.wrong_elements(outcome.vectors[0], expected)
        if len(wrong):
            return (
                f"rank {rank} has not received what its left neighbour sent: {len(wrong)} of {len(expected)} elements "
                f"differ, the first is element {wrong[0]}. send and recv_into may take fewer bytes than you offer: go "
                "on where they stopped."
            )
        sent = outgoing(rank).nbytes
        if outcome.passed != (sent, expected.nbytes):
            return f"rank {rank} sent and received {outcome.passed} bytes, expected {(sent, expected.nbytes)}"
    return _explain_backwards(outcomes) or _explain_counter(outcomes)


# -- the ring --------------------------------------------------------------------------------------------------------


def judge_ring(case: Case, exercise: Exercise, file: Path, deadline_s: float) -> str | None:
    """One case of the all-reduce; what is wrong, or ``None``."""
    inputs = case.inputs()

    def body(place: Place) -> Outcome:
        return _ring_body(place, exercise, inputs[place.rank], case)

    try:
        outcomes = _run(case, body, deadline_s)
    except WorldError as error:
        return diagnose.explain_failure(error, file)
    for call in range(case.calls):
        results = [outcome.vectors[call] for outcome in outcomes]
        text = _explain_vectors(case, inputs, results)
        if text:
            again = f"the first {call} calls were right; in the next, on the same sockets, " if call else ""
            return again + text
    itemsize = np.dtype(case.dtype).itemsize
    rings = [
        [(case.calls * sent, case.calls * received) for sent, received in ring]
        for ring in (
            vectors.ring_bytes(_ring(case.world_size), case.length, itemsize, turn) for turn in range(case.world_size)
        )
    ]
    size = case.length * itemsize
    return (
        _explain_backwards(outcomes)
        or diagnose.explain_bytes([outcome.passed for outcome in outcomes], rings, case.calls * case.length, itemsize)
        or _explain_counter(outcomes)
        or _explain_memory(outcomes, size)
    )


def _ring_body(place: Place, exercise: Exercise, start: Array, case: Case) -> Outcome:
    counter = exercise.counter()
    results = []
    vector = start.copy()
    peak_bytes = 0
    for _ in range(case.calls):
        vector[:] = start
        place.barrier()
        if case.trace_memory:
            tracemalloc.start()
        exercise.ring_all_reduce(place.rank, place.world_size, vector, place.left, place.right, counter)
        if case.trace_memory:
            peak_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        place.barrier()
        results.append(vector.copy())
    return Outcome(results, place.passed(), _backwards(place), (counter.sent, counter.received), peak_bytes)


def _explain_vectors(case: Case, inputs: Sequence[Array], results: Sequence[Array]) -> str | None:
    if case.data == "coded":
        return diagnose.explain_result(results)
    if case.data == "whole":
        expected = vectors.exact_sum(inputs)
        for rank, result in enumerate(results):
            wrong = vectors.wrong_elements(result, expected)
            if len(wrong):
                return (
                    f"rank {rank} has {len(wrong)} wrong elements; element {wrong[0]} is {result[wrong[0]]}, expected "
                    f"{expected[wrong[0]]}. Is a dtype fixed in the code? Chunks have the dtype of the vector."
                )
        return None
    for turn in range(case.world_size):
        ring = vectors.ring_outputs(_ring(case.world_size), inputs, turn)
        if not any(len(vectors.wrong_elements(*pair)) for pair in zip(results, ring, strict=True)):
            return None
    if any(len(vectors.wrong_elements(result, results[0])) for result in results):
        return (
            "the ranks end with different bits. Floating-point sums depend on their order: in a ring one rank "
            "completes a chunk, and all others get copies of it."
        )
    return (
        "the sums are right but for rounding, and not those of a ring: there, chunk c is summed in the order in which "
        "it travels, c + 1, c + 2, ..., c (mod N), by adding what comes in to the rank's own. Are the chunks those of "
        "np.array_split?"
    )


# -- both ------------------------------------------------------------------------------------------------------------


def _run(case: Case, body: Any, deadline_s: float) -> list[Outcome]:
    buffer_bytes = SMALL_BUFFER_BYTES if case.small_buffers else None
    return run_world(case.world_size, body, deadline_s=deadline_s, buffer_bytes=buffer_bytes)


def _backwards(place: Place) -> int:
    """Bytes that went the wrong way round the ring."""
    return place.left.sent_bytes + place.right.received_bytes


def _explain_backwards(outcomes: Sequence[Outcome]) -> str | None:
    for rank, outcome in enumerate(outcomes):
        if outcome.backwards:
            return (
                f"{outcome.backwards} bytes went the wrong way on rank {rank}: out to the left, or in from the right. "
                "Send through right, receive from left."
            )
    return None


def _explain_counter(outcomes: Sequence[Outcome]) -> str | None:
    for rank, outcome in enumerate(outcomes):
        if outcome.counter != outcome.passed:
            return (
                f"counter of rank {rank} says {outcome.counter[0]} bytes sent and {outcome.counter[1]} received; "
                f"{outcome.passed[0]} and {outcome.passed[1]} really passed its sockets. Add what send and recv_into "
                "return, every time."
            )
    return None


def _explain_memory(outcomes: Sequence[Outcome], size_bytes: int) -> str | None:
    for rank, outcome in enumerate(outcomes):
        if outcome.peak_bytes >= size_bytes > 0:
            return (
                f"rank {rank} took {format_size(outcome.peak_bytes)} of memory for a vector of "
                f"{format_size(size_bytes)}: a ring needs room for one incoming chunk, V / N. Is the vector copied, or "
                "are all chunks?"
            )
    return None


def judge(exercise: Exercise, file: Path, deadline_s: float) -> Iterator[tuple[Case, str | None]]:
    """Cases and what is wrong with them; ends with the first that fails."""
    for cases, judge_one in ((EXCHANGES, judge_exchange), (RINGS, judge_ring)):
        for case in cases:
            text = judge_one(case, exercise, file, deadline_s)
            yield case, text
            if text is not None:
                return


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--deadline", default="10s", show_default=True, help="Seconds that one case may take.")
def main(file: Path, deadline: str) -> None:
    """Judge FILE, your version of the exercise."""
    try:
        deadline_s = parse_duration(deadline, "--deadline")
        if not deadline_s > 0:
            raise SpecError(f"--deadline: expected more than 0 seconds, got {deadline!r}")
        exercise = load(file.resolve())
    except SpecError as error:
        sys.exit(_complain(str(error), 2))
    except OSError as error:
        sys.exit(_complain(f"{file}: {error.strerror}", 2))
    except CannotLoad as error:
        print(f"FAIL  {error}")
        sys.exit(1)
    passed = 0
    try:
        for case, text in judge(exercise, file.resolve(), deadline_s):
            if text is not None:
                print(f"FAIL  {case.title()}\n\n{text}")
                sys.exit(1)
            print(f"ok    {case.title()}", flush=True)
            passed += 1
    except KeyboardInterrupt:
        sys.exit(_complain("interrupted", 130))
    print(f"\nAll {passed} cases pass: a ring all-reduce, in place, with no byte too many.")


def _complain(message: str, status: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
