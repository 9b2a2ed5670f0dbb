"""What may be an operation, and on which dtypes."""

import ml_dtypes
import numpy as np
import pytest

from atoll.errors import SpecError
from atoll.runtime.reduction import associative, reduction


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "band", "bor", "bxor"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_every_operation_on_whole_numbers(op: str, dtype: str) -> None:
    chosen = reduction(op, dtype)
    out = np.zeros(2, dtype)
    chosen.ufunc(np.ones(2, dtype), np.ones(2, dtype), out=out)
    assert out.dtype == np.dtype(dtype)
    assert chosen.name == op


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_every_operation_on_floats(op: str, dtype: object) -> None:
    chosen = reduction(op, dtype)  # type: ignore[arg-type]
    assert chosen.mean is (op == "avg")


@pytest.mark.parametrize(
    ("op", "dtype", "message"),
    [
        ("summ", "f4", "did you mean 'sum'"),
        ("avg", "i4", "avg of int32"),
        ("avg", "bool", "avg of bool"),
        ("band", "f4", "band is not defined for dtype float32"),
        ("sum", "O", "not supported"),
        ("sum", "M8[s]", "is not defined"),
        (np.subtract, "f4", "subtract is not known to be associative"),
        (np.divide, "f4", "not known to be associative"),
        (np.arctan2, "i4", "not known to be associative"),
        (7, "f4", "expected a name"),
    ],
)
def test_what_is_no_operation_is_refused_with_the_reason(op: object, dtype: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        reduction(op, dtype)  # type: ignore[arg-type]


def test_a_ufunc_may_be_declared_associative() -> None:
    with pytest.raises(SpecError, match=r"atoll\.associative"):
        reduction(np.bitwise_count, "u1")
    chosen = reduction(associative(np.left_shift), "i8")
    assert chosen.name == "left_shift"
    with pytest.raises(SpecError, match="two operands"):
        associative(np.negative)
