"""What launchers and log shippers put before a line: whose line it is, and when it was written.

Each launcher that merges the output of many ranks marks every line with its origin:

=====================  =========================================  ==================================
launcher               looks like                                 says
=====================  =========================================  ==================================
Open MPI, PRRTE        ``[1,5]<stdout>:``, ``[prterun-h-1@1,5]``  job, rank, stream
``srun -l``            `` 5: ``                                   rank (task id)
torchrun               ``[rank3]:``, ``[default3]:``              rank, or local rank for a role
Ray                    ``(Worker pid=71, ip=10.0.0.2)``           pid, address
MPICH, Intel MPI       ``[5] ``                                   rank
Kubernetes, docker     ``2024-05-01T10:11:12.123456789Z``         time
docker compose, stern  ``worker-0  | ``, ``[pod/w-0/train] ``     host (container) name
syslog, journal        ``May  1 10:11:12 node1 python[41]: ``     time, host, pid
NCCL itself            ``[2024-05-01 10:11:12]``                  time (``NCCL_DEBUG_TIMESTAMP_FORMAT``)
=====================  =========================================  ==================================

Prefixes nest (a Kubernetes time before an ``srun`` label), so they are peeled until none is left.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

MAX_LAYERS: Final = 6


class LauncherPrefix(msgspec.Struct, frozen=True):
    """What the prefixes of one line say; ``None`` and ``""`` where they do not say it.

    ``rank`` is global; ``local_rank`` is torchrun's ``[default3]``. ``time`` is the text of the first time stamp.
    """

    launcher: str = ""
    rank: int | None = None
    local_rank: int | None = None
    stream: str = ""
    pid: int | None = None
    host: str = ""
    time: str = ""


NO_PREFIX: Final = LauncherPrefix()

_ISO = rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"

# An Open MPI tag may stand anywhere in a line: mpirun writes one for every write() of the rank.
MPI_TAG: Final = re.compile(rb"\[(?:[^\[\]\s]{0,80}@)?\d{1,5},(\d{1,7})\]<(stdout|stderr|stddiag)> ?:? ?")

ANSI: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")

_LAYER: Final = re.compile(
    rb"(?P<mpi>\[(?:[^\[\]\s]{0,80}@)?\d{1,5},(?P<mpi_rank>\d{1,7})\]<(?P<mpi_stream>std(?:out|err|diag))> ?:? ?)"
    rb"|(?P<torch>\[(?P<torch_kind>rank|default|trainer)(?P<torch_rank>\d{1,7})\]:? ?)"
    rb"|(?P<role>\[[a-z_]{2,40}(?P<role_rank>\d{1,7})\]:)"
    rb"|(?P<srun> {0,7}(?P<srun_rank>\d{1,7}): )"
    rb"|(?P<ray>\x28[^()\n]{0,120}?pid=(?P<ray_pid>\d{1,10})(?:, ip=(?P<ray_ip>[0-9a-fA-F.:]{2,45}))?\x29 )"
    rb"|(?P<time>(?:\[(?P<bracketed>" + _ISO + rb")\]|(?P<bare>" + _ISO + rb"))(?: std(?:out|err) [FP])?[ \t]{1,4})"
    rb"|(?P<syslog>(?P<syslog_time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?) (?P<syslog_host>[\w.-]{1,253})"
    rb" [\w./@-]{1,100}(?:\[(?P<syslog_pid>\d{1,10})\])?: )"
    rb"|(?P<pod>\[pod/(?P<pod_name>[^\]\s/]{1,253})(?:/[^\]\s]{1,253})?\] )"
    rb"|(?P<compose>(?P<compose_host>[A-Za-z0-9][\w.-]{0,120})[ \t]{1,40}\| )"
    rb"|(?P<pdsh>(?P<pdsh_host>[A-Za-z][\w.-]{0,120}): (?=[\w.-]{1,253}:\d{1,10}:\d{1,10} \[))"
    rb"|(?P<mpich>\[(?P<mpich_rank>\d{1,7})\] (?=[\w.-]{1,253}:\d{1,10}:\d{1,10} \[))"
)


def split_prefix(line: bytes) -> tuple[LauncherPrefix, int]:
    """The prefixes of ``line`` (without its line end) and the offset at which the rest begins."""
    match = _LAYER.match(line)
    if match is None:
        return NO_PREFIX, 0
    launcher, stream, host, time = "", "", "", ""
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    at = 0
    for _ in range(MAX_LAYERS):
        if match is None:
            break
        if match["mpi"] is not None:
            launcher, rank, stream = "mpirun", int(match["mpi_rank"]), match["mpi_stream"].decode()
        elif match["torch"] is not None:
            launcher = "torchrun"
            if match["torch_kind"] == b"rank":
                rank = int(match["torch_rank"])
            else:
                local_rank = int(match["torch_rank"])
        elif match["role"] is not None:
            launcher, local_rank = "torchrun", int(match["role_rank"])
        elif match["srun"] is not None:
            launcher, rank = "srun", int(match["srun_rank"])
        elif match["ray"] is not None:
            launcher, pid = "ray", int(match["ray_pid"])
            host = (match["ray_ip"] or b"").decode()
        elif match["time"] is not None:
            time = time or (match["bracketed"] or match["bare"]).decode()
        elif match["syslog"] is not None:
            launcher, host, time = (
                launcher or "syslog",
                match["syslog_host"].decode(),
                time or match["syslog_time"].decode(),
            )
            pid = int(match["syslog_pid"]) if match["syslog_pid"] is not None else pid
        elif match["pod"] is not None:
            launcher, host = launcher or "container", match["pod_name"].decode()
        elif match["compose"] is not None:
            launcher, host = launcher or "container", match["compose_host"].decode()
        elif match["pdsh"] is not None:
            launcher, host = launcher or "pdsh", match["pdsh_host"].decode()
        else:
            launcher, rank = "mpich", int(match["mpich_rank"])
        at = match.end()
        match = _LAYER.match(line, at)
    return LauncherPrefix(launcher, rank, local_rank, stream, pid, host, time), at
