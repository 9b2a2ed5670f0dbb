"""When the world goes wrong: ranks that disagree, die, leave or never come, among real processes."""

import contextlib
import os
import signal
import time
from typing import Any

import numpy as np
import pytest
from ranks import outcomes_of, run_ranks

from atoll.errors import AtollError, CollectiveMismatch, CollectiveTimeout, PeerLost, SpecError
from atoll.runtime.communicator import Communicator


def caught(call: Any) -> tuple[str, str, tuple[int, ...], float]:
    """(kind, message, culprits, seconds until raised) of what ``call`` raises."""
    start = time.monotonic()
    try:
        call()
    except AtollError as error:
        return type(error).__name__, str(error), getattr(error, "culprits", ()), time.monotonic() - start
    return "nothing", "", (), time.monotonic() - start


# -- ranks that disagree ----------------------------------------------------------------------------------------


def disagree(comm: Communicator, kind: str, size: int) -> Any:
    odd = comm.rank == comm.world_size - 1
    array = np.ones(size, np.float32)
    comm.barrier()
    match kind:
        case "dtype":
            call = lambda: comm.all_reduce(np.ones(size, np.int32) if odd else array)  # noqa: E731
        case "count":
            call = lambda: comm.all_reduce(np.ones(size + 1, np.float32) if odd else array)  # noqa: E731
        case "op":
            call = lambda: comm.all_reduce(array, "max" if odd else "sum")  # noqa: E731
        case "collective":
            call = lambda: comm.all_gather(array) if odd else comm.all_reduce(array)  # noqa: E731
        case "algorithm":
            call = lambda: comm.all_reduce(array, algorithm="ring" if odd else "direct")  # noqa: E731
        case "root":
            call = lambda: comm.broadcast(array, root=1 if odd else 0)  # noqa: E731
        case _:
            call = lambda: comm.barrier() if odd else comm.all_reduce(array)  # noqa: E731
    first = caught(call)
    # A rank whose part was done before the disagreement was known learns of it in its next call.
    return first if first[0] != "nothing" else caught(comm.barrier)


@pytest.mark.parametrize("size", [10, 300_000])
@pytest.mark.parametrize("kind", ["dtype", "count", "op", "collective", "algorithm", "root", "barrier"])
def test_a_mismatch_is_told_to_every_rank_with_who_called_what(kind: str, size: int) -> None:
    for world_size in (2, 4):
        for got, message, _, _ in run_ranks(world_size, disagree, kind, size):
            assert got == CollectiveMismatch.__name__, message
            assert f"rank {world_size - 1} called" in message
            others = "rank 0 called" if world_size == 2 else f"ranks 0-{world_size - 2} called"
            assert others in message


def waits_for_the_other_root(comm: Communicator) -> Any:
    # Both wait for the other one to send: nobody would ever say anything.
    return caught(lambda: comm.broadcast(np.zeros(4), root=1 - comm.rank))


def test_a_mismatch_in_which_everybody_waits_is_found_too() -> None:
    for got, message, _, seconds in run_ranks(2, waits_for_the_other_root):
        assert got == CollectiveMismatch.__name__
        assert "root=0" in message
        assert "root=1" in message
        assert seconds < 15


def one_is_late(comm: Communicator) -> Any:
    if comm.rank == 1:
        time.sleep(0.7)  # longer than it takes the others to compare notes
    return comm.all_reduce(np.ones(3)).tolist()


def test_a_late_rank_is_no_mismatch() -> None:
    assert run_ranks(3, one_is_late) == [[3.0, 3.0, 3.0]] * 3


# -- ranks that are gone ----------------------------------------------------------------------------------------


def one_dies(comm: Communicator, victim: int, how: str) -> Any:
    comm.all_reduce(np.ones(2))
    if comm.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(3)
    got = caught(lambda: comm.all_reduce(np.ones(1 << 20)))
    again = caught(comm.barrier)
    return got, again[0]


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_a_dead_rank_is_named_on_every_other_rank(victim: int, how: str) -> None:
    outcomes = outcomes_of(4, one_dies, victim, how)
    assert outcomes[victim].exit_code in (-signal.SIGKILL, 3)
    for rank, outcome in enumerate(outcomes):
        if rank == victim:
            continue
        (kind, message, culprits, seconds), again = outcome.value
        assert kind == PeerLost.__name__, outcome
        assert culprits == (victim,)
        assert f"rank {victim}" in message
        assert again == PeerLost.__name__
        assert seconds < 15


def one_leaves(comm: Communicator) -> Any:
    comm.barrier()
    if comm.rank == 1:
        comm.close()
        return None
    return caught(lambda: comm.all_reduce(np.ones(5)))


def test_a_rank_that_left_is_not_waited_for() -> None:
    outcomes = run_ranks(3, one_leaves)
    for rank in (0, 2):
        kind, message, culprits, seconds = outcomes[rank]
        assert kind == PeerLost.__name__
        assert culprits == (1,)
        assert "rank 1" in message
        assert seconds < 15


# -- deadlines --------------------------------------------------------------------------------------------------


def one_never_comes(comm: Communicator) -> Any:
    if comm.rank == 1:
        time.sleep(2.0)  # busy elsewhere while the others' deadline passes
        return caught(comm.barrier)
    return caught(lambda: comm.all_reduce(np.ones(100), timeout=0.5))


def test_a_deadline_names_who_never_came() -> None:
    outcomes = run_ranks(3, one_never_comes)
    for rank in (0, 2):
        kind, message, culprits, seconds = outcomes[rank]
        assert kind == CollectiveTimeout.__name__, message
        assert culprits == (1,)
        assert "all_reduce(float64, 100, sum" in message
        assert 0.5 <= seconds < 15
    # The one who comes late is told what happened, instead of waiting for those who have given up.
    assert outcomes[1][0] != "nothing"
    assert outcomes[1][3] < 15


def interrupted(comm: Communicator) -> Any:
    if comm.rank == 0:
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with contextlib.suppress(KeyboardInterrupt):
            comm.barrier()
        return caught(comm.barrier)
    time.sleep(1.0)
    return caught(comm.barrier)


def test_an_interrupted_rank_does_not_leave_the_others_waiting() -> None:
    first, second = run_ranks(2, interrupted)
    assert first[0] == SpecError.__name__
    assert "interrupted by KeyboardInterrupt" in first[1]
    assert second[0] == PeerLost.__name__
    assert second[2] == (0,)


def wait_runs_out(comm: Communicator) -> Any:
    if comm.rank == 0:
        time.sleep(0.5)
        return comm.all_reduce(np.ones(2)).tolist()
    work = comm.all_reduce(np.ones(2), async_op=True)
    kind, message, culprits, _ = caught(lambda: work.wait(timeout=0.05))
    return kind, "still in flight" in message, culprits, work.wait().tolist()


def test_a_wait_that_runs_out_does_not_end_the_collective() -> None:
    first, second = run_ranks(2, wait_runs_out)
    assert first == [2.0, 2.0]
    assert second == (CollectiveTimeout.__name__, True, (0,), [2.0, 2.0])


def raises_inside(comm: Communicator) -> Any:
    array = np.full(4, 1e308)
    with np.errstate(over="raise"):
        try:
            comm.all_reduce(array)
        except FloatingPointError as error:
            return str(error)
    return "nothing"


def test_what_an_operation_raises_comes_out_of_the_call() -> None:
    assert all("overflow" in text for text in run_ranks(2, raises_inside))
