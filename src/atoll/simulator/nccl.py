"""NCCL as it behaves: what it will choose for a collective on a cluster, why, and how long that takes.

``predict`` is the whole interface. It looks at the cluster's links (``communicator``), lets NCCL's own tuner choose
(``nccl_tuner``), and reckons the time of the choice (``nccl_time``); what-ifs are a changed cluster
(``topology.parts.without`` for a lost NIC, ``slowed`` for a slow link) or NCCL's variables (``nccl_environment``).

    predict(preset("dgx-h100", 2), "all_reduce", 1 << 30)
    predict(cluster, "all_reduce", 1 << 30, environment={"NCCL_ALGO": "Ring"})

One answer costs well under 10 ms at 100,000 GPUs. Collectives of a whole job at once are not its matter: it gives each
the links for itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import ArrayLike

from atoll.errors import SpecError, nearest
from atoll.schedule.bus_bandwidth import BUSBW_FACTOR
from atoll.simulator import nccl_constants as constants
from atoll.simulator.accuracy_record import HELD_OUT_SPREADS, PRESET_SPREADS
from atoll.simulator.calibration import Calibration
from atoll.simulator.communicator import Communicator, communicator
from atoll.simulator.nccl_environment import NcclEnvironment, nccl_environment
from atoll.simulator.nccl_point_to_point import is_point_to_point, point_to_point_time
from atoll.simulator.nccl_time import NO_FACTORS, Factors, Time, collective_time
from atoll.simulator.nccl_tuner import Estimate, algorithms_of, estimates, refused
from atoll.simulator.prediction import Choice, Prediction, Spread, band_of, interval, wider
from atoll.topology.cluster import Cluster
from atoll.units import format_duration

COLLECTIVES = tuple(BUSBW_FACTOR)
_TOKEN_BYTES = 4


def predict(
    cluster: Cluster, collective: str, size_bytes: float, gpus: int | ArrayLike | None = None, *,
    environment: Mapping[str, str] | None = None, dtype: str = "float", calibration: Calibration | None = None,
    version: str = constants.NCCL_VERSION,
) -> Prediction:  # fmt: skip
    """What NCCL takes for one collective.

    ``size_bytes`` is nccl-tests' size (the whole vector; for all-to-all what a rank sends in all). ``gpus`` are GPU
    numbers, or how many from the first on; ``None``: all. ``environment`` are NCCL's variables, ``dtype`` nccl-tests'
    name of the type, ``version`` NCCL's: what sends and receives do before 2.29 is known, its tuner is always that of
    ``nccl_constants``. Raises ``SpecError``.
    """
    name = collective.replace("-", "_")
    if name == "barrier":
        name, size_bytes = "all_reduce", _TOKEN_BYTES
    if name not in BUSBW_FACTOR:
        raise SpecError(f"unknown collective {collective!r}: {nearest(name, [*COLLECTIVES, 'barrier'])}")
    if not 0 <= size_bytes < 2**63:
        raise SpecError(f"expected a size of at least 0 bytes, got {size_bytes}")
    allowed = nccl_environment(environment, name, version)
    comm = communicator(cluster, gpus, allowed.transport)
    return predict_for(comm, name, size_bytes, allowed, dtype, calibration)


def predict_for(
    comm: Communicator, collective: str, size_bytes: float, environment: NcclEnvironment, dtype: str = "float",
    calibration: Calibration | None = None,
) -> Prediction:  # fmt: skip
    """``predict`` for a communicator and an environment that are at hand, for sweeps over sizes."""
    factors = calibration.factors if calibration is not None else NO_FACTORS
    considered: tuple[Choice, ...] = ()
    no: dict[str, str] = {}
    channels = 0
    if comm.ranks == 1:
        time, algorithm, protocol, reason = Time(0.0, 0.0, "latency"), "none", "none", "one rank: nothing moves"
    elif is_point_to_point(collective):
        time, parts = point_to_point_time(comm, collective, size_bytes, environment, factors)
        algorithm, protocol, channels = constants.P2P, parts.protocol, parts.count
        limit = environment.p2p_ll_bytes
        over = f"{channels} channel{'s' if channels > 1 else ''}"
        reason = f"sends and receives, {over} a message; LL up to {limit} bytes a channel, Simple above"
    else:
        ranked = estimates(comm, collective, size_bytes, environment, dtype)
        best = ranked[0]
        algorithm, protocol, channels = best.algorithm, best.protocol, best.channels
        time = _timed(comm, collective, size_bytes, best, environment, factors)
        considered = tuple(
            Choice(one.algorithm, one.protocol, one.time_us * 1e-6,
                   _timed(comm, collective, size_bytes, one, environment, factors).total_s)
            for one in ranked
        )  # fmt: skip
        no = {
            one: why for one in algorithms_of(collective) if (why := refused(comm, collective, one, environment, dtype))
        }
        reason = _reason(ranked)
    spread = _spread(calibration, collective, comm.ranks, band_of(size_bytes))
    algbw = size_bytes / time.total_s if time.total_s else 0.0
    return Prediction(
        collective, int(size_bytes), comm.ranks, time.total_s, algbw, algbw * BUSBW_FACTOR[collective](comm.ranks),
        algorithm, protocol, channels, reason, time.latency_s, time.transfer_s,
        "latency" if time.latency_s > time.transfer_s else time.bound, interval(time.total_s, spread), spread,
        calibration.name if calibration is not None else "", considered, no, _notes(comm, environment),
    )  # fmt: skip


def _spread(calibration: Calibration | None, collective: str, ranks: int, band: int) -> Spread:
    """What measured over predicted has been: the calibration's residuals where it was fitted to such runs, else no
    narrower than the record of calibrated predictions of what was held out."""
    if calibration is None:
        return PRESET_SPREADS[band]
    mine = calibration.spreads[band]
    fitted = any((source.collective, source.ranks) == (collective, ranks) for source in calibration.sources)
    return mine if fitted and mine.known else wider(mine, HELD_OUT_SPREADS[band])


def _timed(
    comm: Communicator, collective: str, size_bytes: float, one: Estimate, environment: NcclEnvironment,
    factors: Factors,
) -> Time:  # fmt: skip
    return collective_time(comm, collective, size_bytes, one.algorithm, one.protocol, environment, factors)


def _reason(ranked: list[Estimate]) -> str:
    """In words: what the tuner reckons for the best, and for the next best algorithm or protocol."""
    best = ranked[0]
    mine = f"NCCL's tuner reckons {format_duration(best.time_us * 1e-6)}"
    if len(ranked) == 1:
        return f"{mine}; nothing else may run"
    other = ranked[1]
    return f"{mine}, {format_duration(other.time_us * 1e-6)} for {other.algorithm} {other.protocol}"


def _notes(comm: Communicator, environment: NcclEnvironment) -> tuple[str, ...]:
    notes = list(environment.notes)
    if not comm.gpu_known:
        notes.append(
            f"GPU {comm.gpu.name!r} is not known; reckoned as compute capability 8.0 at {comm.gpu.boost_mhz} MHz"
        )
    elif comm.gpu.name.startswith("MI"):
        notes.append("RCCL is taken to choose as NCCL does, without reduction in switches")
    return tuple(notes)
