"""How long the ranks that somebody waits for have been silent; no clock, no socket.

A healthy world sends no heartbeats. A rank that waits (for bytes, for a vote) **watches** those it waits for: it asks
them every ``beat``, an eighth of the timeout, and their control threads answer. A thread answers also while the
program computes; it cannot while its process is stopped, while something holds the interpreter's lock, or while
nothing gets through to it.

Silence is measured in **attended time**: the observer's own clock, which advances by at most one and a half beats
between two looks. An observer that was itself stopped, or did not get a processor, saw nothing in that time, so it
holds nothing against anyone. A peer is **late** after a quarter of the timeout, **silent** after all of it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from math import inf
from typing import Final, NamedTuple

BEATS: Final = 8
LATE_BEATS: Final = 2
# What a look may be behind without being taken for an absence: a timer that is late by half a beat.
_ATTENTIVE: Final = 1.5


class Beats(NamedTuple):
    """What a look came to: whom to ask now, and who has become late."""

    ask: list[int]
    late: list[int]


class Heartbeat:
    """The silences that one rank observes. Peers are world ranks; times are seconds of one monotonic clock.

    ``timeout_s`` is the silence after which a peer counts as silent; infinite: nobody is ever watched.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.beat_s = timeout_s / BEATS
        self.attended_s = 0.0
        self._looked_at: float | None = None
        self._next_beat: float | None = None
        self._silent_since: dict[int, float] = {}  # watched peer -> attended time when last heard
        self._late: set[int] = set()

    @property
    def watched(self) -> frozenset[int]:
        """Who is watched."""
        return frozenset(self._silent_since)

    def watch(self, peers: Iterable[int], now: float, doubted: Container[int] = ()) -> list[int]:
        """Watch exactly ``peers`` from now on; those that are new, to be asked at once.

        Another rank has found ``doubted`` late already, which is as much of their silence as lateness takes.
        """
        wanted = set(peers) if self.timeout_s != inf else set()
        for peer in self._silent_since.keys() - wanted:
            del self._silent_since[peer]
            self._late.discard(peer)
        self._attend(now)
        new = sorted(wanted - self._silent_since.keys())
        for peer in new:
            self._silent_since[peer] = self.attended_s - (LATE_BEATS * self.beat_s if peer in doubted else 0.0)
        if not self._silent_since:
            self._looked_at = self._next_beat = None
        elif self._next_beat is None:
            self._next_beat = now + self.beat_s
        return new

    def heard(self, peer: int, now: float) -> bool:
        """Something came from ``peer``. Whether it had been late."""
        if peer in self._silent_since:
            self._attend(now)
            self._silent_since[peer] = self.attended_s
        was_late = peer in self._late
        self._late.discard(peer)
        return was_late

    def silence_s(self, peer: int) -> float:
        """For how long ``peer`` has not been heard, in attended time."""
        since = self._silent_since.get(peer)
        return 0.0 if since is None else self.attended_s - since

    def is_late(self, peer: int) -> bool:
        """Whether ``peer`` is watched and has not been heard for a while."""
        return peer in self._late

    def silent(self) -> list[int]:
        """Those that have not been heard for the whole timeout."""
        return sorted(peer for peer in self._silent_since if self.silence_s(peer) >= self.timeout_s)

    def undecided(self) -> list[int]:
        """Those that are late but not yet silent."""
        return sorted(peer for peer in self._late if self.silence_s(peer) < self.timeout_s)

    def next_deadline(self) -> float | None:
        """When to look again; None while nobody is watched."""
        return self._next_beat

    def look(self, now: float) -> Beats:
        """Time has passed, and all that has come was ``heard``."""
        if self._next_beat is None or now < self._next_beat:
            return Beats([], [])
        self._attend(now)
        self._next_beat = now + self.beat_s
        late = sorted(
            peer
            for peer in self._silent_since
            if peer not in self._late and self.silence_s(peer) >= LATE_BEATS * self.beat_s
        )
        self._late.update(late)
        return Beats(sorted(self._silent_since), late)

    def _attend(self, now: float) -> None:
        if self._looked_at is not None:
            self.attended_s += min(max(0.0, now - self._looked_at), _ATTENTIVE * self.beat_s)
        self._looked_at = now
