"""What a communicator has worked out once: proven schedules and compiled programs, by signature.

An algorithm is proven before it first runs. A program depends on the schedule, whether input and output share
memory, the length and the element size; it is used for every later call with the same signature.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from atoll.errors import SpecError
from atoll.runtime.choice import Chooser
from atoll.runtime.linear import Line, straighten
from atoll.runtime.program import Program, compile_program, transfer_program
from atoll.runtime.stability import Order, check_order
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.schedule.table import Schedule

AlgorithmLike = str | Schedule | ProvenSchedule
MAX_PROGRAMS = 1024
# Measured with a prototype on two cores: from tens of MB on, blocks of 2 MB of the vector were best.
BLOCKED_BYTES = 16 << 20  # of a vector that is cut into blocks between ranks that share memory
BLOCK_BYTES = 2 << 20  # of a block, over all chunks
BLOCK_STEP = 4096
MAX_BLOCKED_OPERATIONS = 2000  # of one rank
MAX_GIVEN = 64  # schedules of the caller's own


class Plan(msgspec.Struct, frozen=True, eq=False):
    """A program, the name under which ranks compare what they run, and whether input and output share memory.

    ``line`` is the program as a straight line, where it has one.
    """

    algorithm: str
    program: Program
    in_place: bool
    line: Line | None = None


@lru_cache(maxsize=256)
def transfer_plan(rank: int, length: int, itemsize: int) -> Plan:
    """The plan of a point-to-point transfer from rank 0 of a pair to rank 1."""
    program = transfer_program(rank, length, itemsize)
    return Plan("send", program, in_place=False, line=straighten(program))


class Plans:
    """The cache of one communicator's rank."""

    def __init__(self, rank: int, chooser: Chooser) -> None:
        self._rank = rank
        self._world_size = chooser.layout.world_size
        self._chooser = chooser
        self._proven: dict[tuple[str, str, int | None, bool], ProvenSchedule] = {}
        self._given: dict[int, tuple[AlgorithmLike, str]] = {}
        self._plans: dict[tuple[str, AlgorithmLike | int, int | None, bool, int, int, Order], Plan] = {}

    def plan(
        self, collective: str, algorithm: AlgorithmLike, root: int | None, in_place: bool, length: int, itemsize: int,
        order: Order = "any",
    ) -> Plan:  # fmt: skip
        """The plan for one signature; ``length`` in elements of the whole vector.

        Where ``in_place`` is asked for and the schedule cannot, the plan is for separate memory and says so.
        Raises ``SpecError`` for an algorithm that is unknown, for another collective, root or world, or whose sums
        have another ``order``; ``ScheduleError`` for a schedule that cannot be proven.
        """
        named = algorithm if isinstance(algorithm, str) else id(algorithm)
        key = (collective, named, root, in_place, length, itemsize, order)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= MAX_PROGRAMS:
                self._plans.clear()
            name = self._name(collective, algorithm, length * itemsize, order)
            proven = self._schedule(collective, name, algorithm, root, in_place)
            check_order(proven, order)
            block_bytes = self._block_bytes(proven, length * itemsize)
            program = compile_program(proven, self._rank, length, itemsize, block_bytes)
            if block_bytes is not None:
                name = f"{name}, blocks of {block_bytes}"  # the ranks must agree on that, too
            plan = Plan(name, program, in_place and proven.header.in_place, straighten(program))
            self._plans[key] = plan
        return plan

    def _block_bytes(self, proven: ProvenSchedule, size_bytes: int) -> int | None:
        """Bytes of each chunk that go through all steps before the next; None: all at once."""
        if self._chooser.layout.transport != "shm" or size_bytes < BLOCKED_BYTES:
            return None
        rows = len(proven.schedule.column("step")) / self._world_size  # about one rank's
        blocks = max(1, min(size_bytes // BLOCK_BYTES, int(MAX_BLOCKED_OPERATIONS / max(rows, 1))))
        return -(-size_bytes // proven.contract.chunks // blocks // BLOCK_STEP) * BLOCK_STEP

    def _name(self, collective: str, algorithm: AlgorithmLike, size_bytes: int, order: Order) -> str:
        if isinstance(algorithm, str):
            return self._chooser.choose(collective, size_bytes, order) if algorithm == "auto" else algorithm
        known = self._given.get(id(algorithm))
        if known is None:
            schedule = algorithm.schedule if isinstance(algorithm, ProvenSchedule) else algorithm
            if not isinstance(schedule, Schedule):
                raise SpecError(f"algorithm: expected a name or a Schedule, got {type(algorithm).__name__}")
            if len(self._given) >= MAX_GIVEN:
                # A caller who makes a schedule for each call. Plans go with the objects whose ids they are kept under.
                self._given.clear()
                self._plans.clear()
                self._proven.clear()
            # The object is kept, so that its id stays its own.
            known = (algorithm, f"{schedule.name}#{schedule.fingerprint()[:12]}")
            self._given[id(algorithm)] = known
        return known[1]

    def _schedule(
        self, collective: str, name: str, algorithm: AlgorithmLike, root: int | None, in_place: bool
    ) -> ProvenSchedule:
        key = (collective, name, root, in_place)
        proven = self._proven.get(key)
        if proven is None:
            schedule = (
                self._chooser.build(collective, name, root)
                if isinstance(algorithm, str)
                else self._checked(collective, algorithm, root)
            )
            proven = prove(schedule if in_place else out_of_place(schedule))
            self._proven[key] = proven
        return proven

    def _checked(self, collective: str, algorithm: Schedule | ProvenSchedule, root: int | None) -> Schedule:
        schedule = algorithm.schedule if isinstance(algorithm, ProvenSchedule) else algorithm
        header = schedule.header
        wanted = (collective, self._world_size, root)
        got = (header.collective, header.world_size, header.root)
        if wanted != got:
            raise SpecError(
                f"algorithm {header.name}: expected a schedule of {collective} for {self._world_size} ranks"
                f"{'' if root is None else f' with root {root}'}, got {header.collective} for {header.world_size} ranks"
                f"{'' if header.root is None else f' with root {header.root}'}"
            )
        return schedule
