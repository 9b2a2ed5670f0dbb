"""What kind of file this is, by its content: names lie, and half the logs people send are called ``log.txt``.

``identify`` names one kind, the one that tells most; ``kinds_in`` names every kind whose mark is in the head, because
one text may hold several (nccl-tests rows, NCCL lines and a torch watchdog in one job log). A text is offered to every
line-oriented reader anyway (see ``text_stream``): the kinds of a text say what to expect, not what to skip.

The head is the first 64 KiB, decompressed (``text_stream.read_head``). Nothing here opens or runs anything.
"""

from __future__ import annotations

import codecs
import enum
import re
from typing import Final

from atoll.readers.launcher_prefix import ANSI

HEAD_BYTES: Final = 1 << 16


class Kind(enum.Enum):
    """A kind of file. Those with ``is_text_lines`` may share one file, line by line; the others are whole documents."""

    NCCL_LOG = "nccl_log"
    NCCL_TESTS = "nccl_tests"
    NCCL_TESTS_JSON = "nccl_tests_json"
    BANDWIDTH_TABLE = "bandwidth_table"
    TOPO_MATRIX = "topo_matrix"
    ROCM_TOPO = "rocm_topo"
    TOPOLOGY_XML = "topology_xml"
    NCCL_XML_GRAPH = "nccl_xml_graph"
    IBSTAT = "ibstat"
    NVIDIA_SMI = "nvidia_smi"
    ENV_DUMP = "env_dump"
    INSPECTOR_JSONL = "inspector_jsonl"
    RAS_TEXT = "ras_text"
    RAS_JSON = "ras_json"
    FLIGHT_RECORDER = "flight_recorder"
    FLIGHT_RECORDER_JSON = "flight_recorder_json"
    KERNEL_LOG = "kernel_log"
    TORCH_LOG = "torch_log"
    SLURM = "slurm"
    MSCCL_XML = "msccl_xml"
    HOSTFILE = "hostfile"
    UNKNOWN_TEXT = "unknown_text"
    BINARY = "binary"
    EMPTY = "empty"

    @property
    def is_text_lines(self) -> bool:
        return self not in _WHOLE_DOCUMENT


_WHOLE_DOCUMENT: Final = frozenset(
    {
        Kind.NCCL_TESTS_JSON,
        Kind.TOPOLOGY_XML,
        Kind.NCCL_XML_GRAPH,
        Kind.RAS_JSON,
        Kind.FLIGHT_RECORDER,
        Kind.FLIGHT_RECORDER_JSON,
        Kind.MSCCL_XML,
        Kind.BINARY,
        Kind.EMPTY,
    }
)

# A launcher's label may stand before any of these marks, so a mark is not tied to the line's start unless it must be.
_LABEL = rb"^(?:\[[^\]\n]{1,60}\](?:<std\w+>)?:? ?| {0,6}\d{1,6}: |\S{1,40}Z )?"
_MARKS: Final[tuple[tuple[Kind, re.Pattern[bytes]], ...]] = (
    (Kind.RAS_TEXT, re.compile(_LABEL + rb"(?:Job summary|Communicators\.\.\. )\s*$", re.MULTILINE)),
    (Kind.NCCL_TESTS, re.compile(
        rb"# nThread \d+ nGpus \d+|# Collective test starting|# Avg bus bandwidth|# nccl-tests version"
        rb"|#\s+size\s+count\s+type|#\s+bytes\s+N\s+type", re.MULTILINE)),
    (Kind.NCCL_LOG, re.compile(
        rb"[\w.-]+:\d+:\d+ \[-?\d+\] (?:\S+ )?(?:\(\S*\) )?NCCL (?:INFO|WARN|TRACE|CALL|ERROR|VERSION|ABORT) ?"
        rb"|(?:^|[^\w])(?:NCCL|RCCL) version \d+[.:]")),
    (Kind.ROCM_TOPO, re.compile(rb"Weight between two GPUs|Hops between two GPUs|Link Type between two GPUs"
                                rb"|ROCm System Management Interface")),
    (Kind.TOPO_MATRIX, re.compile(_LABEL + rb"[ \t]*(?:GPU0|NIC0|mlx5_0)[ \t]+(?:\S+[ \t]+)*?"
                                  rb"(?:GPU\d|CPU Affinity|NIC\d|mlx5_\d)", re.MULTILINE)),
    (Kind.IBSTAT, re.compile(_LABEL + rb"CA '[^'\n]+'\s*$|^hca_id:\s", re.MULTILINE)),
    (Kind.NVIDIA_SMI, re.compile(
        rb"\| NVIDIA-SMI |={4,}NVSMI LOG={4,}|^GPU \d+: .{1,100}\(UUID: GPU-|<nvidia_smi_log>"
        rb"|^[\w., \[\]%/-]{0,1000}(?:pci\.bus_id|clocks\.\w|utilization\.gpu|temperature\.gpu|power\.draw|pstate),",
        re.MULTILINE)),
    (Kind.SLURM, re.compile(
        rb"slurmstepd: |^srun: |srun: error: |sbatch: |^\s*JobID\|?\s+.*State|^JobId=\d+ |oom_kill event in StepId",
        re.MULTILINE)),
    (Kind.TORCH_LOG, re.compile(
        rb"ProcessGroupNCCL|torch[./]distributed|c10d|Watchdog caught collective|elastic_launch|torchrun"
        rb"|Traceback \(most recent call last\)|CUDA out of memory|ChildFailedError|exitcode\s*: ")),
    (Kind.KERNEL_LOG, re.compile(
        rb"NVRM: |nvidia-nvswitch\d|SXid|^\[ *\d{1,9}\.\d{6}\] \S|^\d{1,3},\d{1,12},\d{1,16},[-c+]"
        rb"|Out of memory: Kill|\bkernel: |^\[\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\] ", re.MULTILINE)),
    (Kind.ENV_DUMP, re.compile(
        rb"(?:^|[ \t])(?:(?:export +|-x +|-e +|--env[ =]|ENV +)?(?:NCCL|RCCL|TORCH_NCCL|OFI_NCCL|UCX|FI)_[A-Z0-9_]+=\S"
        rb"|setenv +(?:NCCL|RCCL|TORCH_NCCL|OFI_NCCL|UCX|FI)_[A-Z0-9_]+ )"
        rb"|^\s*-? *name: *['\"]?(?:NCCL|RCCL|TORCH_NCCL|FI|UCX)_[A-Z0-9_]+", re.MULTILINE)),
)  # fmt: skip

# One of these is in every text that has the kind's mark. A folder may hold a log for each of a thousand ranks, and
# looking for a text in 64 KiB is a hundred times quicker than the expressions above.
_NEEDLES: Final[dict[Kind, tuple[bytes, ...]]] = {
    Kind.RAS_TEXT: (b"Job summary", b"Communicators..."),
    Kind.ROCM_TOPO: (b"between two GPUs", b"ROCm System Management"),
    Kind.TOPO_MATRIX: (b"GPU0", b"NIC0", b"mlx5_0"),
    Kind.IBSTAT: (b"CA '", b"hca_id:"),
    Kind.NVIDIA_SMI: (
        b"NVIDIA-SMI", b"NVSMI", b"UUID: GPU-", b"<nvidia_smi_log>", b"pci.bus_id", b"clocks.", b"utilization.gpu",
        b"temperature.gpu", b"power.draw", b"pstate",
    ),
    Kind.SLURM: (b"slurmstepd", b"srun: ", b"sbatch: ", b"JobID", b"JobId=", b"oom_kill"),
    Kind.KERNEL_LOG: (
        b"NVRM: ", b"nvidia-nvswitch", b"SXid", b"Out of memory", b"kernel: ", b"\n[", b",-;", b",c;", b",+;", b",-,",
    ),
    Kind.ENV_DUMP: (b"NCCL_", b"UCX_", b"FI_"),
}  # fmt: skip

# Measured rows kept as CSV or as columns: pairwise results, a sweep without the frame of nccl-tests.
_TABLE_HEADER: Final = re.compile(
    rb"^(?:# ?columns: |[\w. /()-]+,).*\b(?:\w*_)?(?:busbw|algbw|bus_bw|alg_bw|median)", re.IGNORECASE | re.MULTILINE
)
# Marks that words in a table or an environment may have too: there the form of the lines decides.
_WEAK: Final = frozenset({Kind.TORCH_LOG, Kind.KERNEL_LOG, Kind.ENV_DUMP, Kind.SLURM, Kind.TOPO_MATRIX})
_ENV_LINE: Final = re.compile(
    rb"(?:(?:export |declare -x |set )?[A-Za-z_][A-Za-z0-9_]*=|setenv [A-Za-z_]\w* |-? *(?:name|value): ?).*"
)
_HOSTFILE_LINE: Final = re.compile(
    rb"[A-Za-z0-9][\w.-]*(?::\d+|(?:[ \t]+(?:slots|max_slots|max-slots)[ \t]*=[ \t]*\d+)+)"
)
_XML_ROOT: Final = re.compile(rb"<([A-Za-z_][\w.-]*)")
_XML_KINDS: Final = {
    b"system": Kind.TOPOLOGY_XML,
    b"graphs": Kind.NCCL_XML_GRAPH,
    b"algo": Kind.MSCCL_XML,
    b"nvidia_smi_log": Kind.NVIDIA_SMI,
}
_JSON_KEYS: Final = (
    (Kind.INSPECTOR_JSONL, (b'"coll_perf"', b'"inspector_output_format_version"', b'"p2p_perf"')),
    (Kind.FLIGHT_RECORDER_JSON, (b'"pg_config"', b'"collective_seq_id"', b'"pg_status"')),
    (
        Kind.NCCL_TESTS_JSON,
        (b'"out_of_place"', b'"in_place"', b'"average_bus_bandwidth"', b'"out_of_bounds"', b'_perf"'),
    ),
    (Kind.RAS_JSON, (b'"communicators"', b'"communicators_count"', b'"missing_ranks"', b'"collective_counts"')),
)
_TEXT_CONTROL: Final = frozenset(b"\t\n\r\x0b\x0c\x1b\x08")


def identify(head: bytes, size: int) -> Kind:
    """The kind that tells most about a file of ``size`` bytes that begins with ``head``."""
    return kinds_in(head, size)[0]


def kinds_in(head: bytes, size: int) -> tuple[Kind, ...]:
    """Every kind whose mark is in ``head``, the one that tells most first; always at least one."""
    if size == 0 or not head:
        return (Kind.EMPTY,)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        head = head[: len(head) & ~1].decode("utf-16", "replace").encode()
    head = head[:HEAD_BYTES].removeprefix(codecs.BOM_UTF8)
    if _is_pickle(head):
        recorder = b"pg_config" in head or b"nccl_version" in head or (b"entries" in head and b"version" in head)
        return (Kind.FLIGHT_RECORDER if recorder else Kind.BINARY,)
    if _is_binary(head):
        return (Kind.BINARY,)
    body = head.lstrip(b"\0").lstrip()
    first: Kind | None = None
    if body.startswith(b"<"):
        first = _xml_kind(body)
    elif body.startswith((b"{", b"[{", b"[\n")):
        first = _json_kind(body)
    if first is not None and not first.is_text_lines:
        return (first,)
    marked = _marked(head)
    if first is None:
        first = _by_line_form(body)
        if marked and not (marked[0] in _WEAK and first is not Kind.UNKNOWN_TEXT):
            first = marked[0]
    return (first, *(kind for kind in marked if kind is not first))


def _marked(head: bytes) -> tuple[Kind, ...]:
    if b"\x1b" in head:
        head = ANSI.sub(b"", head)
    head = head.replace(b"\r\n", b"\n")
    padded = b"\n" + head
    return tuple(
        kind
        for kind, mark in _MARKS
        if (kind not in _NEEDLES or any(needle in padded for needle in _NEEDLES[kind])) and mark.search(head)
    )


def _is_pickle(head: bytes) -> bool:
    return len(head) > 2 and head[0] == 0x80 and head[1] in range(2, 6)


def _is_binary(head: bytes) -> bool:
    """More than one control byte in thirty is no text; bytes over 0x7f are any encoding. Zeros in front, which a log
    that was truncated while it was written begins with, do not count."""
    sample = head.lstrip(b"\0")[:4096]
    control = sum(1 for byte in sample if byte < 32 and byte not in _TEXT_CONTROL)
    return not sample or control * 30 > len(sample)


def _xml_kind(body: bytes) -> Kind | None:
    """By the root element, which comes after any declaration, comments and document type."""
    at = 0
    while body.startswith((b"<?", b"<!"), at):
        end = b"?>" if body.startswith(b"<?", at) else b"-->" if body.startswith(b"<!--", at) else b">"
        found = body.find(end, at + 2)
        if found < 0:
            return Kind.UNKNOWN_TEXT
        if end == b">" and b"[" in body[at:found] and (inner := body.find(b"]>", at)) >= 0:
            found, end = inner, b"]>"
        at = found + len(end)
        while body[at : at + 1].isspace():
            at += 1
    match = _XML_ROOT.match(body, at)
    return _XML_KINDS.get(match[1], Kind.UNKNOWN_TEXT) if match else None


def _json_kind(body: bytes) -> Kind | None:
    for kind, keys in _JSON_KEYS:
        if any(key in body for key in keys):
            return kind
    return None


def _by_line_form(head: bytes) -> Kind:
    """Texts without marks: an environment (NAME=value on most lines) or a list of hosts."""
    body = [line.strip() for line in head.splitlines()[:200]]
    body = [line for line in body if line and not line.startswith(b"#")]
    if not body:
        return Kind.UNKNOWN_TEXT
    if _TABLE_HEADER.search(head[:4096]):
        return Kind.BANDWIDTH_TABLE
    if sum(1 for line in body if _ENV_LINE.fullmatch(line)) * 2 > len(body):
        return Kind.ENV_DUMP
    if all(_HOSTFILE_LINE.fullmatch(line) for line in body):
        return Kind.HOSTFILE
    return Kind.UNKNOWN_TEXT
