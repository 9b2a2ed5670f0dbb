"""Blast radius: every part looked at alone gives what the table says; packed jobs share fewer fates."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.planning.blast_radius import Blast, blast_radius
from atoll.planning.parallelism import Parallelism
from atoll.planning.placement import Placement, place
from atoll.topology.cluster import Cluster
from atoll.topology.parts import gpus_behind
from atoll.topology.presets import preset

KINDS = {"GPU": "", "NIC": "leaf", "NVSwitch": "", "node": "", "leaf": "leaf", "rail": "leaf", "rack": ""}


def names(cluster: Cluster, part: str) -> list[str]:
    """All parts of a kind, as ``gpus_behind`` takes them."""
    fabric = cluster.fabric
    assert fabric is not None
    nodes = range(cluster.num_nodes)
    if part in ("GPU", "NIC"):
        return [
            f"node{n}/{device}"
            for n in nodes
            for device in (cluster.node_type(n).gpus if part == "GPU" else cluster.node_type(n).nics)
        ]
    counts = {
        "NVSwitch": ("island", cluster.num_islands), "node": ("node", cluster.num_nodes),
        "leaf": ("leaf", fabric.num_leaves(cluster.num_nodes)), "rail": ("rail", fabric.rails),
        "rack": ("rack", -(-cluster.num_nodes // max(1, cluster.nodes_per_rack))),
    }  # fmt: skip
    return [f"{counts[part][0]}{n}" for n in range(counts[part][1])]


def alone(jobs: list[Placement], behind: set[int], tier: int) -> tuple[dict[str, int], int, int]:
    """Stopped groups by kind, jobs and idle GPUs when the GPUs behind one part stop, group by group."""
    groups: dict[str, int] = {}
    stopped = set()
    for number, job in enumerate(jobs):
        for kind in job.parallelism.kinds:
            crossing = job.crossing(kind)
            for at, gpus in enumerate(job.group_gpus(kind)):
                if behind & set(gpus.tolist()) and crossing.tier[at] >= tier:
                    groups[kind] = groups.get(kind, 0) + 1
                    stopped.add(number)
        if not tier and behind & set(job.gpus.tolist()):
            stopped.add(number)
    return groups, len(stopped), sum(len(jobs[number].gpus) for number in stopped)


@st.composite
def shared_clusters(draw: st.DrawFn) -> list[Placement]:
    cluster = preset(
        draw(st.sampled_from(["dgx-h100", "azure-ndv5", "l40s-pcie", "aws-p4d"])), draw(st.integers(2, 6)),
        layout=draw(st.sampled_from(["rail-optimised", "fat-tree"])), ports=draw(st.sampled_from([8, 64])),
    )  # fmt: skip
    count = draw(st.integers(1, 3))
    gpus = draw(st.permutations(range(cluster.num_gpus))) if draw(st.booleans()) else list(range(cluster.num_gpus))
    share = len(gpus) // count
    jobs = []
    for number in range(count):
        tp = draw(st.sampled_from([1, 2, 4]))
        dp = draw(st.integers(1, share // tp))
        jobs.append(place(cluster, Parallelism(tp=tp, dp=dp), gpus[number * share : number * share + tp * dp]))
    return jobs


@settings(max_examples=25, deadline=None)
@given(shared_clusters())
def test_the_worst_and_the_mean_of_all_parts_looked_at_alone(jobs: list[Placement]) -> None:
    cluster = jobs[0].cluster
    for blast in blast_radius(jobs):
        if blast.part not in KINDS:
            assert blast.part in ("spine", "core")
            continue
        parts = names(cluster, blast.part)
        tier = 1 if KINDS[blast.part] else 0
        found = {part: alone(jobs, set(gpus_behind(cluster, part).tolist()), tier) for part in parts}
        idles = [idle for _, _, idle in found.values()]
        assert blast.idle == max(idles)
        assert blast.mean_idle == pytest.approx(sum(idles) / len(idles))
        worst = blast.worst.removesuffix("/nvswitch0")
        assert (blast.groups, blast.jobs, blast.idle) == found[worst]
        assert blast.behind == len(gpus_behind(cluster, worst))
        chips = max(group.node_type.nvswitch_chips for group in cluster.groups)
        assert blast.parts == len(parts) * (chips if blast.part == "NVSwitch" else 1)


def by_part(jobs: list[Placement], racks_per_feed: int = 0) -> dict[str, Blast]:
    return {blast.part: blast for blast in blast_radius(jobs, racks_per_feed=racks_per_feed)}


def four_jobs(strided: bool) -> list[Placement]:
    cluster, cut = preset("dgx-h100", 64), Parallelism(tp=8, pp=4, dp=4)
    nodes = [[j + 4 * n if strided else 16 * j + n for n in range(16)] for j in range(4)]
    return [place(cluster, cut, [8 * n + gpu for n in mine for gpu in range(8)]) for mine in nodes]


def test_packed_jobs_share_fewer_fates() -> None:
    packed, dealt = by_part(four_jobs(False), 4), by_part(four_jobs(True), 4)
    for part in ("GPU", "NIC", "NVSwitch", "node"):
        assert packed[part].jobs == dealt[part].jobs == 1
    assert (packed["leaf"].jobs, dealt["leaf"].jobs) == (2, 4)
    assert (packed["rack"].jobs, dealt["rack"].jobs) == (1, 4)
    assert (packed["power feed of 4 racks"].idle, dealt["power feed of 4 racks"].idle) == (128, 512)
    assert packed["rail"].jobs == 4


def test_who_comes_back_before_the_repair() -> None:
    rails, tree = (
        by_part([place(preset("dgx-h100", 64, layout=layout), Parallelism(tp=8, dp=64))])  # type: ignore[arg-type]
        for layout in ("rail-optimised", "fat-tree")
    )
    # Seven other rails remain; in the plain tree all eight NICs of a node lead to one leaf.
    assert (rails["leaf"].out, rails["leaf"].behind) == (0, 32)
    assert tree["leaf"].out == tree["leaf"].behind == 32
    assert rails["rail"].out == 0
    assert "rail" not in tree
    assert rails["spine"].jobs == 0
    assert rails["spine"].left == pytest.approx(7 / 8)
    assert rails["NVSwitch"].out == 8
    # One NIC among eight GPUs: without it the node is cut off.
    assert by_part([place(preset("rtx4090-box", 2), Parallelism(dp=16))])["NIC"].out == 8


def test_a_job_inside_one_island_needs_no_network() -> None:
    cluster = preset("dgx-h100", 4)
    inside = by_part([place(cluster, Parallelism(tp=8))])
    assert {part for part, blast in inside.items() if blast.jobs} == {"GPU", "NVSwitch", "node", "rack"}
    single = by_part([place(cluster, Parallelism())])
    assert single["GPU"].jobs == 1
    assert single["GPU"].mean_idle == pytest.approx(1 / 32)


def test_an_only_spine_stops_those_who_pass_it() -> None:
    cluster = preset("dgx-h100", 4, ports=8, layout="fat-tree")
    assert cluster.fabric is not None
    spines = by_part([place(cluster, Parallelism(tp=8, dp=4))])["spine"]
    assert spines.jobs == (1 if cluster.fabric.spines == 1 else 0)


def test_jobs_that_do_not_fit_together() -> None:
    cluster = preset("dgx-h100", 2)
    job = place(cluster, Parallelism(tp=8))
    with pytest.raises(SpecError, match="GPU 0 is in jobs 0 and 1"):
        blast_radius([job, job])
    with pytest.raises(SpecError, match="at least one job"):
        blast_radius([])
    with pytest.raises(SpecError, match="the others on"):
        blast_radius([job, place(preset("dgx-h100", 3), Parallelism(tp=8), [8, 9, 10, 11, 12, 13, 14, 15])])
