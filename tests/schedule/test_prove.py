"""The proof against a prover written from the definition, with dictionaries and sets, and every error by hand."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import schedules

from atoll.errors import InternalError, ScheduleError, SpecError
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.contract import COLLECTIVES, Contract
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.schedule.table import COLUMNS, REPLACE, Header, Row, Schedule

Place = tuple[int, int]  # rank, chunk of its memory


class Value(NamedTuple):
    """Which ranks contributed, to which chunk number."""

    ranks: frozenset[int]
    number: int


class Fault(NamedTuple):
    """What is wrong, and where."""

    what: str
    rank: int
    chunk: int


class Verdict(NamedTuple):
    """Faults of the first step that has any (None: of the outputs); facts of every chunk moved until then."""

    step: int | None
    faults: set[Fault]
    numbers: list[int]
    received_first: list[bool]


def required_output(terms: Contract, rank: int) -> list[Value]:
    """The contract table, once more and by hand."""
    everyone = frozenset(range(terms.world_size))
    per_block = terms.chunks // terms.world_size
    mine = range(rank * per_block, (rank + 1) * per_block)
    every_chunk = range(terms.chunks)
    match terms.collective.name:
        case "all_reduce" | "barrier":
            return [Value(everyone, chunk) for chunk in every_chunk]
        case "reduce_scatter":
            return [Value(everyone, chunk) for chunk in mine]
        case "all_gather":
            return [Value(frozenset({chunk // per_block}), chunk) for chunk in every_chunk]
        case "broadcast":
            return [Value(frozenset({terms.root or 0}), chunk) for chunk in every_chunk]
        case "reduce":
            return [Value(everyone, chunk) for chunk in every_chunk] if rank == terms.root else []
        case "all_to_all":
            return [Value(frozenset({source}), chunk) for source in everyone for chunk in mine]
        case "gather":
            whole = [Value(frozenset({chunk // per_block}), chunk) for chunk in every_chunk]
            return whole if rank == terms.root else []
        case "scatter":
            return [Value(frozenset({terms.root or 0}), chunk) for chunk in mine]
    raise AssertionError(terms.collective.name)


def held_input(terms: Contract, rank: int) -> list[int]:
    """The chunk numbers that a rank starts with."""
    match terms.collective.name:
        case "all_gather" | "gather":
            per_block = terms.chunks // terms.world_size
            return list(range(rank * per_block, (rank + 1) * per_block))
        case "broadcast" | "scatter":
            return list(range(terms.chunks)) if rank == terms.root else []
    return list(range(terms.chunks))


def judge(schedule: Schedule) -> Verdict:
    """Replay by definition; whether a step makes progress is not asked."""
    header, terms = schedule.header, schedule.header.contract
    memory: dict[Place, Value] = {}
    for rank in range(terms.world_size):
        for place, number in enumerate(held_input(terms, rank)):
            memory[rank, header.input_offset[rank] + place] = Value(frozenset({rank}), number)
    numbers: list[int] = []
    received_first: list[bool] = []
    for step, rows in groupby(schedule.rows(), key=lambda row: row.step):
        moves = [
            (row.src, row.dst, row.src_chunk + index, row.dst_chunk + index,
             None if row.operand_chunk == REPLACE else row.operand_chunk + index)
            for row in rows for index in range(row.num_chunks)
        ]  # fmt: skip
        faults = {
            Fault("reads what is not there", src, chunk) for src, _, chunk, *_ in moves if (src, chunk) not in memory
        }
        writers: dict[Place, list[int]] = defaultdict(list)
        for at in sorted(range(len(moves)), key=lambda at: (moves[at][0], at)):
            writers[moves[at][1], moves[at][3]].append(at)
        for (rank, chunk), queue in writers.items():
            operands = [moves[at][4] for at in queue]
            if len(queue) > 1 and (None in operands or any(operand != chunk for operand in operands[1:])):
                faults.add(Fault("conflicting writes", rank, chunk))
        if faults:
            return Verdict(step, faults, numbers, received_first)
        numbers += [memory[src, chunk].number for src, _, chunk, *_ in moves]
        first = [False] * len(moves)
        after = dict(memory)
        for (rank, target), queue in writers.items():
            for at in queue:
                src, _, chunk, _, operand = moves[at]
                received = memory[src, chunk]
                if operand is None:
                    after[rank, target] = received
                    continue
                held = after.get((rank, target)) if at != queue[0] else memory.get((rank, operand))
                if not terms.collective.reduces:
                    faults.add(Fault(f"reduces, which {terms.collective.name} does not", rank, target))
                elif held is None:
                    faults.add(Fault("reduces into what is not there", rank, operand))
                elif held.number != received.number:
                    faults.add(Fault("reduces two different chunks", rank, operand))
                elif held.ranks & received.ranks and terms.collective.name != "barrier":
                    faults.add(Fault("counts a contribution twice", rank, target))
                else:
                    first[at] = min(received.ranks) < min(held.ranks)
                    after[rank, target] = Value(held.ranks | received.ranks, held.number)
        if faults:
            return Verdict(step, faults, numbers, received_first)
        received_first += first
        memory = after
    faults = {
        Fault("wrong output", rank, header.output_offset[rank] + place)
        for rank in range(terms.world_size)
        for place, value in enumerate(required_output(terms, rank))
        if memory.get((rank, header.output_offset[rank] + place)) != value
    }
    return Verdict(None, faults, numbers, received_first)


@st.composite
def mutants(draw: st.DrawFn) -> Schedule:
    """A schedule that does its work, spoilt in up to three places: rows gone, doubled, swapped, or redirected."""
    schedule = draw(schedules())
    rng = random.Random(draw(st.integers(0, 2**32)))
    rows = [list(row) for row in schedule.rows()]
    for _ in range(draw(st.integers(0, 3))):
        if not rows:
            break
        at = rng.randrange(len(rows))
        match rng.randrange(5):
            case 0:
                del rows[at]
            case 1:
                rows.insert(rng.randrange(len(rows) + 1), list(rows[at]))
            case 2:
                other = rng.randrange(len(rows))
                rows[at][0], rows[other][0] = rows[other][0], rows[at][0]
            case 3:
                rows[at][6] = rng.choice((REPLACE, rows[at][4], 0))
            case 4:
                column = rng.choice((1, 2, 3, 4))
                limit = schedule.world_size if column < 3 else min(schedule.header.memory_chunks) - rows[at][5] + 1
                if limit > 0:
                    rows[at][column] = rng.randrange(limit)
    table = np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS))
    return Schedule(schedule.header, {name: table[:, index] for index, name in enumerate(COLUMNS)})


@settings(max_examples=500, deadline=None)
@given(mutants())
def test_accepts_and_refuses_what_the_definition_does(schedule: Schedule) -> None:
    memory = schedule.header.memory_chunks
    for row in schedule.rows():
        if max(row.dst_chunk, row.operand_chunk) + row.num_chunks > memory[row.dst] or (
            row.src_chunk + row.num_chunks > memory[row.src]
        ):
            with pytest.raises(ScheduleError, match="memory"):
                prove(schedule)
            return
    verdict = judge(schedule)
    error = error_of(schedule)
    if error is None:
        proven = prove(schedule)
        assert verdict.faults == set()
        assert proven.chunk_number.tolist() == verdict.numbers
        assert proven.received_first.tolist() == verdict.received_first
    elif "wait for each other" in error.what:
        assert error.step is not None
        assert verdict.step is None or error.step < verdict.step
    else:
        assert error.rank is not None
        assert error.chunk is not None
        assert error.step == verdict.step
        assert Fault(error.what, error.rank, error.chunk) in verdict.faults


def error_of(schedule: Schedule) -> ScheduleError | None:
    try:
        prove(schedule)
    except ScheduleError as error:
        return error
    return None


@settings(max_examples=200, deadline=None)
@given(schedules())
def test_what_fulfils_its_contract_is_accepted(schedule: Schedule) -> None:
    assert judge(schedule).faults == set()
    error = error_of(schedule)
    if error is not None:
        assert "wait for each other" in error.what  # test_progress says when that is right
        return
    proven = prove(schedule)
    assert proven.schedule is schedule
    assert proven.header == schedule.header
    assert proven.contract == schedule.header.contract
    assert (proven.name, proven.world_size) == (schedule.name, schedule.world_size)
    starts = [0]
    for row in schedule.rows():
        starts.append(starts[-1] + row.num_chunks)
    assert proven.row_start.tolist() == starts[:-1]
    assert len(proven.chunk_number) == len(proven.received_first) == starts[-1]


def case(
    collective: str, world_size: int, *rows: tuple[int, ...], chunks: int = 1, scratch: int = 2, name: str = "case"
) -> Schedule:
    """Rows are (step, src, dst, src_chunk, dst_chunk, num_chunks, operand_chunk)."""
    root = 0 if COLLECTIVES[collective].rooted else None
    builder = ScheduleBuilder(collective, world_size, chunks, name=name, root=root, scratch_chunks=scratch)
    for step, src, dst, src_chunk, dst_chunk, num_chunks, operand in rows:
        if operand == REPLACE:
            builder.copy(step, src, dst, src_chunk, dst_chunk, num_chunks=num_chunks)
        else:
            builder.reduce(step, src, dst, src_chunk, dst_chunk, num_chunks=num_chunks, operand_chunk=operand)
    return builder.build()


@pytest.mark.parametrize(
    ("schedule", "what", "where", "expected", "got", "hint"),
    [
        pytest.param(
            case("all_reduce", 3, (0, 1, 0, 0, 0, 1, 0), (1, 0, 1, 0, 0, 1, -1), (1, 0, 2, 0, 0, 1, -1)),
            "wrong output", (None, 0, 0), "chunk 0 of ranks 0-2", "chunk 0 of ranks 0-1", "rank 2 missing",
            id="missing contribution",
        ),
        pytest.param(
            case("all_reduce", 2, (3, 0, 1, 0, 0, 1, 0), (5, 1, 0, 0, 0, 1, 0)),
            "counts a contribution twice", (5, 0, 0), "operands without a common rank",
            "rank 0 in both rank 0 (held) and ranks 0-1 (received from rank 1)", "", id="doubled contribution",
        ),
        pytest.param(
            case("broadcast", 3, (0, 0, 1, 0, 0, 1, -1), (1, 1, 2, 0, 0, 1, -1), chunks=2),
            "wrong output", (None, 1, 1), "chunk 1 of rank 0", "nothing", "", id="output never written",
        ),
        pytest.param(
            case("all_gather", 3, (0, 1, 0, 1, 2, 1, -1), (0, 2, 0, 2, 1, 1, -1), chunks=3),
            "wrong output", (None, 0, 1), "chunk 1 of rank 1", "chunk 2 of rank 2", "", id="another chunk",
        ),
        pytest.param(
            case("all_to_all", 2, (0, 0, 0, 0, 2, 1, -1), (0, 0, 0, 0, 3, 1, -1), (0, 0, 1, 1, 2, 1, -1),
                 (0, 1, 1, 1, 3, 1, -1), chunks=2),
            "wrong output", (None, 0, 3), "chunk 0 of rank 1", "chunk 0 of rank 0", "rank 1 missing; rank 0 foreign",
            id="foreign contribution",
        ),
        pytest.param(
            case("broadcast", 2, (4, 1, 0, 0, 0, 1, -1)),
            "reads what is not there", (4, 1, 0), "a value", "nothing", "", id="read of nothing",
        ),
        pytest.param(
            case("broadcast", 3, (0, 0, 1, 0, 0, 1, -1), (0, 1, 2, 0, 0, 1, -1)),
            "reads what is not there", (0, 1, 0), "a value", "nothing", "", id="read of what its own step writes",
        ),
        pytest.param(
            case("broadcast", 2, (0, 0, 1, 0, 0, 3, -1), chunks=2),
            "reads what is not there", (0, 0, 2), "a value", "nothing", "", id="run that is there in part",
        ),
        pytest.param(
            case("all_gather", 3, (2, 1, 0, 1, 1, 1, -1), (2, 2, 0, 2, 1, 1, -1), chunks=3),
            "conflicting writes", (2, 0, 1), "one writer, or reductions only",
            "a replace among 2 writes, from ranks 1-2", "", id="two replaces",
        ),
        pytest.param(
            case("all_reduce", 4, (0, 1, 0, 0, 0, 1, 0), (0, 3, 0, 0, 0, 1, -1)),
            "conflicting writes", (0, 0, 0), "one writer, or reductions only",
            "a replace among 2 writes, from ranks 1, 3", "", id="replace and reduction",
        ),
        pytest.param(
            case("all_reduce", 3, (0, 1, 0, 0, 1, 1, 0), (0, 2, 0, 0, 1, 1, 0)),
            "conflicting writes", (0, 0, 1), "each later reduction to name the destination as its operand",
            "operand chunk 0", "", id="later reduction with an operand elsewhere",
        ),
        pytest.param(
            case("all_reduce", 2, (0, 0, 1, 0, 1, 1, 1)),
            "reduces into what is not there", (0, 1, 1), "an operand for chunk 0 of rank 0", "nothing", "",
            id="reduction into nothing",
        ),
        pytest.param(
            case("all_reduce", 2, (0, 0, 1, 0, 1, 1, 1), chunks=2),
            "reduces two different chunks", (0, 1, 1), "an operand for chunk 0 of rank 0", "chunk 1 of rank 1", "",
            id="two chunk numbers",
        ),
        pytest.param(
            case("all_gather", 2, (0, 0, 1, 0, 1, 1, 1), chunks=2),
            "reduces, which all_gather does not", (0, 1, 1), "a replace", "a reduction", "",
            id="reduction in a collective without one",
        ),
        pytest.param(
            case("reduce_scatter", 2, (0, 0, 1, 1, 1, 1, 1), chunks=2),
            "wrong output", (None, 0, 0), "chunk 0 of ranks 0-1", "chunk 0 of rank 0", "rank 1 missing",
            id="the other block is missing",
        ),
    ],
)  # fmt: skip
def test_errors_say_what_where_expected_and_got(
    schedule: Schedule, what: str, where: tuple[int | None, int, int], expected: str, got: str, hint: str
) -> None:
    with pytest.raises(ScheduleError) as caught:
        prove(schedule)
    error = caught.value
    assert (error.schedule, error.what) == ("case", what)
    assert (error.step, error.rank, error.chunk) == where
    assert (error.expected, error.got, error.hint) == (expected, got, hint)
    for part in ("case", what, f"rank {where[1]}", f"chunk {where[2]}", expected, got, hint):
        assert part in str(error)


HEADER = Header("all_reduce", 2, 1, None, "bad", (0, 0), (0, 0), (1, 1))
GOOD_ROW = Row(0, 0, 1, 0, 0, 1, 0, 0)


@pytest.mark.parametrize(
    ("change", "column", "got"),
    [
        ({"src": 2}, "src: a rank below 2", "2"),
        ({"src": -1}, "src: a rank below 2", "-1"),
        ({"dst": 2}, "dst: a rank below 2", "2"),
        ({"step": -1}, "step: a step of at least 0", "-1"),
        ({"channel": -3}, "channel: a channel of at least 0", "-3"),
        ({"num_chunks": 0}, "num_chunks: at least 1 chunk", "0"),
        ({"num_chunks": 2}, "src_chunk: a run inside the sender's memory", "0"),
        ({"src_chunk": 1}, "src_chunk: a run inside the sender's memory", "1"),
        ({"src_chunk": -1}, "src_chunk: a run inside the sender's memory", "-1"),
        ({"dst_chunk": 1}, "dst_chunk: a run inside the receiver's memory", "1"),
        ({"operand_chunk": 1}, "operand_chunk: -1 or a run inside the receiver's memory", "1"),
        ({"operand_chunk": -2}, "operand_chunk: -1 or a run inside the receiver's memory", "-2"),
        ({"num_chunks": 2**31 - 1, "dst_chunk": 2**31 - 1}, "src_chunk: a run inside the sender's memory", "0"),
    ],
)
def test_rows_outside_the_world_or_its_memory_are_refused(change: dict[str, int], column: str, got: str) -> None:
    bad = GOOD_ROW._replace(**change)
    # The bad row has the lowest step there is, so that sorting by step leaves it first.
    columns = {name: [getattr(bad, name), getattr(GOOD_ROW._replace(step=1), name)] for name in COLUMNS}
    with pytest.raises(ScheduleError) as caught:
        prove(Schedule(HEADER, columns))
    error = caught.value
    assert error.what.startswith("row 0 (")
    assert (error.step, error.rank, error.chunk) == (bad.step, bad.dst, bad.dst_chunk)
    assert (error.expected, error.got) == (column, got)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"collective": "all_sum"}, SpecError, "unknown collective 'all_sum'"),
        ({"world_size": 0}, SpecError, "world of at least 1 rank"),
        ({"chunks": 0}, SpecError, "at least 1 chunk"),
        ({"root": 0}, SpecError, "has no root"),
        ({"collective": "reduce"}, SpecError, "a root between 0 and 1"),
        ({"collective": "reduce", "root": 2}, SpecError, "a root between 0 and 1"),
        ({"collective": "all_gather"}, SpecError, "a multiple of 2 ranks"),
        ({"input_offset": (0,)}, ScheduleError, "header field input_offset"),
        ({"output_offset": (0, 0, 0)}, ScheduleError, "header field output_offset"),
        ({"memory_chunks": ()}, ScheduleError, "header field memory_chunks"),
        ({"input_offset": (0, 1)}, ScheduleError, "input region outside memory at rank 1"),
        ({"output_offset": (-1, 0)}, ScheduleError, "output region outside memory at rank 0"),
        ({"memory_chunks": (1, 0)}, ScheduleError, "input region outside memory at rank 1"),
        ({"memory_chunks": (1, 2**40)}, ScheduleError, "memory_chunks at rank 1"),
        ({"memory_chunks": (1, 10**40)}, ScheduleError, "memory_chunks at rank 1"),
        ({"memory_chunks": (1, 2**31 - 1)}, SpecError, "too large to prove: memory in all ranks"),
    ],
)
def test_headers_that_are_no_contract_are_refused(change: dict[str, object], error: type, message: str) -> None:
    fields = {name: getattr(HEADER, name) for name in Header.__struct_fields__} | change
    schedule = Schedule(Header(**fields), {name: [getattr(GOOD_ROW, name)] for name in COLUMNS})
    with pytest.raises(error) as caught:
        prove(schedule)
    assert message in str(caught.value)


def test_a_file_of_few_rows_cannot_take_the_machines_memory() -> None:
    chunks = 10**6
    builder = ScheduleBuilder("broadcast", 2, chunks, name="greedy", root=0)
    for step in (0, 1):
        builder.copy(step, 0, [1] * 300, 0, num_chunks=chunks)
    with pytest.raises(SpecError, match="greedy: too large to prove: moves in one step come to 300000000 chunks"):
        prove(builder.build())
    with pytest.raises(SpecError, match="above the limit of 1 KiB"):
        prove(case("all_reduce", 2, (0, 0, 1, 0, 0, 1, 0), chunks=100), state_limit_bytes=1024)


def test_reductions_of_a_step_apply_by_source_then_row() -> None:
    """Ranks 3, 1 and twice rank 2 reduce into rank 0's scratch, which starts from an operand elsewhere."""
    schedule = case(
        "reduce", 4,
        (0, 3, 0, 0, 2, 1, 2),  # rank 3 comes last
        (0, 2, 0, 0, 2, 1, 2),
        (0, 1, 0, 0, 2, 1, 0),  # rank 1 opens: scratch = rank 0's own (op) rank 1's
        (1, 0, 0, 2, 0, 1, -1),
    )  # fmt: skip
    proven = prove(schedule)
    assert proven.chunk_number.tolist() == [0, 0, 0, 0]
    assert proven.received_first.tolist() == [False] * 4
    # With the operand elsewhere at rank 2, which is not the first writer, it is refused.
    wrong = case(
        "reduce", 4, (0, 3, 0, 0, 2, 1, 2), (0, 2, 0, 0, 2, 1, 0), (0, 1, 0, 0, 2, 1, 2), (1, 0, 0, 2, 0, 1, -1)
    )
    with pytest.raises(ScheduleError, match="later reduction"):
        prove(wrong)


def test_operands_are_ordered_by_lowest_contributor() -> None:
    schedule = case(
        "all_reduce", 4,
        (0, 0, 1, 0, 0, 1, 0),  # 1 + {0}: received first
        (0, 3, 2, 0, 0, 1, 0),  # 2 + {3}: held first
        (1, 2, 1, 0, 0, 1, 0),  # {0, 1} + {2, 3}: held first
        (2, 1, 0, 0, 0, 1, -1),
        (2, 1, 2, 0, 0, 1, -1),
        (2, 1, 3, 0, 0, 1, -1),
    )  # fmt: skip
    assert prove(schedule).received_first.tolist() == [True, False, False, False, False, False]


def test_a_barrier_counts_at_least_once_and_nothing_less() -> None:
    """Dissemination among 3 ranks brings every token twice, which only a barrier may."""
    rows = [(step, rank, (rank + hop) % 3, 0, 0, 1, 0) for step, hop in ((0, 1), (1, 2)) for rank in range(3)]
    prove(case("barrier", 3, *rows))
    with pytest.raises(ScheduleError, match="counts a contribution twice"):
        prove(case("all_reduce", 3, *[(0, 0, 1, 0, 0, 1, 0), (1, 1, 0, 0, 0, 1, 0)]))
    with pytest.raises(ScheduleError, match="rank 1 missing"):
        prove(case("barrier", 3, *rows[:3]))


@pytest.mark.parametrize("world_size", [63, 64, 65, 127, 128, 129, 200])
def test_worlds_of_several_words_of_bits(world_size: int) -> None:
    """Each rank's bit counts, also the last of a word and the first of the next."""
    gather = [(0, rank, 0, 0, 0, 1, 0) for rank in range(1, world_size)]
    prove(case("reduce", world_size, *gather))
    for absent in {1, 62, 63, 64, 65, 127, 128, world_size - 1}:
        if absent >= world_size:
            continue
        with pytest.raises(ScheduleError) as caught:
            prove(case("reduce", world_size, *[row for row in gather if row[1] != absent]))
        assert caught.value.hint == f"rank {absent} missing"
        with pytest.raises(ScheduleError) as caught:
            prove(case("reduce", world_size, *gather, (1, absent, 0, 0, 0, 1, 0)))
        assert caught.value.got == (
            f"rank {absent} in both ranks 0-{world_size - 1} (held) and rank {absent} (received from rank {absent})"
        )


def test_the_1024_rank_ring_is_proven_step_by_step_not_row_by_row() -> None:
    """Two million rows; the work is counted in steps, each one batch of arrays."""
    world_size = 1024
    builder = ScheduleBuilder("all_reduce", world_size, world_size, name="ring")
    rank = np.arange(world_size)
    for step in range(world_size - 1):
        builder.reduce(step, rank, (rank + 1) % world_size, (rank - step) % world_size)
    for step in range(world_size - 1):
        builder.copy(world_size - 1 + step, rank, (rank + 1) % world_size, (rank + 1 - step) % world_size)
    schedule = builder.build()
    assert len(schedule) == 2_095_104
    assert sum(1 for _ in schedule.steps()) == 2 * (world_size - 1)
    proven = prove(schedule)
    # Only rank 0 holds the operand that comes first, for every chunk that does not start there.
    assert int(proven.received_first.sum()) == (world_size - 1) ** 2


def test_only_prove_makes_a_proven_schedule() -> None:
    schedule = case("all_reduce", 2)
    with pytest.raises(InternalError, match=r"made by prove\(\) alone"):
        ProvenSchedule(schedule, np.zeros(0, np.int32), np.zeros(0, np.bool_), seal=object())
    with pytest.raises(TypeError):
        ProvenSchedule(schedule, np.zeros(0, np.int32), np.zeros(0, np.bool_))  # type: ignore[call-arg]


def test_a_proof_stays_true() -> None:
    """Neither the schedule nor what the proof found can be changed afterwards."""
    proven = prove(case("all_reduce", 2, (0, 0, 1, 0, 0, 1, 0), (1, 1, 0, 0, 0, 1, -1)))
    for array in (proven.row_start, proven.chunk_number, proven.received_first):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    for name in ("schedule", "row_start", "chunk_number", "received_first"):
        with pytest.raises(AttributeError):
            setattr(proven, name, None)
    with pytest.raises(AttributeError):
        proven.schedule.header = HEADER  # type: ignore[misc]
    copy = proven.schedule.column("src")
    copy[:] = 0
    assert proven.schedule.column("src").tolist() == [0, 1]


def test_a_schedule_of_one_rank_needs_no_rows() -> None:
    for collective in COLLECTIVES:
        if collective == "all_to_all":
            continue
        proven = prove(case(collective, 1))
        assert len(proven.schedule) == 0
        assert len(proven.chunk_number) == 0
    prove(case("all_to_all", 1, (0, 0, 0, 0, 1, 1, -1)))
