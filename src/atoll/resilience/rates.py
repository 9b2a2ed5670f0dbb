"""How often it breaks: published failure rates, and the mean time between interruptions of a job.

One figure is carried everywhere: **interruptions per node-day**, the chance that a node stops the job on a given day.
A synchronous job stops when any of its nodes does, so N nodes stop it N times as often:

    MTBF(N) = 1 day / (rate x N)

This takes failures as independent and the rate as constant. Both are wrong in detail (lemon nodes, infant mortality,
shared switches) and right on the average; ``lemon_effect`` and ``spares.Domain`` are there for what they miss.

**Two kinds of figures must not be mixed.** A rate counts what the platform does to a job; an observed mean time to
failure of jobs of one size counts everything that ends a job, its own bugs included. Meta's study gives both: 6.50 per
1,000 node-days reproduces its projections (1.80 h at 16,384 GPUs, 0.225 h at 131,072), while its observed 7.9 h for
1,024-GPU jobs is of the other kind (the rate alone gives 28.8 h).
"""

from __future__ import annotations

from typing import Final

import msgspec

from atoll.errors import SpecError, nearest
from atoll.resilience.demand import at_least, not_negative, positive

DAY_S: Final = 86400.0
YEAR_S: Final = 365.25 * DAY_S


class FailureRate(msgspec.Struct, frozen=True):
    """Interruptions per node-day, with where it is from."""

    name: str
    per_node_day: float
    gpus_per_node: int
    source: str
    note: str = ""

    def mtbf_s(self, num_nodes: int) -> float:
        """Mean time between interruptions of a job of ``num_nodes`` nodes, in seconds."""
        return job_mtbf_s(self.per_node_day, num_nodes)


def job_mtbf_s(per_node_day: float, num_nodes: int) -> float:
    """Mean seconds between interruptions of a synchronous job of ``num_nodes`` nodes."""
    positive(per_node_day, "failure rate per node-day")
    at_least(num_nodes, 1, "nodes")
    return DAY_S / (per_node_day * num_nodes)


def observed_rate(interruptions: float, duration_s: float, num_nodes: int) -> float:
    """Interruptions per node-day of a run: counted events, how long it ran, on how many nodes."""
    positive(interruptions, "observed interruptions")
    positive(duration_s, "observed duration")
    at_least(num_nodes, 1, "observed nodes")
    return interruptions / (duration_s / DAY_S * num_nodes)


def rate_from_node_mtbf(mtbf_node_s: float) -> float:
    """Interruptions per node-day when one node interrupts a job once in ``mtbf_node_s`` seconds."""
    return DAY_S / positive(mtbf_node_s, "mean time between failures of a node")


LLAMA3_GPUS: Final = 16384
LLAMA3_DAYS: Final = 54
_LLAMA3 = "Llama Team, The Llama 3 Herd of Models, 2024, arXiv:2407.21783, section 3.3.4 and table 5"
_META = "Kokolis et al., Revisiting Reliability in Large-Scale ML Research Clusters, HPCA 2025, arXiv:2410.21680"
_OPT = "metaseq, projects/OPT/chronicles, final update, 2021: about 2 machines of 124 a day"
_ANT = "DLRover, docs/blogs/stabilize_llm_training_cn.md, 2023: 0.27 % of GPUs a day, 8 GPUs a node"
_FIELD = "planning figure: 1 % of nodes have an issue on any day at 10,000 GPUs"


class Cause(msgspec.Struct, frozen=True):
    """A row of the Llama 3 table: what interrupted the run and how often; ``part`` groups causes by what fails."""

    name: str
    part: str
    count: int


# The count of the first row is printed in the paper as 30.1 %; 148 of 419 are 35.3 %, and the counts add up.
LLAMA3_CAUSES: Final = (
    Cause("faulty GPU", "gpu", 148), Cause("GPU HBM3 memory", "gpu", 72), Cause("software bug", "software", 54),
    Cause("network switch or cable", "network", 35), Cause("host maintenance", "host", 32),
    Cause("GPU SRAM memory", "gpu", 19), Cause("GPU system processor", "gpu", 17), Cause("NIC", "nic", 7),
    Cause("NCCL watchdog timeout", "software", 7), Cause("silent data corruption", "gpu", 6),
    Cause("GPU thermal interface and sensor", "gpu", 6), Cause("SSD", "host", 3), Cause("power supply", "host", 3),
    Cause("server chassis", "host", 2), Cause("IO expansion board", "host", 2), Cause("dependency", "software", 2),
    Cause("CPU", "host", 2), Cause("system memory", "host", 2),
)  # fmt: skip

PUBLISHED: Final = (
    FailureRate(
        "llama3", sum(cause.count for cause in LLAMA3_CAUSES) / (LLAMA3_DAYS * (LLAMA3_GPUS // 8)), 8, _LLAMA3,
        "419 unexpected interruptions in 54 days on 16,384 H100; 47 planned ones not counted",
    ),
    FailureRate("rsc-1", 6.50e-3, 8, _META, "16,000 A100, 11 months, failures of the platform"),
    FailureRate("rsc-2", 2.34e-3, 8, _META, "8,000 A100, 11 months, failures of the platform"),
    FailureRate("opt", 2 / 124, 8, _OPT, "992 A100 of a cloud, machines that go down"),
    FailureRate("ant", 0.0027 * 8, 8, _ANT, "failures of cards, restarts in place included"),
    FailureRate("field", 0.01, 8, _FIELD, "a round figure for plans without data of their own"),
)  # fmt: skip


def published(name: str) -> FailureRate:
    """The published rate of that name; ``SpecError`` with the nearest name where there is none."""
    for rate in PUBLISHED:
        if rate.name == name:
            return rate
    raise SpecError(f"unknown failure rate {name!r}: {nearest(name, [rate.name for rate in PUBLISHED])}")


class PartRate(msgspec.Struct, frozen=True):
    """How often one kind of part interrupts a run, as counted in the Llama 3 table."""

    part: str
    count: int
    share: float
    per_node_day: float
    mtbf_s: float
    """Mean seconds between two such interruptions of a job of the size asked for."""


def part_rates(num_nodes: int, per_node_day: float) -> tuple[PartRate, ...]:
    """A rate split among kinds of parts by their shares in the Llama 3 table, most frequent first.

    The shares are those of one run (H100, RoCE, a mature stack): for another cluster they are assumed.
    """
    total = sum(cause.count for cause in LLAMA3_CAUSES)
    counts: dict[str, int] = {}
    for cause in LLAMA3_CAUSES:
        counts[cause.part] = counts.get(cause.part, 0) + cause.count
    return tuple(
        PartRate(part, count, count / total, per_node_day * count / total,
                 job_mtbf_s(per_node_day * count / total, num_nodes))
        for part, count in sorted(counts.items(), key=lambda item: -item[1])
    )  # fmt: skip


def yearly_rate(count: float, duration_s: float, num_parts: int) -> float:
    """Failures per part and year: 220 GPU and HBM3 failures of 16,384 GPUs in 54 days are 0.091."""
    return observed_rate(count, duration_s, num_parts) * YEAR_S / DAY_S


def lemon_effect(share: float, factor: float) -> float:
    """What remains of a fleet's failure rate without its lemons: nodes that fail ``factor`` times as often.

    The fleet's rate is an average over all nodes; ``share`` of them are lemons. With 1 % of lemons that fail 20 times
    as often, 83 % of the rate remains: they cause a sixth of all failures.
    """
    if not 0 <= share < 1:
        raise SpecError(f"lemon nodes: expected a share of at least 0 and less than 1, got {share:g}")
    if factor < 1:
        raise SpecError(f"lemon nodes: expected them to fail at least as often as others (1 or more), got {factor:g}")
    not_negative(factor, "lemon nodes' factor")
    return 1 / (1 - share + share * factor)
