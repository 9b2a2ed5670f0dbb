"""Rank <-> host <-> GPU <-> NIC <-> channel <-> peer, as far as an NCCL log tells.

Two sorts of lines build the map. A *state line* of a communicator (``... comm 0x.. rank 3 nranks 16 cudaDev 3 nvmlDev 3
busId 86000 commId 0x.. - Init START``) places a rank on a process and GPU. A *channel line* (``Channel 00/0 : 3[3] ->
4[4] via P2P/IPC``) says how two ranks are joined; a million of them become one ``Connection`` per pair of ranks and
way.

**Which communicator a channel line is of** is not written in it (but in RCCL's). Each process and device is in one
*epoch* at a time: the communicator last started there. Up to 2.15 only the end is logged, so channel lines that come
before an ``Init COMPLETE`` belong to it, and those after the last one to the last. Up to 2.15 there is no ``commId``
either: communicators of the same size are told apart by how many of that size their process has had.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from atoll.readers.nccl_log_facts import Collective, CommInit, Speaker, bus_id_text
from atoll.readers.source import MAX_TEXT, Source

MAX_CONNECTIONS: Final = 300_000
MAX_CONNECTIONS_PER_RANK: Final = 128
"""Connections kept, in all and of one rank in one communicator: rings and trees come first, so it is point to point
traffic between everyone and everyone that falls out. Of what falls out the lines are counted by transport."""

CHANNEL_LINE: Final = re.compile(
    rb"\s*(?:Channel|Ring) (\d{1,4})(?:/(\d{1,4}))? ?: (\d{1,7})(?:\[([0-9a-fA-F]{1,16})\])?"
    rb" -> (\d{1,7})(?:\[([0-9a-fA-F]{1,16})\])?(?: \[(send|receive)\])? via (.{1,200}?)"
    rb"(?: comm (0x[0-9a-fA-F]{1,16}) nRanks \d+(?: busId [0-9a-fA-F]+)?)?\s*$"
)
COLLNET_LINE: Final = re.compile(
    rb"\s*Coll[Nn]et (\d{1,4})(?:/(\d{1,4}))? ?: (\d{1,7})(?:\[([0-9a-fA-F]{1,16})\])? \[(send|receive)\]"
    rb" via (COLLNET/.{1,200}?)\s*$"
)
_NETWORK: Final = re.compile(r"(?:NET|COLLNET)/(.+?)/(\d+)(?:\((\d+)\))?((?:/[\w()]+)*)$")


class Via(msgspec.Struct, frozen=True):
    """A way between two ranks. ``transport``: P2P, SHM, NET or COLLNET.

    ``detail`` is what follows it (``IPC``, ``direct pointer/read``, ``CUMEM``). For the network: its name, the index of
    the NIC, whether GPUDirect RDMA is on, and the rank whose proxy sends in our stead (PXN; -1 for our own).
    """

    transport: str
    detail: str = ""
    network: str = ""
    nic: int = -1
    gdr: bool = False
    proxy_rank: int = -1
    text: str = ""


NO_VIA: Final = Via("")


@lru_cache(maxsize=4096)
def parse_via(text: str) -> Via:
    """``NET/IB/0(8)/GDRDMA/Shared``, ``P2P/IPC/read``, ``SHM/direct/direct``, ``direct shared memory`` ..."""
    match = _NETWORK.match(text)
    if match is not None:
        options = match[4] or ""
        proxy = int(match[3]) if match[3] else -1
        kind = "COLLNET" if text.startswith("COLLNET") else "NET"
        return Via(kind, options.strip("/"), match[1], int(match[2]), "/GDRDMA" in options, proxy, text)
    if "shared memory" in text:
        return Via("SHM", text, text=text)
    transport, _, detail = text.partition("/")
    return Via(transport, detail, text=text)


class Connection(msgspec.Struct):
    """How ``src`` reaches ``dst`` in communicator ``comm`` (an index of ``Job.communicators``, -1: not known).

    ``channels`` is a bit mask; ``count`` the number of lines. ``direction`` is ``send``, ``receive`` or empty; the line
    was written by ``speaker``. ``src_gpu`` and ``dst_gpu`` are as printed: a bus id up to 2.17, an nvml index since.
    """

    comm: int
    src: int
    dst: int
    via: Via
    direction: str
    speaker: int
    source: Source
    src_gpu: str = ""
    dst_gpu: str = ""
    channels: int = 0
    count: int = 0

    @property
    def channel_count(self) -> int:
        return self.channels.bit_count()


class Member(msgspec.Struct):
    """One rank of one communicator. ``states`` are the states seen, in order, with the line of each."""

    rank: int
    speaker: int
    host: str
    pid: int
    cuda_dev: int = -1
    nvml_dev: int = -1
    bus_id: int = -1
    comm: int = 0
    states: list[tuple[str, Source]] = []

    @property
    def gpu(self) -> str:
        """The GPU by its best name: bus id, else device index."""
        return bus_id_text(self.bus_id) if self.bus_id >= 0 else f"device {self.cuda_dev}"

    @property
    def ready(self) -> bool:
        return any(state == "complete" for state, _ in self.states)


class Communicator(msgspec.Struct):
    """``name`` is the commId in hexadecimal, or ``16 ranks #1`` where the log has none."""

    index: int
    name: str
    nranks: int
    members: dict[int, Member] = {}
    parent: int = 0
    function: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(member.host for _, member in sorted(self.members.items())))

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that no line places (at most 4,096 of them)."""
        return tuple(rank for rank in range(min(self.nranks, 1 << 20)) if rank not in self.members)[:4096]


class LastCall(msgspec.Struct):
    """The last collective that a process logged on a communicator, and how many it logged."""

    speaker: int
    comm: int
    call: Collective
    source: Source
    calls: int = 1


class Job(msgspec.Struct):
    """Everything the logs say about who runs where and how they are joined."""

    communicators: list[Communicator] = []
    connections: list[Connection] = []
    last_calls: list[LastCall] = []
    transport_lines: dict[str, int] = {}
    connections_dropped: int = 0

    def member(self, comm: int, rank: int) -> Member | None:
        return self.communicators[comm].members.get(rank) if 0 <= comm < len(self.communicators) else None

    @property
    def largest(self) -> Communicator | None:
        return max(self.communicators, key=lambda comm: (len(comm.members), comm.nranks), default=None)


class _Epoch:
    """``connections`` are by the line from its colon on, so that a line that repeats is found without parsing it."""

    __slots__ = ("before", "comm", "connections", "started")

    def __init__(self, before: int) -> None:
        self.comm = -1
        self.before = before
        self.started = False
        self.connections: dict[bytes, Connection] = {}


class _Calls:
    """The collectives that one process called on one communicator; the last line is parsed at the end."""

    __slots__ = ("count", "file", "number", "raw", "start")

    def __init__(self) -> None:
        self.count = self.start = self.number = 0
        self.raw = b""
        self.file = ""


class JobBuilder:
    """Takes the lines of all processes, in any interleaving; ``job`` is what they say together."""

    def __init__(self) -> None:
        self._communicators: list[Communicator] = []
        self._by_key: dict[tuple[object, ...], int] = {}
        self._by_pointer: dict[tuple[int, int], int] = {}
        self._epochs: dict[int, _Epoch] = {}
        self._sizes_seen: dict[tuple[int, int], int] = {}
        self._all_epochs: list[_Epoch] = []
        self._calls: dict[tuple[int, bytes], _Calls] = {}
        self.dropped_lines: dict[str, int] = {}
        self._connection_count = 0
        self.known: dict[int, dict[bytes, Connection]] = {}
        """For each speaker its connections of now, by the text of a line from `` : `` on."""

    def state(self, fact: CommInit, speaker: int, host: str, pid: int, source: Source) -> None:
        """A state line of a communicator."""
        index = self._communicator(fact, speaker)
        communicator = self._communicators[index]
        member = communicator.members.get(fact.rank)
        if member is None:
            member = Member(fact.rank, speaker, host, pid)
            communicator.members[fact.rank] = member
        for name in ("cuda_dev", "nvml_dev", "bus_id"):
            if getattr(fact, name) >= 0:
                setattr(member, name, getattr(fact, name))
        member.comm = fact.comm
        if len(member.states) < 16:
            member.states.append((fact.state, source))
        communicator.parent = communicator.parent or fact.parent
        communicator.function = communicator.function or fact.function
        if fact.state == "start":
            epoch = self._new_epoch(speaker)
            epoch.comm, epoch.started = index, True
        elif fact.state == "complete":
            current = self._epochs.get(speaker)
            if current is not None and current.comm < 0:
                current.comm = index
            if current is None or not current.started:
                # Only ends are logged: what comes next is of the next communicator, or late traffic of this one.
                self._new_epoch(speaker).before = index

    def _communicator(self, fact: CommInit, speaker: int) -> int:
        pointer = (speaker, fact.comm)
        known = self._by_pointer.get(pointer)
        if known is not None and fact.state != "start":
            found = self._communicators[known]
            again = fact.state == "complete" and fact.rank in found.members and found.members[fact.rank].ready
            if found.nranks == fact.nranks and not again:
                return known
        key: tuple[object, ...]
        if fact.comm_id:
            key, name = (fact.comm_id, fact.nranks), f"{fact.comm_id:#x}"
        else:
            seen = (speaker, fact.nranks)
            ordinal = self._sizes_seen.get(seen, 0)
            self._sizes_seen[seen] = ordinal + 1
            key, name = ("size", fact.nranks, ordinal), f"{fact.nranks} ranks #{ordinal + 1}"
            # Two groups of one size at one time (tensor parallel groups, say) have the same ranks at different places.
            twin = 0
            while (index := self._by_key.get((*key, twin))) is not None:
                other = self._communicators[index].members.get(fact.rank)
                if other is None or other.speaker == speaker:
                    break
                twin += 1
            key = (*key, twin)
            if twin:
                name += f" ({twin + 1})"
        index = self._by_key.get(key)
        if index is None:
            index = len(self._communicators)
            self._communicators.append(Communicator(index, name, fact.nranks))
            self._by_key[key] = index
        self._by_pointer[pointer] = index
        return index

    def channel(self, match: re.Match[bytes], tail: bytes, speaker: int, file: str, number: int, raw: bytes) -> None:
        """A channel line, as matched by ``CHANNEL_LINE``; ``tail`` is its body from `` : `` on."""
        channel, _, src, src_gpu, dst, dst_gpu, direction, via, comm = match.groups()
        epoch = self._epoch(speaker)
        if comm is not None and epoch.comm < 0:
            epoch.comm = self._by_pointer.get((speaker, int(comm, 16)), -1)
        connection = self._connection(epoch, tail, via)
        if connection is not None:
            if not connection.count:
                connection.src, connection.dst = int(src), int(dst)
                connection.src_gpu, connection.dst_gpu = (src_gpu or b"").decode(), (dst_gpu or b"").decode()
                self._describe(connection, direction, via, speaker, (file, number, raw))
            connection.channels |= 1 << int(channel)
            connection.count += 1

    def collnet(self, match: re.Match[bytes], tail: bytes, speaker: int, file: str, number: int, raw: bytes) -> None:
        """A line of a connection to a collective network, as matched by ``COLLNET_LINE``; the peer is -1."""
        channel, _, src, gpu, direction, via = match.groups()
        connection = self._connection(self._epoch(speaker), tail, via)
        if connection is not None:
            if not connection.count:
                connection.src, connection.src_gpu = int(src), (gpu or b"").decode()
                self._describe(connection, direction, via, speaker, (file, number, raw))
            connection.channels |= 1 << int(channel)
            connection.count += 1

    @property
    def full(self) -> bool:
        """Whether no further connection is kept."""
        return self._connection_count >= MAX_CONNECTIONS

    def _new_epoch(self, speaker: int) -> _Epoch:
        epoch = self._epochs[speaker] = _Epoch(-1)
        self._all_epochs.append(epoch)
        self.known[speaker] = epoch.connections
        return epoch

    def _epoch(self, speaker: int) -> _Epoch:
        return self._epochs.get(speaker) or self._new_epoch(speaker)

    def _connection(self, epoch: _Epoch, tail: bytes, via: bytes) -> Connection | None:
        """The connection of a line, new or not; ``None`` where there are too many to keep them apart."""
        connection = epoch.connections.get(tail)
        if connection is None:
            if len(epoch.connections) >= MAX_CONNECTIONS_PER_RANK or self.full:
                transport = parse_via(via.decode("utf-8", "backslashreplace")).transport
                self.dropped_lines[transport] = self.dropped_lines.get(transport, 0) + 1
                return None
            self._connection_count += 1
            connection = epoch.connections[tail] = Connection(-1, -1, -1, NO_VIA, "", -1, Source("", 0))
        return connection

    @staticmethod
    def _describe(
        connection: Connection, direction: bytes | None, via: bytes, speaker: int, where: tuple[str, int, bytes]
    ) -> None:
        connection.via = parse_via(via.decode("utf-8", "backslashreplace"))
        connection.direction = (direction or b"").decode()
        connection.speaker = speaker
        connection.source = _source(where)

    def call(self, raw: bytes, start: int, speaker: int, file: str, number: int) -> None:
        """A line that tells of a collective, its body from ``start``: kept is the last of each communicator."""
        at = raw.find(b" comm ", start)
        key = (speaker, raw[at + 6 : raw.find(b" ", at + 6)])
        calls = self._calls.get(key)
        if calls is None:
            if len(self._calls) >= MAX_CONNECTIONS:
                return
            calls = self._calls[key] = _Calls()
        calls.count += 1
        calls.raw = raw
        calls.start = start
        calls.file = file
        calls.number = number

    def job(self, parse_call: Callable[[bytes], Collective | None], speakers: Sequence[Speaker]) -> Job:
        """What is known so far. ``parse_call`` parses the body of a line that was given to ``call``."""
        of_process: dict[tuple[str, int], set[int]] = {}
        for communicator in self._communicators:
            for member in communicator.members.values():
                of_process.setdefault((member.host, member.pid), set()).add(communicator.index)
        connections: list[Connection] = []
        for epoch in self._all_epochs:
            for connection in epoch.connections.values():
                connection.comm = epoch.comm if epoch.comm >= 0 else epoch.before
                if connection.comm < 0:
                    # A proxy thread may speak with another device than the one that its process uses.
                    who = speakers[connection.speaker]
                    only = of_process.get((who.host, who.pid), set())
                    connection.comm = next(iter(only)) if len(only) == 1 else -1
                connections.append(connection)
        last_calls: list[LastCall] = []
        for (speaker, _), calls in self._calls.items():
            fact = parse_call(calls.raw[calls.start :])
            if fact is not None:
                index = self._by_pointer.get((speaker, fact.comm), -1)
                last_calls.append(
                    LastCall(speaker, index, fact, _source((calls.file, calls.number, calls.raw)), calls.count)
                )
        lines: dict[str, int] = {}
        for connection in connections:
            lines[connection.via.transport] = lines.get(connection.via.transport, 0) + connection.count
        for transport, count in self.dropped_lines.items():
            lines[transport] = lines.get(transport, 0) + count
        dropped = sum(self.dropped_lines.values())
        return Job(list(self._communicators), connections, last_calls, lines, dropped)


def _source(where: tuple[str, int, bytes]) -> Source:
    return Source(where[0], where[1], where[2][:MAX_TEXT].decode("utf-8", "backslashreplace"))
