"""Checkpoints on disk: what the files are, how they become complete at one instant, and how damage is found.

::

    DIRECTORY/
      00000007-step-1200-9f3ac51e02b7d844/      an attempt: sequence number, step, a token of its own
        00000.shard      what rank 0 wrote: its pieces, one after the other, as raw bytes
        00000.receipt    rank 0's pieces with their offsets and checksums, written once the shard is on disk
        00001.shard ...
        manifest         all receipts and the arrays' shapes: the checkpoint is complete when this file is there

Receipts and manifests are sealed: a first line with the length and the BLAKE2b of the JSON after it. They are written
under another name, flushed to disk, and renamed; then their directory is flushed. So a manifest is there whole or not
at all, and is there only when all it speaks of is on disk. Any rank that finds all receipts writes the manifest; when
two do, they write the same. Attempts are ordered by their sequence number, not by step: whoever went back to an older
step goes on from there. Deleting a checkpoint begins with its manifest.

Nothing read is trusted: sizes are checked before memory is taken, every piece against its checksum before it is given
out, and nothing is ever unpickled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from atoll.errors import AtollError, MissingExtra
from atoll.resilience.checkpoint_layout import ArrayRecord, Piece, Region, cut, rows_of
from atoll.runtime.arrays import Array, Bytes

MANIFEST: Final = "manifest"
MAX_SEALED_BYTES: Final = 1 << 30
_DIGEST_BYTES: Final = 16
_ATTEMPT: Final = re.compile(r"(\d{8,})-step-(\d+)-([0-9a-f]{16})")
_OURS: Final = re.compile(r"(\d{5,}\.(shard|receipt)|manifest)(\.[0-9a-f]+)?")
_SEAL: Final = re.compile(rb"atoll checkpoint 1 bytes=(\d{1,12}) blake2b=([0-9a-f]{32})\n")
_DTYPE: Final = re.compile(r"[<>|=]?[biufcmMSU]\d{1,9}(\[\d{0,9}[A-Za-z]{1,2}\])?")

Sealed = TypeVar("Sealed")


class CheckpointError(AtollError):
    """A checkpoint cannot be written, or its files are torn or damaged; the message names the file."""


class PieceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a piece lies in its rank's file, and its BLAKE2b."""

    piece: Piece
    offset: int
    num_bytes: int
    digest: str


class Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rank has written: file size in bytes, and its pieces."""

    rank: int
    num_bytes: int
    pieces: tuple[PieceRecord, ...]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A complete checkpoint. ``extra`` is the caller's own facts, as JSON text."""

    step: int
    world_size: int
    arrays: tuple[ArrayRecord, ...]
    receipts: tuple[Receipt, ...]
    extra: str


class Attempt(NamedTuple):
    """One checkpoint, or the beginning of one."""

    sequence: int
    step: int
    token: str

    @property
    def name(self) -> str:
        """Its folder's name."""
        return f"{self.sequence:08d}-step-{self.step}-{self.token}"

    @classmethod
    def parse(cls, name: str) -> Attempt | None:
        """The attempt whose folder has this name, ``None`` for other folders."""
        match = _ATTEMPT.fullmatch(name)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None


class Disk:
    """The file operations that writing needs, one at a time, so that a test can end the process between any two."""

    def make_folder(self, path: Path) -> None:
        """Make the folder and flush its parent, also where it is there already."""
        path.mkdir(parents=True, exist_ok=True)
        self.flush_folder(path.parent)

    def write(self, path: Path, *parts: bytes | memoryview) -> None:
        """A new file with this content, flushed to disk."""
        with open(path, "wb", buffering=0) as file:
            for part in parts:
                rest = memoryview(part)
                while rest:
                    rest = rest[file.write(rest) :]
            os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its final name, replacing what had it."""
        os.replace(source, target)

    def flush_folder(self, path: Path) -> None:
        """Flush a folder's entries to disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def delete(self, path: Path) -> None:
        """Delete a file; fine when it is gone already."""
        path.unlink(missing_ok=True)

    def delete_folder(self, path: Path) -> None:
        """Delete an empty folder; one that is gone, or that holds somebody else's files, is left as it is."""
        with suppress(OSError):
            path.rmdir()


def digest(data: bytes | memoryview) -> str:
    """BLAKE2b of ``data`` in 128 bits, as hexadecimal text."""
    return blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def attempts(directory: Path) -> list[Attempt]:
    """Every attempt in ``directory``, oldest first, complete or not."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(attempt for name in names if (attempt := Attempt.parse(name)) is not None)


def complete_attempts(directory: Path) -> list[Attempt]:
    """Every attempt that has a manifest, newest first."""
    return [a for a in reversed(attempts(directory)) if (directory / a.name / MANIFEST).is_file()]


def write_shard(disk: Disk, folder: Path, rank: int, pieces: Iterable[tuple[Piece, Bytes]]) -> None:
    """Write rank ``rank``'s pieces and its receipt into ``folder``. ``OSError`` where the disk refuses."""
    records, parts, offset = [], [], 0
    for piece, data in pieces:
        records.append(PieceRecord(piece, offset, len(data), digest(data.data)))
        parts.append(data.data)
        offset += len(data)
    disk.make_folder(folder)
    disk.write(folder / f"{rank:05d}.shard", *parts)
    _write_sealed(disk, folder, f"{rank:05d}.receipt", Receipt(rank, offset, tuple(records)), f"{rank:x}")


def commit(
    disk: Disk, folder: Path, rank: int, step: int, world_size: int, arrays: tuple[ArrayRecord, ...], extra: str
) -> bool:
    """Write the manifest when all receipts are there; whether the checkpoint is complete now."""
    present = set(os.listdir(folder))
    if MANIFEST in present:
        return True
    names = [f"{writer:05d}.receipt" for writer in range(world_size)]
    if not present.issuperset(names):
        return False
    receipts = tuple(_read_sealed(folder / name, Receipt) for name in names)
    _write_sealed(disk, folder, MANIFEST, Manifest(step, world_size, arrays, receipts, extra), f"{rank:x}")
    return True


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint, checked in itself. ``CheckpointError`` names the file and what is wrong."""
    path = folder / MANIFEST
    manifest = _read_sealed(path, Manifest)
    if [receipt.rank for receipt in manifest.receipts] != list(range(manifest.world_size)):
        raise CheckpointError(f"{path}: expected one receipt of each of {manifest.world_size} ranks")
    records = {record.name: record for record in manifest.arrays}
    for receipt in manifest.receipts:
        end = 0
        for entry in receipt.pieces:
            record = records.get(entry.piece.name)
            fits = record is not None and entry.piece.region.within(record.index_shape)
            if record is None or not fits or entry.offset != end:
                raise CheckpointError(f"{path}: rank {receipt.rank}'s piece of {entry.piece.name!r} is impossible")
            if entry.num_bytes != entry.piece.region.size * parse_dtype(record.dtype, path).itemsize:
                raise CheckpointError(
                    f"{path}: rank {receipt.rank}'s piece of {entry.piece.name!r} has another size than its shape"
                )
            end += entry.num_bytes
        if end != receipt.num_bytes:
            raise CheckpointError(f"{path}: rank {receipt.rank}'s pieces do not add up to its file")
    return manifest


def read_arrays(folder: Path, manifest: Manifest, want: Mapping[str, Region]) -> dict[str, Array]:
    """The wanted regions, every byte of every piece they need checked. ``CheckpointError`` where a file is damaged."""
    records = {record.name: record for record in manifest.arrays}
    needed = {name: rows_of(records[name], region) for name, region in want.items()}
    available = dict.fromkeys(want, 0)
    by_rank: dict[int, list[PieceRecord]] = {}
    for receipt in manifest.receipts:
        for entry in receipt.pieces:
            name = entry.piece.name
            common = needed[name].overlap(entry.piece.region) if name in needed else None
            if common is not None:
                available[name] += common.size
                by_rank.setdefault(receipt.rank, []).append(entry)
    rows: dict[str, Array] = {}
    for name, region in needed.items():
        if available[name] != region.size:
            raise CheckpointError(
                f"{folder / MANIFEST}: {name!r} needs {region.size} elements, the shards have {available[name]}"
            )
        rows[name] = np.zeros(region.shape, parse_dtype(records[name].dtype, folder / MANIFEST))
    for rank, entries in by_rank.items():
        for entry, data in _read_pieces(folder, manifest.receipts[rank], entries):
            name, box = entry.piece.name, entry.piece.region
            common = needed[name].overlap(box)
            assert common is not None
            piece = data.view(rows[name].dtype).reshape(box.shape)
            rows[name][common.slices(needed[name].start)] = piece[common.slices(box.start)]
    return {name: cut(records[name], region, rows[name]) for name, region in want.items()}


def prune(disk: Disk, directory: Path, newest: Attempt, keep_last: int | None) -> None:
    """Delete what is older than ``newest`` and incomplete, and complete checkpoints beyond the ``keep_last`` newest."""
    older = [attempt for attempt in attempts(directory) if attempt.sequence <= newest.sequence]
    complete = [attempt for attempt in older if (directory / attempt.name / MANIFEST).is_file()]
    kept = set(complete if keep_last is None else complete[-keep_last:])
    for attempt in older:
        if attempt not in kept:
            _delete(disk, directory / attempt.name)


def parse_dtype(text: str, path: Path) -> np.dtype[Any]:
    """The dtype that ``dtype_text`` has written. Only plain numbers, dates and texts, and those of ``ml_dtypes``."""
    if _DTYPE.fullmatch(text):
        with suppress(TypeError, ValueError):
            return np.dtype(text)
    elif text.isidentifier():
        try:
            import ml_dtypes
        except ImportError:
            raise MissingExtra("ml_dtypes", "lowprecision", f"{path}: dtype {text}") from None
        extended = getattr(ml_dtypes, text, None)
        if isinstance(extended, type) and issubclass(extended, np.generic):
            return np.dtype(extended)
    raise CheckpointError(f"{path}: unknown dtype {text!r}")


def _read_pieces(folder: Path, receipt: Receipt, entries: list[PieceRecord]) -> Iterable[tuple[PieceRecord, Bytes]]:
    path = folder / f"{receipt.rank:05d}.shard"
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != receipt.num_bytes:
                raise CheckpointError(f"{path}: torn: expected {receipt.num_bytes} bytes, got {size}")
            for entry in entries:
                data = np.empty(entry.num_bytes, np.uint8)
                file.seek(entry.offset)
                rest = data.data
                while rest and (count := file.readinto(rest)):
                    rest = rest[count:]
                got = digest(data.data)
                if rest or got != entry.digest:
                    raise CheckpointError(
                        f"{path}: damaged: the bytes of {entry.piece.name!r} from {entry.offset} on have checksum "
                        f"{got}, the manifest says {entry.digest}"
                    )
                yield entry, data
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None


def _write_sealed(disk: Disk, folder: Path, name: str, content: object, suffix: str) -> None:
    body = msgspec.json.encode(content)
    head = f"atoll checkpoint 1 bytes={len(body)} blake2b={digest(body)}\n".encode()
    temporary = folder / f"{name}.{suffix}"
    disk.write(temporary, head, body)
    disk.rename(temporary, folder / name)
    disk.flush_folder(folder)


def _read_sealed(path: Path, kind: type[Sealed]) -> Sealed:
    try:
        with open(path, "rb") as file:
            head = file.readline(128)
            seal = _SEAL.fullmatch(head)
            if seal is None:
                raise CheckpointError(f"{path}: its first line is not that of a file of Atoll's checkpoints, version 1")
            announced = int(seal[1])
            if announced > MAX_SEALED_BYTES:
                raise CheckpointError(f"{path}: it announces {announced} bytes, the limit is {MAX_SEALED_BYTES}")
            body = file.read(announced + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if len(body) != announced:
        raise CheckpointError(f"{path}: torn: expected {announced} bytes after its first line, got {len(body)}")
    if digest(body) != seal[2].decode():
        raise CheckpointError(f"{path}: damaged: its checksum is wrong")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def _delete(disk: Disk, folder: Path) -> None:
    """Delete one attempt's folder, its manifest first; files of other names stay, and their folder with them."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in sorted(names, key=lambda name: name != MANIFEST):
        if _OURS.fullmatch(name):
            disk.delete(folder / name)
            if name == MANIFEST:
                with suppress(FileNotFoundError):  # another rank deletes it at the same time
                    disk.flush_folder(folder)
    disk.delete_folder(folder)
