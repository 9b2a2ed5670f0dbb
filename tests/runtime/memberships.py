"""Worlds for tests of endpoint and control plane: all ranks in this process, with real listeners on loopback."""

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from atoll.runtime.endpoint import Endpoint
from atoll.runtime.meeting import listen_at, this_host
from atoll.runtime.membership import Membership, Peer

T = TypeVar("T")
KEY = b"k" * 32
WORLD_ID = b"w" * 16
# Far more than anything here takes; a test that needs it has failed.
PATIENCE_S = 20.0


def memberships(world_size: int, address: str = "127.0.0.1") -> list[Membership]:
    """One membership per rank of a new world."""
    listeners = [listen_at((address, 0)) for _ in range(world_size)]
    host = this_host()
    peers = tuple(Peer(r, host, os.getpid(), address, listeners[r].getsockname()[1]) for r in range(world_size))
    return [Membership(rank, world_size, WORLD_ID, KEY, peers, listeners[rank]) for rank in range(world_size)]


def eventually(condition: Callable[[], T], *endpoints: Endpoint) -> T:
    """Pump ``endpoints`` until ``condition()`` is true, and return what it was."""
    deadline = time.monotonic() + PATIENCE_S
    poll = select.poll()
    for endpoint in endpoints:
        poll.register(endpoint, select.POLLIN)
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        poll.poll(20)
        for endpoint in endpoints:
            endpoint.pump()
    return value


def stranger(membership: Membership) -> socket.socket:
    """A connection to a rank's listener by somebody who knows nothing."""
    peer = membership.peers[membership.rank]
    return socket.create_connection((peer.address, peer.port), timeout=PATIENCE_S)


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side has closed the connection; waits for it."""
    sock.settimeout(PATIENCE_S)
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def open_sockets() -> set[str]:
    """The sockets and epolls this process holds."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if target.startswith("socket:") or "eventpoll" in target:
                found.add(f"{fd} {target}")
    return found
