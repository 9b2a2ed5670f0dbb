"""PyTorch's NCCL flight recorder: what each rank has enqueued, pickled or as JSON. No class of a pickle is ever loaded.

A dump does not say whose it is: the rank is in the file's name. ``pg_id`` is a local index that differs between ranks:
join groups by *name*. ``pg_status`` is keyed by that local index.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from atoll.errors import SpecError
from atoll.readers.collective_names import collective_name
from atoll.readers.plain_pickle import load_plain_pickle
from atoll.readers.source import Source


class RecordedGroup(msgspec.Struct, frozen=True):
    """A process group of this rank: ``name`` is the same on every member; ``ranks`` are global, empty when not listed.

    ``last_*`` are sequence numbers (-1: none, or timing is off; ``None``: no status in the dump). ``status_from``
    says how the status, which is keyed by a local index, was joined: ``entry`` (an entry has both), ``order`` (all
    names are numbers and as many as statuses: both ascend), ``name`` (key and name are equal) or empty.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    last_enqueued: int | None = None
    last_started: int | None = None
    last_completed: int | None = None
    status_from: str = ""


class RecordedCollective(msgspec.Struct, frozen=True):
    """One entry. ``op`` is ``all_to_all`` of ``nccl:all_to_all``; ``state`` is scheduled, started or completed.

    ``sequence`` counts the collectives of the group, ``p2p_sequence`` its sends and receives. Sizes are shapes per
    tensor. ``frames`` are ``function (file:line)``, innermost first.
    """

    group: str
    sequence: int
    op: str
    state: str
    group_description: str = ""
    record_id: int = 0
    p2p_sequence: int = 0
    op_id: int = 0
    is_p2p: bool = False
    peer: int | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    created_s: float | None = None
    started_s: float | None = None
    completed_s: float | None = None
    duration_s: float | None = None
    timeout_s: float | None = None
    retired: bool | None = None
    thread: str = ""
    frames: tuple[str, ...] = ()


class FlightRecorderDump(msgspec.Struct, frozen=True):
    """One rank's dump. ``rank`` is from the file's name (``rank_from`` ``"file"``) or, failing that, the one rank that
    is in every group (``"groups"``); ``None`` when neither tells. ``entries`` may be empty, which is evidence too."""

    source: Source
    version: str
    groups: tuple[RecordedGroup, ...]
    entries: tuple[RecordedCollective, ...]
    rank: int | None = None
    rank_from: str = ""
    nccl_version: str = ""
    host: str = ""


MAX_ENTRIES: Final = 200_000
MAX_GROUPS: Final = 100_000
MAX_RANKS: Final = 1_000_000
_MAX_TENSORS: Final = 1024
_MAX_DIMENSIONS: Final = 16
_MAX_FRAMES: Final = 128

_NUMBER: Final = re.compile(r"\d{1,9}")
_RANK_IN_NAME: Final = re.compile(r"rank[_-]?(\d{1,7})", re.IGNORECASE)
_TRAILING_NUMBER: Final = re.compile(r"(\d{1,7})(?:\.[A-Za-z]\w{0,10})*$")


def read_flight_recorder(data: bytes, file: str) -> FlightRecorderDump:
    """The dump in ``data``, pickled or JSON (``TORCH_NCCL_DEBUG_INFO_TEMP_FILE``, ``_dump_nccl_trace``).

    Raises ``SpecError`` where the bytes are neither, need a class, are beyond the limits, or are no flight recorder's.
    """
    head = data[:64].lstrip()
    if head.startswith((b"{", b"[")):
        try:
            document: Any = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SpecError(f"{file}: no JSON of a flight recorder, or cut in the middle: {error}") from error
    else:
        document = load_plain_pickle(data, file)
    if not isinstance(document, dict) or not {"entries", "pg_config", "pg_status"} & document.keys():
        raise SpecError(
            f"{file}: no flight recorder dump: expected a dictionary with 'entries' and 'pg_config', "
            f"got {type(document).__name__}"
        )
    try:
        return _dump(document, file)
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(
            f"{file}: a flight recorder dump of an unknown form ({type(error).__name__}: {str(error)[:100]}); "
            "known are schema versions 1.x to 2.x"
        ) from error


def rank_of_file_name(file: str) -> int | None:
    """``3`` of ``nccl_trace_rank_3``, ``_dump_3`` or ``host1_rank3.pickle``; ``None``: no number in it."""
    name = file.replace("\\", "/").rpartition("/")[2]
    match = _RANK_IN_NAME.search(name) or _TRAILING_NUMBER.search(name)
    return int(match[1]) if match else None


def _dump(document: dict[Any, Any], file: str) -> FlightRecorderDump:
    entries_in = document.get("entries")
    if entries_in is None:
        entries_in = []
    if not isinstance(entries_in, list | tuple) or len(entries_in) > MAX_ENTRIES:
        raise SpecError(f"{file}: 'entries': expected a list of at most {MAX_ENTRIES}, got {type(entries_in).__name__}")
    entries = tuple(_entry(entry, f"{file}: entry {at}") for at, entry in enumerate(entries_in))
    groups = _groups(document, entries_in, file)
    rank, rank_from = rank_of_file_name(file), "file"
    if rank is None:
        rank, rank_from = _only_common_rank(groups), "groups"
    return FlightRecorderDump(
        Source(file, 0), _word(document.get("version")), groups, entries, rank, rank_from if rank is not None else "",
        _word(document.get("nccl_version") or document.get("comm_lib_version")),
        _word(document.get("host_name") or document.get("hostname")),
    )  # fmt: skip


def _groups(document: dict[Any, Any], entries: Sequence[Any], file: str) -> tuple[RecordedGroup, ...]:
    config = document.get("pg_config") or {}
    status = document.get("pg_status") or {}
    if not isinstance(config, dict) or not isinstance(status, dict) or len(config) + len(status) > MAX_GROUPS:
        raise SpecError(f"{file}: 'pg_config' and 'pg_status': expected dictionaries of at most {MAX_GROUPS} groups")
    named: dict[str, tuple[str, tuple[int, ...]]] = {}
    for key, value in config.items():
        if not isinstance(value, dict):
            raise SpecError(f"{file}: pg_config[{_word(key)!r}]: expected a dictionary, got {type(value).__name__}")
        name = _word(value.get("name", key)) or _word(key)
        named[name] = (_word(value.get("desc")), _ranks(value.get("ranks"), file))
    by_entry: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, dict) and entry.get("pg_id") is not None:
            name, description = _group_of(entry)
            by_entry.setdefault(_word(entry["pg_id"]), name)
            named.setdefault(name, (description, ()))
    joined = _join(list(named), [_word(key) for key in status], by_entry)
    statuses = {_word(key): value for key, value in status.items()}
    groups = []
    for name, (description, ranks) in named.items():
        index, how = joined.get(name, ("", ""))
        values = statuses.get(index)
        got = values if isinstance(values, dict) else {}
        groups.append(
            RecordedGroup(
                name, description, ranks, _whole(got.get("last_enqueued_collective")),
                _whole(got.get("last_started_collective")), _whole(got.get("last_completed_collective")),
                how if got else "",
            )
        )  # fmt: skip
    return tuple(groups)


def _join(names: list[str], indices: list[str], by_entry: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Group name -> (local index of its status, how that is known)."""
    joined = {name: (index, "entry") for index, name in by_entry.items() if index in indices}
    by_order: dict[str, str] = {}
    if len(names) == len(indices) and all(text.isdigit() and len(text) < 10 for text in [*names, *indices]):
        # Names count up over all groups of the job, indices over those of this rank, both in order of creation.
        by_order = dict(zip(sorted(names, key=int), sorted(indices, key=int), strict=True))
        if any(by_order.get(name) != index for name, (index, _) in joined.items()):
            by_order = {}
    for name, index in by_order.items():
        joined.setdefault(name, (index, "order"))
    if not by_order:
        taken = {index for index, _ in joined.values()}
        for name in names:
            if name in indices and name not in taken and not by_entry:
                joined.setdefault(name, (name, "name"))
    return joined


def _only_common_rank(groups: tuple[RecordedGroup, ...]) -> int | None:
    """The rank that is in every group, if it is one."""
    listed = [set(group.ranks) for group in groups if group.ranks]
    common = set.intersection(*listed) if listed else set()
    return common.pop() if len(common) == 1 else None


def _entry(entry: Any, where: str) -> RecordedCollective:
    if not isinstance(entry, dict):
        raise SpecError(f"{where}: expected a dictionary, got {type(entry).__name__}")
    name, description = _group_of(entry)
    profiling = _word(entry.get("profiling_name"))
    op = collective_name(profiling)
    is_p2p = bool(entry.get("is_p2p", op in ("send", "recv")))
    return RecordedCollective(
        name,
        _whole(entry.get("collective_seq_id", entry.get("seq_id"))) or 0,
        op,
        _word(entry.get("state")).lower(),
        description,
        _whole(entry.get("record_id", entry.get("id"))) or 0,
        _whole(entry.get("p2p_seq_id")) or 0,
        _whole(entry.get("op_id")) or 0,
        is_p2p,
        _peer(profiling) if is_p2p else None,
        _shapes(entry.get("input_sizes")),
        _shapes(entry.get("output_sizes")),
        _words(entry.get("input_dtypes")),
        _words(entry.get("output_dtypes")),
        _seconds(entry.get("time_created_ns"), 1e9),
        _seconds(entry.get("time_discovered_started_ns"), 1e9),
        _seconds(entry.get("time_discovered_completed_ns"), 1e9),
        _seconds(entry.get("duration_ms"), 1e3),
        _seconds(entry.get("timeout_ms"), 1e3),
        bool(entry["retired"]) if isinstance(entry.get("retired"), bool) else None,
        _word(entry.get("thread_name")),
        _frames(entry.get("frames")),
    )


def _group_of(entry: dict[Any, Any]) -> tuple[str, str]:
    """Name and description of an entry's group. Schema 2: ``process_group``; before, ``pg_name`` or the local index."""
    group = entry.get("process_group")
    if isinstance(group, list | tuple) and group:
        return _word(group[0]), _word(group[1]) if len(group) > 1 else ""
    return _word(entry.get("pg_name", entry.get("pg_id"))), _word(entry.get("pg_desc"))


def _peer(profiling: str) -> int | None:
    """``1`` of ``nccl:send 0->1`` and of ``nccl:recv 0<-1``."""
    numbers = _NUMBER.findall(profiling)
    return int(numbers[-1]) if numbers and ("->" in profiling or "<-" in profiling) else None


def _ranks(value: Any, file: str) -> tuple[int, ...]:
    """``"[0, 1]"`` (a text, as PyTorch writes it) or a list."""
    if isinstance(value, str):
        numbers = [int(number) for number in _NUMBER.findall(value)] if len(value) < 10 * MAX_RANKS else []
    elif isinstance(value, list | tuple):
        numbers = [number for number in value if type(number) is int and 0 <= number < 10**9]
    else:
        return ()
    if len(numbers) > MAX_RANKS:
        raise SpecError(f"{file}: a group of {len(numbers)} ranks; at most {MAX_RANKS}")
    return tuple(numbers)


def _shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list | tuple):
        return ()
    shapes = []
    for shape in value[:_MAX_TENSORS]:
        if isinstance(shape, list | tuple):
            shapes.append(tuple(size for size in shape[:_MAX_DIMENSIONS] if type(size) is int))
        elif type(shape) is int:
            shapes.append((shape,))
    return tuple(shapes)


def _words(value: Any) -> tuple[str, ...]:
    return tuple(_word(item) for item in value[:_MAX_TENSORS]) if isinstance(value, list | tuple) else ()


def _frames(value: Any) -> tuple[str, ...]:
    frames = []
    for frame in value[:_MAX_FRAMES] if isinstance(value, list | tuple) else ():
        if isinstance(frame, dict):
            where = f"{_word(frame.get('filename'))}:{_word(frame.get('line'))}"
            frames.append(f"{_word(frame.get('name'))} ({where})")
        elif isinstance(frame, str):
            frames.append(_word(frame))
    return tuple(frames)


def _word(value: Any) -> str:
    """A short text of a scalar; empty for anything else, so that no hostile nesting is ever printed."""
    if isinstance(value, str):
        return value[:500]
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30 else ""


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and value.lstrip("-").isdigit() and len(value) < 20:
        return int(value)
    return value if type(value) is int and abs(value) < 1 << 63 else None


def _seconds(value: Any, per_second: float) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e30:
        return value / per_second
    return None
