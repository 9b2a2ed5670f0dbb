"""The handshake: both sides prove the secret, and nobody else gets past it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.runtime.handshake import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    MAGIC,
    PROOF_BYTES,
    Acceptor,
    HandshakeRefused,
    Identity,
    Initiator,
    Purpose,
    Refusal,
)
from atoll.runtime.wire import WireError

KEY = b"k" * 32
IDENTITY = Identity(Purpose.DATA, b"w" * 16, 3, 1, 2**63 + 5, 7)


def accept_all(_: Identity) -> Refusal:
    return Refusal.NONE


def pair(key: bytes = KEY, other: bytes = KEY, admit=accept_all) -> tuple[Initiator, Acceptor]:
    return Initiator(key, IDENTITY, b"i" * 16), Acceptor(other, b"a" * 16, admit)


def feed_in_portions(side: Initiator | Acceptor, data: bytes, portion: int) -> bytes:
    """As a socket would: never more than is wanted, in portions."""
    answer = b""
    while data:
        size = min(portion, side.wanted)
        if size == 0:
            raise AssertionError(f"{len(data)} bytes are left that nobody wants")
        answer += side.feed(data[:size])
        data = data[size:]
    return answer


@given(st.integers(1, 100), st.sampled_from(Purpose), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_both_sides_end_with_the_same_identity_and_keys(
    portion: int, purpose: Purpose, src: int, communicator: int
) -> None:
    identity = IDENTITY._replace(purpose=purpose, src=src, communicator_id=communicator)
    initiator, acceptor = Initiator(KEY, identity, b"i" * 16), Acceptor(KEY, b"a" * 16, accept_all)
    challenge = feed_in_portions(acceptor, initiator.hello(), portion)
    assert not acceptor.done
    assert acceptor.said_hello
    proof = feed_in_portions(initiator, challenge, portion)
    assert initiator.done, "one round trip is enough for the initiator"
    assert feed_in_portions(acceptor, proof, portion) == b""
    assert acceptor.done
    assert acceptor.identity == identity
    assert initiator.keys is not None
    assert acceptor.keys is not None
    assert (initiator.keys.send, initiator.keys.receive) == (acceptor.keys.receive, acceptor.keys.send)
    assert initiator.keys.send != initiator.keys.receive
    assert (len(initiator.hello()), len(challenge), len(proof)) == (HELLO_BYTES, CHALLENGE_BYTES, PROOF_BYTES)
    assert initiator.wanted == acceptor.wanted == 0, "what follows the handshake is left in the socket"


def test_a_wrong_secret_is_found_by_either_side() -> None:
    initiator, acceptor = pair(b"other" * 7)
    answer = acceptor.feed(initiator.hello())
    assert acceptor.refused == "it has another ATOLL_SECRET"
    with pytest.raises(HandshakeRefused, match="another ATOLL_SECRET") as refused:
        initiator.feed(answer)
    assert refused.value.refusal is Refusal.SECRET
    # An impostor that skips its own check and answers at random does not get our proof.
    initiator, _ = pair()
    with pytest.raises(HandshakeRefused, match="does not know our ATOLL_SECRET"):
        initiator.feed(bytes(CHALLENGE_BYTES))


@given(st.integers(0, 8 * HELLO_BYTES - 1))
def test_no_bit_of_the_hello_can_be_altered(bit: int) -> None:
    initiator, acceptor = pair()
    hello = bytearray(initiator.hello())
    hello[bit // 8] ^= 1 << bit % 8
    acceptor.feed(bytes(hello))
    assert acceptor.refused
    assert acceptor.wanted == 0
    assert not acceptor.said_hello


@given(st.integers(0, 8 * CHALLENGE_BYTES - 1))
def test_no_bit_of_the_challenge_can_be_altered(bit: int) -> None:
    initiator, acceptor = pair()
    challenge = bytearray(acceptor.feed(initiator.hello()))
    challenge[bit // 8] ^= 1 << bit % 8
    with pytest.raises(HandshakeRefused):
        initiator.feed(bytes(challenge))
    assert not initiator.done


@given(st.integers(0, 8 * PROOF_BYTES - 1))
def test_no_bit_of_the_proof_can_be_altered(bit: int) -> None:
    initiator, acceptor = pair()
    proof = bytearray(initiator.feed(acceptor.feed(initiator.hello())))
    proof[bit // 8] ^= 1 << bit % 8
    acceptor.feed(bytes(proof))
    assert not acceptor.done
    assert "prove" in acceptor.refused


def test_a_recording_of_the_initiator_is_useless() -> None:
    initiator, acceptor = pair()
    hello = initiator.hello()
    proof = initiator.feed(acceptor.feed(hello))
    replayed = Acceptor(KEY, b"b" * 16, accept_all)  # another connection, another nonce
    replayed.feed(hello)
    replayed.feed(proof)
    assert not replayed.done
    assert replayed.refused


def test_a_recording_of_the_acceptor_is_useless() -> None:
    initiator, acceptor = pair()
    challenge = acceptor.feed(initiator.hello())
    later = Initiator(KEY, IDENTITY, b"j" * 16)
    with pytest.raises(HandshakeRefused):
        later.feed(challenge)


def test_a_reflected_hello_is_useless() -> None:
    """What one side says is never an answer to itself."""
    initiator, _ = pair()
    with pytest.raises(WireError):
        initiator.feed(initiator.hello()[:CHALLENGE_BYTES])


def test_admission_is_asked_only_about_identities_that_are_proven_to_know_the_key() -> None:
    asked: list[Identity] = []

    def admit(identity: Identity) -> Refusal:
        asked.append(identity)
        return Refusal.RANK

    initiator, acceptor = pair(admit=admit)
    answer = acceptor.feed(initiator.hello())
    assert asked == [IDENTITY]
    assert "from rank 3 to rank 1" in acceptor.refused
    with pytest.raises(HandshakeRefused, match="not the rank") as refused:
        initiator.feed(answer)
    assert refused.value.refusal is Refusal.RANK
    stranger = Initiator(b"x", IDENTITY, b"i" * 16)
    _, acceptor = pair(admit=admit)
    acceptor.feed(stranger.hello())
    assert asked == [IDENTITY]


def test_another_version_is_told_so() -> None:
    initiator, acceptor = pair()
    hello = bytearray(initiator.hello())
    hello[len(MAGIC) : len(MAGIC) + 2] = (99).to_bytes(2, "big")
    answer = acceptor.feed(bytes(hello[: len(MAGIC) + 2]))
    assert "version 99" in acceptor.refused
    with pytest.raises(HandshakeRefused, match="another version"):
        initiator.feed(answer)


@given(st.binary(min_size=1, max_size=300))
def test_garbage_is_refused_as_soon_as_it_differs(garbage: bytes) -> None:
    _, acceptor = pair()
    for position in range(len(garbage)):
        if acceptor.refused:
            break
        if acceptor.wanted == 0:
            raise AssertionError("garbage was accepted")
        acceptor.feed(garbage[position : position + 1])
    if not acceptor.refused:
        assert garbage[: len(MAGIC)] == MAGIC[: len(garbage)]


def test_more_than_wanted_is_refused() -> None:
    initiator, acceptor = pair()
    with pytest.raises(WireError):
        acceptor.feed(initiator.hello() + b"x")
    with pytest.raises(WireError):
        initiator.feed(bytes(CHALLENGE_BYTES + 1))
