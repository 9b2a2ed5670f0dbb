"""Lateness and its running score, surveys of arrivals, and what the launcher shows of them; without a process."""

import contextlib
import math
import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.watch_table import WatchTable, render
from atoll.runtime.descriptor import CallDescriptor
from atoll.runtime.instructions import Send
from atoll.runtime.ledger import HISTORY, CallLedger
from atoll.runtime.messages import Arrivals, AskArrivals
from atoll.runtime.roster import Roster
from atoll.runtime.stragglers import HALF_LIFE, SLOW_S, SLOW_SHARE, Scoreboard, score
from atoll.runtime.survey import Survey
from atoll.runtime.watch import MAX_PENDING, SILENT_S, Board, Reporter, Row, Status, reporter_for


def call(sequence: int, collective: str = "all_reduce") -> CallDescriptor:
    return CallDescriptor(7, sequence, collective, "float32", 64, "sum", None, "ring")


def steps(lags: list[float], calls: int = 40, interval_s: float = 0.1) -> dict[int, dict[int, float]]:
    """Ranks that come so much later than the step begins; a late one makes the others' next step no later."""
    return {
        rank: {sequence: 50.0 + sequence * interval_s + lag for sequence in range(calls)}
        for rank, lag in enumerate(lags)
    }


def test_the_slow_one_is_who_arrives_late() -> None:
    table = score(steps([0.0, 0.0, 0.03, 0.001]), ["a", "b", "c", "d"])
    assert [(row.rank, row.host) for row in table][:2] == [(2, "c"), (3, "d")]
    assert [row.rank for row in table if row.slow] == [2]
    assert table[0].score_s == pytest.approx(0.0295)  # the median is that of 0, 0, 1 and 30 ms
    assert table[0].share == pytest.approx(0.295)
    assert table[0].calls == 40


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(1, 50))
def test_a_steady_lag_is_its_own_score_however_many_calls(lags: list[float], calls: int) -> None:
    middle = sorted(lags)
    median = (middle[(len(lags) - 1) // 2] + middle[len(lags) // 2]) / 2
    for row in score(steps(lags, calls), ["h"] * len(lags)):
        assert row.score_s == pytest.approx(lags[row.rank] - median, abs=1e-6)
        assert row.last_s == pytest.approx(lags[row.rank] - median, abs=1e-6)


def test_a_hiccup_fades_and_a_change_shows() -> None:
    arrivals = steps([0.0] * 3, calls=200)
    arrivals[1][100] += 0.08
    at_once = score({rank: {s: t for s, t in made.items() if s <= 100} for rank, made in arrivals.items()}, ["h"] * 3)
    later = score(arrivals, ["h"] * 3)
    assert at_once[0].rank == 1
    assert at_once[0].score_s == pytest.approx(0.08 * (1 - 0.5 ** (1 / HALF_LIFE)), rel=0.05)
    assert later[0].score_s < 0.002
    for sequence in range(100, 200):
        arrivals[2][sequence] += 0.05
    assert [row.rank for row in score(arrivals, ["h"] * 3) if row.slow] == [2]


def test_what_timers_do_is_no_straggler() -> None:
    assert not any(row.slow for row in score(steps([0.0, 0.0, SLOW_S * 0.9], interval_s=1e-3), ["h"] * 3))
    assert not any(row.slow for row in score(steps([0.0, 0.0, 0.1 * SLOW_SHARE * 0.9]), ["h"] * 3))


def test_calls_count_once_all_ranks_have_made_them() -> None:
    board = Scoreboard(2)
    board.arrived(0, 0, 1.0)
    assert board.calls == 0
    board.arrived(1, 0, 1.5)
    board.arrived(1, 1, 2.0)
    assert board.calls == 1
    assert [(row.rank, row.last_s) for row in board.table(["h", "h"])] == [(1, 0.25), (0, -0.25)]
    assert score({0: {1: 1.0}}, ["h", "h"])[0].calls == 0, "not all have answered"


def test_a_ledger_remembers_arrivals_as_far_back_as_calls() -> None:
    ledger = CallLedger(7, (0, 1))
    assert ledger.arrivals(0) == (0, [])
    for sequence in range(HISTORY + 10):
        ledger.enter(call(sequence), float(sequence))
    first, times = ledger.arrivals(0)
    assert first == 11
    assert times == [float(sequence) for sequence in range(11, HISTORY + 10)]
    assert ledger.arrivals(HISTORY + 8) == (HISTORY + 8, [HISTORY + 8.0, HISTORY + 9.0])
    assert ledger.entered_at == HISTORY + 9.0


def surveying(rank: int) -> tuple[Survey, CallLedger, list]:
    instructions: list = []
    ledger = CallLedger(7, (0, 1))
    roster = Roster(rank, ["here", "there"], math.inf, instructions, lambda ranks: None, lambda verdict: None)
    return Survey(roster, {7: ledger}.get, instructions), ledger, instructions


def test_a_survey_tells_how_far_another_clock_is_ahead() -> None:
    asking, _, asked = surveying(0)
    answering, ledger, answers = surveying(1)
    for sequence in range(5):
        ledger.enter(call(sequence), 1000.0 + sequence)
    found = asking.begin(7, 3, now=10.0)
    (question,) = asked
    assert question == Send(1, AskArrivals(7, 1, 3))
    answering.heard(0, question.message, now=1004.5)
    (answer,) = answers
    assert answer == Send(0, Arrivals(7, 1, 2, (1002.0, 1003.0, 1004.0), 1004.5))
    asking.heard(1, answer.message, now=11.0)
    assert found[1].ahead_s == pytest.approx(994.0)
    asking.begin(7, 3, now=20.0)
    asking.heard(1, answer.message, now=21.0)
    assert asking.found == {}, "an answer to an earlier question"


def test_strangers_to_a_communicator_get_no_answer() -> None:
    answering, _, answers = surveying(1)
    answering.heard(5, AskArrivals(7, 1, 3), now=1.0)
    answering.heard(0, AskArrivals(8, 1, 3), now=1.0)
    assert answers == []


# -- watching ----------------------------------------------------------------------------------------------------------


def watched(board: Board, rank: int, ranks: tuple[int, ...], times: list[float], now: float, identity: int = 7) -> None:
    status = Status(rank, identity, ranks, 0, tuple(times), "all_reduce(float32, 64, sum)", True, times[-1])
    board.heard(msgspec.msgpack.encode(status), now)


def test_the_board_shows_ranks_the_latest_first() -> None:
    board = Board()
    watched(board, 3, (1, 3), [1.0, 2.0], 3.0)
    watched(board, 1, (1, 3), [1.2, 2.2], 3.0)
    first, second = board.rows(3.5)
    assert (first.rank, first.world_rank, first.calls, first.inside) == (0, 1, 2, True)
    assert first.lateness is not None
    assert first.lateness.score_s == pytest.approx(0.1)
    assert (second.rank, second.world_rank) == (1, 3)
    assert second.silent_s == 0.5
    assert second.for_s == 1.0


def test_the_board_turns_to_what_follows_when_a_communicator_has_ended() -> None:
    board = Board()
    for rank in range(3):
        watched(board, rank, (0, 1, 2), [1.0], 2.0)
    for rank in range(2):
        watched(board, rank, (0, 1), [5.0], 6.0, identity=8)
    assert len(board.rows(6.0)) == 2
    assert len(board.rows(6.0 + 2 * SILENT_S)) == 3, "when nobody reports, the last there was of the largest"


@pytest.mark.parametrize("datagram", [b"", b"\xff" * 9, msgspec.msgpack.encode([1, 2]), b"\x98" + b"\x81" * 5000])
def test_what_is_no_report_is_ignored(datagram: bytes) -> None:
    board = Board()
    board.heard(datagram, 1.0)
    watched(board, 5, (0, 1), [1.0], 1.0)
    assert board.rows(1.0) == []


def test_a_rank_that_reports_no_arrivals_costs_bounded_memory() -> None:
    board = Board()
    watched(board, 1, (0, 1), [0.5], 0.0)
    for start in range(0, 10 * MAX_PENDING, 1000):
        times = tuple(float(start + n) for n in range(1000))
        board.heard(msgspec.msgpack.encode(Status(0, 7, (0, 1), start, times, "x", False, 0.0)), 1.0)
    (known,) = board._watched.values()
    assert len(known.board._pending) <= 2 * MAX_PENDING


def test_a_reporter_tells_each_call_once_and_never_waits() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.setblocking(False)
        reporter = reporter_for(1, {"ATOLL_WATCH_FD": str(theirs.fileno())})
        assert reporter is not None
        ledger = CallLedger(7, (0, 1))
        reporter.report([ledger], 1.0)
        ledger.enter(call(0), 0.25)
        reporter.report([ledger], 1.1)
        assert reporter.next_at == 1.5, "twice a second"
        reporter.report([ledger], 1.5)
        ledger.leave(0)
        ledger.enter(call(1), 1.75)
        ledger.leave(1)
        reporter.report([ledger], 2.0)
        told = [msgspec.msgpack.decode(ours.recv(10_000), type=Status) for _ in range(2)]
        assert [(status.first, status.times, status.inside) for status in told] == [
            (0, (0.25,), True),
            (1, (1.75,), False),
        ]
        for turn in range(5000):
            reporter.report([ledger], 10.0 + turn)
        with contextlib.suppress(BlockingIOError):
            while len(told) < 5000:
                told.append(msgspec.msgpack.decode(ours.recv(10_000), type=Status))
        assert len(told) < 5000, "what did not fit was not waited for"
        ours.close()
        reporter.report([ledger], 9999.0)
        reporter.close()


@pytest.mark.parametrize("value", ["", "x", "99999", "-1"])
def test_without_a_launcher_that_watches_nobody_reports(value: str) -> None:
    assert reporter_for(0, {"ATOLL_WATCH_FD": value}) is None


def test_transfers_between_two_ranks_are_not_watched() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.setblocking(False)
        ledger = CallLedger(7, (0, 1))
        ledger.enter(call(0, "send"), 1.0)
        Reporter(0, theirs).report([ledger], 1.0)
        with pytest.raises(BlockingIOError):
            ours.recv(1000)


class Terminal:
    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def rows() -> list[Row]:
    (late, _) = score(steps([0.03, 0.0]), ["h", "h"])
    return [Row(0, 0, 40, "barrier()", True, 0.25, 0.1, late), Row(1, 4, 40, "barrier()", False, 0.5, 3.2, None)]


def test_the_table() -> None:
    assert render(rows(), 100) == (
        "            rank  calls  comes late by  share        doing\n"
        "               0     40          15 ms    15%  SLOW  in barrier() for 250 ms\n"
        "1 (world rank 4)     40                              has not reported for 3 s\n"
    )
    assert all(len(line) < 40 for line in render(rows(), 40).splitlines())


def test_the_live_table_is_drawn_over_itself_and_makes_way() -> None:
    terminal = Terminal()
    table = WatchTable(terminal, live=True, width=80)  # type: ignore[arg-type]
    table.update(rows())
    drawn = terminal.text
    table.update(rows())
    assert terminal.text == f"{drawn}\x1b[3A\x1b[J{drawn}"
    table.clear()
    table.clear()
    assert terminal.text == f"{drawn}\x1b[3A\x1b[J{drawn}\x1b[3A\x1b[J"


def test_elsewhere_than_on_a_terminal_the_table_comes_once_at_the_end() -> None:
    terminal = Terminal()
    table = WatchTable(terminal, live=False, width=80)  # type: ignore[arg-type]
    table.update(rows())
    assert terminal.text == ""
    table.close(rows())
    assert terminal.text == render(rows(), 80)
