"""The head of an NCCL line: who speaks.

``host:pid:tid [dev]``, before it what the launcher wrote, after it, for warnings, a place in NCCL's source. A log shown
in public may have lost host and process (``node [3]``). Two lines written into each other have a second head in their
middle, and its host may be glued to the text before it: a host known from elsewhere tells where it begins.

Speakers are numbered. Heads repeat, so they are looked up by their bytes (``known``); where a launcher puts a time
before each, the time is cut off first.
"""

from __future__ import annotations

import re
from typing import Final

from atoll.readers.launcher_prefix import MPI_TAG, split_prefix
from atoll.readers.nccl_log_facts import Speaker

MAX_SPEAKERS: Final = 100_000
_MAX_KNOWN: Final = 200_000
_MAX_RESIDUES: Final = 10_000
_PREFIX_TIMES: Final = 200
"""A text before heads that comes back this often, numbers aside, is a prefix of a launcher that is not known here."""

_HEAD: Final = re.compile(
    rb"(?:^|(?<=[\s:>|\]\[\x28\"]))([\w.\-]{1,253}):(\d{1,10}):(\d{1,10})(?: \[ ?(-?\d{1,6}) ?\])?"
    rb"(?: (\S.{0,200}))?\s*$"
)
_BARE_HEAD: Final = re.compile(rb"(?:^|\s)(?:([\w.\-<>]{1,253}) )?\[ ?(-?\d{1,6}) ?\](?: (\S.{0,200}))?\s*$")
_SECOND_HEAD: Final = re.compile(rb"([\w.\-]{1,253}):\d{1,10}:\d{1,10} \[-?\d{1,6}\] (?:\S{1,120} )?$")
_TRAILING_TAG: Final = re.compile(MPI_TAG.pattern + rb"\s*\Z")
_DIGITS: Final = b"0123456789"


class Heads:
    """The heads of all lines so far. ``known`` maps those without a place to the number of their speaker."""

    def __init__(self) -> None:
        self.speakers: list[Speaker] = []
        self.known: dict[bytes, int] = {}
        self._number_of: dict[Speaker, int] = {}
        self._prefixes: set[bytes] = set()
        self._residues: dict[bytes, int] = {}
        self._hosts: set[bytes] = set()

    def number(self, speaker: Speaker) -> int:
        """The number of a speaker, new or not. Beyond ``MAX_SPEAKERS`` all are one nobody."""
        number = self._number_of.get(speaker)
        if number is None:
            if len(self.speakers) >= MAX_SPEAKERS and speaker.host:
                return self.number(Speaker("", 0, -1))
            number = self._number_of[speaker] = len(self.speakers)
            self.speakers.append(speaker)
        return number

    def quick(self, head: bytes) -> int:
        """The speaker of a head that differs from a known one by numbers in its launcher prefix (a time), else -1."""
        start = head.rfind(b" ", 0, max(head.rfind(b" ["), 0)) + 1
        if start > 0 and head[:start].translate(None, _DIGITS) in self._prefixes:
            return self.known.get(head[start:], -1)
        return -1

    def read(self, head: bytes) -> tuple[int, str, bytes] | None:
        """Speaker, place in NCCL's source, and what stands before the head but is no launcher prefix."""
        number = self.known.get(head, -1)
        if number < 0:
            number = self.quick(head)
        if number >= 0:
            return number, "", b""
        match = _HEAD.search(head)
        if match is not None:
            host, pid, place = match[1], int(match[2]), match[5]
            dev = int(match[4]) if match[4] is not None else -1
            start = match.start()
        else:
            bare = _BARE_HEAD.search(head) if head.strip() else None
            if bare is None:
                return None if head.strip() else (self.number(Speaker("", 0, -1)), "", b"")
            host, pid, dev, place = bare[1] or b"", 0, int(bare[2]), bare[3]
            start = bare.start()
        before = head[:start]
        prefix, end = split_prefix(before)
        residue = before[end:].strip(b" \t\r\0")
        rank = prefix.rank
        if (tag := _TRAILING_TAG.search(residue)) is not None:
            # mpirun marks each write() of a rank, so the tag of this line may follow the text of another.
            rank, residue = int(tag[1]), residue[: tag.start()]
        number = self.number(Speaker(host.decode(), pid, dev, rank))
        self._hosts.add(host)
        if residue and match is not None and self._is_prefix(before):
            residue = b""
        if not residue and not place and len(self.known) < _MAX_KNOWN:
            if match is not None and (prefix.time or before.translate(None, _DIGITS) in self._prefixes):
                self._prefixes.add(before.translate(None, _DIGITS))
                self.known[head[start:]] = number
            else:
                self.known[head] = number
        return number, place.decode("utf-8", "backslashreplace") if place else "", residue

    def _is_prefix(self, before: bytes) -> bool:
        """Whether this text, numbers aside, stood before so many heads that it must be a prefix of some kind."""
        skeleton = before.translate(None, _DIGITS)
        if skeleton not in self._prefixes:
            times = self._residues.get(skeleton, 0) + 1
            if times >= _PREFIX_TIMES:
                self._prefixes.add(skeleton)
                self._residues.pop(skeleton, None)
            elif skeleton in self._residues or len(self._residues) < _MAX_RESIDUES:
                self._residues[skeleton] = times
            return times >= _PREFIX_TIMES
        return True

    def second(self, body: bytes, mark: int) -> int:
        """Where a second line begins in ``body`` whose mark (`` NCCL ``) is at ``mark``; -1 where none does."""
        match = _SECOND_HEAD.search(body, max(0, mark - 400), mark + 1)
        if match is None:
            return -1
        start, host = match.start(), match[1]
        if host not in self._hosts:
            tails = [len(known) for known in self._hosts if known and host.endswith(known)]
            start += len(host) - max(tails, default=len(host))
        tag = _TRAILING_TAG.search(body, 0, start)
        return start if tag is None else tag.start()
