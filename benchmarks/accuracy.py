"""The scoreboard of predictions: how far off they are from what people measured, fitted and held out apart.

    python benchmarks/accuracy.py                      what docs/accuracy.md shows, from benchmarks/measured
    python benchmarks/accuracy.py MORE.csv FOLDER      further measurements too: CSV sweeps, nccl-tests output or JSON,
                                                       tables with a "# columns:" line
    python benchmarks/accuracy.py LOG --cluster dgx-h100:4   on this cluster, whatever the file says of itself
    python benchmarks/accuracy.py FOLDER --only              the further ones alone

An error is |predicted / measured - 1|; a figure is the median over all sizes of a band, of every collective, type and
number of GPUs alike. Presets are never fitted. A calibration is fitted on the all-reduce of the smallest and the
largest number of GPUs of a system, at most six factors, and everything else of that system is held out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from accuracy_data import MEASURED, Series, load

from atoll.simulator.calibration import Calibration, Observation, calibrate
from atoll.simulator.nccl import predict, predict_for
from atoll.simulator.prediction import BAND_NAMES, Prediction, band_of, spreads_by_band
from atoll.topology.presets import preset

SWEEPS = ("a100_sxm", "h100_sxm")
TWO_NODES = "dell_xe9680_h100"
ANOTHER = "coreweave_h100"
RACKS = ("oci_gb200_1_rack", "oci_gb200_2_racks")
CLIFF_BYTES = 8 << 30
GPUS_AT_SCALE = 100_000


class Errors:
    """Errors by band."""

    def __init__(self) -> None:
        self.bands: list[list[float]] = [[] for _ in BAND_NAMES]

    def add(self, size_bytes: float, predicted_s: float, measured_s: float) -> None:
        self.bands[band_of(size_bytes)].append(abs(predicted_s / measured_s - 1))

    def summary(self) -> dict[str, Any]:
        every = [error for band in self.bands for error in band]
        return {
            "rows": [len(band) for band in self.bands],
            "median": [statistics.median(band) if band else None for band in self.bands],
            "p90": [_p90(band) if band else None for band in self.bands],
            "worst": max(every, default=None),
            "all": statistics.median(every) if every else None,
        }


def _p90(errors: Sequence[float]) -> float:
    ordered = sorted(errors)
    return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]


def forecast(one: Observation, calibration: Calibration | None = None) -> Prediction:
    return predict_for(
        one.communicator, one.collective, one.size_bytes, one.environment, one.dtype, calibration=calibration
    )


def errors_of(
    series: Sequence[Series], calibration: Calibration | None = None, chosen: Callable[[Series], bool] = lambda _: True
) -> Errors:
    errors = Errors()
    for run in series:
        if chosen(run):
            for row in run.rows:
                errors.add(row.size_bytes, forecast(row, calibration).time_s, row.time_s)
    return errors


def presets_only(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Uncalibrated, by system: all collectives, then each."""
    table = []
    for system in dict.fromkeys(run.system for run in series):
        mine = [run for run in series if run.system == system]
        table.append({"system": system, "of": "all", **errors_of(mine).summary()})
        collectives = list(dict.fromkeys(run.collective for run in mine))
        if len(collectives) > 1:
            for name in collectives:
                only = errors_of(mine, chosen=lambda run, name=name: run.collective == name)  # type: ignore[misc]
                table.append({"system": system, "of": name, **only.summary()})
    return table


def calibrated(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Fitted on all-reduce at the smallest and largest number of GPUs, by system; plain interpolation beside it."""
    table: list[dict[str, Any]] = []
    for system in dict.fromkeys(run.system for run in series):
        fitted, held_out = split([run for run in series if run.system == system])
        if not fitted or not held_out:
            continue
        calibration = fit(system, fitted)
        factors = {name: round(getattr(calibration.factors, name), 3) for name in calibration.fitted}
        about = {"system": system, "gpus": sorted({run.ranks for run in fitted}), "factors": factors}
        table.append({**about, "of": "fitted", **errors_of(fitted, calibration).summary()})
        table.append({**about, "of": "held out", **errors_of(held_out, calibration).summary()})
        for name in dict.fromkeys(run.collective for run in held_out):
            only = errors_of(held_out, calibration, lambda run, name=name: run.collective == name)  # type: ignore[misc]
            table.append({**about, "of": f"held out: {name}", **only.summary()})
        between = _interpolated(fitted, [run for run in held_out if run.collective == "all_reduce"])
        if any(between.bands):
            table.append({**about, "of": "interpolated: all_reduce", **between.summary()})
    return table


def _interpolated(fitted: Sequence[Series], held_out: Sequence[Series]) -> Errors:
    """All-reduce at counts in between, on a line in the number of GPUs at each fitted size: what needs no model."""
    errors = Errors()
    for run in held_out:
        ends = sorted((one for one in fitted if one.dtype == run.dtype), key=lambda one: one.ranks)
        if len(ends) != 2 or not ends[0].ranks < run.ranks < ends[1].ranks:
            continue
        low, high = ({row.size_bytes: row.time_s for row in end.rows} for end in ends)
        share = (run.ranks - ends[0].ranks) / (ends[1].ranks - ends[0].ranks)
        for row in run.rows:
            if row.size_bytes in low and row.size_bytes in high:
                between = low[row.size_bytes] + share * (high[row.size_bytes] - low[row.size_bytes])
                errors.add(row.size_bytes, between, row.time_s)
    return errors


def another_cluster(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Calibrated on two nodes, larger clusters of others predicted."""
    fitted = [run for run in series if run.system == TWO_NODES]
    calibration = fit(TWO_NODES, fitted)
    table = [{"system": TWO_NODES, "of": "fitted", **errors_of(fitted, calibration).summary()}]
    for system in (ANOTHER, "aws_p5"):
        others = [run for run in series if run.system == system]
        table.append({"system": system, "of": "held out", **errors_of(others, calibration).summary()})
    return table


def cliff(series: Sequence[Series]) -> list[dict[str, Any]]:
    """All-to-all within one NVL72 rack and over two, measured and from the preset; three are predicted only."""
    table: list[dict[str, Any]] = []
    for system in RACKS:
        run = next(run for run in series if run.system == system)
        row = next(row for row in run.rows if row.size_bytes == CLIFF_BYTES)
        predicted = forecast(row)
        measured = row.size_bytes / row.time_s * (run.ranks - 1) / run.ranks
        table.append(
            {"racks": run.placed.cluster.num_islands, "gpus": run.ranks, "measured": measured,
             "predicted": predicted.busbw_bytes_per_s, "error": abs(predicted.time_s / row.time_s - 1)}
        )  # fmt: skip
    three = predict(preset("gb200-nvl72", 3), "all_to_all", CLIFF_BYTES)
    table.append(
        {"racks": 3, "gpus": three.ranks, "measured": None, "predicted": three.busbw_bytes_per_s, "error": None}
    )
    return table


def at_scale() -> dict[str, Any]:
    """Processor time of one answer at 100,000 GPUs, each for a cluster that was not asked for before; only this depends
    on the machine. A type of node that was not seen before costs 10 to 30 ms more, once."""
    clusters = [preset("dgx-h100", GPUS_AT_SCALE // 8 - less) for less in range(9)]
    predict(preset("dgx-h100", 2), "all_reduce", 8)
    times = []
    for at, cluster in enumerate(clusters):
        start = time.process_time()
        predict(cluster, ("all_reduce", "all_gather", "all_to_all")[at % 3], (8, 1 << 20, 1 << 30)[at // 3])
        times.append(time.process_time() - start)
    return {"gpus": clusters[0].num_gpus, "median_s": statistics.median(times), "worst_s": max(times)}


def record(series: Sequence[Series]) -> dict[str, list[dict[str, Any]]]:
    """Measured over predicted of the sweeps by band: ``atoll.simulator.accuracy_record`` as it should stand."""
    presets: list[tuple[float, float]] = []
    held_out: list[tuple[float, float]] = []
    for system in SWEEPS:
        mine = [run for run in series if run.system == system]
        presets += [(row.size_bytes, row.time_s / forecast(row).time_s) for run in mine for row in run.rows]
        fitted, others = split(mine)
        calibration = fit(system, fitted)
        held_out += [
            (row.size_bytes, row.time_s / forecast(row, calibration).time_s) for run in others for row in run.rows
        ]
    return {"presets": _spreads(presets), "held_out": _spreads(held_out)}


def _spreads(pairs: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    found = spreads_by_band([size for size, _ in pairs], [ratio for _, ratio in pairs])
    return [{"rows": one.rows, "median": one.median, "low": one.low, "high": one.high} for one in found]


def split(series: Sequence[Series]) -> tuple[list[Series], list[Series]]:
    """Of one system: all-reduce at the smallest and the largest number of GPUs, and everything else."""
    counts = [run.ranks for run in series if run.collective == "all_reduce"]
    ends = {min(counts, default=0), max(counts, default=0)}
    fits = [run.collective == "all_reduce" and run.ranks in ends for run in series]
    return (
        [run for run, mine in zip(series, fits, strict=True) if mine],
        [run for run, mine in zip(series, fits, strict=True) if not mine],
    )


def fit(system: str, fitted: Sequence[Series]) -> Calibration:
    return calibrate([row for run in fitted for row in run.rows], system, fitted[0].placed.cluster.name)


def scoreboard() -> dict[str, Any]:
    """The measurements beside this file, as plain data."""
    series, _ = load([MEASURED])
    sweeps = [run for run in series if run.system in SWEEPS]
    return {
        "calibrated": calibrated(sweeps),
        "presets_only": presets_only(sweeps),
        "another_cluster": another_cluster(series),
        "presets_elsewhere": presets_only([run for run in series if run.system not in SWEEPS]),
        "nvl72_all_to_all": cliff(series),
        "at_scale": at_scale(),
        "record": record(series),
    }


TITLES = {
    "calibrated": "Calibrated: at most six factors a system, fitted on all-reduce at two numbers of GPUs",
    "presets_only": "Uncalibrated, presets only: the same sweeps",
    "another_cluster": "Calibrated on two nodes of one cluster, others predicted",
    "presets_elsewhere": "Uncalibrated, presets only: clusters as their operators published them",
    "further_presets_only": "Further files, uncalibrated",
    "further_calibrated": "Further files, calibrated",
}


def print_board(board: dict[str, Any]) -> None:
    """The scoreboard as Markdown tables, which read as text too."""
    for key, title in TITLES.items():
        if key not in board:
            continue
        print(f"{title}\n")
        print(f"| system | of | {' | '.join(BAND_NAMES)} | all sizes | worst |")
        print("|---|---|" + "---:|" * (len(BAND_NAMES) + 2))
        for row in board[key]:
            cells = " | ".join(_percent(value) for value in [*row["median"], row["all"], row["worst"]])
            print(f"| {row['system']} | {row['of'].replace('_', '-')} | {cells} |")
        print()
        for row in board[key]:
            if row["of"] == "fitted" and row.get("factors"):
                factors = ", ".join(f"{name} {value:g}" for name, value in row["factors"].items())
                print(f"{row['system']}, fitted at {' and '.join(map(str, row['gpus']))} GPUs: {factors}")
        if any("factors" in row for row in board[key]):
            print()
    if "nvl72_all_to_all" in board:
        print_rest(board)


def print_rest(board: dict[str, Any]) -> None:
    """What is no table by bands."""
    print(f"All-to-all of {CLIFF_BYTES >> 30} GiB in NVL72 racks, uncalibrated\n")
    print(
        "| racks | GPUs | measured busbw, GB/s | predicted busbw, GB/s | error of the time |"
        "\n|---:|---:|---:|---:|---:|"
    )
    for row in board["nvl72_all_to_all"]:
        measured = "-" if row["measured"] is None else f"{row['measured'] / 1e9:.1f}"
        print(
            f"| {row['racks']} | {row['gpus']} | {measured} | {row['predicted'] / 1e9:.1f} | {_percent(row['error'])} |"
        )
    print()
    scale = board["at_scale"]
    print(
        f"One answer at {scale['gpus']} GPUs: {scale['median_s'] * 1e3:.1f} ms (median), "
        f"{scale['worst_s'] * 1e3:.1f} ms (worst) of one core"
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="further measurements: files and folders")
    parser.add_argument("--cluster", default="", help="PRESET:COUNT or a file: the cluster of the further measurements")
    parser.add_argument("--only", action="store_true", help="the further measurements alone")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments = parser.parse_args()
    further, left_out = load(arguments.files, arguments.cluster) if arguments.files else ([], [])
    board: dict[str, Any] = {"schema_version": 1, "bands": BAND_NAMES}
    if not arguments.only:
        board |= scoreboard()
    if further:
        board["further_presets_only"] = presets_only(further)
        board["further_calibrated"] = calibrated(further)
        board["presumed"] = sorted({f"{run.file}: {run.placed.presumed}" for run in further})
    if arguments.json:
        print(json.dumps(board, indent=1))
    else:
        print_board(board)
        for line in board.get("presumed", ()):
            print(f"taken to be: {line}", file=sys.stderr)
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
