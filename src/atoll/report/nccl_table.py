"""The table of nccl-tests, to the column, so that scripts that read one read the other.

Time is in microseconds, bandwidth in 1e9 bytes per second. ``algbw`` is the collective's size over its time, ``busbw``
is that times a factor which makes it comparable with what a link can carry (``schedule.bus_bandwidth``; nccl-tests,
doc/PERFORMANCE.md). Sizes follow nccl-tests: where the contract cuts the vector by rank it is the whole vector's.
"""

from __future__ import annotations

import math

from atoll.runtime.benchmark import Measurement, Result

# nccl-tests writes "float" where others write float32; its short names, from its ``-d`` option.
TYPE_NAMES = {
    "float16": "half", "float32": "float", "float64": "double", "bfloat16": "bfloat16", "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}  # fmt: skip

_WAY = "    time   algbw   busbw  #wrong "
_UNITS = "    (us)  (GB/s)  (GB/s)         "
HEADER = (
    "#\n"
    f"#{'':61} out-of-place {'':22}in-place          \n"
    f"#{'size':>11}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6} {_WAY}{_WAY}\n"
    f"#{'(B)':>11}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6} {_UNITS}{_UNITS}"
)


def algbw(size_bytes: int, time_s: float) -> float:
    """Bytes per second; 0 for no time."""
    return size_bytes / time_s if time_s > 0 else 0.0


def what(size_bytes: int, count: int, dtype: str, op: str, root: int) -> str:
    """The columns that say what was run; ``dtype`` by NumPy's name or nccl-tests'."""
    return f"{size_bytes:>12}  {count:>12}  {TYPE_NAMES.get(dtype, dtype):>8}  {op:>6}  {root:>6}"


def numbers(size_bytes: int, time_s: float, factor: float) -> str:
    """The columns of time, algbw and busbw."""
    bandwidth = algbw(size_bytes, time_s) / 1e9
    return f"  {_shrink(time_s * 1e6, 7):>7}  {_shrink(bandwidth, 6):>6}  {_shrink(bandwidth * factor, 6):>6}"


def row(result: Result, factor: float) -> str:
    """One line of the table, without the line's end."""
    line = what(result.size_bytes, result.count, result.dtype, result.op, result.root)
    return line + _measured(result, result.out_of_place, factor) + _measured(result, result.in_place, factor)


def footer(results: list[Result], factor: float) -> str:
    """The two closing lines: what was wrong in all, and the mean bus bandwidth over all runs."""
    measured = [
        (result, way) for result in results for way in (result.out_of_place, result.in_place) if way is not None
    ]
    wrong = sum(way.wrong or 0 for _, way in measured)
    checked = any(way.wrong is not None for _, way in measured)
    mean = (
        sum(algbw(result.size_bytes, way.time_s) * factor for result, way in measured) / len(measured) / 1e9
        if measured
        else 0.0
    )
    verdict = ("OK" if wrong == 0 else "FAILED") if checked else "N/A"
    return f"# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {mean:g} \n#"


def _measured(result: Result, way: Measurement | None, factor: float) -> str:
    if way is None:
        return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
    wrong = "N/A" if way.wrong is None else f"{way.wrong:g}"
    return f"{numbers(result.size_bytes, way.time_s, factor)}  {wrong:>6}"


def _shrink(value: float, width: int) -> str:
    """Two decimals, one, none, or an exponent: the first that fits, as nccl-tests does it."""
    if not math.isfinite(value):
        return "N/A"
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.1e}"
