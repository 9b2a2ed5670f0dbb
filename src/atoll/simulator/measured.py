"""Measured runs as observations that predictions are held against: which cluster, which ranks, which time.

A run of nccl-tests says how many ranks there were and on which GPUs, not over which network; a table copied from a web
page says less. ``presumed_cluster`` takes the preset that the run's own words name (GPU, instance type, racks) and says
what it took. Ranks are placed node by node from the first GPU on; where a run names racks, evenly over them.

Of a row's two halves the faster one counts: what warms up or disturbs a measurement only ever adds to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from atoll.errors import SpecError
from atoll.readers.nccl_tests import NcclTestRow, NcclTestRun, world_size_of
from atoll.schedule.bus_bandwidth import BUSBW_FACTOR
from atoll.simulator.calibration import Observation
from atoll.simulator.communicator import Communicator, communicator
from atoll.simulator.nccl_constants import NCCL_VERSION
from atoll.simulator.nccl_environment import nccl_environment, nccl_version
from atoll.topology.cluster import Cluster, Integers
from atoll.topology.presets import PRESETS, preset

# Words of a run -> preset; the first that is found counts.
_WORDS: Final = (
    (r"gb300", "gb300-nvl72"), (r"gb200", "gb200-nvl72"), (r"p5e?n?\.48xlarge|aws_p5|\bp5\b", "aws-p5"),
    (r"p4de?\.24xlarge|aws_p4d|\bp4d\b", "aws-p4d"), (r"ndv5|nd_?h100", "azure-ndv5"), (r"ndv4|nd_?a100", "azure-ndv4"),
    (r"b[23]00", "hgx-b200"), (r"h200", "hgx-h200"), (r"h[18]00|xe9680", "dgx-h100"), (r"a[18]00", "dgx-a100"),
    (r"l40s?", "l40s-pcie"), (r"4090", "rtx4090-box"), (r"mi300x?", "mi300x"),
)  # fmt: skip
_RACKS: Final = re.compile(r"(?<![A-Za-z0-9])(\d{1,4})[ _-]?racks?", re.IGNORECASE)
_RANKS: Final = re.compile(r"(?<![\w.])(\d{1,7})[ _-]?gpus?\b|rank count (\d{1,7})|_(\d{1,6})gpu", re.IGNORECASE)


class Placed(msgspec.Struct, frozen=True):
    """Where a run's ranks are taken to be: the cluster, their GPUs, and what was presumed."""

    cluster: Cluster
    gpus: Integers
    presumed: str


def ranks_of(run: NcclTestRun) -> int | None:
    """How many ranks a run had: listed, by the factor of its bandwidths, or in the words around it."""
    if run.world_size:
        return run.world_size
    by_factor = world_size_of(run.rows, run.collective)
    if by_factor:
        return by_factor
    match = _RANKS.search(_words(run))
    return int(next(group for group in match.groups() if group)) if match else None


def presumed_cluster(run: NcclTestRun, ranks: int) -> Placed | None:
    """The preset that the run's words name, in the size it needs; ``None`` where they name none."""
    words = _words(run)
    name = next((name for pattern, name in _WORDS if re.search(rf"(?<![a-z0-9]){pattern}", words, re.IGNORECASE)), None)
    if name is None:
        return None
    racks = _RACKS.search(words)
    node_gpus = len(preset(name).groups[0].node_type.gpus)
    if len(run.hosts) > 1 and len(run.ranks) == ranks <= len(run.hosts) * node_gpus:
        return placed_on(preset(name, nodes=len(run.hosts)), run, ranks)
    unit_gpus = node_gpus * PRESETS[name].unit_nodes
    units = -(-ranks // unit_gpus)
    if racks and PRESETS[name].unit == "rack":
        units = max(units, int(racks[1]))
    cluster = preset(name, units)
    gpus = np.arange(ranks, dtype=np.int64)
    if PRESETS[name].unit == "rack" and units > 1:
        each = -(-ranks // units)
        gpus = gpus // each * unit_gpus + gpus % each
    return Placed(cluster, gpus, f"{cluster.name}, {ranks} ranks")


def placed_on(cluster: Cluster, run: NcclTestRun, ranks: int) -> Placed:
    """The ranks of a run on a given cluster: by host where it lists hosts, else from the first GPU on.

    Raises ``SpecError`` where the cluster has not so many GPUs.
    """
    hosts = run.hosts
    if len(hosts) > 1 and len(run.ranks) == ranks and len(hosts) <= cluster.num_nodes:
        sizes = [len(cluster.node_type(node).gpus) for node in range(len(hosts))]
        at = {host: node for node, host in enumerate(hosts)}
        if all(0 <= rank.device < sizes[at[rank.host]] for rank in run.ranks):
            first = cluster.first_gpu_of_node(np.arange(len(hosts)))
            listed = np.array([first[at[rank.host]] + rank.device for rank in run.ranks], dtype=np.int64)
            if len(np.unique(listed)) == ranks:
                return Placed(cluster, listed, f"{cluster.name}, {ranks} ranks on {len(hosts)} hosts")
    if ranks > cluster.num_gpus:
        raise SpecError(
            f"{run.source}: {ranks} ranks, but cluster {cluster.name!r} has {cluster.num_gpus} GPUs; give --ranks"
        )
    return Placed(cluster, np.arange(ranks, dtype=np.int64), f"{cluster.name}, {ranks} ranks")


def observations(
    run: NcclTestRun, comm: Communicator, environment: Mapping[str, str] | None = None
) -> list[Observation]:
    """One for each row with a time. Raises ``SpecError`` for a collective that is not known or not modelled."""
    if run.collective not in BUSBW_FACTOR:
        raise SpecError(
            f"{run.source}: {'collective not known' if not run.collective else run.collective + ' is not modelled'}; "
            "say which it is with --collective"
        )
    allowed = nccl_environment(environment, run.collective, _version_of(run))
    return [
        Observation(comm, run.collective, float(row.size_bytes), time_s, allowed, row.dtype or "float")
        for row in run.rows
        if row.size_bytes > 0 and (time_s := best_time_s(row)) is not None
    ]


def _version_of(run: NcclTestRun) -> str:
    """NCCL's version that a run names, or the one whose constants are known."""
    try:
        nccl_version(run.nccl_version)
    except SpecError:
        return NCCL_VERSION
    return run.nccl_version


def best_time_s(row: NcclTestRow) -> float | None:
    """The faster half of a row."""
    times = [half.time_s for half in (row.out_of_place, row.in_place) if half is not None and half.time_s]
    return min(times) if times else None


def placed_communicator(placed: Placed) -> Communicator:
    return communicator(placed.cluster, placed.gpus)


def without_warm_up(rows: Sequence[Observation]) -> list[Observation]:
    """Rows in order of size without the first one where it is slower than the next two sizes: it paid for the start."""
    ordered = sorted(rows, key=lambda one: one.size_bytes)
    if len(ordered) > 2 and ordered[0].time_s > 1.5 * max(ordered[1].time_s, ordered[2].time_s):
        return ordered[1:]
    return ordered


def _words(run: NcclTestRun) -> str:
    """All that a run says of its machine; what names the system stands for all else."""
    if run.options.get("system"):
        return run.options["system"]
    gpus = " ".join(dict.fromkeys(rank.gpu_name for rank in run.ranks if rank.gpu_name))
    options = " ".join(run.options.get(key, "") for key in ("hardware", "source"))
    return f"{gpus} {run.source.file.rpartition('/')[2]} {options}"
