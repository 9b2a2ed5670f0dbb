"""An MSCCL XML algorithm as typed data: what each thread block of each GPU does, step by step.

Vocabulary of the format (microsoft/msccl-tools writes it; the MSCCL executors of NCCL and RCCL read it):

* ``<algo>`` is one collective. ``nchunksperloop`` cuts the whole vector; a chunk's bytes are the vector's over it.
* ``<gpu>`` is a rank with three buffers: ``i`` input, ``o`` output, ``s`` scratch, each so many chunks long.
* ``<tb>`` is a thread block: it may receive from one peer and send to one peer, over one channel.
* ``<step>`` is one instruction on ``cnt`` chunks. A thread block runs its steps in order.

========  =========  ======  =================================================================
type      receives   sends   what it does with the GPU's own memory
========  =========  ======  =================================================================
``s``                 yes    reads src, which is sent
``r``     yes                dst = received
``rcs``   yes         yes    dst = received, and sent on
``rrs``   yes         yes    received (op) src is sent on, and written nowhere
``rrc``   yes                dst = received (op) src
``rrcs``  yes         yes    dst = received (op) src, and sent on
``cpy``                      dst = src
``re``                       dst = dst (op) src
``nop``                      nothing; carries one more dependency for the steps after it
========  =========  ======  =================================================================

src is always an address of the GPU that runs the step. (Compilers write the *sender's* index as ``srcoff`` of
``rrc``; the executor reads its own buffer there, which is right only where both indices agree. What is checked here
is what the executor does.) A step with ``depid``, ``deps`` waits until that step of that thread block of the same GPU
has ended; the step waited for must say ``hasdep="1"``, or nobody is told.

Placement: with ``inplace="1"`` the buffers share memory as NCCL has it: in all-gather and gather ``i`` is block
``rank`` of ``o``, in reduce-scatter and scatter ``o`` is block ``rank`` of ``i``, otherwise both are the same.

``read_msccl_xml`` checks all that one step, alone, can have wrong. What several steps do to each other (messages,
deadlock, races) is ``msccl_check``'s, and what they compute is ``prove``'s, after ``msccl_lower``.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from atoll.errors import SpecError
from atoll.schedule.contract import COLLECTIVES

INPUT, OUTPUT, SCRATCH = "i", "o", "s"
NO_PEER = -1
PROTOCOLS = ("Simple", "LL", "LL128")

# Limits of the executors (microsoft/msccl, Azure/msccl-executor-nccl, ROCm/rccl: msccl_struct.h). A file beyond them
# may still be right; it is read, and the excess is noted.
MAX_STEPS = 64
MAX_THREAD_BLOCKS = 64
MAX_COUNT = 71
# Beyond these a file is refused: executors hold an offset in 16 bits, and a proof holds the memory of all ranks.
MAX_CHUNKS = 32_767
MAX_MEMORY_CHUNKS = 1 << 22


class Kind(msgspec.Struct, frozen=True):
    """One row of the table above."""

    name: str
    receives: bool = False
    sends: bool = False
    reads_src: bool = False
    writes_dst: bool = False
    reduces: bool = False


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("s", sends=True, reads_src=True),
        Kind("r", receives=True, writes_dst=True),
        Kind("rcs", receives=True, sends=True, writes_dst=True),
        Kind("rrs", receives=True, sends=True, reads_src=True, reduces=True),
        Kind("rrc", receives=True, reads_src=True, writes_dst=True, reduces=True),
        Kind("rrcs", receives=True, sends=True, reads_src=True, writes_dst=True, reduces=True),
        Kind("cpy", reads_src=True, writes_dst=True),
        Kind("re", reads_src=True, writes_dst=True, reduces=True),
        Kind("nop"),
    )
}


class Share(Enum):
    """How input and output share memory in place."""

    SAME = "input and output are the same"
    INPUT_IN_OUTPUT = "input is the rank's block of output"
    OUTPUT_IN_INPUT = "output is the rank's block of input"


# The format's name of each collective, without underscores (compilers disagree on them), and how it works in place.
MSCCL_COLLECTIVES: dict[str, tuple[str, Share]] = {
    "allreduce": ("all_reduce", Share.SAME),
    "reducescatter": ("reduce_scatter", Share.OUTPUT_IN_INPUT),
    "allgather": ("all_gather", Share.INPUT_IN_OUTPUT),
    "broadcast": ("broadcast", Share.SAME),
    "reduce": ("reduce", Share.SAME),
    "alltoall": ("all_to_all", Share.SAME),
    "gather": ("gather", Share.INPUT_IN_OUTPUT),
    "scatter": ("scatter", Share.OUTPUT_IN_INPUT),
}
_SHARE = dict(MSCCL_COLLECTIVES.values())


class Address(msgspec.Struct, frozen=True):
    """A chunk of a buffer (``i``, ``o`` or ``s``)."""

    buffer: str
    offset: int

    def __str__(self) -> str:
        return f"{self.buffer}[{self.offset}]"


class Step(msgspec.Struct, frozen=True):
    """One instruction. ``src`` and ``dst`` are ``None`` where the kind does not use them."""

    kind: Kind
    src: Address | None
    dst: Address | None
    count: int
    waits_for: tuple[int, int] | None
    """(thread block, step) of the same GPU."""
    signals: bool
    line: int


class ThreadBlock(msgspec.Struct, frozen=True):
    """``send`` and ``recv`` are peers, or ``NO_PEER``; its number is its place in ``Gpu.blocks``."""

    send: int
    recv: int
    channel: int
    steps: tuple[Step, ...]
    line: int


class Gpu(msgspec.Struct, frozen=True):
    """One rank; its number is its place in ``Program.gpus``. Buffer sizes in chunks, as the file declares them."""

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    blocks: tuple[ThreadBlock, ...]
    line: int


class Program(msgspec.Struct, frozen=True):
    """One file. ``collective`` is Atoll's name; ``chunks`` cut the whole vector; ``root`` as far as the file says."""

    what: str
    name: str
    collective: str
    chunks: int
    root: int | None
    protocol: str
    placements: tuple[bool, ...]
    """In which placements it claims to work: ``True`` in place, ``False`` out of place."""
    gpus: tuple[Gpu, ...]
    notes: tuple[str, ...] = ()
    """What the executors would not run, though it has a meaning."""

    @property
    def world_size(self) -> int:
        return len(self.gpus)

    @property
    def num_steps(self) -> int:
        return sum(len(block.steps) for gpu in self.gpus for block in gpu.blocks)

    def where(self, gpu: int, block: int, step: int) -> str:
        """``FILE:LINE: gpu 0 tb 1 step 2 (rrc)``, for messages."""
        found = self.gpus[gpu].blocks[block].steps[step]
        return f"{self.what}:{found.line}: gpu {gpu} tb {block} step {step} ({found.kind.name})"


class Layout(msgspec.Struct, frozen=True):
    """Where a rank's three buffers lie in its memory, and how long they are, in chunks."""

    input: int
    output: int
    scratch: int
    input_size: int
    output_size: int
    memory_chunks: int

    def position(self, address: Address) -> int:
        if address.buffer == INPUT:
            return self.input + address.offset
        return (self.output if address.buffer == OUTPUT else self.scratch) + address.offset

    def size(self, buffer: str) -> int:
        if buffer == INPUT:
            return self.input_size
        return self.output_size if buffer == OUTPUT else self.memory_chunks - self.scratch


def layout(program: Program, rank: int, in_place: bool) -> Layout:
    """The rank's memory. A buffer is as long as the collective makes it on some rank, or as the file declares it."""
    gpu = program.gpus[rank]
    collective = COLLECTIVES[program.collective]
    block = program.chunks // program.world_size if collective.blocked else program.chunks
    share = _SHARE[program.collective]
    input_size = block if share is Share.INPUT_IN_OUTPUT else program.chunks
    output_size = block if share is Share.OUTPUT_IN_INPUT else program.chunks
    if collective.rooted:
        # Only the root's buffer has a meaning on one side; elsewhere the file may leave it out.
        if collective.name in ("broadcast", "scatter") and not gpu.input_chunks and program.root != rank:
            input_size = 0
        if collective.name in ("reduce", "gather") and not gpu.output_chunks and program.root != rank:
            output_size = 0
    if not in_place:
        used = input_size + output_size
        return Layout(0, input_size, used, input_size, output_size, used + gpu.scratch_chunks)
    input_offset = rank * block if share is Share.INPUT_IN_OUTPUT and output_size else 0
    output_offset = rank * block if share is Share.OUTPUT_IN_INPUT and input_size else 0
    used = max(input_offset + input_size, output_offset + output_size)
    return Layout(input_offset, output_offset, used, input_size, output_size, used + gpu.scratch_chunks)


def check_addresses(program: Program) -> None:
    """Raise ``SpecError`` where a step reaches outside a buffer, in some placement that the file claims."""
    for in_place in program.placements:
        for rank, gpu in enumerate(program.gpus):
            place = layout(program, rank, in_place)
            for number, block in enumerate(gpu.blocks):
                for index, step in enumerate(block.steps):
                    for side, address in (("src", step.src), ("dst", step.dst)):
                        if address is not None and address.offset + step.count > place.size(address.buffer):
                            raise SpecError(
                                f"{program.where(rank, number, index)}: {side} outside the buffer: expected at most "
                                f"{place.size(address.buffer)} chunks in {address.buffer!r}, got {address.offset} to "
                                f"{address.offset + step.count - 1}"
                            )
