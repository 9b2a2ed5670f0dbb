"""Where a schedule named on the command line comes from: a file (ours in JSON, or MSCCL XML) or an algorithm.

A name that exists as a file is that file; one that looks like a path and does not exist is an error, not an
algorithm. What a file holds is told by its first character, not by its name. An MSCCL file may claim to work in
place, out of place or both: each claim is a schedule of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from atoll.errors import SpecError, nearest

if TYPE_CHECKING:
    from atoll.schedule.prove import ProvenSchedule
    from atoll.schedule.table import Schedule

_MAX_FILE_BYTES = 1 << 30
_MAX_WORLD = 4096
_F = TypeVar("_F", bound=Callable[..., Any])


def proven(candidate: Candidate) -> ProvenSchedule:
    """The candidate's schedule, proven. Raises ``ScheduleError`` where it is wrong, ``SpecError`` where it is none."""
    from atoll.schedule.prove import prove

    return prove(candidate.schedule())


class Candidate:
    """A schedule to be proven: what it is called, how to make it, and what its file says beside the table.

    ``make`` raises ``SpecError`` or ``ScheduleError``. ``facts`` are filled by ``make``.
    """

    def __init__(self, name: str, make: Callable[[Candidate], Schedule], placement: str = "") -> None:
        self.name = name
        self.placement = placement
        self.facts: dict[str, Any] = {}
        self._make = make

    def schedule(self) -> Schedule:
        return self._make(self)


def source_options(function: _F) -> _F:
    """The options that say which schedule of an algorithm is meant."""
    for option in reversed(
        [
            click.option("--world", type=int, metavar="N", help="Number of ranks; a file knows its own."),
            click.option("--collective", metavar="NAME", help="all-reduce, all-gather, broadcast, ... [all-reduce]"),
            click.option("--root", type=int, metavar="RANK", help="Root of broadcast, reduce, gather, scatter. [0]"),
            click.option("-O", "--option", "options", multiple=True, metavar="NAME=VALUE",
                         help="Option of an algorithm, such as group_size=4; may be repeated."),
            click.option("--out-of-place", is_flag=True, help="Take the form that leaves the input alone."),
        ]
    ):  # fmt: skip
        function = option(function)
    return function


def candidates(
    target: str,
    *,
    world: int | None,
    collective: str | None,
    root: int | None,
    options: Sequence[str] = (),
    out_of_place: bool = False,
) -> list[Candidate]:
    """The schedules that ``target`` stands for. Raises ``SpecError`` where it stands for none."""
    path = Path(target)
    if target == "-":
        return _from_file("stdin", None, world=world, collective=collective, root=root, out_of_place=out_of_place)
    try:
        is_there = path.exists()
    except (OSError, ValueError) as error:
        raise SpecError(f"{target!r}: cannot be a file name: {error}") from None
    if is_there:
        return _from_file(target, path, world=world, collective=collective, root=root, out_of_place=out_of_place)
    if "/" in target or path.suffix.lower() in (".json", ".xml"):
        raise SpecError(f"{target}: no such file")
    return [_from_algorithm(target, world, collective, root, options, out_of_place)]


def collective_name(text: str) -> str:
    """``all-reduce`` or ``all_reduce`` as the name inside the program. Raises ``SpecError`` with the nearest match."""
    from atoll.schedule.contract import COLLECTIVES

    name = text.lower().replace("-", "_")
    if name not in COLLECTIVES:
        known = [known.replace("_", "-") for known in COLLECTIVES]
        raise SpecError(f"unknown collective {text!r}: {nearest(name.replace('_', '-'), known)}")
    return name


def _from_file(
    target: str, path: Path | None, *, world: int | None, collective: str | None, root: int | None, out_of_place: bool
) -> list[Candidate]:
    data = _read(target, path)
    wanted = collective_name(collective) if collective is not None else None

    def checked(schedule: Schedule, root_is_used: bool) -> Schedule:
        header = schedule.header
        for what, said, holds in (
            ("--world", world, header.world_size), ("--collective", wanted, header.collective),
            ("--root", None if root_is_used else root, header.root),
        ):  # fmt: skip
            if said is not None and said != holds:
                raise SpecError(f"{target}: {what} {said}, but the file has {holds}")
        return _placed(schedule, out_of_place)

    start = data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start == b"{":
        from atoll.schedule import table

        return [Candidate(target, lambda _: checked(table.Schedule.from_json(data, target), False))]
    if start != b"<":
        raise SpecError(f"{target}: expected a schedule in JSON or an MSCCL XML file, got something else")

    from atoll.schedule.msccl_check import check
    from atoll.schedule.msccl_lower import lower
    from atoll.schedule.msccl_read import read_msccl_xml

    program = read_msccl_xml(data, target)

    def make(placement: bool) -> Callable[[Candidate], Schedule]:
        def lowered(candidate: Candidate) -> Schedule:
            found = check(program, in_place=placement)
            candidate.facts = {
                "protocol": program.protocol,
                "min_slots": found.min_slots,
                "dependencies": found.dependencies,
                "redundant_dependencies": found.redundant,
                "notes": list(program.notes),
            }
            return checked(lower(found, root), True)

        return lowered

    return [
        Candidate(target, make(placement), "in place" if placement else "out of place")
        for placement in program.placements
        if not (out_of_place and placement and len(program.placements) > 1)
    ]


def _read(target: str, path: Path | None) -> bytes:
    """The bytes of a file, or of standard input."""
    try:
        if path is None:
            data = sys.stdin.buffer.read(_MAX_FILE_BYTES + 1)
        elif path.is_dir():
            raise SpecError(f"{target}: is a folder; name the files in it")
        else:
            with path.open("rb") as file:
                data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{target}: cannot be read: {error.strerror or error}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise SpecError(f"{target}: larger than {_MAX_FILE_BYTES} bytes; that is no schedule")
    if not data.strip():
        raise SpecError(f"{target}: is empty")
    return data


def _from_algorithm(
    target: str, world: int | None, collective: str | None, root: int | None, options: Sequence[str], out_of_place: bool
) -> Candidate:
    from atoll.algorithms.catalog import CATALOG, build, find, names
    from atoll.schedule.contract import COLLECTIVES

    name = target.lower().replace("-", "_")
    if collective is not None:
        chosen = collective_name(collective)
    else:
        having = [entry.collective for entry in CATALOG if entry.name == name]
        if not having:
            known = sorted({entry.name.replace("_", "-") for entry in CATALOG})
            raise SpecError(f"{target!r} is neither a file nor an algorithm: {nearest(target, known)}")
        chosen = "all_reduce" if "all_reduce" in having else having[0]
    if name not in names(chosen):
        known = [known.replace("_", "-") for known in names(chosen)]
        raise SpecError(f"unknown algorithm {target!r} for {chosen.replace('_', '-')}: {nearest(target, known)}")
    if world is None:
        raise SpecError(f"{target}: an algorithm needs the number of ranks: add --world N, such as --world 8")
    if not 1 <= world <= _MAX_WORLD:
        raise SpecError(f"--world: expected 1 to {_MAX_WORLD} ranks, got {world}")
    if root is None and COLLECTIVES[chosen].rooted:
        root = 0
    arguments = _options(target, options, find(chosen, name).options())
    return Candidate(target, lambda _: _placed(build(chosen, name, world, root, **arguments), out_of_place))


def _options(target: str, options: Sequence[str], known: dict[str, str]) -> dict[str, Any]:
    """``NAME=VALUE`` texts as keyword arguments of the types that the algorithm asks for."""
    arguments: dict[str, Any] = {}
    for text in options:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not value:
            raise SpecError(f"-O {text}: expected NAME=VALUE")
        if name not in known:
            raise SpecError(f"{target}: unknown option {name!r}: {nearest(name, known) if known else 'it has none'}")
        kind = known[name]
        if kind.startswith("Sequence"):
            arguments[name] = [part.strip() for part in value.split(",")]
        elif kind.startswith("int"):
            try:
                arguments[name] = int(value)
            except ValueError:
                raise SpecError(f"-O {text}: expected a whole number") from None
        else:
            arguments[name] = value.replace("-", "_")
    return arguments


def _placed(schedule: Schedule, out_of_place: bool) -> Schedule:
    if not out_of_place:
        return schedule
    from atoll.schedule.out_of_place import out_of_place as derive

    return derive(schedule)
