"""What a collective promises: which contributions each chunk holds before, and must hold after.

Vocabulary. The collective's **whole vector** is cut into ``chunks`` numbered chunks. A chunk of memory holds
*contributions of a set of ranks to one chunk number*; the pair (set, number) is all that a proof needs to know.

=============== ====================================== ==================================================== =========
collective      input of rank r                        output of rank r                                     vector
=============== ====================================== ==================================================== =========
all_reduce      all chunks, from {r}                   all chunks, from all ranks                           1 block
reduce_scatter  all chunks, from {r}                   block r, from all ranks                              N blocks
all_gather      block r, from {r}                      all chunks, block b from {b}                         N blocks
broadcast       all chunks at the root                 all chunks, from {root}                              1 block
reduce          all chunks, from {r}                   at the root: all chunks, from all ranks              1 block
all_to_all      all chunks, from {r}; block b is for b block i of the output is block r of rank i's input   N blocks
gather          block r, from {r}                      at the root: all chunks, block b from {b}            N blocks
scatter         all chunks at the root                 block r, from {root}                                 N blocks
barrier         one token, from {r}                    one token, from all ranks, each **at least once**    1 block
=============== ====================================== ==================================================== =========

With N blocks, ``chunks`` is a multiple of N and chunk c belongs to block ``c // (chunks / N)``.
Every other contract asks for each contribution exactly once.
"""

from __future__ import annotations

from enum import Enum

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.errors import SpecError, nearest

IntArray = npt.NDArray[np.int64]


class Extent(Enum):
    """How much of the vector a rank's input or output holds."""

    ALL = "all chunks"
    BLOCK = "the rank's block"
    ROOT_ALL = "all chunks at the root, nothing elsewhere"


class Origin(Enum):
    """Whose contributions a rank's output must hold."""

    EVERY_RANK = "every rank"
    BLOCK_OWNER = "the rank that owns the block"
    ROOT = "the root"
    POSITION = "the rank of the block's position in the output"


class Collective(msgspec.Struct, frozen=True):
    """One row of the table above. ``reduces``: an operation is involved. ``rooted``: one rank is special."""

    name: str
    input: Extent
    output: Extent
    origin: Origin
    blocked: bool
    reduces: bool
    rooted: bool = False
    exactly_once: bool = True


COLLECTIVES: dict[str, Collective] = {
    collective.name: collective
    for collective in (
        Collective("all_reduce", Extent.ALL, Extent.ALL, Origin.EVERY_RANK, blocked=False, reduces=True),
        Collective("reduce_scatter", Extent.ALL, Extent.BLOCK, Origin.EVERY_RANK, blocked=True, reduces=True),
        Collective("all_gather", Extent.BLOCK, Extent.ALL, Origin.BLOCK_OWNER, blocked=True, reduces=False),
        Collective("broadcast", Extent.ROOT_ALL, Extent.ALL, Origin.ROOT, blocked=False, reduces=False, rooted=True),
        Collective("reduce", Extent.ALL, Extent.ROOT_ALL, Origin.EVERY_RANK, blocked=False, reduces=True, rooted=True),
        Collective("all_to_all", Extent.ALL, Extent.ALL, Origin.POSITION, blocked=True, reduces=False),
        Collective(
            "gather", Extent.BLOCK, Extent.ROOT_ALL, Origin.BLOCK_OWNER, blocked=True, reduces=False, rooted=True
        ),
        Collective("scatter", Extent.ROOT_ALL, Extent.BLOCK, Origin.ROOT, blocked=True, reduces=False, rooted=True),
        Collective(
            "barrier", Extent.ALL, Extent.ALL, Origin.EVERY_RANK, blocked=False, reduces=True, exactly_once=False
        ),
    )
}  # fmt: skip


class Contract(msgspec.Struct, frozen=True):
    """A collective among ``world_size`` ranks on a vector of ``chunks`` chunks. Make one with ``contract``."""

    collective: Collective
    world_size: int
    chunks: int
    root: int | None

    @property
    def blocks(self) -> int:
        """Equal parts that the contract tells apart: N, or 1 where it does not cut the vector by rank."""
        return self.world_size if self.collective.blocked else 1

    @property
    def chunks_per_block(self) -> int:
        return self.chunks // self.blocks

    def input_chunks(self, rank: int) -> IntArray:
        """Chunk numbers that the rank's input holds, in order; its contributions are the rank's own."""
        return self._extent(self.collective.input, rank)

    def output_chunks(self, rank: int) -> IntArray:
        """Chunk numbers that the rank's output must hold, in order."""
        if self.collective.origin is Origin.POSITION:
            block = np.arange(self.chunks_per_block, dtype=np.int64) + rank * self.chunks_per_block
            return np.tile(block, self.world_size)
        return self._extent(self.collective.output, rank)

    def output_origins(self, rank: int) -> IntArray:
        """For each output chunk the one rank whose contribution it must hold, or -1: every rank's."""
        chunks = self.output_chunks(rank)
        match self.collective.origin:
            case Origin.EVERY_RANK:
                return np.full_like(chunks, -1)
            case Origin.BLOCK_OWNER:
                return chunks // self.chunks_per_block
            case Origin.ROOT:
                return np.full_like(chunks, self.root)
            case Origin.POSITION:
                return np.arange(self.chunks, dtype=np.int64) // self.chunks_per_block

    def input_size(self, rank: int) -> int:
        return self._size(self.collective.input, rank)

    def output_size(self, rank: int) -> int:
        return self._size(self.collective.output, rank)

    def input_start(self, rank: int) -> int:
        """The first chunk number of the rank's input; its input is a run of numbers from here."""
        return rank * self.chunks_per_block if self.collective.input is Extent.BLOCK else 0

    def output_start(self, rank: int) -> int:
        """The first position of the rank's output in a vector laid out whole."""
        return rank * self.chunks_per_block if self.collective.output is Extent.BLOCK else 0

    def _size(self, extent: Extent, rank: int) -> int:
        match extent:
            case Extent.ALL:
                return self.chunks
            case Extent.BLOCK:
                return self.chunks_per_block
            case Extent.ROOT_ALL:
                return self.chunks if rank == self.root else 0

    def _extent(self, extent: Extent, rank: int) -> IntArray:
        start = rank * self.chunks_per_block if extent is Extent.BLOCK else 0
        return np.arange(start, start + self._size(extent, rank), dtype=np.int64)


def contract(collective: str, world_size: int, chunks: int, root: int | None = None) -> Contract:
    """The contract of a named collective.

    Raises ``SpecError`` for an unknown name, a world or a number of chunks below 1, a root that is missing, not
    wanted or outside the world, and chunks that the blocks do not divide.
    """
    if collective not in COLLECTIVES:
        raise SpecError(f"unknown collective {collective!r}: {nearest(collective, COLLECTIVES)}")
    known = COLLECTIVES[collective]
    if world_size < 1:
        raise SpecError(f"{collective}: expected a world of at least 1 rank, got {world_size}")
    if chunks < 1:
        raise SpecError(f"{collective}: expected at least 1 chunk, got {chunks}")
    if known.rooted and (root is None or not 0 <= root < world_size):
        raise SpecError(f"{collective}: expected a root between 0 and {world_size - 1}, got {root}")
    if not known.rooted and root is not None:
        raise SpecError(f"{collective}: has no root, got root {root}")
    if known.blocked and chunks % world_size:
        raise SpecError(f"{collective}: expected chunks in a multiple of {world_size} ranks, got {chunks}")
    return Contract(known, world_size, chunks, root)
