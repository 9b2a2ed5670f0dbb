"""A pickle of plain data, read without the power that pickles have: no class, no function, no object is ever made.

A pickle is a program for a stack machine. Some of its instructions import and call things (GLOBAL, REDUCE, BUILD, INST,
persistent ids, extensions); dumps of plain data need none of them. This machine knows only the instructions that make
None, booleans, numbers, strings, lists, tuples and dictionaries, and refuses every other by name before it could do
anything. It also refuses what the standard unpickler lets a hostile file do without any class: a memo index that
allocates gigabytes, a nested tuple as a key whose hash overflows the stack, lengths beyond the file.

Recursive lists can be built with the memo, so whoever walks the result must bound its own depth.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any, Final

from atoll.errors import SpecError

MAX_BYTES: Final = 512 << 20
MAX_OBJECTS: Final = 20_000_000
"""Instructions that make something, over a whole file: a dump of 2,000 entries with stacks has about 300,000."""
MAX_INTEGER_BYTES: Final = 64

_MARK: Final = object()
_NAMES: Final = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_F64: Final = struct.Struct(">d")


class PickleRefused(SpecError):
    """The bytes are no pickle of plain data; the message says at which byte and why."""


def load_plain_pickle(data: bytes, what: str = "pickle") -> Any:
    """The value in ``data``: None, bool, int, float, str, bytes, list, tuple or dict. Never runs anything.

    Raises ``PickleRefused`` for any other content, a truncated pickle, or one that is beyond the limits.
    """
    if len(data) > MAX_BYTES:
        raise PickleRefused(f"{what}: {len(data)} bytes; a dump has at most {MAX_BYTES}")
    machine = _Machine(data)
    try:
        return machine.run()
    except (LookupError, struct.error) as error:
        raise PickleRefused(f"{what}: truncated or damaged pickle at byte {machine.at}") from error
    except (TypeError, AttributeError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, SpecError):
            raise PickleRefused(f"{what}: {error}") from error
        raise PickleRefused(f"{what}: damaged pickle at byte {machine.at}: {str(error)[:100]}") from error


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, stack, memo = self.data, self.stack, self.memo
        made = 0
        while True:
            code = data[self.at]
            self.at += 1
            made += 1
            if made > MAX_OBJECTS:
                raise PickleRefused(f"more than {MAX_OBJECTS} instructions")
            # The five instructions that nearly all of a dump is made of come first.
            if code == 0x71:  # BINPUT
                memo[data[self.at]] = stack[-1]
                self.at += 1
            elif code == 0x68:  # BINGET
                stack.append(memo[data[self.at]])
                self.at += 1
            elif code == 0x6A:  # LONG_BINGET
                stack.append(memo[self._unpack(_U32)])
            elif code == 0x72:  # LONG_BINPUT
                memo[self._unpack(_U32)] = stack[-1]
            elif code == 0x58:  # BINUNICODE
                stack.append(self._text(self._unpack(_U32)))
            elif code == 0x2E:  # STOP
                if stack[-1] is _MARK:
                    raise IndexError
                return stack[-1]
            else:
                action = _ACTIONS.get(code)
                if action is None:
                    raise PickleRefused(f"{_refusal(code)} at byte {self.at - 1}: refused")
                action(self)

    def _unpack(self, form: struct.Struct) -> Any:
        value = form.unpack_from(self.data, self.at)[0]
        self.at += form.size
        return value

    def _take(self, length: int) -> bytes:
        end = self.at + length
        if length < 0 or end > len(self.data):
            raise IndexError
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def _text(self, length: int) -> str:
        return self._take(length).decode("utf-8", "backslashreplace")

    def _byte(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def _integer(self, length: int) -> int:
        if length > MAX_INTEGER_BYTES:
            raise PickleRefused(f"an integer of {length} bytes at byte {self.at}: refused")
        return int.from_bytes(self._take(length), "little", signed=True)

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop_mark(self) -> list[Any]:
        """Everything above the last mark, which goes with it."""
        stack = self.stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is _MARK:
                items = stack[at + 1 :]
                del stack[at:]
                return items
        raise IndexError

    def pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        if any(item is _MARK for item in items):
            raise IndexError
        return items

    def append_to(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise PickleRefused(f"append to something that is no list, at byte {self.at}")
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise PickleRefused(f"key of something that is no dictionary, at byte {self.at}")
        target.update(self.pairs(items))

    def pairs(self, items: list[Any]) -> dict[Any, Any]:
        if len(items) % 2:
            raise IndexError
        for key in items[::2]:
            if type(key) not in (str, int, float, bool, bytes, type(None)):
                raise PickleRefused(f"a {type(key).__name__} as key of a dictionary, at byte {self.at}: refused")
        return dict(zip(items[::2], items[1::2], strict=True))

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]


_ACTIONS: Final[dict[int, Callable[[_Machine], None]]] = {
    ord("\x80"): lambda m: _check_protocol(m._byte()),
    ord("\x95"): lambda m: _skip_frame(m._unpack(_U64)),
    ord("("): lambda m: m.push(_MARK),
    ord("0"): lambda m: _drop(m.pop(1)),
    ord("1"): lambda m: _drop(m.pop_mark()),
    ord("2"): lambda m: m.push(m.stack[-1]),
    ord("N"): lambda m: m.push(None),
    ord("\x88"): lambda m: m.push(True),
    ord("\x89"): lambda m: m.push(False),
    ord("J"): lambda m: m.push(m._unpack(_I32)),
    ord("K"): lambda m: m.push(m._byte()),
    ord("M"): lambda m: m.push(m._byte() | m._byte() << 8),
    ord("\x8a"): lambda m: m.push(m._integer(m._byte())),
    ord("\x8b"): lambda m: m.push(m._integer(m._unpack(_I32))),
    ord("G"): lambda m: m.push(m._unpack(_F64)),
    ord("\x8c"): lambda m: m.push(m._text(m._byte())),
    ord("\x8d"): lambda m: m.push(m._text(m._unpack(_U64))),
    ord("U"): lambda m: m.push(m._text(m._byte())),
    ord("T"): lambda m: m.push(m._text(m._unpack(_I32))),
    ord("C"): lambda m: m.push(m._take(m._byte())),
    ord("B"): lambda m: m.push(m._take(m._unpack(_U32))),
    ord("\x8e"): lambda m: m.push(m._take(m._unpack(_U64))),
    ord("}"): lambda m: m.push({}),
    ord("]"): lambda m: m.push([]),
    ord(")"): lambda m: m.push(()),
    ord("d"): lambda m: m.push(m.pairs(m.pop_mark())),
    ord("l"): lambda m: m.push(m.pop_mark()),
    ord("t"): lambda m: m.push(tuple(m.pop_mark())),
    ord("\x85"): lambda m: m.push(tuple(m.pop(1))),
    ord("\x86"): lambda m: m.push(tuple(m.pop(2))),
    ord("\x87"): lambda m: m.push(tuple(m.pop(3))),
    ord("a"): lambda m: m.append_to(m.pop(1)),
    ord("e"): lambda m: m.append_to(m.pop_mark()),
    ord("s"): lambda m: m.set_items(m.pop(2)),
    ord("u"): lambda m: m.set_items(m.pop_mark()),
    ord("\x94"): lambda m: m.memoize(),
}


def _refusal(code: int) -> str:
    name = _NAMES.get(code)
    if name is None:
        return f"{code:#04x} is no pickle instruction"
    return f"instruction {name} is not of plain data (it may load or call code)"


def _check_protocol(protocol: int) -> None:
    if protocol > 5:
        raise PickleRefused(f"pickle protocol {protocol}; expected at most 5")


def _skip_frame(length: int) -> None:
    """A frame's length is a hint for reading; every read is checked against the file by itself."""


def _drop(items: list[Any]) -> None:
    """What POP and POP_MARK take is gone."""
