"""``atoll lint env``: variables that fight each other, are misspelt, malformed, or not read by the version at hand.

A *lint* has an id (``E04``), the variable, what is wrong, and what to do; the table ``LINTS`` explains each id.
Values are judged as NCCL reads them: nothing is expanded, and an empty value is as good as unset. Without a version
only the variables that no version knows, or that all recent ones have dropped, are told.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from atoll.doctor.finding import Severity
from atoll.doctor.variables import CHECKED_PREFIXES, NOT_READ_BY_NCCL, VARIABLES, Variable, is_torch, version_tuple
from atoll.readers.environment import EnvironmentVariable
from atoll.readers.source import Source

LINTS: Final[dict[str, str]] = {
    "E01": "a variable that no version of NCCL or PyTorch reads (a typo, most likely)",
    "E02": "a variable that this version does not read",
    "E03": "a value that is not of the variable's kind",
    "E04": "settings for InfiniBand while InfiniBand is switched off",
    "E05": "two settings that exclude each other",
    "E06": "a setting made for an experiment that costs speed when it stays",
    "E07": "an interface list that does not mean what it says",
    "E08": "a name that PyTorch has replaced",
    "E09": "the flight recorder or the monitor would not tell anything",
    "E10": "ranks or hosts that do not agree",
}
DEFAULT_NCCL: Final = (2, 30)
_UNLIKE_HOSTS: Final = frozenset({"NCCL_HOSTID", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE_RANK", "NCCL_COMM_ID"})


class Lint(msgspec.Struct, frozen=True):
    """One thing that is wrong with an environment. ``source`` is the line that sets the variable."""

    id: str
    variable: str
    value: str
    what: str
    fix: str
    severity: Severity = Severity.NOTICE
    source: Source | None = None


def lint_environment(
    settings: Sequence[EnvironmentVariable], nccl_version: str = "", torch_version: str = ""
) -> tuple[Lint, ...]:
    """Everything that is wrong with ``settings``, by id and variable. Versions as printed (``2.18.3``), or empty."""
    first: dict[str, EnvironmentVariable] = {}
    for setting in settings:
        first[setting.name] = setting  # the last assignment of a script is the one that counts
    nccl, torch = version_tuple(nccl_version), version_tuple(torch_version)
    found: list[Lint] = []
    for setting in first.values():
        found.extend(_alone(setting, nccl, torch))
    values = {name: setting.value.strip() for name, setting in first.items() if setting.value.strip()}
    found.extend(_together(values, first))
    found.extend(_disagreements(settings))
    return tuple(sorted(found, key=lambda lint: (lint.id, lint.variable, lint.value)))


def _alone(setting: EnvironmentVariable, nccl: tuple[int, ...], torch: tuple[int, ...]) -> Iterable[Lint]:
    """What is wrong with one variable by itself."""
    name, value, source = setting.name, setting.value.strip(), setting.source
    known = VARIABLES.get(name)
    if known is None:
        if name.startswith(CHECKED_PREFIXES) and not NOT_READ_BY_NCCL.fullmatch(name):
            near = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.75)
            fix = f"did you mean {near[0]}?" if near else "remove it, or check the spelling in the NCCL user guide"
            severity = Severity.SLOW if near else Severity.NOTICE
            yield Lint("E01", name, value, f"no version reads {name}", fix, severity, source)
        elif (meant := _misplaced(name)) is not None:
            yield Lint("E01", name, value, f"nothing reads {name}", f"did you mean {meant}?", Severity.SLOW, source)
        return
    if not value:
        return
    yield from _by_version(known, setting, torch if is_torch(name) else nccl)
    if (problem := _malformed(known, value)) is not None:
        yield Lint("E03", name, value, f"{name}={value}: {problem}", f"set {_allowed(known)}", Severity.SLOW, source)
    if known.left_on[0] and value.upper() == known.left_on[0]:
        what = f"{name}={value}: {known.left_on[1]}"
        yield Lint("E06", name, value, what, f"unset {name} unless this is meant", Severity.SLOW, source)
    if name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME"):
        yield from _interface_list(setting, value)
    if name == "NCCL_IB_TIMEOUT" and value.isdigit() and 22 < int(value) <= 31:
        per_try_s = 4.096e-6 * 2 ** int(value)
        total_min = 8 * per_try_s / 60
        what = f"{name}={value}: one try takes {per_try_s:.0f} s, with retries {total_min:.0f} min until an error"
        yield Lint("E05", name, value, what, "22 (17 s a try) is the most that helps", Severity.NOTICE, source)


def _by_version(known: Variable, setting: EnvironmentVariable, version: tuple[int, ...]) -> Iterable[Lint]:
    library = "PyTorch" if is_torch(known.name) else "NCCL"
    instead = f"use {known.replaced_by}" if known.replaced_by else "remove it"
    value, source = setting.value.strip(), setting.source
    newest = version or ((2, 9) if library == "PyTorch" else DEFAULT_NCCL)
    if known.until and newest >= version_tuple(known.until):
        lint = "E08" if library == "PyTorch" else "E02"
        what = f"{library} does not read {known.name} since {known.until}"
        yield Lint(lint, known.name, value, what, instead, Severity.NOTICE, source)
    elif version and known.since and version < version_tuple(known.since):
        what = f"{library} reads {known.name} from {known.since} on; this is {'.'.join(map(str, version))}"
        yield Lint("E02", known.name, value, what, f"update {library}, or remove it", Severity.NOTICE, source)


def _malformed(known: Variable, value: str) -> str | None:
    if value.startswith("$"):
        return None
    if known.kind == "bool":
        return (
            None
            if value in ("0", "1") or (is_torch(known.name) and value.lower() in ("true", "false"))
            else "not 0 or 1"
        )
    if known.kind in ("int", "size"):
        try:
            number = int(value, 0)
        except ValueError:
            return "not a whole number" if known.kind == "int" else "not a number of bytes (suffixes are not read)"
        if known.minimum is not None and number < known.minimum:
            return f"below {known.minimum}"
        if known.maximum is not None and number > known.maximum:
            return f"above {known.maximum}"
        return None
    words = {word.lower() for word in known.words}
    if known.kind == "words" and value.lower() not in words:
        return "not a word that it knows"
    if known.kind == "list" and (wrong := [w for w in value.lstrip("^").split(",") if w.strip().lower() not in words]):
        return f"{wrong[0]!r} is not a word that it knows"
    if known.kind == "algorithms":
        # From 2.24 on: "allreduce:ring,tree;broadcast:ring".
        parts = [part.split(":")[-1] for part in value.split(";")]
        names = [name.strip().lstrip("^") for part in parts for name in part.split(",")]
        wrong = [name for name in names if name and name.lower() not in words]
        return f"{wrong[0]!r} is not a word that it knows" if wrong else None
    return None


def _allowed(known: Variable) -> str:
    if known.kind == "bool":
        return "0 or 1"
    if known.words:
        return "one of " + ", ".join(known.words)
    low = "" if known.minimum is None else f" from {known.minimum}"
    high = "" if known.maximum is None else f" to {known.maximum}"
    return f"a whole number{low}{high}"


def _misplaced(name: str) -> str | None:
    """A name outside the checked families that is one of theirs with its prefix spoilt (``NCLL_DEBUG``)."""
    if len(name) < 8 or "_" not in name or name.startswith(("GLOO_", "MASTER_", "UCX_", "RCCL_", "SLURM_", "CUDA_")):
        return None
    head, _, tail = name.partition("_")
    if head != "NCCL" and set(head.upper()) <= set("NCL") and 3 <= len(head) <= 6:
        near = difflib.get_close_matches(f"NCCL_{tail.upper()}", VARIABLES, n=1, cutoff=0.9)
        return near[0] if near else None
    return name.upper() if name.upper() in VARIABLES else None


def _interface_list(setting: EnvironmentVariable, value: str) -> Iterable[Lint]:
    name, source = setting.name, setting.source
    names = value.lstrip("^=").split(",")
    if any(part.startswith("^") for part in names[1:]):
        yield Lint("E07", name, value, f"{name}={value}: ^ counts only at the start and then for the whole list",
                   "write ^ once, in front", Severity.SLOW, source)  # fmt: skip
    if any(" " in part.strip() or part != part.strip() for part in names):
        yield Lint("E07", name, value, f"{name}={value!r}: the blanks become part of the names",
                   "write the list without blanks", Severity.SLOW, source)  # fmt: skip
    if not value.startswith("^") and "lo" in (part.strip() for part in names):
        yield Lint("E07", name, value, f"{name}={value}: the loopback interface reaches no other node",
                   "name the interface of the fabric", Severity.FATAL, source)  # fmt: skip


def _together(values: Mapping[str, str], settings: Mapping[str, EnvironmentVariable]) -> Iterable[Lint]:
    """Settings that are wrong only in company."""

    def lint(id_: str, name: str, what: str, fix: str, severity: Severity = Severity.SLOW) -> Lint:
        return Lint(id_, name, values.get(name, ""), what, fix, severity, settings[name].source)

    ib_off = values.get("NCCL_IB_DISABLE") == "1"
    net = values.get("NCCL_NET", "").lower()
    tuned = sorted(name for name in values if name.startswith("NCCL_IB_") and name != "NCCL_IB_DISABLE")
    if ib_off and tuned:
        yield lint("E04", "NCCL_IB_DISABLE", f"NCCL_IB_DISABLE=1 makes {', '.join(tuned)} idle",
                   "unset NCCL_IB_DISABLE, or the others")  # fmt: skip
    if net == "socket" and tuned and not ib_off:
        yield lint("E04", "NCCL_NET", f"NCCL_NET=Socket makes {', '.join(tuned)} idle", "unset NCCL_NET, or the others")
    if net == "ib" and ib_off:
        yield lint("E05", "NCCL_NET", "NCCL_NET=IB asks for what NCCL_IB_DISABLE=1 forbids: initialisation fails",
                   "unset one of them", Severity.FATAL)  # fmt: skip
    if values.get("NCCL_P2P_DISABLE") == "1" and "NCCL_P2P_LEVEL" in values:
        yield lint("E05", "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE=1 overrules NCCL_P2P_LEVEL", "unset one of them")
    for low, high in (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
                      ("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS")):  # fmt: skip
        if values.get(low, "").isdigit() and values.get(high, "").isdigit() and int(values[low]) > int(values[high]):
            yield lint("E05", low, f"{low}={values[low]} is above {high}={values[high]}", "swap them, or unset both")
    if "nvls" in values.get("NCCL_ALGO", "").lower() and values.get("NCCL_NVLS_ENABLE") == "0":
        yield lint("E05", "NCCL_ALGO", f"NCCL_ALGO={values['NCCL_ALGO']} asks for what NCCL_NVLS_ENABLE=0 forbids",
                   "unset one of them", Severity.FATAL)  # fmt: skip
    for name, variable in VARIABLES.items():
        new = variable.replaced_by
        if name in values and new in values and values[name] != values[new] and variable.kind == VARIABLES[new].kind:
            yield lint("E05", name, f"{name}={values[name]} and {new}={values[new]} name one thing twice",
                       f"keep {new} only")  # fmt: skip
    blocking = values.get("TORCH_NCCL_BLOCKING_WAIT", values.get("NCCL_BLOCKING_WAIT"))
    handling = values.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", values.get("NCCL_ASYNC_ERROR_HANDLING"))
    if blocking == "1" and handling not in (None, "0"):
        name = "TORCH_NCCL_BLOCKING_WAIT" if "TORCH_NCCL_BLOCKING_WAIT" in values else "NCCL_BLOCKING_WAIT"
        yield lint("E05", name, "with blocking wait, asynchronous error handling is ignored",
                   "use one of the two; asynchronous error handling is the default")  # fmt: skip
    if (
        "NCCL_SOCKET_IFNAME" in values
        and "GLOO_SOCKET_IFNAME" in values
        and (values["NCCL_SOCKET_IFNAME"].lstrip("=") != values["GLOO_SOCKET_IFNAME"].lstrip("="))
    ):
        yield lint("E05", "GLOO_SOCKET_IFNAME", "NCCL and Gloo are told different interfaces: "
                   f"{values['NCCL_SOCKET_IFNAME']} and {values['GLOO_SOCKET_IFNAME']}",
                   "name one network, unless both reach every node", Severity.NOTICE)  # fmt: skip
    size = values.get("TORCH_FR_BUFFER_SIZE", values.get("TORCH_NCCL_TRACE_BUFFER_SIZE"))
    if values.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "").lower() in ("1", "true") and size == "0":
        yield lint("E09", "TORCH_NCCL_DUMP_ON_TIMEOUT", "the dump on timeout has nothing to write: the "
                                                        "recorder's buffer "
                   "is 0", "set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 (TORCH_FR_BUFFER_SIZE from 2.9 on)")  # fmt: skip
    if values.get("TORCH_NCCL_ENABLE_MONITORING") in ("0", "false") and "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC" in values:
        yield lint("E09", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "the heartbeat timeout is idle: the monitor is off",
                   "unset TORCH_NCCL_ENABLE_MONITORING")  # fmt: skip


def _disagreements(settings: Sequence[EnvironmentVariable]) -> Iterable[Lint]:
    """One variable with different values on different hosts or ranks. Files of the same job are told apart by name."""
    by_name: dict[str, dict[str, EnvironmentVariable]] = {}
    speakers: dict[str, set[str]] = {}
    for setting in settings:
        if not setting.name.startswith(CHECKED_PREFIXES) or setting.name in _UNLIKE_HOSTS:
            continue
        who = setting.host or (f"rank {setting.rank}" if setting.rank is not None else setting.source.file)
        by_name.setdefault(setting.name, {})[who] = setting
        speakers.setdefault(setting.name, set()).add(who)
    for name, by_speaker in sorted(by_name.items()):
        values: dict[str, list[str]] = {}
        for who, setting in by_speaker.items():
            values.setdefault(setting.value, []).append(who)
        if len(values) > 1:
            said = "; ".join(
                f"{value or 'empty'} on {', '.join(sorted(who)[:3])}" for value, who in sorted(values.items())
            )
            odd = min(values, key=lambda value: (len(values[value]), value))
            yield Lint("E10", name, odd, f"{name} differs: {said}", "set it once for all ranks (/etc/nccl.conf)",
                       Severity.SLOW, by_speaker[values[odd][0]].source)  # fmt: skip
