"""A caller's arrays as the runtime needs them: flat, contiguous bytes; and back.

Inputs that are not contiguous are copied, outputs that are not are filled from a contiguous one at the end. An
output that shares memory with the input is either exactly what "in place" means for the collective, or the input is
copied first: never silently wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.errors import SpecError

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
NOTHING: Bytes = np.zeros(0, dtype=np.uint8)


def as_input(what: str, array: npt.ArrayLike) -> Array:
    """``array`` as a C-contiguous, aligned array; itself where it is one. ``SpecError`` for what cannot travel."""
    if isinstance(array, np.ma.MaskedArray):
        raise SpecError(
            f"{what}: masked arrays are not supported, their mask would be lost: expected array.filled(...)"
        )
    try:
        given = np.asarray(array)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{what}: expected an array or what makes one, got {type(array).__name__}: {error}") from None
    if given.dtype.hasobject or given.dtype.itemsize == 0:
        raise SpecError(f"{what}: dtype {given.dtype} cannot be sent: expected numbers of a fixed size")
    flags = given.flags
    if flags.c_contiguous and flags.aligned:
        return given
    return np.require(given, requirements=["C", "A"])


def as_output(what: str, out: object, dtype: np.dtype[Any], size: int) -> Array:
    """``out``, checked: an array of ``size`` elements of ``dtype`` that may be written."""
    if not isinstance(out, np.ndarray):
        raise SpecError(f"{what}: out: expected a NumPy array, got {type(out).__name__}")
    if isinstance(out, np.ma.MaskedArray):
        raise SpecError(
            f"{what}: out: masked arrays are not supported: expected out.data, with the mask as it shall be"
        )
    if out.dtype != dtype:
        raise SpecError(f"{what}: out: expected dtype {dtype}, got {out.dtype}")
    if out.size != size:
        raise SpecError(f"{what}: out: expected {size} elements, got {out.size} (shape {out.shape})")
    if not out.flags.writeable:
        raise SpecError(f"{what}: out: is read-only")
    return out


def contiguous_stand_in(out: Array) -> Array:
    """``out`` itself where it is contiguous and aligned, else an empty array like it to be copied back."""
    return out if out.flags.c_contiguous and out.flags.aligned else np.empty(out.shape, out.dtype)


def flat_bytes(array: Array) -> Bytes:
    """A contiguous array's memory as bytes, no copy."""
    flat: Bytes = array.reshape(-1).view(np.uint8)
    return flat


def address(array: Array) -> int:
    """Where the array's memory starts."""
    start: int = array.__array_interface__["data"][0]
    return start
