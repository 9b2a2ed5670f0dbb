"""Formulas against simulation, which shares no code with them."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operations import operations

from atoll.errors import SpecError
from atoll.resilience.cadence import Checkpoint
from atoll.resilience.goodput import FailureKind
from atoll.resilience.montecarlo import simulate
from atoll.resilience.policies import Operation, evaluate, per_owned_node, usable_share

HOUR, DAY = 3600.0, 86400.0
IN_PLACE = FailureKind("in place", 0.75, 300.0, 60.0, 0)
NODE = FailureKind("node", 0.25, 720.0, 400.0, 1)
BASE = Operation(
    interval_s=942.0, checkpoint=Checkpoint(40.0), mtbf_s=3.09 * HOUR, num_nodes=2048, repair_s=DAY,
    kinds=(FailureKind("node", 1.0, 720.0, 400.0, 1),),
)  # fmt: skip
RACKS = (
    FailureKind("in place", 0.70, 300.0, 60.0, 0), FailureKind("node", 0.25, 720.0, 400.0, 1),
    FailureKind("rack", 0.05, 720.0, 400.0, 16),
)  # fmt: skip
change: Callable[..., Operation] = msgspec.structs.replace

CASES = {
    "restart in place": change(BASE, kinds=(FailureKind("any", 1.0, 720.0, 400.0, 0),)),
    "two kinds": change(BASE, kinds=(IN_PLACE, msgspec.structs.replace(NODE, nodes=0))),
    "asynchronous": change(
        BASE, checkpoint=Checkpoint(5.0, 200.0, 0.05), kinds=(FailureKind("any", 1.0, 720.0, 400.0, 0),)
    ),
    "asynchronous, slow and often broken": change(
        BASE, mtbf_s=1200.0, interval_s=250.0, checkpoint=Checkpoint(5.0, 200.0, 0.05),
        kinds=(FailureKind("any", 1.0, 72.0, 40.0, 0),),
    ),
    "wait": BASE,
    "4 spares": change(BASE, spares=4),
    "16 spares": change(BASE, spares=16),
    "2 spares, most restart in place": change(BASE, kinds=(IN_PLACE, NODE), spares=2),
    "racks, 10 spares": change(BASE, kinds=RACKS, spares=10),
    "shrink": change(BASE, shrink=True, rejoin_s=440.0),
    "shrink by replicas": change(BASE, shrink=True, rejoin_s=440.0, replica_nodes=16),
    "4 spares, then shrink": change(BASE, shrink=True, rejoin_s=440.0, spares=4),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_formula_and_simulation_agree(name: str) -> None:
    """Within three standard errors, which are themselves small, and two tenths of a point for what the join assumes."""
    operation = CASES[name]
    result = simulate(operation, 54 * DAY, runs=60, seed=11)
    formula = evaluate(operation).useful
    assert result.standard_error < 0.007
    assert abs(result.goodput - formula) < 3 * result.standard_error + 0.002
    if not any(kind.nodes for kind in operation.kinds):
        assert result.agrees(formula)  # exact: nothing is joined


@settings(max_examples=15)
@given(operations(), st.integers(0, 2**32))
def test_any_job_agrees_within_its_error(operation: Operation, seed: int) -> None:
    result = simulate(operation, 200 * operation.cycle_s, runs=40, seed=seed)
    formula = evaluate(operation).useful
    # Four errors for a test that is drawn anew each time. Failures are dead time for each other where downtime is
    # not small against the MTBF, which the join of formulas leaves out.
    assert abs(result.goodput - formula) < 4 * result.standard_error + 0.03
    if not any(kind.nodes for kind in operation.kinds):
        assert abs(result.goodput - formula) < 5 * result.standard_error + 1e-9


@given(operations())
def test_shares_of_time_add_up_to_one_with_every_policy(operation: Operation) -> None:
    result = evaluate(operation)
    values = [getattr(result, name) for name in result.__struct_fields__]
    assert all(-1e-12 <= value <= 1 + 1e-12 for value in values)
    assert sum(values) == pytest.approx(1)


@given(operations())
def test_a_spare_never_costs_a_waiting_job_goodput(operation: Operation) -> None:
    waiting = change(operation, shrink=False)
    assert evaluate(change(waiting, spares=waiting.spares + 1)).useful >= evaluate(waiting).useful * (1 - 1e-12)
    assert per_owned_node(change(waiting, num_nodes=64, spares=16), 0.5) == 0.4


def test_the_same_seed_gives_the_same_bytes() -> None:
    for operation in (CASES["racks, 10 spares"], CASES["shrink by replicas"]):
        first, second = (msgspec.json.encode(simulate(operation, 5 * DAY, runs=20, seed=3)) for _ in range(2))
        assert first == second
        assert msgspec.json.encode(simulate(operation, 5 * DAY, runs=20, seed=4)) != first


def test_a_longer_job_is_surer_of_its_goodput() -> None:
    short, long = (simulate(CASES["16 spares"], days * DAY, runs=60, seed=1) for days in (5, 50))
    assert long.best_5_percent - long.worst_5_percent < (short.best_5_percent - short.worst_5_percent) / 2
    assert short.worst_5_percent < short.median < short.best_5_percent
    assert short.low < short.goodput < short.high


def test_whole_replicas_work_and_others_do_not() -> None:
    operation = change(BASE, num_nodes=64, shrink=True, replica_nodes=16, spares=1)
    assert [usable_share(operation, away) for away in (0, 1, 2, 17, 18, 64, 65, 99)] == [1, 1, 0.75, 0.75, 0.5, 0, 0, 0]


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(SpecError, match="fewer runs"):
        simulate(change(BASE, mtbf_s=1.0, repair_s=1e6, spares=90_000), DAY)
    for wrong in ({"duration_s": 0.0}, {"runs": 1}, {"seed": -1}):
        with pytest.raises(SpecError):
            simulate(BASE, **{"duration_s": DAY, "runs": 2, "seed": 0, **wrong})
    with pytest.raises(SpecError, match="replica"):
        change(BASE, num_nodes=4, replica_nodes=5)


def test_a_job_that_fails_without_end_is_simulated_for_less_time() -> None:
    often = change(BASE, mtbf_s=10.0, interval_s=5.0, checkpoint=Checkpoint(1.0), kinds=CASES["restart in place"].kinds)
    result = simulate(often, 3650 * DAY, runs=2)
    assert result.duration_s == 20_000 * 10.0
