"""Network namespaces without names: each is held by an open file, and gone when nothing holds it.

No namespace is bound to a path and no interface is ever made in a namespace that is not new. So there is nothing to
clean up that the kernel does not: when the process that holds the files ends, by whatever signal, and the processes
that it started inside have ended, namespaces, interfaces and queues are gone with it (network_namespaces(7)).

Making one needs CAP_SYS_ADMIN. Who lacks it may get it in a user namespace of their own (user_namespaces(7)), which the
process enters for good. A namespace is entered by the calling thread alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from atoll.errors import SpecError

_CLONE_NEWUTS: Final = 0x04000000  # linux/sched.h
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_CAP_NET_ADMIN: Final = 12  # linux/capability.h
_CAP_SYS_ADMIN: Final = 21
_OWN: Final = "/proc/thread-self/ns/net"
_HELP: Final = (
    "An emulated cluster needs root, or user namespaces for everyone (sysctl kernel.unprivileged_userns_clone=1, "
    "user.max_user_namespaces above 0, kernel.apparmor_restrict_unprivileged_userns=0 where they exist); in a "
    "container, --cap-add SYS_ADMIN --cap-add NET_ADMIN or --privileged"
)


def gain_rights() -> None:
    """Make sure that this process may make namespaces; if it may not, enter a user namespace where it may.

    ``SpecError`` says what is missing.
    """
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2")):
        if shutil.which(tool) is None:
            raise SpecError(f"atoll emulate needs the command {tool}, which is not found: apt-get install {package}")
    if _has_capabilities():
        return
    uid, gid = os.getuid(), os.getgid()
    if len(os.listdir("/proc/self/task")) > 1:
        raise SpecError(f"a process with several threads cannot enter a user namespace. {_HELP}")
    try:
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError as error:
        raise SpecError(f"cannot enter a user namespace: {error.strerror}. {_HELP}") from None


def new_network_namespace() -> int:
    """A file that holds a new, empty network namespace; the caller stays where it is."""
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("unshare", _CLONE_NEWNET)
        try:
            return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            _call("setns", home, _CLONE_NEWNET)
    except OSError as error:
        raise SpecError(f"cannot make a network namespace: {error.strerror}. {_HELP}") from None
    finally:
        os.close(home)


def enter(path_or_file: str | int) -> None:
    """Move the calling thread into a network namespace."""
    if isinstance(path_or_file, int):
        _call("setns", path_or_file, _CLONE_NEWNET)
        return
    file = os.open(path_or_file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", file, _CLONE_NEWNET)
    finally:
        os.close(file)


def own_host_name() -> None:
    """Give this process a host name of its own to set."""
    _call("unshare", _CLONE_NEWUTS)


@contextlib.contextmanager
def inside(file: int) -> Iterator[None]:
    """The calling thread in another network namespace; what it opens there stays there."""
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(file)
        try:
            yield
        finally:
            enter(home)
    finally:
        os.close(home)


def run_batch(tool: str, lines: Sequence[str], namespace: int, names: Sequence[int] = ()) -> None:
    """Give commands to ``ip`` or ``tc`` in a namespace. ``names``: files that the lines name as /proc/self/fd/N."""
    done = subprocess.run(
        [tool, "-batch", "-"],
        input="\n".join(lines) + "\n",
        text=True,
        capture_output=True,
        pass_fds=tuple(names),
        preexec_fn=_entering(namespace),
    )
    if done.returncode:
        said = " ".join(done.stderr.split())
        hint = ""
        if "qdisc kind is unknown" in said or "Unknown device type" in said:
            hint = "; the kernel lacks sch_tbf, veth or bridge: modprobe -a sch_tbf veth bridge"
        if "not permitted" in said:
            hint = f". {_HELP}"
        raise SpecError(f"{tool} cannot set up the emulated cluster: {said}{hint}")


def read_tool(arguments: Sequence[str], namespace: int) -> str:
    """What a command says in a namespace."""
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=_entering(namespace))
    return done.stdout


def _entering(namespace: int) -> Callable[[], None]:
    setns = _libc().setns

    def prepare() -> None:
        if setns(namespace, _CLONE_NEWNET):
            os._exit(126)

    return prepare


def _has_capabilities() -> bool:
    with open("/proc/self/status") as file:
        line = next((line for line in file if line.startswith("CapEff:")), "CapEff: 0")
    effective = int(line.split()[1], 16)
    return all(effective >> capability & 1 for capability in (_CAP_NET_ADMIN, _CAP_SYS_ADMIN))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: int) -> None:
    """A system call by the C library's name; Python 3.11 has no ``os.unshare`` and ``os.setns``."""
    if getattr(_libc(), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, "not permitted" if number == errno.EPERM else os.strerror(number))
