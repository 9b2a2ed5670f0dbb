"""NCCL's published constants: what its tuner reckons with, and what its kernels are built with.

Everything here is a fact of NCCL 2.30.7 (``src/graph/tuning.cc``, ``search.cc``, ``enqueue.cc``, ``nvls.cc``,
``collectives.h``), or a vendor's clock rate. Units are NCCL's own, microseconds and GB/s of 1e9 bytes, so that a table
can be held against its source; the unit stands in the name. Tables are indexed by protocol in NCCL's order: LL, LL128,
Simple. Nothing here was fitted to a measurement of Atoll's accuracy page.
"""

from __future__ import annotations

from typing import Final

import msgspec

NCCL_VERSION: Final = "2.30.7"
VERSION: Final = (2, 30, 7)

LL, LL128, SIMPLE = "LL", "LL128", "Simple"
PROTOCOLS: Final = (LL, LL128, SIMPLE)

RING, TREE, NVLS, NVLS_TREE = "Ring", "Tree", "NVLS", "NVLSTree"
COLLNET_DIRECT, COLLNET_CHAIN, PAT, P2P = "CollNetDirect", "CollNetChain", "PAT", "P2P"
ALGORITHMS: Final = (TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT)

NVLINK, PCI, NET = "NVLink", "PCI", "NET"

Row = tuple[float, float, float]
_NO: Final[Row] = (0.0, 0.0, 0.0)

BASE_LATENCY_US: Final[dict[str, Row]] = {
    TREE: (6.8, 14.0, 8.4), RING: (6.6, 14.0, 8.4), COLLNET_DIRECT: _NO, COLLNET_CHAIN: _NO, NVLS: _NO,
    NVLS_TREE: _NO, PAT: (8.0, 8.0, 8.0),
}  # fmt: skip
HOP_LATENCY_US: Final[dict[str, dict[str, Row]]] = {
    NVLINK: {
        TREE: (0.6, 1.25, 4.0), RING: (0.6, 1.9, 3.4), COLLNET_DIRECT: (0, 0, 3.7), COLLNET_CHAIN: (0, 0, 2.8),
        NVLS: (0, 0, 25.0), NVLS_TREE: (0, 0, 25.0), PAT: (0, 0, 4.0),
    },
    PCI: {
        TREE: (1.0, 1.9, 4.0), RING: (1.0, 2.5, 5.7), COLLNET_DIRECT: (0, 0, 3.7), COLLNET_CHAIN: (0, 0, 2.8),
        NVLS: _NO, NVLS_TREE: _NO, PAT: (0, 0, 4.0),
    },
    NET: {
        TREE: (5.0, 8.5, 14.0), RING: (2.7, 4.0, 14.0), COLLNET_DIRECT: (0, 0, 31.0), COLLNET_CHAIN: (0, 0, 30.0),
        NVLS: (0, 0, 18.0), NVLS_TREE: (0, 0, 20.9), PAT: (0, 0, 14.0),
    },
}  # fmt: skip

# Tree does not keep to the model at medium sizes; index log2(bytes / 64).
TREE_CORRECTION: Final[dict[str, tuple[float, ...]]] = {
    LL: (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1),
    LL128: (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1),
    SIMPLE: (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9),
}  # fmt: skip

NET_OVERHEAD_US: Final = 1.0
EFA_TOLD_LATENCY_US: Final = 75.0
"""What aws-ofi-nccl gives NCCL's tuner as the network's latency on p4d and p5 (``platform-aws.c``)."""
RING_PLATEAU: Final = 1.4
"""Latency of a ring over several nodes in Simple once a channel's share is 64 B per rank; 1.9 before compute 8.0."""
RING_PLATEAU_OLD: Final = 1.9

# enqueue.cc and collectives.h: Simple moves a chunk of 4 steps in slices of 2, one step being an eighth of 4 MiB.
SLICES_PER_CHUNK: Final = 2
NVLS_CHUNK_BYTES: Final = 128 * 1024
IN_SWITCH_PEAK: Final = {"Hopper": 480.0, "Blackwell": 850.0}
"""Bus bandwidth in GB/s that all-reduce in NVSwitches reaches at most, on 8 GPUs as on 32: NVIDIA GTC 2025 S72583. The
tuner's own figure for Blackwell lies above it."""
NVLS_PIPELINE_STAGES: Final = 2
"""Scatter and gather on either side of the in-switch reduction; each holds one loop's chunks before data comes out."""
P2P_LL_THRESHOLD_BYTES: Final = 16384
"""Of what one channel carries of a message. Since 2.29 the channels that the message fills are counted; until 2.28.3
(``src/enqueue.cc``) all that its peer could have."""
P2P_LL_BY_PART_SINCE: Final = (2, 29)
P2P_LL_STEP_BYTES: Final = 64 * 1024
P2P_OPS_PER_BATCH: Final = 8
P2P_CHUNK_BYTES: Final = 512 * 1024
"""Steps in Simple over NVLink (NCCL_P2P_NVL_CHUNKSIZE); over PCIe and the network the next."""
P2P_CHUNK_BYTES_ELSEWHERE: Final = 128 * 1024
P2P_EFFICIENCY: Final = 0.875
"""Of what NVLinks carry in rings, an exchange of all pairs reaches this: 210 of 240 GB/s on A100, 320 of 371 on H100,
640 of 722 on B200, NVIDIA GTC 2025 S72583."""
CHAIN_CHUNK_BYTES: Final = 512 * 1024
"""Of broadcast and reduce: one step."""
LL_BYTES_PER_THREAD: Final = 8
THREADS: Final = 512


class Generation(msgspec.Struct, frozen=True):
    """One compute-capability class of the tuner. Triples are for 1, 2 and more nodes; GB/s, per channel where said."""

    name: str
    ll_max: tuple[float, float, float]
    ring_ll128_per_channel: tuple[float, float, float]
    tree_ll128_per_channel: tuple[float, float, float]
    tree_per_channel: tuple[float, float, float]
    nvls_tree_per_channel: tuple[float, float, float]
    nvls_efficiency: float
    nvls_channels: tuple[int, int]
    intra_speeds: tuple[float, ...]
    inter_speeds: tuple[float, ...]


_OLD_INTRA: Final = (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0)
_OLD_INTER: Final = (
    48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24, 0.12,
)  # fmt: skip

VOLTA: Final = Generation(
    "Volta", (39.0, 39.0, 20.4), (20.0, 20.0, 20.0), (20.0, 20.0, 20.0), (26.5, 18.5, 10.0), (26.5, 18.5, 10.0),
    0.0, (0, 0), _OLD_INTRA, _OLD_INTER,
)  # fmt: skip
AMPERE: Final = Generation(
    "Ampere", (87.7, 22.5, 19.0), (20.0, 20.0, 20.0), (20.0, 20.0, 20.0), (24.0, 23.6, 17.8), (24.0, 23.6, 17.8),
    0.0, (0, 0), _OLD_INTRA, _OLD_INTER,
)  # fmt: skip
HOPPER: Final = Generation(
    "Hopper", (141.0, 45.0, 35.0), (36.7, 36.7, 36.7), (36.7, 36.7, 29.0), (38.7, 41.4, 36.0), (0.0, 57.7, 45.5),
    0.85, (16, 16), (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
    (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24, 0.12),
)  # fmt: skip
BLACKWELL: Final = Generation(
    "Blackwell", (282.0, 90.0, 70.0), (40.0, 40.0, 40.0), (55.6, 31.67, 20.0), (70.0, 42.8, 24.0), (0.0, 96.0, 80.0),
    0.74, (24, 32), (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
    (96.0, 86.0, 80.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24,
     0.12),
)  # fmt: skip


class GpuFacts(msgspec.Struct, frozen=True):
    """``compute`` is the compute capability times ten; ``boost_mhz`` the data sheet's maximum clock."""

    name: str
    compute: int
    boost_mhz: int

    @property
    def generation(self) -> Generation:
        if self.compute >= 100:
            return BLACKWELL
        if self.compute >= 90:
            return HOPPER
        return AMPERE if self.compute >= 80 else VOLTA


# Compute capability and maximum clock of the multiprocessors in MHz, as data sheets or nvidia-smi give it. The first
# name that is found counts. RCCL is not NCCL: MI300X is taken as Hopper, MI200 as Ampere.
_BY_COMPUTE: Final[dict[int, dict[str, int]]] = {
    103: {"GB300": 2032, "B300": 2032},
    100: {"GB200": 2062, "B200": 1965, "B100": 1850},
    90: {"GH200": 1980, "H200": 1980, "H100": 1980, "H800": 1980, "H20": 1980, "MI300X": 2100, "MI325X": 2100},
    80: {"A100": 1410, "A800": 1410, "A30": 1440, "MI250X": 1700, "MI250": 1700},
    120: {"PRO 6000": 2617, "5090": 2407},
    89: {"L40S": 2520, "L40": 2490, "L4": 2040, "4090": 2520},
    86: {"A6000": 1800, "A40": 1740, "A10G": 1710, "A10": 1695, "3090": 1695},
    75: {"T4": 1590},
    70: {"V100": 1530},
    60: {"P100": 1480},
}
GPUS: Final = tuple(
    GpuFacts(name, compute, boost) for compute, names in _BY_COMPUTE.items() for name, boost in names.items()
)

REFERENCE_MHZ: Final = 1980
"""The tuner's latencies are taken to be those of an H100 SXM: its Hopper columns came with them."""

BLACKWELL_LATENCY: Final = 1.57
"""How much longer a small message takes on Blackwell than on Hopper, which the tuner's tables do not say: the geometric
mean of 8.5 / 4.5, the base latencies of LL kernels in ``src/sym_kernels.cc``, and of 3.0 us / 2.3 us, the 8-byte
all-reduce of 8 B200 and 8 H200 that NVIDIA/nccl issue 1940 reports."""


def gpu_facts(name: str) -> GpuFacts | None:
    """The facts of a GPU by its printed name; ``None`` for one that is not known."""
    text = name.upper()
    return next((gpu for gpu in GPUS if _names(text, gpu.name)), None)


def _names(text: str, gpu: str) -> bool:
    """Whether a GPU's name stands in a text as a word, which letters may follow, but no digit (A10 is in no A100)."""
    at = text.find(gpu)
    while at >= 0:
        end = at + len(gpu)
        if not (text[at - 1 : at].isalnum() or text[end : end + 1].isdigit()):
            return True
        at = text.find(gpu, at + 1)
    return False


def latency_factor(gpu: GpuFacts) -> float:
    """Latency over the tuner's tables: kernels of small messages wait for instructions, so it goes with the clock."""
    factor = REFERENCE_MHZ / gpu.boost_mhz
    return factor * BLACKWELL_LATENCY if gpu.generation is BLACKWELL else factor
