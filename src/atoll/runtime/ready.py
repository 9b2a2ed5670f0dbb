"""A blocking call with what about it never changes: worked out once for a signature, used by every later call."""

from __future__ import annotations

from typing import Any

import numpy as np

from atoll.runtime.arrays import NOTHING, Array, Bytes
from atoll.runtime.lean import BoundLine
from atoll.runtime.linear import typed
from atoll.runtime.plans import Plan
from atoll.runtime.reduction import Reduction

OWN_SCRATCH_BYTES = 64 << 10  # kept by a call for itself; what is larger comes from the communicator's pool


class ReadyCall:
    """``facts`` are those of its descriptors but for communicator and sequence. ``line`` is the plan's line bound to
    its links; None as long as not all of them are there, or where it has none."""

    __slots__ = ("dtype", "facts", "line", "nothing", "plan", "reduction", "scratch", "typed_scratch")

    def __init__(self, collective: str, plan: Plan, dtype: np.dtype[Any], reduction: Reduction | None,
                 root: int | None) -> None:  # fmt: skip
        self.plan = plan
        self.dtype = dtype
        self.reduction = reduction
        op = None if reduction is None else reduction.name
        self.facts = (collective, str(dtype), plan.program.length, op, root, plan.algorithm)
        self.line: BoundLine | None = None
        self.nothing: Array = np.zeros(0, dtype=dtype)
        self.scratch: Bytes = NOTHING  # what it has kept for itself
        self.typed_scratch: Array = self.nothing

    def keep(self, scratch: Bytes) -> None:
        """Use ``scratch`` in every call from now on."""
        self.scratch = scratch
        self.typed_scratch = typed(scratch, self.dtype)

    def forget_scratch(self) -> None:
        """Somebody else has taken it."""
        self.scratch, self.typed_scratch = NOTHING, self.nothing
