"""Measured against expected: is a benchmark's plateau what the machine should give, and if not, how many NICs explain
it?

The *plateau* of a run is the best busbw at sizes of at least ``PLATEAU_BYTES``: below that latency rules, and a single
bad iteration must not blame a machine. A run is a *gap* when the plateau is below ``GAP_SHARE`` of the expectation. A
run *collapses* when its busbw falls with growing size to ``COLLAPSE_SHARE`` of its own best: links that are up but
congested, or a bad node; a healthy machine only ever gets faster with size.

How many NICs explain a plateau depends on what crosses the node's border: a ring sends busbw over it, a tree or the
two-level algorithms (NVLSTree, hierarchical) send algbw x 2(M-1)/M for M nodes. Both are told; which one is meant is
the default algorithm of that GPU generation and NCCL version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from atoll.doctor.expectations import NVLS_SINCE, RATE_NAMES, Expectation, Machine, expected, gpu_family
from atoll.doctor.variables import version_tuple
from atoll.readers.inspector import InspectedCollective
from atoll.readers.nccl_tests import Measurement, NcclTestRow, NcclTestRun
from atoll.readers.source import Source

PLATEAU_BYTES: Final = 64 << 20
GAP_SHARE: Final = 0.6
COLLAPSE_SHARE: Final = 0.5

_NODE_WORDS: Final = (
    re.compile(r"\b(\d{1,4})[ -]*(?:nodes?|hosts?)\b", re.IGNORECASE),
    re.compile(r"\b(\d{1,4})\s*x\s+(?:Dell|HPE|Supermicro|DGX|HGX|p\d\w*\.|node|host|a3-|BM\.)", re.IGNORECASE),
    re.compile(r"\b(\d{1,4})\s*x\s*(?:4|8|16)\s*x?\s*(?:GB|[ABHLV])\d{2,3}\b", re.IGNORECASE),
)
_NICS: Final = re.compile(
    r"\b(\d{1,2})\s*x\s*(?:CX-?\d|ConnectX-?\d|NICs?|HCAs?|mlx5|EFA|[EHNX]DR|\d{2,4}\s*G)[^,;()]{0,40}", re.IGNORECASE
)
_RATE: Final = re.compile(r"\b(\d{2,4})\s*(?:G|Gb/s|Gbps|Gbit/s|GbE)\b", re.IGNORECASE)


class Plateau(msgspec.Struct, frozen=True):
    """The best of a run at large sizes, with the line that proves it."""

    busbw_bytes_per_s: float
    algbw_bytes_per_s: float
    size_bytes: int
    source: Source


class Gap(msgspec.Struct, frozen=True):
    """A run that stays below what its machine should give. ``nics`` is how many would explain it (``None`` in a node):
    by the algorithm that is the default there, then by tree and by ring."""

    collective: str
    plateau: Plateau
    expectation: Expectation
    machine: Machine
    nics: int | None = None
    nics_by_tree: float | None = None
    nics_by_ring: float | None = None


class Collapse(msgspec.Struct, frozen=True):
    """busbw falls with size: from ``best`` to ``last``."""

    collective: str
    best: Plateau
    last: Plateau


def plateau(rows: Iterable[NcclTestRow]) -> Plateau | None:
    """The best row at sizes that show bandwidth and not latency."""
    best: Plateau | None = None
    for row in rows:
        found = _best_half(row)
        if found is not None and row.size_bytes >= PLATEAU_BYTES and (
            best is None or found.busbw_bytes_per_s > best.busbw_bytes_per_s
        ):  # fmt: skip
            best = found
    return best


def collapse(run: NcclTestRun) -> Collapse | None:
    """Whether the largest size is far slower than a smaller one, by a fall over at least two sizes (not one
    outlier)."""
    points = [found for row in run.rows if row.size_bytes >= (1 << 20) and (found := _best_half(row)) is not None]
    if len(points) < 4:
        return None
    best = max(points, key=lambda point: point.busbw_bytes_per_s)
    tail = points[points.index(best) + 1 :]
    if len(tail) < 2:
        return None
    low = COLLAPSE_SHARE * best.busbw_bytes_per_s
    if all(point.busbw_bytes_per_s < low for point in tail[-2:]):
        return Collapse(run.collective, best, tail[-1])
    return None


def gap(run: NcclTestRun, machine: Machine) -> Gap | None:
    """How far a run stays below what ``machine`` should give, or ``None`` (healthy, or too little known)."""
    top = plateau(run.rows)
    return _gap(run.collective, top, machine) if top is not None else None


def inspected_gap(collectives: Sequence[InspectedCollective], machine: Machine) -> Gap | None:
    """The same for what NCCL Inspector saw: the median busbw of each collective's large calls on one communicator."""
    best: Gap | None = None
    by_name: dict[str, list[InspectedCollective]] = {}
    for seen in collectives:
        if seen.size_bytes >= PLATEAU_BYTES and seen.busbw_bytes_per_s:
            by_name.setdefault(_plain_name(seen.collective), []).append(seen)
    for name, calls in sorted(by_name.items()):
        if len(calls) < 3:
            continue
        calls.sort(key=lambda seen: seen.busbw_bytes_per_s or 0.0)
        middle = calls[len(calls) // 2]
        top = Plateau(
            middle.busbw_bytes_per_s or 0.0, middle.algbw_bytes_per_s or 0.0, middle.size_bytes, middle.source
        )
        found = _gap(name, top, machine)
        if found is not None and (best is None or _share(found) < _share(best)):
            best = found
    return best


def machine_of(run: NcclTestRun, known: Machine) -> Machine:
    """The machine of a run: what the run itself says (device lines, a ``hardware`` comment), else what is ``known``."""
    words = " ".join(text for name, text in run.options.items() if name.lower() in ("hardware", "status", "system"))
    gpu = next((rank.gpu_name for rank in run.ranks if rank.gpu_name), "") or _gpu_in(words) or known.gpu
    hosts = {rank.host for rank in run.ranks}
    num_nodes = len(hosts) if hosts else _number_in(_NODE_WORDS, words)
    nics, rate = _nics_in(words)
    version = run.nccl_version or _version_in(words)
    return Machine(
        gpu=gpu,
        world_size=run.world_size or (known.world_size if not run.options else None),
        num_nodes=num_nodes or (known.num_nodes if not words else None),
        nics_per_node=nics if nics is not None else (known.nics_per_node if not words else None),
        nic_rate_bytes_per_s=rate if rate is not None else (known.nic_rate_bytes_per_s if not words else None),
        nics_from="the table's own header" if nics is not None else known.nics_from,
        nccl_version=version_tuple(version)[:2] if version else (() if words else known.nccl_version),
    )


def _gap(collective: str, top: Plateau, machine: Machine) -> Gap | None:
    expectation = expected(collective, machine)
    if expectation is None or top.busbw_bytes_per_s >= GAP_SHARE * expectation.busbw_bytes_per_s:
        return None
    if expectation.limit != "NICs" or not machine.nic_rate_bytes_per_s or not machine.num_nodes:
        return Gap(collective, top, expectation, machine)
    rate = machine.nic_rate_bytes_per_s
    if collective != "all_reduce":
        share = top.busbw_bytes_per_s / expectation.busbw_bytes_per_s * (machine.nics_per_node or 0)
        return Gap(collective, top, expectation, machine, max(1, round(share)))
    by_tree = top.algbw_bytes_per_s * 2 * (machine.num_nodes - 1) / machine.num_nodes / rate
    by_ring = top.busbw_bytes_per_s / rate
    # NVLSTree is the default across nodes where NVLink SHARP is there: Hopper and later, NCCL 2.18 and later.
    two_level = gpu_family(machine.gpu) in ("H100", "H800", "B200", "GB200") and (
        not machine.nccl_version or machine.nccl_version >= NVLS_SINCE
    )
    nics = max(1, round(by_tree if two_level else by_ring))
    return Gap(collective, top, expectation, machine, nics, by_tree, by_ring)


def _share(found: Gap) -> float:
    return found.plateau.busbw_bytes_per_s / found.expectation.busbw_bytes_per_s


def _best_half(row: NcclTestRow) -> Plateau | None:
    halves: list[Measurement] = [half for half in (row.out_of_place, row.in_place) if half is not None]
    best: Plateau | None = None
    for half in halves:
        busbw, algbw = half.busbw_bytes_per_s, half.algbw_bytes_per_s
        if busbw is not None and algbw is not None and (best is None or busbw > best.busbw_bytes_per_s):
            best = Plateau(busbw, algbw, row.size_bytes, row.source)
    return best


def _plain_name(name: str) -> str:
    """``AllReduce`` and ``all_reduce`` are one."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return {"alltoall": "all_to_all", "allreduce": "all_reduce", "allgather": "all_gather"}.get(spaced, spaced)


def _gpu_in(words: str) -> str:
    match = re.search(r"\b(?:GB[23]00|B[23]00|H[128]00|H20|A[18]00|V100)\b[\w -]{0,20}", words)
    return match[0].strip() if match else ""


def _number_in(patterns: Iterable[re.Pattern[str]], words: str) -> int | None:
    return next((int(match[1]) for pattern in patterns if (match := pattern.search(words))), None)


def _nics_in(words: str) -> tuple[int | None, float | None]:
    match = _NICS.search(words)
    if match is None:
        return None, None
    rate = _RATE.search(match[0])
    if rate is not None:
        return int(match[1]), float(rate[1]) / 8 * 1e9
    named = next((value for name, value in RATE_NAMES.items() if re.search(rf"\b{name}\b", match[0])), None)
    return int(match[1]), named


def _version_in(words: str) -> str:
    match = re.search(r"\bNCCL (?:version )?(\d+\.\d+(?:\.\d+)?)", words)
    return match[1] if match else ""
