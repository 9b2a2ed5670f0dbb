"""``atoll prove``: is it right, what does its order promise, how much does it move?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atoll.cli.schedule_source import Candidate, candidates, proven, source_options
from atoll.errors import AtollError, InternalError, ScheduleError, SpecError
from atoll.units import format_size, parse_size

if TYPE_CHECKING:
    from atoll.schedule.certify import Certificate
    from atoll.schedule.count import Counts, TierTraffic
    from atoll.schedule.prove import ProvenSchedule

SCHEMA_VERSION = 1
_MAX_PAIRS = 1 << 16
_EXIT = {"proven": 0, "refused": 1, "unusable": 2}


class Verdict:
    """What became of one candidate: proven with its readings, refused, or unusable."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.outcome = "unusable"
        self.error: AtollError | None = None
        self.proof: ProvenSchedule | None = None
        self.certificate: Certificate | None = None
        self.counts: Counts | None = None
        self.tiers: tuple[TierTraffic, ...] = ()

    @property
    def name(self) -> str:
        placement = self.candidate.placement
        return f"{self.candidate.name} ({placement})" if placement else self.candidate.name


@click.command(context_settings={"max_content_width": 100})
@click.argument("targets", metavar="FILE|ALGORITHM...", nargs=-1, required=True)
@source_options
@click.option("--size", metavar="SIZE", help="Count bytes of a vector this large (128M); else in vectors, as 1.5 n.")
@click.option("--itemsize", type=int, default=4, show_default=True, help="Bytes per element; elements are never cut.")
@click.option("--islands", type=int, metavar="G", help="Count traffic inside and across islands of G ranks in a row.")
@click.option("--write", metavar="PATH", help="Write the proven schedule: .json as a table, .xml for MSCCL.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document with everything, arrays per rank included.")
def command(
    targets: tuple[str, ...], world: int | None, collective: str | None, root: int | None, options: tuple[str, ...],
    out_of_place: bool, size: str | None, itemsize: int, islands: int | None, write: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Prove that a schedule does what its collective promises; certify its order; count its bytes.

    \b
    atoll prove ring --world 8                  an algorithm (see: atoll algorithms)
    atoll prove ring --world 8 --size 128M      with bytes, against the lower bound
    atoll prove bruck --world 6 --collective all-to-all
    atoll prove *.xml                           MSCCL files, one line each
    atoll prove mine.json                       a table of your own
    atoll prove ring --world 8 --write ring.xml

    A proof replays the table on sets of contributions: it holds for every input of every length. What is wrong is
    named with step, rank, chunk, expected and got. MSCCL files are first checked for deadlock and data races.

    Exit status: 0 all proven, 1 something refused, 2 unusable input.
    """
    if write is not None and (len(targets) > 1 or as_json):
        raise SpecError("--write takes one target and no --json")
    size_bytes = None if size is None else parse_size(size, "--size")
    if itemsize < 1:
        raise SpecError(f"--itemsize: expected at least 1 byte, got {itemsize}")
    if size_bytes is not None and size_bytes % itemsize:
        raise SpecError(f"--size: {size} is no whole number of elements of {itemsize} bytes; see --itemsize")
    length = None if size_bytes is None else size_bytes // itemsize
    if islands is not None and islands < 1:
        raise SpecError(f"--islands: expected at least 1 rank per island, got {islands}")

    verdicts: list[Verdict] = []
    try:
        for target in targets:
            try:
                found = candidates(
                    target, world=world, collective=collective, root=root, options=options, out_of_place=out_of_place
                )
            except SpecError as error:
                if len(targets) == 1:
                    raise
                verdicts.append(_unusable(target, error))
                continue
            verdicts += [_judge(candidate, length, itemsize, islands) for candidate in found]
    finally:
        # Also after Ctrl-C: what was found out is shown.
        if verdicts:
            _show(verdicts, as_json, in_full=len(targets) == 1)
    if write is not None:
        _write(verdicts, Path(write))
    return max((_EXIT[verdict.outcome] for verdict in verdicts), default=0)


def _show(verdicts: Sequence[Verdict], as_json: bool, in_full: bool) -> None:
    if as_json:
        _print_json(verdicts)
    elif in_full:
        click.echo("\n\n".join(_details(verdict) for verdict in verdicts))
    else:
        click.echo(_table(verdicts))


def _unusable(target: str, error: SpecError) -> Verdict:
    def fail(_: Candidate) -> Any:
        raise error

    verdict = Verdict(Candidate(target, fail))
    verdict.error = error
    return verdict


def _judge(candidate: Candidate, length: int | None, itemsize: int, islands: int | None) -> Verdict:
    from atoll.schedule.certify import certify
    from atoll.schedule.count import count, tiers

    verdict = Verdict(candidate)
    try:
        verdict.proof = proven(candidate)
        verdict.certificate = certify(verdict.proof)
        verdict.counts = count(verdict.proof, length, itemsize if length is not None else 1)
        if islands is not None:
            verdict.tiers = tiers(verdict.counts, [rank // islands for rank in range(verdict.proof.world_size)])
        verdict.outcome = "proven"
    except ScheduleError as error:
        verdict.outcome, verdict.error = "refused", error
    except SpecError as error:
        verdict.error = error
    except MemoryError:
        verdict.error = SpecError(f"{candidate.name}: does not fit into memory; take a smaller world")
    return verdict


def _details(verdict: Verdict) -> str:
    """Everything about one schedule, for people."""
    if verdict.proof is None or verdict.certificate is None or verdict.counts is None:
        label = "REFUSED" if verdict.outcome == "refused" else "UNUSABLE"
        return f"{click.style(label, fg='red', bold=True)}  {verdict.name}\n  {verdict.error}"
    header, counts = verdict.proof.header, verdict.counts
    collective = header.collective.replace("_", "-")
    root = "" if header.root is None else f", root {header.root}"
    lines = [
        f"{click.style('PROVEN', fg='green', bold=True)}  {verdict.name}",
        f"  {collective} among {header.world_size:,} ranks{root}: {header.chunks:,} chunks, "
        f"{len(verdict.proof.schedule):,} rows, {counts.steps:,} steps, {'in' if header.in_place else 'out of'} place",
        *_file_facts(verdict.candidate.facts),
        "",
        *("  " + line for line in verdict.certificate.statement().splitlines()),
        "",
        *_counted(counts, verdict.tiers),
    ]
    return "\n".join(lines)


def _file_facts(facts: dict[str, Any]) -> list[str]:
    if not facts:
        return []
    lines = [
        f"  MSCCL program: no deadlock with {facts['min_slots']} slot(s) a connection, no data race; "
        f"{facts['redundant_dependencies']} of {facts['dependencies']} dependencies redundant"
    ]
    return lines + [f"  note: {note}" for note in facts["notes"]]


def _counted(counts: Counts, tiers: Sequence[TierTraffic]) -> list[str]:
    bounds = counts.bounds

    def amount(value: float) -> str:
        if counts.in_chunks:
            return f"{value / counts.vector_bytes:.4g} n"
        return format_size(value)

    ports = "ceil(log2 N)" if bounds.ports == 1 else f"ceil(log{bounds.ports + 1} N), {bounds.ports} peers at once"
    rows = [
        ("", "schedule", "bound", "ratio", ""),
        ("bytes", amount(counts.busiest_bytes), amount(bounds.bandwidth_bytes), _ratio(counts.bandwidth_ratio),
         f"busiest rank; {bounds.formula}, {bounds.source}"),
        ("steps", f"{counts.steps:,}", f"{bounds.latency_steps:,}", _ratio(counts.latency_ratio), ports),
    ]  # fmt: skip
    if bounds.reduced_bytes or counts.reduced.any():
        rows.append(
            ("reduced", amount(int(counts.reduced.max())), amount(bounds.reduced_bytes), _ratio(counts.reduced_ratio),
             "busiest rank; (N-1)/N n, Chan et al. 2007")
        )  # fmt: skip
    lines = _columns(rows, "<>>><")
    lines.append(
        f"  sent per rank: max {amount(int(counts.sent.max()))}, mean {amount(float(counts.sent.mean()))}; "
        f"received: max {amount(int(counts.received.max()))}, mean {amount(float(counts.received.mean()))}"
    )
    most = max(int(counts.messages_sent.max()), int(counts.messages_received.max()))
    lines.append(
        f"  {counts.messages:,} messages, at most {most:,} a rank; longest chain of messages {counts.critical_path:,}"
    )
    if counts.copied.any():
        lines.append(f"  moved locally: max {amount(int(counts.copied.max()))} a rank")
    if tiers:
        lines += _columns(
            [("", "in all", "per rank, max", "per island, max", "messages")]
            + [
                (name, amount(tier.total_bytes), amount(tier.max_sent_bytes), island, f"{tier.messages:,}")
                for name, tier, island in zip(
                    ("inside islands", "across islands"), tiers, ("", amount(tiers[-1].max_island_sent_bytes)),
                    strict=True,
                )
            ],
            "<>>>>",
        )  # fmt: skip
    if counts.in_chunks:
        lines.append("  n: the whole vector; with --size bytes are counted exactly")
    elif counts.vector_bytes:
        lines.append(f"  vector: {format_size(counts.vector_bytes)} ({counts.vector_bytes:,} bytes)")
    return lines


def _table(verdicts: Sequence[Verdict]) -> str:
    """One line a schedule, then what is wrong with those that are."""
    rows = [("", "collective", "ranks", "steps", "bytes/bound", "order", "name")]
    for verdict in verdicts:
        if verdict.proof is None or verdict.certificate is None or verdict.counts is None:
            rows.append((verdict.outcome.upper(), "-", "-", "-", "-", "-", verdict.name))
            continue
        rows.append(
            ("PROVEN", verdict.counts.collective.replace("_", "-"), f"{verdict.counts.world_size}",
             f"{verdict.counts.steps}", _ratio(verdict.counts.bandwidth_ratio), verdict.certificate.verdict(),
             verdict.name)
        )  # fmt: skip
    lines = [line.strip() if index else line[2:] for index, line in enumerate(_columns(rows, "<<>>><<"))]
    for index, verdict in enumerate(verdicts, start=1):
        colour = "green" if verdict.outcome == "proven" else "red"
        word = verdict.outcome.upper()
        lines[index] = click.style(word, fg=colour) + lines[index][len(word) :]
    wrong = [
        f"{verdict.error}"
        if str(verdict.error).startswith(verdict.candidate.name)
        else f"{verdict.name}: {verdict.error}"
        for verdict in verdicts
        if verdict.error is not None
    ]
    total = {outcome: sum(verdict.outcome == outcome for verdict in verdicts) for outcome in _EXIT}
    summary = ", ".join(f"{number} {outcome}" for outcome, number in total.items() if number)
    return "\n".join([*lines, *([""] if wrong else []), *wrong, "", summary])


def _columns(rows: Sequence[Sequence[str]], alignment: str) -> list[str]:
    """Rows as aligned lines, indented by two."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(alignment))]
    return [
        ("  " + "  ".join(f"{cell:{align}{width}}" for cell, align, width in zip(row, alignment, widths, strict=True)))
        .rstrip()
        for row in rows
    ]  # fmt: skip


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3g}"


def _write(verdicts: Sequence[Verdict], path: Path) -> None:
    proofs = [verdict.proof for verdict in verdicts if verdict.proof is not None]
    if len(proofs) != 1:
        raise SpecError(f"--write: expected one proven schedule, got {len(proofs)}; nothing is written")
    match path.suffix.lower():
        case ".json":
            data = proofs[0].schedule.to_json()
        case ".xml":
            from atoll.schedule.msccl_write import write_msccl_xml

            data = write_msccl_xml(proofs[0]).encode()
        case _:
            raise SpecError(f"--write: expected a name that ends with .json or .xml, got {path}")
    try:
        path.write_bytes(data)
    except OSError as error:
        raise SpecError(f"--write: {path}: cannot be written: {error.strerror or error}") from None
    click.echo(f"wrote {path}", err=True)


def _print_json(verdicts: Sequence[Verdict]) -> None:
    import msgspec

    document = {"schema_version": SCHEMA_VERSION, "results": [_document(verdict) for verdict in verdicts]}
    click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())


def _document(verdict: Verdict) -> dict[str, Any]:
    result: dict[str, Any] = {
        "target": verdict.candidate.name,
        "placement": verdict.candidate.placement or None,
        "verdict": verdict.outcome,
        "error": None,
        "file": verdict.candidate.facts or None,
    }
    if verdict.error is not None:
        error: dict[str, Any] = {"type": type(verdict.error).__name__, "message": str(verdict.error)}
        if isinstance(verdict.error, ScheduleError):
            error |= {
                field: getattr(verdict.error, field)
                for field in ("what", "step", "rank", "chunk", "expected", "got", "hint")
            }
        return result | {"error": error}
    if verdict.proof is None or verdict.certificate is None or verdict.counts is None:
        raise InternalError(f"{verdict.name}: has neither an error nor a proof")
    header = verdict.proof.header
    return result | {
        "schedule": {
            "name": header.name,
            "collective": header.collective,
            "world_size": header.world_size,
            "chunks": header.chunks,
            "root": header.root,
            "rows": len(verdict.proof.schedule),
            "in_place": header.in_place,
            "fingerprint": verdict.proof.schedule.fingerprint(),
        },
        "certificate": verdict.certificate,
        "counts": _counts_document(verdict.counts),
        "tiers": verdict.tiers or None,
    }


def _counts_document(counts: Counts) -> dict[str, Any]:
    """Counts as plain data; pairs are left out (null) where there are too many of them."""
    arrays = ("sent", "received", "reduced", "copied", "messages_sent", "messages_received")
    pairs = zip(
        counts.pair_src.tolist(), counts.pair_dst.tolist(), counts.pair_bytes.tolist(), counts.pair_messages.tolist(),
        strict=True,
    )  # fmt: skip
    return {
        "unit": "chunks" if counts.in_chunks else "bytes",
        "vector": counts.vector_bytes,
        "steps": counts.steps,
        "messages": counts.messages,
        "critical_path": counts.critical_path,
        "busiest": counts.busiest_bytes,
        **{name: getattr(counts, name).tolist() for name in arrays},
        "pairs": [{"src": src, "dst": dst, "moved": moved, "messages": messages} for src, dst, moved, messages in pairs]
        if len(counts.pair_src) <= _MAX_PAIRS
        else None,
        "bounds": counts.bounds,
        "ratios": {
            "bandwidth": counts.bandwidth_ratio,
            "latency": counts.latency_ratio,
            "reduced": counts.reduced_ratio,
        },
    }
