"""Through what ranks talk to each other: shared memory within a host, TCP across hosts; and what a user may ask for.

``auto``  shared memory between ranks of one host where they can, TCP elsewhere
``tcp``   TCP everywhere; this rank shares no memory with anyone
``shm``   shared memory between ranks of one host, or an error that says why not; TCP across hosts

Every rank may be told something else: two ranks share memory where both may. Hosts are told apart by boot and
namespaces (``membership.Host``), not by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from atoll.errors import SpecError, nearest
from atoll.runtime.shared_memory import available

TRANSPORTS: Final = ("auto", "tcp", "shm")
VARIABLE: Final = "ATOLL_TRANSPORT"


def read_transport(environ: Mapping[str, str]) -> str:
    """What ``ATOLL_TRANSPORT`` says; ``auto`` where it says nothing."""
    return checked_transport(environ.get(VARIABLE) or "auto", VARIABLE)


def checked_transport(name: str, what: str) -> str:
    """``name``, if it is one that this machine has. ``what`` is where it was said."""
    if name not in TRANSPORTS:
        raise SpecError(f"{what}: unknown transport {name!r}: {nearest(name, TRANSPORTS)}")
    if name == "shm" and not available():
        raise SpecError(f"{what}: shm needs Linux on x86-64 (memfd, and stores that become visible in order): use tcp")
    return name
