"""What ranks say to each other outside of collectives: the messages of joining and of control connections.

Each connection speaks one tagged union (``JoinMessage`` or ``ControlMessage``); every field has a type and every text
and list a bound. A new kind of message is one more class in a union.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from atoll.runtime.membership import Host, Peer, Text

Rank = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Ranks = Annotated[tuple[Rank, ...], msgspec.Meta(max_length=65536)]
Prose = Annotated[str, msgspec.Meta(max_length=65536)]
Lines = Annotated[tuple[Prose, ...], msgspec.Meta(max_length=256)]


class Arrive(msgspec.Struct, tag="arrive", frozen=True, array_like=True):
    """A rank introduces itself to rank 0. ``address``: where others reach it; empty: as rank 0, on the same host."""

    rank: Rank
    world_size: Rank
    host: Host
    pid: int
    address: Text
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Welcome(msgspec.Struct, tag="welcome", frozen=True, array_like=True):
    """All have come. ``key`` is empty where it follows from ATOLL_SECRET and the world id."""

    world_id: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    key: Annotated[bytes, msgspec.Meta(max_length=32)]
    peers: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=65536)]


class Refused(msgspec.Struct, tag="refused", frozen=True, array_like=True):
    """The rank is not let in, or the world does not form; ``missing`` are ranks that never came, where that is why."""

    reason: Prose
    missing: Ranks = ()


JoinMessage = Arrive | Welcome | Refused
JOIN_DECODER: Final[msgspec.msgpack.Decoder[JoinMessage]] = msgspec.msgpack.Decoder(JoinMessage)
