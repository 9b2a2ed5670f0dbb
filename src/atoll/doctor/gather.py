"""From paths to ``Evidence``: every file is looked at once, by its content, and never believed.

A text goes through the NCCL reader block by block; what is not NCCL's is kept for the other readers, each of which is
only started where its mark occurs. Documents (XML, JSON, dumps) are read whole. A file that cannot be read, or that a
reader refuses, becomes ``Skipped`` with the reason: silence would look like health. Nothing is executed and nothing
is unpickled into a class.

Memory: NCCL lines are reduced as they are read; of the other lines of one file at most ``MAX_OTHER_BYTES`` are held,
and beyond that only lines with a mark of trouble.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from atoll.doctor.evidence import Evidence, ReadFile
from atoll.errors import SpecError
from atoll.readers.bandwidth_table import read_bandwidth_table
from atoll.readers.environment import EnvironmentReader, read_environment
from atoll.readers.flight_recorder import read_flight_recorder
from atoll.readers.folder import Found, Skipped, walk
from atoll.readers.host_list import read_host_list
from atoll.readers.ibstat import ports_in
from atoll.readers.identify import HEAD_BYTES, Kind
from atoll.readers.inspector import read_inspector
from atoll.readers.kernel_log import KernelLogReader
from atoll.readers.lspci import access_control_in
from atoll.readers.nccl_log import NcclLogReader
from atoll.readers.nccl_tests import NcclTestsReader
from atoll.readers.nccl_tests_json import read_nccl_tests_json
from atoll.readers.nvidia_smi import read_nvidia_smi
from atoll.readers.pairwise import pair_results, read_pairwise_csv
from atoll.readers.ras import RasReader, read_ras
from atoll.readers.rocm_topology import read_rocm_topology
from atoll.readers.slurm import SlurmReader
from atoll.readers.step_times import is_step_times, read_step_times
from atoll.readers.text_stream import Line, LineReader, ReadRefused, blocks, make_line
from atoll.readers.topology_matrix import matrices_in
from atoll.readers.topology_xml import read_topology_xml
from atoll.readers.torch_log import TorchLogReader

MAX_OTHER_BYTES: Final = 64 << 20
MIN_PAIRS: Final = 3

_MARKS: Final = {
    "nccl_tests": re.compile(
        rb"# nThread|#\s+size|Avg bus bandwidth|Test NCCL failure|float|double|half|bfloat16|int8"
    ),
    "torch": re.compile(
        rb"ProcessGroupNCCL|Watchdog|watchdog|Traceback|Error|c10d|exitcode|torchrun|elastic|TCPStore|CUDA out "
        rb"of memory"
        rb"|Fingerprint|FINGERPRINT|fingerprint|closing signal"
    ),
    "slurm": re.compile(rb"slurm|srun|sbatch|oom_kill|oom-kill|Node failure"),
    "kernel": re.compile(
        rb"NVRM|[SX]id|AER|oom-kill|Out of memory|Killed process|mlx|Link|link|carrier|iommu|IOMMU|DMAR|soft lockup"
        rb"|hung task|blocked for more|Machine|mce:|EDAC|segfault|traps:|kernel"
    ),
    "ras": re.compile(rb"Job summary|Communicators\.\.\."),
    "matrix": re.compile(rb"GPU0[ \t]+.*(?:GPU1|CPU Affinity|NIC0|mlx5_0|X)"),
    "ibstat": re.compile(rb"CA '|hca_id:|Infiniband device"),
    "rocm": re.compile(rb"(?:Weight|Hops|Link Type|Link accessibility) between two GPUs|Numa Nodes"),
    "lspci": re.compile(rb"ACSCtl:"),
    "smi": re.compile(rb"NVIDIA-SMI|NVSMI LOG|UUID: GPU-|pci\.bus_id|clocks"),
}
_READERS_OF: Final = {
    Kind.KERNEL_LOG: "kernel", Kind.TORCH_LOG: "torch", Kind.SLURM: "slurm", Kind.NCCL_TESTS: "nccl_tests",
    Kind.RAS_TEXT: "ras",
}  # fmt: skip
_TROUBLE: Final = re.compile(
    b"|".join(_MARKS[name].pattern for name in ("torch", "slurm", "kernel")), re.IGNORECASE
)  # what is kept of a text that is too long to keep


def gather(paths: Iterable[str | Path], *, progress: Callable[[int, int], None] | None = None) -> Evidence:
    """Everything in and below ``paths``. ``progress`` is told (bytes read, bytes in all). Raises ``SpecError`` for a
    path that does not exist."""
    evidence = Evidence()
    log = NcclLogReader()
    found: list[Found] = []
    for item in walk(paths):
        if isinstance(item, Skipped):
            evidence.skipped.append(item)
        else:
            found.append(item)
    total = sum(item.size_bytes for item in found)
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(done, total)

    for item in found:
        try:
            small_environment = item.kinds == (Kind.ENV_DUMP,) and item.size_bytes <= HEAD_BYTES
            if small_environment or not item.kind.is_text_lines:
                _read_document(evidence, item)
                advance(item.size_bytes)
            else:
                _read_text(evidence, item, log, advance)
        except SpecError as error:
            evidence.skipped.append(Skipped(item.name, str(error)))
        except ReadRefused as error:
            evidence.skipped.append(Skipped(item.name, error.reason))
        except OSError as error:
            evidence.skipped.append(Skipped(item.name, f"cannot be read: {error.strerror or error}"))
    evidence.nccl = log.result()
    if not evidence.pairs:
        pairs = pair_results(evidence.runs)
        if len(pairs) >= MIN_PAIRS:
            evidence.pairs.extend(pairs)
    return evidence


def _read_document(evidence: Evidence, item: Found) -> None:
    """A file that is read whole."""
    data = b"".join(b"\n".join(block) + b"\n" for block in blocks(Path(item.path))) if item.compressed else Path(
        item.path).read_bytes()  # fmt: skip
    count = 1
    if item.kind is Kind.TOPOLOGY_XML:
        evidence.topologies.append(read_topology_xml(data, item.name))
    elif item.kind in (Kind.FLIGHT_RECORDER, Kind.FLIGHT_RECORDER_JSON):
        dump = read_flight_recorder(data, item.name)
        evidence.dumps.append(dump)
        count = len(dump.entries)
    elif item.kind is Kind.RAS_JSON:
        evidence.ras.extend(read_ras(data, item.name))
    elif item.kind is Kind.NCCL_TESTS_JSON:
        evidence.runs.append(read_nccl_tests_json(data, item.name))
    elif item.kind is Kind.ENV_DUMP:
        variables = read_environment(data, item.name)
        evidence.environment.extend(variables)
        count = len(variables)
    else:
        evidence.skipped.append(Skipped(item.name, f"{item.kind.value}: nothing here that tells about a running job"))
        return
    evidence.files.append(ReadFile(item.name, item.kind.value, count))


def _read_text(evidence: Evidence, item: Found, log: NcclLogReader, advance: Callable[[int], None]) -> None:
    log.begin(item.name)
    others: list[tuple[int, bytes]] = []
    held = 0
    refused: ReadRefused | None = None
    num_lines = num_others = 0
    try:
        for block in blocks(Path(item.path), progress=advance):
            new = log.feed_block(block)
            num_lines += len(block)
            num_others += len(new)
            if held > MAX_OTHER_BYTES:
                new = [(number, raw) for number, raw in new if _TROUBLE.search(raw)]
            others.extend(new)
            held += sum(len(raw) for _, raw in new)
    except ReadRefused as error:
        refused = error
    count = max(0, num_lines - num_others) + _read_others(evidence, item, others)
    if count or Kind.NCCL_LOG in item.kinds:
        evidence.files.append(ReadFile(item.name, ", ".join(kind.value for kind in item.kinds), count))
    else:
        evidence.skipped.append(Skipped(item.name, "text in which nothing is known here"))
    if refused is not None:
        evidence.skipped.append(Skipped(item.name, refused.reason))


def _read_others(evidence: Evidence, item: Found, others: Sequence[tuple[int, bytes]]) -> int:
    """Give what is not NCCL's to every reader whose mark is in it; the number of facts."""
    if not others:
        return 0
    blob = b"\n".join(raw for _, raw in others)
    marks = {name for name, mark in _MARKS.items() if mark.search(blob)}
    marks |= {_READERS_OF[kind] for kind in item.kinds if kind in _READERS_OF}
    lines = [make_line(number, raw) for number, raw in others]
    name = item.name
    before = _total(evidence)
    if "nccl_tests" in marks:
        tests = NcclTestsReader(name)
        _feed(tests, lines)
        evidence.runs.extend(run for run in tests.runs() if run.rows or run.ranks or run.failures)
    if "torch" in marks:
        torch = TorchLogReader(name)
        _feed(torch, lines)
        evidence.torch.extend(torch.facts)
    if "slurm" in marks:
        slurm = SlurmReader(name)
        _feed(slurm, lines)
        evidence.slurm.extend(slurm.facts)
    if "kernel" in marks:
        kernel = KernelLogReader(name)
        _feed(kernel, lines)
        evidence.kernel.extend(kernel.facts)
    if "ras" in marks:
        ras = RasReader(name)
        _feed(ras, lines)
        evidence.ras.extend(ras.reports)
    if {Kind.NCCL_LOG, Kind.TORCH_LOG, Kind.ENV_DUMP} & set(item.kinds):
        # A job's log may begin with the job's environment; an echo in the middle must look like one.
        echo = EnvironmentReader(name, everything=item.kind is Kind.ENV_DUMP)
        _feed(echo, lines)
        evidence.environment.extend(echo.variables)
    _read_by_kind(evidence, item, lines, blob, marks)
    return _total(evidence) - before


def _read_by_kind(evidence: Evidence, item: Found, lines: list[Line], blob: bytes, marks: set[str]) -> None:
    """Readers that want a whole text; where the file is of another kind, what they refuse is none of their business."""
    name = item.name
    wanted: list[tuple[bool, bool, Callable[[], None]]] = [
        ("matrix" in marks and Kind.ROCM_TOPO not in item.kinds, item.kind is Kind.TOPO_MATRIX,
         lambda: evidence.matrices.extend(matrices_in(lines, name, allow_partial=True))),
        ("ibstat" in marks, item.kind is Kind.IBSTAT, lambda: evidence.ports.extend(ports_in(lines, name))),
        ("rocm" in marks, item.kind is Kind.ROCM_TOPO, lambda: evidence.rocm.append(read_rocm_topology(blob, name))),
        ("lspci" in marks, False, lambda: evidence.access_control.extend(access_control_in(lines, name))),
        ("smi" in marks, item.kind is Kind.NVIDIA_SMI, lambda: evidence.smi.append(read_nvidia_smi(blob, name))),
        (False, item.kind is Kind.INSPECTOR_JSONL, lambda: evidence.inspected.extend(read_inspector(blob, name))),
        (False, item.kind is Kind.HOSTFILE, lambda: evidence.hosts.extend(read_host_list(blob, name))),
        (False, item.kind is Kind.BANDWIDTH_TABLE, lambda: _read_table(evidence, blob, name)),
        (item.kind is Kind.UNKNOWN_TEXT and is_step_times(blob[:4096].decode("utf-8", "replace")), False,
         lambda: evidence.steps.extend(read_step_times(blob, name))),
    ]  # fmt: skip
    for marked, expected, read in wanted:
        if not (marked or expected):
            continue
        try:
            read()
        except SpecError as error:
            if expected:
                evidence.skipped.append(Skipped(name, str(error)))


def _read_table(evidence: Evidence, blob: bytes, name: str) -> None:
    """A table of measurements: a sweep with named columns, or the busbw of pairs of nodes."""
    try:
        evidence.runs.append(read_bandwidth_table(blob, name))
    except SpecError:
        evidence.pairs.extend(read_pairwise_csv(blob, name))


def _feed(reader: LineReader, lines: Iterable[Line]) -> None:
    for line in lines:
        reader.feed(line)


def _total(evidence: Evidence) -> int:
    lists: tuple[Sequence[object], ...] = (
        evidence.runs, evidence.torch, evidence.slurm, evidence.kernel, evidence.ras, evidence.environment,
        evidence.matrices, evidence.ports, evidence.rocm, evidence.smi, evidence.inspected, evidence.hosts,
        evidence.pairs, evidence.steps, evidence.access_control,
    )  # fmt: skip
    return sum(len(some) for some in lists)
