"""nccl-tests ``-J``: the same runs as the text holds, from its JSON report.

The report is one object for one run: ``config`` with ``devices``, ``results`` and a footer. Booleans are strings in it,
``nan`` is a string, and the file ends in the middle when the program was killed; such a file is refused.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from atoll.errors import SpecError
from atoll.readers.collective_names import known_collective
from atoll.readers.nccl_tests import (
    Measurement,
    NcclTestFailure,
    NcclTestRank,
    NcclTestRow,
    NcclTestRun,
    version_from_code,
)
from atoll.readers.source import Source

MAX_BYTES: Final = 256 << 20
_KNOWN: Final = frozenset({"time", "cpu_time", "alg_bw", "bus_bw", "nwrong"})


def read_nccl_tests_json(text: str | bytes, file: str) -> NcclTestRun:
    """The run in ``text``. Raises ``SpecError`` where it is no such report, is cut, or a number is none."""
    if len(text) > MAX_BYTES:
        raise SpecError(f"{file}: {len(text)} bytes; a report of nccl-tests has at most {MAX_BYTES}")
    try:
        document = msgspec.json.decode(text, type=dict[str, Any])
        results = document["results"]
        rows = tuple(_row(result, file) for result in results)
        config = document.get("config") or {}
        ranks = tuple(_rank(device, file) for device in config.get("devices") or ())
        program = str((document.get("args") or [""])[0]).rpartition("/")[2]
        name = program.partition("_perf")[0]
        bandwidth = (document.get("average_bus_bandwidth") or {}).get("bandwidth")
        bounds = (document.get("out_of_bounds") or {}).get("count")
        code = document.get("nccl_version")
        return NcclTestRun(
            rows,
            Source(file, 0),
            known_collective(name),
            "command" if known_collective(name) else "",
            ranks,
            len(ranks) or None,
            "ranks" if ranks else "",
            tuple(
                NcclTestFailure(str(error)[:300], Source(file, 0)) for error in document.get("errors") or () if error
            ),
            "",
            version_from_code(code) if isinstance(code, int) and 0 < code < 10**8 else str(code or "")[:40],
            {str(key): str(value)[:100] for key, value in config.items() if key != "devices"},
            _scaled(bandwidth, 1e9, file),
            int(bounds) if bounds is not None else None,
            "end_time" in document,
        )
    except SpecError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{file}: no JSON report of nccl-tests, or cut in the middle: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SpecError(
            f"{file}: JSON, but not as nccl-tests -J writes it: {type(error).__name__} {str(error)[:100]}; "
            "expected an object with 'results', each with size, count, type, redop and out_of_place or in_place"
        ) from error


def _row(result: dict[str, Any], file: str) -> NcclTestRow:
    return NcclTestRow(
        int(result["size"]),
        int(result["count"]) if result.get("count") is not None else None,
        str(result.get("type", "")),
        str(result.get("redop", "")),
        Source(file, 0),
        int(str(result.get("root", "-1")).strip() or -1),
        _half(result, "out_of_place", file),
        _half(result, "in_place", file),
    )


def _half(result: dict[str, Any], name: str, file: str) -> Measurement | None:
    half = result.get(name)
    if half is None:
        return None
    further = {**half, **(result.get(name + "_per_iter") or {})}
    numbers = {key: _scaled(value, 1.0, file) for key, value in further.items() if not isinstance(value, list)}
    time_us = numbers.get("time", numbers.get("cpu_time"))
    algbw, busbw = numbers.get("alg_bw"), numbers.get("bus_bw")
    return Measurement(
        None if time_us is None else time_us / 1e6,
        None if algbw is None else algbw * 1e9,
        None if busbw is None else busbw * 1e9,
        numbers.get("nwrong"),
        {key: value for key, value in numbers.items() if key not in _KNOWN and value is not None},
    )


def _scaled(value: Any, scale: float, file: str) -> float | None:
    """A finite number times ``scale``; ``None`` for null and for the strings nccl-tests writes for no number."""
    if value is None or (isinstance(value, str) and value.lower() in ("nan", "-nan", "inf", "n/a")):
        return None
    number = float(value) * scale
    if not abs(number) < 1e300:
        raise SpecError(f"{file}: expected a finite number, got {value!r}")
    return number


def _rank(device: dict[str, Any], file: str) -> NcclTestRank:
    return NcclTestRank(
        int(device["rank"]),
        str(device.get("hostname", ""))[:253],
        int(device.get("device", -1)),
        Source(file, 0),
        int(device["pid"]) if device.get("pid") is not None else None,
        int(device["group"]) if device.get("group") is not None else None,
        str(device.get("device_hex", ""))[:40],
        str(device.get("device_info", ""))[:100],
    )
