"""Every rule on its own case, on every healthy case and on every other rule's case: the whole confusion matrix.

Half of the corpus is synthetic (four NCCL versions, four launchers), half is made by changing real logs; the latter is
skipped, saying so, where the real inputs are absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.doctor.catalogue import RULES
from atoll.doctor.finding import Severity
from atoll.doctor.gather import gather
from atoll.doctor.verdict import Status, Verdict, diagnose
from doctor.corpus import LAUNCHERS, VERSIONS, Job, from_real, healthy
from doctor.corpus_cases import CASES


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
