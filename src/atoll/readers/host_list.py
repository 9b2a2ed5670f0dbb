"""Lists of hosts: Slurm's compressed form, MPI hostfiles, and plain lists."""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


class Host(msgspec.Struct, frozen=True):
    """One host; ``slots`` where a hostfile gives how many ranks it takes."""

    name: str
    source: Source
    slots: int | None = None
