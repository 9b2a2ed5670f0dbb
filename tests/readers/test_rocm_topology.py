"""rocm-smi --showtopo, as text and as JSON."""

from pathlib import Path

import pytest

from atoll.errors import SpecError
from atoll.readers.rocm_topology import read_rocm_topology

SMALL = """\
====== ROCm System Management Interface ======
========== Weight between two GPUs ==========
       GPU0         GPU1
GPU0   0            15
GPU1   15           0
========== Hops between two GPUs ==========
       GPU0         GPU1
GPU0   0            1
GPU1   1            0
======== Link Type between two GPUs ========
       GPU0         GPU1
GPU0   0            XGMI
GPU1   XGMI         0
========== Numa Nodes ==========
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
GPU[1]\t\t: (Topology) Numa Node: 1
GPU[1]\t\t: (Topology) Numa Affinity: -1
====== End of ROCm SMI Log ======
"""


def test_a_small_report() -> None:
    topology = read_rocm_topology(SMALL, "topo")
    assert [(link.gpu_a, link.gpu_b) for link in topology.links] == [(0, 1), (1, 0)]
    link = topology.links[0]
    assert (link.link_type, link.weight, link.hops, link.accessible) == ("XGMI", 15, 1, None)
    assert link.source.line == 12
    assert [(gpu.numa_node, gpu.numa_affinity) for gpu in topology.gpus] == [(0, 0), (1, -1)]


def test_access_and_bandwidth_tables() -> None:
    text = (
        "=== Link accessibility between two GPUs ===\n GPU0 GPU1\nGPU0 True False\nGPU1 True True\n"
        "=== Bandwidth ===\n GPU0 GPU1\nGPU0 N/A 50000-200000\nGPU1 0-0 N/A\nFormat: min-max; Units: mps\n"
    )
    first, second = read_rocm_topology(text, "topo").links
    assert (first.accessible, second.accessible) == (False, True)
    assert (first.bandwidth_min_bytes_per_s, first.bandwidth_max_bytes_per_s) == (5e10, 2e11)
    assert second.bandwidth_max_bytes_per_s == 0


def test_json() -> None:
    text = (
        '{"system": {"(Topology) Weight between DRM devices 0 and 1": "40", '
        '"(Topology) Hops between DRM devices 0 and 1": "2", '
        '"(Topology) Link type between DRM devices 0 and 1": "PCIE"}, '
        '"card0": {"(Topology) Numa Node": "0"}, "card1": {"(Topology) Numa Node": "1"}}'
    )
    topology = read_rocm_topology(text, "topo.json")
    assert [(link.gpu_a, link.gpu_b, link.link_type, link.weight, link.hops) for link in topology.links] == [
        (0, 1, "PCIE", 40, 2),
        (1, 0, "PCIE", 40, 2),
    ]
    assert [gpu.numa_node for gpu in topology.gpus] == [0, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing\n", ["topo", "rocm-smi --showtopo"]),
        (SMALL.replace("GPU1   15           0\n", ""), ["topo:3", "GPU1", "1 of 2 rows"]),
        (SMALL.replace("GPU0   0            15", "GPU0   0"), ["topo:4", "2 cells", "got 1"]),
        (SMALL.replace("GPU0   0            15", "GPU0   0            far"), ["topo:4", "expected a number", "'far'"]),
        (SMALL[: SMALL.index("GPU1   XGMI")], ["topo:11", "GPU1 is missing"]),
        ('{"system": {}}', ["topo", "(Topology)"]),
        ("{", ["topo", "JSON"]),
    ],
)
def test_unreadable_is_an_error_with_the_line(text: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        read_rocm_topology(text, "topo")
    for word in words:
        assert word in str(caught.value)


def test_real_report(cases: Path) -> None:
    topology = read_rocm_topology((cases / "topology/a01_mi210x4_showtopo.txt").read_bytes(), "a01")
    assert len(topology.gpus) == 4
    assert len(topology.links) == 12
    assert {(link.link_type, link.weight, link.hops) for link in topology.links} == {("XGMI", 15, 1)}
    assert [gpu.numa_node for gpu in topology.gpus] == [0, 1, 2, 3]
