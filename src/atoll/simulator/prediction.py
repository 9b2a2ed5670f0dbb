"""A predicted time with what it rests on: the choice, the reason, the link that bounds it, and how far off it may be.

Vocabulary. A *band* is a range of sizes over which predictions err alike: below 64 KiB, to 4 MiB, to 64 MiB, above. A
*spread* is what measured over predicted was in one band: its median and its 10th and 90th percentile. The *interval* of
a prediction is its time multiplied with the outer two. Without calibration the spread is that of presets against
published measurements (``docs/accuracy.md``); with one, that of the calibration's own residuals, and, for what it was
not fitted to, no narrower than calibrated predictions of held-out measurements have been.

Two plans are only ranked where their intervals do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from atoll.units import format_bandwidth, format_duration

BAND_NAMES: Final = ("below 64 KiB", "to 4 MiB", "to 64 MiB", "above 64 MiB")
_BAND_ENDS: Final = ((64 << 10) - 1, 4 << 20, 64 << 20)


class Spread(msgspec.Struct, frozen=True):
    """Measured over predicted in one band: ``rows`` measurements, median, 10th and 90th percentile."""

    rows: int
    median: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        return self.rows > 0


class Choice(msgspec.Struct, frozen=True):
    """One algorithm and protocol, with the tuner's own estimate and what it is expected to take, in seconds."""

    algorithm: str
    protocol: str
    tuner_s: float
    time_s: float


class Prediction(msgspec.Struct, frozen=True):
    """What one collective takes. Times in seconds, bandwidths in bytes per second; ``bound`` is ``latency``, ``intra``,
    ``network`` or ``leaf``; ``interval`` is (low, high) of the time, from ``spread``.

    ``reason`` says why NCCL takes this algorithm, ``considered`` what it chose from, fastest first by its own estimate,
    ``refused`` what cannot run here and why.
    """

    collective: str
    size_bytes: int
    ranks: int
    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    algorithm: str
    protocol: str
    channels: int
    reason: str
    latency_s: float
    transfer_s: float
    bound: str
    interval: tuple[float, float]
    spread: Spread
    calibration: str = ""
    considered: tuple[Choice, ...] = ()
    refused: dict[str, str] = {}
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        low, high = (format_duration(end) for end in self.interval)
        busbw = format_bandwidth(self.busbw_bytes_per_s)
        return (
            f"{format_duration(self.time_s)} ({low} to {high}), {busbw} bus bandwidth, "
            f"{self.algorithm} {self.protocol}: {self.reason}"
        )


def band_of(size_bytes: float) -> int:
    """0 to 3: the position in ``BAND_NAMES``."""
    return int(np.searchsorted(_BAND_ENDS, size_bytes, side="left"))


def spread_of(ratios: Sequence[float]) -> Spread:
    """The spread of measured over predicted; with fewer than five measurements its ends are the extremes."""
    if not ratios:
        return Spread(0, 1.0, 1.0, 1.0)
    low, high = (10, 90) if len(ratios) >= 5 else (0, 100)
    ends = np.percentile(np.asarray(ratios, dtype=np.float64), [50, low, high])
    return Spread(len(ratios), float(ends[0]), float(ends[1]), float(ends[2]))


def spreads_by_band(sizes: Iterable[float], ratios: Iterable[float]) -> tuple[Spread, ...]:
    """One spread for each band, of no rows where nothing was measured."""
    found: list[list[float]] = [[] for _ in BAND_NAMES]
    for size, ratio in zip(sizes, ratios, strict=True):
        found[band_of(size)].append(ratio)
    return tuple(spread_of(ratios) for ratios in found)


def wider(one: Spread, other: Spread) -> Spread:
    """The first with the outer ends of both."""
    return Spread(one.rows, one.median, min(one.low, other.low), max(one.high, other.high))


def interval(time_s: float, spread: Spread) -> tuple[float, float]:
    """(low, high); the prediction itself lies within, even where every residual was to one side."""
    return time_s * min(1.0, spread.low), time_s * max(1.0, spread.high)


def ranking(times: Sequence[float], intervals: Sequence[tuple[float, float]]) -> list[int]:
    """The rank of each plan, 1 for the fastest; plans whose intervals overlap, also by way of others, share one."""
    order = sorted(range(len(times)), key=lambda plan: intervals[plan])
    ranks = [0] * len(times)
    reach, rank = -1.0, 0
    for position, plan in enumerate(order, start=1):
        if intervals[plan][0] > reach:
            rank = position
        reach = max(reach, intervals[plan][1])
        ranks[plan] = rank
    return ranks
