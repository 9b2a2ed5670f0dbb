"""``atoll survive``: what failures cost a job, how often to checkpoint, what to hold ready, and what that is worth."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from atoll.errors import SpecError
from atoll.units import (
    format_bandwidth,
    format_duration,
    format_storage_size,
    parse_bandwidth,
    parse_duration,
    parse_fraction,
    parse_storage_size,
)

if TYPE_CHECKING:
    from atoll.resilience.cadence import Checkpoint
    from atoll.resilience.rates import FailureRate
    from atoll.resilience.spares import Domain

_OBSERVED = re.compile(r"([0-9.]+)/([^/]+)(?:/([0-9]+))?")
_LEMONS = re.compile(r"([^x]+)x([0-9.]+)")
_COUNT = re.compile(r"([0-9.]+(?:e[0-9]+)?)([kmbt]?)", re.IGNORECASE)


@click.command(context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]})
@click.option("--gpus", "num_gpus", type=int, required=True, metavar="N", help="GPUs of the job.")
@click.option("--gpus-per-node", type=int, metavar="N", help="[default: 8]")
@click.option("--rate", metavar="NAME", help="A published rate: llama3 (default), rsc-1, rsc-2, opt, ant, field.")
@click.option("--mtbf-node", metavar="TIME", help="Instead: one node interrupts a job once in TIME (100d).")
@click.option("--mtbf-job", metavar="TIME", help="Instead: this job is interrupted once in TIME (3h).")
@click.option("--nodes-per-day", metavar="SHARE", help="Instead: SHARE of the nodes fail on any day (1%).")
@click.option("--observed", metavar="N/TIME[/GPUS]", help="Instead: N interruptions in TIME, on GPUS (419/54d/16384).")
@click.option("--domain", "domains", multiple=True, metavar="NODES/TIME",
              help="Each rack or switch of NODES nodes fails as one, once in TIME (16/2y). Repeatable.")  # fmt: skip
@click.option("--in-place", default="0%", metavar="SHARE", show_default=True,
              help="Node failures after which the job starts again on the same nodes.")  # fmt: skip
@click.option(
    "--lemons", metavar="SHARExF", help="SHARE of the nodes fail F times as often (1%x20): shows their worth."
)
@click.option(
    "--checkpoint", metavar="SIZE", help="Of one checkpoint in storage: 2.3TB is 2.3e12 bytes, 2.1TiB binary."
)
@click.option("--parameters", metavar="N", help="Instead of --checkpoint: 405B parameters of 14 bytes (Adam, mixed).")
@click.option("--storage", metavar="BANDWIDTH", help="For the whole job, reading and writing (57.5GB/s).")
@click.option("--checkpoint-time", metavar="TIME", help="To write one, instead of size and bandwidth.")
@click.option("--blocking", metavar="TIME", help="The job stands still this long; the write goes on in the background.")
@click.option("--slowdown", default="0%", metavar="SHARE", show_default=True, help="Of speed, during such a write.")
@click.option("--interval", metavar="TIME", help="Between checkpoints to storage.  [default: the best]")
@click.option("--memory", metavar="TIME", help="Also checkpoint into host memory, which blocks TIME (0.2s).")
@click.option("--memory-interval", metavar="TIME", help="Between checkpoints in memory.  [default: the best]")
@click.option("--detect", metavar="TIME", help="From failure to notice.  [default: 10min]")
@click.option("--swap", metavar="TIME", help="To bring a node in.  [default: 2min]")
@click.option("--restart", metavar="TIME", help="To start, load and be at work.  [default: 5min and the load]")
@click.option("--repair", metavar="TIME", help="Until a failed node is back.  [default: 1d]")
@click.option("--spares", type=int, metavar="N", help="Nodes that stand by.  [default: for --availability]")
@click.option("--availability", default="99.9%", metavar="SHARE", show_default=True,
              help="Of the time that all nodes are there.")  # fmt: skip
@click.option("--elastic", is_flag=True, help="Plan for a job that shrinks when it has no spare left.")
@click.option("--replica-nodes", type=int, default=1, show_default=True, metavar="N",
              help="Nodes of one data-parallel replica; a shrunk job loses whole ones.")  # fmt: skip
@click.option("--target", default="90%", metavar="SHARE", show_default=True, help="Goodput to find the budget for.")
@click.option("--days", "duration", default=54.0, show_default=True, metavar="N", help="How long the job runs.")
@click.option("--runs", type=click.IntRange(0, 10_000), default=200, show_default=True, help="To simulate; 0: none.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the simulation.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def command(
    num_gpus: int, gpus_per_node: int | None, domains: tuple[str, ...], in_place: str, lemons: str | None,
    slowdown: str, interval: str | None, memory: str | None, memory_interval: str | None, detect: str | None,
    swap: str | None, restart: str | None, repair: str | None, spares: int | None, availability: str,
    elastic: bool, replica_nodes: int, target: str, duration: float, runs: int, seed: int, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """What failures cost a synchronous job, and what each defence against them is worth. Nothing is run.

    \b
    atoll survive --gpus 16384                                     as Llama 3 broke
    atoll survive --gpus 16384 --mtbf-node 100d --checkpoint 2.3TB --storage 57.5GB/s
    atoll survive --gpus 1024 --observed 12/30d --checkpoint-time 90s --interval 3h
    atoll survive --gpus 10000 --nodes-per-day 1% --parameters 405B --storage 2TB/s --blocking 5s

    Goodput is the share of the time that becomes work which is kept. It is computed by formula and checked by a
    simulation from a seed. Sizes in storage are decimal, as disks are sold: 2.3TB is 2.3e12 bytes; 2.1TiB is binary.
    Everything that is not given is assumed, and listed with its source below the plan.
    """
    from atoll.resilience.plan import Job, make_plan
    from atoll.resilience.report import document, text_lines

    notes: dict[str, str] = {}
    rate = _rate(given, num_gpus, gpus_per_node, notes)
    checkpoint, load_s = _checkpoint(given, parse_fraction(slowdown, "--slowdown"), notes)
    lemon_share, lemon_factor = _lemons(lemons)
    job = Job(
        num_gpus=num_gpus,
        gpus_per_node=rate.gpus_per_node,
        rate=rate,
        checkpoint=checkpoint,
        interval_s=_optional(interval, "--interval"),
        memory_copy_s=_optional(memory, "--memory"),
        memory_interval_s=_optional(memory_interval, "--memory-interval"),
        detect_s=_time(detect, "--detect", 600.0, "PyTorch's default timeout of NCCL process groups", notes),
        swap_s=_time(swap, "--swap", 120.0, "DLRover: one pod scheduled and started", notes),
        restart_s=_time(restart, "--restart", 300.0 + load_s, "assumed: 5 min, and reading the checkpoint", notes),
        repair_s=_time(repair, "--repair", 86400.0, "assumed", notes),
        in_place_share=parse_fraction(in_place, "--in-place"),
        domains=tuple(_domain(text) for text in domains),
        spares=spares,
        availability=parse_fraction(availability, "--availability"),
        elastic=elastic,
        replica_nodes=replica_nodes,
        target=parse_fraction(target, "--target"),
        lemon_share=lemon_share,
        lemon_factor=lemon_factor,
        duration_s=duration * 86400.0,
    )
    notes["model"] = "independent failures at a constant rate; any failure stops all GPUs; spares are good when called"
    plan = make_plan(job, runs=runs, seed=seed)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(document(job, plan, notes)), indent=2).decode())
        return
    for line in text_lines(job, plan, notes):
        click.echo(line)


def _rate(given: dict[str, Any], num_gpus: int, gpus_per_node: int | None, notes: dict[str, str]) -> FailureRate:
    """The failure rate from whichever option gives it."""
    import msgspec

    from atoll.resilience.rates import FailureRate, job_mtbf_s, observed_rate, published, rate_from_node_mtbf

    ways = ("rate", "mtbf_node", "mtbf_job", "nodes_per_day", "observed")
    used = [f"--{way.replace('_', '-')}" for way in ways if given[way] is not None]
    if len(used) > 1:
        raise SpecError(f"{' and '.join(used)} both say how often it breaks; give one")
    if num_gpus < 1:
        raise SpecError(f"--gpus: expected at least 1, got {num_gpus}")
    per_node = 8 if gpus_per_node is None else gpus_per_node
    if per_node < 1:
        raise SpecError(f"--gpus-per-node: expected at least 1, got {per_node}")
    nodes = -(-num_gpus // per_node)
    if given["mtbf_node"] is not None:
        value = rate_from_node_mtbf(parse_duration(given["mtbf_node"], "--mtbf-node"))
        source = f"given: a node fails once in {given['mtbf_node']}"
    elif given["mtbf_job"] is not None:
        value = rate_from_node_mtbf(parse_duration(given["mtbf_job"], "--mtbf-job") * nodes)
        source = f"given: this job is interrupted once in {given['mtbf_job']}"
    elif given["nodes_per_day"] is not None:
        value = parse_fraction(given["nodes_per_day"], "--nodes-per-day")
        source = f"given: {given['nodes_per_day']} of the nodes on any day"
    elif given["observed"] is not None:
        match = _OBSERVED.fullmatch(given["observed"].replace(" ", ""))
        if match is None:
            raise SpecError(
                f"--observed: expected N/TIME or N/TIME/GPUS, such as 419/54d/16384, got {given['observed']!r}"
            )
        observed_nodes = -(-int(match[3]) // per_node) if match[3] else nodes
        count = _count(match[1], "--observed")
        value = observed_rate(count, parse_duration(match[2], "--observed"), observed_nodes)
        source = f"observed: {given['observed']}"
    else:
        known = published(given["rate"] or "llama3")
        if gpus_per_node is not None and gpus_per_node != known.gpus_per_node:
            # The published figures are by node of 8; parts fail, so a smaller node fails less often.
            scaled = known.per_node_day * gpus_per_node / known.gpus_per_node
            known = msgspec.structs.replace(known, per_node_day=scaled, gpus_per_node=gpus_per_node)
        notes["rate"] = f"{known.name}: {known.note}"
        notes["source"] = known.source
        return known
    job_mtbf_s(value, nodes)
    notes["rate"] = source
    return FailureRate("given", value, per_node, source)


def _checkpoint(given: dict[str, Any], slowdown: float, notes: dict[str, str]) -> tuple[Checkpoint, float]:
    """What a checkpoint costs, and the seconds to read one."""
    from atoll.resilience.cadence import Checkpoint, optimizer_state_bytes, write_time_s

    if given["checkpoint"] is not None and given["parameters"] is not None:
        raise SpecError("--checkpoint and --parameters both say how large it is; give one")
    sized = given["checkpoint"] is not None or given["parameters"] is not None
    if given["checkpoint_time"] is not None:
        if sized or given["storage"] is not None:
            raise SpecError(
                "--checkpoint-time stands for size and bandwidth; leave out --checkpoint, --parameters, --storage"
            )
        write_s = parse_duration(given["checkpoint_time"], "--checkpoint-time")
        notes["checkpoint"] = f"written in {format_duration(write_s)} (given), read in the same time"
    else:
        if given["checkpoint"] is not None:
            size, basis = float(parse_storage_size(given["checkpoint"], "--checkpoint")), "given"
        else:
            parameters = _count(given["parameters"] or "405B", "--parameters")
            size = optimizer_state_bytes(parameters)
            basis = f"{given['parameters'] or 'assumed: 405B'} parameters of 14 bytes"
        bandwidth = 57.5e9 if given["storage"] is None else parse_bandwidth(given["storage"], "--storage")
        write_s = write_time_s(size, bandwidth)
        origin = "given" if given["storage"] else "BLOOM: 2.3 TB in 40 s"
        written = f"in {format_duration(write_s)} at {format_bandwidth(bandwidth)} ({origin})"
        notes["checkpoint"] = f"{format_storage_size(size)} ({basis}) {written}"
    if given["blocking"] is None:
        if slowdown:
            raise SpecError("--slowdown is of the background write; say with --blocking how long the job stands still")
        return Checkpoint(write_s), write_s
    blocking_s = parse_duration(given["blocking"], "--blocking")
    return Checkpoint(blocking_s, write_s, slowdown), write_s


def _optional(text: str | None, what: str) -> float | None:
    return None if text is None else parse_duration(text, what)


def _time(text: str | None, what: str, default_s: float, basis: str, notes: dict[str, str]) -> float:
    """A duration that is given or assumed; what it rests on goes to ``notes``."""
    if text is not None:
        notes[what[2:]] = f"{format_duration(parse_duration(text, what))} (given)"
        return parse_duration(text, what)
    notes[what[2:]] = f"{format_duration(default_s)} ({basis})"
    return default_s


def _count(text: str, what: str) -> float:
    """A number of things: ``419``, ``405B`` (decimal: thousands, millions, billions, trillions)."""
    match = _COUNT.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        return float(match[1]) * 1000.0 ** " kmbt".index(match[2].lower() or " ")
    except ValueError:
        raise SpecError(f"{what}: expected a number such as 419 or 405B, got {text!r}") from None


def _domain(text: str) -> Domain:
    from atoll.resilience.spares import Domain

    nodes, _, mtbf = text.partition("/")
    if not nodes.strip().isdigit() or not mtbf:
        raise SpecError(f"--domain: expected NODES/TIME such as 16/2y, got {text!r}")
    return Domain(int(nodes), parse_duration(mtbf, "--domain"))


def _lemons(text: str | None) -> tuple[float, float]:
    if text is None:
        return 0.0, 1.0
    match = _LEMONS.fullmatch(text.strip())
    if match is None:
        raise SpecError(f"--lemons: expected SHARExFACTOR such as 1%x20, got {text!r}")
    return parse_fraction(match[1], "--lemons"), _count(match[2], "--lemons")
