"""Flight-recorder dumps: pickled and JSON, joined by the group's name."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import SpecError
from atoll.readers.flight_recorder import FlightRecorderDump, RecordedGroup, rank_of_file_name, read_flight_recorder
from atoll.readers.plain_pickle import load_plain_pickle


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "record_id": 7, "pg_id": 5, "process_group": ("35", "TENSOR_MODEL_PARALLEL_GROUP"), "collective_seq_id": 12,
        "p2p_seq_id": 0, "op_id": 12, "profiling_name": "nccl:_all_gather_base", "time_created_ns": 1_500_000_000,
        "input_sizes": [[2048, 1]], "input_dtypes": ["BFloat16"], "output_sizes": [[8192, 1]],
        "output_dtypes": ["BFloat16"],
        "state": "scheduled", "time_discovered_started_ns": None, "time_discovered_completed_ns": 2_000_000_000,
        "retired": False, "timeout_ms": 180000, "is_p2p": False, "thread_name": "python3",
        "frames": [{"name": "step", "filename": "train.py", "line": 3}], **changes,
    }  # fmt: skip


def dump(**changes: Any) -> dict[str, Any]:
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
            "35": {"name": "35", "desc": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": "[2, 3]"},
        },
        "pg_status": {
            "0": {"last_enqueued_collective": 9, "last_started_collective": -1, "last_completed_collective": 8},
            "5": {"last_enqueued_collective": 12, "last_started_collective": -1, "last_completed_collective": 11},
        },
        "entries": [entry()],
        **changes,
    }


def group(read: FlightRecorderDump, name: str) -> RecordedGroup:
    return next(group for group in read.groups if group.name == name)


@pytest.mark.parametrize("encode", [pickle.dumps, lambda value: json.dumps(value).encode()], ids=["pickle", "json"])
def test_a_dump(encode: Any) -> None:
    read = read_flight_recorder(encode(dump()), "traces/nccl_trace_rank_3")
    assert (read.version, read.nccl_version, read.rank, read.rank_from) == ("2.9", "2.27.3", 3, "file")
    tensor = group(read, "35")
    assert (tensor.description, tensor.ranks) == ("TENSOR_MODEL_PARALLEL_GROUP", (2, 3))
    assert (tensor.last_enqueued, tensor.last_started, tensor.last_completed) == (12, -1, 11)
    assert tensor.status_from == "entry"
    assert (group(read, "0").last_enqueued, group(read, "0").status_from) == (9, "order")
    (one,) = read.entries
    assert (one.group, one.sequence, one.op, one.state) == ("35", 12, "all_gather", "scheduled")
    assert (one.input_sizes, one.output_sizes, one.input_dtypes) == (((2048, 1),), ((8192, 1),), ("BFloat16",))
    assert (one.created_s, one.started_s, one.completed_s, one.timeout_s) == (1.5, None, 2.0, 180.0)
    assert one.frames == ("step (train.py:3)",)
    assert (one.retired, one.is_p2p, one.peer) == (False, False, None)


def test_a_send_names_its_peer() -> None:
    sent = entry(profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=4)
    (one,) = read_flight_recorder(pickle.dumps(dump(entries=[sent])), "x_0").entries
    assert (one.op, one.is_p2p, one.p2p_sequence, one.peer) == ("send", True, 4, 1)


def test_schema_one_has_other_names() -> None:
    old = {
        "id": 3,
        "pg_id": 2,
        "seq_id": 4,
        "profiling_name": "nccl:all_reduce",
        "state": "completed",
        "duration_ms": 1.5,
    }
    read = read_flight_recorder(pickle.dumps({"version": "1.0", "entries": [old]}), "dump_1")
    (one,) = read.entries
    assert (one.record_id, one.sequence, one.group, one.op, one.duration_s) == (3, 4, "2", "all_reduce", 0.0015)


def test_an_order_that_an_entry_contradicts_is_not_used() -> None:
    changed = dump(pg_status={"5": {"last_enqueued_collective": 1}, "7": {"last_enqueued_collective": 2}})
    read = read_flight_recorder(pickle.dumps(changed), "x_1")
    assert group(read, "35").last_enqueued == 1
    assert (group(read, "0").last_enqueued, group(read, "0").status_from) == (None, "")


def test_the_rank_by_its_groups_where_the_name_tells_none() -> None:
    config = {"0": {"name": "0", "ranks": "[0, 1]"}, "1": {"name": "1", "ranks": [1]}}
    read = read_flight_recorder(pickle.dumps(dump(pg_config=config, entries=[])), "dump.pkl")
    assert (read.rank, read.rank_from) == (1, "groups")
    read = read_flight_recorder(pickle.dumps(dump()), "dump.pkl")
    assert (read.rank, read.rank_from) == (None, "")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("_dump_12", 12), ("/a/b/nccl_trace_rank_7", 7), ("host3_rank5.pickle", 5), ("trace_rank-9.json.gz", 9),
        ("dump.pickle", None), ("c:\\x\\rank_4.bin", 4), ("run2024/dump", None),
    ],
)  # fmt: skip
def test_ranks_in_file_names(name: str, rank: int | None) -> None:
    assert rank_of_file_name(name) == rank


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1], ["no flight recorder", "list"]),
        ({"a": 1}, ["no flight recorder"]),
        (dump(entries=7), ["'entries'", "int"]),
        (dump(entries=[3]), ["entry 0", "int"]),
        (dump(pg_config=[]) | {"pg_config": [1]}, ["pg_config"]),
        (dump(pg_config={"0": 3}), ["pg_config['0']"]),
    ],
)
def test_another_form_is_refused(value: Any, words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        read_flight_recorder(pickle.dumps(value), "dump_0")
    for word in ["dump_0", *words]:
        assert word in str(caught.value)


def test_a_recursive_dump_is_read_in_bounded_time() -> None:
    loop: list[Any] = []
    loop.append(loop)
    read = read_flight_recorder(pickle.dumps(dump(entries=[entry(input_sizes=loop, frames=loop)] * 50)), "dump_0")
    assert len(read.entries) == 50
    assert read.entries[0].input_sizes == ((),)


def test_json_that_is_cut_is_refused() -> None:
    with pytest.raises(SpecError, match="cut in the middle"):
        read_flight_recorder(json.dumps(dump()).encode()[:200], "dump_0.json")


def test_real_dumps(cases: Path) -> None:
    empty = []
    for path in sorted((cases / "flight_recorder").glob("*/_dump_*")):
        data = path.read_bytes()
        assert load_plain_pickle(data) == pickle.loads(data)
        read = read_flight_recorder(data, str(path))
        assert read.rank == int(path.name.rpartition("_")[2])
        assert all(read.rank in group.ranks for group in read.groups)
        assert all(group.last_enqueued is not None and group.status_from in ("entry", "order") for group in read.groups)
        names = {group.name for group in read.groups}
        assert all(one.group in names for one in read.entries)
        if not read.entries:
            empty.append((path.parent.name, read.rank))
    assert empty == [("lock_gil_1st", 14), ("lock_gil_1st", 9)]
