"""The names that programs give to collectives, in the library's words.

nccl-tests says ``alltoall_perf``, NCCL ``AllToAll``, PyTorch's watchdog ``_ALLGATHER_BASE`` and its flight recorder
``nccl:_all_gather_base``; all of them are compared, so all readers hand out one spelling.
"""

from __future__ import annotations

from typing import Final

# Keys are without underscores, in lower case, without a trailing "base".
_WORDS: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all_v",
    "alltoallv2": "all_to_all_v",
    "alltoallpivot": "all_to_all",
    "sendrecv": "send_recv",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "hypercube": "hypercube",
    "bisection": "bisection",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "coalesced": "coalesced",
    "allreducecoalesced": "all_reduce",
    "allgathercoalesced": "all_gather",
    "reducescattercoalesced": "reduce_scatter",
    "allgatherintotensorcoalesced": "all_gather",
    "allgatherintotensor": "all_gather",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "allreducebarrier": "barrier",
    "allreducebias": "all_reduce",
}


def known_collective(name: str) -> str:
    """The library's word for ``name`` (``"AllReduce"``: ``"all_reduce"``), ``""`` where it is no collective's name."""
    key = name.rpartition(":")[2].lower().replace("_", "").removesuffix("base")
    return _WORDS.get(key, "")


def collective_name(name: str) -> str:
    """``known_collective(name)``, else ``name`` as written, in lower case: ``"nccl:send 0->1"`` is ``"send"``."""
    word = name.strip().split(" ", 1)[0][:80]
    return known_collective(word) or word.rpartition(":")[2].lower().strip("_")
