"""Going on after a failure, among real processes: who is named, who is left, and that what comes out is right."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import Outcome, outcomes_of, run_ranks

from atoll.errors import AtollError, CollectiveTimeout, PeerLost, SpecError
from atoll.runtime.communicator import Communicator

HEARTBEAT = "1s"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """Stop this process; another rank wakes it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def wake(pid: int) -> None:
    """Wake a stopped rank, after what it is to find in its connections."""
    time.sleep(0.1)
    os.kill(pid, signal.SIGCONT)


def fail(comm: Communicator) -> AtollError:
    """Call collectives until the failure is known; every result until then is right."""
    everyone = comm.world_size * (comm.world_size + 1) / 2
    try:
        while True:
            assert comm.all_reduce(np.full(20_000, comm.rank + 1.0)).tolist() == [everyone] * 20_000
    except AtollError as error:
        return error


def facts(error: AtollError) -> tuple[str, tuple[int, ...], str]:
    return type(error).__name__, getattr(error, "culprits", ()), str(error)


def values(outcomes: list[Outcome], without: int) -> list[Any]:
    survivors = [outcome for rank, outcome in enumerate(outcomes) if rank != without]
    assert all(not outcome.kind for outcome in survivors), survivors
    return [outcome.value for outcome in survivors]


# -- what is known of a failure ---------------------------------------------------------------------------------


def one_goes(comm: Communicator, victim: int, how: str) -> Any:
    pids = comm.all_gather(np.array([os.getpid()])).tolist()
    if comm.rank == victim:
        if how == "dies":
            die()
        stop()
    error = fail(comm)
    if how == "stops" and comm.rank == (victim + 1) % comm.world_size:
        wake(pids[victim])
    return facts(error)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize(("victim", "how"), [(0, "dies"), (2, "dies"), (0, "stops"), (3, "stops")])
def test_all_survivors_raise_the_same_error_with_the_culprit(victim: int, how: str, transport: str) -> None:
    outcomes = outcomes_of(4, one_goes, victim, how, heartbeat=HEARTBEAT, transport=transport)
    told = values(outcomes, victim)
    assert len(set(told)) == 1, told
    kind, culprits, message = told[0]
    assert kind == PeerLost.__name__
    assert culprits == (victim,)
    assert f"rank {victim} (pid " in message
    assert ("died" in message) == (how == "dies")
    assert all(f"rank {rank}" in message for rank in range(4)), "everybody's story"
    if how == "stops":
        kind, culprits, message = outcomes[victim].value
        assert (kind, culprits) == (PeerLost.__name__, (victim,)), "it learns it, before any result"
        assert "was given up by the others" in message


# On a busy host a control thread may need a while to get the interpreter from a thread that computes.
COMPUTED_S = 2.0


def one_computes(comm: Communicator) -> Any:
    comm.barrier()
    if comm.rank == 1:
        until, count = time.monotonic() + 1.5 * COMPUTED_S, 0
        while time.monotonic() < until:
            count += 1
    return comm.all_reduce(np.ones(3)).tolist()


def test_a_rank_that_computes_in_python_is_not_given_up() -> None:
    assert run_ranks(3, one_computes, heartbeat=f"{COMPUTED_S}s") == [[3.0] * 3] * 3


def loop_while(condition: Callable[[], bool]) -> None:
    """Compute, as a program that has lost its way; the others find it meanwhile, however long that takes them."""
    while condition():
        pass


def one_loops(comm: Communicator) -> Any:
    comm.barrier()
    if comm.rank == 1:
        loop_while(lambda: comm._caller.process.control.failure(comm._caller.identity) is None)
    try:
        comm.all_reduce(np.ones(3), timeout=0.7)
    except CollectiveTimeout as error:
        return facts(error)
    return None


def test_a_rank_that_never_comes_is_found_by_the_deadline() -> None:
    told = run_ranks(3, one_loops, heartbeat=HEARTBEAT)
    assert len(set(told)) == 1
    kind, culprits, message = told[0]
    assert (kind, culprits) == (CollectiveTimeout.__name__, (1,))
    assert "rank 1 never came" in message
    assert "rank 1 had not come: its last call, number 0, barrier" in message


# -- shrink ------------------------------------------------------------------------------------------------------------


def shrinks(comm: Communicator, victims: tuple[int, ...], how: str) -> Any:
    pids = comm.all_gather(np.array([os.getpid()])).tolist()
    if comm.rank == victims[0]:
        if how == "stops":
            stop()
            try:
                error: AtollError = fail(comm)
                comm.shrink()
            except AtollError as raised:
                error = raised
            return facts(error)
        die()
    fail(comm)
    if comm.rank in victims:
        die()
    mine = comm.rank
    while True:
        comm = comm.shrink()
        try:
            total = comm.all_reduce(np.full(5, mine)).tolist()
        except PeerLost:
            continue
        if how == "stops" and comm.rank == 0:
            wake(pids[victims[0]])
        return comm.rank, comm.world_size, comm.generation, total


@pytest.mark.parametrize(
    ("victims", "how"), [((0,), "dies"), ((2,), "dies"), ((0,), "stops"), ((0, 1), "dies"), ((3, 0), "dies")]
)
def test_survivors_go_on_renumbered(victims: tuple[int, ...], how: str) -> None:
    """A second rank dies while the others agree."""
    outcomes = outcomes_of(5, shrinks, victims, how, heartbeat=HEARTBEAT)
    left = [rank for rank in range(5) if rank not in victims]
    for place, rank in enumerate(left):
        outcome = outcomes[rank]
        assert not outcome.kind, outcome
        number, world_size, generation, total = outcome.value
        assert (number, world_size) == (place, len(left))
        assert generation >= 1
        assert total == [sum(left)] * 5
    if how == "stops":
        assert outcomes[victims[0]].value[:2] == (PeerLost.__name__, victims)


def shrinks_a_part(comm: Communicator) -> Any:
    part = comm.split(comm.rank % 2, key=-comm.rank)
    assert part is not None
    comm.barrier()
    if comm.rank == 2:
        die()
    if comm.rank % 2:
        return part.all_reduce(np.ones(2)).tolist()
    fail(part)
    part = part.shrink()
    return part.world_size, part.all_reduce(np.array([comm.rank])).tolist()


def test_a_part_shrinks_alone_and_another_one_notices_nothing() -> None:
    outcomes = outcomes_of(6, shrinks_a_part)
    assert values(outcomes, 2) == [(2, [4]), [3.0, 3.0], [3.0, 3.0], (2, [4]), [3.0, 3.0]]


def shrinks_whole(comm: Communicator) -> Any:
    twin = comm.shrink()
    return twin.all_reduce(np.ones(1)).tolist(), comm.all_reduce(np.ones(1)).tolist(), twin.generation


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_whole_communicator_has_a_twin(world_size: int) -> None:
    assert run_ranks(world_size, shrinks_whole) == [([world_size], [world_size], 1)] * world_size


def one_is_stuck(comm: Communicator) -> Any:
    others = comm.split(int(comm.rank > 0))
    if comm.rank == 0:
        roster = comm._caller.process.control._machine.roster
        loop_while(lambda: roster.cut_off is None)
        fail(comm)
        try:
            comm.shrink()
        except AtollError as given_up:
            return facts(given_up)
    error: AtollError | None = None
    try:
        comm.all_reduce(np.ones(2), timeout=0.5)
    except CollectiveTimeout as raised:
        error = raised
    assert error is not None
    assert others is not None
    others.barrier()  # who is late for its own reasons would be left behind too
    comm = comm.shrink(timeout=2)
    return error.culprits, comm.rank, comm.all_reduce(np.ones(1)).tolist()


def test_a_rank_that_is_stuck_is_left_behind_and_told() -> None:
    first, *others = run_ranks(4, one_is_stuck)
    assert others == [((0,), rank, [3.0]) for rank in range(3)]
    kind, culprits, message = first
    assert (kind, culprits) == (PeerLost.__name__, (0,))
    assert "it did not come to an agreement on who is left within 2 s" in message


# -- grow --------------------------------------------------------------------------------------------------------------


def grows(comm: Communicator, victim: int) -> Any:
    if comm.generation == 0:
        comm.barrier()
        if comm.rank == victim:
            die()
        fail(comm)
        comm = comm.grow()
    total = comm.all_reduce(np.array([10.0**comm.rank])).tolist()
    comm.barrier()
    return comm.rank, comm.world_size, comm.generation, total


@pytest.mark.parametrize("victim", [0, 2])
def test_a_spare_takes_the_place_of_the_lost_under_its_number(victim: int) -> None:
    outcomes = outcomes_of(3, grows, victim, spares=2)
    assert outcomes[victim].exit_code == -signal.SIGKILL
    by_rank = [outcomes[rank] for rank in range(3)]
    by_rank[victim] = outcomes[3]
    assert [outcome.value for outcome in by_rank] == [(rank, 3, 1, [111.0]) for rank in range(3)]
    assert outcomes[4].kind == "SystemExit", "nobody needed it"
    assert outcomes[4].error.startswith("0\n")


def grows_when_the_spare_is_gone(comm: Communicator) -> Any:
    """The spare dies as soon as it is called, so that the others have to begin again."""
    if comm.generation:
        die()
    comm.barrier()
    if comm.rank == 1:
        die()
    fail(comm)
    while True:
        comm = comm.grow()
        try:
            total = comm.all_reduce(np.ones(1)).tolist()
            return comm.rank, comm.world_size, total
        except PeerLost:
            continue


def test_where_no_spare_is_left_the_place_is_closed() -> None:
    outcomes = outcomes_of(3, grows_when_the_spare_is_gone, spares=1)
    assert [outcomes[rank].value for rank in (0, 2)] == [(0, 2, [2.0]), (1, 2, [2.0])]


def grows_larger(comm: Communicator) -> Any:
    if comm.generation == 0:
        comm = comm.grow(4)
    total = comm.all_reduce(np.array([10.0**comm.rank])).tolist()
    comm.barrier()
    return comm.rank, comm.world_size, total


def test_a_healthy_communicator_takes_spares_in_at_its_end() -> None:
    outcomes = outcomes_of(3, grows_larger, spares=2)
    assert [outcome.value for outcome in outcomes[:4]] == [(rank, 4, [1111.0]) for rank in range(4)]
    assert outcomes[4].kind == "SystemExit"


# -- abort and agree ---------------------------------------------------------------------------------------------------


def aborts(comm: Communicator) -> Any:
    comm.barrier()
    if comm.rank == 2:
        comm.abort("the loss is not a number")
    error = fail(comm)
    agreed = comm.agree(0b1110 if comm.rank == 1 else 0b0111)
    return facts(error), tuple(agreed), comm.shrink().all_reduce(np.ones(1)).tolist()


def test_an_abort_ends_the_communicator_for_all_with_the_reason() -> None:
    told = run_ranks(4, aborts)
    assert len({facts for facts, _, _ in told}) == 1
    (kind, culprits, message), agreed, total = told[0]
    assert (kind, culprits) == (PeerLost.__name__, (2,))
    assert "rank 2 gave up communicator 1: the loss is not a number" in message
    assert agreed == (0b0110, ()), "the one that aborted lives"
    assert total == [4.0]


def agrees(comm: Communicator) -> Any:
    if comm.rank == 0:
        die()
    return [tuple(comm.agree(value)) for value in (comm.rank, -1, 6)]


def test_agreement_is_the_same_on_every_survivor() -> None:
    outcomes = outcomes_of(4, agrees)
    assert values(outcomes, 0) == [[(1 & 2 & 3, (0,)), (-1, (0,)), (6, (0,))]] * 3


def agrees_in_vain(comm: Communicator) -> Any:
    comm.barrier()
    if comm.rank == 1:
        for other in (0, 2):
            comm.recv(np.zeros(1), other)
        return None
    told = None
    try:
        comm.agree(timeout=2)
    except CollectiveTimeout as error:
        told = error.culprits, str(error)
    comm.send(np.ones(1), 1)
    return told


def test_an_agreement_names_who_never_came() -> None:
    outcomes = run_ranks(3, agrees_in_vain)
    for rank in (0, 2):
        assert outcomes[rank] == ((1,), "an agreement of communicator 1 did not end within 2 s: rank 1 never came")


def misuses(comm: Communicator) -> Any:
    said = []
    for call in (lambda: comm.agree("x"), lambda: comm.grow(0), lambda: comm.shrink(timeout=0)):  # type: ignore[arg-type]
        try:
            call()
        except SpecError as error:
            said.append(str(error))
    comm.close()
    for call in (comm.shrink, comm.stragglers):
        try:
            call()
        except SpecError as error:
            said.append(str(error))
    return said


def test_mistakes_are_told() -> None:
    (said,) = run_ranks(1, misuses)
    assert said == [
        "agree: value: expected a whole number, got 'x'",
        "grow: expected a world_size of at least 1, got 0",
        "timeout: expected more than 0 seconds, got 0",
        "the communicator is closed",
        "the communicator is closed",
    ]


# -- stragglers --------------------------------------------------------------------------------------------------------


def lags(comm: Communicator) -> Any:
    comm.all_reduce(np.ones(100))  # makes the connections
    for _ in range(25):
        if comm.rank == 1:
            for other in (0, 2):
                comm.recv(np.zeros(1), other)  # it has called
            time.sleep(0.03)
            comm.all_reduce(np.ones(100))
        else:
            call = comm.all_reduce(np.ones(100), async_op=True)
            comm.send(np.ones(1), 1)
            call.wait()
    table = comm.stragglers()
    comm.barrier()
    return [row.rank for row in table if row.slow], table[0].rank, table[0].calls, len(table)


def test_the_rank_that_arrives_late_is_the_straggler_on_everyones_table() -> None:
    for slow, latest, calls, rows in run_ranks(3, lags):
        assert latest == 1
        assert 1 in slow
        assert calls >= 24
        assert rows == 3
