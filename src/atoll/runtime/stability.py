"""Bit-stable reductions: in which order a call may combine what the ranks contribute.

Floating-point results depend on the order of the operations, so whoever must get the same bits again asks for one:

``any``    whatever is fastest. All ranks still end with the same bits, and so does the same call made again; but
           another size, transport or tuning file may mean another order
``fixed``  one order for a collective and world size (``deterministic=True``): neither the size of the array, nor the
           position in it, nor the transport, nor the tuning file changes it
``rank``   ((x0 + x1) + x2) + ..., as a loop over the ranks would do it (``order="rank"``): the same in all collectives,
           whichever algorithm runs

What is asked for is not believed of an algorithm's name but read off its proven schedule: the certificate must show
one order for all positions and all ranks, the same as the schedule that stands for it here has.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, get_args

from atoll.algorithms.catalog import build
from atoll.errors import SpecError, nearest
from atoll.schedule.certify import certify
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.prove import ProvenSchedule, prove

Order = Literal["any", "fixed", "rank"]
ORDERS: Final[tuple[Order, ...]] = get_args(Order)
_REDUCTIONS: Final = ("all_reduce", "reduce_scatter", "reduce")
# For each order and collective, the algorithms that have it in every world; the first one stands for it.
ALGORITHMS: Final[dict[Order, dict[str, tuple[str, ...]]]] = {
    "fixed": {
        "all_reduce": ("recursive_doubling", "halving_doubling"),
        "reduce_scatter": ("ordered",),
        "reduce": ("ordered",),
    },
    "rank": {
        "all_reduce": ("ordered", "one_shot", "naive"),
        "reduce_scatter": ("ordered",),
        "reduce": ("ordered",),
    },
}


def order_asked(deterministic: bool | None, order: str | None, default: Order) -> Order:
    """The order that a call's arguments ask for; ``default`` where they ask for nothing. ``SpecError`` for nonsense."""
    if order is not None:
        if order not in ORDERS:
            raise SpecError(f"order: unknown order {order!r}: {nearest(str(order), ORDERS)}")
        if deterministic is False and order != "any":
            raise SpecError(f"order {order!r} is deterministic, and deterministic=False was given")
        if deterministic is None or order != "any":
            return order
        return "fixed"
    if deterministic is None:
        return default
    return "fixed" if deterministic else "any"


def stable_algorithms(collective: str, order: Order) -> tuple[str, ...] | None:
    """The catalogued algorithms that have an order in every world; None where every algorithm will do."""
    if order == "any" or collective not in _REDUCTIONS:
        return None
    return ALGORITHMS[order][collective]


def check_order(proven: ProvenSchedule, order: Order) -> None:
    """``SpecError`` where a schedule may give other bits than ``order`` promises."""
    collective = proven.header.collective
    names = stable_algorithms(collective, order)
    if names is None:
        return
    certificate = certify(proven)
    if certificate.order_digest == _digest(collective, order, proven.world_size):
        return
    asked = "deterministic" if order == "fixed" else f"order {order!r}"
    if not certificate.same_bits:
        has = "gives different ranks different bits"
    elif not certificate.position_independent:
        has = f"has {certificate.num_orders} orders, depending on the position in the array"
    else:
        has = f"has another order than {names[0]}, such as {certificate.orders[0].expression or 'one too long to show'}"
    raise SpecError(
        f"algorithm {proven.header.name}: {asked} was asked for, and among {proven.world_size} ranks it {has}: "
        f"leave the choice to auto, or take {' or '.join(names)}"
    )


@lru_cache(maxsize=256)
def _digest(collective: str, order: Order, world_size: int) -> str | None:
    root = 0 if COLLECTIVES[collective].rooted else None
    return certify(prove(build(collective, ALGORITHMS[order][collective][0], world_size, root))).order_digest
