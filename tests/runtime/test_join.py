"""Joining over real sockets: ranks meet, in threads of this process; what goes wrong is named on every rank."""

import os
import secrets
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from memberships import PATIENCE_S, is_closed, open_sockets
from ranks import free_port

from atoll.errors import CollectiveTimeout, SpecError
from atoll.runtime import join_server
from atoll.runtime.environment import Placement, Rendezvous, parse_rendezvous
from atoll.runtime.join import join
from atoll.runtime.meeting import connect_to, plain, vet_user
from atoll.runtime.membership import Membership
from atoll.runtime.messages import Arrive, Linked
from atoll.runtime.visit import Visit
from atoll.runtime.wire import FrameWriter

# A deadline that is to pass, though not before those that come have met, on a busy host too.
LATE_S = 2.0


def unix() -> str:
    return f"unix:@atoll-test-{secrets.token_hex(8)}"


def place(
    rank: int, world_size: int, rendezvous: str | Rendezvous, secret: bytes | None = b"secret", **more: str
) -> Placement:
    where = parse_rendezvous(rendezvous) if isinstance(rendezvous, str) else rendezvous
    return Placement(rank, world_size, None, None, "test", where, secret=secret, **more)


def together(*placements: Placement, timeout_s: float = PATIENCE_S) -> list[Future[Membership]]:
    """Join all placements at once, each in its own thread; done when all are."""
    with ThreadPoolExecutor(len(placements)) as pool:
        return [pool.submit(join, placement, timeout_s=timeout_s) for placement in placements]


def close_all(futures: list[Future[Membership]]) -> None:
    for future in futures:
        if future.exception() is None and (listener := future.result().listener) is not None:
            listener.close()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
@pytest.mark.parametrize(
    ("where", "secret", "address"),
    [
        (unix, None, "127.0.0.1"),
        (unix, b"s", "127.0.0.1"),
        (lambda: f"127.0.0.1:{free_port()}", None, "127.0.0.1"),
        (lambda: f"127.0.0.1:{free_port()}", b"s", "127.0.0.1"),
        (lambda: f"localhost:{free_port()}", b"s", None),
        (lambda: f"[::1]:{free_port()}", None, "::1"),
    ],
)
def test_all_learn_the_same_world(
    order: tuple[int, ...], where: Callable[[], str], secret: bytes | None, address: str | None
) -> None:
    before = open_sockets()
    rendezvous = where()
    futures = together(*(place(rank, 4, rendezvous, secret) for rank in order))
    members = sorted((future.result() for future in futures), key=lambda member: member.rank)
    assert [member.rank for member in members] == [0, 1, 2, 3]
    assert len({(member.world_id, member.key, member.peers) for member in members}) == 1
    assert len(members[0].key) == 32
    for member in members:
        assert member.listener is not None
        peer = member.peers[member.rank]
        assert (peer.rank, peer.pid) == (member.rank, os.getpid())
        assert peer.address == (address or member.listener.getsockname()[0])
        assert peer.port == member.listener.getsockname()[1]
        assert member.local_ranks == (0, 1, 2, 3)
        assert repr(member.key) not in repr(member)
    close_all(futures)
    assert open_sockets() == before


def test_each_world_is_its_own() -> None:
    """The same rendezvous again: another world, another key."""
    rendezvous = f"127.0.0.1:{free_port()}"
    worlds = []
    for _ in range(3):
        futures = together(place(0, 2, rendezvous), place(1, 2, rendezvous))
        worlds.append(futures[0].result())
        close_all(futures)
    assert len({world.world_id for world in worlds}) == 3
    assert len({world.key for world in worlds}) == 3


def test_a_host_name_with_a_secret_is_served_on_every_interface() -> None:
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        pytest.skip(f"this host does not know its own name {name!r}")
    futures = together(*(place(rank, 3, f"{name}:{free_port()}") for rank in range(1)), timeout_s=0.05)
    assert "ranks 1-2 of 3 never came" in str(futures[0].exception())
    rendezvous = f"{name}:{free_port()}"
    futures = together(*(place(rank, 3, rendezvous) for rank in range(3)))
    for future in futures:
        listener = future.result().listener
        assert listener is not None
        assert listener.getsockname()[0] in ("0.0.0.0", "::")
        for peer in future.result().peers:
            connect_to((peer.address, peer.port), time.monotonic() + PATIENCE_S).close()
    close_all(futures)


def test_candidate_ports_that_are_taken_are_passed_over() -> None:
    """As derived under torchrun on several hosts: something else holds the first, something mute the second."""
    with socket.create_server(("127.0.0.1", 0)) as closing, socket.create_server(("127.0.0.1", 0)) as third:
        ports = (closing.getsockname()[1], free_port())
        rendezvous = Rendezvous(host="127.0.0.1", ports=ports)
        third.close()
        with ThreadPoolExecutor(4) as pool:
            futures = [
                pool.submit(join, place(rank, 3, rendezvous, job="job 7"), timeout_s=PATIENCE_S) for rank in range(3)
            ]
            closing.settimeout(0.05)
            while not all(future.done() for future in futures):
                try:
                    closing.accept()[0].close()
                except TimeoutError:
                    continue
        assert {future.result().world_id for future in futures} == {futures[0].result().world_id}
        close_all(futures)


# What goes wrong.


def test_ranks_that_never_came_are_named_by_those_that_did() -> None:
    rendezvous = unix()
    futures = together(place(0, 5, rendezvous), place(2, 5, rendezvous), timeout_s=LATE_S)
    for future in futures:
        error = future.exception()
        assert isinstance(error, CollectiveTimeout)
        assert error.culprits == (1, 3, 4)
        assert "ranks 1 and 3-4 of 5 never came to the rendezvous unix:@" in str(error)
        assert "within 2 s" in str(error)


def test_without_rank_0_the_others_say_so() -> None:
    for rendezvous in (unix(), f"127.0.0.1:{free_port()}"):
        error = together(place(1, 2, rendezvous), timeout_s=0.2)[0].exception()
        assert isinstance(error, CollectiveTimeout)
        assert error.culprits == (0,)
        assert "rank 0, which serves the rendezvous" in str(error)
        assert "nobody listens there" in str(error)


def test_a_rank_claimed_twice_is_refused_naming_both_and_the_first_stays() -> None:
    rendezvous = unix()
    futures = together(place(0, 3, rendezvous), place(2, 3, rendezvous), place(2, 3, rendezvous), timeout_s=LATE_S)
    errors = [future.exception() for future in futures]
    assert isinstance(errors[0], CollectiveTimeout)
    assert errors[0].culprits == (1,), "one rank 2 has stayed"
    refused = [error for error in errors[1:] if isinstance(error, SpecError)]
    assert len(refused) == 1
    host = socket.gethostname()
    assert (
        f"rank 2 is claimed twice: by pid {os.getpid()} on {host}, which came first, and by pid {os.getpid()} on {host}"
        in str(refused[0])
    )


@pytest.mark.parametrize("where", [unix, lambda: f"127.0.0.1:{free_port()}"])
def test_a_second_rank_0_is_refused_naming_both(where: Callable[[], str]) -> None:
    rendezvous = where()
    futures = together(place(0, 2, rendezvous), place(0, 2, rendezvous), timeout_s=LATE_S)
    errors = [future.exception() for future in futures]
    refused = [error for error in errors if isinstance(error, SpecError)]
    assert len(refused) == 1
    assert "rank 0 is claimed twice" in str(refused[0])
    assert [error for error in errors if isinstance(error, CollectiveTimeout)]


def test_an_address_held_by_something_else_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        error = together(place(0, 2, f"127.0.0.1:{port}"), timeout_s=0.2)[0].exception()
    assert isinstance(error, SpecError)
    assert "in use by something else" in str(error)


def test_an_address_of_another_host_is_told() -> None:
    error = together(place(0, 2, "127.0.0.1:1", None, listen="localhost"), timeout_s=0.2)[0].exception()
    assert error is None or isinstance(error, SpecError | CollectiveTimeout)
    error = together(place(0, 2, f"127.0.0.1:{free_port()}", listen="192.0.2.1"), timeout_s=0.2)[0].exception()
    assert isinstance(error, SpecError)
    assert "cannot listen at 192.0.2.1 (ATOLL_LISTEN)" in str(error)


def test_ranks_that_disagree_about_the_size_are_told_both() -> None:
    rendezvous = unix()
    futures = together(place(0, 2, rendezvous), place(1, 3, rendezvous), timeout_s=LATE_S)
    error = futures[1].exception()
    assert isinstance(error, SpecError)
    assert "says the world has 3 ranks, rank 0" in str(error)
    assert isinstance(futures[0].exception(), CollectiveTimeout)


def test_a_wrong_secret_is_refused_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    rendezvous = f"127.0.0.1:{free_port()}"
    futures = together(
        place(0, 3, rendezvous, b"right"),
        place(1, 3, rendezvous, b"wrong"),
        place(2, 3, rendezvous, None),
        timeout_s=LATE_S,
    )
    for future in futures[1:]:
        error = future.exception()
        assert isinstance(error, SpecError)
        assert "another ATOLL_SECRET" in str(error)
    assert "rank 0, at the rendezvous, refused a connection from 127.0.0.1" in caplog.text
    error = futures[0].exception()
    assert isinstance(error, CollectiveTimeout)
    assert error.culprits == (1, 2)


@pytest.mark.parametrize(
    ("rendezvous", "listen"),
    [("10.1.2.3:20000", ""), ("some-node:20000", ""), ("0.0.0.0:20000", ""), ("127.0.0.1:20000", "10.1.2.3")],
)
def test_without_a_secret_only_loopback_is_accepted(rendezvous: str, listen: str) -> None:
    for rank in (0, 1):
        with pytest.raises(SpecError, match="ATOLL_SECRET is not set"):
            join(place(rank, 2, rendezvous, None, listen=listen), timeout_s=PATIENCE_S)


def test_a_world_of_one_needs_nobody() -> None:
    member = join(Placement(0, 1, 0, 1, "none", None), timeout_s=0.0)
    assert (member.rank, member.world_size, member.listener, member.local_ranks) == (0, 1, None, (0,))


def test_a_world_without_a_meeting_place_or_too_large_is_refused() -> None:
    with pytest.raises(SpecError, match="ATOLL_RENDEZVOUS"):
        join(Placement(0, 2, None, None, "test", None))
    with pytest.raises(SpecError, match="at most 4096"):
        join(place(0, 4097, unix()))


# Strangers, and ranks that misbehave, while the world forms.


def test_strangers_at_the_rendezvous_do_no_harm() -> None:
    port = free_port()
    rendezvous = f"127.0.0.1:{port}"
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(join, place(0, 3, rendezvous), timeout_s=PATIENCE_S)]
        visitors = []
        for greeting in (b"GET / HTTP/1.1\r\n\r\n", bytes(3000), b"\x89atoll\r\n\0", b""):
            visitors.append(reach(("127.0.0.1", port)))
            visitors[-1].sendall(greeting)
        # One that knows the secret and talks nonsense afterwards, one that announces a frame without end.
        for nonsense in ("message", "frame", "garbage"):
            visit = Visit(place(1, 3, rendezvous), ("127.0.0.1", port), time.monotonic() + PATIENCE_S)
            if nonsense == "message":
                visit.sock.sendall(visit._writer.frame(Linked()))
            elif nonsense == "frame":
                visit.sock.sendall(b"\xff\xff\xff\xff")
            else:
                visit.sock.sendall(FrameWriter(b"x" * 32).frame(b"y"))
            assert is_closed(visit.sock)
            visit.sock.close()
        futures += [pool.submit(join, place(rank, 3, rendezvous), timeout_s=PATIENCE_S) for rank in (1, 2)]
    assert len({future.result().world_id for future in futures}) == 1
    for visitor in visitors:
        visitor.close()
    close_all(futures)


def test_a_rank_that_goes_away_before_the_world_is_complete_may_come_again() -> None:
    port = free_port()
    rendezvous = f"127.0.0.1:{port}"
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(join, place(0, 3, rendezvous), timeout_s=PATIENCE_S)]
        reach(("127.0.0.1", port)).close()
        with Visit(place(1, 3, rendezvous), ("127.0.0.1", port), time.monotonic() + PATIENCE_S) as visit:
            host = join(Placement(0, 1, 0, 1, "none", None)).peers[0].host
            visit.introduce(Arrive(1, 3, host, 1, "", 5))
        futures += [pool.submit(join, place(rank, 3, rendezvous), timeout_s=PATIENCE_S) for rank in (1, 2)]
    assert {future.result().peers[1].pid for future in futures} == {os.getpid()}
    close_all(futures)


def test_a_rank_that_claims_another_than_it_has_shaken_hands_for_is_refused() -> None:
    port = free_port()
    rendezvous = f"127.0.0.1:{port}"
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(join, place(0, 3, rendezvous), timeout_s=LATE_S)
        reach(("127.0.0.1", port)).close()
        with Visit(place(1, 3, rendezvous), ("127.0.0.1", port), time.monotonic() + PATIENCE_S) as visit:
            host = join(Placement(0, 1, 0, 1, "none", None)).peers[0].host
            visit.introduce(Arrive(2, 3, host, 1, "", 5))
            assert "is no rank of a world of 3" in str(visit.answer(time.monotonic() + PATIENCE_S))
    assert isinstance(future.exception(), CollectiveTimeout)


def test_the_kernel_vouches_for_the_user_at_a_unix_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    assert vet_user(ours) == ""
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert "this is user 54321" in vet_user(theirs)
    ours.close()
    theirs.close()


def test_rank_0_lets_no_other_user_in(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(join_server, "vet_user", lambda _: "it belongs to user 7, this is user 8")
    rendezvous = unix()
    futures = together(place(0, 2, rendezvous, None), place(1, 2, rendezvous, None), timeout_s=LATE_S)
    assert all(isinstance(future.exception(), CollectiveTimeout) for future in futures)
    assert "it belongs to user 7" in caplog.text


def test_mapped_addresses_are_made_plain() -> None:
    assert plain("::ffff:10.0.0.1") == "10.0.0.1"
    assert [plain(text) for text in ("::1", "10.0.0.1", "fe80::1%eth0", "x")] == [
        "::1",
        "10.0.0.1",
        "fe80::1%eth0",
        "x",
    ]


def reach(address: tuple[str, int]) -> socket.socket:
    """A connection to rank 0, which may not listen yet."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return connect_to(address, deadline)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
