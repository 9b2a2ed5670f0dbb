"""Which algorithm and protocol NCCL takes: its own tuner, computed from its own tables.

The tuner (``src/graph/tuning.cc`` of NCCL 2.30.7) gives every algorithm and protocol a latency and a bandwidth and
takes the least ``latency + bytes / bandwidth``. That is a chooser, not a clock: NCCL's issues 1154, 1368 and 1801 show
it off by tens of percent, and how long the chosen one really takes is ``nccl_time``'s matter. The choice does not
depend on calibration, since NCCL's does not either.

Inputs that NCCL's graph search would find are derived from the cluster: channels and the speed of each from the rates
of its links and NCCL's list of speeds. For NVLS a channel is a head, one per rank of the domain.
"""

from __future__ import annotations

import math

import msgspec

from atoll.errors import SpecError
from atoll.simulator import nccl_constants as constants
from atoll.simulator.communicator import Communicator, channels_of
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

_ALGORITHMS_OF = {
    "all_reduce": (TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE),
    "all_gather": (RING, COLLNET_DIRECT, NVLS, PAT),
    "reduce_scatter": (RING, COLLNET_DIRECT, NVLS, PAT),
    "broadcast": (RING,),
    "reduce": (RING,),
}
# NVSwitches add these; nothing else (no 8-bit integers, no product).
IN_SWITCH_TYPES = frozenset({"float", "float32", "half", "float16", "bfloat16", "double", "float64", "int32", "uint32",
                             "int64", "uint64"})  # fmt: skip


class Estimate(msgspec.Struct, frozen=True):
    """What the tuner reckons for one algorithm and protocol: us, GB/s of algorithm bandwidth, channels."""

    algorithm: str
    protocol: str
    latency_us: float
    bandwidth_gb_per_s: float
    channels: int
    time_us: float


class Steps(msgspec.Struct, frozen=True):
    """Steps of a ring in all, and those that cross to another domain."""

    all: int
    between: int


def algorithms_of(collective: str) -> tuple[str, ...]:
    """What NCCL has for a collective."""
    return _ALGORITHMS_OF[collective]


def ring_steps(collective: str, ranks: int, domains: int) -> Steps:
    """2(n - 1) for all-reduce, n - 1 for all-gather and reduce-scatter, n for broadcast and reduce."""
    if collective == "all_reduce":
        return Steps(2 * (ranks - 1), 2 * (domains - 1))
    if collective in ("all_gather", "reduce_scatter"):
        return Steps(ranks - 1, domains - 1)
    return Steps(ranks, domains if domains > 1 else 0)


def column(comm: Communicator) -> int:
    """The column of tables by number of nodes: 1, 2, more."""
    return min(comm.domains, 3) - 1


def estimates(
    comm: Communicator, collective: str, size_bytes: float, environment: NcclEnvironment, dtype: str = "float"
) -> list[Estimate]:
    """Every algorithm and protocol that may run, the fastest first. Raises ``SpecError`` where none may."""
    if collective not in _ALGORITHMS_OF:
        raise SpecError(f"NCCL's tuner knows {', '.join(_ALGORITHMS_OF)}; got {collective!r}")
    found = []
    allowed = environment.algorithms if collective == "all_reduce" else environment.algorithms | {RING}
    for algorithm in _ALGORITHMS_OF[collective]:
        if algorithm not in allowed or refused(comm, collective, algorithm, environment, dtype):
            continue
        for protocol in PROTOCOLS:
            if protocol in environment.protocols and _protocol_fits(comm, algorithm, protocol, environment):
                one = _estimate(comm, collective, algorithm, protocol, size_bytes, environment)
                if one is not None:
                    found.append(one)
    if not found:
        why = "; ".join(
            f"{algorithm}: {refused(comm, collective, algorithm, environment, dtype) or 'no protocol left'}"
            for algorithm in _ALGORITHMS_OF[collective]
            if algorithm in allowed
        )
        raise SpecError(f"NCCL_ALGO and NCCL_PROTO leave nothing that runs {collective} here ({why or 'none allowed'})")
    return sorted(found, key=lambda one: one.time_us)


def refused(
    comm: Communicator, collective: str, algorithm: str, environment: NcclEnvironment, dtype: str = "float"
) -> str:
    """Why an algorithm cannot run here; empty where it can."""
    nvls = algorithm in (NVLS, NVLS_TREE)
    if nvls and not environment.nvls:
        return "NCCL_NVLS_ENABLE=0"
    if nvls and (not comm.in_switch_reduction or not comm.gpu.generation.nvls_efficiency):
        return "no NVSwitch that reduces"
    if nvls and comm.smallest_domain <= 2:
        return "two ranks or fewer in a domain"
    if nvls and collective != "all_gather" and dtype not in IN_SWITCH_TYPES:
        return f"NVSwitches do not add {dtype}"
    if algorithm == NVLS and comm.domains > 1 and not environment.collnet:
        return "several nodes need SHARP (NCCL_COLLNET_ENABLE=1)"
    if algorithm == NVLS_TREE and comm.domains == 1:
        return "one node"
    if algorithm in (COLLNET_DIRECT, COLLNET_CHAIN):
        if not environment.collnet:
            return "SHARP is not enabled (NCCL_COLLNET_ENABLE=1)"
        if comm.domains == 1:
            return "one node"
    if algorithm == PAT and (not environment.pat or comm.per_domain > 1 or comm.domains == 1):
        return "PAT is for one rank a node"
    return ""


def _protocol_fits(comm: Communicator, algorithm: str, protocol: str, environment: NcclEnvironment) -> bool:
    if algorithm not in (RING, TREE):
        return protocol == SIMPLE
    if protocol == SIMPLE or environment.protocols_given:
        return True
    if protocol == LL:
        return comm.ordered
    # LL128 relies on 128-byte stores arriving whole: NVLink, and NICs behind PCIe switches at most.
    return comm.ordered and comm.link == constants.NVLINK and comm.gpu.compute >= 70


def _estimate(
    comm: Communicator, collective: str, algorithm: str, protocol: str, size_bytes: float, environment: NcclEnvironment
) -> Estimate | None:
    channels, bus = bus_bandwidth(comm, collective, algorithm, protocol, environment)
    if bus <= 0:
        return None
    bandwidth = bus * bus_to_algorithm(comm, collective, algorithm)
    if algorithm == TREE:
        bandwidth *= tree_correction(protocol, size_bytes)
    latency = latency_us(comm, collective, algorithm, protocol)
    if _plateau(comm, collective, algorithm, protocol, size_bytes, channels):
        latency *= constants.RING_PLATEAU if comm.gpu.compute >= 80 else constants.RING_PLATEAU_OLD
    time = latency + size_bytes / (1000 * bandwidth)
    return Estimate(algorithm, protocol, latency, bandwidth, channels, time)


def _plateau(
    comm: Communicator, collective: str, algorithm: str, protocol: str, size_bytes: float, channels: int
) -> bool:
    ring = algorithm == RING and protocol == SIMPLE and collective == "all_reduce"
    return ring and comm.domains > 1 and size_bytes / (channels * comm.ranks) >= 64


def tree_correction(protocol: str, size_bytes: float) -> float:
    """The share of its bandwidth that Tree reaches at a size."""
    index = int(math.log2(max(size_bytes, 64) / 64))
    row = constants.TREE_CORRECTION[protocol]
    return row[index] if index < len(row) else 1.0


def graph_channels(comm: Communicator, algorithm: str, environment: NcclEnvironment) -> tuple[int, float]:
    """Channels and GB/s of each that the graph search finds: within a domain up to two of them, else between."""
    generation = comm.gpu.generation
    most = environment.max_channels
    if algorithm in (NVLS, NVLS_TREE):
        heads = comm.smallest_domain
        per_head = comm.intra_bytes_per_s / 1e9 / heads
        speed = next((one for one in generation.intra_speeds if one <= per_head + 1e-6), per_head)
        return heads, speed
    rate = comm.intra_bytes_per_s
    speeds = generation.intra_speeds
    if comm.domains > 2:
        rate, speeds = min(rate, comm.network_bytes_per_s), generation.inter_speeds
    if not math.isfinite(rate):
        rate, speeds = comm.network_bytes_per_s, generation.inter_speeds
    channels, speed = channels_of(rate, speeds, most)
    if channels * 2 <= most and comm.link == constants.NVLINK:
        # NCCL then runs every channel twice at half the speed.
        channels, speed = channels * 2, speed / 2
    return channels, speed


def bus_bandwidth(
    comm: Communicator, collective: str, algorithm: str, protocol: str, environment: NcclEnvironment
) -> tuple[int, float]:
    """Channels and bus bandwidth (GB/s) as the tuner reckons."""
    generation, at = comm.gpu.generation, column(comm)
    channels, speed = graph_channels(comm, algorithm, environment)
    bus = channels * speed
    per_domain = comm.ranks_per_domain
    if algorithm in (NVLS, NVLS_TREE):
        if channels < 2:
            return channels, 0.0
        intra = bus * generation.nvls_efficiency * (channels - 1) / channels
        intra *= 2 if collective == "all_reduce" else (per_domain - 1) / per_domain
        if comm.domains == 1:
            return channels, intra
        network = comm.network_bytes_per_s / 1e9
        if algorithm == NVLS_TREE:
            network *= 2 if comm.domains == 2 else 1
            network = min(network, channels * generation.nvls_tree_per_channel[at])
        return channels, min(intra, network)
    if algorithm == RING:
        if protocol == LL:
            # One node by generation; more by the host's processor.
            most = (
                generation.ll_max[0] if at == 0 else (constants.AMPERE if comm.amd_host else constants.VOLTA).ll_max[at]
            )
            bus = min(most, bus * 0.5)
        elif protocol == LL128:
            bus = min(bus * 0.92, channels * generation.ring_ll128_per_channel[at])
        return channels, bus
    if algorithm == TREE:
        bus = min(bus * 0.92, channels * generation.tree_per_channel[at])
        if protocol == LL:
            bus = min(bus / 3.8, generation.ll_max[at])
        elif protocol == LL128:
            share = 7 / 9 if comm.domains == 1 else 120 / 128
            bus = min(bus * share, channels * generation.tree_ll128_per_channel[at])
        return channels, bus
    if algorithm == PAT:
        return channels, bus * 0.75
    # CollNet: the switches of the network reduce; every byte leaves the domain once.
    network = comm.network_bytes_per_s / 1e9
    if collective == "all_reduce":
        return channels, min(bus, network) * (0.85 if comm.gpu.compute >= 90 else 1.0)
    return channels, min(bus, 0.9 * network)


def bus_to_algorithm(comm: Communicator, collective: str, algorithm: str) -> float:
    """What bus bandwidth is multiplied with to give algorithm bandwidth."""
    if algorithm in (RING, NVLS, NVLS_TREE):
        return comm.ranks / max(1, ring_steps(collective, comm.ranks, comm.domains).all)
    return 0.5 if collective == "all_reduce" and algorithm == TREE else 1.0


def latency_us(comm: Communicator, collective: str, algorithm: str, protocol: str) -> float:
    """The tuner's latency: a base, and hops within and between domains."""
    row = PROTOCOLS.index(protocol)
    base = constants.BASE_LATENCY_US[algorithm][row]
    intra = constants.HOP_LATENCY_US[comm.link][algorithm][row]
    per_domain, nodes = comm.ranks_per_domain, comm.domains
    inter_row = constants.HOP_LATENCY_US[constants.NET][TREE if algorithm == RING and per_domain == 1 else algorithm]
    inter = inter_row[row] + comm.told_latency_us * (2 if protocol == SIMPLE else 1)
    levels = math.floor(math.log2(nodes))
    if algorithm == RING:
        steps = ring_steps(collective, comm.ranks, comm.domains)
        if collective in ("broadcast", "reduce"):
            return base + (intra if nodes == 1 else inter)
        if nodes > 1:
            overhead = constants.NET_OVERHEAD_US * (2 if comm.amd_host else 1) * (3 if protocol == SIMPLE else 1)
            intra = max(intra, overhead)
        return base + (steps.all - steps.between) * intra + steps.between * inter
    if algorithm == TREE:
        return base + 2 * ((math.ceil(per_domain) - 1) * intra + levels * inter)
    if algorithm == NVLS:
        return intra + (inter if nodes > 1 else 0.0)
    if algorithm == NVLS_TREE:
        return intra + 2 * levels * inter
    if algorithm == COLLNET_DIRECT:
        return 2 * (min(1.0, per_domain - 1) * intra + (per_domain - 1) * 0.4) + inter
    if algorithm == COLLNET_CHAIN:
        return 2 * (per_domain - 1) * intra + inter
    return base + math.ceil(math.log2(max(2, nodes))) * inter / 3.5 + 2.8 * comm.ranks / comm.domains
