"""Chaos: faults one after the other in a job at work, and whether it did what it promises after each.

The observer (``Chaos``) keeps a world of N ranks and N spares (``chaos_world``). For each fault of the plan
(``chaos_plan``) it waits for some results, breaks the victims, and watches: every survivor must raise an error that
names victims and nobody else, all must go on together in a new communicator, and a victim that was stopped must find
out that it was given up before it hands out another result. Spares take the places of the lost, until there are none;
then the job shrinks, and at two ranks, or after anything that went wrong, a new world is started.

What nobody caused counts against it too: an error while nothing is broken, or while a healthy rank is merely slow.
"""

from __future__ import annotations

import math
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from atoll.resilience.chaos_network import Cables
from atoll.resilience.chaos_plan import SILENT, Fault, Kind, Outcome, Second, draw_fault
from atoll.resilience.chaos_rank import RankSettings, main
from atoll.resilience.chaos_world import ChaosWorld, Event

JOIN_LIMIT_S: Final = 60.0


class ChaosSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to do. ``hang_s``: a job that has not gone on by then hangs."""

    world_size: int
    spares: int
    seed: int
    kinds: tuple[Kind, ...]
    heartbeat_s: float
    timeout_s: float
    hang_s: float
    log: Path | None = None


class _Broken(Exception):
    """The world is of no more use; the message says why."""


class Chaos:
    """Runs faults; ``cables`` where partitions are among them."""

    def __init__(self, settings: ChaosSettings, cables: Cables | None) -> None:
        self.settings = settings
        self.results = 0
        self.delays = 0
        self.worlds = 0
        self.wrong: list[str] = []
        self.unprovoked: list[str] = []
        self._cables = cables
        self._members: list[int] = []
        self._broken: set[int] = set()
        self._cabled = False
        self._transport = ""

    def run(self, until: Callable[[int], bool], first: int = 0) -> Iterator[Outcome]:
        """Outcomes of faults ``first``, ``first + 1``, ... until ``until(number)`` says it is enough."""
        number = first
        while not until(number):
            with self._world(number) as world:
                self.worlds += 1
                try:
                    self._begin(world)
                    while not until(number) and len(self._members) > 2:
                        fault = draw_fault(number, self.settings.seed, self.settings.kinds)
                        if Kind.PARTITION in fault.kinds and not self._cabled:
                            break
                        outcome = self._one(world, fault)
                        number += 1
                        yield outcome
                        if outcome.trouble:
                            break
                except _Broken as broken:
                    self.unprovoked.append(str(broken))
                finally:
                    self.results += int(world.results[:, 0].sum())
                    self.wrong += [f"rank {e.rank}: {e.facts[0]}" for e in world.events if e.what == "wrong"]

    def _world(self, number: int) -> ChaosWorld:
        """The next world: with cables where the fault to come needs them, else by the dice."""
        chance = random.Random(f"world/{self.settings.seed}/{self.worlds}")
        fault = draw_fault(number, self.settings.seed, self.settings.kinds)
        cabled = self._cables is not None and (Kind.PARTITION in fault.kinds or chance.random() < 0.7)
        s = self.settings
        rank = RankSettings(
            chance.getrandbits(32), s.heartbeat_s, s.timeout_s, JOIN_LIMIT_S, chance.choice(("auto", "tcp"))
        )  # fmt: skip
        self._cabled = cabled
        self._transport = "tcp over cables" if cabled else rank.transport
        return ChaosWorld(
            s.world_size,
            s.spares,
            partial(main, rank),
            cables=self._cables if cabled else None,
            log=s.log,
            name=f"world{self.worlds}",
        )

    def _begin(self, world: ChaosWorld) -> None:
        """Wait until all work."""
        self._members, self._broken = list(range(world.world_size)), set()
        until = time.monotonic() + JOIN_LIMIT_S
        while not self._all_on(world, self._members, 0):
            self._expect_peace(world.listen(until))
            if time.monotonic() >= until:
                world.dump_stacks()
                raise _Broken("the world did not begin")

    def _one(self, world: ChaosWorld, fault: Fault) -> Outcome:
        dice = random.Random(fault.dice)
        self._work(world, fault.rounds_before)
        if fault.delay_share:
            self._delay(world, dice.choice(self._members), fault.delay_share * self.settings.heartbeat_s / 2)
        self._peace(world, time.monotonic() + fault.moment_s)
        before = len(world.events)
        members, results = list(self._members), world.results[:, 0].copy()
        kinds = self._possible(world, fault.kinds)
        first = members[0] if fault.at_rank_0 else dice.choice(members)
        victims = [first]
        begun = last = time.monotonic()
        world.break_rank(first, kinds[0])
        others = [rank for rank in members if rank != first]
        second = dice.choice(others)
        if fault.second is Second.TOGETHER:
            victims.append(second)
            world.break_rank(second, kinds[1])
        deadline = begun + self.settings.hang_s
        pending = fault.second is Second.DURING
        second_at = math.inf
        new: list[int] = []
        while time.monotonic() < deadline:
            heard = world.listen(min(deadline, second_at))
            if pending and second_at == math.inf and any(e.what == "error" and e.rank in others for e in heard):
                second_at = time.monotonic() + fault.second_s
            if time.monotonic() >= second_at:
                pending, second_at = False, math.inf
                waiting = [rank for rank in range(world.world_size, world.total) if self._may_be_called(world, rank)]
                second = waiting[0] if fault.spare and waiting else second
                victims.append(second)
                last = time.monotonic()
                world.break_rank(second, kinds[1])
            new = [] if pending else self._gone_on(world, before, set(victims))
            if new or self._nobody_left(world, members, victims):
                break
        recovered = time.monotonic()
        events = world.events[before:]
        trouble, hang = "", False
        if not new:
            trouble = self._trouble(world, events, victims)
            hang = time.monotonic() >= deadline
            world.dump_stacks()
            world.listen(time.monotonic() + 0.5)
        else:
            recovered = max(e.time_s for e in events if e.what == "on" and list(e.facts[1]) == new)
            self._members = new
        late = self._resume(world, victims, results) if new else False
        events = world.events[before:]
        outcome = self._outcome(
            fault, kinds, victims, members, world, events, (begun, last, recovered), trouble, hang=hang, late=late
        )  # fmt: skip
        self._broken.update(victims)
        return outcome

    def _outcome(
        self, fault: Fault, kinds: tuple[Kind, ...], victims: list[int], members: list[int], world: ChaosWorld,
        events: list[Event], times: tuple[float, float, float], trouble: str, *, hang: bool, late: bool,
    ) -> Outcome:  # fmt: skip
        begun, last, recovered = times
        errors = [e for e in events if e.what == "error" and e.rank not in {*victims, *self._broken}]
        right = [e for e in errors if e.facts[1] and set(e.facts[1]) <= set(victims)]
        accused = tuple(
            f"rank {e.rank}: {e.facts[0]} naming {e.facts[1]}: {e.facts[2]}" for e in errors if e not in right
        )
        firsts = {e.rank: e for e in reversed(errors)}
        texts = {(e.facts[0], tuple(e.facts[1]), e.facts[2].split("\n")[0]) for e in firsts.values()}
        known = [e.time_s for e in firsts.values() if e.rank in members]
        return Outcome(
            fault=fault,
            kinds=kinds[: len(victims)],
            victims=tuple(victims),
            was_rank_0=members[0] in victims,
            world_size=len(members),
            transport=self._transport,
            detect_s=max(known) - begun if known else math.nan,
            recover_s=math.nan if trouble else recovered - last,
            named=len(right),
            accused=accused,
            differ=len(victims) == 1 and len(texts) > 1,
            trouble=trouble,
            hang=hang,
            late_result=late,
        )

    # -- while nothing is broken ---------------------------------------------------------------------------------------

    def _work(self, world: ChaosWorld, rounds: int) -> None:
        """Wait until every member has had ``rounds`` more results."""
        goal = world.results[self._members, 0] + rounds
        until = time.monotonic() + self.settings.hang_s
        while (world.results[self._members, 0] < goal).any():
            self._peace(world, time.monotonic() + 0.005)
            if time.monotonic() > until:
                world.dump_stacks()
                world.listen(time.monotonic() + 0.5)
                raise _Broken(f"a hang: results {world.results[self._members, 0].tolist()}")

    def _delay(self, world: ChaosWorld, rank: int, seconds: float) -> None:
        """Stop a healthy rank for a while; nobody may be accused."""
        self.delays += 1
        world.signal(rank, signal.SIGSTOP)
        try:
            self._peace(world, time.monotonic() + seconds)
        finally:
            world.signal(rank, signal.SIGCONT)
        self._work(world, 1)

    def _peace(self, world: ChaosWorld, until: float) -> None:
        while time.monotonic() < until:
            self._expect_peace(world.listen(until))

    def _expect_peace(self, heard: list[Event]) -> None:
        for event in heard:
            # Those that were cut off find it out in their own time.
            if event.rank not in self._broken and event.what in ("error", "end", "gone"):
                raise _Broken(f"rank {event.rank}: {event.what} {' '.join(map(str, event.facts))}")

    # -- after a fault -------------------------------------------------------------------------------------------------

    def _all_on(self, world: ChaosWorld, members: list[int], since: int) -> bool:
        """Whether each of ``members`` has said that it works in a communicator of exactly these."""
        return set(members) <= {
            e.rank for e in world.events[since:] if e.what == "on" and list(e.facts[1]) == members
        }  # fmt: skip

    def _gone_on(self, world: ChaosWorld, since: int, victims: set[int]) -> list[int]:
        """The members of a new communicator without victims in which all work; empty when there is none."""
        for event in reversed(world.events[since:]):
            if event.what == "on" and event.rank not in victims:
                members = list(event.facts[1])
                if not victims.intersection(members) and self._all_on(world, members, since):
                    return members
        return []

    def _possible(self, world: ChaosWorld, kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
        """The kinds of a fault, the second made a death where two silent ones would leave no majority to go on."""
        waiting = sum(self._may_be_called(world, rank) for rank in range(world.world_size, world.total))
        if len(kinds) == 2 and len(self._members) + waiting <= 4 and SILENT.intersection(kinds):
            return (Kind.KILL, Kind.KILL)
        return kinds

    def _may_be_called(self, world: ChaosWorld, rank: int) -> bool:
        """Whether the rank is a spare that still waits."""
        return world.is_alive(rank) and not any(e.rank == rank and e.what in ("on", "error") for e in world.events)

    @staticmethod
    def _nobody_left(world: ChaosWorld, members: list[int], victims: list[int]) -> bool:
        return all(not world.is_alive(rank) for rank in members if rank not in victims)

    def _trouble(self, world: ChaosWorld, events: list[Event], victims: list[int]) -> str:
        """What the survivors have said instead of going on."""
        said = [
            f"rank {e.rank} {e.what}: {' '.join(map(str, e.facts))}"
            for e in events
            if e.rank not in {*victims, *self._broken} and e.what != "on"
        ]
        alive = [rank for rank in range(world.total) if world.is_alive(rank)]
        return f"not gone on; alive: {alive}; " + " | ".join(said[-6:] or ["nothing was said"])

    def _resume(self, world: ChaosWorld, victims: list[int], before: object) -> bool:
        """Let stopped victims run again and see that they end; whether one handed out a result after that."""
        late = False
        for rank in [rank for rank in victims if rank in world.stopped]:
            had = int(world.results[rank, 0])
            world.resume(rank)
            until = time.monotonic() + self.settings.hang_s
            while world.is_alive(rank) and time.monotonic() < until:
                world.listen(until)
            # One result may have been handed out, and not yet been counted, when it was stopped.
            late = late or int(world.results[rank, 0]) > had + 1 or world.is_alive(rank)
        return late
