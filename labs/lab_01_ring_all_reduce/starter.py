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

    Hints: ``array.view(np.uint8).data`` is an array's memory as bytes. ``sock.send(piece)`` says how many of them it
    took, and ``sock.recv_into(piece)`` how many it gave (0: the other side has closed). Go on until all of ``outgoing``
    is sent and all of ``incoming`` is there, each of which may be empty. Add what passed to ``counter.sent`` and
    ``counter.received``.
    """
    readable, writable, _ = select.select([left], [right], [], TIMEOUT_S)  # which of the two can do something?
    raise NotImplementedError(
        f"exchange is still to be written: {len(readable)} socket has something to read, {len(writable)} takes bytes."
    )


def ring_all_reduce(
    rank: int, world_size: int, vector: np.ndarray, left: socket.socket, right: socket.socket, counter: Counter
) -> None:
    """Replace ``vector`` by the sum of all ranks' vectors, in place.

    Cut it into N chunks. Reduce-scatter: in each of N - 1 steps pass one chunk on and add the one that comes in, so
    that rank r ends with the complete sum of chunk r. All-gather: in N - 1 more steps pass complete chunks on. In every
    step every rank sends one chunk and receives one: 2 (N - 1) / N of the vector in all, and nobody can do with less.

    Hints: ``np.array_split(vector, world_size)`` gives N chunks that are views: writing to them writes to the vector.
    In step s of the reduce-scatter pass on chunk rank - s - 1 and add what comes in to chunk rank - s - 2 (mod N). In
    step s of the all-gather pass on chunk rank - s and let what comes in replace chunk rank - s - 1. A world of one has
    no steps.
    """
    raise NotImplementedError("ring_all_reduce is still to be written: N - 1 steps of reduce-scatter come first.")


# --------------------------------------------------------------------------------------------- the exercise ends here

if __name__ == "__main__":
    harness.main(ring_all_reduce, exchange, Counter)
