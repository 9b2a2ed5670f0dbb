"""nvidia-smi topo -m in every form that people paste."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.readers.topology_matrix import TopologyMatrix, nvlinks, read_topology_matrices

SMALL = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tPIX\t0-23\t0\t\tN/A
GPU1\tNV12\t X \tSYS\t24-47\t1\t\tN/A
NIC0\tPIX\tSYS\t X \t\t\t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_bond_0
"""


def one(text: str, **options: bool) -> TopologyMatrix:
    (matrix,) = read_topology_matrices(text, "topo.txt", **options)
    return matrix


def test_a_small_matrix() -> None:
    matrix = one(SMALL)
    assert [device.name for device in matrix.devices] == ["GPU0", "GPU1", "NIC0"]
    assert [device.kind for device in matrix.devices] == ["gpu", "gpu", "nic"]
    assert matrix.devices[0].cells == ("X", "NV12", "PIX")
    assert matrix.devices[1].source.line == 3
    assert matrix.devices[2].hca == "mlx5_bond_0"
    assert (matrix.devices[1].cpu_affinity, matrix.devices[1].numa_affinity) == ("24-47", "1")
    assert matrix.devices[0].gpu_numa_id == ""
    assert matrix.complete
    assert matrix.path("GPU1", "NIC0") == "SYS"
    assert matrix.path("GPU1", "NIC9") is None
    assert nvlinks(matrix.path("GPU0", "GPU1")) == 12
    assert nvlinks("SYS") == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\t", "    "),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\tGPU0\tGPU1", "\t\x1b[4mGPU0\tGPU1", 1).replace(
            "GPU NUMA ID", "GPU NUMA ID\x1b[0m"
        ),
        lambda text: "".join(f"2024-01-01T00:00:00.5Z {line}\n" for line in text.splitlines()),
        lambda text: "$ nvidia-smi topo -m\n```\n" + text + "```\n",
    ],
    ids=["spaces", "crlf", "ansi", "shipped", "fenced"],
)
def test_dress_does_not_matter(change) -> None:
    plain, dressed = one(SMALL), one(change(SMALL))
    assert [(d.name, d.cells, d.hca, d.cpu_affinity) for d in dressed.devices] == [
        (d.name, d.cells, d.hca, d.cpu_affinity) for d in plain.devices
    ]


def test_old_drivers_name_adapters_as_columns_and_say_soc() -> None:
    matrix = one("\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tSOC\tPHB\t0-9\nGPU1\tSOC\t X \tSOC\t10-19\n")
    assert matrix.devices[2].hca == "mlx5_0"
    assert matrix.path("GPU0", "GPU1") == "SOC"
    assert matrix.path("mlx5_0", "GPU0") == "PHB", "the row of the NIC is missing; the GPU's says it"
    assert not matrix.complete


def test_peer_to_peer_matrix() -> None:
    matrix = one(" \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n")
    assert matrix.path("GPU0", "GPU1") == "GNS"


def test_several_hosts_with_pdsh_labels() -> None:
    labelled = "".join(f"{host}: {line}\n" for host in ("n1", "n2") for line in SMALL.splitlines())
    matrices = read_topology_matrices(labelled, "all.txt")
    assert [matrix.host for matrix in matrices] == ["n1", "n2"]
    assert all(matrix.complete and matrix.devices[2].hca == "mlx5_bond_0" for matrix in matrices)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello\nworld\n", ["topo.txt", "no topology matrix", "nvidia-smi topo -m"]),
        (SMALL.replace("\tNV12\tPIX\t0-23\t0\t\tN/A", "\tNV12"), ["topo.txt:2", "GPU0", "2 of 3 cells"]),
        (SMALL.replace("\tNV12\tPIX", "\tMV12\tPIX"), ["topo.txt:2", "GPU1", "MV12"]),
        (SMALL.replace("GPU1\tNV12\t X \tSYS\t24-47\t1\t\tN/A\n", ""), ["topo.txt:1", "row of GPU1 is missing"]),
        (SMALL.replace("GPU1\tNV12\t X ", "GPU0\tNV12\t X "), ["topo.txt:3", "second row 'GPU0'"]),
        (SMALL.replace("\tGPU0\tGPU1\tNIC0", "\tGPU0\tGPU0\tNIC0"), ["topo.txt:1", "3 columns", "2 differ"]),
        (SMALL.replace("NIC0\tPIX", "NIC7\tPIX"), ["topo.txt:4", "'NIC7', which is no column"]),
    ],
)
def test_unreadable_is_an_error_with_the_line(text: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        one(text)
    for word in words:
        assert word in str(caught.value)


def test_partial_is_read_where_it_is_allowed() -> None:
    matrix = one(SMALL.replace("GPU1\tNV12\t X \tSYS\t24-47\t1\t\tN/A\n", ""), allow_partial=True)
    assert not matrix.complete
    assert matrix.devices[1].cells == (None, None, None)
    assert matrix.path("GPU1", "GPU0") == "NV12"


@given(st.integers(1, 12), st.integers(0, 6), st.sampled_from(["\t", "   "]), st.booleans(), st.data())
def test_what_is_printed_is_read(gpus: int, nics: int, gap: str, tail: bool, data: st.DataObject) -> None:
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    if len(names) == 1:
        tail = True
    cell = st.sampled_from(["NV1", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"])
    grid = [["X" if a == b else data.draw(cell) for b in names] for a in names]
    lines = [gap + gap.join(names) + (gap + "CPU Affinity" + gap + "NUMA Affinity" if tail else "")]
    for name, row in zip(names, grid, strict=True):
        lines.append(gap.join([name, *row, *(["0-7", "0"] if tail and name.startswith("GPU") else [])]))
    matrix = one("\n".join(lines) + "\n")
    assert [list(device.cells) for device in matrix.devices] == grid
    assert matrix.complete
    assert matrix.devices[0].cpu_affinity == ("0-7" if tail else "")


def test_real_matrices(cases: Path) -> None:
    found = {}
    for path in sorted((cases / "topology").glob("t*.txt")):
        (matrix,) = read_topology_matrices(path.read_bytes(), path.name)
        found[path.name] = (len(matrix.of_kind("gpu")), len(matrix.of_kind("nic")), matrix.path("GPU0", "GPU1"))
        assert matrix.complete
    assert found == {
        "t01_hopper8_nv18_10nic_ansi.txt": (8, 10, "NV18"),
        "t10_a100x8_nv12.txt": (8, 0, "NV12"),
        "t12_2gpu_nv2.txt": (2, 0, "NV2"),
        "t13_2gpu_phb.txt": (2, 0, "PHB"),
    }
    (hopper,) = read_topology_matrices((cases / "topology/t01_hopper8_nv18_10nic_ansi.txt").read_bytes(), "t01")
    assert hopper.devices[8 + 9].hca == "mlx5_9"
    assert hopper.path("GPU0", "NIC3") == "PIX"
    assert hopper.devices[4].numa_affinity == "1"
