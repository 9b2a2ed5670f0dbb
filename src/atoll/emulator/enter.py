"""A rank's way into its place: ``python -m atoll.emulator.enter PLACES COMMAND...``, with the launcher's ATOLL_RANK.

It enters the rank's network namespace, calls the host by the name of the rank's node, tells the rank where to listen
and where to meet, and becomes the command. The namespaces are files that the process which made the cluster holds open;
if that is gone, there is no way in.
"""

from __future__ import annotations

import os
import socket
import sys

import msgspec

from atoll.emulator.mark import VARIABLE
from atoll.emulator.namespaces import enter, own_host_name
from atoll.errors import AtollError, SpecError


class Places(msgspec.Struct, frozen=True):
    """All that a rank has to know: the process that holds the namespaces, its files by rank, addresses by rank."""

    owner: int
    mark: str
    files: tuple[int, ...]
    addresses: tuple[str, ...]
    ranks_per_node: int
    port: int


def main(places_json: str, command: list[str]) -> None:
    """Become ``command`` in the place of the rank that the environment names."""
    places = msgspec.json.decode(places_json, type=Places)
    rank, world_size = int(os.environ["ATOLL_RANK"]), int(os.environ["ATOLL_WORLD_SIZE"])
    if world_size != len(places.files) or rank >= world_size:
        raise SpecError(
            f"the emulated cluster has places for ranks 0 to {len(places.files) - 1}, got rank {rank} of {world_size}"
        )
    try:
        enter(f"/proc/{places.owner}/fd/{places.files[rank]}")
    except OSError as error:
        raise SpecError(f"rank {rank} cannot enter its network namespace: {error.strerror}") from None
    own_host_name()
    socket.sethostname(f"node{rank // places.ranks_per_node}")
    os.environ.update(
        {
            "ATOLL_LISTEN": places.addresses[rank],
            "ATOLL_RENDEZVOUS": f"{places.addresses[0]}:{places.port}",
            "ATOLL_LOCAL_RANK": str(rank % places.ranks_per_node),
            "ATOLL_LOCAL_WORLD_SIZE": str(places.ranks_per_node),
            # Memory knows nothing of the emulated links.
            "ATOLL_TRANSPORT": "tcp",
            VARIABLE: places.mark,
        }
    )
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise SpecError(f"cannot start {command[0]!r}: {error.strerror}") from None


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2:])
    except AtollError as problem:
        sys.exit(f"atoll emulate: {problem}")
