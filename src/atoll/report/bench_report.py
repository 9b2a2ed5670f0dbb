"""What ``atoll bench`` prints around and instead of the nccl-tests table: the proof, several algorithms side by side,
the bytes on the wire against the schedule and the bound, and the JSON document."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from atoll.report.nccl_table import TYPE_NAMES, algbw
from atoll.runtime.benchmark import Measurement, Result, Spec
from atoll.runtime.choice import Chooser, layout_of
from atoll.runtime.tuning import VARIABLE, load_tuning
from atoll.schedule.bus_bandwidth import busbw_factor
from atoll.schedule.certify import certify
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.count import Counts, count
from atoll.schedule.out_of_place import out_of_place
from atoll.schedule.prove import ProvenSchedule, prove
from atoll.units import format_size

SCHEMA_VERSION = 1
MAX_RANKS_SHOWN = 16
_WHERE = {
    "tcp": "to the sockets",
    "shm": "through shared memory",
    "auto": "through shared memory where it is to be had",
}
_WAYS = {
    "socket": "to sockets",
    "staged": "staged",
    "in place": "read in place",
    "process_vm_readv": "read by process_vm_readv",
}


def schedule_of(spec: Spec, algorithm: str, world_size: int, size_bytes: int) -> ProvenSchedule:
    """The schedule that the ranks run for a size, proven; ``SpecError`` where the algorithm is not for this world."""
    layout = layout_of([""] * world_size, shared_memory=spec.transport != "tcp")  # all on this machine
    chooser = Chooser(load_tuning(os.environ.get(VARIABLE) or None), layout)
    name = chooser.choose(spec.collective, size_bytes) if algorithm == "auto" else algorithm
    root = spec.root if COLLECTIVES[spec.collective].rooted else None
    return prove(out_of_place(chooser.build(spec.collective, name, root)))


def preamble(spec: Spec, world_size: int, transport: str, step: str) -> list[str]:
    """Comment lines that say what is measured, and that it is proven."""
    lines = [
        f"# {spec.collective.replace('_', '-')} among {world_size} processes on one machine over {transport}, "
        f"algorithm {', '.join(spec.algorithms)}",
        f"# minBytes {spec.sizes_bytes[0]} maxBytes {spec.sizes_bytes[-1]} step: {step} warmup iters: {spec.warmup} "
        f"iters: {spec.iterations} validation: {int(spec.check)}",
    ]
    for algorithm in spec.algorithms:
        if algorithm == "auto":
            continue
        proven = schedule_of(spec, algorithm, world_size, spec.sizes_bytes[-1])
        certificate = certify(proven)
        promise = ""
        if COLLECTIVES[spec.collective].reduces and spec.collective != "barrier":
            same = "all ranks end with the same bits" if certificate.same_bits else "ranks may end with different bits"
            promise = f"; {same}, at most {certificate.depth} operations deep"
        lines.append(
            f"# {proven.name}: proven, {len(proven.schedule)} transfers in {proven.schedule.num_steps} steps{promise}"
        )
    return lines


def comparison_header(algorithms: Sequence[str]) -> str:
    """The head of the table of several algorithms: time and busbw of each, out of place."""
    names = "".join(f"  {name[:25]:>25}" for name in algorithms)
    units = "".join(f"  {'time(us)':>10} {'busbw(GB/s)':>14}" for _ in algorithms)
    return f"#{'size(B)':>12}  {'count':>12}  {'type':>8}{names}\n#{'':>12}  {'':>12}  {'':>8}{units}  fastest"


def comparison_row(results: Sequence[Result], factor: float) -> str:
    """One size with every algorithm; ``results`` in the order of the header."""
    first = results[0]
    cells = "".join(
        f"  {result.out_of_place.time_s * 1e6:>10.1f} "
        f"{algbw(result.size_bytes, result.out_of_place.time_s) * factor / 1e9:>14.3f}"
        for result in results
    )
    wrong = sum(_wrong(result) for result in results)
    fastest = min(results, key=lambda result: result.out_of_place.time_s).algorithm
    tail = f"  {fastest}" if wrong == 0 else f"  {wrong} WRONG"
    return f" {first.size_bytes:>12}  {first.count:>12}  {TYPE_NAMES.get(first.dtype, first.dtype):>8}{cells}{tail}"


def wire_table(spec: Spec, results: Sequence[Result], world_size: int) -> list[str]:
    """Bytes of the largest size, by rank: measured at the sockets, as the schedule has it, and the bound."""
    lines: list[str] = []
    for algorithm in spec.algorithms:
        mine = [result for result in results if result.algorithm == algorithm and result.size_bytes]
        if not mine or spec.collective == "barrier":
            continue
        largest = max(mine, key=lambda result: result.size_bytes)
        counts = _counts(spec, largest, world_size)
        bound = counts.bounds.bandwidth_bytes
        lines += [
            f"# bytes of one {counts.schedule} of {format_size(largest.size_bytes)}, as passed "
            f"{_WHERE[spec.transport]}; bound {bound:.0f} ({counts.bounds.formula})",
            f"# {'rank':>5}{'sent':>16}{'schedule':>16}{'received':>16}{'schedule':>16}{'headers':>10}  sent/bound",
        ]
        for rank in range(min(world_size, MAX_RANKS_SHOWN)):
            sent, received = largest.sent_bytes[rank], largest.received_bytes[rank]
            ratio = f"{sent / bound:10.4f}" if bound else f"{'-':>10}"
            lines.append(
                f"# {rank:>5}{sent:>16}{int(counts.sent[rank]):>16}{received:>16}{int(counts.received[rank]):>16}"
                f"{largest.overhead_bytes[rank]:>10}  {ratio}"
            )
        if world_size > MAX_RANKS_SHOWN:
            lines.append(f"#   ... and {world_size - MAX_RANKS_SHOWN} ranks more")
        equal = list(counts.sent) == list(largest.sent_bytes) and list(counts.received) == list(largest.received_bytes)
        lines.append(
            f"# measured {'equals' if equal else 'DIFFERS FROM'} the schedule's count on "
            f"{'every rank' if equal else 'some rank'}"
        )
        ways = ", ".join(f"{num_bytes} bytes {_WAYS[way]}" for way, num_bytes in largest.ways.items())
        if spec.transport != "tcp" and ways:
            lines.append(f"# all ranks sent {ways}")
    return lines


def document(spec: Spec, results: Sequence[Result], facts: dict[str, Any], world_size: int) -> dict[str, Any]:
    """The JSON document: nccl-tests' keys, and ours beside them. Times in microseconds, bandwidths in 1e9 B/s."""
    factor = 1.0 if spec.collective == "barrier" else busbw_factor(spec.collective, world_size)
    wrong = sum(_wrong(result) for result in results)
    ways = [(result, way) for result in results for way in (result.out_of_place, result.in_place) if way is not None]
    mean = sum(algbw(result.size_bytes, way.time_s) * factor / 1e9 for result, way in ways) / len(ways) if ways else 0.0

    def measured(result: Result, way: Measurement | None) -> dict[str, Any] | None:
        if way is None:
            return None
        bandwidth = algbw(result.size_bytes, way.time_s) / 1e9
        return {
            "time": way.time_s * 1e6,
            "alg_bw": bandwidth,
            "bus_bw": bandwidth * factor,
            "nwrong": way.wrong,
        }

    rows = [
        {
            "size": result.size_bytes, "count": result.count, "type": TYPE_NAMES.get(result.dtype, result.dtype),
            "redop": result.op, "root": result.root, "algorithm": result.algorithm,
            "out_of_place": measured(result, result.out_of_place), "in_place": measured(result, result.in_place),
            "wire": {"sent_bytes": result.sent_bytes, "received_bytes": result.received_bytes,
                     "overhead_bytes": result.overhead_bytes, "ways": result.ways},
        }
        for result in results
    ]  # fmt: skip
    return {
        "schema_version": SCHEMA_VERSION, **facts, "collective": spec.collective, "world_size": world_size,
        "results": rows, "out_of_bounds": {"count": wrong, "okay": wrong == 0},
        "average_bus_bandwidth": {"bandwidth": mean},
    }  # fmt: skip


def _counts(spec: Spec, result: Result, world_size: int) -> Counts:
    proven = schedule_of(spec, result.algorithm, world_size, result.size_bytes)
    length = result.count * world_size if COLLECTIVES[spec.collective].blocked else result.count
    return count(proven, length, result.size_bytes // length)


def _wrong(result: Result) -> int:
    return sum(way.wrong or 0 for way in (result.out_of_place, result.in_place) if way is not None)
