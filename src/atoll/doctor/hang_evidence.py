"""The hang analyses of everything at hand: dumps, watchdog lines and RAS polls, one answer from the best that speaks.

Dumps tell most, watchdog lines less, RAS least; a weaker source is asked where a stronger one names nobody, and told as
confirmation where it agrees. Dumps of several attempts (one folder each) are analysed apart.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from atoll.doctor.evidence import Evidence
from atoll.doctor.hang import Blame, BlameKind, HangAnalysis, analyse
from atoll.doctor.hang_state import from_dumps, from_watchdog
from atoll.readers.flight_recorder import FlightRecorderDump
from atoll.readers.ras import RasCommunicator
from atoll.readers.source import Source
from atoll.readers.torch_log import WatchdogStatus, WatchdogTimeout


class Told(msgspec.Struct, frozen=True):
    """One analysis, where it comes from, and what else points the same way."""

    origin: str
    analysis: HangAnalysis
    confirmed_by: tuple[Source, ...] = ()


def analyses(evidence: Evidence) -> tuple[Told, ...]:
    """Every set of dumps analysed, or, if none names anybody, the watchdog's lines, or RAS. Computed once."""
    return evidence.once("hang analyses", lambda: _analyses(evidence))


def _analyses(evidence: Evidence) -> tuple[Told, ...]:
    watchdog = _of_watchdog(evidence)
    ras = _of_ras(evidence)
    told: list[Told] = []
    for name, dumps in _attempts(evidence.dumps).items():
        analysis = analyse(from_dumps(dumps))
        if analysis.culprits or analysis.stuck or analysis.disputed:
            agree = [
                source
                for other in (watchdog, ras)
                if other is not None
                for blame in other.culprits
                if blame.rank in analysis.ranks
                for source in blame.sources
            ]
            told.append(
                Told(
                    f"flight-recorder dumps of {name}" if name else "flight-recorder dumps", analysis, tuple(agree[:3])
                )
            )
    if not any(item.analysis.culprits for item in told):
        if watchdog is not None and watchdog.culprits:
            told.insert(
                0, Told("watchdog lines", watchdog, tuple(s for b in (ras.culprits if ras else ()) for s in b.sources))
            )
        elif ras is not None and ras.culprits:
            told.insert(0, Told("RAS", ras))
        elif watchdog is not None and watchdog.stuck and not told and len(watchdog.stuck) == evidence.world_size:
            told.append(Told("watchdog lines", watchdog))
    return tuple(told)


def _attempts(dumps: list[FlightRecorderDump]) -> dict[str, list[FlightRecorderDump]]:
    """Dumps by folder where folders repeat ranks (several attempts), else all together."""
    ranks = Counter(dump.rank for dump in dumps if dump.rank is not None)
    if not ranks:
        return {}
    if max(ranks.values()) < 2:
        return {"": dumps}
    folders: dict[str, list[FlightRecorderDump]] = {}
    for dump in dumps:
        folders.setdefault(dump.source.file.rpartition("/")[0], []).append(dump)
    return folders


def _of_watchdog(evidence: Evidence) -> HangAnalysis | None:
    statuses, timeouts = evidence.torch_of(WatchdogStatus), evidence.torch_of(WatchdogTimeout)
    if not statuses and not timeouts:
        return None
    sizes = [communicator.nranks for communicator in evidence.nccl.job.communicators]
    world_size = max([*sizes, evidence.world_size or 0]) or None
    return analyse(from_watchdog(statuses, timeouts, world_size))


def _of_ras(evidence: Evidence) -> HangAnalysis | None:
    """Ranks that have launched fewer operations than most, that did not answer, or that are dead.

    One poll may catch ranks in the middle of a step: a rank is only blamed when its count is lower in every poll that
    tells it and does not move between polls; a single poll must show it more than one operation behind. Of several that
    are behind, the last is who the others wait for first: an operation ends when everybody has launched it.
    """
    lower: dict[tuple[str, int], list[Blame]] = {}
    polls: Counter[tuple[str, int]] = Counter()
    counts: dict[tuple[str, int], list[int]] = {}
    for report in evidence.ras:
        for communicator in report.communicators:
            for rank, launched in _launched(communicator).items():
                polls[communicator.communicator, rank] += 1
                counts.setdefault((communicator.communicator, rank), []).append(sum(launched.values()))
            for blame in _behind(communicator):
                lower.setdefault((communicator.communicator, blame.rank), []).append(blame)
    blames = [
        found[0] for key, found in lower.items() if len(found) >= polls[key] and _is_certain(found, counts.get(key, []))
    ]
    if not blames:
        return None
    unique = {blame.rank: blame for blame in blames}
    return HangAnalysis(tuple(unique[rank] for rank in sorted(unique)))


def _is_certain(found: list[Blame], counts: list[int]) -> bool:
    if found[0].kind is BlameKind.NO_EVIDENCE:
        return True
    return len(set(counts)) == 1 if len(counts) > 1 else found[0].sequence - found[0].last > 1


def _launched(communicator: RasCommunicator) -> dict[int, dict[str, int]]:
    found = {rank.rank: dict(rank.launched) for rank in communicator.ranks if rank.launched}
    for count in communicator.counts:
        if count.launched is not None:
            for rank in count.ranks:
                found.setdefault(rank, {})[count.collective] = count.launched
    return found


def _behind(communicator: RasCommunicator) -> list[Blame]:
    blames: list[Blame] = []
    size = communicator.world_size or len(communicator.ranks)

    def blame(rank: int, kind: BlameKind, op: str, count: int, what: str, source: Source, last: int = -1) -> Blame:
        return Blame(rank, kind, communicator.communicator, "", count, op, (), what, (source,), last)

    for rank in communicator.ranks:
        if rank.dead or rank.missing:
            state = "is dead" if rank.dead else "does not answer"
            what = f"rank {rank.rank} of communicator {communicator.communicator} {state} by RAS"
            blames.append(blame(rank.rank, BlameKind.NO_EVIDENCE, "", 0, what, rank.source))
    usual: dict[str, int] = {}
    for count in communicator.counts:
        if count.launched is not None and count.num_ranks * 2 > size:
            usual[count.collective] = count.launched
    launched = _launched(communicator)
    sources = {rank.rank: rank.source for rank in communicator.ranks}
    sources |= {
        rank: count.source for count in communicator.counts for rank in count.ranks if count.launched is not None
    }
    for op in sorted({op for counts in launched.values() for op in counts}):
        values = Counter(counts[op] for counts in launched.values() if op in counts)
        value, times = values.most_common(1)[0]
        if times * 2 > size:
            usual.setdefault(op, value)
        if op not in usual:
            continue
        least = min(counts[op] for counts in launched.values() if op in counts)
        for member, counts in sorted(launched.items()):
            if op in counts and counts[op] == least < usual[op]:
                what = f"rank {member} has launched {counts[op]} {op} operations, most ranks {usual[op]} (RAS)"
                blames.append(blame(member, BlameKind.NEVER_ENTERED, op, usual[op], what, sources[member], least))
    return blames
