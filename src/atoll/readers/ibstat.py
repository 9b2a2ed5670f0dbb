"""``ibstat``: the state, rate and link layer of each port of each RDMA adapter of one host."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from atoll.errors import SpecError
from atoll.readers.source import Source
from atoll.readers.text_stream import Line, text_lines


class RdmaPort(msgspec.Struct, frozen=True):
    """One port. A field that was not printed is empty or ``None``.

    ``state`` (``Active``, ``Initializing``, ``Down``, ``Armed``) and ``physical_state`` (``LinkUp``, ``Polling``,
    ``Disabled``) are as printed; ``rate_bytes_per_s`` is per direction, from the printed Gbit/s; ``link_layer``
    is ``InfiniBand`` or ``Ethernet``; ``sm_lid`` 0 says that no subnet manager has been heard.
    """

    adapter: str
    port: int
    source: Source
    state: str = ""
    physical_state: str = ""
    rate_bytes_per_s: float | None = None
    link_layer: str = ""
    base_lid: int | None = None
    sm_lid: int | None = None
    port_guid: str = ""
    host: str = ""
    adapter_type: str = ""
    firmware: str = ""


MAX_PORTS: Final = 4096

_ADAPTER: Final = re.compile(r"(?:(?P<host>[A-Za-z0-9][\w.-]{0,252}):\s+)?\s*CA '(?P<name>[^']{1,64})'\s*")
_STATUS: Final = re.compile(
    r"(?:(?P<host>[A-Za-z0-9][\w.-]{0,252}):\s+)?Infiniband device '(?P<name>[^']{1,64})' "
    r"port (?P<port>\d{1,3}) status:\s*"
)
_DEVINFO: Final = re.compile(r"(?:(?P<host>[A-Za-z0-9][\w.-]{0,252}):\s+)?hca_id:\s*(?P<name>\S{1,64})\s*")
_PORT: Final = re.compile(r"Port (\d{1,3}):")
_NUMBER: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)")
_NUMBERED: Final = re.compile(r"\d{1,2}:\s*(.+)")
_WORD: Final = re.compile(r"(?:PORT_)?(\w+)(?:\s*\(\d+\))?")
# ibv_devinfo prints the lane count and the lane rate; a lane's data rate in Gbit/s by its code name's figure.
_WIDTH: Final = re.compile(r"(\d{1,2})X")
_PLAIN_STATES: Final = {"INIT": "Initializing", "ACTIVE": "Active", "DOWN": "Down", "ARMED": "Armed"}
_PLAIN_LAYERS: Final = {"infiniband": "InfiniBand", "ethernet": "Ethernet"}


def read_ibstat(text: str | bytes, file: str) -> tuple[RdmaPort, ...]:
    """Every port in the output of ``ibstat``, ``ibstatus`` or ``ibv_devinfo``, in order; hosts from a ``pdsh`` prefix.

    Raises ``SpecError`` where no port is found, or a rate or LID is no number.
    """
    return ports_in(text_lines(text), file)


def ports_in(lines: Iterable[Line], file: str) -> tuple[RdmaPort, ...]:
    """``read_ibstat`` of lines."""
    ports: list[RdmaPort] = []
    adapter: dict[str, str] = {}
    host = ""
    lanes: float | None = None
    in_adapter = False
    for line in lines:
        text = line.text
        match = _ADAPTER.fullmatch(text) or _DEVINFO.fullmatch(text) or _STATUS.fullmatch(text)
        if match is not None:
            host = match["host"] or line.launcher.host
            adapter, in_adapter, lanes = {"name": match["name"]}, True, None
            if match.re is _STATUS:
                ports.append(RdmaPort(match["name"], int(match["port"]), line.source(file), host=host))
                in_adapter = False
            continue
        if not adapter:
            continue
        if host and text.startswith(host + ":"):
            text = text[len(host) + 1 :]
        key, colon, value = text.strip().partition(":")
        value = value.strip()
        if not colon:
            # Output that belongs to another program ends the adapter (``ibstat -p`` lists bare GUIDs after it).
            if text.strip():
                adapter = {}
            continue
        if (port := _PORT.fullmatch(text.strip())) or (key == "port" and value.isdigit() and len(value) < 4):
            number = int(port[1]) if port else int(value)
            if len(ports) >= MAX_PORTS:
                raise SpecError(f"{file}:{line.number}: more than {MAX_PORTS} ports")
            ports.append(
                RdmaPort(
                    adapter["name"], number, line.source(file), host=host,
                    adapter_type=adapter.get("type", ""), firmware=adapter.get("firmware", ""),
                )
            )  # fmt: skip
            in_adapter, lanes = False, None
        elif in_adapter:
            if key in ("CA type", "board_id"):
                adapter["type"] = value
            elif key in ("Firmware version", "fw_ver"):
                adapter["firmware"] = value
        elif ports:
            changes = _change(key, value, line, file)
            if key == "active_width" and (width := _WIDTH.match(value)):
                lanes = float(width[1])
            if key == "active_speed" and lanes is not None and (rate := _NUMBER.match(value)):
                changes["rate_bytes_per_s"] = lanes * float(rate[1]) * 1e9 / 8
            if changes:
                if changes.get("state"):
                    changes["source"] = line.source(file)
                ports[-1] = msgspec.structs.replace(ports[-1], **changes)
    if not ports:
        raise SpecError(f"{file}: no port: expected the output of ibstat, whose adapters begin with CA 'mlx5_0'")
    return tuple(ports)


def _change(key: str, value: str, line: Line, file: str) -> dict[str, Any]:
    """What one ``key: value`` line of a port says."""
    plain = numbered[1] if (numbered := _NUMBERED.fullmatch(value)) else value
    if key in ("State", "state") and (word := _WORD.match(plain)):
        return {"state": _PLAIN_STATES.get(word[1].upper(), word[1])}
    if key in ("Physical state", "phys state", "phys_state") and (word := _WORD.match(plain)):
        return {"physical_state": word[1]}
    if key in ("Rate", "rate"):
        number = _NUMBER.match(value)
        if number is None:
            raise SpecError(f"{file}:{line.number}: Rate: expected Gbit/s, got {value[:40]!r}")
        return {"rate_bytes_per_s": float(number[1]) * 1e9 / 8}
    if key in ("Base lid", "base lid", "port_lid"):
        return {"base_lid": _lid(value, line, file)}
    if key in ("SM lid", "sm lid", "sm_lid"):
        return {"sm_lid": _lid(value, line, file)}
    if key in ("Link layer", "link_layer"):
        return {"link_layer": _PLAIN_LAYERS.get(value.lower(), value)}
    if key == "Port GUID":
        return {"port_guid": value[:40]}
    return {}


def _lid(value: str, line: Line, file: str) -> int:
    try:
        lid = int(value, 16) if value.startswith("0x") else int(value)
        if 0 <= lid < 1 << 32:
            return lid
    except ValueError:
        pass
    raise SpecError(f"{file}:{line.number}: expected a LID, got {value[:40]!r}")
