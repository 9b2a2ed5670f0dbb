"""One process of a world: its membership, its door, its control plane and what moves its bytes.

A process joins one world; all its communicators share what is here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from atoll.errors import PeerLost, SpecError
from atoll.runtime.control import Control
from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.endpoint import Connection, ConnectionKey, Endpoint
from atoll.runtime.membership import Membership
from atoll.runtime.progress import QUIET_S, Progress
from atoll.runtime.shared_memory import SharedHeap

PATIENCE_S = 5.0


class Process:
    """Owns what it is given; ``close`` ends all of it."""

    def __init__(self, membership: Membership, endpoint: Endpoint, control: Control, transport: str = "auto") -> None:
        self.membership = membership
        self.endpoint = endpoint
        self.control = control
        self.transport = transport
        self.progress = Progress(control)
        self.heap = SharedHeap()
        control.observe(self.progress.snapshot)
        self.closed = False
        self.spares: tuple[int, ...] = ()  # world ranks that wait until they are called
        self.spares_taken: set[int] = set()  # those that have been

    @cached_property
    def crowded(self) -> bool:
        """Whether the ranks of this host outnumber the processors that this one may use."""
        return len(self.membership.local_ranks) > len(os.sched_getaffinity(0))

    def connect(
        self,
        call: CallDescriptor,
        keys: Sequence[ConnectionKey],
        timeout_s: float,
        deadline: float,
        ended: Callable[[], BaseException | None],
    ) -> Mapping[ConnectionKey, Connection]:
        """Connections ``keys``, which ``call`` needs; the higher rank of each pair opens it, the other one waits.

        Raises what the control plane finds while waiting, ``CollectiveTimeout`` at the deadline (monotonic seconds),
        or what ``ended`` says: the communicator may be closed by a signal handler, say.
        """
        arrived = threading.Event()
        ready: dict[ConnectionKey, Connection] = {}
        self.endpoint.subscribe(arrived.set)
        try:
            for key in keys:
                if self.membership.rank > key.peer:
                    # Should the peer not answer, our own deadline comes first, with a verdict for all ranks.
                    self.endpoint.open(key, deadline + PATIENCE_S)
            asked = False
            while True:
                arrived.clear()
                for key in keys:
                    try:
                        if key not in ready and (connection := self.endpoint.take_connection(key)) is not None:
                            ready[key] = connection
                    except PeerLost as unreachable:
                        # It may have died, or have left because another one had: the control plane will know.
                        self.control.disconnected(call.communicator_id, key.peer, str(unreachable))
                if len(ready) == len(keys):
                    return ready
                failure = ended() or self.control.failure(call.communicator_id)
                if failure is not None:
                    raise failure
                absent = [key.peer for key in keys if key not in ready]
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self.control.timed_out(
                        call.communicator_id, call.sequence, timeout_s, absent, "connections not yet made"
                    )
                if not arrived.wait(min(QUIET_S, left)) and not asked:
                    asked = True
                    self.control.waiting(call.communicator_id, call.sequence, absent)
        except BaseException:
            for connection in ready.values():
                connection.close()
            raise
        finally:
            self.endpoint.unsubscribe(arrived.set)

    def close(self) -> None:
        """Say goodbye to the others and release everything."""
        if not self.closed:
            self.closed = True
            self.progress.close(SpecError("the world's communicator is closed"))
            self.control.close()
            self.endpoint.close()
