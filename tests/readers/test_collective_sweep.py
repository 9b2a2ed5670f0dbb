"""CSV sweeps of many systems."""

from __future__ import annotations

import pytest

from atoll.errors import SpecError
from atoll.readers.collective_sweep import is_collective_sweep, read_collective_sweep
from atoll.readers.measurements import read_measurements

SWEEP = """\
# from a public table
system,lib,lib_version,op_name,nccl_dtype,num_gpus,bytes,median,min
b200_sxm,nccl,2.28.9,all_reduce,half,4,512,11.25,11.0
b200_sxm,nccl,2.28.9,all_reduce,half,4,1024,11.5,11.0
b200_sxm,nccl,2.28.9,alltoall,half,8,512,12.5,12.0
"""


def test_runs_by_system_collective_and_ranks() -> None:
    first, second = read_collective_sweep(SWEEP, "s.csv")
    assert (first.collective, first.world_size, first.nccl_version) == ("all_reduce", 4, "2.28.9")
    assert [row.size_bytes for row in first.rows] == [512, 1024]
    assert first.rows[0].out_of_place is not None
    assert first.rows[0].out_of_place.time_s == 11.25e-6
    assert first.options == {"system": "b200_sxm", "lib": "nccl", "source": "from a public table"}
    assert (second.collective, second.world_size) == ("all_to_all", 8)
    assert str(second.source) == "s.csv:5"


def test_it_is_known_by_its_header_whatever_the_columns_order() -> None:
    assert is_collective_sweep(SWEEP.encode())
    assert is_collective_sweep(b"collective,ranks,size_bytes,time_us,system\nall_gather,2,8,1,x\n")
    assert not is_collective_sweep(b"size,count,type\n1,2,float\n")
    assert not is_collective_sweep(b"")
    assert len(read_measurements(SWEEP.encode(), "s.csv")) == 2


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("b200_sxm,nccl,2,all_reduce,half,4,512", "expected 8 columns"),
        ("b200_sxm,nccl,2,all_redoce,half,4,512,1", "no collective"),
        ("b200_sxm,nccl,2,all_reduce,half,0,512,1", "ranks: expected a number from 1"),
        ("b200_sxm,nccl,2,all_reduce,half,4,512,nan", "time: expected a number"),
        ("b200_sxm,nccl,2,all_reduce,half,4,-1,1", "bytes: expected a number"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(line: str, word: str) -> None:
    with pytest.raises(SpecError, match=word) as caught:
        read_collective_sweep(SWEEP + line + "\n", "s.csv")
    assert "s.csv:6" in str(caught.value)


def test_without_a_header_it_is_no_sweep() -> None:
    with pytest.raises(SpecError, match="expected a header"):
        read_collective_sweep("1,2,3\n", "s.csv")
    with pytest.raises(SpecError, match="no header"):
        read_collective_sweep("# nothing\n", "s.csv")
