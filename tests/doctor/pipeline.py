"""A simulator of pipeline- and tensor-parallel training that hangs: what every rank has pending when nothing moves.

Each stage has ``tensor`` ranks. A rank runs its list of operations in order: receives from the stage before,
collectives of its stage, sends to the stage after, and back. Sends do not hold up what comes after them; everything
else completes in order, when all who take part are there. ``broken`` maps a rank to the number of operations after
which it stops.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll.readers.flight_recorder import FlightRecorderDump, RecordedCollective, RecordedGroup
from atoll.readers.source import Source


@dataclass(frozen=True)
class Step:
    """``op`` is ``send``, ``recv`` (then ``peer`` says with whom) or a collective of ``group``."""

    op: str
    group: str
    peer: int = -1

    @property
    def is_transfer(self) -> bool:
        return self.peer >= 0


class Pipeline:
    def __init__(self, tensor: int, stages: int, microbatches: int, broken: dict[int, int], ahead: int) -> None:
        self.world, self.broken, self.ahead = tensor * stages, broken, ahead
        self.groups = {f"tp{s}": tuple(range(s * tensor, (s + 1) * tensor)) for s in range(stages)}
        self.groups |= {f"pp{t}": tuple(t + s * tensor for s in range(stages)) for t in range(tensor)}
        self.groups["dp"] = tuple(range(self.world))
        self.programs = {rank: self._program(rank, tensor, stages, microbatches) for rank in range(self.world)}
        self.enqueued = dict.fromkeys(range(self.world), 0)
        self.done: dict[int, set[int]] = {rank: set() for rank in range(self.world)}

    @staticmethod
    def _program(rank: int, tensor: int, stages: int, microbatches: int) -> list[Step]:
        stage, place = divmod(rank, tensor)
        row, column = f"tp{stage}", f"pp{place}"
        steps: list[Step] = []
        for _ in range(microbatches):
            steps += [Step("recv", column, rank - tensor)] if stage else []
            steps += [Step("all_gather", row), Step("reduce_scatter", row)]
            steps += [Step("send", column, rank + tensor)] if stage < stages - 1 else []
        for _ in range(microbatches):
            steps += [Step("recv", column, rank + tensor)] if stage < stages - 1 else []
            steps += [Step("all_gather", row)]
            steps += [Step("send", column, rank - tensor)] if stage else []
        return [*steps, Step("all_reduce", "dp")] * 2

    def run(self) -> None:
        """Until nothing moves."""
        while any(
            [self._enqueue(rank) for rank in range(self.world)] + [self._complete(rank) for rank in range(self.world)]
        ):
            pass

    @property
    def stopped(self) -> set[int]:
        """The broken ranks that got as far as to break."""
        return {rank for rank, at in self.broken.items() if self.enqueued[rank] == at}

    def _enqueue(self, rank: int) -> bool:
        program = self.programs[rank]
        waiting = [i for i in range(self.enqueued[rank]) if i not in self.done[rank] and program[i].op != "send"]
        first = waiting[0] if waiting else self.enqueued[rank]
        limit = min(len(program), self.broken.get(rank, len(program)), first + self.ahead)
        moved = self.enqueued[rank] < limit
        self.enqueued[rank] += moved
        return moved

    def _is_ready(self, rank: int, at: int) -> bool:
        return at < self.enqueued[rank] and all(
            i in self.done[rank] or self.programs[rank][i].op == "send" for i in range(at)
        )

    def _complete(self, rank: int) -> bool:
        moved = False
        for at in range(self.enqueued[rank]):
            step = self.programs[rank][at]
            if at in self.done[rank] or step.op == "send" or not self._is_ready(rank, at):
                continue
            partners = (
                [step.peer] if step.is_transfer else [other for other in self.groups[step.group] if other != rank]
            )
            places = {other: self._partner(other, rank, at) for other in partners}
            if all(place >= 0 for place in places.values()):
                for other, place in ({**places, rank: at}).items():
                    self.done[other].add(place)
                moved = True
        return moved

    def _partner(self, other: int, rank: int, at: int) -> int:
        """The place of ``other``'s side of this operation, if it is ready there; else -1."""
        step = self.programs[rank][at]
        if step.is_transfer:
            number = sum(1 for s in self.programs[rank][:at] if s == step)
            wanted = [i for i, s in enumerate(self.programs[other]) if s.op == "send" and s.peer == rank]
        else:
            number = self._sequence(rank, at) - 1
            wanted = [i for i, s in enumerate(self.programs[other]) if s.group == step.group and not s.is_transfer]
        return wanted[number] if number < len(wanted) and self._is_ready(other, wanted[number]) else -1

    def _sequence(self, rank: int, at: int) -> int:
        """As PyTorch counts: collectives of a group, and apart from them all sends and receives of a group."""
        step = self.programs[rank][at]
        before = self.programs[rank][: at + 1]
        return sum(1 for s in before if s.group == step.group and s.is_transfer == step.is_transfer)

    def dumps(self) -> list[FlightRecorderDump]:
        """What the flight recorders hold: pending entries only, and how far each group's collectives are enqueued."""
        made = []
        for rank, program in self.programs.items():
            entries = []
            for at in range(self.enqueued[rank]):
                step = program[at]
                if at in self.done[rank]:
                    continue
                number = self._sequence(rank, at)
                if step.is_transfer:
                    peer = self.groups[step.group].index(step.peer)
                    entries.append(
                        RecordedCollective(
                            step.group,
                            0,
                            step.op,
                            "scheduled",
                            record_id=at,
                            p2p_sequence=number,
                            is_p2p=True,
                            peer=peer,
                        )
                    )
                else:
                    entries.append(RecordedCollective(step.group, number, step.op, "scheduled", record_id=at))
            enqueued = program[: self.enqueued[rank]]
            groups = tuple(
                RecordedGroup(name, name, members, sum(1 for s in enqueued if s.group == name and not s.is_transfer))
                for name, members in self.groups.items()
                if rank in members
            )
            made.append(FlightRecorderDump(Source(f"dump_{rank}", 0), "2.9", groups, tuple(entries), rank, "file"))
        return made
