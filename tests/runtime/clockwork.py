"""A world of control machines with a clock: ranks stop and resume, networks split, messages take time; no socket.

Time jumps to the next event, in steps of 10 ms at least. Then every rank that runs gets what has arrived, and the time.
A stopped rank gets nothing, and what is sent to it waits; a cut link delivers nothing until it is mended, as TCP does.
"""

import math
import random
from collections import deque
from collections.abc import Collection, Sequence

from atoll.errors import WorldError
from atoll.runtime.control_machine import ControlMachine
from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.detector import Examine
from atoll.runtime.instructions import Instruction, Part, Send
from atoll.runtime.ledger import CallLedger
from atoll.runtime.messages import ControlMessage

STEP_S = 0.01
HEARTBEAT_S = 1.0


def all_reduce(sequence: int = 0) -> CallDescriptor:
    return CallDescriptor(0, sequence, "all_reduce", "float32", 1024, "sum", None, "ring")


class Clockwork:
    """``evidence``: all ranks are on one host, whose kernel knows which of them are stopped."""

    def __init__(
        self, world_size: int, seed: int = 0, evidence: bool = False, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self.size = world_size
        self.rng = random.Random(seed)
        self.now = 100.0
        self.evidence = evidence
        names = [f"pid {100 + rank} on node{rank}" for rank in range(world_size)]
        self.machines = [ControlMachine(rank, names, heartbeat_s) for rank in range(world_size)]
        self.ledgers = [CallLedger(0, tuple(range(world_size))) for _ in range(world_size)]
        self.links: dict[tuple[int, int], deque[tuple[float, ControlMessage]]] = {}
        self.parted: set[tuple[int, int]] = set()
        self.stopped: set[int] = set()
        self.dead: set[int] = set()
        self.closed: set[int] = set()
        self.cut: set[tuple[int, int]] = set()
        self.failed_at: dict[int, float] = {}
        self.sent = 0
        for rank, machine in enumerate(self.machines):
            self.do(rank, machine.register(self.ledgers[rank], self.now))

    def do(self, rank: int, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Send):
                pair = (rank, instruction.peer)
                if pair not in self.parted and not self.is_closed(pair) and instruction.peer not in self.dead:
                    self.sent += 1
                    arrives = self.now + self.rng.uniform(0.0, 0.02)
                    queue = self.links.setdefault(pair, deque())
                    queue.append((max(arrives, queue[-1][0] if queue else 0.0), instruction.message))
            elif isinstance(instruction, Part):
                self.parted.add((rank, instruction.peer))
            elif isinstance(instruction, Examine):
                seen = self.evidence and instruction.peer in self.stopped
                machine = self.machines[rank]
                machine.roster.examined(instruction.peer, seen, "its process is stopped" if seen else "")
                self.do(rank, machine.taken())

    def all_enter(self, without: Collection[int] = (), sequence: int = 0) -> None:
        """A ring: each rank waits for the one before it."""
        for rank in range(self.size):
            if rank not in without:
                self.ledgers[rank].enter(all_reduce(sequence), self.now)
                self.wait(rank, (rank - 1) % self.size, sequence=sequence)

    def wait(self, rank: int, *waits_on: int, sequence: int = 0) -> None:
        self.do(rank, self.machines[rank].waiting(0, sequence, waits_on, self.now))

    def split(self, *sides: Collection[int]) -> None:
        """Nothing gets from one side to another."""
        self.cut = {(a, b) for one in sides for other in sides if one is not other for a in one for b in other}

    def kill(self, rank: int) -> None:
        """What it has sent still arrives; then its links end."""
        self.dead.add(rank)

    def close(self, rank: int) -> None:
        """It lives on, but all its connections end, at both ends."""
        self.closed.add(rank)

    def is_closed(self, pair: tuple[int, int]) -> bool:
        return pair[0] in self.closed or pair[1] in self.closed

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        order = [rank for rank in range(self.size) if rank not in self.stopped and rank not in self.dead]
        for rank in order:
            self.step(rank)
        while (event := min((self.next_event(rank) for rank in order), default=end)) < end:
            self.now = max(self.now + STEP_S, event)
            self.rng.shuffle(order)
            for rank in order:
                if self.next_event(rank) <= self.now:
                    self.step(rank)
        self.now = end

    def next_event(self, rank: int) -> float:
        """When something arrives at ``rank`` or its machine has something to do."""
        times = [
            queue[0][0]
            for (peer, receiver), queue in self.links.items()
            if receiver == rank and queue and (peer, rank) not in self.cut and (rank, peer) not in self.parted
        ]
        deadline = self.machines[rank].next_deadline()
        return min(times if deadline is None else [*times, deadline], default=math.inf)

    def step(self, rank: int) -> None:
        messages, ended = [], {}
        for peer in range(self.size):
            link = (peer, rank)
            queue = self.links.get(link, deque())
            while queue and queue[0][0] <= self.now and link not in self.cut and (rank, peer) not in self.parted:
                messages.append((peer, queue.popleft()[1]))
            over = peer in self.dead or link in self.parted or self.is_closed(link)
            if peer != rank and not queue and over and link not in self.cut and (rank, peer) not in self.parted:
                ended[peer] = "its control link ended without a goodbye"
                self.parted.add((rank, peer))
        machine = self.machines[rank]
        if messages or ended:
            self.do(rank, machine.heard(messages, ended, self.now))
        deadline = machine.next_deadline()
        if deadline is not None and deadline <= self.now:
            self.do(rank, machine.tick(self.now))
        if rank not in self.failed_at and self.ledgers[rank].failure is not None:
            self.failed_at[rank] = self.now

    def failure(self, rank: int) -> WorldError | None:
        failure = self.ledgers[rank].failure
        assert failure is None or isinstance(failure, WorldError)
        return failure

    def assert_all_well(self) -> None:
        assert [self.failure(rank) for rank in range(self.size)] == [None] * self.size

    def one_failure(self, ranks: Collection[int]) -> WorldError:
        """The failure of all of ``ranks``, which is the same."""
        errors = [self.failure(rank) for rank in ranks]
        assert None not in errors, errors
        assert len({(type(error), str(error), getattr(error, "culprits", ())) for error in errors}) == 1, errors
        assert errors[0] is not None
        return errors[0]
