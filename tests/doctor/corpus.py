"""A synthetic corpus: healthy jobs, and for each rule a job with just its cause. Imports neither readers nor rules.

A ``Job`` is a list of (rank, line) pairs as NCCL writes them, without launcher prefixes, plus further files. It starts
healthy: written here for some NCCL version, or taken from a real log. An *injector* changes it; ``files`` renders it with a
launcher's prefixes. What NCCL prints differs by version (``body_*``), and the shapes here follow NCCL's sources and
published logs, not the code under test.
"""

# ruff: noqa: E501 (lines as programs print them)

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

VERSIONS = ("2.10.3", "2.19.3", "2.24.3", "2.30.3")
LAUNCHERS = ("mpirun", "srun", "torchrun", "none")


def version_number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@dataclass
class Speaker:
    host: str
    pid: int
    dev: int


@dataclass
class Job:
    """``lines`` are (rank, text); ``speakers`` place each rank. ``network`` is how channels name the network."""

    version: str
    launcher: str
    speakers: list[Speaker]
    lines: list[tuple[int, str]] = field(default_factory=list)
    extra: dict[str, bytes] = field(default_factory=dict)
    network: str = "IB"
    time: str = ""

    @property
    def number(self) -> tuple[int, ...]:
        return version_number(self.version)

    @property
    def ranks(self) -> range:
        return range(len(self.speakers))

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(speaker.host for speaker in self.speakers))

    def text(self, rank: int, body: str, level: str = "INFO", where: str = "") -> str:
        speaker = self.speakers[rank]
        stamp = f"[{self.time}] " if self.time and level == "WARN" and self.number >= (2, 24) else ""
        place = f"{where} " if where else ""
        return f"{stamp}{speaker.host}:{speaker.pid}:{speaker.pid + 40} [{speaker.dev}] {place}NCCL {level} {body}"

    def say(self, rank: int, body: str, level: str = "INFO", where: str = "", at: int | None = None) -> None:
        line = (rank, self.text(rank, body, level, where))
        self.lines.insert(len(self.lines) if at is None else at, line)

    def everybody(self, body: str, level: str = "INFO", where: str = "") -> None:
        for rank in self.ranks:
            self.say(rank, body, level, where)

    def early(self, rank: int, body: str) -> None:
        """Say something where the rank initialises: just before its first line about a network."""
        at = next((i for i, (who, text) in enumerate(self.lines) if who == rank and "NCCL INFO" in text), 0)
        self.say(rank, body, at=at + 1)

    def drop(self, pattern: str) -> None:
        self.lines = [(rank, text) for rank, text in self.lines if not re.search(pattern, text)]

    def replace(self, pattern: str, new: str) -> None:
        self.lines = [(rank, re.sub(pattern, new, text)) for rank, text in self.lines]

    def raw(self, rank: int, text: str) -> None:
        self.lines.append((rank, text))

    def files(self) -> dict[str, bytes]:
        prefix: Callable[[int], str] = {
            "mpirun": lambda rank: f"[1,{rank}]<stdout>:",
            "srun": lambda rank: f"{rank:>2}: ",
            "torchrun": lambda rank: f"[rank{rank}]:",
            "none": lambda rank: "",
        }[self.launcher]
        text = "\n".join(prefix(rank) + line for rank, line in self.lines)
        found = dict(self.extra)
        if self.lines:
            found["job.log"] = (text + "\n").encode()
        return found


# --- healthy jobs


def body_network(job: Job, rank: int, network: str) -> list[str]:
    colon = ":" if job.number >= (2, 24) else " :"
    eth = f"eth0:10.0.0.{1 + job.hosts.index(job.speakers[rank].host)}<0>"
    bodies = [f"Bootstrap{colon} Using {eth}"]
    if job.number >= (2, 22):
        bodies.append("NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.")
    else:
        bodies.append("NET/Plugin : No plugin found (libnccl-net.so), using internal implementation")
    if network == "IB":
        bodies.append(f"NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB {eth}")
    bodies.append(f"Using network {network}")
    return bodies


def body_state(job: Job, rank: int, nranks: int, state: str) -> str:
    speaker = job.speakers[rank]
    bus = f"{0x1A + 0x10 * speaker.dev:x}000"
    if job.number < (2, 16):
        return f"comm 0x7f{rank:04x} rank {rank} nranks {nranks} cudaDev {speaker.dev} busId {bus} - Init COMPLETE"
    name = "ncclCommInitRankConfig " if job.number >= (2, 24) else ""
    front = f"[Rank {rank}] " if job.number >= (2, 30) else ""
    return f"{front}{name}comm 0x7f{rank:04x} rank {rank} nranks {nranks} cudaDev {speaker.dev} nvmlDev {speaker.dev} busId {bus} commId 0xabcdef0123456789 - Init {state}"


def body_channel(job: Job, channel: int, src: int, dst: int, via: str, direction: str = "") -> str:
    def gpu(rank: int) -> str:
        dev = job.speakers[rank].dev
        return f"{0x1A + 0x10 * dev:x}000" if job.number < (2, 18) else str(dev)

    number = f"{channel:02d}" if job.number < (2, 12) else f"{channel:02d}/0"
    side = f" [{direction}]" if direction else ""
    return f"Channel {number} : {src}[{gpu(src)}] -> {dst}[{gpu(dst)}]{side} via {via}"


def healthy(version: str, launcher: str, nodes: int = 2, per_node: int = 4, network: str = "IB") -> Job:
    """A job that comes up: two nodes over InfiniBand with GPUDirect, or one node over NVLink."""
    speakers = [
        Speaker(f"gn{1 + rank // per_node:02d}", 1000 + rank, rank % per_node) for rank in range(nodes * per_node)
    ]
    job = Job(version, launcher, speakers, network=network)
    world = len(speakers)
    job.raw(0, f"NCCL version {version}+cuda12.2") if job.number < (2, 22) else job.say(
        0, f"NCCL version {version}+cuda12.4"
    )
    for rank in job.ranks:
        for body in body_network(job, rank, network):
            job.say(rank, body)
    if job.number >= (2, 16):
        for rank in job.ranks:
            job.say(rank, body_state(job, rank, world, "START"))
    if job.number >= (2, 19):
        for rank in job.ranks:
            job.say(
                rank,
                f"comm 0x7f{rank:04x} rank {rank} nRanks {world} nNodes {nodes} localRanks {per_node} localRank {rank % per_node} MNNVL 0",
            )
    p2p = "P2P/IPC" if job.number < (2, 18) else "P2P/CUMEM"
    for rank in job.ranks:
        following = (rank + 1) % world
        if speakers[rank].host == speakers[following].host:
            job.say(rank, body_channel(job, 0, rank, following, p2p))
        else:
            job.say(rank, body_channel(job, 0, rank, following, f"NET/{network}/0/GDRDMA", "send"))
            job.say(following, body_channel(job, 0, rank, following, f"NET/{network}/0/GDRDMA", "receive"))
    for rank in job.ranks:
        job.say(rank, "Connected all rings" if job.number < (2, 24) else "Connected all rings, use ring PXN 0 GDR 1")
    for rank in job.ranks:
        job.say(rank, body_state(job, rank, world, "COMPLETE"))
    return job


_REAL = re.compile(r"(?P<host>[\w.-]+):(?P<pid>\d+):(?P<tid>\d+) \[(?P<dev>\d+)\] (?:\S+ )?NCCL (?:INFO|WARN)")


def from_real(text: str, version: str, launcher: str, was: str) -> Job:
    """A healthy real log as a job: its prefixes and nccl-tests rows taken off, its version replaced."""
    places: dict[tuple[str, str], int] = {}
    speakers: dict[int, Speaker] = {}
    lines: list[tuple[int, str]] = []
    for raw in text.splitlines():
        tag = re.match(r"\[1,(\d+)\]<stdout>:", raw)
        line = raw[tag.end() :] if tag else raw
        match = _REAL.match(line)
        if match is None or "]<std" in line:
            continue
        rank = int(tag[1]) if tag else int(match["dev"])
        speakers.setdefault(rank, Speaker(match["host"], int(match["pid"]), int(match["dev"])))
        places.setdefault((match["host"], match["pid"]), rank)
        lines.append((rank, line.replace(was, version)))
    job = Job(version, launcher, [speakers[rank] for rank in sorted(speakers)], lines)
    job.network = "AWS Libfabric" if "AWS Libfabric" in text else "IB"
    return job


# --- further files


def ibstat(
    state: str = "Active", rate: int = 400, layer: str = "InfiniBand", adapter: str = "mlx5_0", sm: int = 1
) -> str:
    return (
        f"CA '{adapter}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tFirmware version: 28.39.1002\n\tPort 1:\n"
        f"\t\tState: {state}\n\t\tPhysical state: LinkUp\n\t\tRate: {rate}\n\t\tBase lid: 3\n\t\tLMC: 0\n\t\tSM lid: {sm}\n"
        f"\t\tCapability mask: 0x2651e848\n\t\tPort GUID: 0x946dae0300f9f8ea\n\t\tLink layer: {layer}\n"
    )


def topo(
    gpus: int,
    links: str,
    nic: Callable[[int, int], str] | None = None,
    change: dict[tuple[int, int], str] | None = None,
) -> str:
    """``nvidia-smi topo -m`` of ``gpus`` GPUs joined by ``links`` and, with ``nic``, as many NICs."""
    names = [f"GPU{i}" for i in range(gpus)] + ([f"NIC{i}" for i in range(gpus)] if nic else [])
    rows = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    for i in range(gpus):
        cells = [
            " X " if i == j else (change or {}).get((i, j), (change or {}).get((j, i), links)) for j in range(gpus)
        ]
        cells += [nic(i, j) for j in range(gpus)] if nic else []
        rows.append(f"GPU{i}\t" + "\t".join(cells) + "\t0-31\t0")
    if nic:
        for i in range(gpus):
            cells = [nic(j, i) for j in range(gpus)] + [" X " if i == j else "NODE" for j in range(gpus)]
            rows.append(f"NIC{i}\t" + "\t".join(cells) + "\t\t")
        rows += ["", "NIC Legend:", ""] + [f"  NIC{i}: mlx5_{i}" for i in range(gpus)]
    return "\n".join(rows) + "\n"


def near(gpu: int, nic: int) -> str:
    return "PIX" if gpu == nic else "NODE"


def bench_output(
    rows: list[tuple[int, float]], ranks: list[tuple[str, str]], collective: str = "all_reduce", world: int = 0
) -> str:
    """nccl-tests output with (size, busbw GB/s) rows; ``ranks`` are (host, GPU name)."""
    world = world or len(ranks)
    factor = 2 * (world - 1) / world if collective == "all_reduce" else (world - 1) / world
    lines = [
        f"# Collective test starting: {collective}_perf",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0",
        "#",
        "# Using devices",
    ]
    for rank, (host, gpu) in enumerate(ranks):
        lines.append(
            f"#  Rank {rank:2} Group  0 Pid {4000 + rank:6} on {host:>10} device {rank % 8:2} [0000:{0x1A + rank % 8:02x}:00] {gpu}"
        )
    lines += [
        "#",
        "#                                                              out-of-place                       in-place          ",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       ",
    ]
    for size, busbw in rows:
        algbw = busbw / factor
        time = size / algbw / 1e3
        half = f"  {time:7.1f}  {algbw:6.2f}  {busbw:6.2f}  {0:5}"
        lines.append(f"{size:12}  {size // 4:12}  {'float':>8}  {'sum':>6}  {-1:6}" + half + half)
    lines += [
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {sum(b for _, b in rows) / len(rows):.4f} ",
        "#",
    ]
    return "\n".join(lines) + "\n"


SIZES = [1 << 20, 16 << 20, 128 << 20, 512 << 20, 2 << 30, 8 << 30]


def pairs_csv(nodes: int, bandwidth: Callable[[int, int], float]) -> str:
    rows = ["node_a,node_b,avg_busbw,max_busbw"]
    rows += [
        f"n{a:02d},n{b:02d},{bandwidth(a, b):.2f},{bandwidth(a, b):.2f}"
        for a in range(nodes)
        for b in range(a + 1, nodes)
    ]
    return "\n".join(rows) + "\n"


def topology_xml(counts: tuple[int, int] = (12, 12)) -> str:
    def gpu(dev: int, bus: str, other: str, count: int) -> str:
        return (
            f'    <pci busid="{bus}" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">\n'
            f'      <gpu dev="{dev}" sm="80" rank="{dev}" gdr="1">\n'
            f'        <nvlink target="{other}" count="{count}" tclass="0x030200"/>\n      </gpu>\n    </pci>\n'
        )

    one, two = "0000:17:00.0", "0000:65:00.0"
    return (
        '<system version="1">\n  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel">\n'
        + gpu(0, one, two, counts[0]) + gpu(1, two, one, counts[1]) + "  </cpu>\n</system>\n"
    )  # fmt: skip


def recorder(rank: int, groups: dict[str, tuple[str, list[int]]], entries: list[dict[str, object]]) -> bytes:
    """A flight-recorder dump as JSON. An entry needs group, seq and op; the rest has defaults."""
    made = []
    for at, entry in enumerate(entries):
        group = str(entry["group"])
        seconds = {name: entry.get(name) for name in ("created", "started", "completed")}
        made.append({
            "record_id": at, "pg_id": 0, "process_group": [group, groups[group][0]], "collective_seq_id": entry["seq"],
            "p2p_seq_id": entry["seq"] if entry.get("p2p") else 0, "op_id": at, "profiling_name": f"nccl:{entry['op']}",
            "time_created_ns": int(float(str(seconds["created"] or at)) * 1e9), "input_sizes": [entry.get("sizes", [1024])],
            "input_dtypes": [entry.get("dtype", "Float")], "output_sizes": [entry.get("sizes", [1024])],
            "output_dtypes": [entry.get("dtype", "Float")], "state": entry.get("state", "scheduled"),
            "time_discovered_started_ns": None if seconds["started"] is None else int(float(str(seconds["started"])) * 1e9),
            "time_discovered_completed_ns": None if seconds["completed"] is None else int(float(str(seconds["completed"])) * 1e9),
            "retired": entry.get("state") == "completed", "timeout_ms": 600000, "is_p2p": bool(entry.get("p2p")),
        })  # fmt: skip
    config = {
        name: {"name": name, "desc": desc, "ranks": str(ranks)}
        for name, (desc, ranks) in groups.items()
        if rank in ranks
    }
    return json.dumps({"version": "2.9", "pg_config": config, "pg_status": {}, "entries": made}).encode()
