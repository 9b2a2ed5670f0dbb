"""Accepting connections from anyone, and letting in only those that prove who they are.

A listener is open to the whole network, or at least to every user of the host, and serves a rank that has other work.
So the number of handshakes in progress is bounded, each has a deadline, and when all slots are taken the oldest that
has not shown a valid hello gives way. A port scanner, a slow-loris or garbage costs a slot for a while and a line in
the log. Whoever has shown a hello made with our key gets more time, since the other side already counts on us.

The reception watches its sockets in an epoll that its owner pumps, and is used under its owner's lock.
"""

from __future__ import annotations

import errno
import logging
import secrets
import select
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from atoll.runtime.handshake import NONCE_BYTES, Acceptor, Identity, Refusal, SessionKeys

LOG: Final = logging.getLogger(__name__)
# A hello follows its connection at once; ten seconds allow for a host where every core is taken by others.
HELLO_TIMEOUT_S: Final = 10.0
# The rest of a handshake that began well: long enough for a process that was stopped for a while.
PROOF_TIMEOUT_S: Final = 60.0
# Without descriptors for new connections the listener rests this long instead of spinning.
REST_S: Final = 0.1
# Refusals are logged one by one up to this many, so that a port scanner cannot fill a disk; all are counted.
LOGGED_REFUSALS: Final = 32
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Accepted(NamedTuple):
    """A connection whose other side has proven its identity; ``sock`` is non-blocking and no longer watched here."""

    sock: socket.socket
    identity: Identity
    keys: SessionKeys
    address: str


class _Guest:
    """A connection in the middle of its handshake."""

    def __init__(self, sock: socket.socket, address: str, handshake: Acceptor, deadline: float) -> None:
        self.sock = sock
        self.address = address
        self.handshake = handshake
        self.deadline = deadline


class Reception:
    """Accepts on ``listener`` (made non-blocking) and shakes hands with key ``key``.

    ``admit`` decides about proven identities; ``vet`` about a connection before a word is exchanged (empty: welcome,
    else why not); ``name`` is who we are in the log.
    """

    def __init__(
        self,
        epoll: select.epoll,
        listener: socket.socket,
        key: bytes,
        admit: Callable[[Identity], Refusal],
        *,
        name: str,
        slots: int,
        vet: Callable[[socket.socket], str] | None = None,
    ) -> None:
        self._epoll = epoll
        self._listener = listener
        self._key = key
        self._admit = admit
        self._name = name
        self._slots = slots
        self._vet = vet
        self._guests: dict[int, _Guest] = {}
        self._resting_until: float | None = None
        self.refused = 0
        listener.setblocking(False)
        self._epoll.register(listener.fileno(), select.EPOLLIN)

    @property
    def in_progress(self) -> int:
        """Handshakes that have begun and not ended."""
        return len(self._guests)

    def handles(self, fd: int) -> bool:
        """Whether an event on ``fd`` is for ``on_ready``."""
        return fd in self._guests or fd == self._listener.fileno()

    def on_ready(self, fd: int, now: float) -> list[Accepted]:
        """``fd`` is readable: go as far as possible without blocking; the connections that are now accepted."""
        if fd in self._guests:
            return self._advance(fd, now)
        return self._accept(now)

    def next_deadline(self) -> float | None:
        """When ``expire`` has something to do, None for never."""
        times = [guest.deadline for guest in self._guests.values()]
        if self._resting_until is not None:
            times.append(self._resting_until)
        return min(times, default=None)

    def expire(self, now: float) -> None:
        """Give up handshakes whose time is over, and go on accepting after a rest."""
        for fd in [fd for fd, guest in self._guests.items() if guest.deadline <= now]:
            self._drop(fd, "it did not finish its handshake in time")
        if self._resting_until is not None and self._resting_until <= now:
            self._resting_until = None
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)

    def close(self) -> None:
        """Close the listener and all handshakes in progress."""
        for guest in self._guests.values():
            guest.sock.close()
        self._guests.clear()
        self._listener.close()

    def refuse(self, address: str, reason: str) -> None:
        """Count and log a refusal."""
        self.refused += 1
        if self.refused <= LOGGED_REFUSALS:
            LOG.warning("%s refused a connection from %s: %s", self._name, address, reason)
        if self.refused == LOGGED_REFUSALS:
            LOG.warning("%s counts further refused connections without logging them", self._name)

    def _accept(self, now: float) -> list[Accepted]:
        accepted: list[Accepted] = []
        # Bounded, so that a flood of connections does not keep the caller from its own work.
        for _ in range(self._slots):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    continue  # That connection was gone before it was accepted.
                self.refuse("anyone", f"this process cannot accept now: {error.strerror}")
                self._make_room()
                self._epoll.unregister(self._listener.fileno())
                self._resting_until = now + REST_S
                break
            reason = self._vet(sock) if self._vet else ""
            if reason:
                sock.close()
                self.refuse(address_words(address), reason)
                continue
            if len(self._guests) >= self._slots:
                self._make_room()
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handshake = Acceptor(self._key, secrets.token_bytes(NONCE_BYTES), self._admit)
            fd = sock.fileno()
            self._guests[fd] = _Guest(sock, address_words(address), handshake, now + HELLO_TIMEOUT_S)
            self._epoll.register(fd, select.EPOLLIN)
            accepted += self._advance(fd, now)  # The hello has often come already.
        return accepted

    def _advance(self, fd: int, now: float) -> list[Accepted]:
        guest = self._guests[fd]
        handshake = guest.handshake
        try:
            while wanted := handshake.wanted:
                data = guest.sock.recv(wanted)
                if not data:
                    self._drop(fd, "it closed the connection in the middle of the handshake")
                    return []
                answer = handshake.feed(data)
                # A whole handshake fits in the empty send buffer of a new connection.
                if answer and guest.sock.send(answer) != len(answer):
                    self._drop(fd, "it does not read the handshake")
                    return []
                if handshake.said_hello:
                    guest.deadline = now + PROOF_TIMEOUT_S
        except BlockingIOError:
            return []
        except OSError as error:
            self._drop(fd, f"the connection broke: {error.strerror}")
            return []
        if handshake.refused or handshake.identity is None or handshake.keys is None:
            self._drop(fd, handshake.refused)
            return []
        self._epoll.unregister(fd)
        del self._guests[fd]
        return [Accepted(guest.sock, handshake.identity, handshake.keys, guest.address)]

    def _make_room(self) -> None:
        strangers = (fd for fd, guest in self._guests.items() if not guest.handshake.said_hello)
        oldest = next(strangers, next(iter(self._guests), None))
        if oldest is not None:
            self._drop(oldest, "all slots for handshakes are taken and it was the oldest")

    def _drop(self, fd: int, reason: str) -> None:
        guest = self._guests.pop(fd)
        self._epoll.unregister(fd)
        guest.sock.close()
        self.refuse(guest.address, reason)


def address_words(address: object) -> str:
    """A socket address for the log."""
    if isinstance(address, tuple):
        return f"{address[0]} port {address[1]}"
    return "a process of this host"
