"""The emulated cluster for real: where bytes go, what limits them, and that nothing is left, however it ends."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.emulator import mark as marks
from atoll.emulator.cluster import EmulatedCluster
from atoll.emulator.layout import ISLAND, NETWORK, PAYLOAD_SHARE, Layout, Rates
from atoll.emulator.measure import Case, Timing, measure_cases
from atoll.emulator.namespaces import enter, inside, read_tool
from atoll.emulator.queues import burst_bytes
from atoll.errors import InternalError, SpecError, WorldError

pytestmark = pytest.mark.usefixtures("alone")
EMULATE = [sys.executable, "-m", "atoll", "emulate", "--island-bandwidth", "200MB/s", "--network-bandwidth", "50MB/s"]
LINK = "/proc/self/ns/net"


def interfaces() -> str:
    """Of the namespace that this process is in."""
    return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


def holders(namespaces: set[str]) -> list[str]:
    """Whatever keeps one of these network namespaces: processes in it, files, mounts."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        for link in (process / "ns/net", *_files(process)):
            try:
                if os.readlink(link) in namespaces:
                    found.append(str(link))
            except OSError:
                continue
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "nsfs" in line
              and any(name in line for name in namespaces)]  # fmt: skip
    return found


def _files(process: Path) -> list[Path]:
    try:
        return list((process / "fd").iterdir())
    except OSError:
        return []


@pytest.fixture
def untouched() -> Iterator[None]:
    """This process's own namespace has the same interfaces afterwards."""
    before = interfaces()
    yield
    assert interfaces() == before


@pytest.mark.usefixtures("untouched")
def test_a_cluster_is_there_inside_the_block_and_gone_after_it() -> None:
    home = os.readlink(LINK)
    layout = Layout(2, 2, nodes_per_leaf=1, oversubscription=2.0)
    with EmulatedCluster(layout, Rates(200e6, 50e6)) as cluster:
        seen = set()
        for rank in range(4):
            with inside(cluster.namespace(rank)):
                seen.add(os.readlink("/proc/thread-self/ns/net"))
            addresses = json.loads(read_tool(["ip", "-j", "-4", "address"], cluster.namespace(rank)))
            by_name = {entry["ifname"]: [a["local"] for a in entry["addr_info"]] for entry in addresses}
            assert by_name == {"lo": ["127.0.0.1"], ISLAND: [layout.address(rank)], NETWORK: [layout.address(rank)]}
        assert len(seen) == 4
        assert home not in seen
        assert holders(seen)
        with pytest.raises(InternalError, match="limits already"):
            cluster.limit(Rates(1e6, 1e6))
    assert os.readlink(LINK) == home
    assert holders(seen) == []
    with pytest.raises(OSError):
        enter(cluster.namespace(0))


def test_a_cluster_that_cannot_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.emulator.cluster.queue_command", lambda *_: "qdisc add dev nosuch root tbf")
    cluster = EmulatedCluster(Layout(2, 2), Rates(200e6, 50e6))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SpecError, match="tc cannot set up the emulated cluster"), cluster:
        raise AssertionError("never here")
    assert len(os.listdir("/proc/self/fd")) == before


def _send(cluster: EmulatedCluster, source: int, target: int, size: int) -> float:
    """Seconds from the first byte until the last one is there."""
    with inside(cluster.namespace(target)):
        listener = socket.create_server((cluster.layout.address(target), 0))
    with inside(cluster.namespace(source)):
        sender = socket.create_connection(listener.getsockname())
    receiver, peer = listener.accept()
    assert peer[0] == cluster.layout.address(source)
    thread = threading.Thread(target=sender.sendall, args=(bytes(size),))
    began = time.perf_counter()
    thread.start()
    left = size
    while left:
        left -= len(receiver.recv(min(left, 1 << 16)))
    took_s = time.perf_counter() - began
    thread.join()
    for sock in (sender, receiver, listener):
        sock.close()
    return took_s


@pytest.mark.parametrize(
    ("layout", "target", "crossed"),
    [
        (Layout(2, 2), 1, [(0, ISLAND), (None, "r1-island")]),
        (Layout(2, 2), 2, [(0, NETWORK), (None, "r2-network")]),
        (Layout(2, 2, 1, 1), 3, [(None, "nic0-0-out"), (None, "leaf0-up"), (None, "leaf1-down"), (None, "nic1-0-in")]),
    ],
    ids=["island", "network", "shared NIC and spine"],
)
def test_a_link_carries_what_crosses_it_at_its_rate_and_no_more(
    layout: Layout, target: int, crossed: list[tuple[int | None, str]]
) -> None:
    rates = Rates(40e6, 8e6)
    size = 1 << 20
    with EmulatedCluster(layout, rates) as cluster:
        took_s = _send(cluster, 0, target, size)
        counts = cluster.counts()
    for link, count in counts.items():
        if link in crossed:
            assert size / PAYLOAD_SHARE <= count.bytes <= 1.02 * size / PAYLOAD_SHARE, link
        else:
            assert count.bytes < 80_000, f"{link}: acknowledgements and address resolution at most"
        assert count.drops == 0, link
    assert counts[crossed[0]].waits > 0, "the bucket was never empty: nothing was limited"
    # Only the lower bound is certain: a bucket lets nothing pass that it has no tokens for.
    rate = rates.island if target == 1 else rates.network
    assert took_s >= (size / PAYLOAD_SHARE - burst_bytes(rate)) / rate


def test_collectives_send_over_each_link_what_the_schedule_counts() -> None:
    size, layout = 1 << 18, Layout(2, 2)
    cases = [Case("all", ((0, 1, 2, 3),), name, size, 2, 1) for name in ("ring", "hierarchical")]
    heard: list[Timing] = []
    measured = []
    for case in cases:
        with EmulatedCluster(layout, Rates(200e6, 50e6)) as cluster:
            measure_cases(cluster, [case], dict(os.environ), heard.append)
            measured.append(cluster.counts())
    assert [timing.wrong for timing in heard] == [0, 0]
    assert all(len(timing.times_s) == 1 and timing.times_s[0] > 0 for timing in heard)
    for case, counts in zip(cases, measured, strict=True):
        schedule = case.schedule()
        chunk = size / schedule.header.chunks
        payload = {(rank, link): 0.0 for rank in range(4) for link in (ISLAND, NETWORK)}
        for row in schedule.rows():
            if row.src != row.dst:
                link = ISLAND if layout.node_of(row.src) == layout.node_of(row.dst) else NETWORK
                payload[row.src, link] += 2 * row.num_chunks * chunk  # one call that warms up, and one that is timed
        for key, expected in payload.items():
            # Acknowledgements, the barrier and the control plane are what is more.
            assert expected / PAYLOAD_SHARE <= counts[key].bytes <= 1.1 * expected / PAYLOAD_SHARE + 60_000, key


def test_a_rank_that_fails_is_named(tmp_path: Path) -> None:
    case = Case("too large to be true", ((0, 1),), "ring", 1 << 62, 0, 1)
    with EmulatedCluster(Layout(2, 1), Rates(200e6, 50e6)) as cluster, pytest.raises(WorldError, match="failed first"):
        measure_cases(cluster, [case], dict(os.environ), lambda _: None)


RANK = (
    "import os, subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    "print(os.environ['ATOLL_RANK'], os.getpid(), child.pid, os.readlink('/proc/self/ns/net'), flush=True)\n"
    "time.sleep(600)\n"
)


class Running:
    """``atoll emulate`` with ranks that sleep, each with a child that has left its process group."""

    def __init__(self, tmp_path: Path) -> None:
        (tmp_path / "rank.py").write_text(RANK)
        self.process = subprocess.Popen(
            [*EMULATE, "--nodes", "2", "--ranks-per-node", "1", "--", "launch", "--grace", "1s", "rank.py"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        said = [self.process.stdout.readline().split() for _ in range(2)]
        assert sorted(line[0] for line in said) == ["0", "1"], said
        self.ranks = [os.pidfd_open(int(line[1])) for line in said]
        self.children = [int(line[2]) for line in said]
        self.child_files = [os.pidfd_open(pid) for pid in self.children]
        self.namespaces = {line[3] for line in said}

    def end(self) -> None:
        for file in (*self.ranks, *self.child_files):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(file, signal.SIGKILL)
            wait_for(file)
            os.close(file)
        self.process.kill()
        self.process.communicate()


def wait_for(pidfd: int) -> None:
    """Until the process has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(60_000), "the process does not end"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    job = Running(tmp_path)
    yield job
    job.end()


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ranks_and_networks_end_with_the_command(running: Running, number: signal.Signals) -> None:
    assert len(running.namespaces) == 2
    assert os.readlink(LINK) not in running.namespaces
    running.process.send_signal(number)
    for rank in running.ranks:
        wait_for(rank)
    status = running.process.wait(60)
    assert status == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number)
    # The children that left their rank's group are what the next start ends; nothing else is left.
    found = [entry for entry in marks.leftovers() if entry.mark.pid == running.process.pid]
    assert sorted(entry.pid for entry in found) == sorted(running.children)
    assert all(marks.end(entry) for entry in found)
    for child in running.child_files:
        wait_for(child)
    assert holders(running.namespaces) == []


def test_the_next_start_ends_what_is_left_and_nothing_else(running: Running, tmp_path: Path) -> None:
    running.process.kill()
    for rank in running.ranks:
        wait_for(rank)
    dead = marks.Mark(marks.own_mark().pid_namespace, running.process.pid, 1)
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    strangers = [
        # Carries the mark of a dead owner, but lives where everybody does.
        subprocess.Popen(sleep, env={**os.environ, marks.VARIABLE: str(dead)}, stdout=subprocess.PIPE),
        # In a network namespace of its own: with no mark, an owner that lives, an owner of another pid namespace, and
        # something that looks like a mark.
        *(
            subprocess.Popen(["unshare", "-n", *sleep], env={**os.environ, **more}, stdout=subprocess.PIPE)
            for more in (
                {},
                {marks.VARIABLE: str(marks.own_mark())},
                {marks.VARIABLE: str(marks.Mark(1, running.process.pid, 1))},
                {marks.VARIABLE: "atoll-emulate-rank3"},
            )
        ),
    ]
    try:
        for stranger in strangers:
            assert stranger.stdout is not None
            stranger.stdout.readline()
        done = subprocess.run(
            [*EMULATE, "--", "launch", "--", "true"], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        for pid, file in zip(running.children, running.child_files, strict=True):
            wait_for(file)
            assert f"ended process {pid}, left over from" in done.stderr
        assert [stranger.poll() for stranger in strangers] == [None] * len(strangers)
        assert done.stderr.count("ended process") == 2
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.communicate()
