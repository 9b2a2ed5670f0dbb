"""nccl-tests -J."""

import json

import pytest

from atoll.errors import SpecError
from atoll.readers.nccl_tests_json import read_nccl_tests_json

REPORT = {
    "version": 1,
    "start_time": "2025-06-01 10:00:00",
    "args": ["/opt/nccl-tests/build/reduce_scatter_perf", "-J", "out.json"],
    "env": ["PATH=/bin"],
    "nccl_version": 22707,
    "config": {
        "nthreads": 1,
        "ngpus": 1,
        "validation": 1,
        "devices": [
            {
                "rank": 0,
                "group": 0,
                "pid": 7,
                "hostname": "a",
                "device": 0,
                "device_hex": "0000:1b:00",
                "device_info": "H100",
            },
            {
                "rank": 1,
                "group": 0,
                "pid": 8,
                "hostname": "b",
                "device": 0,
                "device_hex": "0000:1b:00",
                "device_info": "H100",
            },
        ],
    },
    "results": [
        {
            "size": 1048576,
            "count": 131072,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": {"time": 61.5, "alg_bw": 17.05, "bus_bw": 8.52, "nwrong": 0.0},
            "out_of_place_per_iter": {"min_us": 60.0, "p99_us": 70.0, "times_us": [60.0, 70.0]},
            "in_place": {"time": "nan", "alg_bw": 17.0, "bus_bw": 8.5, "nwrong": None},
            "actual_iterations": 20,
            "experiment_name": "x",
        },
        {"size": 0, "count": 0, "type": "float", "redop": "sum", "root": "-1", "out_of_place": None, "in_place": None},
    ],
    "out_of_bounds": {"count": 0, "okay": "true"},
    "average_bus_bandwidth": {"bandwidth": 8.51, "okay": "unchecked"},
    "end_time": "2025-06-01 10:00:10",
}


def test_a_report() -> None:
    run = read_nccl_tests_json(json.dumps(REPORT), "out.json")
    assert (run.collective, run.collective_from) == ("reduce_scatter", "command")
    assert (run.nccl_version, run.world_size, run.hosts) == ("2.27.7", 2, ("a", "b"))
    assert (run.average_busbw_bytes_per_s, run.out_of_bounds, run.finished) == (8.51e9, 0, True)
    first, empty = run.rows
    assert first.out_of_place is not None
    assert (first.out_of_place.time_s, first.out_of_place.busbw_bytes_per_s) == (61.5e-6, 8.52e9)
    assert first.out_of_place.further == {"min_us": 60.0, "p99_us": 70.0}
    assert first.in_place is not None
    assert (first.in_place.time_s, first.in_place.wrong) == (None, None)
    assert (empty.out_of_place, empty.in_place, empty.root) == (None, None, -1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps(REPORT)[:500],
        json.dumps({**REPORT, "results": 3}),
        json.dumps({**REPORT, "results": [{"size": "big"}]}),
        json.dumps({**REPORT, "results": [{"size": 1, "out_of_place": 7}]}),
        json.dumps({**REPORT, "config": {"devices": ["x"]}}),
        "[" * 100_000,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"out\.json"):
        read_nccl_tests_json(text, "out.json")
