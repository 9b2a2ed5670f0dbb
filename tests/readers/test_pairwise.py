"""Pairwise results: CSV, and runs over two hosts; and tables of measured rows."""

from pathlib import Path

import pytest

from atoll.errors import SpecError
from atoll.readers.bandwidth_table import read_bandwidth_table
from atoll.readers.nccl_tests import read_nccl_tests
from atoll.readers.pairwise import pair_results, read_pairwise_csv


def test_csv_columns_by_name() -> None:
    text = "dst;src;busbw;error\n# comment\nb;a;12.5;\nc;a;nan;boom; and more\n"
    first, second = read_pairwise_csv(text, "p.csv")
    assert (first.host_a, first.host_b, first.average_busbw_bytes_per_s, first.source.line) == ("a", "b", 12.5e9, 3)
    assert (second.average_busbw_bytes_per_s, second.error, second.gpus_per_node) == (None, "boom; and more", None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["p.csv", "node_a"]),
        ("a_host,b_host\nx,y\n", ["p.csv:1", "a_host"]),
        ("node_a,node_b,avg_busbw\nx\n", ["p.csv:2", "3 columns"]),
        ("node_a,node_b,avg_busbw\nx,y,fast\n", ["p.csv:2", "'fast'"]),
        ("node_a,node_b,avg_busbw\nx,y,-3\n", ["p.csv:2", "'-3'"]),
    ],
)
def test_unreadable_is_an_error_with_the_line(text: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        read_pairwise_csv(text, "p.csv")
    for word in words:
        assert word in str(caught.value)


def test_real_pairs(cases: Path) -> None:
    csv = cases / "nccl_tests/xx_pairwise_17node_h100.csv"
    pairs = read_pairwise_csv(csv.read_bytes(), csv.name)
    assert len(pairs) == 408
    assert {pair.gpus_per_node for pair in pairs} == {1, 4, 8}
    assert len({pair.host_a for pair in pairs} | {pair.host_b for pair in pairs}) == 17
    assert sum(1 for pair in pairs if pair.error) == 23
    silent = [pair for pair in pairs if pair.average_busbw_bytes_per_s is None and not pair.error]
    assert [(pair.host_a, pair.host_b, pair.gpus_per_node) for pair in silent] == [
        ("cnode2-003", "cnode2-008", 4),
        ("cnode2-003", "cnode2-008", 8),
    ]

    def of(name: str) -> list[tuple[object, ...]]:
        path = cases / "nccl_tests" / name
        return [
            (
                pair.host_a,
                pair.host_b,
                pair.gpus_per_node,
                pair.average_busbw_bytes_per_s,
                pair.collective,
                bool(pair.error),
            )
            for pair in pair_results(read_nccl_tests(path.read_bytes(), path.name))
        ]

    assert of("xx_N2_G1_cnode2-001_cnode2-002.log") == [
        ("cnode2-001", "cnode2-002", 1, 13.4689e9, "all_to_all", False),
        ("cnode2-001", "cnode2-002", 1, 13.5405e9, "send_recv", False),
    ]
    assert of("xx_N2_G4_cnode2-001_cnode2-003.log") == [
        ("cnode2-001", "cnode2-003", 4, None, "all_to_all", True),
        ("cnode2-001", "cnode2-003", 4, 5.9895e9, "send_recv", False),
    ]


def test_tables_of_measured_rows(cases: Path) -> None:
    found = {}
    for path in sorted((cases / "collective_times").glob("*.txt")):
        run = read_bandwidth_table(path.read_bytes(), path.name)
        found[path.name[:12]] = (run.collective, run.world_size, len(run.rows))
    assert found == {
        "a100x8_1node": ("all_to_all", 8, 34),
        "aws_p5_2node": ("all_reduce", 16, 32),
        "coreweave_h1": ("all_reduce", 96, 5),
        "issue290_h10": ("all_reduce", 16, 11),
        "issue309_h10": ("all_reduce", 16, 32),
        "oci_gb200_12": ("all_to_all", None, 2),
        "oci_gb200_64": ("all_to_all", 64, 2),
    }
    bad = read_bandwidth_table(
        (cases / "collective_times/issue290_h100_2node_16gpu_allreduce_badfabric.txt").read_bytes(), "b"
    )
    assert "8x CX-7 NDR" in bad.options["hardware"]
    last = bad.rows[-1].out_of_place
    assert last is not None
    assert (last.time_s, last.busbw_bytes_per_s) == (103530e-6, 155.57e9)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 2 3\n", ["t:1", "# columns"]),
        ("# columns: time\n", ["t", "size_bytes"]),
        ("# columns: size_bytes oop_time_us\n8\n", ["t:2", "2 columns, got 1"]),
        ("# columns: size_bytes oop_time_us\n8 x\n", ["t:2", "oop_time_us", "'x'"]),
        ("# columns: size_bytes oop_time_us\n8.5 1\n", ["t:2", "size_bytes"]),
    ],
)
def test_unreadable_tables_are_errors_with_the_line(text: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        read_bandwidth_table(text, "t")
    for word in words:
        assert word in str(caught.value)
