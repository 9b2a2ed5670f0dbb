"""The closed form: time as alpha, beta and gamma of the counts, without a simulator.

    T(n) = A alpha + B n beta + C n gamma

alpha is the latency of a message in seconds, beta the seconds a byte takes on the wire, gamma the seconds it takes to
combine one; n is the vector in bytes. A, B and C are facts of the schedule, so a whole sweep of sizes is three
multiplications. With the textbook algorithms they are the textbook coefficients (Thakur, Rabenseifner and Gropp,
Optimization of collective communication operations in MPICH, 2005; Chan et al. 2007): a ring all-reduce has
A = 2(N-1), B = 2(N-1)/N, C = (N-1)/N. Sizes are real numbers here: what the partition rounds is left out.

Two forms, of which ``seconds`` takes the smaller:

**Stepwise**, every step as long as its busiest rank takes and no step before the last has ended everywhere. Exact
for schedules in which all ranks work in every step (rings, recursive algorithms, direct ones).

**Pipelined**, in segments of s bytes and without a barrier, where long messages are forwarded while they arrive
(chains and trees): the first segment travels the longest chain of D messages, then the busiest rank's bytes follow,

    T(n) = (D - 1)(alpha + s (beta + gamma)) + max(M, B' n / s) alpha + B' n beta + C' n gamma

with M messages, B' n bytes and C' n reduced at the busiest rank. For a chain broadcast this is the familiar
(N - 2 + k)(alpha + n/k beta) of k segments (van de Geijn; Sanders, Speck and Traff 2009). It is an estimate where
chain and busiest rank lie in different places. Without a given s the best one is taken,
s = sqrt(B' n alpha / ((D - 1)(beta + gamma))), between one byte and the largest message.

How simultaneous messages of one rank share its wires is the **port model**; sending and receiving never disturb each
other (full duplex):

``SHARED``    one wire a rank: bytes add up, latencies overlap (the model of the textbook table)
``ONE``       one message at a time: bytes add up and so do latencies
``PER_PEER``  a wire for every ordered pair: neither adds up, only the busiest pair counts
"""

from __future__ import annotations

import math
from enum import Enum

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.errors import SpecError
from atoll.schedule.count import Counts

FloatArray = npt.NDArray[np.float64]


class Ports(Enum):
    """How simultaneous messages of a rank share its wires."""

    SHARED = "shared"
    ONE = "one"
    PER_PEER = "per-peer"


class Link(msgspec.Struct, frozen=True):
    """alpha, 1/beta and 1/gamma of every wire and rank alike. Reducing costs nothing unless said."""

    latency_s: float
    bandwidth_bytes_per_s: float
    reduce_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        if not (self.latency_s >= 0 and self.bandwidth_bytes_per_s > 0 and self.reduce_bytes_per_s > 0):
            raise SpecError(
                f"expected a latency of at least 0 s and positive rates, got {self.latency_s} s, "
                f"{self.bandwidth_bytes_per_s} bytes/s and {self.reduce_bytes_per_s} bytes/s"
            )


class Coefficients(msgspec.Struct, frozen=True):
    """``alpha`` in messages, ``beta`` and ``gamma`` in vectors: T(n) = alpha a + beta n b + gamma n c."""

    alpha: float
    beta: float
    gamma: float


class CostModel(msgspec.Struct, frozen=True):
    """Coefficients of one schedule. Make one with ``cost_model``.

    ``chain`` is D, ``messages`` M, ``busiest``, ``busiest_pair`` and ``reduced`` the vectors that the busiest rank
    (pair) moves and reduces in all, ``largest`` the vectors in the largest message.
    """

    schedule: str
    collective: str
    world_size: int
    stepwise: dict[str, Coefficients]
    chain: int
    messages: int
    busiest: float
    busiest_pair: float
    reduced: float
    largest: float

    def stepwise_s(self, size_bytes: npt.ArrayLike, link: Link, ports: Ports = Ports.SHARED) -> FloatArray:
        """Seconds for a vector of each of ``size_bytes``, with a barrier between steps; same shape."""
        size = _sizes(size_bytes)
        terms = self.stepwise[ports.value]
        wire = terms.beta / link.bandwidth_bytes_per_s + terms.gamma / link.reduce_bytes_per_s
        return terms.alpha * link.latency_s + size * wire

    def pipelined_s(
        self, size_bytes: npt.ArrayLike, link: Link, ports: Ports = Ports.SHARED, segment_bytes: float | None = None
    ) -> FloatArray:
        """Seconds for each of ``size_bytes`` in segments of ``segment_bytes`` (the best size by default)."""
        if segment_bytes is not None and not segment_bytes > 0:
            raise SpecError(f"expected a segment of more than 0 bytes, got {segment_bytes}")
        size = _sizes(size_bytes)
        carried = (self.busiest_pair if ports is Ports.PER_PEER else self.busiest) * size
        beta = 1 / link.bandwidth_bytes_per_s
        gamma = 1 / link.reduce_bytes_per_s if self.reduced else 0.0
        hops = max(self.chain - 1, 0)
        largest = np.maximum(self.largest * size, 1.0)
        if segment_bytes is not None:
            segment = np.minimum(segment_bytes, largest)
        elif hops:
            segment = np.clip(np.sqrt(carried * link.latency_s / (hops * (beta + gamma))), 1.0, largest)
        else:
            segment = largest
        fill = hops * (link.latency_s + segment * (beta + gamma))
        messages = np.maximum(float(self.messages), carried / segment)
        # An empty vector is one of messages without segments.
        fill = np.where(size > 0, fill, hops * link.latency_s)
        return fill + messages * link.latency_s + carried * beta + self.reduced * size * gamma

    def seconds(
        self, size_bytes: npt.ArrayLike, link: Link, ports: Ports = Ports.SHARED, segment_bytes: float | None = None
    ) -> FloatArray:
        """The smaller of the two forms for each of ``size_bytes``."""
        return np.minimum(
            self.stepwise_s(size_bytes, link, ports), self.pipelined_s(size_bytes, link, ports, segment_bytes)
        )


def cost_model(counts: Counts) -> CostModel:
    """The model of a counted schedule. ``SpecError`` where it was counted for an empty vector, which says nothing."""
    if not counts.vector_bytes:
        raise SpecError(f"{counts.schedule}: counted for an empty vector; count it in chunks or for a positive length")
    loads = counts.step_loads
    vector = counts.vector_bytes
    gamma = int(loads.reduced.sum()) / vector
    shared = int(loads.sent_or_received.sum()) / vector
    per_peer = int(loads.pair.sum()) / vector
    return CostModel(
        schedule=counts.schedule,
        collective=counts.collective,
        world_size=counts.world_size,
        stepwise={
            Ports.SHARED.value: Coefficients(counts.steps, shared, gamma),
            Ports.ONE.value: Coefficients(int(loads.messages.sum()), shared, gamma),
            Ports.PER_PEER.value: Coefficients(counts.steps, per_peer, gamma),
        },
        chain=counts.critical_path,
        messages=int(max(counts.messages_sent.max(), counts.messages_received.max())),
        busiest=counts.busiest_bytes / vector,
        busiest_pair=int(counts.pair_bytes.max(initial=0)) / vector,
        reduced=int(counts.reduced.max()) / vector,
        largest=int(loads.pair.max(initial=0)) / vector,
    )


def _sizes(size_bytes: npt.ArrayLike) -> FloatArray:
    size = np.asarray(size_bytes, dtype=np.float64)
    if not np.all(size >= 0):
        raise SpecError("expected sizes of at least 0 bytes")
    return size
