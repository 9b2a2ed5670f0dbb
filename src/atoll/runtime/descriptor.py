"""What one rank called: the facts on which the ranks of a communicator must agree, in words.

Every collective call on a communicator has a sequence number, counted from 0 on each rank. Two ranks that are at the
same sequence number of the same communicator must have called the same thing: the same collective, element type,
count, reduce operation, root and algorithm. ``fingerprint`` condenses those into 64 bits that travel with the data;
``describe`` says them to a person.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated

import msgspec

Word = Annotated[str, msgspec.Meta(max_length=64)]
# MessagePack has no integers from 2^64 up.
Whole = Annotated[int, msgspec.Meta(ge=0)]


class CallDescriptor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One collective call of one rank; ``None`` where the collective has no such argument. ``count`` is in elements."""

    communicator_id: Whole
    sequence: Whole
    collective: Word
    dtype: Word | None = None
    count: Whole | None = None
    op: Word | None = None
    root: Whole | None = None
    algorithm: Word | None = None

    def fingerprint(self) -> int:
        """64 bits over what must agree: everything but communicator and sequence, which travel beside it.

        The same on every machine and in every process (it is no ``hash()``).
        """
        return _fingerprint(self.collective, self.dtype, self.count, self.op, self.root, self.algorithm)

    def describe(self) -> str:
        """The call as a person would write it: ``all_reduce(float32, 1024, sum, algorithm=ring)``."""
        words = [str(word) for word in (self.dtype, self.count, self.op) if word is not None]
        if self.root is not None:
            words.append(f"root={self.root}")
        if self.algorithm is not None:
            words.append(f"algorithm={self.algorithm}")
        return f"{self.collective}({', '.join(words)})"

    def clipped(self) -> CallDescriptor:
        """This call with every word cut to what a message may carry (a ufunc's name may be of any length)."""
        words = (self.collective, self.dtype, self.op, self.algorithm)
        if all(word is None or len(word) <= 64 for word in words):
            return self
        collective, dtype, op, algorithm = (word if word is None else word[:64] for word in words)
        return msgspec.structs.replace(self, collective=collective or "", dtype=dtype, op=op, algorithm=algorithm)


@lru_cache(maxsize=4096)
def _fingerprint(*facts: str | int | None) -> int:
    return int.from_bytes(blake2b(msgspec.msgpack.encode(facts), digest_size=8).digest(), "little")


def name_ranks(ranks: Iterable[int], world_ranks: Sequence[int] | None = None) -> str:
    """Ranks as a person says them: ``rank 3``, ``ranks 0-2 and 5``.

    ``ranks`` are ranks of the communicator. Where ``world_ranks`` (the world rank of each) differ from them, both are
    given: ``rank 1 (world rank 3)``.
    """
    ordered = sorted(set(ranks))
    if not ordered:
        return "no rank"
    text = f"rank{'s' if len(ordered) > 1 else ''} {_runs(ordered)}"
    if world_ranks is not None:
        world = [world_ranks[rank] for rank in ordered]
        if world != ordered:
            text += f" (world rank{'s' if len(world) > 1 else ''} {_runs(world)})"
    return text


def _runs(ranks: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` as ``0-2 and 5``; runs only ascend by one, in the order given."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def group_calls(calls: Mapping[int, CallDescriptor | None]) -> list[tuple[list[int], CallDescriptor | None]]:
    """Ranks that called the same thing, together; the largest group first, then by lowest rank. ``None`` goes last."""
    groups: dict[int | None, list[int]] = {}
    for rank in sorted(calls):
        call = calls[rank]
        groups.setdefault(None if call is None else call.fingerprint(), []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: (item[0] is None, -len(item[1]), item[1]))
    return [(ranks, calls[ranks[0]]) for _, ranks in ordered]
