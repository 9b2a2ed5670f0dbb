"""Taking turns: contestants that work one after the other, round after round, and the ratios of each round.

A **contestant** is a world and a way to use it: ordinary or shared memory, in place or not. In every **round** each
contestant is timed once, in reverse order every other round; a **ratio** compares two contestants within one round, as
peer over Atoll: above 1, Atoll is faster. What slows the machine down for a while slows both. How many calls make one
turn follows from how long a call takes, for each contestant by itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from peers_world import PeerError, World

MAX_CALLS = 5000
# Above it, arrays are freed between turns: together they would fill the machine.
KEEP_BYTES = 32 << 20


@dataclass(frozen=True)
class Contestant:
    """``side`` names a world; ``shared`` memory is ``comm.empty``."""

    label: str
    side: str
    shared: bool = False
    in_place: bool = False


@dataclass(frozen=True)
class Pair:
    """``atoll`` and ``peer`` are labels of contestants."""

    atoll: str
    peer: str

    @property
    def label(self) -> str:
        return f"{self.atoll}/{self.peer}"


@dataclass
class Row:
    """One collective, world and size: seconds per call by contestant and round; ``failed`` says why one is missing."""

    collective: str
    world_size: int
    size_bytes: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    usage: dict[str, dict[str, float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def ratios(self, pair: Pair) -> list[float]:
        """Peer over Atoll, round by round; empty where one of them is missing."""
        ours, theirs = self.seconds.get(pair.atoll, []), self.seconds.get(pair.peer, [])
        if len(ours) != len(theirs):
            return []
        return [peer / atoll for atoll, peer in zip(ours, theirs, strict=True)]

    def ratio(self, pair: Pair) -> float | None:
        """The median of the pairs' ratios."""
        ratios = self.ratios(pair)
        return statistics.median(ratios) if ratios else None


def measure(
    worlds: dict[str, World],
    contestants: Sequence[Contestant],
    collective: str,
    size_bytes: int,
    rounds: int,
    turn_s: float,
    say: Callable[[str], None] = lambda text: None,
) -> Row:
    """One row. A side that fails is taken out of ``worlds``; a wrong element is a failure."""
    row = Row(collective, next(iter(worlds.values())).world_size, size_bytes)
    calls: dict[str, int] = {}
    for contestant in contestants:
        with _watched(row, worlds, contestant) as world:
            if world is not None:
                say(f"{contestant.label}: checking")
                calls[contestant.label] = _rehearse(world, contestant, row, turn_s)
    for number in range(rounds):
        order = contestants if number % 2 == 0 else list(reversed(contestants))
        for contestant in order:
            with _watched(row, worlds, contestant) as world:
                if world is not None:
                    say(f"{contestant.label}: round {number + 1} of {rounds}")
                    answers = _turn(world, contestant, row, calls[contestant.label])
                    row.seconds.setdefault(contestant.label, []).append(max(answer["seconds"] for answer in answers))
                    row.usage[contestant.label] = {
                        name: statistics.fmean(answer[name] for answer in answers)
                        for name in ("user_s", "system_s", "sleeps")
                    }
    return row


class _watched:  # noqa: N801 - used as a function is
    """Gives the contestant's world, ``None`` where it has failed before; a failure inside is noted, not raised."""

    def __init__(self, row: Row, worlds: dict[str, World], contestant: Contestant) -> None:
        self.row, self.worlds, self.contestant = row, worlds, contestant

    def __enter__(self) -> World | None:
        return None if self.contestant.label in self.row.failed else self.worlds.get(self.contestant.side)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, PeerError):
            return False
        self.row.failed[self.contestant.label] = str(error)
        self.row.seconds.pop(self.contestant.label, None)
        world = self.worlds.pop(self.contestant.side, None)
        if world is not None:
            world.close()
        return True


def _rehearse(world: World, contestant: Contestant, row: Row, turn_s: float) -> int:
    """Check the result of one call and find how many calls make a turn."""
    wrong = sum(answer["wrong"] or 0 for answer in _prepare(world, contestant, row, check=True))
    if wrong:
        raise PeerError(f"{contestant.label}: {wrong} wrong elements")
    calls, seconds = 1, 0.0
    for calls in (1, 4, 32):
        seconds = max(answer["seconds"] for answer in world.tell("time", calls=calls))
        if seconds * calls > turn_s / 4:
            break
    if row.size_bytes > KEEP_BYTES:
        world.tell("release")
    return max(1, min(MAX_CALLS, round(turn_s / seconds))) if seconds > 0 else MAX_CALLS


def _turn(world: World, contestant: Contestant, row: Row, calls: int) -> list[dict[str, Any]]:
    _prepare(world, contestant, row, check=False)
    answers = world.tell("time", calls=calls)
    if row.size_bytes > KEEP_BYTES:
        world.tell("release")
    return answers


def _prepare(world: World, contestant: Contestant, row: Row, check: bool) -> list[dict[str, Any]]:
    return world.tell(
        "prepare", collective=row.collective, size_bytes=row.size_bytes, in_place=contestant.in_place,
        shared=contestant.shared, check=check,
    )  # fmt: skip


def sweep(
    worlds: dict[str, World],
    contestants: Sequence[Contestant],
    cases: Sequence[tuple[str, int]],
    rounds: int,
    turn_s: float,
    say: Callable[[str], None],
) -> Iterator[Row]:
    """A row for every (collective, size), as long as a world is left."""
    for collective, size_bytes in cases:
        if worlds:
            yield measure(worlds, contestants, collective, size_bytes, rounds, turn_s, say)
