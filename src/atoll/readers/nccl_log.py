"""NCCL and RCCL logs to typed facts: any version from 2.4, any launcher, one mixed file or a file for each rank.

**A line** is ``host:pid:tid [dev] NCCL INFO body``, with launcher prefixes in front, and for warnings a place in NCCL's
source (``transport/net_ib.cc:94``) and a time. Its *head* says who speaks (``nccl_log_head``), its *body* is parsed by
the shape table (``nccl_log_shapes``) into a fact. What ranks repeat is kept once (``Statement``); channel lines and
states of communicators become the map of the job (``nccl_log_job``).

**Speed.** A log of a thousand ranks says the same sentences over and over, so heads and bodies are looked up in
dictionaries by their bytes and parsed only when new. Sentences that carry a pointer are new each time but of few
shapes: once enough examples of such a shape are kept, its *skeleton* (the body without hexadecimal digits) names it.

**Coverage is stated.** A line that bears NCCL's mark and fits no shape is counted as unknown, and shown with its digits
replaced. There is no shape that takes anything. Lines that two processes wrote into each other are taken apart where a
second head shows, and a remainder on the next line is joined on again.

``feed_block`` returns what is not NCCL's, so that other readers can have it in the same pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from atoll.readers.launcher_prefix import ANSI, MPI_TAG, split_prefix
from atoll.readers.nccl_log_facts import Collective, CommInit, Fact, Speaker, Statement, Version
from atoll.readers.nccl_log_head import Heads
from atoll.readers.nccl_log_job import (
    CHANNEL_LINE,
    COLLNET_LINE,
    MAX_CONNECTIONS_PER_RANK,
    Job,
    JobBuilder,
    parse_via,
)
from atoll.readers.nccl_log_shapes import Table
from atoll.readers.nccl_log_table_errors import ERROR_SHAPES
from atoll.readers.nccl_log_table_graph import GRAPH_SHAPES
from atoll.readers.nccl_log_table_init import INIT_SHAPES
from atoll.readers.nccl_log_table_net import NET_SHAPES
from atoll.readers.source import MAX_TEXT, Source
from atoll.readers.text_stream import ReadRefused, blocks

MAX_STATEMENTS: Final = 250_000
MAX_UNKNOWN: Final = 500
MAX_BODY: Final = 4000
_MAX_CACHE: Final = 50_000

F = TypeVar("F", bound=Fact)

_LEVEL: Final = re.compile(rb"(INFO|WARN|TRACE|CALL|ERROR|VERSION|ABORT) ?")
# Libraries made from NCCL keep its words under their own name: MCCL, XCCL, ...
_OTHER_LIBRARY: Final = re.compile(rb"\] (?:\S{1,200} )?([A-MO-Z][A-Z]{0,3}CCL) (?:INFO|WARN|TRACE|ERROR|VERSION) ")
_VERSION_LINE: Final = re.compile(rb"(?:^|[\s:>\]])([A-Z]{1,4}CCL version ?:? ?\d+\.\d+\S*(?: HEAD:\S+)?)\s*$")
_PLACE: Final = re.compile(r"([\w./\-]{1,200}\.(?:cc|h|hpp|cpp|cu|c|cuh):\d{1,6})(?: \((\w{1,120})\))? ")
_NUMBERS: Final = re.compile(r"0[xX][0-9a-fA-F]+|\d+")
_HEX_DIGITS: Final = b"0123456789abcdefABCDEFx"


@lru_cache(maxsize=1)
def shape_table() -> Table:
    """The table of every sentence shape; building it takes some tenths of a second, so it is built once."""
    return Table((*INIT_SHAPES, *NET_SHAPES, *GRAPH_SHAPES, *ERROR_SHAPES))


class UnknownShape(msgspec.Struct):
    """A sentence that no shape fits, its numbers shown as ``#``, with the first line that says it."""

    text: str
    example: Source
    count: int = 0


class Coverage(msgspec.Struct):
    """What was read and what was understood.

    ``damaged`` are NCCL lines cut by another writer and not mended, ``mended`` those joined on again.
    ``not_kept`` are lines that were recognised and are counted in ``NcclLog.shape_lines``, but of which no statement is
    kept: their shape has had its share (each line has a pointer of its own, say). Channel lines are in the map instead.
    """

    lines: int = 0
    nccl_lines: int = 0
    recognised: int = 0
    damaged: int = 0
    mended: int = 0
    unknown: list[UnknownShape] = []
    not_kept: int = 0

    @property
    def fraction(self) -> float:
        """Of the NCCL lines, how many fit a shape; 1 where there is no NCCL line."""
        return self.recognised / self.nccl_lines if self.nccl_lines else 1.0


class NcclLog(msgspec.Struct):
    """All NCCL logs of one job. ``shape_lines`` counts lines by shape; ``last_order`` is each speaker's last line.

    ``broken_off`` are files that ``read_nccl_logs`` could not read to their end, and why.
    """

    files: list[str]
    coverage: Coverage
    speakers: list[Speaker]
    statements: list[Statement]
    job: Job
    shape_lines: dict[str, int]
    last_order: dict[int, int]
    broken_off: dict[str, str] = {}

    def facts(self, kind: type[F]) -> Iterator[tuple[F, Statement]]:
        """Every fact of a class, with its statement, in the order of first appearance."""
        for statement in self.statements:
            if isinstance(statement.fact, kind):
                yield statement.fact, statement

    def of_shape(self, *shapes: str) -> Iterator[Statement]:
        return (statement for statement in self.statements if statement.shape in shapes)

    def warnings(self) -> Iterator[Statement]:
        """Everything said at level WARN (or ERROR), in order."""
        return (statement for statement in self.statements if statement.level in ("WARN", "ERROR"))

    def hosts_of(self, statement: Statement) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.speakers[index].host for index in statement.speakers))

    @property
    def versions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(fact.version for fact, _ in self.facts(Version)))


class _Unmended(msgspec.Struct):
    """A body that fits no shape: a remainder of it may follow."""

    body: bytes
    level: str
    speaker: int
    number: int
    raw: bytes
    location: str
    shape: UnknownShape


class NcclLogReader:
    """Feed it the blocks of one file after the other; ``result`` may be asked for at any time."""

    def __init__(self) -> None:
        self._table = shape_table()
        self._job = JobBuilder()
        self._coverage = Coverage()
        self._files: list[str] = []
        self._file = ""
        self._number = 0
        self._heads = Heads()
        self._channels: dict[bytes, int] = {}
        self._tails: dict[bytes, str] = {}
        self._bodies: dict[bytes, Statement] = {}
        self._states: dict[CommInit, Statement] = {}
        self._statements: list[Statement] = []
        self._skeletons: dict[bytes, str] = {}
        self._kept: dict[str, int] = {}
        self._shape_lines: dict[str, int] = {}
        self._unknown: dict[str, UnknownShape] = {}
        self._strange: dict[bytes, UnknownShape] = {}
        self._unmended: _Unmended | None = None
        self._last: dict[int, int] = {}

    def begin(self, file: str) -> None:
        """The blocks that follow are of this file."""
        self._file = file
        self._files.append(file)
        self._number = 0
        self._unmended = None

    def feed_block(self, lines: Iterable[bytes]) -> list[tuple[int, bytes]]:
        """Raw lines in their order; returns the number and bytes of what is not NCCL's."""
        others: list[tuple[int, bytes]] = []
        first = number = self._number
        heads, bodies, last, known, channel_bits = (
            self._heads.known,
            self._bodies,
            self._last,
            self._job.known,
            self._channels,
        )
        tails, dropped = self._tails, self._job.dropped_lines
        skeletons, shape_lines = self._skeletons, self._shape_lines
        base = self._coverage.lines - number
        full = self._job.full
        said = channels = 0
        for raw in lines:
            number += 1
            at = raw.find(b" NCCL ")
            if at < 0:
                self._number = number
                self._other(raw, others)
                continue
            speaker = heads.get(raw[:at])
            if speaker is None:
                speaker = self._heads.quick(raw[:at])
            if speaker >= 0:
                if raw.startswith(b"INFO Channel ", at + 6):
                    colon = raw.find(b" : ", at + 19, at + 32)
                    tail = raw[colon:]
                    connections = known.get(speaker)
                    bit = channel_bits.get(raw[at + 19 : colon])
                    if connections is not None and bit is not None:
                        connection = connections.get(tail)
                        if connection is not None:
                            connection.channels |= bit
                            connection.count += 1
                            last[speaker] = base + number
                            channels += 1
                            continue
                        if full or len(connections) >= MAX_CONNECTIONS_PER_RANK:
                            transport = tails.get(tail.translate(None, _HEX_DIGITS))
                            if transport is not None:
                                dropped[transport] = dropped.get(transport, 0) + 1
                                last[speaker] = base + number
                                channels += 1
                                continue
                    if b" NCCL " not in tail and b"\x1b" not in tail:
                        self._number = number
                        if self._channel(raw[at + 11 :], speaker, raw):
                            last[speaker] = base + number
                            self._coverage.nccl_lines += 1
                            continue
                else:
                    statement = bodies.get(raw[at + 6 :])
                    if statement is not None:
                        statement.count += 1
                        statement.speakers[speaker] = None
                        last[speaker] = base + number
                        said += 1
                        continue
                    shape = skeletons.get(raw[at + 11 :].translate(None, _HEX_DIGITS))
                    if shape is not None and raw.startswith(b"INFO ", at + 6):
                        if shape == "collective":
                            self._job.call(raw, at + 11, speaker, self._file, number)
                        shape_lines[shape] += 1
                        last[speaker] = base + number
                        said += 1
                        continue
            self._number = number
            self._line(raw, at, others)
        self._number = number
        self._coverage.lines += number - first
        self._coverage.nccl_lines += said + channels
        self._coverage.recognised += said + channels
        if channels:
            self._shape_lines["channel"] = self._shape_lines.get("channel", 0) + channels
        return others

    def result(self) -> NcclLog:
        """All facts of what was fed so far."""
        lines = dict(self._shape_lines)
        not_kept = sum(count for shape, count in lines.items() if shape != "channel")
        for statement in self._statements:
            lines[statement.shape] = lines.get(statement.shape, 0) + statement.count
        unknown = sorted((shape for shape in self._unknown.values() if shape.count), key=lambda shape: -shape.count)
        coverage = msgspec.structs.replace(self._coverage, unknown=unknown, not_kept=not_kept)
        return NcclLog(
            list(self._files), coverage, list(self._heads.speakers), list(self._statements),
            self._job.job(self._parse_call, self._heads.speakers), lines,
            dict(self._last),
        )  # fmt: skip

    # --- one line

    def _line(self, raw: bytes, at: int, others: list[tuple[int, bytes]]) -> None:
        level = _LEVEL.match(raw, at + 6)
        if level is None:
            self._other(raw, others)
            return
        if b"\x1b" in raw[:at] and (clean := ANSI.sub(b"", raw)) != raw and (found := clean.find(b" NCCL ")) >= 0:
            self._line(clean, found, others)
            return
        head = self._heads.read(raw[:at])
        if head is None:
            self._other(raw, others)
            return
        speaker, location, residue = head
        if residue:
            others.append((self._number, residue))
        body = raw[level.end() :]
        second = body.find(b" NCCL ")
        start = self._heads.second(body, second) if second >= 0 else -1
        if start >= 0:
            whole = level[1] + b" " + body[:start]
            self._body(body[:start], level[1].decode(), speaker, location, raw, cut=True, key=whole)
            rest = body[start:]
            self._line(rest, rest.find(b" NCCL "), others)
            return
        self._body(body, level[1].decode(), speaker, location, raw, key=raw[at + 6 :])

    # --- one body

    def _body(
        self, body: bytes, level: str, speaker: int, location: str, raw: bytes, *, cut: bool = False, key: bytes = b""
    ) -> None:
        coverage = self._coverage
        coverage.nccl_lines += 1
        self._last[speaker] = coverage.lines + self._number
        statement = self._bodies.get(key) if key else None
        if statement is not None:
            statement.count += 1
            statement.speakers[speaker] = None
            coverage.recognised += 1
            return
        if b"\x1b" in body:
            body = ANSI.sub(b"", body)
        if self._channel(body, speaker, raw):
            return
        skeleton = body.translate(None, _HEX_DIGITS)
        shape = self._skeletons.get(skeleton)
        if shape is not None:
            if shape == "collective":
                self._job.call(raw, max(0, raw.find(body)), speaker, self._file, self._number)
            self._count(shape)
            return
        strange = self._strange.get(skeleton)
        if strange is None:
            if self._understand(body, level, speaker, location, raw, key, skeleton):
                return
            strange = self._unknown_shape(body, raw)
            if len(self._strange) < _MAX_CACHE:
                self._strange[skeleton] = strange
        coverage.damaged += cut
        strange.count += 1
        self._unmended = _Unmended(body, level, speaker, self._number, raw, location, strange)

    def _unknown_shape(self, body: bytes, raw: bytes) -> UnknownShape:
        """The shape of a body that is not understood; beyond ``MAX_UNKNOWN`` all others are one."""
        text = _NUMBERS.sub("#", body[:300].decode("utf-8", "backslashreplace")).strip()
        unknown = self._unknown.get(text)
        if unknown is None:
            if len(self._unknown) >= MAX_UNKNOWN:
                text = "(further shapes)"
            unknown = self._unknown.setdefault(text, UnknownShape(text, self._source(raw)))
        return unknown

    def _channel(self, body: bytes, speaker: int, raw: bytes) -> bool:
        """Whether a body is a channel line; if so it is in the map."""
        at = body.find(b" via ")
        if at < 0:
            return False
        colon = body.find(b" : ", 0, at)
        match = CHANNEL_LINE.match(body)
        if match is not None:
            self._job.channel(match, body[colon:], speaker, self._file, self._number, raw)
            if len(self._tails) < _MAX_CACHE:
                via = parse_via(match[8].decode("utf-8", "backslashreplace"))
                self._tails[body[colon:].translate(None, _HEX_DIGITS)] = via.transport
            if len(self._channels) < _MAX_CACHE and body.startswith(b"Channel ") and colon > 0:
                self._channels[body[8:colon]] = 1 << int(match[1])
        else:
            match = COLLNET_LINE.match(body)
            if match is None:
                return False
            self._job.collnet(match, body[colon:], speaker, self._file, self._number, raw)
        self._count("channel")
        return True

    def _understand(
        self, body: bytes, level: str, speaker: int, location: str, raw: bytes, key: bytes, skeleton: bytes
    ) -> bool:
        """Parse a body that is not known by its bytes; false where no shape fits."""
        parsed = self._parse(body[:MAX_BODY].decode("utf-8", "backslashreplace"))
        if parsed is None and b"]<std" in body:
            body = MPI_TAG.sub(b"", body)
            if self._channel(body, speaker, raw):
                return True
            parsed = self._parse(body[:MAX_BODY].decode("utf-8", "backslashreplace"))
        if parsed is None:
            return False
        name, keep, fact, place = parsed
        kept = self._kept.get(name, 0)
        self._coverage.recognised += 1
        if isinstance(fact, CommInit):
            who = self._heads.speakers[speaker]
            self._job.state(fact, speaker, who.host, who.pid, self._source(raw))
            same = self._states.get(fact)
            if same is not None:
                same.count += 1
                same.speakers[speaker] = None
                return True
        elif isinstance(fact, Collective):
            self._job.call(raw, max(0, raw.find(body)), speaker, self._file, self._number)
        if kept >= keep or len(self._statements) >= MAX_STATEMENTS:
            self._shape_lines[name] = self._shape_lines.get(name, 0) + 1
            if len(self._skeletons) < _MAX_CACHE and not isinstance(fact, CommInit):
                self._skeletons[skeleton] = name
            return True
        self._kept[name] = kept + 1
        order = self._coverage.lines + self._number
        time = split_prefix(raw)[0].time
        statement = Statement(name, level, fact, self._source(raw), order, 1, {speaker: None}, location or place, time)
        self._statements.append(statement)
        # The map of the job must see every state and call, also where two processes say the very same.
        if isinstance(fact, CommInit):
            self._states[fact] = statement
        elif key and not isinstance(fact, Collective):
            self._bodies[key] = statement
        return True

    def _parse_call(self, body: bytes) -> Collective | None:
        parsed = self._parse(body[:MAX_BODY].decode("utf-8", "backslashreplace"))
        return parsed[2] if parsed is not None and isinstance(parsed[2], Collective) else None

    def _parse(self, text: str) -> tuple[str, int, Fact, str] | None:
        place = ""
        match = _PLACE.match(text)
        if match is not None:
            place, text = match[1], text[match.end() :]
        parsed = self._table.parse(text)
        if parsed is None:
            return None
        shape, fact = parsed
        return shape.name, shape.keep, fact, place

    def _count(self, shape: str) -> None:
        self._shape_lines[shape] = self._shape_lines.get(shape, 0) + 1
        self._coverage.recognised += 1

    def _source(self, raw: bytes) -> Source:
        return Source(self._file, self._number, raw[:MAX_TEXT].decode("utf-8", "backslashreplace"))

    # --- lines that are not NCCL's by their mark

    def _other(self, raw: bytes, others: list[tuple[int, bytes]]) -> None:
        if self._unmended is not None:
            unmended, self._unmended = self._unmended, None
            if raw.strip() and self._number - unmended.number <= 2 and self._mend(unmended, raw):
                return
        if raw.startswith(b"NCCL ") and _LEVEL.match(raw, 5) is not None:
            self._line(b" " + raw, 0, others)
            return
        if b"CCL " in raw and (match := _OTHER_LIBRARY.search(raw)) is not None:
            self._line(raw[: match.start(1)] + b"NCCL" + raw[match.end(1) :], match.start(1) - 1, others)
            return
        if b"CCL version " in raw and (match := _VERSION_LINE.search(raw)) is not None:
            prefix, end = split_prefix(raw)
            speaker = self._heads.number(Speaker("", 0, -1, prefix.rank))
            self._body(match[1], "VERSION", speaker, "", raw)
            if raw[end : match.start(1)].strip():
                # PyTorch ends its own errors with NCCL's version: the line is its, too.
                others.append((self._number, raw))
            return
        others.append((self._number, raw))

    def _mend(self, unmended: _Unmended, rest: bytes) -> bool:
        """Whether a body that made no sense does with the line that follows."""
        _, end = split_prefix(rest)
        joined = unmended.body.rstrip(b"\r") + rest[end:]
        if len(joined) > MAX_BODY:
            return False
        skeleton = joined.translate(None, _HEX_DIGITS)
        if not self._channel(joined, unmended.speaker, unmended.raw) and not self._understand(
            joined, unmended.level, unmended.speaker, unmended.location, unmended.raw, b"", skeleton
        ):
            return False
        self._coverage.mended += 1
        unmended.shape.count -= 1
        return True


def read_nccl_logs(
    paths: Iterable[str | Path], *, progress: Callable[[int], None] | None = None, reader: NcclLogReader | None = None
) -> NcclLog:
    """All NCCL lines of the given files as one log. Raises ``OSError``; a file that breaks off is read up to there."""
    reader = reader or NcclLogReader()
    broken_off: dict[str, str] = {}
    for path in paths:
        reader.begin(str(path))
        try:
            for block in blocks(Path(path), progress=progress):
                reader.feed_block(block)
        except ReadRefused as error:
            broken_off[str(path)] = error.reason
    return msgspec.structs.replace(reader.result(), broken_off=broken_off)


def read_nccl_text(text: str | bytes, file: str = "text") -> NcclLog:
    """The NCCL lines of a text in memory."""
    reader = NcclLogReader()
    reader.begin(file)
    data = text.encode() if isinstance(text, str) else text
    if data:
        reader.feed_block(data.removesuffix(b"\n").split(b"\n"))
    return reader.result()
