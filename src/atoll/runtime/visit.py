"""One call at the rendezvous, from the side of a rank that comes: connect, shake hands, introduce, hear the answer."""

from __future__ import annotations

import os
import secrets
import socket
import time
from types import TracebackType
from typing import Final

from atoll.runtime.environment import Placement
from atoll.runtime.handshake import NONCE_BYTES, Identity, Initiator, Purpose
from atoll.runtime.meeting import Target, connect_to, job_id, this_host, time_left, vet_user
from atoll.runtime.messages import JOIN_DECODER, Arrive, JoinMessage, Refused
from atoll.runtime.wire import FrameReader, FrameWriter, WireError

# How long an attempt at the rendezvous may take until it is made again: a port may be held by something mute.
ATTEMPT_S: Final = 5.0
# A process that has bound an address and does not listen yet refuses connections; this is the time between two lines.
BIND_TO_LISTEN_S: Final = 1.0


class Visit:
    """A connection to the rendezvous whose handshake is done; a context manager.

    Raises ``OSError`` when nobody is there or answers by ``until`` (monotonic seconds), ``WireError`` when it is no
    rank 0 of ours (``HandshakeRefused`` when it says so itself).
    """

    def __init__(self, placement: Placement, target: Target, until: float) -> None:
        self.sock = connect_to(target, until)
        try:
            if self.sock.family == socket.AF_UNIX:
                reason = vet_user(self.sock)
                if reason:
                    raise WireError(f"the rendezvous is not ours: {reason}")
            self._shake_hands(placement, until)
        except BaseException:
            self.sock.close()
            raise

    def __enter__(self) -> Visit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    def introduce(self, arrive: Arrive) -> None:
        """Say who we are."""
        self.sock.sendall(self._writer.frame(arrive))

    def answer(self, until: float) -> JoinMessage:
        """The answer; ``TimeoutError`` when it has not come by ``until``."""
        while True:
            self.sock.settimeout(time_left(until))
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionResetError("rank 0 closed the connection")
            messages = self._reader.feed(data)
            if messages:
                return messages[0]

    def _shake_hands(self, placement: Placement, until: float) -> None:
        identity = Identity(Purpose.JOIN, job_id(placement), placement.rank, 0)
        handshake = Initiator(placement.secret or b"", identity, secrets.token_bytes(NONCE_BYTES))
        self.sock.sendall(handshake.hello())
        while wanted := handshake.wanted:
            self.sock.settimeout(time_left(until))
            data = self.sock.recv(wanted)
            if not data:
                raise ConnectionResetError("the other side closed the connection")
            answer = handshake.feed(data)
            if answer:
                self.sock.sendall(answer)
        assert handshake.keys is not None
        self._writer = FrameWriter(handshake.keys.send)
        self._reader: FrameReader[JoinMessage] = FrameReader(handshake.keys.receive, JOIN_DECODER)


def ask_holder(placement: Placement, target: Target, deadline: float) -> str:
    """What the holder of our address says to a second rank 0; empty when it is no rank 0 of this job."""
    until = min(deadline, time.monotonic() + ATTEMPT_S)
    refusing_until = min(deadline, time.monotonic() + BIND_TO_LISTEN_S)
    while True:
        try:
            with Visit(placement, target, until) as visit:
                visit.introduce(Arrive(0, placement.world_size, this_host(placement.host), os.getpid(), "", 1))
                answer = visit.answer(until)
        except ConnectionRefusedError:
            if time.monotonic() >= refusing_until:
                return ""
            time.sleep(0.01)
        except (OSError, WireError):
            return ""
        else:
            return answer.reason if isinstance(answer, Refused) else ""
