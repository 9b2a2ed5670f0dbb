"""``lspci -vvv``: access control (ACS) of PCIe bridges: whether peer traffic goes through the root complex.

A device begins with its bus id at the start of a line; ``ACSCtl:`` below it says what is switched on (``+``) and off.
``ReqRedir+`` sends requests between devices below one switch up to the root complex.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from atoll.readers.source import Source
from atoll.readers.text_stream import Line, text_lines

_BUS_ID: Final = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_DEVICE: Final = re.compile(rf"({_BUS_ID}) ([^:\n]{{1,80}}): (.{{0,200}})")
_CONTROL: Final = re.compile(r"\s*ACSCtl:\s*((?:\w{1,20}[+-]\s*){1,12})")
_FLAG: Final = re.compile(r"(\w{1,20})([+-])")


class AccessControl(msgspec.Struct, frozen=True):
    """ACS of one device. ``kind`` is lspci's class (``PCI bridge``); ``flags`` says of ``ReqRedir`` if it is on."""

    bus_id: str
    kind: str
    device: str
    flags: dict[str, bool]
    source: Source

    @property
    def redirects(self) -> bool:
        """Whether peer requests are sent up to the root complex."""
        return self.flags.get("ReqRedir", False)


def read_access_control(text: str | bytes, file: str) -> tuple[AccessControl, ...]:
    """Every ``ACSCtl`` in ``text``; none where lspci was run without root or without ``-vvv``."""
    return access_control_in(text_lines(text), file)


def access_control_in(lines: Iterable[Line], file: str) -> tuple[AccessControl, ...]:
    """``read_access_control`` of lines."""
    found: list[AccessControl] = []
    bus_id = kind = device = ""
    for line in lines:
        if (match := _DEVICE.match(line.text)) is not None:
            bus_id, kind, device = match[1].lower(), match[2], match[3].strip()
        elif bus_id and (control := _CONTROL.match(line.text)) is not None:
            flags = {name: sign == "+" for name, sign in _FLAG.findall(control[1])}
            found.append(AccessControl(bus_id, kind, device, flags, line.source(file)))
    return tuple(found)
