"""Who hangs a job: the rank that others wait for and that waits for nobody.

Theory. Every pending operation of a rank may wait for other members: for those that have not entered it (*hard* waits),
and for those that have, but are busy with an earlier operation (*soft* waits: behind). These waits make a graph over
ranks. Follow it from any stuck rank and it ends in a set of ranks that wait for nobody outside the set: there are the
culprits, and everybody on the way is a victim, however late its collective is. That carries blame through chains of
groups: a data-parallel rank waits for a tensor-parallel rank, which waits for an expert-parallel one, which never came.

What the end of the chain tells, by kind:

``NEVER_ENTERED``     others wait in an operation that it has not enqueued (its dump may be empty, or it may be frozen:
                      operations that all its peers completed are still pending for it)
``OTHER_COLLECTIVE``  it entered another collective at that place of the group's sequence, or waits elsewhere in a ring
``WRONG_SHAPE``       the same collective with another size or type
``STUCK``             every member has entered and none gets out: no rank is to blame by this evidence
``NO_EVIDENCE``       a member of a stuck group of which no dump was read, when nothing else explains the group

Where two ends of a ring of waits cannot be told apart, hard waits count more than soft ones. All-to-all sizes differ
legally between ranks; their type, and the sum of what is sent and what is received, may not.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from atoll.doctor.hang_state import GroupKey, Operation, RankState, Standing, Transfer, World
from atoll.readers.source import Source

MISSING_SHARE: Final = 0.34
"""More of a group than this without any evidence is a gap in the collection, not a suspicion."""
MAX_OPERATIONS_PER_GROUP: Final = 64


class BlameKind(enum.Enum):
    NEVER_ENTERED = "never entered"
    OTHER_COLLECTIVE = "entered another collective"
    WRONG_SHAPE = "entered with another size or type"
    STUCK = "entered and stuck"
    NO_EVIDENCE = "left no evidence"


class Blame(msgspec.Struct, frozen=True):
    """One culprit rank (or, for ``STUCK``, one member of the stuck group) and why."""

    rank: int
    kind: BlameKind
    group: str
    description: str
    sequence: int
    op: str
    waiting: tuple[int, ...]
    what: str
    sources: tuple[Source, ...] = ()
    last: int = -1
    """The last operation of that kind that the rank has launched, where only counts are known (RAS)."""


class HangAnalysis(msgspec.Struct, frozen=True):
    """``culprits`` by rank; ``stuck`` are members of groups in which all have entered; ``victims`` wait for others.

    ``disputed`` is a mismatch without a majority; ``suspects`` left no evidence where others are to blame already.
    """

    culprits: tuple[Blame, ...] = ()
    stuck: tuple[Blame, ...] = ()
    victims: tuple[int, ...] = ()
    disputed: tuple[Blame, ...] = ()
    suspects: tuple[Blame, ...] = ()
    missing_ranks: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()
    """Missing ranks that belong to a group in which others wait for a culprit: perhaps culprits too."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({blame.rank for blame in self.culprits}))


class _Waits(msgspec.Struct, frozen=True):
    """One operation: ``waiters`` are in it; ``hard`` have not entered it, ``soft`` are behind with it."""

    group: GroupKey
    sequence: int
    op: str
    waiters: tuple[int, ...]
    hard: tuple[int, ...]
    soft: tuple[int, ...]
    at_head: frozenset[int] = frozenset()


def analyse(world: World) -> HangAnalysis:
    """The culprits of ``world``. Nothing pending anywhere gives an empty analysis."""
    pending = _pending_collectives(world)
    mismatches, disputed = _mismatches(world, pending)
    wrong = {(blame.group, blame.sequence) for blame in (*mismatches, *disputed)}
    heads = {rank: state.head_order() for rank, state in world.ranks.items()}
    collectives, open_places, stuck_places = _collective_waits(world, pending, heads, frozenset())
    transfers = tuple(_transfer_waits(world, heads))
    to_unread = [wait for wait in transfers if not world.ranks.keys() >= {*wait.hard, *wait.soft}]
    waits = (*collectives, *(wait for wait in transfers if wait not in to_unread))
    ends = _ends(waits)
    # A chain may end in a rank whose first operation has members of which nothing was read. Only there is silence
    # blamed, and only where nothing else is to blame.
    first_is_open = {rank for wait in to_unread for rank in wait.waiters if rank in wait.at_head}
    first_is_open |= {rank for at_head in open_places.values() for rank in at_head}
    definite = [
        rank
        for ring, some in ends
        for rank in (some if some or ring & first_is_open else sorted(ring))
        if rank not in first_is_open
    ]
    loose = {rank for ring, _ in ends for rank in ring} | {rank for place in open_places for rank in place[0][1]}
    suspects: list[Blame] = []
    if loose & first_is_open:
        collectives, _, stuck_places = _collective_waits(world, pending, heads, frozenset(loose & first_is_open))
        waits = (*collectives, *transfers)
        unread = [rank for _, some in _ends(waits) for rank in some if rank not in world.ranks]
        suspects.extend(blame for rank in unread if (blame := _end_blame(world, rank, waits)) is not None)
    place_of = {rank: place for place in stuck_places for rank in place[0][1]}
    culprits = [*mismatches, *(suspects if not definite and not mismatches else ())]
    stuck: list[Blame] = []
    accused = {blame.rank for blame in culprits}
    for rank in definite:
        if rank in accused:
            continue
        place = place_of.get(rank)
        if place is not None:
            if (place[0][0], place[1]) not in wrong:
                stuck.append(_stuck_blame(world, place, rank))
            continue
        blame = _end_blame(world, rank, waits)
        if blame is not None:
            culprits.append(blame)
    if not culprits and not stuck:
        for place in stuck_places:
            if (place[0][0], place[1]) not in wrong:
                stuck.extend(_stuck_blame(world, place, rank) for rank in place[0][1] if rank in world.ranks)
    blamed = {blame.rank for blame in (*culprits, *stuck)}
    waiting = {rank for wait in waits for rank in wait.waiters} | {
        rank for members in pending.values() for rank in members
    }
    return HangAnalysis(
        tuple(sorted(culprits, key=_by_rank)),
        tuple(sorted(stuck, key=_by_rank)),
        tuple(sorted(waiting - blamed)),
        disputed,
        tuple(blame for blame in suspects if blame not in culprits),
        world.missing_ranks,
        tuple(
            sorted(
                {rank for wait in waits for rank in wait.group[1] if set(wait.hard) & blamed}
                & set(world.missing_ranks) - blamed
            )
        ),
    )


def _by_rank(blame: Blame) -> tuple[int, str, int]:
    return blame.rank, blame.group, blame.sequence


def _pending_collectives(world: World) -> dict[tuple[GroupKey, int], dict[int, Operation]]:
    """(group, sequence) -> the pending operation of each member that has it pending, earliest sequences first."""
    found: dict[tuple[GroupKey, int], dict[int, Operation]] = {}
    for state in world.ranks.values():
        for group, view in state.views.items():
            for sequence, operation in view.operations.items():
                if operation.pending:
                    found.setdefault((group, sequence), {})[state.rank] = operation
    kept: Counter[GroupKey] = Counter()
    result: dict[tuple[GroupKey, int], dict[int, Operation]] = {}
    for place in sorted(found, key=lambda place: (place[0], place[1])):
        kept[place[0]] += 1
        if kept[place[0]] <= MAX_OPERATIONS_PER_GROUP:
            result[place] = found[place]
    return result


def _collective_waits(
    world: World,
    pending: Mapping[tuple[GroupKey, int], Mapping[int, Operation]],
    heads: Mapping[int, float | None],
    loose: frozenset[int],
) -> tuple[list[_Waits], dict[tuple[GroupKey, int], frozenset[int]], list[tuple[GroupKey, int]]]:
    """Every wait in a collective; the *open* operations, in which nothing was read of a member, with who is first in
    line there; and the *stuck* ones, in which all members are, at their heads, and none gets out.

    ``loose`` are the ranks at the end of a chain: their open operation waits for the members that are unknown.
    """
    waits: list[_Waits] = []
    open_places: dict[tuple[GroupKey, int], frozenset[int]] = {}
    stuck: list[tuple[GroupKey, int]] = []
    for (group, sequence), operations in pending.items():
        standing = {rank: world.standing(group, sequence, rank) for rank in group[1]}
        absent = tuple(rank for rank, where in standing.items() if where is Standing.ABSENT)
        unknown = tuple(rank for rank, where in standing.items() if where is Standing.UNKNOWN)
        at_head = frozenset(rank for rank, operation in operations.items() if operation.order == heads[rank])
        behind = tuple(rank for rank in operations if rank not in at_head)
        late = _not_started(world, operations)
        hard, soft = absent, () if absent else (*behind, *late)
        if not absent and not soft and Standing.COMPLETED not in standing.values():
            if not unknown:
                stuck.append((group, sequence))
            elif len(unknown) <= MISSING_SHARE * len(group[1]):
                open_places[group, sequence] = at_head
                if loose & operations.keys():
                    hard = unknown
        op = next(iter(operations.values())).op
        waiters = tuple(rank for rank in operations if rank not in late)
        if hard or soft:
            waits.append(_Waits(group, sequence, op, waiters, hard, soft, at_head))
    return waits, open_places, stuck


def _not_started(world: World, operations: Mapping[int, Operation]) -> list[int]:
    """Members whose kernel has not started although others' have; nothing where timing is off (nobody has started)."""
    started = [rank for rank, operation in operations.items() if operation.started]
    if not started:
        return []
    return [rank for rank, operation in operations.items() if not operation.started and world.ranks[rank].timing]


def _transfer_waits(world: World, heads: Mapping[int, float | None]) -> Iterator[_Waits]:
    """Waits of sends and receives: those without a partner wait for it to come, those with one for it to get there.

    Each rank counts its own sends and receives of a group, so the two ends of a transfer have equal numbers in a group
    of two, and elsewhere only by luck: partners are matched by number where the pair has one in common, else in order.
    """
    by_pair: dict[tuple[GroupKey, int, int], dict[bool, list[Transfer]]] = {}
    for state in world.ranks.values():
        for transfer in state.transfers:
            ends = (transfer.rank, transfer.peer) if transfer.sends else (transfer.peer, transfer.rank)
            by_pair.setdefault((transfer.group, *ends), {}).setdefault(transfer.sends, []).append(transfer)
    for (group, _, _), sides in by_pair.items():
        by_number = len(group[1]) == 2 or bool(
            {t.sequence for t in sides.get(True, ())} & {t.sequence for t in sides.get(False, ())}
        )
        for sends in (True, False):
            own, other = sides.get(sends, []), sides.get(not sends, [])
            if own and own[0].peer not in world.ranks:
                yield _one_wait(own[0].rank, own[0].peer, not sends, own[0], heads)
                continue
            newest = max((transfer.sequence for transfer in other), default=None)
            partners = {transfer.sequence: transfer for transfer in other}
            for place, transfer in enumerate(own):
                if by_number:
                    partner = partners.get(transfer.sequence)
                    # A lower number than the partner's pending ones is one that the partner has behind it.
                    past = partner is None and newest is not None and transfer.sequence < newest
                    past = past or (partner is None and _has_gone_past(world.ranks[transfer.peer], transfer))
                else:
                    partner, past = (other[place] if place < len(other) else None), False
                if partner is not None and partner.order != heads[transfer.peer]:
                    yield _one_wait(transfer.rank, transfer.peer, False, transfer, heads)
                elif partner is None and not past:
                    yield _one_wait(transfer.rank, transfer.peer, not sends, transfer, heads)


def _has_gone_past(peer: RankState, transfer: Transfer) -> bool:
    """Whether the peer has pending transfers of a group of two with higher numbers: then it completed this one."""
    return len(transfer.group[1]) == 2 and any(
        own.sequence > transfer.sequence for own in peer.transfers if own.group == transfer.group
    )


def _one_wait(waiter: int, awaited: int, hard: bool, transfer: Transfer, heads: Mapping[int, float | None]) -> _Waits:
    """A receive waits hard for its send; a send may only wait for room, so it waits softly."""
    at_head = frozenset({waiter} if transfer.order == heads.get(waiter) else ())
    target = (awaited,)
    return _Waits(
        transfer.group,
        transfer.sequence,
        _name(transfer),
        (waiter,),
        target if hard else (),
        () if hard else target,
        at_head,
    )


def _name(transfer: Transfer) -> str:
    return f"send to rank {transfer.peer}" if transfer.sends else f"receive from rank {transfer.peer}"


def _ends(waits: Sequence[_Waits]) -> list[tuple[frozenset[int], tuple[int, ...]]]:
    """The ends of all chains of waits: components of ranks that wait for nobody outside, and in each the very end
    (none where all of it wait for each other alike).

    Inside such a component soft waits are dropped and the ends are sought again: a ring that only soft waits close is
    no ring. In the graph an operation is a node of its own (below zero), so that its size is a sum and not a product.
    """
    edges: dict[int, set[int]] = {}
    hard_edges: dict[int, set[int]] = {}
    for number, wait in enumerate(waits):
        node = -1 - number
        for graph, awaited in ((edges, (*wait.hard, *wait.soft)), (hard_edges, wait.hard)):
            if not awaited:
                continue
            graph.setdefault(node, set()).update(awaited)
            for rank in wait.waiters:
                graph.setdefault(rank, set()).add(node)
            for rank in awaited:
                graph.setdefault(rank, set())
    waited_hard = {rank for wait in waits for rank in wait.hard}
    result: list[tuple[frozenset[int], tuple[int, ...]]] = []
    for component in _components(edges):
        if any(edges[node] - component for node in component):
            continue
        ranks = frozenset(node for node in component if node >= 0)
        if len(ranks) < 2:
            result.append((ranks, tuple(ranks)))
            continue
        inner = {node: hard_edges.get(node, set()) & component for node in component}
        ends = {
            node for some in _components(inner) if not any(inner[node] - some for node in some)
            for node in some if node >= 0
        }  # fmt: skip
        result.append((ranks, tuple(sorted(ends & waited_hard))))
    return sorted(result, key=lambda ring: ring[1])


def _components(edges: Mapping[int, Iterable[int]]) -> list[frozenset[int]]:
    """Strongly connected components (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[frozenset[int]] = []
    for start in sorted(edges):
        if start in index:
            continue
        work = [(start, iter(sorted(edges[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(sorted(edges.get(successor, ())))))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: set[int] = set()
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.add(member)
                        if member == node:
                            break
                    found.append(frozenset(component))
    return found


def _end_blame(world: World, rank: int, waits: Sequence[_Waits]) -> Blame | None:
    on_it = [wait for wait in waits if rank in wait.hard] or [wait for wait in waits if rank in wait.soft]
    if not on_it:
        return None
    # The operation that is first in line for most waiters is the one to tell.
    told = max(on_it, key=lambda wait: (len(wait.at_head), len(wait.waiters), -wait.sequence))
    group, waiting = told.group, tuple(sorted(set(told.waiters) - {rank}))
    description = world.groups.get(group, "")
    state = world.ranks.get(rank)
    where = f"{told.op} {told.sequence} of group {group[0]}" + (f" ({description})" if description else "")
    sources = tuple(_sources(world, (rank, *waiting[:2])))
    if state is None:
        what = (
            f"ranks {_ranks(waiting)} wait in {where}, every rank that was heard of has entered it, and nothing was "
            f"read of rank {rank}"
        )
        return Blame(rank, BlameKind.NO_EVIDENCE, group[0], description, told.sequence, told.op, waiting, what, sources)
    busy_with = _first_pending(state)
    is_frozen = _frozen(world, state)
    view = state.views.get(group)
    last = view.enqueued if view is not None else None
    tail = f"; the last one that it entered is {last}" if last is not None and last < told.sequence else ""
    if state.empty:
        tail += "; its dump has no entries"
    if rank not in told.hard:
        kind, verb = BlameKind.STUCK, "has entered, but does not get to,"
    elif busy_with and not is_frozen:
        kind, verb = BlameKind.OTHER_COLLECTIVE, "never entered"
        tail += f"; it is in {busy_with} instead"
    else:
        kind, verb = BlameKind.NEVER_ENTERED, "never entered"
    if busy_with and is_frozen:
        tail += f"; its own view is frozen: {busy_with} is pending although every peer has entered it"
    what = f"rank {rank} {verb} {where}, in which ranks {_ranks(waiting)} wait{tail}"
    return Blame(rank, kind, group[0], description, told.sequence, told.op, waiting, what, sources)


def _frozen(world: World, state: RankState) -> bool:
    """Whether no other member is absent from any operation that this rank has pending."""
    for group, view in state.views.items():
        for sequence, operation in view.operations.items():
            if operation.pending and any(
                world.standing(group, sequence, rank) is Standing.ABSENT for rank in group[1] if rank != state.rank
            ):
                return False
    return True


def _first_pending(state: RankState) -> str:
    found = [
        (operation.order, f"{operation.op} {sequence} of group {group[0]}")
        for group, view in state.views.items()
        for sequence, operation in view.operations.items()
        if operation.pending
    ]
    found += [(t.order, f"{_name(t)} of group {t.group[0]}") for t in state.transfers]
    return min(found)[1] if found else ""


def _stuck_blame(world: World, place: tuple[GroupKey, int], rank: int) -> Blame:
    group, sequence = place
    description = world.groups.get(group, "")
    op = next((view.operations[sequence].op for state in world.ranks.values()
               if (view := state.views.get(group)) is not None and sequence in view.operations), "")  # fmt: skip
    name = f"{op or 'collective'} {sequence} of group {group[0]}" + (f" ({description})" if description else "")
    return Blame(
        rank, BlameKind.STUCK, group[0], description, sequence, op, group[1],
        f"all of ranks {_ranks(group[1])} have entered {name} and none completes it",
        tuple(_sources(world, group[1][:3])),
    )  # fmt: skip


def _mismatches(
    world: World, pending: Mapping[tuple[GroupKey, int], Mapping[int, Operation]]
) -> tuple[list[Blame], tuple[Blame, ...]]:
    """Members that entered another collective, size or type than most, at the first place where a group disagrees.

    Where no side has the majority the blames are *disputed*: it is a mismatch, but not known whose.
    """
    blames: list[Blame] = []
    disputed: list[Blame] = []
    done: set[GroupKey] = set()
    for group, sequence in pending:
        if group in done:
            continue
        operations = {
            rank: view.operations[sequence]
            for rank in group[1]
            if rank in world.ranks
            and (view := world.ranks[rank].views.get(group)) is not None
            and sequence in view.operations
        }
        if len(operations) < 2:
            continue
        kind, sides = BlameKind.OTHER_COLLECTIVE, _sides({rank: op.op for rank, op in operations.items() if op.op})
        if len(sides) < 2:
            kind = BlameKind.WRONG_SHAPE
            sides = _sides({rank: _signature(op) for rank, op in operations.items()})
        if len(sides) < 2:
            continue
        done.add(group)
        (_, largest), *rest = sides
        to = blames if len(largest) > len(rest[0][1]) and len(largest) * 2 > len(operations) else disputed
        said = "; ".join(f"ranks {_ranks(ranks)} {_words(signature)}" for signature, ranks in sides)
        description = world.groups.get(group, "")
        for signature, ranks in rest if to is blames else sides:
            to.extend(
                Blame(
                    rank,
                    kind,
                    group[0],
                    description,
                    sequence,
                    operations[rank].op,
                    tuple(sorted(largest)),
                    f"at place {sequence} of group {group[0]}"
                    + (f" ({description})" if description else "")
                    + f" rank {rank} has {_words(signature)}: {said}",
                    tuple(_sources(world, (rank, *sorted(largest)[:1]))),
                )
                for rank in ranks
            )
    return blames, tuple(disputed)


def _sides(signatures: Mapping[int, Hashable]) -> list[tuple[Hashable, list[int]]]:
    """The ranks by what they did, largest side first."""
    sides: dict[Hashable, list[int]] = {}
    for rank, signature in sorted(signatures.items()):
        sides.setdefault(signature, []).append(rank)
    return sorted(sides.items(), key=lambda item: (-len(item[1]), item[1]))


def _signature(operation: Operation) -> Hashable:
    """What must agree between members: the type always, the sizes where the collective wants equal ones."""
    name = operation.op.lower()
    if "all_to_all" in name or "alltoall" in name:
        return ("", operation.dtype)
    if name in ("gather", "scatter", "coalesced", "barrier"):
        return ("", operation.dtype)
    return (f"{operation.numel_in} to {operation.numel_out} elements", operation.dtype)


def _words(signature: Hashable) -> str:
    return " ".join(part for part in signature if part) if isinstance(signature, tuple) else str(signature)


def _sources(world: World, ranks: Iterable[int]) -> list[Source]:
    return [world.ranks[rank].source for rank in ranks if rank in world.ranks]


def _ranks(ranks: Iterable[int]) -> str:
    """``0-3,8,14`` for people."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
