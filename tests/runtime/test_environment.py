"""Placement from the variables of every launcher, and clear errors for what is wrong with them."""

import os
import subprocess
import sys

import pytest

from atoll.errors import SpecError
from atoll.runtime.environment import (
    Rendezvous,
    _started_by,
    first_host,
    is_loopback_name,
    parse_rendezvous,
    read_placement,
)

TORCHRUN = {
    "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "819200001",
}  # fmt: skip
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "4"}
SLURM = {
    "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4", "SLURM_LOCALID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "0", "SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[03-05]", "SLURM_CLUSTER_NAME": "big",
}  # fmt: skip
ATOLL = {"ATOLL_RANK": "2", "ATOLL_WORLD_SIZE": "4", "ATOLL_RENDEZVOUS": "node1:20000", "ATOLL_SECRET": "s3cret"}


def test_without_variables_it_is_a_world_of_one() -> None:
    placement = read_placement({"PATH": "/bin", "HOME": "/"})
    assert (placement.rank, placement.world_size, placement.rendezvous) == (0, 1, None)
    assert (placement.local_rank, placement.local_world_size) == (0, 1)


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [(TORCHRUN, "torchrun"), (OPEN_MPI, "Open MPI"), (HYDRA, "PMI"), (SLURM, "Slurm")],
)
def test_one_host_needs_nothing_else_and_meets_at_a_unix_socket(environ: dict[str, str], launcher: str) -> None:
    placement = read_placement(environ)
    assert placement.launcher == launcher
    assert (placement.rank, placement.world_size) == (2, 4)
    assert (placement.local_rank, placement.local_world_size) == (2, 4)
    assert placement.rendezvous is not None
    assert placement.rendezvous.unix.startswith("atoll-")
    ranks = {
        name: value.replace("2", "3") if "RANK" in name or "ID" in name[-2:] else value
        for name, value in environ.items()
    }
    ranks["SLURM_JOB_ID"] = environ.get("SLURM_JOB_ID", "")
    other = read_placement(
        {**ranks, **{k: environ[k] for k in ("TORCHELASTIC_RUN_ID", "SLURM_NODEID") if k in environ}}
    )
    assert other.rank == 3
    assert other.rendezvous == placement.rendezvous, "ranks of one job meet at one place"


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        (TORCHRUN, "MASTER_PORT"),
        (TORCHRUN, "TORCHELASTIC_RESTART_COUNT"),
        (OPEN_MPI, "PMIX_NAMESPACE"),
        (SLURM, "SLURM_JOB_ID"),
    ],
)
def test_other_jobs_meet_elsewhere(environ: dict[str, str], variable: str) -> None:
    assert read_placement(environ).rendezvous != read_placement({**environ, variable: "77"}).rendezvous


def test_an_explicit_rendezvous_is_taken_with_every_launcher() -> None:
    for environ in (TORCHRUN, OPEN_MPI, HYDRA, SLURM, ATOLL):
        placement = read_placement({**environ, "ATOLL_RENDEZVOUS": "[fe80::1]:123"})
        assert placement.rendezvous == Rendezvous(host="fe80::1", ports=(123,))


def test_atoll_variables_come_first() -> None:
    placement = read_placement({**SLURM, **HYDRA, **OPEN_MPI, **TORCHRUN, **ATOLL, "ATOLL_RANK": "0"})
    assert (placement.launcher, placement.rank) == ("atoll launch", 0)
    assert placement.secret == b"s3cret"
    assert "s3cret" not in repr(placement)


def test_more_hosts_under_torchrun_derive_ports_that_all_ranks_agree_on() -> None:
    environ = {**TORCHRUN, "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "node1"}
    rendezvous = read_placement(environ).rendezvous
    assert rendezvous is not None
    assert rendezvous.host == "node1"
    assert len(rendezvous.ports) > 1
    assert all(10240 <= port < 32768 for port in rendezvous.ports), "below the ephemeral range"
    assert read_placement({**environ, "RANK": "0"}).rendezvous == rendezvous
    assert read_placement({**environ, "MASTER_PORT": "29501"}).rendezvous != rendezvous


def test_more_hosts_under_slurm_meet_at_the_first_of_them() -> None:
    placement = read_placement(
        {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"}
    )
    assert placement.local_world_size == 2
    assert placement.rendezvous is not None
    assert placement.rendezvous.host == "node03"
    assert read_placement({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "1(x2),2", "SLURM_NODEID": "2"}).local_world_size == 2
    assert read_placement({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "what?"}).local_world_size is None


def test_a_batch_script_without_srun_is_no_rank() -> None:
    assert read_placement({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}).world_size == 1
    interactive = {**SLURM, "SLURM_STEP_ID": "4294967290"}
    assert read_placement(interactive).world_size == 1


def test_pmi_of_slurm_itself_and_of_hydra_inside_slurm() -> None:
    assert read_placement({**SLURM, "PMI_RANK": "2", "PMI_SIZE": "4"}).launcher == "Slurm"
    # Hydra starts one proxy per node with srun; the Slurm variables are the proxies'.
    proxies = {**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    assert read_placement({**proxies, **HYDRA}).launcher == "PMI"
    assert read_placement({**SLURM, **HYDRA}).launcher == "PMI"


@pytest.mark.parametrize(
    "node_list",
    ["node03", "node[03-05]", "node[03,07]", "node03,node04", "node[03-05,9],gpu1", "node[03]"],
)
def test_first_host_of_a_list(node_list: str) -> None:
    assert first_host(node_list) == "node03"


def test_first_host_with_a_suffix_or_of_nothing() -> None:
    assert first_host("rack[1-2]-a,rack3-b") == "rack1-a"
    assert first_host("") == ""


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "0"}, "RANK is set but WORLD_SIZE is not"),
        ({"ATOLL_RANK": "0"}, "ATOLL_RANK is set but ATOLL_WORLD_SIZE is not"),
        ({**ATOLL, "ATOLL_RANK": "four"}, "ATOLL_RANK: expected a whole number"),
        ({**ATOLL, "ATOLL_RANK": "-1"}, "ATOLL_RANK: expected a whole number"),
        ({**ATOLL, "ATOLL_RANK": "9" * 4000}, "ATOLL_RANK: expected a whole number"),
        ({**ATOLL, "ATOLL_RANK": "4"}, "ATOLL_RANK=4 does not fit ATOLL_WORLD_SIZE=4"),
        ({**ATOLL, "ATOLL_WORLD_SIZE": "0", "ATOLL_RANK": "0"}, "does not fit ATOLL_WORLD_SIZE=0"),
        ({**ATOLL, "ATOLL_RENDEZVOUS": "node1"}, "ATOLL_RENDEZVOUS: expected host:port"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE=5 is larger than WORLD_SIZE=4"),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, "LOCAL_RANK=4 does not fit LOCAL_WORLD_SIZE=4"),
        ({"ATOLL_RANK": "0", "ATOLL_WORLD_SIZE": "2"}, "looked for ATOLL_RENDEZVOUS"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "looked for ATOLL_RENDEZVOUS and MASTER_ADDR"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, "OMPI_COMM_WORLD_RANK, set by Open MPI"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "Set ATOLL_RENDEZVOUS=host:port"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(environ: dict[str, str], words: str) -> None:
    with pytest.raises(SpecError) as error:
        read_placement(environ)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1:20000", Rendezvous(host="node1", ports=(20000,))),
        ("127.0.0.1:1", Rendezvous(host="127.0.0.1", ports=(1,))),
        ("[::1]:65535", Rendezvous(host="::1", ports=(65535,))),
        ("unix:@atoll-x", Rendezvous(unix="atoll-x")),
    ],
)
def test_rendezvous_texts(text: str, expected: Rendezvous) -> None:
    assert parse_rendezvous(text) == expected
    assert parse_rendezvous(expected.describe()) == expected


@pytest.mark.parametrize(
    "text",
    ["", "node1", ":1", "node1:", "node1:0", "node1:65536", "node1:x", "::1:20000", "[::1]", "node1:-1", "a b:1",
     "unix:", "unix:@", "unix:/tmp/x", "unix:@" + "x" * 108, "node1:999999999999"],
)  # fmt: skip
def test_rendezvous_texts_that_are_none(text: str) -> None:
    with pytest.raises(SpecError, match="ATOLL_RENDEZVOUS"):
        parse_rendezvous(text)


def test_loopback_names() -> None:
    assert all(map(is_loopback_name, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback_name, ("node1", "10.0.0.1", "0.0.0.0", "::", "localhost.evil.example")))


def test_the_job_is_named_by_the_first_ancestor_without_a_rank() -> None:
    """Shells between the launcher and the rank make no difference."""
    program = "from atoll.runtime.environment import _started_by; print(_started_by('SOME_RANK'))"
    environ = {**os.environ, "SOME_RANK": "1", "PYTHON": sys.executable, "PROGRAM": program}
    answers = {
        subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=60).stdout
        for command in (
            [sys.executable, "-c", program],
            ["sh", "-c", '"$PYTHON" -c "$PROGRAM"; true'],
            ["sh", "-c", """sh -c '"$PYTHON" -c "$PROGRAM"; true'; true"""],
        )
    }
    assert len(answers) == 1
    assert answers.pop().startswith(f"{os.getpid()}:")
    assert _started_by("SOME_RANK").split(":")[0] == str(os.getppid())
