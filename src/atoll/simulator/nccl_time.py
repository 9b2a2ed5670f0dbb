"""How long NCCL's choice takes: latency, pipelines that fill, and bytes over the slowest link.

The tuner's sum ``latency + bytes / bandwidth`` is right at both ends and too fast in the middle, because it leaves out
how its kernels move data. Three things are added, each from NCCL's own constants:

- *Slices.* Ring in Simple sends a chunk in two slices. The last step of a round cannot overlap the next round's first,
  so each round of ``steps`` chunks takes half a chunk more: bytes count (1 + 1 / (2 steps)) times. On two GPUs that is
  a half more for all-gather, a quarter more for all-reduce.
- *Pipelines.* In-switch reduction holds one loop of chunks in its scatter and one in its gather stage before results
  flow: two loops of ``channels x heads x chunk`` bytes, with NCCL's table of chunk sizes; a tree of such domains holds
  as much at each of its levels. Chains (broadcast, reduce) fill by one chunk per rank.
- *Clocks.* Kernels of small messages wait for instructions; latencies go with the GPU's clock and generation
  (``nccl_constants.latency_factor``), those of the network do not.

The network is counted once, as bytes out of the poorest domain, which a ring leaves once. Sends and receives are
``nccl_point_to_point``'s matter. ``Factors`` scale the parts; they are 1 unless calibrated.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from atoll.simulator import nccl_constants as constants
from atoll.simulator.communicator import Communicator
from atoll.simulator.nccl_constants import (
    COLLNET_CHAIN,
    COLLNET_DIRECT,
    LL,
    LL128,
    NVLS,
    NVLS_TREE,
    PAT,
    PROTOCOLS,
    RING,
    SIMPLE,
    TREE,
)
from atoll.simulator.nccl_environment import NcclEnvironment
from atoll.simulator.nccl_tuner import (
    bus_bandwidth,
    bus_to_algorithm,
    graph_channels,
    ring_steps,
    tree_correction,
)


class Factors(msgspec.Struct, frozen=True):
    """What calibration multiplies: latencies (``ll_base``, ``ll_hop`` of LL, ``simple_base``, ``simple_hop`` of Simple,
    ``wide`` of LL128 and in-switch reduction, ``network`` of hops between domains) and rates (``bandwidth`` within a
    domain, ``network_bandwidth`` between)."""

    ll_base: float = 1.0
    ll_hop: float = 1.0
    ll_full: float = 1.0
    simple_base: float = 1.0
    simple_hop: float = 1.0
    wide: float = 1.0
    bandwidth: float = 1.0
    network: float = 1.0
    network_bandwidth: float = 1.0


NO_FACTORS: Final = Factors()


class Time(msgspec.Struct, frozen=True):
    """Seconds of latency and of bytes, and which link the bytes wait for (``intra`` or ``network``)."""

    latency_s: float
    transfer_s: float
    bound: str

    @property
    def total_s(self) -> float:
        return self.latency_s + self.transfer_s


def collective_time(
    comm: Communicator, collective: str, size_bytes: float, algorithm: str, protocol: str,
    environment: NcclEnvironment, factors: Factors = NO_FACTORS,
) -> Time:  # fmt: skip
    """The time of one algorithm and protocol. ``size_bytes`` is nccl-tests' size: the whole vector."""
    if algorithm == RING:
        return _ring(comm, collective, size_bytes, protocol, environment, factors)
    if algorithm in (NVLS, NVLS_TREE):
        return _in_switch(comm, collective, size_bytes, algorithm, environment, factors)
    if algorithm == TREE:
        return _tree(comm, collective, size_bytes, protocol, environment, factors)
    return _other(comm, collective, size_bytes, algorithm, environment, factors)


def _rates(comm: Communicator, bus: float, factors: Factors, share: float = 1.0) -> tuple[float, str]:
    """Bus bandwidth in GB/s, and where the limit is: ``bus`` as the tuner has it, which from three domains on holds the
    network already, and ``share`` of what the network carries."""
    if comm.domains == 1:
        return bus * factors.bandwidth, "intra"
    if comm.domains > 2 and comm.network_bytes_per_s <= comm.intra_bytes_per_s:
        return bus * factors.network_bandwidth, "network"
    intra = bus * factors.bandwidth
    network = comm.network_bytes_per_s / 1e9 * share * factors.network_bandwidth
    return (intra, "intra") if intra < network else (network, "network")


def hop_latencies_us(comm: Communicator, algorithm: str, protocol: str, factors: Factors) -> tuple[float, float, float]:
    """Base, hop within a domain and hop between domains, in us."""
    row = PROTOCOLS.index(protocol)
    scale = constants.latency_factor(comm.gpu)
    base = constants.BASE_LATENCY_US[algorithm][row] * scale
    hop = constants.HOP_LATENCY_US[comm.link][algorithm][row] * (scale if comm.link == constants.NVLINK else 1.0)
    alone = algorithm == RING and comm.ranks_per_domain == 1
    inter = constants.HOP_LATENCY_US[constants.NET][TREE if alone else algorithm][row]
    inter = (inter + comm.network_latency_s * 1e6) * factors.network
    if protocol == LL:
        return base * factors.ll_base, hop * factors.ll_hop, inter
    if protocol == SIMPLE and algorithm not in (NVLS, NVLS_TREE):
        return base * factors.simple_base, hop * factors.simple_hop, inter
    return base * factors.wide, hop * factors.wide, inter


def _time(latency_us: float, size_bytes: float, algorithm_gb_per_s: float, bound: str) -> Time:
    transfer = size_bytes / (algorithm_gb_per_s * 1e9) if size_bytes else 0.0
    return Time(latency_us * 1e-6, transfer, bound)


def _ring(
    comm: Communicator, collective: str, size_bytes: float, protocol: str, environment: NcclEnvironment,
    factors: Factors,
) -> Time:  # fmt: skip
    steps = ring_steps(collective, comm.ranks, comm.domains)
    base, hop, inter = hop_latencies_us(comm, RING, protocol, factors)
    if comm.domains > 1:
        overhead = constants.NET_OVERHEAD_US * (2 if comm.amd_host else 1) * (3 if protocol == SIMPLE else 1)
        hop = max(hop, overhead)
    chain = collective in ("broadcast", "reduce")
    hops = max(0, steps.all - steps.between - (1 if chain else 0))
    if protocol == LL:
        full = _full_blocks(size_bytes, comm.ranks, factors)
        base, hop = base * full, hop * full
    latency = base + hops * hop + steps.between * inter
    channels, bus = bus_bandwidth(comm, collective, RING, protocol, environment)
    share = {LL: 0.5, LL128: 120 / 128, SIMPLE: 1.0}[protocol]
    bus, bound = _rates(comm, bus, factors, share)
    carried = size_bytes
    if protocol == SIMPLE and not chain:
        carried *= 1 + 1 / (constants.SLICES_PER_CHUNK * max(1, steps.all))
    if protocol == LL and not chain and hops > 1:
        # Lines are passed on as they come: in all steps but the last, bytes and latency overlap.
        each_us = carried / (bus * bus_to_algorithm(comm, collective, RING) * 1e3) / steps.all
        latency -= (hops - 1) * (hop + each_us - math.hypot(hop, each_us))
    if chain:
        carried += (comm.ranks - 2) * min(size_bytes, channels * constants.CHAIN_CHUNK_BYTES)
    return _time(latency, carried, bus * bus_to_algorithm(comm, collective, RING), bound)


def _full_blocks(size_bytes: float, sharers: int, factors: Factors) -> float:
    """What LL's latency is multiplied with as blocks fill: NCCL gives a message fewer threads, and one channel, below
    8 bytes a thread, and in a ring a rank (``sharers``)."""
    full = constants.LL_BYTES_PER_THREAD * constants.THREADS * sharers
    filled = min(1.0, max(0.0, 0.5 + math.log2(max(size_bytes, 1.0) / full) / 2))
    return 1 + (factors.ll_full - 1) * filled


def _tree(
    comm: Communicator, collective: str, size_bytes: float, protocol: str, environment: NcclEnvironment,
    factors: Factors,
) -> Time:  # fmt: skip
    base, hop, inter = hop_latencies_us(comm, TREE, protocol, factors)
    levels = math.floor(math.log2(comm.domains))
    if protocol == LL:
        full = _full_blocks(size_bytes, 1, factors)
        base, hop = base * full, hop * full
    latency = base + 2 * ((math.ceil(comm.ranks_per_domain) - 1) * hop + levels * inter)
    _, bus = bus_bandwidth(comm, collective, TREE, protocol, environment)
    share = {LL: 0.5, LL128: 120 / 128, SIMPLE: 1.0}[protocol]
    # Between two nodes each half of the data crosses once each way; from three on an inner node sends twice.
    bus, bound = _rates(comm, bus, factors, share * (2 if comm.domains == 2 else 1))
    return _time(latency, size_bytes, bus * 0.5 * tree_correction(protocol, size_bytes), bound)


def _in_switch(
    comm: Communicator, collective: str, size_bytes: float, algorithm: str, environment: NcclEnvironment,
    factors: Factors,
) -> Time:  # fmt: skip
    _, hop, inter = hop_latencies_us(comm, algorithm, SIMPLE, factors)
    levels = math.floor(math.log2(comm.domains))
    latency = hop + (2 * levels * inter if algorithm == NVLS_TREE else inter if comm.domains > 1 else 0.0)
    _, bus = bus_bandwidth(comm, collective, algorithm, SIMPLE, environment)
    # The tuner's figure holds the network's share of NVLSTree already; only calibration moves it.
    heads, speed = graph_channels(comm, algorithm, environment)
    intra = heads * speed * comm.gpu.generation.nvls_efficiency * (heads - 1) / heads * 2
    network_bound = collective == "all_reduce" and comm.domains > 1 and bus < intra * 0.999
    peak = constants.IN_SWITCH_PEAK.get(comm.gpu.generation.name, bus)
    if bus > peak:
        bus, network_bound = peak, False
    bus *= factors.network_bandwidth if network_bound else factors.bandwidth
    stages = constants.NVLS_PIPELINE_STAGES * max(1, levels)
    carried = size_bytes + stages * nvls_loop_bytes(comm, algorithm, size_bytes, environment)
    algorithm_rate = bus * bus_to_algorithm(comm, collective, algorithm)
    return _time(latency, carried, algorithm_rate, "network" if network_bound else "intra")


def nvls_loop_bytes(comm: Communicator, algorithm: str, size_bytes: float, environment: NcclEnvironment) -> float:
    """Bytes that one loop of in-switch reduction takes up: channels x heads x chunk, never more than there are."""
    generation = comm.gpu.generation
    channels = min(generation.nvls_channels[0 if comm.domains == 1 else 1], environment.max_channels)
    ways = channels * comm.smallest_domain
    chunk = constants.NVLS_CHUNK_BYTES
    ladder: tuple[tuple[int, int], ...]
    if algorithm == NVLS_TREE:
        chunk = 65536 if comm.domains >= 4 else chunk
        ladder = ((4, 65536), (1, 32768))
    else:
        ladder = ((64, 65536), (8, 32768), (2, 16384))
    for times, smaller in ladder:
        if size_bytes < times * ways * chunk and chunk > smaller:
            chunk = smaller
    return min(float(ways * chunk), size_bytes)


def _other(
    comm: Communicator, collective: str, size_bytes: float, algorithm: str, environment: NcclEnvironment,
    factors: Factors,
) -> Time:  # fmt: skip
    """CollNet and PAT."""
    base, hop, inter = hop_latencies_us(comm, algorithm, SIMPLE, factors)
    per_domain = comm.ranks_per_domain
    if algorithm == PAT:
        latency = base + math.ceil(math.log2(max(2, comm.domains))) * inter / 3.5 + 2.8 * comm.ranks / comm.domains
    elif algorithm == COLLNET_DIRECT:
        latency = 2 * (min(1.0, per_domain - 1) * hop + (per_domain - 1) * 0.4) + inter
    else:
        assert algorithm == COLLNET_CHAIN
        latency = 2 * (per_domain - 1) * hop + inter
    _, bus = bus_bandwidth(comm, collective, algorithm, SIMPLE, environment)
    bus, bound = _rates(comm, bus, factors)
    return _time(latency, size_bytes, bus * bus_to_algorithm(comm, collective, algorithm), bound)
