"""Measured runs for the scoreboard, from files of any form that readers know, each with its presumed cluster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from atoll.errors import SpecError
from atoll.readers.folder import Skipped, walk
from atoll.readers.measurements import read_measurements
from atoll.readers.nccl_tests import NcclTestRun
from atoll.schedule.bus_bandwidth import BUSBW_FACTOR
from atoll.simulator.calibration import Observation
from atoll.simulator.measured import (
    Placed,
    observations,
    placed_communicator,
    placed_on,
    presumed_cluster,
    ranks_of,
    without_warm_up,
)
from atoll.topology.load import load_cluster

MEASURED = Path(__file__).parent / "measured"


class Series(msgspec.Struct, frozen=True):
    """One run: its system, and what was measured there."""

    system: str
    collective: str
    dtype: str
    ranks: int
    placed: Placed
    rows: tuple[Observation, ...]
    file: str


def load(paths: Iterable[str | Path], cluster: str = "") -> tuple[list[Series], list[str]]:
    """Every run below ``paths`` that can be scored, and why others cannot. ``cluster`` overrules what runs name."""
    series: list[Series] = []
    left_out: list[str] = []
    for found in walk(paths):
        if isinstance(found, Skipped):
            left_out.append(f"{found.name}: {found.reason}")
            continue
        try:
            runs = read_measurements(Path(found.path).read_bytes(), found.name)
        except SpecError as error:
            left_out.append(str(error))
            continue
        if not runs:
            left_out.append(f"{found.name}: no collective times in it")
        for run in runs:
            one = _series(run, found.name, cluster)
            if isinstance(one, str):
                left_out.append(one)
            else:
                series.append(one)
    return series, left_out


def _series(run: NcclTestRun, name: str, cluster: str) -> Series | str:
    system = run.options.get("system", "")
    where = f"{name}{f' ({system})' if system else ''}"
    if "MISCONFIGURED" in run.options.get("status", ""):
        return f"{where}: says itself that its system is misconfigured"
    if run.options.get("lib", "nccl") not in ("", "nccl"):
        return f"{where}: of {run.options['lib']}, not NCCL"
    if run.collective not in BUSBW_FACTOR:
        return f"{where}: {run.collective or 'an unknown collective'} is not modelled"
    ranks = ranks_of(run)
    if ranks is None:
        return f"{where}: does not say how many ranks there were"
    try:
        placed = placed_on(load_cluster(cluster).cluster, run, ranks) if cluster else presumed_cluster(run, ranks)
        if placed is None:
            return f"{where}: names no system that there is a preset for; give --cluster PRESET:COUNT"
        rows = observations(run, placed_communicator(placed))
    except SpecError as error:
        return f"{where}: {error}"
    if not rows:
        return f"{where}: no times"
    kept = tuple(without_warm_up(rows))
    return Series(system or placed.cluster.name, run.collective, rows[0].dtype, ranks, placed, kept, name)
