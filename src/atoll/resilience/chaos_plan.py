"""What goes wrong when: faults drawn from a seed, and what one of them came to; no process here.

A **fault** breaks one rank of a job at work, sometimes two:

``kill``       SIGKILL: the process is gone
``stop``       SIGSTOP, and SIGCONT once the others have gone on: it must find out that it was given up
``close``      every connection of the process is shut, the process itself goes on
``partition``  its network cable is pulled, silently; with namespaces only

The second victim falls *together* with the first, or *during* the recovery from it: at a moment drawn from the
milliseconds after the first survivor has raised its error, while the others agree, make the new communicator and call
in a spare; it may be that spare. A **delay** is a SIGSTOP of a healthy rank, shorter than half the heartbeat timeout,
and no fault: nobody may be accused of it.

Order and kind of faults follow from the seed; when a moment comes follows from the machine.
"""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Final

import msgspec

from atoll.errors import SpecError, nearest


class Kind(StrEnum):
    """How a rank is broken."""

    KILL = "kill"
    STOP = "stop"
    CLOSE = "close"
    PARTITION = "partition"


SILENT: Final = frozenset({Kind.STOP, Kind.PARTITION})
"""Nobody sees these happen: a strict majority of the living must agree that the victim is gone."""


class Second(StrEnum):
    """When a second rank is broken."""

    NEVER = "never"
    TOGETHER = "together"
    DURING = "during recovery"


RANK_0_SHARE: Final = 0.2
"""Of the faults, these hit rank 0 of the communicator whatever the dice say."""
DOUBLE_SHARE: Final = 0.2
DELAY_SHARE: Final = 0.2


class Fault(msgspec.Struct, frozen=True):
    """One fault: kinds of the first and, where there is one, of the second victim; what else was drawn for it."""

    number: int
    kinds: tuple[Kind, ...]
    second: Second
    at_rank_0: bool
    rounds_before: int
    moment_s: float
    """Between the last of those rounds and the fault."""
    second_s: float
    """Between the first survivor's error and the second fault, where that falls during the recovery."""
    spare: bool
    """Whether the second victim is the spare that is called in, where there is one."""
    delay_share: float
    """Of half the heartbeat timeout that a healthy rank is stopped before; 0: none is."""
    dice: int
    """For what depends on who is there."""


class Outcome(msgspec.Struct, frozen=True):
    """What one fault came to. Ranks are world ranks; times in seconds, ``nan`` where there is none."""

    fault: Fault
    kinds: tuple[Kind, ...]
    """What each victim suffered: as drawn, but for a second silent fault that would leave no majority."""
    victims: tuple[int, ...]
    was_rank_0: bool
    world_size: int
    transport: str
    detect_s: float
    """From the fault until the last survivor had its error, where any had one."""
    recover_s: float
    """From the last fault until the last member had finished a collective in the new communicator."""
    named: int
    """Survivors' errors that named victims and nobody else."""
    accused: tuple[str, ...]
    """Survivors' errors that named a healthy rank, or nobody."""
    differ: bool
    """Whether survivors of a single fault had errors with different culprits or texts."""
    trouble: str
    """Why the job did not go on; empty when it did."""
    hang: bool
    late_result: bool
    """Whether a rank that had been given up handed out a result afterwards."""


def draw_fault(number: int, seed: int, kinds: tuple[Kind, ...]) -> Fault:
    """Fault ``number`` of ``seed``. Kinds take turns, so that each gets its share."""
    chance = random.Random(f"{seed}/{number}")
    first = kinds[number % len(kinds)]
    second = chance.choice((Second.TOGETHER, Second.DURING)) if chance.random() < DOUBLE_SHARE else Second.NEVER
    other = () if second is Second.NEVER else (chance.choice(kinds),)
    return Fault(
        number,
        (first, *other),
        second,
        chance.random() < RANK_0_SHARE,
        chance.randrange(1, 20),
        chance.random() * 0.02,
        chance.random() ** 2 * 0.05,
        chance.random() < 0.3,
        chance.uniform(0.1, 1.0) if chance.random() < DELAY_SHARE else 0.0,
        chance.getrandbits(32),
    )


def parse_kinds(text: str, networks: bool) -> tuple[Kind, ...]:
    """Kinds as the command line has them, ``all`` for those that are possible here."""
    possible = tuple(kind for kind in Kind if networks or kind is not Kind.PARTITION)
    if text == "all":
        return possible
    kinds = []
    for word in text.split(","):
        if word not in list(Kind):
            raise SpecError(f"--kinds: unknown kind of fault {word!r}: {nearest(word, [kind.value for kind in Kind])}")
        kinds.append(Kind(word))
    if Kind.PARTITION in kinds and not networks:
        raise SpecError("--kinds: partition needs network namespaces: expected root and the command ip (iproute2)")
    return tuple(dict.fromkeys(kinds))
