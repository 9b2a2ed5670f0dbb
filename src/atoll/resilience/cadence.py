"""How often to checkpoint: Young, Daly, and the exact optimum.

Vocabulary: the **interval** is the work between two checkpoints, in seconds; the **overhead** of a checkpoint is the
time it takes from the job; M is the mean time between interruptions. Checkpoints too rare lose work, too often cost
work. With exponential failures the expected time for one interval tau of work and its overhead C is (derivation in
``goodput``)

    E(tau) = const x (exp((tau + C) / M) - 1)

and tau / E(tau) is largest where  tau / M + exp(-(tau + C) / M) = 1. That equation is solved here (``exact``); it needs
neither the restart time nor the detection time, which cost the same at any cadence. The classic approximations:

    Young 1974               sqrt(2 C M)
    Daly 2003, first order   sqrt(2 C (M + R))              R: restart time
    Daly 2006, higher order  sqrt(2 C M) (1 + x / 3 + x^2 / 9) - C,   x = sqrt(C / 2M);   M where C >= 2M

J. W. Young, A First Order Approximation to the Optimum Checkpoint Interval, CACM 17(9), 1974. J. T. Daly, A Model for
Predicting the Optimum Checkpoint Interval for Restart Dumps, ICCS 2003; A Higher Order Estimate of the Optimum
Checkpoint Interval for Restart Dumps, FGCS 22(3), 2006.

**Blocking and asynchronous.** A checkpoint blocks the job for ``blocking_s`` (the whole write, or only the copy to host
memory); what then goes on in the background takes ``background_s`` and slows the job by a share of its speed meanwhile.
A failure during the background write falls back to the checkpoint before. The next checkpoint starts after the last
one is written, so the interval is at least ``background_s``.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from atoll.resilience.demand import not_negative, positive, share

BYTES_PER_PARAMETER: Final = 14
"""Training state of mixed-precision Adam: 2 (bf16 weight) + 4 (fp32 master) + 4 + 4 (two moments). BLOOM's 2.3 TB of
176e9 parameters are 13.1; states with fp32 gradients have 16 to 18."""


class Checkpoint(msgspec.Struct, frozen=True):
    """What one checkpoint costs, in seconds and as a share of the job's speed."""

    blocking_s: float
    background_s: float = 0.0
    slowdown: float = 0.0

    def __post_init__(self) -> None:
        not_negative(self.blocking_s, "blocking time of a checkpoint")
        not_negative(self.background_s, "background time of a checkpoint")
        share(self.slowdown, "slowdown during a background write")
        positive(self.overhead_s, "time that a checkpoint takes from the job")

    @property
    def overhead_s(self) -> float:
        """Time that one checkpoint takes from the job: what it blocks, and the work not done while it is written."""
        return self.blocking_s + self.slowdown * self.background_s


def write_time_s(size_bytes: float, bandwidth_bytes_per_s: float) -> float:
    """Seconds to write (or read) a checkpoint with the storage's bandwidth for the whole job."""
    return positive(size_bytes, "checkpoint size") / positive(bandwidth_bytes_per_s, "storage bandwidth")


def optimizer_state_bytes(parameters: float) -> float:
    """Bytes of a checkpoint with optimizer state, at ``BYTES_PER_PARAMETER``."""
    return positive(parameters, "parameters") * BYTES_PER_PARAMETER


def young_s(overhead_s: float, mtbf_s: float) -> float:
    """Young's interval, in seconds."""
    return math.sqrt(2 * positive(overhead_s, "checkpoint overhead") * positive(mtbf_s, "MTBF"))


def daly_first_order_s(overhead_s: float, mtbf_s: float, restart_s: float) -> float:
    """Daly's interval of 2003, in seconds."""
    return young_s(overhead_s, mtbf_s + not_negative(restart_s, "restart time"))


def daly_s(overhead_s: float, mtbf_s: float) -> float:
    """Daly's interval of higher order (2006), in seconds."""
    x = math.sqrt(positive(overhead_s, "checkpoint overhead") / (2 * positive(mtbf_s, "MTBF")))
    if x >= 1:
        return mtbf_s
    return young_s(overhead_s, mtbf_s) * (1 + x / 3 + x * x / 9) - overhead_s


def exact_s(overhead_s: float, mtbf_s: float) -> float:
    """The interval of highest goodput under exponential failures, in seconds."""
    c = positive(overhead_s, "checkpoint overhead") / positive(mtbf_s, "MTBF")
    # f(x) = x + exp(-(x + c)) - 1 is convex and has one zero above 0: Newton from the right (f(1) > 0) falls onto it.
    # expm1 keeps the digits that 1 - exp would lose where c is small.
    x = 1.0
    for _ in range(100):
        following = x - (x + math.expm1(-(x + c))) / -math.expm1(-(x + c))
        if not 0 < following < x:
            break
        x = following
    return x * mtbf_s


def optimum_s(checkpoint: Checkpoint, mtbf_s: float) -> float:
    """The best interval that the background write allows, in seconds."""
    return max(exact_s(checkpoint.overhead_s, mtbf_s), checkpoint.background_s)
