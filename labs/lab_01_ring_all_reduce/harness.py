"""The command line of the lab: arguments, and errors as one line.

``main`` is given the exercise's functions and hands them to what the command line asks for:

``comparison``  the ring, checked, counted, and side by side with the naive way (without an option)
``sweep``       the latency of ring and tree over sizes (``--algorithm tree``)
``buckets``     gradient bucketing and overlap with the library's communicator (``--buckets``)
``lost_rank``   a rank that freezes or dies: the hang, the culprit, and the job that goes on (``--kill-rank``)

Exit status: 0 when all is right, 1 when a check failed, 2 for arguments that make no sense, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import buckets
import comparison
import lost_rank
import numpy as np
import sweep
import vectors
from exercise import Exercise
from world import RankRaised, WorldError

from atoll.errors import AtollError, SpecError, nearest
from atoll.units import format_size, format_size_argument, parse_size

MAX_WORLD_SIZE = 64
# The inputs and results of all ranks are also computed here, to compare with.
MAX_TOTAL_BYTES = 2 << 30
DEFAULT_SIZE = {"ring": "4M", "tree": "16M"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SpecError(message)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked; raises ``SpecError``."""
    parser = _Parser(description="The ring all-reduce among processes of this host, checked, counted and compared.",
                     allow_abbrev=False)  # fmt: skip
    parser.add_argument("--world", default="4", metavar="N", help="ranks, each a process (default 4)")
    parser.add_argument("--size", metavar="SIZE", help="bytes of a rank's vector: 4M is 4 MiB (default 4M; with "
                        "--algorithm tree the largest of the sweep, 16M)")  # fmt: skip
    parser.add_argument("--algorithm", default="ring", metavar="NAME", help="ring, or tree: its latency against the "
                        "ring's, and the size at which they cross")  # fmt: skip
    parser.add_argument("--buckets", action="store_true", help="many small all-reduces against a few large ones, and "
                        "overlapped with compute, by the library's communicator")  # fmt: skip
    parser.add_argument("--kill-rank", metavar="R", help="a rank freezes or dies: the hang, who waits for whom, then "
                        "by the library the culprit, and the sum with a spare in its place")  # fmt: skip
    parser.add_argument("--dtype", default="float32", metavar="NAME", help="float32 (default), int64, ...")
    parser.add_argument("--seed", default="0", metavar="S", help="of the data (default 0)")
    parser.add_argument("--repeat", default="5", metavar="R", help="timed runs, of which the median counts (default 5)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    args = parser.parse_args(argv)
    args.world = _whole("--world", args.world, 1, MAX_WORLD_SIZE)
    args.seed = _whole("--seed", args.seed, 0, 2**63 - 1)
    args.repeat = _whole("--repeat", args.repeat, 1, 10_000)
    if args.algorithm not in DEFAULT_SIZE:
        raise SpecError(f"--algorithm: unknown, got {args.algorithm!r}; {nearest(args.algorithm, DEFAULT_SIZE)}")
    if args.dtype not in vectors.DTYPES:
        raise SpecError(f"--dtype: unknown, got {args.dtype!r}; "
                        f"{nearest(args.dtype, vectors.DTYPES)}")  # fmt: skip
    if args.buckets and (args.algorithm != "ring" or args.size is not None or args.dtype != "float32"):
        raise SpecError("--buckets has gradients of its own: expected no --algorithm, --size or --dtype with it")
    if args.kill_rank is not None:
        if args.buckets or args.algorithm != "ring" or args.size is not None or args.dtype != "float32":
            raise SpecError(
                "--kill-rank has a vector of its own: expected no --buckets, --algorithm, --size or --dtype"
            )
        if args.world < 3:
            raise SpecError(f"--kill-rank: expected --world 3 or more, so that a majority goes on, got {args.world}")
        args.kill_rank = _whole("--kill-rank", args.kill_rank, 0, args.world - 1)
    args.dtype = np.dtype(args.dtype)
    args.size = parse_size(DEFAULT_SIZE[args.algorithm] if args.size is None else args.size, "--size")
    if args.size * args.world > MAX_TOTAL_BYTES:
        raise SpecError(f"--size: {format_size(args.size)} on each of {args.world} ranks: expected at most "
                        f"{format_size(MAX_TOTAL_BYTES)} in all, since every rank's result is also computed here; "
                        f"at most {format_size_argument(MAX_TOTAL_BYTES // args.world)} a rank")  # fmt: skip
    return args


def _whole(option: str, text: str, smallest: int, largest: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = smallest - 1
    if not smallest <= value <= largest:
        raise SpecError(f"{option}: expected a whole number from {smallest} to {largest}, got {text!r}")
    return value


def main(
    ring_all_reduce: Callable[..., None],
    exchange: Callable[..., None],
    counter: Callable[[], Any],
    argv: Sequence[str] | None = None,
) -> NoReturn:
    """Run the exercise as the command line asks and exit."""
    exercise = Exercise(ring_all_reduce, exchange, counter)
    try:
        args = parse(argv)
        if args.buckets:
            status = buckets.start(args.world, args.seed, args.repeat, args.json)
        elif args.kill_rank is not None:
            status = lost_rank.run(args, exercise)
        elif args.algorithm == "tree":
            status = sweep.run(args, exercise)
        else:
            status = comparison.run(args, exercise)
    except WorldError as error:
        status = 1
        print(f"error: {_explain(error)}", file=sys.stderr)
    except AtollError as error:
        status = error.exit_status
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        status = 130
        print("interrupted", file=sys.stderr)
    sys.exit(status)


def _explain(error: WorldError) -> str:
    file = Path(sys.argv[0]).name
    if isinstance(error, RankRaised) and error.kind == "NotImplementedError":
        return f"{error.text} Once it is written, python check.py {file} judges it."
    where = ""
    if isinstance(error, RankRaised) and error.frames:
        last = error.frames[-1]
        where = f", at {Path(last.file).name} line {last.line} in {last.function}"
    return f"{error}{where}; python check.py {file} says more"
