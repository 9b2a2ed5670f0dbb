"""How the two ends of a new data connection find out whether they share memory: three short messages over it.

1. The side that opened the connection makes a segment with a ring for each direction, and says where it is.
2. The other side tries to map it and to read the opener's memory directly, and says what came of it.
3. The opener tries to read the other's memory, and says what came of that.

Only ranks that the membership places on one host are introduced; both know, so nobody waits in vain. Where mapping
fails (another user, another PID namespace) the connection carries the bytes itself. Otherwise it carries wake-ups,
and its end says that the peer is gone.

Sans-I/O but for memory: fed with bytes, it answers with bytes.
"""

from __future__ import annotations

import os
import secrets
import struct
from typing import Final

import numpy as np

from atoll.runtime.remote_memory import can_read
from atoll.runtime.shared_memory import Segment, attach, available, create
from atoll.runtime.shared_ring import PAGE, RING_BYTES

_NONCE_BYTES: Final = 16
_NONCE_AT: Final = 1024
_MAGIC: Final = 0x314D4853_4C4C5441  # "ATLLSHM1"
_OFFER: Final = struct.Struct(f"<QQQQQ{_NONCE_BYTES}s")  # magic, offered, pid, fd, address of the nonce
_ANSWER: Final = struct.Struct("<QQQQ")  # mapped, can read, pid, address of the nonce
_RESULT: Final = struct.Struct("<Q")  # can read
SEGMENT_BYTES: Final = PAGE + 2 * RING_BYTES


class SharedConnection:
    """What both ends of a connection share. ``we_opened`` says which ring is ours to write."""

    def __init__(self, segment: Segment, we_opened: bool, peer_pid: int) -> None:
        self.segment = segment
        self.we_opened = we_opened
        self.peer_pid = peer_pid
        self.we_read_peer = False
        self.peer_reads_us = False

    def close(self) -> None:
        """Unmap, once nobody looks at it."""
        self.segment.close()


class Introduction:
    """One end. ``feed`` it ``wanted`` bytes until ``done``; then ``shared`` is what came of it, None: nothing."""

    def __init__(self, we_opened: bool, may_share: bool) -> None:
        self.done = False
        self.shared: SharedConnection | None = None
        self._may_share = may_share and available()
        self._opened = we_opened
        self.wanted = _ANSWER.size if we_opened else _OFFER.size
        self._nonce = b""

    def begin(self) -> bytes:
        """The opener's first message; nothing from the other side."""
        if not self._opened:
            return b""
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        if self._may_share:
            try:
                segment = create(SEGMENT_BYTES, "connection")
            except OSError:  # out of descriptors or memory: the connection will do
                self._may_share = False
            else:
                segment.map[_NONCE_AT : _NONCE_AT + _NONCE_BYTES] = self._nonce
                self.shared = SharedConnection(segment, True, 0)
                return _OFFER.pack(_MAGIC, 1, os.getpid(), segment.fd, _nonce_address(segment), self._nonce)
        return _OFFER.pack(_MAGIC, 0, 0, 0, 0, self._nonce)

    def feed(self, data: bytes) -> bytes:
        """Take ``wanted`` bytes; what to answer, perhaps nothing. Raises ``ValueError`` for what is none of ours."""
        if len(data) != self.wanted:
            raise ValueError(f"expected {self.wanted} bytes, got {len(data)}")
        if self._opened:
            return self._on_answer(data)
        return self._on_result(data) if self._nonce else self._on_offer(data)

    def close(self) -> None:
        """Let go of what was made for nothing."""
        if self.shared is not None:
            self.shared.close()
            self.shared = None

    def _on_offer(self, data: bytes) -> bytes:
        magic, offered, pid, fd, address, self._nonce = _OFFER.unpack(data)
        if magic != _MAGIC:
            raise ValueError("no offer of shared memory")
        self.wanted = _RESULT.size
        if not (offered and self._may_share):
            self.done = True
            return _ANSWER.pack(0, 0, 0, 0)
        try:
            segment = attach(pid, fd, SEGMENT_BYTES)
        except OSError:
            self.done = True
            return _ANSWER.pack(0, 0, 0, 0)
        if segment.map[_NONCE_AT : _NONCE_AT + _NONCE_BYTES] != self._nonce:
            segment.close()  # that number means another process here
            self.done = True
            return _ANSWER.pack(0, 0, 0, 0)
        shared = self.shared = SharedConnection(segment, False, pid)
        shared.we_read_peer = can_read(pid, address, self._nonce)
        return _ANSWER.pack(1, shared.we_read_peer, os.getpid(), _nonce_address(segment))

    def _on_answer(self, data: bytes) -> bytes:
        mapped, can_read_us, pid, address = _ANSWER.unpack(data)
        self.done = True
        shared = self.shared
        if not mapped or shared is None:
            self.close()
            return b""
        shared.segment.forget_descriptor()  # the peer has mapped it
        shared.peer_pid = pid
        shared.peer_reads_us = bool(can_read_us)
        shared.we_read_peer = can_read(pid, address, self._nonce)
        return _RESULT.pack(shared.we_read_peer)

    def _on_result(self, data: bytes) -> bytes:
        self.done = True
        assert self.shared is not None
        self.shared.peer_reads_us = bool(_RESULT.unpack(data)[0])
        return b""


def _nonce_address(segment: Segment) -> int:
    start: int = np.frombuffer(segment.map, dtype=np.uint8).__array_interface__["data"][0]
    return start + _NONCE_AT
