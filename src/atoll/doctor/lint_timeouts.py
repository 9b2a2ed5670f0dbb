"""``atoll lint timeouts``: the ladder of timeouts, each strictly longer than the one inside it.

When something hangs, the innermost layer that notices should be the one that speaks: it knows most. A layer outside
that gives up first kills the job before the layer that would have named the culprit. From the inside:

=============  =======================================================================  ============================
layer          what it waits for                                                        set by
=============  =======================================================================  ============================
nccl           an unanswered RDMA packet: 4.096 us x 2^timeout, times retries + 1       NCCL_IB_TIMEOUT, _RETRY_CNT
process_group  a collective                                                             init_process_group(timeout=)
heartbeat      the watchdog thread itself                                               ..._HEARTBEAT_TIMEOUT_SEC
elastic        a node to come back and join the next attempt                            torchrun --rdzv-conf
slurm          the whole job                                                            sbatch --time
=============  =======================================================================  ============================

Sources: InfiniBand specification 9.7.6.1.3 for the packet timeout (with the defaults of NCCL's ``net_ib``: timeout 20,
7 retries; 18 before 2.23), PyTorch's ``ProcessGroupNCCL`` for 600 s (1800 s before 2.2) and 480 s (600 s before 2.7),
and ``torch.distributed.elastic`` for the 600 s join timeout. A layer that is not set counts with its default, which
is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from atoll.doctor.finding import Severity
from atoll.doctor.variables import version_tuple
from atoll.units import format_duration

LAYERS: Final = ("nccl", "process_group", "heartbeat", "elastic", "slurm")
IB_TIME_UNIT_S: Final = 4.096e-6
DUMP_MARGIN_S: Final = 60.0
"""PyTorch waits up to this for the flight recorder's dump after a timeout (TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC)."""


class Layer(msgspec.Struct, frozen=True):
    """One rung. ``origin`` says who set it; ``is_default`` that nobody did."""

    name: str
    timeout_s: float
    origin: str
    is_default: bool = False


class LadderProblem(msgspec.Struct, frozen=True):
    """``outer`` does not outlast ``inner``, or another fault of the ladder."""

    inner: Layer
    outer: Layer
    what: str
    fix: str
    severity: Severity


def ladder(
    environment: Mapping[str, str],
    given_s: Mapping[str, float],
    nccl_version: str = "",
    torch_version: str = "",
) -> tuple[Layer, ...]:
    """The rungs from the inside out: what was ``given_s`` by layer name, else the environment, else the default.

    Layers outside the process that nobody set (elastic, Slurm) are left out: there may be none.
    """
    nccl, torch = version_tuple(nccl_version), version_tuple(torch_version)
    rungs: list[Layer] = []
    for name in LAYERS:
        if name in given_s:
            rungs.append(Layer(name, given_s[name], "as given"))
        elif (found := _from_environment(name, environment, nccl)) is not None:
            rungs.append(found)
        elif (default := _default(name, nccl, torch)) is not None:
            rungs.append(default)
    return tuple(rungs)


def problems(rungs: Sequence[Layer]) -> tuple[LadderProblem, ...]:
    """Each rung against the longest one inside it. Two defaults are never a problem: nobody chose them."""
    found: list[LadderProblem] = []
    for place, outer in enumerate(rungs):
        inside = [rung for rung in rungs[:place] if not (rung.is_default and outer.is_default)]
        inside = [rung for rung in inside if rung.timeout_s >= outer.timeout_s and not _is_parallel(rung, outer)]
        if not inside:
            continue
        inner = max(inside, key=lambda rung: rung.timeout_s)
        margin = DUMP_MARGIN_S if inner.name == "process_group" else 0.0
        found.append(
            LadderProblem(
                inner,
                outer,
                f"{outer.name} ({format_duration(outer.timeout_s)}, {outer.origin}) does not outlast {inner.name} "
                f"({format_duration(inner.timeout_s)}, {inner.origin}): {_consequence(inner, outer)}",
                f"set {outer.name} above {format_duration(inner.timeout_s + margin)}, or {inner.name} below "
                f"{format_duration(max(0.0, outer.timeout_s - margin))}",
                Severity.SLOW,
            )
        )
    return tuple(found)


def _is_parallel(inner: Layer, outer: Layer) -> bool:
    """A default heartbeat of 480 s beside a default process group of 600 s watches another thing: it is no fault."""
    return outer.name == "heartbeat" and outer.is_default and inner.timeout_s <= 600.0


def _consequence(inner: Layer, outer: Layer) -> str:
    return {
        "process_group": "a slow retry of the network looks like a hang, and the error of the NIC is never printed",
        "heartbeat": "the monitor aborts the process before the watchdog can name the collective that timed out",
        "elastic": "the agent gives the next attempt up while ranks of this one still wait for their timeout",
        "slurm": "the job is cancelled before anything says why it hung",
    }.get(outer.name, f"{outer.name} ends what {inner.name} would have explained")


def _from_environment(name: str, environment: Mapping[str, str], nccl: tuple[int, ...]) -> Layer | None:
    def number(variable: str) -> float | None:
        try:
            return float(environment[variable])
        except (KeyError, ValueError):
            return None

    if name == "nccl":
        timeout, retries = number("NCCL_IB_TIMEOUT"), number("NCCL_IB_RETRY_CNT")
        if timeout is None and retries is None:
            return None
        exponent = timeout if timeout is not None else _ib_timeout_default(nccl)
        total_s = IB_TIME_UNIT_S * 2.0 ** min(exponent, 31.0) * ((7.0 if retries is None else retries) + 1)
        return Layer(name, total_s, f"NCCL_IB_TIMEOUT={exponent:g}, {7 if retries is None else retries:g} retries")
    if name == "heartbeat":
        seconds = number("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")
        return None if seconds is None else Layer(name, seconds, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")
    return None


def _ib_timeout_default(nccl: tuple[int, ...]) -> float:
    return 20.0 if not nccl or nccl >= (2, 23) else 18.0


def _default(name: str, nccl: tuple[int, ...], torch: tuple[int, ...]) -> Layer | None:
    if name == "nccl":
        exponent = _ib_timeout_default(nccl)
        return Layer(name, IB_TIME_UNIT_S * 2.0**exponent * 8, f"default: timeout {exponent:g}, 7 retries", True)
    if name == "process_group":
        seconds = 1800.0 if torch and torch < (2, 2) else 600.0
        return Layer(name, seconds, "PyTorch's default", True)
    if name == "heartbeat":
        if torch and torch < (2, 2):
            return None
        seconds = 600.0 if torch and torch < (2, 7) else 480.0
        return Layer(name, seconds, "PyTorch's default", True)
    return None
