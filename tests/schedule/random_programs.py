"""Random MSCCL programs whose steps are ordered as they must be, and ways to take some of that order away."""

import random

from hypothesis import strategies as st
from msccl_programs import Compiler, Draft, DraftGpu

CHUNKS, SCRATCH = 3, 2
SIZES = {"i": CHUNKS, "o": CHUNKS, "s": SCRATCH}


@st.composite
def drafts(draw):
    """(draft, in place): sends that are received at once or later, relays of every fused kind, local moves."""
    n = draw(st.integers(2, 4))
    rng = random.Random(draw(st.integers(0, 2**32)))
    in_place = draw(st.booleans())
    gpus = [DraftGpu(CHUNKS, CHUNKS, SCRATCH) for _ in range(n)]
    draft = Draft("allreduce", CHUNKS, gpus, int(in_place))
    compiler = Compiler(draft, lambda _, slot: ("i", slot[1]) if in_place and slot[0] == "o" else slot)
    later: list = []
    relays = 0

    def run(cnt):
        buffer = rng.choice("ios")
        return (buffer, rng.randint(0, SIZES[buffer] - cnt))

    def apart(one, other, cnt):
        """Whether two runs are the same or disjoint."""
        same = one[0] == other[0] or (in_place and {one[0], other[0]} == {"i", "o"})
        return not same or one[1] == other[1] or abs(one[1] - other[1]) >= cnt

    for _ in range(draw(st.integers(1, 14))):
        cnt = rng.randint(1, 2)
        source, target = run(cnt), run(cnt)
        if not apart(source, target, cnt):
            continue
        src, dst = rng.sample(range(n), 2)
        what = rng.random()
        if what < 0.2:
            compiler.local(src, rng.choice(["cpy", "re"]), source, target, cnt, rng.randint(0, 1))
        elif what < 0.4 and n > 2:
            via = rng.choice([rank for rank in range(n) if rank not in (src, dst)])
            relays += 1
            channel = 2 + relays
            compiler.step(src, (via, -1, channel), "s", run(cnt), cnt=cnt)
            kind = rng.choice(["rcs", "rrs", "rrcs"])
            compiler.step(via, (dst, src, channel), kind, source, target, cnt)
            later.append((dst, via, channel, cnt))
        else:
            channel = rng.randint(0, 2)
            compiler.step(src, (dst, -1, channel), "s", source, cnt=cnt)
            later.append((dst, src, channel, cnt))
        while later and rng.random() < 0.6:
            _receive(compiler, later.pop(_first_of(later, rng)), rng, run, apart)
    while later:
        _receive(compiler, later.pop(_first_of(later, rng)), rng, run, apart)
    return draft, in_place


def _first_of(later, rng):
    """A pending message that is the first of its connection."""
    chosen = rng.choice(later)[:3]
    return next(place for place, pending in enumerate(later) if pending[:3] == chosen)


def _receive(compiler, pending, rng, run, apart):
    dst, src, channel, cnt = pending
    source, target = run(cnt), run(cnt)
    kind = "rrc" if rng.random() < 0.5 and apart(source, target, cnt) else "r"
    compiler.step(dst, (-1, src, channel), kind, source, target, cnt)


def drop_dependencies(draft, rng: random.Random, chance: float = 0.3) -> None:
    for gpu in draft.gpus:
        for block in gpu.blocks:
            for step in block.steps:
                if step.dep != (-1, -1) and rng.random() < chance:
                    step.dep = (-1, -1)
