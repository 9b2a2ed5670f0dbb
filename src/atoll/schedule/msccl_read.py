"""Read an MSCCL XML algorithm file: text to a ``Program``, or one ``SpecError`` that names line, gpu, tb and step.

The file is not trusted: a DOCTYPE or an entity is refused, so is anything larger or deeper than the format needs.
Elements and their nesting are exactly ``algo / gpu / tb / step``; attributes that the format does not know are
ignored, since compilers add their own. What a step cannot mean (a send without a peer, an address outside its buffer,
a dependency on a step that does not exist or tells nobody) is refused here, before anything is run.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from atoll.errors import SpecError, nearest
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.msccl_program import (
    INPUT,
    KINDS,
    MAX_CHUNKS,
    MAX_COUNT,
    MAX_MEMORY_CHUNKS,
    MAX_STEPS,
    MAX_THREAD_BLOCKS,
    MSCCL_COLLECTIVES,
    NO_PEER,
    OUTPUT,
    PROTOCOLS,
    SCRATCH,
    Address,
    Gpu,
    Kind,
    Program,
    Step,
    ThreadBlock,
    check_addresses,
)  # fmt: skip

MAX_BYTES: Final = 64 << 20
MAX_ELEMENTS: Final = 500_000
MAX_GPUS: Final = 4096

_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_NESTING: Final = {"algo": "", "gpu": "algo", "tb": "gpu", "step": "tb"}


def read_msccl_xml(text: str | bytes, what: str = "MSCCL XML") -> Program:
    """The algorithm in ``text``; ``what`` names it in messages (its file name, say).

    Raises ``SpecError`` where it is no well-formed XML, not the format, or says what no executor could run.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise SpecError(f"{what}: not readable as text: {error}") from None
    if len(data) > MAX_BYTES:
        raise SpecError(f"{what}: expected at most {MAX_BYTES} bytes of XML, got {len(data)}")
    return _program(_parse(data, what))


class _Element(msgspec.Struct):
    what: str
    name: str
    line: int
    attributes: dict[str, str]
    children: list[_Element]

    def where(self) -> str:
        return f"{self.what}:{self.line}"

    def text(self, name: str, default: str | None = None) -> str:
        value = self.attributes.get(name, default)
        if value is None:
            raise SpecError(f"{self.where()}: <{self.name}>: expected the attribute {name!r}, got none")
        return value.strip()

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number from ``low`` to ``high``."""
        text = self.text(name, None if default is None else str(default))
        if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
            raise SpecError(
                f"{self.where()}: <{self.name}>: {name}: expected a whole number from {low} to {high}, "
                f"got {text[:40]!r}"
            )
        return int(text)


def _parse(data: bytes, what: str) -> _Element:
    # Imported here: most users of this room read no XML.
    from xml.parsers import expat

    parser = expat.ParserCreate()
    parser.buffer_text = True
    reading = _Reading(what, parser)
    parser.StartElementHandler = reading.start
    parser.EndElementHandler = reading.end
    parser.CharacterDataHandler = reading.text
    parser.StartDoctypeDeclHandler = reading.refuse_doctype
    parser.EntityDeclHandler = reading.refuse_doctype
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise SpecError(f"{what}:{error.lineno}: not well-formed XML: {expat.ErrorString(error.code)}") from None
    except SpecError:
        raise
    except (ValueError, LookupError) as error:
        raise SpecError(f"{what}:{parser.CurrentLineNumber}: not readable as XML: {error}") from None
    if reading.root is None:
        raise SpecError(f"{what}: expected the root element <algo>, got an empty file")
    return reading.root


class _Reading:
    """Builds the tree, at most four deep."""

    def __init__(self, what: str, parser: Any) -> None:
        self.what = what
        self.parser = parser
        self.open: list[_Element] = []
        self.root: _Element | None = None
        self.elements = 0

    def refuse_doctype(self, *_: object) -> None:
        raise SpecError(
            f"{self.what}:{self.parser.CurrentLineNumber}: a DOCTYPE or entity: refused, no schedule has one"
        )

    def start(self, name: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        parent = self.open[-1].name if self.open else ""
        if _NESTING.get(name) != parent:
            expected = next((child for child, inside in _NESTING.items() if inside == parent), None)
            raise SpecError(
                f"{self.what}:{line}: expected {f'<{expected}>' if expected else 'no element'} "
                f"{f'inside <{parent}>' if parent else 'as the root element'}, got <{name[:40]}>"
            )
        self.elements += 1
        if self.elements > MAX_ELEMENTS:
            raise SpecError(f"{self.what}:{line}: expected at most {MAX_ELEMENTS} elements, got more")
        element = _Element(self.what, name, line, attributes, [])
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def end(self, _: str) -> None:
        self.open.pop()

    def text(self, text: str) -> None:
        if text.strip():
            here = f"{self.what}:{self.parser.CurrentLineNumber}"
            raise SpecError(f"{here}: expected elements only, got the text {text.strip()[:40]!r}")


def _program(algo: _Element) -> Program:
    what = algo.what
    written = algo.text("coll")
    collective = MSCCL_COLLECTIVES.get(written.lower().replace("_", "").replace("-", ""))
    if collective is None:
        raise SpecError(
            f"{algo.where()}: coll: no contract is known for {written[:40]!r}: {nearest(written, MSCCL_COLLECTIVES)}"
        )
    world_size = algo.whole("ngpus", 1, MAX_GPUS)
    chunks = algo.whole("nchunksperloop", 1, MAX_CHUNKS)
    channels = algo.whole("nchannels", 0, 1024, default=1024)
    protocol = algo.text("proto", "Simple")
    if protocol not in PROTOCOLS:
        raise SpecError(f"{algo.where()}: proto: expected one of {', '.join(PROTOCOLS)}, got {protocol[:40]!r}")
    in_place = algo.whole("inplace", 0, 1, default=0)
    out_of_place = algo.whole("outofplace", 0, 1, default=1 - in_place)
    placements = tuple(flag for flag, claimed in ((True, in_place), (False, out_of_place)) if claimed) or (False,)

    elements: dict[int, _Element] = {}
    for element in algo.children:
        rank = element.whole("id", 0, world_size - 1)
        if rank in elements:
            raise SpecError(f"{element.where()}: expected each gpu once, got gpu {rank} again")
        elements[rank] = element
    missing = [rank for rank in range(world_size) if rank not in elements]
    if missing:
        raise SpecError(f"{algo.where()}: expected {world_size} gpus, got {len(elements)}: gpu {missing[0]} is missing")
    gpus = tuple(_gpu(elements[rank], rank, world_size, channels) for rank in range(world_size))
    if COLLECTIVES[collective[0]].blocked and chunks % world_size:
        chunks = _whole_vector(algo, collective[0], chunks, gpus)
    total = sum(gpu.input_chunks + gpu.output_chunks + gpu.scratch_chunks for gpu in gpus)
    total = max(total, chunks * world_size)
    if total > MAX_MEMORY_CHUNKS:
        raise SpecError(f"{algo.where()}: expected at most {MAX_MEMORY_CHUNKS} chunks of memory in all, got {total}")
    program = Program(
        what=what, name=algo.text("name", "msccl")[:200], collective=collective[0], chunks=chunks,
        root=_root(algo, collective[0], gpus), protocol=protocol, placements=placements, gpus=gpus,
        notes=_notes(algo, gpus),
    )  # fmt: skip
    _check_sizes(program)
    check_addresses(program)
    return program


def _whole_vector(algo: _Element, collective: str, chunks: int, gpus: tuple[Gpu, ...]) -> int:
    """Chunks of the whole vector where ``nchunksperloop`` counts those of one block.

    The executors multiply the size by the ranks for all-gather, reduce-scatter and all-to-all, not for gather and
    scatter, so that in those a file may count a block's chunks.
    """
    largest = max(max(gpu.input_chunks, gpu.output_chunks) for gpu in gpus)
    if collective in ("gather", "scatter") and largest == chunks * len(gpus):
        return largest
    raise SpecError(
        f"{algo.where()}: nchunksperloop: expected a multiple of {len(gpus)} gpus in {collective}, got {chunks}"
    )


def _root(algo: _Element, collective: str, gpus: tuple[Gpu, ...]) -> int | None:
    """The root as far as attributes tell: named, or the one rank that has the buffer only a root needs."""
    if not COLLECTIVES[collective].rooted:
        return None
    if "root" in algo.attributes:
        return algo.whole("root", 0, len(gpus) - 1)
    sends = collective in ("broadcast", "scatter")
    having = [rank for rank, gpu in enumerate(gpus) if (gpu.input_chunks if sends else gpu.output_chunks)]
    return having[0] if len(having) == 1 else None


def _check_sizes(program: Program) -> None:
    """A declared buffer is 0 (left out) or as long as the collective makes it, in one placement or another."""
    block = program.chunks // program.world_size if COLLECTIVES[program.collective].blocked else program.chunks
    for rank, gpu in enumerate(program.gpus):
        for name, declared in (("i_chunks", gpu.input_chunks), ("o_chunks", gpu.output_chunks)):
            allowed = {0, block, program.chunks}
            if program.placements == (False,):
                blocked = (name == "i_chunks") == (program.collective in ("all_gather", "gather"))
                if program.collective in ("all_gather", "gather", "reduce_scatter", "scatter"):
                    allowed = {0, block if blocked else program.chunks}
            if declared not in allowed:
                raise SpecError(
                    f"{program.what}:{gpu.line}: gpu {rank}: {name}: expected "
                    f"{' or '.join(str(size) for size in sorted(allowed))} in {program.collective} of {program.chunks} "
                    f"chunks (nchunksperloop), got {declared}"
                )


def _notes(algo: _Element, gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """What makes the executors refuse or ignore the file."""
    notes = []
    missing = [name for name in ("inplace", "outofplace", "minBytes", "maxBytes") if name not in algo.attributes]
    if missing:
        notes.append(f"executors need the attributes {', '.join(missing)}; without them the file is silently unused")
    steps = max((len(block.steps) for gpu in gpus for block in gpu.blocks), default=0)
    if steps > MAX_STEPS:
        notes.append(f"a thread block has {steps} steps; executors take at most {MAX_STEPS}")
    blocks = max(len(gpu.blocks) for gpu in gpus)
    if blocks > MAX_THREAD_BLOCKS:
        notes.append(f"a gpu has {blocks} thread blocks; executors take at most {MAX_THREAD_BLOCKS}")
    count = max((step.count for gpu in gpus for block in gpu.blocks for step in block.steps), default=0)
    if count > MAX_COUNT:
        notes.append(f"a step moves {count} chunks; executors take at most {MAX_COUNT}")
    if _waits_for_nop(gpus):
        notes.append("a step waits for a nop; executors have a nop tell nobody")
    if any(_loose_nop(block) for gpu in gpus for block in gpu.blocks):
        notes.append("a nop is not followed by a step that has a dependency of its own; executors refuse that")
    return tuple(notes)


def _waits_for_nop(gpus: tuple[Gpu, ...]) -> bool:
    return any(
        step.waits_for is not None and gpu.blocks[step.waits_for[0]].steps[step.waits_for[1]].kind.name == "nop"
        for gpu in gpus
        for block in gpu.blocks
        for step in block.steps
    )


def _loose_nop(block: ThreadBlock) -> bool:
    dependent = [step.waits_for is not None for step in block.steps]
    return any(
        step.kind.name == "nop" and dependent[at] and not any(dependent[at + 1 : at + 2])
        for at, step in enumerate(block.steps)
    )


def _gpu(element: _Element, rank: int, world_size: int, channels: int) -> Gpu:
    blocks: dict[int, _Element] = {}
    for child in element.children:
        number = child.whole("id", 0, MAX_ELEMENTS)
        if number in blocks:
            raise SpecError(f"{child.where()}: gpu {rank}: expected each tb once, got tb {number} again")
        blocks[number] = child
    for number in range(len(blocks)):
        if number not in blocks:
            raise SpecError(
                f"{element.where()}: gpu {rank}: expected tb ids 0 to {len(blocks) - 1}, got none of id {number}"
            )
    gpu = Gpu(
        input_chunks=element.whole("i_chunks", 0, MAX_CHUNKS),
        output_chunks=element.whole("o_chunks", 0, MAX_CHUNKS),
        scratch_chunks=element.whole("s_chunks", 0, MAX_CHUNKS),
        blocks=tuple(_block(blocks[number], rank, number, world_size, channels) for number in range(len(blocks))),
        line=element.line,
    )
    _check_dependencies(element.what, rank, gpu)
    return gpu


def _block(element: _Element, rank: int, number: int, world_size: int, channels: int) -> ThreadBlock:
    here = f"gpu {rank} tb {number}"
    peers = {side: element.whole(side, NO_PEER, world_size - 1) for side in ("send", "recv")}
    for side, peer in peers.items():
        if peer == rank:
            raise SpecError(f"{element.where()}: {here}: {side}: expected another gpu, got gpu {rank} itself")
    has_peer = any(peer != NO_PEER for peer in peers.values())
    channel = element.whole("chan", 0 if has_peer else -1, channels - 1)
    steps = []
    for index, child in enumerate(element.children):
        if child.whole("s", 0, MAX_ELEMENTS) != index:
            raise SpecError(f"{child.where()}: {here}: expected steps in order, s={index}, got s={child.text('s')}")
        steps.append(_step(child, f"{here} step {index}", peers))
    return ThreadBlock(peers["send"], peers["recv"], max(channel, 0), tuple(steps), element.line)


def _step(element: _Element, here: str, peers: dict[str, int]) -> Step:
    name = element.text("type")
    if name not in KINDS:
        raise SpecError(f"{element.where()}: {here}: type: expected one of {', '.join(KINDS)}, got {name[:40]!r}")
    kind = KINDS[name]
    for wanted, side in ((kind.sends, "send"), (kind.receives, "recv")):
        if wanted and peers[side] == NO_PEER:
            raise SpecError(f"{element.where()}: {here} ({name}): expected its tb to name a peer in {side}, got -1")
    moves = kind.reads_src or kind.writes_dst
    count = element.whole("cnt", 1 if moves else 0, MAX_CHUNKS, default=None if moves else 0)
    block = element.whole("depid", -1, MAX_ELEMENTS, default=-1)
    step = element.whole("deps", -1, MAX_ELEMENTS, default=-1)
    if (block < 0) != (step < 0):
        raise SpecError(f"{element.where()}: {here}: expected depid and deps both or neither, got {block} and {step}")
    return Step(
        kind=kind,
        src=_address(element, kind, here, "src") if kind.reads_src else None,
        dst=_address(element, kind, here, "dst") if kind.writes_dst else None,
        count=count,
        waits_for=None if block < 0 else (block, step),
        signals=element.whole("hasdep", 0, 1, default=0) == 1,
        line=element.line,
    )


def _address(element: _Element, kind: Kind, here: str, side: str) -> Address:
    buffer = element.text(side + "buf")
    if buffer not in (INPUT, OUTPUT, SCRATCH):
        raise SpecError(f"{element.where()}: {here} ({kind.name}): {side}buf: expected i, o or s, got {buffer[:40]!r}")
    return Address(buffer, element.whole(side + "off", 0, MAX_CHUNKS))


def _check_dependencies(what: str, rank: int, gpu: Gpu) -> None:
    for number, block in enumerate(gpu.blocks):
        for index, step in enumerate(block.steps):
            if step.waits_for is None:
                continue
            on_block, on_step = step.waits_for
            here = f"{what}:{step.line}: gpu {rank} tb {number} step {index} ({step.kind.name})"
            if on_block >= len(gpu.blocks) or on_step >= len(gpu.blocks[on_block].steps):
                raise SpecError(
                    f"{here}: expected a dependency on a step of this gpu, got tb {on_block} step {on_step}"
                )
            target = gpu.blocks[on_block].steps[on_step]
            if not target.signals:
                raise SpecError(
                    f"{here}: waits for tb {on_block} step {on_step} ({target.kind.name}): expected hasdep=1 there, "
                    "got 0, so that it would never be told"
                )
