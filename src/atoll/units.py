"""Quantities as text: the only place where sizes, times and rates are parsed and printed.

Inside the program every quantity is SI with its unit in the name: ``size_bytes``, ``latency_s``,
``bandwidth_bytes_per_s``. On the command line, as in nccl-tests, **sizes are binary** (``128M`` is 128 MiB) and
**bandwidths are decimal** (``50GB/s`` is 50e9 bytes a second, ``400Gb/s`` is 400e9 bits a second). What lies in
storage has a size of its own kind, as disks are sold and papers quote it: ``2.3TB`` is 2.3e12 bytes.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from atoll.errors import SpecError

_BINARY_EXPONENT = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_DECIMAL_EXPONENT = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_TIME_S = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0,
    "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 365.25 * 86400.0,
}  # fmt: skip
_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?)"
_SIZE = re.compile(_NUMBER + r"\s*([kmgtp]?)(i?)(b?)", re.IGNORECASE)
_STORAGE = re.compile(_NUMBER + r"\s*(?:([kmgtp])(i?)b|b)?", re.IGNORECASE)
_FRACTION = re.compile(_NUMBER + r"\s*(%?)", re.IGNORECASE)
_BANDWIDTH = re.compile(_NUMBER + r"\s*([kmgtp]?)(bit|bps|b|B)?\s*(/s|ps)?", re.IGNORECASE)
_DURATION = re.compile(_NUMBER + r"\s*([a-zµ]+)", re.IGNORECASE)


def parse_size(text: str, what: str = "size") -> int:
    """Bytes in ``text``: ``8``, ``4K``, ``128M``, ``1.5GiB``; suffixes are binary, as nccl-tests has them.

    Raises ``SpecError`` when ``text`` is no size, negative, or not a whole number of bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise SpecError(f"{what}: expected a size such as 8, 64K, 128M or 1G, got {text!r}")
    # Decimal, since a float would round sizes beyond 2^53.
    number = Decimal(match[1])
    size = number * 1024 ** _BINARY_EXPONENT[match[2].lower()] if number < 2**63 else Decimal(2**63)
    if size >= 2**63 or size != int(size) or bool(size) != bool(number):
        raise SpecError(f"{what}: {text!r} is not a whole number of bytes below 2^63")
    return int(size)


def format_size(size_bytes: float) -> str:
    """A size for people, binary: ``1023 B``, ``64 KiB``, ``1.5 MiB``."""
    if size_bytes < 0:
        return "-" + format_size(-size_bytes)
    for exponent, prefix in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if size_bytes >= 1024**exponent:
            return f"{_trim(size_bytes / 1024**exponent)} {prefix}B"
    return f"{_trim(size_bytes)} B"


def format_size_argument(size_bytes: int) -> str:
    """A size as the command line takes it, exactly: ``1048576`` is ``1M``, ``1000`` stays ``1000``."""
    for exponent, prefix in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if size_bytes and size_bytes % 1024**exponent == 0:
            return f"{size_bytes // 1024**exponent}{prefix}"
    return str(size_bytes)


def parse_storage_size(text: str, what: str = "size") -> int:
    """Bytes in storage: ``2.3TB`` is 2.3e12 as it is said of disks, ``2.3TiB`` is binary; rounded to whole bytes.

    A prefix without ``B`` (``2.3T``) would be binary in ``parse_size`` and decimal in speech, so it is refused.
    """
    match = _STORAGE.fullmatch(text.strip())
    if match is None:
        raise SpecError(f"{what}: expected a size in storage such as 2.3TB (decimal) or 2.1TiB (binary), got {text!r}")
    prefix = (match[2] or "").lower()
    value = float(match[1]) * (1024.0 if match[3] else 1000.0) ** _DECIMAL_EXPONENT[prefix]
    if not math.isfinite(value) or value >= 2**63:
        raise SpecError(f"{what}: {text!r} is not below 2^63 bytes")
    return round(value)


def format_storage_size(size_bytes: float) -> str:
    """A size in storage for people, decimal: ``40 GB``, ``2.3 TB``."""
    return format_bandwidth(size_bytes).removesuffix("/s")


def parse_fraction(text: str, what: str = "share") -> float:
    """A share of a whole, 0 to 1: ``75%`` or ``0.75``."""
    match = _FRACTION.fullmatch(text.strip())
    value = math.inf if match is None else float(match[1]) / (100 if match[2] else 1)
    if value > 1:
        raise SpecError(f"{what}: expected a share such as 75% or 0.75, at most 100%, got {text!r}")
    return value


def parse_bandwidth(text: str, what: str = "bandwidth") -> float:
    """Bytes per second in ``text``: ``50GB/s``, ``400Gb/s``, ``400Gbit/s``, ``400Gbps``; decimal suffixes.

    A capital ``B`` is a byte, a small ``b`` a bit; without either the figure is bytes per second.
    """
    match = _BANDWIDTH.fullmatch(text.strip())
    if match is None:
        raise SpecError(f"{what}: expected a bandwidth such as 50GB/s or 400Gbit/s, got {text!r}")
    value = float(match[1]) * 1000.0 ** _DECIMAL_EXPONENT[match[2].lower()]
    unit = match[3] or "B"
    if unit != "B":
        value /= 8
    if not math.isfinite(value):
        raise SpecError(f"{what}: {text!r} is too large")
    return value


def format_bandwidth(bandwidth_bytes_per_s: float) -> str:
    """A bandwidth for people, decimal: ``47.7 MB/s``, ``450 GB/s``."""
    for exponent, prefix in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if abs(bandwidth_bytes_per_s) >= 1000**exponent:
            return f"{_trim(bandwidth_bytes_per_s / 1000**exponent)} {prefix}B/s"
    return f"{_trim(bandwidth_bytes_per_s)} B/s"


def parse_duration(text: str, what: str = "duration") -> float:
    """Seconds in ``text``: ``35us``, ``1.5ms``, ``2s``, ``15min``, ``3h``, ``100d``; a bare number is seconds."""
    stripped = text.strip()
    match = _DURATION.fullmatch(stripped)
    if match is not None and match[2].lower() in _TIME_S:
        value = float(match[1]) * _TIME_S[match[2].lower()]
    elif re.fullmatch(_NUMBER, stripped, re.IGNORECASE):
        value = float(stripped)
    else:
        raise SpecError(f"{what}: expected a duration such as 35us, 1.5ms, 60s, 15min or 100d, got {text!r}")
    if not math.isfinite(value):
        raise SpecError(f"{what}: {text!r} is too large")
    return value


def format_duration(duration_s: float) -> str:
    """A duration for people: ``35 us``, ``1.5 ms``, ``2 s``, ``15 min``, ``3.09 h``, ``4.2 d``."""
    if duration_s < 0:
        return "-" + format_duration(-duration_s)
    for limit, unit_s, unit in ((1e-6, 1e-9, "ns"), (1e-3, 1e-6, "us"), (1.0, 1e-3, "ms"), (120.0, 1.0, "s"),
                                (7200.0, 60.0, "min"), (172800.0, 3600.0, "h")):  # fmt: skip
        if duration_s < limit:
            return f"{_trim(duration_s / unit_s)} {unit}"
    return f"{_trim(duration_s / 86400.0)} d" if math.isfinite(duration_s) else "infinite"


def _trim(value: float) -> str:
    """Three or four significant digits without trailing zeros or exponents."""
    if value == int(value) and value < 1e15:
        return str(int(value))
    digits = 3 if value < 1000 else 4
    decimals = max(0, digits - 1 - math.floor(math.log10(value)))
    return f"{value:.{decimals}f}".rstrip("0").rstrip(".") if decimals else f"{value:.0f}"
