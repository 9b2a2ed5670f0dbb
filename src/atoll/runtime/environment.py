"""Where this process stands in its world, read from the variables that launchers set.

The first family of variables that names a rank decides:

==========  ==========================================================  ===============================================
launcher    rank, size, local rank, local size                          source
==========  ==========================================================  ===============================================
Atoll       ATOLL_RANK, ATOLL_WORLD_SIZE, ATOLL_LOCAL_RANK,             ``atoll launch``
            ATOLL_LOCAL_WORLD_SIZE
torchrun    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE              PyTorch, "torchrun: Environment Variables"
Open MPI    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE       Open MPI, mpirun(1), "Exported Environment"
PMI         PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS        MPICH, "Hydra Process Manager" (Intel MPI too)
Slurm       SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID,          srun(1), "OUTPUT ENVIRONMENT VARIABLES"
            SLURM_STEP_TASKS_PER_NODE with SLURM_NODEID
==========  ==========================================================  ===============================================

Without any, the process is a world of one. ATOLL_SPARES is how many more processes than the size join, with the ranks
behind the last: spares that take the place of lost ranks.

(``srun --mpi=pmi2`` sets PMI's rank and size beside its own, which say more.)
``ATOLL_SECRET``, the same on all ranks, lets them use addresses outside of their host; ``ATOLL_LISTEN`` is the
address to listen at and to be reached by, where the one that faces the rendezvous is not the right one.
Ranks share a host where they share a boot of a kernel and a network namespace (no name is asked). ``ATOLL_HOST``
divides one by hand: ranks that give different names there count as on different hosts, so they use TCP, and the
hierarchical algorithm has them in different islands.
``ATOLL_RENDEZVOUS=host:port`` names the place where the ranks meet; rank 0 listens there while the world forms. Where
it is absent:

- All ranks on one host meet at an abstract Unix socket: its name is derived from the job and the user, the kernel
  tells each side the other's user, nothing is left on disk, and no port can collide.
- With more hosts and an address to be had (torchrun's MASTER_ADDR, the first host of Slurm's node list) they meet
  there. torchrun's agent holds MASTER_PORT itself, so the port is derived from the job: a short list of candidates
  below the range that kernels hand out (32768 and up by default, ip-sysctl ``ip_local_port_range``). Rank 0 takes the
  first free one; the others try them in turn, and the handshake tells a stranger's port from ours.
- Otherwise ``SpecError`` says what to set.

The job, on one host, is named by the process that started the ranks: the nearest ancestor that was not itself given
a rank, by process id and start time. That holds for every launcher, also with shells in between.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final

from atoll.errors import SpecError
from atoll.units import parse_duration

# Ten times what a loaded host keeps a runnable thread waiting, and far below what a collective's deadline is.
DEFAULT_HEARTBEAT_S: Final = 5.0
# Candidate ports are taken from here: above the well-known services, below the ephemeral range.
_FIRST_PORT: Final = 10240
_END_PORT: Final = 32768
_CANDIDATES: Final = 8
MAX_HOST_LABEL: Final = 64
# A batch script or an interactive shell is a step too, with step ids from here up (slurm.h), but no task of the job.
_FIRST_SPECIAL_STEP: Final = 0xFFFFFFF0


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks meet: an abstract Unix socket ``unix``, or ``host`` with candidate ``ports``."""

    unix: str = ""
    host: str = ""
    ports: tuple[int, ...] = ()

    def describe(self) -> str:
        """``unix:@name``, ``node1:29400``, ``node1, one of the ports 10300, 10877``."""
        if self.unix:
            return f"unix:@{self.unix}"
        if len(self.ports) == 1:
            return f"[{self.host}]:{self.ports[0]}" if ":" in self.host else f"{self.host}:{self.ports[0]}"
        return f"{self.host}, one of the ports {', '.join(map(str, self.ports))}"


@dataclass(frozen=True)
class Placement:
    """One process's place in its world, before anyone else is known.

    ``launcher`` says where it was read; ``job`` tells this start of this job from others (empty: the rendezvous alone
    does); ``rendezvous`` is None in a world of one; ``secret`` is ATOLL_SECRET, None when unset; ``listen`` is the
    address to listen at, empty for the one that faces the rendezvous; ``host`` is ATOLL_HOST. The last ``spares`` ranks
    of the world are spares: they join, and wait until they are needed.
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    launcher: str
    rendezvous: Rendezvous | None
    job: str = ""
    secret: bytes | None = field(default=None, repr=False)
    listen: str = ""
    spares: int = 0
    host: str = ""


@dataclass(frozen=True)
class _Family:
    launcher: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


_FAMILIES: Final = (
    _Family("atoll launch", "ATOLL_RANK", "ATOLL_WORLD_SIZE", "ATOLL_LOCAL_RANK", "ATOLL_LOCAL_WORLD_SIZE"),
    _Family("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Family("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    _Family("PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _Family("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
)  # fmt: skip


def read_placement(environ: Mapping[str, str]) -> Placement:
    """This process's place in its world. ``SpecError`` names the variable that is wrong or missing."""
    secret = environ.get("ATOLL_SECRET", "").encode() or None
    listen = environ.get("ATOLL_LISTEN", "")
    host = _host_label(environ)
    family = _family(environ)
    if family is None:
        return Placement(0, 1, 0, 1, "none", None, secret=secret, listen=listen, host=host)
    spares = _integer("ATOLL_SPARES", environ) if environ.get("ATOLL_SPARES") else 0
    rank, world_size = _rank_and_size(family.rank, family.world_size, environ, spares)
    local_rank = local_world_size = None
    if family.launcher == "Slurm":
        local_world_size = _slurm_local_world_size(environ)
        if environ.get(family.local_rank):
            local_rank = _integer(family.local_rank, environ)
    elif environ.get(family.local_rank) and environ.get(family.local_world_size):
        local_rank, local_world_size = _rank_and_size(family.local_rank, family.local_world_size, environ, spares)
        if local_world_size > world_size:
            raise SpecError(
                f"{family.local_world_size}={local_world_size} is larger than {family.world_size}={world_size}"
            )
    rendezvous, job = None, ""
    if world_size > 1:
        rendezvous, job = _meeting_place(family, environ, world_size, local_world_size)
    return Placement(
        rank, world_size, local_rank, local_world_size, family.launcher, rendezvous, job, secret, listen, spares, host
    )  # fmt: skip


def read_heartbeat(environ: Mapping[str, str]) -> float:
    """After how many seconds of silence a rank is given up: ATOLL_HEARTBEAT_TIMEOUT, such as ``2s`` or ``500ms``."""
    text = environ.get("ATOLL_HEARTBEAT_TIMEOUT", "")
    return parse_duration(text, "ATOLL_HEARTBEAT_TIMEOUT") if text else DEFAULT_HEARTBEAT_S


def parse_rendezvous(text: str, variable: str = "ATOLL_RENDEZVOUS") -> Rendezvous:
    """``host:port``, ``[ipv6]:port`` or ``unix:@name``."""
    if text.startswith("unix:"):
        name = text.removeprefix("unix:").removeprefix("@")
        # sun_path has 108 bytes (unix(7)), one of which is the leading zero of the abstract namespace.
        if not text.startswith("unix:@") or not 0 < len(name.encode()) <= 107:
            raise SpecError(f"{variable}: expected unix:@name with a name of 1 to 107 bytes, got {text!r}")
        return Rendezvous(unix=name)
    match = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:\[\]\s]+)):([0-9]{1,5})", text.strip())
    if match is None or not 0 < int(match[3]) < 65536:
        raise SpecError(f"{variable}: expected host:port such as node1:20000, or [ipv6]:port, got {text!r}")
    return Rendezvous(host=match[1] or match[2], ports=(int(match[3]),))


def is_loopback_name(host: str) -> bool:
    """Whether ``host`` is, as written, an address of this host alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _family(environ: Mapping[str, str]) -> _Family | None:
    """The variables that decide."""
    present = [family for family in _FAMILIES if _is_set(family, environ)]
    if not present:
        return None
    first, last = present[0], present[-1]
    same = all(environ.get(getattr(first, f)) == environ.get(getattr(last, f)) for f in ("rank", "world_size"))
    if first.launcher == "PMI" and last.launcher == "Slurm" and same and not environ.get(first.local_rank):
        return last
    return first


def _is_set(family: _Family, environ: Mapping[str, str]) -> bool:
    if not environ.get(family.rank):
        return False
    if family.launcher == "Slurm":
        # Inside a batch script or an allocated shell there are Slurm variables, but no srun made this process a task.
        step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
        return bool(environ.get(family.world_size)) and step.isdigit() and int(step) < _FIRST_SPECIAL_STEP
    return True


def _host_label(environ: Mapping[str, str]) -> str:
    label = environ.get("ATOLL_HOST", "")
    if len(label) > MAX_HOST_LABEL:
        raise SpecError(f"ATOLL_HOST: expected a name of at most {MAX_HOST_LABEL} characters, got {len(label)}")
    return label


def _integer(variable: str, environ: Mapping[str, str]) -> int:
    text = environ.get(variable, "")
    # A length limit before int(): no rank has ten digits.
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        raise SpecError(f"{variable}: expected a whole number from 0 up, got {text!r}")
    return int(text)


def _rank_and_size(rank_variable: str, size_variable: str, environ: Mapping[str, str], spares: int) -> tuple[int, int]:
    """Both count the spares, which the variable of the size does not."""
    if not environ.get(size_variable):
        raise SpecError(f"{rank_variable} is set but {size_variable} is not: set both, or neither")
    rank, size = _integer(rank_variable, environ), _integer(size_variable, environ)
    if size < 1 or rank >= size + spares:
        more = f" and ATOLL_SPARES={spares}" if spares else ""
        raise SpecError(f"{rank_variable}={rank} does not fit {size_variable}={size}{more}: expected 0 <= rank < size")
    return rank, size + spares


def _meeting_place(
    family: _Family, environ: Mapping[str, str], world_size: int, local_world_size: int | None
) -> tuple[Rendezvous, str]:
    explicit = environ.get("ATOLL_RENDEZVOUS")
    if explicit:
        return parse_rendezvous(explicit), ""
    job = _job(family, environ)
    if family.launcher != "atoll launch" and local_world_size == world_size:
        name = _digest(f"{job}\n{_started_by(family.rank)}\n{os.getuid()}").hex()[:32]
        return Rendezvous(unix=f"atoll-{name}"), job
    host = ""
    if family.launcher == "torchrun":
        host = environ.get("MASTER_ADDR", "")
    elif family.launcher == "Slurm":
        host = first_host(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", ""))
    if not host:
        looked = {"torchrun": " and MASTER_ADDR", "Slurm": " and SLURM_STEP_NODELIST"}.get(family.launcher, "")
        raise SpecError(
            f"no meeting place for the {world_size} ranks: looked for ATOLL_RENDEZVOUS{looked} (the rank came from "
            f"{family.rank}, set by {family.launcher}). Set ATOLL_RENDEZVOUS=host:port on every rank, host being "
            "where rank 0 runs and port free there and below 32768, and the same ATOLL_SECRET unless all is loopback"
        )
    return Rendezvous(host=host, ports=_derived_ports(job)), job


def _job(family: _Family, environ: Mapping[str, str]) -> str:
    names = {
        "torchrun": ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        "Open MPI": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        "Slurm": ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID"),
    }.get(family.launcher, ())
    return "\n".join((family.launcher, *(environ.get(name, "") for name in names)))


def _derived_ports(job: str) -> tuple[int, ...]:
    digest = _digest(job)
    width = _END_PORT - _FIRST_PORT
    ports = (_FIRST_PORT + int.from_bytes(digest[4 * i : 4 * i + 4], "big") % width for i in range(_CANDIDATES))
    return tuple(dict.fromkeys(ports))


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=4 * _CANDIDATES).digest()


def _started_by(rank_variable: str) -> str:
    """The nearest ancestor that was not given a rank, as ``pid:start time``."""
    pid = os.getppid()
    while True:
        try:
            # The command name, in parentheses, may hold anything; the parent is field 4, the start time field 22.
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            parent, start_time = int(fields[1]), fields[19]
            given = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (OSError, IndexError, ValueError):
            # Not ours to read, so of another user: a resource manager's daemon.
            return str(pid)
        if pid <= 1 or not any(entry.startswith(f"{rank_variable}=".encode()) for entry in given):
            return f"{pid}:{start_time}"
        pid = parent


def _slurm_local_world_size(environ: Mapping[str, str]) -> int | None:
    """From ``SLURM_STEP_TASKS_PER_NODE``, such as ``4(x2),3``: so many tasks on each node, in order."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,6})\))?", part.strip())
        if match is None:
            return None
        counts += [int(match[1])] * int(match[2] or 1)
    if len(counts) == 1:
        return counts[0]
    node = environ.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else None


def first_host(node_list: str) -> str:
    """The first host of Slurm's node list: ``node[03-05,9],gpu1`` starts with ``node03``; empty for an empty list."""
    match = re.match(r"([^\[\],\s]+)?(?:\[([^\],-]+)[^\]]*\])?([^\[\],\s]*)", node_list.strip())
    return "".join(part or "" for part in match.groups()) if match else ""
