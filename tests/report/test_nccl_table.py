"""Numbers in the columns of nccl-tests."""

import pytest

from atoll.report.nccl_table import HEADER, footer, row
from atoll.runtime.benchmark import Measurement, Result
from atoll.schedule.bus_bandwidth import BUSBW_FACTOR, busbw_factor
from atoll.schedule.contract import COLLECTIVES


def result(time_s: float, size_bytes: int = 1 << 20, wrong: int | None = 0, in_place: bool = True) -> Result:
    way = Measurement(time_s, wrong)
    return Result(
        "ring", size_bytes, size_bytes // 4, "float32", "sum", -1, way, way if in_place else None, (0,), (0,), (0,)
    )


def test_a_row_has_the_columns_of_its_header() -> None:
    text = row(result(250e-6), busbw_factor("all_reduce", 4))
    assert text == (
        "     1048576        262144     float     sum      -1"
        "   250.00    4.19    6.29       0   250.00    4.19    6.29       0"
    )
    assert {len(line.rstrip()) for line in HEADER.splitlines()[2:3]} == {len(text)}


@pytest.mark.parametrize(
    ("time_s", "shown"),
    [(1.234e-6, "1.23"), (9999.994e-6, "9999.99"), (99999.94e-6, "99999.9"), (0.999999, "999999"), (12.0, "1.2e+07"),
     (0.0, "0.00"), (float("inf"), "N/A")],
)  # fmt: skip
def test_numbers_shrink_to_fit_their_column(time_s: float, shown: str) -> None:
    assert row(result(time_s), 1.0).split()[5] == shown


def test_what_was_not_measured_or_checked_says_so() -> None:
    assert row(result(1e-3, in_place=False), 1.0).split()[9:] == ["N/A"] * 4
    assert row(result(1e-3, wrong=None), 1.0).split()[8] == "N/A"
    assert footer([result(1e-3, wrong=None)], 1.0).splitlines()[0] == "# Out of bounds values : 0 N/A"


def test_the_footer_sums_what_is_wrong_and_averages_over_both_ways() -> None:
    # 1 MiB in 1 ms and in 0.5 ms: 1.048576 and 2.097152 GB/s.
    lines = footer([result(1e-3, wrong=2), result(0.5e-3)], 1.0).splitlines()
    assert lines == ["# Out of bounds values : 4 FAILED", "# Avg bus bandwidth    : 1.57286 ", "#"]
    assert "Avg bus bandwidth    : 0 " in footer([], 1.0)


@pytest.mark.parametrize(("collective", "factor"), [
    ("all_reduce", 1.5), ("reduce_scatter", 0.75), ("all_gather", 0.75), ("all_to_all", 0.75), ("gather", 0.75),
    ("scatter", 0.75), ("broadcast", 1.0), ("reduce", 1.0),
])  # fmt: skip
def test_bus_bandwidth_factors_are_those_of_nccl_tests(collective: str, factor: float) -> None:
    assert busbw_factor(collective, 4) == factor
    assert set(COLLECTIVES) - {"barrier"} <= set(BUSBW_FACTOR)
