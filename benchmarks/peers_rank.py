"""One rank of one side of the comparison: waits asleep for commands on a socket, and times collectives.

    python peers_rank.py SIDE SOCKET

``SIDE`` is ``atoll``, ``gloo``, ``mpi`` or ``machine``; the launcher has set where this rank stands. The rank connects
to the Unix socket of ``peers.py``, says who it is, and obeys one JSON line after the other. Between commands it is
blocked in a read: while the other side is timed, this one uses no processor.

Every side does the same thing with the same memory: float32 arrays made once for a size, filled with whole numbers
whose sums are exact, the result of the first call checked element by element. ``machine`` is no library: it does, in
as many processes and without any synchronisation, the additions and copies that an all-reduce cannot do without.
Written for every peer's Python, so it imports nothing of Atoll but where the side is Atoll.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
Call = Callable[[], Any]
LARGEST = 61  # of the whole numbers: sums of 64 ranks stay exact in float32
WHOLE_INPUT = ("all_reduce", "reduce_scatter", "all_to_all", "broadcast")
WHOLE_OUTPUT = ("all_reduce", "all_gather", "all_to_all", "broadcast")


class Atoll:
    """``transport`` and the tuning file come from the environment, as a user would set them."""

    def __init__(self) -> None:
        import atoll

        self.comm = atoll.init(timeout=300.0)
        self.rank, self.world_size = self.comm.rank, self.comm.world_size
        self.version = f"Atoll {atoll.__version__}"
        self.algorithm = os.environ.get("PEERS_ALGORITHM", "auto")

    def empty(self, count: int, shared: bool) -> Array:
        return self.comm.empty((count,), np.float32) if shared else np.empty(count, np.float32)

    def call(self, collective: str, source: Array, out: Array) -> Call:
        comm, name = self.comm, self.algorithm
        if collective == "barrier":
            return comm.barrier
        if collective == "broadcast":
            return lambda: comm.broadcast(out, 0, algorithm=name)
        method = getattr(comm, collective)
        return lambda: method(source, out=out, algorithm=name)

    def barrier(self) -> None:
        self.comm.barrier()

    def close(self) -> None:
        self.comm.barrier()
        self.comm.close()


class Gloo:
    """``torch.distributed`` with its Gloo backend, on tensors that are the arrays' memory."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.torch, self.dist = torch, dist
        self.rank, self.world_size = int(os.environ["ATOLL_RANK"]), int(os.environ["ATOLL_WORLD_SIZE"])
        dist.init_process_group(
            "gloo", init_method=f"file://{os.environ['PEERS_STORE']}", rank=self.rank, world_size=self.world_size
        )
        self.version = f"Gloo of torch {torch.__version__}"

    def empty(self, count: int, shared: bool) -> Array:
        return np.empty(count, np.float32)

    def call(self, collective: str, source: Array, out: Array) -> Call:
        dist = self.dist
        if collective == "barrier":
            return dist.barrier
        ours, theirs = self.torch.from_numpy(source), self.torch.from_numpy(out)
        match collective:
            case "all_reduce":
                if ours.data_ptr() != theirs.data_ptr():
                    raise ValueError("torch.distributed reduces in place only")
                return lambda: dist.all_reduce(theirs)
            case "reduce_scatter":
                return lambda: dist.reduce_scatter_tensor(theirs, ours)
            case "all_gather":
                return lambda: dist.all_gather_into_tensor(theirs, ours)
            case "all_to_all":
                return lambda: dist.all_to_all_single(theirs, ours)
            case _:
                return lambda: dist.broadcast(theirs, 0)

    def barrier(self) -> None:
        self.dist.barrier()

    def close(self) -> None:
        self.dist.barrier()
        self.dist.destroy_process_group()


class Mpi:
    """mpi4py's buffer methods (with a capital letter), which add no copy to the library's own."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.world_size = self.comm.rank, self.comm.size
        self.version = " ".join(MPI.Get_library_version().split(",")[0].split("\n")[0].replace("Version:", "").split())

    def empty(self, count: int, shared: bool) -> Array:
        return np.empty(count, np.float32)

    def call(self, collective: str, source: Array, out: Array) -> Call:
        comm = self.comm
        given = self.mpi.IN_PLACE if source is out else source
        match collective:
            case "barrier":
                return comm.Barrier
            case "all_reduce":
                return lambda: comm.Allreduce(given, out)
            case "reduce_scatter":
                return lambda: comm.Reduce_scatter_block(source, out)
            case "all_gather":
                return lambda: comm.Allgather(source, out)
            case "all_to_all":
                return lambda: comm.Alltoall(source, out)
            case _:
                return lambda: comm.Bcast(out, 0)

    def barrier(self) -> None:
        self.comm.Barrier()

    def close(self) -> None:
        self.comm.Barrier()


class Machine:
    """What any all-reduce must touch, done by N processes side by side that never wait for each other.

    A rank sums 1/N of the vector over N vectors (N - 1 additions: two reads and a write each) and copies the rest,
    which others have summed (a read and a write): for two ranks 2.5 times the vector's bytes. The kernels are Atoll's
    own, ``np.add`` and ``np.copyto``; of vectors larger than the caches, all memory is cold.
    """

    def __init__(self) -> None:
        self.rank, self.world_size = int(os.environ["ATOLL_RANK"]), int(os.environ["ATOLL_WORLD_SIZE"])
        self.version = "the same additions and copies, unsynchronised"

    def empty(self, count: int, shared: bool) -> Array:
        return np.empty(count, np.float32)

    def call(self, collective: str, source: Array, out: Array) -> Call:
        others = np.array_split(np.ones_like(source), self.world_size)
        mine = np.array_split(source, self.world_size)[0]
        summed, *copied = np.array_split(out, self.world_size)

        def call() -> None:
            np.add(mine, others[0], out=summed)
            for other in others[1:-1]:
                np.add(summed, other, out=summed)
            for target, other in zip(copied, others[1:], strict=True):
                np.copyto(target, other)

        return call

    def barrier(self) -> None:
        pass

    def close(self) -> None:
        pass


class Measured:
    """The arrays and the call of one collective and size; checked when made, then filled with zeros.

    Zeros stay zeros, however often they are summed in place.
    """

    def __init__(self, side: Any, collective: str, size_bytes: int, in_place: bool, shared: bool, check: bool) -> None:
        rank, world_size = side.rank, side.world_size
        count = max(size_bytes // 4 // world_size, 1) * world_size if collective != "all_reduce" else size_bytes // 4
        source = side.empty(count if collective in WHOLE_INPUT else count // world_size, shared)
        in_place = in_place or collective == "broadcast"
        output = count if collective in WHOLE_OUTPUT else count // world_size
        out = source if in_place and collective in ("all_reduce", "broadcast") else side.empty(output, shared)
        out[:] = -1.0
        source[:] = _values(rank, source.size)
        self.call = side.call(collective, source, out)
        self.wrong: int | None = None
        if check and collective != "barrier":
            side.barrier()
            self.call()
            self.wrong = int(np.count_nonzero(out != _expected(collective, rank, world_size, count)))
        source[:] = 0.0
        out[:] = 0.0


def _values(rank: int, count: int) -> Array:
    return ((np.arange(count, dtype=np.int32) + 7 * rank) % LARGEST).astype(np.float32)


def _expected(collective: str, rank: int, world_size: int, count: int) -> Array:
    block = count // world_size
    mine = slice(rank * block, (rank + 1) * block)
    if collective == "broadcast":
        return _values(0, count)
    if collective == "all_gather":
        return np.concatenate([_values(other, block) for other in range(world_size)])
    if collective == "all_to_all":
        return np.concatenate([_values(other, count)[mine] for other in range(world_size)])
    total = _values(0, count)
    for other in range(1, world_size):
        total += _values(other, count)
    return total[mine] if collective == "reduce_scatter" else total


def _time(side: Any, call: Call, calls: int) -> dict[str, float]:
    """Per call: seconds, processor seconds in this process, and how often it went to sleep.

    The first calls are left out: caches hold what whoever ran before has left.
    """
    for _ in range(max(1, calls // 8)):
        call()
    side.barrier()
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds / calls,
        "user_s": (after.ru_utime - before.ru_utime) / calls,
        "system_s": (after.ru_stime - before.ru_stime) / calls,
        "sleeps": (after.ru_nvcsw - before.ru_nvcsw) / calls,
    }


def main(name: str, path: str) -> None:
    """Obey until told to stop, or until the other end of the socket is gone."""
    side: Any = {"atoll": Atoll, "gloo": Gloo, "mpi": Mpi, "machine": Machine}[name]()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        lines = connection.makefile("r", encoding="utf-8")

        def say(**facts: Any) -> None:
            connection.sendall(json.dumps(facts).encode() + b"\n")

        say(rank=side.rank, version=side.version, pid=os.getpid())
        kept: dict[tuple[Any, ...], Measured] = {}
        key: tuple[Any, ...] = ()
        for line in lines:
            command = json.loads(line)
            match command["do"]:
                case "prepare":
                    key = (command["collective"], command["size_bytes"], command["in_place"], command["shared"])
                    if any(other[:2] != key[:2] for other in kept):
                        kept.clear()  # the memory of one size goes before that of the next comes
                    if key not in kept:
                        kept[key] = Measured(side, *key, check=command["check"] and name != "machine")
                    say(wrong=kept[key].wrong)
                case "time":
                    say(**_time(side, kept[key].call, command["calls"]))
                case "release":
                    kept.clear()
                    say()
                case _:
                    side.close()
                    say()
                    return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
