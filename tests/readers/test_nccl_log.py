"""The reader as a whole: who says what, how often, what was not understood, and the map of the job."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.readers.nccl_log import NcclLog, NcclLogReader, read_nccl_logs, read_nccl_text
from atoll.readers.nccl_log_facts import (
    Collective,
    EnvSet,
    ErrorReturn,
    Fact,
    GdrSupport,
    Hcas,
    NetworkUsed,
    Speaker,
    Version,
)
from atoll.readers.nccl_log_job import MAX_CONNECTIONS_PER_RANK, Via, parse_via

# Two nodes of two GPUs, as NCCL 2.27 logs them.
JOB = """\
n0:41:41 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
n0:41:41 [0] NCCL INFO NCCL version 2.27.5+cuda12.9
n0:41:61 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
n0:42:62 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
n1:51:71 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.2<0>
n1:52:72 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.2<0>
n0:41:61 [0] NCCL INFO Using network IB
n0:42:62 [1] NCCL INFO Using network IB
n1:51:71 [0] NCCL INFO Using network IB
n1:52:72 [1] NCCL INFO Using network IB
n0:41:61 [0] NCCL INFO ncclCommInitRank comm 0xa0 rank 0 nranks 4 cudaDev 0 nvmlDev 2 busId 1a000 commId 0xc1 - Init START
n0:42:62 [1] NCCL INFO ncclCommInitRank comm 0xa1 rank 1 nranks 4 cudaDev 1 nvmlDev 3 busId 1b000 commId 0xc1 - Init START
n1:51:71 [0] NCCL INFO ncclCommInitRank comm 0xa2 rank 2 nranks 4 cudaDev 0 nvmlDev 0 busId 1a000 commId 0xc1 - Init START
n0:41:61 [0] NCCL INFO Channel 00/02 : 0 1 2 3
n0:41:61 [0] NCCL INFO Channel 00/0 : 0[2] -> 1[3] via P2P/CUMEM/read
n0:41:61 [0] NCCL INFO Channel 01/0 : 0[2] -> 1[3] via P2P/CUMEM/read
n0:42:62 [1] NCCL INFO Channel 00/0 : 1[3] -> 2[0] [send] via NET/IB/1(0)/GDRDMA
n0:42:62 [1] NCCL INFO Channel 01/0 : 1[3] -> 2[0] [send] via NET/IB/1(0)/GDRDMA
n1:51:71 [0] NCCL INFO Channel 00/0 : 1[3] -> 2[0] [receive] via NET/IB/0/GDRDMA
n0:41:61 [0] NCCL INFO ncclCommInitRank comm 0xa0 rank 0 nranks 4 cudaDev 0 nvmlDev 2 busId 1a000 commId 0xc1 - Init COMPLETE
n0:41:41 [0] NCCL INFO AllReduce: opCount 5 sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 op 0 root 0 comm 0xa0 [nranks=4] stream 0x9
n0:41:41 [0] NCCL INFO AllReduce: opCount 6 sendbuff 0x3 recvbuff 0x4 count 16 datatype 7 op 0 root 0 comm 0xa0 [nranks=4] stream 0x9

n1:51:99 [0] transport/net_ib.cc:94 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129
n1:51:99 [0] NCCL INFO transport/net.cc:412 -> 6 [Proxy Thread]
"""  # noqa: E501

RANKS = {"n0:41": 0, "n0:42": 1, "n1:51": 2, "n1:52": 3}


def said(log: NcclLog) -> dict[tuple[str, Fact], tuple[int, int]]:
    """What was said: how often, and by how many."""
    return {(item.shape, item.fact): (item.count, len(item.speakers)) for item in log.statements}


def test_a_sentence_is_one_statement_with_all_its_speakers() -> None:
    log = read_nccl_text(JOB, "job.log")
    ((_, statement),) = log.facts(NetworkUsed)
    assert statement.count == 4
    assert [log.speakers[index] for index in statement.speakers] == [
        Speaker("n0", 41, 0), Speaker("n0", 42, 1), Speaker("n1", 51, 0), Speaker("n1", 52, 1),
    ]  # fmt: skip
    assert log.hosts_of(statement) == ("n0", "n1")
    assert str(statement.source) == "job.log:7"
    assert statement.source.text == "n0:41:61 [0] NCCL INFO Using network IB"
    assert [[hca.name for hca in fact.hcas] for fact, _ in log.facts(Hcas)] == [["mlx5_0", "mlx5_1"], ["mlx5_0"]]
    assert log.versions == ("2.27.5",)
    assert log.coverage.fraction == 1.0
    assert (log.coverage.lines, log.coverage.nccl_lines) == (len(JOB.splitlines()), len(JOB.splitlines()) - 1)


def test_warnings_say_where_in_nccl_they_come_from() -> None:
    log = read_nccl_text(JOB)
    (warning,) = log.warnings()
    assert (warning.shape, warning.level, warning.location) == ("completion", "WARN", "transport/net_ib.cc:94")
    ((fact, error),) = log.facts(ErrorReturn)
    assert (fact.code, fact.thread, error.location) == (6, "Proxy Thread", "transport/net.cc:412")
    assert warning.order < error.order


def test_the_map_of_the_job() -> None:
    job = read_nccl_text(JOB, "job.log").job
    (comm,) = job.communicators
    assert (comm.name, comm.nranks, comm.hosts, comm.missing) == ("0xc1", 4, ("n0", "n1"), (3,))
    member = comm.members[1]
    assert (member.host, member.pid, member.cuda_dev, member.nvml_dev, member.gpu) == ("n0", 42, 1, 3, "0000:1b:00.0")
    assert [comm.members[rank].ready for rank in (0, 1, 2)] == [True, False, False]
    links = {(link.src, link.dst, link.direction): link for link in job.connections}
    assert links[0, 1, ""].via == Via("P2P", "CUMEM/read", text="P2P/CUMEM/read")
    assert (links[0, 1, ""].channel_count, links[0, 1, ""].count) == (2, 2)
    assert links[1, 2, "send"].via == Via("NET", "GDRDMA", "IB", 1, True, 0, "NET/IB/1(0)/GDRDMA")
    assert (links[1, 2, "send"].channel_count, links[1, 2, "send"].count) == (2, 2)
    assert {link.comm for link in job.connections} == {0}
    assert job.transport_lines == {"P2P": 2, "NET": 3}
    (last,) = job.last_calls
    assert (last.calls, last.comm, last.call) == (2, 0, Collective("AllReduce", 6, 16, 7, 0, 0, 0xA0, 4))
    assert last.source.line == 22


@pytest.mark.parametrize(
    ("text", "via"),
    [
        ("direct shared memory", Via("SHM", "direct shared memory", text="direct shared memory")),
        ("SHM/direct/direct", Via("SHM", "direct/direct", text="SHM/direct/direct")),
        ("P2P/direct pointer/read", Via("P2P", "direct pointer/read", text="P2P/direct pointer/read")),
        ("NET/Socket/0", Via("NET", "", "Socket", 0, text="NET/Socket/0")),
        ("NET/AWS Libfabric/7/GDRDMA/Shared", Via("NET", "GDRDMA/Shared", "AWS Libfabric", 7, True, -1,
                                                  "NET/AWS Libfabric/7/GDRDMA/Shared")),
        ("NET/IB/0(8)/GDRDMA(PCI)", Via("NET", "GDRDMA(PCI)", "IB", 0, True, 8, "NET/IB/0(8)/GDRDMA(PCI)")),
        ("COLLNET/SHARP/0/GDRDMA", Via("COLLNET", "GDRDMA", "SHARP", 0, True, -1, "COLLNET/SHARP/0/GDRDMA")),
    ],
)  # fmt: skip
def test_ways_between_ranks(text: str, via: Via) -> None:
    assert parse_via(text) == via


def test_channel_lines_of_every_release() -> None:
    lines = [
        "Ring 00 : 0[1a000] -> 1[1b000] via P2P/IPC",  # 2.4 to 2.7
        "Ring 00 : 7 -> 8 [send] via NET/IB/0",  # 2.4
        "Channel 00 : 0[1a000] -> 1[1b000] via direct shared memory",  # 2.8
        "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",  # 2.18
        "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",  # 2.16
        "Channel 02/0 : 1[c6000] -> 4[c1000] [receive] via NET/Socket/1 comm 0x95cdeb0 nRanks 08",  # RCCL
        "CollNet 00/0 : 3 [send] via COLLNET/SHARP/0/GDRDMA",
    ]
    log = read_nccl_text("\n".join("n0:1:2 [0] NCCL INFO " + line for line in lines))
    assert log.coverage.recognised == log.coverage.nccl_lines == len(lines)
    assert log.shape_lines == {"channel": len(lines)}
    assert log.job.transport_lines == {"P2P": 2, "NET": 2, "SHM": 2, "COLLNET": 1}
    assert [(link.src, link.dst) for link in log.job.connections][-2:] == [(1, 4), (3, -1)]


def test_communicators_without_an_id_are_told_apart() -> None:
    """Up to 2.15: no commId and no START; two groups of two at once, then all four."""

    def line(pid: int, dev: int, comm: int, rank: int, nranks: int) -> str:
        return (
            f"n0:{pid}:{pid} [{dev}] NCCL INFO comm {comm:#x} rank {rank} nranks {nranks} cudaDev {dev} busId "
            f"{0x1A000 + dev * 0x1000:x} - Init COMPLETE"
        )

    pairs = [line(10 + gpu, gpu, 0xA0 + gpu, gpu % 2, 2) for gpu in range(4)]
    everyone = [line(10 + gpu, gpu, 0xB0 + gpu, gpu, 4) for gpu in range(4)]
    links = [
        f"n0:{10 + gpu}:9 [{gpu}] NCCL INFO Channel 00 : {gpu}[{gpu}] -> {(gpu + 1) % 4}[1] via P2P/IPC"
        for gpu in range(4)
    ]
    job = read_nccl_text("\n".join([*pairs, *links, *everyone])).job
    assert [(comm.nranks, sorted(member.pid for member in comm.members.values())) for comm in job.communicators] == [
        (2, [10, 11]), (2, [12, 13]), (4, [10, 11, 12, 13]),
    ]  # fmt: skip
    assert [comm.missing for comm in job.communicators] == [(), (), ()]


def test_channel_lines_belong_to_the_communicator_of_their_time() -> None:
    old = [
        "n0:1:2 [0] NCCL INFO Channel 00 : 0[1a000] -> 1[1b000] via P2P/IPC",
        "n0:1:2 [0] NCCL INFO comm 0xa rank 0 nranks 2 cudaDev 0 busId 1a000 - Init COMPLETE",
        "n0:1:2 [0] NCCL INFO Channel 00 : 0[1a000] -> 3[1d000] via P2P/IPC",
        "n0:1:2 [0] NCCL INFO comm 0xb rank 0 nranks 4 cudaDev 0 busId 1a000 - Init COMPLETE",
    ]
    job = read_nccl_text("\n".join(old)).job
    assert [(link.dst, job.communicators[link.comm].nranks) for link in job.connections] == [(1, 2), (3, 4)]
    late = [*old, "n0:1:9 [0] NCCL INFO Channel 00 : 0[1a000] -> 2[1c000] via P2P/IPC"]
    assert read_nccl_text("\n".join(late)).job.connections[-1].comm == 1


def test_only_a_share_of_point_to_point_is_kept_and_the_rest_is_counted() -> None:
    peers = MAX_CONNECTIONS_PER_RANK + 500
    text = "\n".join(
        f"n0:1:2 [0] NCCL INFO Channel 00/1 : 0[0] -> {peer}[0] [send] via NET/IB/{peer % 8}/GDRDMA/Shared"
        for peer in range(1, peers + 1)
    )
    log = read_nccl_text(text)
    assert len(log.job.connections) == MAX_CONNECTIONS_PER_RANK
    assert log.job.connections_dropped == 500
    assert log.job.transport_lines == {"NET": peers}
    assert log.coverage.recognised == log.coverage.nccl_lines == peers


def test_sentences_with_pointers_are_counted_and_few_are_kept() -> None:
    text = "\n".join(f"n0:1:2 [0] NCCL INFO init.cc:7 Cuda Alloc Size 4 pointer {index:#x}" for index in range(1, 501))
    log = read_nccl_text(text)
    assert log.shape_lines == {"memory": 500}
    assert len(log.statements) == 3
    assert log.coverage.not_kept == 497
    assert log.coverage.fraction == 1.0


# --- launchers and damage: the same facts, whatever happened to the text

WRAPPERS = {
    "mpirun": lambda line, rank: f"[1,{rank}]<stdout>:{line}",
    "mpirun, stderr": lambda line, rank: f"[1,{rank}]<stderr>: {line}",
    "srun": lambda line, rank: f"{rank:2d}: {line}",
    "torchrun": lambda line, rank: f"[rank{rank}]:{line}",
    "torchrun tee": lambda line, rank: f"[default{rank}]:{line}",
    "ray": lambda line, rank: f"(Worker pid={900 + rank}, ip=10.0.0.{rank}) {line}",
    "kubernetes": lambda line, rank: f"2026-05-01T10:11:1{rank}.12345678{rank}Z {line}",
    "kubernetes, stream": lambda line, rank: f"2026-05-01T10:11:1{rank}.1Z stdout F {line}",
    "cloudwatch": lambda line, rank: f"  | 2026-05-01T10:11:12.074Z | {line}",
    "nccl time": lambda line, rank: f"[2026-05-01 10:11:1{rank}] {line}",
    "compose": lambda line, rank: f"worker-{rank}  | {line}",
    "ansi": lambda line, rank: f"\x1b[0;3{rank}m{line}\x1b[0m",
    "crlf": lambda line, rank: f"{line}\r",
    "indented": lambda line, rank: f"    {line}",
    "zeros": lambda line, rank: f"\0\0{line}" if rank == 0 else line,
}


def rank_of(line: str) -> int:
    return RANKS.get(":".join(line.split(":")[:2]), 0)


@pytest.mark.parametrize("name", WRAPPERS)
def test_launchers_change_nothing(name: str) -> None:
    wrap = WRAPPERS[name]
    lines = JOB.splitlines()
    plain, wrapped = read_nccl_text(JOB), read_nccl_text("\n".join(wrap(line, rank_of(line)) for line in lines))
    assert said(wrapped) == said(plain)
    assert wrapped.coverage.fraction == 1.0
    assert [(link.src, link.dst, link.via, link.count) for link in wrapped.job.connections] == [
        (link.src, link.dst, link.via, link.count) for link in plain.job.connections
    ]
    assert wrapped.job.communicators[0].members.keys() == plain.job.communicators[0].members.keys()


@pytest.mark.parametrize("name", ["mpirun", "srun", "torchrun"])
def test_launchers_tell_the_rank(name: str) -> None:
    text = "\n".join(WRAPPERS[name](line, rank_of(line)) for line in JOB.splitlines())
    speakers = read_nccl_text(text).speakers
    assert {speaker.launcher_rank for speaker in speakers} == {0, 1, 2, 3}


def test_the_time_of_a_statement_is_kept() -> None:
    text = "[2026-05-01 10:11:12] n0:1:2 [0] init.cc:9 NCCL WARN Cuda failure 'out of memory'"
    (statement,) = read_nccl_text(text).statements
    assert (statement.time, statement.location) == ("2026-05-01 10:11:12", "init.cc:9")


def test_rank_files_gzip_and_one_mixed_file_agree(tmp_path: Path) -> None:
    files: dict[str, list[str]] = {}
    for line in JOB.splitlines():
        files.setdefault(":".join(line.split(":")[:2]), []).append(line)
    paths = []
    for index, lines in enumerate(files.values()):
        path = tmp_path / f"rank{index}.gz"
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
        paths.append(path)
    mixed = tmp_path / "mixed"
    mixed.write_text(JOB)
    assert said(read_nccl_logs(paths)) == said(read_nccl_logs([mixed]))


def test_a_file_that_breaks_off_is_read_up_to_there_and_named(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress((JOB * 200).encode())[:-40])
    log = read_nccl_logs([path])
    assert "damaged gzip" in log.broken_off[str(path)]
    assert log.versions == ("2.27.5",)


def test_a_line_in_the_middle_of_another() -> None:
    """mpirun marks each write, so the tag and text of one rank stand inside the line of another."""
    text = (
        "[1,0]<stdout>:n0:41:61 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC[1,1]<stdout>:n0:42:62 [1] NCCL "
        "INFO Using network IB\n"
        "[1,0]<stdout>:         8     2    float    sum    -1[1,0]<stdout>:n0:41:41 [0] NCCL INFO Using network IB\n"
        "n0:41:61 [0] NCCL INFO NET/IB : No device found.n0:42:62 [1] NCCL INFO NET/IB : No device found.\n"
    )
    reader = NcclLogReader()
    reader.begin("x")
    others = reader.feed_block(text.encode().split(b"\n"))
    log = reader.result()
    assert log.coverage.nccl_lines == log.coverage.recognised == 5
    assert {statement.shape: statement.count for statement in log.statements} == {"network_used": 2, "no_ib_device": 2}
    assert [link.via.text for link in log.job.connections] == ["P2P/IPC"]
    assert (2, b"8     2    float    sum    -1") in others


def test_a_remainder_on_the_next_line_is_joined_on() -> None:
    text = (
        "n0:41:61 [0] NCCL INFO Using network IB\n"
        "n0:41:61 [0] NCCL INFO Setting affinn0:42:62 [1] NCCL INFO Using network IB\n"
        "ity for GPU 3 to 0-23\n"
    )
    log = read_nccl_text(text)
    assert (log.coverage.nccl_lines, log.coverage.recognised, log.coverage.mended) == (3, 3, 1)
    assert log.coverage.unknown == []
    assert [statement.shape for statement in log.statements] == ["network_used", "affinity"]


def test_what_is_not_understood_is_shown_and_counted() -> None:
    text = "\n".join(f"n0:1:2 [0] NCCL INFO Frobnicated {index} widgets at 0x7f{index}" for index in range(5))
    log = read_nccl_text(text, "x.log")
    (shape,) = log.coverage.unknown
    assert (shape.text, shape.count, str(shape.example)) == ("Frobnicated # widgets at #", 5, "x.log:1")
    assert log.coverage.fraction == 0.0


def test_lines_that_are_not_of_nccl_are_handed_on() -> None:
    text = b"Traceback (most recent call last):\nthe NCCL library\nn0:1:2 [0] NCCL INFO Using network IB\n# nThread 1\n"
    reader = NcclLogReader()
    reader.begin("x")
    assert reader.feed_block(text.split(b"\n")) == [
        (1, b"Traceback (most recent call last):"), (2, b"the NCCL library"), (4, b"# nThread 1"), (5, b""),
    ]  # fmt: skip


def test_a_version_line_has_no_head() -> None:
    log = read_nccl_text(" 3: NCCL version 2.4.8+cuda10.1\n")
    ((fact, statement),) = log.facts(Version)
    assert fact == Version("2.4.8", "cuda10.1")
    assert log.speakers[next(iter(statement.speakers))].launcher_rank == 3
    assert fact.number == (2, 4, 8)


def test_libraries_made_from_nccl() -> None:
    text = (
        "n0:1:2 [0] MCCL INFO MCCL version 2.16.5+maca2.33\n"
        "n0:1:2 [0] MCCL INFO NET/IB : Using [0]xscale_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n"
        "n0:1:2 [0] transport/net_ib.cc:9 MCCL WARN NET/IB : Got async event : port error\n"
        "n0:1:2 [0] MCCL INFO MCCL_IB_TC set by environment to 128.\n"
    )
    log = read_nccl_text(text)
    assert log.coverage.recognised == log.coverage.nccl_lines == 4
    assert [statement.shape for statement in log.statements] == ["version", "hcas", "ib_async_event", "env_set"]
    assert next(log.facts(Version))[0] == Version("2.16.5", "maca2.33", "MCCL")


def test_a_proxy_thread_of_another_device_is_of_the_same_process() -> None:
    text = (
        "n0:1:2 [1] NCCL INFO ncclCommInitRank comm 0x7 rank 1 nranks 2 cudaDev 1 busId 1b000 commId 0x9 - Init START\n"
        "n0:1:5 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0\n"
    )
    (link,) = read_nccl_text(text).job.connections
    assert link.comm == 0


def test_processes_that_say_the_very_same_are_two_members() -> None:
    """Addresses repeat between processes; here two groups of two on two nodes, each rank with the same comm."""
    text = "\n".join(
        f"n{node}:{pid}:9 [{rank}] NCCL INFO {line}"
        for node in (0, 1)
        for rank, pid in ((0, 10), (1, 11))
        for line in (
            f"comm 0x70{rank} rank {rank} nranks 2 cudaDev {rank} busId 1{rank}000 - Init COMPLETE",
            "AllReduce: opCount 4 sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 op 0 root 0 "
            f"comm 0x70{rank} [nranks=2] stream 0x9",
        )
    )
    log = read_nccl_text(text)
    assert [[member.host for member in comm.members.values()] for comm in log.job.communicators] == [
        ["n0"] * 2,
        ["n1"] * 2,
    ]
    assert sorted((log.speakers[call.speaker].host, call.calls) for call in log.job.last_calls) == [
        ("n0", 1), ("n0", 1), ("n1", 1), ("n1", 1),
    ]  # fmt: skip
    assert [statement.count for statement in log.of_shape("comm_state")] == [2, 2]


def test_a_prefix_of_an_unknown_launcher_is_learned() -> None:
    lines = [f"<<job 7 step {index}>> n0:1:2 [0] NCCL INFO Using network IB".encode() for index in range(1000)]
    reader = NcclLogReader()
    reader.begin("x")
    others = reader.feed_block(lines)
    log = reader.result()
    assert log.coverage.recognised == log.statements[0].count == 1000
    assert len(log.speakers) == 1
    assert 0 < len(others) < 300


def test_hosts_cut_out_of_a_public_log() -> None:
    log = read_nccl_text("node [3] NCCL INFO Using network IB\nNCCL INFO Using network Socket\n")
    assert log.coverage.recognised == 2
    assert log.speakers[0] == Speaker("node", 0, 3)


def test_blocks_may_be_cut_anywhere() -> None:
    lines = JOB.encode().splitlines()
    for size in (1, 3, 7):
        reader = NcclLogReader()
        reader.begin("job.log")
        for at in range(0, len(lines), size):
            reader.feed_block(lines[at : at + size])
        assert said(reader.result()) == said(read_nccl_text(JOB))
        assert reader.result().coverage == read_nccl_text(JOB, "job.log").coverage


PIECES = st.sampled_from(
    [
        "n0:1:2 [0] NCCL INFO ", "[1,5]<stdout>:", "NCCL WARN ", " -> ", "Channel 00/0 : ", "0[1a000]", " via ",
        "NET/IB/0", "\x1b[1m", "\0", "\r", "\n", "Using network ", "comm 0x7f rank 1 nranks 2 cudaDev 0",
        " - Init COMPLETE", "opCount ", "AllReduce: ", " comm ", "(nil)", "99999999999999999999999", "0x", "{}", "[0]",
        "Trees ", "é", "x" * 300, "GPU/", "%", "NET/IB : Using [0]mlx5_0:1/IB", "; OOB ", "RAS ", "init.cc:7 ",
        "Plugin: ", "2026-05-01T10:00:00Z ", "NCCL version 2.",
    ]
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=40))
def test_any_mix_of_pieces(pieces: list[str]) -> None:
    check_any("".join(pieces).encode())


@settings(max_examples=150)
@given(st.binary(max_size=600))
def test_any_bytes(data: bytes) -> None:
    check_any(data)


@settings(max_examples=100)
@given(st.data())
def test_any_damage_to_a_real_log(data: st.DataObject) -> None:
    text = bytearray(JOB.encode())
    for _ in range(data.draw(st.integers(1, 20))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=6))
    check_any(bytes(text))


def check_any(data: bytes) -> None:
    """Facts or a count of what is not understood, and the sums are right."""
    log = read_nccl_text(data)
    coverage = log.coverage
    assert coverage.lines == (data.removesuffix(b"\n").count(b"\n") + 1 if data else 0)
    assert 0 <= coverage.recognised <= coverage.nccl_lines
    assert coverage.recognised == sum(log.shape_lines.values())
    unknown = sum(shape.count for shape in coverage.unknown)
    assert unknown == coverage.nccl_lines - coverage.recognised
    for statement in log.statements:
        assert statement.count >= len(statement.speakers) > 0
        assert statement.source.line >= 1
        assert all(0 <= index < len(log.speakers) for index in statement.speakers)


def test_the_same_text_gives_the_same_log() -> None:
    assert read_nccl_text(JOB) == read_nccl_text(JOB)


def test_facts_by_class_only() -> None:
    log = read_nccl_text("n0:1:2 [0] NCCL INFO NCCL_DEBUG set by environment to INFO\n")
    assert [fact.name for fact, _ in log.facts(EnvSet)] == ["NCCL_DEBUG"]
    assert list(log.facts(GdrSupport)) == []
