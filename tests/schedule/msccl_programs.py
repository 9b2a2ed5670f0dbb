"""Small MSCCL programs for the tests, and a player that runs them as executors do.

``Draft`` is a file to be, thread block by thread block; its fields may be edited to break it. ``Compiler`` writes one
transfer after another and keeps the dependencies itself (last writer, later readers), as compilers of the format do.
``play`` runs a parsed program on any values, with queues and a random choice of who is next.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field

from atoll.schedule.msccl_program import layout

Slot = tuple[str, int]


@dataclass
class DraftStep:
    type: str
    src: Slot = ("i", -1)
    dst: Slot = ("o", -1)
    cnt: int = 1
    dep: tuple[int, int] = (-1, -1)
    hasdep: int | None = None
    s: int | None = None


@dataclass
class DraftBlock:
    send: int = -1
    recv: int = -1
    chan: int = 0
    steps: list[DraftStep] = field(default_factory=list)

    def add(self, type_: str, src: Slot = ("i", -1), dst: Slot = ("o", -1), cnt: int = 1, dep=(-1, -1)) -> int:
        self.steps.append(DraftStep(type_, src, dst, cnt, dep))
        return len(self.steps) - 1


@dataclass
class DraftGpu:
    i_chunks: int
    o_chunks: int
    s_chunks: int = 0
    blocks: list[DraftBlock] = field(default_factory=list)


@dataclass
class Draft:
    coll: str
    chunks: int
    gpus: list[DraftGpu]
    inplace: int = 0
    extra: str = 'outofplace="{out}" minBytes="0" maxBytes="0"'

    def block(self, gpu: int, send: int = -1, recv: int = -1, chan: int = 0) -> DraftBlock:
        self.gpus[gpu].blocks.append(DraftBlock(send, recv, chan))
        return self.gpus[gpu].blocks[-1]

    def xml(self) -> str:
        channels = 1 + max((block.chan for gpu in self.gpus for block in gpu.blocks), default=0)
        lines = [
            f'<algo name="draft" proto="Simple" nchannels="{channels}" nchunksperloop="{self.chunks}" '
            f'ngpus="{len(self.gpus)}" coll="{self.coll}" inplace="{self.inplace}" '
            f"{self.extra.format(out=1 - self.inplace)}>"
        ]
        for rank, gpu in enumerate(self.gpus):
            awaited = {step.dep for block in gpu.blocks for step in block.steps}
            lines.append(
                f'<gpu id="{rank}" i_chunks="{gpu.i_chunks}" o_chunks="{gpu.o_chunks}" s_chunks="{gpu.s_chunks}">'
            )
            for number, block in enumerate(gpu.blocks):
                lines.append(f'<tb id="{number}" send="{block.send}" recv="{block.recv}" chan="{block.chan}">')
                for index, step in enumerate(block.steps):
                    told = int((number, index) in awaited) if step.hasdep is None else step.hasdep
                    lines.append(
                        f'<step s="{index if step.s is None else step.s}" type="{step.type}" srcbuf="{step.src[0]}" '
                        f'srcoff="{step.src[1]}" dstbuf="{step.dst[0]}" dstoff="{step.dst[1]}" cnt="{step.cnt}" '
                        f'depid="{step.dep[0]}" deps="{step.dep[1]}" hasdep="{told}"/>'
                    )
                lines.append("</tb>")
            lines.append("</gpu>")
        return "\n".join([*lines, "</algo>"])


class Compiler:
    """Transfers written one after the other into a draft, with every dependency that their order needs."""

    def __init__(self, draft: Draft, alias=lambda rank, slot: slot) -> None:
        self.draft = draft
        self.alias = alias
        self._block: dict[tuple, int] = {}
        self._writer: dict[tuple, tuple[int, int]] = {}
        self._readers: dict[tuple, list[tuple[int, int]]] = defaultdict(list)

    def send(self, src: int, source: Slot, dst: int, target: Slot, cnt=1, chan=0, reduce=False) -> None:
        self.step(src, (dst, -1, chan), "s", source, cnt=cnt)
        kind = "rrc" if reduce else "r"
        self.step(dst, (-1, src, chan), kind, target if reduce else ("i", -1), target, cnt)

    def local(self, rank: int, kind: str, source: Slot, target: Slot, cnt=1, chan=0) -> None:
        self.step(rank, (-1, -1, chan), kind, source, target, cnt)

    def step(self, rank: int, key: tuple, kind: str, source: Slot = ("i", -1), target: Slot = ("o", -1), cnt=1) -> None:
        """One step in the thread block ``key``: (send peer, receive peer, channel)."""
        blocks = self.draft.gpus[rank].blocks
        if (rank, *key) not in self._block:
            self._block[(rank, *key)] = len(blocks)
            blocks.append(DraftBlock(*key))
        number = self._block[(rank, *key)]
        reads = [source] if kind in ("s", "cpy", "re", "rrs", "rrc", "rrcs") else []
        reads += [target] if kind == "re" else []
        writes = [target] if kind not in ("s", "rrs") else []

        def chunks(slots):
            return [(rank, *self.alias(rank, (slot[0], slot[1] + k))) for slot in slots for k in range(cnt)]

        needs = {self._writer[chunk] for chunk in chunks(reads + writes) if chunk in self._writer}
        needs |= {reader for chunk in chunks(writes) for reader in self._readers.pop(chunk, [])}
        deps = sorted(dep for dep in needs if dep[0] != number)
        for dep in deps[:-1]:
            blocks[number].add("nop", cnt=0, dep=dep)
        index = blocks[number].add(kind, source, target, cnt, deps[-1] if deps else (-1, -1))
        for chunk in chunks(reads):
            self._readers[chunk].append((number, index))
        for chunk in chunks(writes):
            self._writer[chunk] = (number, index)


def fused_ring_all_reduce(n: int, channels: int = 1, out_of_place: bool = False) -> Draft:
    """Reduce-scatter and all-gather around the ring, in fused steps; chunk c starts at rank c."""
    draft = Draft("allreduce", n, [DraftGpu(n, n if out_of_place else 0) for _ in range(n)], inplace=1 - out_of_place)
    end = "o" if out_of_place else "i"
    for rank in range(n):
        blocks = [draft.block(rank, (rank + 1) % n, (rank - 1) % n, chan) for chan in range(channels)]
        for chunk in range(n):
            block = blocks[chunk % channels]
            if chunk == rank:
                block.add("s", ("i", chunk))
        for distance in range(1, n):
            chunk = (rank - distance) % n
            block, slot = blocks[chunk % channels], ("i", chunk)
            if distance < n - 1:
                block.add("rrs", slot)
            else:
                block.add("rrcs", slot, (end, chunk))
        for distance in range(n):
            chunk = (rank - distance) % n
            if distance < n - 2:
                blocks[chunk % channels].add("rcs", dst=(end, chunk))
            elif distance == n - 2:
                blocks[chunk % channels].add("r", dst=(end, chunk))
    return draft


def ring_all_gather(n: int, inplace: bool, cnt: int = 1) -> Draft:
    draft = Draft("allgather", n * cnt, [DraftGpu(0 if inplace else cnt, n * cnt) for _ in range(n)], int(inplace))
    compiler = Compiler(draft)
    if not inplace:
        for rank in range(n):
            compiler.local(rank, "cpy", ("i", 0), ("o", rank * cnt), cnt)
    for step in range(n - 1):
        for rank in range(n):
            block = ("o", (rank - step) % n * cnt)
            compiler.send(rank, block, (rank + 1) % n, block, cnt)
    return draft


def reduce_scatter_direct(n: int, inplace: bool) -> Draft:
    draft = Draft("reduce_scatter", n, [DraftGpu(n, 0 if inplace else 1, n) for _ in range(n)], int(inplace))
    compiler = Compiler(draft, lambda rank, slot: ("i", rank) if inplace and slot[0] == "o" else slot)
    for rank in range(n):
        if not inplace:
            compiler.local(rank, "cpy", ("i", rank), ("o", 0))
    for rank in range(n):
        for peer in range(n):
            if peer != rank:
                compiler.send(rank, ("i", peer), peer, ("s", rank))
    for rank in range(n):
        for peer in range(n):
            if peer != rank:
                compiler.local(rank, "re", ("s", peer), ("o", 0))
    return draft


def tree_all_reduce(n: int, cnt: int = 3) -> Draft:
    """A binary heap of ranks: reduced to rank 0, and back."""
    draft = Draft("allreduce", cnt, [DraftGpu(cnt, 0) for _ in range(n)], 1)
    compiler = Compiler(draft)
    for rank in range(n - 1, 0, -1):
        compiler.send(rank, ("i", 0), (rank - 1) // 2, ("i", 0), cnt, reduce=True)
    for rank in range(1, n):
        compiler.send((rank - 1) // 2, ("i", 0), rank, ("i", 0), cnt, chan=1)
    return draft


def all_to_all(n: int, relay: bool) -> Draft:
    """Blocks straight to their rank, or (as solvers do) over a neighbour's scratch."""
    draft = Draft("alltoall", n, [DraftGpu(n, n, n * n if relay else 0) for _ in range(n)])
    compiler = Compiler(draft)
    for rank in range(n):
        compiler.local(rank, "cpy", ("i", rank), ("o", rank))
        for peer in range(n):
            over = (rank + 1) % n
            if peer == rank:
                continue
            if relay and over != peer:
                compiler.send(rank, ("i", peer), over, ("s", rank * n + peer))
                compiler.send(over, ("s", rank * n + peer), peer, ("o", rank))
            else:
                compiler.send(rank, ("i", peer), peer, ("o", rank))
    return draft


def one_to_all(n: int, root: int, coll: str, inplace: bool) -> Draft:
    """broadcast or scatter, the root to everyone."""
    whole = 1 if coll == "broadcast" else n
    gpus = [DraftGpu(whole if rank == root else 0, 1) for rank in range(n)]
    draft = Draft(coll, whole, gpus, int(inplace))
    if inplace:
        draft.gpus[root].o_chunks = 0
    compiler = Compiler(draft)
    for rank in range(n):
        chunk = ("i", rank if coll == "scatter" else 0)
        if rank != root:
            compiler.send(root, chunk, rank, ("o", 0))
        elif not inplace:
            compiler.local(root, "cpy", chunk, ("o", 0))
    return draft


def all_to_one(n: int, root: int, coll: str, inplace: bool) -> Draft:
    """reduce or gather, everyone to the root."""
    whole = 1 if coll == "reduce" else n
    gpus = [DraftGpu(1, whole if rank == root else 0) for rank in range(n)]
    draft = Draft(coll, whole, gpus, int(inplace))
    compiler = Compiler(draft)
    if not inplace:
        compiler.local(root, "cpy", ("i", 0), ("o", root if coll == "gather" else 0))
    for rank in range(n):
        if rank != root:
            target = ("o", rank if coll == "gather" else 0)
            compiler.send(rank, ("i", 0), root, target, reduce=coll == "reduce")
    return draft


def play(program, memory, combine, rng: random.Random, in_place: bool | None = None, slots: int | None = None) -> bool:
    """Run ``program`` on ``memory[rank][position]``; whether every step ended. ``combine(received, own)``."""
    chosen = program.placements[0] if in_place is None else in_place
    places = [layout(program, rank, chosen) for rank in range(program.world_size)]
    at = {(rank, number): 0 for rank, gpu in enumerate(program.gpus) for number in range(len(gpu.blocks))}
    queues: dict[tuple[int, int, int], list] = defaultdict(list)

    def run(rank: int, number: int) -> bool:
        block = program.gpus[rank].blocks[number]
        step = block.steps[at[rank, number]]
        incoming = queues[block.recv, rank, block.channel]
        outgoing = queues[rank, block.send, block.channel]
        if step.waits_for is not None and at[rank, step.waits_for[0]] <= step.waits_for[1]:
            return False
        if (step.kind.receives and not incoming) or (step.kind.sends and slots is not None and len(outgoing) >= slots):
            return False
        own = memory[rank]
        src = None if step.src is None else places[rank].position(step.src)
        dst = None if step.dst is None else places[rank].position(step.dst)
        held = [] if src is None else own[src : src + step.count]
        values = incoming.pop(0) if step.kind.receives else held
        if step.kind.reduces:
            mine = held if step.kind.receives else own[dst : dst + step.count]
            values = [combine(a, b) for a, b in zip(values, mine, strict=True)]
        if dst is not None:
            own[dst : dst + step.count] = values
        if step.kind.sends:
            outgoing.append(list(values))
        at[rank, number] += 1
        return True

    live = [key for key in at if program.gpus[key[0]].blocks[key[1]].steps]
    while live:
        rng.shuffle(live)
        key = next((key for key in live if run(*key)), None)
        if key is None:
            return False
        if at[key] == len(program.gpus[key[0]].blocks[key[1]].steps):
            live.remove(key)
    return True
