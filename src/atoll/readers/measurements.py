"""Measured times of collectives in whatever form people keep them: the reader is found by content.

nccl-tests output as text or JSON, a table with a ``# columns:`` line, a CSV sweep; everything becomes runs of
nccl-tests.
"""

from __future__ import annotations

from atoll.readers.bandwidth_table import read_bandwidth_table
from atoll.readers.collective_sweep import is_collective_sweep, read_collective_sweep
from atoll.readers.identify import HEAD_BYTES, Kind, identify
from atoll.readers.nccl_tests import NcclTestRun, read_nccl_tests
from atoll.readers.nccl_tests_json import read_nccl_tests_json


def read_measurements(data: bytes, file: str) -> tuple[NcclTestRun, ...]:
    """The runs in ``data``; none where it holds no times. Raises ``SpecError`` for a known form that is broken."""
    head = data[:HEAD_BYTES]
    if is_collective_sweep(head):
        return read_collective_sweep(data, file)
    kind = identify(head, len(data))
    if kind is Kind.BANDWIDTH_TABLE:
        return (read_bandwidth_table(data, file),)
    if kind is Kind.NCCL_TESTS_JSON:
        return (read_nccl_tests_json(data, file),)
    return read_nccl_tests(data, file) if kind.is_text_lines else ()
