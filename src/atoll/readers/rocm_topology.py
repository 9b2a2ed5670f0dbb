"""``rocm-smi --showtopo``: weight, hops, link type and NUMA node of the AMD GPUs of one node."""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


class RocmLink(msgspec.Struct, frozen=True):
    """What lies between two different GPUs. A figure that was not printed is ``None``, ``link_type`` then empty.

    ``link_type`` is ``XGMI`` or ``PCIE`` as printed; ``weight`` is relative (15 for each xGMI hop);
    ``bandwidth_min/max_bytes_per_s`` come from ``--shownodesbw``, 0 for GPUs that are not joined directly.
    """

    gpu_a: int
    gpu_b: int
    source: Source
    link_type: str = ""
    weight: int | None = None
    hops: int | None = None
    accessible: bool | None = None
    bandwidth_min_bytes_per_s: float | None = None
    bandwidth_max_bytes_per_s: float | None = None


class RocmGpu(msgspec.Struct, frozen=True):
    """One GPU: its NUMA node and NUMA affinity, ``None`` where not printed."""

    index: int
    source: Source
    numa_node: int | None = None
    numa_affinity: int | None = None


class RocmTopology(msgspec.Struct, frozen=True):
    """All links (ordered pairs, both directions) and GPUs of one node."""

    gpus: tuple[RocmGpu, ...]
    links: tuple[RocmLink, ...]
    source: Source
