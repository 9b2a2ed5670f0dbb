"""Frames: what goes in comes out, and nothing else ever does."""

import hmac
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.messages import (
    CONTROL_DECODER,
    JOIN_DECODER,
    Accuse,
    Arrivals,
    AskArrivals,
    Asks,
    Ballot,
    Beat,
    ControlMessage,
    Decided,
    Departed,
    Doubt,
    Draft,
    Enlist,
    GaveUp,
    Goodbye,
    JoinMessage,
    Kind,
    Linked,
    Report,
    Standing,
    Verdict,
    Vote,
)
from atoll.runtime.wire import LENGTH_BYTES, MAX_BODY_BYTES, TAG_BYTES, FrameReader, FrameWriter, WireError

KEY = bytes(range(32))

whole = st.integers(0, 2**64 - 1)
word = st.text(max_size=64)
ranks = st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple)
calls = st.builds(
    CallDescriptor, whole, whole, word, st.none() | word, st.none() | whole, st.none() | word, st.none() | whole
)
completed = st.dictionaries(whole, whole, max_size=3)
ballots = st.builds(Ballot, st.integers(-(2**63), 2**63 - 1), ranks, ranks)
verdicts = st.builds(
    Verdict, whole, st.sampled_from(Kind), st.text(), ranks, st.lists(st.text(), max_size=3).map(tuple)
)
reports = st.builds(
    Report, whole, whole, st.sampled_from(Standing), st.none() | calls, st.none() | calls,
    st.floats(0, 1e9), ranks, st.text(), st.sampled_from(Asks),
)  # fmt: skip
KINDS: dict[type, st.SearchStrategy[ControlMessage]] = {
    Linked: st.builds(Linked),
    Departed: st.builds(Departed, completed),
    Goodbye: st.builds(Goodbye, completed, ranks),
    Verdict: verdicts,
    Report: reports,
    Draft: st.builds(Draft, whole, st.integers(0, 2**32 - 1), reports, st.none() | verdicts),
    Beat: st.builds(Beat, st.booleans()),
    Doubt: st.builds(Doubt, ranks),
    Accuse: st.builds(Accuse, ranks),
    GaveUp: st.builds(GaveUp, ranks, st.text()),
    Vote: st.builds(Vote, whole, whole, st.integers(0, 2**32 - 1), ballots, st.none() | ballots),
    Decided: st.builds(Decided, whole, whole, ballots),
    Enlist: st.builds(Enlist, whole, ranks, whole),
    AskArrivals: st.builds(AskArrivals, whole, whole, st.integers(0, 1024)),
    Arrivals: st.builds(
        Arrivals, whole, whole, whole, st.lists(st.floats(0, 1e9), max_size=4).map(tuple), st.floats(0, 1e9)
    ),
}
messages = st.one_of(list(KINDS.values()))


def test_every_kind_of_message_is_tried_here() -> None:
    assert set(KINDS) == set(get_args(ControlMessage))


def reader(key: bytes = KEY) -> FrameReader[ControlMessage]:
    return FrameReader(key, CONTROL_DECODER)


def frames(sent: list[ControlMessage], key: bytes = KEY) -> list[bytes]:
    writer = FrameWriter(key)
    return [writer.frame(message) for message in sent]


@given(st.lists(messages, max_size=6), st.data())
def test_messages_survive_any_portioning(sent: list[ControlMessage], data: st.DataObject) -> None:
    stream = b"".join(frames(sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    incoming = reader()
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += incoming.feed(stream[start:end])
    assert received == sent
    assert not incoming.mid_frame


@given(st.lists(messages, min_size=1, max_size=4), st.data())
def test_an_altered_bit_is_refused_and_nothing_after_it_is_taken(
    sent: list[ControlMessage], data: st.DataObject
) -> None:
    parts = frames(sent)
    place = data.draw(st.integers(0, len(parts) - 1))
    bit = data.draw(st.integers(0, 8 * len(parts[place]) - 1))
    altered = bytearray(parts[place])
    altered[bit // 8] ^= 1 << bit % 8
    # As many bytes follow as the alteration may announce, up to the limit.
    announced = min(int.from_bytes(altered[:LENGTH_BYTES], "big"), MAX_BODY_BYTES)
    stream = b"".join(parts[:place]) + bytes(altered) + bytes(announced + 64)
    incoming = reader()
    assert incoming.feed(b"".join(parts[:place])) == sent[:place]
    with pytest.raises(WireError):
        incoming.feed(stream[sum(map(len, parts[:place])) :])
    with pytest.raises(WireError):
        incoming.feed(b"".join(frames(sent)))


@given(st.lists(messages, min_size=2, max_size=5), st.data())
def test_replayed_reordered_and_missing_frames_are_refused(sent: list[ControlMessage], data: st.DataObject) -> None:
    parts = frames(sent)
    first, second = sorted(data.draw(st.lists(st.integers(0, len(parts) - 1), min_size=2, max_size=2, unique=True)))
    replayed = [*parts[: second + 1], parts[first], *parts[second + 1 :]]
    swapped = list(parts)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    without = [*parts[:first], *parts[first + 1 :]]
    for stream in (replayed, swapped, without):
        with pytest.raises(WireError, match="wrong tag"):
            reader().feed(b"".join(stream))


@given(messages, st.binary(min_size=32, max_size=32))
def test_frames_of_another_key_are_refused(message: ControlMessage, key: bytes) -> None:
    if key != KEY:
        with pytest.raises(WireError, match="wrong tag"):
            reader(key).feed(frames([message])[0])


@given(st.binary(max_size=200))
def test_garbage_never_gives_a_message(garbage: bytes) -> None:
    incoming = reader()
    try:
        assert incoming.feed(garbage) == []
    except WireError:
        return
    # Not refused yet: then it waits for the rest of a frame of acceptable length.
    length = int.from_bytes(garbage[:LENGTH_BYTES], "big")
    assert len(garbage) < LENGTH_BYTES or len(garbage) < LENGTH_BYTES + length + TAG_BYTES <= MAX_BODY_BYTES + 64


def test_an_oversize_frame_is_refused_by_its_first_four_bytes() -> None:
    with pytest.raises(WireError, match="limit"):
        reader().feed((MAX_BODY_BYTES + 1).to_bytes(4, "big"))
    assert reader().feed(MAX_BODY_BYTES.to_bytes(4, "big")) == []


def test_an_oversize_message_is_not_sent() -> None:
    with pytest.raises(WireError, match="limit"):
        FrameWriter(KEY).frame(b"x" * MAX_BODY_BYTES)


@given(st.one_of(st.binary(max_size=300), st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
).map(msgspec.msgpack.encode)))  # fmt: skip
def test_a_well_tagged_body_of_any_content_is_a_message_or_refused(body: bytes) -> None:
    """The other end knows the key and sends nonsense: never an exception of another kind."""
    length = len(body).to_bytes(LENGTH_BYTES, "big")
    tag = hmac.digest(KEY, bytes(8) + length + body, "sha256")[:TAG_BYTES]
    try:
        received = reader().feed(length + body + tag)
    except WireError:
        return
    assert len(received) == 1
    assert isinstance(received[0], ControlMessage)


@given(st.sampled_from(["arrive", "welcome", "refused", "x", 3, None]), st.lists(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=9) | st.binary(max_size=17),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
), max_size=7))  # fmt: skip
def test_nonsense_in_the_form_of_an_introduction_is_a_message_or_refused(tag: object, fields: list[object]) -> None:
    body = msgspec.msgpack.encode([tag, *fields])
    length = len(body).to_bytes(LENGTH_BYTES, "big")
    mac = hmac.digest(KEY, bytes(8) + length + body, "sha256")[:TAG_BYTES]
    try:
        (received,) = FrameReader(KEY, JOIN_DECODER).feed(length + body + mac)
    except WireError:
        return
    assert isinstance(received, JoinMessage)


def test_nesting_without_end_is_refused() -> None:
    body = b"\x9f" * 100_000
    length = len(body).to_bytes(LENGTH_BYTES, "big")
    tag = hmac.digest(KEY, bytes(8) + length + body, "sha256")[:TAG_BYTES]
    with pytest.raises(WireError):
        reader().feed(length + body + tag)


def test_bounds_of_fields_hold() -> None:
    for message in (
        Verdict(0, Kind.LOST, "x" * 70_000),
        Report(0, 0, Standing.LEFT, CallDescriptor(0, 0, "x" * 65)),
        Report(-1, 0, Standing.LEFT),
        Goodbye({}, (2**32,)),
    ):
        with pytest.raises(WireError, match="no known message"):
            reader().feed(frames([message])[0])
