"""What a rank knows once it has joined: who it is, who the others are and how to reach them.

This is plain data, made by ``join`` and read by everyone else; nothing in it changes afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import msgspec

if TYPE_CHECKING:
    import socket

Text = Annotated[str, msgspec.Meta(max_length=256)]


class Host(msgspec.Struct, frozen=True, array_like=True):
    """Where a rank's process lives. Two ranks share a kernel, its loopback and its process numbers when equal.

    ``boot_id`` names one boot of one kernel (``/proc/sys/kernel/random/boot_id``); ``network_namespace`` is
    the identity of ``/proc/self/ns/net`` within it, ``process_namespace`` that of ``/proc/self/ns/pid``. ``label`` is
    what ATOLL_HOST says: ranks with different ones count as on different hosts.
    """

    name: Text
    boot_id: Text
    network_namespace: Text
    process_namespace: Text = ""
    label: Text = ""


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """One rank as the others see it: process ``pid`` on ``host``, listening at ``address`` and ``port``."""

    rank: Annotated[int, msgspec.Meta(ge=0)]
    host: Host
    pid: int
    address: Text
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]

    def describe(self) -> str:
        """``rank 3 (pid 4711 on node7)``."""
        return f"rank {self.rank} (pid {self.pid} on {self.host.name})"


@dataclass(frozen=True)
class Membership:
    """A rank's place in its world. ``peers[r]`` is rank r; ``listener`` is this rank's own, not yet accepted from.

    ``world_id`` (16 bytes) names this world and no other; ``key`` authenticates its connections. ``listener`` is None
    in a world of one. ``tuning`` is rank 0's, packed (``runtime.tuning``); empty: the package's own.
    """

    rank: int
    world_size: int
    world_id: bytes
    key: bytes = field(repr=False)
    peers: tuple[Peer, ...]
    listener: socket.socket | None
    tuning: bytes = b""

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks on this rank's host, itself included, ascending."""
        return tuple(peer.rank for peer in self.peers if peer.host == self.peers[self.rank].host)
