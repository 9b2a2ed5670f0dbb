"""Bandwidth against expectation, and step times: what is blamed, and what is not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.doctor.bandwidth import collapse, gap, inspected_gap, machine_of, plateau
from atoll.doctor.expectations import Machine, expected, gpu_family
from atoll.doctor.steps import (
    exposed_by_recorder,
    exposed_by_steps,
    imbalance,
    stalls,
    straggler_by_recorder,
    straggler_by_steps,
)
from atoll.errors import SpecError
from atoll.readers.flight_recorder import FlightRecorderDump, RecordedCollective
from atoll.readers.inspector import InspectedCollective
from atoll.readers.lspci import read_access_control
from atoll.readers.nccl_tests import NcclTestRun, read_nccl_tests
from atoll.readers.source import Source
from atoll.readers.step_times import StepTime, is_step_times, read_step_times
from atoll.topology.gpu_models import on_a_board
from doctor.corpus import SIZES, bench_output

H100 = "NVIDIA H100 80GB HBM3"


def run_of(busbw: float, nodes: int = 2, per_node: int = 8, gpu: str = H100) -> NcclTestRun:
    ranks = [(f"n{node}", gpu) for node in range(nodes) for _ in range(per_node)]
    (run,) = read_nccl_tests(bench_output([(size, busbw) for size in SIZES], ranks), "bench.txt")
    return run


def nics(count: int, rate: float = 50e9) -> Machine:
    return Machine(nics_per_node=count, nic_rate_bytes_per_s=rate, nics_from="test")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8))
def test_the_number_of_nics_that_explains_a_ring(working: int) -> None:
    """On A100 a ring carries busbw over the NICs, so k of 8 working NICs are found as k."""
    run = run_of(working * 25.0 * 0.95, gpu="NVIDIA A100-SXM4-80GB")
    found = gap(run, machine_of(run, nics(8, 25e9)))
    if working <= 4:
        assert found is not None
        assert found.nics == working
    elif working >= 5:
        assert found is None


def test_unknown_nics_are_not_judged() -> None:
    run = run_of(20.0)
    assert gap(run, machine_of(run, Machine())) is None


def test_a_whole_board_is_judged_and_part_of_one_is_not() -> None:
    whole, part = run_of(100.0, nodes=1), run_of(100.0, nodes=1, per_node=2)
    assert gap(whole, machine_of(whole, Machine())) is not None
    assert gap(part, machine_of(part, Machine())) is None


@pytest.mark.parametrize(
    ("name", "family", "island"),
    [
        (H100, "H100", True),
        ("NVIDIA H200", "H100", True),
        ("NVIDIA H100 PCIe", "H100", False),
        ("NVIDIA H100 NVL", "H100", False),
        ("A100-SXM4-40GB", "A100", True),
        ("NVIDIA A100 80GB PCIe", "A100", False),
        ("NVIDIA A800-SXM4-80GB", "A800", True),
        ("Tesla V100-SXM2-32GB", "V100", True),
        ("NVIDIA GB200", "GB200", True),
        ("NVIDIA B200", "B200", True),
        ("NVIDIA RTX A6000", "", False),
        ("NVIDIA GeForce RTX 4090", "", False),
        ("NVIDIA L40S", "", False),
    ],
)
def test_gpu_names(name: str, family: str, island: bool) -> None:
    assert gpu_family(name) == family
    assert on_a_board(name) is island


def test_expectation_of_all_to_all_counts_the_remote_share() -> None:
    machine = Machine(H100, 16, 2, 8, 50e9, "test")
    found = expected("all_to_all", machine)
    assert found is not None
    # 8 of 15 peers are remote: a GPU's NIC of 46 GB/s allows 46 / (8/15).
    assert found.busbw_bytes_per_s == pytest.approx(46e9 * 15 / 8)


def test_collapse_needs_more_than_one_slow_row() -> None:
    ranks = [("n0", H100), ("n1", H100)]
    one = bench_output([(s, 1.0 if s == SIZES[-1] else 10.0) for s in SIZES], ranks)
    two = bench_output([(s, 1.0 if s in SIZES[-2:] else 10.0) for s in SIZES], ranks)
    assert collapse(read_nccl_tests(one, "a")[0]) is None
    assert collapse(read_nccl_tests(two, "b")[0]) is not None


def test_small_sizes_are_no_plateau() -> None:
    (run,) = read_nccl_tests(bench_output([(1 << 10, 0.1), (1 << 20, 5.0)], [("n0", H100)] * 2), "a")
    assert plateau(run.rows) is None


# --- steps


def steps(compute: object, communication: object, ranks: int = 8, count: int = 40, seed: int = 0) -> list[StepTime]:
    chance = random.Random(seed)
    made = []
    for step in range(count):
        parts = {r: (compute(r, step) * chance.uniform(0.98, 1.02), communication(r, step)) for r in range(ranks)}  # type: ignore[operator]
        longest = max(one + two for one, two in parts.values())
        made += [
            StepTime(r, step, longest, Source("steps", step), one, longest - one) for r, (one, two) in parts.items()
        ]
    return made


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 7), st.floats(1.2, 3.0), st.integers(0, 1000))
def test_the_straggler_is_named_although_all_steps_are_equally_long(rank: int, factor: float, seed: int) -> None:
    found = straggler_by_steps(steps(lambda r, s: 0.1 * (factor if r == rank else 1.0), lambda r, s: 0.02, seed=seed))
    assert found is not None
    assert found.rank == rank
    assert "waits least" in found.what


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000))
def test_even_ranks_have_no_straggler(seed: int) -> None:
    assert straggler_by_steps(steps(lambda r, s: 0.1, lambda r, s: 0.02, seed=seed)) is None


@settings(max_examples=20, deadline=None)
@given(st.integers(4, 20))
def test_periodic_stalls_have_their_period(period: int) -> None:
    made = [
        StepTime(0, step, 1.0 if step and step % period == 0 else 0.1, Source("s", step)) for step in range(6 * period)
    ]
    found = stalls(made)
    assert found is not None
    assert found.period == period


def test_one_slow_step_is_no_stall() -> None:
    assert stalls([StepTime(0, step, 1.0 if step == 17 else 0.1, Source("s", step)) for step in range(60)]) is None


def test_overlap_is_told_from_its_absence() -> None:
    def made(hidden: float) -> list[StepTime]:
        return [StepTime(r, s, 0.1 + 0.06 - hidden, Source("s", s), 0.1, 0.06) for s in range(20) for r in range(4)]

    found = exposed_by_steps(made(0.0))
    assert found is not None
    assert found.share == pytest.approx(0.06 / 0.16)
    assert exposed_by_steps(made(0.06)) is None


def test_a_straggler_does_not_look_like_missing_overlap() -> None:
    """The victims' communication is waiting; the straggler itself communicates little."""
    assert exposed_by_steps(steps(lambda r, s: 0.2 if r == 3 else 0.1, lambda r, s: 0.01)) is None


def test_compute_that_follows_tokens() -> None:
    chance = random.Random(1)
    made = []
    for step in range(50):
        tokens = chance.randrange(1000, 4000)
        made.append(
            StepTime(step % 4, step, tokens / 1e4, Source("s", step), tokens / 1e4, further={"tokens": float(tokens)})
        )
    found = imbalance(made)
    assert found is not None
    assert found[0] == "tokens"


def test_step_times_are_read_in_their_units() -> None:
    text = "rank,step,step_time_ms,compute_s,comm_us,host\n0,1,150,0.1,50000,gn01\n1,1,oops,,,\n2,1,nan,1,1,x\n"
    (step,) = read_step_times(text, "steps.csv")
    assert (step.step_s, step.compute_s, step.communication_s, step.host) == (0.15, 0.1, pytest.approx(0.05), "gn01")
    (line,) = read_step_times('{"rank": 3, "step": 9, "step_time": 1.5, "tokens": 4096}\n{"rank": 3, "st\n', "s.jsonl")
    assert (line.rank, line.step_s, line.further) == (3, 1.5, {"tokens": 4096.0})


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        ("rank,step,step_time_s\n", True),
        ('{"rank": 0, "step": 1, "step_time_ms": 3}\n', True),
        ("rank,size,time\n", False),
        ("node_a,node_b,avg_busbw\n", False),
        ("{broken", False),
        ("", False),
    ],
)
def test_step_times_are_known_by_their_columns(head: str, is_one: bool) -> None:
    assert is_step_times(head) is is_one


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_steps_or_a_clear_refusal(data: bytes) -> None:
    refusal = ""
    found: tuple[StepTime, ...] = ()
    try:
        found = read_step_times(data, "x")
    except SpecError as error:
        refusal = str(error)
    assert "expected columns" in refusal or all(step.step_s >= 0 for step in found)


def inspected(busbw: float, rank: int, sequence: int) -> InspectedCollective:
    source = Source("inspector.jsonl", sequence)
    return InspectedCollective("0xabc", rank, 16, 2, "AllReduce", sequence, 1 << 30, 0.01, source, busbw / 1.875, busbw)


def test_inspector_is_judged_by_the_median_of_its_large_calls() -> None:
    machine = Machine("NVIDIA A100-SXM4-80GB", 16, 2, 8, 25e9, "test")
    slow = [inspected(48e9, rank, n) for rank in range(4) for n in range(5)]
    found = inspected_gap(slow, machine)
    assert found is not None
    assert found.nics == 2
    assert inspected_gap([inspected(190e9, 0, n) for n in range(9)] + [inspected(1e9, 0, 9)], machine) is None
    assert inspected_gap(slow[:2], machine) is None


def test_access_control_of_bridges() -> None:
    text = (
        "0000:17:00.0 PCI bridge: Broadcom PEX890xx (rev b0)\n\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+\n"
        "18:00.0 3D controller: NVIDIA GH100\n\t\tACSCtl: SrcValid- ReqRedir-\n"
    )
    one, two = read_access_control(text, "lspci.txt")
    assert (one.bus_id, one.kind, one.redirects) == ("0000:17:00.0", "PCI bridge", True)
    assert (two.bus_id, two.redirects) == ("18:00.0", False)
    assert read_access_control("ACSCtl: ReqRedir+\n", "x") == ()


def timed_dumps(
    late: dict[int, float], ranks: int = 4, count: int = 20, *, blocking: bool = True, compute: float = 0.05
) -> list[FlightRecorderDump]:
    """Recorders with timings: each collective ends 10 ms after its last member started; ``late`` ranks start later."""
    entries: dict[int, list[RecordedCollective]] = {rank: [] for rank in range(ranks)}
    now = 0.0
    for n in range(count):
        starts = {rank: now + compute + 0.0001 * rank + late.get(rank, 0.0) for rank in range(ranks)}
        end = max(starts.values()) + 0.01
        for rank, start in starts.items():
            created = start - 0.001 if blocking else max(0.0, start - 2 * compute)
            entries[rank].append(
                RecordedCollective(
                    "0", n, "all_reduce", "completed", record_id=n, created_s=created, started_s=start, completed_s=end
                )
            )
        now = end
    return [
        FlightRecorderDump(Source(f"dump_{rank}", 0), "2.9", (), tuple(some), rank, "file")
        for rank, some in entries.items()
    ]


@pytest.mark.parametrize("rank", range(4))
def test_the_recorder_shows_who_starts_last(rank: int) -> None:
    found = straggler_by_recorder(timed_dumps({rank: 0.04}))
    assert found is not None
    assert found.rank == rank


def test_somebody_is_always_last_by_nothing() -> None:
    assert straggler_by_recorder(timed_dumps({})) is None


def test_collectives_that_are_waited_for_one_by_one() -> None:
    found = exposed_by_recorder(timed_dumps({}, compute=0.02))
    assert found is not None
    assert found.blocking_share >= 0.9
    assert found.share == pytest.approx(1 / 3, abs=0.05)
    assert exposed_by_recorder(timed_dumps({}, compute=0.02, blocking=False)) is None
    assert exposed_by_recorder(timed_dumps({}, compute=0.2)) is None, "5 % of the time is not worth hiding"


@pytest.mark.parametrize(
    ("words", "nodes", "nics", "rate_gbit", "gpu"),
    [
        ("2 nodes x 8 H100, 8x CX-7 NDR 400G IB Quantum-2", 2, 8, 400, "H100"),
        ("2x Dell XE9680 (HGX H100, 8x H100 80GB each), 8x CX-7 NDR 400G IB per node", 2, 8, 400, "H100"),
        ("4x8 A100, 8x HDR", 4, 8, 200, "A100"),
        ("16 hosts, 4 x 200 Gb/s", 16, 4, 200, ""),
        ("8 nodes x 8 H100 + NDR IB", 8, None, None, "H100"),
        ("1 node, 8x A100-SXM4-40GB", 1, None, None, "A100"),
        ("OCI BM.GPU.GB200.4, NVL72 rack, 4 GPUs per node (32 hosts x 4)", 32, None, None, "GB200"),
        ("", None, None, None, ""),
    ],
)
def test_a_table_says_its_machine_in_words(
    words: str, nodes: int | None, nics: int | None, rate_gbit: int | None, gpu: str
) -> None:
    run = NcclTestRun((), Source("t", 1), options={"hardware": words})
    machine = machine_of(run, Machine())
    assert (machine.num_nodes, machine.nics_per_node, gpu_family(machine.gpu)) == (nodes, nics, gpu)
    assert machine.nic_rate_bytes_per_s == (None if rate_gbit is None else rate_gbit / 8 * 1e9)
