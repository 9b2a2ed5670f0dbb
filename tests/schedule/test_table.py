"""The table as a container: columns in and out, JSON there and back, fingerprints, and refusals of what is none."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import AtollError, ScheduleError, SpecError
from atoll.schedule.prove import prove
from atoll.schedule.table import COLUMNS, REPLACE, Columns, Header, Row, Schedule

HEADER = Header("all_reduce", 3, 2, None, "table", (0, 0, 0), (0, 0, 0), (2, 2, 2))
values = st.one_of(
    st.integers(-2, 2),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([-(2**31), -(2**15) - 1, -(2**15), -129, -128, -1, 127, 128, 2**15 - 1, 2**15, 2**31 - 1]),
)
row_lists = st.lists(st.tuples(*(values for _ in COLUMNS)).map(lambda fields: Row(*fields)), max_size=12)


def table(rows: list[Row], header: Header = HEADER) -> Schedule:
    array = np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS))
    return Schedule(header, {name: array[:, index] for index, name in enumerate(COLUMNS)})


@given(row_lists)
def test_rows_come_back_sorted_by_step_and_otherwise_in_order(rows: list[Row]) -> None:
    """Whatever integers: stored narrow, handed out whole."""
    schedule = table(rows)
    expected = sorted(rows, key=lambda row: row.step)  # stable
    assert list(schedule.rows()) == expected
    assert len(schedule) == len(rows)
    for name in COLUMNS:
        column = schedule.column(name)
        assert column.dtype == np.int64
        assert column.tolist() == [getattr(row, name) for row in expected]
    whole = schedule.columns()
    assert whole.row.tolist() == list(range(len(rows)))
    for name in COLUMNS:
        assert getattr(whole, name).tolist() == schedule.column(name).tolist()


@given(row_lists, st.data())
def test_steps_and_parts_are_rows_of_the_table(rows: list[Row], data: st.DataObject) -> None:
    schedule = table(rows)
    whole = list(schedule.rows())

    def named(columns: Columns) -> list[Row]:
        assert all(column.dtype == np.int64 for column in columns)
        got = [Row(*fields) for fields in zip(*(column.tolist() for column in columns[:-1]), strict=True)]
        assert got == [whole[at] for at in columns.row.tolist()]
        return got

    pieces = list(schedule.steps())
    assert [row for _, columns in pieces for row in named(columns)] == whole
    assert [step for step, _ in pieces] == sorted({row.step for row in rows})
    for step, columns in pieces:
        assert set(columns.step.tolist()) == {step}
    for rank in (0, 1, 2):
        assert named(schedule.rows_of(rank)) == [row for row in whole if rank in (row.src, row.dst)]
        after = range(rank, rank + 2)
        assert named(schedule.rows_of(after)) == [row for row in whole if row.src in after or row.dst in after]
    if whole:
        chosen = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=5))
        assert named(schedule.columns(np.array(chosen, dtype=np.int64))) == [whole[at] for at in chosen]
        start, stop = sorted(data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)))))
        assert named(schedule.columns(slice(start, stop))) == whole[start:stop]
        assert schedule.num_steps == whole[-1].step + 1
    else:
        assert schedule.num_steps == 0


@given(row_lists, st.sampled_from([None, 0, 2]), st.text(max_size=5).filter(lambda name: name.isprintable()))
def test_json_there_and_back(rows: list[Row], root: int | None, name: str) -> None:
    schedule = table(rows, msgspec.structs.replace(HEADER, root=root, name=name))
    text = schedule.to_json()
    back = Schedule.from_json(text)
    assert back == schedule
    assert back.header == schedule.header
    assert back.fingerprint() == schedule.fingerprint()
    assert hash(back) == hash(schedule)
    assert back.to_json() == text
    assert Schedule.from_json(text.decode()) == schedule
    assert json.loads(text)["schema_version"] == 1


def test_the_json_document_is_this() -> None:
    """Its shape is a promise: files written by one version are read by the next."""
    schedule = table([Row(1, 0, 1, 0, 1, 1, REPLACE, 0), Row(0, 2, 1, 1, 1, 1, 1, 3)])
    assert json.loads(schedule.to_json()) == {
        "schema_version": 1,
        "header": {
            "collective": "all_reduce", "world_size": 3, "chunks": 2, "root": None, "name": "table",
            "input_offset": [0, 0, 0], "output_offset": [0, 0, 0], "memory_chunks": [2, 2, 2],
        },
        "columns": {
            "step": [0, 1], "src": [2, 0], "dst": [1, 1], "src_chunk": [1, 0], "dst_chunk": [1, 1],
            "num_chunks": [1, 1], "operand_chunk": [1, -1], "channel": [3, 0],
        },
    }  # fmt: skip
    assert schedule.fingerprint() == "67446c1be3d5be557356c09f795ffb2d42858a4a66f55e00e7d6cc7be710d1cc"


def test_fingerprints_do_not_depend_on_how_columns_are_held() -> None:
    rows = [Row(step, 0, 1, step % 2, 0, 1, REPLACE, 0) for step in range(5)]
    prints = set()
    for dtype in (np.int8, np.int16, np.int32, np.int64, np.uint8, ">i4", "<u2"):
        columns = {
            name: np.array([getattr(row, name) for row in rows]).astype("i8" if name == "operand_chunk" else dtype)
            for name in COLUMNS
        }
        prints.add(Schedule(HEADER, columns).fingerprint())
    prints.add(Schedule(HEADER, {name: [getattr(row, name) for row in rows] for name in COLUMNS}).fingerprint())
    strided = {name: np.repeat(np.array([getattr(row, name) for row in rows]), 2)[::2] for name in COLUMNS}
    prints.add(Schedule(HEADER, strided).fingerprint())
    assert len(prints) == 1


@given(row_lists.filter(bool), st.data())
def test_fingerprints_tell_every_column_and_row_apart(rows: list[Row], data: st.DataObject) -> None:
    schedule = table(rows)
    at = data.draw(st.integers(0, len(rows) - 1))
    name = data.draw(st.sampled_from(COLUMNS))
    value = data.draw(values.filter(lambda value: value != getattr(rows[at], name)))
    changed = table([row._replace(**{name: value}) if place == at else row for place, row in enumerate(rows)])
    same = list(changed.rows()) == list(schedule.rows())  # equal rows may have changed places
    assert (changed == schedule) == same
    assert (changed.fingerprint() == schedule.fingerprint()) == same
    shorter = table(rows[:at] + rows[at + 1 :])
    assert shorter != schedule
    assert shorter.fingerprint() != schedule.fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"collective": "barrier"}, {"world_size": 4}, {"chunks": 3}, {"root": 0}, {"name": "other"},
        {"input_offset": (0, 0, 1)}, {"output_offset": (0, 1, 0)}, {"memory_chunks": (2, 2, 3)},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_fingerprints_tell_every_header_field_apart(change: dict[str, Any]) -> None:
    rows = [Row(0, 0, 1, 0, 0, 1, REPLACE, 0)]
    schedule, other = table(rows), table(rows, msgspec.structs.replace(HEADER, **change))
    assert {*change} <= set(Header.__struct_fields__)
    assert schedule != other
    assert schedule.fingerprint() != other.fingerprint()
    assert schedule != "a schedule"


def test_columns_are_held_narrow_and_cannot_be_changed() -> None:
    count = 1000
    given_columns = {name: np.zeros(count, dtype=np.int64) for name in COLUMNS}
    given_columns["src"][:] = 200
    given_columns["dst"][:] = 40_000
    schedule = Schedule(HEADER, given_columns)
    assert schedule.size_bytes == count * (6 * 1 + 2 + 4)
    given_columns["src"][:] = 7
    schedule.column("src")[:] = 7
    assert set(schedule.column("src").tolist()) == {200}
    # A reader may compute with what it is handed: sums far beyond the narrow type do not wrap.
    assert int((schedule.column("dst") * schedule.column("dst") * 1000).sum()) == count * 40_000**2 * 1000


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"step": None}, "columns missing: ['step']"),
        ({"steps": [0]}, "unknown: ['steps']"),
        ({"src": [0, 1]}, "columns differ in length: [1, 2]"),
        ({"src": []}, "columns differ in length: [0, 1]"),
        ({"src": [0.0]}, "column src: expected integers, got float64"),
        ({"src": ["0"]}, "column src: expected integers"),
        ({"src": [True]}, "column src: expected integers, got bool"),
        ({"src": [None]}, "column src: expected integers, got object"),
        ({"src": [[0]]}, "column src: expected one dimension, got shape (1, 1)"),
        ({"src": 0}, "column src: expected one dimension, got shape ()"),
        ({"src": [2**31]}, "column src: expected values below 2^31"),
        ({"src": [-(2**31) - 1]}, "column src: expected values below 2^31"),
        ({"src": np.array([2**64 - 1], dtype=np.uint64)}, "column src: expected values below 2^31"),
        ({"src": [10**30]}, "column src: expected integers, got object"),
        ({"src": [[0], [1, 2]]}, "column src: expected one dimension, got lists of different lengths"),
    ],
)
def test_columns_that_are_none_are_refused(columns: dict[str, Any], message: str) -> None:
    given_columns: dict[str, Any] = {name: [0] for name in COLUMNS}
    given_columns |= columns
    given_columns = {name: column for name, column in given_columns.items() if column is not None}
    with pytest.raises(SpecError) as caught:
        Schedule(HEADER, given_columns)
    assert message in str(caught.value)


def document(**changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(table([Row(0, 0, 1, 0, 0, 1, REPLACE, 0)]).to_json())
    return whole | changes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "a.json: is not a schedule in JSON"),
        ("", "a.json: is not a schedule in JSON"),
        (b"{", "is not a schedule in JSON"),
        (b"[]", "is not a schedule in JSON"),
        (b"null", "is not a schedule in JSON"),
        (b"\xff\xfe{}", "is not a schedule in JSON"),
        ("\ud800", "is not a schedule in JSON"),
        (b"[" * 100_000, "is not a schedule in JSON"),
        (b'{"a":' * 100_000, "is not a schedule in JSON"),
        (json.dumps(document(schema_version=2)), "a.json: expected schema_version 1, got 2"),
        (json.dumps(document(schema_version="1")), "$.schema_version"),
        (json.dumps(document(header={})), "$.header"),
        (json.dumps(document(columns=[])), "$.columns"),
        (json.dumps(document(columns={"step": [0]})), "a.json: schedule table: columns missing"),
        (json.dumps(document(columns={**document()["columns"], "src": [0.5]})), "$.columns"),
        (json.dumps(document(columns={**document()["columns"], "src": [10**30]})), "column src"),
        (json.dumps(document(columns={**document()["columns"], "src": [2**63]})), "column src"),
        (json.dumps(document(columns={**document()["columns"], "src": [-1, 2**63]})), "column src"),
        (json.dumps(document(columns={**document()["columns"], "extra": [0]})), "unknown: ['extra']"),
    ],
)
def test_text_that_is_no_schedule_is_refused(text: bytes | str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Schedule.from_json(text, what="a.json")
    assert message in str(caught.value)
    assert "a.json" in str(caught.value)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32))
def test_spoilt_documents_are_refused_or_read_but_never_crash(seed: int) -> None:
    """Values replaced, removed, nested; bytes flipped and cut: an error of ours, or a schedule to prove."""
    rng = random.Random(seed)
    odd = [
        None,
        True,
        -1,
        0,
        1,
        3,
        2**31,
        2**63,
        10**30,
        0.5,
        "",
        "all_gather",
        [],
        [0],
        [[0]],
        {},
        {"a": 1},
        [10**30] * 3,
    ]
    whole = document()
    for _ in range(rng.randint(1, 3)):
        node: Any = whole
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.7:
                node = node[key]
                continue
            if rng.random() < 0.2:
                del node[key]
            else:
                node[key] = copy.deepcopy(rng.choice(odd))
            break
    text = bytearray(json.dumps(whole).encode())
    if rng.random() < 0.5:
        for _ in range(rng.randint(1, 4)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        text = text[: rng.randrange(len(text) + 1)] if rng.random() < 0.3 else text
    try:
        prove(Schedule.from_json(bytes(text)))
    except AtollError as error:
        assert str(error)  # noqa: PT017
        assert isinstance(error, SpecError | ScheduleError)  # noqa: PT017


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (Row(3, 0, 1, 4, 5, 1, REPLACE, 0), "step 3: rank 0 chunk 4 -> rank 1 chunk 5"),
        (Row(0, 2, 2, 0, 4, 4, REPLACE, 0), "step 0: rank 2 chunks 0+4 -> rank 2 chunk 4"),
        (Row(0, 0, 1, 4, 5, 1, 5, 2), "step 0: rank 0 chunk 4 -> rank 1 chunk 5, reduced with it on channel 2"),
        (Row(0, 0, 1, 4, 5, 1, 6, 0), "step 0: rank 0 chunk 4 -> rank 1 chunk 5, reduced with chunk 6"),
    ],
)
def test_rows_read_as_sentences(row: Row, text: str) -> None:
    assert str(row) == text


def test_a_schedule_introduces_itself() -> None:
    schedule = table([Row(0, 0, 1, 0, 0, 1, REPLACE, 0)])
    assert repr(schedule) == "<Schedule table: all_reduce, 3 ranks, 1 rows>"
    assert (schedule.name, schedule.world_size) == ("table", 3)


@pytest.mark.parametrize(
    ("collective", "root", "inputs", "outputs", "in_place"),
    [
        ("all_reduce", None, (0, 0), (0, 0), True),
        ("all_reduce", None, (0, 0), (4, 4), False),
        ("all_reduce", None, (0, 0), (4, 3), True),  # rank 1's last chunk
        ("all_gather", None, (0, 2), (0, 0), True),
        ("all_gather", None, (4, 4), (0, 0), False),
        ("reduce_scatter", None, (0, 0), (4, 3), True),
        ("broadcast", 0, (0, 0), (4, 0), False),  # rank 1 has no input that could overlap
        ("broadcast", 1, (0, 0), (4, 0), True),
        ("gather", 1, (0, 0), (0, 4), False),  # rank 0 has no output
    ],
)
def test_in_place_is_a_fact_of_the_regions(
    collective: str, root: int | None, inputs: tuple[int, ...], outputs: tuple[int, ...], in_place: bool
) -> None:
    assert Header(collective, 2, 4, root, "regions", inputs, outputs, (8, 8)).in_place is in_place
