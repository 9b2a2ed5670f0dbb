"""How a length is cut into chunks: the balanced partition, in elements.

A length L in P parts gives ``L // P`` to each and one more to each of the first ``L % P``, as ``numpy.array_split``
has it. Where the contract cuts the vector by rank, L is first cut into N blocks and each block into its chunks, so
that a block is the same elements whatever the algorithm's number of chunks.
"""

from __future__ import annotations

import numpy as np

from atoll.errors import SpecError
from atoll.schedule.contract import Contract, IntArray, Origin


def balanced(length: int, parts: int) -> IntArray:
    """Sizes of ``parts`` parts of ``length`` elements, larger ones first.

    >>> balanced(10, 4).tolist()
    [3, 3, 2, 2]
    """
    if length < 0:
        raise SpecError(f"expected a length of at least 0 elements, got {length}")
    sizes = np.full(parts, length // parts, dtype=np.int64)
    sizes[: length % parts] += 1
    return sizes


def chunk_sizes(contract: Contract, length: int) -> IntArray:
    """Elements of each numbered chunk, shape ``(chunks,)``, of a whole vector of ``length`` elements.

    Raises ``SpecError`` where the contract needs equal blocks and ``length`` does not give them: in an all-to-all
    every rank would otherwise end with blocks whose size depends on the rank.
    """
    if contract.collective.origin is Origin.POSITION and length % contract.world_size:
        raise SpecError(
            f"{contract.collective.name}: expected a length in a multiple of {contract.world_size} ranks, "
            f"got {length}; pad the array to equal blocks"
        )
    blocks = balanced(length, contract.blocks)
    if contract.chunks_per_block == 1:
        return blocks
    base, extra = np.divmod(blocks, contract.chunks_per_block)
    position = np.arange(contract.chunks_per_block)
    sizes: IntArray = (base[:, None] + (position[None, :] < extra[:, None])).reshape(-1).astype(np.int64)
    return sizes
