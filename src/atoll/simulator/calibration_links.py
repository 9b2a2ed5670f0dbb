"""Links calibrated by what our own runtime measured: two factors, and a cluster that has them in its figures.

NCCL's model has parts of NCCL's kernels; the schedules of the runtime have none, only links. So the closed forms of the
measured algorithms are fitted with one factor for all latencies and one for all rates, by the least absolute relative
error. The result is the same cluster with its figures scaled, their source says by what; everything that takes a
cluster takes that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from atoll.errors import SpecError
from atoll.readers.bench_json import BenchRow
from atoll.simulator.closed_form import ALGORITHMS, IN_SEGMENTS, closed_form
from atoll.simulator.prediction import Spread, spreads_by_band
from atoll.topology.cluster import Cluster, Floats, NodeGroup
from atoll.topology.fabric import Fabric
from atoll.topology.figure import Speed
from atoll.topology.node_type import LinkKind

_FLOOR: Final = 0.02
_LEAST: Final = 1e-9


class LinkCalibration(msgspec.Struct, frozen=True):
    """``latency`` and ``bandwidth`` over the cluster's own; residuals by band; what was left out, and why."""

    cluster: Cluster
    latency: float
    bandwidth: float
    rows: int
    spreads: tuple[Spread, ...]
    left_out: tuple[str, ...] = ()


def calibrate_links(cluster: Cluster, rows: Sequence[BenchRow], source: str) -> LinkCalibration:
    """Fit. Raises ``SpecError`` where no row has a closed form, or fewer than two do."""
    parts: list[tuple[float, float]] = []
    used: list[BenchRow] = []
    left_out: dict[str, None] = {}
    for row in rows:
        if row.size_bytes <= 0:
            continue
        if row.algorithm in ALGORITHMS and row.algorithm not in IN_SEGMENTS:
            left_out[f"{row.algorithm}: its closed form moves messages whole, the runtime in segments"] = None
            continue
        try:
            form = closed_form(cluster, row.collective, row.algorithm, row.size_bytes, row.ranks)
        except SpecError as error:
            left_out[str(error)] = None
            continue
        parts.append((form.latency_s, form.time_s - form.latency_s))
        used.append(row)
    if len(used) < 2:
        why = f": {'; '.join(left_out)}" if left_out else ""
        raise SpecError(f"{source}: {len(used)} rows have a closed form, at least 2 are needed{why}")
    model = np.array(parts)
    measured = np.array([row.time_s for row in used])
    latency, wire = _fit(model, measured)
    ratios = measured / (model @ np.array([latency, wire]))
    spreads = spreads_by_band([row.size_bytes for row in used], ratios.tolist())
    both = (latency, 1 / wire)
    scaled = scale_links(cluster, both, both, source)
    return LinkCalibration(scaled, latency, 1 / wire, len(used), spreads, tuple(left_out))


def _fit(model: Floats, measured: Floats) -> tuple[float, float]:
    """Factors of latency and of seconds on the wire: least squares of relative errors, reweighted towards absolute."""
    relative = model / measured[:, None]
    weight = np.ones(len(measured))
    found: Floats = np.ones(2)
    for _ in range(50):
        scaled = relative * np.sqrt(weight)[:, None]
        found = np.linalg.lstsq(scaled, np.sqrt(weight), rcond=None)[0].astype(np.float64)
        # Neither can be negative; what would be is left out of the fit.
        for at in (0, 1):
            if found[at] < _LEAST:
                other: Floats = scaled[:, 1 - at]
                found[1 - at] = max(_LEAST, float(other @ np.sqrt(weight)) / max(float(other @ other), 1e-300))
                found[at] = _LEAST
        weight = 1 / np.maximum(np.abs(relative @ found - 1), _FLOOR)
    return float(found[0]), float(found[1])


def scale_links(cluster: Cluster, inside: tuple[float, float], network: tuple[float, float], source: str) -> Cluster:
    """The cluster with latencies and rates multiplied, of links within nodes and of cables and switches between."""
    why = f"calibrated with {source}"

    def change(speed: Speed, factors: tuple[float, float]) -> Speed:
        latency, bandwidth = factors
        scaled = speed.times(bandwidth, f"x {bandwidth:.4g}, {why}")
        return msgspec.structs.replace(scaled, latency=speed.latency.times(latency, f"x {latency:.4g}, {why}"))

    groups = []
    for group in cluster.groups:
        links = tuple(
            msgspec.structs.replace(one, speed=change(one.speed, network if one.kind is LinkKind.NETWORK else inside))
            for one in group.node_type.groups
        )
        groups.append(NodeGroup(msgspec.structs.replace(group.node_type, groups=links), group.count, group.hosts))
    fabric: Fabric | None = cluster.fabric
    if fabric is not None:
        fabric = msgspec.structs.replace(
            fabric,
            leaf_uplink=None if fabric.leaf_uplink is None else change(fabric.leaf_uplink, network),
            spine_uplink=None if fabric.spine_uplink is None else change(fabric.spine_uplink, network),
        )
    return msgspec.structs.replace(
        cluster, name=f"{cluster.name}, calibrated", groups=tuple(groups), fabric=fabric, source=why
    )
