"""Measured beside simulated, on the same emulated cluster: placements, algorithms, and how far off the simulator is.

Two questions, the same all-reduce of every size for both.

- *Placement*: tensor parallelism in groups as large as a node, all groups at once; inside islands (a group is a node),
  and across nodes (a group takes a rank of each node in turn, as a scheduler does that spreads a job).
- *Algorithm*: all ranks together, flat algorithms beside the hierarchical one.

**The model of a token bucket.** The simulator's links carry what their rate says, from the first byte on; a bucket that
was idle lets ``BURST_S`` worth of its rate pass at once. So a link that waits for a message's latency makes up for it
afterwards, as far as that is no longer than ``BURST_S``, and at the beginning all are ``BURST_S`` ahead. The prediction
is therefore simulated with what is left of the latency, less ``BURST_S``.

**Latency** is measured, by a ring all-reduce of 8 bytes among all ranks. It is the only figure that is fitted, at a
size that is not compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from atoll.emulator.layout import ACROSS, INSIDE, Layout, Rates, placements
from atoll.emulator.measure import Case, Timing, measure_cases
from atoll.emulator.model import cluster_of
from atoll.emulator.queues import BURST_S
from atoll.emulator.start import Started
from atoll.schedule.prove import prove
from atoll.simulator.fluid import fluid_time_s
from atoll.simulator.job import Job
from atoll.topology.routes import Transport

HIERARCHICAL: Final = "hierarchical"
ALGORITHMS: Final = ("ring", "double_binary_tree", HIERARCHICAL, "direct")
ALL: Final = "all ranks"
LATENCY_BYTES: Final = 8
_LATENCY_REPETITIONS: Final = 15
_MEASURED_S: Final = 1.0
"""Of repetitions of one case, as far as ``MOST`` and one allow."""
_MOST_REPETITIONS: Final = 5
_PATIENCE_S: Final = 60.0
_TRANSPORT: Final = Transport(pxn=False)
"""A rank sends by its own interface."""


class Row(msgspec.Struct, frozen=True):
    """One case, in seconds; ``measured_s`` is the median of ``times_s``. ``wrong`` elements of the first call."""

    case: Case
    simulated_s: float
    measured_s: float
    times_s: tuple[float, ...] = ()
    wrong: int = 0

    @property
    def error(self) -> float:
        """How far the simulator is off, as a share of what was measured; positive where it says longer."""
        return self.simulated_s / self.measured_s - 1


class Errors(msgspec.Struct, frozen=True):
    """Of all rows, as shares of what was measured, signs left out."""

    median: float
    worst: float
    rows: int


class Ratio(msgspec.Struct, frozen=True):
    """How many times as long one way takes as another, at one size."""

    size_bytes: int
    what: str
    simulated: float
    measured: float


def latency_case(layout: Layout) -> Case:
    """What the latency of a message is measured with."""
    return Case("latency", (tuple(range(layout.world_size)),), "ring", LATENCY_BYTES, 0, _LATENCY_REPETITIONS)


def latency_of(timing: Timing, layout: Layout) -> float:
    """Seconds of one message: the ring of ``latency_case`` passes 2(N - 1) of them on, one after the other."""
    return timing.median_s / (2 * (layout.world_size - 1))


def cases(layout: Layout, sizes_bytes: Sequence[int], algorithms: Sequence[str] = ALGORITHMS) -> list[Case]:
    """All that is compared, smallest first."""
    groups = placements(layout)
    everyone = (tuple(range(layout.world_size)),)
    found = []
    for size in sizes_bytes:
        found += [Case(name, groups[name], "ring", size) for name in (INSIDE, ACROSS)]
        found += [Case(ALL, everyone, algorithm, size, layout.ranks_per_node) for algorithm in algorithms]
    return found


def repeated(case: Case, simulated_s: float) -> Case:
    """The case with as many repetitions as its length allows: short ones scatter most."""
    count = min(_MOST_REPETITIONS, max(1, round(_MEASURED_S / simulated_s)))
    return msgspec.structs.replace(case, repetitions=count)


def predicted_s(case: Case, layout: Layout, rates: Rates, latency_s: float) -> float:
    """Seconds by the simulator and the model of a token bucket above; ``latency_s`` is that of a message."""
    cluster = cluster_of(layout, rates, max(0.0, latency_s - BURST_S))
    proven = prove(case.schedule())
    jobs = [Job(proven, group, case.size_bytes) for group in case.groups]
    return max(fluid_time_s(cluster, jobs, _TRANSPORT) - BURST_S, latency_s)


def compare(
    up: Started, wanted: Sequence[Case], environ: dict[str, str], latency: Callable[[float], None],
    heard: Callable[[Row], None],
) -> None:  # fmt: skip
    """Predict and measure every case; the callbacks get the latency of a message, and rows as they come."""
    layout = up.cluster.layout
    alone: list[Timing] = []
    measure_cases(up.cluster, [latency_case(layout)], environ, alone.append)
    latency_s = latency_of(alone[0], layout)
    latency(latency_s)
    predicted = [predicted_s(case, layout, up.rates, latency_s) for case in wanted]
    repeating = [repeated(case, time_s) for case, time_s in zip(wanted, predicted, strict=True)]
    timeout_s = _PATIENCE_S + 10 * max(predicted)

    def row(timing: Timing) -> None:
        at = timing.case
        heard(Row(repeating[at], predicted[at], timing.median_s, timing.times_s, timing.wrong))

    measure_cases(up.cluster, repeating, environ, row, timeout_s)


def errors(rows: Sequence[Row]) -> Errors:
    """How far the simulator is off, over all rows."""
    found = [abs(row.error) for row in rows]
    return Errors(statistics.median(found), max(found), len(found))


def ratios(rows: Sequence[Row]) -> list[Ratio]:
    """Placement: across nodes to inside islands. Algorithm: every flat one to the hierarchical one."""
    found = []
    for size in dict.fromkeys(row.case.size_bytes for row in rows):
        here = {(row.case.name, row.case.algorithm): row for row in rows if row.case.size_bytes == size}
        pairs = [((ACROSS, "ring"), (INSIDE, "ring"), f"tensor parallelism: {ACROSS} to {INSIDE}")]
        pairs += [
            ((ALL, name), (ALL, HIERARCHICAL), f"{ALL}: {name.replace('_', '-')} to hierarchical")
            for where, name in here
            if where == ALL and name != HIERARCHICAL
        ]
        for over, under, what in pairs:
            one, other = here.get(over), here.get(under)
            if one is not None and other is not None:
                found.append(Ratio(size, what, one.simulated_s / other.simulated_s, one.measured_s / other.measured_s))
    return found
