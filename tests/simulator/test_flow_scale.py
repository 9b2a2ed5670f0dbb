"""The flow level at scale, in counts: how many waves and events, how much memory, and that nothing else changes."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import pytest

from atoll.algorithms.catalog import build
from atoll.schedule.prove import prove
from atoll.simulator.flow import simulate
from atoll.simulator.job import Job
from atoll.topology.presets import preset

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from simulator_growth import measure

SIZE = 1 << 30


def job(name: str, ranks: int) -> Job:
    return Job(prove(build("all_reduce", name, ranks, None)), tuple(range(ranks)), SIZE)


def test_a_ring_is_worked_out_a_step_a_wave_in_little_memory() -> None:
    """No two lanes of it share a link. Deriving all at once took 560 bytes a row."""
    on, ring = preset("dgx-h100", 64), job("ring", 512)
    tracemalloc.start()
    try:
        found = simulate([ring], on, row_times=True)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.events == 2 * 511
    assert most < 420 * len(ring.proven.schedule)
    assert sum(time for _, time in found.critical_s) == pytest.approx(found.finish_s)
    assert found.rows[0].end_s.max() == found.finish_s


def test_jobs_that_are_alike_take_each_their_time_and_one_that_shares_a_link_is_played() -> None:
    """Rings of eight within 16 nodes are waves all; one that leaves its node by the NIC that another takes is not."""
    on, ring = preset("dgx-h100", 16), job("ring", 8)
    alone = simulate([ring], on)
    apart = [Job(ring.proven, tuple(range(8 * node, 8 * node + 8)), SIZE) for node in range(16)]
    together = simulate(apart, on)
    assert together.events == alone.events
    assert together.job_finish_s == (alone.finish_s,) * 16
    pair = job("ring", 2).proven
    crossing = [Job(pair, (0, 8), SIZE), Job(pair, (0, 16), SIZE)]
    assert simulate(crossing, on).finish_s > 1.9 * simulate(crossing[:1], on).finish_s


def test_the_benchmark_of_its_growth_measures_what_it_says() -> None:
    found = measure("dgx-h100", "all_reduce", "hierarchical", 16)
    assert found["rows"] == 256
    assert found["events"] > 0
    assert found["peak_bytes"] > 1 << 20
    assert found["finish_s"] > SIZE / 16 / 450e9
