"""Every rule on its own case, on every healthy case and on every other rule's case: the whole confusion matrix.

Half of the corpus is synthetic (four NCCL versions, four launchers), half is made by changing real logs; the latter is
skipped, saying so, where the real inputs are absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atoll.doctor.catalogue import RULES
from atoll.doctor.finding import Severity
from atoll.doctor.gather import gather
from atoll.doctor.verdict import Status, Verdict, diagnose
from doctor.corpus import (
    LAUNCHERS,
    SIZES,
    VERSIONS,
    Job,
    bench_output,
    from_real,
    healthy,
    ibstat,
    near,
    pairs_csv,
    topo,
    topology_xml,
)
from doctor.corpus_cases import CASES, H100, done, dumps


def verdict_of(job: Job, folder: Path) -> Verdict:
    for name, content in job.files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return diagnose(gather([folder]))


def fired(verdict: Verdict) -> set[str]:
    return {finding.rule for finding in verdict.findings}


def styles(rule: str) -> Iterator[tuple[str, str]]:
    """Versions and launchers in turn, so that each case is seen in at least three versions and two launchers."""
    for number, version in enumerate(CASES[rule].versions()):
        yield version, LAUNCHERS[(number + len(rule) + ord(rule[-1])) % len(LAUNCHERS)]


def base_of(rule: str, version: str, launcher: str) -> Job:
    return healthy(version, launcher, nodes=1) if CASES[rule].base == "single" else healthy(version, launcher)


def check(rule: str, verdict: Verdict, label: str) -> None:
    expected = {rule, *CASES[rule].companions}
    assert rule in fired(verdict), f"{label}: {rule} is silent on its own case; fired: {sorted(fired(verdict))}"
    wrong = fired(verdict) - expected
    assert not wrong, f"{label}: {sorted(wrong)} fired on the case of {rule}: " + "; ".join(
        f.what for f in verdict.findings if f.rule in wrong
    )


def test_every_rule_with_a_check_has_a_case() -> None:
    judged = {rule.id for rule in RULES if rule.check is not None and rule.severity is not Severity.HARMLESS}
    assert judged == set(CASES)


@pytest.mark.parametrize("rule", sorted(CASES))
def test_a_rule_fires_on_its_case_only(rule: str, tmp_path: Path) -> None:
    seen: set[tuple[str, str]] = set()
    for version, launcher in styles(rule):
        job = base_of(rule, version, launcher)
        CASES[rule].inject(job)
        check(rule, verdict_of(job, tmp_path / f"{version}-{launcher}"), f"NCCL {version}, {launcher}")
        seen.add((version, launcher))
    assert len({version for version, _ in seen}) >= 3
    assert len({launcher for _, launcher in seen}) >= 2


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_no_rule_fires_on_a_healthy_job(nodes: int, version: str, launcher: str, tmp_path: Path) -> None:
    verdict = verdict_of(healthy(version, launcher, nodes), tmp_path)
    assert verdict.status is Status.HEALTHY, verdict.summary
    assert not verdict.findings


def test_causes_keep_their_roles_in_company(tmp_path: Path) -> None:
    """Two causes in one folder: the fatal one is the root, what follows hangs below it, the slow one is told beside."""
    job = healthy("2.19.3", "srun")
    CASES["X01"].inject(job)
    CASES["P06"].inject(job)
    CASES["H12"].inject(job)
    CASES["G01"].inject(job)
    verdict = verdict_of(job, tmp_path)
    assert [cause.root.rule for cause in verdict.causes] == ["X01"]
    assert {finding.rule for finding in verdict.causes[0].cascade} == {"P06", "H12"}
    assert {finding.rule for finding in verdict.also} == {"G01"}


REAL = {
    "multi": ("nccl_logs/r05_aws_p5_efa_2.22.3.log", "2.22.3"),
    "single": ("nccl_logs/r01_a100pcie_nvl12_good.log", "2.27.7"),
}
NOT_ON_REAL = {
    "N12": "the fabric is EFA, which lists no InfiniBand adapters",
    "N17": "the log shows one side of each connection",
    "L01": "ranks and hosts are those of the synthetic job",
    "G02": "the versions of the window print other shapes",
    "G12": "GPUs are named by rank or bus id as the synthetic job has them",
}


@pytest.mark.parametrize("rule", sorted(set(CASES) - set(NOT_ON_REAL)))
def test_a_rule_fires_on_a_changed_real_log_only(rule: str, cases: Path, tmp_path: Path) -> None:
    case = CASES[rule]
    name, was = REAL["single" if case.base == "single" else "multi"]
    text = (cases / name).read_text(errors="replace")
    for version, launcher in list(styles(rule))[-3:]:
        job = from_real(text, version, launcher, was)
        case.inject(job)
        check(rule, verdict_of(job, tmp_path / f"{version}-{launcher}"), f"{name} as NCCL {version}, {launcher}")


@pytest.mark.parametrize("kind", sorted(REAL))
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_no_rule_fires_on_an_unchanged_real_log(kind: str, launcher: str, cases: Path, tmp_path: Path) -> None:
    name, was = REAL[kind]
    job = from_real((cases / name).read_text(errors="replace"), was, launcher, was)
    verdict = verdict_of(job, tmp_path)
    assert not verdict.findings, verdict.summary
    assert verdict.status is Status.HEALTHY


def one_node_without_infiniband(job: Job) -> None:
    """Everything that N02, N04, N05 and G01 look at, where none of it matters."""
    job.drop(r"NET/IB")
    job.replace(r"Using network .*", "Using network Socket")
    for rank in job.ranks:
        job.early(
            rank, "NET/Socket : Using [0]eno1:10.0.0.1<0> [1]br-3c276cd5dbc3:172.28.0.1<0> [2]docker0:172.17.0.1<0>"
        )
        job.early(rank, "NET/IB : No device found.")
        job.early(rank, "Failed to open libibverbs.so[.1]")
        job.early(rank, "NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eno1'")
        job.early(rank, "NCCL_IB_DISABLE set by environment to 1")
        job.early(rank, "NCCL_TOPO_FILE set by environment to /etc/topo.xml")


def cloud_without_rdma(job: Job) -> None:
    """Nodes that have nothing but Ethernet: no adapter anywhere is not a fault."""
    one_node_without_infiniband(job)
    job.drop(r"NET/Socket : |NCCL_IB_DISABLE")
    job.replace(r"via NET/IB/0/GDRDMA", "via NET/Socket/0")
    job.replace(r"GDR 1", "GDR 0")
    for rank in job.ranks:
        job.early(rank, "NET/Socket : Using [0]ens5:10.0.0.1<0>")


def far_adapters_beside_a_near_one(job: Job) -> None:
    """Each GPU has one near NIC and sees the others as too far: that is how it should be."""
    for rank in job.ranks:
        gpu = str(rank) if job.number >= (2, 24) else f"{0x1A + 0x10 * job.speakers[rank].dev:x}000"
        job.early(rank, f"NET/IB : GPU Direct RDMA Disabled for GPU {gpu} / HCA 1 (distance 7 > 5)")
        job.early(rank, f"NET/IB : GPU Direct RDMA Enabled for GPU {gpu} / HCA 0 (distance 4 <= 5)")


def healthy_files(job: Job) -> None:
    """Healthy outputs of every tool beside the log."""
    job.extra["topo.txt"] = topo(8, "NV18", near).encode()
    job.extra["topo.xml"] = topology_xml().encode()
    job.extra["ibstat_gn01.txt"] = (ibstat() + ibstat(adapter="mlx5_1")).encode()
    job.extra["ibstat_gn02.txt"] = (ibstat() + ibstat(adapter="mlx5_1")).encode()
    job.extra["bench.txt"] = bench_output([(s, min(380.0, s / 2e6)) for s in SIZES], [("gn01", H100)] * 8).encode()
    job.extra["pairs.csv"] = pairs_csv(8, lambda a, b: 23.0 + 0.1 * a).encode()
    job.extra["env.sh"] = b"export NCCL_DEBUG=INFO\nexport NCCL_IB_HCA=mlx5_0,mlx5_1\nexport OMP_NUM_THREADS=8\n"
    job.extra["dmesg.txt"] = (
        b"[    1.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54\n"
        b"[    2.000000] mlx5_core 0000:4b:00.0 ib0: Link up\n"
    )
    dumps(job, lambda rank: [done(7), done(8)])


@pytest.mark.parametrize(
    ("nodes", "change"),
    [
        (1, one_node_without_infiniband),
        (2, cloud_without_rdma),
        (2, far_adapters_beside_a_near_one),
        (2, healthy_files),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_no_rule_fires_on_what_only_looks_bad(
    nodes: int, change: Callable[[Job], None], version: str, tmp_path: Path
) -> None:
    job = healthy(version, "srun", nodes)
    change(job)
    verdict = verdict_of(job, tmp_path)
    assert not verdict.findings, [finding.what for finding in verdict.findings]
    assert verdict.status is Status.HEALTHY
