"""From what happened to what went wrong: a learner's run, explained.

``coded`` vectors make sums readable. Element i of rank r holds ``16^r + i * 2^24``; in a sum, the base-16 digits of the
low 24 bits say how often each rank was counted, and the rest says whether all of it came from position i. So a wrong
element names who is missing, who was counted twice, and whether a chunk has landed where another belongs.

Everything here is text made from facts; each function returns ``None`` where it finds nothing wrong.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from world import Frame, RankDied, RankRaised, Stuck, WorldError

Coded = npt.NDArray[np.int64]
DIGIT_BITS, COUNT_BITS = 4, 24
LARGEST_CODED_WORLD = COUNT_BITS // DIGIT_BITS
IN_SEND, IN_RECV, IN_SELECT = "send", "recv", "select"


def coded(length: int, rank: int) -> Coded:
    """Rank's vector; see the module's text."""
    return (np.arange(length, dtype=np.int64) << COUNT_BITS) + (1 << (DIGIT_BITS * rank))


# -- the result -----------------------------------------------------------------------------------------------------


def explain_result(vectors: Sequence[Coded]) -> str | None:
    """What is wrong with the vectors that the ranks ended with, of ``coded`` ones."""
    world_size, length = len(vectors), len(vectors[0])
    inputs = [coded(length, rank) for rank in range(world_size)]
    expected = np.sum(inputs, axis=0)
    right = np.array([vector == expected for vector in vectors])
    if right.all():
        return None
    if all(np.array_equal(vector, start) for vector, start in zip(vectors, inputs, strict=True)):
        return (
            "no rank's vector has changed. The sum must replace the vector that was given, in place: is it made in "
            "a copy, or returned? np.array_split gives views; chunk += incoming and chunk[:] = incoming write to them, "
            "chunk = chunk + incoming does not."
        )
    chunks = np.array_split(np.arange(length), world_size)
    complete = np.array([[bool(right[rank, chunk].all()) for chunk in chunks] for rank in range(world_size)])
    filled = [number for number, chunk in enumerate(chunks) if len(chunk)]
    firsts = [int(vector[chunks[number][0]]) for vector in vectors for number in filled]
    nothing_doubled = all(count <= 1 for value in firsts for count in _counts(value, world_size))
    one_each = (complete.sum(axis=0) == 1).all() and (complete.sum(axis=1) == 1).all()
    if len(filled) == world_size and one_each and nothing_doubled:
        return (
            "every rank has exactly one complete chunk, each another one. The reduce-scatter is right; what is missing "
            "is the all-gather: N - 1 more steps that pass the complete chunks on around the ring, and in which what "
            "comes in replaces a chunk instead of being added."
        )
    rank, number = next((rank, number) for rank in range(world_size) for number in filled if not complete[rank, number])
    index = int(next(index for index in chunks[number] if not right[rank, index]))
    what, hint = _explain_element(int(vectors[rank][index]), index, world_size)
    return f"rank {rank} has a wrong element {index}, in chunk {number}: {what}. {hint}"


def _explain_element(value: int, index: int, world_size: int) -> tuple[str, str]:
    counts = _counts(value, world_size)
    missing = [rank for rank, count in enumerate(counts) if count == 0]
    doubled = [rank for rank, count in enumerate(counts) if count > 1]
    in_place = value >> COUNT_BITS == index * sum(counts)
    if not in_place or value < 0:
        return (
            "it holds values that belong to other positions",
            "A chunk has landed where another belongs: sender and receiver must mean the same chunk. What rank r sends "
            "in step s is what rank r + 1 must expect from its left in step s. (A chunk that went through another "
            "dtype looks like that too.)",
        )
    if doubled:
        where = f", and lacks {_ranks(missing)}" if missing else ""
        return (
            f"it counts {_ranks(doubled)} more than once{where}",
            "Something was added that was in the sum already. In the all-gather a complete chunk must replace, not be "
            "added; in the reduce-scatter each step must pass on the chunk that was added to in the step before.",
        )
    return (
        f"it lacks {_ranks(missing)}",
        "It is a partial sum, and the complete one never came. Are there N - 1 steps of each kind? In step s of the "
        "reduce-scatter rank r sends chunk r - s - 1 (mod N), in step s of the all-gather chunk r - s: the one that "
        "came in one step earlier.",
    )


def _counts(value: int, world_size: int) -> list[int]:
    """How often each rank was counted in a coded sum."""
    return [value >> (DIGIT_BITS * rank) & (1 << DIGIT_BITS) - 1 for rank in range(world_size)]


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


# -- the bytes ------------------------------------------------------------------------------------------------------


def explain_bytes(
    passed: Sequence[tuple[int, int]], rings: Sequence[Sequence[tuple[int, int]]], length: int, itemsize: int
) -> str | None:
    """What is wrong with the bytes (sent, received) per rank; ``rings``: what a ring may have, turned each way.

    The result is known to be right.
    """
    if any(list(passed) == list(ring) for ring in rings):
        return None
    world_size, size = len(passed), length * itemsize
    sent, least = sum(pair[0] for pair in passed), sum(pair[0] for pair in rings[0])
    text = f"right result, wrong bytes: the ranks sent {[pair[0] for pair in passed]}, a ring sends "
    text += f"{[pair[0] for pair in rings[0]]}. "
    if sent == world_size * (world_size - 1) * size:
        return text + (
            "That is (N - 1) V a rank: whole vectors travel, as in the naive all-gather-then-sum, N / 2 times what is "
            "needed. Cut the vector into N chunks and send one chunk a step."
        )
    if sent == world_size * 2 * (world_size - 1) * -(-length // world_size) * itemsize:
        return text + "Every chunk has the size of the largest one: do not pad, np.array_split cuts any length."
    if sent > least:
        return text + (
            f"That is {sent / least:.2f} times 2(N-1)/N V. One chunk a step, N - 1 steps of reduce-scatter and N - 1 "
            "of all-gather: is there a step too many, or more than one chunk in a step?"
            if least
            else "There is nothing to send: a world of one, or an empty vector."
        )
    if sent < least:
        return text + "No all-reduce can do with less: do all bytes pass right.send or right.sendall?"
    return text + (
        "The total is that of a ring, but its parts are not: are the chunks those of np.array_split, whose sizes "
        "differ by one element at most, the larger ones first?"
    )


# -- a run that did not end well --------------------------------------------------------------------------------------


def explain_failure(error: WorldError, file: Path) -> str:
    """Why the ranks did not all return."""
    if isinstance(error, RankRaised):
        return _explain_raised(error, file)
    if isinstance(error, Stuck):
        return _explain_stuck(error, file)
    assert isinstance(error, RankDied)
    return f"{error}. A crash outside Python, or a call of os._exit?"


def _explain_raised(error: RankRaised, file: Path) -> str:
    if error.kind == "NotImplementedError":
        return error.text
    own = _own_frame(error.frames, file)
    where = f"\n    {_quote(own)}" if own else ""
    hint = ""
    if error.kind == "BlockingIOError":
        hint = (
            "The sockets do not block: recv has nothing yet, or send has no room. Ask select which socket can do "
            "something before you touch it, and take what send and recv_into return: how many bytes it really was."
        )
    elif error.kind == "ValueError" and "broadcast" in error.text:
        hint = (
            "Two chunks of different sizes met. When N does not divide the length, chunks differ by one element: the "
            "buffer for what comes in must have the size of the chunk that comes in."
        )
    elif error.is_connection:
        hint = "Did a rank return, or give up, while its neighbour still had to send or receive?"
    return f"{error}{where}\n{hint}".rstrip()


def _explain_stuck(error: Stuck, file: Path) -> str:
    lines = []
    doing: dict[int, str] = {}
    for rank in range(max(error.stacks, default=-1) + 1):
        frames = error.stacks.get(rank, ())
        if rank in error.waiting or rank not in error.stacks:
            lines.append(f"    rank {rank} has finished")
            continue
        own = _own_frame(frames, file)
        doing[rank] = "running" if rank in error.running else _activity(frames, own)
        lines.append(f"    rank {rank} {_PHRASES[doing[rank]]}" + (f": {_quote(own)}" if own else ""))
    return f"not done after {error.deadline_s:g} s\n" + "\n".join(lines) + f"\n{_verdict(doing, len(lines))}"


_PHRASES = {
    IN_SEND: "sits in send",
    IN_RECV: "sits in recv",
    IN_SELECT: "waits in select",
    "running": "is running",
    "asleep": "waits",
}


def _verdict(doing: dict[int, str], world_size: int) -> str:
    kinds = set(doing.values())
    if "running" in kinds:
        busy = _ranks([rank for rank, what in doing.items() if what == "running"])
        return (
            f"An endless loop in {busy}? It does not wait for anybody. Does every turn of the loop get nearer to its "
            "end? recv_into returns 0 for ever once the other side has closed, and for a buffer of no bytes."
        )
    if len(doing) < world_size:
        return (
            "Some ranks have finished and others still wait: do all ranks take the same number of steps, and does each "
            "send as many bytes as its right neighbour expects?"
        )
    if kinds == {IN_SEND}:
        return (
            "Deadlock: every rank sits in send, and nobody receives. A message larger than the kernel's socket buffers "
            "is not taken until the neighbour reads. Small messages hide this. Send and receive at once: select on "
            "both sockets, send what fits, receive what is there, until both are done."
        )
    if kinds == {IN_RECV}:
        return (
            "Deadlock: every rank sits in recv, and nobody sends. Either all receive first, or more bytes are expected "
            "than the neighbour sent in this step."
        )
    if kinds == {IN_SELECT}:
        return (
            "Deadlock: every rank waits in select. Is only one of the two sockets asked for, such as to send all "
            "before receiving anything? That ends once the socket buffers are full. Or are more bytes expected than "
            "the neighbour sends in this step? send may take fewer bytes than it is offered."
        )
    return "Deadlock: each waits for another. Every step must send one chunk and receive one, both at once."


def _activity(frames: Sequence[Frame], own: Frame | None) -> str:
    """What a sleeping rank waits in: the counting socket's method is a frame of its own, ``select`` is not."""
    inner = frames[-1].function if frames else ""
    if inner.startswith(IN_SEND):
        return IN_SEND
    if inner.startswith(IN_RECV):
        return IN_RECV
    text = linecache.getline(own.file, own.line) if own else ""
    return IN_SELECT if re.search(r"\b(select|poll)\b", text) else "asleep"


def _own_frame(frames: Sequence[Frame], file: Path) -> Frame | None:
    """The innermost frame in the learner's file."""
    return next((frame for frame in reversed(frames) if Path(frame.file) == file), None)


def _quote(frame: Frame) -> str:
    return f"line {frame.line} in {frame.function}: {linecache.getline(frame.file, frame.line).strip()}"
