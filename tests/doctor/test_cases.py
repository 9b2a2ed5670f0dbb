"""The documented verdict of every real case. Skipped, saying so, where the cases are absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.doctor.finding import Severity
from atoll.doctor.gather import gather
from atoll.doctor.verdict import Status, Verdict, diagnose


def verdict_on(*paths: Path) -> Verdict:
    return diagnose(gather(paths))


def roots(verdict: Verdict) -> list[str]:
    return list(dict.fromkeys(cause.root.rule for cause in verdict.causes))


HEALTHY = (
    "nccl_logs/r01_a100pcie_nvl12_good.log",
    "nccl_logs/r05_aws_p5_efa_2.22.3.log",
    "nccl_tests/sb_nccl_allreduce.log",
    "nccl_tests/sb_nccl_alltoall.log",
    "nccl_tests/xx_N2_G1_cnode2-001_cnode2-002.log",
    "collective_times/a100x8_1node_superbench_allgather.txt",
    "collective_times/a100x8_1node_superbench_allreduce.txt",
    "collective_times/a100x8_1node_superbench_alltoall.txt",
    "collective_times/aws_p5_2node_allreduce.txt",
    "collective_times/coreweave_h100_64gpu_allreduce.txt",
    "collective_times/issue309_h100_2node_16gpu_allreduce.txt",
    "collective_times/oci_gb200_128gpu_alltoall.txt",
    "collective_times/oci_gb200_64gpu_alltoall.txt",
    "kernel_log/gpud_kmsg_1.log",
    "topology/a01_mi210x4_showtopo.txt",
    "topology/t01_hopper8_nv18_10nic_ansi.txt",
    "topology/t10_a100x8_nv12.txt",
    "topology/t12_2gpu_nv2.txt",
    "topology/t13_2gpu_phb.txt",
    "topology_xml/aws_p4d-24xl-topo.xml",
    "topology_xml/aws_p5.48xl-topo.xml",
    "topology_xml/azure_ndv2_v100-topo.xml",
    "topology_xml/azure_ndv4_a100-topo.xml",
    "topology_xml/azure_ndv5_h100-topo.xml",
    "topology_xml/rccl_topo_4p3l.xml",
    "topology_xml/rccl_topo_8p_pcie.xml",
    "topology_xml/timez_topo_real.xml",
)


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy(name: str, cases: Path) -> None:
    verdict = verdict_on(cases / name)
    assert verdict.findings == (), verdict.summary
    assert verdict.status is Status.HEALTHY


def test_r02_is_the_topology_file(cases: Path) -> None:
    verdict = verdict_on(cases / "nccl_logs/r02_a100pcie_nvl_topofile_wrong.log")
    assert roots(verdict) == ["G11"]
    assert "topo_fail.xml" in verdict.causes[0].root.what
    assert any("NCCL_TOPO_FILE set by environment" in source.text for source in verdict.causes[0].root.sources)


def test_r02_with_the_file_itself_has_both_proofs(cases: Path, tmp_path: Path) -> None:
    for name in ("nccl_logs/r02_a100pcie_nvl_topofile_wrong.log", "topology_xml/timez_topo_fail.xml"):
        (tmp_path / Path(name).name).write_bytes((cases / name).read_bytes())
    verdict = verdict_on(tmp_path)
    assert roots(verdict) == ["G11"]
    assert len(verdict.causes) == 2


def test_r03_blames_nobody(cases: Path) -> None:
    """One node without InfiniBand, many bridges: none of that is a fault. What ended the run has no known cause."""
    verdict = verdict_on(cases / "nccl_logs/r03_rtxa6000_socket_manybridges.log")
    assert verdict.causes == ()
    assert verdict.also == ()
    assert {finding.rule for finding in verdict.unexplained} == {"U01"}
    assert verdict.status is Status.UNKNOWN
    harmless = {finding.rule for finding in verdict.harmless}
    assert "W01" in harmless
    assert all(finding.severity is Severity.HARMLESS for finding in verdict.harmless)


def test_r07_is_the_retry_error_of_rank_10_over_mixed_adapters(cases: Path) -> None:
    verdict = verdict_on(cases / "nccl_logs/r07_cori_v100_2.4.8_srun_prefix.log")
    assert roots(verdict) == ["N09", "N12"]
    first = verdict.causes[0]
    assert first.root.subjects[0].rank == 10
    assert first.root.subjects[0].host == "cgpu09"
    assert first.root.subjects[0].nic == "mlx5_3:1/RoCE"
    assert "P06" in {finding.rule for finding in first.cascade}, "the time limit is aftermath"
    assert {"mlx4_0", "mlx5_3"} <= set(
        verdict.causes[1].root.what.replace("(", " ").replace(")", " ").replace(",", " ").split()
    )
    assert [finding.rule for finding in verdict.also] == ["G01"]


@pytest.mark.parametrize("name", ["gpu_error_2nd", "lock_gil_1st"])
def test_the_culprits_of_the_labelled_hangs(name: str, cases: Path) -> None:
    verdict = verdict_on(cases / "flight_recorder" / name)
    assert roots(verdict) == ["H01"]
    assert {subject.rank for subject in verdict.causes[0].root.subjects} == {9, 14}


def test_both_hangs_in_one_folder_are_two_attempts(cases: Path) -> None:
    verdict = verdict_on(cases / "flight_recorder")
    assert roots(verdict) == ["H01"]
    assert [{s.rank for s in cause.root.subjects} for cause in verdict.causes] == [{9, 14}, {9, 14}]


def test_issue_290_looks_like_two_of_eight_nics(cases: Path) -> None:
    verdict = verdict_on(cases / "collective_times/issue290_h100_2node_16gpu_allreduce_badfabric.txt")
    assert roots(verdict) == ["N19"]
    assert "about 2 of 8 NICs" in verdict.causes[0].root.what


def test_the_17_nodes_have_one_bad_node_at_4_gpus_only(cases: Path) -> None:
    verdict = verdict_on(cases / "nccl_tests/xx_pairwise_17node_h100.csv")
    blamed = [f for f in verdict.findings if f.rule == "N20"]
    assert [(finding.subjects[0].host, finding.what.split(":")[0]) for finding in blamed] == [
        ("cnode2-003", "4 GPUs a node")
    ]


def test_a_pair_whose_bandwidth_falls_with_size(cases: Path) -> None:
    verdict = verdict_on(cases / "nccl_tests/xx_N2_G4_cnode2-001_cnode2-003.log")
    assert roots(verdict) == ["N18"]
    assert {finding.rule for finding in verdict.unexplained} <= {"N11"}


def test_the_pair_matrix_explains_the_falling_pair(cases: Path) -> None:
    verdict = verdict_on(cases / "nccl_tests")
    assert roots(verdict)[0] == "N20"
    assert {"N18", "N11"} <= {finding.rule for finding in verdict.causes[0].cascade}


def test_xid_119_is_the_gsp(cases: Path) -> None:
    verdict = verdict_on(cases / "kernel_log/gpud_xid119.log")
    assert roots(verdict) == ["X04"]
    assert verdict.causes[0].root.subjects[0].bus_id == "0000:9b:00"


def test_ports_that_wait_for_a_subnet_manager(cases: Path) -> None:
    assert roots(verdict_on(cases / "ib/nick_ibstat_initializing.txt")) == ["N14"]


def test_infiniband_and_ethernet_in_one_host_is_a_notice(cases: Path) -> None:
    verdict = verdict_on(cases / "ib/cori_ibstat_mixed.txt")
    assert roots(verdict) == ["N12"]
    assert verdict.causes[0].root.severity is Severity.NOTICE


def test_the_wrong_topology_file_is_caught(cases: Path) -> None:
    verdict = verdict_on(cases / "topology_xml/timez_topo_fail.xml")
    assert roots(verdict) == ["G11"]
    assert {subject.bus_id for subject in verdict.causes[0].root.subjects} == {"0000:17:00.0", "0000:65:00.0"}


@pytest.mark.parametrize("name", ["schedules/a2a2ll.xml", "collective_times/nvidia_published_busbw.csv", "SOURCES.md"])
def test_what_is_no_evidence_is_unusable(name: str, cases: Path) -> None:
    assert verdict_on(cases / name).status is Status.UNUSABLE
