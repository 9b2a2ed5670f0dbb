"""A process's door: one listener, and every connection that is being made, in either direction.

All of it is non-blocking and pumped by whoever has time. The endpoint keeps its sockets in an epoll of its own, which
is itself pollable: the control thread has it in its selector, and a data loop may have it too. ``pump`` accepts,
connects and shakes hands as far as possible; finished connections wait in a mailbox under their key until ``take``.
So two ranks that connect to each other, or to a third, while both are inside their loops never wait for one another.
Data connections between ranks of one host are introduced to the memory that both can share before they are handed out.

Of two ranks the higher one opens the connection. A peer had its listener up before anyone learned of it (``join``
sees to that), so one that refuses is dead; one that drops a handshake, being too busy, is tried again.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from atoll.errors import CollectiveTimeout, InternalError, PeerLost
from atoll.runtime.handshake import NONCE_BYTES, Identity, Initiator, Purpose, Refusal, SessionKeys
from atoll.runtime.introduction import Introduction, SharedConnection
from atoll.runtime.membership import Membership
from atoll.runtime.reception import Reception
from atoll.runtime.wakeup import Wakeup
from atoll.runtime.wire import WireError

# For the other side of a connection that we accepted: long enough for a process that was stopped for a while.
MEETING_S: Final = 60.0
# Between attempts at a peer that drops us; the second comes at once.
RETRY_S: Final = 0.05
# An attempt that nobody has answered is made anew: the kernel would send its first packet, where that was lost, again
# after 1, 3, 7, 15 and 31 seconds (tcp_syn_retries in tcp(7)).
CONNECT_S: Final = 1.0
_WORTH_RETRYING: Final = (
    errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.ECONNRESET, errno.EPIPE, errno.EAGAIN,
)  # fmt: skip


class ConnectionKey(NamedTuple):
    """Which connection: ``peer`` is a world rank, ``channel`` the schedule's lane."""

    communicator_id: int
    peer: int
    channel: int = 0
    purpose: Purpose = Purpose.DATA

    def describe(self) -> str:
        """``data connection with rank 3 (communicator 0, channel 1)``."""
        return (
            f"{self.purpose.name.lower()} connection with rank {self.peer} "
            f"(communicator {self.communicator_id:x}, channel {self.channel})"
        )


class Connection(NamedTuple):
    """A finished connection and its session keys, with which control connections authenticate every frame.

    ``shared`` is the memory that both ends of a data connection share, None where they do not.
    """

    sock: socket.socket
    keys: SessionKeys
    shared: SharedConnection | None = None

    def close(self) -> None:
        self.sock.close()
        if self.shared is not None:
            self.shared.close()


class _Opening:
    """A connection that we open; ``sock`` is None between attempts."""

    def __init__(self, key: ConnectionKey, deadline: float) -> None:
        self.key = key
        self.deadline = deadline
        self.sock: socket.socket | None = None
        self.handshake: Initiator | None = None
        self.meeting: _Meeting | None = None
        self.retry_at = 0.0
        self.connect_by = 0.0
        self.attempts = 0
        self.trouble = "no answer"

    def next_at(self) -> float:
        """When there is something to do even if nothing comes."""
        if self.sock is None:
            return min(self.deadline, self.retry_at)
        return min(self.deadline, self.connect_by) if self.handshake is None else self.deadline


class _Meeting:
    """A connection in the middle of its introduction. ``deadline`` bounds only those that we accepted."""

    def __init__(self, key: ConnectionKey, connection: Connection, introduction: Introduction, deadline: float) -> None:
        self.key = key
        self.connection = connection
        self.introduction = introduction
        self.deadline = deadline
        self._got = b""

    def advance(self) -> bool:
        """Whether it is done. Raises ``OSError``, ``BlockingIOError`` among it."""
        sock, introduction = self.connection.sock, self.introduction
        while not introduction.done:
            data = sock.recv(introduction.wanted - len(self._got))
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            self._got += data
            if len(self._got) == introduction.wanted:
                try:
                    answer = introduction.feed(self._got)
                except ValueError as error:
                    raise OSError(errno.EPROTO, str(error)) from None
                self._got = b""
                if answer:
                    sock.send(answer)  # a few bytes, into an empty buffer
        return True

    def finished(self) -> Connection:
        return self.connection._replace(shared=self.introduction.shared)

    def close(self) -> None:
        self.introduction.close()
        self.connection.close()


class Endpoint:
    """Makes and accepts authenticated connections. Every method may be called from any thread; only ``connect`` blocks.

    The higher rank of a pair opens the connection (``open``), the lower one finds it in ``take`` once it is there.
    The control thread pumps the endpoint always; a data loop may also register the endpoint itself (it has ``fileno``)
    in its selector and call ``pump`` when readable. Either way ``wake`` callbacks are called whenever a connection
    becomes ready or fails, in whichever thread pumped.
    """

    def __init__(self, membership: Membership, share_memory: bool = True) -> None:
        """``share_memory``: whether data connections within the host may go through shared memory."""
        self._membership = membership
        self._share_memory = share_memory
        self._meetings: dict[int, _Meeting] = {}  # with ranks that have connected to us
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._opening: dict[ConnectionKey, _Opening] = {}
        self._opening_by_fd: dict[int, _Opening] = {}
        self._ready: dict[ConnectionKey, Connection] = {}
        self._failed: dict[ConnectionKey, PeerLost] = {}
        self._linked: set[int] = set()  # whose control connection was handed over; there is only ever one
        self._wakes: tuple[Callable[[], None], ...] = ()
        self._news = False
        self._closed = False
        self._reception: Reception | None = None
        if membership.listener is not None:
            # A rank may have a control and a few data connections under way at once; the rest is room for noise.
            slots = 4 * membership.world_size + 64
            name = f"rank {membership.rank}"
            self._reception = Reception(
                self._epoll, membership.listener, membership.key, self._admit, name=name, slots=slots
            )

    def fileno(self) -> int:
        """Readable when ``pump`` has something to do; -1 once closed."""
        return -1 if self._closed else self._epoll.fileno()

    @property
    def refused(self) -> int:
        """How many incoming connections were refused so far."""
        return 0 if self._reception is None else self._reception.refused

    def next_deadline(self) -> float | None:
        """When ``pump`` has something to do even if not readable, in ``time.monotonic()`` seconds; None for never."""
        with self._lock:
            times = [opening.next_at() for opening in self._opening.values()]
            times += [meeting.deadline for meeting in self._meetings.values()]
            accepting = self._reception.next_deadline() if self._reception is not None and not self._closed else None
        if accepting is not None:
            times.append(accepting)
        return min(times, default=None)

    def pump(self) -> None:
        """Accept, connect and shake hands as far as possible without blocking."""
        with self._lock:
            if self._closed:
                return
            now = time.monotonic()
            for fd, _ in self._epoll.poll(0):
                if fd in self._opening_by_fd:
                    self._advance(self._opening_by_fd[fd], now)
                elif fd in self._meetings:
                    self._meet(fd)
                elif self._reception is not None and self._reception.handles(fd):
                    for accepted in self._reception.on_ready(fd, now):
                        self._welcome(_key(accepted.identity), Connection(accepted.sock, accepted.keys), now)
            if self._reception is not None:
                self._reception.expire(now)
            self._expire(now)
        self._tell_news()

    def open(self, key: ConnectionKey, deadline: float) -> None:
        """Begin a connection to the lower rank ``key.peer``; ``deadline`` in ``time.monotonic()`` seconds.

        Idempotent while the connection is being made. ``InternalError`` when the peer is not the lower rank.
        """
        if not 0 <= key.peer < self._membership.rank:
            raise InternalError(f"rank {self._membership.rank} opens no {key.describe()}: the higher rank does")
        with self._lock:
            if self._closed:
                raise InternalError(f"the endpoint is closed; it opens no {key.describe()}")
            if key in self._opening or key in self._ready:
                return
            self._failed.pop(key, None)
            self._opening[key] = _Opening(key, deadline)
            self._attempt(self._opening[key], time.monotonic())
            self._news = True  # Whoever sleeps until the next deadline has to look again.
        self._tell_news()

    def take(self, key: ConnectionKey) -> socket.socket | None:
        """The finished connection ``key``, non-blocking, TCP_NODELAY set, handed over once; None when not there yet.

        Raises ``PeerLost`` when a connection begun with ``open`` has failed (refused, or deadline passed).
        """
        connection = self.take_connection(key)
        return None if connection is None else connection.sock

    def take_connection(self, key: ConnectionKey) -> Connection | None:
        """As ``take``, with the session keys."""
        with self._lock:
            failure = self._failed.pop(key, None)
            if failure is not None:
                raise failure
            connection = self._ready.pop(key, None)
            if connection is not None and key.purpose is Purpose.CONTROL:
                self._linked.add(key.peer)
            return connection

    def connect(self, key: ConnectionKey, deadline: float) -> socket.socket:
        """Block until connection ``key`` is there, whichever side opens it, pumping meanwhile.

        Raises ``PeerLost`` when the peer cannot be reached, ``CollectiveTimeout`` when it did not come by ``deadline``.
        """
        wakeup = Wakeup()
        self.subscribe(wakeup.set)
        try:
            if key.peer < self._membership.rank:
                self.open(key, deadline)
            poll = select.poll()
            poll.register(wakeup, select.POLLIN)
            poll.register(self, select.POLLIN)
            while (sock := self.take(key)) is None:
                now = time.monotonic()
                # An opening of ours ends by itself at the deadline, with the better story.
                if now >= deadline and key.peer > self._membership.rank:
                    peer = self._membership.peers[key.peer]
                    raise CollectiveTimeout(
                        f"the {key.describe()} was not made in time: {peer.describe()} did not open it",
                        culprits=(key.peer,),
                    )
                until = min(deadline, self.next_deadline() or deadline)
                poll.poll(max(0.0, until - now) * 1000 + 1)
                wakeup.clear()
                self.pump()
            return sock
        finally:
            self.unsubscribe(wakeup.set)

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` (quick, thread-safe; a ``Wakeup.set``) whenever a connection is ready or has failed."""
        with self._lock:
            self._wakes = (*self._wakes, wake)

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        """Forget ``wake``."""
        with self._lock:
            self._wakes = tuple(other for other in self._wakes if other != wake)

    def close(self) -> None:
        """Close the listener and every connection not yet taken. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._epoll.close()
            if self._reception is not None:
                self._reception.close()
            for opening in self._opening.values():
                if opening.sock is not None:
                    opening.sock.close()
                if opening.meeting is not None:
                    opening.meeting.close()
            for connection in self._ready.values():
                connection.close()
            for meeting in self._meetings.values():
                meeting.close()
            for waiting in (self._opening, self._opening_by_fd, self._ready, self._failed, self._meetings):
                waiting.clear()

    def abandon_in_child(self) -> None:
        """In a forked child: close our copies of the sockets, touching nothing that is shared with the parent."""
        # The lock may have been held by a thread that does not exist here.
        self._lock = threading.Lock()
        self.close()

    def _tell_news(self) -> None:
        if self._news:
            self._news = False
            for wake in self._wakes:
                wake()

    # From here on the lock is held.

    def _admit(self, identity: Identity) -> Refusal:
        member = self._membership
        if identity.world_id != member.world_id:
            return Refusal.WORLD
        if identity.dst != member.rank or not member.rank < identity.src < member.world_size:
            return Refusal.RANK
        if identity.purpose not in (Purpose.CONTROL, Purpose.DATA):
            return Refusal.PURPOSE
        linked = identity.purpose is Purpose.CONTROL and identity.src in self._linked
        return Refusal.DUPLICATE if linked or self._is_live(_key(identity)) else Refusal.NONE

    def _is_live(self, key: ConnectionKey) -> bool:
        """Whether connection ``key`` waits in the mailbox and its other end still holds it."""
        if key not in self._ready:
            return False
        try:
            return self._ready[key].sock.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _deliver(self, key: ConnectionKey, connection: Connection) -> None:
        stale = self._ready.pop(key, None)
        if stale is not None:
            stale.close()
        self._ready[key] = connection
        self._news = True

    def _is_introduced(self, key: ConnectionKey) -> bool:
        """Whether both ends of ``key`` speak of shared memory first."""
        peers = self._membership.peers
        return key.purpose is Purpose.DATA and peers[key.peer].host == peers[self._membership.rank].host

    def _welcome(self, key: ConnectionKey, connection: Connection, now: float) -> None:
        if not self._is_introduced(key):
            self._deliver(key, connection)
            return
        fd = connection.sock.fileno()
        introduction = Introduction(we_opened=False, may_share=self._share_memory)
        self._meetings[fd] = _Meeting(key, connection, introduction, now + MEETING_S)
        self._epoll.register(fd, select.EPOLLIN)
        self._meet(fd)

    def _meet(self, fd: int) -> None:
        meeting = self._meetings[fd]
        try:
            meeting.advance()
        except BlockingIOError:
            return
        except OSError:
            self._end_meeting(fd).close()  # the other side opens another one, or is gone
            return
        self._deliver(meeting.key, self._end_meeting(fd).finished())

    def _end_meeting(self, fd: int) -> _Meeting:
        self._epoll.unregister(fd)
        return self._meetings.pop(fd)

    def _attempt(self, opening: _Opening, now: float) -> None:
        peer = self._membership.peers[opening.key.peer]
        opening.attempts += 1
        family = socket.AF_INET6 if ":" in peer.address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opening.sock = sock
        opening.handshake = None
        opening.meeting = None
        opening.connect_by = now + CONNECT_S
        error = sock.connect_ex((peer.address, peer.port))
        self._opening_by_fd[sock.fileno()] = opening
        self._epoll.register(sock.fileno(), select.EPOLLOUT)
        if error not in (0, errno.EINPROGRESS):
            self._unreachable(opening, error, now)
        elif error == 0:
            self._advance(opening, now)

    def _advance(self, opening: _Opening, now: float) -> None:
        sock, handshake = opening.sock, opening.handshake
        assert sock is not None
        try:
            if handshake is None:
                error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    self._unreachable(opening, error, now)
                    return
                handshake = self._begin_handshake(opening.key)
                sock.send(handshake.hello())  # Fits in the empty send buffer of a new connection.
                opening.handshake = handshake
                self._epoll.modify(sock.fileno(), select.EPOLLIN)
            while opening.meeting is None and (wanted := handshake.wanted):
                data = sock.recv(wanted)
                if not data:
                    self._retry(opening, "it closed the connection in the middle of the handshake", now)
                    return
                answer = handshake.feed(data)
                if answer:
                    sock.send(answer)
            if opening.meeting is None and self._is_introduced(opening.key):
                assert handshake.keys is not None
                introduction = Introduction(we_opened=True, may_share=self._share_memory)
                opening.meeting = _Meeting(opening.key, Connection(sock, handshake.keys), introduction, 0.0)
                sock.send(introduction.begin())
            if opening.meeting is not None:
                opening.meeting.advance()
        except BlockingIOError:
            return
        except WireError as refused:
            self._fail(opening, str(refused))
            return
        except OSError as error:
            self._unreachable(opening, error.errno or errno.EIO, now)
            return
        assert handshake.keys is not None
        meeting, opening.meeting = opening.meeting, None
        self._release(opening)
        del self._opening[opening.key]
        self._deliver(opening.key, Connection(sock, handshake.keys) if meeting is None else meeting.finished())

    def _begin_handshake(self, key: ConnectionKey) -> Initiator:
        member = self._membership
        identity = Identity(key.purpose, member.world_id, member.rank, key.peer, key.communicator_id, key.channel)
        return Initiator(member.key, identity, secrets.token_bytes(NONCE_BYTES))

    def _unreachable(self, opening: _Opening, error: int, now: float) -> None:
        if error == errno.ECONNREFUSED:
            self._fail(opening, "connection refused: its process has ended")
        elif error in _WORTH_RETRYING:
            self._retry(opening, os.strerror(error), now)
        else:
            self._fail(opening, os.strerror(error))

    def _retry(self, opening: _Opening, trouble: str, now: float) -> None:
        self._release(opening).close()
        opening.trouble = trouble
        opening.retry_at = now + (RETRY_S if opening.attempts > 1 else 0.0)
        self._news = True

    def _fail(self, opening: _Opening, reason: str) -> None:
        if opening.sock is not None:
            self._release(opening).close()
        del self._opening[opening.key]
        peer = self._membership.peers[opening.key.peer]
        self._failed[opening.key] = PeerLost(
            f"{peer.describe()} cannot be reached at {peer.address} port {peer.port} "
            f"for the {opening.key.describe()}: {reason}",
            culprits=(opening.key.peer,),
        )
        self._news = True

    def _release(self, opening: _Opening) -> socket.socket:
        """Stop watching the socket of this attempt."""
        sock = opening.sock
        assert sock is not None
        self._epoll.unregister(sock.fileno())
        del self._opening_by_fd[sock.fileno()]
        opening.sock = None
        if opening.meeting is not None:
            opening.meeting.introduction.close()
            opening.meeting = None
        return sock

    def _expire(self, now: float) -> None:
        for fd in [fd for fd, meeting in self._meetings.items() if meeting.deadline <= now]:
            self._end_meeting(fd).close()
        for opening in list(self._opening.values()):
            if opening.deadline <= now:
                self._fail(opening, f"not done by its deadline; last: {opening.trouble}")
            elif opening.sock is None and opening.retry_at <= now:
                self._attempt(opening, now)
            elif opening.sock is not None and opening.handshake is None and opening.connect_by <= now:
                self._retry(opening, "nobody answers there", now)


def _key(identity: Identity) -> ConnectionKey:
    return ConnectionKey(identity.communicator_id, identity.src, identity.channel, identity.purpose)
