"""Rank 0 while the world forms: it takes introductions until everyone is there, then tells all of all.

Introductions are checked against each other: another world size, an impossible rank or a rank that is taken is refused
in words that name both sides, and the first to come stays. A rank that goes away before the world is complete may come
again. When the deadline passes, those who are there learn who is not.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import socket
import time
from collections import Counter
from typing import Final

from atoll.errors import CollectiveTimeout, SpecError
from atoll.runtime.descriptor import name_ranks
from atoll.runtime.environment import Placement
from atoll.runtime.handshake import WORLD_ID_BYTES, Identity, Purpose, Refusal
from atoll.runtime.meeting import (
    Target,
    bind_targets,
    job_id,
    listen_at,
    own_listener,
    plain,
    this_host,
    time_left,
    vet_user,
    world_key,
)
from atoll.runtime.membership import Membership, Peer
from atoll.runtime.messages import JOIN_DECODER, Arrive, JoinMessage, Refused, Welcome
from atoll.runtime.reception import Accepted, Reception
from atoll.runtime.visit import ask_holder
from atoll.runtime.wire import FrameReader, FrameWriter, WireError
from atoll.units import format_duration

# To tell someone that it is refused; it waits for exactly that.
_ANSWER_S: Final = 1.0


def serve(placement: Placement, deadline: float, timeout_s: float, tuning: bytes = b"") -> Membership:
    """Form the world as its rank 0, whose ``tuning`` all get. Errors as ``join``."""
    meeting = _bind(placement, deadline)
    try:
        server = _Server(placement, meeting, timeout_s, tuning)
    except BaseException:
        meeting.close()
        raise
    return server.run(deadline)


def _bind(placement: Placement, deadline: float) -> socket.socket:
    """The listener at the rendezvous: the first candidate that is free."""
    assert placement.rendezvous is not None
    where = placement.rendezvous.describe()
    for target in bind_targets(placement):
        try:
            return listen_at(target)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise SpecError(
                    f"rank 0 cannot listen at the rendezvous {where}: {error.strerror}. "
                    "It must be an address of the host where rank 0 runs"
                ) from None
        # Another process that is rank 0 of this very job answers with both names.
        objection = ask_holder(placement, _reachable(target), deadline)
        if objection:
            raise SpecError(objection)
    raise SpecError(
        f"rank 0 cannot listen at the rendezvous {where}: the address is in use by something else than this job. "
        "Choose another port, below 32768, where the kernel gives none away"
    )


def _reachable(target: Target) -> Target:
    if isinstance(target, tuple):
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(target[0], target[0]), target[1]
    return target


class _Arrival:
    """A rank that has shaken hands; ``said`` is its introduction, None until that has come."""

    def __init__(self, accepted: Accepted) -> None:
        self.sock = accepted.sock
        self.address = accepted.address
        self.identity = accepted.identity
        self.reader: FrameReader[JoinMessage] = FrameReader(accepted.keys.receive, JOIN_DECODER)
        self.writer = FrameWriter(accepted.keys.send)
        self.said: Arrive | None = None


class _Server:
    def __init__(self, placement: Placement, meeting: socket.socket, timeout_s: float, tuning: bytes) -> None:
        self._placement = placement
        self._tuning = tuning
        self._timeout_s = timeout_s
        self._world_size = placement.world_size
        self._listener = own_listener(placement, meeting)
        port = self._listener.getsockname()[1]
        self._self = Arrive(0, placement.world_size, this_host(placement.host), os.getpid(), placement.listen, port)
        self._arrivals: dict[int, _Arrival] = {}
        self._present: dict[int, _Arrival] = {}
        self._epoll = select.epoll()
        self._reception = Reception(
            self._epoll,
            meeting,
            placement.secret or b"",
            self._admit,
            name="rank 0, at the rendezvous,",
            slots=2 * placement.world_size + 64,
            vet=vet_user if meeting.family == socket.AF_UNIX else None,
        )

    def run(self, deadline: float) -> Membership:
        """Wait for all, and welcome them."""
        try:
            while len(self._present) < self._world_size - 1:
                now = time.monotonic()
                if now >= deadline:
                    self._give_up()
                until = min(deadline, self._reception.next_deadline() or deadline)
                for fd, _ in self._epoll.poll(max(0.0, until - now)):
                    self._handle(fd)
                self._reception.expire(time.monotonic())
            return self._welcome(deadline)
        except BaseException:
            self._listener.close()
            raise
        finally:
            self._reception.close()
            for arrival in self._arrivals.values():
                arrival.sock.close()
            self._epoll.close()

    def _admit(self, identity: Identity) -> Refusal:
        if identity.purpose is not Purpose.JOIN:
            return Refusal.PURPOSE
        # A wrong rank or world size is answered in words, after the handshake; see _examine.
        return Refusal.NONE if identity.world_id == job_id(self._placement) else Refusal.WORLD

    def _handle(self, fd: int) -> None:
        arrival = self._arrivals.get(fd)
        if arrival is not None:
            self._hear(fd, arrival)
        elif self._reception.handles(fd):
            for accepted in self._reception.on_ready(fd, time.monotonic()):
                self._arrivals[accepted.sock.fileno()] = _Arrival(accepted)
                self._epoll.register(accepted.sock.fileno(), select.EPOLLIN)

    def _hear(self, fd: int, arrival: _Arrival) -> None:
        try:
            data = arrival.sock.recv(4096)
            messages = arrival.reader.feed(data)
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            self._dismiss(fd, str(error))
            return
        if not data:
            self._dismiss(fd, "it went away again")
            return
        for message in messages:
            if arrival.said is not None or not isinstance(message, Arrive):
                self._dismiss(fd, "it said something that is not expected from a rank that joins")
                return
            objection = self._examine(message, arrival)
            if objection:
                self._send(arrival, Refused(objection), time.monotonic() + _ANSWER_S)
                self._dismiss(fd, objection)
                return
            arrival.said = message
            self._present[message.rank] = arrival

    def _examine(self, said: Arrive, arrival: _Arrival) -> str:
        """Why this introduction is not accepted; empty when it is."""
        who = f"pid {said.pid} on {said.host.name}"
        if said.world_size != self._world_size:
            return (
                f"rank {said.rank} ({who}) says the world has {said.world_size} ranks, "
                f"rank 0 (pid {os.getpid()} on {self._self.host.name}) says {self._world_size}"
            )
        if said.rank >= self._world_size or said.rank != arrival.identity.src:
            return f"rank {said.rank} ({who}) is no rank of a world of {self._world_size}"
        other = self._self if said.rank == 0 else None
        if said.rank in self._present:
            other = self._present[said.rank].said
        if other is not None:
            return (
                f"rank {said.rank} is claimed twice: by pid {other.pid} on {other.host.name}, "
                f"which came first, and by {who}"
            )
        return ""

    def _dismiss(self, fd: int, reason: str) -> None:
        arrival = self._arrivals.pop(fd)
        if arrival.said is not None:
            del self._present[arrival.said.rank]
        self._epoll.unregister(fd)
        arrival.sock.close()
        self._reception.refuse(f"rank {arrival.identity.src} at {arrival.address}", reason)

    def _give_up(self) -> None:
        missing = tuple(rank for rank in range(1, self._world_size) if rank not in self._present)
        assert self._placement.rendezvous is not None
        reason = (
            f"{name_ranks(missing)} of {self._world_size} never came to the rendezvous "
            f"{self._placement.rendezvous.describe()} within {format_duration(self._timeout_s)}: "
            f"were all {self._world_size} processes started, with the same rendezvous?"
        )
        for arrival in self._present.values():
            self._send(arrival, Refused(reason, missing), time.monotonic() + _ANSWER_S)
        raise CollectiveTimeout(reason, culprits=missing)

    def _welcome(self, deadline: float) -> Membership:
        world_id = secrets.token_bytes(WORLD_ID_BYTES)
        secret = self._placement.secret
        key = secrets.token_bytes(32) if secret is None else world_key(secret, world_id)
        peers = self._addresses()
        # A key that follows from the secret is not sent, so that nobody can overhear it.
        welcome = Welcome(world_id, key if secret is None else b"", peers, self._tuning)
        for arrival in self._present.values():
            # Whoever does not take it is gone; the links that follow will say so, with its name.
            self._send(arrival, welcome, deadline)
        return Membership(0, self._world_size, world_id, key, peers, self._listener, self._tuning)

    def _addresses(self) -> tuple[Peer, ...]:
        """Where everyone is reached. Ranks that came over loopback or a Unix socket share rank 0's own address."""
        said = {0: self._self}
        said.update({rank: arrival.said for rank, arrival in self._present.items() if arrival.said is not None})
        # By which address those from elsewhere have reached this host.
        seen = Counter(
            plain(arrival.sock.getsockname()[0])
            for arrival in self._present.values()
            if arrival.said is not None and arrival.said.address and arrival.sock.family != socket.AF_UNIX
        )
        loopback = "::1" if self._listener.family == socket.AF_INET6 else "127.0.0.1"
        mine = self._self.address or (seen.most_common(1)[0][0] if seen else loopback)
        return tuple(
            Peer(rank, said[rank].host, said[rank].pid, said[rank].address or mine, said[rank].port)
            for rank in range(self._world_size)
        )

    def _send(self, arrival: _Arrival, message: JoinMessage, deadline: float) -> None:
        try:
            arrival.sock.settimeout(time_left(deadline))
            arrival.sock.sendall(arrival.writer.frame(message))
        except OSError as error:
            self._reception.refuse(f"rank {arrival.identity.src} at {arrival.address}", f"it does not listen: {error}")
