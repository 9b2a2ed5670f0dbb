"""PyTorch's NCCL flight recorder: what each rank has enqueued, pickled or as JSON. No class of a pickle is ever loaded.

A dump does not say whose it is: the rank is in the file's name. ``pg_id`` is a local index that differs between ranks:
join groups by *name*. ``pg_status`` is keyed by that local index.
"""

from __future__ import annotations

import msgspec

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
    record_id: int = -1
    p2p_sequence: int = 0
    op_id: int = -1
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
