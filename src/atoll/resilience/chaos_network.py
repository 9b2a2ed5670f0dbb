"""A cable for every rank that can be pulled: network namespaces on one bridge, all gone with this process.

The observer moves into a network namespace of its own, which holds the bridge and one end of every cable; each rank
moves into the namespace of its place before it begins. A cable that is pulled (its end is set down) drops everything
without a word to either side, as a dead switch port does.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from typing import Final

from atoll.errors import SpecError

_CLONE_NEWNET: Final = 0x40000000
_SUBNET: Final = "10.97.0"


def networks_possible() -> bool:
    """Whether ``Cables`` can be made: by root who may (not in every container), with iproute2 and util-linux."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0


class Cables:
    """``places`` namespaces with one cable each. Moves this process into a new one; it must have no threads."""

    def __init__(self, places: int) -> None:
        if places > 200:
            raise SpecError(f"expected at most 200 ranks and spares in one network, got {places}")
        _unshare()
        home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        _ip("link set lo up", "link add br0 type bridge", "link set br0 up")
        self._namespaces: list[int] = []
        try:
            for place in range(places):
                _unshare()
                self._namespaces.append(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
                _ip("link set lo up")
                _setns(home)
                path = f"/proc/{os.getpid()}/fd/{self._namespaces[place]}"
                _ip(f"link add c{place} type veth peer name eth0 netns {path}", f"link set c{place} master br0 up")
                _setns(self._namespaces[place])
                _ip(f"addr add {self.address(place)}/24 dev eth0", "link set eth0 up")
                _setns(home)
        finally:
            os.close(home)

    @staticmethod
    def address(place: int) -> str:
        """The address of a place."""
        return f"{_SUBNET}.{place + 1}"

    def enter(self, place: int) -> None:
        """Move this process, a rank before it begins, into its place."""
        _setns(self._namespaces[place])

    @staticmethod
    def pull(place: int) -> None:
        """Cut a place off."""
        _ip(f"link set c{place} down")

    @staticmethod
    def plug(place: int) -> None:
        """Put its cable back."""
        _ip(f"link set c{place} up")


def _unshare() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise SpecError(f"a network namespace is not allowed here: {os.strerror(ctypes.get_errno())}")


def _setns(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise SpecError(f"a network namespace cannot be entered: {os.strerror(ctypes.get_errno())}")


def _ip(*commands: str) -> None:
    done = subprocess.run(
        ["ip", "-batch", "-"], input="\n".join(commands), capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode != 0:
        raise SpecError(f"ip {'; '.join(commands)}: {done.stderr.strip()}")
