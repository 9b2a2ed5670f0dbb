"""Files as lines: every encoding and line end, bounded memory, refusals that keep what was read."""

import contextlib
import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.readers.text_stream import (
    BLOCK_BYTES,
    MAX_LINE_BYTES,
    Line,
    ReadRefused,
    blocks,
    feed_all,
    lines,
    text_lines,
)


def numbered(path: Path) -> list[tuple[int, str]]:
    return [(line.number, line.text) for line in lines(path)]


def read_until_refused(path: Path) -> tuple[list[bytes], ReadRefused]:
    got: list[bytes] = []
    source = blocks(path)
    try:
        for block in source:
            got.extend(block)
    except ReadRefused as error:
        return got, error
    pytest.fail(f"{path} was read to its end: {len(got)} lines")


def test_the_same_lines_from_every_form(tmp_path: Path) -> None:
    wanted = [(1, "first"), (2, "zweite Zeile mit ü"), (3, ""), (4, "last")]
    text = "first\nzweite Zeile mit ü\n\nlast"
    forms = {
        "plain": text.encode(),
        "ends with newline": text.encode() + b"\n",
        "crlf": text.replace("\n", "\r\n").encode(),
        "gzip": gzip.compress(text.encode()),
        "utf16": text.encode("utf-16"),
        "utf16 big endian": b"\xfe\xff" + text.encode("utf-16-be"),
        "ansi": text.replace("last", "\x1b[1;31mlast\x1b[0m").encode(),
    }
    for name, data in forms.items():
        path = tmp_path / name
        path.write_bytes(data)
        assert numbered(path)[:4] == wanted, name


def test_lines_that_cross_blocks_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "long"
    count = 3 * BLOCK_BYTES // 40
    path.write_bytes(b"".join(b"%039d\n" % index for index in range(count)))
    assert [int(line.text) for line in lines(path)] == list(range(count))


def test_the_prefix_is_gone_and_the_source_has_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"[1,3]<stdout>:hello\n")
    (line,) = lines(path)
    assert (line.text, line.launcher.rank) == ("hello", 3)
    assert line.source("log").text == "[1,3]<stdout>:hello"
    assert str(line.source("log")) == "log:1"


def test_bytes_that_are_no_utf8_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"caf\xe9\n")
    assert numbered(path) == [(1, "caf\\xe9")]


def test_a_cut_gzip_gives_what_came_before(tmp_path: Path) -> None:
    body = b"".join(b"line %d of the log, with some text\n" % index for index in range(50_000))
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(body)[:-2000])
    got, error = read_until_refused(path)
    assert "damaged gzip" in error.reason
    whole = body.split(b"\n")
    assert len(got) > 40_000
    assert got[:-1] == whole[: len(got) - 1]
    assert whole[len(got) - 1].startswith(got[-1])


def test_a_gzip_of_several_members_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\nthr") + gzip.compress(b"ee") + b"\0" * 100)
    assert [line.text for line in lines(path)] == ["one", "two", "three"]


def test_a_gzip_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(b"one\ntwo\n"))
    data[-6] ^= 1
    path = tmp_path / "log.gz"
    path.write_bytes(bytes(data))
    _, error = read_until_refused(path)
    assert "damaged gzip" in error.reason


def test_a_gzip_bomb_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"0\n" * (48 << 20), 9))
    with pytest.raises(ReadRefused, match="bomb"):
        for _ in blocks(path):
            pass


def test_more_than_the_limit_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x\n" * BLOCK_BYTES)
    with pytest.raises(ReadRefused, match="longer than"):
        for _ in blocks(path, max_bytes=BLOCK_BYTES):
            pass


def test_a_file_without_line_ends_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (MAX_LINE_BYTES + BLOCK_BYTES))
    with pytest.raises(ReadRefused, match="not a text log"):
        for _ in blocks(path):
            pass


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_progress_adds_up_to_the_file(tmp_path: Path, pack: type) -> None:
    path = tmp_path / "log"
    path.write_bytes(pack(b"a line\n" * 400_000))
    told: list[int] = []
    for _ in blocks(path, progress=told.append):
        pass
    assert sum(told) == path.stat().st_size
    assert min(told) >= 0


def test_one_pass_feeds_every_reader() -> None:
    class Collect:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def feed(self, line: Line) -> None:
            self.seen.append(line.text)

    readers = (Collect(), Collect())
    feed_all(text_lines("a\nb"), readers)
    assert [reader.seen for reader in readers] == [["a", "b"], ["a", "b"]]


@settings(max_examples=60)
@given(st.binary(max_size=2000))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(data)
    got: list[bytes] = []
    with contextlib.suppress(ReadRefused):
        for block in blocks(path):
            got.extend(block)
    if not data.startswith((b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff")):
        assert b"\n".join(got) == data.removesuffix(b"\n")
