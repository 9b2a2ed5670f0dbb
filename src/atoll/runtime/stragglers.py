"""Who arrives late: each rank's lateness per collective, and a running score.

A collective takes as long as its last rank makes it wait, so on every rank but the slow one the *collective* looks
long, and the slow rank's own looks short. What tells them apart is when each **arrives**: a rank's lateness in a call
is its arrival less the median arrival of all ranks. The **score** is the running mean of it, in which a call counts
half as much as one ``HALF_LIFE`` calls later; so one hiccup fades and a steady lag stays. ``share`` is the score
relative to the time from one call to the next, which is what removing the straggler would gain.

Arrivals are read off each rank's ledger, where they are written anyway; nothing is sent until somebody asks. Clocks of
ranks on one host are one. For others the difference is taken from a question and its answer, and is wrong by half of
that round trip at most: lateness below it is not told from zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

# Assumed: long enough to outlast a hiccup, short enough to show a change within a minute of one-second steps.
HALF_LIFE: Final = 16
# Assumed: a rank is slow when the others lose a tenth of their time to it, and more than timers and schedulers do.
SLOW_SHARE: Final = 0.1
SLOW_S: Final = 1e-3


class Lateness(NamedTuple):
    """One rank's. ``score_s`` is negative for a rank that comes early; ``last_s`` is of the latest call alone."""

    rank: int
    host: str
    score_s: float
    last_s: float
    share: float
    calls: int
    slow: bool


class Scoreboard:
    """The running scores of the ranks of one communicator, 0 to ``world_size - 1``."""

    def __init__(self, world_size: int) -> None:
        self._size = world_size
        self._pending: dict[int, dict[int, float]] = {}  # call -> rank -> when it arrived
        self._scores = [0.0] * world_size
        self._last = [0.0] * world_size
        self._interval_s = 0.0
        self._previous: tuple[int, float] | None = None  # call, its median arrival
        self._weight = 0.0
        self.calls = 0

    def arrived(self, rank: int, sequence: int, at: float) -> None:
        """``rank`` made call ``sequence`` at ``at`` seconds of one clock. Calls count once all ranks have made them."""
        arrivals = self._pending.setdefault(sequence, {})
        arrivals[rank] = at
        if len(arrivals) == self._size:
            del self._pending[sequence]
            self._count(sequence, arrivals)

    def forget_before(self, sequence: int) -> None:
        """Calls that some rank will never be heard about."""
        for old in [pending for pending in self._pending if pending < sequence]:
            del self._pending[old]

    def table(self, hosts: Sequence[str]) -> list[Lateness]:
        """All ranks, the latest first."""
        rows = []
        for rank, score_s in enumerate(self._scores):
            share = score_s / self._interval_s if self._interval_s > 0 else 0.0
            slow = score_s >= SLOW_S and share >= SLOW_SHARE
            rows.append(Lateness(rank, hosts[rank], score_s, self._last[rank], share, self.calls, slow))
        return sorted(rows, key=lambda row: (-row.score_s, row.rank))

    def _count(self, sequence: int, arrivals: Mapping[int, float]) -> None:
        middle = median(arrivals.values())
        fade = 0.5 ** (1 / HALF_LIFE)
        # The weights of all calls so far sum to one, so the first ones are no worse a mean than the later.
        self._weight = self._weight * fade + 1.0
        gain = 1.0 / self._weight
        for rank, at in arrivals.items():
            self._last[rank] = at - middle
            self._scores[rank] += gain * (self._last[rank] - self._scores[rank])
        if self._previous is not None and sequence > self._previous[0]:
            interval_s = (middle - self._previous[1]) / (sequence - self._previous[0])
            known = self._interval_s
            self._interval_s = interval_s if known == 0.0 else known + gain * (interval_s - known)
        self._previous = (sequence, middle)
        self.calls += 1


def score(arrivals: Mapping[int, Mapping[int, float]], hosts: Sequence[str]) -> list[Lateness]:
    """The table of what each rank says: ``arrivals[rank][sequence]`` in seconds of one clock."""
    board = Scoreboard(len(hosts))
    common = set.intersection(*(set(made) for made in arrivals.values())) if len(arrivals) == len(hosts) else set()
    for sequence in sorted(common):
        for rank, made in arrivals.items():
            board.arrived(rank, sequence, made[sequence])
    return board.table(hosts)
