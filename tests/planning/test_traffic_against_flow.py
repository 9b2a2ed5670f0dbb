"""The times of placements, worked out from loads, held to the same groups played as flows in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from atoll.algorithms.catalog import build
from atoll.planning.parallelism import Parallelism
from atoll.planning.placement import Placement, place
from atoll.planning.traffic import Demand, costs
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.simulator.flow import simulate
from atoll.simulator.job import Job
from atoll.topology.presets import preset

SIZE = 256 << 20


def ring(ranks: int) -> ProvenSchedule:
    return prove(build("all_reduce", "ring", ranks))


def played(placement: Placement, kinds: Sequence[tuple[str, ProvenSchedule]]) -> dict[str, float]:
    """When the last group of each kind ends, all groups of all kinds started at once."""
    jobs = [
        Job(proven, tuple(gpus.tolist()), SIZE, label=kind)
        for kind, proven in kinds
        for gpus in placement.group_gpus(kind)
    ]
    outcome = simulate(jobs, placement.cluster, transport=placement.transport)
    ends: dict[str, float] = {}
    for job, end in zip(jobs, outcome.job_finish_s, strict=True):
        ends[job.label] = max(ends.get(job.label, 0.0), end)
    return ends


@pytest.mark.parametrize("name", ["dgx-h100", "aws-p4d", "rtx4090-box"])
@pytest.mark.parametrize("mapping", ["packed", "round-robin", "straddling"])
def test_all_groups_of_a_kind_at_once(name: str, mapping: str) -> None:
    placement = place(preset(name, 4), Parallelism(tp=4, dp=8), mapping)  # type: ignore[arg-type]
    for kind in placement.parallelism.kinds:
        proven = ring(placement.parallelism.degree(kind))
        (cost,) = costs(placement, [Demand(kind, "all_reduce", SIZE, algorithm="rank-order-ring")])
        flow = played(placement, [(kind, proven)])[kind]
        # Where links are shared unevenly, steps of quick pairs do not wait for slow ones of other groups.
        assert 0.75 * cost.kind_s <= flow <= 1.01 * cost.kind_s, (kind, flow, cost.kind_s)


def test_hierarchical() -> None:
    placement = place(preset("dgx-h100", 4), Parallelism(dp=32))
    proven = prove(build("all_reduce", "hierarchical", 32, group_size=8))
    (cost,) = costs(placement, [Demand("dp", "all_reduce", SIZE, algorithm="hierarchical")])
    assert played(placement, [("dp", proven)])["dp"] == pytest.approx(cost.kind_s, rel=0.02)


def test_everything_at_once() -> None:
    """Half of the estimates are exact but for latency; the worst is a short demand beside one that waits elsewhere."""
    ratios = []
    for tp, dp in ((8, 4), (4, 8), (2, 16), (16, 2)):
        for order in ("tp-dp", "dp-tp"):
            for mapping in ("packed", "straddling", "round-robin"):
                cut = Parallelism(tp=tp, dp=dp, order=order)
                placement = place(preset("dgx-h100", 4), cut, mapping)  # type: ignore[arg-type]
                flow = played(placement, [(kind, ring(cut.degree(kind))) for kind in cut.kinds])
                demands = [Demand(kind, "all_reduce", SIZE, algorithm="rank-order-ring") for kind in cut.kinds]
                ratios += [flow[cost.demand.kind] / cost.together_s for cost in costs(placement, demands)]
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    assert len(errors) == 48
    assert errors[len(errors) // 2] < 0.02
    assert errors[-1] < 0.3
