"""Ranks that are stopped, slow or cut off: who is given up, who is not, and by when; without a socket."""

import pytest
from clockwork import HEARTBEAT_S, Clockwork, all_reduce
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import PeerLost
from atoll.runtime.detector import Accuse, CutOff, Detector, Doubt, Examine, GiveUp, Tell
from atoll.runtime.heartbeat import BEATS, LATE_BEATS, Heartbeat

few = settings(max_examples=10, deadline=None)


@few
@given(st.integers(3, 6), st.data(), st.integers(0, 10**6), st.booleans())
def test_a_stopped_rank_is_named_on_all_survivors_in_time_and_learns_it_when_it_resumes(
    world_size: int, data: st.DataObject, seed: int, evidence: bool
) -> None:
    world = Clockwork(world_size, seed, evidence)
    victim = data.draw(st.integers(0, world_size - 1))
    enters = data.draw(st.booleans())
    survivors = [rank for rank in range(world_size) if rank != victim]
    world.run(0.3)
    world.all_enter(without=() if enters else (victim,))
    world.run(0.05)
    world.stopped = {victim}
    stopped_at = world.now
    world.run(1.6 * HEARTBEAT_S)
    error = world.one_failure(survivors)
    assert isinstance(error, PeerLost)
    assert error.culprits == (victim,)
    assert f"rank {victim} (pid {100 + victim} on node{victim}) did not answer and was given up" in str(error)
    assert ("its process is stopped" in str(error)) == evidence
    assert max(world.failed_at[rank] for rank in survivors) - stopped_at <= 1.5 * HEARTBEAT_S
    assert min(world.failed_at[rank] for rank in survivors) - stopped_at >= HEARTBEAT_S
    world.run(3 * HEARTBEAT_S)
    world.stopped = set()
    world.step(victim)
    learned = world.failure(victim)
    assert isinstance(learned, PeerLost), "in the first moment"
    assert learned.culprits == (victim,)
    assert "was given up by the others" in str(learned)
    world.run(3 * HEARTBEAT_S)
    assert world.one_failure(survivors) is error


@few
@given(st.integers(2, 5), st.data(), st.integers(0, 10**6))
def test_nobody_accuses_where_nobody_waits(world_size: int, data: st.DataObject, seed: int) -> None:
    world = Clockwork(world_size, seed, evidence=True)
    world.stopped = {data.draw(st.integers(0, world_size - 1))}
    world.run(5 * HEARTBEAT_S)
    assert world.sent == 0, "and nothing is sent"
    world.stopped = set()
    world.all_enter()
    world.run(2 * HEARTBEAT_S)
    world.assert_all_well()


@few
@given(st.integers(2, 5), st.integers(0, 10**6), st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_delays_below_the_timeout_are_never_accused(world_size: int, seed: int, pauses: list[int]) -> None:
    """Ranks stop and go on, again and again, while the others wait for them."""
    world = Clockwork(world_size, seed, evidence=True)
    world.all_enter()
    for pause in pauses:
        world.stopped = {world.rng.randrange(world_size)}
        world.run(pause * HEARTBEAT_S / 100)
        world.stopped = set()
        world.run(0.1)
    world.run(2 * HEARTBEAT_S)
    world.assert_all_well()


@few
@given(st.integers(2, 6), st.integers(0, 10**6))
def test_a_rank_that_computes_for_long_is_waited_for(world_size: int, seed: int) -> None:
    """Its control thread answers; that it never comes is for the deadline to find."""
    world = Clockwork(world_size, seed)
    world.all_enter(without=(0,))
    world.run(10 * HEARTBEAT_S)
    world.assert_all_well()
    per_second = world.sent / (10 * HEARTBEAT_S)
    assert per_second <= 2 * (BEATS + 1) * world_size + world_size**2, "a question and an answer per beat and waiter"


@few
@given(st.integers(2, 6), st.integers(0, 10**6), st.data())
def test_an_observer_that_was_away_itself_accuses_nobody(world_size: int, seed: int, data: st.DataObject) -> None:
    """All are frozen at once (a laptop's lid, a frozen container), and wake one after the other."""
    world = Clockwork(world_size, seed)
    world.all_enter()
    world.run(0.5)
    world.stopped = set(range(world_size))
    world.run(20 * HEARTBEAT_S)
    wakes = list(range(world_size))
    world.rng.shuffle(wakes)
    for rank in wakes:
        world.stopped.discard(rank)
        world.run(data.draw(st.integers(0, 15)) * HEARTBEAT_S / 100)
    world.run(3 * HEARTBEAT_S)
    world.assert_all_well()


@few
@given(st.integers(5, 7), st.integers(0, 10**6), st.data())
def test_of_a_split_world_only_the_majority_goes_on(world_size: int, seed: int, data: st.DataObject) -> None:
    world = Clockwork(world_size, seed, evidence=True)
    minority = data.draw(st.sets(st.integers(0, world_size - 1), min_size=1, max_size=(world_size - 1) // 2))
    majority = set(range(world_size)) - minority
    world.all_enter()
    world.run(0.3)
    world.split(minority, majority)
    world.run(2.5 * HEARTBEAT_S)
    error = world.one_failure(majority)
    assert isinstance(error, PeerLost)
    assert set(error.culprits) <= minority
    for rank in minority:
        lost = world.failure(rank)
        assert isinstance(lost, PeerLost)
        assert "no majority" in str(lost)
        assert world.machines[rank].roster.cut_off is not None, "it must not go on in another communicator either"
    assert all(world.machines[rank].roster.cut_off is None for rank in majority)
    for rank in sorted(majority):
        machine = world.machines[rank]
        machine.roster.propose((0, 1), range(world_size), -1, (), world.now)
        world.do(rank, machine.taken())
    world.run(3 * HEARTBEAT_S)
    for rank in majority:
        agreement = world.machines[rank].roster.council.look_up((0, 1))
        assert agreement is not None
        assert agreement.decision is not None
        assert set(agreement.decision.lost) == minority
    world.cut = set()
    world.run(HEARTBEAT_S)
    assert world.one_failure(majority) is error, "the network's return changes nothing"


@pytest.mark.parametrize("world_size", [2, 4])
def test_of_two_halves_neither_goes_on(world_size: int) -> None:
    world = Clockwork(world_size)
    halves = set(range(world_size // 2)), set(range(world_size // 2, world_size))
    world.all_enter()
    world.split(*halves)
    world.run(2.5 * HEARTBEAT_S)
    for rank in range(world_size):
        error = world.failure(rank)
        assert isinstance(error, PeerLost)
        assert "no majority" in str(error)
        assert set(error.culprits) == (halves[1] if rank in halves[0] else halves[0])
        assert world.machines[rank].roster.cut_off is not None


def test_of_two_ranks_on_one_host_the_one_that_runs_goes_on() -> None:
    world = Clockwork(2, evidence=True)
    world.all_enter()
    world.stopped = {0}
    world.run(1.5 * HEARTBEAT_S)
    error = world.one_failure([1])
    assert error.culprits == (0,)
    assert world.machines[1].roster.cut_off is None


@few
@given(st.integers(4, 6), st.integers(0, 10**6), st.data())
def test_where_one_pair_cannot_talk_the_higher_gives_way(world_size: int, seed: int, data: st.DataObject) -> None:
    world = Clockwork(world_size, seed, evidence=True)
    low = data.draw(st.integers(0, world_size - 2))
    high = data.draw(st.integers(low + 1, world_size - 1))
    world.all_enter(without=(low, high))
    for rank, peer in ((low, high), (high, low)):
        world.ledgers[rank].enter(all_reduce(), world.now)
        world.wait(rank, peer)
    world.cut = {(low, high), (high, low)}
    world.run(4 * HEARTBEAT_S)
    assert world.one_failure([rank for rank in range(world_size) if rank != high]).culprits == (high,)
    assert world.machines[high].roster.cut_off is not None


@few
@given(st.integers(5, 7), st.integers(0, 10**6), st.data())
def test_two_that_stop_are_both_lost_to_the_others(world_size: int, seed: int, data: st.DataObject) -> None:
    world = Clockwork(world_size, seed)
    victims = data.draw(st.sets(st.integers(0, world_size - 1), min_size=2, max_size=2))
    survivors = sorted(set(range(world_size)) - victims)
    world.all_enter()
    world.run(0.2)
    world.stopped = victims
    world.run(2 * HEARTBEAT_S)
    assert set(world.one_failure(survivors).culprits) <= victims
    for rank in survivors:
        machine = world.machines[rank]
        machine.roster.propose((0, 1), range(world_size), -1, (), world.now)
        world.do(rank, machine.taken())
    world.run(3 * HEARTBEAT_S)
    for rank in survivors:
        agreement = world.machines[rank].roster.council.look_up((0, 1))
        assert agreement is not None
        assert agreement.decision is not None
        assert set(agreement.decision.lost) == victims


def test_a_death_while_another_is_stopped_does_not_wait_for_it() -> None:
    """The author of the verdict would be rank 0, which is stopped."""
    world = Clockwork(4)
    world.all_enter()
    world.run(0.2)
    world.stopped = {0}
    world.kill(2)
    world.run(0.8)
    error = world.one_failure([1, 3])
    assert error.culprits == (2,)
    assert max(world.failed_at.values()) - world.now < HEARTBEAT_S


# The parts.


def test_silence_is_counted_in_attended_time() -> None:
    heartbeat = Heartbeat(8.0)
    assert heartbeat.watch([1, 2], 0.0) == [1, 2]
    for now in range(1, 5):
        heartbeat.heard(2, now - 0.25)
        heartbeat.look(float(now))
    assert heartbeat.silence_s(1) == 4
    assert heartbeat.silence_s(2) == 0.25
    heartbeat.look(1000.0)
    assert heartbeat.silence_s(1) == 5.5, "a gap counts as one and a half beats"


def test_lateness_is_told_once_and_taken_back_by_any_word() -> None:
    heartbeat = Heartbeat(8.0)
    heartbeat.watch([1], 0.0)
    late = [heartbeat.look(float(now)).late for now in range(1, 5)]
    assert late == [[], [1], [], []]
    assert late.index([1]) + 1 == LATE_BEATS
    assert heartbeat.undecided() == [1]
    assert heartbeat.heard(1, 4.5)
    assert heartbeat.undecided() == []


def test_without_anyone_to_watch_there_is_no_deadline() -> None:
    heartbeat = Heartbeat(8.0)
    assert heartbeat.next_deadline() is None
    heartbeat.watch([3], 5.0)
    assert heartbeat.next_deadline() == 6.0
    heartbeat.watch([], 5.5)
    assert heartbeat.next_deadline() is None


def findings_of(detector: Detector, seconds: int) -> list:
    return [finding for beat in range(1, seconds * BEATS + 1) for finding in detector.tick(beat / BEATS)]


def test_the_steps_of_a_judgement() -> None:
    detector = Detector(0, 5, 1.0)
    detector.wait_for([3], 0.0)
    found = findings_of(detector, 1)
    assert Tell(Doubt((3,))) in found
    for peer in (1, 2, 4):
        detector.heard(peer, 1.1)
    found += [finding for finding in detector.tick(1.2) if not isinstance(finding, GiveUp)]
    assert Examine(3) in found
    assert detector.examined(3, False, "") == [Tell(Accuse((3,)))], "rank 0 alone is no majority"
    assert detector.accused(1, [3]) == []
    (given_up,) = detector.accused(4, [3])
    assert isinstance(given_up, GiveUp)
    assert given_up.ranks == (3,)


def test_evidence_needs_no_majority() -> None:
    detector = Detector(0, 2, 1.0)
    detector.wait_for([1], 0.0)
    findings_of(detector, 1)
    (given_up,) = detector.examined(1, True, "its process is stopped")
    assert given_up == GiveUp((1,), "no sign of life for 1 s: its process is stopped")


def test_without_evidence_one_of_two_is_cut_off() -> None:
    detector = Detector(0, 2, 1.0)
    detector.wait_for([1], 0.0)
    findings_of(detector, 1)
    (cut_off,) = detector.examined(1, False, "")
    assert isinstance(cut_off, CutOff)
    assert cut_off.ranks == (1,)


def test_an_accusation_is_replaced_by_the_next_of_the_same_rank() -> None:
    detector = Detector(0, 5, 1.0)
    detector.accused(1, [3])
    detector.accused(2, [3])
    detector.accused(1, [])
    assert detector.accused(4, [3]) == [], "two of five"
    assert detector.accused(1, [3]) == [GiveUp((3,), "no sign of life for 1 s")]
