"""Real logs: at least 98 in 100 NCCL lines are understood, and the facts that the diagnosis of each needs are there."""

import gzip
from pathlib import Path

import pytest

from atoll.readers.nccl_log import NcclLog, read_nccl_logs, read_nccl_text
from atoll.readers.nccl_log_facts import (
    Completion,
    EnvSet,
    ErrorReturn,
    Hcas,
    NetworkUsed,
    NoIbDevice,
    NoTransport,
    SocketInterfaces,
    SystemBandwidth,
    TopologyFile,
)

NAMES = (
    "r01_a100pcie_nvl12_good",
    "r02_a100pcie_nvl_topofile_wrong",
    "r03_rtxa6000_socket_manybridges",
    "r05_aws_p5_efa_2.22.3",
    "r07_cori_v100_2.4.8_srun_prefix",
)


def read(cases: Path, start: str) -> NcclLog:
    (path,) = (cases / "nccl_logs").glob(start + "*")
    return read_nccl_logs([path])


@pytest.mark.parametrize("name", NAMES)
def test_recognition(cases: Path, name: str) -> None:
    log = read(cases, name)
    assert log.coverage.nccl_lines > 500
    assert log.coverage.fraction >= 0.98, log.coverage.unknown[:10]
    raw = (cases / "nccl_logs" / f"{name}.log").read_bytes()
    assert log.coverage.nccl_lines >= raw.count(b" NCCL INFO ") + raw.count(b" NCCL WARN ")


@pytest.mark.parametrize("name", NAMES)
def test_the_same_in_other_wrapping(cases: Path, name: str, tmp_path: Path) -> None:
    """gzip with Windows line ends; and a Kubernetes time before each line of the text."""
    raw = (cases / "nccl_logs" / f"{name}.log").read_bytes()
    plain = read(cases, name)
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(raw.replace(b"\n", b"\r\n")))
    stamped = b"\n".join(b"2026-05-01T10:00:00.%09dZ " % index + line for index, line in enumerate(raw.split(b"\n")))
    for other in (read_nccl_logs([path]), read_nccl_text(stamped)):
        assert (other.coverage.nccl_lines, other.coverage.recognised) == (
            plain.coverage.nccl_lines,
            plain.coverage.recognised,
        )
        assert other.shape_lines == plain.shape_lines
        assert len(other.job.connections) == len(plain.job.connections)


def test_r01_and_r02_differ_by_the_topology_file(cases: Path) -> None:
    good, wrong = read(cases, "r01"), read(cases, "r02")
    assert list(good.facts(TopologyFile)) == []
    assert {fact.path for fact, _ in wrong.facts(TopologyFile)} == {"/home/zx/nccl-tests/topo_fail.xml"}
    assert {fact.max_bw for log in (good, wrong) for fact, _ in log.facts(SystemBandwidth)} == {240.0}
    (good_comm,), (wrong_comm,) = good.job.communicators, wrong.job.communicators
    assert [member.gpu for member in good_comm.members.values()] == ["0000:17:00.0", "0000:65:00.0"]
    assert good_comm.hosts == wrong_comm.hosts == ("mew0",)
    most = max(link.channel_count for link in good.job.connections)
    assert most > max(link.channel_count for link in wrong.job.connections)


def test_r03_is_one_node_without_infiniband(cases: Path) -> None:
    log = read(cases, "r03")
    assert {fact.network for fact, _ in log.facts(NetworkUsed)} == {"Socket"}
    assert len(list(log.facts(NoIbDevice))) == 1
    (comm,) = log.job.communicators
    assert (comm.nranks, comm.hosts, comm.missing) == (4, ("lm2",), ())
    names = {interface.name for fact, _ in log.facts(SocketInterfaces) for interface in fact.interfaces}
    assert {"eno1np0", "br-3c276cd5dbc3", "veth268d912"} <= names
    assert {(fact.rank, fact.peer_rank) for fact, _ in log.facts(NoTransport)} == {(0, 3), (3, 2), (2, 1), (1, 0)}
    assert ("NCCL_ALGO", "MSCCL") in {(fact.name, fact.value) for fact, _ in log.facts(EnvSet)}


def test_r05_is_two_nodes_over_efa(cases: Path) -> None:
    log = read(cases, "r05")
    assert {fact.network for fact, _ in log.facts(NetworkUsed)} == {"AWS Libfabric"}
    (comm,) = log.job.communicators
    assert (comm.nranks, len(comm.members), len(comm.hosts)) == (16, 16, 2)
    assert {speaker.launcher_rank for speaker in log.speakers} == set(range(16))
    net = [link for link in log.job.connections if link.via.transport == "NET"]
    assert net
    assert all(link.via.gdr for link in net)
    assert all(comm.members[speaker_rank].host for speaker_rank in range(16))


def test_r07_retry_exceeded_of_rank_10_with_mixed_hcas(cases: Path) -> None:
    log = read(cases, "r07")
    ((fact, statement),) = log.facts(Completion)
    assert (fact.status, fact.vendor_err) == (12, 129)
    (speaker,) = (log.speakers[index] for index in statement.speakers)
    assert (speaker.launcher_rank, speaker.host) == (10, "cgpu09")
    assert {error.code for error, _ in log.facts(ErrorReturn)} == {2}
    layers = {hca.link_layer for hcas, _ in log.facts(Hcas) for hca in hcas.hcas}
    assert layers == {"IB", "RoCE"}
    (comm,) = log.job.communicators
    assert (comm.nranks, comm.missing, comm.hosts) == (16, (), ("cgpu08", "cgpu09"))
    assert log.versions == ("2.4.8",)
