"""What ``atoll explain`` says and the glossary prints: terms, with numbers that the code works out.

A topic is a name, one sentence, and a text. Texts of collectives and algorithms are not written but read off: the
contract shows what a collective does, a proven schedule what an algorithm costs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from atoll.errors import SpecError, nearest
from atoll.units import format_bandwidth, format_duration, format_size

if TYPE_CHECKING:
    from atoll.schedule.contract import Contract, IntArray
    from atoll.schedule.cost import CostModel

_WIDTH = 88
_N = 8
_LETTERS = "ABCD"


class Topic(NamedTuple):
    """``summary`` is one sentence; ``text`` makes the rest; ``see`` names related topics."""

    name: str
    summary: str
    text: Callable[[], str]
    see: tuple[str, ...] = ()

    def page(self) -> str:
        """The whole explanation, in lines of at most 88 columns."""
        lines = [f"{self.name}: {self.summary}", "", self.text().strip("\n")]
        if self.see:
            lines += ["", f"See also: {', '.join(self.see)}"]
        return "\n".join(lines)


def topics() -> dict[str, Topic]:
    """Every topic by name: terms first, then collectives, then algorithms."""
    from atoll.algorithms.catalog import CATALOG
    from atoll.schedule.contract import COLLECTIVES

    found = {topic.name: topic for topic in TERMS}
    for collective in COLLECTIVES:
        found[_spelled(collective)] = _collective(collective)
    for name in dict.fromkeys(entry.name for entry in CATALOG):
        found.setdefault(_spelled(name), _algorithm(name))
    return found


_ALIASES = {
    "latency": "alpha", "bandwidth": "beta", "bounds": "bound", "lower-bound": "bound", "certificate": "order",
    "determinism": "order", "step": "schedule", "channel": "schedule", "message": "alpha", "segment": "pipelining",
    "prove": "proof", "allreduce": "all-reduce", "allgather": "all-gather", "alltoall": "all-to-all",
    "reducescatter": "reduce-scatter",
}  # fmt: skip
_LETTERS_OF_COSTS = (
    "N ranks, a tensor of n bytes; L: log2 N rounded up, p: the largest power of two not above N; M islands of g ranks."
)


def find(name: str) -> Topic:
    """The topic of a name, spelled with ``-`` or ``_``. Raises ``SpecError`` with the nearest match."""
    known = topics()
    wanted = _spelled(name.strip().lower()).replace(" ", "-")
    wanted = _ALIASES.get(wanted, wanted)
    if wanted not in known:
        raise SpecError(f"unknown topic {name!r}: {nearest(wanted, known)}; atoll explain lists them")
    return known[wanted]


def _spelled(name: str) -> str:
    return name.replace("_", "-")


def _fill(*paragraphs: str) -> str:
    """Paragraphs wrapped; one that starts with a new line is kept as it stands."""
    parts = [
        paragraph.strip("\n") if paragraph.startswith("\n") else textwrap.fill(" ".join(paragraph.split()), _WIDTH)
        for paragraph in paragraphs
    ]
    return "\n\n".join(parts)


# --- terms ----------------------------------------------------------------------------------------------------------


def _algbw() -> str:
    size, seconds = 1 << 30, 8e-3
    return _fill(
        """algbw = size / time. It is what your program feels: how long until my tensor is reduced. It does not say how
        busy the links were, since an all-reduce moves more bytes than the tensor has, and it falls as the world
        grows although nothing got worse.""",
        f"\n  {format_size(size)} all-reduced in {format_duration(seconds)}: "
        f"algbw = {format_bandwidth(size / seconds)}",
        """What size means follows nccl-tests: the whole tensor for all-reduce, broadcast and reduce; N times a rank's
        block for all-gather, reduce-scatter, all-to-all, gather and scatter.""",
    )


def _busbw() -> str:
    size, seconds = 1 << 30, 8e-3
    algbw = size / seconds
    rows = [f"  {_spelled(name):<16}{formula:<14}{_factor(name, _N):.3f}" for name, formula in _BUSBW]
    return _fill(
        """busbw = algbw x factor, where the factor is what the busiest link must carry per byte of the tensor: the
        lower bound that no algorithm can beat. So busbw can be compared with the speed of the link, whatever the
        world size; algbw cannot. The factors are those of nccl-tests (PERFORMANCE.md).""",
        "\n" + "\n".join([f"  collective      factor        at N = {_N}", *rows]),
        f"\n  {format_size(size)} all-reduced among {_N} ranks in {format_duration(seconds)}:\n"
        f"  algbw = {format_bandwidth(algbw)}, busbw = {format_bandwidth(algbw * _factor('all_reduce', _N))}",
        """Three traps. An algorithm that moves more than the bound (a tree, one-shot) shows a low busbw on busy links.
        Where switches reduce (NVLS, SHARP) fewer bytes cross the links than the bound for ranks says, and busbw may
        exceed the line rate. And over several nodes, busbw is per rank: to compare it with a NIC, count how many
        ranks share the NIC.""",
    )


_BUSBW = (
    ("all_reduce", "2(N-1)/N"), ("reduce_scatter", "(N-1)/N"), ("all_gather", "(N-1)/N"), ("all_to_all", "(N-1)/N"),
    ("gather", "(N-1)/N"), ("scatter", "(N-1)/N"), ("broadcast", "1"), ("reduce", "1"),
)  # fmt: skip


def _factor(collective: str, world_size: int) -> float:
    """busbw over algbw: the bandwidth bound of equal blocks, in vectors."""
    from atoll.schedule.bounds import bounds
    from atoll.schedule.contract import COLLECTIVES, contract

    root = 0 if COLLECTIVES[collective].rooted else None
    terms = contract(collective, world_size, world_size, root)
    return bounds(terms, _ones(world_size)).bandwidth_bytes / world_size


def _alpha() -> str:
    ring, tree = _steps("ring"), _steps("recursive_doubling")
    return _fill(
        """alpha is what a message costs before its first byte arrives: software, NIC, switches, cable. It does not
        depend on the size. A schedule pays it once for every step that has to wait for the one before, so small
        tensors want few steps.""",
        f"""\n  {_N} ranks, alpha = 5 us
  ring                 {ring:>2} steps   {format_duration(ring * 5e-6)} before bandwidth matters
  recursive doubling   {tree:>2} steps   {format_duration(tree * 5e-6)}""",
        """Measure yours: it is the time of an 8-byte message, or of an 8-byte all-reduce over its steps.""",
    )


def _beta() -> str:
    from atoll.schedule.cost import Link

    link = Link(5e-6, 50e9)
    models = {name: _model(name) for name in ("recursive_doubling", "ring")}
    rows = []
    for size in (8, 64 << 10, 1 << 20, 16 << 20, 1 << 30):
        times = {name: float(model.seconds(size, link)) for name, model in models.items()}
        best = min(times, key=times.__getitem__)
        rows.append(
            f"  {format_size(size):>8}   {format_duration(times['recursive_doubling']):>18}   "
            f"{format_duration(times['ring']):>9}   {_spelled(best)}"
        )
    return _fill(
        """beta is the time a byte takes on the wire: 1 / bandwidth. With alpha it makes the model that algorithms are
        chosen by:""",
        "\n  T(n) = A alpha + B n beta + C n gamma",
        """A, B and C are facts of the schedule: steps, bytes of the busiest rank per byte of the tensor, and bytes it
        combines. atoll prove counts them. Here alpha = 5 us, 1 / beta = 50 GB/s:""",
        "\n" + "\n".join([f"  all-reduce, {_N} ranks", "      size   recursive doubling        ring   faster", *rows]),
        """Few steps win while alpha rules, few bytes win once beta does. Every library's tuning table is about where
        the two lines cross.""",
    )


def _gamma() -> str:
    return _fill(
        """gamma is the time to combine one byte with another: 1 / (reduction rate). An all-reduce combines at least
        (N-1)/N of a tensor per rank however it is arranged; recursive doubling combines log2 N whole ones. On a GPU
        gamma hides behind beta; on a CPU, and for float16 there, it often does not.""",
    )


def _steps(name: str) -> int:
    return int(_model(name).stepwise["shared"].alpha)


def _model(name: str, collective: str = "all_reduce", world_size: int = _N) -> CostModel:
    from atoll.algorithms.catalog import build
    from atoll.schedule.contract import COLLECTIVES
    from atoll.schedule.cost import cost_model
    from atoll.schedule.count import count
    from atoll.schedule.prove import prove

    root = 0 if COLLECTIVES[collective].rooted else None
    return cost_model(count(prove(build(collective, name, world_size, root))))


def _order() -> str:
    from atoll.algorithms.catalog import build
    from atoll.schedule.certify import certify
    from atoll.schedule.prove import prove

    rows = []
    for name in ("ring", "recursive_doubling", "halving_doubling", "direct"):
        certificate = certify(prove(build("all_reduce", name, 4)))
        rows.append(f"  {_spelled(name):<20} {certificate.verdict():<34} {certificate.orders[0].expression}")
    return _fill(
        """Floating-point addition is not associative: (a + b) + c and a + (b + c) may differ in the last bit. Which
        bits you get depends on the order in which the ranks' contributions meet, and that is a fact of the schedule.
        atoll prove certifies it for every input:""",
        "\n" + "\n".join(["  all-reduce, 4 ranks", *rows]),
        """Same bits: all ranks end with the same expression, so replicas cannot drift apart. Several orders: the order
        depends on the position in the tensor, so the same values get other bits when the tensor around them changes
        its size, as with gradient buckets. Depth: the error of a sum is at most depth x u x sum|x|.""",
    )


def _bound() -> str:
    rows = [f"  {_spelled(name):<16}{formula:<10} n" for name, formula in _BUSBW]
    return _fill(
        """Some bytes must move, whatever the algorithm. In an all-reduce, an element is held in part by N ranks: N-1
        times a partial sum must travel before one rank has it all, and N-1 times the sum must travel until all have
        it. That is 2(N-1) transfers of n bytes among N ranks; so some rank sends at least 2(N-1)/N n, which is under
        2n for every N, and a ring attains it (Patarasuk and Yuan 2009).""",
        "\n" + "\n".join(["  bytes of the busiest rank, at least", *rows]),
        """Steps are bounded too: with one message at a time, what a rank knows reaches at most twice as many ranks
        with every step, so ceil(log2 N) steps are needed. No algorithm attains both bounds for every N at once; that
        is why there are several.""",
    )


def _schedule() -> str:
    from atoll.algorithms.catalog import build

    schedule = build("all_reduce", "ring", 3)
    lines = [f"  {row}" for row in list(schedule.rows())[:3]]
    return _fill(
        """A collective algorithm is a table. One row moves one run of chunks from a rank to a rank in a step, and
        either replaces what is there or reduces it. The ring among three ranks begins so:""",
        "\n" + "\n".join(lines),
        """All reads of a step come before its writes. A step is a proof's time and no barrier: at run time a row waits
        only for the rows that its chunks depend on. Everything else is a reading of the table: prove, count, draw,
        run and simulate all read the same rows.""",
    )


def _chunk() -> str:
    from atoll.schedule.partition import balanced

    return _fill(
        """The tensor is cut into chunks, and a schedule moves whole chunks. What the world does not divide is cut as
        evenly as it goes, larger chunks first:""",
        f"\n  10 elements in 4 chunks: {', '.join(map(str, balanced(10, 4).tolist()))}",
        """A chunk is the unit of the algorithm. A segment is the unit of the wire: at run time a chunk travels in
        segments, and a segment is forwarded while the next one is still arriving. Segments change no result.""",
    )


def _pipelining() -> str:
    from atoll.schedule.cost import Link

    link, size, model = Link(5e-6, 50e9), 64 << 20, _model("chain", "broadcast")
    rows = [
        f"  {format_size(segment):>8}   {format_duration(float(model.pipelined_s(size, link, segment_bytes=segment)))}"
        for segment in (size, 8 << 20, 1 << 20, 128 << 10, 8 << 10)
    ]
    return _fill(
        """A rank may forward the first segment of a message before the last has come. A chain of N ranks that waits
        for whole tensors takes N-1 times a transfer; in k segments it takes N-2+k turns of n/k bytes, close to one
        transfer for a large k. Too large a k pays alpha too often: the best segment lies at
        sqrt(n alpha / ((N-2) beta)).""",
        "\n" + "\n".join(
            [f"  {format_size(size)} down a chain of {_N}, alpha = 5 us, 50 GB/s", "   segment   time", *rows]
        ),
    )  # fmt: skip


def _proof() -> str:
    return _fill(
        """atoll prove replays a schedule on sets instead of numbers: each chunk of each rank's memory holds a set of
        contributions, a copy copies the set, a reduction joins two. It refuses a read of what is not there, two
        conflicting writes, a contribution counted twice, a step in which rows wait for each other for ever, and an
        output that does not hold exactly what the collective promises, and names step, rank and chunk. Since nothing
        depends on values, the proof holds for every input of every length. Nothing runs or simulates an unproven
        schedule.""",
    )


def _island() -> str:
    from atoll.algorithms.catalog import build
    from atoll.schedule.count import count, tiers
    from atoll.schedule.prove import prove

    islands = [rank // 4 for rank in range(16)]
    rows = []
    for name, options in (("ring", {}), ("hierarchical", {"group_size": 4})):
        inside, across = tiers(count(prove(build("all_reduce", name, 16, **options)), 1600), islands)
        rows.append(
            f"  {name:<14}{inside.max_sent_bytes / 1600:>8.3f} n {across.max_sent_bytes / 1600:>12.3f} n "
            f"{across.max_island_sent_bytes / 1600:>12.3f} n"
        )
    return _fill(
        """An island is a set of ranks with fast links among themselves: the GPUs of a node, an NVLink domain. Between
        islands the sea is slower. A hierarchical algorithm reduce-scatters inside the island
        first, so that every rank takes only its share across.""",
        "\n" + "\n".join(["  16 ranks, islands of 4; sent at most, per byte n of the tensor",
                           "                  inside         across   island across", *rows]),
        """The flat ring leaves the island through one rank and one NIC; the hierarchical one leaves it through all of
        them at once, with the same bytes in all.""",
    )  # fmt: skip


TERMS: tuple[Topic, ...] = (
    Topic("algbw", "algorithm bandwidth, size over time.", _algbw, ("busbw",)),
    Topic("busbw", "bus bandwidth, algbw corrected by what the collective must move.", _busbw, ("algbw", "bound")),
    Topic("alpha", "the latency of a message.", _alpha, ("beta", "gamma")),
    Topic("beta", "the time per byte on the wire.", _beta, ("alpha", "gamma", "pipelining")),
    Topic("gamma", "the time per byte to reduce.", _gamma, ("alpha", "beta")),
    Topic("bound", "what no algorithm can beat.", _bound, ("busbw", "alpha")),
    Topic("order", "in which order contributions are combined, and what it does to the bits.", _order, ("proof",)),
    Topic("schedule", "a collective algorithm as a table of transfers.", _schedule, ("chunk", "proof")),
    Topic("chunk", "a part of the tensor that a schedule moves as a whole.", _chunk, ("pipelining", "schedule")),
    Topic("pipelining", "forwarding a message while it arrives.", _pipelining, ("chunk", "beta")),
    Topic("proof", "why a schedule is right for every input.", _proof, ("schedule", "order")),
    Topic("island", "ranks with fast links among themselves.", _island, ("hierarchical", "bound")),
)


# --- collectives and algorithms -------------------------------------------------------------------------------------

_SUMMARIES = {
    "all_reduce": "every rank ends with the reduction of all ranks' tensors.",
    "reduce_scatter": "every rank ends with its block of the reduction of all ranks' tensors.",
    "all_gather": "every rank ends with the blocks of all ranks, one after the other.",
    "broadcast": "every rank ends with the root's tensor.",
    "reduce": "the root ends with the reduction of all ranks' tensors.",
    "all_to_all": "every rank sends a block of its own to each rank; a transposition.",
    "gather": "the root ends with the blocks of all ranks, one after the other.",
    "scatter": "every rank ends with its block of the root's tensor.",
    "barrier": "no rank leaves before every rank has come.",
}
_USES = {
    "all_reduce": "Gradients in data parallelism; activations in tensor parallelism.",
    "reduce_scatter": "Gradients in ZeRO and FSDP; the first half of an all-reduce.",
    "all_gather": "Parameters in ZeRO-3 and FSDP; the second half of an all-reduce.",
    "broadcast": "Initial weights; configuration.",
    "reduce": "Metrics at one rank.",
    "all_to_all": "Tokens to experts in a mixture of experts; sequence parallelism.",
    "gather": "Results at one rank.",
    "scatter": "Work from one rank.",
    "barrier": "Timing, and file systems that others must see.",
}


def _collective(name: str) -> Topic:
    def text() -> str:
        from atoll.algorithms.catalog import CATALOG
        from atoll.schedule.bounds import bounds

        terms = _contract(name)
        entries = [entry for entry in CATALOG if entry.collective == name]
        width = max((len(entry.name) for entry in entries), default=0)
        listed = []
        for entry in entries:
            first = f"  {_spelled(entry.name):<{width}}  "
            listed.append(textwrap.fill(f"{entry.summary} (steps {entry.steps}; sends {entry.sent})", _WIDTH,
                                        initial_indent=first, subsequent_indent=" " * len(first)))  # fmt: skip
        low = bounds(terms, _ones(terms.chunks))
        bound = (
            f"No algorithm moves less than {low.formula} bytes through the busiest rank ({low.source}); "
            f"at N = {_N} that is {_factor(name, _N):.3g} n."
            if low.bandwidth_bytes
            else "It carries no data; only its steps count, at least ceil(log2 N)."
        )
        return _fill(
            _USES[name],
            "\n" + "\n".join(_before_and_after(name)),
            bound,
            "\n" + "\n".join(["Algorithms:", *listed]),
            _LETTERS_OF_COSTS,
        )

    return Topic(_spelled(name), _SUMMARIES[name], text, ("busbw", "bound", "order"))


def _contract(name: str) -> Contract:
    from atoll.schedule.contract import COLLECTIVES, contract

    return contract(name, 4, 1 if name == "barrier" else 4, 0 if COLLECTIVES[name].rooted else None)


def _before_and_after(name: str) -> list[str]:
    """What four ranks hold, read off the contract: A0 is chunk 0 of rank 0, S0 the reduction of all chunks 0."""
    terms = _contract(name)
    rows = []
    for rank in range(4):
        before = [f"{_LETTERS[rank]}{chunk}" for chunk in terms.input_chunks(rank)]
        after = [
            f"{'S' if origin < 0 else _LETTERS[origin]}{chunk}"
            for chunk, origin in zip(terms.output_chunks(rank), terms.output_origins(rank), strict=True)
        ]
        rows.append(f"  {rank:>4}   {' '.join(before) or '-':<13}{' '.join(after) or '-'}")
    sums = ", S0 the reduction of A0, B0, C0 and D0" if terms.collective.reduces else ""
    return ["  rank   before       after", *rows, f"  (A0: chunk 0 of rank 0{sums})"]


def _algorithm(name: str) -> Topic:
    from atoll.algorithms.catalog import CATALOG

    entries = [entry for entry in CATALOG if entry.name == name]
    collectives = ", ".join(_spelled(entry.collective) for entry in entries)

    def text() -> str:
        rows = [("", "steps", "sent n", "reduced n", "chain")]
        for entry in entries:
            model = _model(name, entry.collective)
            rows.append(
                (_spelled(entry.collective), f"{model.stepwise['shared'].alpha:.0f}", f"{model.busiest:.4g}",
                 f"{model.reduced:.4g}", f"{model.chain}")
            )  # fmt: skip
        table = [f"  {row[0]:<16}{row[1]:>6}{row[2]:>9}{row[3]:>12}{row[4]:>8}".rstrip() for row in rows]
        facts = []
        for entry in entries:
            order = f"; order: {entry.order}" if entry.order else ""
            facts.append(
                textwrap.fill(
                    f"{_spelled(entry.collective)}: {entry.summary}. Steps {entry.steps}; sends {entry.sent}{order}; "
                    f"{entry.constraint}.",
                    _WIDTH, initial_indent="  ", subsequent_indent="    ",
                )
            )  # fmt: skip
        first = entries[0]
        picture = f"atoll draw {_spelled(name)} --world {_N} --collective {_spelled(first.collective)}"
        return _fill(
            "\n" + "\n".join(facts),
            _LETTERS_OF_COSTS,
            "\n" + "\n".join([f"At {_N} ranks, counted from the proven schedule:", *table]),
            """sent, reduced: the busiest rank, per byte n of the tensor; chain: the longest run of messages that wait
            for each other.""",
            f"\n  {picture}",
        )

    return Topic(_spelled(name), f"an algorithm for {collectives}.", text, ("alpha", "beta", "order"))


def _ones(count: int) -> IntArray:
    import numpy as np

    return np.ones(count, dtype=np.int64)
