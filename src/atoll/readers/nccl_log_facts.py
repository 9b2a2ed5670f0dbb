"""What the lines of an NCCL or RCCL log say, as typed facts.

A **fact** is the content of one line: its fields parsed, its wording gone, so that ``NET/IB : GPU Direct RDMA Disabled
for HCA 0 'mlx5_0'`` is the same ``GdrSupport`` whatever the NCCL version called it. Lines that matter to nobody's rule
but must not be mistaken for unknown ones are a ``Note`` with their fields in a dictionary.

A **statement** is a fact with its evidence: who said it, where it stands first, how often. A thousand ranks that say
the same sentence are one statement with a thousand speakers.

Numbers keep the unit of the log, named in the field; a bus id is an integer (``0x1a000`` is ``0000:1a:00.0``).
"""

from __future__ import annotations

import msgspec

from atoll.readers.source import Source


class Speaker(msgspec.Struct, frozen=True):
    """Who wrote a line: a process on a host, and the CUDA device of the thread (-1: not said, so any).

    ``launcher_rank`` is the rank by the launcher's label, which is the rank in the job, not in a communicator.
    """

    host: str
    pid: int
    dev: int
    launcher_rank: int | None = None


class Fact(msgspec.Struct, frozen=True):
    """Base of everything a line may say."""


class Note(Fact, frozen=True):
    """A line of a known shape that has no class of its own; its typed fields by name."""

    values: dict[str, int | float | str] = {}


class Statement(msgspec.Struct):
    """One sentence and everyone who said it.

    ``speakers`` index ``NcclLog.speakers``, in order of first appearance; ``count`` counts lines. ``location`` is the
    source file and line of NCCL where it is printed. ``time`` is the first line's time stamp as written, if any.
    ``order`` is the running number of the first line over all files read.
    """

    shape: str
    level: str
    fact: Fact
    source: Source
    order: int
    count: int = 1
    speakers: dict[int, None] = {}
    location: str = ""
    time: str = ""


class Interface(msgspec.Struct, frozen=True):
    """A network interface as NCCL lists it: ``[0]eth0:10.0.0.1<0>``."""

    name: str
    address: str = ""


class Hca(msgspec.Struct, frozen=True):
    """A network device as NCCL lists it: ``[0]mlx5_0:1/RoCE``; a merged one has several names joined by ``+``."""

    index: int
    name: str
    port: int = -1
    link_layer: str = ""


class Version(Fact, frozen=True):
    """``library`` is NCCL or RCCL; ``runtime`` is the CUDA or HIP version it was built for, with its name."""

    version: str
    runtime: str = ""
    library: str = "NCCL"

    @property
    def number(self) -> tuple[int, ...]:
        parts = [int(part) for part in self.version.replace("-", ".").split(".") if part.isdigit()]
        return tuple(parts[:3])


class DriverVersion(Fact, frozen=True):
    """The CUDA driver's version number: 12040 is 12.4."""

    version: int


class EnvSet(Fact, frozen=True):
    """A variable that NCCL found in its environment (or a plugin put there)."""

    name: str
    value: str
    origin: str = "environment"


class BootstrapInterfaces(Fact, frozen=True):
    """The interfaces of the bootstrap (out of band) network."""

    interfaces: tuple[Interface, ...]


class SocketInterfaces(Fact, frozen=True):
    """The interfaces that the socket transport would use for data."""

    interfaces: tuple[Interface, ...]


class NoInterface(Fact, frozen=True):
    """No interface matched, so bootstrap or sockets cannot start."""

    where: str


class Hcas(Fact, frozen=True):
    """The InfiniBand or RoCE devices in use."""

    hcas: tuple[Hca, ...]
    relaxed_ordering: bool = False
    sharp: bool = False
    oob: Interface | None = None


class HcaDetail(Fact, frozen=True):
    """One device with its speed in Mbit/s and place on PCI (2.24 and later)."""

    index: int
    name: str
    port: int
    link_layer: str
    speed_mbit_per_s: int
    pci_path: str
    provider: str = ""


class NoIbDevice(Fact, frozen=True):
    """``NET/IB : No device found.``"""


class LibraryMissing(Fact, frozen=True):
    """A shared library (libibverbs, libmlx5, libgdrapi, libnvidia-ml) cannot be opened."""

    library: str
    error: str = ""


class NetworkUsed(Fact, frozen=True):
    """The network that carries data between nodes: ``IB``, ``Socket``, ``AWS Libfabric``, ``IBext_v8`` ..."""

    network: str


class Plugin(Fact, frozen=True):
    """A plugin looked for. ``kind``: NET, COLLNET, TUNER, PROFILER, ENV, GIN, RMA. ``outcome``: missing,
    failed, loaded, symbol_missing, named, internal, closed."""

    kind: str
    outcome: str
    name: str = ""
    detail: str = ""


class OfiNote(Fact, frozen=True):
    """A line of the libfabric plugin (``NET/OFI``). ``topic`` names what it is about (see ``nccl_log_table_net``)."""

    topic: str
    text: str = ""
    provider: str = ""
    value: str = ""


class GdrSupport(Fact, frozen=True):
    """Whether a device can use GPUDirect RDMA at all."""

    enabled: bool
    hca: int = -1
    name: str = ""
    reason: str = ""
    network: str = "IB"


class GdrDistance(Fact, frozen=True):
    """Whether a GPU uses GPUDirect RDMA with a device, by their distance. ``gpu`` is a bus id, or a rank since 2.24."""

    enabled: bool
    gpu: str
    hca: str
    distance: int = -1
    threshold: int = -1


class NicDistances(Fact, frozen=True):
    """Up to 2.4: the distance of a CUDA device to each NIC, by PATH name."""

    dev: int
    distances: tuple[str, ...]
    network: str = "IB"


class CommInit(Fact, frozen=True):
    """A communicator of one rank begins or ends. ``state``: start, complete, abort, destroy, finalize, revoke.

    ``comm`` is the address in the process; ``comm_id`` is the same on all ranks (2.16 and later; 0 before).
    """

    comm: int
    rank: int
    nranks: int
    state: str
    cuda_dev: int = -1
    nvml_dev: int = -1
    bus_id: int = -1
    comm_id: int = 0
    function: str = ""
    parent: int = 0
    color: int = -1
    key: int = -1


class CommShape(Fact, frozen=True):
    """How a communicator lies over nodes, as a rank sees it."""

    comm: int
    rank: int
    nranks: int
    nodes: int
    local_ranks: int
    local_rank: int
    mnnvl: int = 0


class InitTimings(Fact, frozen=True):
    """Seconds spent in the phases of the initialisation of a communicator."""

    rank: int
    nranks: int
    total_s: float
    bootstrap_s: float = 0.0
    topo_s: float = 0.0
    connections_s: float = 0.0
    kernels_s: float = 0.0
    allgathers_s: float = 0.0
    graphs_s: float = 0.0
    function: str = ""


class BootstrapTimings(Fact, frozen=True):
    """Seconds spent in the bootstrap."""

    total_s: float
    create_s: float = 0.0
    send_s: float = 0.0
    recv_s: float = 0.0
    ring_s: float = 0.0
    delay_s: float = 0.0


class ChannelCounts(Fact, frozen=True):
    """How many channels a communicator has, by kind."""

    collective: int
    p2p: int
    p2p_per_peer: int
    collnet: int = -1
    nvls: int = -1


class ChannelRing(Fact, frozen=True):
    """The ring of one channel: the ranks in order, printed by rank 0."""

    channel: int
    of: int
    ranks: tuple[int, ...]


class GraphPattern(Fact, frozen=True):
    """A result of the topology search: ``bw_*`` in GB/s, the path types within and between nodes."""

    pattern: int
    channels: int
    bw_intra: float
    bw_inter: float
    type_intra: str
    type_inter: str
    cross_nic: int = 0
    same_channels: int = 0


class SystemBandwidth(Fact, frozen=True):
    """The best and total bandwidth that the topology search sees, in GB/s."""

    max_bw: float
    total_bw: float


class TopologyFile(Fact, frozen=True):
    """A topology file is loaded (or named in it)."""

    path: str


class Affinity(Fact, frozen=True):
    """The CPUs that a GPU's threads are bound to, as a mask or list."""

    gpu: int
    cpus: str


class NvlsSupport(Fact, frozen=True):
    """Whether NVLink SHARP multicast is there."""

    available: bool
    dev: int


class NvlsBindFailed(Fact, frozen=True):
    """Multicast memory could not be bound: the fabric manager or IMEX."""

    size_bytes: int
    error: int
    message: str
    consequence: str = ""


class Completion(Fact, frozen=True):
    """A work completion with an error. ``status`` 5 flush, 12 retry exceeded, 13 RNR retry exceeded ..."""

    status: int
    vendor_err: int = -1
    opcode: int = -1
    peer: str = ""
    hca: str = ""
    request: str = ""
    status_name: str = ""


class IbAsyncEvent(Fact, frozen=True):
    """An asynchronous event of the driver: port error, device fatal, LID change, QP fatal ..."""

    event: str
    device: str = ""
    fatal: bool = False


class ConnectionLost(Fact, frozen=True):
    """A peer closed its socket, or the socket failed."""

    peer: str
    error: str = ""
    call: str = ""


class ErrorReturn(Fact, frozen=True):
    """``file:line -> code``: an error on its way up. 1 CUDA, 2 system, 3 internal, 4 argument, 5 usage, 6 remote."""

    code: int
    thread: str = ""


class CudaFailure(Fact, frozen=True):
    """A CUDA (or HIP) call failed."""

    message: str
    error: int = -1


class SystemCallFailed(Fact, frozen=True):
    """A call to the operating system or to verbs failed (``retrying``: and will be tried again)."""

    call: str
    error: str = ""
    retrying: bool = False


class SharedMemoryFailed(Fact, frozen=True):
    """A segment in /dev/shm could not be made, extended or mapped."""

    path: str
    size_bytes: int = -1
    error: str = ""


class DuplicateGpu(Fact, frozen=True):
    """Two ranks on one GPU. The later wording names none of them."""

    rank: int = -1
    other_rank: int = -1
    bus_id: int = -1


class VersionMismatch(Fact, frozen=True):
    """Ranks or peers run different versions."""

    rank: int = -1
    version: str = ""
    other_rank: int = -1
    other_version: str = ""


class NoTransport(Fact, frozen=True):
    """Two ranks have no way to each other."""

    rank: int
    gpu: int
    peer_rank: int
    peer_gpu: int


class P2pDisabled(Fact, frozen=True):
    """Peer access between two GPUs is off though they are connected."""

    gpu: int
    peer_gpu: int
    nvlink: bool = False


class Collective(Fact, frozen=True):
    """A call of a collective: ``op_count`` counts them per communicator (hexadecimal in the log)."""

    collective: str
    op_count: int
    count: int
    datatype: int
    op: int
    root: int
    comm: int
    nranks: int = -1


class MismatchedCollective(Fact, frozen=True):
    """Sizes of send and receive differ: ranks call different things."""

    peer: str
    size_bytes: int
    other_size_bytes: int


class CheckFailed(Fact, frozen=True):
    """A call with a wrong argument."""

    function: str
    problem: str


class Complaint(Fact, frozen=True):
    """A sentence that begins with Failed, Could not, Unable, Cannot or Invalid and has no class of its own."""

    verb: str
    what: str


def bus_id_text(bus_id: int) -> str:
    """A bus id as NCCL prints it (hexadecimal, shifted) in the usual form.

    >>> bus_id_text(0x1A000)
    '0000:1a:00.0'
    """
    return f"{bus_id >> 20:04x}:{bus_id >> 12 & 0xFF:02x}:{bus_id >> 4 & 0xFF:02x}.{bus_id & 0xF:x}"
