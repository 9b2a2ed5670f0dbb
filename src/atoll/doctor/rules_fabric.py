"""Network rules, part two: errors on the wire and what measurements say of the fabric (N09 to N11, N17 to N23)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from atoll.doctor.bandwidth import collapse, gap, inspected_gap, machine_of
from atoll.doctor.evidence import Evidence, merge_sources
from atoll.doctor.finding import Confidence, Hit, Role, Severity, Subject
from atoll.doctor.pair_matrix import MatrixVerdict, Pair, solve
from atoll.doctor.rule import Rule
from atoll.readers.kernel_log import LinkChange
from atoll.readers.nccl_log_facts import Completion, ConnectionLost, ErrorReturn, IbAsyncEvent, Statement
from atoll.readers.source import Source
from atoll.units import format_bandwidth, format_size

RETRY_EXCEEDED: Final = 12
PEER_STATUSES: Final = {5: "flushed", 13: "receiver not ready"}
LATE_S: Final = 600.0
LATE_CALLS: Final = 100
REMOTE_ERROR: Final = 6


def _retries(evidence: Evidence) -> list[tuple[Completion, Statement]]:
    return [(fact, statement) for fact, statement in evidence.said(Completion) if fact.status == RETRY_EXCEEDED]


def _seconds(text: str) -> float | None:
    match = re.search(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", text)
    try:
        return datetime.fromisoformat(match[0]).timestamp() if match else None
    except ValueError:
        return None


def _flaps(evidence: Evidence) -> list[Source]:
    """Lines that say that a link of the fabric went away."""
    found = [
        statement.source
        for fact, statement in evidence.said(IbAsyncEvent)
        if re.search(r"port (?:error|down)|link", fact.event, re.IGNORECASE)
    ]
    found += [
        change.source
        for change in evidence.kernel_of(LinkChange)
        if not change.up and ("mlx" in change.driver or re.match(r"ib|mlx|ens|enp|eth[1-9]|hsn|bond", change.interface))
    ]
    return found


def _is_late(evidence: Evidence, statement: Statement) -> bool:
    """Whether the job had been running well before an error: by time stamps, or by how many collectives were called."""
    calls = [last.call.op_count for last in evidence.nccl.job.last_calls]
    if calls and max(calls) >= LATE_CALLS:
        return True
    times = [seconds for other in evidence.nccl.statements if (seconds := _seconds(other.time)) is not None]
    own = _seconds(statement.time)
    return bool(times) and own is not None and own - min(times) > LATE_S


def _retry_subjects(evidence: Evidence, fact: Completion, statement: Statement) -> tuple[Subject, ...]:
    places = evidence.speakers_of(statement)
    if not fact.hca:
        return places
    return tuple(Subject(p.rank, p.host, p.gpu, p.bus_id, fact.hca) for p in places)


def _words(fact: Completion) -> str:
    where = f" to {fact.peer}" if fact.peer else ""
    return f"retries exceeded{where} (status 12, vendor error {fact.vendor_err})"


def _n09(evidence: Evidence) -> Iterable[Hit]:
    flaps = _flaps(evidence)
    for fact, statement in _retries(evidence):
        if flaps or _is_late(evidence, statement):
            continue
        who = next((place.rank for place in evidence.speakers_of(statement) if place.rank is not None), None)
        started = any(member.ready for c in evidence.nccl.job.communicators for member in c.members.values())
        confidence = Confidence.HIGH if started and fact.vendor_err == 129 else Confidence.MEDIUM
        yield Hit(
            f"{f'rank {who}: ' if who is not None else ''}{_words(fact)}"
            + (" at the first traffic, after initialisation was complete" if started else "; nothing says how late"),
            (statement.source,),
            _retry_subjects(evidence, fact, statement),
            confidence=confidence,
        )


def _n10(evidence: Evidence) -> Iterable[Hit]:
    flaps = _flaps(evidence)
    for fact, statement in _retries(evidence):
        if flaps or _is_late(evidence, statement):
            yield Hit(
                f"{_words(fact)} in the middle of the run" + (", with a link that went down" if flaps else ""),
                merge_sources([[statement.source], flaps]),
                _retry_subjects(evidence, fact, statement),
                confidence=Confidence.HIGH if flaps else Confidence.MEDIUM,
            )
            return
    for fact_, statement in evidence.said(IbAsyncEvent):
        if re.search(r"port (?:error|down)|device fatal", fact_.event, re.IGNORECASE):
            yield Hit(
                f"{fact_.device or 'an adapter'} reports {fact_.event}",
                merge_sources([[statement.source], flaps]),
                tuple(Subject(p.rank, p.host, nic=fact_.device) for p in evidence.speakers_of(statement)),
            )
            return


def _n11(evidence: Evidence) -> Iterable[Hit]:
    seen: list[Source] = []
    ranks: dict[Subject, None] = {}
    what: list[str] = []
    for fact, statement in evidence.said(Completion):
        if fact.status in PEER_STATUSES:
            what.append(f"a request was {PEER_STATUSES[fact.status]} (status {fact.status})")
            seen.append(statement.source)
            ranks.update(dict.fromkeys(evidence.speakers_of(statement)))
    for lost, statement in evidence.said(ConnectionLost):
        what.append(f"a connection to {lost.peer} is lost")
        seen.append(statement.source)
        ranks.update(dict.fromkeys(evidence.speakers_of(statement)))
    for returned, statement in evidence.said(ErrorReturn):
        if returned.code == REMOTE_ERROR:
            what.append("NCCL returns 6: a remote process exited, or the network failed")
            seen.append(statement.source)
            ranks.update(dict.fromkeys(evidence.speakers_of(statement)))
    for run in evidence.runs:
        for failure in run.failures:
            if "remote process exited" in failure.message:
                what.append("nccl-tests: a remote process exited, or the network failed")
                seen.append(failure.source)
                ranks[Subject(host=failure.host)] = None
    if seen:
        yield Hit(f"{what[0]}; somebody else failed first", tuple(seen[:4]), tuple(s for s in ranks if str(s))[:8])


def _n17(evidence: Evidence) -> Iterable[Hit]:
    sending: dict[tuple[int, int], int] = {}
    receiving: dict[tuple[int, int], int] = {}
    for connection in evidence.network_connections:
        side = receiving if connection.direction == "receive" else sending
        side[connection.src, connection.dst] = connection.via.nic
    crossing = {ranks for ranks in sending if ranks in receiving and sending[ranks] != receiving[ranks]}
    straight = {ranks for ranks in sending if ranks in receiving and sending[ranks] == receiving[ranks]}
    failing = {
        place.rank: statement
        for _, statement in _retries(evidence)
        for place in evidence.speakers_of(statement)
        if place.rank is not None
    }
    on_crossing = {rank for ranks in crossing for rank in ranks}
    on_straight = {rank for ranks in straight for rank in ranks} - on_crossing
    if failing and on_straight and set(failing) <= on_crossing:
        pair = min(ranks for ranks in crossing if set(ranks) & set(failing))
        yield Hit(
            f"only ranks whose data crosses rails fail: rank {pair[0]} sends through NIC {sending[pair]}, rank "
            f"{pair[1]} "
            f"receives through NIC {receiving[pair]}",
            merge_sources([[statement.source for statement in failing.values()],
                           [c.source for c in evidence.network_connections if (c.src, c.dst) == pair]]),
            tuple(evidence.place(rank) for rank in sorted(failing)[:8]),
        )  # fmt: skip


def _matrices(evidence: Evidence) -> list[tuple[str, MatrixVerdict, list[Source], set[str]]]:
    """The verdict on each comparable set of pairs: by GPUs a node and collective."""
    sets: dict[tuple[int | None, str], list[tuple[Pair, Source]]] = {}
    for result in evidence.pairs:
        key = (result.gpus_per_node, result.collective)
        pair = Pair(result.host_a, result.host_b, result.average_busbw_bytes_per_s)
        sets.setdefault(key, []).append((pair, result.source))
    verdicts = []
    for (gpus, collective), items in sorted(sets.items(), key=lambda item: (item[0][0] or 0, item[0][1])):
        found = solve(pair for pair, _ in items)
        if found is None:
            continue
        name = f"{gpus} GPU{'s' if gpus != 1 else ''} a node" if gpus else "all pairs"
        name += f", {collective}" if collective else ""
        limit = 0.7 * found.reference_bytes_per_s
        slow = [source for pair, source in items if (pair.bandwidth_bytes_per_s or limit) < limit]
        hosts = {node for pair, _ in items for node in (pair.node_a, pair.node_b)}
        verdicts.append((name, found, slow, hosts))
    return verdicts


def _n18(evidence: Evidence) -> Iterable[Hit]:
    for run in evidence.runs:
        fall = collapse(run)
        hosts = sorted({rank.host for rank in run.ranks})
        if fall is None or len(hosts) == 1:
            continue
        yield Hit(
            f"busbw of {run.collective or 'the run'} falls with size: "
            f"{format_bandwidth(fall.best.busbw_bytes_per_s)} at "
            f"{format_size(fall.best.size_bytes)}, {format_bandwidth(fall.last.busbw_bytes_per_s)} at "
            f"{format_size(fall.last.size_bytes)}",
            (fall.best.source, fall.last.source),
            (Subject(link=" - ".join(hosts)),) if len(hosts) == 2 else tuple(Subject(host=host) for host in hosts[:8]),
        )


def _n19(evidence: Evidence) -> Iterable[Hit]:
    found = [gap(run, machine_of(run, evidence.machine)) for run in evidence.runs]
    if evidence.inspected:
        nodes = [seen.num_nodes for seen in evidence.inspected if seen.num_nodes]
        machine = evidence.machine
        if nodes and machine.num_nodes is None:
            largest = max(evidence.inspected, key=lambda seen: seen.world_size)
            machine = type(machine)(machine.gpu, largest.world_size, largest.num_nodes, machine.nics_per_node,
                                    machine.nic_rate_bytes_per_s, machine.nics_from, machine.nccl_version)  # fmt: skip
        found.append(inspected_gap(evidence.inspected, machine))
    for item in found:
        if item is None or item.expectation.limit != "NICs":
            continue
        machine = item.machine
        told = f"as if about {item.nics} of {machine.nics_per_node} NICs carried it" if item.nics else ""
        if item.nics_by_tree is not None and item.nics_by_ring is not None:
            told += f" ({item.nics_by_tree:.1f} by a tree's bytes on the wire, {item.nics_by_ring:.1f} by a ring's)"
        yield Hit(
            f"{item.collective} over {machine.num_nodes} nodes reaches "
            f"{format_bandwidth(item.plateau.busbw_bytes_per_s)} of "
            f"busbw; {item.expectation.source} should give "
            f"{format_bandwidth(item.expectation.busbw_bytes_per_s)} or more: "
            f"{told}",
            (item.plateau.source,),
            tuple(Subject(host=host) for host in sorted(set(evidence.host_of_rank.values()))[:4]),
        )


def _n20(evidence: Evidence) -> Iterable[Hit]:
    for name, verdict, slow, _ in _matrices(evidence):
        for blame in verdict.nodes:
            own = [source for source in slow if blame.node in source.text] or slow
            yield Hit(
                f"{name}: {blame.num_slow} of {blame.num_pairs} pairs of {blame.node} are slow (median "
                f"{format_bandwidth(blame.median_bytes_per_s)} against "
                f"{format_bandwidth(verdict.reference_bytes_per_s)}), and "
                "the others are fast among themselves",
                tuple(own[:3]),
                (Subject(host=blame.node),),
                confidence=Confidence.HIGH if blame.chance < 1e-4 else Confidence.MEDIUM,
            )


def _n21(evidence: Evidence) -> Iterable[Hit]:
    for name, verdict, slow, _ in _matrices(evidence):
        if verdict.groups:
            said = " | ".join(", ".join(group) for group in verdict.groups)
            yield Hit(
                f"{name}: pairs within a group are fast, pairs across are slow ({verdict.num_slow} of "
                f"{verdict.num_pairs}), so "
                f"no node is to blame but what joins the groups: {said}",
                tuple(slow[:3]),
                tuple(Subject(link=f"{group[0]}.. ({len(group)} nodes)") for group in verdict.groups),
            )


def _n22(evidence: Evidence) -> Iterable[Hit]:
    for name, verdict, slow, _ in _matrices(evidence):
        if verdict.pairs:
            named = [f"{pair.node_a} - {pair.node_b}" for pair in verdict.pairs]
            yield Hit(
                f"{name}: {len(named)} slow pair{'s' if len(named) > 1 else ''} that no node and no group explains",
                tuple(source for source in slow if any(p.node_a in source.text and p.node_b in source.text
                                                       for p in verdict.pairs))[:3],
                tuple(Subject(link=pair) for pair in named[:12]),
            )  # fmt: skip


RULES: tuple[Rule, ...] = (
    Rule(
        "N09", "RoCE address or route is wrong",
        "The first packets between two adapters are never answered: the GID, the VLAN or the route does not "
        "lead there, or "
        "the two ports are on different fabrics.",
        "A completion with status 12 (transport retry counter exceeded; vendor error 129) soon after `Init COMPLETE`.",
        "A retry error after hours, or with a link that went down, is N10. Flushes and remote exits are cascade (N11).",
        Severity.FATAL, Role.ROOT,
        "Set `NCCL_IB_GID_INDEX` to the routable RoCE v2 address (`show_gids`), keep both ends on one fabric "
        "(N12), and prove "
        "the path with `ib_write_bw -x <index>`.",
        _n09, collect="`show_gids` and `ibstat` of both hosts; `NCCL_DEBUG_SUBSYS=INIT,NET`",
        explains=("N11", "H02", "H05", "H12", "P04", "P06", "P07", "U01"),
    ),
    Rule(
        "N10", "A link flaps or loses packets",
        "A path that has worked stops working: a port goes down, or retries run out in the middle of the run.",
        "Status 12 after many collectives or minutes, `async event: port error`, `lost carrier` or link-down "
        "in the kernel log.",
        "A peer that died shows as flush (status 5) or remote exit instead.",
        Severity.FATAL, Role.ROOT,
        "Replace cable or optic; `NCCL_IB_TIMEOUT` and `NCCL_IB_RETRY_CNT` only ride out short flaps.",
        _n10, collect="`perfquery -x` (symbol_error, link_downed) or `ethtool -S` of that port; dmesg of both hosts",
        explains=("N11", "H02", "H12", "P04", "P06", "P07", "U01"),
    ),
    Rule(
        "N11", "A peer is gone",
        "This rank lost its partner. That is never the cause: the partner failed first.",
        "Completion status 5 or 13, `-> 6`, `Connection closed by remote peer`, nccl-tests' remote process exited.",
        "Never a root.",
        Severity.FATAL, Role.CASCADE, "Look for the first error by time, on another rank.", _n11, Confidence.HIGH,
        collect="the logs of all ranks, with `NCCL_DEBUG=INFO`",
    ),
    Rule(
        "N17", "Rails cannot reach each other",
        "On a rail-only fabric adapters of different index are not connected, and exactly the ranks whose "
        "rings cross rails fail.",
        "Status 12 only on ranks that send through one NIC and arrive at another, while same-rail pairs work.",
        "Needs channel lines of both sides; silent when a same-rail rank fails too.",
        Severity.FATAL, Role.ROOT, "`NCCL_CROSS_NIC=0`.", _n17, explains=("N09", "N11", "H02", "H12", "P06", "U01"),
    ),
    Rule(
        "N18", "Bandwidth falls with size",
        "busbw collapses at large sizes while links are up: congestion, pause storms, or one bad node.",
        "nccl-tests rows over two or more nodes that end below half of the best, over at least two sizes.",
        "Rule out one bad node with a pair matrix first: if N20 names one, it is the root.",
        Severity.SLOW, Role.EITHER, "Check ECN/PFC and adaptive routing; look for pause frames and PortXmitWait.", _n18,
        collect="pairwise nccl-tests of all nodes; port counters before and after",
    ),
    Rule(
        "N19", "Fewer NICs than there are",
        "A benchmark over nodes stays far below what the adapters give, as if only some of them carried data.",
        "nccl-tests or Inspector plateau below 60 % of NICs x line rate x 0.92, with the NICs counted by "
        "ibstat, NCCL, a "
        "topology file or the table itself.",
        "Silent where the number or rate of NICs is unknown, and on one node.",
        Severity.SLOW, Role.EITHER,
        "Find which adapters idle (`NCCL_DEBUG=INFO`: `via NET/IB/<n>`), then GDR, rails and `NCCL_IB_HCA`.", _n19,
        collect="NCCL_DEBUG=INFO log, ibstat of each node, per-NIC `ib_write_bw`",
    ),
    Rule(
        "N20", "One node is slow with every partner",
        "The pairs of one node are slow while the others are fast among themselves.",
        "Pairwise results; at least half of its pairs slow, and less than one chance in a thousand under the "
        "others' rate.",
        "See `pair_matrix`: groups of nodes and rails are tried first.",
        Severity.SLOW, Role.ROOT, "Drain the node; test its NICs, cables and GPUs alone.", _n20, Confidence.HIGH,
        collect="ibstat, dmesg and `nvidia-smi -q` of that node", explains=("N18", "N11"),
    ),
    Rule(
        "N21", "The fabric between groups of nodes is slow",
        "Nodes fall into groups, fast within and slow across: an oversubscribed or broken layer between them.",
        "Pairwise results in which 90 % of the pairs agree with such groups.",
        "Only groups of three nodes and more; a single slow node is N20.",
        Severity.SLOW, Role.ROOT, "Check the uplinks of the leaf switches, routing and adaptive routing; place "
                                  "jobs in one group.",
        _n21, collect="which leaf each node hangs on (`ibnetdiscover`, LLDP)", explains=("N18",),
    ),
    Rule(
        "N22", "Single slow pairs",
        "Some pairs are slow, and no node, rail or group explains them.",
        "Pairwise results below 70 % of the reference.",
        "They may be noise: repeat those pairs before touching anything.",
        Severity.NOTICE, Role.EITHER, "Repeat these pairs alone.", _n22, Confidence.LOW,
    ),
)  # fmt: skip
