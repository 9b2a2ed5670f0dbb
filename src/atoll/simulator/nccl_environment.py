"""The variables that change what NCCL chooses, as data: an environment is a mapping of names to text.

What is understood is listed in ``UNDERSTOOD``; other variables change nothing here and are named in the notes of a
prediction, so that nobody takes silence for an answer. ``NCCL_ALGO`` and ``NCCL_PROTO`` take NCCL's lists: names
between commas, ``^`` in front for all but these; from 2.24 on also ``allreduce:ring,tree;allgather:ring``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from atoll.errors import SpecError, nearest
from atoll.simulator import nccl_constants as constants
from atoll.topology.routes import Transport

UNDERSTOOD: Final = {
    "NCCL_ALGO": "algorithms allowed",
    "NCCL_PROTO": "protocols allowed",
    "NCCL_NVLS_ENABLE": "0: no reduction in NVSwitches",
    "NCCL_COLLNET_ENABLE": "1: reduction in the network's switches (SHARP)",
    "NCCL_PAT_ENABLE": "0: no PAT",
    "NCCL_MAX_NCHANNELS": "channels at most",
    "NCCL_MAX_CTAS": "channels at most",
    "NCCL_MAX_P2P_NCHANNELS": "channels of sends and receives at most",
    "NCCL_NCHANNELS_PER_PEER": "channels of one peer",
    "NCCL_P2P_LL_THRESHOLD": "bytes of a send, for each of its channels, up to which it goes by LL",
    "NCCL_NET_GDR_LEVEL": "0 or LOC: no GPUDirect RDMA",
    "NCCL_PXN_DISABLE": "1: no PXN",
}
_IGNORED: Final = ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TESTS")
_COLLECTIVES: Final = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "broadcast": "broadcast",
    "reduce": "reduce",
}  # fmt: skip


class NcclEnvironment(msgspec.Struct, frozen=True):
    """What the variables allow. ``algorithms`` and ``protocols`` are NCCL's names, ``version`` is NCCL's own;
    ``channels_per_peer`` 0: as NCCL finds them."""

    algorithms: frozenset[str] = frozenset(constants.ALGORITHMS)
    protocols: frozenset[str] = frozenset(constants.PROTOCOLS)
    protocols_given: bool = False
    nvls: bool = True
    collnet: bool = False
    pat: bool = True
    max_channels: int = 32
    max_p2p_channels: int = 32
    channels_per_peer: int = 0
    p2p_ll_bytes: int = constants.P2P_LL_THRESHOLD_BYTES
    transport: Transport = Transport()
    version: tuple[int, ...] = constants.VERSION
    notes: tuple[str, ...] = ()


def nccl_environment(
    variables: Mapping[str, str] | None, collective: str, version: str = constants.NCCL_VERSION
) -> NcclEnvironment:
    """What ``variables`` allow for one collective. Raises ``SpecError`` for a value that NCCL would not take, or a
    version that is none."""
    given = {name: text.strip() for name, text in (variables or {}).items()}
    notes = tuple(
        f"{name}={text} is not modelled"
        for name, text in sorted(given.items())
        if name.startswith("NCCL_") and name not in UNDERSTOOD and not name.startswith(_IGNORED)
    )
    limits = [
        _whole(name, given[name], 1) for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS") if given.get(name, "") != ""
    ]
    return NcclEnvironment(
        algorithms=_list("NCCL_ALGO", given.get("NCCL_ALGO", ""), collective, constants.ALGORITHMS),
        protocols=_list("NCCL_PROTO", given.get("NCCL_PROTO", ""), collective, constants.PROTOCOLS),
        protocols_given=bool(given.get("NCCL_PROTO")),
        nvls=_whole("NCCL_NVLS_ENABLE", given.get("NCCL_NVLS_ENABLE", "2"), 0) != 0,
        collnet=_whole("NCCL_COLLNET_ENABLE", given.get("NCCL_COLLNET_ENABLE", "0"), 0) != 0,
        pat=_whole("NCCL_PAT_ENABLE", given.get("NCCL_PAT_ENABLE", "2"), 0) != 0,
        max_channels=min([32, *limits]),
        max_p2p_channels=min(32, _given("NCCL_MAX_P2P_NCHANNELS", given, 1, 32)),
        channels_per_peer=_given("NCCL_NCHANNELS_PER_PEER", given, 1, 0),
        p2p_ll_bytes=_given("NCCL_P2P_LL_THRESHOLD", given, 0, constants.P2P_LL_THRESHOLD_BYTES),
        transport=Transport(
            gpudirect=given.get("NCCL_NET_GDR_LEVEL", "").upper() not in ("0", "LOC"),
            pxn=_whole("NCCL_PXN_DISABLE", given.get("NCCL_PXN_DISABLE", "0"), 0) == 0,
        ),
        version=nccl_version(version),
        notes=notes,
    )


def nccl_version(text: str) -> tuple[int, ...]:
    """The numbers of a version such as 2.27.3, v2.28.3-1 or 2.26.2+cuda12.8."""
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?![\d.])", text.strip())
    if match is None:
        raise SpecError(f"NCCL's version: expected numbers such as {constants.NCCL_VERSION}, got {text!r}")
    return tuple(int(number) for number in match.groups() if number)


def _whole(name: str, text: str, least: int) -> int:
    if not text.isdigit() or int(text) < least:
        raise SpecError(f"{name}: expected a whole number of at least {least}, got {text!r}")
    return int(text)


def _given(name: str, variables: Mapping[str, str], least: int, otherwise: int) -> int:
    """A whole number, or ``otherwise`` where the variable is not set."""
    text = variables.get(name, "")
    return _whole(name, text, least) if text else otherwise


def _list(name: str, text: str, collective: str, known: tuple[str, ...]) -> frozenset[str]:
    """One of NCCL's lists, read for one collective."""
    chosen: str | None = None
    for part in text.split(";"):
        prefix, colon, names = part.rpartition(":")
        if colon and prefix.strip().lower() not in _COLLECTIVES:
            raise SpecError(f"{name}: unknown collective {prefix!r}: {nearest(prefix.lower(), _COLLECTIVES)}")
        if names.strip() and (not colon or _COLLECTIVES[prefix.strip().lower()] == collective):
            chosen = names.strip()
    if chosen is None:
        return frozenset(known)
    excluded = chosen.startswith("^")
    by_lower = {one.lower(): one for one in known}
    found = set()
    for word in chosen.removeprefix("^").split(","):
        if word.strip().lower() not in by_lower:
            raise SpecError(f"{name}: {word.strip()!r} is none of NCCL's: {nearest(word.strip(), known)}")
        found.add(by_lower[word.strip().lower()])
    return frozenset(known) - found if excluded else frozenset(found)
