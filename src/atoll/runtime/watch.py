"""What ``atoll launch --watch`` knows: each rank says twice a second what it is doing, the launcher keeps the score.

A rank that finds ATOLL_WATCH_FD has inherited a datagram socket from its launcher; its control thread writes there when
it made its calls since the last time (``Status``), one datagram for each communicator. Writing never waits: a launcher
that does not read loses reports, not the job its time. The socket has no name, so nobody else can write to it.

All ranks are on one host, so their clock is one. No socket is opened here, and what is read is bounded and typed.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from atoll.runtime.descriptor import Whole
from atoll.runtime.ledger import CallLedger
from atoll.runtime.messages import Rank, Ranks
from atoll.runtime.stragglers import Lateness, Scoreboard

VARIABLE: Final = "ATOLL_WATCH_FD"
REPORT_EVERY_S: Final = 0.5
# A rank whose control thread lives reports four times in this.
SILENT_S: Final = 2.0
# Arrivals in one datagram: a rank that makes more in half a second is reported on in part.
MAX_ARRIVALS: Final = 1024
MAX_DATAGRAM_BYTES: Final = 1 << 17
# Calls that some rank has not reported, kept for it.
MAX_PENDING: Final = 4096


class Status(msgspec.Struct, frozen=True, array_like=True):
    """What world rank ``rank`` does on one communicator: call ``first`` was made at ``times[0]``. ``doing`` is its
    latest call, ``inside`` whether it is still in it, ``since`` when that began."""

    rank: Rank
    communicator_id: Whole
    ranks: Ranks
    first: Whole
    times: Annotated[tuple[float, ...], msgspec.Meta(max_length=MAX_ARRIVALS)]
    doing: Annotated[str, msgspec.Meta(max_length=1024)]
    inside: bool
    since: float


_DECODER: Final[msgspec.msgpack.Decoder[Status]] = msgspec.msgpack.Decoder(Status)


class Reporter:
    """A rank's side. ``next_at`` is when ``report`` is due."""

    def __init__(self, rank: int, channel: socket.socket) -> None:
        self._rank = rank
        self._channel = channel
        self._told: dict[int, int] = {}  # communicator -> calls told so far
        self.next_at = 0.0

    def report(self, ledgers: Iterable[CallLedger], now: float) -> None:
        """Say what is new on communicators that are in use."""
        if now >= self.next_at:
            self.next_at = now + REPORT_EVERY_S
            for ledger in ledgers:
                self.tell(ledger)

    def tell(self, ledger: CallLedger) -> None:
        """Say what is new on one communicator; nothing of transfers between two ranks, or when it has failed."""
        last = ledger.last
        if last is None or last.collective == "send" or ledger.failure is not None:
            return
        known = self._told.get(ledger.communicator_id, 0)
        first, times = ledger.arrivals(max(known, ledger.entered - MAX_ARRIVALS))
        inside = ledger.is_inside(last.sequence)
        status = Status(
            self._rank, ledger.communicator_id, ledger.ranks, first, tuple(times), last.describe()[:1024], inside,
            ledger.entered_at,
        )  # fmt: skip
        try:
            self._channel.send(msgspec.msgpack.encode(status), socket.MSG_DONTWAIT)
        except OSError:
            return  # the launcher does not keep up, or is gone
        self._told[ledger.communicator_id] = first + len(times)

    def close(self) -> None:
        """Let go of the launcher's socket."""
        self._channel.close()


def reporter_for(rank: int, environ: Mapping[str, str]) -> Reporter | None:
    """The reporter of a rank whose launcher watches; None where none does."""
    text = environ.get(VARIABLE, "")
    if not text.isdigit():
        return None
    try:
        # A copy of its own, which the programs that this one starts do not inherit.
        own = fcntl.fcntl(int(text), fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return None  # closed by something between the launcher and this process
    try:
        return Reporter(rank, socket.socket(fileno=own))
    except OSError:
        os.close(own)
        return None


class Row(NamedTuple):
    """One rank of the table; ``lateness`` is None until all ranks have made a call. ``silent_s``: since its report."""

    rank: int
    world_rank: int
    calls: int
    doing: str
    inside: bool
    for_s: float
    silent_s: float
    lateness: Lateness | None


class _Watched:
    """One communicator."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.board = Scoreboard(len(ranks))
        self.latest: dict[int, tuple[Status, float, int]] = {}  # rank -> what it said, when, calls it has made


class Board:
    """The launcher's side. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}

    def heard(self, datagram: bytes, now: float) -> None:
        """A rank has reported; what is no report is ignored."""
        try:
            status = _DECODER.decode(datagram)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return
        if status.rank not in status.ranks:
            return
        watched = self._watched.setdefault(status.communicator_id, _Watched(status.ranks))
        if watched.ranks != status.ranks:
            return
        rank = status.ranks.index(status.rank)
        watched.latest[rank] = (status, now, status.first + len(status.times))
        for place, at in enumerate(status.times):
            watched.board.arrived(rank, status.first + place, at)
        watched.board.forget_before(max(calls for _, _, calls in watched.latest.values()) - MAX_PENDING)

    def rows(self, now: float) -> list[Row]:
        """The ranks of the communicator that most is going on in; the latest to come first."""
        in_use = [
            watched
            for watched in self._watched.values()
            if any(now - heard_at < SILENT_S for _, heard_at, _ in watched.latest.values())
        ]
        if not in_use:
            in_use = list(self._watched.values())
        if not in_use:
            return []
        # Of equally large ones the newest: it has followed on the others.
        watched = max(enumerate(in_use), key=lambda item: (len(item[1].ranks), item[0]))[1]
        scores = {row.rank: row for row in watched.board.table([""] * len(watched.ranks)) if row.calls}
        rows = []
        for rank, (status, heard_at, calls) in watched.latest.items():
            for_s = max(0.0, heard_at - status.since)
            rows.append(
                Row(rank, status.rank, calls, status.doing, status.inside, for_s, now - heard_at, scores.get(rank))
            )
        return sorted(rows, key=lambda row: (-(row.lateness.score_s if row.lateness else 0.0), row.rank))
