"""Where every rank stands in every process group, from whatever tells: flight-recorder dumps, else watchdog lines.

Vocabulary
  *member*     a rank of a group. Groups are joined on *name* (and on the member list, where two ranks give one name to
               different groups); the ``pg_id`` of a dump is a local index and is never used.
  *operation*  one collective of a group (its sequence number), or one send/receive pair between two members.
  *entered*    the rank has enqueued the operation; *pending* it has entered and not completed it.
  *absent*     it has not entered it. *unknown*: nothing was read that says either.
  *head*       the first pending operation of a rank, in the order in which it enqueued them.

Traps that the normal form takes care of: an entry that is missing because the ring buffer went on or because only
active entries were dumped is *completed*, not absent, when the rank is known to have enqueued later ones; retired
entries are done whatever their state; a coalesced entry settles the sends and receives inside it; peers in
``send 0->1`` are group ranks; a group's status counts sends and collectives together, so it is only used for groups
without sends; an empty dump is a rank that has nothing pending, which is evidence and not a gap.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from atoll.readers.flight_recorder import FlightRecorderDump, RecordedCollective
from atoll.readers.source import Source
from atoll.readers.torch_log import WatchdogStatus, WatchdogTimeout

GroupKey = tuple[str, tuple[int, ...]]
MAX_MEMBERS: Final = 1 << 17
"""Larger groups are no groups but a damaged or hostile file."""


class Standing(enum.Enum):
    """Where one member stands with one operation."""

    COMPLETED = "completed"
    PENDING = "pending"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Operation(msgspec.Struct, frozen=True):
    """A collective of a group as one rank recorded it; ``order`` is its place in the rank's own order."""

    sequence: int
    op: str
    pending: bool
    order: float
    started: bool = False
    numel_in: int | None = None
    numel_out: int | None = None
    dtype: str = ""
    created_s: float | None = None


class Transfer(msgspec.Struct, frozen=True):
    """A pending send (``sends``) or receive between global ranks ``rank`` and ``peer``, in the rank's order."""

    group: GroupKey
    rank: int
    peer: int
    sends: bool
    sequence: int
    order: float


class MemberView(msgspec.Struct):
    """What one rank says of one group; ``enqueued`` and ``completed`` are sequence numbers or ``None``."""

    enqueued: int | None = None
    completed: int | None = None
    operations: dict[int, Operation] = {}
    source: Source | None = None


class RankState(msgspec.Struct):
    """One rank: its view of each group, its pending transfers, and where that was read."""

    rank: int
    source: Source
    views: dict[GroupKey, MemberView] = {}
    transfers: list[Transfer] = []
    empty: bool = False
    from_dump: bool = True
    timing: bool = False

    def head_order(self) -> float | None:
        """The order of the first pending operation."""
        orders = [op.order for view in self.views.values() for op in view.operations.values() if op.pending]
        orders += [transfer.order for transfer in self.transfers]
        return min(orders, default=None)


class World(msgspec.Struct):
    """All ranks that were heard of. ``groups`` maps a group to its description; ``absent_ranks`` are members of groups
    of which nothing was read at all."""

    ranks: dict[int, RankState]
    groups: dict[GroupKey, str]
    missing_ranks: tuple[int, ...] = ()

    def standing(self, group: GroupKey, sequence: int, rank: int) -> Standing:
        """Where ``rank`` stands with collective ``sequence`` of ``group``."""
        state = self.ranks.get(rank)
        if state is None:
            return Standing.UNKNOWN
        view = state.views.get(group)
        if view is None or (view.enqueued is None and not view.operations):
            return Standing.ABSENT if state.empty else Standing.UNKNOWN
        operation = view.operations.get(sequence)
        if operation is not None:
            return Standing.PENDING if operation.pending else Standing.COMPLETED
        if view.enqueued is not None and sequence > view.enqueued:
            return Standing.ABSENT
        if view.completed is not None and sequence <= view.completed:
            return Standing.COMPLETED
        if view.operations and sequence < min(view.operations):
            return Standing.COMPLETED
        return Standing.PENDING if view.enqueued is not None and not state.from_dump else Standing.COMPLETED


def from_dumps(dumps: Iterable[FlightRecorderDump]) -> World:
    """The normal form of a set of dumps; of several dumps of one rank the one with the latest entry counts."""
    latest: dict[int, FlightRecorderDump] = {}
    for dump in dumps:
        if dump.rank is not None and (dump.rank not in latest or _last_time(dump) > _last_time(latest[dump.rank])):
            latest[dump.rank] = dump
    members: dict[str, set[tuple[int, ...]]] = {}
    descriptions: dict[str, str] = {}
    seen_in: dict[str, set[int]] = {}
    with_transfers = {entry.group for dump in latest.values() for entry in dump.entries if entry.is_p2p}
    for rank, dump in latest.items():
        for group in dump.groups:
            descriptions[group.name] = group.description or descriptions.get(group.name, "")
            if 0 < len(group.ranks) <= MAX_MEMBERS:
                members.setdefault(group.name, set()).add(group.ranks)
            seen_in.setdefault(group.name, set()).add(rank)
        for entry in dump.entries:
            descriptions[entry.group] = entry.group_description or descriptions.get(entry.group, "")
            seen_in.setdefault(entry.group, set()).add(rank)

    def key(name: str, rank: int) -> GroupKey:
        """The group ``name`` that ``rank`` belongs to: by its listed members, else the ranks that were seen in it."""
        for ranks in sorted(members.get(name, ())):
            if rank in ranks:
                return name, ranks
        return name, tuple(sorted(seen_in.get(name, ())))

    world = World({}, {})
    for rank, dump in sorted(latest.items()):
        state = RankState(rank, dump.source, empty=not dump.entries)
        settled = {
            (entry.group, entry.p2p_sequence) for entry in dump.entries if "coalesced" in entry.op and _is_done(entry)
        }
        for group in dump.groups:
            view = state.views.setdefault(key(group.name, rank), MemberView(source=dump.source))
            if group.name not in with_transfers:
                view.enqueued, view.completed = group.last_enqueued, group.last_completed
        for place, entry in enumerate(dump.entries):
            where = key(entry.group, rank)
            order = float(entry.record_id if entry.record_id >= 0 else place)
            state.timing = state.timing or entry.started_s is not None
            if entry.is_p2p:
                done = _is_done(entry) or (entry.group, entry.p2p_sequence) in settled
                transfer = None if done else _transfer(entry, where, rank, order)
                if transfer is not None:
                    state.transfers.append(transfer)
                continue
            view = state.views.setdefault(where, MemberView(source=dump.source))
            view.operations[entry.sequence] = _operation(entry, order)
            if view.enqueued is None or entry.sequence > view.enqueued:
                view.enqueued = entry.sequence
        world.ranks[rank] = state
    for name in descriptions:
        for ranks in members.get(name) or {tuple(sorted(seen_in.get(name, ())))}:
            world.groups[name, ranks] = descriptions[name]
    listed = {rank for _, ranks in world.groups for rank in ranks}
    world.missing_ranks = tuple(sorted(listed - set(world.ranks)))
    return world


def from_watchdog(
    statuses: Sequence[WatchdogStatus], timeouts: Sequence[WatchdogTimeout], world_size: int | None
) -> World:
    """The normal form of watchdog lines: less than a dump tells, for groups whose members must be guessed.

    The default group has all ranks; of another group only the ranks that speak of it are known to be members.
    """
    ops = {(line.rank, line.work.sequence): line.work for line in timeouts if line.rank is not None}
    spoken: dict[str, list[WatchdogStatus]] = {}
    for status in statuses:
        rank = status.rank if status.rank is not None else status.group_rank
        if rank is not None and status.last_enqueued is not None:
            spoken.setdefault(status.group_uid or status.group_id or "0", []).append(
                msgspec.structs.replace(status, rank=rank)
            )
    if not spoken:
        for line in timeouts:
            if line.rank is not None:
                spoken.setdefault("0", []).append(
                    WatchdogStatus(
                        "timeout",
                        line.source,
                        line.rank,
                        group_desc="default_pg",
                        failed_sequence=line.work.sequence,
                        last_enqueued=line.work.sequence,
                        last_completed=line.work.sequence - 1,
                    )
                )
    world = World({}, {})
    for name, lines in spoken.items():
        heard = {line.rank for line in lines if line.rank is not None}
        is_default = any(line.group_desc in ("", "default_pg") for line in lines)
        # Ranks count from 0, so a gap below the highest rank that speaks is a rank that is silent.
        size = max(world_size or 0, max(heard) + 1)
        ranks = tuple(range(size)) if is_default and len(heard) > 1 and size <= MAX_MEMBERS else None
        group: GroupKey = (name, ranks or tuple(sorted(heard)))
        world.groups[group] = next((line.group_desc for line in lines if line.group_desc), "")
        for status in lines:
            if status.rank is None:
                continue
            state = world.ranks.setdefault(status.rank, RankState(status.rank, status.source, from_dump=False))
            view = state.views.setdefault(group, MemberView(source=status.source))
            view.enqueued = max(status.last_enqueued or 0, view.enqueued or 0)
            view.completed = status.last_completed
            first = status.failed_sequence if status.failed_sequence is not None else (status.last_completed or 0) + 1
            if first <= view.enqueued:
                work = ops.get((status.rank, first))
                view.operations[first] = Operation(
                    first, work.op.lower() if work else "", True, float(first),
                    numel_in=work.numel_in if work else None, numel_out=work.numel_out if work else None,
                )  # fmt: skip
    listed = {rank for _, ranks in world.groups for rank in ranks}
    world.missing_ranks = tuple(sorted(listed - set(world.ranks)))
    return world


def _is_done(entry: RecordedCollective) -> bool:
    return entry.state == "completed" or entry.retired is True


def _operation(entry: RecordedCollective, order: float) -> Operation:
    return Operation(
        entry.sequence,
        entry.op,
        not _is_done(entry),
        order,
        entry.started_s is not None or entry.state in ("started", "completed"),
        _numel(entry.input_sizes),
        _numel(entry.output_sizes),
        ",".join(sorted(set(entry.input_dtypes))),
        entry.created_s,
    )


def _transfer(entry: RecordedCollective, group: GroupKey, rank: int, order: float) -> Transfer | None:
    if entry.op not in ("send", "recv") or entry.peer is None:
        return None
    members = group[1]
    # The number is a group rank; for the default group it is the global rank too.
    peer = members[entry.peer] if entry.peer < len(members) else entry.peer
    return Transfer(group, rank, peer, entry.op == "send", entry.p2p_sequence, order)


def _numel(shapes: Sequence[Sequence[int]]) -> int | None:
    if not shapes:
        return None
    total = 0
    for shape in shapes:
        size = 1
        for extent in shape:
            size *= extent
        total += size
    return total


def _last_time(dump: FlightRecorderDump) -> float:
    return max((entry.created_s for entry in dump.entries if entry.created_s is not None), default=0.0)
