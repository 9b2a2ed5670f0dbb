"""What ``atoll simulate`` prints: nccl-tests' columns, the algorithm, and what it waits for in words; and its document.

Times in the document are in seconds, bandwidths in bytes per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from atoll.report.nccl_table import TYPE_NAMES, numbers, what
from atoll.schedule.bus_bandwidth import busbw_factor
from atoll.schedule.contract import COLLECTIVES
from atoll.simulator.side_by_side import Candidate, Result, Wait
from atoll.units import format_duration, format_size

SCHEMA_VERSION = 1
HEADER = (
    f"#{'size':>11}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}     time   algbw   busbw  "
    f"{'algorithm':<20} waits for\n"
    f"#{'(B)':>11}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}     (us)  (GB/s)  (GB/s)"
)
_NAMES = {
    "network": "the network", "leaf": "leaf uplinks", "intra": "links within nodes", "transfer": "transfers",
}  # fmt: skip
_SHOWN = 0.05  # of the time; lesser waits are summed up


class Shape(msgspec.Struct, frozen=True):
    """What is run, in nccl-tests' terms; ``root`` is -1 where there is none."""

    collective: str
    ranks: int
    dtype: str
    itemsize: int
    root: int

    def count(self, size_bytes: int) -> int:
        """Elements of the vector, or of one rank's part where the contract cuts it by rank."""
        elements = size_bytes // self.itemsize
        return elements // self.ranks if COLLECTIVES[self.collective].blocked else elements

    @property
    def op(self) -> str:
        return "sum" if COLLECTIVES[self.collective].reduces else "none"


def preamble(shape: Shape, cluster: str, candidates: Sequence[Candidate]) -> list[str]:
    """What is simulated, and how each algorithm lies on the cluster."""
    lines = [f"# {shape.collective.replace('_', '-')} of {shape.ranks} ranks on {cluster}, simulated"]
    return [*lines, *(f"# {one.name}: {one.about}" for one in candidates), HEADER]


def line(shape: Shape, result: Result) -> str:
    """One size of one algorithm."""
    factor = busbw_factor(shape.collective, shape.ranks)
    head = what(result.size_bytes, shape.count(result.size_bytes), shape.dtype, shape.op, shape.root)
    end = f"  {result.algorithm:<20} {words(result)}"
    return head + numbers(result.size_bytes, result.time_s, factor) + end


def words(result: Result) -> str:
    """``96 % waits for node3/nic2 (5.2 ms), 4 % for latency``; of NCCL its choice and the interval come first."""
    shown = [wait for at, wait in enumerate(result.critical_path) if at == 0 or (at < 3 and wait.share >= _SHOWN)]
    if not shown:
        return "nothing to wait for"
    first, *others = shown
    text = f"{first.share:.0%} waits for {_part(first)} ({format_duration(first.time_s)})"
    text += "".join(f", {wait.share:.0%} for {_part(wait)}" for wait in others)
    if result.interval_s is None:
        return text
    low, high = (format_duration(end) for end in result.interval_s)
    return f"{result.choice}, {low} to {high}; {text}"


def _part(wait: Wait) -> str:
    name = _NAMES.get(wait.waits_for, wait.waits_for)
    return f"{name}, like {wait.alike} more" if wait.alike else name


def link_lines(result: Result, most: int) -> list[str]:
    """The busiest links of one result: what each carried, and that over what it could have carried in the time."""
    size = format_size(result.size_bytes)
    if not result.links:
        return [f"# {result.algorithm} at {size}: links are not told apart"]
    shown = result.links[:most]
    lines = [f"# {result.algorithm} at {size}: the {len(shown)} busiest of {len(result.links)} links in use"]
    return lines + [f"# {one.use:>6.1%}  {format_size(one.bytes):>10}  {one.link}" for one in shown]


def document(shape: Shape, cluster: str, candidates: Sequence[Candidate], results: Sequence[Result]) -> dict[str, Any]:
    """The JSON document."""
    rows = []
    for result in results:
        row = msgspec.to_builtins(result)
        row |= {
            "count": shape.count(result.size_bytes), "type": TYPE_NAMES.get(shape.dtype, shape.dtype),
            "redop": shape.op, "root": shape.root, "words": words(result),
        }  # fmt: skip
        rows.append(row)
    return {
        "schema_version": SCHEMA_VERSION, "cluster": cluster, "collective": shape.collective, "ranks": shape.ranks,
        "algorithms": {one.name: {"channels": one.channels, "about": one.about} for one in candidates},
        "results": rows,
    }  # fmt: skip
