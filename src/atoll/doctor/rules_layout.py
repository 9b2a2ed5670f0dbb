"""Layout and speed rules: who talks to whom, and who keeps the others waiting (L01 to L06)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from atoll.doctor.evidence import Evidence, merge_sources
from atoll.doctor.finding import Confidence, Hit, Role, Severity, Subject
from atoll.doctor.rule import Rule
from atoll.doctor.steps import (
    exposed_by_recorder,
    exposed_by_steps,
    imbalance,
    pipeline_waiting,
    stalls,
    straggler_by_recorder,
    straggler_by_steps,
)
from atoll.readers.nvidia_smi import GpuState
from atoll.units import format_duration

TENSOR: Final = re.compile(
    r"^(?!EXPERT)(?:.*\b)?(?:TENSOR_MODEL_PARALLEL|TENSOR_PARALLEL|mesh_tp|tp)(?:_GROUP)?\b", re.IGNORECASE
)
WIDE_BY_DESIGN: Final = re.compile(r"DATA|EXPERT|PIPELINE|CONTEXT|_AND_", re.IGNORECASE)
PATIENT: Final = 0.3
HOT: Final = re.compile(r"thermal|power brake|hw slowdown|hw_slowdown|hardware slowdown", re.IGNORECASE)


def _l01(evidence: Evidence) -> Iterable[Hit]:
    hosts = evidence.host_of_rank
    local = evidence.setting("LOCAL_WORLD_SIZE") or evidence.setting("SLURM_GPUS_ON_NODE")
    per_node = int(local.value) if local is not None and local.value.isdigit() and int(local.value) > 0 else None
    told: set[str] = set()
    for dump in evidence.dumps:
        for group in dump.groups:
            if group.name in told or not TENSOR.search(group.description) or WIDE_BY_DESIGN.search(group.description):
                continue
            told.add(group.name)
            if all(rank in hosts for rank in group.ranks):
                places = sorted({hosts[rank] for rank in group.ranks})
            elif per_node is not None:
                places = sorted({f"node {rank // per_node}" for rank in group.ranks})
            else:
                continue
            if len(places) > 1:
                yield Hit(
                    f"tensor-parallel group {group.name} ({group.description}) has ranks "
                    f"{', '.join(map(str, group.ranks[:16]))} "
                    f"on {' and '.join(places[:4])}: its all-reduce of every layer crosses the network",
                    merge_sources([[dump.source], [local.source] if local is not None and not hosts else []]),
                    (Subject(group=group.name), *(evidence.place(rank) for rank in group.ranks[:8])),
                    confidence=Confidence.HIGH if hosts else Confidence.MEDIUM,
                )
                return


def _l02(evidence: Evidence) -> Iterable[Hit]:
    found = exposed_by_steps(evidence.steps) or exposed_by_recorder(evidence.dumps)
    if found is not None:
        yield Hit(
            f"communication is not overlapped: on rank {found.rank} {found.share:.0%} of the time is spent in "
            "collectives that "
            "nothing hides",
            found.sources,
            (evidence.place(found.rank),),
        )


def _l03(evidence: Evidence) -> Iterable[Hit]:
    found = pipeline_waiting(evidence.dumps)
    if found is not None and found[0] >= PATIENT:
        yield Hit(
            f"rank {found[1]} spends {found[0]:.0%} of its time in receives from its neighbour stage",
            (found[2],),
            (evidence.place(found[1]),),
        )


def hot_gpus(evidence: Evidence) -> list[GpuState]:
    """GPUs that a clock event slows down for heat or for lack of power."""
    return [gpu for smi in evidence.smi for gpu in smi.gpus if any(HOT.search(reason) for reason in gpu.slowdowns)]


def _l04(evidence: Evidence) -> Iterable[Hit]:
    found = straggler_by_steps(evidence.steps) or straggler_by_recorder(evidence.dumps)
    hot = hot_gpus(evidence)
    if found is not None:
        place = evidence.place(found.rank)
        step_host = next((step.host for step in evidence.steps if step.rank == found.rank and step.host), "")
        if step_host and not place.host:
            place = Subject(found.rank, step_host, place.gpu, place.bus_id, place.nic)
        same = [gpu for gpu in hot if _is_of(gpu, place, len(hot))]
        if same:
            place = Subject(place.rank, place.host, same[0].index, same[0].bus_id or place.bus_id, place.nic)
        why = f"; GPU {same[0].index} is slowed down ({', '.join(same[0].slowdowns)})" if same else ""
        yield Hit(
            found.what + why,
            merge_sources([found.sources, [gpu.source for gpu in same]]),
            (place,),
            confidence=Confidence.HIGH if same or found.factor is not None else Confidence.MEDIUM,
        )
    elif hot and len(hot) * 2 <= sum(len(smi.gpus) for smi in evidence.smi):
        gpu = hot[0]
        yield Hit(
            f"GPU {gpu.index} is slowed down ({', '.join(gpu.slowdowns)}) and the others are not: every "
            "collective waits for it",
            tuple(gpu.source for gpu in hot[:3]),
            tuple(Subject(host=gpu.host, gpu=gpu.index, bus_id=gpu.bus_id) for gpu in hot[:8]),
        )


def _is_of(gpu: GpuState, place: Subject, num_hot: int) -> bool:
    if gpu.bus_id and place.bus_id and gpu.bus_id.lower().endswith(place.bus_id.lower()[-10:]):
        return not gpu.host or not place.host or gpu.host == place.host
    if place.gpu is not None and gpu.index == place.gpu:
        return not gpu.host or not place.host or gpu.host == place.host
    return num_hot == 1 and place.gpu is None and (not gpu.host or gpu.host == place.host or not place.host)


def _l05(evidence: Evidence) -> Iterable[Hit]:
    found = stalls(evidence.steps)
    if found is None:
        return
    rhythm = f"every {found.period} steps" if found.period else "now and then"
    who = "all ranks" if len(found.ranks) > 1 else f"rank {found.ranks[0]}"
    yield Hit(
        f"{rhythm} a step takes {format_duration(found.spike_s)} instead of {format_duration(found.usual_s)} "
        f"({found.num_spikes} "
        f"times, {who}): "
        + ("a checkpoint or an evaluation" if found.period else "the data loader, or something on the host"),
        found.sources,
        tuple(evidence.place(rank) for rank in found.ranks[:4]),
        confidence=None if found.period else Confidence.LOW,
    )


def _l06(evidence: Evidence) -> Iterable[Hit]:
    found = imbalance(evidence.steps)
    if found is not None and straggler_by_steps(evidence.steps) is None:
        name, correlation, sources = found
        yield Hit(f"compute time follows {name} (correlation {correlation:.2f}): the batches are uneven", sources)


RULES: tuple[Rule, ...] = (
    Rule(
        "L01", "Tensor parallelism spans nodes",
        "The all-reduces inside every layer cross the network instead of staying on NVLink: 2 to 5 times the "
        "step time.",
        "A flight-recorder group described as tensor parallel whose ranks are on several hosts (NCCL log, "
        "dumps or host list "
        "say where ranks are; else LOCAL_WORLD_SIZE).",
        "Expert, data, pipeline and context groups may be wide by design.",
        Severity.SLOW, Role.ROOT, "Keep TP at or below the GPUs of a node, and order ranks so that TP is "
                                  "innermost.", _l01,
        collect="flight-recorder dumps and NCCL_DEBUG=INFO of one rank per node", explains=("L02",),
    ),
    Rule(
        "L02", "Communication is not overlapped with compute",
        "The step is compute plus communication, although bucketing could hide most of it.",
        "Step times with compute and communication parts that add up, or a recorder with timings in which each "
        "collective is "
        "created only after the last completed; at least a fifth of the time.",
        "Judged on the rank that communicates least: the others' time may be waiting for a straggler (L04).",
        Severity.SLOW, Role.EITHER,
        "Overlap gradient reduction (bucket size, `overlap_grad_reduce`, FSDP prefetch); do not wait on the host; "
        "`CUDA_DEVICE_MAX_CONNECTIONS=1` only where the framework asks for it.",
        _l02, collect="a profiler trace of one step",
    ),
    Rule(
        "L03", "A pipeline stage waits",
        "Ranks spend a large share of the step waiting for the stage before or after them.",
        "Timed receives in the flight recorder that cover 30 % or more of a rank's window.",
        "A bubble of (stages - 1) / microbatches is inherent.",
        Severity.SLOW, Role.EITHER, "More microbatches, interleaving, or a better split of layers.",
        _l03, Confidence.LOW,
    ),
    Rule(
        "L04", "One rank keeps all others waiting",
        "A straggler (throttled, sharing its GPU, on a slow host) computes longer; the others wait for it in "
        "collectives.",
        "Per-rank compute times, or recorder timings in which one rank starts last and its kernels are the shortest; "
        "nvidia-smi's slowdown reasons.",
        "Long communication on the *other* ranks is their waiting, not a network fault.",
        Severity.SLOW, Role.ROOT, "Check clocks, temperature and power of that GPU; drain the node if it stays.", _l04,
        collect="`nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE` on that host", explains=("L02", "L03", "L06",
        "N19", "G15"),
    ),
    Rule(
        "L05", "Steps stall periodically",
        "Some steps take far longer than the rest: checkpoints, evaluation, the data loader.",
        "Step times at 1.5 times the median and more, at a fixed interval or repeatedly.",
        "The first two steps are warm-up.",
        Severity.SLOW, Role.ROOT, "Asynchronous checkpoints; more loader workers, prefetch; look at what rank "
                                  "0 does alone.", _l05,
    ),
    Rule(
        "L06", "Batches are uneven",
        "The time of a step follows its number of tokens, so ranks with long sequences keep the others waiting.",
        "Step times with a token or length column, correlated above 0.8.",
        "A straggler that is slow at any size is L04.",
        Severity.SLOW, Role.EITHER, "Balance batches by tokens; pack sequences.", _l06,
    ),
)  # fmt: skip
