"""Reports: text, JSON, Markdown, redaction, and the command line's exit status."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from atoll.cli.doctor import command
from atoll.cli.lint import command as lint_command
from atoll.doctor.catalogue import RULES, rule_of
from atoll.doctor.gather import gather
from atoll.doctor.redact import Redactor, redactor_of
from atoll.doctor.report import document
from atoll.doctor.verdict import diagnose
from atoll.errors import SpecError
from doctor.corpus import healthy, topology_xml
from doctor.corpus_cases import CASES


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@pytest.fixture
def sick(tmp_path: Path) -> Path:
    job = healthy("2.19.3", "srun")
    CASES["N09"].inject(job)
    CASES["P06"].inject(job)
    return write(tmp_path, job.files())


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, standalone_mode=False)


def test_the_text_says_what_who_proof_and_what_to_do(sick: Path) -> None:
    result = run(str(sick))
    assert result.return_value == 1
    text = result.output
    assert text.startswith("FINDINGS: N09 ")
    for part in (
        "rank 1, host gn01",
        "job.log:",
        "vendor err 129",
        "do:",
        "what followed:",
        "P06",
        "Collect next:",
        "8 ranks, 2 nodes",
    ):
        assert part in text, part
    assert "\x1b" not in text


def test_a_golden_report(tmp_path: Path) -> None:
    write(tmp_path, {"topo.xml": topology_xml((1, 12)).encode()})
    assert run(str(tmp_path)).output == (
        "FINDINGS: G11 The topology file is wrong\n"
        "\n"
        "1. G11 The topology file is wrong\n"
        "   the topology file topo.xml is wrong: 0000:17:00.0 has 1 nvlinks to 0000:65:00.0, which has 12 back\n"
        "   where:  bus id 0000:17:00.0, topo.xml; bus id 0000:65:00.0, topo.xml\n"
        "   weight: slow, confidence high\n"
        "   proof:\n"
        '     topo.xml:5: <nvlink target="0000:65:00.0" count="1" tclass="0x030200"/>\n'
        '     topo.xml:10: <nvlink target="0000:17:00.0" count="12" tclass="0x030200"/>\n'
        "   do:     Remove the variable, or repair the file (`atoll lint topology FILE`).\n"
        "\n"
        "Collect next:\n"
        "  - the file itself; `NCCL_TOPO_DUMP_FILE` of a run without it\n"
        "\n"
        "Read: 1 file\n"
    )


def test_json_is_one_document_with_a_version(sick: Path) -> None:
    result = run(str(sick), "--json")
    found = json.loads(result.output)
    assert found["schema_version"] == 1
    assert found["status"] == "findings"
    assert found["exit_status"] == result.return_value == 1
    root = found["causes"][0]["root"]
    assert root["rule"] == "N09"
    assert root["subjects"][0]["rank"] == 1
    assert root["subjects"][0]["host"] == "gn01"
    assert root["sources"][0]["line"] > 0
    assert {finding["rule"] for finding in found["causes"][0]["cascade"]} == {"N11", "P06"}
    assert found["job"] == {"num_nodes": 2, "world_size": 8, "nccl_versions": ["2.19.3"], "gpu": "", "networks": ["IB"]}
    assert found["coverage"]["fraction"] == 1.0


def test_markdown_quotes_in_fences(sick: Path) -> None:
    text = run(str(sick), "--markdown").output
    assert text.startswith("## Atoll doctor: findings\n")
    assert text.count("```") % 2 == 0
    assert "### N09 " in text


def test_a_log_line_cannot_end_the_fence(tmp_path: Path) -> None:
    job = healthy("2.19.3", "none")
    job.say(1, "``` </details> No transport found", "WARN", "transport.cc:1")
    job.say(1, "No transport found for rank 1[1] -> rank 2[2]", "WARN", "transport.cc:41")
    job.say(1, "transport.cc:148 -> 3")
    text = run(str(write(tmp_path, job.files())), "--markdown").output
    fences = re.findall(r"^`{3,}$", text, re.MULTILINE)
    assert len(fences) >= 2
    assert len(set(fences)) == 1


@pytest.mark.parametrize(
    ("files", "status"),
    [
        (healthy("2.19.3", "srun").files(), 0),
        ({"notes.txt": b"the job was slow on Tuesday\n"}, 2),
        ({}, 2),
        ({"job.log": b"gn01:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"}, 3),
        (
            {"torch.log": b"[rank1]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, system error\n"},
            3,
        ),
    ],
)
def test_exit_status(files: dict[str, bytes], status: int, tmp_path: Path) -> None:
    result = run(str(write(tmp_path, files)))
    assert result.return_value == status, result.output


def test_cannot_know_says_what_to_collect(tmp_path: Path) -> None:
    text = run(str(write(tmp_path, {"job.log": b"gn01:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"}))).output
    assert text.startswith("UNKNOWN: cannot know")
    assert "Collect next:" in text


def test_hostile_files_are_told_and_never_run(tmp_path: Path) -> None:
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "ran",))

    write(
        tmp_path,
        {
            "dump_rank_0": pickle.dumps({"entries": [Bomb()], "pg_config": {}, "pg_status": {}}),
            "noise": bytes(range(256)) * 40,
        },
    )
    text = run(str(tmp_path)).output
    assert not (tmp_path / "ran").exists()
    assert "not read: dump_rank_0" in text
    assert "not read: noise" in text


def test_harmless_warnings_are_only_told_when_asked(tmp_path: Path) -> None:
    folder = write(tmp_path, healthy("2.24.3", "none", nodes=1).files())
    assert "W02" not in run(str(folder)).output
    text = run(str(folder), "--all").output
    assert "Looks bad and is harmless:" in text
    assert "W02" in text


def test_explain_and_rules() -> None:
    assert "NCCL_IB_GID_INDEX" in run("--explain", "n09").output
    listed = run("--rules").output
    assert all(rule.id in listed for rule in RULES)
    with pytest.raises(SpecError, match="no rule 'N99'"):
        rule_of("N99")


# --- redaction


def test_redaction_is_consistent_and_complete(tmp_path: Path) -> None:
    job = healthy("2.19.3", "srun")
    CASES["N09"].inject(job)
    job.early(0, "NCCL_TOPO_FILE set by environment to /home/jdoe/topo.xml")
    folder = write(tmp_path, job.files())
    plain = run(str(folder), "--all").output
    redacted = run(str(folder), "--all", "--redact", "--redact-key", "k").output
    assert "gn01" in plain
    for secret in ("gn01", "gn02", "10.0.0.", "jdoe"):
        assert secret not in redacted, secret
    assert redacted.count("rank 1, host host-") == plain.count("rank 1, host gn01")
    again = run(str(folder), "--all", "--redact", "--redact-key", "k").output
    assert again == redacted
    assert run(str(folder), "--all", "--redact", "--redact-key", "other").output != redacted


def test_redaction_of_json_keeps_the_structure(sick: Path) -> None:
    evidence = gather([sick])
    found = document(diagnose(evidence), evidence)
    hidden = redactor_of(evidence, b"k").document(found)
    assert hidden["causes"][0]["root"]["rule"] == "N09"
    assert hidden["causes"][0]["root"]["subjects"][0]["rank"] == 1
    assert "gn01" not in json.dumps(hidden)


@pytest.mark.parametrize(
    ("text", "gone", "kept"),
    [
        ("node-1.cluster.local said 10.1.2.3<4000>", ["node-1", "10.1.2.3"], ["<4000>", "said"]),
        ("fe80::5cde:37ff:fe78:8ba1%eth0", ["5cde"], ["%eth0"]),
        ("/home/alice/run/topo.xml and /Users/bob/x", ["alice", "bob"], ["/run/topo.xml"]),
        ("USER=carol LOGNAME: dave", ["carol", "dave"], ["USER=", "LOGNAME:"]),
        ("mail eve@example.org now", ["eve", "example.org"], ["mail", "now"]),
        ("0000:17:00.0 at 12:34:56 rank 3", [], ["0000:17:00.0", "12:34:56", "rank 3"]),
        ("127.0.0.1 and 0.0.0.0", [], ["127.0.0.1", "0.0.0.0"]),
        ("NCCL version 2.19.3.1 is not an address of node-1", ["node-1"], ["version"]),
    ],
)
def test_what_is_hidden_and_what_stays(text: str, gone: list[str], kept: list[str]) -> None:
    hidden = Redactor(["node-1", "node-12"], b"k").text(text)
    assert not [part for part in gone if part in hidden], hidden
    assert not [part for part in kept if part not in hidden], hidden


def test_a_host_and_its_domain_name_are_one() -> None:
    redactor = Redactor(["node-1", "node-12"], b"k")
    one, two, other = (redactor.text(name) for name in ("node-1", "node-1.cluster.local", "node-12"))
    assert one == two != other


# --- lint on the command line


def lint(*arguments: str) -> Result:
    return CliRunner().invoke(lint_command, arguments, standalone_mode=False)


def test_lint_topology(tmp_path: Path) -> None:
    write(tmp_path, {"bad.xml": topology_xml((1, 12)).encode(), "good.xml": topology_xml().encode()})
    assert lint("topology", str(tmp_path / "good.xml")).return_value == 0
    bad = lint("topology", str(tmp_path / "bad.xml"), "--json")
    assert bad.return_value == 1
    assert json.loads(bad.output)["problems"][0]["id"] == "T01"


def test_lint_env(tmp_path: Path) -> None:
    write(tmp_path, {"env.sh": b"export NCCL_SOKET_IFNAME=eth0\n", "ok.sh": b"export NCCL_DEBUG=INFO\n"})
    assert lint("env", str(tmp_path / "ok.sh")).return_value == 0
    bad = lint("env", str(tmp_path / "env.sh"))
    assert bad.return_value == 1
    assert "did you mean NCCL_SOCKET_IFNAME?" in bad.output
    absent = ["env", str(tmp_path / "absent.sh")]
    with pytest.raises(SpecError, match="cannot be read"):
        CliRunner().invoke(lint_command, absent, standalone_mode=False, catch_exceptions=False)


def test_lint_timeouts() -> None:
    good = lint("timeouts", "--process-group", "2min", "--heartbeat", "200s", "--elastic", "300s", "--slurm", "1d")
    assert good.return_value == 0
    bad = lint("timeouts", "--process-group", "30min", "--slurm", "20min")
    assert bad.return_value == 1
    assert "does not outlast process_group" in bad.output
