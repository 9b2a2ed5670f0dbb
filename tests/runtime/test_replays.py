"""Failures replayed without a socket: those that chaos has found, event by event, and any others that can be drawn."""

import msgspec
import pytest
from clockwork import HEARTBEAT_S, Clockwork, all_reduce
from hypothesis import given, settings
from hypothesis import strategies as st
from replay import Event, check_safety, decisions, going_on, play

from atoll.errors import CollectiveTimeout, PeerLost
from atoll.runtime.control_machine import ANSWER_S
from atoll.runtime.ledger import CallLedger

ALL4 = range(4)


def test_the_author_of_a_verdict_is_descheduled_and_all_have_the_same_one_nonetheless() -> None:
    """Found on a crowded host: rank 0 is to word the verdict and gets no processor for a while."""
    world = Clockwork(4)
    play(world, [(0, "enter", ALL4), (0.3, "late", [0]), (0.31, "kill", [3]), (1.1, "go", [0])], 2.0)
    error = world.one_failure([0, 1, 2])
    assert error.culprits == (3,)
    assert max(world.failed_at[rank] for rank in (1, 2)) - 100.31 < HEARTBEAT_S, "the others do not wait for it"


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_who_answers_late_but_lives_changes_no_verdict(slow: int) -> None:
    """Found on a crowded host, as different errors: author and others were impatient at the same moment."""
    for seed in range(20):
        world = Clockwork(4, seed)
        log: list[Event] = [(0, "enter", ALL4), (0.3, "kill", [3])]
        # It runs for a moment now and then, gives a sign of life, and is away again.
        for beat in range(20):
            log += [(0.3 + beat * 0.15, "late", [slow]), (0.42 + beat * 0.15, "go", [slow])]
        play(world, log, 5.0)
        check_safety(world, {3})
        assert world.one_failure([0, 1, 2]).culprits == (3,)


def test_a_verdict_does_not_wait_for_a_program_that_is_still_making_the_communicator() -> None:
    """Rank 2 has agreed to it, and its program has not got a processor since: its control thread answers for it."""
    world = Clockwork(4)
    ranks = (0, 1, 2, 3)
    ledgers = [CallLedger(9, ranks) for _ in ranks]
    for rank in (0, 1, 3):
        world.do(rank, world.machines[rank].register(ledgers[rank], world.now))
        ledgers[rank].enter(msgspec.structs.replace(all_reduce(), communicator_id=9), world.now)
    play(world, [(0.1, "kill", [3])], ANSWER_S)
    assert [ledgers[rank].failure is not None for rank in (0, 1)] == [True, True]
    world.do(2, world.machines[2].register(ledgers[2], world.now))
    assert str(ledgers[2].failure) == str(ledgers[0].failure) == str(ledgers[1].failure), "the same, as soon as it is"


def test_at_a_deadline_who_is_slow_to_answer_is_no_culprit() -> None:
    """Rank 2 never came; rank 1 has come, and gets no processor for a while."""
    world = Clockwork(4, heartbeat_s=5.0)
    log = [(0, "enter", (0, 1, 3)), (1.0, "late", [1]), (1.01, "expire", (0, 3)), (1.0 + 1.8 * ANSWER_S, "go", [1])]
    play(world, log, 4.0)
    error = world.one_failure(range(4))
    assert isinstance(error, CollectiveTimeout)
    assert error.culprits == (2,)


def test_at_a_deadline_who_is_stopped_is_not_waited_for_long() -> None:
    world = Clockwork(4)
    play(world, [(0, "enter", (0, 1, 3)), (1.0, "stop", [1]), (1.01, "expire", (0, 3))], 2.0)
    error = world.one_failure((0, 2, 3))
    assert isinstance(error, CollectiveTimeout)
    assert error.culprits == (1, 2)
    assert max(world.failed_at[rank] for rank in (0, 2, 3)) - 101.0 <= 2 * ANSWER_S


def test_one_that_lives_and_does_not_come_is_left_behind_where_most_have_come() -> None:
    world = Clockwork(4)
    come = [(0.1, "propose", (1, 2, 3)), (0.6, "expel", (1, 2, 3)), (1.0, "propose", [0])]
    play(world, come, 2.0)
    assert check_safety(world, {0}) == [1, 2, 3]
    assert {rank: decisions(world)[rank].lost for rank in (1, 2, 3)} == {1: (0,), 2: (0,), 3: (0,)}
    cut_off = world.machines[0].roster.cut_off
    assert cut_off is not None
    assert "it did not come" in cut_off.message


def test_without_most_nobody_is_left_behind() -> None:
    world = Clockwork(4)
    play(world, [(0.1, "propose", (0, 1)), (0.6, "expel", (0, 1))], 2.0)
    assert going_on(world) == [0, 1, 2, 3]
    assert decisions(world) == {}
    play(world, [(0, "propose", (2, 3))], 1.0)
    assert len(set(decisions(world).values())) == 1


@pytest.mark.parametrize("coordinator", ["kill", "stop", "close", "cut"])
def test_a_second_rank_falls_while_the_others_agree_on_the_first(coordinator: str) -> None:
    """Rank 0 would have counted the votes; rank 4 is what they vote about."""
    world = Clockwork(7)
    agree = [(0.5, "propose", range(6)), (0.505, coordinator, [0])]
    play(world, [(0, "enter", range(7)), (0.2, "kill", [4]), *agree], 6.0)
    assert 6 in check_safety(world, {0, 4}), "it is alive, only late"
    play(world, [(0, "propose", [6])], 3.0)
    check_safety(world, {0, 4})
    found = decisions(world)
    assert {rank: found[rank].lost for rank in (1, 2, 3, 5, 6)} == dict.fromkeys((1, 2, 3, 5, 6), (0, 4))


def test_a_stopped_rank_that_comes_back_in_the_middle_of_the_agreement_is_out() -> None:
    world = Clockwork(5)
    log = [(0, "enter", range(5)), (0.2, "stop", [0]), (1.6, "propose", (1, 2)), (1.7, "go", [0])]
    play(world, [*log, (1.75, "propose", [0]), (2.0, "propose", (3, 4))], 3.0)
    check_safety(world, {0})
    assert going_on(world) == [1, 2, 3, 4]
    assert {decision.lost for rank, decision in decisions(world).items() if rank} == {(0,)}


def test_a_cable_pulled_and_a_death_at_once_leave_a_majority() -> None:
    world = Clockwork(5)
    play(world, [(0, "enter", range(5)), (0.2, "cut", [0]), (0.2, "kill", [1])], 4.0)
    assert check_safety(world, {0, 1}) == [2, 3, 4]
    assert set(world.one_failure([2, 3, 4]).culprits) <= {0, 1}


def test_a_network_that_comes_back_in_time_was_a_delay() -> None:
    world = Clockwork(4)
    play(world, [(0, "enter", ALL4), (0.2, "cut", [2]), (0.2 + 0.8 * HEARTBEAT_S, "mend", [])], 4.0)
    world.assert_all_well()


def test_who_closes_because_of_a_death_is_not_taken_for_its_cause() -> None:
    """Rank 1 hears of the death first, and is gone before the others have heard of it."""
    for seed in range(20):
        world = Clockwork(4, seed)
        play(world, [(0, "enter", ALL4), (0.3, "kill", [3])], 0.32)
        for _ in range(50):
            if world.failure(1) is not None:
                break
            world.run(0.01)
        play(world, [(0, "depart", [1])], 2.0)
        assert world.one_failure([0, 1, 2]).culprits == (3,)


FAULTS = ("kill", "stop", "close", "cut", "pair")


@st.composite
def failures(draw: st.DrawFn) -> tuple[int, int, dict[int, str], list[Event]]:
    """A world, its seed, who is broken and how, and the log: faults at any time, delays of others, an agreement."""
    size = draw(st.integers(3, 7))
    order = draw(st.permutations(range(size)))
    kinds = draw(st.lists(st.sampled_from(FAULTS), min_size=0, max_size=(size - 1) // 2))
    broken = dict(zip(order, kinds, strict=False))
    healthy = [rank for rank in range(size) if rank not in broken]
    for rank, kind in broken.items():
        if kind == "pair" and rank < healthy[0]:
            broken[rank] = "stop"  # of a pair that cannot talk the higher rank gives way
    moment = st.integers(0, 400).map(lambda hundredths: hundredths / 100)
    log: list[Event] = [(0, "enter", range(size))]
    log += [(draw(moment), kind, [rank]) for rank, kind in broken.items() if kind not in ("cut", "pair")]
    cut = [rank for rank, kind in broken.items() if kind == "cut"]
    for rank, kind in broken.items():
        if kind == "pair":
            lower = draw(st.sampled_from([other for other in healthy if other < rank]))
            log.append((draw(moment), "pair", [lower, rank]))
    if cut:
        log.append((draw(moment), "cut", cut))
    for rank in draw(st.lists(st.sampled_from(healthy), max_size=4)):
        begin = draw(moment)
        log += [(begin, "late", [rank]), (begin + draw(st.integers(1, 45)) * HEARTBEAT_S / 100, "go", [rank])]
    log += [
        (2.0 + draw(moment) / 2, "propose", [rank])
        for rank in range(size)
        if broken.get(rank, "pair") == "pair" or draw(st.booleans())
    ]
    return size, draw(st.integers(0, 10**6)), broken, log


@settings(max_examples=30, deadline=None)
@given(failures())
def test_whatever_fails_whenever_one_majority_goes_on_with_one_verdict_and_one_decision(
    drawn: tuple[int, int, dict[int, str], list[Event]],
) -> None:
    size, seed, broken, log = drawn
    world = play(Clockwork(size, seed), log, 14.0)
    healthy = [rank for rank in range(size) if rank not in broken]
    assert set(healthy) <= set(check_safety(world, set(broken))), "most are healthy, so they go on"
    assert set(decisions(world)) >= set(healthy), "it ends"
    if set(broken.values()) - {"pair"}:
        assert isinstance(world.one_failure(healthy), PeerLost)
    elif not broken:
        world.assert_all_well()
