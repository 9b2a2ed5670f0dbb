"""Xid rules: what the GPU driver, the NVSwitch driver and the host's own hardware report (X01 to X07).

An Xid is told by its code; NVIDIA's "Xid Errors" catalogue says what each means and what to do. The same code on many
ranks of one attempt is one event, not a recurrence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from atoll.doctor.evidence import Evidence, merge_sources
from atoll.doctor.finding import Confidence, Hit, Role, Severity, Subject
from atoll.doctor.rule import Rule
from atoll.readers.kernel_log import GpuDriverMessage, MachineCheck, PcieError, Sxid, Xid
from atoll.readers.nccl_log_facts import bus_id_text

# code -> (what it says, severity); from NVIDIA's Xid catalogue.
_OFF_BUS: Final = {79: ("GPU has fallen off the bus", Severity.FATAL)}
_MEMORY: Final = {
    48: ("double bit ECC error", Severity.FATAL),
    63: ("a row or page is recorded for remapping: it takes effect at the next reset", Severity.NOTICE),
    64: ("remapping failed", Severity.FATAL),
    94: ("contained ECC error: the application that used it ends", Severity.FATAL),
    95: ("uncontained ECC error: every application on the GPU ends", Severity.FATAL),
    140: ("unrecovered ECC error", Severity.FATAL),
}
_APPLICATION: Final = {
    13: ("graphics engine exception (an illegal access or instruction of a kernel)", Severity.FATAL),
    31: ("MMU fault (an illegal address of a kernel)", Severity.FATAL),
    43: ("the application's channel was reset", Severity.FATAL),
    45: ("channels are cleaned up after another error", Severity.NOTICE),
}
_FIRMWARE: Final = {
    119: ("the GPU's system processor (GSP) does not answer", Severity.FATAL),
    120: ("the GPU's system processor (GSP) failed", Severity.FATAL),
}
_NVLINK: Final = {
    74: ("NVLink error", Severity.FATAL),
    **dict.fromkeys(range(144, 151), ("NVLink 5 error", Severity.FATAL)),
}
_OTHER: Final = {
    61: ("internal microcontroller breakpoint", Severity.FATAL),
    62: ("internal microcontroller halt", Severity.FATAL),
    69: ("graphics engine class error", Severity.FATAL),
    92: ("high rate of single bit ECC errors", Severity.NOTICE),
    109: ("context switch timeout", Severity.FATAL),
    121: ("corrected C2C link error", Severity.NOTICE),
    137: ("NVLink fabric memory access error", Severity.FATAL),
    143: ("GPU initialisation failed", Severity.FATAL),
    154: ("the driver says what recovery is needed", Severity.NOTICE),
}
_KNOWN: Final = {**_OFF_BUS, **_MEMORY, **_APPLICATION, **_FIRMWARE, **_NVLINK, **_OTHER}


def _subject(evidence: Evidence, bus_id: str, host: str) -> Subject:
    """The GPU by every name: a bus id of the kernel has no function, NCCL's has."""
    for rank, member in evidence.world.members.items() if evidence.world is not None and bus_id else ():
        same_bus = member.bus_id >= 0 and bus_id_text(member.bus_id).lower().startswith(bus_id.lower())
        if same_bus and (not host or not member.host or member.host == host):
            place = evidence.place(rank)
            return Subject(place.rank, place.host or host, place.gpu, bus_id, place.nic)
    for smi in evidence.smi:
        for gpu in smi.gpus:
            if (
                gpu.bus_id
                and gpu.bus_id.lower()[-12:].startswith(bus_id.lower()[-10:])
                and (not gpu.host or gpu.host == host)
            ):
                return Subject(host=host or gpu.host, gpu=gpu.index, bus_id=bus_id)
    return Subject(host=host, bus_id=bus_id)


def _xids(evidence: Evidence, codes: dict[int, tuple[str, Severity]]) -> Iterable[Hit]:
    """One hit for each code and GPU, the first line first."""
    by_gpu: dict[tuple[int, str, str], list[Xid]] = {}
    for xid in evidence.kernel_of(Xid):
        if xid.code in codes:
            by_gpu.setdefault((xid.code, xid.bus_id, xid.stamp.host), []).append(xid)
    actions = {(xid.bus_id, xid.stamp.host): xid for xid in evidence.kernel_of(Xid) if xid.code == 154}
    for (code, bus_id, host), lines in by_gpu.items():
        meaning, severity = codes[code]
        action = actions.get((bus_id, host))
        details = [f"unit {lines[0].unit}" if lines[0].unit else "", f"link {lines[0].link}"
        if lines[0].link is not None else "",
                   {True: "fatal", False: "not fatal", None: ""}[lines[0].fatal]]  # fmt: skip
        said = ", ".join(detail for detail in details if detail)
        if lines[0].fatal is False:
            severity = min(severity, Severity.NOTICE)
        yield Hit(
            f"Xid {code} on {bus_id}: {meaning}" + (f" ({said})" if said else "") + (f", {len(lines)} times"
            if len(lines) > 1 else "")
            + (f"; the driver says: {action.message}" if action is not None and code != 154 else ""),
            merge_sources([[line.source for line in lines[:3]], [action.source] if action else []]),
            (_subject(evidence, bus_id, host),),
            severity,
            fix=action.message if action is not None and code != 154 else "",
        )  # fmt: skip


def _x01(evidence: Evidence) -> Iterable[Hit]:
    found = list(_xids(evidence, _OFF_BUS))
    yield from found
    if not found:
        for message in evidence.kernel_of(GpuDriverMessage):
            if message.kind == "fallen_off_bus":
                yield Hit(
                    f"the GPU {message.bus_id} has fallen off the bus",
                    (message.source,),
                    (_subject(evidence, message.bus_id, message.stamp.host),),
                )
                return


def _x02(evidence: Evidence) -> Iterable[Hit]:
    yield from _xids(evidence, _MEMORY)
    for smi in evidence.smi:
        for gpu in smi.gpus:
            if gpu.remap_failed or gpu.remap_pending:
                yield Hit(
                    f"GPU {gpu.index}: row remapping {'failed' if gpu.remap_failed else 'is pending a reset'}",
                    (gpu.source,),
                    (Subject(host=gpu.host, gpu=gpu.index, bus_id=gpu.bus_id),),
                    Severity.FATAL if gpu.remap_failed else Severity.NOTICE,
                )


def _x03(evidence: Evidence) -> Iterable[Hit]:
    others = any(xid.code != 45 for xid in evidence.kernel_of(Xid))
    for hit in _xids(evidence, _APPLICATION):
        if not (others and "Xid 45" in hit.what):
            yield hit


def _x04(evidence: Evidence) -> Iterable[Hit]:
    yield from _xids(evidence, _FIRMWARE)


def _x05(evidence: Evidence) -> Iterable[Hit]:
    yield from _xids(evidence, _NVLINK)
    for sxid in evidence.kernel_of(Sxid):
        link = f", link {sxid.link}" if sxid.link is not None else ""
        yield Hit(
            f"SXid {sxid.code} on {sxid.switch or sxid.bus_id}{link}: {sxid.message[:160]}",
            (sxid.source,),
            (Subject(host=sxid.stamp.host, bus_id=sxid.bus_id, link=f"{sxid.switch}{link}"),),
            Severity.FATAL if sxid.fatal else Severity.NOTICE,
        )
        if not sxid.fatal:
            return


def _x06(evidence: Evidence) -> Iterable[Hit]:
    yield from _xids(evidence, _OTHER)
    unknown = {xid.code: (f"not in this catalogue: {xid.message[:120]}", Severity.NOTICE)
               for xid in evidence.kernel_of(Xid) if xid.code not in _KNOWN}  # fmt: skip
    yield from _xids(evidence, unknown)


def _x07(evidence: Evidence) -> Iterable[Hit]:
    for check in evidence.kernel_of(MachineCheck):
        fatal = check.kind not in ("edac", "edac_corrected", "corrected") and "orrected" not in check.message
        yield Hit(
            f"the host reports a hardware error or lockup ({check.kind.replace('_', ' ')}): {check.message[:160]}",
            (check.source,),
            (Subject(host=check.stamp.host),) if check.stamp.host else (),
            Severity.FATAL if fatal else Severity.NOTICE,
        )
        break
    for error in evidence.kernel_of(PcieError):
        fatal = error.severity.lower().startswith("uncorrect")
        yield Hit(
            f"PCIe {error.severity.lower()} error on {error.bus_id}: {error.message[:120]}",
            (error.source,),
            (_subject(evidence, error.bus_id, error.stamp.host),),
            Severity.FATAL if fatal else Severity.NOTICE,
        )
        break


_AFTERMATH: Final = ("H01", "H02", "H05", "H06", "H12", "N11", "P03", "P04", "P05", "P06", "P07", "P09", "U01", "W05")

RULES: tuple[Rule, ...] = (
    Rule(
        "X01", "A GPU fell off the bus",
        "The GPU no longer answers on PCIe: power, heat, a bad slot or a bad board.",
        "Xid 79, or `GPU has fallen off the bus`.",
        "None.",
        Severity.FATAL, Role.ROOT, "Drain the node, reset or power-cycle it; replace the board if it comes "
                                   "back.", _x01, Confidence.HIGH,
        collect="`nvidia-bug-report.sh`, BMC log", explains=(*_AFTERMATH, "X02", "X03", "X04", "X05", "X06", "X07"),
    ),
    Rule(
        "X02", "GPU memory errors",
        "An ECC error that could not be corrected, or a remapping that is pending or failed.",
        "Xid 48, 63, 64, 94, 95, 140; nvidia-smi's remapped rows.",
        "63 means that a reset is due, not a replacement.",
        Severity.FATAL, Role.ROOT, "63 or pending: reset the GPU. 64, 95 or failed: replace it. 94: restart "
                                   "the application.", _x02,
        Confidence.HIGH, collect="`nvidia-smi -q -d ECC,ROW_REMAPPER`", explains=(*_AFTERMATH, "X03"),
    ),
    Rule(
        "X03", "A kernel did something illegal",
        "Usually the program: an illegal address or instruction. First look at the code.",
        "Xid 13, 31, 43; 45 alone is cleanup.",
        "45 beside another Xid is not told.",
        Severity.FATAL, Role.EITHER, "Run with `compute-sanitizer`; if the program is innocent, run the field "
                                     "diagnostics.", _x03,
        Confidence.MEDIUM, explains=_AFTERMATH,
    ),
    Rule(
        "X04", "The GPU's system processor timed out",
        "GSP firmware does not answer; the driver can no longer manage this GPU.",
        "Xid 119 or 120.",
        "None.",
        Severity.FATAL, Role.ROOT, "Reset the GPU (drain first); update driver and firmware; as a stopgap "
                                   "disable GSP.", _x04,
        Confidence.HIGH, collect="`nvidia-bug-report.sh`", explains=(*_AFTERMATH, "X03", "X06"),
    ),
    Rule(
        "X05", "NVLink or NVSwitch errors",
        "A link between GPUs, or a switch, reports errors.",
        "Xid 74, 144 to 150; SXid of the NVSwitch driver.",
        "Non-fatal SXid are notices.",
        Severity.FATAL, Role.ROOT, "As the driver's Xid 154 says (reset, drain); reseat the board if it "
                                   "stays.", _x05, Confidence.HIGH,
        collect="`nvidia-smi nvlink -e`, fabric manager log", explains=(*_AFTERMATH, "G09", "G15", "X03", "X06"),
    ),
    Rule(
        "X06", "Another Xid",
        "The driver reports something that is not one of the classes above.",
        "Any other Xid.",
        "Unknown codes are notices.",
        Severity.FATAL, Role.EITHER, "Look the code up in NVIDIA's Xid catalogue.",
        _x06, Confidence.MEDIUM, explains=_AFTERMATH,
    ),
    Rule(
        "X07", "The host itself has hardware errors",
        "A machine check, a lockup or an uncorrected PCIe error of the host.",
        "mce, EDAC, soft lockup, hung task, AER in the kernel log.",
        "Corrected errors are notices.",
        Severity.FATAL, Role.EITHER, "Drain the node and test it.", _x07, Confidence.MEDIUM, collect=
            "`ipmitool sel list`",
        explains=_AFTERMATH,
    ),
)  # fmt: skip
