"""What a calibration of NCCL says of placements: links as fast as they were measured to be, and how far off times are.

A calibration's factors of bandwidth, and its latency of the network, scale the cluster's links; those of protocols have
no counterpart in sums over links. Its residuals give intervals, by the band of a collective's size. Placements were not
among what it was fitted to: no interval is narrower than calibrated predictions of held-out measurements have been
(``docs/accuracy.md``).
"""

from __future__ import annotations

from atoll.simulator.accuracy_record import HELD_OUT_SPREADS
from atoll.simulator.calibration import Calibration
from atoll.simulator.calibration_links import scale_links
from atoll.simulator.prediction import Spread, wider
from atoll.topology.cluster import Cluster


def calibrated_cluster(cluster: Cluster, calibration: Calibration) -> Cluster:
    """The cluster with its links scaled; a factor that was not fitted is 1."""
    factors = calibration.factors
    return scale_links(
        cluster, (1.0, factors.bandwidth), (factors.network, factors.network_bandwidth), calibration.name
    )


def placement_spreads(calibration: Calibration) -> tuple[Spread, ...]:
    """Measured over predicted by band."""
    return tuple(
        wider(mine, held_out) if mine.known else held_out
        for mine, held_out in zip(calibration.spreads, HELD_OUT_SPREADS, strict=True)
    )
