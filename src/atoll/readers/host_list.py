"""Lists of hosts: Slurm's compressed form, MPI hostfiles, and plain lists."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from atoll.errors import SpecError
from atoll.readers.source import Source
from atoll.readers.text_stream import text_lines


class Host(msgspec.Struct, frozen=True):
    """One host; ``slots`` where a hostfile gives how many ranks it takes."""

    name: str
    source: Source
    slots: int | None = None


MAX_HOSTS: Final = 200_000

_ITEM: Final = re.compile(r"[A-Za-z0-9_](?:[\w.:-]|\[[\d,\-]{1,4000}\]){0,4000}")
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_SLOTS: Final = re.compile(r"(?:slots|max[-_]slots)\s*=\s*(\d{1,6})|:(\d{1,6})$")


def expand_node_list(text: str, where: str = "node list") -> tuple[str, ...]:
    """Slurm's compressed form as names: ``node[001-003,7],gpu1`` is node001 node002 node003 node7 gpu1.

    Several brackets multiply (``rack[1-2]node[1-2]``); leading zeros are kept. Raises ``SpecError`` naming ``where``
    for what is no such list or has more than ``MAX_HOSTS`` names.
    """
    names: list[str] = []
    for item in _split(text, where):
        names.extend(_expand(item, where))
        if len(names) > MAX_HOSTS:
            raise SpecError(f"{where}: more than {MAX_HOSTS} hosts")
    return tuple(names)


def read_host_list(text: str | bytes, file: str) -> tuple[Host, ...]:
    """The hosts of a hostfile (``host slots=8``, ``host:8``, ``host``) or of node lists, one or more a line.

    A host that is listed n times, as MPI machine files do, has n slots. Raises ``SpecError`` with file and line where a
    line is no host or there is none.
    """
    hosts: dict[str, Host] = {}
    for line in text_lines(text):
        body = line.text.partition("#")[0].strip()
        if not body:
            continue
        where = f"{file}:{line.number}"
        slots: int | None = None
        if (match := _SLOTS.search(body)) is not None:
            slots = int(match[1] or match[2])
            body = body[: match.start()].strip()
        for name in expand_node_list(body, where):
            before = hosts.get(name)
            if before is None:
                hosts[name] = Host(name, line.source(file), slots)
            else:
                hosts[name] = msgspec.structs.replace(before, slots=(before.slots or 1) + (slots or 1))
            if len(hosts) > MAX_HOSTS:
                raise SpecError(f"{where}: more than {MAX_HOSTS} hosts")
    if not hosts:
        raise SpecError(f"{file}: no host: expected one a line, or a list such as node[001-004]")
    return tuple(hosts.values())


def _split(text: str, where: str) -> list[str]:
    """The items of a list, at commas and spaces outside brackets."""
    items: list[str] = []
    depth = start = 0
    for at, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        elif depth == 0 and letter in ", \t":
            items.append(text[start:at])
            start = at + 1
        if depth not in (0, 1):
            break
    if depth != 0:
        raise SpecError(f"{where}: brackets of {text[:60]!r} do not match; expected a list such as node[001-004,7]")
    items.append(text[start:])
    found = [item for item in items if item]
    if not found:
        raise SpecError(f"{where}: no host in {text[:60]!r}; expected a list such as node[001-004,7]")
    return found


def _expand(item: str, where: str) -> list[str]:
    if _ITEM.fullmatch(item) is None:
        raise SpecError(f"{where}: {item[:60]!r} is no host name; expected one such as node[001-004,7]")
    names = [""]
    rest = item
    while rest:
        head, bracket, tail = rest.partition("[")
        numbers = [""]
        if bracket:
            inside, _, rest = tail.partition("]")
            numbers = _numbers(inside, where)
        else:
            rest = ""
        if len(names) * len(numbers) > MAX_HOSTS:
            raise SpecError(f"{where}: more than {MAX_HOSTS} hosts")
        names = [name + head + number for name in names for number in numbers]
    return names


def _numbers(inside: str, where: str) -> list[str]:
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise SpecError(f"{where}: {part[:40]!r} is no range of numbers; expected one such as 001-004")
        last = int(match[2]) if match[2] is not None else int(match[1])
        if last - int(match[1]) + len(numbers) > MAX_HOSTS:
            raise SpecError(f"{where}: more than {MAX_HOSTS} hosts")
        numbers.extend(str(number).zfill(len(match[1])) for number in range(int(match[1]), last + 1))
    return numbers
