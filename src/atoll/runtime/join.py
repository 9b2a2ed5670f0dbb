"""Joining: the ranks of a job find each other.

Rank 0 listens at the rendezvous while the world forms, and only then (``join_server``); afterwards no rank is special.
Every other rank connects (``visit``), proves that it knows the secret, and says which rank it is and where it listens.
When all are there, rank 0 sends everyone the list of all addresses, the new world's id and the key of its connections.

Who is let in is in ``meeting``. Every wait has the one deadline; when it passes, the error on every rank names the
ranks that never came.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from typing import Final

from atoll.errors import CollectiveTimeout, InternalError, SpecError
from atoll.runtime.environment import Placement
from atoll.runtime.handshake import WORLD_ID_BYTES, HandshakeRefused, Refusal
from atoll.runtime.join_server import serve
from atoll.runtime.meeting import (
    Target,
    address_facing,
    check_secret,
    connect_targets,
    own_listener,
    target_words,
    this_host,
    world_key,
)
from atoll.runtime.membership import Membership, Peer
from atoll.runtime.messages import Arrive, JoinMessage, Refused, Welcome
from atoll.runtime.visit import ATTEMPT_S, Visit
from atoll.runtime.wire import WireError
from atoll.units import format_duration

# Between attempts, growing: rank 0 may be seconds behind when its host is busy.
FIRST_PAUSE_S: Final = 0.01
LAST_PAUSE_S: Final = 0.2
# The list of all addresses is one message; wire.MAX_BODY_BYTES holds that many.
MAX_WORLD_SIZE: Final = 4096


def join(placement: Placement, *, timeout_s: float = 60.0, tuning: bytes = b"") -> Membership:
    """Meet the other ranks; returns when all are there. ``tuning`` is rank 0's, which everyone gets.

    Raises ``SpecError`` for what the user can set right (no secret, another world size, a rank claimed twice, an
    address in use) and ``CollectiveTimeout`` naming the ranks that did not come within ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    world_size = placement.world_size
    if world_size > MAX_WORLD_SIZE:
        raise SpecError(f"a world of {world_size} ranks: at most {MAX_WORLD_SIZE} can join")
    if world_size == 1:
        alone = Peer(0, this_host(placement.host), os.getpid(), "127.0.0.1", 0)
        return Membership(0, 1, secrets.token_bytes(WORLD_ID_BYTES), secrets.token_bytes(32), (alone,), None, tuning)
    if placement.rendezvous is None:
        raise SpecError(f"a world of {world_size} ranks needs a rendezvous: set ATOLL_RENDEZVOUS=host:port")
    check_secret(placement)
    if placement.rank == 0:
        return serve(placement, deadline, timeout_s, tuning)
    return _Guest(placement, timeout_s).attend(deadline)


class _Guest:
    """A rank other than 0, on its way in."""

    def __init__(self, placement: Placement, timeout_s: float) -> None:
        assert placement.rendezvous is not None
        self._placement = placement
        self._rendezvous = placement.rendezvous
        self._timeout_s = timeout_s
        self._listener: socket.socket | None = None
        self._trouble = "nobody listens there"

    def attend(self, deadline: float) -> Membership:
        """Try until rank 0 is there and has answered."""
        pause_s = FIRST_PAUSE_S
        try:
            while time.monotonic() < deadline:
                membership = self._try_all(deadline)
                if membership is not None:
                    self._listener = None  # It is the membership's now.
                    return membership
                time.sleep(max(0.0, min(pause_s, deadline - time.monotonic())))
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
        finally:
            if self._listener is not None:
                self._listener.close()
        raise CollectiveTimeout(
            f"rank {self._placement.rank} could not join within {format_duration(self._timeout_s)}: rank 0, which "
            f"serves the rendezvous {self._rendezvous.describe()}, was not reached; last: {self._trouble}",
            culprits=(0,),
        )

    def _try_all(self, deadline: float) -> Membership | None:
        try:
            targets = connect_targets(self._placement)
        except OSError as error:
            # The name of a host that is still starting may not be known yet.
            self._trouble = f"the address of {self._rendezvous.host!r} is not found: {error.strerror}"
            return None
        for target in targets:
            try:
                return self._try(target, deadline)
            except HandshakeRefused as refused:
                self._trouble = f"at {target_words(target)}: {refused}"
                if len(self._rendezvous.ports) < 2 and refused.refusal in (Refusal.SECRET, Refusal.VERSION):
                    rank, where = self._placement.rank, self._rendezvous.describe()
                    raise SpecError(f"rank {rank} cannot join at {where}: {refused}") from None
            except (ConnectionRefusedError, FileNotFoundError):
                continue  # Nobody there yet; an earlier trouble says more.
            except TimeoutError:
                self._trouble = f"{target_words(target)} did not answer in time"
            except (OSError, WireError) as error:
                self._trouble = f"at {target_words(target)}: {error}"
        return None

    def _try(self, target: Target, deadline: float) -> Membership:
        placement = self._placement
        with Visit(placement, target, min(deadline, time.monotonic() + ATTEMPT_S)) as visit:
            self._listener = self._listener or own_listener(placement, visit.sock)
            address = placement.listen or address_facing(visit.sock)
            port = self._listener.getsockname()[1]
            visit.introduce(
                Arrive(placement.rank, placement.world_size, this_host(placement.host), os.getpid(), address, port)
            )
            # Rank 0 answers when everyone is there, or when its own deadline has passed; leave it a moment more.
            return self._conclude(visit.answer(deadline + 1.0), self._listener)

    def _conclude(self, answer: JoinMessage, listener: socket.socket) -> Membership:
        placement = self._placement
        if isinstance(answer, Refused):
            if answer.missing:
                raise CollectiveTimeout(answer.reason, culprits=answer.missing)
            raise SpecError(answer.reason)
        if not isinstance(answer, Welcome) or len(answer.peers) != placement.world_size:
            raise InternalError(f"rank 0 at {self._rendezvous.describe()} gave an answer that makes no sense: {answer}")
        # An empty key: it follows from the secret, which the handshake has shown to be the same.
        key = answer.key or world_key(placement.secret or b"", answer.world_id)
        return Membership(
            placement.rank, placement.world_size, answer.world_id, key, answer.peers, listener, answer.tuning
        )  # fmt: skip
