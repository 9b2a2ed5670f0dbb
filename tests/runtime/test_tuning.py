"""The tuning file and the choice that follows from it: readable, checked, and alike on all ranks."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.algorithms.catalog import names
from atoll.errors import SpecError
from atoll.runtime.choice import Chooser, Layout, assumed, layout_of
from atoll.runtime.stability import ORDERS, Order, stable_algorithms
from atoll.runtime.tuning import (
    DEFAULT_FILE,
    MAX_PACKED_BYTES,
    MEASURED_FILE,
    TRANSPORTS,
    Fit,
    Table,
    Tuning,
    format_tuning,
    load_tuning,
    pack,
    parse_tuning,
    unpack,
)
from atoll.schedule.contract import COLLECTIVES
from atoll.schedule.cost import Link
from atoll.schedule.prove import prove

SMALL = """
schema_version = 1
[origin]
machine = "two cores"
[[table]]
collective = "all_reduce"
transport = "tcp"
world = 4
any = { 0 = "recursive_doubling", 64K = "direct", 1M = "ring" }
fixed = { 0 = "recursive_doubling", 1M = "halving_doubling" }
sizes = ["8", "1M"]
link = { latency = "20us", bandwidth = "1.5GB/s", reduce = "4GB/s", off = 0.25 }
[table.measured]
ring = ["80us", "2ms"]
direct = ["40us", ""]
"""


def test_a_file_says_what_is_taken_from_which_size_on() -> None:
    tuning = parse_tuning(SMALL)
    (table,) = tuning.tables
    chosen = [table.algorithm(size, "any") for size in (0, 65_535, 65_536, (1 << 20) - 1, 1 << 20, 1 << 40)]
    assert chosen == ["recursive_doubling", "recursive_doubling", "direct", "direct", "ring", "ring"]
    assert table.algorithm(1 << 20, "fixed") == "halving_doubling"
    assert table.algorithm(8, "rank") is None
    assert table.measured["ring"] == pytest.approx((80e-6, 2e-3))
    assert table.measured["direct"] == (pytest.approx(40e-6), None)
    assert table.fit is not None
    assert table.fit.off == 0.25
    assert [table.fit.link.latency_s, table.fit.link.reduce_bytes_per_s] == pytest.approx([20e-6, 4e9])
    assert tuning.origin == {"machine": "two cores"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("schema_version = 1", "schema_version = 2", "schema_version: expected 1, got 2"),
        ("[origin]", "[orgin]", "unknown key 'orgin'.*origin"),
        ("any = {", "anny = {", "table 1: unknown key 'anny'.*any"),
        ('"all_reduce"', '"all_reduse"', "collective: unknown 'all_reduse'.*all_reduce"),
        ('"tcp"', '"tpc"', "transport:.*tcp"),
        ("world = 4", "world = 0", "world of at least 1"),
        ("64K =", "64Q =", "64Q"),
        ("{ 0 =", "{ 8 =", r"any: expected sizes that ascend from 0, got \[8"),
        ("1M = \"ring\"", "1K = \"ring\"", "ascend from 0"),
        ('"direct", 1M', '"dirct", 1M', "any: unknown algorithm 'dirct'.*direct"),
        ('1M = "halving_doubling"', '1M = "ring"', "fixed: ring has not that order.*recursive_doubling"),
        ('["80us", "2ms"]', '["80us"]', "ring: expected 2 times"),
        ('"80us"', '"80uss"', "ring: expected a duration"),
        ('"1.5GB/s"', "7", "latency and bandwidth as text"),
        ("world = 4", "world = 4 4", "not TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(old: str, new: str, words: str) -> None:
    assert old in SMALL
    with pytest.raises(SpecError, match=words):
        parse_tuning(SMALL.replace(old, new, 1))


def test_two_tables_for_one_case_are_refused() -> None:
    with pytest.raises(SpecError, match="two such tables"):
        parse_tuning(SMALL + SMALL[SMALL.index("[[table]]") :])


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SpecError, match=r"nowhere\.toml.*cannot be read"):
        load_tuning("nowhere.toml")


@st.composite
def tunings(draw: st.DrawFn) -> Tuning:
    keys = draw(
        st.lists(
            st.tuples(st.sampled_from(sorted(COLLECTIVES)), st.sampled_from(TRANSPORTS), st.integers(1, 64)),
            unique=True, max_size=4,
        )
    )  # fmt: skip
    tables = []
    for collective, transport, world_size in keys:
        rules: dict[Order, tuple[tuple[int, str], ...]] = {}
        for order in ORDERS:
            allowed = stable_algorithms(collective, order) or names(collective)
            starts = draw(st.lists(st.integers(1, 1 << 40), unique=True, max_size=4).map(sorted))
            rules[order] = tuple((start, draw(st.sampled_from(allowed))) for start in (0, *starts))
        sizes = tuple(draw(st.lists(st.integers(0, 1 << 40), unique=True, max_size=3).map(sorted)))
        time = st.none() | st.sampled_from([1e-6, 35e-6, 1.5e-3, 2.0])
        measured = {
            name: tuple(draw(st.lists(time, min_size=len(sizes), max_size=len(sizes))))
            for name in draw(st.sets(st.sampled_from(names(collective)), max_size=2) if sizes else st.just(set()))
        }
        fit = draw(st.none() | st.just(Fit(Link(9e-6, 4.5e9), 0.25)) | st.just(Fit(Link(9e-6, 4.5e9, 2e9), 0.5)))
        tables.append(Table(collective, transport, world_size, rules, sizes, measured, fit))
    origin = draw(st.dictionaries(st.text(min_size=1, max_size=9), st.text(max_size=9), max_size=2))
    return Tuning(tuple(tables), origin)


@settings(max_examples=40)
@given(tunings())
def test_what_is_written_is_read_again(tuning: Tuning) -> None:
    text = format_tuning(tuning)
    again = parse_tuning(text)
    assert format_tuning(again) == text
    assert [
        (table.collective, table.transport, table.world_size, table.rules, table.sizes_bytes) for table in again.tables
    ] == [
        (table.collective, table.transport, table.world_size, table.rules, table.sizes_bytes) for table in tuning.tables
    ]
    assert again.origin == tuning.origin
    for ours, theirs in zip(again.tables, tuning.tables, strict=True):
        assert set(ours.measured) == set(theirs.measured)
        for name, times in theirs.measured.items():
            assert ours.measured[name] == tuple(time if time is None else pytest.approx(time) for time in times)


@settings(max_examples=40)
@given(tunings())
def test_the_rules_travel(tuning: Tuning) -> None:
    came = unpack(pack(tuning))
    assert [(table.collective, table.transport, table.world_size, table.rules) for table in came.tables] == [
        (table.collective, table.transport, table.world_size, table.rules) for table in tuning.tables
    ]
    assert not any(table.measured for table in came.tables)


@given(st.binary(min_size=1, max_size=80))
def test_nothing_received_is_trusted(packed: bytes) -> None:
    with pytest.raises(SpecError, match="the tuning that rank 0 has sent"):
        unpack(packed)


def test_more_than_can_be_sent_is_refused() -> None:
    tables = tuple(
        Table("all_reduce", "tcp", world, {"any": tuple((4 * k, "recursive_doubling") for k in range(200))})
        for world in range(1, 40)
    )
    with pytest.raises(SpecError, match=str(MAX_PACKED_BYTES)):
        pack(Tuning(tables))


def table(world_size: int, name: str, transport: str = "tcp") -> Table:
    return Table("all_reduce", transport, world_size, {"any": ((0, name),)})


def test_the_nearest_world_speaks_up_to_twice_and_down_to_half() -> None:
    tuning = Tuning((table(2, "ring"), table(4, "direct"), table(16, "bruck")))
    chosen = {
        world: Chooser(tuning, Layout(world, "tcp")).choose("all_reduce", 1 << 20)
        for world in (1, 2, 3, 5, 8, 11, 32, 33)
    }
    nowhere = assumed("all_reduce", 33, 1 << 20)
    assert chosen == {1: "ring", 2: "ring", 3: "direct", 5: "direct", 8: "bruck", 11: "bruck", 32: "bruck",
                      33: nowhere}  # fmt: skip


def test_another_transport_or_order_does_not_speak() -> None:
    tuning = Tuning((table(4, "ring", "shm"),))
    assert Chooser(tuning, Layout(4, "shm")).choose("all_reduce", 8) == "ring"
    assert Chooser(tuning, Layout(4, "tcp")).choose("all_reduce", 8) == assumed("all_reduce", 4, 8)
    assert Chooser(tuning, Layout(4, "shm")).choose("all_reduce", 8, "fixed") == "recursive_doubling"
    over_tcp = Tuning((table(4, "ring"),))
    assert Chooser(over_tcp, Layout(4, "mixed", (0, 0, 1, 1))).choose("all_reduce", 8) == "ring"


def test_layouts() -> None:
    assert layout_of(["a", "a", "a"], shared_memory=True) == Layout(3, "shm")
    assert layout_of(["a", "a", "a"], shared_memory=False) == Layout(3, "tcp")
    assert layout_of(["a", "b", "c"], shared_memory=True) == Layout(3, "tcp")
    assert layout_of(["b", "a", "b"], shared_memory=True) == Layout(3, "mixed", (0, 1, 0))


def test_across_hosts_the_hierarchical_one_has_hosts_as_islands() -> None:
    chooser = Chooser(load_tuning(None), layout_of(["a", "b", "a", "b", "a"], shared_memory=True))
    assert chooser.choose("all_reduce", 16 << 20) == "hierarchical"
    schedule = prove(chooser.build("all_reduce", "hierarchical", None)).schedule
    rows = schedule.columns()
    across = {(int(src), int(dst)) for src, dst in zip(rows.src, rows.dst, strict=True) if (src - dst) % 2}
    inside = {(int(src), int(dst)) for src, dst in zip(rows.src, rows.dst, strict=True) if (src - dst) % 2 == 0}
    assert {frozenset(pair) for pair in inside} >= {frozenset((1, 3)), frozenset((0, 2))}
    assert len(across) < 2 * 6  # not everybody with everybody


def test_the_shipped_file_speaks_of_algorithms_that_are_there() -> None:
    shipped = load_tuning(None)
    assert pack(shipped)
    for transport in TRANSPORTS:
        for world_size in (2, 3, 4, 8, 64):
            islands = tuple(rank % 2 for rank in range(world_size)) if transport == "mixed" else ()
            chooser = Chooser(shipped, Layout(world_size, transport, islands))
            for collective in COLLECTIVES:
                for size in (1, 1 << 10, 1 << 20, 1 << 28):
                    assert chooser.choose(collective, size) in names(collective)


def test_the_shipped_rules_are_those_of_the_shipped_measurements() -> None:
    rules, measured = load_tuning(DEFAULT_FILE), load_tuning(MEASURED_FILE)
    assert pack(rules) == pack(measured)
    for table in measured.tables:
        for name in {name for listed in table.rules.values() for _, name in listed}:
            assert table.transport == "mixed" or any(table.measured[name]), (table.collective, name)


def test_times_survive_within_their_digits() -> None:
    written = format_tuning(Tuning((Table("barrier", "shm", 2, {"any": ((0, "dissemination"),)}, (1,),
                                          {"dissemination": (12.3456e-6,)}),)))  # fmt: skip
    (time,) = parse_tuning(written).tables[0].measured["dissemination"]
    assert time is not None
    assert math.isclose(time, 12.3456e-6, rel_tol=1e-2)


SCRIPT = """
import os, sys
import numpy as np
import atoll

rank = os.environ["ATOLL_RANK"]
with atoll.init() as comm:
    work = comm.all_reduce(np.ones(4096, np.float32), async_op=True)
    words = repr(work)
    assert float(work.wait()[0]) == comm.world_size
    split = comm.split(comm.rank % 2)
    split.all_reduce(np.ones(1, np.float32))
    print(rank, words[words.index("algorithm="):].split(")")[0])
    comm.barrier()
"""


def test_rank_0s_table_is_everybodys(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    for rank, name in enumerate(("swing", "naive", "bruck")):
        tables = tuple(Table("all_reduce", transport, 3, {"any": ((0, name),)}) for transport in ("tcp", "shm"))
        (tmp_path / f"{rank}.toml").write_text(format_tuning(Tuning(tables)))
    command = f"ATOLL_TUNING={tmp_path}/$ATOLL_RANK.toml exec {sys.executable} {tmp_path}/job.py"
    ran = subprocess.run(
        [sys.executable, "-m", "atoll", "launch", "-n", "3", "--", "sh", "-c", command],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert sorted(ran.stdout.splitlines()) == [f"{rank} algorithm=swing" for rank in range(3)], ran.stderr


def test_a_tuning_file_that_is_wrong_is_said_by_rank_0(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("schema_version = 1\n[[table]]\n")
    ran = subprocess.run(
        [sys.executable, "-c", f"import atoll; atoll.init(tuning={str(tmp_path / 'bad.toml')!r})"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "bad.toml: table 1: collective" in ran.stderr
