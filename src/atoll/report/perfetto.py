"""A trace as a file for ui.perfetto.dev and chrome://tracing: the JSON of the Trace Event Format.

A rank is a process (``pid`` is the rank, its name ``rank 3``, its label where it was); a lane is a thread, so that a
track holds one thing at a time: ``channel 0 to rank 4``. On each track a collective is a complete event (``"ph": "X"``)
that holds those of its transfers. ``tid`` follows from channel, direction and peer alone. So a simulated trace and a
real one of the same schedule have the same tracks, and the same events in other places.

Times are in microseconds, written to the nanosecond. They are rounded before durations are taken, so that events which
do not overlap do not overlap in the file. (Google, "Trace Event Format", 2016, and docs of Perfetto on its JSON.)
"""

from __future__ import annotations

from typing import Any

import msgspec

from atoll import __version__
from atoll.errors import SpecError
from atoll.trace.events import Lane, Trace, lanes
from atoll.units import format_size

MAX_TRANSFERS = 1_000_000  # about 250 MB of JSON; the viewers do not take much more


def perfetto(trace: Trace) -> bytes:
    """The file. Raises ``SpecError`` for a trace that no viewer would open."""
    check_count(sum(len(call.transfers) for call in trace.collectives))
    document = {
        "traceEvents": _events(trace),
        "displayTimeUnit": "ns",
        "otherData": {"source": trace.source, "producer": f"atoll {__version__}"},
    }
    return msgspec.json.encode(document)


def check_count(transfers: int) -> None:
    """``SpecError`` for more than a viewer opens; to be known before they are made."""
    if transfers > MAX_TRANSFERS:
        raise SpecError(
            f"--trace: {transfers} transfers are more than the {MAX_TRANSFERS} that a viewer opens; give fewer ranks, "
            f"sizes, algorithms or channels"
        )


def _events(trace: Trace) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for rank, place in enumerate(trace.places):
        events.append(_meta("process_name", rank, 0, name=f"rank {rank}"))
        events.append(_meta("process_labels", rank, 0, labels=place))
        events.append(_meta("process_sort_index", rank, 0, sort_index=rank))
    world_size = len(trace.places)
    columns = [
        [getattr(call.transfers, name).tolist() for name in ("step", "chunk", "num_bytes")]
        for call in trace.collectives
    ]
    for lane, spans in lanes(trace):
        tid = thread_of(lane, world_size)
        where = {"pid": lane.rank, "tid": tid}
        way = "to" if lane.sends else "from"
        events.append(_meta("thread_name", lane.rank, tid, name=f"channel {lane.channel} {way} rank {lane.peer}"))
        events.append(_meta("thread_sort_index", lane.rank, tid, sort_index=tid))
        for span in spans:
            call = trace.collectives[span.collective]
            steps, chunks, sizes = columns[span.collective]
            about = {"size_bytes": call.size_bytes, "call": span.collective}
            events.append(_complete(where, call.name, "collective", span.start_s, span.end_s, about))
            for row, start, end in zip(span.rows, span.starts_s, span.ends_s, strict=True):
                args = {
                    "step": steps[row], "chunk": chunks[row], "peer": lane.peer, "channel": lane.channel,
                    "bytes": sizes[row], "call": span.collective,
                }  # fmt: skip
                name = f"step {steps[row]}: chunk {chunks[row]}, {format_size(sizes[row])}"
                events.append(_complete(where, name, "send" if lane.sends else "receive", start, end, args))
    return events


def thread_of(lane: Lane, world_size: int) -> int:
    """The ``tid`` of a lane: tracks are in the order of channels, what is sent before what is received."""
    return 1 + (2 * lane.channel + (not lane.sends)) * world_size + lane.peer


def _meta(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _complete(
    where: dict[str, int], name: str, category: str, start_s: float, end_s: float, args: dict[str, Any]
) -> dict[str, Any]:
    start, end = round(start_s * 1e9), round(end_s * 1e9)
    return {"name": name, "cat": category, "ph": "X", "ts": start / 1e3, "dur": (end - start) / 1e3, **where,
            "args": args}  # fmt: skip
