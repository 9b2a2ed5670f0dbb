"""Atoll and its peers on this machine, taking turns in one run: see README.md in this folder.

python benchmarks/peers.py [--quick] [--table all-reduce|collectives|machine|scale] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from peers_report import document, heading, machine, scale_table, sides_lines, table, table_document
from peers_rounds import Contestant, Pair, Row, measure
from peers_world import PeerError, Side, World, atoll_side, machine_side, peer_side

import atoll
from atoll.errors import AtollError
from atoll.runtime.choice import Chooser, Layout
from atoll.runtime.tuning import VARIABLE, load_tuning
from atoll.schedule.count import count
from atoll.schedule.prove import prove
from atoll.units import format_size, parse_size

PEERS = ("gloo", "mpich", "openmpi")
POWERS_OF_4 = (8, *(4**exponent for exponent in range(2, 15)))
QUICK_SIZES = (8, 64 << 10, 1 << 20, 16 << 20)
COLLECTIVES = ("reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier")
COLLECTIVE_SIZES = tuple(4**exponent for exponent in range(8, 14))
SCALE_WORLDS = (2, 4, 8, 16, 32, 64)


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments ask for; the exit status."""
    options = _parser().parse_args(arguments)
    facts: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": ["python", "benchmarks/peers.py", *arguments],
        "machine": machine(),
        "table": options.table,
    }
    print("\n".join(heading(facts)), flush=True)
    tables: list[dict[str, Any]] = []
    failed = False
    try:
        for part in _tables(options):
            tables.append(part)
            failed = failed or any(row["failed"] for row in part["rows"])
        if options.table == "scale":
            for transport in _available(options.transports.split(",")):
                print("\n".join(["", *scale_table(transport, tables)]))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        failed = True
    if options.json:
        Path(options.json).write_text(json.dumps(document(facts, tables), indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Atoll against Gloo, MPICH and Open MPI, taking turns in one run.")
    parser.add_argument("--table", choices=("all-reduce", "collectives", "machine", "scale"), default="all-reduce")
    parser.add_argument("--quick", action="store_true", help="four sizes and short turns: an answer within 50 s")
    parser.add_argument("--peers", default=",".join(PEERS), help="which, by name; empty for none")
    parser.add_argument("--transports", default="tcp,shm", help="Atoll's, by name")
    parser.add_argument("--worlds", help="numbers of ranks, such as 2,4")
    parser.add_argument("--sizes", help="such as 8,64K,1M, instead of every power of 4 from 8 B to 256 MB")
    parser.add_argument("--rounds", type=int, help="pairs of turns for each row, at least 5")
    parser.add_argument("--turn", type=float, metavar="SECONDS", help="how long one turn lasts, at least one call")
    parser.add_argument("--algorithm", default="auto", help="Atoll's, by name")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="a Python that has the peer")
    parser.add_argument(
        "--folder", default=str(Path.home() / ".cache" / "atoll-peers"), help="where peers are installed"
    )
    parser.add_argument(
        "--nice", type=int, default=0, metavar="N", help="priority of all ranks, on a machine in use; -21: real-time"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything as one document")
    return parser


def _tables(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each world's part, printed as it is measured."""
    rounds = options.rounds or {"machine": 15}.get(options.table, 5 if options.quick else 7)
    turn_s = options.turn or (0.01 if options.quick else 0.04)
    worlds = _numbers(options.worlds) or {"machine": (2,), "scale": SCALE_WORLDS}.get(options.table, (2, 4))
    sizes = tuple(parse_size(size) for size in options.sizes.split(",")) if options.sizes else None
    transports = _available(options.transports.split(","))
    peers = tuple(name for name in options.peers.split(",") if name)
    for name in peers:
        if name not in PEERS:
            raise PeerError(f"--peers: expected some of {', '.join(PEERS)}, got {name!r}")
    for world_size in worlds:
        contestants, pairs, cases = _plan(options.table, transports, peers, sizes, options.quick)
        sides = _sides(contestants, options, world_size)
        part = _one_world(sides, contestants, pairs, cases, world_size, rounds, turn_s, options.nice)
        if options.table == "scale":
            for row in part["rows"]:
                row["schedules"] = {
                    transport: _schedule(options.algorithm, transport, world_size, row["size_bytes"])
                    for transport in transports
                }
        yield part
        if part["interrupted"]:
            raise KeyboardInterrupt


def _plan(
    which: str, transports: Sequence[str], peers: Sequence[str], sizes: Sequence[int] | None, quick: bool
) -> tuple[list[Contestant], list[Pair], list[tuple[str, int]]]:
    """Who is timed, who is compared with whom, and on what."""
    if which == "machine":
        shared = Contestant("empty", "shm", shared=True)
        rows = [("all_reduce", size) for size in sizes or (256 << 20,)]
        return [shared, Contestant("machine", "machine")], [Pair("empty", "machine")], rows
    if which == "scale":
        rows = [("all_reduce", size) for size in sizes or (8, 1 << 20)]
        return [Contestant(transport, transport) for transport in transports], [], rows
    if which == "collectives":
        chosen = [name for name in peers if name in ("gloo", "mpich")]
        contestants = [Contestant(name, name) for name in (*transports, *chosen)]
        rows = [
            (collective, size)
            for collective in COLLECTIVES
            for size in (
                (4,) if collective == "barrier" else sizes or (COLLECTIVE_SIZES[:3] if quick else COLLECTIVE_SIZES)
            )
        ]
        return contestants, [Pair(transport, name) for transport in transports for name in chosen], rows
    rows = [("all_reduce", size) for size in sizes or (QUICK_SIZES if quick else POWERS_OF_4)]
    contestants, pairs = [], []
    mpis = [name for name in peers if name != "gloo"]
    if "gloo" in peers:
        # torch.distributed reduces in place; so does Atoll against it.
        contestants += [Contestant(f"{transport}", transport, in_place=True) for transport in transports]
        contestants.append(Contestant("gloo", "gloo", in_place=True))
        pairs += [Pair(transport, "gloo") for transport in transports]
    if mpis and "shm" in transports:
        contestants += [Contestant("shm out", "shm"), Contestant("empty", "shm", shared=True)]
        contestants += [Contestant(name, name) for name in mpis]
        pairs += [Pair(label, name) for label in ("shm out", "empty") for name in mpis]
    elif mpis:
        contestants += [Contestant("tcp out", "tcp"), *(Contestant(name, name) for name in mpis)]
        pairs += [Pair("tcp out", name) for name in mpis]
    if not peers:
        contestants += [Contestant(transport, transport) for transport in transports]
    return contestants, pairs, rows


def _sides(contestants: Sequence[Contestant], options: argparse.Namespace, world_size: int) -> list[Side]:
    pythons = dict(entry.partition("=")[::2] for entry in options.python)
    sides: list[Side] = []
    for name in dict.fromkeys(contestant.side for contestant in contestants):
        if name in PEERS:
            sides.append(peer_side(name, Path(options.folder), world_size, pythons))
        elif name == "machine":
            sides.append(machine_side())
        else:
            sides.append(atoll_side(name, options.algorithm))
    return sides


def _one_world(
    sides: Sequence[Side], contestants: Sequence[Contestant], pairs: Sequence[Pair], cases: Sequence[tuple[str, int]],
    world_size: int, rounds: int, turn_s: float, nice: int,
) -> dict[str, Any]:  # fmt: skip
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        worlds = {side.name: stack.enter_context(World(side, world_size, nice)) for side in sides}
        for world in worlds.values():
            world.ready()
        about = {side.name: (worlds[side.name].version, side.settings) for side in sides}
        print("\n".join(["", *sides_lines(about)]), flush=True)
        rows: list[Row] = []
        interrupted = False
        try:
            for collective, size_bytes in cases:
                if not worlds:
                    break
                say = partial(_say, f"world {world_size}, {collective} {format_size(size_bytes)}, ")
                rows.append(measure(worlds, contestants, collective, size_bytes, rounds, turn_s, say))
        except KeyboardInterrupt:
            interrupted = True  # the rows so far are kept
        _say()
        for collective in dict.fromkeys(row.collective for row in rows):
            chosen = [row for row in rows if row.collective == collective]
            print("\n".join(["", *table(collective, world_size, chosen, contestants, pairs)]))
        print(f"# {time.monotonic() - began:.0f} s", flush=True)
    return table_document(about, world_size, rows, contestants, pairs) | {"interrupted": interrupted}


def _schedule(algorithm: str, transport: str, world_size: int, size_bytes: int) -> dict[str, Any]:
    """Name and steps of the algorithm that ran."""
    chooser = Chooser(load_tuning(os.environ.get(VARIABLE) or None), Layout(world_size, transport))
    name = chooser.choose("all_reduce", size_bytes) if algorithm == "auto" else algorithm
    return {"algorithm": name, "steps": count(prove(chooser.build("all_reduce", name, None))).steps}


def _available(transports: Sequence[str]) -> list[str]:
    """Those that this Atoll has: before it had a choice, it had TCP."""
    if "transport" in inspect.signature(atoll.init).parameters:
        return list(transports)
    return [name for name in transports if name == "tcp"]


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",")) if text else ()


def _say(*texts: str) -> None:
    """Where the run is, on a terminal."""
    if sys.stderr.isatty():
        print("\r\x1b[K", *texts, sep="", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends it gets the rows so far, too
    try:
        sys.exit(main(sys.argv[1:]))
    except (PeerError, AtollError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
