"""The JSON document of ``atoll bench``: what it measured, algorithm by algorithm."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from atoll.errors import SpecError

MAX_BYTES: Final = 256 << 20


class BenchRow(msgspec.Struct, frozen=True):
    """One size of one algorithm: nccl-tests' size, and the faster of out-of-place and in-place, in seconds."""

    collective: str
    algorithm: str
    ranks: int
    size_bytes: int
    time_s: float


def is_bench_json(head: bytes) -> bool:
    """Whether ``head`` begins such a document."""
    return head.lstrip()[:1] == b"{" and all(
        key in head for key in (b'"schema_version"', b'"world_size"', b'"algorithm')
    )


def read_bench_json(data: bytes, file: str) -> tuple[BenchRow, ...]:
    """Its rows. Raises ``SpecError`` where the document is another or cut."""
    if len(data) > MAX_BYTES:
        raise SpecError(f"{file}: {len(data)} bytes; a document of atoll bench has at most {MAX_BYTES}")
    try:
        document = msgspec.json.decode(data, type=dict[str, Any])
        collective, ranks = str(document["collective"]), int(document["world_size"])
        rows = [_row(one, collective, ranks) for one in document["results"]]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{file}: no document of atoll bench --json, or cut in the middle: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SpecError(
            f"{file}: JSON, but not as atoll bench writes it: {type(error).__name__} {str(error)[:100]}"
        ) from error
    return tuple(row for row in rows if row is not None)


def _row(one: dict[str, Any], collective: str, ranks: int) -> BenchRow | None:
    halves = [one.get(half) or {} for half in ("out_of_place", "in_place")]
    times = [float(half["time"]) * 1e-6 for half in halves if half.get("time")]
    if not times or not 0 < min(times) < 1e9:
        return None
    return BenchRow(collective, str(one.get("algorithm", "")), ranks, int(one["size"]), min(times))
