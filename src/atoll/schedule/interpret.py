"""The definition: a slow reference executor on NumPy arrays, all ranks in one process.

What a schedule means is what this file does, row by row: gather all that a step reads, then write; order the two
operands of an operation by the lowest rank that contributed to each. The runtime must equal it bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.errors import SpecError
from atoll.schedule.contract import Contract
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import ProvenSchedule
from atoll.schedule.table import REPLACE

Array = npt.NDArray[Any]
Operation = Callable[[Array, Array], Array]


def interpret(proven: ProvenSchedule, inputs: Sequence[npt.ArrayLike], operation: Operation = np.add) -> list[Array]:
    """The output of every rank, one-dimensional.

    ``inputs[rank]`` is the rank's input, any shape, flattened; a rank without input (``broadcast`` elsewhere than at
    the root) may give anything, an empty array say. All inputs have one dtype. The length of the whole vector is the
    input's where the input holds all of it, else the sum of the blocks, which must be the balanced partition.
    Raises ``SpecError`` where the inputs do not fit the contract. A rank without output returns an empty array.
    """
    terms = proven.contract
    header = proven.header
    flat = _check_inputs(terms, [np.ascontiguousarray(array).reshape(-1) for array in inputs])
    length = _vector_length(terms, flat)
    sizes = chunk_sizes(terms, length)
    memory: list[list[Array | None]] = [[None] * count for count in header.memory_chunks]
    lowest = [[0] * count for count in header.memory_chunks]
    for rank in range(terms.world_size):
        numbers = terms.input_chunks(rank)
        parts = np.split(flat[rank], np.cumsum(sizes[numbers])[:-1]) if len(numbers) else []
        for place, part in enumerate(parts):
            memory[rank][header.input_offset[rank] + place] = part.copy()
            lowest[rank][header.input_offset[rank] + place] = rank

    for _, rows in proven.schedule.steps():
        order = np.lexsort((rows.row, rows.src)).tolist()
        reads: dict[tuple[int, int], tuple[Array, int]] = {}
        for at in order:
            src, dst = int(rows.src[at]), int(rows.dst[at])
            for chunk in range(int(rows.src_chunk[at]), int(rows.src_chunk[at] + rows.num_chunks[at])):
                reads[src, chunk] = _held(memory, lowest, src, chunk)
            if rows.operand_chunk[at] != REPLACE:
                for chunk in range(int(rows.operand_chunk[at]), int(rows.operand_chunk[at] + rows.num_chunks[at])):
                    if memory[dst][chunk] is not None:  # a running value may come to be within the step
                        reads[dst, chunk] = _held(memory, lowest, dst, chunk)
        written: set[tuple[int, int]] = set()
        for at in order:
            src, dst = int(rows.src[at]), int(rows.dst[at])
            for index in range(int(rows.num_chunks[at])):
                received, received_lowest = reads[src, int(rows.src_chunk[at]) + index]
                target = int(rows.dst_chunk[at]) + index
                result, result_lowest = received, received_lowest
                if rows.operand_chunk[at] != REPLACE:
                    operand_chunk = int(rows.operand_chunk[at]) + index
                    running = operand_chunk == target and (dst, target) in written
                    held, held_lowest = (
                        _held(memory, lowest, dst, target) if running else reads[dst, operand_chunk]
                    )  # fmt: skip
                    first, second = (received, held) if received_lowest < held_lowest else (held, received)
                    result = np.asarray(operation(first, second)).astype(received.dtype, copy=False)
                    result_lowest = min(received_lowest, held_lowest)
                memory[dst][target] = result
                lowest[dst][target] = result_lowest
                written.add((dst, target))

    outputs = []
    for rank in range(terms.world_size):
        start = header.output_offset[rank]
        held_parts = [_held(memory, lowest, rank, start + place)[0] for place in range(terms.output_size(rank))]
        outputs.append(np.concatenate(held_parts) if held_parts else np.zeros(0, dtype=flat[rank].dtype))
    return outputs


def _held(memory: list[list[Array | None]], lowest: list[list[int]], rank: int, chunk: int) -> tuple[Array, int]:
    value = memory[rank][chunk]
    assert value is not None, "a proven schedule reads only what is there"
    return value, lowest[rank][chunk]


def _check_inputs(terms: Contract, flat: list[Array]) -> list[Array]:
    if len(flat) != terms.world_size:
        raise SpecError(f"{terms.collective.name}: expected {terms.world_size} inputs, one a rank, got {len(flat)}")
    dtypes = {flat[rank].dtype for rank in range(terms.world_size) if terms.input_size(rank)}
    if len(dtypes) > 1:
        raise SpecError(f"{terms.collective.name}: inputs differ in dtype: {sorted(map(str, dtypes))}")
    return flat


def _vector_length(terms: Contract, flat: list[Array]) -> int:
    """Elements of the whole vector, checked against every rank's input."""
    holders = [rank for rank in range(terms.world_size) if terms.input_size(rank)]
    whole = terms.input_size(holders[0]) == terms.chunks
    length = len(flat[holders[0]]) if whole else sum(len(flat[rank]) for rank in holders)
    sizes = chunk_sizes(terms, length)
    for rank in holders:
        expected = int(sizes[terms.input_chunks(rank)].sum())
        if len(flat[rank]) != expected:
            raise SpecError(
                f"{terms.collective.name}: rank {rank}'s input: expected {expected} elements of a vector of {length}, "
                f"got {len(flat[rank])}"
            )
    return length
