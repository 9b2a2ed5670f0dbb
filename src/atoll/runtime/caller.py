"""What one communicator needs to call collectives: identity, sequence, plans, links, and what has ended it.

A caller turns a checked request into a task: it takes a sequence number, tells the control plane, makes the
connections that the program needs and that are not there yet, and hands the machine to ``Progress``. A point-to-point
pair is a caller of two ranks, so that its transfers have a sequence of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.errors import SpecError, WorldError
from atoll.runtime.arrays import NOTHING, Array, Bytes, flat_bytes
from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.endpoint import Connection, ConnectionKey
from atoll.runtime.lean import SOCKET_BYTES, AnyLink, BoundLine, Stopped
from atoll.runtime.linear import typed
from atoll.runtime.link import ByteCount, Link
from atoll.runtime.machine import Machine
from atoll.runtime.plans import Plan
from atoll.runtime.process import Process
from atoll.runtime.program import LOCAL, Lane, Program
from atoll.runtime.ready import OWN_SCRATCH_BYTES, ReadyCall
from atoll.runtime.record import Recorder
from atoll.runtime.reduction import Reduction
from atoll.runtime.shared_link import SharedLink
from atoll.runtime.task import Task
from atoll.runtime.work import Work

WORLD_ID = 1
SEGMENT_BYTES = 1 << 20
MAX_READY = 1024


def derive_id(*facts: int | str) -> int:
    """A 64-bit identity that every rank derives alike; never that of the world."""
    digest = blake2b("/".join(map(str, facts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 2


class Caller:
    """``world_ranks[r]`` is the world rank of rank r. ``counts`` is by world rank, and may be shared."""

    def __init__(
        self,
        process: Process,
        identity: int,
        world_ranks: Sequence[int],
        timeout_s: float,
        counts: dict[int, ByteCount],
    ) -> None:
        self.process = process
        self.identity = identity
        self.world_ranks = tuple(world_ranks)
        self.rank = self.world_ranks.index(process.membership.rank)
        self.timeout_s = timeout_s
        self.counts = counts
        self.error: BaseException | None = None
        self.recorder: Recorder | None = None
        self._sequence = 0
        self._links: dict[tuple[int, int], AnyLink] = {}
        self._ready: dict[tuple[Plan, np.dtype[Any], Reduction | None], ReadyCall] = {}
        self.seen: dict[tuple[object, ...], ReadyCall] = {}  # by what a communicator's caller gave
        self._scratch = _ScratchPool()
        self._ledger = process.control.register(identity, self.world_ranks, process.progress.wakeup.set)

    def check(self, timeout: float | None) -> float:
        """The deadline of a call in seconds; raises what has ended this caller."""
        error = None if self.unharmed() else self._ended() or self.process.control.failure(self.identity)
        if error is not None:
            # Without the places where it was raised before, which hold on to the arrays of those calls.
            raise error.with_traceback(None)
        if timeout is None:
            return self.timeout_s
        timeout_s = timeout
        if not isinstance(timeout_s, Real) or not timeout_s > 0:
            raise SpecError(f"timeout: expected more than 0 seconds, got {timeout_s!r}")
        return float(timeout_s)

    def ready(
        self, collective: str, plan: Plan, dtype: np.dtype[Any], reduction: Reduction | None = None,
        root: int | None = None,
    ) -> ReadyCall:  # fmt: skip
        """What all calls of ``plan`` for one dtype and reduction have in common."""
        key = (plan, dtype, reduction)
        ready = self._ready.get(key)
        if ready is None:
            if len(self._ready) >= MAX_READY:
                self._forget_ready()
            ready = self._ready[key] = ReadyCall(collective, plan, dtype, reduction, root)
        return ready

    def unharmed(self) -> bool:
        """Whether nothing can have ended this caller: quicker to say than what has."""
        progress = self.process.progress
        return self._ledger.failure is None and self.error is None and progress.ended is None and not progress.broken

    def call(
        self, ready: ReadyCall, source: Array | None, target: Array | None, timeout_s: float, async_op: bool = False,
        result: Array | None = None, finish: Callable[[], None] | None = None,
    ) -> Any:  # fmt: skip
        """Run ``ready.plan`` on flat views of ``source`` and ``target``; ``result``, or a ``Work`` that gives it.

        ``finish`` is called once all bytes are moved, by whoever moves them.
        """
        sequence = self._sequence
        call = CallDescriptor(self.identity, sequence, *ready.facts)
        self._sequence = sequence + 1
        process = self.process
        try:
            process.control.enter(call)
            stopped: Stopped | None = None
            if not async_op and self.recorder is None:
                outcome = self._run_alone(call, ready, source, target)
                if outcome is True:
                    if finish is not None:
                        finish()
                    self._ledger.leave(sequence)
                    # Was it ours to have? A rank that was stopped may have been given up.
                    given_up = process.control.confirm()
                    if given_up is not None:
                        raise given_up
                    return result
                stopped = outcome or None
            task = self._task(call, ready, (source, target), timeout_s, async_op, finish, stopped)
            process.progress.submit(task)
            if async_op:
                return Work(process.progress, task, result)
            process.progress.wait(task)
        except BaseException as error:
            self._give_up(call, error)
            raise
        if task.error is not None:
            raise task.error.with_traceback(None)
        return result

    def _run_alone(
        self, call: CallDescriptor, ready: ReadyCall, source: Array | None, target: Array | None
    ) -> bool | Stopped:
        """Run the plan's line where all its ranks are on this host and nothing else is in flight: True when done.
        ``Stopped`` where it did not get to the end, False where it was not begun."""
        line = ready.line or self._bind(call, ready)
        progress = self.process.progress
        if line is None or not progress.begin_alone():
            return False
        try:
            scratch, typed_scratch = ready.scratch, ready.typed_scratch
            scratch_bytes = ready.plan.program.scratch_bytes
            if scratch_bytes and not len(scratch):
                scratch = self._scratch.take(scratch_bytes)
                typed_scratch = typed(scratch, ready.dtype)
                if scratch_bytes <= OWN_SCRATCH_BYTES:
                    ready.keep(scratch)
            stopped = line.run(
                (
                    ready.nothing if source is None else source if source.ndim == 1 else source.reshape(-1),
                    ready.nothing if target is None else target if target.ndim == 1 else target.reshape(-1),
                    typed_scratch,
                ),
                call.sequence, scratch,
            )  # fmt: skip
        finally:
            progress.end_alone()
        if stopped is not None:
            ready.forget_scratch()  # the machine goes on with it
            return stopped
        if scratch_bytes > OWN_SCRATCH_BYTES:
            self._scratch.give(scratch)
        if line.has_tokens:
            _count_tokens(ready.plan.program, line.links)
        return True

    def _bind(self, call: CallDescriptor, ready: ReadyCall) -> BoundLine | None:
        """The plan's line bound to its links, where it has one and they are there."""
        plan, reduction = ready.plan, ready.reduction
        links = None if plan.line is None else self._links_of_line(plan)
        if plan.line is None or links is None:
            return None
        ufunc = None if reduction is None else reduction.ufunc
        ready.line = BoundLine(
            plan.line, plan.program, links, ready.dtype, ufunc, call.fingerprint(), self.process.crowded
        )
        return ready.line

    def _links_of_line(self, plan: Plan) -> list[AnyLink | None] | None:
        """The links of the program's lanes; None unless all are there and can take its operations at once."""
        links: list[AnyLink | None] = []
        for lane in plan.program.lanes:
            link = None if lane.peer == LOCAL else self._links.get((lane.peer, lane.channel))
            if link is None and lane.peer != LOCAL:
                return None
            if isinstance(link, Link):
                largest = max(operation.num_bytes for operation in lane.operations)
                if largest > SOCKET_BYTES:
                    return None
                link.begin_line(largest)
            links.append(link)
        return links

    def _task(
        self, call: CallDescriptor, ready: ReadyCall, arrays: tuple[Array | None, Array | None], timeout_s: float,
        asynchronous: bool, finish: Callable[[], None] | None, stopped: Stopped | None,
    ) -> Task:  # fmt: skip
        """What ``Progress`` is to move, with its connections made; ``stopped``: what of it is done already."""
        program = ready.plan.program
        deadline = time.monotonic() + timeout_s
        recorded = (
            None if self.recorder is None else self.recorder.begin(call.collective, ready.plan.algorithm, program)
        )
        links = self._links_for(call, program.lanes, timeout_s, deadline)
        scratch = self._scratch.take(program.scratch_bytes) if stopped is None else stopped.scratch

        def staging(lane: Lane) -> Bytes:
            link = links[lane.number]
            assert link is not None
            return link.staging()

        def on_finish() -> None:
            self._scratch.give(scratch)
            _count_tokens(program, links)
            if finish is not None:
                finish()
            if recorded is not None:
                recorded.ended()

        source, target = (NOTHING if array is None else flat_bytes(array) for array in arrays)
        machine = Machine(program, (source, target, scratch), ready.dtype, ready.reduction, staging)
        if stopped is not None:
            machine.resume(stopped.marks, stopped.posted, stopped.rests)
        if recorded is not None:
            machine.observer = recorded.advanced
        return Task(call, machine, links, self.world_ranks, timeout_s, deadline, asynchronous, on_finish)

    def release(self, error: BaseException) -> None:
        """End what is in flight with ``error`` and close all connections."""
        self.error = self.error or error
        links = list(self._links.values())
        self._links.clear()
        self._forget_ready()
        self.process.progress.fail(self.identity, self.error, links)

    def _forget_ready(self) -> None:
        """Also lets go of the links that they are bound to."""
        self._ready.clear()
        self.seen.clear()

    def close(self) -> None:
        """Give up what is in flight; nothing more will be called."""
        self.release(SpecError("the communicator is closed"))
        self.process.control.unregister(self.identity)

    def _ended(self) -> BaseException | None:
        """What has ended this caller here: closed, or interrupted."""
        return self.error or self.process.progress.failure(self.identity)

    def _give_up(self, call: CallDescriptor, error: BaseException) -> None:
        """A collective was interrupted here: no later call can be right, and the others must not wait for us."""
        if isinstance(error, WorldError):
            self.release(error)  # the control plane has found it, and tells all
        else:
            self.process.control.abandon(call.communicator_id, call.sequence, f"{type(error).__name__}: {error}")
            self.release(SpecError(f"an earlier collective was interrupted by {type(error).__name__}: {error}"))

    def _links_for(
        self, call: CallDescriptor, lanes: Sequence[Lane], timeout_s: float, deadline: float
    ) -> list[AnyLink | None]:
        ranks = self.world_ranks
        missing = {
            ConnectionKey(self.identity, ranks[lane.peer], lane.channel)
            for lane in lanes
            if lane.peer != LOCAL and (lane.peer, lane.channel) not in self._links
        }
        if missing:
            for key, connection in self.process.connect(
                call, sorted(missing), timeout_s, deadline, self._ended
            ).items():
                count = self.counts.setdefault(key.peer, ByteCount())
                link: AnyLink
                if connection.shared is None:
                    self._may_use_tcp(key, connection)
                    link = Link(connection.sock, key.peer, key.channel, SEGMENT_BYTES, count)
                else:
                    link = SharedLink(
                        connection.sock, connection.shared, key.peer, key.channel, SEGMENT_BYTES, count,
                        self.process.heap,
                    )  # fmt: skip
                self._links[ranks.index(key.peer), key.channel] = link
                self.process.progress.add_link(link)
        return [None if lane.peer == LOCAL else self._links[lane.peer, lane.channel] for lane in lanes]

    def _may_use_tcp(self, key: ConnectionKey, connection: Connection) -> None:
        membership = self.process.membership
        peers = membership.peers
        if self.process.transport == "shm" and peers[key.peer].host == peers[membership.rank].host:
            connection.close()
            raise SpecError(
                f"transport shm: rank {membership.rank} shares no memory with {peers[key.peer].describe()}: expected "
                "ranks of one user in one PID namespace, none of which asks for tcp; use transport auto or tcp"
            )


class _ScratchPool:
    """Scratch memory kept between calls, so that large scratch is not paged in anew each time."""

    def __init__(self) -> None:
        self._free: dict[int, list[npt.NDArray[np.uint8]]] = {}

    def take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        if num_bytes == 0:
            return NOTHING
        free = self._free.get(num_bytes)
        return free.pop() if free else np.empty(num_bytes, dtype=np.uint8)

    def give(self, scratch: npt.NDArray[np.uint8]) -> None:
        if len(scratch):
            if len(self._free) > 8:
                self._free.clear()
            self._free.setdefault(len(scratch), []).append(scratch)


def _count_tokens(program: Program, links: Sequence[AnyLink | None]) -> None:
    for lane, link in zip(program.lanes, links, strict=True):
        if lane.token_bytes and link is not None:
            link.count.tokens_are_overhead(lane.token_bytes, lane.incoming)
