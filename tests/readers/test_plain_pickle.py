"""Pickles of plain data are read as the standard unpickler reads them; nothing else is read at all."""

import contextlib
import os
import pickle
import pickletools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.readers.plain_pickle import load_plain_pickle

SCALARS = (
    st.none() | st.booleans() | st.integers(-(1 << 80), 1 << 80) | st.floats(allow_nan=False) | st.text() | st.binary()
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.booleans(), inner, max_size=4)
    ),
    max_leaves=25,
)


@given(PLAIN, st.integers(3, 5))
def test_plain_data_is_read_as_pickle_reads_it(value: object, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert load_plain_pickle(data) == value
    assert load_plain_pickle(pickletools.optimize(data)) == value


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20))  # fmt: skip
def test_protocol_two_as_pytorch_writes_it(value: object) -> None:
    assert load_plain_pickle(pickle.dumps(value, 2)) == value


def test_shared_and_recursive_values() -> None:
    shared: list[object] = [1]
    shared.append(shared)
    read = load_plain_pickle(pickle.dumps([shared, shared]))
    assert read[0] is read[1]
    assert read[0][1] is read[0]


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", [Bomb(), {"entries": [Bomb()]}, 1 + 2j, {1, 2}, os.path.join, ValueError("x")])
def test_anything_that_needs_a_class_is_refused(value: object, protocol: int, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"dump: .*refused"):
        load_plain_pickle(pickle.dumps(value, protocol), "dump")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x02",
        b"\x80\x02]",
        b"\x80\x09N.",
        b"cos\nsystem\n(S'ls'\ntR.",
        b"\x80\x02]r\xff\xff\xff\xff",
        b"\x80\x02h\x05.",
        b"\x80\x02X\xff\xff\xff\x7fabc.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"\x80\x02\x8b\xff\xff\xff\xff.",
        b"\x80\x02Na.",
        b"\x80\x02NNs.",
        b"\x80\x02(Nt",
        b"\x80\x02\x86.",
        b"\x80\x02(\x85.",
        b"\x80\x02}(]Nu.",
        b"\x80\x02}(NNNu.",
        b"\x80\x02P1\n.",
        b"\x80\x02Q.",
        b"\x80\x02\x82\x01.",
        b"\xff\xfe\xfd",
        b"\x80\x02T\xff\xff\xff\xff.",
    ],
)
def test_damaged_or_hostile_is_refused(data: bytes) -> None:
    with pytest.raises(SpecError, match="dump"):
        load_plain_pickle(data, "dump")


def test_a_memo_index_costs_nothing() -> None:
    assert load_plain_pickle(b"\x80\x02]r\xff\xff\xff\xff0j\xff\xff\xff\xff.") == []


def test_a_deeply_nested_key_cannot_overflow_the_stack() -> None:
    data = b"\x80\x02})" + b"\x85" * 200_000 + b"Ns."
    with pytest.raises(SpecError, match="tuple as key"):
        load_plain_pickle(data)
    nested = load_plain_pickle(b"\x80\x02)" + b"\x85" * 200_000 + b".")
    assert type(nested) is tuple


@given(st.binary(max_size=200))
def test_any_bytes_give_data_or_a_refusal(data: bytes) -> None:
    with contextlib.suppress(SpecError):
        value = load_plain_pickle(b"\x80\x02" + data)
        assert type(value) in (type(None), bool, int, float, str, bytes, list, tuple, dict)
