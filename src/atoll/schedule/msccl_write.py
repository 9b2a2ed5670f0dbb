"""Write a proven schedule as MSCCL XML that executors accept, and that reads back to an equal schedule.

The limits are those of the strictest executor: at most 64 steps in a thread block and 64 thread blocks in a GPU,
runs below 72 chunks, channels below 32, two slots per connection; ``minBytes``, ``maxBytes``, ``inplace`` and
``outofplace`` are always there, since a file without them is silently unused. What cannot be held within them is
refused and never written.

Nothing is handed out that was not read back: the text is parsed, checked for deadlock and races, lowered and proven,
and must mean the same as what was to be written (see ``meaning``).
"""

from __future__ import annotations

import re

from atoll.errors import AtollError, InternalError, SpecError, nearest
from atoll.schedule.meaning import difference
from atoll.schedule.msccl_check import check
from atoll.schedule.msccl_lower import lower
from atoll.schedule.msccl_plan import plan
from atoll.schedule.msccl_program import (
    INPUT,
    MSCCL_COLLECTIVES,
    OUTPUT,
    PROTOCOLS,
    Address,
    Program,
    Step,
)
from atoll.schedule.msccl_read import read_msccl_xml
from atoll.schedule.prove import ProvenSchedule, prove

# What the Simple protocol has: NCCL_STEPS (8) over MSCCL_CHUNKSTEPS (4).
SLOTS = 2

_NOWHERE = {"src": Address(INPUT, -1), "dst": Address(OUTPUT, -1)}


def write_msccl_xml(proven: ProvenSchedule, *, protocol: str = "Simple", min_bytes: int = 0, max_bytes: int = 0) -> str:
    """The XML text of ``proven``, for sizes from ``min_bytes`` to ``max_bytes`` (0: no upper limit).

    Raises ``SpecError`` where the format or an executor's limits cannot hold it.
    """
    collectives = {known: name for name, (known, _) in MSCCL_COLLECTIVES.items()}
    coll = collectives.get(proven.contract.collective.name)
    if coll is None:
        raise SpecError(
            f"{proven.name}: MSCCL has no {proven.contract.collective.name}: expected one of {', '.join(collectives)}"
        )
    if protocol not in PROTOCOLS:
        raise SpecError(f"unknown protocol {protocol!r}: {nearest(protocol, PROTOCOLS)}")
    if min_bytes < 0 or (max_bytes != 0 and max_bytes < min_bytes):
        raise SpecError(f"expected 0 <= min_bytes <= max_bytes, or max_bytes 0, got {min_bytes} and {max_bytes}")
    program = plan(proven, protocol)
    text = _text(program, coll, min_bytes, max_bytes)
    _read_back(proven, text)
    return text


def _read_back(proven: ProvenSchedule, text: str) -> None:
    try:
        checked = check(read_msccl_xml(text, proven.name))
        lost = difference(proven, prove(lower(checked, proven.header.root)))
    except AtollError as error:
        raise InternalError(f"{proven.name}: what was written as MSCCL XML does not read back: {error}") from error
    if lost is not None:
        raise InternalError(f"{proven.name}: what was written as MSCCL XML reads back to another schedule: {lost}")
    if checked.min_slots > SLOTS:
        raise SpecError(
            f"{proven.name}: expected to need at most {SLOTS} slots a connection, got {checked.min_slots}: a step "
            "sends so many messages to one peer; use fewer chunks or more channels"
        )


def _text(program: Program, coll: str, min_bytes: int, max_bytes: int) -> str:
    channels = 1 + max((block.channel for gpu in program.gpus for block in gpu.blocks), default=0)
    in_place = int(program.placements[0])
    # Executors read names with a scanner that knows no escapes.
    name = re.sub(r"[^A-Za-z0-9_.:+ -]", "_", program.name)[:200] or coll
    lines = [
        f'<algo name="{name}" proto="{program.protocol}" nchannels="{channels}" nchunksperloop="{program.chunks}" '
        f'ngpus="{program.world_size}" coll="{coll}" inplace="{in_place}" outofplace="{1 - in_place}" '
        f'minBytes="{min_bytes}" maxBytes="{max_bytes}">'
    ]
    for rank, gpu in enumerate(program.gpus):
        lines.append(
            f'  <gpu id="{rank}" i_chunks="{gpu.input_chunks}" o_chunks="{gpu.output_chunks}" '
            f's_chunks="{gpu.scratch_chunks}">'
        )
        for number, block in enumerate(gpu.blocks):
            lines.append(f'    <tb id="{number}" send="{block.send}" recv="{block.recv}" chan="{block.channel}">')
            lines += [_step(index, step) for index, step in enumerate(block.steps)]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _step(index: int, step: Step) -> str:
    src, dst = step.src or _NOWHERE["src"], step.dst or _NOWHERE["dst"]
    block, number = step.waits_for or (-1, -1)
    return (
        f'      <step s="{index}" type="{step.kind.name}" srcbuf="{src.buffer}" srcoff="{src.offset}" '
        f'dstbuf="{dst.buffer}" dstoff="{dst.offset}" cnt="{step.count}" depid="{block}" deps="{number}" '
        f'hasdep="{int(step.signals)}"/>'
    )
