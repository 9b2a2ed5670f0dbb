"""The plan of a job: its parts agree with each other and with the formulas they come from."""

import math
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.resilience.cadence import Checkpoint, optimum_s
from atoll.resilience.plan import Job, failure_kinds, make_plan
from atoll.resilience.rates import FailureRate, lemon_effect, published
from atoll.resilience.report import text_lines
from atoll.resilience.spares import Domain

HOUR, DAY = 3600.0, 86400.0
JOB = Job(
    num_gpus=16384, gpus_per_node=8, rate=published("llama3"), checkpoint=Checkpoint(40.0),
    detect_s=600.0, swap_s=120.0, restart_s=400.0, repair_s=DAY, duration_s=54 * DAY,
)  # fmt: skip
change: Callable[..., Job] = msgspec.structs.replace


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    asynchronous = draw(st.booleans())
    return Job(
        num_gpus=draw(st.integers(1, 30_000)),
        gpus_per_node=draw(st.sampled_from((1, 4, 8, 72))),
        rate=FailureRate("drawn", draw(st.floats(1e-4, 0.02)), 8, "drawn"),
        checkpoint=Checkpoint(draw(st.floats(0.1, 600)), draw(st.floats(0, 600)) if asynchronous else 0.0, 0.02),
        interval_s=draw(st.none() | st.floats(600, 1e5)),
        memory_copy_s=draw(st.none() | st.floats(0.1, 5)),
        detect_s=draw(st.floats(0, 1800)),
        swap_s=draw(st.floats(0, 1800)),
        restart_s=draw(st.floats(0, 1800)),
        repair_s=draw(st.floats(60, DAY)),
        in_place_share=draw(st.integers(0, 100)) / 100,
        domains=draw(st.sampled_from(((), (Domain(1, 400 * DAY),)))),
        spares=draw(st.none() | st.integers(0, 50)),
        elastic=draw(st.booleans()),
        duration_s=draw(st.floats(DAY, 100 * DAY)),
    )


@settings(max_examples=40)
@given(jobs())
def test_any_job_has_a_plan(job: Job) -> None:
    plan = make_plan(job, runs=0)
    assert plan.simulation is None
    assert plan.chosen in plan.policies
    assert plan.failures_per_day * plan.mtbf_s == pytest.approx(DAY)
    assert math.fsum(row.share for row in plan.blast) == pytest.approx(1)
    assert math.fsum(1 / row.every_s for row in plan.blast) == pytest.approx(1 / plan.mtbf_s)
    assert all(0 <= row.goodput <= 1 for row in plan.cadences)
    best = next(row for row in plan.cadences if row.name == "exact optimum")
    assert all(row.goodput <= best.goodput + 1e-12 for row in plan.cadences)
    for row in plan.policies:
        assert 0 <= row.per_owned_node <= row.goodput.useful <= 1
    assert [lever.gain for lever in plan.levers] == sorted((lever.gain for lever in plan.levers), reverse=True)
    for line in text_lines(job, plan, {"model": "drawn"}):
        assert "nan" not in line
        assert "inf" not in line


def test_failures_are_split_as_said() -> None:
    job = change(JOB, in_place_share=0.25, domains=(Domain(16, 730 * DAY),))
    in_place, node, rack = failure_kinds(job)
    assert in_place.share / node.share == pytest.approx(1 / 3)
    assert rack.share == pytest.approx(128 / (730 * DAY) * job.mtbf_s)
    assert (in_place.nodes, node.nodes, rack.nodes) == (0, 1, 16)
    assert in_place.downtime_s == 600
    assert node.downtime_s == rack.downtime_s == 720
    assert {kind.downtime_s for kind in failure_kinds(job, shrink=True)} == {600}
    assert job.mtbf_s < JOB.mtbf_s


def test_the_best_interval_is_taken_unless_one_is_given() -> None:
    assert make_plan(JOB, runs=0).operation.interval_s == optimum_s(JOB.checkpoint, JOB.mtbf_s)
    plan = make_plan(change(JOB, interval_s=3 * HOUR), runs=0)
    assert plan.operation.interval_s == plan.storage_interval_s == 3 * HOUR
    assert plan.cadences[0].name == "as given"
    lever = next(lever for lever in plan.levers if "best interval" in lever.change)
    assert lever.goodput == pytest.approx(make_plan(JOB, runs=0).chosen.goodput.useful)
    assert lever.gpu_days == pytest.approx(lever.gain * 16384 * 54)


def test_levers_are_what_the_changed_job_gets() -> None:
    plan = make_plan(change(JOB, lemon_share=0.01, lemon_factor=20.0), runs=0)
    by_name = {lever.change: lever.goodput for lever in plan.levers}
    spares = plan.chosen.spares
    quick = make_plan(change(JOB, detect_s=1.0, spares=spares), runs=0)
    assert by_name["failures detected in 1 s"] == quick.chosen.goodput.useful
    calm = msgspec.structs.replace(JOB.rate, per_node_day=JOB.rate.per_node_day * lemon_effect(0.01, 20))
    without = make_plan(change(JOB, rate=calm, spares=spares), runs=0)
    assert by_name["lemon nodes taken out"] == without.chosen.goodput.useful
    assert by_name["half as many failures"] > by_name["lemon nodes taken out"] > plan.chosen.goodput.useful


def test_spares_are_as_many_as_the_availability_asks_for() -> None:
    plan = make_plan(change(JOB, availability=0.99), runs=0)
    needed = {row.availability: row.spares for row in plan.spares}
    assert plan.chosen.spares == needed[0.99]
    assert plan.chosen.goodput.waiting <= 0.01
    assert make_plan(change(JOB, spares=0), runs=0).chosen.policy == "wait"


def test_memory_checkpoints_help_as_far_as_nodes_stay() -> None:
    single, soft = make_plan(JOB, runs=0), change(JOB, in_place_share=0.9)
    with_memory = make_plan(change(soft, memory_copy_s=0.2), runs=0)
    assert (
        with_memory.chosen.goodput.useful > make_plan(soft, runs=0).chosen.goodput.useful > single.chosen.goodput.useful
    )
    # Only a tenth of the failures needs the storage checkpoint, so it is rarer.
    assert with_memory.storage_interval_s == pytest.approx(optimum_s(JOB.checkpoint, JOB.mtbf_s * 10), rel=1e-9)
    assert make_plan(change(JOB, in_place_share=1.0, memory_copy_s=0.2), runs=0).chosen.goodput.waiting == 0


def test_the_simulation_is_of_the_chosen_policy() -> None:
    for job in (JOB, change(JOB, elastic=True, replica_nodes=16), change(JOB, spares=2)):
        plan = make_plan(job, runs=40, seed=5)
        assert plan.simulation is not None
        assert plan.simulation.seed == 5
        assert abs(plan.simulation.goodput - plan.chosen.goodput.useful) < 4 * plan.simulation.standard_error + 0.002


def test_jobs_that_make_no_sense_are_refused() -> None:
    for wrong in (
        {"num_gpus": 0}, {"gpus_per_node": 0}, {"duration_s": 0.0}, {"detect_s": -1.0}, {"swap_s": math.nan},
        {"in_place_share": 1.1}, {"lemon_factor": 0.5}, {"domains": (Domain(4096, DAY),)}, {"memory_interval_s": 5.0},
    ):  # fmt: skip
        with pytest.raises(SpecError):
            change(JOB, **wrong)
    for wrong in ({"repair_s": 0.0}, {"availability": 1.0}, {"target": 0.0}, {"spares": -1}, {"replica_nodes": 5000}):
        with pytest.raises(SpecError):
            make_plan(change(JOB, **wrong), runs=0)
