"""The reduction-order certificate: replay a proven schedule on expressions instead of values.

Floating-point addition is not associative, so *in which order* the ranks' contributions meet decides the bits of the
result. Users ask three things, and this reading answers them for every input at once, since the order is a fact of
the table and not of the data:

* Do all ranks end with the same bits? They do if, chunk by chunk, every rank holds the same expression.
* Is the order independent of the position in the tensor? If chunk 0 is added in another order than chunk 1, then the
  same value has other bits once the tensor around it grows, shrinks or is bucketed differently.
* How deep is the expression? A sum whose tree has height h is off by at most ``h u sum|x|``, to first order in the
  unit roundoff u (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2): ring N-1, trees log2 N.

Vocabulary. An **expression** is a leaf (the contribution of one rank) or a pair (left, right). The runtime puts the
operand with the lower lowest contributor to the left, so left and right are facts too and nothing here assumes that
an operation commutes. Expressions are **hash-consed**: equal ones get one number, so that comparing them is comparing
numbers. A 1,024-rank ring makes a million of them, hence the vectorised table below instead of a dictionary.

An **order** is one distinct expression among the outputs. Expressions do not mention the chunk number.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.schedule.contract import Extent, IntArray
from atoll.schedule.prove import ProvenSchedule
from atoll.schedule.runs import expand
from atoll.schedule.table import REPLACE

_Ids = npt.NDArray[np.int32]
MAX_TERMS_SHOWN = 64
MAX_ORDERS_LISTED = 16


class Order(msgspec.Struct, frozen=True):
    """One distinct expression and who ends with it. ``expression`` is None above ``MAX_TERMS_SHOWN`` terms."""

    expression: str | None
    depth: int
    terms: int
    num_chunks: int
    first_chunk: int
    num_ranks: int
    first_rank: int


class Disagreement(msgspec.Struct, frozen=True):
    """Two ranks that end with different expressions for one chunk: the first such case."""

    chunk: int
    ranks: tuple[int, int]
    expressions: tuple[str | None, str | None]


class Certificate(msgspec.Struct, frozen=True):
    """What the order of a schedule's reductions promises, for every input of every length.

    ``reduces``               whether values are combined at all; if not, data is moved and every other field is idle
    ``same_bits``             every rank that ends with a chunk holds the same expression for it
    ``position_independent``  no rank's expression depends on the chunk: the order is one for the whole tensor
    ``num_orders``            distinct expressions among the outputs
    ``depth``                 the height of the deepest: the factor of the error bound ``depth * u * sum|x|``
    ``order_digest``          names the one order, alike for all schedules that have it; None where there are several
    ``orders``                the commonest orders, at most ``MAX_ORDERS_LISTED``
    ``disagreement``          the first chunk for which two ranks differ, None where ``same_bits``
    """

    schedule: str
    collective: str
    world_size: int
    chunks: int
    reduces: bool
    same_bits: bool
    position_independent: bool
    num_orders: int
    depth: int
    order_digest: str | None
    orders: tuple[Order, ...]
    disagreement: Disagreement | None

    def verdict(self) -> str:
        """The short form, for a table: ``same bits, 4 orders, depth 3``."""
        if not self.reduces:
            return "moves only"
        bits = "same bits" if self.same_bits else "ranks end with different bits"
        return f"{bits}, {self.num_orders} order{'s' if self.num_orders != 1 else ''}, depth {self.depth}"

    def statement(self) -> str:
        """The certificate in sentences, one a line."""
        if not self.reduces:
            return (
                "Order: a token is passed, no value is combined; nothing depends on an order."
                if self.collective == "barrier"
                else "Order: moves only. No operation is applied, so every rank gets the very bits that were sent."
            )
        lines = []
        if self.disagreement is not None:
            first, second = self.disagreement.ranks
            lines.append(
                f"Bits: RANKS END WITH DIFFERENT BITS. For chunk {self.disagreement.chunk}, rank {first} computes "
                f"{_shown(self.disagreement.expressions[0])} and rank {second} "
                f"{_shown(self.disagreement.expressions[1])}."
            )
        else:
            lines.append("Bits: every rank that holds a chunk ends with the same bits, whatever the data.")
        if self.position_independent:
            lines.append(
                "Position: the order does not depend on the position in the tensor, so neither does a value's result "
                "depend on the size of the tensor around it."
            )
        else:
            lines.append(
                f"Position: the order depends on the position in the tensor ({self.num_orders} distinct orders): the "
                "same values get other bits in a tensor of another size or at another offset."
            )
        lines.append(f"Depth: {self.depth}; a sum is off by at most {self.depth} u sum|x|, u the unit roundoff.")
        shown = [order for order in self.orders[:4] if order.expression is not None]
        lines += [f"  chunk {order.first_chunk} on rank {order.first_rank}: {order.expression}" for order in shown]
        if not shown:
            lines.append(f"  too long to write out: {self.orders[0].terms} terms")
        elif self.num_orders > len(shown):
            rest = self.num_orders - len(shown)
            lines.append(f"  and {rest:,} more order{'' if rest == 1 else 's'}")
        return "\n".join(lines)


def certify(proven: ProvenSchedule) -> Certificate:
    """The certificate of a proven schedule."""
    header, terms = proven.header, proven.contract
    if not (terms.collective.reduces and terms.collective.exactly_once):
        return Certificate(
            schedule=header.name,
            collective=header.collective,
            world_size=header.world_size,
            chunks=header.chunks,
            reduces=False,
            same_bits=True,
            position_independent=True,
            num_orders=0,
            depth=0,
            order_digest=None,
            orders=(),
            disagreement=None,
        )
    pairs = _Expressions(header.world_size)
    memory = _replay(proven, pairs)
    rank, chunk, expression = _outputs(proven, memory)

    distinct, first, inverse = np.unique(expression, return_index=True, return_inverse=True)
    per_order = np.bincount(inverse, minlength=len(distinct))
    commonest = np.lexsort((first, -per_order))[:MAX_ORDERS_LISTED]
    orders = tuple(
        Order(
            expression=pairs.text(int(distinct[order])),
            depth=int(pairs.depth[distinct[order]]),
            terms=int(pairs.terms[distinct[order]]),
            num_chunks=len(np.unique(chunk[inverse == order])),
            first_chunk=int(chunk[first[order]]),
            num_ranks=len(np.unique(rank[inverse == order])),
            first_rank=int(rank[first[order]]),
        )
        for order in commonest.tolist()
    )
    disagreement = _disagreement(rank, chunk, expression, pairs)
    if terms.collective.output is Extent.BLOCK:
        # Each position lies on one rank only, so positions compare across ranks.
        position_independent = len(distinct) == 1
    else:
        by_rank = np.lexsort((chunk, rank))
        same_rank = rank[by_rank][1:] == rank[by_rank][:-1]
        position_independent = not np.any(same_rank & (np.diff(expression[by_rank]) != 0))
    return Certificate(
        schedule=header.name,
        collective=header.collective,
        world_size=header.world_size,
        chunks=header.chunks,
        reduces=True,
        same_bits=disagreement is None,
        position_independent=bool(position_independent),
        num_orders=len(distinct),
        depth=int(pairs.depth[distinct].max(initial=0)),
        order_digest=pairs.digest(int(distinct[0])) if len(distinct) == 1 else None,
        orders=orders,
        disagreement=disagreement,
    )


def _replay(proven: ProvenSchedule, pairs: _Expressions) -> _Ids:
    """The expression in every chunk of every rank's memory at the end, all ranks in one array."""
    header, terms = proven.header, proven.contract
    sizes = np.asarray(header.memory_chunks, dtype=np.int64)
    base = np.cumsum(sizes) - sizes
    memory = np.full(int(sizes.sum()), -1, dtype=np.int32)
    for rank in range(header.world_size):
        start = int(base[rank]) + header.input_offset[rank]
        memory[start : start + terms.input_size(rank)] = rank
    entry = 0
    for _, rows in proven.schedule.steps():
        chunks, _ = expand(rows)
        received_first = proven.received_first[entry : entry + len(chunks.row)]
        entry += len(chunks.row)
        target = base[chunks.dst] + chunks.dst_chunk
        received = memory[base[chunks.src] + chunks.src_chunk]
        reduces = chunks.operand_chunk != REPLACE
        if not reduces.any():
            memory[target] = received
            continue
        operand = base[chunks.dst] + np.where(reduces, chunks.operand_chunk, chunks.dst_chunk)
        held = memory[operand]
        for turn, which in enumerate(_turns(target, chunks.src)):
            if turn:  # reductions after the first meet the running value
                held[which] = memory[operand[which]]
            result = received[which]
            join = reduces[which]
            mine, theirs = held[which][join], result[join]
            swap = received_first[which][join]
            result[join] = pairs.combine(np.where(swap, theirs, mine), np.where(swap, mine, theirs))
            memory[target[which]] = result
    return memory


def _turns(target: IntArray, src: IntArray) -> list[IntArray]:
    """Rows of one step in turns in which no chunk is written twice, in ascending (src, row) order."""
    order = np.lexsort((src, target))  # stable, so rows of one source keep their order
    opens = np.r_[True, target[order][1:] != target[order][:-1]]
    if opens.all():
        return [np.arange(len(target))]
    start = np.maximum.accumulate(np.where(opens, np.arange(len(order)), 0))
    turn = np.arange(len(order)) - start
    by_turn = np.argsort(turn, kind="stable")
    return np.split(order[by_turn], np.flatnonzero(np.diff(turn[by_turn])) + 1)


def _outputs(proven: ProvenSchedule, memory: _Ids) -> tuple[IntArray, IntArray, _Ids]:
    """Rank, chunk number and expression of every output chunk, by rank."""
    header, terms = proven.header, proven.contract
    sizes = np.asarray(header.memory_chunks, dtype=np.int64)
    base = np.cumsum(sizes) - sizes
    numbers = [terms.output_chunks(rank) for rank in range(header.world_size)]
    rank = np.repeat(np.arange(header.world_size), [len(part) for part in numbers])
    where = [
        int(base[owner]) + header.output_offset[owner] + np.arange(len(part)) for owner, part in enumerate(numbers)
    ]
    return rank, np.concatenate(numbers), memory[np.concatenate(where)]


def _disagreement(rank: IntArray, chunk: IntArray, expression: _Ids, pairs: _Expressions) -> Disagreement | None:
    """The lowest chunk that two ranks end with differently, and the first two such ranks."""
    order = np.lexsort((rank, chunk))
    ranks, chunks, expressions = rank[order], chunk[order], expression[order]
    differs = np.flatnonzero((chunks[1:] == chunks[:-1]) & (expressions[1:] != expressions[:-1]))
    if not len(differs):
        return None
    at = int(differs[0])
    return Disagreement(
        chunk=int(chunks[at]),
        ranks=(int(ranks[at]), int(ranks[at + 1])),
        expressions=(pairs.text(int(expressions[at])), pairs.text(int(expressions[at + 1]))),
    )


class _Expressions:
    """Hash-consed expressions as columns: ids below ``leaves`` are ranks, every other id is a pair of lower ids.

    A pair is found by an open-addressing table of ids, probed for a whole batch at once: under 40 bytes a pair and no
    Python object, where a dictionary of a million pairs takes 150 MB.
    """

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self._count = leaves
        self._key: npt.NDArray[np.uint64] = np.zeros(2 * leaves, dtype=np.uint64)
        self.depth: _Ids = np.zeros(2 * leaves, dtype=np.int32)
        self.terms: IntArray = np.ones(2 * leaves, dtype=np.int64)
        self._slots: _Ids = np.full(1024, -1, dtype=np.int32)

    def combine(self, left: _Ids, right: _Ids) -> _Ids:
        """The ids of the expressions (left, right)."""
        return self._intern((left.astype(np.uint64) << np.uint64(32)) | right.astype(np.uint64))

    def text(self, expression: int) -> str | None:
        """``((0+1)+(2+3))``, or None where it has too many terms to be read."""
        if self.terms[expression] > MAX_TERMS_SHOWN:
            return None
        if expression < self.leaves:
            return str(expression)
        left, right = divmod(int(self._key[expression]), 1 << 32)
        return f"({self.text(left)}+{self.text(right)})"

    def digest(self, expression: int) -> str:
        """A hash of the expression as written, whatever the ids here."""
        inner, pending = set[int](), [expression]
        while pending:
            at = pending.pop()
            if at >= self.leaves and at not in inner:
                inner.add(at)
                pending += divmod(int(self._key[at]), 1 << 32)
        # Ascending, since a pair's parts have lower ids; not recursive, since a chain is as deep as it has ranks.
        hashes: dict[int, str] = {}
        for at in sorted(inner):
            parts = [hashes.get(part, str(part)) for part in divmod(int(self._key[at]), 1 << 32)]
            hashes[at] = blake2b("+".join(parts).encode(), digest_size=16).hexdigest()
        return hashes.get(expression, str(expression))

    def _intern(self, keys: npt.NDArray[np.uint64]) -> _Ids:
        self._reserve(len(keys))
        known = self._count
        ids = np.full(len(keys), -1, dtype=np.int32)
        mask = np.uint64(len(self._slots) - 1)
        slot = (_mix(keys) & mask).astype(np.int64)
        pending = np.arange(len(keys))
        while len(pending):
            at = slot[pending]
            found = self._slots[at]
            free = found < 0
            hit = ~free & (self._key[found] == keys[pending])
            ids[pending[hit]] = found[hit]
            # Keys that meet at a free slot all claim it; the one whose id stays has it, the others look again.
            claims = pending[free]
            new = np.arange(self._count, self._count + len(claims), dtype=np.int32)
            self._slots[at[free]] = new
            won = self._slots[at[free]] == new
            winners = claims[won]
            fresh = np.arange(self._count, self._count + len(winners), dtype=np.int32)
            self._slots[slot[winners]] = fresh
            self._key[fresh] = keys[winners]
            self._count += len(fresh)
            ids[winners] = fresh
            taken = pending[~free & ~hit]
            slot[taken] = (slot[taken] + 1) & int(mask)
            pending = np.concatenate([taken, claims[~won]])
        added = slice(known, self._count)
        left = (self._key[added] >> np.uint64(32)).astype(np.int64)
        right = (self._key[added] & np.uint64(0xFFFFFFFF)).astype(np.int64)
        self.depth[added] = 1 + np.maximum(self.depth[left], self.depth[right])
        self.terms[added] = self.terms[left] + self.terms[right]
        return ids

    def _reserve(self, extra: int) -> None:
        """Room for ``extra`` more pairs, the slots at most a quarter full: few keys probe more than twice."""
        needed = self._count + extra
        if needed > len(self._key):
            grown = max(needed, 2 * len(self._key)) - len(self._key)
            self._key = np.concatenate([self._key, np.zeros(grown, dtype=np.uint64)])
            self.depth = np.concatenate([self.depth, np.zeros(grown, dtype=np.int32)])
            self.terms = np.concatenate([self.terms, np.ones(grown, dtype=np.int64)])
        size = len(self._slots)
        while size < 4 * needed:
            size *= 2
        if size == len(self._slots):
            return
        self._slots = np.full(size, -1, dtype=np.int32)
        ids = np.arange(self.leaves, self._count, dtype=np.int32)
        slot = (_mix(self._key[ids]) & np.uint64(size - 1)).astype(np.int64)
        while len(ids):
            free = self._slots[slot] < 0
            self._slots[slot[free]] = ids[free]
            left_over = self._slots[slot] != ids
            ids, slot = ids[left_over], (slot[left_over] + 1) & (size - 1)


def _mix(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Keys spread over all 64 bits (the finaliser of SplitMix64, Steele, Lea and Flood 2014)."""
    mixed = keys.copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _shown(expression: str | None) -> str:
    return f"an expression of more than {MAX_TERMS_SHOWN} terms" if expression is None else expression
