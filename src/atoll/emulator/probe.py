"""What this machine moves through an emulated cluster without limits, and the rates that follow.

A limit is only a limit where the machine could do more: if all ranks together wanted what the processors can just move,
it would be their scheduling that is measured. So the rates are chosen such that all links of all ranks together ask for
``SHARE`` of what was moved in a moment at the start, by a stream from every rank to the next, over the very veth pairs
and bridges that will carry the job; whatever comes is added to something, as an all-reduce would.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Final

import numpy as np

from atoll.emulator.cluster import EmulatedCluster
from atoll.emulator.layout import Layout, Rates
from atoll.emulator.namespaces import inside
from atoll.errors import InternalError

SHARE: Final = 0.3
"""Of what was moved: under a third, since ranks also reduce, copy and wait for each other."""
WINDOWS: Final = 3
WINDOW_S: Final = 0.12
"""The best of so many: another process that is busy for a moment says nothing of the machine."""
_WARM_UP_S: Final = 0.1
_PROBE_BLOCK_BYTES: Final = 1 << 18
_STOP_S: Final = 10.0


def measure(cluster: EmulatedCluster) -> float:
    """Bytes per second that reach their receivers, all streams together; a stream goes from each rank to the next."""
    if cluster.rates is not None:
        raise InternalError("the probe is of a cluster without limits; it has limits already")
    count = cluster.layout.world_size
    pairs = [_stream(cluster, rank, (rank + 1) % count) for rank in range(count)]
    received = [0] * count
    senders = [threading.Thread(target=_send, args=(sender,)) for sender, _ in pairs]
    receivers = [threading.Thread(target=_receive, args=(pair[1], received, at)) for at, pair in enumerate(pairs)]
    for thread in (*senders, *receivers):
        thread.start()
    time.sleep(_WARM_UP_S)
    best = 0.0
    for _ in range(WINDOWS):
        before, began = sum(received), time.monotonic()
        time.sleep(WINDOW_S)
        best = max(best, (sum(received) - before) / (time.monotonic() - began))
    for sender, receiver in pairs:
        sender.shutdown(socket.SHUT_RDWR)
        receiver.shutdown(socket.SHUT_RDWR)
    for thread in (*senders, *receivers):
        thread.join(_STOP_S)
    for pair in pairs:
        for end in pair:
            end.close()
    return best


def choose_rates(layout: Layout, moved_bytes_per_s: float, ratio: float) -> Rates:
    """Rates at which all ranks together, on all their links at once, want ``SHARE`` of what the machine moves."""
    wanted = moved_bytes_per_s * SHARE
    network_links = layout.nodes * layout.nics if layout.nodes > 1 else 0
    network = wanted / (layout.world_size * ratio + network_links)
    return Rates(network * ratio, network)


def _stream(cluster: EmulatedCluster, source: int, target: int) -> tuple[socket.socket, socket.socket]:
    """A connection from one rank's namespace to another's: its two ends."""
    with inside(cluster.namespace(target)):
        listener = socket.create_server((cluster.layout.address(target), 0))
    with listener, inside(cluster.namespace(source)):
        sender = socket.create_connection(listener.getsockname(), timeout=_STOP_S)
        receiver, _ = listener.accept()
    return sender, receiver


def _send(sock: socket.socket) -> None:
    block = bytes(_PROBE_BLOCK_BYTES)
    try:
        while True:
            sock.sendall(block)
    except OSError:
        return


def _receive(sock: socket.socket, received: list[int], at: int) -> None:
    block = np.zeros(_PROBE_BLOCK_BYTES // 4, dtype=np.float32)
    total = np.zeros_like(block)
    view = block.view(np.uint8).data
    try:
        while count := sock.recv_into(view):
            np.add(total[: count // 4], block[: count // 4], out=total[: count // 4])
            received[at] += count
    except OSError:
        return
