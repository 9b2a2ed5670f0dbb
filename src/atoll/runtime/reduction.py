"""What ``op=`` may be: an operation that is associative, and the check that it suits a dtype.

The order in which ranks are combined is the schedule's business, so an operation must at least be associative in
exact arithmetic. ``sum``, ``prod``, ``min``, ``max``, ``avg``, ``band``, ``bor``, ``bxor`` and the NumPy ufuncs
below are; any other ufunc is refused unless its caller declares it with ``associative(ufunc)``. Nothing assumes that
an operation commutes bit for bit: operands come ordered by the lowest rank that contributed to each.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from atoll.errors import SpecError, nearest

_NAMED: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "avg": np.add,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
_ASSOCIATIVE_UFUNCS = frozenset(
    {
        np.add, np.multiply, np.minimum, np.maximum, np.fmin, np.fmax, np.bitwise_and, np.bitwise_or, np.bitwise_xor,
        np.logical_and, np.logical_or, np.logical_xor, np.gcd, np.lcm, np.logaddexp, np.logaddexp2, np.hypot,
    }
)  # fmt: skip


class Reduction(msgspec.Struct, frozen=True, eq=False):
    """An operation for one dtype: ``ufunc(first, second, out=destination)``; ``mean`` divides by N at the end."""

    name: str
    ufunc: np.ufunc
    mean: bool = False


class associative:  # noqa: N801  # reads as a word: op=associative(ufunc)
    """Declares that ``ufunc`` is associative, so that it may be an ``op=``."""

    def __init__(self, ufunc: np.ufunc) -> None:
        if not isinstance(ufunc, np.ufunc) or ufunc.nin != 2 or ufunc.nout != 1:
            raise SpecError(f"associative: expected a NumPy ufunc of two operands and one result, got {ufunc!r}")
        self.ufunc = ufunc


OperationLike = str | np.ufunc | associative


def reduction(op: OperationLike, dtype: npt.DTypeLike) -> Reduction:
    """The reduction for ``op`` on ``dtype``. Raises ``SpecError`` where there is none, saying why."""
    if isinstance(op, associative):
        return _checked(op.ufunc.__name__, op.ufunc, np.dtype(dtype))
    if isinstance(op, str):
        if op not in _NAMED:
            raise SpecError(f"op: unknown operation {op!r}: {nearest(op, _NAMED)}")
        return _checked(op, _NAMED[op], np.dtype(dtype))
    if isinstance(op, np.ufunc):
        if op not in _ASSOCIATIVE_UFUNCS:
            raise SpecError(
                f"op: {op.__name__} is not known to be associative, so its result would depend on the algorithm; "
                "if it is, say so: op=atoll.associative(ufunc)"
            )
        return _checked(op.__name__, op, np.dtype(dtype))
    raise SpecError(f"op: expected a name, a NumPy ufunc or atoll.associative(ufunc), got {type(op).__name__}")


@lru_cache(maxsize=1024)
def _checked(name: str, ufunc: np.ufunc, dtype: np.dtype[Any]) -> Reduction:
    if dtype.hasobject or dtype.kind in "SUT" or dtype.names is not None:
        raise SpecError(f"op: {name} of dtype {dtype} is not supported: expected numbers")
    mean = name == "avg"
    if mean and np.dtype(dtype).kind in "biu":
        raise SpecError(f"op: avg of {dtype} would not be a whole number; use sum, or convert to a floating dtype")
    probe = np.ones(1, dtype=dtype)
    try:
        with np.errstate(all="ignore"):
            ufunc(probe, probe, out=np.ones(1, dtype=dtype))
    except (TypeError, ValueError):
        raise SpecError(f"op: {name} is not defined for dtype {dtype} with a result of the same dtype") from None
    return Reduction(name, ufunc, mean)
