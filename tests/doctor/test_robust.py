"""Damaged and hostile evidence gives a verdict or a stated refusal; it never raises, and never runs anything."""

from __future__ import annotations

import gzip
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.doctor.gather import gather
from atoll.doctor.report import document, markdown_lines, text_lines
from atoll.doctor.verdict import Status, diagnose
from doctor.corpus import LAUNCHERS, VERSIONS, healthy
from doctor.corpus_cases import CASES


def everything(files: dict[str, bytes]) -> Status:
    """Read, judge and print the files in every form."""
    folder = Path(tempfile.mkdtemp(prefix="atoll-robust-"))
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        evidence = gather([folder])
        verdict = diagnose(evidence)
        assert "".join(text_lines(verdict, evidence, everything=True))
        assert "".join(markdown_lines(verdict, evidence))
        assert document(verdict, evidence)["schema_version"] == 1
        return verdict.status
    finally:
        shutil.rmtree(folder)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["a.log", "dump_rank_3", "topo.xml", "x/env"]), st.binary(max_size=400), max_size=3)
)
def test_any_bytes(files: dict[str, bytes]) -> None:
    assert everything(files) in Status


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Cut, flip, repeat or shuffle parts of a file."""
    how = chance.randrange(5)
    if how == 0:
        return content[: chance.randrange(len(content) + 1)]
    if how == 1:
        changed = bytearray(content)
        for _ in range(1 + len(changed) // 50):
            if changed:
                changed[chance.randrange(len(changed))] = chance.randrange(256)
        return bytes(changed)
    if how == 2:
        lines = content.split(b"\n")
        chance.shuffle(lines)
        return b"\n".join(lines)
    if how == 3:
        return content.replace(b"\n", b"\r\n").replace(b"NCCL", b"\x1b[31mNCCL\x1b[0m", 3)
    at = chance.randrange(len(content) + 1)
    return content[:at] + content[: chance.randrange(200)] + content[at:]


@pytest.mark.parametrize("rule", sorted(CASES))
def test_damaged_evidence(rule: str) -> None:
    chance = random.Random(rule)
    for _ in range(4):
        job = healthy(chance.choice(VERSIONS), chance.choice(LAUNCHERS))
        CASES[rule].inject(job)
        assert everything({name: damaged(content, chance) for name, content in job.files().items()}) in Status


def test_packed_logs_are_read_as_plain_ones() -> None:
    job = healthy("2.19.3", "srun")
    CASES["N09"].inject(job)
    packed = {f"{name}.gz": gzip.compress(content) for name, content in job.files().items()}
    assert everything(packed) is Status.FINDINGS


def test_rank_files_are_one_job() -> None:
    job = healthy("2.24.3", "none")
    CASES["H09"].inject(job)
    files: dict[str, bytes] = {}
    for rank, text in job.lines:
        files[f"rank{rank}.log"] = files.get(f"rank{rank}.log", b"") + text.encode() + b"\n"
    assert everything(files) is Status.FINDINGS


def test_lines_of_two_ranks_in_each_other_hide_no_cause() -> None:
    job = healthy("2.19.3", "none")
    CASES["N09"].inject(job)
    text = job.files()["job.log"].decode()
    lines = text.splitlines()
    middle = len(lines) // 2
    # One writer's line lands in the middle of another's, as unbuffered writers do.
    torn = lines[middle][:40] + lines[middle + 1] + "\n" + lines[middle][40:]
    rest = [*lines[:middle], torn, *lines[middle + 2 :]]
    assert everything({"job.log": "\n".join(rest).encode()}) is Status.FINDINGS


def test_a_log_that_begins_with_its_environment() -> None:
    job = healthy("2.19.3", "none")
    CASES["N09"].inject(job)
    environment = b"".join(b"VARIABLE_%d=value\n" % n for n in range(300)) + b"NCCL_SOKET_IFNAME=eth0\n"
    folder = Path(tempfile.mkdtemp(prefix="atoll-robust-"))
    try:
        (folder / "job.log").write_bytes(environment + job.files()["job.log"])
        evidence = gather([folder])
        found = {finding.rule for finding in diagnose(evidence).findings}
    finally:
        shutil.rmtree(folder)
    assert {"N09", "N23"} <= found
