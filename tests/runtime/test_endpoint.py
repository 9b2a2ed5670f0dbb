"""The endpoint: connections from either side, under attack, with dead peers, in any order."""

import logging
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from memberships import KEY, PATIENCE_S, WORLD_ID, eventually, is_closed, memberships, open_sockets, stranger

from atoll.errors import CollectiveTimeout, InternalError, PeerLost
from atoll.runtime import reception
from atoll.runtime.endpoint import ConnectionKey, Endpoint
from atoll.runtime.handshake import NONCE_BYTES, Identity, Initiator, Purpose
from atoll.runtime.membership import Membership
from atoll.runtime.wakeup import Wakeup


@pytest.fixture(params=["127.0.0.1", "::1"])
def world(request: pytest.FixtureRequest) -> Iterator[tuple[list[Membership], list[Endpoint]]]:
    before = open_sockets()
    members = memberships(3, request.param)
    endpoints = [Endpoint(member) for member in members]
    yield members, endpoints
    for endpoint in endpoints:
        endpoint.close()
        endpoint.close()
    assert open_sockets() == before, "listeners and epolls are closed, and nothing is left over"


def soon() -> float:
    return time.monotonic() + PATIENCE_S


def test_the_higher_rank_opens_and_both_get_the_same_connection(world) -> None:
    _, (lower, _, higher) = world
    key = ConnectionKey(5, 0, 3)
    higher.open(key, soon())
    higher.open(key, soon())  # asked twice, made once
    ours = eventually(lambda: higher.take(key), higher, lower)
    theirs = eventually(lambda: lower.take(ConnectionKey(5, 2, 3)), higher, lower)
    assert ours.getpeername()[:2] == theirs.getsockname()[:2]
    for sock in (ours, theirs):
        assert not sock.getblocking()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    ours.send(b"ping")
    assert select.select([theirs], [], [], PATIENCE_S)[0]
    assert theirs.recv(100) == b"ping", "what follows the handshake, and nothing of it"
    assert higher.take(key) is None
    assert lower.take(ConnectionKey(5, 2, 3)) is None
    ours.close()
    theirs.close()


def test_keys_tell_connections_apart(world) -> None:
    _, (lower, _, higher) = world
    keys = [ConnectionKey(c, 0, ch) for c in (0, 2**64 - 1) for ch in (0, 1)] + [
        ConnectionKey(0, 0, 0, Purpose.CONTROL)
    ]
    for key in keys:
        higher.open(key, soon())
    for number, key in enumerate(keys):
        ours = eventually(lambda key=key: higher.take(key), higher, lower)
        ours.send(bytes([number]))
        ours.close()
    for number, key in reversed(list(enumerate(keys))):
        theirs = eventually(lambda key=key: lower.take(key._replace(peer=2)), higher, lower)
        assert select.select([theirs], [], [], PATIENCE_S)[0]
        assert theirs.recv(10) == bytes([number])
        theirs.close()


def test_the_lower_rank_does_not_open(world) -> None:
    _, (lower, _, _) = world
    with pytest.raises(InternalError, match="the higher rank does"):
        lower.open(ConnectionKey(0, 2), soon())


def test_ranks_that_all_connect_to_each_other_at_once_do_not_wait_for_one_another() -> None:
    """Each in a thread of its own, blocking, in the worst order; the first one pumped is everyone's."""
    members = memberships(5)
    endpoints = [Endpoint(member) for member in members]
    failures: list[BaseException] = []

    def connect_to_all(rank: int) -> None:
        try:
            for peer in range(5):
                if peer != rank:
                    endpoints[rank].connect(ConnectionKey(0, peer), soon()).close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=connect_to_all, args=(rank,)) for rank in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)
    for endpoint in endpoints:
        endpoint.close()


def test_wakes_come_for_finished_and_failed_connections(world) -> None:
    _, (lower, middle, higher) = world
    wakeup = Wakeup()
    lower.subscribe(wakeup.set)
    higher.open(ConnectionKey(0, 0), soon())
    eventually(lambda: select.select([wakeup], [], [], 0)[0], higher, lower)
    wakeup.clear()
    assert not select.select([wakeup], [], [], 0)[0]
    lower.unsubscribe(wakeup.set)
    higher.subscribe(wakeup.set)
    middle.close()
    higher.open(ConnectionKey(0, 1), soon())
    eventually(lambda: select.select([wakeup], [], [], 0)[0], higher)
    with pytest.raises(PeerLost, match="its process has ended"):
        eventually(lambda: higher.take(ConnectionKey(0, 1)), higher)


def test_a_dead_peer_is_named(world) -> None:
    _, (lower, _, higher) = world
    lower.close()
    with pytest.raises(PeerLost, match=r"rank 0 \(pid \d+ on .+\) cannot be reached") as lost:
        higher.connect(ConnectionKey(0, 0), soon())
    assert lost.value.culprits == (0,)


def test_a_peer_that_never_answers_fails_by_the_deadline(world) -> None:
    """The kernel accepts for a process that is stopped; only the deadline tells."""
    _, (lower, _, higher) = world
    with pytest.raises(PeerLost, match="not done by its deadline"):
        higher.connect(ConnectionKey(0, 0), time.monotonic() + 0.05)
    with pytest.raises(CollectiveTimeout, match=r"rank 2 .* did not open it") as late:
        lower.connect(ConnectionKey(0, 2), time.monotonic() + 0.05)
    assert late.value.culprits == (2,)


def test_a_connection_dropped_in_the_handshake_is_tried_again(world) -> None:
    members, (lower, _, higher) = world
    key = ConnectionKey(0, 0)
    listener = members[0].listener
    assert listener is not None
    higher.open(key, soon())
    for _ in range(3):
        assert select.select([listener], [], [], PATIENCE_S)[0]
        listener.accept()[0].close()  # too busy
        deadline = soon()
        while not select.select([listener], [], [], 0.02)[0]:
            assert time.monotonic() < deadline
            higher.pump()
    assert eventually(lambda: higher.take(key), higher, lower).close() is None


def test_a_connection_whose_first_packet_is_lost_is_begun_anew(world, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose queue is full drops what begins a connection, as a crowded network does."""
    monkeypatch.setattr("atoll.runtime.endpoint.CONNECT_S", 0.05)
    members, (lower, _, higher) = world
    listener = members[0].listener
    assert listener is not None
    listener.listen(0)
    peer = members[0].peers[0]
    crowd = []
    for _ in range(3):
        sock = socket.socket(listener.family)
        sock.setblocking(False)
        sock.connect_ex((peer.address, peer.port))
        crowd.append(sock)
    key = ConnectionKey(0, 0)
    higher.open(key, soon())
    eventually(lambda: higher._opening[key].attempts >= 3, higher)
    listener.listen(16)
    assert eventually(lambda: higher.take(key), higher, lower).close() is None
    for sock in crowd:
        sock.close()


# Strangers.


def test_a_port_scan_and_garbage_do_no_harm(world, caplog: pytest.LogCaptureFixture) -> None:
    members, (lower, _, higher) = world
    caplog.set_level(logging.WARNING)
    visitors = []
    for greeting in (
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01" + os.urandom(200),
        bytes(5000),
        b"\x89atoll",
    ):
        visitor = stranger(members[0])
        visitor.sendall(greeting)
        visitors.append(visitor)
    stranger(members[0]).close()
    higher.open(ConnectionKey(0, 0), soon())
    eventually(lambda: higher.take(ConnectionKey(0, 0)), higher, lower).close()
    eventually(lambda: lower.refused >= 4, lower)
    assert "does not speak Atoll's protocol" in caplog.text
    assert "closed the connection in the middle of the handshake" in caplog.text
    for visitor in visitors[1:4]:
        assert is_closed(visitor)
    for visitor in visitors:
        visitor.close()


def test_slow_lorises_cannot_keep_a_rank_out(world) -> None:
    """They take all slots with a first byte each; the oldest gives way to every newcomer."""
    members, (lower, _, higher) = world
    slots = 4 * 3 + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > 3 * slots, f"this test needs {3 * slots} descriptors, the limit is {soft} of {hard}"
    lorises = []
    for _ in range(slots + 20):
        loris = stranger(members[0])
        loris.send(b"\x89")
        lorises.append(loris)
    eventually(lambda: lower.refused >= 20, lower)
    assert lower._reception is not None
    assert lower._reception.in_progress == slots
    higher.open(ConnectionKey(0, 0), soon())
    eventually(lambda: higher.take(ConnectionKey(0, 0)), higher, lower).close()
    assert lower._reception.in_progress <= slots
    for loris in lorises:
        loris.close()


def test_room_is_made_at_the_cost_of_strangers_first(world) -> None:
    """A rank that has shown the key and is slow to go on keeps its slot, though it came first."""
    members, (lower, _, _) = world
    slow = stranger(members[0])
    handshake = Initiator(KEY, Identity(Purpose.CONTROL, WORLD_ID, 2, 0), b"n" * NONCE_BYTES)
    slow.sendall(handshake.hello())
    assert lower._reception is not None
    eventually(lambda: lower._reception.in_progress == 1, lower)
    lorises = [stranger(members[0]) for _ in range(4 * 3 + 64 + 5)]
    eventually(lambda: lower.refused >= 6, lower)
    challenge = slow.recv(handshake.wanted, socket.MSG_WAITALL)
    slow.sendall(handshake.feed(challenge))
    eventually(lambda: lower.take(ConnectionKey(0, 2, 0, Purpose.CONTROL)), lower).close()
    for sock in (slow, *lorises):
        sock.close()


def test_a_handshake_that_does_not_go_on_ends(world, monkeypatch: pytest.MonkeyPatch) -> None:
    members, (lower, _, _) = world
    monkeypatch.setattr(reception, "HELLO_TIMEOUT_S", 0.05)
    monkeypatch.setattr(reception, "PROOF_TIMEOUT_S", 0.05)
    silent = stranger(members[0])
    halfway = stranger(members[0])
    identity = Identity(Purpose.DATA, WORLD_ID, 2, 0)
    halfway.sendall(Initiator(KEY, identity, b"n" * NONCE_BYTES).hello())
    eventually(lambda: lower.refused == 2, lower)
    for sock in (silent, halfway):
        assert is_closed(sock)
        sock.close()
    assert lower.next_deadline() is None, "nothing to wake up for when nobody is there"


@pytest.mark.parametrize(
    ("key", "change", "words"),
    [
        (b"x" * 32, {}, "another ATOLL_SECRET"),
        (KEY, {"world_id": b"v" * 16}, "world"),
        (KEY, {"src": 0}, "rank"),
        (KEY, {"src": 3}, "rank"),
        (KEY, {"dst": 1}, "rank"),
        (KEY, {"purpose": Purpose.JOIN}, "purpose"),
    ],
)
def test_impostors_are_refused_and_logged(
    world, caplog: pytest.LogCaptureFixture, key: bytes, change: dict, words: str
) -> None:
    members, (lower, _, _) = world
    identity = Identity(Purpose.CONTROL, WORLD_ID, 2, 0)._replace(**change)
    impostor = stranger(members[0])
    impostor.sendall(Initiator(key, identity, b"n" * NONCE_BYTES).hello())
    eventually(lambda: lower.refused == 1, lower)
    assert words in caplog.text
    assert is_closed(impostor)
    impostor.close()


def test_a_second_rank_2_is_refused_and_the_first_keeps_its_connection(world) -> None:
    members, (lower, _, higher) = world
    second = Endpoint(members[2])
    for purpose in (Purpose.CONTROL, Purpose.DATA):
        key = ConnectionKey(0, 0, 0, purpose)
        higher.open(key, soon())
        ours = eventually(lambda key=key: higher.take(key), higher, lower)
        if purpose is Purpose.CONTROL:
            # Handed over already: a link is made once in a world's life.
            eventually(lambda key=key: lower.take(key._replace(peer=2)), lower).close()
        else:
            eventually(lambda key=key: key._replace(peer=2) in lower._ready, lower)
        second.open(key, soon())
        with pytest.raises(PeerLost, match="already has this connection"):
            eventually(lambda key=key: second.take(key), second, lower)
        ours.close()
    second.close()


def test_a_connection_whose_other_end_has_gone_gives_way_to_a_new_one(world) -> None:
    _, (lower, _, higher) = world
    key = ConnectionKey(0, 0)
    higher.open(key, soon())
    eventually(lambda: higher.take(key), higher, lower).close()
    eventually(lambda: key._replace(peer=2) in lower._ready, lower)
    higher.open(key, soon())
    ours = eventually(lambda: higher.take(key), higher, lower)
    theirs = eventually(lambda: lower.take(key._replace(peer=2)), lower)
    ours.send(b"new")
    assert select.select([theirs], [], [], PATIENCE_S)[0]
    assert theirs.recv(10) == b"new"
    ours.close()
    theirs.close()


def test_refusals_are_counted_but_not_logged_without_end(world, caplog: pytest.LogCaptureFixture) -> None:
    members, (lower, _, _) = world
    for _ in range(3 * reception.LOGGED_REFUSALS):
        stranger(members[0]).close()
    eventually(lambda: lower.refused == 3 * reception.LOGGED_REFUSALS, lower)
    assert len(caplog.records) == reception.LOGGED_REFUSALS + 1


def test_a_process_without_descriptors_rests_and_goes_on(world) -> None:
    members, (lower, _, _) = world
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    visitors = [stranger(members[0]) for _ in range(3)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), hard))
    try:
        lower.pump()
        assert lower.refused >= 1
        resting = select.select([lower], [], [], 0)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not resting, "it does not spin while it cannot accept"
    assert lower.next_deadline() is not None
    for visitor in visitors:
        visitor.sendall(b"hello?")
    eventually(lambda: lower.refused >= 4, lower)
    for visitor in visitors:
        assert is_closed(visitor)
        visitor.close()
