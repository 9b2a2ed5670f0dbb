"""Algorithms side by side on one cluster: proven schedules at flow level, and NCCL as it behaves.

A **candidate** is an algorithm made ready for a cluster. Its schedule is laid over **channels**: a plain ring or tree
crosses from island to island at one GPU, and leaves the other NICs idle; so, unless the number is given, an algorithm
that leaves NICs idle gets as many channels as a node has NICs, each with an order of ranks of its own
(``topology.rail_orders``), and one that uses them all gets one. Hierarchical takes the cluster's islands.

``nccl`` is a candidate, too: NCCL's own choice of algorithm and protocol, with what its kernels cost
(``simulator.nccl``). The schedules have neither protocols nor software in between; they are the bound.

**Waits.** The critical path is told by part: a NIC with its cable and its PCIe links, else one directed link.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from atoll.algorithms.catalog import build
from atoll.algorithms.channels import over_channels
from atoll.schedule.bus_bandwidth import busbw_factor
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.schedule.table import Schedule
from atoll.simulator.communicator import communicator
from atoll.simulator.flow import Outcome, simulate
from atoll.simulator.job import Job
from atoll.simulator.nccl import predict_for
from atoll.simulator.nccl_environment import nccl_environment
from atoll.simulator.timeline import timeline
from atoll.topology.cluster import Cluster
from atoll.topology.names import device_name, link_ends, link_names
from atoll.topology.node_type import kind_of
from atoll.topology.rail_orders import leaves_nics_idle, nics_per_node, rail_orders
from atoll.trace.events import Trace

NCCL = "nccl"
NICKNAMES = {"tree": "double_binary_tree"}
"""What people call NCCL's tree is the double binary tree."""
MOST_ROWS = 2_500_000
"""Of one schedule, where the number of channels is not given; more take minutes and gigabytes."""
DEFAULT_SEGMENT_BYTES = 512 << 10
_MOST_SEGMENTS = 128  # that the default cuts a whole vector into
_AS_BUSY = 0.01


class Candidate(msgspec.Struct, frozen=True, eq=False):
    """``proven`` is None for NCCL. ``about`` says how it was laid over the cluster."""

    name: str
    collective: str
    ranks: int
    proven: ProvenSchedule | None
    channels: int
    about: str


class Wait(msgspec.Struct, frozen=True):
    """What the critical path waits for; ``alike``: other parts of the kind that are as busy as this one."""

    waits_for: str
    time_s: float
    share: float
    alike: int = 0


class LinkUse(msgspec.Struct, frozen=True):
    """One directed link: what it carried, and that over what it could have."""

    link: str
    bytes: float
    use: float


class Result(msgspec.Struct, frozen=True):
    """One candidate at one size. Waits and links, longest and busiest first; of NCCL there is only what bounds it.

    ``choice`` is NCCL's, and ``interval_s`` how far off such predictions have been.
    """

    algorithm: str
    channels: int
    size_bytes: int
    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    rank_finish_s: tuple[float, ...]
    critical_path: tuple[Wait, ...]
    links: tuple[LinkUse, ...]
    choice: str = ""
    interval_s: tuple[float, float] | None = None


def candidate(
    cluster: Cluster, collective: str, name: str, ranks: int, *, root: int | None = None, channels: int | None = None
) -> Candidate:
    """``name``, a catalogued algorithm, a nickname or ``nccl``, among the first ``ranks`` GPUs; ``channels`` None: as
    many as it has use for. Raises ``SpecError``."""
    if name == NCCL:
        return Candidate(name, collective, ranks, None, 0, "NCCL's own choice, with its kernels' costs (atoll predict)")
    options: dict[str, Any] = {}
    if name == "hierarchical":
        options["islands"] = cluster.island_of_gpu(range(ranks)).tolist()

    def one(at: int | None) -> Schedule:
        return build(collective, NICKNAMES.get(name, name), ranks, at, **options)

    plain = one(root)
    src, dst, channel = (plain.column(column) for column in ("src", "dst", "channel"))
    width = int(channel.max(initial=0)) + 1
    idle = leaves_nics_idle(cluster, range(ranks), src, dst, channel)
    nics = nics_per_node(cluster, range(ranks))
    wanted = max(1, (channels if channels is not None else nics if idle else width) // width)
    count = wanted if channels is not None else max(1, min(wanted, MOST_ROWS // max(len(plain), 1)))
    about = f"{count * width} channel{'s' * (count * width > 1)}"
    if count < wanted:
        about += f" of {wanted * width}, not to play more than {MOST_ROWS} transfers; --channels {wanted * width} does"
    elif count > 1:
        about += f" on {count} orders of ranks, rotated so that each enters an island at another GPU and its NIC"
    elif len(set(cluster.island_of_gpu(range(ranks)).tolist())) == 1:
        about += ": all ranks are in one island"
    elif not idle:
        about += ": uses every NIC of a node as it is"
    elif nics > 1:
        about += f" for {nics} NICs of a node"
    schedule = plain
    if count > 1:
        schedule = over_channels(one, rail_orders(cluster, range(ranks), count, width), root)
    return Candidate(name, collective, ranks, prove(schedule), count * width, about)


def play(
    cluster: Cluster, chosen: Candidate, size_bytes: int, *, segment_bytes: int | None = None, dtype: str = "float",
    environment: Mapping[str, str] | None = None, traces: list[Trace] | None = None,
) -> Result:  # fmt: skip
    """One size; ``segment_bytes`` None: 512 KiB, or 1/128 of the size if that is more; ``environment`` is NCCL's.

    What was played is added to ``traces``; NCCL is not played.
    """
    factor = busbw_factor(chosen.collective, chosen.ranks)
    if chosen.proven is None:
        allowed = nccl_environment(environment, chosen.collective)
        comm = communicator(cluster, chosen.ranks, allowed.transport)
        told = predict_for(comm, chosen.collective, size_bytes, allowed, dtype)
        shares = ((told.bound if told.bound != "latency" else "transfer", told.transfer_s), ("latency", told.latency_s))
        waits = tuple(
            Wait(part, time, time / told.time_s) for part, time in sorted(shares, key=lambda one: -one[1]) if time > 0
        )
        choice = f"{told.algorithm} {told.protocol}, {told.channels} channels"
        return Result(NCCL, told.channels, size_bytes, told.time_s, told.algbw_bytes_per_s, told.busbw_bytes_per_s,
                      (), waits, (), choice, told.interval)  # fmt: skip
    name = NICKNAMES.get(chosen.name, chosen.name)
    jobs = [Job(chosen.proven, tuple(range(chosen.ranks)), size_bytes, label=name)]
    segment = segment_bytes if segment_bytes is not None else max(DEFAULT_SEGMENT_BYTES, size_bytes // _MOST_SEGMENTS)
    found = simulate(jobs, cluster, segment_bytes=segment, row_times=traces is not None)
    if traces is not None:
        traces.append(timeline(jobs, found, cluster))
    algbw = size_bytes / found.finish_s if found.finish_s > 0 else 0.0
    return Result(
        chosen.name, chosen.channels, size_bytes, found.finish_s, algbw, algbw * factor,
        tuple(found.rank_finish_s[0].tolist()), _waits(cluster, found), _links(cluster, found),
    )  # fmt: skip


def _links(cluster: Cluster, found: Outcome) -> tuple[LinkUse, ...]:
    could = cluster.usable_bytes_per_s * found.finish_s
    at = found.link_bytes.nonzero()[0]
    used = [
        LinkUse(name, float(found.link_bytes[link]), float(found.link_bytes[link] / could[link]))
        for link, name in zip(at, link_names(cluster, at.tolist()), strict=True)
    ]
    return tuple(sorted(used, key=lambda one: -one.use))


def _waits(cluster: Cluster, found: Outcome) -> tuple[Wait, ...]:
    """The critical path by part, longest first, with how many parts are as busy as the one waited for."""
    carrying = found.link_bytes.nonzero()[0].tolist()
    named = sorted({*carrying, *(link for link, _ in found.critical_s if link >= 0)})
    part_of = dict(zip(named, parts_of(cluster, named), strict=True)) | {-1: "latency"}
    spent: dict[str, float] = {}
    for link, time in found.critical_s:
        part = part_of[link]
        spent[part] = spent.get(part, 0.0) + time
    use: dict[str, float] = {}
    could = cluster.usable_bytes_per_s * found.finish_s
    for link in carrying:
        part = part_of[link]
        use[part] = max(use.get(part, 0.0), float(found.link_bytes[link] / could[link]))
    waits = []
    for part, time in sorted(spent.items(), key=lambda one: (-one[1], one[0])):
        busy = use.get(part)
        alike = 0
        if busy is not None:
            kind = _kind(part)
            alike = sum(abs(other - busy) <= _AS_BUSY * busy and _kind(name) == kind for name, other in use.items()) - 1
        waits.append(Wait(part, time, time / found.finish_s, alike))
    return tuple(waits)


def _kind(part: str) -> str:
    """A part's name without numbers."""
    return re.sub(r"\d+", "", part)


def parts_of(cluster: Cluster, links: Sequence[int]) -> list[str]:
    """``node3/nic2`` for its cable and its PCIe links, either way; any other link by its own name."""
    parts = []
    for ends, own in zip(zip(*link_ends(cluster, links), strict=True), link_names(cluster, links), strict=True):
        names = [device_name(cluster, int(end)) for end in ends]
        parts.append(next((name for name in names if kind_of(name.rpartition("/")[2]) == "nic"), own))
    return parts
