"""Faults as short lists of events, played on control machines without a socket, and what must hold after any of them.

An event is (seconds from the beginning, what, ranks):

``enter``    they call the ring's all-reduce of communicator 0, and wait each for the one before it
``stop``     they stop (SIGSTOP); ``go``: they go on. ``late`` is a stop of a healthy rank, which must not be accused
``kill``     they are gone; ``close``: all their connections end, they live on
``cut``      nothing gets from them to the others or back, while they reach each other; ``mend``: it does again
``pair``     nothing gets from one of the two to the other; everybody else reaches both
``depart``   they close communicator 0, having done with it
``propose``  they come to agreement 1 of communicator 0, with their number as one bit less than all
``expire``   the deadline of their call has passed
``expel``    they do not wait any longer for those who have not come to it

So a run of chaos that went wrong becomes a list of a few lines.
"""

from collections.abc import Sequence

from clockwork import Clockwork, all_reduce

from atoll.runtime.messages import Ballot

KEY = (0, 1)
Event = tuple[float, str, Sequence[int]]


def play(world: Clockwork, log: Sequence[Event], until: float) -> Clockwork:
    """All of ``log``, in the order of time, and on until second ``until``."""
    began = world.now
    for at, what, ranks in sorted(log, key=lambda event: event[0]):
        world.run(max(0.0, began + at - world.now))
        if what == "cut":
            others = [rank for rank in range(world.size) if rank not in ranks]
            world.cut |= {pair for rank in ranks for other in others for pair in ((rank, other), (other, rank))}
        elif what == "pair":
            world.cut |= {(ranks[0], ranks[1]), (ranks[1], ranks[0])}
        elif what == "mend":
            world.cut = set()
        else:
            for rank in ranks:
                act(world, what, rank)
    world.run(max(0.0, began + until - world.now))
    return world


def act(world: Clockwork, what: str, rank: int) -> None:
    machine = world.machines[rank]
    if what == "enter":
        world.ledgers[rank].enter(all_reduce(), world.now)
        world.do(rank, machine.entered(0, world.now))
        world.wait(rank, (rank - 1) % world.size)
    elif what in ("stop", "late"):
        world.stopped.add(rank)
    elif what == "go":
        world.stopped.discard(rank)
    elif what == "kill":
        world.kill(rank)
    elif what == "close":
        world.close(rank)
    elif what == "expire":
        world.do(rank, machine.timed_out(0, 0, 5.0, ((rank - 1) % world.size,), "", world.now))
    elif what == "depart":
        world.do(rank, machine.unregister(0))
    elif what == "propose":
        machine.roster.propose(KEY, range(world.size), ~(1 << rank), (), world.now)
        world.do(rank, machine.taken())
    elif what == "expel":
        machine.roster.expel(KEY, "it did not come")
        world.do(rank, machine.taken())
    else:
        raise ValueError(f"no such event: {what}")


def going_on(world: Clockwork) -> list[int]:
    """Those that may go on: they live, run, and have not found themselves cut off."""
    return [
        rank
        for rank in range(world.size)
        if rank not in world.dead | world.closed | world.stopped and world.machines[rank].roster.cut_off is None
    ]


def decisions(world: Clockwork) -> dict[int, Ballot]:
    """What each rank that came to the agreement has it to be."""
    found = {rank: world.machines[rank].roster.council.look_up(KEY) for rank in range(world.size)}
    return {rank: a.decision for rank, a in found.items() if a is not None and a.decision is not None}


def check_safety(world: Clockwork, broken: set[int]) -> list[int]:
    """Whatever happened: no two sides go on without each other, nobody healthy is given up or blamed, and those of the
    side that goes on, which are returned, have one verdict and one decision.

    ``broken`` are the ranks that suffered anything worse than a delay. One of them may not have found out yet that the
    others go on without it: it has still to ask.
    """
    alive = going_on(world)
    lost = {rank: world.machines[rank].roster.lost.keys() for rank in alive}
    for rank in alive:
        for other in lost[rank] & set(alive):
            assert rank not in lost[other], f"ranks {rank} and {other} go on without each other"
        assert lost[rank] <= broken, f"rank {rank} has given up {sorted(lost[rank] - broken)}"
        failure = world.failure(rank)
        assert failure is None or (failure.culprits and set(failure.culprits) <= broken), failure
    side = [rank for rank in alive if not any(rank in lost[other] for other in alive)]
    verdicts = {str(failure) for rank in side if (failure := world.failure(rank)) is not None}
    assert len(verdicts) <= 1, verdicts
    decided = {decision for rank, decision in decisions(world).items() if rank in side}
    assert len(decided) <= 1, decided
    return side
