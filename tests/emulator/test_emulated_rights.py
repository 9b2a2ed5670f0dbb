"""Who may have an emulated cluster: root, anyone in a user namespace, and nobody else, who is told why."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from atoll.emulator.namespaces import new_network_namespace, run_batch
from atoll.errors import SpecError

pytestmark = pytest.mark.usefixtures("alone")
PR_CAPBSET_DROP = 24  # linux/prctl.h
CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21
EMULATE = [
    sys.executable, "-m", "atoll", "emulate", "--ranks-per-node", "1", "--island-bandwidth", "90MB/s", "--",
]  # fmt: skip


def without_rights() -> Callable[[], None]:
    """What makes the next program one that may not administer networks."""
    prctl = ctypes.CDLL(None).prctl

    def drop() -> None:
        for capability in (CAP_NET_ADMIN, CAP_SYS_ADMIN):
            if prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
                os._exit(125)

    return drop


def run(command: Sequence[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_a_user_without_rights_enters_a_user_namespace() -> None:
    probe = run(["unshare", "-Urn", "true"], preexec_fn=without_rights())
    if probe.returncode:
        pytest.skip(f"user namespaces are not to be had here: {probe.stderr.strip()}")
    words = (
        "import os; print(os.environ['ATOLL_LISTEN'], os.readlink('/proc/self/ns/user'), os.environ['ATOLL_TRANSPORT'])"
    )
    environ = {**os.environ, "ATOLL_TRANSPORT": "auto"}
    done = run([*EMULATE, "launch", "--", sys.executable, "-c", words], preexec_fn=without_rights(), env=environ)
    assert done.returncode == 0, done.stderr
    said = sorted(line.split() for line in done.stdout.splitlines())
    assert [line[0] for line in said] == ["10.77.0.1", "10.77.1.1"]
    assert {line[1] for line in said} != {os.readlink("/proc/self/ns/user")}
    assert {line[2] for line in said} == {"tcp"}, "shared memory would know nothing of the links"


def test_so_does_a_comparison() -> None:
    probe = run(["unshare", "-Urn", "true"], preexec_fn=without_rights())
    if probe.returncode:
        pytest.skip(f"user namespaces are not to be had here: {probe.stderr.strip()}")
    words = ["compare", "--island-bandwidth", "90MB/s", "-b", "4K", "-e", "4K", "--algorithm", "ring"]
    done = run([sys.executable, "-m", "atoll", *words], preexec_fn=without_rights())
    assert done.returncode == 0, done.stderr
    assert "# error of 3 predictions: median" in done.stdout


def test_who_may_have_neither_is_told_what_to_do() -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("this test needs the command setpriv of util-linux")
    # In a user namespace that allows none below it, without the rights it would have there.
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-sys_admin,-net_admin "$@"'
    done = run(["unshare", "-r", "sh", "-c", forbid, "sh", *EMULATE, "bench"])
    if "unshare failed" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip(f"user namespaces are not to be had here: {done.stderr.strip()}")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("atoll: cannot enter a user namespace: ")
    assert "needs root, or user namespaces" in line
    assert "--cap-add SYS_ADMIN" in line


def test_a_missing_tool_is_named_with_its_package() -> None:
    done = run([*EMULATE, "bench"], env={**os.environ, "PATH": "/nonexistent"})
    assert done.returncode == 2
    assert "atoll emulate needs the command ip, which is not found: apt-get install iproute2" in done.stderr


def test_what_a_tool_refuses_is_passed_on() -> None:
    namespace = new_network_namespace()
    try:
        with pytest.raises(SpecError, match=r"tc cannot set up .*: modprobe -a sch_tbf veth bridge"):
            run_batch("tc", ["qdisc add dev lo root nosuchqueue"], namespace)
    finally:
        os.close(namespace)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to run: expected bench or launch"),
        (["benhc"], "unknown command 'benhc': did you mean 'bench'?"),
        (["bench", "--world", "3"], "a world of 3 is asked for, the emulated cluster has 2"),
        (["launch", "-n", "5", "--", "true"], "a world of 5 is asked for, the emulated cluster has 2"),
        (["bench", "--no-such"], "No such option"),
    ],
)
def test_mistakes_are_one_line_and_come_before_anything_is_made(words: list[str], said: str) -> None:
    done = run([*EMULATE, *words])
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert said in line


def test_islands_that_are_not_the_nodes_are_told() -> None:
    command = [*EMULATE[:4], "--ranks-per-node", "3", "--island-bandwidth", "200MB/s", "--", "bench"]
    small = ["-b", "64", "-e", "64", "-n", "1", "--algorithm", "hierarchical"]
    done = run([*command, *small])
    assert done.returncode == 0, done.stderr
    assert "hierarchical takes islands of 2 of 6 ranks, the nodes here have 3" in done.stderr
