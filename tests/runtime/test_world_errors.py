"""When the world goes wrong: ranks that disagree, die, leave or never come, among real processes."""

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from ranks import free_port, outcomes_of, run_ranks

from atoll.errors import AtollError, CollectiveMismatch, CollectiveTimeout, PeerLost, SpecError
from atoll.runtime.communicator import Communicator
from atoll.runtime.start import init


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
        case "broadcast root":
            call = lambda: comm.broadcast(array, root=1 if odd else 0)  # noqa: E731
        case "reduce root":
            call = lambda: comm.reduce(array, root=1 if odd else 0)  # noqa: E731
        case "gather root":
            call = lambda: comm.gather(array, root=comm.rank)  # noqa: E731
        case "scatter dtype":
            parts = np.zeros(size * comm.world_size, np.float32) if comm.rank == 0 else None
            out = np.zeros(size, np.int32 if odd else np.float32)
            call = lambda: comm.scatter(parts, out=out)  # noqa: E731
        case "nothing to send":
            call = lambda: comm.all_reduce(array[:0], "max" if odd else "sum")  # noqa: E731
        case _:
            call = lambda: comm.barrier() if odd else comm.all_reduce(array)  # noqa: E731
    return caught(call)


@pytest.mark.parametrize("size", [10, 300_000])
@pytest.mark.parametrize(
    "kind", ["dtype", "count", "op", "collective", "algorithm", "broadcast root", "reduce root",
             "scatter dtype", "nothing to send", "barrier"])  # fmt: skip
def test_a_mismatch_is_told_to_every_rank_with_who_called_what(kind: str, size: int) -> None:
    for world_size in (2, 4):
        for got, message, _, _ in run_ranks(world_size, disagree, kind, size):
            assert got == CollectiveMismatch.__name__, message
            assert f"rank {world_size - 1} called" in message
            others = "rank 0 called" if world_size == 2 else f"ranks 0-{world_size - 2} called"
            assert others in message


def test_ranks_that_each_call_something_else_are_all_named() -> None:
    for got, message, _, _ in run_ranks(3, disagree, "gather root", 10):
        assert got == CollectiveMismatch.__name__, message
        assert all(f"rank {rank} called gather(float32, 30, root={rank}" in message for rank in range(3)), message


def waits_for_the_other_root(comm: Communicator) -> Any:
    # Both wait for the other one to send: nobody would ever say anything.
    return caught(lambda: comm.broadcast(np.zeros(4), root=1 - comm.rank))


def test_a_mismatch_in_which_everybody_waits_is_found_too() -> None:
    for got, message, _, _ in run_ranks(2, waits_for_the_other_root):
        assert got == CollectiveMismatch.__name__
        assert "root=0" in message
        assert "root=1" in message


def one_is_late(comm: Communicator) -> Any:
    if comm.rank == 1:
        time.sleep(0.7)  # longer than it takes the others to compare notes
    return comm.all_reduce(np.ones(3)).tolist()


def test_a_late_rank_is_no_mismatch() -> None:
    assert run_ranks(3, one_is_late) == [[3.0, 3.0, 3.0]] * 3


# -- ranks that are gone ----------------------------------------------------------------------------------------


def one_dies(comm: Communicator, victim: int, how: str) -> Any:
    if comm.rank == victim:
        comm.all_reduce(np.ones(2))
        os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(3)
    # Its death may be known before the first call has ended here.
    got = caught(lambda: (comm.all_reduce(np.ones(2)), comm.all_reduce(np.ones(1 << 20))))
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
        (kind, message, culprits, _), again = outcome.value
        assert kind == PeerLost.__name__, outcome
        assert culprits == (victim,)
        assert f"rank {victim}" in message
        assert again == PeerLost.__name__


def one_leaves(comm: Communicator) -> Any:
    comm.barrier()
    if comm.rank == 1:
        comm.close()
        return None
    return caught(lambda: comm.all_reduce(np.ones(5)))


def test_a_rank_that_left_is_not_waited_for() -> None:
    outcomes = run_ranks(3, one_leaves)
    for rank in (0, 2):
        kind, message, culprits, _ = outcomes[rank]
        assert kind == PeerLost.__name__
        assert culprits == (1,)
        assert "rank 1" in message


def until_it_has_failed(comm: Communicator) -> None:
    """Do something else until the communicator has ended."""
    while comm._caller.process.control.failure(comm._caller.identity) is None:
        time.sleep(0.01)


# -- deadlines --------------------------------------------------------------------------------------------------


def one_never_comes(comm: Communicator) -> Any:
    if comm.rank == 1:
        until_it_has_failed(comm)  # busy elsewhere while the others' deadline passes
        return caught(comm.barrier)
    return caught(lambda: comm.all_reduce(np.ones(100), timeout=0.5))


def test_a_deadline_names_who_never_came() -> None:
    outcomes = run_ranks(3, one_never_comes)
    for rank in (0, 2):
        kind, message, culprits, seconds = outcomes[rank]
        assert kind == CollectiveTimeout.__name__, message
        assert culprits == (1,)
        assert "all_reduce(float64, 100, sum" in message
        assert seconds >= 0.5
    # The one who comes late is told what happened, instead of waiting for those who have given up.
    assert outcomes[1][0] != "nothing"


def interrupted(comm: Communicator) -> Any:
    if comm.rank == 0:
        ledger = comm._caller.process.control._ledgers[comm._caller.identity]

        def interrupt(*_: object) -> None:
            if ledger.inside:  # else the call has still to begin, and there would be nothing to tell the others
                signal.setitimer(signal.ITIMER_REAL, 0)
                raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.3, 0.05)
        with contextlib.suppress(KeyboardInterrupt):
            comm.barrier()
        return caught(comm.barrier)
    until_it_has_failed(comm)
    return caught(comm.barrier)


def test_an_interrupted_rank_does_not_leave_the_others_waiting() -> None:
    first, second = run_ranks(2, interrupted)
    assert first[0] == SpecError.__name__
    assert "interrupted by KeyboardInterrupt" in first[1]
    assert second[0] == PeerLost.__name__
    assert second[2] == (0,)


def wait_runs_out(comm: Communicator) -> Any:
    if comm.rank == 0:
        comm.recv(np.zeros(1), 1)
        return comm.all_reduce(np.ones(2)).tolist()
    work = comm.all_reduce(np.ones(2), async_op=True)
    kind, message, culprits, _ = caught(lambda: work.wait(timeout=0.05))
    comm.send(np.ones(1), 0)
    return kind, "still in flight" in message, culprits, work.wait().tolist()


def test_a_wait_that_runs_out_does_not_end_the_collective() -> None:
    first, second = run_ranks(2, wait_runs_out)
    assert first == [2.0, 2.0]
    assert second == (CollectiveTimeout.__name__, True, (0,), [2.0, 2.0])


def raises_inside(comm: Communicator) -> Any:
    array = np.full(4, 1e308)
    other = comm.split(0)
    assert other is not None
    comm.barrier()
    try:
        with np.errstate(over="raise" if comm.rank == 1 else "ignore"):
            comm.all_reduce(array, algorithm="ring")
        # A rank whose part was done before the other one gave up learns of it in its next call.
        comm.barrier()
    except (FloatingPointError, AtollError) as error:
        first = type(error).__name__, str(error), getattr(error, "culprits", ())
    else:
        first = "nothing", "", ()
    # Another communicator of the same processes is as good as before.
    return first, caught(comm.barrier)[:3], other.all_reduce(np.ones(1)).tolist()


def test_what_an_operation_raises_comes_out_of_the_call_and_is_told_to_the_others() -> None:
    outcomes = run_ranks(3, raises_inside)
    for rank, (first, again, others) in enumerate(outcomes):
        assert others == [3.0]
        if rank == 1:
            assert first[0] == FloatingPointError.__name__
            assert "overflow" in first[1]
            assert again[0] == SpecError.__name__
            assert "interrupted by FloatingPointError" in again[1]
        else:
            assert first[0] == again[0] == PeerLost.__name__
            assert first[2] == again[2] == (1,)
            assert "gave up all_reduce" in first[1]


# -- ranks that end their part -------------------------------------------------------------------------------------


def open_files() -> list[str]:
    """What the process has open that a world could have left behind."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(name.split(":")[0] for name in found if name.startswith(("socket:", "anon_inode:")))


def leaves_nothing(comm: Communicator, how: str) -> Any:
    part = comm.split(0)
    assert part is not None
    work = comm.all_reduce(np.ones(1000), async_op=True)
    part.all_reduce(np.ones(3), algorithm="ring")
    comm.send(np.ones(2), 1) if comm.rank == 0 else comm.recv(np.ones(2), 0)
    work.wait()
    pending = None
    if how == "in flight":
        pending = part.all_reduce(np.ones(10), async_op=True) if comm.rank == 0 else None
    if how == "after an error":
        with contextlib.suppress(AtollError):
            comm.all_reduce(np.ones(2 + comm.rank))
            comm.barrier()
    comm.close()
    comm.close()
    ended = None if pending is None else caught(pending.wait)[:2]
    late = [
        caught(part.barrier)[:2],
        caught(comm.barrier)[:2],
        caught(lambda: comm.send(np.ones(1), 1 - comm.rank))[:2],
    ]
    return threading.active_count(), ended, late


@pytest.mark.parametrize("how", ["in order", "in flight", "after an error"])
def test_close_leaves_no_thread_and_ends_what_is_in_flight(how: str) -> None:
    for rank, (threads, ended, late) in enumerate(run_ranks(2, leaves_nothing, how)):
        assert threads == 1
        assert [kind for kind, _ in late] == [SpecError.__name__] * 3
        assert all("closed" in message for _, message in late)
        if how == "in flight" and rank == 0:
            # Whoever closes first: we, or the one that we wait for.
            assert ended[0] in (SpecError.__name__, PeerLost.__name__)
            assert "closed" in ended[1]


def joins_and_leaves(environ: dict[str, str]) -> None:
    before = open_files()
    for number in range(3):
        address, port = environ["ATOLL_RENDEZVOUS"].rsplit(":", 1)
        comm = init(timeout=20, environ={**environ, "ATOLL_RENDEZVOUS": f"{address}:{int(port) + number}"})
        part = comm.split(0)
        assert part is not None
        comm.all_reduce(np.ones(1000), async_op=True).wait()
        part.all_reduce(np.ones(3), algorithm="ring")
        comm.close()
        del comm, part
        gc.collect()
    assert open_files() == before
    assert threading.active_count() == 1


def test_a_process_may_join_again_and_leaves_no_descriptor_behind() -> None:
    context = multiprocessing.get_context("forkserver")
    base = {"ATOLL_WORLD_SIZE": "2", "ATOLL_RENDEZVOUS": f"127.0.0.1:{free_port()}", "ATOLL_SECRET": "s" * 32}
    processes = [context.Process(target=joins_and_leaves, args=({**base, "ATOLL_RANK": str(r)},)) for r in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        process.kill()
    assert [process.exitcode for process in processes] == [0, 0]


def a_forked_child_closes(comm: Communicator) -> Any:
    work = comm.all_reduce(np.ones(10), async_op=True)
    work.wait()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        got = caught(lambda: comm.all_reduce(np.ones(10)))
        comm.close()
        os.write(writing, f"{got[0]}: {got[1]}".encode())
        os._exit(0)
    os.close(writing)
    said = os.read(reading, 1000).decode()
    os.waitpid(child, 0)
    # The connections that the child has let go of still carry ours, asleep in epoll or not.
    if comm.rank == 0:
        time.sleep(0.3)
    total = comm.all_reduce(np.ones(300_000)).sum()
    return said, total


def test_a_forked_child_is_no_rank_and_does_not_disturb_its_parent() -> None:
    for said, total in run_ranks(2, a_forked_child_closes):
        assert said.startswith("SpecError: this process was forked")
        assert total == 600_000


def closes_in_a_signal_handler(comm: Communicator) -> Any:
    if comm.rank == 0:

        def close(*_: object) -> None:
            if not comm._caller.process.progress._wheel.amid:  # amid a move it is refused
                signal.setitimer(signal.ITIMER_REAL, 0)
                comm.close()

        signal.signal(signal.SIGALRM, close)
        signal.setitimer(signal.ITIMER_REAL, 0.3, 0.05)
        return caught(lambda: comm.recv(np.ones(1), 1))
    roster = comm._caller.process.control._machine.roster
    while not roster.is_gone(0):
        time.sleep(0.01)
    return None


def test_a_signal_handler_may_close_while_a_collective_waits() -> None:
    first, _ = run_ranks(2, closes_in_a_signal_handler)
    assert first[0] == SpecError.__name__
    assert "closed" in first[1]
