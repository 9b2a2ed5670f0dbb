"""Hostfiles and Slurm's node lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.readers.host_list import expand_node_list, read_host_list


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node7", ["node7"]),
        ("node[001-003,7]", ["node001", "node002", "node003", "node7"]),
        ("gpu-[8-11]", ["gpu-8", "gpu-9", "gpu-10", "gpu-11"]),
        ("r[1-2]n[08-09],login", ["r1n08", "r1n09", "r2n08", "r2n09", "login"]),
        ("a, b  c.d.example", ["a", "b", "c.d.example"]),
        ("node[1-2]-ib", ["node1-ib", "node2-ib"]),
    ],
)
def test_node_lists(text: str, expected: list[str]) -> None:
    assert list(expand_node_list(text)) == expected


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no host"),
        ("node[1-", "brackets"),
        ("node[1]]", "brackets"),
        ("node[[1]]", "brackets"),
        ("node[3-1]", "range"),
        ("node[]", "no host name"),
        ("node[1-x]", "no host name"),
        ("a;rm", "no host name"),
        ("n[0-999999999]", "more than"),
        ("n[0-999][0-999]", "more than"),
    ],
)
def test_what_is_no_list_is_refused(text: str, word: str) -> None:
    with pytest.raises(SpecError, match=word):
        expand_node_list(text)


def test_hostfiles() -> None:
    hosts = read_host_list("# mine\na slots=8 max_slots=8\nb:4\nc\nc\nn[1-2] slots = 2\n", "hostfile")
    assert [(host.name, host.slots, host.source.line) for host in hosts] == [
        ("a", 8, 2), ("b", 4, 3), ("c", 2, 4), ("n1", 2, 6), ("n2", 2, 6),
    ]  # fmt: skip


def test_errors_have_the_line() -> None:
    with pytest.raises(SpecError, match="hostfile:2"):
        read_host_list("a\n!!\n", "hostfile")
    with pytest.raises(SpecError, match="hostfile: no host"):
        read_host_list("# nothing\n", "hostfile")


@given(st.integers(0, 9999), st.integers(0, 60), st.integers(1, 5))
def test_ranges_keep_their_zeros(first: int, more: int, width: int) -> None:
    low, high = str(first).zfill(width), str(first + more)
    names = expand_node_list(f"n[{low}-{high}]x")
    assert names == tuple(f"n{str(i).zfill(max(width, len(low)))}x" for i in range(first, first + more + 1))
