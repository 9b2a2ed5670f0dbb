"""Fixtures of tests that make an emulated cluster."""

import fcntl
import os
import shutil
from collections.abc import Iterator

import pytest

CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21  # linux/capability.h


def _effective_capabilities() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One test at a time: each start ends what it takes for leftovers, and other tests leave some on purpose.

    Skips where network namespaces cannot be made in this process.
    """
    have = _effective_capabilities()
    if not (have >> CAP_NET_ADMIN & 1 and have >> CAP_SYS_ADMIN & 1):
        pytest.skip("an emulated cluster in the test's own process needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            pytest.skip(f"an emulated cluster needs the command {tool} of iproute2")
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    with open(base / "emulated-cluster.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
