"""Can an MSCCL program run, and does it mean one thing? Messages, deadlock and data races, before any lowering.

**Messages.** A connection is (sender, receiver, channel); its messages are received in the order they were sent, so
the i-th send meets the i-th receive, and both must count the same chunks. Each end of a connection belongs to one
thread block, since two would have no order.

**Deadlock.** A connection has so many slots; a message takes one from its send until its receive. A step runs once its
dependency has ended, its message is there and its send has a slot; a fused step needs its send slot before it frees
the slot of what it received. Whether a program gets stuck does not depend on who runs first (a queue has one writer
and one reader), so one run for a number of slots decides, and more slots never hurt: the smallest number that runs is
found by bisection. (The executors give Simple 2 slots, LL and LL128 8.)

**Races.** A step happens before another through three kinds of edges: the order in a thread block, a dependency, a
message. Every step gets a vector clock: how many steps of each thread block happen before it. Two steps of a GPU that
touch one chunk of memory, one of them writing, race unless one happens before the other. Memory is what the placement
makes of the buffers, so that in place ``i[3]`` and ``o[3]`` may be one chunk. Iterations of the executors' loop over
slices touch other bytes, and cannot race.

A program that passes means one thing whatever the timing, which is what allows ``msccl_lower`` to pick one order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.errors import ScheduleError
from atoll.schedule.msccl_program import NO_PEER, Address, Layout, Program, Step, layout

Connection = tuple[int, int, int]
"""(sender, receiver, channel)"""
Clock = npt.NDArray[np.int8] | npt.NDArray[np.int32]
"""Per thread block, how many of its steps happened before."""


class Node(NamedTuple):
    """A step of the program with its neighbours; everything by number, -1 for none."""

    gpu: int
    block: int
    step_index: int
    step: Step
    thread: int
    """Number of its thread block among all of the program's."""
    waits_for: int
    receives: int
    """The send that it receives from."""
    sends_to: int
    """The receive that gets its message."""
    place: int
    """How many messages its thread block sent before its own."""

    def __str__(self) -> str:
        return f"gpu {self.gpu} tb {self.block} step {self.step_index} ({self.step.kind.name})"


class CheckedProgram(msgspec.Struct, frozen=True, eq=False):
    """A program that runs and has no race. Made by ``check``; ``msccl_lower`` accepts nothing else.

    ``min_slots``    the fewest slots per connection with which it gets through (0: it sends nothing)
    ``redundant``    dependencies that other edges imply, of ``dependencies`` in all
    ``order``        one order in which the steps can run, as numbers of ``nodes``
    """

    program: Program
    in_place: bool
    layouts: tuple[Layout, ...]
    nodes: tuple[Node, ...]
    order: tuple[int, ...]
    min_slots: int
    messages: int
    dependencies: int
    redundant: int


def check(program: Program, *, in_place: bool | None = None, slots: int | None = None) -> CheckedProgram:
    """Check messages, deadlock and races, in one of the program's placements (its first by default).

    ``slots``: refuse also what needs more slots per connection than that. Raises ``ScheduleError`` naming gpu, tb
    and step, expected and got.
    """
    chosen = program.placements[0] if in_place is None else in_place
    layouts = tuple(layout(program, rank, chosen) for rank in range(program.world_size))
    nodes, first = _connect(program)
    order = _run(nodes, first, None)
    if len(order) < len(nodes):
        raise _stuck(program, nodes, first, order, None)
    min_slots = _smallest(nodes, first)
    if slots is not None and min_slots > slots:
        raise _stuck(program, nodes, first, _run(nodes, first, slots), slots)
    dependencies, redundant = _check_races(program, layouts, nodes, first, order)
    return CheckedProgram(
        program=program, in_place=chosen, layouts=layouts, nodes=nodes, order=tuple(order), min_slots=min_slots,
        messages=sum(node.sends_to >= 0 for node in nodes), dependencies=dependencies, redundant=redundant,
    )  # fmt: skip


def _connect(program: Program) -> tuple[tuple[Node, ...], list[int]]:
    """All steps with their neighbours, thread block by thread block; and where each one starts, and the end."""
    first: list[int] = []
    start: dict[tuple[int, int], int] = {}
    count = 0
    sends: dict[Connection, list[int]] = defaultdict(list)
    receives: dict[Connection, list[int]] = defaultdict(list)
    owner: dict[tuple[str, Connection], int] = {}
    flat: list[tuple[int, int, int, Step, int]] = []
    for rank, gpu in enumerate(program.gpus):
        for number, block in enumerate(gpu.blocks):
            thread = len(first)
            first.append(count)
            start[rank, number] = count
            ends = (
                ("send to", block.send, (rank, block.send, block.channel), sends),
                ("receive from", block.recv, (block.recv, rank, block.channel), receives),
            )
            for index, step in enumerate(block.steps):
                flat.append((rank, number, index, step, thread))
                for (verb, peer, connection, queue), uses in zip(
                    ends, (step.kind.sends, step.kind.receives), strict=True
                ):
                    if peer == NO_PEER or not uses:
                        continue
                    other = owner.setdefault((verb, connection), number)
                    if other != number:
                        raise ScheduleError(
                            f"{program.where(rank, number, index)}: tb {other} and tb {number} of gpu {rank} both "
                            f"{verb} gpu {peer} on channel {block.channel}",
                            rank=rank, expected="one thread block an end of a connection",
                            got="two, whose messages have no order",
                        )  # fmt: skip
                    queue[connection].append(count)
                count += 1
    first.append(count)

    def where(number: int) -> str:
        return program.where(*flat[number][:3])

    sent_to: dict[int, tuple[int, int]] = {}
    received_from: dict[int, int] = {}
    for connection in sorted(sends.keys() | receives.keys()):
        _match(connection, sends[connection], receives[connection], flat, where)
        for place, (send, receive) in enumerate(zip(sends[connection], receives[connection], strict=True)):
            sent_to[send] = (receive, place)
            received_from[receive] = send
    nodes = []
    for number, (rank, block_number, index, step, thread) in enumerate(flat):
        receive, place = sent_to.get(number, (-1, -1))
        waits_for = -1 if step.waits_for is None else start[rank, step.waits_for[0]] + step.waits_for[1]
        send = received_from.get(number, -1)
        nodes.append(Node(rank, block_number, index, step, thread, waits_for, send, receive, place))
    return tuple(nodes), first


def _match(
    connection: Connection, sends: list[int], receives: list[int], flat: list[tuple[int, int, int, Step, int]],
    where: Callable[[int], str],
) -> None:  # fmt: skip
    """Refuse a connection whose sends and receives do not pair up."""
    sender, receiver, channel = connection
    line = f"gpu {sender} to gpu {receiver} on channel {channel}"
    for place, (send, receive) in enumerate(zip(sends, receives, strict=False)):
        sent, taken = flat[send][3].count, flat[receive][3].count
        if sent != taken:
            raise ScheduleError(
                f"message {place} from {line} differs at its ends: sent by {where(send)}, received by {where(receive)}",
                rank=receiver, expected=f"{sent} chunks, as sent", got=f"{taken}",
            )  # fmt: skip
    if len(sends) != len(receives):
        more, fewer = (sends, receives) if len(sends) > len(receives) else (receives, sends)
        lost = more[len(fewer)]
        got = "no receive for it" if more is sends else "no send for it"
        raise ScheduleError(
            f"{where(lost)}: an unmatched message from {line}", rank=flat[lost][0],
            expected=f"as many receives as sends, {len(sends)}", got=f"{len(receives)} receives: {got}",
        )  # fmt: skip


def _run(nodes: tuple[Node, ...], first: list[int], slots: int | None) -> list[int]:
    """Run as far as it goes with ``slots`` per connection (``None``: as many as it likes); the order of the steps."""
    order: list[int] = []
    done = bytearray(len(nodes))
    blocked: dict[int, list[int]] = defaultdict(list)  # step -> thread blocks that wait for it to end
    at = first[:-1].copy()
    # The k-th later send of a connection needs this one's receive to have ended.
    received: dict[tuple[int, int], int] = {}
    if slots is not None:
        for node in nodes:
            if node.sends_to >= 0:
                received[node.thread, node.place] = node.sends_to
    ready = deque(range(len(at)))
    while ready:
        thread = ready.popleft()
        while at[thread] < first[thread + 1]:
            number = at[thread]
            node = nodes[number]
            needs = node.waits_for if node.waits_for >= 0 and not done[node.waits_for] else -1
            if needs < 0 and node.receives >= 0 and not done[node.receives]:
                needs = node.receives
            if needs < 0 and slots is not None and node.sends_to >= 0 and node.place >= slots:
                receive = received[thread, node.place - slots]
                needs = -1 if done[receive] else receive
            if needs >= 0:
                blocked[needs].append(thread)
                break
            done[number] = 1
            order.append(number)
            at[thread] += 1
            ready.extend(blocked.pop(number, ()))
    return order


def _smallest(nodes: tuple[Node, ...], first: list[int]) -> int:
    """The fewest slots with which all steps run; they run with as many as a connection has messages."""
    low, high = 0, max((node.place + 1 for node in nodes), default=0)
    # Invariant: ``high`` slots are enough, ``low`` are not (0 are not, where there is a message at all).
    while high - low > 1:
        # Nearly every program needs 1 or 2: look there before halving.
        middle = low + 1 if low < 2 else (low + high) // 2
        if len(_run(nodes, first, middle)) == len(nodes):
            high = middle
        else:
            low = middle
    return high


def _stuck(
    program: Program, nodes: tuple[Node, ...], first: list[int], order: list[int], slots: int | None
) -> ScheduleError:
    """The circle of steps that wait for each other, from a run that got stuck."""
    done = set(order)
    ends = list(pairwise(first))
    stuck = {thread: next((n for n in range(*span) if n not in done), -1) for thread, span in enumerate(ends)}
    sent_at = {(node.thread, node.place): node.sends_to for node in nodes if node.sends_to >= 0}

    def needs(number: int) -> tuple[int, str]:
        node = nodes[number]
        if node.waits_for >= 0 and node.waits_for not in done:
            return node.waits_for, "waits for the end of"
        if node.receives >= 0 and node.receives not in done:
            return node.receives, "waits for the message of"
        assert slots is not None
        return sent_at[node.thread, node.place - slots], "waits for the slot that is freed by"

    at = next(number for number in stuck.values() if number >= 0)
    seen: dict[int, int] = {}
    path: list[str] = []
    while at not in seen:
        seen[at] = len(path)
        target, why = needs(at)
        node = nodes[at]
        path.append(f"{node} {why} {nodes[target]}")
        # Its thread block is stuck at some earlier step, or at this one.
        at = stuck[nodes[target].thread]
    node = nodes[at]
    circle = path[seen[at] :]
    with_slots = "any number of slots" if slots is None else f"{slots} slot{'s' * (slots != 1)}"
    shown = circle if len(circle) <= 8 else [*circle[:7], f"... ({len(circle)} in all)"]
    return ScheduleError(
        f"{_where(program, node)}: deadlock with {with_slots} a connection", rank=node.gpu,
        expected="every step to end", got=f"{len(nodes) - len(order)} of {len(nodes)} steps stuck: {'; '.join(shown)}",
    )  # fmt: skip


def _where(program: Program, node: Node) -> str:
    return f"{program.what}:{node.step.line}: {node}"


class _Access(NamedTuple):
    number: int
    address: Address


def _check_races(
    program: Program, layouts: tuple[Layout, ...], nodes: tuple[Node, ...], first: list[int], order: list[int]
) -> tuple[int, int]:
    """Refuse two unordered accesses to one chunk; (dependencies, those that other edges imply)."""
    threads = len(first) - 1
    # Clock of each thread block after its last step so far. Narrow: a large program has thousands of thread blocks.
    longest = max((end - start for start, end in pairwise(first)), default=0)
    now = np.zeros((threads, threads), dtype=np.int8 if longest < 128 else np.int32)
    kept: dict[int, Clock] = {}  # clocks at the end of steps that others wait for or receive from
    awaited = {node.waits_for for node in nodes}
    written: dict[tuple[int, int], _Access] = {}
    read: dict[tuple[int, int], list[_Access]] = defaultdict(list)
    dependencies = redundant = 0
    for number in order:
        node = nodes[number]
        clock = now[node.thread]
        if node.receives >= 0:
            np.maximum(clock, kept[node.receives], out=clock)
            if node.receives not in awaited:
                del kept[node.receives]
        if node.waits_for >= 0:
            before = nodes[node.waits_for]
            dependencies += 1
            redundant += bool(clock[before.thread] > before.step_index)
            np.maximum(clock, kept[node.waits_for], out=clock)
        _visit(program, layouts[node.gpu], nodes, number, clock, written, read)
        clock[node.thread] = node.step_index + 1
        if node.sends_to >= 0 or number in awaited:
            kept[number] = clock.copy()
    return dependencies, redundant


def _visit(
    program: Program, place: Layout, nodes: tuple[Node, ...], number: int, clock: Clock,
    written: dict[tuple[int, int], _Access], read: dict[tuple[int, int], list[_Access]],
) -> None:  # fmt: skip
    """Enter a step's accesses, refusing those that are not ordered with earlier ones.

    Writes to a chunk are all ordered as long as nothing was refused, so that the last one stands for all before it.
    """
    node = nodes[number]
    step = node.step
    if step.src is not None and step.dst is not None:
        distance = abs(place.position(step.src) - place.position(step.dst))
        if 0 < distance < step.count:
            raise ScheduleError(
                f"{_where(program, node)}: reads and writes runs that overlap", rank=node.gpu,
                chunk=place.position(step.dst), expected="the same run, or disjoint ones",
                got=f"{step.count} chunks from {step.src} and from {step.dst}",
            )  # fmt: skip

    def ordered(earlier: _Access) -> bool:
        before = nodes[earlier.number]
        return bool(clock[before.thread] > before.step_index)

    reads = [step.src] if step.src is not None else []
    if step.dst is not None and step.kind.reduces and not step.kind.receives:
        reads.append(step.dst)
    for address in reads:
        for offset in range(step.count):
            chunk = Address(address.buffer, address.offset + offset)
            key = (node.gpu, place.position(chunk))
            writer = written.get(key)
            if writer is not None and not ordered(writer):
                raise _race(program, nodes, writer, "writes", _Access(number, chunk), "reads", key[1])
            read[key].append(_Access(number, chunk))
    if step.dst is None:
        return
    for offset in range(step.count):
        chunk = Address(step.dst.buffer, step.dst.offset + offset)
        key = (node.gpu, place.position(chunk))
        writer = written.get(key)
        if writer is not None and not ordered(writer):
            raise _race(program, nodes, writer, "writes", _Access(number, chunk), "writes", key[1])
        for reader in read.pop(key, ()):
            if reader.number != number and not ordered(reader):
                raise _race(program, nodes, reader, "reads", _Access(number, chunk), "writes", key[1])
        written[key] = _Access(number, chunk)


def _race(
    program: Program, nodes: tuple[Node, ...], one: _Access, one_does: str, other: _Access, other_does: str, chunk: int
) -> ScheduleError:
    a, b = nodes[one.number], nodes[other.number]
    return ScheduleError(
        f"data race: {_where(program, a)} {one_does} {one.address}, and "
        f"{_where(program, b)} {other_does} {other.address}",
        rank=a.gpu, chunk=chunk, expected="one to happen before the other", got="nothing that orders them",
        hint="Add a dependency (depid, deps, and hasdep=1 on the step waited for), or let one tb do both",
    )  # fmt: skip
