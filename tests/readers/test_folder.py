"""A folder is walked to its end, whatever lies in it, and what is left out is named with the reason."""

import gzip
import os
from pathlib import Path

import pytest

from atoll.errors import SpecError
from atoll.readers.folder import Found, Skipped, walk
from atoll.readers.identify import Kind

NCCL = b"node1:41:77 [3] NCCL INFO Connected all rings\n"


def test_everything_is_found_or_skipped_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "rank0.txt").write_bytes(NCCL)
    (tmp_path / "rank1.gz").write_bytes(gzip.compress(NCCL))
    (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "empty").touch()
    (tmp_path / "packed").write_bytes(b"PK\x03\x04rest of a zip")
    (tmp_path / "cut.gz").write_bytes(b"\x1f\x8b\x08garbage")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "deep" / "up").symlink_to("..", target_is_directory=True)
    with open(tmp_path / "huge", "wb") as file:
        file.write(NCCL)
        file.truncate(1 << 40)
    seen = list(walk([tmp_path]))
    found = {item.name: item for item in seen if isinstance(item, Found)}
    skipped = {item.name: item.reason for item in seen if isinstance(item, Skipped)}
    assert set(found) == {"deep/er/rank0.txt", "rank1.gz"}
    assert found["rank1.gz"].compressed
    assert found["rank1.gz"].kind is Kind.NCCL_LOG
    for name, part in {
        "model.bin": "binary",
        "empty": "empty",
        "packed": "zip",
        "cut.gz": "gzip",
        "pipe": "not a regular file",
        "loop": "symbolic links",
        "deep/up": "read already",
        "huge": "1 TiB is more than the limit",
    }.items():
        assert part in skipped[name], (name, skipped)
    assert len(seen) == len(found) + 8


def test_order_is_fixed_and_progress_counts(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).write_bytes(NCCL)
    told: list[int] = []
    names = [item.name for item in walk([tmp_path], progress=told.append)]
    assert names == ["a", "b", "c"]
    assert told == [1, 2, 3]


def test_single_files_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(NCCL)
    (item,) = walk([path])
    assert isinstance(item, Found)
    assert (item.name, item.path, item.size_bytes) == ("log", str(path), len(NCCL))


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        list(walk([tmp_path / "gone"]))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_no_permission_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(NCCL)
    path.chmod(0)
    (item,) = walk([tmp_path])
    assert isinstance(item, Skipped)
    assert "cannot be read" in item.reason


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9"
    with open(name, "wb") as file:
        file.write(NCCL)
    (item,) = walk([tmp_path])
    assert isinstance(item, Found)


def test_real_folder(cases: Path) -> None:
    seen = list(walk([cases]))
    assert not [item for item in seen if isinstance(item, Skipped)]
    assert sum(item.kind is Kind.FLIGHT_RECORDER for item in seen if isinstance(item, Found)) == 32
