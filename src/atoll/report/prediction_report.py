"""Predictions as tables: one line a size in nccl-tests' columns, the interval and the choice beside it; plans ranked.

Plans are the same collective under other circumstances (a variable, a lost NIC, another cluster). They are ranked only
as far as their intervals allow: those that overlap share a rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from atoll.simulator.prediction import Prediction, ranking
from atoll.units import format_duration

SCHEMA_VERSION = 1

HEADER = (
    f"#{'size':>12}  {'time':>9}  {'algbw':>8}  {'busbw':>8}  {'interval':<21}  {'algorithm':<13} {'protocol':<8}  "
    f"waits for\n#{'(B)':>12}  {'(us)':>9}  {'(GB/s)':>8}  {'(GB/s)':>8}"
)
_WAITS = {"latency": "latency", "intra": "links within", "network": "network", "leaf": "leaf uplinks"}


def line(prediction: Prediction) -> str:
    """One size."""
    low, high = (format_duration(end) for end in prediction.interval)
    return (
        f" {prediction.size_bytes:>12}  {prediction.time_s * 1e6:>9.2f}  {prediction.algbw_bytes_per_s / 1e9:>8.2f}  "
        f"{prediction.busbw_bytes_per_s / 1e9:>8.2f}  {f'{low} to {high}':<21}  {prediction.algorithm:<13} "
        f"{prediction.protocol:<8}  {_WAITS.get(prediction.bound, prediction.bound)}"
    )


def reasons(predictions: Sequence[Prediction]) -> list[str]:
    """Why the choice is as it is, once for every algorithm and protocol; what cannot run; what is not modelled."""
    lines: list[str] = []
    seen: set[tuple[str, str]] = set()
    for one in predictions:
        if (one.algorithm, one.protocol) not in seen:
            seen.add((one.algorithm, one.protocol))
            lines.append(f"# {one.algorithm} {one.protocol} from {one.size_bytes} B: {one.reason}")
    refused = dict(item for one in predictions for item in one.refused.items())
    lines += [f"# not {name}: {why}" for name, why in sorted(refused.items())]
    lines += [f"# note: {note}" for note in dict.fromkeys(note for one in predictions for note in one.notes)]
    return lines


def basis(prediction: Prediction) -> str:
    """What the intervals are."""
    if prediction.calibration:
        return (
            f"# interval: 80 % of what the calibration {prediction.calibration!r} missed by; of held-out measurements "
            "where it was not measured"
        )
    return "# interval: 80 % of how far off presets have been (docs/accuracy.md); atoll calibrate narrows it"


def comparison(plans: Mapping[str, Prediction]) -> list[str]:
    """Plans of one size side by side, the fastest first, ranked where their intervals allow."""
    names = list(plans)
    times = [plans[name].time_s for name in names]
    ranks = ranking(times, [plans[name].interval for name in names])
    width = max(len(name) for name in names)
    lines = [f"#{'rank':>5}  {'plan':<{width}}  {'time':>10}  {'interval':<21}  choice"]
    for at in sorted(range(len(names)), key=lambda at: (ranks[at], times[at])):
        one = plans[names[at]]
        low, high = (format_duration(end) for end in one.interval)
        lines.append(
            f" {ranks[at]:>5}  {names[at]:<{width}}  {format_duration(one.time_s):>10}  {f'{low} to {high}':<21}  "
            f"{one.algorithm} {one.protocol}"
        )
    if len(set(ranks)) < len(ranks):
        lines.append("# plans of one rank cannot be told apart: their intervals overlap")
    return lines


def document(cluster: str, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """The JSON document; times in seconds, bandwidths in bytes per second."""
    rows = [msgspec.to_builtins(one) for one in predictions]
    return {"schema_version": SCHEMA_VERSION, "cluster": cluster, "predictions": rows}
