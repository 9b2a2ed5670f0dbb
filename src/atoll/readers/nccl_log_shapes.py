"""The shape engine: a table of sentence shapes, and the quick way from a line to its fact.

A **shape** is a regular expression in which ``<name:type>`` stands for a typed field:

========  =========================================  =======
type      matches                                    becomes
========  =========================================  =======
int       decimal, with sign                         int
hex       hexadecimal, with or without ``0x``        int
ptr       ``0x7f..``, ``(nil)`` or bare hexadecimal  int
float     decimal fraction                           float
word      no white space                             str
text      anything, as little as possible            str
rest      anything, up to the end                    str
========  =========================================  =======

A single space matches any run of white space, `` ?`` none as well. The field names are those of the shape's fact class
(or of a ``Note``). A fact class may instead come with ``build``, a function from the fields to the fact.

**Dispatch.** A body is looked up by its first word; only shapes that begin with that word are tried, then those that
begin with a field. ``Table`` is a value: it is built from the tables of shapes and holds no state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from atoll.readers.nccl_log_facts import Fact, Note

KEEP_ALL: Final = 20_000
KEEP_FEW: Final = 3
"""Statements kept of a shape: all that differ, up to a bound, or a few examples where each line has its own pointer."""

_FIELD: Final = re.compile(r"<(\w+):(int|hex|ptr|float|word|text|rest)>")
_TYPES: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "int": (r"-?\d{1,20}", int),
    "hex": (r"(?:0[xX])?[0-9a-fA-F]{1,16}", lambda text: int(text, 16)),
    "ptr": (
        r"\(nil\)|\(null\)|(?:0[xX])?[0-9a-fA-F]{1,16}",
        lambda text: 0 if text[0] == "(" else int(text, 16),
    ),
    "float": (
        r"-?(?:\d{1,20}(?:\.\d{0,20})?(?:e[+-]?\d{1,3})?|nan|inf)",
        float,
    ),
    "word": (r"\S{1,400}", str),
    "text": (r".{0,500}?", str),
    "rest": (r".{0,4000}", str),
}


class Shape(msgspec.Struct, frozen=True):
    """One sentence shape; see the theory above. ``constants`` are fields that the wording itself fixes."""

    name: str
    pattern: str
    fact: type[Fact] = Note
    constants: dict[str, Any] = {}
    build: Callable[..., Fact] | None = None
    keep: int = KEEP_ALL


class _Compiled:
    __slots__ = ("build", "constants", "fields", "match", "needle", "note", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.fields: list[tuple[str, Callable[[str], Any]]] = []
        parts: list[str] = []
        at = 0
        for field in _FIELD.finditer(shape.pattern):
            parts.append(_spaces(shape.pattern[at : field.start()]))
            expression, convert = _TYPES[field[2]]
            parts.append(f"(?P<{field[1]}>{expression})")
            self.fields.append((field[1], convert))
            at = field.end()
        parts.append(_spaces(shape.pattern[at:]))
        whole = re.compile("".join(parts) + r"\s*", re.DOTALL)
        typed = {name for name, _ in self.fields}
        self.fields.extend((name, str) for name in whole.groupindex if name not in typed)
        self.match = whole.fullmatch
        self.needle = _needle(_FIELD.sub("(field)", shape.pattern))
        self.build: Callable[..., Fact] = shape.build or shape.fact
        self.constants = shape.constants
        self.note = shape.build is None and shape.fact is Note

    def fact(self, match: re.Match[str]) -> Fact | None:
        """``None`` where a field is out of range, as in a line that is damaged."""
        values: dict[str, Any] = dict(self.constants)
        try:
            for name, convert in self.fields:
                text = match[name]
                if text is not None:
                    values[name] = convert(text)
            return Note(values) if self.note else self.build(**values)
        except (ValueError, OverflowError, TypeError):
            return None


def _spaces(literal: str) -> str:
    return literal.replace(" ?", "\0").replace(" ", r"\s+").replace("\0", r"\s*")


_LITERALS: Final = re.compile(r"[A-Za-z0-9_/:=,;]+")


def _needle(pattern: str) -> str:
    """The longest text that every body of this shape has, to skip the expression without it; may be empty."""
    depth = 0
    outside: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            outside.append(" ")
            at += 2
            continue
        if char == "[":
            at = pattern.index("]", at + 2)
            outside.append(" ")
        elif char in "()":
            depth += 1 if char == "(" else -1
            outside.append(" ")
        elif char in "?*{" and depth == 0:
            if outside:
                outside[-1] = " "
        elif depth == 0:
            if char == "|":
                return ""
            outside.append(char)
        at += 1
    return max(_LITERALS.findall("".join(outside)), key=len, default="")


_FIRST_WORD: Final = re.compile(r"\[?[\w=-]{1,60}")
_GROUP: Final = re.compile(r"\((?:\?:|\?P<\w+>)([^()?*+{}]+)\)(?!\?)")
_OPTIONAL: Final = re.compile(r"\(\?:((?:[^()]|\([^()]*\))+)\)\?")


def _first_words(pattern: str) -> tuple[str, ...]:
    """The words with which every body of this shape begins; none where it may begin with anything."""
    if (optional := _OPTIONAL.match(pattern)) is not None:
        inside, after = _first_words(optional[1]), _first_words(pattern[optional.end() :])
        return (*inside, *after) if inside and after else ()
    group = _GROUP.match(pattern)
    heads = [head + pattern[group.end() :] for head in group[1].split("|")] if group else [pattern]
    words: list[str] = []
    for head in heads:
        plain = head.replace("\\[", "[").replace("\\.", ".")
        match = _FIRST_WORD.match(plain)
        if match is None or plain[match.end() : match.end() + 1] not in ("", *" :,;/'."):
            return ()
        words.append(match[0])
    return tuple(words)


class Table:
    """Shapes by first word. ``parse`` gives the shape and fact of a body, or ``None``."""

    def __init__(self, shapes: Iterable[Shape]) -> None:
        self._by_word: dict[str, list[_Compiled]] = {}
        self._any: list[_Compiled] = []
        names: set[str] = set()
        for shape in shapes:
            compiled = _Compiled(shape)
            names.add(shape.name)
            words = _first_words(shape.pattern)
            for word in dict.fromkeys(words):
                self._by_word.setdefault(word, []).append(compiled)
            if not words:
                self._any.append(compiled)
        self.names = frozenset(names)

    def parse(self, body: str) -> tuple[Shape, Fact] | None:
        body = body.strip()
        word = _FIRST_WORD.match(body)
        if word is not None:
            for compiled in self._by_word.get(word[0], ()):
                match = compiled.match(body)
                if match is not None and (fact := compiled.fact(match)) is not None:
                    return compiled.shape, fact
        for compiled in self._any:
            match = compiled.match(body) if compiled.needle in body else None
            if match is not None and (fact := compiled.fact(match)) is not None:
                return compiled.shape, fact
        return None
