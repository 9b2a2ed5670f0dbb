"""Lab 01: the ring all-reduce, from sockets up.

    python solution.py --world 4                  the ring, checked, counted, against the naive way
    python solution.py --world 4 --algorithm tree small messages: when does a tree win?
    python solution.py --world 4 --buckets        many small all-reduces against a few large ones

The ring itself is the code between the two lines of dashes: sockets and NumPy, nothing of the library. ``starter.py``
lacks that part; ``python check.py FILE`` judges what you put there, README.md walks you through. What starts the
processes and joins them by sockets is in ``world.py``, the command line in ``harness.py``.
"""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass

import harness
import numpy as np

TIMEOUT_S = 20.0


@dataclass
class Counter:
    """Bytes that this rank has passed to its sockets and taken from them."""

    sent: int = 0
    received: int = 0


# ------------------------------------------------------------------------------------------- the exercise begins here


def exchange(
    right: socket.socket, outgoing: np.ndarray, left: socket.socket, incoming: np.ndarray, counter: Counter
) -> None:
    """Send ``outgoing`` to the right and fill ``incoming`` from the left, both at once.

    First sending all, then receiving all, works as long as a message fits into the kernel's socket buffers. With a
    larger one every rank sits in ``send``, waiting for a neighbour who sits in ``send`` too. So both sockets are
    non-blocking, and ``select`` says which of them can do something.
    """
    out, into = outgoing.view(np.uint8).data, incoming.view(np.uint8).data
    sent = received = 0
    while sent < len(out) or received < len(into):
        wants_read = [left] if received < len(into) else []
        wants_write = [right] if sent < len(out) else []
        readable, writable, _ = select.select(wants_read, wants_write, [], TIMEOUT_S)
        if not readable and not writable:
            raise TimeoutError(f"no byte came or went for {TIMEOUT_S:g} s: is a neighbour gone, or waiting for us?")
        if writable:
            sent += right.send(out[sent:])
        if readable:
            count = left.recv_into(into[received:])
            if count == 0:
                raise ConnectionError("the left neighbour closed the connection in the middle")
            received += count
    counter.sent += sent
    counter.received += received


def ring_all_reduce(
    rank: int, world_size: int, vector: np.ndarray, left: socket.socket, right: socket.socket, counter: Counter
) -> None:
    """Replace ``vector`` by the sum of all ranks' vectors, in place.

    Cut it into N chunks. Reduce-scatter: in each of N - 1 steps pass one chunk on and add the one that comes in, so
    that rank r ends with the complete sum of chunk r. All-gather: in N - 1 more steps pass complete chunks on. In every
    step every rank sends one chunk and receives one: 2 (N - 1) / N of the vector in all, and nobody can do with less.
    """
    chunks = np.array_split(vector, world_size)  # views: writing to them writes to the vector
    for step in range(world_size - 1):
        outgoing = chunks[(rank - step - 1) % world_size]
        mine = chunks[(rank - step - 2) % world_size]
        incoming = np.empty_like(mine)
        exchange(right, outgoing, left, incoming, counter)
        mine += incoming
    for step in range(world_size - 1):
        outgoing = chunks[(rank - step) % world_size]
        incoming = chunks[(rank - step - 1) % world_size]
        exchange(right, outgoing, left, incoming, counter)


# --------------------------------------------------------------------------------------------- the exercise ends here

if __name__ == "__main__":
    harness.main(ring_all_reduce, exchange, Counter)
