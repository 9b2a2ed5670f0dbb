"""Chaos: what is drawn, what is counted, and a short run of it."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from checkpoint_world import ThreadGroup, on_ranks

from atoll.cli.main import main
from atoll.errors import SpecError
from atoll.resilience.chaos_network import networks_possible
from atoll.resilience.chaos_plan import Fault, Kind, Outcome, Second, draw_fault, parse_kinds
from atoll.resilience.chaos_report import render, summarize, to_json

ALL = tuple(Kind)


def test_the_same_seed_gives_the_same_faults_and_kinds_take_turns() -> None:
    faults = [draw_fault(number, 5, ALL) for number in range(1000)]
    assert faults == [draw_fault(number, 5, ALL) for number in range(1000)]
    assert faults != [draw_fault(number, 6, ALL) for number in range(1000)]
    assert all(sum(fault.kinds[0] is kind for fault in faults) == 250 for kind in Kind)
    doubles = [fault for fault in faults if fault.second is not Second.NEVER]
    assert len(doubles) > 150
    assert all(len(fault.kinds) == 2 for fault in doubles)
    assert sum(fault.second is Second.DURING for fault in doubles) > 50
    assert sum(fault.at_rank_0 for fault in faults) > 150
    assert sum(fault.delay_share > 0 for fault in faults) > 100
    assert all(fault.delay_share <= 1 for fault in faults), "never longer than half the heartbeat timeout"


def test_kinds_as_people_write_them() -> None:
    assert parse_kinds("all", True) == ALL
    assert parse_kinds("all", False) == (Kind.KILL, Kind.STOP, Kind.CLOSE)
    assert parse_kinds("stop,kill,stop", False) == (Kind.STOP, Kind.KILL)
    with pytest.raises(SpecError, match="did you mean 'kill'"):
        parse_kinds("kil", True)
    with pytest.raises(SpecError, match="partition needs network namespaces"):
        parse_kinds("kill,partition", False)


def outcome(number: int = 0, **change) -> Outcome:
    fault = Fault(number, (Kind.KILL,), Second.NEVER, False, 1, 0.0, 0.0, False, 0.0, 0)
    facts = {
        "fault": fault, "kinds": (Kind.KILL,), "victims": (2,), "was_rank_0": False, "world_size": 4,
        "transport": "tcp", "detect_s": 0.1,
        "recover_s": 0.2, "named": 3, "accused": (), "differ": False, "trouble": "", "hang": False,
        "late_result": False,
    }  # fmt: skip
    return Outcome(**{**facts, **change})


def report(*outcomes: Outcome, **change):
    facts = {"seed": 1, "world_size": 4, "heartbeat_s": 1.0, "worlds": 1, "results": 9, "delays": 0, "wrong": [],
             "unprovoked": []}  # fmt: skip
    return summarize(outcomes, **{**facts, **change})


@pytest.mark.parametrize(
    ("outcomes", "change", "line"),
    [
        ((), {"wrong": ["rank 1: round 3"]}, "wrong result: rank 1: round 3"),
        ((), {"unprovoked": ["rank 1 raised"]}, "without a fault: rank 1 raised"),
        ((outcome(accused=("rank 0: PeerLost naming [1]: x",)),), {}, "fault 0 (kill of rank 2): wrongly accused by"),
        ((outcome(trouble="not gone on", hang=True),), {}, "fault 0 (kill of rank 2): not gone on"),
        ((outcome(trouble="not gone on"),), {}, "fault 0 (kill of rank 2): not gone on"),
        ((outcome(late_result=True),), {}, "a result after it had been given up"),
    ],
)
def test_every_broken_promise_fails_the_run_and_is_told(outcomes, change, line: str) -> None:
    assert report(outcome()).passed
    broken = report(outcome(), *outcomes, **change)
    assert not broken.passed
    text = render(broken)
    assert line in text
    assert text.endswith("NOT every promise was kept")
    assert to_json(broken)["passed"] is False


def test_counts_and_times_of_a_run() -> None:
    singles = [outcome(n, detect_s=n / 1000, recover_s=2 * n / 1000, was_rank_0=n <= 100) for n in range(1, 201)]
    double = Fault(201, (Kind.STOP, Kind.KILL), Second.DURING, False, 1, 0.0, 0.0, False, 0.0, 0)
    missed = outcome(fault=double, kinds=(Kind.STOP,), victims=(1,), detect_s=math.nan)  # the second moment never came
    result = report(
        *singles, outcome(fault=double, kinds=double.kinds, victims=(1, 2), recover_s=9.0, named=2), missed, delays=7
    )
    assert (result.faults, result.double, result.during_recovery, result.at_rank_0) == (202, 1, 1, 100)
    assert result.injected == {"kill": 201, "stop": 2}
    kill = result.detection["kill"]
    assert (kill.count, kill.median_s, kill.p99_s, kill.max_s) == (200, pytest.approx(0.1005), 0.198, 0.2)
    first, others = result.detection["kill rank 0"], result.detection["kill others"]
    assert (first.count, first.median_s, first.max_s) == (100, pytest.approx(0.0505), 0.1)
    assert (others.count, others.median_s, others.max_s) == (100, pytest.approx(0.1505), 0.2)
    assert result.recovery["kill rank 0"].max_s == 0.2
    assert result.recovery["double"].max_s == 9.0
    assert "double" not in result.detection
    assert "stop" not in result.detection
    assert result.named_right == result.errors_of_survivors == 605
    text = render(result)
    assert "201 kill, 2 stop" in text
    lines = text.splitlines()
    kill = next(place for place, line in enumerate(lines) if line.startswith("    kill "))
    assert [line[:12] for line in lines[kill + 1 : kill + 3]] == ["      rank 0", "      others"]
    assert "culprits named right   605 of 605 errors (100 %)" in text
    assert text.endswith("every promise was kept")


class ThreadComm(ThreadGroup):
    """The collectives that a round of chaos may call, among threads; ``spoil`` makes one rank's results wrong."""

    spoil = False

    def _result(self, result: np.ndarray | None, async_op: bool):
        if self.spoil and self.rank == 1 and result is not None and result.size:
            result.reshape(-1)[-1] += 1
        if not async_op:
            return result
        return type("Done", (), {"wait": lambda _: result})()

    def _all(self, array: np.ndarray) -> np.ndarray:
        return super().all_gather(array.reshape(1, -1))

    def all_reduce(self, array, op="sum", *, algorithm="auto", async_op=False):
        stack = self._all(array)
        return self._result(stack.sum(0, array.dtype) if op == "sum" else stack.max(0), async_op)

    def reduce_scatter(self, array, *, async_op=False):
        return self._result(np.split(self._all(array).sum(0, array.dtype), self.world_size)[self.rank], async_op)

    def all_gather(self, array, *, async_op=False):
        return self._result(self._all(array).reshape(-1), async_op)

    def broadcast(self, array, root, *, async_op=False):
        return self._result(self._all(array)[root], async_op)

    def reduce(self, array, op, root, *, async_op=False):
        stack = self._all(array)
        return self._result(stack.sum(0, array.dtype) if self.rank == root else None, async_op)

    def all_to_all(self, array, *, async_op=False):
        blocks = self._all(array).reshape(self.world_size, self.world_size, -1)
        return self._result(blocks[:, self.rank].reshape(-1), async_op)

    def gather(self, array, root, *, async_op=False):
        stack = self._all(array).reshape(-1)
        return self._result(stack if self.rank == root else None, async_op)

    def scatter(self, array, root, *, out, async_op=False):
        whole = np.zeros(out.size * self.world_size, out.dtype) if array is None else array
        return self._result(np.split(self._all(whole)[root], self.world_size)[self.rank], async_op)

    def barrier(self, *, async_op=False):
        self._all(np.zeros(1))
        return self._result(None, async_op)


@pytest.mark.parametrize("spoil", [False, True])
def test_every_kind_of_round_finds_what_is_wrong_and_only_that(spoil: bool) -> None:
    from atoll.resilience.chaos_rank import one_round

    def rounds(group: ThreadGroup) -> list[str]:
        comm = ThreadComm(group.rank, group._shared, group._barrier)
        comm.spoil = spoil
        return [one_round(comm, 3, number) for number in range(120)]

    found = on_ranks(3, rounds)
    assert not any(found[0] + found[2])
    if not spoil:
        assert not any(found[1])
    else:
        collectives = {words.split()[0] for words in found[1] if words}
        assert collectives == {
            "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "gather", "scatter"
        }  # fmt: skip


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "atoll", "chaos", *arguments], capture_output=True, text=True, timeout=200, check=False
    )


def test_a_short_run_keeps_every_promise() -> None:
    """Each kind that is possible here."""
    kinds = ["kill", "stop", "close"] + ["partition"] * networks_possible()
    result = chaos("--faults", "4", "--world", "3", "--seed", "2", "--kinds", ",".join(kinds), "--json",
                   "--hang-after", "90s", "--heartbeat-timeout", "4s")  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(result.stdout)
    assert document["schema_version"] == 2
    assert document["passed"] is True
    assert document["faults"] == 4
    assert set(document["injected"]) == set(kinds)
    assert document["results"] > 4
    assert document["named_right"] == document["errors_of_survivors"] >= 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--world", "2"), "--world: expected at least 3"),
        (("--faults", "0"), "expected more than 0"),
        (("--heartbeat-timeout", "1min"), "less than --hang-after"),
        (("--kinds", "fire"), "unknown kind of fault 'fire'"),
    ],
)
def test_mistakes_are_told(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        main(["chaos", *arguments], standalone_mode=False)
