"""Culprits of hangs, derived from states of ranks that a small simulator of parallel programs leaves behind.

The simulator runs a program of collectives over overlapping groups (tensor, data, pipeline), breaks some ranks, and stops
where nobody can go on. What each rank has enqueued and completed then is what a flight recorder would hold. It knows who
was broken; the analysis must find them, and must name nobody else.
"""

# ruff: noqa: E501 (programs of ranks read best on one line)

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.doctor.gather import gather
from atoll.doctor.hang import BlameKind, HangAnalysis, analyse
from atoll.doctor.hang_evidence import analyses
from atoll.doctor.hang_state import from_dumps, from_watchdog
from atoll.readers.flight_recorder import FlightRecorderDump, RecordedCollective, RecordedGroup
from atoll.readers.source import Source
from atoll.readers.torch_log import WatchdogStatus, WatchdogTimeout, WorkInfo
from doctor.corpus import healthy
from doctor.corpus_cases import CASES
from doctor.pipeline import Pipeline

AHEAD = 3
"""Operations that a rank may enqueue beyond its first pending one before it waits for the GPU."""


class Simulated:
    """Ranks with a list of (group, op) to run in order; ``broken`` maps a rank to the place at which it stops."""

    def __init__(
        self, groups: dict[str, tuple[int, ...]], programs: dict[int, list[tuple[str, str]]], broken: dict[int, int]
    ) -> None:
        self.groups, self.programs, self.broken = groups, programs, broken
        self.enqueued = dict.fromkeys(programs, 0)
        self.completed = dict.fromkeys(programs, 0)

    def run(self) -> None:
        moved = True
        while moved:
            moved = False
            for rank, program in self.programs.items():
                limit = min(len(program), self.broken.get(rank, len(program)), self.completed[rank] + AHEAD)
                if self.enqueued[rank] < limit:
                    self.enqueued[rank] += 1
                    moved = True
            for rank, program in self.programs.items():
                at = self.completed[rank]
                # A collective ends when it is first in line at every member.
                if at < self.enqueued[rank] and all(
                    self._is_at(other, program[at][0], self._sequence(rank, at))
                    for other in self.groups[program[at][0]]
                ):
                    for other in self.groups[program[at][0]]:
                        self.completed[other] += 1
                    moved = True

    def _sequence(self, rank: int, at: int) -> int:
        return 1 + sum(1 for group, _ in self.programs[rank][:at] if group == self.programs[rank][at][0])

    def _is_at(self, rank: int, group: str, sequence: int) -> bool:
        at = self.completed[rank]
        return at < self.enqueued[rank] and self.programs[rank][at][0] == group and self._sequence(rank, at) == sequence

    @property
    def hangs(self) -> bool:
        return any(self.enqueued[rank] > self.completed[rank] for rank in self.programs)

    def dumps(self, *, keep_completed: int = 2, without: Iterable[int] = ()) -> list[FlightRecorderDump]:
        made = []
        for rank, program in self.programs.items():
            if rank in without:
                continue
            entries = tuple(
                RecordedCollective(
                    group, self._sequence(rank, at), op, "completed" if at < self.completed[rank] else "scheduled",
                    record_id=at, input_sizes=((64,),), output_sizes=((64,),), input_dtypes=("Float",),
                )
                for at, (group, op) in enumerate(program[: self.enqueued[rank]])
                if at >= self.completed[rank] - keep_completed
            )  # fmt: skip
            groups = tuple(
                RecordedGroup(
                    name, f"G{name}", ranks,
                    sum(1 for group, _ in program[: self.enqueued[rank]] if group == name) or -1, None,
                    sum(1 for group, _ in program[: self.completed[rank]] if group == name) or -1, "order",
                )
                for name, ranks in self.groups.items()
                if rank in ranks
            )  # fmt: skip
            made.append(FlightRecorderDump(Source(f"dump_{rank}", 0), "2.9", groups, entries, rank, "file"))
        return made


def grid(tensor: int, data: int, steps: int) -> tuple[dict[str, tuple[int, ...]], dict[int, list[tuple[str, str]]]]:
    """Tensor-parallel rows and data-parallel columns; each step has two all-gathers in the row, one reduction down."""
    groups: dict[str, tuple[int, ...]] = {}
    for row in range(data):
        groups[f"tp{row}"] = tuple(range(row * tensor, (row + 1) * tensor))
    for column in range(tensor):
        groups[f"dp{column}"] = tuple(column + row * tensor for row in range(data))
    programs = {
        rank: [
            (f"tp{rank // tensor}", "all_gather"),
            (f"tp{rank // tensor}", "all_gather"),
            (f"dp{rank % tensor}", "all_reduce"),
        ]
        * steps
        for rank in range(tensor * data)
    }
    return groups, programs


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.integers(2, 4), st.data())
def test_the_broken_ranks_are_named_and_nobody_else(tensor: int, data: int, draw: st.DataObject) -> None:
    groups, programs = grid(tensor, data, 4)
    ranks = draw.draw(st.sets(st.integers(0, tensor * data - 1), min_size=1, max_size=2))
    at = draw.draw(st.integers(1, 9))
    job = Simulated(groups, programs, dict.fromkeys(ranks, at))
    job.run()
    analysis = analyse(from_dumps(job.dumps(keep_completed=draw.draw(st.integers(0, 6)))))
    assert job.hangs
    assert set(analysis.ranks) == ranks
    assert {blame.kind for blame in analysis.culprits} == {BlameKind.NEVER_ENTERED}
    assert not set(analysis.victims) & ranks


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3), st.integers(2, 4), st.integers(2, 3), st.sampled_from([2, 4, 6]), st.data())
def test_pipelines_with_sends_in_flight_never_accuse_a_victim(
    tensor: int, stages: int, microbatches: int, ahead: int, draw: st.DataObject
) -> None:
    """Of several broken ranks one may hide behind another: whoever is named is broken, and somebody is named."""
    ranks = draw.draw(st.sets(st.integers(0, tensor * stages - 1), min_size=1, max_size=2))
    broken = {rank: draw.draw(st.integers(0, 6 * microbatches)) for rank in sorted(ranks)}
    job = Pipeline(tensor, stages, microbatches, broken, ahead)
    job.run()
    dumps = job.dumps()
    named = set(analyse(from_dumps(dumps)).ranks)
    assert named <= job.stopped
    assert named or not any(dump.entries for dump in dumps)
    if len(job.stopped) == 1 and any(dump.entries for dump in dumps):
        assert named == job.stopped


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 15), st.integers(0, 15), st.integers(1, 9))
def test_a_missing_dump_of_a_victim_does_not_make_it_a_culprit(broken: int, missing: int, at: int) -> None:
    groups, programs = grid(4, 4, 4)
    job = Simulated(groups, programs, {broken: at})
    job.run()
    analysis = analyse(from_dumps(job.dumps(without={missing})))
    assert analysis.ranks == (broken,)


def test_a_chain_of_groups_ends_at_the_one_who_never_came() -> None:
    """0 waits for 1 in a, 1 for 2 in b, 2 for 3 in c: only 3 waits for nobody."""
    groups = {"a": (0, 1), "b": (1, 2), "c": (2, 3)}
    programs = {
        0: [("a", "all_reduce")],
        1: [("b", "all_reduce"), ("a", "all_reduce")],
        2: [("c", "broadcast"), ("b", "all_reduce")],
        3: [("c", "broadcast")],
    }
    job = Simulated(groups, programs, {3: 0})
    job.run()
    analysis = analyse(from_dumps(job.dumps()))
    assert analysis.ranks == (3,)
    assert analysis.victims == (0, 1, 2)


def entry(
    seq: int,
    op: str,
    record: int,
    *,
    state: str = "scheduled",
    sizes: int = 64,
    dtype: str = "Float",
    group: str = "0",
    **more: object,
) -> RecordedCollective:
    return RecordedCollective(
        group,
        seq,
        op,
        state,
        record_id=record,
        input_sizes=((sizes,),),
        output_sizes=((sizes,),),
        input_dtypes=(dtype,),
        **more,
    )  # type: ignore[arg-type]


def world(
    entries: dict[int, list[RecordedCollective]], ranks: tuple[int, ...] | None = None, name: str = "0"
) -> HangAnalysis:
    members = ranks or tuple(sorted(entries))
    group = RecordedGroup(name, "default_pg", members)
    return analyse(from_dumps(
        FlightRecorderDump(Source(f"dump_{rank}", 0), "2.9", (group,), tuple(some), rank, "file") for rank, some in entries.items()
    ))  # fmt: skip


def test_nothing_pending_is_no_hang() -> None:
    analysis = world({rank: [entry(1, "all_reduce", 0, state="completed")] for rank in range(4)})
    assert analysis == HangAnalysis()


def test_all_in_and_none_out_blames_no_rank() -> None:
    analysis = world({rank: [entry(5, "all_reduce", 0)] for rank in range(4)})
    assert analysis.culprits == ()
    assert [blame.rank for blame in analysis.stuck] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        ({"op": "broadcast"}, BlameKind.OTHER_COLLECTIVE),
        ({"sizes": 65}, BlameKind.WRONG_SHAPE),
        ({"dtype": "Long"}, BlameKind.WRONG_SHAPE),
    ],
)
def test_who_differs_from_the_majority_is_the_culprit(odd: dict[str, object], kind: BlameKind) -> None:
    entries = {rank: [entry(5, "all_reduce", 0)] for rank in range(4)}
    entries[2] = [entry(5, str(odd.pop("op", "all_reduce")), 0, **odd)]  # type: ignore[arg-type]
    analysis = world(entries)
    assert [(blame.rank, blame.kind) for blame in analysis.culprits] == [(2, kind)]


def test_without_a_majority_nobody_is_named_and_the_mismatch_is_told() -> None:
    analysis = world({0: [entry(5, "all_reduce", 0)], 1: [entry(5, "broadcast", 0)]})
    assert analysis.culprits == ()
    assert {blame.rank for blame in analysis.disputed} == {0, 1}


def test_all_to_all_sizes_may_differ() -> None:
    entries = {rank: [entry(5, "all_to_all", 0, sizes=2000 + rank)] for rank in range(4)}
    analysis = world(entries)
    assert analysis.culprits == ()
    assert len(analysis.stuck) == 4


def test_an_empty_dump_is_evidence() -> None:
    entries: dict[int, list[RecordedCollective]] = {rank: [entry(5, "all_reduce", 0)] for rank in range(4)}
    entries[3] = []
    analysis = world(entries, (0, 1, 2, 3))
    assert [(blame.rank, blame.kind) for blame in analysis.culprits] == [(3, BlameKind.NEVER_ENTERED)]
    assert "no entries" in analysis.culprits[0].what


def test_one_missing_dump_is_a_suspicion_where_nothing_else_explains() -> None:
    analysis = world({rank: [entry(5, "all_reduce", 0)] for rank in range(7)}, tuple(range(8)))
    assert [(blame.rank, blame.kind) for blame in analysis.culprits] == [(7, BlameKind.NO_EVIDENCE)]


def test_half_of_the_dumps_missing_is_a_gap_and_no_suspicion() -> None:
    analysis = world({rank: [entry(5, "all_reduce", 0)] for rank in range(4)}, tuple(range(8)))
    assert analysis.culprits == ()


def test_the_ring_buffer_may_have_lost_what_was_completed() -> None:
    """Rank 0 no longer has entry 5, because it went on to 9: it is not absent from 5."""
    analysis = world({0: [entry(9, "all_reduce", 9)], 1: [entry(5, "all_reduce", 5)], 2: [entry(5, "all_reduce", 5)]})
    assert 0 not in {blame.rank for blame in analysis.culprits if blame.kind is BlameKind.NEVER_ENTERED}


def test_a_rank_whose_kernel_has_not_started_while_the_others_have() -> None:
    started = {rank: [entry(5, "all_reduce", 0, state="started", started_s=1.0)] for rank in range(3)}
    started[3] = [
        entry(4, "all_reduce", 0, state="completed", started_s=0.5, completed_s=0.6),
        entry(5, "all_reduce", 1),
    ]
    analysis = world(started)
    assert analysis.ranks == (3,)


def test_group_ids_of_a_rank_mean_nothing_to_another() -> None:
    """Two groups with one name and different members are two groups."""
    one = RecordedGroup("7", "TP", (0, 1))
    two = RecordedGroup("7", "TP", (2, 3))
    dumps = [
        FlightRecorderDump(Source(f"d{rank}", 0), "2.9", (one if rank < 2 else two,), tuple(some), rank, "file")
        for rank, some in {0: [entry(3, "all_reduce", 0, group="7")], 1: [], 2: [entry(9, "all_reduce", 0, group="7", state="completed")],
                           3: [entry(9, "all_reduce", 0, group="7", state="completed")]}.items()
    ]  # fmt: skip
    assert analyse(from_dumps(dumps)).ranks == (1,)


def test_who_waits_for_one_that_is_busy_elsewhere_is_a_victim() -> None:
    """0 waits in z for 1; 1 is in x, which 2 has entered too, but behind y, where 3 never came."""
    groups = {"z": (0, 1), "x": (1, 2), "y": (2, 3)}
    pending = {
        0: [entry(1, "all_reduce", 0, group="z")],
        1: [entry(1, "all_reduce", 0, group="x")],
        2: [entry(1, "all_reduce", 0, group="y"), entry(1, "all_reduce", 1, group="x")],
        3: [],
    }
    dumps = [
        FlightRecorderDump(
            Source(f"d{rank}", 0),
            "2.9",
            tuple(RecordedGroup(n, n, m) for n, m in groups.items() if rank in m),
            tuple(some),
            rank,
            "file",
        )
        for rank, some in pending.items()
    ]
    analysis = analyse(from_dumps(dumps))
    assert analysis.ranks == (3,)
    assert analysis.victims == (0, 1, 2)


def test_a_receive_waits_for_the_stage_that_never_sends() -> None:
    groups = (RecordedGroup("5", "PIPELINE", (0, 4)),)
    receive = RecordedCollective("5", 0, "recv", "scheduled", record_id=3, p2p_sequence=8, is_p2p=True, peer=0)
    dumps = [
        FlightRecorderDump(Source("d0", 0), "2.9", groups, (), 0, "file"),
        FlightRecorderDump(Source("d4", 0), "2.9", groups, (receive,), 4, "file"),
    ]
    analysis = analyse(from_dumps(dumps))
    assert analysis.ranks == (0,)
    assert "receive from rank 0" in analysis.culprits[0].what


def status(rank: int, enqueued: int, completed: int, failed: int | None = None) -> WatchdogStatus:
    return WatchdogStatus(
        "timeout", Source("log", rank + 1), rank, rank, "0", "0", "default_pg", failed, enqueued, None, completed
    )


def test_watchdog_lines_name_the_rank_that_is_behind() -> None:
    statuses = [status(rank, 12, 9, 10) for rank in (0, 1, 3)] + [status(2, 9, 9)]
    assert analyse(from_watchdog(statuses, (), 4)).ranks == (2,)


def test_watchdog_lines_name_the_rank_that_is_silent() -> None:
    timeouts = [WatchdogTimeout(WorkInfo(10, "all_reduce"), Source("log", rank), rank) for rank in range(7)]
    assert analyse(from_watchdog((), timeouts, 8)).ranks == (7,)


@pytest.mark.parametrize("name", ["gpu_error_2nd", "lock_gil_1st"])
@pytest.mark.parametrize("without", [{9}, {14}, {0}, {8}, {3, 12}, set(range(8)), {10, 11, 12, 13}])
def test_real_dumps_with_some_missing_never_name_a_victim(name: str, without: set[int], cases: Path) -> None:
    dumps = [dump for dump in gather([cases / "flight_recorder" / name]).dumps if dump.rank not in without]
    analysis = analyse(from_dumps(dumps))
    assert set(analysis.ranks) == {9, 14} - without
    assert {9, 14} & without <= set(analysis.missing_ranks)


@pytest.mark.parametrize("name", ["gpu_error_2nd", "lock_gil_1st"])
def test_real_dumps_without_both_culprits_name_them_by_their_silence(name: str, cases: Path) -> None:
    dumps = [dump for dump in gather([cases / "flight_recorder" / name]).dumps if dump.rank not in (9, 14)]
    analysis = analyse(from_dumps(dumps))
    assert analysis.ranks == (9, 14)
    assert {blame.kind for blame in analysis.culprits} == {BlameKind.NO_EVIDENCE}


def ras(launched: list[int], *, dead: int | None = None) -> bytes:
    """One answer of RAS as JSON: what each rank has launched."""
    ranks = [
        {
            "rank": rank, "host": f"gn0{1 + rank // 4}", "pid": 100 + rank, "cuda_dev": rank % 4, "nvml_dev": rank % 4,
            "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False},
            "collective_counts": {"AllReduce": count},
        }
        for rank, count in enumerate(launched)
        if rank != dead
    ]  # fmt: skip
    gone = {"unresponsive": True, "considered_dead": True}
    missing = [
        {"rank": rank, "host": "gn01", "pid": 100 + rank, "status": gone} for rank in (dead,) if rank is not None
    ]
    return json.dumps({
        "nccl_version": "2.28.7",
        "communicators": [{
            "hash": "0xcf264af53edbe986", "size": len(launched), "ranks_count": len(ranks), "missing_ranks_count": len(missing),
            "ranks": ranks, "missing_ranks": missing,
        }],
    }).encode()  # fmt: skip


def ras_culprits(folder: Path, *polls: bytes) -> set[int]:
    for number, poll in enumerate(polls):
        (folder / f"poll{number}.json").write_bytes(poll)
    evidence = gather([folder])
    assert len(evidence.ras) == len(polls), evidence.skipped
    return {rank for told in analyses(evidence) for rank in told.analysis.ranks}


def test_two_polls_of_ras_name_the_rank_that_does_not_move(tmp_path: Path) -> None:
    assert ras_culprits(tmp_path, ras([90, 90, 90, 89]), ras([90, 90, 90, 89])) == {3}


def test_a_poll_in_the_middle_of_a_step_blames_nobody(tmp_path: Path) -> None:
    assert ras_culprits(tmp_path, ras([90, 90, 90, 89])) == set()


def test_ranks_that_move_between_polls_are_alive(tmp_path: Path) -> None:
    assert ras_culprits(tmp_path, ras([90, 90, 90, 89]), ras([120, 120, 120, 119])) == set()


def test_of_several_that_are_behind_the_last_is_awaited(tmp_path: Path) -> None:
    assert ras_culprits(tmp_path, ras([90] * 6 + [88, 40]), ras([90] * 6 + [88, 40])) == {7}


def test_a_process_that_ras_has_given_up_is_named(tmp_path: Path) -> None:
    assert ras_culprits(tmp_path, ras([90, 90, 90, 90], dead=1)) == {1}


def test_ras_and_dumps_are_one_answer(tmp_path: Path) -> None:
    (tmp_path / "poll.json").write_bytes(ras([9, 9, 5, 9]))
    job = healthy("2.28.3", "none")
    CASES["H01"].inject(job)
    for name, content in job.extra.items():
        (tmp_path / Path(name).name).write_bytes(content)
    (told,) = analyses(gather([tmp_path]))
    assert told.analysis.ranks == (2,)
    assert [source.file for source in told.confirmed_by] == ["poll.json"]
