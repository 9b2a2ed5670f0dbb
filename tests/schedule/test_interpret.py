"""The reference executor: the result that each collective is defined to have, and the order of every operation."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import mix, proven_schedules, random_inputs

from atoll.errors import SpecError
from atoll.schedule.builder import ScheduleBuilder
from atoll.schedule.interpret import interpret
from atoll.schedule.partition import balanced, chunk_sizes
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.schedule.table import REPLACE

Array = npt.NDArray[Any]


def expected_outputs(proven: ProvenSchedule, inputs: list[Array]) -> list[Array]:
    """Each collective in one line of NumPy."""
    terms = proven.contract
    ranks, root, empty = range(terms.world_size), terms.root, inputs[0][:0]

    def block(array: Array, rank: int) -> Array:
        part: Array = np.array_split(array, terms.world_size)[rank]
        return part

    match terms.collective.name:
        case "all_reduce" | "barrier":
            return [np.add.reduce(inputs)] * terms.world_size
        case "reduce_scatter":
            return [block(np.add.reduce(inputs), rank) for rank in ranks]
        case "all_gather":
            return [np.concatenate(inputs)] * terms.world_size
        case "broadcast":
            return [inputs[root or 0]] * terms.world_size
        case "reduce":
            return [np.add.reduce(inputs) if rank == root else empty for rank in ranks]
        case "all_to_all":
            return [np.concatenate([block(array, rank) for array in inputs]) for rank in ranks]
        case "gather":
            return [np.concatenate(inputs) if rank == root else empty for rank in ranks]
        case "scatter":
            return [block(inputs[root or 0], rank) for rank in ranks]
    raise AssertionError(terms.collective.name)


def length_for(proven: ProvenSchedule, data: st.DataObject) -> int:
    unit = proven.world_size if proven.header.collective == "all_to_all" else 1
    return data.draw(st.integers(0, 14 // unit)) * unit


@settings(max_examples=300, deadline=None)
@given(proven_schedules(), st.data())
def test_every_proven_schedule_does_what_its_collective_is(proven: ProvenSchedule, data: st.DataObject) -> None:
    """On whole numbers, whose sum has no order; any length, chunks of unequal and of no length included."""
    length = length_for(proven, data)
    inputs = random_inputs(
        proven.schedule, chunk_sizes(proven.contract, length), random.Random(data.draw(st.integers(0, 99)))
    )
    outputs = interpret(proven, inputs)
    for ours, theirs in zip(outputs, expected_outputs(proven, list(inputs)), strict=True):
        assert ours.dtype == np.uint64
        assert ours.tolist() == theirs.tolist()


@settings(max_examples=150, deadline=None)
@given(proven_schedules(collectives=("all_reduce", "reduce", "reduce_scatter")), st.data())
def test_operations_apply_in_the_order_of_the_definition(proven: ProvenSchedule, data: st.DataObject) -> None:
    """A second executor, which builds the expression of every chunk as nested tuples, ordered by lowest rank."""
    terms, header = proven.contract, proven.header
    memory: dict[tuple[int, int], Any] = {}
    for rank in range(terms.world_size):
        for place in range(terms.input_size(rank)):
            memory[rank, header.input_offset[rank] + place] = rank

    def lowest(expression: Any) -> int:
        return expression if isinstance(expression, int) else min(lowest(part) for part in expression)

    for _, rows in proven.schedule.steps():
        before = dict(memory)
        running: set[tuple[int, int]] = set()
        for at in sorted(range(len(rows.row)), key=lambda at: (rows.src[at], rows.row[at])):
            for index in range(int(rows.num_chunks[at])):
                received = before[int(rows.src[at]), int(rows.src_chunk[at]) + index]
                target = (int(rows.dst[at]), int(rows.dst_chunk[at]) + index)
                if rows.operand_chunk[at] != REPLACE:
                    operand = (int(rows.dst[at]), int(rows.operand_chunk[at]) + index)
                    held = memory[operand] if operand in running else before[operand]
                    pair = (received, held) if lowest(received) < lowest(held) else (held, received)
                    received = pair
                memory[target] = received
                running.add(target)

    length = length_for(proven, data)
    sizes = chunk_sizes(terms, length)
    inputs = random_inputs(proven.schedule, sizes, random.Random(data.draw(st.integers(0, 99))))
    starts = np.cumsum(sizes) - sizes

    def evaluate(expression: Any, number: int) -> Array:
        if isinstance(expression, int):
            return inputs[expression][starts[number] : starts[number] + sizes[number]]
        return mix(evaluate(expression[0], number), evaluate(expression[1], number))

    outputs = interpret(proven, inputs, mix)
    for rank in range(terms.world_size):
        parts = [
            evaluate(memory[rank, header.output_offset[rank] + place], number)
            for place, number in enumerate(terms.output_chunks(rank).tolist())
        ]
        assert outputs[rank].tolist() == [value for part in parts for value in part.tolist()]


def direct(collective: str = "all_reduce", world_size: int = 3, chunks: int = 1) -> ProvenSchedule:
    """Everybody sends everything to rank 0, which sends the result to everybody."""
    builder = ScheduleBuilder(collective, world_size, chunks, name="direct", root=0 if collective == "reduce" else None)
    builder.reduce(0, np.arange(1, world_size), 0, 0, num_chunks=chunks)
    if collective == "all_reduce":
        builder.copy(1, 0, np.arange(1, world_size), 0, num_chunks=chunks)
    return prove(builder.build())


def test_floating_point_sums_in_the_order_of_ranks() -> None:
    inputs = [np.array([value], dtype=np.float32) for value in (1e8, 1.0, -1e8)]
    assert [output.tolist() for output in interpret(direct(), inputs)] == [[0.0]] * 3  # (1e8 + 1) - 1e8
    inputs = [np.array([value], dtype=np.float32) for value in (1e8, -1e8, 1.0)]
    assert [output.tolist() for output in interpret(direct(), inputs)] == [[1.0]] * 3


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("operation", [np.add, np.maximum, np.multiply])
def test_outputs_have_the_dtype_of_inputs(dtype: str, operation: np.ufunc) -> None:
    inputs = [np.array([1, 0, 1, 1, 0]).astype(dtype)] * 3
    for output in interpret(direct(chunks=2), inputs, operation):
        assert output.dtype == np.dtype(dtype)
        assert output.tolist() == operation(operation(inputs[0], inputs[1]), inputs[2]).astype(dtype).tolist()


def test_inputs_of_any_shape_are_flattened_and_left_alone() -> None:
    inputs = [np.arange(12).reshape(3, 4)[:, ::2] + rank for rank in range(3)]
    kept = [array.copy() for array in inputs]
    outputs = interpret(direct(chunks=4), inputs)
    assert [output.tolist() for output in outputs] == [(kept[0] + kept[1] + kept[2]).reshape(-1).tolist()] * 3
    for array, copy in zip(inputs, kept, strict=True):
        assert array.tolist() == copy.tolist()
    outputs[0][:] = 0
    assert outputs[1].any()
    assert interpret(direct(chunks=1), [[1, 2], [3, 4], [5, 6]])[2].tolist() == [9, 12]


def test_ranks_without_input_may_give_anything() -> None:
    builder = ScheduleBuilder("broadcast", 3, 2, name="broadcast", root=1)
    builder.copy(0, 1, [0, 2], 0, num_chunks=2)
    outputs = interpret(prove(builder.build()), [[], np.arange(3, dtype=np.int16), "nothing"])
    assert [output.tolist() for output in outputs] == [[0, 1, 2]] * 3
    assert {output.dtype for output in outputs} == {np.dtype(np.int16)}


def test_ranks_without_output_get_an_empty_array() -> None:
    outputs = interpret(direct("reduce"), [np.ones(4, dtype=np.float32)] * 3)
    assert outputs[0].tolist() == [3.0] * 4
    for output in outputs[1:]:
        assert output.tolist() == []
        assert output.dtype == np.float32


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([np.zeros(2)] * 2, "all_reduce: expected 3 inputs, one a rank, got 2"),
        ([np.zeros(2)] * 4, "all_reduce: expected 3 inputs, one a rank, got 4"),
        ([np.zeros(2), np.zeros(2, dtype=np.int8), np.zeros(2)], "inputs differ in dtype: ['float64', 'int8']"),
        ([np.zeros(2), np.zeros(2), np.zeros(3)], "rank 2's input: expected 2 elements of a vector of 2, got 3"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: list[Array], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        interpret(direct(), inputs)
    assert message in str(caught.value)


def test_blocks_must_be_the_balanced_partition() -> None:
    builder = ScheduleBuilder("all_gather", 2, 2, name="exchange")
    builder.copy(0, [0, 1], [1, 0], [0, 1])
    proven = prove(builder.build())
    assert balanced(5, 2).tolist() == [3, 2]
    outputs = interpret(proven, [np.arange(3), np.arange(2)])
    assert [output.tolist() for output in outputs] == [[0, 1, 2, 0, 1]] * 2
    with pytest.raises(SpecError, match="rank 0's input: expected 3 elements of a vector of 5, got 2"):
        interpret(proven, [np.arange(2), np.arange(3)])


def test_an_all_to_all_needs_equal_blocks() -> None:
    builder = ScheduleBuilder("all_to_all", 2, 2, name="direct")
    builder.copy(0, [0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 0, 1], builder.output + np.array([0, 0, 1, 1]))
    proven = prove(builder.build())
    outputs = interpret(proven, [np.arange(4), np.arange(4) + 10])
    assert [output.tolist() for output in outputs] == [[0, 1, 10, 11], [2, 3, 12, 13]]
    with pytest.raises(SpecError, match="multiple of 2 ranks, got 3"):
        interpret(proven, [np.arange(3), np.arange(3)])
