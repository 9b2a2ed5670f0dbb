"""Every launcher's label is peeled, says what it says, and leaves the rest of the line alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.readers.launcher_prefix import LauncherPrefix, split_prefix

LINE = b"node1:41:77 [3] NCCL INFO Connected all rings"

PREFIXES = [
    (b"", LauncherPrefix()),
    (b"[1,5]<stdout>:", LauncherPrefix("mpirun", rank=5, stream="stdout")),
    (b"[1,12]<stderr>: ", LauncherPrefix("mpirun", rank=12, stream="stderr")),
    (b"[prterun-head-7@1,3]<stdout>: ", LauncherPrefix("mpirun", rank=3, stream="stdout")),
    (b" 5: ", LauncherPrefix("srun", rank=5)),
    (b"1023: ", LauncherPrefix("srun", rank=1023)),
    (b"[rank3]:", LauncherPrefix("torchrun", rank=3)),
    (b"[default6]:", LauncherPrefix("torchrun", local_rank=6)),
    (b"(Worker pid=71, ip=10.0.0.2) ", LauncherPrefix("ray", pid=71, host="10.0.0.2")),
    (b"(Engine_0 pid=7) (RayWorkerWrapper pid=9) ", LauncherPrefix("ray", pid=9)),
    (b"2026-05-01T10:11:12.123456789Z ", LauncherPrefix(time="2026-05-01T10:11:12.123456789Z")),
    (b"2026-05-01T10:11:12.123Z stdout F ", LauncherPrefix(time="2026-05-01T10:11:12.123Z")),
    (b"[2026-05-01 10:11:12] ", LauncherPrefix(time="2026-05-01 10:11:12")),
    (b"worker-0  | ", LauncherPrefix("container", host="worker-0")),
    (b"2026-05-01T10:11:12Z  5: ", LauncherPrefix("srun", rank=5, time="2026-05-01T10:11:12Z")),
    (b"[pod/w-0/train] ", LauncherPrefix("container", host="w-0")),
    (b"[actor2]:", LauncherPrefix("torchrun", local_rank=2)),
    (b"May  1 10:11:12 n7 python[41]: ", LauncherPrefix("syslog", pid=41, host="n7", time="May  1 10:11:12")),
    (b"[4] ", LauncherPrefix("mpich", rank=4)),
]


@pytest.mark.parametrize(("label", "says"), PREFIXES)
def test_label_is_peeled(label: bytes, says: LauncherPrefix) -> None:
    prefix, at = split_prefix(label + LINE)
    assert (label + LINE)[at:] == LINE
    assert prefix == says


@pytest.mark.parametrize(
    "line", [b"12:30", b"error: 5: no", b"[3] of 7", b"rank 3: x", b"5:", b"a | b"[:1], b"10:20:30"]
)
def test_what_is_no_label_stays(line: bytes) -> None:
    assert split_prefix(line) == (LauncherPrefix(), 0)


@given(st.binary(max_size=200))
def test_any_bytes(line: bytes) -> None:
    prefix, at = split_prefix(line)
    assert 0 <= at <= len(line)
    assert (at == 0) == (prefix == LauncherPrefix())
