"""Who is there: mutual challenge and response at the start of every connection; no socket and no clock here.

::

    initiator                                          acceptor
    hello: magic, version, identity, nonce, tag  --->  is the tag made with our key? is it meant for us?
      is the tag made with our key?              <---  challenge: verdict, nonce, tag over hello and nonce
    proof: tag over hello and challenge          --->  done
    done

The identity says which world, what for, from which rank to which, for which communicator and channel. Every tag is an
HMAC with the world's key (from ``ATOLL_SECRET``), so none of this can be altered, and each side's nonce makes an old
recording useless: a replayed hello gets a new challenge that the replayer cannot answer. The initiator is done after
one round trip and may send at once behind its proof. A connection's session keys, one for each
direction, come from the key and both nonces.

Each message has one fixed length, and each side asks for exactly the bytes it still needs (``wanted``): nothing
of what follows is ever swallowed, nothing has to be bounded, and what is not ours shows in the first eight bytes.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

from atoll.runtime.wire import TAG_BYTES, WireError, authenticate

MAGIC: Final = b"\x89atoll\r\n"
VERSION: Final = 1
NONCE_BYTES: Final = 16
WORLD_ID_BYTES: Final = 16
# magic, version, purpose, world id, source, destination, communicator, channel, nonce
_HELLO: Final = struct.Struct(f">8sHH{WORLD_ID_BYTES}sIIQI{NONCE_BYTES}s")
_PREFIX: Final = struct.Struct(">8sH")
HELLO_BYTES: Final = _HELLO.size + TAG_BYTES
CHALLENGE_BYTES: Final = 1 + NONCE_BYTES + TAG_BYTES
PROOF_BYTES: Final = TAG_BYTES


class Purpose(IntEnum):
    """What a connection is for."""

    JOIN = 1
    CONTROL = 2
    DATA = 3


_PURPOSES: Final = frozenset(Purpose)


class Refusal(IntEnum):
    """Why an acceptor says no; 0 is no refusal. Sent in the clear, so it holds nothing secret."""

    NONE = 0
    SECRET = 1
    VERSION = 2
    WORLD = 3
    RANK = 4
    PURPOSE = 5
    DUPLICATE = 6

    @property
    def words(self) -> str:
        """What the refusal means, to the one refused."""
        return _REFUSAL_WORDS[self]


_REFUSAL_WORDS: Final = {
    Refusal.NONE: "accepted",
    Refusal.SECRET: "it has another ATOLL_SECRET",
    Refusal.VERSION: f"it speaks another version of the protocol than {VERSION}: use one version of Atoll everywhere",
    Refusal.WORLD: "it belongs to another world (another job, or an earlier start of this one)",
    Refusal.RANK: "it is not the rank that was asked for, or does not expect ours",
    Refusal.PURPOSE: "it serves no connections of this purpose",
    Refusal.DUPLICATE: "it already has this connection",
}


class Identity(NamedTuple):
    """What a new connection is: ``src`` is the initiator's world rank, ``dst`` the acceptor's."""

    purpose: Purpose
    world_id: bytes
    src: int
    dst: int
    communicator_id: int = 0
    channel: int = 0


class SessionKeys(NamedTuple):
    """Keys of one connection, for what this side sends and what it receives."""

    send: bytes
    receive: bytes


class HandshakeRefused(WireError):
    """The other side said no, or is not who it should be; ``refusal`` where it gave a reason."""

    def __init__(self, message: str, refusal: Refusal = Refusal.NONE) -> None:
        self.refusal = refusal
        super().__init__(message)


class Initiator:
    """The side that opened the connection. Send ``hello()``, then ``feed`` exactly ``wanted`` bytes at a time."""

    def __init__(self, key: bytes, identity: Identity, nonce: bytes) -> None:
        self._key = key
        packed = _HELLO.pack(MAGIC, VERSION, *identity, nonce)
        self._hello = packed + authenticate(key, b"hello", packed)
        self._received = b""
        self.done = False
        self.keys: SessionKeys | None = None

    def hello(self) -> bytes:
        """The first bytes on the connection."""
        return self._hello

    @property
    def wanted(self) -> int:
        """How many bytes to read next, at most; 0 when done."""
        return 0 if self.done else CHALLENGE_BYTES - len(self._received)

    def feed(self, data: bytes) -> bytes:
        """Take received bytes and return what to send. ``HandshakeRefused`` when it is over."""
        if len(data) > self.wanted:
            raise WireError("more bytes than the handshake asked for")
        self._received += data
        if self.wanted:
            return b""
        challenge = self._received
        refusal = challenge[0]
        if refusal:
            known = Refusal(refusal) if refusal in _REFUSAL_WORDS else Refusal.NONE
            raise HandshakeRefused(f"refused: {known.words if known else f'reason {refusal}'}", known)
        expected = authenticate(self._key, b"accept", self._hello, challenge[:-TAG_BYTES])
        if not hmac.compare_digest(expected, challenge[-TAG_BYTES:]):
            raise HandshakeRefused("the other side does not know our ATOLL_SECRET", Refusal.SECRET)
        self.done = True
        to_acceptor, to_initiator = _session_keys(self._key, self._hello, challenge)
        self.keys = SessionKeys(send=to_acceptor, receive=to_initiator)
        return authenticate(self._key, b"prove!", self._hello, challenge)


class Acceptor:
    """The side that was called. ``feed`` exactly ``wanted`` bytes at a time and send what comes back, if anything.

    ``admit`` looks at an identity whose tag is right and answers ``Refusal.NONE`` or why not. When ``refused`` is set,
    send what ``feed`` returned and close.
    """

    def __init__(self, key: bytes, nonce: bytes, admit: Callable[[Identity], Refusal]) -> None:
        self._key = key
        self._nonce = nonce
        self._admit = admit
        self._hello = b""
        self._challenge = b""
        self._proof = b""
        self.identity: Identity | None = None
        self.done = False
        self.refused = ""
        self.keys: SessionKeys | None = None

    @property
    def wanted(self) -> int:
        """How many bytes to read next, at most; 0 when done or refused."""
        if self.done or self.refused:
            return 0
        if self._challenge:
            return PROOF_BYTES - len(self._proof)
        return HELLO_BYTES - len(self._hello)

    @property
    def said_hello(self) -> bool:
        """Whether the other side has shown a hello made with our key."""
        return bool(self._challenge)

    def feed(self, data: bytes) -> bytes:
        """Take received bytes and return what to send."""
        if len(data) > self.wanted:
            raise WireError("more bytes than the handshake asked for")
        if self._challenge:
            self._proof += data
            if not self.wanted:
                self._check_proof()
            return b""
        self._hello += data
        return self._check_hello()

    def _check_hello(self) -> bytes:
        hello = self._hello
        if hello[: len(MAGIC)] != MAGIC[: len(hello)]:
            self.refused = "it does not speak Atoll's protocol"
            return b""
        if len(hello) >= _PREFIX.size and (version := _PREFIX.unpack_from(hello)[1]) != VERSION:
            return self._refuse(Refusal.VERSION, f"it speaks version {version} of the protocol, this is {VERSION}")
        if len(hello) < HELLO_BYTES:
            return b""
        packed, tag = hello[: _HELLO.size], hello[_HELLO.size :]
        if not hmac.compare_digest(authenticate(self._key, b"hello", packed), tag):
            return self._refuse(Refusal.SECRET, "it has another ATOLL_SECRET")
        _, _, purpose, world_id, src, dst, communicator_id, channel, _ = _HELLO.unpack(packed)
        if purpose not in _PURPOSES:
            return self._refuse(Refusal.PURPOSE, f"its purpose {purpose} is unknown")
        self.identity = Identity(Purpose(purpose), world_id, src, dst, communicator_id, channel)
        refusal = self._admit(self.identity)
        if refusal:
            meant = f"a {self.identity.purpose.name.lower()} connection from rank {src} to rank {dst}"
            return self._refuse(refusal, f"{meant} is not expected here ({refusal.name.lower()})")
        answer = bytes((Refusal.NONE,)) + self._nonce
        self._challenge = answer + authenticate(self._key, b"accept", hello, answer)
        return self._challenge

    def _refuse(self, refusal: Refusal, words: str) -> bytes:
        self.refused = words
        return bytes((refusal,)) + bytes(CHALLENGE_BYTES - 1)

    def _check_proof(self) -> None:
        if not hmac.compare_digest(authenticate(self._key, b"prove!", self._hello, self._challenge), self._proof):
            self.refused = "it cannot prove that its hello is not a recording"
            return
        self.done = True
        to_acceptor, to_initiator = _session_keys(self._key, self._hello, self._challenge)
        self.keys = SessionKeys(send=to_initiator, receive=to_acceptor)


def _session_keys(key: bytes, hello: bytes, challenge: bytes) -> tuple[bytes, bytes]:
    return (
        hmac.digest(key, b"to acceptor " + hello + challenge, "sha256"),
        hmac.digest(key, b"to initiator" + hello + challenge, "sha256"),
    )
