"""NCCL Inspector: one JSON object per finished collective and rank (``NCCL_INSPECTOR_ENABLE=1``), or its Prometheus
file.
"""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


class InspectedCollective(msgspec.Struct, frozen=True):
    """One collective as one rank saw it. ``sequence`` counts within communicator ``communicator`` (its id, in hex
    text).

    ``timing_source`` is ``kernel_gpu``, ``kernel_cpu`` or ``collective_cpu``; empty in format versions without it.
    """

    communicator: str
    rank: int
    world_size: int
    num_nodes: int | None
    collective: str
    sequence: int | None
    size_bytes: int
    time_s: float
    source: Source
    algbw_bytes_per_s: float | None = None
    busbw_bytes_per_s: float | None = None
    timing_source: str = ""
    host: str = ""
    pid: int | None = None
    timestamp_s: float | None = None
    format_version: str = ""
