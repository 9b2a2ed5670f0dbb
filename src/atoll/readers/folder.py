"""A folder of evidence: which files there are, of what kind, and which were left out and why.

``walk`` looks at every file below the given paths, in a fixed order, reads its head and names its kinds. It never
raises for a file: what cannot or should not be read (no permission, a FIFO or device, a symlink loop, more bytes than
``max_bytes``, a binary) is yielded as ``Skipped`` with the reason, because silence would look like health.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from atoll.errors import SpecError
from atoll.readers.identify import HEAD_BYTES, Kind, identify, kinds_in
from atoll.readers.text_stream import is_gzip, read_head
from atoll.units import format_size

MAX_FILE_BYTES: Final = 8 << 30
MAX_DOCUMENT_BYTES: Final = 256 << 20
"""Kinds that are read whole (XML, JSON, dumps) are smaller than this; line-oriented kinds may be ``MAX_FILE_BYTES``."""
MAX_FILES: Final = 100_000
_OTHER_ARCHIVES: Final = {
    b"PK\x03\x04": "zip",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"7z\xbc\xaf": "7-Zip",
}
_SKIPPED_FOLDERS: Final = frozenset({".git", "__pycache__", ".venv", "node_modules"})


class Found(msgspec.Struct, frozen=True):
    """A file to read. ``name`` is its path as it is quoted in reports: relative to the folder that was given."""

    path: str
    name: str
    size_bytes: int
    kinds: tuple[Kind, ...]
    compressed: bool = False

    @property
    def kind(self) -> Kind:
        return self.kinds[0]


class Skipped(msgspec.Struct, frozen=True):
    """A file or folder that was not read, and why."""

    name: str
    reason: str


def walk(
    paths: Iterable[str | Path],
    *,
    max_file_bytes: int = MAX_FILE_BYTES,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Found | Skipped]:
    """Every file at and below ``paths``, sorted by name within each folder.

    ``progress`` is told the number of files looked at so far. Raises ``SpecError`` where a given path does not exist.
    """
    roots = [Path(path) for path in paths]
    for root in roots:
        if not os.path.lexists(root):
            raise SpecError(f"{root}: no such file or folder; give the folder that holds the logs")
    looked_at = 0
    for root in roots:
        for path, name in _files_below(root):
            looked_at += 1
            if looked_at > MAX_FILES:
                yield Skipped(str(path), f"more than {MAX_FILES} files: the rest was not looked at")
                return
            if progress is not None:
                progress(looked_at)
            yield name if isinstance(name, Skipped) else _look(path, name, max_file_bytes)


def _files_below(root: Path) -> Iterator[tuple[Path, str | Skipped]]:
    if not root.is_dir():
        yield root, root.name
        return
    seen: set[tuple[int, int]] = set()
    pending: list[Path] = [root]
    while pending:
        folder = pending.pop()
        name = _relative(folder, root)
        try:
            status = os.stat(folder)
            key = (status.st_dev, status.st_ino)
            if key in seen:
                yield folder, Skipped(name, "a symbolic link back to a folder that was read already")
                continue
            seen.add(key)
            entries = sorted(os.listdir(folder))
        except OSError as error:
            yield folder, Skipped(name, f"folder cannot be read: {error.strerror or error}")
            continue
        below: list[Path] = []
        for entry in entries:
            path = folder / entry
            if path.is_dir():
                if entry not in _SKIPPED_FOLDERS:
                    below.append(path)
            else:
                yield path, _relative(path, root)
        pending.extend(reversed(below))


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path != root else root.name


def _look(path: Path, name: str, max_file_bytes: int) -> Found | Skipped:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return Skipped(name, "not a regular file (a pipe, socket or device): copy its text into a file")
        if status.st_size > max_file_bytes:
            return Skipped(
                name, f"{format_size(status.st_size)} is more than the limit of {format_size(max_file_bytes)}: cut it"
            )
        with open(path, "rb") as file:
            compressed = is_gzip(file.read(2))
        head = read_head(path, HEAD_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Skipped(name, f"cannot be read: {reason}")
    if compressed and not head:
        return Skipped(name, "an empty or damaged gzip")
    for magic, program in _OTHER_ARCHIVES.items():
        if head.startswith(magic):
            return Skipped(name, f"packed with {program}: unpack it first (only gzip is read as it is)")
    if head[257:262] == b"ustar":
        return Skipped(name, "a tar archive: unpack it first")
    kinds = kinds_in(head, status.st_size)
    if kinds[0] is Kind.BINARY:
        return Skipped(name, "binary, of no kind that is known here")
    if kinds[0] is Kind.EMPTY:
        return Skipped(name, "empty")
    if not kinds[0].is_text_lines and status.st_size > MAX_DOCUMENT_BYTES:
        limit = format_size(MAX_DOCUMENT_BYTES)
        return Skipped(name, f"{kinds[0].value} of {format_size(status.st_size)}: more than the limit of {limit}")
    return Found(str(path), name, status.st_size, kinds, compressed)


def identify_file(path: str | Path) -> Kind:
    """The kind of one file. Raises ``OSError`` where it cannot be read."""
    file = Path(path)
    return identify(read_head(file, HEAD_BYTES), file.stat().st_size)
