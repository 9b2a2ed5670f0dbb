"""Join the world that this process was started in, and hand out its communicator."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from atoll.errors import SpecError
from atoll.runtime.caller import WORLD_ID
from atoll.runtime.communicator import DEFAULT_TIMEOUT_S, Communicator
from atoll.runtime.control import Control
from atoll.runtime.endpoint import Endpoint
from atoll.runtime.environment import read_heartbeat, read_placement
from atoll.runtime.join import join
from atoll.runtime.process import Process
from atoll.runtime.recovery import join_as_spare
from atoll.runtime.stability import order_asked
from atoll.runtime.transport import checked_transport, read_transport
from atoll.runtime.tuning import VARIABLE, load_tuning, pack
from atoll.runtime.watch import reporter_for


def init(
    *, timeout: float = DEFAULT_TIMEOUT_S, join_timeout: float = 60.0, deterministic: bool | None = None,
    order: str | None = None, tuning: str | Path | None = None, heartbeat_timeout: float | None = None,
    transport: str | None = None, environ: Mapping[str, str] = os.environ,
) -> Communicator:  # fmt: skip
    """The communicator of all ranks; returns when all have joined.

    Rank, size and meeting place come from ``environ``: those of ``atoll launch``, torchrun, Open MPI, MPICH or Slurm
    (``runtime.environment`` says which variables); without any this is a world of one. ``timeout`` is the default
    deadline of every call, ``join_timeout`` that of joining, both in seconds. ``deterministic`` and ``order`` are what
    reductions do where a call says nothing (``runtime.stability``). ``tuning``, or ATOLL_TUNING, names the file by
    which ``algorithm="auto"`` chooses (``runtime.tuning``); rank 0's counts for all ranks, others do not read theirs.

    A rank that somebody waits for and that gives no sign of life for ``heartbeat_timeout`` seconds is given up; by
    default ATOLL_HEARTBEAT_TIMEOUT says how long, or it is 5 s. It must be longer than anything in the program that
    holds the interpreter's lock; computing in Python or NumPy is no silence. ``math.inf`` gives up nobody.

    ``transport`` is ``auto``, ``tcp`` or ``shm`` (``runtime.transport``); by default what ATOLL_TRANSPORT says, or
    ``auto``: shared memory between ranks of one host, TCP across hosts.
    In a spare (``atoll launch --spares``) this returns when a communicator takes it in (``runtime.recovery``), and
    raises ``SystemExit(0)`` when the job has ended without.

    Raises ``SpecError`` for what the environment lacks, ``CollectiveTimeout`` naming the ranks that did not come.
    """
    heartbeat_s = read_heartbeat(environ) if heartbeat_timeout is None else heartbeat_timeout
    limits = (("timeout", timeout), ("join_timeout", join_timeout), ("heartbeat_timeout", heartbeat_s))
    for name, value in limits:
        if not value > 0:
            raise SpecError(f"{name}: expected more than 0 seconds, got {value}")
    transport = read_transport(environ) if transport is None else checked_transport(transport, "transport")
    stable = order_asked(deterministic, order, "any")
    deadline = time.monotonic() + join_timeout
    placement = read_placement(environ)
    file = tuning if tuning is not None else environ.get(VARIABLE) or None
    packed = pack(load_tuning(file)) if placement.rank == 0 else b""
    membership = join(placement, timeout_s=join_timeout, tuning=packed)
    endpoint = Endpoint(membership, share_memory=transport != "tcp")
    control = Control(membership, endpoint, heartbeat_s, reporter_for(membership.rank, environ))
    try:
        control.start(deadline)
    except BaseException:
        control.close()
        endpoint.close()
        raise
    process = Process(membership, endpoint, control, transport)
    working = membership.world_size - placement.spares
    process.spares = tuple(range(working, membership.world_size))
    if membership.rank < working:
        return Communicator(process, WORLD_ID, range(working), timeout, stable, whole_world=True)
    try:
        called = join_as_spare(process, working, timeout)
    except BaseException:
        process.close()
        raise
    if called is None:
        # The program of a spare that nobody needs has nothing to do.
        process.close()
        raise SystemExit(0)
    return Communicator(process, called.identity, called.world_ranks, timeout, stable, called.generation, True)
