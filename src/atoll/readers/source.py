"""Where a fact was read: the file, the line, and the raw text that proves it.

Every fact that a reader hands out carries a ``Source``, so that a verdict can quote the very line. ``text`` is the
line as it stood in the file after decoding, cut to ``MAX_TEXT`` characters: a hostile file must not grow a report.
"""

from __future__ import annotations

import msgspec

MAX_TEXT = 2000


class Source(msgspec.Struct, frozen=True):
    """``line`` counts from 1; 0 says that the fact is of the file as a whole (a binary dump, say)."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file
