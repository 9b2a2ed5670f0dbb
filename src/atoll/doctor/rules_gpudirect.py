"""GPUDirect and PCIe rules: how GPUs reach each other and their NICs (G01 to G15)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from atoll.doctor.bandwidth import gap, machine_of, plateau
from atoll.doctor.evidence import Evidence, merge_sources
from atoll.doctor.expectations import gpu_family
from atoll.doctor.finding import Confidence, Hit, Role, Severity, Subject
from atoll.doctor.rule import Rule
from atoll.errors import SpecError
from atoll.readers.kernel_log import GpuDriverMessage, IommuState
from atoll.readers.nccl_log_facts import (
    Affinity,
    ChannelCounts,
    CudaFailure,
    GdrDistance,
    GdrSupport,
    GraphPattern,
    NvlsBindFailed,
    Statement,
)
from atoll.readers.source import Source
from atoll.readers.topology_matrix import TopologyMatrix, nvlinks
from atoll.readers.torch_log import WatchdogTimeout
from atoll.topology.gpu_models import family_of
from atoll.topology.lint import Problem, lint_node
from atoll.topology.seen import SWITCH
from atoll.topology.seen_matrix import seen_in_matrix
from atoll.topology.seen_xml import seen_in_xml
from atoll.units import format_bandwidth

RDMA: Final = re.compile(r"IB|AWS Libfabric|IBext|UCX", re.IGNORECASE)
NEAR: Final = frozenset({"PIX", "PXB"})
COLLAPSED_SHARE: Final = 0.3
FEW_CHANNELS: Final = 2
LINK_GB_PER_S: Final = {
    "V100": 20.0,
    "A100": 20.0,
    "A800": 20.0,
    "H100": 20.6,
    "H800": 20.6,
    "B200": 40.1,
    "GB200": 40.1,
}
"""NCCL's own figure for one NVLink of that generation and direction (src/graph/topo.h, 2.30)."""
G02_FIXED: Final = (2, 23, 4)


def _uses_rdma(evidence: Evidence) -> bool:
    return (evidence.is_multi_node and any(RDMA.search(network) for network in evidence.networks)) or any(
        RDMA.search(connection.via.network) for connection in evidence.network_connections
    )  # fmt: skip


def _gdr_works(evidence: Evidence) -> bool:
    return any(connection.via.gdr for connection in evidence.network_connections)


def _no_module(evidence: Evidence) -> list[Statement]:
    """Statements that GPUDirect RDMA is off by reason of the driver, not of distance."""
    found = [statement for fact, statement in evidence.said(GdrSupport) if not fact.enabled]
    found += [
        statement
        for fact, statement in evidence.said(GdrDistance)
        if not fact.enabled and fact.distance < 0 and fact.threshold < 0
    ]
    return found


def _too_far(evidence: Evidence) -> list[tuple[GdrDistance, Statement]]:
    """GPU and NIC pairs that are too far apart, of GPUs for which no NIC is near enough."""
    near = {fact.gpu for fact, _ in evidence.said(GdrDistance) if fact.enabled}
    return [
        (fact, statement)
        for fact, statement in evidence.said(GdrDistance)
        if not fact.enabled and fact.distance >= 0 and fact.gpu not in near
    ]


def _without_gdr(evidence: Evidence) -> list[Source]:
    return [connection.source for connection in evidence.network_connections
            if not connection.via.gdr and RDMA.search(connection.via.network)][:3]  # fmt: skip


def _far_by_matrix(matrix: TopologyMatrix) -> bool:
    """Whether no GPU of a node is near any of its NICs."""
    nics = [at for at, device in enumerate(matrix.devices) if device.kind == "nic"]
    gpus = [device for device in matrix.devices if device.kind == "gpu"]
    return (
        bool(nics)
        and bool(gpus)
        and not any(gpu.cells[at] in NEAR for gpu in gpus for at in nics if at < len(gpu.cells))
    )


def _peermem(evidence: Evidence) -> Source | None:
    return next((m.source for m in evidence.kernel_of(GpuDriverMessage) if m.kind == "peermem"), None)


def _is_g02(evidence: Evidence) -> bool:
    version = evidence.nccl_version
    return bool(version) and (2, 19) <= version < G02_FIXED and _peermem(evidence) is not None


def _g01(evidence: Evidence) -> Iterable[Hit]:
    if not _uses_rdma(evidence) or _gdr_works(evidence) or _is_g02(evidence):
        return
    statements = _no_module(evidence)
    ready = [s for s in evidence.nccl.of_shape("connected") if re.search(r"GDR 0\b", s.source.text)]
    slow = _without_gdr(evidence)
    if not statements and not (ready and slow):
        return
    if _too_far(evidence) and not statements:
        return
    far = any(_far_by_matrix(matrix) for matrix in evidence.matrices)
    first = (statements or ready)[0]
    yield Hit(
        "GPUDirect RDMA is off: every byte to or from a NIC is copied through host memory"
        + ("; the GPUs are far from the NICs here, so it may gain little" if far else ""),
        merge_sources([[s.source for s in statements[:3]], [s.source for s in ready[:2]], slow]),
        evidence.speakers_of(first),
        confidence=Confidence.LOW if far else None,
    )


def _g02(evidence: Evidence) -> Iterable[Hit]:
    if not _uses_rdma(evidence) or _gdr_works(evidence) or not _is_g02(evidence):
        return
    statements, peermem = _no_module(evidence), _peermem(evidence)
    if statements and peermem is not None:
        version = ".".join(map(str, evidence.nccl_version))
        yield Hit(
            f"GPUDirect RDMA is off although nvidia-peermem is loaded: NCCL {version} looks for the old nv_peer_mem",
            (statements[0].source, peermem),
            evidence.speakers_of(statements[0]),
        )


def _g03(evidence: Evidence) -> Iterable[Hit]:
    if not _uses_rdma(evidence):
        return
    far = _too_far(evidence)
    if far and not _all_far(evidence):
        fact, statement = far[0]
        yield Hit(
            f"GPU {fact.gpu} is too far from every NIC for GPUDirect RDMA: distance {fact.distance} to HCA "
            f"{fact.hca}, allowed "
            f"is {fact.threshold}",
            merge_sources([[s.source for _, s in far[:3]], _without_gdr(evidence)]),
            evidence.speakers_of(statement),
        )


def _all_far(evidence: Evidence) -> bool:
    """A virtual machine without a topology file: nothing is near anything, so distance says nothing (G12)."""
    return bool(evidence.matrices) and all(_far_by_matrix(m) for m in evidence.matrices) and (
        evidence.setting("NCCL_TOPO_FILE") is None
    )  # fmt: skip


def _g04(evidence: Evidence) -> Iterable[Hit]:
    bridges = [control for control in evidence.access_control if control.redirects and "bridge" in control.kind.lower()]
    if bridges:
        hung = any(line.work.sequence == 1 for line in evidence.torch_of(WatchdogTimeout))
        yield Hit(
            f"{len(bridges)} PCIe bridge{'s redirect' if len(bridges) > 1 else ' redirects'} peer requests to "
            "the root complex "
            f"(ACS), the first is {bridges[0].bus_id}",
            tuple(control.source for control in bridges[:3]),
            tuple(Subject(bus_id=control.bus_id, file=control.source.file) for control in bridges[:8]),
            Severity.FATAL if hung else None,
        )


def _g05(evidence: Evidence) -> Iterable[Hit]:
    for state in evidence.kernel_of(IommuState):
        text = state.message.lower()
        on = re.search(r"intel_iommu=on|amd_iommu=on|translated|iommu=force", text)
        if on and "iommu=pt" not in text and "passthrough" not in text:
            yield Hit(
                f"the IOMMU remaps DMA ({on[0]}): traffic between GPUs and NICs goes through the root complex, "
                "or hangs",
                (state.source,),
                (Subject(host=state.stamp.host),) if state.stamp.host else (),
            )
            return


def _g06(evidence: Evidence) -> Iterable[Hit]:
    for matrix in evidence.matrices:
        for device in matrix.devices:
            if device.kind == "gpu" and any(cell in ("GNS", "CNS") for cell in device.cells):
                yield Hit(
                    f"{device.name} has no peer access ({'GNS' if 'GNS' in device.cells else 'CNS'}): a limit "
                    "of this GPU or "
                    "chipset, not a fault",
                    (device.source,),
                    (Subject(host=matrix.host, file=matrix.source.file),),
                )
                return


def _has_nvlink(evidence: Evidence, one: Subject, other: Subject) -> Source | None:
    """What says that NVLink joins these two GPUs: a bridge between another pair of the node does not."""
    for matrix in evidence.matrices:
        gpus = {device.name: (at, device) for at, device in enumerate(matrix.devices) if device.kind == "gpu"}
        ends = [gpus.get(f"GPU{place.gpu}") for place in (one, other)]
        if ends[0] is not None and ends[1] is not None and ends[1][0] < len(ends[0][1].cells):
            return ends[0][1].source if nvlinks(ends[0][1].cells[ends[1][0]]) else None
    for topology in evidence.topologies:
        labels = {gpu.label: gpu for gpu in seen_in_xml(topology).gpus}
        first, second = labels.get(one.bus_id), labels.get(other.bus_id)
        if first is not None:
            joined = first.count_to(SWITCH) or (second is not None and first.count_to(second.name))
            return first.source if joined else None
    return next((s.source for fact, s in evidence.said(GraphPattern) if fact.type_intra in ("NVL", "NVB")), None)


def _g07(evidence: Evidence) -> Iterable[Hit]:
    shared = [connection for connection in evidence.nccl.job.connections if connection.via.transport == "SHM"]
    if not shared:
        return
    nvlink = _has_nvlink(evidence, evidence.place(shared[0].src), evidence.place(shared[0].dst))
    off = evidence.setting("NCCL_P2P_DISABLE")
    level = evidence.setting("NCCL_P2P_LEVEL")
    cause = off if off is not None and off.value == "1" else None
    cause = cause or (level if level is not None and level.value.upper() in ("LOC", "0") else None)
    if nvlink is None and cause is None:
        return
    first = shared[0]
    yield Hit(
        f"ranks {first.src} and {first.dst} of one node talk through host memory"
        + (", although NVLink joins the GPUs" if nvlink else "")
        + (f"; {cause.name}={cause.value} does that" if cause else ""),
        merge_sources([[first.source], [cause.source] if cause else [], [nvlink] if nvlink else []]),
        (evidence.place(first.src), evidence.place(first.dst)),
        confidence=Confidence.HIGH if nvlink and cause else Confidence.MEDIUM,
    )


def _g08(evidence: Evidence) -> Iterable[Hit]:
    across = [d.source for m in evidence.matrices for d in m.devices if d.kind == "gpu" and "SYS" in d.cells]
    if not across:
        return
    ways: dict[str, set[str]] = {}
    for connection in evidence.nccl.job.connections:
        ways.setdefault(connection.source.file, set()).add(connection.via.transport)
    reached: dict[tuple[str, int | None], dict[str, tuple[float, Source]]] = {}
    for run in evidence.runs:
        way = ways.get(run.source.file, set())
        top = plateau(run.rows)
        if top is not None and len(way) == 1:
            key = (run.collective, run.world_size)
            reached.setdefault(key, {})[next(iter(way))] = (top.busbw_bytes_per_s, top.source)
    for (collective, _), by_way in reached.items():
        if "P2P" in by_way and "SHM" in by_way and by_way["P2P"][0] < 0.9 * by_way["SHM"][0]:
            yield Hit(
                f"{collective} reaches {format_bandwidth(by_way['P2P'][0])} by P2P across sockets and "
                f"{format_bandwidth(by_way['SHM'][0])} through host memory",
                (by_way["P2P"][1], by_way["SHM"][1], across[0]),
            )


def _problems(matrix: TopologyMatrix, gpu_name: str = "") -> tuple[Problem, ...]:
    """What is wrong with a matrix; nothing where it has no topology, as that of ``topo -p2p``."""
    try:
        return lint_node(seen_in_matrix(matrix), gpu_name)
    except SpecError:
        return ()


def _g09(evidence: Evidence) -> Iterable[Hit]:
    for matrix in evidence.matrices:
        gpus = {device.name for device in matrix.of_kind("gpu")}
        for problem in _problems(matrix, evidence.gpu_name):
            if problem.id in ("T03", "T07", "T08") and gpus.issuperset(problem.things):
                where = Subject(host=matrix.host, link=" - ".join(problem.things), file=matrix.source.file)
                yield Hit(problem.what, problem.sources, (where,))


def _g10(evidence: Evidence) -> Iterable[Hit]:
    for fact, statement in evidence.said(NvlsBindFailed):
        yield Hit(
            f"NVLink SHARP memory cannot be bound (CUDA error {fact.error} {fact.message}): the fabric manager or IMEX",
            (statement.source,),
            evidence.speakers_of(statement),
        )
        return
    for failure, statement in evidence.said(CudaFailure):
        if "nvls" in statement.location or failure.error == 802 or "system not yet initialized" in failure.message:
            yield Hit(
                f"CUDA fails while NVLink SHARP is set up ({failure.message}): the fabric manager is not running",
                (statement.source,),
                evidence.speakers_of(statement),
            )
            return
    for smi in evidence.smi:
        for gpu in smi.gpus:
            if gpu.fabric_state and gpu.fabric_state.lower() in ("in progress", "not started", "failure"):
                yield Hit(
                    f"the NVLink fabric of GPU {gpu.index} is {gpu.fabric_state}",
                    (gpu.source,),
                    (Subject(host=gpu.host, gpu=gpu.index, bus_id=gpu.bus_id),),
                )
                return


def _g11(evidence: Evidence) -> Iterable[Hit]:
    setting = evidence.setting("NCCL_TOPO_FILE")
    for topology in evidence.topologies:
        for problem in lint_node(seen_in_xml(topology)):
            # A NIC that runs slower than its twins (T10) is slow whatever file says so.
            if problem.level == "slow" and problem.id != "T10":
                yield Hit(
                    f"the topology file {topology.source.file} is wrong: {problem.what}",
                    merge_sources([problem.sources, [setting.source] if setting else []]),
                    tuple(Subject(bus_id=thing, file=topology.source.file) for thing in problem.things[:4]),
                    confidence=Confidence.HIGH,
                )
    if setting is None:
        return
    patterns = [(fact, s) for fact, s in evidence.said(GraphPattern) if fact.type_intra in ("NVL", "NVB")]
    counts = [(fact, s) for fact, s in evidence.said(ChannelCounts) if 0 < fact.collective <= FEW_CHANNELS]
    if not patterns:
        return
    best, statement = max(patterns, key=lambda item: item[0].channels * item[0].bw_intra)
    family = family_of(evidence.gpu_name)
    # V100 boards are meshes of one and two links: only GPUs with all links to one switch or bridge have a figure.
    one_link = (
        LINK_GB_PER_S.get(gpu_family(evidence.gpu_name)) if family is not None and family.name != "V100" else None
    )
    links = family.nvlinks if family is not None else 0
    full = links * one_link if one_link is not None else None
    sees = best.channels * best.bw_intra
    if (full is not None and sees < COLLAPSED_SHARE * full) or (full is None and counts):
        more = f", where {evidence.gpu_name} has {links} links and {full:g} GB/s" if full else ""
        yield Hit(
            f"with NCCL_TOPO_FILE={setting.value} NCCL finds {best.channels} NVLink "
            f"channel{'s' if best.channels > 1 else ''} "
            f"of {best.bw_intra:g} GB/s{more}: the file hides links",
            merge_sources([[setting.source], [statement.source], [s.source for _, s in counts[:1]]]),
            (Subject(variable="NCCL_TOPO_FILE", file=setting.value), *evidence.speakers_of(statement, 2)),
            confidence=Confidence.HIGH if full is not None and counts else Confidence.MEDIUM,
        )


def _g12(evidence: Evidence) -> Iterable[Hit]:
    if _uses_rdma(evidence) and not _gdr_works(evidence) and _all_far(evidence):
        far = _too_far(evidence)
        if far or _no_module(evidence):
            first = evidence.matrices[0]
            yield Hit(
                "no GPU is near any NIC by `topo -m`, GPUDirect RDMA is off and no topology file is set: a "
                "virtual machine that "
                "hides its PCIe tree",
                merge_sources(
                    [[first.source], [s.source for _, s in far[:2]], [s.source for s in _no_module(evidence)[:2]]]
                ),
                (Subject(host=first.host, file=first.source.file),),
            )


def _g13(evidence: Evidence) -> Iterable[Hit]:
    off = evidence.setting("NCCL_PXN_DISABLE")
    for matrix in evidence.matrices:
        for problem in _problems(matrix):
            if problem.id == "T09":
                disabled = off is not None and off.value == "1"
                yield Hit(
                    problem.what + ("; NCCL_PXN_DISABLE=1 keeps them from using a neighbour's NIC" if disabled else ""),
                    merge_sources([problem.sources, [off.source] if off and disabled else []]),
                    (Subject(host=matrix.host, link=", ".join(problem.things), file=matrix.source.file),),
                    Severity.SLOW if disabled else Severity.NOTICE,
                )


_AFFINITIES: Final = re.compile(r"GPU affinity = ([\da-fA-F,-]+) ?; ?CPU affinity = ([\da-fA-F,-]+)")


def _g14(evidence: Evidence) -> Iterable[Hit]:
    for fact, statement in evidence.said(Affinity):
        match = _AFFINITIES.search(statement.source.text)
        if match is not None and not _cpus(match[1]) & _cpus(match[2]):
            yield Hit(
                f"GPU {fact.gpu} is near the CPUs {match[1]}, but its process is bound to {match[2]}",
                (statement.source,),
                evidence.speakers_of(statement),
            )


def _cpus(text: str) -> frozenset[int]:
    """The CPUs of a list (``0-23,48``); a mask (hexadecimal, groups of 8 digits) when it is none."""
    if re.fullmatch(r"\d{1,4}(?:-\d{1,4})?(?:,\d{1,4}(?:-\d{1,4})?)*", text):
        found: set[int] = set()
        for part in text.split(","):
            low, _, high = part.partition("-")
            found.update(range(int(low), min(int(high or low), 8191) + 1))
        return frozenset(found)
    digits = text.replace(",", "")
    mask = int(digits, 16) if re.fullmatch(r"[\da-fA-F]{1,2048}", digits) else 0
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def _g15(evidence: Evidence) -> Iterable[Hit]:
    for run in evidence.runs:
        found = gap(run, machine_of(run, evidence.machine))
        if found is not None and found.expectation.limit == "NVLink" and found.machine.num_nodes == 1:
            yield Hit(
                f"{found.collective} on {found.machine.world_size} GPUs of one node reaches "
                f"{format_bandwidth(found.plateau.busbw_bytes_per_s)} of busbw; {found.machine.gpu} should give "
                f"{format_bandwidth(found.expectation.busbw_bytes_per_s)} ({found.expectation.source})",
                (found.plateau.source,),
                tuple(Subject(host=rank.host) for rank in run.ranks[:1]),
            )


RULES: tuple[Rule, ...] = (
    Rule(
        "G01", "GPUDirect RDMA is off",
        "The NIC cannot read GPU memory: neither nvidia-peermem nor DMA-BUF is there for NCCL.",
        "`GPU Direct RDMA Disabled for HCA` or `... (no module ...)`, `GDR 0`, network lines without "
        "`/GDRDMA`, over several nodes.",
        "One node never needs it. With GPUs at PHB or SYS from their NICs it may be right without (low confidence).",
        Severity.SLOW, Role.EITHER,
        "Load nvidia-peermem (`modprobe nvidia-peermem`), or use DMA-BUF (Linux 5.12, open driver 515, NCCL 2.13).",
        _g01, Confidence.HIGH, collect="`lsmod | grep peermem`, `nvidia-smi topo -m`",
    ),
    Rule(
        "G02", "This NCCL does not see nvidia-peermem",
        "NCCL looks for the module by its old name and finds nothing.",
        "G01's signs with nvidia-peermem loaded and a NCCL from 2.19 to 2.23.3.",
        "Only in these versions.",
        Severity.SLOW, Role.ROOT, "NCCL 2.23.4 or later.", _g02, Confidence.HIGH, explains=("G01",), versions=
            "2.19 to 2.23.3",
    ),
    Rule(
        "G03", "GPU and NIC are too far apart for GPUDirect RDMA",
        "The path between GPU and NIC crosses more than `NCCL_NET_GDR_LEVEL` allows.",
        "`GPU Direct RDMA Disabled for GPU .. / HCA .. (distance 4 > 3)`, for every NIC of that GPU.",
        "Not a driver's fault; far NICs beside a near one are normal.",
        Severity.SLOW, Role.EITHER, "Use the near NIC (`NCCL_IB_HCA`, rank order), or "
                                    "`NCCL_NET_GDR_LEVEL=PHB|SYS` and measure.",
        _g03, Confidence.HIGH, collect="`nvidia-smi topo -m`",
    ),
    Rule(
        "G04", "PCIe access control sends peer traffic through the root complex",
        "ACS on a PCIe switch redirects GPU to GPU and GPU to NIC traffic upwards; it is slow or hangs.",
        "lspci: `ACSCtl: SrcValid+ .. ReqRedir+` on a bridge above a GPU; `NCCL_P2P_DISABLE=1` cures the hang.",
        "Virtual machines need ACS. Only bridges count; without a hang it is slow at most.",
        Severity.SLOW, Role.ROOT, "Disable ACS in the BIOS or with setpci at boot; `iommu=pt`.", _g04,
        collect="`sudo lspci -vvv`", explains=("H05", "H02"),
    ),
    Rule(
        "G05", "The IOMMU remaps DMA",
        "With address translation on, peer-to-peer DMA goes through the root complex; the first collective may "
        "hang with GPUs "
        "at 100 %.",
        "The kernel's boot line or `iommu: Default domain type: Translated`.",
        "`iommu=pt` (passthrough) is fine.",
        Severity.NOTICE, Role.EITHER, "Boot with `iommu=pt`, or switch the IOMMU off on bare metal.", _g05,
        explains=("H05",),
    ),
    Rule(
        "G06", "No peer access between these GPUs",
        "Consumer GPUs and some chipsets have no peer-to-peer; SHM is the best there is.",
        "`topo -p2p` prints GNS or CNS.",
        "A limit, not a fault.",
        Severity.HARMLESS, Role.EITHER, "Nothing to do.", _g06,
    ),
    Rule(
        "G07", "GPUs of one node talk through host memory",
        "NCCL uses shared memory although the GPUs have NVLink, or because peer access was switched off.",
        "`via SHM` with NVLink in the matrix, the topology or NCCL's own search, or with `NCCL_P2P_DISABLE=1` / "
        "`NCCL_P2P_LEVEL=LOC`.",
        "PCIe GPUs without peer access have no better way. Containers with separate IPC and PID namespaces "
        "cause it too.",
        Severity.SLOW, Role.ROOT, "Unset the variable; run containers with `--ipc=host`; NCCL 2.18 and later "
                                  "can use CUMEM.",
        _g07, collect="`nvidia-smi topo -m`, and the container's --ipc setting", explains=("G15",),
    ),
    Rule(
        "G08", "Peer access across sockets is slower than host memory",
        "On some machines a transfer from socket to socket by P2P is slower than through SHM.",
        "`SYS` in the matrix, and two runs of which the one by P2P is slower than the one by SHM.",
        "Needs both measurements.",
        Severity.SLOW, Role.ROOT, "`NCCL_P2P_LEVEL=PHB` or `NODE`.", _g08,
    ),
    Rule(
        "G09", "NVLink is degraded",
        "A GPU has fewer NVLinks than its product, or than its neighbours.",
        "`NV#` of `topo -m` against the product's count (H100 18, A100 12, A800 and H800 8, V100 6) and among "
        "the pairs of a board.",
        "NV8 is healthy on an A800. Hybrid meshes (DGX-1) have different bonds by design.",
        Severity.SLOW, Role.ROOT, "Check the fabric manager and Xid 74; reset the GPU or reseat the board.",
        _g09, Confidence.HIGH,
        collect="`nvidia-smi nvlink -s`, dmesg", explains=("G15",),
    ),
    Rule(
        "G10", "NVLink SHARP cannot start",
        "Multicast memory cannot be bound: the fabric manager (or IMEX between nodes) does not run.",
        "`Failed to bind NVLink SHARP (NVLS) Multicast memory`, CUDA error 401 or 802 in nvls.cc, nvidia-smi's "
        "fabric state.",
        "802 means that the fabric manager has not started at all.",
        Severity.FATAL, Role.ROOT, "Start nvidia-fabricmanager (and nvidia-imex); `NCCL_NVLS_ENABLE=0` only masks it.",
        _g10, Confidence.HIGH, collect="`systemctl status nvidia-fabricmanager`, `nvidia-smi -q | grep -A2 Fabric`",
        explains=("N11", "H12", "P06", "U01"), versions="2.17 and later",
    ),
    Rule(
        "G11", "The topology file is wrong",
        "`NCCL_TOPO_FILE` makes NCCL believe in a machine that is not there.",
        "A link count that differs at its two ends, a missing target, or a channel count that collapses with "
        "the file set.",
        "Clouds need such a file: its presence alone says nothing.",
        Severity.SLOW, Role.ROOT, "Remove the variable, or repair the file (`atoll lint topology FILE`).",
        _g11, Confidence.HIGH,
        collect="the file itself; `NCCL_TOPO_DUMP_FILE` of a run without it", explains=("G15",), versions=
            "2.6 and later",
    ),
    Rule(
        "G12", "A virtual machine without a topology file",
        "The hypervisor hides the PCIe tree, so every NIC looks far from every GPU and GPUDirect RDMA stays off.",
        "All GPU to NIC paths at PHB, NODE or SYS, GPUDirect RDMA off, no `NCCL_TOPO_FILE`, several nodes.",
        "Bare metal with far NICs looks the same: check that it is a virtual machine.",
        Severity.SLOW, Role.ROOT, "Set the vendor's topology file (ndv4, ndv5, p4d, p5 ...).", _g12, explains=(
            "G01", "G03"),
        collect="`systemd-detect-virt`",
    ),
    Rule(
        "G13", "A GPU has no NIC near it",
        "Its traffic crosses the host bridge or the socket, unless PXN hands it to a neighbour.",
        "`topo -m`: no PIX or PXB for that GPU although there are as many NICs as GPUs.",
        "Four NICs for eight GPUs is a design; PXN covers it.",
        Severity.NOTICE, Role.EITHER, "Check the rank to NIC map; do not set `NCCL_PXN_DISABLE=1`.", _g13,
    ),
    Rule(
        "G14", "The process is bound to the far CPUs",
        "Proxy threads run on a socket that the GPU is not on.",
        "NCCL's `GPU affinity = .. ; CPU affinity = ..` without a common CPU.",
        "None: the line has both.",
        Severity.SLOW, Role.ROOT, "Bind each rank to the NUMA node of its GPU (`--cpu-bind`, `numactl`).",
        _g14, Confidence.HIGH,
    ),
    Rule(
        "G15", "NVLink gives less than it should",
        "A benchmark within one node stays far below the published figure of this board.",
        "nccl-tests on all 8 GPUs of an SXM board, below 60 % of the published ring figure.",
        "PCIe cards and part boards are not judged.",
        Severity.SLOW, Role.EITHER, "Look for G07, G09 and G11; then clocks and ECC.", _g15,
        collect="`nvidia-smi topo -m`, `nvidia-smi nvlink -s`, NCCL_DEBUG=INFO log",
    ),
)  # fmt: skip
