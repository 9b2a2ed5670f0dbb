"""One control connection: messages in and out of a non-blocking socket."""

from __future__ import annotations

import errno
import socket
from typing import Final

from atoll.runtime.endpoint import Connection
from atoll.runtime.messages import CONTROL_DECODER, ControlMessage
from atoll.runtime.wire import FrameReader, FrameWriter, WireError

# What may wait for a peer that does not read; control messages are small and few, so it is stuck or stopped for long.
MAX_QUEUED_BYTES: Final = 16 << 20
_READ_BYTES: Final = 65536
# The other side's kernel says that the process is gone. Anything else may be the network's doing.
_ENDED: Final = (errno.ECONNRESET, errno.EPIPE)


class ControlLink:
    """The link to world rank ``peer``. ``ended`` says why it is over, empty while it is not.

    ``cut``: it is over, but that says nothing about the process at its other end.
    """

    def __init__(self, peer: int, connection: Connection) -> None:
        self.peer = peer
        self.sock: Final[socket.socket] = connection.sock
        self.ended = ""
        self.cut = False
        self.watched_for_write = False
        self._reader: FrameReader[ControlMessage] = FrameReader(connection.keys.receive, CONTROL_DECODER)
        self._writer = FrameWriter(connection.keys.send)
        self._queued = bytearray()

    @property
    def wants_write(self) -> bool:
        """Whether messages wait for the socket to take more."""
        return bool(self._queued) and not self.ended

    def queue(self, message: ControlMessage) -> None:
        """Put a message behind those that wait; ``flush`` sends."""
        if not self.ended:
            self._queued += self._writer.frame(message)
            if len(self._queued) > MAX_QUEUED_BYTES:
                self.ended = "it does not read its control link"

    def flush(self) -> None:
        """Send what the socket takes."""
        try:
            while self._queued and not self.ended:
                del self._queued[: self.sock.send(self._queued)]
        except BlockingIOError:
            return
        except OSError:
            # The other end is closed. What it said before is still to be read, and then the end of file.
            self._queued.clear()

    def receive(self) -> list[ControlMessage]:
        """All messages that have come. Those before an end of file are returned, and ``ended`` is set."""
        messages: list[ControlMessage] = []
        try:
            while not self.ended:
                data = self.sock.recv(_READ_BYTES)
                if not data:
                    self.ended = "its control link ended without a goodbye"
                    break
                messages += self._reader.feed(data)
        except BlockingIOError:
            pass
        except WireError as error:
            self.ended = f"its control link broke the protocol: {error}"
        except OSError as error:
            self.ended = f"its control link ended without a goodbye ({error.strerror})"
            self.cut = error.errno not in _ENDED
        return messages

    def part(self) -> None:
        """Let the other end read what was said, and then the end; nothing more is read here.

        The socket stays open: closing it with something unread would destroy what the other end has yet to read.
        """
        self.ended = "parted"
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it is gone already

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
