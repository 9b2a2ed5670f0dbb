"""What ranks say to each other outside of collectives: the messages of joining and of control connections.

Each connection speaks one tagged union (``JoinMessage`` or ``ControlMessage``); every field has a type and every text
and list a bound. A new kind of message is one more class in a union.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

import msgspec

from atoll.runtime.descriptor import CallDescriptor, Whole
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
    """All have come. ``key`` is empty where it follows from ATOLL_SECRET and the world id; ``tuning`` is packed."""

    world_id: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    key: Annotated[bytes, msgspec.Meta(max_length=32)]
    peers: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=65536)]
    tuning: Annotated[bytes, msgspec.Meta(max_length=65536)] = b""


class Refused(msgspec.Struct, tag="refused", frozen=True, array_like=True):
    """The rank is not let in, or the world does not form; ``missing`` are ranks that never came, where that is why."""

    reason: Prose
    missing: Ranks = ()


JoinMessage = Arrive | Welcome | Refused
JOIN_DECODER: Final[msgspec.msgpack.Decoder[JoinMessage]] = msgspec.msgpack.Decoder(JoinMessage)


class Linked(msgspec.Struct, tag="linked", frozen=True, array_like=True):
    """The sender has its links to all other ranks."""


class Standing(IntEnum):
    """Where a rank stands towards one call of a communicator."""

    NOT_YET = 0
    INSIDE = 1
    LEFT = 2
    FORGOTTEN = 3  # made so long ago that its history no longer has it


class Asks(IntEnum):
    """What a report wants from those who get it."""

    NOTHING = 0
    ONCE = 1  # their own report on that call, to all, if they have not given it
    NOW = 2  # where they stand at this moment, to the sender


class Report(msgspec.Struct, tag="report", frozen=True, array_like=True):
    """Where the sender stands towards call ``sequence``: ``call`` is what it called there, if it has.

    ``last`` is its latest call and ``idle_s`` how long ago that began; ``waits_on`` the world ranks whose bytes it
    awaits and ``progress`` how far it is, in words, where it is inside.
    """

    communicator_id: Whole
    sequence: Whole
    standing: Standing
    call: CallDescriptor | None = None
    last: CallDescriptor | None = None
    idle_s: float = 0.0
    waits_on: Ranks = ()
    progress: Prose = ""
    asks: Asks = Asks.NOTHING


class Kind(IntEnum):
    """Which error a verdict is."""

    MISMATCH = 0
    LOST = 1
    TIMEOUT = 2


class Verdict(msgspec.Struct, tag="verdict", frozen=True, array_like=True):
    """What has ended a communicator; the same on all its ranks. ``culprits`` are world ranks."""

    communicator_id: Whole
    kind: Kind
    message: Prose
    culprits: Ranks = ()
    story: Lines = ()


class Beat(msgspec.Struct, tag="beat", frozen=True, array_like=True):
    """A sign of life; ``asks`` for one in return."""

    asks: bool


class Doubt(msgspec.Struct, tag="doubt", frozen=True, array_like=True):
    """The sender has waited for a sign of life of ``ranks`` for a while: let everyone ask them."""

    ranks: Ranks


class Accuse(msgspec.Struct, tag="accuse", frozen=True, array_like=True):
    """``ranks`` are all that give the sender no sign of life; this replaces what it has said before."""

    ranks: Ranks


class GaveUp(msgspec.Struct, tag="gave-up", frozen=True, array_like=True):
    """``ranks`` do not belong to the world any more, though nobody saw them end."""

    ranks: Ranks
    reason: Prose


class Ballot(msgspec.Struct, frozen=True, array_like=True):
    """What a rank brings to an agreement, and what is agreed: ``value`` bit by bit where all have it; ``lost`` are the
    world ranks that anyone knows to be gone, ``taken`` the spares that anyone knows to be in use."""

    value: int = -1
    lost: Ranks = ()
    taken: Ranks = ()


class Vote(msgspec.Struct, tag="vote", frozen=True, array_like=True):
    """The sender's ballot in agreement ``number`` of a communicator, for ``coordinator`` to count; ``decision`` where
    an earlier coordinator has counted and told the sender."""

    communicator_id: Whole
    number: Whole
    coordinator: Rank
    ballot: Ballot
    decision: Ballot | None = None


class Decided(msgspec.Struct, tag="decided", frozen=True, array_like=True):
    """The coordinator has counted."""

    communicator_id: Whole
    number: Whole
    decision: Ballot


class Enlist(msgspec.Struct, tag="enlist", frozen=True, array_like=True):
    """To all spares: communicator ``communicator_id`` is to consist of world ranks ``ranks``, in this order. Those who
    find themselves in it and wait take part in its first agreement."""

    communicator_id: Whole
    ranks: Ranks
    generation: Whole


class Draft(msgspec.Struct, tag="draft", frozen=True, array_like=True):
    """Something has ended a communicator: what the sender has found, if it has found it itself, and where it stands.
    World rank ``author`` is to make the verdict of it."""

    communicator_id: Whole
    author: Rank
    report: Report
    verdict: Verdict | None = None


class AskArrivals(msgspec.Struct, tag="ask-arrivals", frozen=True, array_like=True):
    """When did you make your latest ``calls`` calls on a communicator? ``token`` comes back with the answer."""

    communicator_id: Whole
    token: Whole
    calls: Annotated[int, msgspec.Meta(ge=0, le=1024)]


class Arrivals(msgspec.Struct, tag="arrivals", frozen=True, array_like=True):
    """Call ``first`` was made at ``times[0]``, the next one at ``times[1]``; ``now`` is by the same clock."""

    communicator_id: Whole
    token: Whole
    first: Whole
    times: Annotated[tuple[float, ...], msgspec.Meta(max_length=1024)]
    now: float


class Departed(msgspec.Struct, tag="departed", frozen=True, array_like=True):
    """The sender has closed these communicators; each with the number of calls it completed in it."""

    completed: Annotated[dict[Whole, Whole], msgspec.Meta(max_length=65536)]


class Goodbye(msgspec.Struct, tag="goodbye", frozen=True, array_like=True):
    """The sender leaves the world, on purpose; ``lost`` are the ranks whose loss it knows of."""

    completed: Annotated[dict[Whole, Whole], msgspec.Meta(max_length=65536)]
    lost: Ranks = ()


ControlMessage = (
    Linked
    | Report
    | Verdict
    | Departed
    | Goodbye
    | Draft
    | AskArrivals
    | Arrivals
    | Beat
    | Doubt
    | Accuse
    | GaveUp
    | Vote
    | Decided
    | Enlist
)
CONTROL_DECODER: Final[msgspec.msgpack.Decoder[ControlMessage]] = msgspec.msgpack.Decoder(ControlMessage)
