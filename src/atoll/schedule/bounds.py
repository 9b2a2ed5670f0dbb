"""What no schedule can beat: lower bounds on bytes, steps and reduce work of a collective.

Each bound holds for the **busiest rank**, the one that sends or receives most, and for every proven schedule of any
shape; n is the vector in bytes, b_r the block of rank r, N the world. With equal blocks they are the published ones
(Chan, Heimlich, Purkayastha and van de Geijn, Collective communication: theory, practice, and experience, 2007,
table 1; all-reduce: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009).

=============== ==================== ================= ====================================================
collective      bytes                reduced           because
=============== ==================== ================= ====================================================
all_reduce      2(N-1)/N n, mean     (N-1)/N n, mean   each element leaves N-1 ranks and enters N-1 again
reduce_scatter  n - smallest block   (N-1)/N n, mean   a rank's share of every other block must leave it
all_gather      n - smallest block   0                 a rank must receive every block but its own
broadcast       n                    0                 every other rank receives all of it
reduce          n                    (N-1)/N n, mean   the root receives at least one sum of the others
all_to_all      (N-1)/N n            0                 every block but its own leaves a rank
gather, scatter n - the root's block 0                 every block but its own enters, or leaves, the root
barrier         0                    0                 a token carries no data
=============== ==================== ================= ====================================================

"mean": the total over all ranks is bounded, and the busiest rank has no less than the mean.

Steps: what a rank knows can reach at most p times as many more ranks in a step in which nobody has more than p peers,
so ceil(log_(p+1) N) steps are needed. With one port that is ceil(log2 N); a direct algorithm uses N-1 at once.
"""

from __future__ import annotations

import msgspec

from atoll.schedule.contract import Contract, IntArray

_BANDWIDTH_FORMULA = {
    "all_reduce": "2(N-1)/N n",
    "reduce_scatter": "(N-1)/N n",
    "all_gather": "(N-1)/N n",
    "broadcast": "n",
    "reduce": "n",
    "all_to_all": "(N-1)/N n",
    "gather": "(N-1)/N n",
    "scatter": "(N-1)/N n",
    "barrier": "0",
}
_PATARASUK = "Patarasuk and Yuan 2009"
_CHAN = "Chan et al. 2007"


class Bounds(msgspec.Struct, frozen=True):
    """Lower bounds for the busiest rank. ``formula`` and ``source`` are those of ``bandwidth_bytes``."""

    bandwidth_bytes: float
    reduced_bytes: float
    latency_steps: int
    ports: int
    formula: str
    source: str


def bounds(contract: Contract, chunk_bytes: IntArray, ports: int = 1) -> Bounds:
    """Bounds for chunks of ``chunk_bytes``, shape ``(chunks,)``, no rank having more than ``ports`` peers a step."""
    n = int(chunk_bytes.sum())
    world_size = contract.world_size
    blocks = chunk_bytes.reshape(contract.blocks, -1).sum(axis=1)
    name = contract.collective.name
    mean = n * (world_size - 1) / world_size
    match name:
        case _ if world_size == 1:
            busiest = 0.0
        case "all_reduce":
            busiest = 2 * mean
        case "reduce_scatter" | "all_gather":
            busiest = float(n - int(blocks.min()))
        case "all_to_all":
            busiest = mean
        case "gather" | "scatter":
            busiest = float(n - int(blocks[contract.root or 0]))
        case "broadcast" | "reduce":
            busiest = float(n)
        case _:
            busiest = 0.0
    combines = contract.collective.reduces and contract.collective.exactly_once
    return Bounds(
        bandwidth_bytes=busiest,
        reduced_bytes=mean if combines else 0.0,
        latency_steps=latency_steps(world_size, ports),
        ports=ports,
        formula=_BANDWIDTH_FORMULA[name],
        source=_PATARASUK if name == "all_reduce" else _CHAN,
    )


def latency_steps(world_size: int, ports: int = 1) -> int:
    """ceil(log_(ports+1) world_size), in integers.

    >>> [latency_steps(n) for n in (1, 2, 3, 8, 9)], latency_steps(8, ports=7)
    ([0, 1, 2, 3, 4], 1)
    """
    reached, steps = 1, 0
    while reached < world_size:
        reached *= max(ports, 1) + 1
        steps += 1
    return steps
