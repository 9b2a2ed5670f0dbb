"""What to do without a node: wait for it, take a spare, or shrink.

- **wait** (fixed size, no spares): the job stands still until the node is repaired.
- **spares**: a node that stands by takes the place; the job waits only when all spares are away.
- **shrink** (elastic): the job goes on with the nodes it has, and takes a repaired node back at a planned stop right
  after a checkpoint. Data-parallel replicas span several nodes: a replica that lacks one node is lost whole, unless the
  survivors can be put together anew, which is taken here: usable are the whole replicas among the remaining nodes.

One description of a job, ``Operation``, is read by the formulas here and by ``montecarlo``, which share no code.

The formulas join ``goodput`` (what checkpoints and restarts leave) and ``spares`` (how many nodes are away). The join
assumes that failures arrive at a constant rate while the job does not wait, although none arrive during downtime.
Shrunk, the job also fails a little less often, by the share of nodes away; that is left out. ``montecarlo`` leaves
nothing out but that.
"""

from __future__ import annotations

import math

import msgspec

from atoll.errors import SpecError
from atoll.resilience.cadence import Checkpoint
from atoll.resilience.demand import at_least, not_negative, positive
from atoll.resilience.goodput import FailureKind, Goodput, check_interval, check_shares, goodput
from atoll.resilience.spares import Loss, away, waiting_share


class Operation(msgspec.Struct, frozen=True):
    """How a job is run and what befalls it. ``mtbf_s`` is that of the whole job, all kinds together."""

    interval_s: float
    checkpoint: Checkpoint
    mtbf_s: float
    kinds: tuple[FailureKind, ...]
    num_nodes: int
    repair_s: float
    spares: int = 0
    shrink: bool = False
    rejoin_s: float = 0.0
    """A planned stop to take nodes back; shrinking jobs only."""
    replica_nodes: int = 1
    """Nodes of one data-parallel replica; shrinking jobs only."""

    def __post_init__(self) -> None:
        check_interval(self.interval_s, self.checkpoint)
        positive(self.mtbf_s, "MTBF")
        check_shares(self.kinds)
        at_least(self.num_nodes, 1, "nodes")
        positive(self.repair_s, "repair time")
        at_least(self.spares, 0, "spares")
        not_negative(self.rejoin_s, "planned stop to take a node back")
        at_least(self.replica_nodes, 1, "nodes of a replica")
        if self.replica_nodes > self.num_nodes:
            raise SpecError(f"replica: expected at most the job's {self.num_nodes} nodes, got {self.replica_nodes}")

    @property
    def cycle_s(self) -> float:
        """Mean time from failure to failure, waiting left out."""
        return self.mtbf_s + math.fsum(kind.share * kind.downtime_s for kind in self.kinds)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """How often nodes go away, per second of the time that the job does not wait."""
        return tuple(Loss(kind.nodes, kind.share / self.cycle_s) for kind in self.kinds if kind.nodes and kind.share)


def usable_share(operation: Operation, nodes_away: int) -> float:
    """Share of the job's speed that remains with so many nodes away; whole replicas work, others do not."""
    missing = max(0, nodes_away - operation.spares)
    replicas = max(0, operation.num_nodes - missing) // operation.replica_nodes
    return replicas / (operation.num_nodes // operation.replica_nodes)


def evaluate(operation: Operation) -> Goodput:
    """Where the time goes in the long run, by formula."""
    running = goodput(operation.interval_s, operation.checkpoint, operation.mtbf_s, operation.kinds)
    return _shrinking(operation, running) if operation.shrink else _waiting(operation, running)


def per_owned_node(operation: Operation, useful: float) -> float:
    """Goodput per node that is paid for, the spares included."""
    return useful * (operation.num_nodes / (operation.num_nodes + operation.spares))


def _waiting(operation: Operation, running: Goodput) -> Goodput:
    waiting = waiting_share(operation.losses, operation.repair_s, operation.spares)
    return _scaled(running, 1 - waiting, waiting=waiting)


def _shrinking(operation: Operation, running: Goodput) -> Goodput:
    """Nothing ever waits, so the number of nodes away is not cut off: a (compound) Poisson number."""
    lost = math.fsum(kind.share * kind.nodes for kind in operation.kinds)
    largest = max((loss.nodes for loss in operation.losses), default=1)
    stops = 0.0
    # Stops lengthen the cycle, which makes failures and so stops rarer: a few rounds settle it.
    for _ in range(6):
        cycle_s = operation.cycle_s + stops * operation.rejoin_s
        slower = operation.cycle_s / cycle_s
        losses = [Loss(loss.nodes, loss.per_s * slower) for loss in operation.losses]
        mean = lost / cycle_s * operation.repair_s
        probabilities = away(losses, operation.repair_s, int(mean + 12 * math.sqrt(mean * largest)) + 30)
        # A node that returns is taken back at a stop where the job lacked it; those that return while the job stands
        # still cost no stop of their own.
        taken_back = math.fsum(k * p for k, p in enumerate(probabilities) if k > operation.spares)
        stops = taken_back * operation.mtbf_s / operation.repair_s
    stopped = 1 - slower
    speed = math.fsum(p * usable_share(operation, k) for k, p in enumerate(probabilities))
    slowed = _scaled(running, 1 - stopped)
    return msgspec.structs.replace(
        slowed, useful=slowed.useful * speed, shrunk=slowed.useful * (1 - speed), restart=slowed.restart + stopped
    )


def _scaled(running: Goodput, factor: float, waiting: float = 0.0) -> Goodput:
    return Goodput(
        useful=running.useful * factor,
        checkpoint=running.checkpoint * factor,
        rework=running.rework * factor,
        restart=running.restart * factor,
        downtime=running.downtime * factor,
        waiting=waiting,
    )
