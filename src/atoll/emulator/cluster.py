"""The emulated cluster itself: made, handed to a launcher, and gone at the end.

``with EmulatedCluster(layout, rates) as cluster`` makes the namespaces, cables and queues; ``cluster.entrance`` are the
words to start each rank through (``runtime.launch``). On leaving, also by an exception, the files that hold the
namespaces are closed. What the kernel does when this process is killed instead is in ``namespaces``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Final

import msgspec

from atoll.emulator.enter import Places
from atoll.emulator.layout import ISLAND, NETWORK, Cable, Layout, Rates, cables
from atoll.emulator.mark import own_mark
from atoll.emulator.namespaces import new_network_namespace, read_tool, run_batch
from atoll.emulator.queues import queue_command, window_options
from atoll.errors import InternalError

RENDEZVOUS_PORT: Final = 20000
"""Any one does: nobody else listens in a new namespace."""


class LinkCount(msgspec.Struct, frozen=True):
    """What has left one end of a cable since the limits were set: bytes with headers, packets, how many of them were
    dropped, and how often the bucket was empty and one had to wait."""

    bytes: int
    packets: int
    drops: int
    waits: int


class EmulatedCluster:
    """See the module's text. Without ``rates`` links are as fast as the machine, until ``limit`` is called."""

    def __init__(self, layout: Layout, rates: Rates | None = None) -> None:
        self.layout = layout
        self.rates: Rates | None = None
        self._asked = rates
        self._open = contextlib.ExitStack()
        self._ranks: list[int] = []
        self._switches = -1

    def __enter__(self) -> EmulatedCluster:
        try:
            self._make()
            if self._asked is not None:
                self.limit(self._asked)
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def entrance(self) -> tuple[str, ...]:
        """The words in front of a rank's command."""
        layout = self.layout
        places = Places(
            os.getpid(), str(own_mark()), tuple(self._ranks),
            tuple(layout.address(rank) for rank in range(layout.world_size)), layout.ranks_per_node, RENDEZVOUS_PORT,
        )  # fmt: skip
        return (sys.executable, "-m", "atoll.emulator.enter", msgspec.json.encode(places).decode())

    def namespace(self, rank: int) -> int:
        """The file that holds a rank's network namespace."""
        return self._ranks[rank]

    def limit(self, rates: Rates) -> None:
        """Put a queue on every end of every cable that has a limit. Once: limits cannot be changed."""
        if self.rates is not None:
            raise InternalError("this cluster has limits already")
        self.rates = rates
        lines: dict[int, list[str]] = {}
        for cable in cables(self.layout, rates):
            if cable.bytes_per_s:
                for namespace, interface in self._ends(cable):
                    lines.setdefault(namespace, []).append(queue_command(cable, interface))
        for namespace, batch in lines.items():
            run_batch("tc", batch, namespace)
        for rank, namespace in enumerate(self._ranks):
            run_batch("ip", list(self._routes(rank, rates)), namespace)

    def counts(self) -> dict[tuple[int | None, str], LinkCount]:
        """By namespace (a rank, or ``None`` for the switches') and interface with a limit: what was sent there."""
        found = {}
        places: list[tuple[int | None, int]] = [(None, self._switches), *enumerate(self._ranks)]
        for place, namespace in places:
            for queue in json.loads(read_tool(["tc", "-s", "-j", "qdisc", "show"], namespace)):
                if queue["kind"] == "tbf":
                    count = LinkCount(queue["bytes"], queue["packets"], queue["drops"], queue["overlimits"])
                    found[place, queue["dev"]] = count
        return found

    def _make(self) -> None:
        layout = self.layout
        self._switches = self._namespace()
        self._ranks = [self._namespace() for _ in range(layout.world_size)]
        wires = cables(layout, Rates(1e9, 1e9))  # which there are does not depend on how fast they are
        lines = [f"link add {name} type bridge" for name in dict.fromkeys(self._bridges(wires))]
        for wire in wires:
            peer = f"netns /proc/self/fd/{self._ranks[wire.rank]}" if wire.rank is not None else ""
            lines.append(f"link add {wire.far} type veth peer name {wire.near} {peer}".rstrip())
            for interface, switch in ((wire.far, wire.switch), (wire.near, wire.near_switch)):
                if switch:
                    lines.append(f"link set dev {interface} addrgenmode none master {switch} up")
        lines += [f"link set dev {name} addrgenmode none up" for name in dict.fromkeys(self._bridges(wires))]
        run_batch("ip", lines, self._switches, self._ranks)
        for rank, namespace in enumerate(self._ranks):
            address = layout.address(rank)
            lines = ["link set dev lo up", f"link set dev {ISLAND} addrgenmode none up"]
            lines.append(f"addr add {address}/32 dev {ISLAND}")
            if layout.nodes > 1:
                lines.append(f"link set dev {NETWORK} addrgenmode none up")
                lines.append(f"addr add {address}/32 dev {NETWORK}")
            run_batch("ip", [*lines, *self._routes(rank, None)], namespace)

    def _routes(self, rank: int, rates: Rates | None) -> Iterator[str]:
        """Towards the rank's own node by one interface, towards all others by the other."""
        layout = self.layout
        routes = [(layout.node_subnet(rank), ISLAND, 0.0 if rates is None else rates.island)]
        if layout.nodes > 1:
            routes.append((layout.subnet, NETWORK, 0.0 if rates is None else rates.network))
        for subnet, interface, bytes_per_s in routes:
            options = window_options(bytes_per_s) if bytes_per_s else ""
            yield f"route replace {subnet} dev {interface} src {layout.address(rank)} {options}".rstrip()

    @staticmethod
    def _bridges(wires: tuple[Cable, ...]) -> list[str]:
        return [name for wire in wires for name in (wire.switch, wire.near_switch) if name]

    def _ends(self, cable: Cable) -> tuple[tuple[int, str], tuple[int, str]]:
        near = self._switches if cable.rank is None else self._ranks[cable.rank]
        return (near, cable.near), (self._switches, cable.far)

    def _namespace(self) -> int:
        file = new_network_namespace()
        self._open.callback(os.close, file)
        return file
