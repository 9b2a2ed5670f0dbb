"""The flow level: against closed forms, against exact fluids, bytes against ``count``, fairness, determinism."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
import plain_flow
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atoll.algorithms.catalog import build, names
from atoll.emulator.layout import PAYLOAD_SHARE, Layout, Rates
from atoll.emulator.model import cluster_of
from atoll.errors import SpecError
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.simulator.flow import Outcome, simulate
from atoll.simulator.fluid import fluid_time_s
from atoll.simulator.job import Job
from atoll.topology.cluster import Cluster
from atoll.topology.routes import Transport, find_routes

SIZE = 1 << 20
OWN_NIC = Transport(pxn=False)
RATES = Rates(90e6 / PAYLOAD_SHARE, 10e6 / PAYLOAD_SHARE)


def cluster(nodes: int, ranks: int, latency_s: float = 0.0) -> Cluster:
    """Islands at 90 MB/s, one network interface of 10 MB/s a rank, each way."""
    return cluster_of(Layout(nodes, ranks), RATES, latency_s)


def proven(name: str, ranks: int, collective: str = "all_reduce", root: int | None = None) -> ProvenSchedule:
    return prove(build(collective, name, ranks, root))


def alone(on: Cluster, schedule: ProvenSchedule, size: float = SIZE, segment_bytes: float | None = None) -> Outcome:
    ranks = schedule.schedule.header.world_size
    return simulate([Job(schedule, tuple(range(ranks)), size)], on, segment_bytes=segment_bytes, transport=OWN_NIC)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_a_ring_takes_a_latency_and_a_chunk_for_each_step(ranks: int) -> None:
    found = alone(cluster(1, ranks, 1e-3), proven("ring", ranks))
    assert found.finish_s == pytest.approx(2 * (ranks - 1) * (1e-3 + SIZE / ranks / 90e6))


@pytest.mark.parametrize("segments", [1, 4, 16])
def test_a_chain_pipelines_its_segments(segments: int) -> None:
    found = alone(cluster(1, 5), proven("chain", 5, "broadcast", 0), segment_bytes=SIZE / segments)
    assert found.finish_s == pytest.approx((segments + 3) / segments * SIZE / 90e6)


@pytest.mark.parametrize("name", names("all_reduce"))
def test_links_carry_what_the_table_moves(name: str) -> None:
    on, schedule = cluster(2, 3), proven(name, 6)
    table = schedule.schedule
    routes = find_routes(on, table.column("src"), table.column("dst"), table.column("channel"), OWN_NIC)
    expected = np.zeros(on.num_links)
    moved = table.column("num_chunks") * (SIZE / table.header.chunks)
    np.add.at(expected, routes.links, np.repeat(moved, np.diff(routes.offsets)))
    assert alone(on, schedule, segment_bytes=SIZE / 10).link_bytes == pytest.approx(expected)


@settings(max_examples=20, deadline=None)
@given(name=st.sampled_from(names("all_reduce")), nodes=st.integers(1, 3), ranks=st.integers(2, 3),
       cuts=st.integers(1, 8))  # fmt: skip
def test_no_link_carries_more_than_it_can(name: str, nodes: int, ranks: int, cuts: int) -> None:
    on, schedule = cluster(nodes, ranks, 1e-4), proven(name, nodes * ranks)
    found = alone(on, schedule, segment_bytes=SIZE / cuts)
    assert (found.link_bytes <= on.usable_bytes_per_s * found.finish_s * (1 + 1e-9)).all()
    assert sum(time for _, time in found.critical_s) == pytest.approx(found.finish_s)
    again = alone(on, schedule, segment_bytes=SIZE / cuts)
    assert (again.finish_s, again.critical_s) == (found.finish_s, found.critical_s)


def test_two_jobs_share_a_link_and_a_late_one_waits_for_its_start() -> None:
    on, one = cluster(1, 3), proven("chain", 2, "broadcast", 0)
    both = simulate([Job(one, (0, 1), SIZE), Job(one, (0, 2), SIZE)], on, transport=OWN_NIC)
    assert both.job_finish_s == pytest.approx((2 * SIZE / 90e6,) * 2)
    late = simulate([Job(one, (0, 1), SIZE), Job(one, (0, 2), SIZE, start_s=1.0)], on, transport=OWN_NIC)
    assert late.job_finish_s == pytest.approx((SIZE / 90e6, 1 + SIZE / 90e6))
    whole = simulate([Job(one, (0, 1), SIZE, start_s=0)], on, transport=OWN_NIC)
    assert whole.rank_finish_s[0].tolist() == [0, whole.finish_s], "times are no integers, whatever the start is"


def test_the_critical_path_is_the_slow_link() -> None:
    on = cluster(2, 2)
    link, time = (found := alone(on, proven("ring", 4))).critical_s[0]
    assert on.usable_bytes_per_s[link] == pytest.approx(10e6)
    assert time > 0.9 * found.finish_s


def test_a_job_without_its_gpus_is_refused() -> None:
    with pytest.raises(SpecError, match="expected 4 different GPUs, got 2"):
        simulate([Job(proven("ring", 4), (0, 1), SIZE)], cluster(1, 4))


def test_rows_start_when_they_could_and_end_with_their_last_byte() -> None:
    """A chain of three: the second link starts when the first half is there, and waits for its latency."""
    on, size = cluster(1, 3, 1e-3), SIZE
    job = Job(proven("chain", 3, "broadcast", 0), (0, 1, 2), size, start_s=0.5)
    assert not simulate([job], on, transport=OWN_NIC).rows
    found = simulate([job, job], on, segment_bytes=size / 2, transport=OWN_NIC, row_times=True)
    half = size / 2 / 45e6  # the two jobs share every link
    for rows in found.rows:
        assert rows.start_s == pytest.approx([0.5, 0.5 + 1e-3 + half])
        assert rows.end_s == pytest.approx([0.5 + 1e-3 + 2 * half, 0.5 + 2e-3 + 3 * half])


LAYOUTS = [Layout(1, 4), Layout(2, 2), Layout(2, 3, 1), Layout(4, 2, 1, 2, 3.0), Layout(4, 1, 1, 1, 2.0)]
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"]


@st.composite
def situations(
    draw: st.DrawFn, algorithms: Callable[[str], Iterable[str]] = names, sizes: Sequence[float] = (0, 8, 1e5, SIZE)
) -> tuple[Cluster, list[Job]]:
    """A few jobs on a cluster with shared links, each on GPUs of its own choice, some alike, some later."""
    layout = draw(st.sampled_from(LAYOUTS))
    on = cluster_of(layout, RATES, draw(st.sampled_from([0.0, 1e-4])))
    jobs: list[Job] = []
    for _ in range(draw(st.integers(1, 3))):
        ranks = draw(st.integers(2, min(layout.world_size, 6)))
        collective = draw(st.sampled_from([one for one in COLLECTIVES if list(algorithms(one))]))
        name = draw(st.sampled_from(sorted(algorithms(collective))))
        alike: bool = draw(st.booleans())
        root = draw(st.integers(0, ranks - 1)) if collective in ("broadcast", "reduce") else None
        try:
            schedule = jobs[-1].proven if jobs and alike else proven(name, ranks, collective, root)
        except SpecError:
            assume(False)  # not for every number of ranks
        gpus = draw(st.permutations(range(layout.world_size)))[: schedule.schedule.world_size]
        jobs.append(Job(schedule, tuple(gpus), draw(st.sampled_from(sizes)), draw(st.sampled_from([0, 2e-3]))))
    return on, jobs


@settings(max_examples=50, deadline=None)
@given(situations())
def test_waves_and_groups_do_what_one_event_after_the_other_does(situation: tuple[Cluster, list[Job]]) -> None:
    on, jobs = situation
    found = simulate(jobs, on, transport=OWN_NIC, row_times=True)
    near = 1e-8 * found.finish_s + 1e-15
    for rows, expected in zip(found.rows, plain_flow.play(jobs, on, OWN_NIC), strict=True):
        assert rows.start_s == pytest.approx([start for start, _ in expected], abs=near)
        assert rows.end_s == pytest.approx([end for _, end in expected], abs=near)


def at_once(collective: str) -> list[str]:
    """Algorithms whose rows wait for nothing."""
    return ["direct"] if collective in ("all_to_all", "all_gather") else []


@settings(max_examples=50, deadline=None)
@given(situations(at_once), st.sampled_from([None, 1e4]))
def test_equal_to_exact_fluids_where_nothing_waits(
    situation: tuple[Cluster, list[Job]], segment_bytes: float | None
) -> None:
    on, jobs = situation
    found = simulate(jobs, on, segment_bytes=segment_bytes, transport=OWN_NIC)
    assert found.finish_s == pytest.approx(fluid_time_s(on, jobs, OWN_NIC), rel=1e-6, abs=1e-12)


@settings(max_examples=12, deadline=None)
@given(situations(sizes=(SIZE,)))
def test_fine_segments_come_close_to_exact_fluids(situation: tuple[Cluster, list[Job]]) -> None:
    on, jobs = situation
    found = simulate(jobs, on, segment_bytes=SIZE / 256, transport=OWN_NIC).finish_s
    # Not nearer: a segment that waits leaves its share of a link to others, a fluid that trickles leaves the rest.
    assert found == pytest.approx(fluid_time_s(on, jobs, OWN_NIC), rel=0.1)


def test_no_job_and_one_without_transfers_take_no_time() -> None:
    on = cluster(1, 3)
    nothing = simulate([], on, row_times=True)
    assert (nothing.finish_s, nothing.critical_s, nothing.rows) == (0, (), ())
    lonely = Job(proven("ring", 1), (2,), SIZE, start_s=0.25)
    both = simulate([lonely, Job(proven("ring", 2), (0, 1), SIZE)], on, transport=OWN_NIC)
    assert both.job_finish_s == pytest.approx((0.25, SIZE / 90e6))


def test_a_link_without_bandwidth_is_named() -> None:
    on = cluster(2, 1)
    link = int(find_routes(on, [0], [1], 0, OWN_NIC).links[0])
    dead = msgspec.structs.replace(on, shares=((link, 0.0),))
    with pytest.raises(SpecError, match=r"node0/gpu0 -> .* has no bandwidth"):
        alone(dead, proven("ring", 2))


@pytest.mark.parametrize(
    ("segment_bytes", "said"),
    [(0, "more than 0"), (float("nan"), "more than 0"), (1e-3, "pieces to move"), (1e-320, "pieces to move")],
)
def test_segments_that_cannot_be_are_refused(segment_bytes: float, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        alone(cluster(1, 4), proven("ring", 4), segment_bytes=segment_bytes)
