"""``--kill-rank R``: the ring without one of its ranks, in three parts.

1. The lab's own ring, nobody with a deadline. Rank R freezes in the middle (SIGSTOP): as when its host has lost power
   or a driver is stuck, its connections stay open and nothing comes through them. Every rank waits for its left
   neighbour, as it should; nobody raises anything. Only who looks at all of them sees where the chain ends.
2. The library's ring, rank R killed (SIGKILL): its control connections tell every survivor who is gone.
3. With a spare in its place the job goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from typing import Any

import msgspec
import numpy as np
from exercise import Exercise
from world import Frame, Place, Stuck, run_world

from atoll.cli.demo import error_lines, sum_lines
from atoll.errors import InternalError
from atoll.resilience.chaos_plan import Kind
from atoll.resilience.hang_demo import recover

LOOK_S = 3.0
HEARTBEAT_S = 1.0


def run(args: argparse.Namespace, exercise: Exercise) -> int:
    """All three parts; the exit status."""
    if not args.json:
        print(f"1. Without a deadline: {args.world} ranks all-reduce by the lab's ring; rank {args.kill_rank} freezes.")
    stacks = freeze(args.world, args.kill_rank, exercise)
    if not args.json:
        print("\n".join(frozen_lines(args.world, stacks)))
        print(f"\n2. By the library, rank {args.kill_rank} killed: its control connections end.")
    end = recover(args.world, args.kill_rank, Kind.KILL, HEARTBEAT_S)
    right = all(value == end.expected for value in end.sums.values())
    if args.json:
        waiting = {rank: frames[-1].function if frames else "" for rank, frames in sorted(stacks.items())}
        document = {"schema_version": 1, "waiting_in": waiting, "silent": [args.kill_rank], "right": right,
                    "recovery": msgspec.to_builtins(end, str_keys=True)}  # fmt: skip
        print(json.dumps(document, indent=2))
    else:
        print("\n".join(error_lines(end)))
        print("\n3. And with a spare, that waited in atoll.init until comm.grow() called it.")
        print("\n".join(sum_lines(end)))
    return 0 if right else 1


def freeze(world_size: int, victim: int, exercise: Exercise) -> dict[int, tuple[Frame, ...]]:
    """Where each rank is when the ring has stood still for ``LOOK_S``; the frozen one cannot say."""

    def body(place: Place) -> Any:
        vector = np.full(1 << 16, place.rank + 1.0)
        for number in range(3):
            if place.rank == victim and number == 2:
                os.kill(os.getpid(), signal.SIGSTOP)
            exercise.ring_all_reduce(place.rank, world_size, vector, place.left, place.right, exercise.counter())
            place.report(number)

    try:
        run_world(world_size, body, deadline_s=LOOK_S)
    except Stuck as stuck:
        return {rank: frames for rank, frames in stuck.stacks.items() if rank != victim}
    raise InternalError("a ring with a frozen rank has come to an end")


def frozen_lines(world_size: int, stacks: dict[int, tuple[Frame, ...]]) -> list[str]:
    """The first part, for people."""
    lines = [f"   {LOOK_S:g} s later nobody has raised anything:"]
    for rank in range(world_size):
        if rank in stacks:
            where = next((frame.function for frame in reversed(stacks[rank]) if frame.function == "exchange"), "")
            lines.append(f"     rank {rank} waits for rank {(rank - 1) % world_size}{', in ' + where if where else ''}")
        else:
            lines.append(f"     rank {rank} says nothing")
    return lines
