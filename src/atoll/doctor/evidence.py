"""Everything that was read, in one place, with the maps that rules need: ranks to places, variables to values.

``Evidence`` holds facts and never judges. It is filled by ``gather`` (``gather.py``) or by hand in a test. What rules
ask again and again is computed once, when first asked for: how many nodes, how many ranks, where a rank is, which NIC
it sends through, what a variable was set to and by whom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from atoll.doctor.expectations import Machine
from atoll.doctor.finding import Subject
from atoll.doctor.variables import version_tuple
from atoll.readers.environment import EnvironmentVariable
from atoll.readers.flight_recorder import FlightRecorderDump
from atoll.readers.folder import Skipped
from atoll.readers.host_list import Host
from atoll.readers.ibstat import RdmaPort
from atoll.readers.inspector import InspectedCollective
from atoll.readers.kernel_log import KernelFact
from atoll.readers.lspci import AccessControl
from atoll.readers.nccl_log import Coverage, NcclLog
from atoll.readers.nccl_log_facts import (
    CommShape,
    EnvSet,
    Fact,
    HcaDetail,
    Hcas,
    NetworkUsed,
    Statement,
    bus_id_text,
)
from atoll.readers.nccl_log_job import Communicator, Connection, Job
from atoll.readers.nccl_tests import NcclTestRun
from atoll.readers.nvidia_smi import NvidiaSmi
from atoll.readers.pairwise import PairResult
from atoll.readers.ras import RasReport
from atoll.readers.rocm_topology import RocmTopology
from atoll.readers.slurm import SlurmFact
from atoll.readers.source import Source
from atoll.readers.step_times import StepTime
from atoll.readers.topology_matrix import TopologyMatrix
from atoll.readers.topology_xml import XmlTopology
from atoll.readers.torch_log import TorchFact

T = TypeVar("T")
F = TypeVar("F", bound=Fact)


class ReadFile(msgspec.Struct, frozen=True):
    """One file that was read: its kind in words and how many facts it gave."""

    name: str
    kind: str
    num_facts: int


class Setting(msgspec.Struct, frozen=True):
    """A variable's value and who set it; ``hosts`` are empty where the file does not say."""

    name: str
    value: str
    source: Source
    hosts: tuple[str, ...] = ()


def no_log() -> NcclLog:
    """The log of nobody."""
    return NcclLog([], Coverage(), [], [], Job(), {}, {})


class Evidence:
    """See the module's text. All lists may be empty; ``nccl`` is one log of all NCCL lines of all files."""

    def __init__(self) -> None:
        self.files: list[ReadFile] = []
        self.skipped: list[Skipped] = []
        self.nccl: NcclLog = no_log()
        self.runs: list[NcclTestRun] = []
        self.pairs: list[PairResult] = []
        self.matrices: list[TopologyMatrix] = []
        self.rocm: list[RocmTopology] = []
        self.topologies: list[XmlTopology] = []
        self.ports: list[RdmaPort] = []
        self.smi: list[NvidiaSmi] = []
        self.environment: list[EnvironmentVariable] = []
        self.inspected: list[InspectedCollective] = []
        self.ras: list[RasReport] = []
        self.torch: list[TorchFact] = []
        self.slurm: list[SlurmFact] = []
        self.kernel: list[KernelFact] = []
        self.dumps: list[FlightRecorderDump] = []
        self.hosts: list[Host] = []
        self.steps: list[StepTime] = []
        self.access_control: list[AccessControl] = []
        self._once: dict[str, Any] = {}

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """``compute()``, kept under ``name``: several rules ask for one analysis."""
        if name not in self._once:
            self._once[name] = compute()
        found: T = self._once[name]
        return found

    # --- asking

    def said(self, kind: type[F]) -> Iterator[tuple[F, Statement]]:
        """Every NCCL fact of a class with its statement."""
        return self.nccl.facts(kind)

    def torch_of(self, kind: type[T]) -> list[T]:
        return [fact for fact in self.torch if isinstance(fact, kind)]

    def kernel_of(self, kind: type[T]) -> list[T]:
        return [fact for fact in self.kernel if isinstance(fact, kind)]

    def slurm_of(self, kind: type[T]) -> list[T]:
        return [fact for fact in self.slurm if isinstance(fact, kind)]

    def settings(self, name: str) -> list[Setting]:
        """Every value of a variable, from NCCL's own lines and from environment files."""
        found = [
            Setting(name, fact.value, statement.source, self.nccl.hosts_of(statement))
            for fact, statement in self.said(EnvSet)
            if fact.name == name
        ]
        found += [
            Setting(name, variable.value, variable.source, (variable.host,) if variable.host else ())
            for variable in self.environment
            if variable.name == name
        ]
        return found

    def setting(self, name: str) -> Setting | None:
        """The first value of a variable that is not empty."""
        return next((found for found in self.settings(name) if found.value), None)

    def all_settings(self) -> list[EnvironmentVariable]:
        """All variables that anything says are set, as an environment."""
        said = [
            EnvironmentVariable(fact.name, fact.value, statement.source, "env", host)
            for fact, statement in self.said(EnvSet)
            for host in self.nccl.hosts_of(statement)
        ]
        return [*self.environment, *said]

    @cached_property
    def nccl_version(self) -> tuple[int, ...]:
        """The oldest NCCL version that anything names, empty when nothing does."""
        named = [
            *self.nccl.versions,
            *(dump.nccl_version for dump in self.dumps),
            *(run.nccl_version for run in self.runs),
        ]
        return min((version_tuple(text) for text in named if version_tuple(text)), default=())

    # --- how large the job is

    @cached_property
    def num_nodes(self) -> int | None:
        """Nodes of the job: as NCCL counts them, else the hosts of its largest communicator; ``None`` if unknown."""
        counted = [fact.nodes for fact, _ in self.said(CommShape)]
        if counted:
            return max(counted)
        largest = self.nccl.job.largest
        if largest is not None:
            hosts = len(largest.hosts)
            if hosts > 1 or not largest.missing:
                return hosts
        networked = any(connection.via.transport == "NET" for connection in self.nccl.job.connections)
        if networked:
            return max(2, len({speaker.host for speaker in self.nccl.speakers if speaker.host}))
        run_hosts = [len({rank.host for rank in run.ranks}) for run in self.runs if run.ranks]
        if run_hosts:
            return max(run_hosts)
        spoken = {speaker.host for speaker in self.nccl.speakers if speaker.host}
        if len(spoken) > 1:
            return len(spoken)
        dumped = {dump.host for dump in self.dumps if dump.host}
        return len(dumped) if len(dumped) > 1 else None

    @property
    def is_multi_node(self) -> bool:
        return self.num_nodes is not None and self.num_nodes > 1

    @cached_property
    def world_size(self) -> int | None:
        """Ranks of the job: the largest communicator, run or process group that anything names."""
        sizes = [communicator.nranks for communicator in self.nccl.job.communicators]
        sizes += [run.world_size for run in self.runs if run.world_size]
        sizes += [len(group.ranks) for dump in self.dumps for group in dump.groups]
        sizes += [max(group.ranks) + 1 for dump in self.dumps for group in dump.groups if group.ranks]
        sizes += [
            int(found.value) for found in self.settings("WORLD_SIZE") if found.value.isdigit() and len(found.value) < 8
        ]
        return max(sizes, default=None)

    # --- where things are

    @cached_property
    def world(self) -> Communicator | None:
        """The communicator of the whole job, whose ranks are the job's ranks."""
        return self.nccl.job.largest

    @cached_property
    def _rank_of_speaker(self) -> dict[int, int]:
        found: dict[int, int] = {}
        by_process: dict[tuple[str, int], set[int]] = {}
        if self.world is not None:
            for rank, member in self.world.members.items():
                found[member.speaker] = rank
                by_process.setdefault((member.host, member.pid), set()).add(rank)
        for index, speaker in enumerate(self.nccl.speakers):
            if speaker.launcher_rank is not None:
                found[index] = speaker.launcher_rank
            elif index not in found:
                # Proxy threads print the device of their process's context, not of their rank.
                ranks = by_process.get((speaker.host, speaker.pid), set())
                if len(ranks) == 1:
                    found[index] = next(iter(ranks))
        return found

    def rank_of(self, speaker: int) -> int | None:
        """The rank of an NCCL speaker, if anything tells."""
        return self._rank_of_speaker.get(speaker)

    def place(self, rank: int | None, *, host: str = "") -> Subject:
        """Every name of a rank."""
        if rank is None:
            return Subject(host=host)
        member = self.world.members.get(rank) if self.world is not None else None
        if member is not None:
            bus_id = bus_id_text(member.bus_id) if member.bus_id >= 0 else ""
            gpu = member.cuda_dev if member.cuda_dev >= 0 else None
            return Subject(rank=rank, host=member.host or host, gpu=gpu, bus_id=bus_id, nic=self.nic_of(rank))
        for run in self.runs:
            for listed in run.ranks:
                if listed.rank == rank:
                    return Subject(rank=rank, host=listed.host, gpu=listed.device, bus_id=listed.bus_id)
        return Subject(rank=rank, host=host or self.host_of_rank.get(rank, ""))

    def speakers_of(self, statement: Statement, most: int = 8) -> tuple[Subject, ...]:
        """The places of those who said a statement, at most ``most`` of them."""
        places: dict[Subject, None] = {}
        for index in statement.speakers:
            speaker = self.nccl.speakers[index]
            rank = self.rank_of(index)
            place = self.place(rank, host=speaker.host)
            if speaker.host and place.host and place.host != speaker.host:
                # The launcher's rank is of another communicator or attempt than the one whose map this is.
                place = Subject(rank=rank, host=speaker.host)
            places[place] = None
            if len(places) >= most:
                break
        return tuple(place for place in places if str(place))

    @cached_property
    def hca_names(self) -> dict[tuple[str, int], str]:
        """(host, NIC index) -> the adapter's name; host empty for any."""
        names: dict[tuple[str, int], str] = {}
        for fact, statement in self.said(Hcas):
            for hca in fact.hcas:
                layer = f"/{hca.link_layer}" if hca.link_layer else ""
                for host in (*self.nccl.hosts_of(statement), ""):
                    names.setdefault((host, hca.index), f"{hca.name}:{hca.port}{layer}" if hca.port >= 0 else hca.name)
        return names

    def nic_of(self, rank: int) -> str:
        """The NIC that a rank sends through, by name where the log lists them; empty when nothing tells."""
        return self._nic_of_rank.get(rank, "")

    @cached_property
    def _nic_of_rank(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for connection in self.network_connections:
            rank = connection.dst if connection.direction == "receive" else connection.src
            if rank not in found:
                host = self.nccl.speakers[connection.speaker].host
                name = f"{connection.via.network}/{connection.via.nic}"
                found[rank] = self.hca_names.get((host, connection.via.nic), name)
        return found

    @cached_property
    def network_connections(self) -> list[Connection]:
        """Connections of the whole job's communicator that go through a NIC."""
        index = self.world.index if self.world is not None else -1
        return [
            connection
            for connection in self.nccl.job.connections
            if connection.via.transport == "NET" and connection.comm in (index, -1)
        ]

    @cached_property
    def networks(self) -> tuple[str, ...]:
        """What carries data between nodes, as NCCL names it."""
        return tuple(dict.fromkeys(fact.network.strip() for fact, _ in self.said(NetworkUsed)))

    @cached_property
    def host_of_rank(self) -> dict[int, str]:
        """Rank -> host, from whatever tells."""
        found: dict[int, str] = {}
        for run in self.runs:
            for listed in run.ranks:
                found[listed.rank] = listed.host
        if self.world is not None:
            for rank, member in self.world.members.items():
                if member.host:
                    found[rank] = member.host
        for dump in self.dumps:
            if dump.rank is not None and dump.host:
                found[dump.rank] = dump.host
        for index, speaker in enumerate(self.nccl.speakers):
            spoken = self.rank_of(index)
            if spoken is not None and speaker.host:
                found.setdefault(spoken, speaker.host)
        if not found and self.hosts and all(host.slots for host in self.hosts):
            ranks = (host.name for host in self.hosts for _ in range(host.slots or 0))
            found.update(enumerate(ranks))
        return found

    @cached_property
    def gpu_name(self) -> str:
        """The name of the job's GPUs, if anything prints it."""
        named = [rank.gpu_name for run in self.runs for rank in run.ranks] + [
            gpu.name for smi in self.smi for gpu in smi.gpus
        ]
        return next((name for name in named if name), "")

    @cached_property
    def machine(self) -> Machine:
        """What is known of the machine. NICs are counted only where something lists them with their speed."""
        nics, rate, told = self._nics()
        return Machine(self.gpu_name, self.world_size, self.num_nodes, nics, rate, told, self.nccl_version[:2])

    def _nics(self) -> tuple[int | None, float | None, str]:
        active = [port for port in self.ports if port.state == "Active" and port.link_layer == "InfiniBand"]
        if active and all(port.rate_bytes_per_s for port in active):
            hosts = {port.host or port.source.file for port in active}
            best = max(port.rate_bytes_per_s or 0.0 for port in active)
            count = sum(1 for port in active if port.rate_bytes_per_s == best) // len(hosts)
            return count, best, "ibstat"
        details = {(fact.name, fact.port): fact.speed_mbit_per_s for fact, _ in self.said(HcaDetail)}
        speeds = [speed for speed in details.values() if speed > 0]
        if speeds:
            best_mbit = max(speeds)
            return sum(1 for speed in speeds if speed == best_mbit), best_mbit / 8 * 1e6, "NCCL's list of NICs"
        nets = {(net.bus_id, net.name): net.speed_bytes_per_s for file in self.topologies[:1] for net in file.nets}
        known = [speed for speed in nets.values() if speed]
        if known:
            return sum(1 for speed in known if speed == max(known)), max(known), "the topology file"
        return None, None, ""


def merge_sources(groups: Iterable[Iterable[Source]], most: int = 6) -> tuple[Source, ...]:
    """The first of each group in turn, then the second, until ``most``: a report should show every side."""
    columns = [list(group) for group in groups]
    merged: dict[Source, None] = {}
    for row in range(max((len(column) for column in columns), default=0)):
        for column in columns:
            if row < len(column):
                merged[column[row]] = None
    return tuple(merged)[:most]
