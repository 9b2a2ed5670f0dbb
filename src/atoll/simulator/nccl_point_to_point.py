"""How long NCCL's sends and receives take: all-to-all, gather, scatter and send-recv have no algorithm of their own.

Vocabulary. A *message* is what one rank sends to one peer; NCCL cuts it into *parts*, one a channel. All messages of a
group go out at once, each on channels of its own, as far as there are channels; a channel takes up eight at a time.

- *Parts.* ``src/enqueue.cc``: an eighth of a step at least (64 KiB of NVLink's steps of 512 KiB in Simple), and no more
  than the channels give each peer: with 32 of them 16 on 2 GPUs, 4 on 8.
- *Protocol.* LL up to 16 KiB a part. Until 2.28 the channels of a peer were counted whether the message fills them or
  not, so that on NVSwitches LL went up to 512 KiB a message.
- *LL* carries on one channel what a ring in LL carries on one of its; a small message waits for its last line.
- *Simple* passes every byte through a buffer: a channel's block copies it twice, what it sends and what it receives.
  What NCCL lets a channel of Tree carry is two passes as well, so half of that constant is a block's most. Where the
  links are the limit, the last chunk of every channel is still copied out when nothing moves any more, at about twice
  their rate.
- Blocks that work side by side start later than one alone, as they do in a ring (``Factors.ll_full``).

Across nodes a rank's messages leave by the domain's NICs; each costs the proxy its overhead.
"""

from __future__ import annotations

import math

import msgspec

from atoll.simulator import nccl_constants as constants
from atoll.simulator.communicator import Communicator
from atoll.simulator.nccl_constants import LL, RING, SIMPLE
from atoll.simulator.nccl_environment import NcclEnvironment
from atoll.simulator.nccl_time import NO_FACTORS, Factors, Time, hop_latencies_us
from atoll.simulator.nccl_tuner import graph_channels


class Channels(msgspec.Struct, frozen=True):
    """What NCCL gives sends and receives: channels in all, the fewest and the most of one peer."""

    all: int
    least: int
    most: int


class Parts(msgspec.Struct, frozen=True):
    """How one message goes: its protocol, and over how many channels."""

    protocol: str
    count: int


def is_point_to_point(collective: str) -> bool:
    """Whether NCCL has no algorithm of its own for it."""
    return collective in ("all_to_all", "gather", "scatter", "send_recv")


def channels_for(comm: Communicator, environment: NcclEnvironment) -> Channels:
    """``ncclTopoComputeP2pChannels``: the ring's channels rounded up to a power of two; of these a peer gets two for
    each of its NVLinks, two over PCIe, and two over the network unless there are too many peers."""
    every = 1 << (min(_ring_channels(comm, environment), environment.max_p2p_channels) - 1).bit_length()
    if environment.channels_per_peer:
        most = 1 << (environment.channels_per_peer - 1).bit_length()
    elif comm.domains > 1:
        most = 2 if 2 * comm.ranks <= 4 * every else 1
    elif comm.link == constants.NVLINK:
        most = every
    else:
        most = 2
    most = min(most, every)
    least = most
    while least * comm.ranks > every and least > 1:
        least //= 2
    return Channels(every, least, most)


def parts_of(
    comm: Communicator, message_bytes: float, channels: Channels, environment: NcclEnvironment
) -> Parts:  # fmt: skip
    """Protocol and channels of one message."""
    simple_step = _step_bytes(comm)
    in_simple = _count(comm, message_bytes, simple_step, channels)
    if environment.version >= constants.P2P_LL_BY_PART_SINCE:
        limit, in_ll = in_simple * environment.p2p_ll_bytes, in_simple
    else:
        limit = channels.most * environment.p2p_ll_bytes
        in_ll = _count(comm, message_bytes, constants.P2P_LL_STEP_BYTES, channels)
    allowed = LL in environment.protocols and (comm.ordered or environment.protocols_given)
    if message_bytes <= limit and allowed:
        return Parts(LL, in_ll)
    return Parts(SIMPLE, in_simple)


def point_to_point_time(
    comm: Communicator, collective: str, size_bytes: float, environment: NcclEnvironment,
    factors: Factors = NO_FACTORS,
) -> tuple[Time, Parts]:  # fmt: skip
    """The time of a group of sends and receives, and how each message goes. ``size_bytes`` is nccl-tests' size."""
    n = comm.ranks
    one_way = collective == "send_recv"
    message = size_bytes if one_way else size_bytes / n
    peers = 1 if one_way else n - 1
    channels = channels_for(comm, environment)
    parts = parts_of(comm, message, channels, environment)
    blocks = min(channels.all, peers * parts.count)
    batches = math.ceil(peers / constants.P2P_OPS_PER_BATCH)
    # Not a ring: what calibration found for the start of a ring in Simple is not of single messages.
    plain = msgspec.structs.replace(factors, simple_base=factors.ll_base)
    base, hop, inter = hop_latencies_us(comm, RING, parts.protocol, plain)
    latency = base + hop + hop * (batches if parts.protocol == LL else batches - 1)
    if blocks > 1:
        latency *= factors.ll_full
    # What stays within the largest domain; a pair of neighbours across the boundary sends nothing else.
    local = message * min(peers, comm.per_domain - 1)
    inside = _inside_s(comm, collective, local, parts.protocol, blocks, environment) / factors.bandwidth
    times = {"intra": inside if local else 0.0}
    if comm.domains > 1:
        away = peers - comm.per_domain + 1 if not one_way else 1
        latency += inter + (away - 1) * constants.NET_OVERHEAD_US
        network = (0.5 if parts.protocol == LL else 1.0) * factors.network_bandwidth
        if one_way:
            times["network"] = message * max(1, comm.nics) / (comm.network_bytes_per_s * network)
        elif collective == "all_to_all":
            times["network"] = message * comm.exchange_s_per_byte / network
            beyond = message * n * comm.beyond_leaf * comm.ranks_per_node
            times["leaf"] = beyond / (comm.leaf_bytes_per_s * network)
        else:
            times["network"] = message * away / (comm.network_bytes_per_s * network)
    bound = max(times, key=lambda name: times[name])
    return Time(latency * 1e-6, times[bound], bound), parts


def _inside_s(
    comm: Communicator, collective: str, local_bytes: float, protocol: str, blocks: int, environment: NcclEnvironment
) -> float:
    """Seconds that ``local_bytes`` take within the domain, over ``blocks`` channels."""
    exchange = collective == "all_to_all"
    rate = comm.exchange_bytes_per_s if exchange else comm.intra_bytes_per_s
    share = constants.P2P_EFFICIENCY if comm.link == constants.NVLINK else 1.0
    generation = comm.gpu.generation
    if protocol == LL:
        most = generation.ll_max[0] * 1e9
        return local_bytes / min(rate * 0.5, most * share, most * blocks / _ring_channels(comm, environment))
    if comm.link != constants.NVLINK:
        # The last chunk is copied out at many times PCIe's rate.
        return local_bytes / rate
    last = min(local_bytes, blocks * constants.P2P_CHUNK_BYTES)
    # Two passes over all bytes, at the same time or one after the other.
    copied = blocks * generation.tree_per_channel[0] / 2 * 1e9
    return max((local_bytes + last / 2) / (rate * share), local_bytes / copied)


def _step_bytes(comm: Communicator) -> int:
    over_nvlink = comm.link == constants.NVLINK and comm.domains == 1
    return constants.P2P_CHUNK_BYTES if over_nvlink else constants.P2P_CHUNK_BYTES_ELSEWHERE


def _count(comm: Communicator, message_bytes: float, step_bytes: int, channels: Channels) -> int:
    """Channels of a message that is moved in steps of so many bytes."""
    least, most = (step_bytes / 2, step_bytes) if comm.domains > 1 else (step_bytes / 8, step_bytes * 32)
    count = max(1, min(channels.least, math.ceil(message_bytes / least)))
    while max(least, message_bytes / count) > most and count <= channels.most // 2:
        count *= 2
    return count


def _ring_channels(comm: Communicator, environment: NcclEnvironment) -> int:
    """Channels of a communicator: ``ncclTopoPostset`` sets up those of the graph twice (24 of 12 on A100 and H100)."""
    channels, _ = graph_channels(comm, RING, environment)
    return max(1, min(2 * channels, environment.max_channels))
