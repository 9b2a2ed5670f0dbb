"""Files as lines: gzip, Windows line ends, colours and launcher prefixes gone, never more memory than a block.

A *block* is a list of raw lines (bytes, without line ends). ``blocks`` reads a file that way, for readers that must be
fast; ``lines`` gives the same file as ``Line`` objects, one by one, for readers that need not be. A line longer than
``MAX_LINE_BYTES`` is cut there: nobody's log has one, and a hostile file must not fill the memory.

A **line-oriented reader** is any object with ``feed(line: Line)``: it takes what it knows and ignores the rest. Several
of them may read one file in one pass, because one file may hold several kinds (NCCL lines in the middle of nccl-tests
rows, watchdog lines between both); ``feed_all`` does that. NCCL lines have a reader of their own (``nccl_log``), which
hands on what is not an NCCL line.
"""

from __future__ import annotations

import codecs
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec

from atoll.errors import SpecError
from atoll.readers.launcher_prefix import ANSI, LauncherPrefix, split_prefix
from atoll.readers.source import MAX_TEXT, Source

BLOCK_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = 1 << 20
MAX_READ_BYTES: Final = 16 << 30
"""Bytes read of one file, after decompression, before it is given up as hostile."""
MAX_GZIP_RATIO: Final = 200
"""A gzip that grows more than this, over its first 64 MiB, is a bomb; logs grow 10 to 60 times."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_GRACE_BYTES: Final = 64 << 20


class ReadRefused(SpecError):
    """A file that is not read any further, and why. What was read before stays valid."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class Line(msgspec.Struct, frozen=True):
    """One line of text: ``text`` is without launcher prefix, colours and line end; ``raw`` is as it stood in the file.

    ``number`` counts from 1.
    """

    number: int
    text: str
    raw: str
    launcher: LauncherPrefix

    def source(self, file: str) -> Source:
        return Source(file, self.number, self.raw[:MAX_TEXT])


class LineReader(Protocol):
    """Takes lines one after the other; keeps what it knows."""

    def feed(self, line: Line) -> None: ...


def make_line(number: int, raw: bytes) -> Line:
    """A raw line as a ``Line``: bytes that are no UTF-8 are shown as escapes, never an error."""
    if raw.endswith(b"\r"):
        raw = raw[:-1]
    if b"\x1b" in raw:
        raw = ANSI.sub(b"", raw)
    launcher, at = split_prefix(raw)
    text = raw.decode("utf-8", "backslashreplace")
    return Line(number, raw[at:].decode("utf-8", "backslashreplace") if at else text, text, launcher)


def is_gzip(head: bytes) -> bool:
    return head.startswith(_GZIP_MAGIC)


def read_head(path: Path, size: int = 1 << 16) -> bytes:
    """The first bytes of a file, decompressed where it is gzip; short where the gzip is damaged. Raises ``OSError``."""
    with open(path, "rb") as raw:
        head = raw.read(size)
    if not is_gzip(head):
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, size)
    except zlib.error:
        return b""


def blocks(
    path: Path, *, max_bytes: int = MAX_READ_BYTES, progress: Callable[[int], None] | None = None
) -> Iterator[list[bytes]]:
    """Lists of whole raw lines of ``path``; ``progress`` is told of the bytes of the file on disk read since last time.

    Raises ``OSError`` where the file cannot be opened, ``ReadRefused`` where reading stops before the end (a damaged
    gzip, a bomb, more than ``max_bytes``): what was yielded before that holds.
    """
    with open(path, "rb") as raw:
        yield from stream_blocks(raw, str(path), max_bytes=max_bytes, progress=progress)


def stream_blocks(
    raw: BinaryIO, name: str, *, max_bytes: int = MAX_READ_BYTES, progress: Callable[[int], None] | None = None
) -> Iterator[list[bytes]]:
    """``blocks`` of an open, seekable binary stream."""
    head = raw.read(4)
    raw.seek(0)
    compressed = is_gzip(head)
    source = _Gunzip(raw) if compressed else raw
    decode = _decoder(head)
    rest = b""
    total = 0
    told = 0
    while True:
        try:
            block = source.read(BLOCK_BYTES)
        except zlib.error as error:
            if rest:
                yield [rest]
            raise ReadRefused(name, f"damaged gzip after {total} bytes ({error}); what came before was read") from error
        if progress is not None:
            at = raw.tell()
            progress(at - told)
            told = at
        if not block:
            break
        total += len(block)
        if total > max_bytes:
            raise ReadRefused(name, f"longer than {max_bytes} bytes; what came before was read")
        if compressed and total > _GZIP_GRACE_BYTES and total > MAX_GZIP_RATIO * max(raw.tell(), 1):
            raise ReadRefused(name, f"a gzip that grows more than {MAX_GZIP_RATIO} times is taken for a bomb")
        if decode is not None:
            block = decode(block)
        found = block.rfind(b"\n")
        if found < 0:
            rest += block
            if len(rest) > MAX_LINE_BYTES:
                yield [rest[:MAX_LINE_BYTES]]
                rest = b""
                raise ReadRefused(name, f"a line of more than {MAX_LINE_BYTES} bytes: this is not a text log")
            continue
        lines = (rest + block[:found]).split(b"\n")
        rest = block[found + 1 :]
        yield lines
    if decode is not None:
        rest += decode(b"", True)
    if rest:
        yield rest.split(b"\n")


class _Gunzip:
    """A gzip read block by block. What can be had of a damaged one is handed out before ``zlib.error`` is raised."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._member = zlib.decompressobj(wbits=31)
        self._input = b""
        self._begun = False

    def read(self, size: int) -> bytes:
        while True:
            if not self._input:
                self._input = self._raw.read(BLOCK_BYTES // 4)
                if not self._input:
                    if self._begun and not self._member.eof:
                        raise zlib.error("it ends in the middle")
                    return b""
            if self._member.eof:
                # Several members in a row are one file; zeros after the last are padding.
                self._input = self._input.lstrip(b"\0")
                self._member = zlib.decompressobj(wbits=31)
                self._begun = False
                continue
            self._begun = True
            block = self._member.decompress(self._input, size)
            self._input = self._member.unconsumed_tail or self._member.unused_data
            if block:
                return block


def _decoder(head: bytes) -> Callable[..., bytes] | None:
    """UTF-16 (a log redirected by PowerShell) to UTF-8, block by block; ``None`` where nothing is to be done."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
        return lambda block, final=False: decoder.decode(block, final).encode()
    return None


def lines(path: Path, *, max_bytes: int = MAX_READ_BYTES) -> Iterator[Line]:
    """The lines of a file one by one, prefixes stripped. Raises as ``blocks`` does."""
    number = 0
    for block in blocks(path, max_bytes=max_bytes):
        for raw in block:
            number += 1
            yield make_line(number, raw)


def text_lines(text: str | bytes) -> Iterator[Line]:
    """The lines of a text in memory, as ``lines`` gives those of a file."""
    data = text.encode() if isinstance(text, str) else text
    number = 0
    for block in stream_blocks(io.BytesIO(data), "text"):
        for raw in block:
            number += 1
            yield make_line(number, raw)


def feed_all(source: Iterable[Line], readers: Iterable[LineReader]) -> None:
    """One pass over ``source``: every line goes to every reader."""
    readers = tuple(readers)
    for line in source:
        for reader in readers:
            reader.feed(line)
