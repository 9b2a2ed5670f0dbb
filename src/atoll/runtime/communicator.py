"""The communicator: collectives on NumPy arrays among the ranks of a world, or of a part of it.

Every call names what it does to which array; the rest has a default that is the same on every rank. Without ``out``
a new array is returned and the input is left alone; ``out=array`` itself is in place. Every collective takes

``algorithm``  ``"auto"``, a catalogued name, or a ``Schedule`` of your own, which is proven before it first runs
``async_op``   return a ``Work`` at once instead of the result
``timeout``    seconds until ``CollectiveTimeout``, the communicator's own by default; never without end

Reductions take ``deterministic=True``, which fixes the order of an element's sum for every size, position and
transport, and ``order="rank"``, ((x0 + x1) + x2) + ... whichever algorithm runs (``runtime.stability``); without them
they do as ``atoll.init`` was told.

Ranks must make the same calls in the same order. Where they do not, every rank gets ``CollectiveMismatch`` with who
called what; a rank that is gone is ``PeerLost`` on all others. So no collective returns on a rank before all ranks have
called it, also where the data alone would let it (the root of a broadcast only sends). That a collective has returned
says that this rank's output is right, not that the others have theirs yet.

After such an error the communicator is of no more use: later calls raise the same error, and what the failed calls
would have written is undefined. ``shrink`` and ``grow`` make a new one of those that are left (``runtime.recovery``).
The same holds where a call is interrupted, by Ctrl-C or by what an operation raises:
the other ranks get ``PeerLost`` with this rank as the culprit. One thread at a time may call a communicator;
different communicators may be called by different threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from math import prod
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.errors import SpecError
from atoll.runtime.arrays import Array, address, as_input, as_output, contiguous_stand_in
from atoll.runtime.caller import Caller, derive_id
from atoll.runtime.choice import Chooser, layout_of
from atoll.runtime.link import ByteCount
from atoll.runtime.plans import AlgorithmLike, Plans, transfer_plan
from atoll.runtime.process import Process
from atoll.runtime.record import Recorder, gather_trace
from atoll.runtime.recovery import Agreed, Recovery
from atoll.runtime.reduction import OperationLike, Reduction, reduction
from atoll.runtime.stability import Order, order_asked
from atoll.runtime.stragglers import Lateness, score
from atoll.runtime.tuning import unpack
from atoll.schedule.contract import contract
from atoll.schedule.partition import balanced
from atoll.trace.events import Trace

DEFAULT_TIMEOUT_S = 60.0
_SURVEYED_CALLS = 256  # sixteen half-lives of a score: what lies further back does not show


class Communicator:
    """Ranks 0 to ``world_size - 1``; made by ``atoll.init`` and ``split``."""

    def __init__(
        self, process: Process, communicator_id: int, world_ranks: Sequence[int], timeout_s: float,
        order: Order = "any", generation: int = 0, whole_world: bool = False,
    ) -> None:  # fmt: skip
        """``world_ranks[r]`` is the world rank of this communicator's rank r; ``order`` that of its reductions.

        ``generation`` is how many communicators it succeeds; to close that of the ``whole_world`` is to leave it.
        """
        self._caller = Caller(process, communicator_id, world_ranks, timeout_s, {})
        self._recovery = Recovery(self._caller, generation)
        self._whole_world = whole_world
        self.rank = self._caller.rank
        self.world_size = len(self._caller.world_ranks)
        hosts = [process.membership.peers[rank].host for rank in world_ranks]
        layout = layout_of(hosts, shared_memory=process.transport != "tcp")
        self._plans = Plans(self.rank, Chooser(unpack(process.membership.tuning), layout))
        self._order: Order = order
        self._pairs: dict[tuple[int, int], Caller] = {}
        self._splits = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"<Communicator rank {self.rank} of {self.world_size}>"

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- collectives -----------------------------------------------------------------------------------------------

    def all_reduce(
        self, array: npt.ArrayLike, op: OperationLike = "sum", *, out: Array | None = None,
        algorithm: AlgorithmLike = "auto", deterministic: bool | None = None, order: str | None = None,
        async_op: bool = False, timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """The reduction of every rank's ``array``, on every rank; any shape, the same on all ranks."""
        asked = order_asked(deterministic, order, self._order)
        if (done := self._again("all_reduce", array, out, op, algorithm, asked, async_op, timeout)) is not None:
            return done
        source = as_input("all_reduce", array)
        return self._start("all_reduce", source, out, source.shape, source.size, op, None, algorithm,
                           async_op, timeout, order=asked)  # fmt: skip

    def reduce_scatter(
        self, array: npt.ArrayLike, op: OperationLike = "sum", *, out: Array | None = None,
        algorithm: AlgorithmLike = "auto", deterministic: bool | None = None, order: str | None = None,
        async_op: bool = False, timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """Block ``rank`` of the reduction of every rank's ``array``.

        Where N divides the first axis, the block is a part of that axis. Else it is one-dimensional: the rank's part
        of the flattened array, the first blocks one element longer where N does not divide its size.

        In place, ``out`` is that part of ``array`` itself, and the rest of ``array`` is left undefined: algorithms
        keep partial results there.
        """
        asked = order_asked(deterministic, order, self._order)
        if (done := self._again("reduce_scatter", array, out, op, algorithm, asked, async_op, timeout)) is not None:
            return done
        source = as_input("reduce_scatter", array)
        size = int(balanced(source.size, self.world_size)[self.rank])
        shape = _block_shape(source.shape, self.world_size, size)
        return self._start("reduce_scatter", source, out, shape, source.size, op, None, algorithm,
                           async_op, timeout, order=asked)  # fmt: skip

    def all_gather(
        self, array: npt.ArrayLike, *, out: Array | None = None, algorithm: AlgorithmLike = "auto",
        async_op: bool = False, timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """Every rank's ``array``, one after the other along the first axis, on every rank.

        Blocks are of one size, but where ``out`` is given and N does not divide its size, blocks are its balanced
        parts, as ``reduce_scatter`` makes them.
        """
        if (done := self._again("all_gather", array, out, None, algorithm, "any", async_op, timeout)) is not None:
            return done
        source = as_input("all_gather", array)
        length = self._gathered_length("all_gather", source, out)
        return self._start("all_gather", source, out, _joined_shape(source.shape, self.world_size), length,
                           None, None, algorithm, async_op, timeout)  # fmt: skip

    def broadcast(
        self, array: Array, root: int = 0, *, algorithm: AlgorithmLike = "auto", async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """The root's ``array`` in every rank's ``array``, in place; ``array`` is returned.

        The root returns when its bytes are sent and all ranks have called.
        """
        root = self._check_root("broadcast", root)
        timeout_s = self._check(timeout)
        result = as_output("broadcast", array, _dtype_of(array), np.size(array)) if self.rank != root else array
        source = as_input("broadcast", array)
        target = source if self.rank == root else contiguous_stand_in(result)
        plan = self._plans.plan("broadcast", algorithm, root, True, source.size, source.dtype.itemsize)
        return self._caller.call(
            self._caller.ready("broadcast", plan, source.dtype, None, root), source, target, timeout_s, async_op,
            result, None if self.rank == root else self._finisher(None, target, result),
        )  # fmt: skip

    def reduce(
        self, array: npt.ArrayLike, op: OperationLike = "sum", root: int = 0, *, out: Array | None = None,
        algorithm: AlgorithmLike = "auto", deterministic: bool | None = None, order: str | None = None,
        async_op: bool = False, timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """The reduction of every rank's ``array`` at the root; ``None`` elsewhere, where ``out`` is not looked at."""
        root = self._check_root("reduce", root)
        source = as_input("reduce", array)
        return self._start("reduce", source, out, source.shape, source.size, op, root, algorithm, async_op,
                           timeout, has_output=self.rank == root,
                           order=order_asked(deterministic, order, self._order))  # fmt: skip

    def all_to_all(
        self, array: npt.ArrayLike, *, out: Array | None = None, algorithm: AlgorithmLike = "auto",
        async_op: bool = False, timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """Block b of ``array`` goes to rank b; block i of the result is from rank i. N must divide its size."""
        if (done := self._again("all_to_all", array, out, None, algorithm, "any", async_op, timeout)) is not None:
            return done
        source = as_input("all_to_all", array)
        return self._start("all_to_all", source, out, source.shape, source.size, None, None, algorithm,
                           async_op, timeout)  # fmt: skip

    def gather(
        self, array: npt.ArrayLike, root: int = 0, *, out: Array | None = None, algorithm: AlgorithmLike = "auto",
        async_op: bool = False, timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """Every rank's ``array``, one after the other along the first axis, at the root; ``None`` elsewhere."""
        root = self._check_root("gather", root)
        source = as_input("gather", array)
        return self._start("gather", source, out, _joined_shape(source.shape, self.world_size),
                           source.size * self.world_size, None, root, algorithm, async_op, timeout,
                           has_output=self.rank == root)  # fmt: skip

    def scatter(
        self, array: npt.ArrayLike | None, root: int = 0, *, out: Array | None = None,
        algorithm: AlgorithmLike = "auto", async_op: bool = False, timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """Block ``rank`` of the root's ``array``. Elsewhere ``array`` is None and ``out`` says shape and dtype.

        N must divide the size of the root's array.
        """
        root = self._check_root("scatter", root)
        if self.rank != root:
            if array is not None or out is None:
                raise SpecError(
                    f"scatter: expected array=None and an out array on rank {self.rank}, the root is {root}"
                )
            given = as_output("scatter", out, _dtype_of(out), np.size(out))
            empty = np.zeros(0, dtype=given.dtype)
            length = given.size * self.world_size
            return self._start("scatter", empty, given, given.shape, length, None, root, algorithm, async_op, timeout)
        if array is None:
            raise SpecError(f"scatter: expected an array on rank {self.rank}, the root, got None")
        source = as_input("scatter", array)
        if source.size % self.world_size:
            raise SpecError(
                f"scatter: expected a size in a multiple of {self.world_size} ranks, got {source.size}; pad the array"
            )
        shape = _block_shape(source.shape, self.world_size, source.size // self.world_size)
        return self._start("scatter", source, out, shape, source.size, None, root, algorithm, async_op,
                           timeout)  # fmt: skip

    def barrier(
        self, *, algorithm: AlgorithmLike = "auto", async_op: bool = False, timeout: float | None = None
    ) -> Any:
        """Return once every rank has called it."""
        timeout_s = self._check(timeout)
        caller, token = self._caller, np.ones(1, dtype=np.uint8)
        if not async_op and type(algorithm) is str:
            seen = caller.seen.get(("barrier", algorithm))
            if seen is not None:
                return caller.call(seen, token, token, timeout_s)
        plan = self._plans.plan("barrier", algorithm, None, True, 1, 1)
        ready = caller.ready("barrier", plan, token.dtype, reduction("bor", token.dtype))
        if type(algorithm) is str:
            caller.seen["barrier", algorithm] = ready
        return caller.call(ready, token, token, timeout_s, async_op)

    # -- point to point ----------------------------------------------------------------------------------------------

    def send(self, array: npt.ArrayLike, dst: int, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Send ``array`` to rank ``dst``, which calls ``recv``; returns once the memory may be used again."""
        dst = self._check_peer("send", dst)
        source = as_input("send", array)
        return self._transfer(self.rank, dst, source, async_op, timeout)

    def recv(self, array: Array, src: int, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Fill ``array`` with what rank ``src`` sends: the same dtype and size; ``array`` is returned."""
        src = self._check_peer("recv", src)
        out = as_output("recv", array, _dtype_of(array), np.size(array))
        return self._transfer(src, self.rank, out, async_op, timeout)

    # -- memory ----------------------------------------------------------------------------------------------------

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        """An uninitialised array in memory that the ranks of this host share, as ``np.empty`` makes one elsewhere.

        Peers on this host read large inputs and results of collectives from it in place, without a copy. Its memory is
        reused once the array and all its views are gone.
        """
        return self._caller.process.heap.empty(shape, dtype)

    # -- the communicator itself ---------------------------------------------------------------------------------------

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A communicator of the ranks that gave the same ``color``, ordered by (key, rank); ``None`` for no color.

        A collective: every rank calls it. ``color`` is at least 0. Closing this communicator does not close those
        split from it, but closing the world's ends them all.
        """
        key = _whole("split: key", key)
        if color is not None:
            color = _whole("split: color", color)
            if color < 0:
                raise SpecError(f"split: expected a color of at least 0, or None, got {color}")
        mine = np.array([-1 if color is None else color, key], dtype=np.int64)
        everyone = self.all_gather(mine).reshape(self.world_size, 2).tolist()
        self._splits += 1
        if color is None:
            return None
        members = sorted(
            (their_key, rank) for rank, (their_color, their_key) in enumerate(everyone) if their_color == color
        )
        caller = self._caller
        identity = derive_id(caller.identity, "split", self._splits, color)
        return Communicator(
            caller.process, identity, [caller.world_ranks[rank] for _, rank in members], caller.timeout_s, self._order
        )  # fmt: skip

    def traffic(self) -> dict[int, ByteCount]:
        """Bytes passed to and from the sockets of each peer so far, by rank, point-to-point transfers included."""
        ranks = self._caller.world_ranks
        return {ranks.index(peer): copy(count) for peer, count in sorted(self._caller.counts.items())}

    def record(self) -> None:
        """Record when the messages of this rank's collectives move, from the next call on, until ``trace``.

        Meanwhile small collectives take longer (``runtime.record``). Point-to-point transfers are not recorded.
        """
        self._caller.recorder = Recorder()

    def trace(self) -> Trace | None:
        """What was recorded on all ranks, at rank 0; ``None`` elsewhere. A collective; it ends the recording.

        All ranks have called ``record`` before the same call.
        """
        caller = self._caller
        recorder, caller.recorder = caller.recorder, None
        if recorder is None:
            raise SpecError("trace: nothing was recorded; call record() first, on every rank")
        return gather_trace(self, recorder, caller.process.membership.peers[caller.world_ranks[self.rank]].host)

    def close(self) -> None:
        """Leave: what is in flight is given up, connections close.

        Closing the world's communicator ends the process's part in it; do that on every rank once all are done.
        """
        if self._closed:
            return
        self._closed = True
        for caller in (*self._pairs.values(), self._caller):
            caller.close()
        if self._whole_world:
            self._caller.process.close()

    # -- after a failure: see ``runtime.recovery`` --------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """How many communicators this one succeeds: above 0 after ``shrink`` and ``grow``, and on a spare."""
        return self._recovery.generation

    def abort(self, reason: str = "it called abort") -> None:
        """End this communicator for all its ranks: their calls raise ``PeerLost`` naming this rank and the reason."""
        self._recovery.abort(reason)

    def agree(self, value: int = -1, *, timeout: float | None = None) -> Agreed:
        """The bitwise and of every survivor's ``value``, and which ranks are lost: the same on every survivor.

        Works on a communicator that has failed. A rank that has returned from it knows that all survivors will.
        """
        return self._recovery.agree(_whole("agree: value", value), self._patience(timeout))

    def shrink(self, *, timeout: float | None = None) -> Communicator:
        """A communicator of the ranks that are left, renumbered in their order; every one of them calls this.

        Who is alive but has not called it within ``timeout`` seconds is given up, where more than half have.
        """
        return self._succeed(False, None, timeout)

    def grow(self, world_size: int | None = None, *, timeout: float | None = None) -> Communicator:
        """A communicator with waiting spares in the place of the lost, under their numbers; every survivor calls this.

        Lost ranks for which there is no spare are left out, as ``shrink`` does. Where nobody is lost, or up to
        ``world_size`` if that is given, spares come behind the last rank.
        """
        if world_size is not None and _whole("grow: world_size", world_size) < 1:
            raise SpecError(f"grow: expected a world_size of at least 1, got {world_size}")
        return self._succeed(True, world_size, timeout)

    def stragglers(self, *, timeout: float = 1.0) -> list[Lateness]:
        """How late each rank comes to collectives, the latest first (``runtime.stragglers``); any rank may ask alone.

        Counts the latest calls, up to 256, that all ranks have made. Empty where a rank does not answer in time.
        """
        caller = self._caller
        if self._closed:
            raise SpecError("the communicator is closed")
        arrivals = caller.process.control.arrivals(caller.identity, _SURVEYED_CALLS, timeout)
        if len(arrivals) < self.world_size:
            return []
        hosts = [caller.process.membership.peers[world_rank].host.name for world_rank in caller.world_ranks]
        return score({caller.world_ranks.index(rank): made for rank, made in arrivals.items()}, hosts)

    def _succeed(self, spares: bool, world_size: int | None, timeout: float | None) -> Communicator:
        caller = self._caller
        following = self._recovery.succeed(spares, world_size, self._patience(timeout))
        ended = caller.process.control.failure(caller.identity)
        if ended is not None:
            # Nothing of the failed one is touched any more, neither connections nor memory shared with the lost.
            for failed in (*self._pairs.values(), caller):
                failed.release(ended)
                caller.process.control.unregister(failed.identity)
        return Communicator(caller.process, following.identity, following.world_ranks, caller.timeout_s, self._order,
                            following.generation, self._whole_world)  # fmt: skip

    def _patience(self, timeout: float | None) -> float:
        if self._closed:
            raise SpecError("the communicator is closed")
        timeout_s = self._caller.timeout_s if timeout is None else timeout
        if not timeout_s > 0:
            raise SpecError(f"timeout: expected more than 0 seconds, got {timeout_s!r}")
        return timeout_s

    # -- how a collective is started -----------------------------------------------------------------------------------

    def _start(
        self, collective: str, source: Array, out: Array | None, shape: tuple[int, ...], length: int,
        op: OperationLike | None, root: int | None, algorithm: AlgorithmLike, async_op: bool, timeout: float | None, *,
        has_output: bool = True, order: Order = "any",
    ) -> Any:  # fmt: skip
        """A collective from ``source`` to ``out``, or to a new array of ``shape``; ``has_output``: whether this rank
        gets any. ``length`` is the whole vector's."""
        timeout_s = self._check(timeout)
        dtype = source.dtype
        chosen = None if op is None else reduction(op, dtype)
        result: Array | None = None
        target: Array | None = None
        in_place = False
        if has_output:
            size = length if collective == "all_gather" else prod(shape)
            result = np.empty(shape, dtype) if out is None else as_output(collective, out, dtype, size)
            target = contiguous_stand_in(result)
            if out is source and collective == "all_reduce" and target is result:
                in_place = True  # ``as_output`` has seen that it may be written
            elif out is not None and np.may_share_memory(source, result):
                in_place = (
                    target is result
                    and source.flags.writeable
                    and self._is_in_place(collective, root, length, source, target)
                )
                if not in_place:
                    source = source.copy()
        plan = self._plans.plan(collective, algorithm, root, in_place, length, dtype.itemsize, order)
        if in_place and not plan.in_place:
            source = source.copy()
        ready = self._caller.ready(collective, plan, dtype, chosen, root)
        finish = self._finisher(chosen, target, result)
        as_is = root is None and finish is None and result is not None and in_place <= plan.in_place
        # Equal dtypes may be objects of their own for each array: only those that are ``ready``'s are found again.
        if as_is and ready.dtype is dtype and (type(op) is str or op is None) and type(algorithm) is str:
            key = (collective, op, algorithm, order, id(dtype), source.size, result.size, in_place)  # type: ignore[union-attr]
            self._caller.seen[key] = ready
        return self._caller.call(ready, source, target, timeout_s, async_op, result, finish)

    def _again(
        self, collective: str, array: object, out: object, op: OperationLike | None, algorithm: AlgorithmLike,
        order: Order, async_op: bool, timeout: float | None,
    ) -> Array | None:  # fmt: skip
        """``out``, after a call like an earlier one, where nothing about the arrays asks for more than to make it
        again; None where it has to be made the long way."""
        if type(array) is not np.ndarray or type(out) is not np.ndarray or async_op or timeout is not None:
            return None
        if (type(op) is not str and op is not None) or type(algorithm) is not str:
            return None
        caller, dtype, flags, in_place = self._caller, array.dtype, array.flags, array is out
        ready = caller.seen.get((collective, op, algorithm, order, id(dtype), array.size, out.size, in_place))
        if ready is None or ready.dtype is not dtype or out.dtype is not dtype:
            return None
        if not (flags.c_contiguous and flags.aligned and caller.unharmed()) or self._closed:
            return None
        written = out.flags
        if not written.carray or not (
            in_place or (flags.owndata and written.owndata) or not np.may_share_memory(array, out)
        ):
            return None
        caller.call(ready, array, out, caller.timeout_s)
        return out

    def _finisher(
        self, chosen: Reduction | None, target: Array | None, result: Array | None
    ) -> Callable[[], None] | None:
        """What is left to do with the output: divide a mean, copy back into memory that is not contiguous."""
        mean = chosen is not None and chosen.mean
        if target is None or result is None or (not mean and target is result):
            return None
        world_size = self.world_size

        def finish() -> None:
            if mean:
                np.divide(target, np.asarray(world_size, dtype=target.dtype), out=target)
            if target is not result:
                result[...] = target

        return finish

    def _transfer(self, src: int, dst: int, array: Array, async_op: bool, timeout: float | None) -> Any:
        self._check(timeout)
        pair = self._pairs.get((src, dst))
        if pair is None:
            ends = (self._caller.world_ranks[src], self._caller.world_ranks[dst])
            identity = derive_id(self._caller.identity, "send", src, dst)
            pair = Caller(self._caller.process, identity, ends, self._caller.timeout_s, self._caller.counts)
            self._pairs[src, dst] = pair
        timeout_s = pair.check(timeout)
        sends = self.rank == src
        target = array if sends else contiguous_stand_in(array)
        plan = transfer_plan(pair.rank, array.size, array.dtype.itemsize)
        return pair.call(
            pair.ready("send", plan, array.dtype), target, target, timeout_s, async_op,
            None if sends else array, None if sends else self._finisher(None, target, array),
        )  # fmt: skip

    # -- checks -------------------------------------------------------------------------------------------------------

    def _check(self, timeout: float | None) -> float:
        if self._closed:
            raise SpecError("the communicator is closed")
        return self._caller.check(timeout)

    def _is_in_place(self, collective: str, root: int | None, length: int, source: Array, target: Array) -> bool:
        """Whether input and output lie to each other as the collective's vector has it."""
        if collective == "all_to_all" or not np.may_share_memory(source, target):
            return False
        terms = contract(collective, self.world_size, self.world_size, root)
        starts = np.cumsum(balanced(length, terms.blocks)) - balanced(length, terms.blocks)
        first_in = (
            int(starts[terms.input_start(self.rank) // terms.chunks_per_block]) if terms.collective.blocked else 0
        )
        first_out = (
            int(starts[terms.output_start(self.rank) // terms.chunks_per_block]) if terms.collective.blocked else 0
        )
        return address(source) - address(target) == (first_in - first_out) * source.dtype.itemsize

    def _gathered_length(self, what: str, source: Array, out: Array | None) -> int:
        if out is None or not isinstance(out, np.ndarray) or out.size == source.size * self.world_size:
            return source.size * self.world_size
        expected = int(balanced(out.size, self.world_size)[self.rank])
        if expected != source.size:
            raise SpecError(
                f"{what}: out: expected {source.size * self.world_size} elements, {self.world_size} blocks of the "
                f"input, or a size whose part for rank {self.rank} is the input's {source.size}; got {out.size}"
            )
        return out.size

    def _check_root(self, what: str, root: int) -> int:
        root = _whole(f"{what}: root", root)
        if not 0 <= root < self.world_size:
            raise SpecError(f"{what}: expected a root between 0 and {self.world_size - 1}, got {root}")
        return root

    def _check_peer(self, what: str, peer: int) -> int:
        peer = _whole(f"{what}: rank", peer)
        if not 0 <= peer < self.world_size or peer == self.rank:
            raise SpecError(
                f"{what}: expected another rank between 0 and {self.world_size - 1} than {self.rank} itself, got {peer}"
            )
        return peer


def _whole(what: str, number: int) -> int:
    """``number``, of any integer type, as an ``int`` that fits in 64 bits."""
    try:
        whole = index(number)
    except TypeError:
        raise SpecError(f"{what}: expected a whole number, got {number!r}") from None
    if not -(1 << 63) <= whole < 1 << 63:
        raise SpecError(f"{what}: expected a number of 64 bits, got {whole}")
    return whole


def _dtype_of(array: object) -> np.dtype[Any]:
    return array.dtype if isinstance(array, np.ndarray) else np.dtype(np.uint8)


def _block_shape(shape: tuple[int, ...], world_size: int, size: int) -> tuple[int, ...]:
    """The shape of one of N blocks: a part of the first axis where N divides it, else one axis of ``size``."""
    return (shape[0] // world_size, *shape[1:]) if shape and shape[0] % world_size == 0 else (size,)


def _joined_shape(shape: tuple[int, ...], world_size: int) -> tuple[int, ...]:
    """The shape of N arrays of ``shape`` along the first axis."""
    return (shape[0] * world_size, *shape[1:]) if shape else (world_size,)
