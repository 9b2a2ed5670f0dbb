"""A job at work whose listeners are attacked: nothing gets in, all of it is logged, and every result is right."""

import contextlib
import logging
import os
import random
import select
import socket
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memberships import KEY, PATIENCE_S, WORLD_ID, eventually, memberships, stranger
from ranks import run_ranks

from atoll.runtime.communicator import Communicator
from atoll.runtime.endpoint import ConnectionKey, Endpoint
from atoll.runtime.handshake import CHALLENGE_BYTES, HELLO_BYTES, NONCE_BYTES, Identity, Initiator, Purpose
from atoll.runtime.membership import Membership


def visit(address: str, port: int, *data: bytes, read: int = 0) -> bytes:
    """Connect, say ``data`` piece by piece, read at most ``read`` bytes, and hang up."""
    with socket.create_connection((address, port), timeout=PATIENCE_S) as sock, contextlib.suppress(ConnectionError):
        for piece in data:
            sock.sendall(piece)
        return sock.recv(read, socket.MSG_WAITALL) if read else b""
    return b""


def attack(membership: Membership, chance: random.Random) -> int:
    """Everything that an outsider, or who has recorded a rank, can do to every rank; how many refusals it costs."""
    tries = 0
    for peer in membership.peers:
        where = (peer.address, peer.port)
        others = [rank for rank in range(membership.world_size) if rank != peer.rank]
        identity = Identity(Purpose.CONTROL, membership.world_id, others[-1], peer.rank)
        recorded = Initiator(membership.key, identity, chance.randbytes(NONCE_BYTES)).hello()
        wrong = Initiator(chance.randbytes(32), identity, chance.randbytes(NONCE_BYTES)).hello()
        elsewhere = Initiator(
            membership.key, identity._replace(world_id=chance.randbytes(16)), chance.randbytes(NONCE_BYTES)
        ).hello()
        visits = [
            [],  # a port scan
            [chance.randbytes(chance.randrange(1, 5000))],
            [b"GET / HTTP/1.1\r\n\r\n"],
            [b"\xff\xff\xff\xff" + bytes(4096)],  # as a frame it would be too long
            [wrong],
            [elsewhere],
            [recorded[: chance.randrange(1, len(recorded))]],  # cut off in the middle
            [*(bytes((byte,)) for byte in recorded[:20])],  # a slow one that gives up
            [recorded],  # a recording of a rank that is there already: a second rank
        ]
        # For a connection that would be welcome: it does well until it must prove that it is no recording.
        welcome = identity._replace(purpose=Purpose.DATA, src=max(others), communicator_id=99)
        replayed = Initiator(membership.key, welcome, b"n" * NONCE_BYTES)
        visits += [[replayed.hello(), os.urandom(16)]] * (max(others) > peer.rank)
        for data in visits:
            visit(*where, *data)
        tries += len(visits)
    return tries


def work_under_attack(communicator: Communicator, rounds: int) -> tuple[int, bool, int, str]:
    """Collectives while rank 1 attacks everyone: tries, whether all was right, refusals here, and what was logged."""
    process = communicator._caller.process
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("atoll").addHandler(handler)
    tries, right = 0, True
    size, world, chance = 100_000, communicator.world_size, random.Random(17)
    for _ in range(rounds):
        mine = np.arange(size) * (communicator.rank + 1)
        moving = communicator.all_reduce(mine, algorithm="ring", async_op=True)
        if communicator.rank == 1:
            tries += attack(process.membership, chance)
        right = right and np.array_equal(moving.wait(), np.arange(size) * (world * (world + 1) // 2))
    # A part of its own, so that connections have to be made after and among all that.
    half = communicator.split(communicator.rank % 2)
    assert half is not None
    right = right and half.all_reduce(np.ones(3)).tolist() == [half.world_size] * 3
    communicator.barrier()
    until = time.monotonic() + PATIENCE_S
    while process.endpoint.refused < rounds * 9 - 1 and time.monotonic() < until:
        time.sleep(0.01)  # the last visitors are still being shown out
    communicator.barrier()
    return tries, right, process.endpoint.refused, "\n".join(records)


def test_a_job_goes_on_under_attack_and_logs_it() -> None:
    rounds = 2
    outcomes = run_ranks(3, work_under_attack, rounds)
    tries = outcomes[1][0]
    assert tries >= rounds * 3 * 9
    assert all(right for _, right, _, _ in outcomes)
    for _, _, refused, log in outcomes:
        assert refused >= rounds * 9 - 1, "every visit is a refusal"
        assert "does not speak Atoll's protocol" in log
        assert "another ATOLL_SECRET" in log
        assert "in the middle of the handshake" in log
        assert "(world)" in log
        assert "(duplicate)" in log or "(rank)" in log
    assert "cannot prove that its hello is not a recording" in outcomes[0][3]


@pytest.fixture(scope="module")
def door():
    """A rank's open listener, for many strangers."""
    members = memberships(2)
    endpoint = Endpoint(members[0])
    yield members, endpoint
    endpoint.close()
    members[1].listener.close()


hello = Initiator(KEY, Identity(Purpose.DATA, WORLD_ID, 1, 0, 7, 3), b"n" * NONCE_BYTES).hello()
mutations = st.one_of(
    st.binary(max_size=300),
    st.integers(0, HELLO_BYTES).map(lambda cut: hello[:cut]),
    st.tuples(st.integers(0, 8 * HELLO_BYTES - 1), st.binary(max_size=40)).map(
        lambda change: (
            bytes(byte ^ (1 << change[0] % 8 if place == change[0] // 8 else 0) for place, byte in enumerate(hello))
            + change[1]
        )
    ),
    st.binary(min_size=16, max_size=64).map(lambda proof: hello + proof),
    st.lists(st.sampled_from([hello[:8], hello[8:40], hello[40:], b"\0", b"\x89"]), max_size=6).map(b"".join),
)


@given(mutations.filter(lambda data: data != hello), st.integers(1, 400), st.booleans())
@settings(max_examples=60)
def test_no_bytes_get_through_the_door(door, data: bytes, portion: int, hangs_up: bool) -> None:
    """Any bytes, in any portions: they end in a refusal, never in a connection, and never in an exception."""
    members, endpoint = door
    before = endpoint.refused
    sock = stranger(members[0])
    with contextlib.suppress(ConnectionError, BrokenPipeError):
        for start in range(0, len(data), portion):
            sock.send(data[start : start + portion])
            endpoint.pump()
    if hangs_up or len(data) < HELLO_BYTES or data[:HELLO_BYTES] == hello:
        sock.close()
    eventually(lambda: endpoint.refused > before, endpoint)
    sock.close()
    assert endpoint._reception is not None
    assert endpoint._reception.in_progress == 0
    for key in (ConnectionKey(7, 1, 3), ConnectionKey(0, 1, 0, Purpose.CONTROL)):
        assert endpoint.take(key) is None


def test_one_that_does_not_read_its_answer_costs_nothing(door) -> None:
    """It sends a valid hello and then neither reads nor goes: others are served meanwhile."""
    members, endpoint = door
    mute = stranger(members[0])
    mute.sendall(hello)
    other = stranger(members[0])
    handshake = Initiator(KEY, Identity(Purpose.CONTROL, WORLD_ID, 1, 0), b"m" * NONCE_BYTES)
    other.sendall(handshake.hello())
    eventually(lambda: select.select([other], [], [], 0)[0], endpoint)
    other.sendall(handshake.feed(other.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)))
    eventually(lambda: endpoint.take(ConnectionKey(0, 1, 0, Purpose.CONTROL)), endpoint).close()
    mute.close()
    other.close()
