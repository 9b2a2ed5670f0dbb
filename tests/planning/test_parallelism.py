"""Parallel groups: Megatron's documented example, the algebra of any order, and refusals."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.planning.parallelism import KINDS, Parallelism

DEGREES = st.sampled_from([1, 2, 3, 4])


@st.composite
def parallelisms(draw: st.DrawFn) -> Parallelism:
    degrees = {axis: draw(DEGREES) for axis in ("tp", "cp", "dp", "pp")}
    order = "-".join(draw(st.permutations(["tp", "cp", "ep", "dp"]))) + "-pp"
    if draw(st.booleans()):
        return Parallelism(**degrees, order="-".join(draw(st.permutations(["tp", "cp", "ep", "dp", "pp"]))))
    ep = draw(st.sampled_from([n for n in range(1, 17) if (degrees["cp"] * degrees["dp"]) % n == 0]))
    return Parallelism(**degrees, ep=ep, order=order)


def test_the_example_of_megatrons_documentation() -> None:
    # initialize_model_parallel: 16 GPUs, tensor 2, pipeline 4, so data 2.
    groups = Parallelism(tp=2, pp=4, dp=2)
    assert groups.groups("dp").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert groups.groups("tp").tolist() == [[2 * at, 2 * at + 1] for at in range(8)]
    assert groups.groups("pp").tolist() == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


def test_context_parallel_groups_and_gradients_over_both() -> None:
    groups = Parallelism(tp=2, cp=2, dp=2)
    assert groups.groups("cp").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups.groups("dp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert groups.groups("dp-cp").tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_experts_cut_the_same_world_anew() -> None:
    groups = Parallelism(tp=2, dp=8, ep=4)
    assert groups.edp == 2
    assert groups.groups("ep").tolist()[:2] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert groups.groups("edp").tolist()[:2] == [[0, 8], [1, 9]]
    # One expert on each GPU: tensor parallelism gives way to more experts.
    whole = Parallelism(tp=2, dp=8, ep=8, etp=1)
    assert whole.groups("ep").tolist() == [list(range(8)), list(range(8, 16))]
    assert whole.edp == 2


@given(parallelisms())
def test_groups_of_each_kind_are_a_partition_along_their_axes(cut: Parallelism) -> None:
    for kind in KINDS:
        groups = cut.groups(kind)
        assert np.array_equal(np.sort(groups.ravel()), np.arange(cut.world_size))
        if kind in ("ep", "edp"):
            continue
        axes = kind.split("-")
        at = cut.coordinates(groups)
        for axis, coordinate in at.items():
            if axis not in axes:
                assert (coordinate == coordinate[:, :1]).all()
        if len(axes) == 1:
            assert (at[kind] == np.arange(getattr(cut, kind))).all()
    assert cut.degree("ep") * cut.degree("edp") * cut.expert_tp == cut.tp * cut.cp * cut.dp
    together = cut.degree("dp-cp")
    assert together == cut.dp * cut.cp


@given(parallelisms())
def test_the_fastest_axis_has_neighbours(cut: Parallelism) -> None:
    fastest = next((axis for axis in cut.axes if axis != "ep" and getattr(cut, axis) > 1), None)
    assume(fastest is not None)
    assert fastest is not None
    assert (np.diff(cut.groups(fastest), axis=1) == 1).all()
    assert cut.groups(fastest)[:, 0].tolist() == list(range(0, cut.world_size, getattr(cut, fastest)))


def test_orders_by_name() -> None:
    assert Parallelism(tp=2, dp=2, pp=2, order="megatron-tp-pp-dp").groups("pp").tolist()[0] == [0, 2]
    assert Parallelism(tp=2, dp=2, pp=2, order="deepspeed").groups("pp").tolist()[0] == [0, 4]


def test_kinds_shown_are_those_with_something_to_say() -> None:
    assert Parallelism(tp=8, pp=4, dp=16).kinds == ("tp", "dp", "pp")
    assert Parallelism(cp=2, dp=2).kinds == ("cp", "dp", "dp-cp")
    assert Parallelism(tp=2, dp=4, ep=2).kinds == ("tp", "dp", "ep", "edp")
    assert Parallelism(tp=8, pp=4, dp=16).text() == "tp 8, pp 4, dp 16, order tp-dp-pp"
    assert Parallelism().text() == "one rank"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"tp": 0, "dp": -1},
            "tp: expected a degree of at least 1, got 0; dp: expected a degree of at least 1, got -1",
        ),
        ({"dp": 4, "ep": 3}, "ep 3 x etp 1 = 3 does not divide tp 1 x cp 1 x dp 4 = 4"),
        ({"tp": 2, "order": "tq-dp"}, "'tq' is no axis: did you mean 'tp'?"),
        ({"tp": 2, "order": "tp-dp-tp"}, "tp named twice"),
        ({"tp": 2, "cp": 2, "order": "tp-dp-pp"}, "cp has a degree above 1 and no place"),
        ({"tp": 2, "pp": 2, "dp": 4, "cp": 2, "ep": 8, "order": "tp-cp-pp-ep-dp"}, "let pp be the last axis"),
        ({"dp": 1 << 21}, "at most 1048576"),
    ],
)
def test_refusals(arguments: dict[str, int | str], says: str) -> None:
    with pytest.raises(SpecError, match=re.escape(says)):
        Parallelism(**arguments)  # type: ignore[arg-type]


def test_every_order_of_three_axes_is_another_numbering() -> None:
    seen = {
        tuple(map(tuple, Parallelism(tp=2, dp=2, pp=2, order="-".join(order)).groups("tp").tolist()))
        for order in itertools.permutations(("tp", "dp", "pp"))
    }
    assert len(seen) == 3  # neighbours, two apart, four apart
