"""The counts: what a proven schedule moves, and how that stands against what no schedule can beat.

Everything here is exact for the stated length: a row's bytes are the sizes of the chunks it carries in the balanced
partition (``partition``), also where the world does not divide the length.

``message``        rows with equal (step, src, dst, channel) between two ranks; local moves are none
``steps``          steps that carry a message
``critical_path``  the longest chain of messages in which each waits for the one before. No step is a barrier: a
                   message leaves when what it carries has arrived, and is written when the readers of its place are
                   done (the edges of ``dependencies``). It bounds the latency of a schedule with ports to spare, and
                   is at most ``steps``
``sent``, ...      bytes per rank; ``reduced`` is the bytes a rank combines, ``copied`` what it moves locally
``busiest``        the largest of all ranks' sent and received bytes, which is what a link of its own must carry

Without a length every chunk counts as one, and "bytes" are chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from atoll.errors import InternalError, SpecError
from atoll.schedule.bounds import Bounds, bounds
from atoll.schedule.contract import IntArray
from atoll.schedule.partition import chunk_sizes
from atoll.schedule.prove import ProvenSchedule
from atoll.schedule.runs import Expanded, expand
from atoll.schedule.table import REPLACE, Columns

_MAX_PENDING = 1 << 18  # entries of pairs kept before they are joined


class StepLoads(msgspec.Struct, frozen=True, eq=False):
    """Per step with a row, the load of its busiest rank; arrays of one length.

    ``messages`` and ``sent_or_received`` are the largest of all ranks' sent and of all ranks' received, ``pair`` the
    largest load of a directed pair.
    """

    step: IntArray
    messages: IntArray
    sent_or_received: IntArray
    pair: IntArray
    reduced: IntArray


class Counts(msgspec.Struct, frozen=True, eq=False):
    """See the module's text. Arrays over ranks, over pairs with traffic (``pair_*``, by src, dst), or over steps."""

    schedule: str
    collective: str
    world_size: int
    vector_bytes: int
    in_chunks: bool
    steps: int
    messages: int
    critical_path: int
    sent: IntArray
    received: IntArray
    reduced: IntArray
    copied: IntArray
    messages_sent: IntArray
    messages_received: IntArray
    pair_src: IntArray
    pair_dst: IntArray
    pair_bytes: IntArray
    pair_messages: IntArray
    step_loads: StepLoads
    bounds: Bounds

    @property
    def busiest_bytes(self) -> int:
        return max(int(self.sent.max()), int(self.received.max()))

    @property
    def bandwidth_ratio(self) -> float | None:
        """Bytes of the busiest rank over the bound: 1 is optimal. None where nothing has to move."""
        return self.busiest_bytes / self.bounds.bandwidth_bytes if self.bounds.bandwidth_bytes else None

    @property
    def latency_ratio(self) -> float | None:
        return self.steps / self.bounds.latency_steps if self.bounds.latency_steps else None

    @property
    def reduced_ratio(self) -> float | None:
        return int(self.reduced.max()) / self.bounds.reduced_bytes if self.bounds.reduced_bytes else None


class TierTraffic(msgspec.Struct, frozen=True):
    """Traffic whose two ends first share an island at this tier; ``tier`` 0 is the innermost."""

    tier: int
    total_bytes: int
    messages: int
    max_sent_bytes: int
    max_received_bytes: int
    max_island_sent_bytes: int


def count(proven: ProvenSchedule, length: int | None = None, itemsize: int = 1) -> Counts:
    """The counts for a whole vector of ``length`` elements of ``itemsize`` bytes; in chunks without a length.

    Raises ``SpecError`` for a negative length, an itemsize below 1, a length that the contract cannot cut, and sums
    of 2^63 bytes and more.
    """
    terms = proven.contract
    if itemsize < 1:
        raise SpecError(f"expected an element of at least 1 byte, got {itemsize}")
    if length is None:
        chunk_bytes = np.full(terms.chunks, itemsize, dtype=np.int64)
    else:
        if length * itemsize >= 2**63:
            raise SpecError(f"expected a vector below 2^63 bytes, got {length} elements of {itemsize} bytes")
        chunk_bytes = chunk_sizes(terms, length) * itemsize
    if float(chunk_bytes[proven.chunk_number].sum(dtype=np.float64)) >= 2**62:
        raise SpecError(f"{proven.name}: moves 2^62 bytes or more in all; count a shorter vector")
    tally = _Tally(proven, chunk_bytes)
    for step, rows in proven.schedule.steps():
        tally.add(step, rows, expand(rows))
    result = tally.finish(length is None)
    low = [
        what
        for what, ratio in (
            ("bytes", result.bandwidth_ratio), ("steps", result.latency_ratio), ("reduce work", result.reduced_ratio),
        )
        if ratio is not None and ratio < 1 - 1e-9
    ]  # fmt: skip
    if low:
        raise InternalError(f"{proven.name}: is proven and yet below the lower bound of {', '.join(low)}")
    return result


def tiers(counts: Counts, *island_maps: Sequence[int]) -> tuple[TierTraffic, ...]:
    """Traffic per tier of a hierarchy: ``island_maps[t][rank]`` is the rank's island at tier t, innermost first.

    One map gives two tiers: inside an island, and across. Raises ``SpecError`` unless every map names each rank.
    """
    inside = np.full(len(counts.pair_src), len(island_maps), dtype=np.int64)
    groups: list[IntArray] = []
    for tier, island_map in reversed(list(enumerate(island_maps))):
        island = np.asarray(island_map)
        if island.shape != (counts.world_size,) or island.dtype.kind not in "iu":
            raise SpecError(f"island map {tier}: expected {counts.world_size} whole numbers, one a rank")
        _, island = np.unique(island, return_inverse=True)
        inside[island[counts.pair_src] == island[counts.pair_dst]] = tier
        groups.insert(0, island)
    result = []
    for tier in range(len(island_maps) + 1):
        mine = inside == tier
        src, dst, moved = counts.pair_src[mine], counts.pair_dst[mine], counts.pair_bytes[mine]
        # Traffic of tier t leaves islands of tier t - 1; at the innermost tier a rank is its own island.
        group = groups[tier - 1] if tier else np.arange(counts.world_size)
        result.append(
            TierTraffic(
                tier=tier,
                total_bytes=int(moved.sum()),
                messages=int(counts.pair_messages[mine].sum()),
                max_sent_bytes=int(_sums(src, moved, counts.world_size).max()),
                max_received_bytes=int(_sums(dst, moved, counts.world_size).max()),
                max_island_sent_bytes=int(_sums(group[src], moved, counts.world_size).max()),
            )
        )
    return tuple(result)


class _Tally:
    """Adds up step after step; keeps, per chunk of memory, the chain of messages that its last write and reads end."""

    def __init__(self, proven: ProvenSchedule, chunk_bytes: IntArray) -> None:
        self.proven = proven
        self.chunk_bytes = chunk_bytes
        self.world_size = proven.world_size
        memory = np.asarray(proven.header.memory_chunks, dtype=np.int64)
        self.base = np.cumsum(memory) - memory
        self.written = np.zeros(int(memory.sum()), dtype=np.int64)
        self.read = np.zeros(int(memory.sum()), dtype=np.int64)
        self.channels = int(proven.schedule.column("channel").max(initial=0)) + 1
        self.per_rank = {
            name: np.zeros(self.world_size, dtype=np.int64)
            for name in ("sent", "received", "reduced", "copied", "messages_sent", "messages_received")
        }
        self.loads: list[tuple[int, int, int, int, int]] = []
        self.pairs: list[tuple[IntArray, IntArray, IntArray]] = []
        self.pending_pairs = 0
        self.entry = self.critical_path = 0
        self.ports = 1

    def add(self, step: int, rows: Columns, expanded: Expanded) -> None:
        chunks = expanded.columns
        size = len(chunks.row)
        moved = self.chunk_bytes[self.proven.chunk_number[self.entry : self.entry + size]]
        self.entry += size
        far = chunks.src != chunks.dst
        # Messages of the step, then local rows, each a group of its own.
        local_key = self.world_size * self.world_size * self.channels + chunks.row
        message_key = (chunks.src * self.world_size + chunks.dst) * self.channels + chunks.channel
        keys, group = np.unique(np.where(far, message_key, local_key), return_inverse=True)
        is_message = keys < self.world_size * self.world_size * self.channels
        self._chain(chunks, group, is_message)

        pair = keys[is_message] // self.channels
        pair_bytes = _sums(group, moved, len(keys))[is_message]
        self._remember(pair, pair_bytes)
        sent = _sums(chunks.src[far], moved[far], self.world_size)
        received = _sums(chunks.dst[far], moved[far], self.world_size)
        out = np.bincount(pair // self.world_size, minlength=self.world_size)
        into = np.bincount(pair % self.world_size, minlength=self.world_size)
        reduces = chunks.operand_chunk != REPLACE
        reduced = _sums(chunks.dst[reduces], moved[reduces], self.world_size)
        here = ~far & ~reduces
        for name, amount in (
            ("sent", sent), ("received", received), ("messages_sent", out), ("messages_received", into),
            ("reduced", reduced), ("copied", _sums(chunks.src[here], moved[here], self.world_size)),
        ):  # fmt: skip
            self.per_rank[name] += amount
        peers = np.unique(pair)
        for side in (peers // self.world_size, peers % self.world_size):
            self.ports = max(self.ports, int(np.bincount(side, minlength=1).max()))
        # Channels of one pair share its link.
        _, of_pair = np.unique(pair, return_inverse=True)
        self.loads.append(
            (
                step,
                int(max(out.max(), into.max())),
                int(max(sent.max(), received.max())),
                int(_sums(of_pair, pair_bytes, len(peers)).max(initial=0)),
                int(reduced.max()),
            )
        )

    def _chain(self, chunks: Columns, group: IntArray, is_message: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        """Advance the longest chains: a message leaves after its sources and lands after its place's readers."""
        source = self.base[chunks.src] + chunks.src_chunk
        target = self.base[chunks.dst] + chunks.dst_chunk
        reduces = chunks.operand_chunk != REPLACE
        operand = self.base[chunks.dst] + np.where(reduces, chunks.operand_chunk, chunks.dst_chunk)
        leaves = np.zeros(len(is_message), dtype=np.int64)
        np.maximum.at(leaves, group, self.written[source])
        np.maximum.at(self.read, source, leaves[group])
        lands = leaves + is_message
        ready = np.maximum(np.maximum(self.written[target], self.read[target]), self.written[operand])
        np.maximum.at(lands, group, ready)
        # An operand elsewhere is read when its row lands, and a row of this step that overwrites it waits for that.
        foreign = reduces & (operand != target)
        settled = not foreign.any()
        while not settled:
            np.maximum.at(self.read, operand[foreign], lands[group][foreign])
            before = lands.copy()
            np.maximum.at(lands, group, self.read[target])
            settled = bool(np.array_equal(before, lands))
        self.written[target] = 0
        np.maximum.at(self.written, target, lands[group])  # not before the reads, which need no resetting then
        self.critical_path = max(self.critical_path, int(lands.max(initial=0)))

    def _remember(self, pair: IntArray, pair_bytes: IntArray) -> None:
        self.pairs.append((pair, pair_bytes, np.ones(len(pair), dtype=np.int64)))
        self.pending_pairs += len(pair)
        if self.pending_pairs > _MAX_PENDING:
            self._fold()

    def _fold(self) -> None:
        """Join what was remembered, pair by pair, so that a long schedule keeps one entry a pair."""
        pair, moved, messages = (np.concatenate([part[at] for part in self.pairs]) for at in range(3))
        keys, index = np.unique(pair, return_inverse=True)
        self.pairs = [(keys, _sums(index, moved, len(keys)), _sums(index, messages, len(keys)))]
        self.pending_pairs = 0

    def finish(self, in_chunks: bool) -> Counts:
        self.pairs.append((np.zeros(0, np.int64),) * 3)
        self._fold()
        ((pair, pair_bytes, pair_messages),) = self.pairs
        loads = np.asarray(self.loads, dtype=np.int64).reshape(-1, 5).T
        return Counts(
            schedule=self.proven.name,
            collective=self.proven.header.collective,
            world_size=self.world_size,
            vector_bytes=int(self.chunk_bytes.sum()),
            in_chunks=in_chunks,
            steps=int(np.count_nonzero(loads[1])),
            messages=int(pair_messages.sum()),
            critical_path=self.critical_path,
            pair_src=pair // self.world_size,
            pair_dst=pair % self.world_size,
            pair_bytes=pair_bytes,
            pair_messages=pair_messages,
            step_loads=StepLoads(*loads),
            bounds=bounds(self.proven.contract, self.chunk_bytes, self.ports),
            **self.per_rank,
        )


def _sums(index: IntArray, values: IntArray, size: int) -> IntArray:
    """Sums of ``values`` by ``index``, in integers (``bincount`` would go through floating point)."""
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, index, values)
    return sums
