"""Calibration: the parts of the NCCL model scaled until they agree with what somebody measured.

At most six of the ``Factors`` are fitted, those that the measurements tell apart, in a fixed order of usefulness; the
others stay 1. The fit minimises the absolute error of the logarithm (so a size counts as much as another, and outliers
do not pull), with a weak pull towards 1 for what the data hardly shows. NCCL's choice of algorithm is not fitted: it
comes from the tuner's tables, as NCCL's does.

What a calibration is worth is in its *residuals*: measured over predicted on the very rows it was fitted to, by band.
Intervals of later predictions come from there, so they say nothing about clusters that differ from the measured one in
more than size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from atoll.errors import SpecError
from atoll.simulator.communicator import Communicator
from atoll.simulator.nccl_environment import NcclEnvironment
from atoll.simulator.nccl_point_to_point import is_point_to_point, point_to_point_time
from atoll.simulator.nccl_time import NO_FACTORS, Factors, collective_time
from atoll.simulator.nccl_tuner import estimates
from atoll.simulator.prediction import Spread, spreads_by_band

MAX_FITTED: Final = 6
ORDER: Final = (
    "ll_base", "ll_hop", "bandwidth", "simple_base", "wide", "network", "network_bandwidth", "ll_full", "simple_hop",
)  # fmt: skip
_RIDGE: Final = 0.0002
_NOTICEABLE: Final = 0.03
_FLOOR: Final = 0.03
_MAX_LOG: Final = 3.0


class Observation(msgspec.Struct, frozen=True):
    """One measured time (seconds) and all that is needed to predict it."""

    communicator: Communicator
    collective: str
    size_bytes: float
    time_s: float
    environment: NcclEnvironment = NcclEnvironment()
    dtype: str = "float"


class Source(msgspec.Struct, frozen=True):
    """Where measurements came from."""

    file: str
    collective: str
    ranks: int
    rows: int
    nccl_version: str = ""


class Calibration(msgspec.Struct, frozen=True):
    """Factors, which of them were fitted, the residuals by band, and where it all came from."""

    name: str
    cluster: str
    factors: Factors
    fitted: tuple[str, ...]
    spreads: tuple[Spread, ...]
    sources: tuple[Source, ...] = ()
    made_with: str = ""


class _Row(msgspec.Struct, frozen=True):
    """An observation with NCCL's choice, which calibration does not move."""

    seen: Observation
    algorithm: str
    protocol: str

    def seconds(self, factors: Factors) -> float:
        one = self.seen
        if is_point_to_point(one.collective):
            time, _ = point_to_point_time(one.communicator, one.collective, one.size_bytes, one.environment, factors)
        else:
            time = collective_time(
                one.communicator,
                one.collective,
                one.size_bytes,
                self.algorithm,
                self.protocol,
                one.environment,
                factors,
            )
        return time.total_s


def calibrate(
    observations: Sequence[Observation], name: str, cluster: str, sources: Sequence[Source] = (), made_with: str = ""
) -> Calibration:
    """Fit. Raises ``SpecError`` where there is nothing to fit to."""
    rows = [
        _chosen(one) for one in observations if one.time_s > 0 and one.size_bytes > 0 and one.communicator.ranks > 1
    ]
    if len(rows) < 2:
        raise SpecError(f"calibration needs measured times of at least 2 sizes among 2 ranks or more, got {len(rows)}")
    measured = np.log([row.seen.time_s for row in rows])
    names = _told_apart(rows)
    factors = _fit(rows, measured, names)
    ratios = np.exp(measured - _log_seconds(rows, factors))
    spreads = spreads_by_band([row.seen.size_bytes for row in rows], ratios.tolist())
    return Calibration(name, cluster, factors, names, spreads, tuple(sources), made_with)


def _chosen(one: Observation) -> _Row:
    if is_point_to_point(one.collective) or one.communicator.ranks == 1:
        return _Row(one, "", "")
    best = estimates(one.communicator, one.collective, one.size_bytes, one.environment, one.dtype)[0]
    return _Row(one, best.algorithm, best.protocol)


def _log_seconds(rows: Sequence[_Row], factors: Factors) -> NDArray[np.float64]:
    return np.log([row.seconds(factors) for row in rows])


def _told_apart(rows: Sequence[_Row]) -> tuple[str, ...]:
    """The factors that doubling would be noticed of, the first six in order; never more than there are rows."""
    base = _log_seconds(rows, NO_FACTORS)
    found = []
    for name in ORDER:
        moved = _log_seconds(rows, msgspec.structs.replace(NO_FACTORS, **{name: 2.0}))
        if np.abs(moved - base).max() > _NOTICEABLE:
            found.append(name)
    return tuple(found[: min(MAX_FITTED, len(rows) - 1)])


def _factors(names: Sequence[str], logs: NDArray[np.float64]) -> Factors:
    return Factors(**{name: float(np.exp(value)) for name, value in zip(names, logs, strict=True)})


def _fit(rows: Sequence[_Row], measured: NDArray[np.float64], names: Sequence[str]) -> Factors:
    """Gauss-Newton on logarithms, rows reweighted towards absolute error."""
    x = np.zeros(len(names))
    step = 1e-4
    pull = _RIDGE * len(rows) * np.eye(len(names))
    for _ in range(40):
        predicted = _log_seconds(rows, _factors(names, x))
        slopes = np.stack(
            [(_log_seconds(rows, _factors(names, x + step * unit)) - predicted) / step for unit in np.eye(len(names))],
            axis=1,
        )
        error = measured - predicted
        weight = 1 / np.maximum(np.abs(error), _FLOOR)
        weight /= weight.mean()
        left = slopes.T @ (slopes * weight[:, None]) + pull
        move = np.clip(np.linalg.solve(left, slopes.T @ (weight * error) - pull @ x), -0.5, 0.5)
        x = np.clip(x + move, -_MAX_LOG, _MAX_LOG)
        if np.abs(move).max() < 1e-4:
            break
    return _factors(names, x)
