"""The tuning file: which algorithm ``auto`` takes, as a table that a person can read, change, and measure anew.

One ``[[table]]`` for a collective, a transport and a world size. Its rules say from which size on an algorithm is
taken, one line for each order that a reduction may be asked for (``runtime.stability``); the size is the whole
vector's::

    schema_version = 1

    [origin]
    machine = "..."
    command = "atoll tune --world 2,4,8"

    [[table]]
    collective = "all_reduce"
    transport = "shm"                # shm, tcp, or mixed: shared memory within hosts, TCP across
    world = 4
    any = { 0 = "recursive_doubling", 64K = "direct" }
    fixed = { 0 = "recursive_doubling", 256K = "halving_doubling" }

What the rules were made from may stand beside them; ``auto`` does not read it, ``atoll explain`` does::

    sizes = ["8", "64K", "1M"]
    link = { latency = "9.1us", bandwidth = "4.1GB/s", reduce = "9GB/s", off = 0.2 }
    [table.measured]
    ring = ["82us", "240us", "1.9ms"]

All ranks of a world must choose alike, so there is one table for a world: rank 0 reads the file and sends its rules to
everyone who joins (``pack``). Whoever gets them checks them as if they were a file.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from atoll.algorithms import catalog
from atoll.errors import SpecError, nearest
from atoll.runtime.stability import ORDERS, Order, stable_algorithms
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.cost import Link
from atoll.units import (
    format_bandwidth,
    format_duration,
    format_size_argument,
    parse_bandwidth,
    parse_duration,
    parse_size,
)

SCHEMA_VERSION: Final = 1
VARIABLE: Final = "ATOLL_TUNING"
TRANSPORTS: Final = ("shm", "tcp", "mixed")
DEFAULT_FILE: Final = Path(__file__).with_name("tuning.toml")
# The same rules with what they were made from, apart so that a job starts sooner.
MEASURED_FILE: Final = Path(__file__).with_name("tuning_measured.toml")
MAX_FILE_BYTES: Final = 1 << 20
MAX_PACKED_BYTES: Final = 1 << 16

_Value = TypeVar("_Value")
Word = Annotated[str, msgspec.Meta(max_length=64)]
# (from this size on in bytes, algorithm), sizes ascending from 0.
Rules = Annotated[tuple[tuple[Annotated[int, msgspec.Meta(ge=0)], Word], ...], msgspec.Meta(max_length=256)]


class Fit(msgspec.Struct, frozen=True):
    """alpha, beta and gamma fitted to what was measured; ``off`` is the median error on sizes left out of the fit."""

    link: Link
    off: float


class Table(msgspec.Struct, frozen=True):
    """The rules of one collective, transport and world size, by order; and what they come from, where that is known.

    ``measured[name][i]`` is the time in seconds for ``sizes_bytes[i]``, None where it was not measured.
    """

    collective: Word
    transport: Word
    world_size: Annotated[int, msgspec.Meta(ge=1)]
    rules: dict[Order, Rules]
    sizes_bytes: tuple[int, ...] = ()
    measured: dict[str, tuple[float | None, ...]] = {}
    fit: Fit | None = None

    def algorithm(self, size_bytes: int, order: Order) -> str | None:
        """The rule for a size; None where the table has none for the order."""
        name = None
        for start, candidate in self.rules.get(order, ()):
            if start > size_bytes:
                break
            name = candidate
        return name


class Tuning(msgspec.Struct, frozen=True):
    """All tables of a file. ``origin`` is for people: machine, date, command."""

    tables: Annotated[tuple[Table, ...], msgspec.Meta(max_length=4096)]
    origin: dict[str, str] = {}

    def table(self, collective: str, transport: str, world_size: int) -> Table | None:
        """The table of the nearest world, at most twice or half as large; the larger of two that are as near."""
        known = [table for table in self.tables if (table.collective, table.transport) == (collective, transport)]
        if not known:
            return None
        nearest_one = min(known, key=lambda table: (_apart(table.world_size, world_size), -table.world_size))
        return nearest_one if _apart(nearest_one.world_size, world_size) <= 1 else None


def _apart(one: int, other: int) -> float:
    return abs(math.log2(one / other))


def load_tuning(path: str | Path | None) -> Tuning:
    """The tuning file at ``path``, the package's own by default. ``SpecError`` for what is wrong with it."""
    file = DEFAULT_FILE if path is None else Path(path)
    try:
        with open(file, "rb") as opened:
            text = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SpecError(f"tuning file {str(file)!r}: cannot be read: {error.strerror}") from None
    if len(text) > MAX_FILE_BYTES:
        raise SpecError(f"tuning file {str(file)!r}: more than {MAX_FILE_BYTES} bytes")
    return parse_tuning(text, str(file))


def parse_tuning(text: bytes | str, file: str = "tuning file") -> Tuning:
    """What ``text`` says. ``SpecError`` names the table and the key that is wrong."""
    try:
        document = tomllib.loads(text if isinstance(text, str) else text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{file}: not TOML: {error}") from None
    _known_keys(document, ("schema_version", "origin", "table"), file)
    if document.get("schema_version") != SCHEMA_VERSION:
        raise SpecError(f"{file}: schema_version: expected {SCHEMA_VERSION}, got {document.get('schema_version')!r}")
    origin, tables = document.get("origin", {}), document.get("table", [])
    if not isinstance(origin, dict) or not isinstance(tables, list):
        raise SpecError(f"{file}: expected [origin] and [[table]]")
    read = tuple(_table(entry, f"{file}: table {number}") for number, entry in enumerate(tables, 1))
    return check(Tuning(read, {key: str(value) for key, value in origin.items()}), file)


def check(tuning: Tuning, source: str) -> Tuning:
    """``tuning``, if its rules make sense; ``SpecError`` with the first that does not."""
    seen = set()
    for table in tuning.tables:
        where = f"{source}: {table.collective} over {table.transport} among {table.world_size}"
        names = catalog.names(table.collective)
        if table.transport not in TRANSPORTS:
            raise SpecError(f"{where}: transport: {nearest(table.transport, TRANSPORTS)}")
        key = (table.collective, table.transport, table.world_size)
        if key in seen:
            raise SpecError(f"{where}: there are two such tables")
        seen.add(key)
        for order, rules in table.rules.items():
            starts = [start for start, _ in rules]
            if not rules or starts[0] != 0 or starts != sorted(set(starts)):
                raise SpecError(f"{where}: {order}: expected sizes that ascend from 0, got {starts}")
            allowed = stable_algorithms(table.collective, order)
            for _, name in rules:
                if name not in names:
                    raise SpecError(f"{where}: {order}: unknown algorithm {name!r}: {nearest(name, names)}")
                if allowed is not None and name not in allowed:
                    raise SpecError(
                        f"{where}: {order}: {name} has not that order in every world; {' or '.join(allowed)}"
                    )
    return tuning


def pack(tuning: Tuning) -> bytes:
    """The rules alone, to be sent to the other ranks."""
    bare = tuple(Table(table.collective, table.transport, table.world_size, table.rules) for table in tuning.tables)
    packed = msgspec.msgpack.encode(Tuning(bare))
    if len(packed) > MAX_PACKED_BYTES:
        raise SpecError(f"tuning file: its rules take {len(packed)} bytes, at most {MAX_PACKED_BYTES} can be sent")
    return packed


@lru_cache(maxsize=8)
def unpack(packed: bytes) -> Tuning:
    """What rank 0 has sent; the package's own where it has sent nothing. ``SpecError`` for nonsense."""
    if not packed:
        return load_tuning(None)
    try:
        tuning = msgspec.msgpack.decode(packed, type=Tuning)
    except msgspec.MsgspecError as error:
        raise SpecError(f"the tuning that rank 0 has sent: {error}") from None
    return check(tuning, "the tuning that rank 0 has sent")


def format_tuning(tuning: Tuning) -> str:
    """The file's text; reading it gives ``tuning`` again, but for the digits of times."""
    lines = ["# Which algorithm auto takes. `atoll tune` measures and writes this; it may be edited.",
             f"schema_version = {SCHEMA_VERSION}"]  # fmt: skip
    if tuning.origin:
        lines += ["", "[origin]", *(f"{_bare(key)} = {_quoted(value)}" for key, value in tuning.origin.items())]
    for table in tuning.tables:
        lines += ["", "[[table]]", f'collective = "{table.collective}"', f'transport = "{table.transport}"',
                  f"world = {table.world_size}"]  # fmt: skip
        for order, rules in table.rules.items():
            written = (f'{format_size_argument(start)} = "{name}"' for start, name in rules)
            lines.append(f"{order} = {{ {', '.join(written)} }}")
        if table.sizes_bytes:
            lines.append(f"sizes = {_list(format_size_argument(size) for size in table.sizes_bytes)}")
        if table.fit is not None:
            link = table.fit.link
            rates = {
                "latency": format_duration(link.latency_s),
                "bandwidth": format_bandwidth(link.bandwidth_bytes_per_s),
            }
            if math.isfinite(link.reduce_bytes_per_s):
                rates["reduce"] = format_bandwidth(link.reduce_bytes_per_s)
            pairs = ", ".join(f'{key} = "{value}"' for key, value in rates.items())
            lines.append(f"link = {{ {pairs}, off = {table.fit.off:.2f} }}")
        if table.measured:
            lines.append("[table.measured]")
            for name, times in table.measured.items():
                lines.append(f"{name} = {_list('' if time is None else format_duration(time) for time in times)}")
    return "\n".join(lines) + "\n"


def _table(entry: Any, where: str) -> Table:
    if not isinstance(entry, dict):
        raise SpecError(f"{where}: expected a table, got {entry!r}")
    _known_keys(entry, ("collective", "transport", "world", *ORDERS, "sizes", "link", "measured"), where)
    collective, transport, world = entry.get("collective"), entry.get("transport"), entry.get("world")
    if not isinstance(collective, str) or collective not in COLLECTIVES:
        raise SpecError(f"{where}: collective: unknown {collective!r}: {nearest(str(collective), COLLECTIVES)}")
    if not isinstance(transport, str) or not isinstance(world, int) or isinstance(world, bool) or world < 1:
        raise SpecError(f"{where}: expected a transport and a world of at least 1, got {transport!r} and {world!r}")
    rules: dict[Order, Rules] = {}
    for order in ORDERS:
        given = entry.get(order, {})
        if not isinstance(given, dict) or not all(isinstance(name, str) for name in given.values()):
            raise SpecError(f'{where}: {order}: expected sizes and algorithms, such as {{ 0 = "ring" }}, got {given!r}')
        if given:
            rules[order] = tuple((parse_size(size, f"{where}: {order}"), name) for size, name in given.items())
    sizes = tuple(_texts(entry.get("sizes", []), f"{where}: sizes", parse_size))
    measured = entry.get("measured", {})
    if not isinstance(measured, dict):
        raise SpecError(f"{where}: measured: expected a list of times for each algorithm, got {measured!r}")
    times: dict[str, tuple[float | None, ...]] = {}
    for name, listed in measured.items():
        at = f"{where}: measured: {name}"
        times[name] = tuple(_texts(listed, at, lambda text, what: parse_duration(text, what) if text else None))
        if len(times[name]) != len(sizes):
            raise SpecError(f"{at}: expected {len(sizes)} times, one for each of sizes, got {len(times[name])}")
    return Table(collective, transport, world, rules, sizes, times, _fit(entry.get("link"), f"{where}: link"))


def _fit(entry: Any, where: str) -> Fit | None:
    if entry is None:
        return None
    if not isinstance(entry, dict):
        raise SpecError(f"{where}: expected latency, bandwidth, reduce and off, got {entry!r}")
    _known_keys(entry, ("latency", "bandwidth", "reduce", "off"), where)
    texts = {key: value for key, value in entry.items() if key != "off"}
    off = entry.get("off", math.nan)
    if not {"latency", "bandwidth"} <= set(texts) or not all(isinstance(text, str) for text in texts.values()):
        raise SpecError(f'{where}: expected latency and bandwidth as text, such as "9us" and "4GB/s", got {entry!r}')
    if not isinstance(off, int | float):
        raise SpecError(f"{where}: off: expected a number, got {off!r}")
    reduce_rate = parse_bandwidth(texts["reduce"], f"{where}: reduce") if "reduce" in texts else math.inf
    latency = parse_duration(texts["latency"], f"{where}: latency")
    return Fit(Link(latency, parse_bandwidth(texts["bandwidth"], f"{where}: bandwidth"), reduce_rate), float(off))


def _texts(listed: Any, where: str, read: Callable[[str, str], _Value]) -> list[_Value]:
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise SpecError(f"{where}: expected a list of texts, got {listed!r}")
    return [read(text, where) for text in listed]


def _known_keys(entry: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in entry:
        if key not in known:
            raise SpecError(f"{where}: unknown key {key!r}: {nearest(key, known)}")


def _list(texts: Any) -> str:
    return "[" + ", ".join(f'"{text}"' for text in texts) + "]"


def _bare(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _quoted(key)


def _quoted(text: str) -> str:
    # TOML's strings are JSON's, but for one control character.
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
