"""A process's door: one listener, and every connection that is being made, in either direction.

Skeleton of the interface; see the docstrings.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from atoll.runtime.membership import Membership


class Purpose(IntEnum):
    """What a connection is for."""

    CONTROL = 1
    DATA = 2


class ConnectionKey(NamedTuple):
    """Which connection: ``peer`` is a world rank, ``channel`` the schedule's lane."""

    communicator_id: int
    peer: int
    channel: int = 0
    purpose: Purpose = Purpose.DATA


class Endpoint:
    """Makes and accepts authenticated connections; every method may be called from any thread and never blocks,
    except ``connect``.

    The higher rank of a pair opens the connection (``open``), the lower one finds it in ``take`` once it is there.
    The control thread pumps the endpoint always; a data loop may also register the endpoint itself (it has ``fileno``)
    in its selector and call ``pump`` when readable. Either way ``wake`` callbacks are called whenever a data connection
    becomes ready or fails, in whichever thread pumped.
    """

    def __init__(self, membership: Membership) -> None:
        raise NotImplementedError

    def fileno(self) -> int:
        """Readable when ``pump`` has something to do."""
        raise NotImplementedError

    def pump(self) -> None:
        """Accept, connect and shake hands as far as possible without blocking."""
        raise NotImplementedError

    def open(self, key: ConnectionKey, deadline: float) -> None:
        """Begin a connection to the lower rank ``key.peer``; ``deadline`` in ``time.monotonic()`` seconds.

        Idempotent while the connection is being made. ``InternalError`` when the peer is not the lower rank.
        """
        raise NotImplementedError

    def take(self, key: ConnectionKey) -> socket.socket | None:
        """The finished connection ``key``, non-blocking, TCP_NODELAY set, handed over once; None when not there yet.

        Raises ``PeerLost`` when a connection begun with ``open`` has failed (refused, or deadline passed).
        """
        raise NotImplementedError

    def connect(self, key: ConnectionKey, deadline: float) -> socket.socket:
        """Block until connection ``key`` is there, whichever side opens it, pumping meanwhile.

        Raises ``PeerLost`` when the peer cannot be reached, ``CollectiveTimeout`` when it did not come by ``deadline``.
        """
        raise NotImplementedError

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` (quick, thread-safe; a ``Wakeup.set``) whenever a data connection is ready or has failed."""
        raise NotImplementedError

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        """Forget ``wake``."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the listener and every connection not yet taken."""
        raise NotImplementedError
