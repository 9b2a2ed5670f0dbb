"""The trace file: the Trace Event Format, nested and monotone, and the same tracks for a simulated and a real run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from atoll.algorithms.catalog import build
from atoll.algorithms.channels import over_channels
from atoll.cli.main import main
from atoll.errors import SpecError
from atoll.report import perfetto
from atoll.schedule.prove import prove
from atoll.simulator.flow import simulate
from atoll.simulator.job import Job
from atoll.simulator.timeline import timeline
from atoll.topology.presets import preset
from atoll.trace.events import Trace

KNOWN = {"process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"}


def checked(page: bytes) -> dict[str, Any]:
    """The document of a page that a viewer of the Trace Event Format opens and shows as it is meant."""
    document: dict[str, Any] = json.loads(page)
    assert document["displayTimeUnit"] in ("ms", "ns")
    named: dict[str, set[tuple[int, int]]] = {name: set() for name in KNOWN}
    open_spans: dict[tuple[int, int], list[int]] = {}
    last: dict[tuple[int, int], int] = {}
    for event in document["traceEvents"]:
        track = (event["pid"], event["tid"])
        assert all(isinstance(number, int) and number >= 0 for number in track)
        if event["ph"] == "M":
            assert event["name"] in KNOWN
            named[event["name"]].add(track)
            (value,) = event["args"].values()
            assert isinstance(value, int if event["name"].endswith("index") else str)
            continue
        assert event["ph"] == "X"
        assert isinstance(event["name"], str)
        start, duration = (round(event[field] * 1e3) for field in ("ts", "dur"))
        assert start >= last.get(track, 0)  # monotone on each track, in nanoseconds
        assert duration >= 0
        last[track] = start
        stack = open_spans.setdefault(track, [])
        while stack and stack[-1] <= start and len(stack) > (event["cat"] != "collective"):
            stack.pop()
        if event["cat"] == "collective":
            assert not stack  # the one before has ended
        else:
            assert len(stack) == 1  # in a collective, and no other transfer goes on
            assert start + duration <= stack[-1]
        stack.append(start + duration)
        assert (track[0], 0) in named["process_name"]
        assert track in named["thread_name"]
    assert {pid for pid, _ in named["process_name"]} >= {pid for pid, _ in open_spans}
    return document


def tracks(document: dict[str, Any]) -> dict[tuple[int, int], str]:
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in document["traceEvents"]
            if event["name"] == "thread_name"}  # fmt: skip


def spans(document: dict[str, Any]) -> list[tuple[int, ...]]:
    """(rank, channel, step, chunk, peer, track, bytes) of every transfer, sorted."""
    return sorted(
        (event["pid"], *(event["args"][name] for name in ("channel", "step", "chunk", "peer")), event["tid"],
         event["args"]["bytes"])
        for event in document["traceEvents"] if event["ph"] == "X" and event["cat"] != "collective"
    )  # fmt: skip


def simulated(nodes: int, gpus: int, size: int) -> Trace:
    cluster = preset("dgx-h100", nodes)
    orders = [list(range(gpus)), list(range(gpus))[::-1]]
    ring = prove(over_channels(lambda _: build("all_reduce", "ring", gpus), orders))
    jobs = [Job(ring, tuple(range(gpus)), size, label="ring"), Job(ring, tuple(range(gpus)), size, start_s=1e-5)]
    return timeline(jobs, simulate(jobs, cluster, segment_bytes=1 << 16, row_times=True), cluster)


@pytest.mark.parametrize("size", [8, 1 << 20])
def test_a_simulated_trace_opens(size: int) -> None:
    trace = simulated(2, 16, size)
    document = checked(perfetto.perfetto(trace))
    assert document["otherData"]["source"] == "virtual time"
    names = {event["pid"]: event["args"] for event in document["traceEvents"] if event["name"] == "process_labels"}
    assert names[9] == {"labels": "node1/gpu1"}
    assert sorted(tracks(document).values())[0] == "channel 0 from rank 0"
    assert len(tracks(document)) == 16 * 2 * 2
    assert len(spans(document)) == 2 * sum(2 * 15 * 16 * 2 for _ in range(2))
    # The end of a rank's collective is that of its last transfer.
    for call in trace.collectives:
        for rank in range(16):
            mine = call.transfers.rank == rank
            assert call.end_s[rank] == call.transfers.end_s[mine].max()


def test_simulated_messages_are_as_long_as_the_links_say() -> None:
    cluster = preset("dgx-h100", 1)
    chain = prove(build("broadcast", "chain", 3, 0))
    jobs = [Job(chain, (0, 1, 2), 8 << 20)]
    (call,) = timeline(jobs, simulate(jobs, cluster, row_times=True), cluster).collectives
    sends = np.flatnonzero(call.transfers.sends)
    assert call.transfers.step[sends].tolist() == [0, 1]
    first, second = sends.tolist()
    assert call.transfers.start_s[second] == call.transfers.end_s[first]  # whole rows: it waits for the last byte
    assert call.transfers.num_bytes[sends].tolist() == [8 << 20] * 2
    assert call.end_s.tolist() == [call.transfers.end_s[at] for at in (first, second, second)]


def test_a_real_run_and_a_simulated_one_have_the_same_tracks_and_spans(tmp_path: Path) -> None:
    sizes = ["-b", "64K", "-e", "256K", "--algorithm", "ring,double_binary_tree", "--trace"]
    files = {"bench": tmp_path / "real.json", "simulate": tmp_path / "simulated.json"}
    run = ["bench", "all-reduce", "--world", "4", "-n", "1", "-w", "0", *sizes, str(files["bench"])]
    played = ["simulate", "all-reduce", "--cluster", "hgx-h200", "--gpus", "4", *sizes, str(files["simulate"])]
    for arguments in (run, played):
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    real, virtual = (checked(files[name].read_bytes()) for name in ("bench", "simulate"))
    assert (real["otherData"]["source"], virtual["otherData"]["source"]) == ("a real run", "virtual time")
    assert tracks(real) == tracks(virtual)
    assert spans(real) == spans(virtual)
    assert len(spans(real)) == 2 * 2 * (24 + 12)
    names = [sorted(event["name"] for event in document["traceEvents"] if event.get("cat") == "collective")
             for document in (real, virtual)]  # fmt: skip
    assert names[0] == names[1]
    assert set(names[0]) == {"all-reduce ring", "all-reduce double_binary_tree"}


def test_more_than_a_viewer_opens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "MAX_TRANSFERS", 100)
    with pytest.raises(SpecError, match="3840 transfers are more than the 100"):
        perfetto.perfetto(simulated(2, 16, 8))


def test_too_long_a_simulation_is_refused_before_it_is_played(tmp_path: Path) -> None:
    asked = ["simulate", "all-reduce", "--cluster", "dgx-h100:32", "--trace", str(tmp_path / "file.json"), "-f", "2"]
    with pytest.raises(SpecError, match="more than the 1000000 that a viewer opens"):
        CliRunner().invoke(main, [*asked, "--channels", "1"], catch_exceptions=False)
    assert not (tmp_path / "file.json").exists()


@pytest.mark.parametrize("command", [["bench", "all-reduce"], ["simulate", "all-reduce", "--cluster", "dgx-h100:1"]])
def test_a_file_that_cannot_be_written_is_named_before_anything_runs(command: list[str], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="--trace: cannot write"):
        CliRunner().invoke(main, [*command, "--trace", str(tmp_path / "no" / "file.json")], catch_exceptions=False)
