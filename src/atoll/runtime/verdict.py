"""From what the ranks report about one call to the error that ends it, in words that name who did what.

The words are for all ranks of the communicator alike: nobody is "we", and ranks are the communicator's, with the
world's beside them where they differ. Culprits are world ranks. A rank that waits for another is a victim, never a
culprit.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import chain, repeat
from typing import Final, NamedTuple

from atoll.errors import CollectiveMismatch, CollectiveTimeout, PeerLost, WorldError
from atoll.runtime.descriptor import CallDescriptor, group_calls, name_ranks
from atoll.runtime.ledger import CallLedger
from atoll.runtime.messages import Kind, Report, Standing, Verdict
from atoll.units import format_duration

# A verdict is one message on the wire, also in a world of thousands where every rank did something else.
MAX_MESSAGE_CHARACTERS: Final = 16384
MAX_STORY_LINES: Final = 256
MAX_LINE_CHARACTERS: Final = 1024

# What is worth more of what several ranks have found at once.
PRECEDENCE: Final = (Kind.LOST, Kind.MISMATCH, Kind.TIMEOUT)
# Ranks shown of a chain of waiting.
MAX_CHAIN: Final = 12

_ERRORS = {Kind.MISMATCH: CollectiveMismatch, Kind.LOST: PeerLost, Kind.TIMEOUT: CollectiveTimeout}


def gave_up_call(ledger: CallLedger, rank: int, sequence: int, reason: str) -> Verdict:
    """World rank ``rank`` gives up a call, or with a ``sequence`` below 0 the communicator."""
    call = ledger.look_up(sequence)[1] if sequence >= 0 else None
    what = f"{call.describe()}, " if call is not None else ""
    place = f"call {sequence} of " if sequence >= 0 else ""
    who = _who((rank,), ledger.ranks)
    return _lost(ledger, (rank,), f"{who} gave up {what}{place}communicator {ledger.communicator_id:x}: {reason}")


class Loss(NamedTuple):
    """A rank that is lost: where it ran, why, and whether it was given up though nobody saw it die."""

    name: str
    why: str
    given_up: bool


def gone(
    communicator_id: int, ranks: Sequence[int], lost: Mapping[int, Loss], reports: Mapping[int, Report]
) -> Verdict:
    """Ranks are lost. ``ranks[i]`` is the world rank of rank i; ``lost`` and the survivors' ``reports`` are by world
    rank."""
    groups: dict[tuple[str, str], list[int]] = {}
    for peer, loss in lost.items():
        groups.setdefault(("did not answer and was given up" if loss.given_up else "died", loss.why), []).append(peer)
    place = {world_rank: rank for rank, world_rank in enumerate(ranks)}
    of = {place[peer]: report for peer, report in reports.items() if peer in place and peer not in lost}
    calls = [report.call for report in of.values() if report.standing is Standing.INSIDE and report.call is not None]
    if calls:
        call = min(calls, key=lambda made: made.sequence)
        during = f"during {call.describe()}, call {call.sequence} of communicator {communicator_id:x}"
    else:
        during = f"(communicator {communicator_id:x})"
    parts = [
        f"{_who(peers, ranks)} ({'; '.join(lost[peer].name for peer in peers)}) "
        f"{verb if len(peers) == 1 else verb.replace('was', 'were')}{' ' + during if first else ''}: {why}"
        for first, ((verb, why), peers) in zip(chain((True,), repeat(False)), groups.items(), strict=False)
    ]
    waiting = waiting_chain(of, [place[peer] for peer in lost], place, ranks)
    message = "; ".join((*parts, *([waiting] if waiting else [])))
    return Verdict(
        communicator_id,
        Kind.LOST,
        _clip(message, MAX_MESSAGE_CHARACTERS),
        tuple(sorted(lost)),
        tuple(
            _clip(_story(rank, of[rank], False, ranks, place), MAX_LINE_CHARACTERS)
            for rank in sorted(of)[:MAX_STORY_LINES]
        ),
    )


def waiting_chain(
    of: Mapping[int, Report], culprits: Sequence[int], place: Mapping[int, int], ranks: Sequence[int]
) -> str:
    """Who waits for whom, from the rank that is farthest from a culprit to the culprit, each by its shortest way."""
    towards: dict[int, int] = {}  # rank -> the one it waits for, on the way to a culprit
    depth = dict.fromkeys(culprits, 0)
    frontier = sorted(culprits)
    while frontier:
        reached = {
            rank: next(place[peer] for peer in report.waits_on if place.get(peer) in frontier)
            for rank, report in sorted(of.items())
            if rank not in depth and any(place.get(peer) in frontier for peer in report.waits_on)
        }
        towards.update(reached)
        depth.update({rank: depth[peer] + 1 for rank, peer in reached.items()})
        frontier = sorted(reached)
    if not towards:
        return ""
    rank = max(towards, key=lambda known: (depth[known], -known))
    links = [name_ranks((rank,), ranks)]
    while rank in towards:
        rank = towards[rank]
        links.append(name_ranks((rank,), ranks))
    if len(links) > MAX_CHAIN:
        links[MAX_CHAIN // 2 : -MAX_CHAIN // 2] = [f"{len(links) - MAX_CHAIN} more"]
    return " waits for ".join(links[:2]) + "".join(f", which waits for {link}" for link in links[2:])


def left(ledger: CallLedger, missed: Mapping[int, int], first: int) -> Verdict:
    """Ranks have left on purpose, after so many calls each, and call ``first`` needs them."""
    call = ledger.look_up(first)[1]
    what = f"{call.describe()}, call {first}" if call is not None else f"call {first}"
    return _lost(
        ledger,
        sorted(missed),
        f"{_who(missed, ledger.ranks)} left communicator {ledger.communicator_id:x} after "
        f"{min(missed.values())} calls; {what}, cannot end without {'them' if len(missed) > 1 else 'it'} "
        "(it closed the communicator or ended its program)",
    )


def severed(ledger: CallLedger, rank: int, peer: int, name: str, reason: str) -> Verdict:
    """The data connection between two living processes broke."""
    mine, theirs = _who((rank,), ledger.ranks), _who((peer,), ledger.ranks)
    return _lost(
        ledger,
        (peer,),
        f"the data connection between {mine} and {theirs} broke{_during(ledger)}, "
        f"though its process ({name}) is alive: {reason}",
    )


def _lost(ledger: CallLedger, peers: Sequence[int], message: str) -> Verdict:
    return Verdict(ledger.communicator_id, Kind.LOST, _clip(message, MAX_LINE_CHARACTERS * 4), tuple(peers))


def _during(ledger: CallLedger) -> str:
    """What this rank is in."""
    inside = ledger.inside
    call = ledger.look_up(min(inside))[1] if inside else None
    where = f"communicator {ledger.communicator_id:x}"
    return f" ({where})" if call is None else f" during {call.describe()}, call {call.sequence} of {where}"


def _who(peers: Container[int], ranks: Sequence[int]) -> str:
    return name_ranks((rank for rank, world_rank in enumerate(ranks) if world_rank in peers), ranks)


def to_error(verdict: Verdict) -> WorldError:
    """The error that a verdict stands for."""
    return _ERRORS[verdict.kind](verdict.message, culprits=verdict.culprits, story=verdict.story)


def differ(reports: Mapping[int, Report]) -> bool:
    """Whether ranks that have made the call have made different ones."""
    prints = {report.call.fingerprint() for report in reports.values() if report.call is not None}
    return len(prints) > 1


def mismatch(communicator_id: int, sequence: int, ranks: Sequence[int], reports: Mapping[int, Report]) -> Verdict:
    """Ranks called different things. ``ranks[i]`` is the world rank of rank i, which keys ``reports``."""
    made: dict[int, CallDescriptor | None] = {}
    for rank, world_rank in enumerate(ranks):
        report = reports.get(world_rank)
        made[rank] = None if report is None else report.call
    groups = group_calls(made)
    words = []
    for members, call in groups:
        if call is not None:
            words.append(f"{name_ranks(members, ranks)} called {call.describe()}")
            continue
        forgotten = [r for r in members if ranks[r] in reports and reports[ranks[r]].standing is Standing.FORGOTTEN]
        absent = [r for r in members if r not in forgotten]
        if forgotten:
            words.append(f"{name_ranks(forgotten, ranks)} made that call too long ago to remember it")
        if absent:
            words.append(f"{name_ranks(absent, ranks)} had not made that call yet")
    callers = [members for members, call in groups if call is not None]
    # The odd ones out, where there is a majority; otherwise nobody knows who was right.
    odd = callers[1:] if len(callers[0]) > len(callers[1]) else callers
    said = f"ranks disagree about call {sequence} of communicator {communicator_id:x}: {'; '.join(words)}"
    return Verdict(
        communicator_id,
        Kind.MISMATCH,
        f"{_clip(said, MAX_MESSAGE_CHARACTERS)}. "
        "Every rank of a communicator must make the same calls, with the same arguments, in the same order",
        tuple(sorted(ranks[rank] for members in odd for rank in members)),
    )


def timeout(
    call: CallDescriptor,
    ranks: Sequence[int],
    reports: Mapping[int, Report],
    answered: Container[int],
    timeout_s: float,
) -> Verdict:
    """A call did not end in time. ``reports`` by world rank; ``answered``: world ranks that have answered just now."""
    place = {world_rank: rank for rank, world_rank in enumerate(ranks)}
    of = {rank: reports[world_rank] for rank, world_rank in enumerate(ranks) if world_rank in reports}
    silent = [rank for rank, world_rank in enumerate(ranks) if world_rank not in answered or rank not in of]
    absent = [rank for rank in _standing(of, Standing.NOT_YET) if rank not in silent]
    inside = _standing(of, Standing.INSIDE)
    left = _standing(of, Standing.LEFT) + _standing(of, Standing.FORGOTTEN)
    words = [f"{name_ranks(inside, ranks)} entered it"] if inside else []
    if left:
        words.append(f"{name_ranks(left, ranks)} finished it")
    if absent:
        words.append(f"{name_ranks(absent, ranks)} never came")
    if silent:
        words.append(f"{name_ranks(silent, ranks)} did not answer (stopped, stuck, or cut off)")
    culprits = silent + absent
    if not culprits:
        culprits = _awaited_by_others(of, place)
        if culprits:
            words.append(f"{name_ranks(culprits, ranks)} kept the others waiting")
    waiting = waiting_chain({rank: of[rank] for rank in of if rank not in culprits}, culprits, place, ranks)
    if waiting:
        words.append(waiting)
    return Verdict(
        call.communicator_id,
        Kind.TIMEOUT,
        _clip(
            f"{call.describe()}, call {call.sequence} of communicator {call.communicator_id:x}, did not end within "
            f"{format_duration(timeout_s)}: {'; '.join(words)}",
            MAX_MESSAGE_CHARACTERS,
        ),
        tuple(sorted(ranks[rank] for rank in culprits)),
        tuple(
            _clip(_story(rank, of.get(rank), rank in silent, ranks, place), MAX_LINE_CHARACTERS)
            for rank in _told(len(ranks), culprits)
        ),
    )


def _told(world_size: int, culprits: Sequence[int]) -> list[int]:
    """The ranks whose story is told: the culprits last, and as many of the others as there is room for."""
    shown = sorted(culprits)[:MAX_STORY_LINES]
    blamed = set(culprits)
    others = [rank for rank in range(world_size) if rank not in blamed]
    return others[: MAX_STORY_LINES - len(shown)] + shown


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 4] + " ..."


def _standing(of: Mapping[int, Report], standing: Standing) -> list[int]:
    return [rank for rank, report in of.items() if report.standing is standing]


def _awaited_by_others(of: Mapping[int, Report], place: Mapping[int, int]) -> list[int]:
    """Ranks that someone waits for and that wait for nobody themselves: where the chains of waiting end."""
    awaited = {place[peer] for report in of.values() for peer in report.waits_on if peer in place}
    return sorted(rank for rank in awaited if rank in of and not of[rank].waits_on)


def _story(rank: int, report: Report | None, silent: bool, ranks: Sequence[int], place: Mapping[int, int]) -> str:
    who = name_ranks((rank,), ranks)
    if report is None:
        return f"{who} did not answer"
    tail = "; now it does not answer" if silent else ""
    ago = format_duration(round(report.idle_s, 3))
    if report.standing is Standing.INSIDE:
        waits = [place[peer] for peer in report.waits_on if peer in place]
        more = f", waiting for {name_ranks(waits, ranks)}" if waits else ""
        return f"{who} entered it {ago} before{more}{', at ' + report.progress if report.progress else ''}{tail}"
    if report.last is None:
        return f"{who} has not made any call on this communicator{tail}"
    last = f"its last call, number {report.last.sequence}, {report.last.describe()}, began {ago} before"
    return f"{who} {'had not come' if report.standing is Standing.NOT_YET else 'has finished it'}: {last}{tail}"
