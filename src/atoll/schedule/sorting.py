"""The order of rows by several keys at once, for tables of millions of rows.

NumPy sorts integers several times faster than it finds the order of them. So keys are packed into one integer, with
the number of the entry in the lowest bits if there is room for it: what is sorted then carries the order along.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atoll.schedule.contract import IntArray

_BITS = 63  # of an integer, without its sign


def order_by(*keys: npt.NDArray[np.integer]) -> IntArray:
    """Stable order by keys of at least 0, the first foremost."""
    widths = [int(key.max(initial=0)).bit_length() for key in keys]
    if sum(widths) > _BITS:
        return np.lexsort(keys[::-1])
    packed = np.zeros(len(keys[0]), dtype=np.int64)
    for key, width in zip(keys, widths, strict=True):
        packed <<= width
        packed |= key
    own = len(packed).bit_length()
    if sum(widths) + own > _BITS:
        return np.argsort(packed, kind="stable")
    packed <<= own
    packed |= np.arange(len(packed))
    packed.sort()
    packed &= (1 << own) - 1
    return packed
