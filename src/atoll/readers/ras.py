"""NCCL RAS (2.24 and later): what ``ncclras`` or port 28028 answers, as text or as JSON (2.28 and later).

Vocabulary. Communicators are *grouped* by size and state; ``#0-1 (hash)`` is communicator 1 of group 0. *Errors* are
INCOMPLETE (ranks did not answer), DEAD (processes given up) and ERROR (a rank's init or asynchronous error);
*warnings* are TIMEOUT and MISMATCH (ranks differ in status or in how many operations they have launched). The text lists
single ranks only for small minorities; the rest is counts. The JSON lists every rank.
"""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


class RasRank(msgspec.Struct, frozen=True):
    """What is told of one rank of one communicator. ``status`` is INIT, RUNNING, FINALIZE, ABORT or NOCOMM, if known.

    ``launched`` maps a collective's name (``AllReduce``) to the operations that this rank has launched. ``missing`` is
    whether its data did not arrive, ``dead`` whether RAS has given its process up. ``init_error`` and ``async_error``
    are NCCL's words (``Remote process error``), empty when there is none.
    """

    rank: int
    source: Source
    host: str = ""
    pid: int | None = None
    cuda_device: int | None = None
    nvml_device: int | None = None
    status: str = ""
    launched: dict[str, int] = {}
    missing: bool = False
    dead: bool = False
    init_error: str = ""
    async_error: str = ""


class RasCount(msgspec.Struct, frozen=True):
    """``num_ranks`` ranks share one value: a ``status`` (collective then empty), or ``launched`` operations of one
    kind.
    """

    num_ranks: int
    source: Source
    collective: str = ""
    launched: int | None = None
    status: str = ""
    ranks: tuple[int, ...] = ()
    """The ranks by name, where the text lists them (minorities only)."""


class RasCommunicator(msgspec.Struct, frozen=True):
    """One communicator. ``problems`` are of INCOMPLETE, ERROR, MISMATCH as written; ``counts`` largest group first."""

    communicator: str
    source: Source
    group: int | None = None
    world_size: int | None = None
    num_nodes: int | None = None
    status: str = ""
    problems: tuple[str, ...] = ()
    ranks: tuple[RasRank, ...] = ()
    counts: tuple[RasCount, ...] = ()


class RasGroup(msgspec.Struct, frozen=True):
    """A row of the summary table: ``num_communicators`` communicators of ``world_size`` ranks, status and errors as
    written.
    """

    group: int
    num_communicators: int
    num_nodes: int
    ranks_per_node: str
    world_size: int
    num_ranks: int
    status: str
    errors: str
    source: Source


class RasProcess(msgspec.Struct, frozen=True):
    """A process that did not answer (``dead`` False) or was given up (``dead`` True)."""

    pid: int
    host: str
    devices: str
    dead: bool
    source: Source


class RasReport(msgspec.Struct, frozen=True):
    """One answer of RAS. ``num_dead`` and ``num_missing`` count processes even where they are not listed."""

    source: Source
    nccl_version: str = ""
    timestamp: str = ""
    num_nodes: int | None = None
    num_processes: int | None = None
    num_gpus: int | None = None
    groups: tuple[RasGroup, ...] = ()
    communicators: tuple[RasCommunicator, ...] = ()
    processes: tuple[RasProcess, ...] = ()
    num_dead: int = 0
    num_missing: int = 0
    num_timeouts: int = 0
