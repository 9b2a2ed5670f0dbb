"""Lab 02: a topology simulator, and what placement costs.

    python solution.py                   all-reduce of TP and DP placements over topologies, compared and checked
    python solution.py --bubble          the pipeline bubble: 1F1B against GPipe, interleaving, drawn
    python solution.py --blast-radius    what stops when a part fails, for jobs packed and dealt out

The simulator itself is the code between the two lines of dashes. ``starter.py`` lacks that part; ``python check.py
FILE`` judges what you put there, README.md walks you through. Clusters, routes and proven schedules are the library's;
what is compared stands in ``tables.py``, the command line in ``harness.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import harness
import numpy as np

from atoll.schedule.prove import ProvenSchedule
from atoll.topology.cluster import Cluster
from atoll.topology.names import link_name
from atoll.topology.routes import Routes, find_routes

# ------------------------------------------------------------------------------------------- the exercise begins here


def groups_of(axis: str, degrees: Mapping[str, int], order: Sequence[str]) -> np.ndarray:
    """[groups, members]: ranks that differ in their coordinate along ``axis`` only, in the order of that coordinate.

    ``degrees`` gives the number of parts along each axis, ``order`` names the axes from the fastest varying to the
    slowest: with order tp, dp and tp = 8 ranks 0 to 7 are one tp group, ranks 0, 8, 16, ... one dp group.

    Hints: NumPy counts with the last axis fastest. ``reshape`` all ranks to one array axis per parallel axis, move
    ``axis`` to the end, and flatten the others.
    """
    slowest_first = list(reversed(order))
    ranks = np.arange(int(np.prod([degrees[name] for name in order])))
    grid = ranks.reshape([degrees[name] for name in slowest_first])
    return np.moveaxis(grid, slowest_first.index(axis), -1).reshape(-1, degrees[axis])


def link_bytes(routes: Routes, sizes: np.ndarray, num_links: int) -> np.ndarray:
    """[num_links]: the bytes that every directed link carries when transfer i moves ``sizes[i]`` along ``routes[i]``.

    A link that several routes share carries all their bytes. Hints: transfer i's links are
    ``routes.links[routes.offsets[i] : routes.offsets[i + 1]]``; ``np.bincount`` with ``weights`` adds up.
    """
    hops = np.diff(routes.offsets)
    return np.bincount(routes.links, weights=np.repeat(sizes, hops), minlength=num_links)


def simulate(cluster: Cluster, proven: ProvenSchedule, groups: np.ndarray, size_bytes: float) -> tuple[float, str]:
    """Seconds for every group of GPUs to run the schedule at once, and the name of the link that was busy longest.

    ``groups[g, r]`` is the number of the GPU on which rank r of group g runs. Every step takes as long as its busiest
    link, after the longest latency of its routes; links carry what they are said to be able to
    (``cluster.usable_bytes_per_s``), each direction for itself.

    Hints: ``proven.schedule.steps()`` gives (step, rows); ``rows.src``, ``rows.dst``, ``rows.channel`` and
    ``rows.num_chunks`` are columns. A chunk is ``size_bytes / proven.schedule.header.chunks`` bytes. Local moves
    (src == dst) use no link. ``find_routes(cluster, src_gpus, dst_gpus, channels)`` routes many pairs in one call, and
    ``.latency_s(cluster)`` is the latency of each.
    """
    chunk_bytes = size_bytes / proven.schedule.header.chunks
    total_s, busy_s = 0.0, np.zeros(cluster.num_links)
    for _, rows in proven.schedule.steps():
        away = rows.src != rows.dst
        if not away.any():
            continue
        src, dst = groups[:, rows.src[away]].ravel(), groups[:, rows.dst[away]].ravel()
        routes = find_routes(cluster, src, dst, np.tile(rows.channel[away], len(groups)))
        sizes = np.tile(rows.num_chunks[away] * chunk_bytes, len(groups))
        step_s = link_bytes(routes, sizes, cluster.num_links) / cluster.usable_bytes_per_s
        total_s += float(step_s.max() + routes.latency_s(cluster).max())
        busy_s += step_s
    return total_s, link_name(cluster, int(busy_s.argmax()))


# --------------------------------------------------------------------------------------------- the exercise ends here

if __name__ == "__main__":
    harness.main(groups_of, simulate)
