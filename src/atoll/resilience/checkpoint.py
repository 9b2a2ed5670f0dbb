"""Checkpoints of a data-parallel or sharded job: written in the background, found again by any number of ranks.

::

    with Checkpointer("checkpoints", comm, keep_last=3) as checkpointer:
        restored = checkpointer.restore()                 # None: there is none yet
        if restored is not None:
            weights, first = restored.arrays["weights"], restored.step + 1
        for step in range(first, last):
            ...
            checkpointer.save(step, {"weights": weights}, extra={"seed": seed})

``save`` copies this rank's part of the state, the only time that the caller waits for, and returns; a thread
writes it while the job goes on. A save waits for the one before it. What each rank writes follows from what all
have declared (``checkpoint_layout``); how files become complete is ``checkpoint_store``. A process that dies at any
moment leaves the last complete checkpoint as it was: at most the work since then is lost.

``save``, ``wait``, ``restore`` and the constructor are collectives on ``comm``: every rank calls them, and what is
wrong on one rank is an error on all. After a failure make a new ``Checkpointer`` on the communicator that goes on;
nothing that the old one leaves behind is ever taken for complete unless all its ranks had written. ``directory`` must
be on a file system that all ranks share. One job writes to a directory at a time.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Mapping
from hashlib import blake2b
from operator import index
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from atoll.errors import SpecError
from atoll.resilience.checkpoint_layout import Declared, Layout, Piece, Region, State, assign, declare, piece_view
from atoll.resilience.checkpoint_store import (
    Attempt,
    CheckpointError,
    Disk,
    Manifest,
    attempts,
    commit,
    complete_attempts,
    parse_dtype,
    prune,
    read_arrays,
    read_manifest,
    write_shard,
)
from atoll.runtime.arrays import Array, Bytes, flat_bytes
from atoll.runtime.descriptor import name_ranks

LOG: Final = logging.getLogger(__name__)
_FINE, _DAMAGED, _MISUSED = 0, 1, 2


class Group(Protocol):
    """What is needed of a communicator."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    def all_gather(self, array: Array) -> Any: ...


class Alone:
    """The group of a single process."""

    rank = 0
    world_size = 1

    def all_gather(self, array: Array) -> Array:
        """The one array."""
        return array.copy()


class Restored(msgspec.Struct, frozen=True, eq=False):
    """What a checkpoint held.

    ``arrays`` by name, of the stored dtype and the shape asked for; ``world_size`` is that of the job that wrote it;
    ``refused`` says which newer checkpoints were passed over and why.
    """

    step: int
    arrays: dict[str, Array]
    extra: dict[str, Any]
    path: Path
    world_size: int
    refused: tuple[str, ...]


class Listed(msgspec.Struct, frozen=True):
    """A complete checkpoint as ``checkpoints`` finds it: shapes and dtypes by name; ``damage`` when unreadable."""

    step: int
    path: Path
    world_size: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    damage: str


def checkpoints(directory: str | PathLike[str], *, verify: bool = False) -> list[Listed]:
    """The complete checkpoints in ``directory``, newest first. ``verify`` also reads and checks every byte."""
    listed = []
    for attempt in complete_attempts(Path(directory)):
        folder = Path(directory) / attempt.name
        try:
            manifest = read_manifest(folder)
            if verify:
                for record in manifest.arrays:
                    read_arrays(folder, manifest, {record.name: Region.whole(record.shape)})
        except CheckpointError as error:
            listed.append(Listed(attempt.step, folder, 0, {}, {}, str(error)))
            continue
        shapes = {record.name: record.shape for record in manifest.arrays}
        dtypes = {record.name: record.dtype for record in manifest.arrays}
        listed.append(Listed(manifest.step, folder, manifest.world_size, shapes, dtypes, ""))
    return listed


class _Write:
    """One rank's part of one checkpoint on its way to disk, in a thread of its own."""

    def __init__(
        self, disk: Disk, directory: Path, attempt: Attempt, group: Group, layout: Layout,
        parts: list[tuple[Piece, Bytes]], extra: str, keep_last: int | None,
    ) -> None:  # fmt: skip
        self.attempt = attempt
        self.error: BaseException | None = None
        self._disk = disk
        self._directory = directory
        self._rank, self._world_size = group.rank, group.world_size
        self._layout = layout
        self._parts = parts
        self._extra = extra
        self._keep_last = keep_last
        # Not a daemon: a program that ends in order has its last checkpoint.
        self.thread = threading.Thread(target=self._run, name=f"atoll-checkpoint-{attempt.step}", daemon=False)
        self.thread.start()

    def commit(self) -> bool:
        """Complete the checkpoint if every rank has written; whether it is complete."""
        folder = self._directory / self.attempt.name
        if not commit(
            self._disk, folder, self._rank, self.attempt.step, self._world_size, self._layout.arrays, self._extra
        ):
            return False
        try:
            prune(self._disk, self._directory, self.attempt, self._keep_last)
        except OSError as error:
            LOG.warning("older checkpoints than step %d could not be deleted: %s", self.attempt.step, _words(error))
        return True

    def _run(self) -> None:
        try:
            write_shard(self._disk, self._directory / self.attempt.name, self._rank, self._parts)
            self.commit()
        except (OSError, CheckpointError) as error:
            self.error = error


class Checkpointer:
    """Saves to and restores from ``directory``, with the ranks of ``comm`` (``None``: this process alone).

    ``comm`` is a ``Communicator``, or anything with its ``rank``, ``world_size`` and ``all_gather``. ``keep_last``
    complete checkpoints are kept, ``None``: all. ``disk`` does the file operations.
    """

    def __init__(
        self, directory: str | PathLike[str], comm: Group | None = None, *, keep_last: int | None = 3,
        disk: Disk | None = None,
    ) -> None:  # fmt: skip
        if keep_last is not None and keep_last < 1:
            raise SpecError(f"keep_last: expected at least 1, or None for all, got {keep_last}")
        self._directory = Path(directory)
        self._group: Group = Alone() if comm is None else comm
        self._keep_last = keep_last
        self._disk = disk or Disk()
        self._write: _Write | None = None
        self._layout: tuple[list[Declared], Layout] | None = None
        self._buffer: Bytes = np.zeros(0, np.uint8)
        problem = ""
        existing: list[Attempt] = []
        try:
            self._disk.make_folder(self._directory)
            existing = attempts(self._directory)
        except OSError as error:
            problem = f"{self._directory}: {error.strerror}"
        self._agree("cannot use the directory of checkpoints", problem)
        newest = existing[-1].sequence if existing else 0
        # Newer than everything that any rank sees, and a token of this job's, so that nobody else writes into it.
        said = self._gather(newest, secrets.randbits(63))
        self._sequence = int(said[:, 0].max()) + 1
        self._token = f"{int(said[0, 1]):016x}"

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.wait()
        self.close()

    def save(self, step: int, state: State, extra: Mapping[str, Any] | None = None) -> None:
        """Begin to write a checkpoint of ``state`` as of ``step``; the arrays may be changed once this returns.

        Plain arrays are the same on all ranks and are written once; ``Shard`` is this rank's box of a larger array.
        ``extra`` is a mapping of values that JSON keeps as they are, the same on all ranks.

        First waits for the save before it; ``CheckpointError`` when that one failed on any rank (the next call begins
        anew). ``SpecError`` on all ranks when they give different steps, extras or shapes.
        """
        self.wait()
        problem, text = "", ""
        arrays: dict[str, Array] = {}
        declared: list[Declared] = []
        try:
            step = index(step)
            if not 0 <= step < 1 << 62:
                raise SpecError(f"step: expected a number from 0 to 2^62, got {step}")
            arrays, declared = declare(state)
            text = _extra_text(extra)
        except (SpecError, TypeError) as error:
            problem = str(error)
        self._agree("save", problem, SpecError)
        known = self._layout is not None and self._layout[0] == declared
        said = self._gather(step, _hash64(text), int(known))
        for column, what in ((0, "step"), (1, "extra")):
            other = said[:, column] != said[0, column]
            if other.any():
                rank = int(other.argmax())
                detail = f": {int(said[0, 0])} and {int(said[rank, 0])}" if what == "step" else ""
                raise SpecError(f"save: ranks 0 and {rank} give another {what}{detail}")
        if self._layout is None or not said[:, 2].all():
            payloads = self._gather_bytes(msgspec.msgpack.encode(declared))
            declarations = [msgspec.msgpack.decode(payload, type=list[Declared]) for payload in payloads]
            texts = {entry.dtype for entries in declarations for entry in entries}
            itemsizes = {dtype: parse_dtype(dtype, self._directory).itemsize for dtype in texts}
            self._layout = (declared, assign(declarations, itemsizes))
        layout = self._layout[1]
        attempt = Attempt(self._sequence, step, self._token)
        self._sequence += 1
        parts = self._copy(layout.pieces[self._group.rank], arrays, declared)
        self._write = _Write(
            self._disk, self._directory, attempt, self._group, layout, parts, text, self._keep_last
        )  # fmt: skip

    def wait(self) -> None:
        """Return when the last save is complete on disk. ``CheckpointError`` on all ranks when it failed on any."""
        write = self._write
        under_way = self._gather(-1 if write is None else write.attempt.sequence)[:, 0]
        if (under_way != under_way[0]).any():
            raise SpecError("save: some ranks have called it and others have not: every rank makes the same calls")
        if write is None:
            return
        write.thread.join()
        self._write = None
        self._agree(f"step {write.attempt.step} was not saved", _words(write.error))
        # The last to finish has seen all receipts, unless the file system showed them late.
        problem = ""
        if self._group.rank == 0:
            try:
                if not write.commit():
                    problem = (
                        f"rank 0 does not see the files of all ranks in {self._directory / write.attempt.name}: "
                        "is that on a file system that all ranks share?"
                    )
            except (OSError, CheckpointError) as error:
                problem = _words(error)
        self._agree(f"step {write.attempt.step} was not completed", problem)

    def restore(self, want: Mapping[str, Region | None] | None = None, *, step: int | None = None) -> Restored | None:
        """The newest checkpoint that every rank can read, or that of ``step``; ``None`` when there is none at all.

        ``want`` names arrays and the region of each that this rank needs (``None``: all of it); without it every
        array is given whole. Any number of ranks may restore what any other number has saved. Checkpoints with a
        damaged file are passed over, logged, and named in ``Restored.refused``. ``CheckpointError`` when there are
        checkpoints and none can be used; ``SpecError`` for a step or an array that is not there.
        """
        self.wait()
        found = [attempt for attempt in complete_attempts(self._directory) if self._group.rank == 0]
        names = self._gather_bytes("\n".join(attempt.name for attempt in found).encode())[0].decode().split()
        known = [attempt for name in names if (attempt := Attempt.parse(name)) is not None]
        chosen = [attempt for attempt in known if step is None or attempt.step == step]
        if known and not chosen:
            steps = ", ".join(str(attempt.step) for attempt in known)
            raise SpecError(
                f"restore: there is no complete checkpoint of step {step} in {self._directory}: got {steps}"
            )
        refused: list[str] = []
        for attempt in chosen:
            folder = self._directory / attempt.name
            status, problem, restored = _FINE, "", None
            try:
                restored = _load(folder, want, tuple(refused))
            except CheckpointError as error:
                status, problem = _DAMAGED, str(error)
            except SpecError as error:
                status, problem = _MISUSED, str(error)
            said = self._gather(status)[:, 0]
            if not said.any():
                return restored
            words = self._gather_bytes(problem.encode())
            culprits = [rank for rank in range(len(said)) if said[rank]]
            reason = f"{name_ranks(culprits)}: {words[culprits[0]].decode()}"
            if (said == _MISUSED).any():
                raise SpecError(problem or f"restore: {reason}")
            refused.append(reason)
            LOG.warning("checkpoint of step %d refused, the one before it is tried: %s", attempt.step, reason)
        if refused:
            raise CheckpointError(
                f"none of the {len(refused)} checkpoints in {self._directory} can be used:\n  " + "\n  ".join(refused)
            )
        return None

    def close(self) -> None:
        """Wait for this rank's own writing, without the others; for use after a failure too. No collective."""
        write, self._write = self._write, None
        if write is not None:
            write.thread.join()
            if write.error is not None:
                LOG.warning("step %d was not saved: %s", write.attempt.step, _words(write.error))

    def _copy(
        self, pieces: tuple[Piece, ...], arrays: Mapping[str, Array], declared: list[Declared]
    ) -> list[tuple[Piece, Bytes]]:
        """A copy of this rank's pieces, in memory that is kept from save to save."""
        starts = {entry.name: entry.start for entry in declared}
        sizes = [piece.region.size * arrays[piece.name].itemsize for piece in pieces]
        if len(self._buffer) != sum(sizes):
            self._buffer = np.empty(sum(sizes), np.uint8)
        parts, begin = [], 0
        for piece, size in zip(pieces, sizes, strict=True):
            part = self._buffer[begin : begin + size]
            view = piece_view(arrays[piece.name], piece, starts[piece.name])
            part[:] = flat_bytes(np.ascontiguousarray(view))
            parts.append((piece, part))
            begin += size
        return parts

    # -- what all ranks say to each other ----------------------------------------------------------------------------

    def _gather(self, *numbers: int) -> Any:
        """Every rank's numbers, shape (world_size, count)."""
        mine = np.array(numbers, np.int64)
        return np.asarray(self._group.all_gather(mine)).reshape(self._group.world_size, len(numbers))

    def _gather_bytes(self, payload: bytes) -> list[bytes]:
        """Every rank's bytes."""
        lengths = self._gather(len(payload))[:, 0]
        padded = np.zeros(max(int(lengths.max()), 1), np.uint8)
        padded[: len(payload)] = np.frombuffer(payload, np.uint8)
        everyone = np.asarray(self._group.all_gather(padded)).reshape(self._group.world_size, len(padded))
        return [row[:length].tobytes() for row, length in zip(everyone, lengths.tolist(), strict=True)]

    def _agree(self, what: str, problem: str, kind: type[SpecError] | type[CheckpointError] = CheckpointError) -> None:
        """Raise on every rank when any has a problem."""
        failed = self._gather(int(bool(problem)))[:, 0]
        if failed.any():
            words = self._gather_bytes(problem.encode())
            culprits = [rank for rank in range(len(failed)) if failed[rank]]
            raise kind(f"{what}: {name_ranks(culprits)}: {words[culprits[0]].decode()}")


def _load(folder: Path, want: Mapping[str, Region | None] | None, refused: tuple[str, ...]) -> Restored:
    manifest: Manifest = read_manifest(folder)
    shapes = {record.name: record.shape for record in manifest.arrays}
    regions: dict[str, Region] = {}
    for name, region in (dict.fromkeys(shapes) if want is None else want).items():
        if name not in shapes:
            raise SpecError(f"restore: {folder} has no array {name!r}: it has {', '.join(shapes) or 'none'}")
        asked = Region.whole(shapes[name]) if region is None else Region(*region)
        if not asked.within(shapes[name]):
            raise SpecError(f"restore: {asked} is not inside {name!r} of shape {shapes[name]}")
        regions[name] = asked
    try:
        extra = json.loads(manifest.extra)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder}: its extra facts are not JSON: {error}") from None
    arrays = read_arrays(folder, manifest, regions)
    return Restored(manifest.step, arrays, extra, folder, manifest.world_size, refused)


def _extra_text(extra: Mapping[str, Any] | None) -> str:
    """``extra`` as JSON. ``SpecError`` for what does not come back as it was."""
    given = dict(extra or {})
    try:
        text = json.dumps(given, sort_keys=True, allow_nan=False)
        same = json.loads(text) == given
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"extra: expected what JSON can keep, arrays belong into the state: {error}") from None
    if not same:
        raise SpecError("extra: expected names and values that JSON keeps as they are: no tuples, text as names")
    return text


def _hash64(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _words(error: BaseException | None) -> str:
    if error is None:
        return ""
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror}"
    return str(error)
