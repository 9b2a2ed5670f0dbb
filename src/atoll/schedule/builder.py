"""Write an algorithm down: a builder that collects rows, whole steps at a time.

Addresses are positions in **the vector**: position c of a rank is its place for chunk c, where its input lies at the
start (as far as the contract gives it one) and its output must lie at the end. Positions that are neither are scratch
from the start, and ``scratch_chunks`` more follow the vector. A schedule built so works in place;
``out_of_place`` derives the one that leaves its input alone.

An all-to-all has two vectors, since it keeps nothing in place: input at 0, output at ``builder.output``.

    >>> import numpy as np
    >>> n = 4
    >>> ring = ScheduleBuilder("all_gather", n, chunks=n, name="ring")
    >>> rank = np.arange(n)
    >>> for step in range(n - 1):
    ...     ring.copy(step, rank, (rank + 1) % n, (rank - step) % n)
    >>> ring.build()
    <Schedule ring: all_gather, 4 ranks, 12 rows>
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atoll.errors import SpecError
from atoll.schedule.contract import contract
from atoll.schedule.table import COLUMNS, REPLACE, Header, Schedule

Int = int | npt.ArrayLike


class ScheduleBuilder:
    """Collects rows and makes a ``Schedule`` of them. Every argument of a row may be a number or an array."""

    def __init__(
        self,
        collective: str,
        world_size: int,
        chunks: int,
        *,
        name: str,
        root: int | None = None,
        scratch_chunks: int = 0,
    ) -> None:
        self.contract = contract(collective, world_size, chunks, root)
        if scratch_chunks < 0:
            raise SpecError(f"schedule {name}: expected scratch_chunks of at least 0, got {scratch_chunks}")
        self.name = name
        self.output = chunks if collective == "all_to_all" else 0
        self.scratch = self.output + chunks
        self._memory_chunks = self.scratch + scratch_chunks
        self._parts: list[tuple[int, tuple[npt.NDArray[np.int32], ...]]] = []

    def copy(
        self, step: Int, src: Int, dst: Int, src_chunk: Int, dst_chunk: Int | None = None, *, num_chunks: Int = 1,
        channel: Int = 0,
    ) -> None:  # fmt: skip
        """``dst_chunk`` of ``dst`` (the same position by default) becomes ``src_chunk`` of ``src``."""
        into = src_chunk if dst_chunk is None else dst_chunk
        self._add(step, src, dst, src_chunk, into, num_chunks, REPLACE, channel)

    def reduce(
        self, step: Int, src: Int, dst: Int, src_chunk: Int, dst_chunk: Int | None = None, *,
        operand_chunk: Int | None = None, num_chunks: Int = 1, channel: Int = 0,
    ) -> None:  # fmt: skip
        """``dst_chunk`` becomes ``operand_chunk`` of ``dst`` (the destination itself by default) op ``src_chunk``."""
        into = src_chunk if dst_chunk is None else dst_chunk
        self._add(
            step, src, dst, src_chunk, into, num_chunks, into if operand_chunk is None else operand_chunk, channel
        )

    def build(self) -> Schedule:
        """The schedule; what it does is not checked here but by ``prove``."""
        terms = self.contract
        ranks = range(terms.world_size)
        if self.output:
            input_offset, output_offset = [0] * terms.world_size, [self.output] * terms.world_size
        else:
            input_offset = [terms.input_start(rank) for rank in ranks]
            output_offset = [terms.output_start(rank) for rank in ranks]
        header = Header(
            collective=terms.collective.name,
            world_size=terms.world_size,
            chunks=terms.chunks,
            root=terms.root,
            name=self.name,
            input_offset=tuple(input_offset),
            output_offset=tuple(output_offset),
            memory_chunks=(self._memory_chunks,) * terms.world_size,
        )
        return Schedule(header, {name: self._column(index) for index, name in enumerate(COLUMNS)})

    def _add(self, *values: Int) -> None:
        arrays = [np.asarray(value) for value in values]
        for name, array in zip(COLUMNS, arrays, strict=True):
            if array.size and array.dtype.kind not in "iu":
                raise SpecError(f"schedule {self.name}: column {name}: expected whole numbers, got {array.dtype}")
        if any(array.ndim > 1 for array in arrays):
            raise SpecError(
                f"schedule {self.name}: expected numbers and one-dimensional arrays, got shapes "
                f"{[array.shape for array in arrays]}"
            )
        lengths = {len(array) for array in arrays if array.ndim} - {1}
        if len(lengths) > 1:
            raise SpecError(
                f"schedule {self.name}: a row's columns do not fit together: shapes {[a.shape for a in arrays]}"
            )
        # Copied, since the caller may reuse its arrays, but once where two columns are the same array, as the chunk
        # columns of most rows are; numbers stay numbers and cost nothing until the end.
        copies = {id(array): array.astype(np.int32) for array in arrays}
        for name, array in zip(COLUMNS, arrays, strict=True):
            if np.any(copies[id(array)] != array):
                raise SpecError(
                    f"schedule {self.name}: column {name}: expected numbers below 2^31, "
                    f"got {array.min()} to {array.max()}"
                )
        self._parts.append((lengths.pop() if lengths else 1, tuple(copies[id(array)] for array in arrays)))

    def _column(self, index: int) -> npt.NDArray[np.signedinteger]:
        joined = np.empty(sum(length for length, _ in self._parts), dtype=np.int32)
        start = 0
        for length, part in self._parts:
            joined[start : start + length] = part[index]
            start += length
        # Narrowed one by one, so that no more than one column is wide at a time.
        fits = joined.min(initial=0) >= -(2**15) and joined.max(initial=0) < 2**15
        return joined.astype(np.int16) if fits else joined
