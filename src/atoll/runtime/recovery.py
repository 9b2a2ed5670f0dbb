"""Going on after a failure: who is left, and who takes whose place.

How a program uses it::

    comm = atoll.init()
    while not finished:
        try:
            total = comm.all_reduce(gradients)      # an interrupted one raises; its result is never handed out
        except (PeerLost, CollectiveTimeout):
            comm = comm.shrink()                    # without the lost, ranks renumbered
            # or: comm = comm.grow()                # spares in the place of the lost, with their rank numbers
            step = restore(comm)                    # agree on where to go on, e.g. by all_reduce(step, "min")

``abort(reason)``   ends the communicator for all its ranks: they raise ``PeerLost`` naming the one that aborted
``agree(value)``    the bitwise and of every survivor's value, and who is lost: the same answer on every survivor
``shrink()``        a communicator of the survivors, in their order
``grow()``          the same size again with waiting spares (``atoll launch --spares K``); where nobody is lost, spares
                    are added behind the last rank; ``world_size`` says how many ranks there are to be at most

All of these are collective among the survivors: each calls them, in the same order. They work on a communicator that
has failed, which is what they are for; what they return is fresh, and the failed one is released. A rank that dies
meanwhile is left out too, and so is one that lives but does not come to ``shrink`` or ``grow`` within their ``timeout``
(it loops for ever, say) while most do: it is given up. A spare comes out of ``atoll.init`` with the communicator that
it was called into, whose ``generation`` is above 0: the sign to fetch the state from the others.

How it works: an agreement (``agreement``) on the old communicator decides on the lost and on the spares in use, so
every survivor derives the same new list of ranks and the same identity. An agreement on the new one, in which the
called spares take part, confirms that all have come. Whoever has not is lost, and it starts again.
"""

from __future__ import annotations

from typing import NamedTuple

from atoll.errors import InternalError
from atoll.runtime.caller import Caller, derive_id
from atoll.runtime.messages import Enlist
from atoll.runtime.process import Process

# The first agreement of a communicator is the one that confirms it.
_CONFIRMATION = 0


class Agreed(NamedTuple):
    """What the survivors agree on: ``value``, and the ranks of the communicator that are ``lost``."""

    value: int
    lost: tuple[int, ...]


class Succession(NamedTuple):
    """The communicator that follows: its identity, the world rank of each of its ranks, how many came before it."""

    identity: int
    world_ranks: tuple[int, ...]
    generation: int


class Recovery:
    """What one communicator's rank does after a failure. ``generation`` counts the successions before it."""

    def __init__(self, caller: Caller, generation: int) -> None:
        self._caller = caller
        self._control = caller.process.control
        self.generation = generation
        self._agreements = _CONFIRMATION + 1

    def abort(self, reason: str) -> None:
        """End the communicator for all its ranks."""
        self._control.abandon(self._caller.identity, -1, reason)

    def agree(self, value: int, timeout_s: float) -> Agreed:
        """One agreement; errors as ``Control.agree``."""
        ranks = self._caller.world_ranks
        decided = self._control.agree(self._next(), ranks, value, (), timeout_s)
        return Agreed(decided.value, tuple(rank for rank, world in enumerate(ranks) if world in decided.lost))

    def succeed(self, spares: bool, world_size: int | None, timeout_s: float) -> Succession:
        """Agree on a new communicator: without the lost, and if ``spares`` with spares in their place."""
        process, identity = self._caller.process, self._caller.identity
        taken = set(process.spares_taken)
        for attempt in range(process.membership.world_size):
            generation = self.generation + 1 + attempt
            key = self._next()
            decided = self._control.agree(key, self._caller.world_ranks, -1, taken, timeout_s, expel=True)
            free = [spare for spare in process.spares if spare not in {*decided.lost, *decided.taken}]
            ranks = _fill(self._caller.world_ranks, frozenset(decided.lost), free if spares else [], world_size)
            process.spares_taken.update(decided.taken, set(ranks) & set(process.spares))
            following = Succession(derive_id(identity, "succession", key[1], *ranks), ranks, generation)
            called = set(ranks) & set(free)
            if called:
                waiting = [spare for spare in process.spares if spare not in self._caller.world_ranks]
                self._control.enlist(waiting, Enlist(following.identity, ranks, generation))
            if confirm(process, following, timeout_s):
                return following
            taken = set(process.spares_taken)
        raise InternalError(f"communicator {identity:x} has no successor after as many attempts as there are ranks")

    def _next(self) -> tuple[int, int]:
        self._agreements += 1
        return self._caller.identity, self._agreements


def confirm(process: Process, following: Succession, timeout_s: float) -> bool:
    """Whether all ranks of a new communicator have come to it; the same answer on each that has."""
    key = (following.identity, _CONFIRMATION)
    decided = process.control.agree(key, following.world_ranks, -1, (), timeout_s, expel=True)
    return not set(decided.lost).intersection(following.world_ranks)


def _fill(ranks: tuple[int, ...], lost: frozenset[int], free: list[int], world_size: int | None) -> tuple[int, ...]:
    """``ranks`` with the first of ``free`` in the places of the lost, and without the places that stay empty.

    Where nobody is lost, or ``world_size`` asks for more ranks, more are added at the end.
    """
    left = list(free)
    limit = len(ranks) if world_size is None and lost.intersection(ranks) else world_size
    places = [(left.pop(0) if left else None) if rank in lost else rank for rank in ranks]
    filled = [rank for rank in places if rank is not None]
    room = len(left) if limit is None else max(0, limit - len(filled))
    return (*filled, *left[:room])


def join_as_spare(process: Process, working: int, timeout_s: float) -> Succession | None:
    """As a spare, wait until some communicator takes this rank in; None when the job has ended without.

    ``working`` ranks are not spares.
    """
    seen = 0
    while (call := process.control.wait_enlisted(range(working), seen)) is not None:
        seen = call.generation
        process.spares_taken.update(set(call.ranks) & set(process.spares))
        following = Succession(call.communicator_id, call.ranks, call.generation)
        if confirm(process, following, timeout_s):
            process.control.joined(call)
            return following
    return None
