"""Pairwise results: the busbw of every pair of nodes, from a CSV or from a set of nccl-tests runs of two hosts each."""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


class PairResult(msgspec.Struct, frozen=True):
    """Two hosts measured together. A bandwidth that was not reached is ``None`` and ``error`` then says why, if known.

    Bandwidths are busbw per direction; ``gpus_per_node`` and ``collective`` where given. Host order is as written.
    """

    host_a: str
    host_b: str
    source: Source
    gpus_per_node: int | None = None
    average_busbw_bytes_per_s: float | None = None
    max_busbw_bytes_per_s: float | None = None
    collective: str = ""
    error: str = ""
