"""Framing of control connections: typed messages in bounded, authenticated frames; no socket here.

A frame is ``length (4 bytes, big endian) | body | tag (16 bytes)``. The body is one message of a tagged union, encoded
as MessagePack; the tag is HMAC-SHA256 over ``sequence (8 bytes) | length | body``, cut to 128 bits. Both ends count
sequence numbers from 0 and never send them, and each direction of each connection has a key of its own
(``handshake``). So a frame that was altered, replayed, reordered, left out or taken from another connection
has a wrong tag. Lengths are checked before anything is kept, the tag before anything is decoded, and decoding builds
only the declared types. The first offence is the last: a reader that has refused once refuses for ever.
"""

from __future__ import annotations

import hmac
from typing import Final, Generic, TypeVar

import msgspec

from atoll.errors import AtollError

LENGTH_BYTES: Final = 4
TAG_BYTES: Final = 16
# Large enough for the addresses of 4,096 ranks in one message (about 150 bytes each), small enough to be no burden.
MAX_BODY_BYTES: Final = 1 << 20

Message = TypeVar("Message")


class WireError(AtollError):
    """Bytes from the other side that break the protocol; the connection they came from is to be closed."""


def authenticate(key: bytes, *parts: bytes | bytearray) -> bytes:
    """HMAC-SHA256 of the parts joined, cut to ``TAG_BYTES``. At most one part may be of variable length."""
    return hmac.digest(key, b"".join(parts), "sha256")[:TAG_BYTES]


class FrameWriter:
    """Turns messages into frames, in the order in which they will be sent."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._sequence = 0
        self._encoder = msgspec.msgpack.Encoder()

    def frame(self, message: object) -> bytes:
        """The next frame. ``WireError`` for a message that is too large to be accepted."""
        body = self._encoder.encode(message)
        if len(body) > MAX_BODY_BYTES:
            raise WireError(f"a message of {len(body)} bytes is above the limit of {MAX_BODY_BYTES}")
        length = len(body).to_bytes(LENGTH_BYTES, "big")
        tag = authenticate(self._key, self._sequence.to_bytes(8, "big"), length, body)
        self._sequence += 1
        return length + body + tag


class FrameReader(Generic[Message]):
    """Turns received bytes, in any portions, back into messages, which ``decoder`` checks for their type."""

    def __init__(
        self, key: bytes, decoder: msgspec.msgpack.Decoder[Message], max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self._key = key
        self._sequence = 0
        self._decoder = decoder
        self._max_body_bytes = max_body_bytes
        self._buffer = bytearray()
        self._refused: WireError | None = None

    @property
    def mid_frame(self) -> bool:
        """Whether a frame has begun and not ended: an end of file now is a truncation."""
        return bool(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Message]:
        """The messages completed by ``data``. Raises ``WireError`` at the first frame that is not acceptable,
        and at every call after that."""
        if self._refused is not None:
            raise self._refused
        self._buffer += data
        messages: list[Message] = []
        position = 0
        try:
            while len(self._buffer) - position >= LENGTH_BYTES:
                end = position + self._frame_bytes(position)
                if len(self._buffer) < end:
                    break
                messages.append(self._message(position, end))
                position = end
        except WireError as error:
            self._refused = error
            self._buffer.clear()
            raise
        del self._buffer[:position]
        return messages

    def _frame_bytes(self, position: int) -> int:
        length = int.from_bytes(self._buffer[position : position + LENGTH_BYTES], "big")
        if length > self._max_body_bytes:
            raise WireError(f"a frame of {length} bytes is announced, the limit is {self._max_body_bytes}")
        return LENGTH_BYTES + length + TAG_BYTES

    def _message(self, position: int, end: int) -> Message:
        framed = bytes(self._buffer[position : end - TAG_BYTES])
        tag = authenticate(self._key, self._sequence.to_bytes(8, "big"), framed)
        if not hmac.compare_digest(tag, bytes(self._buffer[end - TAG_BYTES : end])):
            raise WireError(
                f"frame {self._sequence} has a wrong tag: altered, replayed, out of order or of another key"
            )
        self._sequence += 1
        try:
            return self._decoder.decode(framed[LENGTH_BYTES:])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise WireError(f"frame {self._sequence - 1} holds no known message: {error}") from None
