"""How many nodes to hold ready, and for how many nines.

A failed node is away for the **repair time**. The job needs N nodes and owns N + S: it runs while at most S are away,
and waits otherwise. While it waits nothing of it fails. How many are away is a birth-death chain that is cut off: new
failures arrive only in the states 0 to S, each node returns after its own repair. Across the cut between k and k + 1
nodes away, as many steps go up as down:

    (k + 1) / T  p(k + 1)  =  sum over failures that jump from some j <= min(k, S) to above k:  rate x p(j)

which gives every p from the one before. With single nodes only, this is Erlang's loss formula with S + 1 servers and
load rho = failures per repair time (Erlang 1917), and then it holds for any distribution of repair times of that mean.
A **domain** (rack, leaf switch, power feed) takes several nodes at once; those repairs are taken as exponential.

**Nines** are of the time: 99.9 % means that the job lacks nodes 0.1 % of the time. They say nothing of the time that
checkpoints and restarts take. Spares are taken as good when called; hot ones that fail meanwhile need a few more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from atoll.errors import SpecError
from atoll.resilience.demand import at_least, not_negative, positive

MAX_SPARES = 20_000
_RESCALE = 1e200


class Loss(msgspec.Struct, frozen=True):
    """Failures that take ``nodes`` nodes away at once, so many of them per second of the running job."""

    nodes: int
    per_s: float

    def __post_init__(self) -> None:
        at_least(self.nodes, 1, "nodes lost at once")
        not_negative(self.per_s, "failures per second")


class Domain(msgspec.Struct, frozen=True):
    """Nodes that share something that fails: ``nodes`` of them go together, each such group once in ``mtbf_s``."""

    nodes: int
    mtbf_s: float

    def __post_init__(self) -> None:
        at_least(self.nodes, 1, "nodes of a failure domain")
        positive(self.mtbf_s, "mean time between failures of a domain")

    def per_s(self, num_nodes: int) -> float:
        """Failures per second among the domains of a job of ``num_nodes`` nodes."""
        return math.ceil(num_nodes / self.nodes) / self.mtbf_s


def away(losses: Sequence[Loss], repair_s: float, spares: int) -> list[float]:
    """Probability that 0, 1, 2, ... nodes are away in the long run; the job waits in the states above ``spares``."""
    at_least(spares, 0, "spares")
    if spares > MAX_SPARES:
        raise SpecError(f"spares: expected at most {MAX_SPARES}, got {spares}")
    positive(repair_s, "repair time")
    largest = max((loss.nodes for loss in losses if loss.per_s > 0), default=0)
    weights = [1.0]
    for k in range(spares + largest):
        flow = math.fsum(
            loss.per_s * math.fsum(weights[max(0, k - loss.nodes + 1) : min(k, spares) + 1]) for loss in losses
        )
        weights.append(flow * repair_s / (k + 1))
        if weights[-1] > _RESCALE:
            weights = [weight / _RESCALE for weight in weights]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def waiting_share(losses: Sequence[Loss], repair_s: float, spares: int) -> float:
    """Share of the time that the job stands still because more than ``spares`` nodes are away."""
    return math.fsum(away(losses, repair_s, spares)[spares + 1 :])


def spares_for(losses: Sequence[Loss], repair_s: float, availability: float) -> int:
    """The fewest spares with which the job has its nodes for that share of the time.

    >>> one_a_day = [Loss(1, 1 / 86400)]
    >>> [spares_for(one_a_day, 86400.0, nines) for nines in (0.9, 0.99, 0.999)]
    [2, 4, 5]
    """
    if not 0 < availability < 1:
        raise SpecError(f"availability: expected a share above 0 and below 1, such as 0.999, got {availability:g}")
    # The nodes away carry what is not turned away, availability x load, and are never more than spares and one loss.
    load = positive(repair_s, "repair time") * math.fsum(loss.nodes * loss.per_s for loss in losses)
    low = max(-1, math.ceil(availability * load) - max((loss.nodes for loss in losses), default=0) - 1)
    high = max(low, 0) + 1  # more than low, at most high
    while high > MAX_SPARES or waiting_share(losses, repair_s, high) > 1 - availability:
        if high > MAX_SPARES:
            raise SpecError(
                f"spares: more than {MAX_SPARES:,} would be needed, with {load:,.0f} nodes in repair at a time; spares "
                "cannot help: say how many there are, or shrink"
            )
        low, high = high, high + high // 8 + 1
    while high - low > 1:
        middle = (low + high) // 2
        if waiting_share(losses, repair_s, middle) > 1 - availability:
            low = middle
        else:
            high = middle
    return high


def poisson_tail(mean: float, least: int) -> float:
    """P(K > ``least``) for a Poisson K: more than ``least`` nodes away, were failures to go on while the job waits.

    The textbook figure. It is close to ``waiting_share`` where waiting is rare, and far above it where it is not.
    """
    not_negative(mean, "mean number of nodes away")
    if mean == 0:
        return 0.0
    logs = [k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(least + 1, least + 60 + int(2 * mean))]
    return min(1.0, math.fsum(math.exp(log) for log in logs))
