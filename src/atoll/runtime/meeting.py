"""Sockets and addresses of the rendezvous: where to listen, where to connect, and who may.

Over TCP whoever knows ATOLL_SECRET is let in. Without a secret only loopback addresses are used, where the host's
other users remain the only strangers. At an abstract Unix socket the kernel vouches that both sides are one user.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
import struct
import time
from hashlib import blake2b
from pathlib import Path
from typing import Final

from atoll.errors import SpecError
from atoll.runtime.environment import Placement, is_loopback_name
from atoll.runtime.handshake import WORLD_ID_BYTES
from atoll.runtime.membership import Host

# Every other rank may connect at the same moment; the kernel cuts this to net.core.somaxconn.
BACKLOG: Final = 4096
_UCRED: Final = struct.Struct("3i")

# What ``socket.connect`` and ``bind`` take: an abstract Unix name, or an IP address and a port.
Target = str | tuple[str, int]


def this_host(label: str = "") -> Host:
    """The host this process runs on; ``label`` as ATOLL_HOST has it."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    network, processes = (os.stat(f"/proc/self/ns/{kind}") for kind in ("net", "pid"))
    return Host(
        socket.gethostname()[:256],
        boot_id,
        f"{network.st_dev}:{network.st_ino}",
        f"{processes.st_dev}:{processes.st_ino}",
        label,
    )


def job_id(placement: Placement) -> bytes:
    """What stands for the world's id while there is none yet."""
    return blake2b(placement.job.encode(), digest_size=WORLD_ID_BYTES).digest()


def world_key(secret: bytes, world_id: bytes) -> bytes:
    """The key of all connections of a world, where there is a secret."""
    return hmac.digest(secret, b"atoll world " + world_id, "sha256")


def check_secret(placement: Placement) -> None:
    """``SpecError`` when an address outside of this host is given and no secret."""
    if placement.secret is not None or placement.rendezvous is None:
        return
    for what, host in (("the rendezvous", placement.rendezvous.host), ("ATOLL_LISTEN", placement.listen)):
        if host and not is_loopback_name(host):
            raise SpecError(
                f"{what} is {host}, which is no loopback address, and ATOLL_SECRET is not set: set the same "
                "ATOLL_SECRET on every rank (python -c 'import secrets; print(secrets.token_hex(16))' makes one)"
            )


def resolve(host: str) -> list[str]:
    """The IP addresses of ``host``, in the order the resolver prefers; ``OSError`` when there is none."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def connect_targets(placement: Placement) -> list[Target]:
    """Where to look for rank 0, in order. ``OSError`` when its name is not known (yet)."""
    rendezvous = placement.rendezvous
    assert rendezvous is not None
    if rendezvous.unix:
        return ["\0" + rendezvous.unix]
    return [(address, port) for port in rendezvous.ports for address in resolve(rendezvous.host)]


def bind_targets(placement: Placement) -> list[Target]:
    """Where rank 0 may serve, in order."""
    rendezvous = placement.rendezvous
    assert rendezvous is not None
    if rendezvous.unix:
        return ["\0" + rendezvous.unix]
    try:
        addresses = resolve(rendezvous.host)
    except OSError as error:
        raise SpecError(
            f"rank 0 does not find its own rendezvous address {rendezvous.host!r}: {error.strerror}"
        ) from None
    address = addresses[0]
    if not is_loopback_name(rendezvous.host):
        # A host's own name often resolves to loopback on that host: listen everywhere, the secret guards it.
        address = "::" if any(":" in address for address in addresses) else "0.0.0.0"
    return [(address, port) for port in rendezvous.ports]


def family_of(target: Target) -> socket.AddressFamily:
    """The address family of ``target``."""
    if isinstance(target, str):
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in target[0] else socket.AF_INET


def listen_at(target: Target) -> socket.socket:
    """A listener at ``target``. ``OSError`` when that is not possible."""
    family = family_of(target)
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if family != socket.AF_UNIX:
            # Connections of an earlier world that linger in TIME_WAIT do not keep the port.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(target)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def connect_to(target: Target, until: float) -> socket.socket:
    """A blocking connection to ``target``, ``TimeoutError`` when there is none by ``until`` (monotonic seconds)."""
    sock = socket.socket(family_of(target), socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(time_left(until))
        sock.connect(target)
    except BaseException:
        sock.close()
        raise
    return sock


def own_listener(placement: Placement, meeting: socket.socket) -> socket.socket:
    """This rank's own listener, of the family that reaches the rendezvous, at a port of the kernel's choice.

    On loopback, unless the rendezvous can be reached from elsewhere: then on every interface, guarded by the secret,
    since a rank next to rank 0 cannot know by which address the others see its host.
    """
    assert placement.rendezvous is not None
    six = meeting.family == socket.AF_INET6
    if placement.listen:
        try:
            address = resolve(placement.listen)[0]
        except OSError as error:
            raise SpecError(f"ATOLL_LISTEN: {placement.listen!r} is not found: {error.strerror}") from None
    elif not placement.rendezvous.host or is_loopback_name(placement.rendezvous.host):
        address = "::1" if six else "127.0.0.1"
    else:
        address = "::" if six else "0.0.0.0"
    try:
        return listen_at((address, 0))
    except OSError as error:
        where = f"{address} (ATOLL_LISTEN)" if placement.listen else address
        raise SpecError(f"rank {placement.rank} cannot listen at {where}: {error.strerror}") from None


def address_facing(sock: socket.socket) -> str:
    """The address of our end of ``sock``, by which the other end's host reaches us; empty when only this host does."""
    if sock.family == socket.AF_UNIX:
        return ""
    facing = plain(sock.getsockname()[0])
    return "" if is_loopback_name(facing) else facing


def plain(address: str) -> str:
    """``::ffff:10.0.0.1`` as ``10.0.0.1``; anything else as it is."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return address


def vet_user(sock: socket.socket) -> str:
    """Empty when the other end of a Unix socket belongs to our user, as the kernel says; else whose it is."""
    _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return "" if uid == os.getuid() else f"it belongs to user {uid}, this is user {os.getuid()}"


def target_words(target: Target) -> str:
    """A target for a message."""
    return f"unix:@{target[1:]}" if isinstance(target, str) else f"{target[0]} port {target[1]}"


def time_left(until: float) -> float:
    """Seconds until ``until`` (monotonic) as a socket's timeout, which must not be zero."""
    return max(0.001, until - time.monotonic())
