"""Lower a checked MSCCL program to the schedule table: the same transfers, the same reductions in the same order.

**Rows.** One message is one row: it reads where the sender's step holds the value and writes what the receiver's step
does with it.

===================  ===================================  ======================================================
step                 as a receiver                        as a sender, the value is held in
===================  ===================================  ======================================================
``s``                                                     src
``r``, ``rcs``       replaces dst                         (``rcs``) dst
``rrc``, ``rrcs``    dst = src (op) received              (``rrcs``) dst
``rrs``              relay = src (op) received            relay: scratch added here, one run per thread block
===================  ===================================  ======================================================

``cpy`` and ``re`` are local rows. ``nop`` and dependencies leave no row: what they order is data.

**Steps.** The table's order must keep, for every chunk of memory, the order in which the program reads and writes it
(write before read and write before write: a later step; read before write: the same step or a later one, since a step
reads before it writes), and on every connection the order of its messages. A race-free program has one such order
whichever way it is run, so that one run gives it. Rows take the earliest step that these edges allow.

**A message takes time** in the program: its source may be overwritten after the send and before the receive. One row
reads and writes in one step, so that such edges can close a circle. Rows of a circle of "same step or later" share a
step (two ranks that exchange a chunk). Where the circle has a "later", or does not get through, its messages are
split: a row into scratch at the receiver when it is sent, and a local row from there when it is received. The bytes on
the wire stay the same.

**Operands.** Each operation of the program is one operation of the table on the same two values, so which values meet
in which order is kept exactly. Which of the two is written left is the table's rule (lowest contributing rank), as
for every schedule; executors put the received value and their own in an order of their own.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np

from atoll.errors import ScheduleError, SpecError
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.msccl_check import CheckedProgram, Node
from atoll.schedule.msccl_program import Program
from atoll.schedule.progress import check_progress
from atoll.schedule.prove import prove
from atoll.schedule.table import COLUMNS, REPLACE, Header, Schedule


def lower(checked: CheckedProgram, root: int | None = None) -> Schedule:
    """The program's schedule, which is still to be proven.

    ``root`` is needed only where neither the file nor the flow of its data tells it. Raises ``SpecError`` where a
    rooted collective has no root that can be told; ``ScheduleError`` where every root would be wrong.
    """
    rows = _rows(checked)
    program = checked.program
    if not COLLECTIVES[program.collective].rooted:
        return _schedule(checked, rows, None)
    named = program.root if root is None else root
    if named is not None:
        if not 0 <= named < program.world_size:
            raise SpecError(f"{program.what}: expected a root between 0 and {program.world_size - 1}, got {named}")
        return _schedule(checked, rows, named)
    return _with_some_root(checked, rows)


class _Row(msgspec.Struct):
    """A row of the table before it has a step. ``message``: the send step whose message it carries, -1 if local."""

    src: int
    dst: int
    src_chunk: int
    dst_chunk: int
    num_chunks: int
    operand_chunk: int
    channel: int
    message: int = -1
    step: int = 0


class _Rows(msgspec.Struct):
    rows: list[_Row]
    memory_chunks: list[int]


def _rows(checked: CheckedProgram) -> _Rows:
    """All rows with their steps; messages are split until the steps have no contradiction."""
    split: set[int] = set()
    while True:
        flow = _Flow(checked, split)
        flow.play()
        rows = _Rows(flow.rows, flow.memory_chunks)
        more = _settle(checked, flow, rows) - split
        if not more:
            return rows
        split |= more


class _Flow:
    """The program's order of accesses to every chunk, turned into edges between rows."""

    def __init__(self, checked: CheckedProgram, split: set[int]) -> None:
        self.checked = checked
        self.split = split
        self.rows: list[_Row] = []
        self.memory_chunks = [place.memory_chunks for place in checked.layouts]
        self.later: list[tuple[int, int]] = []
        self.not_before: list[tuple[int, int]] = []
        self._writer: dict[tuple[int, int], int] = {}
        self._readers: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._row_of_send: dict[int, int] = {}
        self._staged_at: dict[int, int] = {}
        self._last_on: dict[tuple[int, int, int], int] = {}
        self._relay = self._relays()

    def _relays(self) -> dict[int, int]:
        """Per thread block with an ``rrs``: where its relay run starts. A step has sent it on before the next one."""
        longest: dict[int, int] = {}
        for node in self.checked.nodes:
            if node.step.kind.receives and node.step.dst is None:
                longest[node.thread] = max(longest.get(node.thread, 0), node.step.count)
        gpu_of = {node.thread: node.gpu for node in self.checked.nodes}
        relays = {}
        for thread, count in longest.items():
            relays[thread] = self._allocate(gpu_of[thread], count)
        return relays

    def _allocate(self, gpu: int, count: int) -> int:
        start = self.memory_chunks[gpu]
        self.memory_chunks[gpu] += count
        return start

    def play(self) -> None:
        for number in self.checked.order:
            node = self.checked.nodes[number]
            kind = node.step.kind
            place = self.checked.layouts[node.gpu]
            src = -1 if node.step.src is None else place.position(node.step.src)
            dst = self._relay.get(node.thread, -1) if node.step.dst is None else place.position(node.step.dst)
            if kind.receives:
                self._receive(node, src if kind.reduces else REPLACE, dst)
            elif kind.reduces:
                self._local(node, src, dst, operand=dst)
            elif kind.writes_dst:
                self._local(node, src, dst, operand=REPLACE)
            if kind.sends:
                self._send(node, number, dst if kind.receives else src)

    def _send(self, node: Node, number: int, held: int) -> None:
        receiver = self.checked.nodes[node.sends_to].gpu
        row = self._add(_Row(node.gpu, receiver, held, -1, node.step.count, REPLACE, self._channel(node), number))
        self._row_of_send[number] = row
        self._reads(row, node.gpu, held, node.step.count)
        lane = (node.gpu, receiver, self._channel(node))
        if lane in self._last_on:
            self.later.append((self._last_on[lane], row))
        self._last_on[lane] = row
        if number in self.split:
            staging = self._allocate(receiver, node.step.count)
            self.rows[row].dst_chunk = self._staged_at[number] = staging
            self._writes(row, receiver, staging, node.step.count)

    def _receive(self, node: Node, operand: int, dst: int) -> None:
        if node.receives in self.split:
            self._local(node, self._staged_at[node.receives], dst, operand)
            return
        row = self._row_of_send[node.receives]
        self.rows[row].dst_chunk = dst
        self.rows[row].operand_chunk = operand
        if operand != REPLACE:
            self._reads(row, node.gpu, operand, node.step.count)
        self._writes(row, node.gpu, dst, node.step.count)

    def _local(self, node: Node, src: int, dst: int, operand: int) -> None:
        row = self._add(_Row(node.gpu, node.gpu, src, dst, node.step.count, operand, self._channel(node)))
        self._reads(row, node.gpu, src, node.step.count)
        if operand != REPLACE:
            self._reads(row, node.gpu, operand, node.step.count)
        self._writes(row, node.gpu, dst, node.step.count)

    def _channel(self, node: Node) -> int:
        return self.checked.program.gpus[node.gpu].blocks[node.block].channel

    def _add(self, row: _Row) -> int:
        self.rows.append(row)
        return len(self.rows) - 1

    def _reads(self, row: int, gpu: int, start: int, count: int) -> None:
        for chunk in range(start, start + count):
            writer = self._writer.get((gpu, chunk))
            if writer is not None and writer != row:
                self.later.append((writer, row))
            self._readers[gpu, chunk].append(row)

    def _writes(self, row: int, gpu: int, start: int, count: int) -> None:
        for chunk in range(start, start + count):
            key = (gpu, chunk)
            writer = self._writer.get(key)
            readers = self._readers.pop(key, ())
            self.not_before.extend((reader, row) for reader in readers if reader != row)
            if writer is not None:
                self.later.append((writer, row))
            self._writer[key] = row


def _settle(checked: CheckedProgram, flow: _Flow, rows: _Rows) -> set[int]:
    """Give every row its step; or the messages that have to be split before that can be."""
    later = set(flow.later)
    not_before = set(flow.not_before) - later
    successors: list[list[int]] = [[] for _ in flow.rows]
    for before, after in later | not_before:
        successors[before].append(after)
    group = _strongly_connected(successors)
    contradicting = {group[before] for before, after in later if group[before] == group[after]}
    if contradicting:
        return {row.message for row, of in zip(flow.rows, group, strict=True) if of in contradicting} - {-1}
    while True:
        _assign_steps(flow, successors, group, later)
        stuck = _stuck_steps(_schedule(checked, rows, None))
        if not stuck:
            return set()
        # Of the rows of such a step, put those apart that need not be in one step; split the others' messages.
        apart = {
            (before, after)
            for before, after in not_before - later
            if flow.rows[before].step in stuck
            and flow.rows[before].step == flow.rows[after].step
            and group[before] != group[after]
        }
        if not apart:
            return {row.message for row in flow.rows if row.step in stuck} - {-1}
        later |= apart


def _assign_steps(flow: _Flow, successors: list[list[int]], group: list[int], later: set[tuple[int, int]]) -> None:
    """Every row's earliest step. The rows of a group share one."""
    # Tarjan numbers a group after all that it leads to, so that descending numbers are a topological order.
    members: list[list[int]] = [[] for _ in range(max(group, default=-1) + 1)]
    for number, of in enumerate(group):
        members[of].append(number)
    level = [0] * len(members)
    for which in range(len(level) - 1, -1, -1):
        for before in members[which]:
            flow.rows[before].step = level[which]
            for after in successors[before]:
                if group[after] != which:
                    step = level[which] + ((before, after) in later)
                    level[group[after]] = max(level[group[after]], step)


def _strongly_connected(successors: list[list[int]]) -> list[int]:
    """The number of every node's strongly connected component (Tarjan 1972, without recursion)."""
    count = len(successors)
    index = [-1] * count
    low = [0] * count
    group = [-1] * count
    stack: list[int] = []
    found = groups = 0
    for start in range(count):
        if index[start] >= 0:
            continue
        work = [(start, 0)]
        while work:
            node, place = work.pop()
            if place == 0:
                index[node] = low[node] = found
                found += 1
                stack.append(node)
            elif low[successors[node][place - 1]] < low[node] and group[successors[node][place - 1]] < 0:
                low[node] = low[successors[node][place - 1]]
            for at in range(place, len(successors[node])):
                after = successors[node][at]
                if index[after] < 0:
                    work.append((node, at + 1))
                    work.append((after, 0))
                    break
                if group[after] < 0:
                    low[node] = min(low[node], index[after])
            else:
                if low[node] == index[node]:
                    while True:
                        member = stack.pop()
                        group[member] = groups
                        if member == node:
                            break
                    groups += 1
    return group


def _stuck_steps(schedule: Schedule) -> set[int]:
    """The steps whose rows could not get through with one staging segment a connection."""
    stuck = set()
    for step, columns in schedule.steps():
        try:
            check_progress(schedule, step, columns)
        except ScheduleError:
            stuck.add(step)
    return stuck


def _columns(rows: _Rows) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    # A sort keeps the program's order among the local moves of a rank, which are made one after the other.
    ordered = sorted(rows.rows, key=lambda row: (row.step, row.src, row.dst))
    return {name: np.asarray([getattr(row, name) for row in ordered], dtype=np.int64) for name in COLUMNS}


def _schedule(checked: CheckedProgram, rows: _Rows, root: int | None) -> Schedule:
    program = checked.program
    header = Header(
        collective=program.collective,
        world_size=program.world_size,
        chunks=program.chunks,
        root=root,
        name=program.name,
        input_offset=tuple(place.input for place in checked.layouts),
        output_offset=tuple(place.output for place in checked.layouts),
        memory_chunks=tuple(rows.memory_chunks),
    )
    return Schedule(header, _columns(rows))


def _with_some_root(checked: CheckedProgram, rows: _Rows) -> Schedule:
    """The schedule with the one root for which it is right. The format does not name the root."""
    program = checked.program
    refused: ScheduleError | None = None
    fitting = []
    for root in _candidates(program, rows):
        schedule = _schedule(checked, rows, root)
        try:
            prove(schedule)
        except ScheduleError as error:
            refused = refused or error
        else:
            fitting.append(schedule)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise SpecError(
            f"{program.what}: expected a {program.collective} with one root, got one that is right for roots "
            f"{[schedule.header.root for schedule in fitting]}; say which"
        )
    assert refused is not None
    raise refused


def _candidates(program: Program, rows: _Rows) -> list[int]:
    """Ranks that could be the root, the likely ones first, so that their error is the one that is shown."""
    sent = {row.src for row in rows.rows if row.src != row.dst}
    received = {row.dst for row in rows.rows if row.src != row.dst}
    gives = program.collective in ("broadcast", "scatter")
    likely = sent - received if gives else received - sent
    return sorted(range(program.world_size), key=lambda rank: (rank not in likely, rank))
