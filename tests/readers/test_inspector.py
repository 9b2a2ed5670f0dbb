"""NCCL Inspector's records."""

import json

import pytest

from atoll.errors import SpecError
from atoll.readers.inspector import InspectorReader, read_inspector
from atoll.readers.text_stream import text_lines

RECORD = {
    "header": {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1},
    "metadata": {
        "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
        "dump_timestamp_us": 1748030377748202, "hostname": "node-1", "pid": 1639453,
    },
    "coll_perf": {
        "coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184, "coll_exec_time_us": 61974,
        "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 277.25, "coll_busbw_gbs": 485.5,
        "event_trace_sn": {"coll_start_sn": 1},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(RECORD) + "\n" + json.dumps(RECORD) + "\n",
        json.dumps(RECORD, indent=2) + "\n" + json.dumps(RECORD, indent=2),
        json.dumps([RECORD, RECORD], indent=1),
    ],
    ids=["lines", "objects", "array"],
)
def test_records_in_any_layout(text: str) -> None:
    first, second = read_inspector(text, "x.log")
    assert (first.communicator, first.rank, first.world_size, first.num_nodes) == ("0x7f8c496ae9f661", 2, 8, 1)
    assert (first.collective, first.sequence, first.size_bytes) == ("all_reduce", 1407, 17179869184)
    assert (first.time_s, first.algbw_bytes_per_s, first.busbw_bytes_per_s) == (0.061974, 277.25e9, 485.5e9)
    assert (first.host, first.pid, first.timing_source, first.format_version) == (
        "node-1",
        1639453,
        "kernel_gpu",
        "v4.0",
    )
    assert first.timestamp_s == pytest.approx(1748030377.748202)
    assert second.source.line > first.source.line or "\n" not in text


def test_a_cut_last_line_is_counted() -> None:
    reader = InspectorReader("x.log")
    line = json.dumps(RECORD)
    for read in text_lines(line + "\n" + line[:200] + "\n" + line.replace("61974", '"fast"') + "\n"):
        reader.feed(read)
    assert (len(reader.collectives), reader.num_unreadable) == (1, 1 + 1 if '"coll_perf"' in line[:200] else 1)


def test_prometheus_samples() -> None:
    labels = (
        'comm_id="0xd1",collective="AllReduce",hostname="n2",rank="4",n_ranks="8",n_nodes="1",coll_sn="2289",'
        'message_size="2.00GB",coll_timing_source="kernel_gpu"'
    )
    text = (
        f"# HELP nccl_bus_bandwidth_gbs x\nnccl_algorithm_bandwidth_gbs{{{labels}}} 250.5\n"
        f"nccl_bus_bandwidth_gbs{{{labels}}} 438.5\nnccl_collective_exec_time_microseconds{{{labels}}} 8500\n"
    )
    (one,) = read_inspector(text, "x.prom")
    assert (one.rank, one.world_size, one.size_bytes, one.time_s) == (4, 8, 2 << 30, 0.0085)
    assert (one.busbw_bytes_per_s, one.host, one.sequence) == (438.5e9, "n2", 2289)


@pytest.mark.parametrize("text", ["", "hello", "{}", '{"coll_perf": {}}', "[" * 100_000, '{"header": ' * 5000])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"x\.log"):
        read_inspector(text, "x.log")
