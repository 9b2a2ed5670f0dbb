"""The recorder: real ranks record exactly the messages of the schedule that they run, in an order that is possible."""

from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

from atoll.algorithms.catalog import build
from atoll.errors import SpecError
from atoll.runtime import lean
from atoll.runtime.communicator import Communicator
from atoll.runtime.program import compile_program
from atoll.runtime.record import Recorder
from atoll.schedule.prove import prove
from atoll.trace.events import Collective, Key, Trace, lanes

RANKS = 4


def messages(name: str, num_bytes: int) -> dict[Key, int]:
    """Every message of an all-reduce, seen by both its ranks, from the table alone; its bytes."""
    proven = prove(build("all_reduce", name, RANKS))
    found: dict[tuple[int, int, int, int], list[tuple[int, int]]] = {}
    for at, row in enumerate(proven.schedule.rows()):
        if row.src != row.dst:
            first = int(proven.row_start[at])
            chunk = int(proven.chunk_number[first : first + row.num_chunks].min())
            found.setdefault((row.step, row.src, row.dst, row.channel), []).append((chunk, row.num_chunks))
    size = num_bytes // proven.header.chunks
    keys = {}
    for (step, src, dst, channel), rows in found.items():
        chunk, count = min(chunk for chunk, _ in rows), sum(count for _, count in rows)
        keys[Key(src, channel, step, chunk, dst, True)] = keys[Key(dst, channel, step, chunk, src, False)] = (
            count * size
        )
    return keys


def recorded(comm: Communicator, cases: list[tuple[str, int, bool]]) -> list[Any]:
    return [one_recorded(comm, *case) for case in cases]


def one_recorded(comm: Communicator, name: str, length: int, out_of_place: bool) -> Any:
    array = np.ones(length, np.float32)
    comm.all_reduce(array, algorithm=name)  # not recorded
    comm.record()
    for _ in range(2):
        comm.all_reduce(array, algorithm=name, out=None if out_of_place else array)
    trace = comm.trace()
    comm.all_reduce(array, algorithm=name)
    return None if trace is None else (trace.source, trace.places, [parts(one) for one in trace.collectives])


def parts(one: Collective) -> tuple[Any, ...]:
    fields = one.transfers.__struct_fields__
    return (one.name, one.size_bytes, one.start_s, one.end_s, [getattr(one.transfers, field) for field in fields])


def rebuilt(said: Any) -> Trace:
    from atoll.trace.events import Transfers

    source, places, calls = said
    return Trace(source, places, tuple(Collective(*head, Transfers.of(columns)) for *head, columns in calls))


@pytest.mark.parametrize(
    ("transport", "cases"),
    [("tcp", [("ring", 48, True), ("double_binary_tree", 60_000, True)]),
     ("shm", [("ring", 300_000, False), ("hierarchical", 48_000, True)])],
)  # fmt: skip
def test_ranks_record_the_messages_of_the_schedule(transport: str, cases: list[tuple[str, int, bool]]) -> None:
    first, *others = run_ranks(RANKS, recorded, cases, transport=transport)
    assert others == [[None] * len(cases)] * (RANKS - 1)
    for (name, length, _), said in zip(cases, first, strict=True):
        check_recorded(rebuilt(said), name, length)


def check_recorded(trace: Trace, name: str, length: int) -> None:
    assert trace.source == "a real run"
    expected = messages(name, 4 * length)
    assert len(trace.collectives) == 2
    for one in trace.collectives:
        transfers = one.transfers
        assert one.name == f"all-reduce {name}"
        assert dict(zip(transfers.keys(), transfers.num_bytes.tolist(), strict=True)) == expected
        assert len(transfers) == len(expected)
        assert (transfers.start_s <= transfers.end_s).all()
        assert (one.start_s[transfers.rank] <= transfers.end_s).all()
        assert (transfers.end_s <= one.end_s[transfers.rank]).all()
        ends = dict(zip(transfers.keys(), transfers.end_s.tolist(), strict=True))
        starts = dict(zip(transfers.keys(), transfers.start_s.tolist(), strict=True))
        for key in expected:
            if key.sends:
                there = Key(key.peer, key.channel, key.step, key.chunk, key.rank, False)
                assert starts[key] <= ends[there]  # one clock for all ranks of a host
    first, second = trace.collectives
    assert min(first.start_s) == 0
    assert (first.end_s <= second.start_s).all()
    assert all(len(spans) == 2 for _, spans in lanes(trace))
    assert sum(len(span.rows) for _, spans in lanes(trace) for span in spans) == 2 * len(expected)


def lines_run(comm: Communicator) -> list[int]:
    """How many calls went the straight way: before, while and after they are recorded."""
    run, counts = lean.BoundLine.run, [0]

    def counted(*args: Any) -> Any:
        counts[0] += 1
        return run(*args)

    lean.BoundLine.run = counted  # type: ignore[method-assign]
    seen = []
    for recording in (False, True, False):
        comm.all_reduce(np.ones(4), algorithm="ring")  # once for its connections
        if recording:
            comm.record()
        counts[0] = 0
        comm.all_reduce(np.ones(4), algorithm="ring")
        seen.append(counts[0])
        if recording:
            comm.trace()
    return seen


def test_a_call_that_is_not_recorded_goes_the_straight_way() -> None:
    assert run_ranks(2, lines_run, transport="shm") == [[1, 0, 1]] * 2


def untraced(comm: Communicator) -> Any:
    with pytest.raises(SpecError, match="nothing was recorded"):
        comm.trace()
    comm.record()
    if comm.rank == 0:
        # What one rank does alone: its calls are others than the second's, and rank 0 is told.
        comm.send(np.ones(3), 1)
        program = compile_program(prove(build("barrier", "dissemination", 2)), 0, 1, 1)
        comm._caller.recorder.begin("barrier", "odd", program).ended()  # type: ignore[union-attr]
    else:
        comm.recv(np.zeros(3), 0)
    try:
        return comm.trace()
    except SpecError as error:
        return str(error)


def test_ranks_that_recorded_other_calls_are_told() -> None:
    said, nothing = run_ranks(2, untraced, transport="tcp")
    assert nothing is None
    assert "expected the same calls on every rank, got 1 on rank 0 and 0 on rank 1" in said


def test_starts_are_when_a_message_could_go() -> None:
    """The middle of a chain of three, by hand: it passes a message on that comes in two pieces."""
    program = compile_program(prove(build("broadcast", "chain", 3, 0)), 1, 100, 1)
    times = iter([0.0, 100.0, 110.0, 150.0, 150.0, 160.0, 170.0])
    recorder = Recorder(clock=lambda: next(times), wall_clock=lambda: 7.0)
    assert recorder.wall_offset_s == 7.0
    call = recorder.begin("broadcast", "chain", program)
    assert call is not None
    comes, goes = (
        next(one.number for one in program.operations if (one.target is None) is way) for way in (False, True)
    )
    for operation, mark in ((comes, 0), (goes, 0), (comes, 50), (goes, 50)):
        call.advanced(operation, mark)
    assert recorder.parts(1) == []  # it has not ended
    call.ended()
    (part,) = recorder.parts(1)
    assert (part.name, part.size_bytes, part.start_s, part.end_s) == ("broadcast chain", 100, 100.0, 170.0)
    transfers = part.transfers
    assert transfers.keys() == [Key(1, 0, 0, 0, 0, False), Key(1, 0, 1, 0, 2, True)]
    assert transfers.start_s.tolist() == [100.0, 110.0]  # it could come from the call on, and go from its first byte on
    assert transfers.end_s.tolist() == [150.0, 160.0]
