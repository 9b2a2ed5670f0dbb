"""What tools print, as nodes: trees that give the words back, imports that can be routed, lints, comparisons."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_nodes import matrix_node, matrix_text, xml_node, xml_text

from atoll.errors import SpecError
from atoll.readers.topology_matrix import TopologyMatrix, nvlinks, read_topology_matrices
from atoll.readers.topology_xml import read_topology_xml
from atoll.topology.diff import diff_nodes
from atoll.topology.gpu_models import assumed_family
from atoll.topology.lint import lint_node, lint_nodes
from atoll.topology.load import Loaded, cluster_of_hosts, load_cluster, read_file, seen_nodes
from atoll.topology.node_paths import node_paths
from atoll.topology.routes import find_routes
from atoll.topology.seen import SWITCH, SeenNode
from atoll.topology.seen_matrix import seen_in_matrix
from atoll.topology.seen_node import import_cluster, import_node
from atoll.topology.seen_xml import seen_in_xml

HEALTHY = {
    "topology/a01_mi210x4_showtopo.txt", "topology/t01_hopper8_nv18_10nic_ansi.txt", "topology/t10_a100x8_nv12.txt",
    "topology/t12_2gpu_nv2.txt", "topology/t13_2gpu_phb.txt", "topology_xml/aws_p4d-24xl-topo.xml",
    "topology_xml/aws_p5.48xl-topo.xml", "topology_xml/azure_ndv2_v100-topo.xml",
    "topology_xml/azure_ndv4_a100-topo.xml", "topology_xml/azure_ndv5_h100-topo.xml",
    "topology_xml/rccl_topo_4p3l.xml", "topology_xml/rccl_topo_8p_pcie.xml", "topology_xml/timez_topo_real.xml",
}  # fmt: skip


def ids(node: SeenNode, gpu: str = "") -> list[str]:
    return [problem.id for problem in lint_node(node, gpu)]


# --- lints -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_real_healthy_nodes_are_clean(cases: Path, name: str) -> None:
    file = cases / name
    for node in seen_nodes(file.read_bytes(), file.name):
        assert ids(node) == []


def test_the_wrong_file_of_a_machine_is_caught_and_its_twin_is_not(cases: Path) -> None:
    wrong, right = (
        seen_nodes((cases / "topology_xml" / f"timez_topo_{which}.xml").read_bytes(), which)[0]
        for which in ("fail", "real")
    )
    (problem,) = lint_node(wrong)
    assert problem.id == "T01"
    assert problem.what == "0000:17:00.0 has 1 nvlinks to 0000:65:00.0, which has 12 back"
    assert problem.sources[0].line == 5
    assert [(one.device, one.left, one.right) for one in diff_nodes(wrong, right)] == [("gpu0", "1", "12")]
    slow, fast = (import_node(node).node_type for node in (wrong, right))
    assert slow.island_bytes_per_s("gpu0", usable=False) * 12 == fast.island_bytes_per_s("gpu0", usable=False)
    assert slow.island_bytes_per_s("gpu1") == fast.island_bytes_per_s("gpu1")


@pytest.mark.parametrize("counts", [(1, 12), (12, 1), (12, 0), (0, 12)])
def test_ends_that_disagree_are_caught_in_either_order(counts: tuple[int, int]) -> None:
    gpus = "".join(
        f'<pci busid="0000:0{i}:00.0" class="0x030200"><gpu dev="{i}" sm="80" rank="{i}">'
        + (f'<nvlink target="0000:0{1 - i}:00.0" count="{count}" tclass="0x030200"/>' if count else "")
        + "</gpu></pci>"
        for i, count in enumerate(counts)
    )
    node = seen_in_xml(read_topology_xml(f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>', "x"))
    (problem,) = lint_node(node)
    assert problem.id == "T01"
    assert {str(count) for count in counts} <= set(re.findall(r"\d+", problem.what.partition(" has ")[2]))


def test_links_to_several_switch_chips_are_one_bond() -> None:
    chips = "".join(f'<nvlink target="0000:c{i}:00.0" count="6" tclass="0x068000"/>' for i in range(3))
    text = re.sub("<nvlink[^>]*/>", chips, xml_text(sm=90))
    node = seen_in_xml(read_topology_xml(text, "x"))
    assert lint_node(node) == ()
    assert {gpu.count_to(SWITCH) for gpu in node.gpus} == {18}
    assert import_node(node).node_type.island_bytes_per_s("gpu0", usable=False) == 450e9


@pytest.mark.parametrize(
    ("bond", "gpu", "expected"),
    [
        ("NV8", "", []), ("NV8", "NVIDIA A800-SXM4-80GB", []), ("NV8", "NVIDIA H800", []), ("NV12", "A100-SXM4", []),
        ("NV18", "NVIDIA H100 80GB HBM3", []), ("NV18", "NVIDIA H20", []), ("NV6", "Tesla V100-SXM3-32GB", []),
        ("NV8", "NVIDIA H100 80GB HBM3", ["T03"]), ("NV12", "NVIDIA H100 80GB HBM3", ["T03"]),
        ("NV8", "NVIDIA A100-SXM4-80GB", ["T03"]), ("NV5", "Tesla V100-SXM3-32GB", ["T03"]), ("NV17", "", ["T07"]),
        ("NV16", "NVIDIA B200", ["T03"]), ("PIX", "NVIDIA H100 80GB HBM3", []),
    ],
)  # fmt: skip
def test_links_of_a_whole_board_are_judged_by_the_model(bond: str, gpu: str, expected: list[str]) -> None:
    assert ids(matrix_node(bond), gpu) == expected


@pytest.mark.parametrize(
    ("name", "sm", "links", "expected"),
    [
        ("NVIDIA A800-SXM4-80GB", 80, 8, "A800"), ("", 80, 8, "A800"), ("", 80, 12, "A100"), ("", 90, 8, "H800"),
        ("", 90, 18, "H100"), ("", 90, 0, "H100"), ("", 100, 18, "B200"), ("", None, 18, "H100"), ("", None, 3, None),
        ("", 86, 4, None), ("NVIDIA GB200", None, 18, "GB200"),
    ],
)  # fmt: skip
def test_the_family_that_figures_are_taken_from(name: str, sm: int | None, links: int, expected: str | None) -> None:
    family = assumed_family(name, sm, links)
    assert (family.name if family is not None else None) == expected


def test_direct_boards_of_four_share_their_links_out() -> None:
    assert ids(matrix_node("NV4", 4), "NVIDIA A100-SXM4-40GB") == []
    assert ids(matrix_node("NV6", 4), "NVIDIA H100 80GB HBM3") == []
    assert ids(matrix_node("NV3", 4), "NVIDIA A100-SXM4-40GB") == ["T03"]


def test_one_pair_with_fewer_links_and_one_direction_of_a_matrix() -> None:
    pair = {(2, 5): "NV7", (5, 2): "NV7"}
    node = matrix_node("NV8", changes={**pair, **{(2, i): "NV7" for i in range(8) if i != 2},
                                       **{(i, 2): "NV7" for i in range(8) if i != 2}})  # fmt: skip
    assert [problem.things for problem in lint_node(node)] == [("GPU2",)]
    (problem,) = lint_node(matrix_node("NV8", changes=pair))
    assert (problem.id, problem.what) == ("T03", "GPU2 to GPU5 has 7 links, their other pairs have 8")
    (problem,) = lint_node(matrix_node("NV8", changes={(1, 2): "NV4"}))
    assert (problem.id, problem.what) == ("T08", "GPU1 to GPU2 is NV4, back it is NV8")


def test_a_gpu_without_a_near_nic_is_named_unless_none_has_one() -> None:
    (problem,) = lint_node(matrix_node("NV8", nics=8, far=(3,)))
    assert (problem.id, problem.things, problem.level) == ("T09", ("GPU3",), "notice")
    assert ids(matrix_node("NV8", nics=8)) == []
    assert ids(matrix_node("NV8", nics=8, far=tuple(range(8)))) == []
    assert ids(matrix_node("NV8", nics=4)) == []  # shared by design


def test_faults_of_a_file() -> None:
    assert ids(xml_node()) == []
    assert ids(xml_node(links=8)) == []  # A800 has the compute capability of A100
    assert ids(xml_node(links=10)) == ["T07"]
    assert ids(xml_node(counts={1: 10})) == ["T03"]
    assert [(p.id, p.things) for p in lint_node(xml_node(widths={2: 8}))] == [("T05", ("0000:21:00.0",))]
    (slow,) = lint_node(xml_node(speeds={3: 100000}))
    assert (slow.id, slow.what) == ("T10", "NIC mlx5_3 runs at 100 Gb/s, its twins at 200")
    twice = xml_text().replace('rank="1"', 'rank="0"')
    assert ids(seen_in_xml(read_topology_xml(twice, "x"))) == ["T04"]
    lost = xml_text().replace('tclass="0x068000"', 'tclass="0x030200"')
    assert ids(seen_in_xml(read_topology_xml(lost, "x"))) == ["T02"] * 4
    assert ids(seen_in_xml(read_topology_xml('<system version="1"/>', "x"))) == ["T06"]


def test_the_one_node_that_differs_from_the_others_is_named() -> None:
    text = "".join(matrix_text(host=f"n{i}", nics=8, far=(1,) if i == 2 else ()) for i in range(4))
    found = lint_nodes([seen_in_matrix(matrix) for matrix in read_topology_matrices(text, "all.txt")])
    assert [(problem.id, problem.host) for problem in found] == [("T09", "n2"), ("T11", "n2")]
    same = [matrix_node(host=f"n{i}") for i in range(3)]
    assert lint_nodes(same) == ()


# --- imports ---------------------------------------------------------------------------------------------------------

_COARSE = {"NODE": "PHB", "PSB": "PXB", "SOC": "SYS"}


def words_come_back(matrix: TopologyMatrix) -> None:
    """The imported node's own words are the matrix's, as far as a tree of CPUs tells them apart."""
    node_type = import_node(seen_in_matrix(matrix)).node_type
    paths = node_paths(node_type)
    gpus, nics = matrix.of_kind("gpu"), matrix.of_kind("nic")
    index = {device.name: at for at, device in enumerate(matrix.devices)}
    for i, a in enumerate(gpus):
        for j, b in enumerate(gpus):
            cell = a.cells[index[b.name]] or ""
            assert paths.words[i][j] == _COARSE.get(cell, cell)
        for j, nic in enumerate(nics):
            cell = a.cells[index[nic.name]] or ""
            assert paths.nic_words[i][j] == _COARSE.get(cell, cell)


def test_matrices_of_real_nodes_come_back_word_for_word(cases: Path) -> None:
    for name in ("t01_hopper8_nv18_10nic_ansi", "t10_a100x8_nv12", "t12_2gpu_nv2", "t13_2gpu_phb"):
        for matrix in read_topology_matrices((cases / "topology" / f"{name}.txt").read_bytes(), name):
            words_come_back(matrix)


@settings(max_examples=60)
@given(st.data())
def test_matrices_of_any_tree_come_back_word_for_word(data: st.DataObject) -> None:
    """Devices on random leaves of a tree of CPUs, switches and switches below switches."""
    gpus, nics = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 5))
    at = data.draw(
        st.lists(st.tuples(*[st.integers(0, 1)] * 3), min_size=gpus + nics, max_size=gpus + nics)
    )  # (cpu, switch of the CPU, switch below it)
    bond = data.draw(st.sampled_from(["", "NV12", "NV18"])) if gpus > 2 else ""
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]

    def word(a: int, b: int) -> str:
        if a == b:
            return "X"
        if bond and a < gpus and b < gpus:
            return bond
        x, y = at[a], at[b]
        return "PIX" if x == y else "PXB" if x[:2] == y[:2] else "PHB" if x[0] == y[0] else "SYS"

    rows = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    for a, name in enumerate(names):
        tail = [f"{at[a][0]}-{at[a][0]}", str(at[a][0])] if a < gpus else []
        rows.append("\t".join([name, *(word(a, b) for b in range(len(names))), *tail]))
    matrix = read_topology_matrices("\n".join(rows) + "\n", "x")[0]
    words_come_back(matrix)
    assert {problem.id for problem in lint_node(seen_in_matrix(matrix))} <= ({"T09"} if nics >= gpus > 1 else set())


def test_cpus_are_told_apart_by_affinity_where_nvlink_hides_the_rest() -> None:
    node = matrix_node("NV8")
    assert [gpu.parent for gpu in node.gpus] == ["cpu0"] * 4 + ["cpu1"] * 4
    unknown = matrix_text("NV8").replace("0-31\t0", "N/A\tN/A").replace("32-63\t1", "N/A\tN/A")
    alone = seen_in_matrix(read_topology_matrices(unknown, "x")[0])
    assert {gpu.parent for gpu in alone.gpus} == {"cpu0"}


def test_hybrid_boards_pass_on_over_one_gpu_and_far_pairs_use_pcie() -> None:
    """Four GPUs in a line: neighbours are joined, ends are not."""
    cells = {(a, b): ("X" if a == b else "NV2" if abs(a - b) == 1 else "PHB") for a in range(4) for b in range(4)}
    node = matrix_node("", 4, changes=cells)
    paths = node_paths(import_node(node).node_type)
    assert paths.words[0] == ("X", "NV2", "NVB", "PHB")


def test_real_files_import_as_nodes_that_can_be_routed(cases: Path) -> None:
    for name in sorted(HEALTHY):
        loaded = load_cluster(str(cases / name))
        cluster = loaded.cluster
        gpus = range(cluster.num_gpus)
        routes = find_routes(cluster, [a for a in gpus for _ in gpus], [b for _ in gpus for b in gpus])
        assert (routes.bottleneck_bytes_per_s(cluster) > 1e9).all()
        for seen in loaded.seen:
            assert diff_nodes(seen, seen) == ()
            for gpu in seen.gpus:
                assert cluster.groups[0].node_type.island_links(gpu.name) == gpu.island_links


def test_a_vendor_file_and_a_gpu_name_give_the_machine(cases: Path) -> None:
    for file, gpu, preset_name, nodes in (
        ("azure_ndv5_h100-topo.xml", "H100", "azure-ndv5", 4), ("azure_ndv4_a100-topo.xml", "A100", "azure-ndv4", 4),
    ):  # fmt: skip
        imported = load_cluster(str(cases / "topology_xml" / file), gpu_name=gpu, nodes=nodes).cluster
        known = load_cluster(preset_name, nodes=nodes).cluster
        for pair in ((0, 1), (0, 7), (0, 8), (3, 31)):
            ours, theirs = (
                float(find_routes(cluster, *pair).bottleneck_bytes_per_s(cluster, usable=False)[0])
                for cluster in (imported, known)
            )
            assert ours == pytest.approx(theirs)
        paths = [node_paths(cluster.groups[0].node_type) for cluster in (imported, known)]
        assert paths[0].nic_words == paths[1].nic_words
        assert paths[0].words == paths[1].words
        assert paths[0].near == paths[1].near


def test_assumptions_are_said() -> None:
    imported = import_node(matrix_node("NV18", nics=8))
    text = " ".join(imported.notes)
    for part in ("taken for a H100", "NICs are taken for 400 Gb/s", "PCIe links are taken for 32 GT/s"):
        assert part in text
    told = import_node(xml_node(), gpu_name="A100", nic_gbit_per_s=100)
    assert told.notes == ()
    assert told.node_type.gpu.nvlinks == 12
    assert {link.speed.bandwidth.value for link in told.node_type.links if link.b == SWITCH} == {300e9}


def test_several_hosts_of_one_kind_are_one_group_each_with_its_name() -> None:
    text = "".join(matrix_text("NV8", host=f"n{i}") for i in range(2))
    seen = [seen_in_matrix(matrix) for matrix in read_topology_matrices(text, "x")]
    with pytest.raises(SpecError, match="give \\[fabric\\]"):
        import_cluster(seen, "two")
    one, notes = import_cluster(seen[:1], "one")
    assert (one.node_name(0), one.num_gpus) == ("n0", 8)
    assert len(notes) == len(set(notes))


def test_the_matrix_of_peer_access_is_refused() -> None:
    text = "\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n"
    with pytest.raises(SpecError, match="topo -p2p"):
        seen_nodes(text.encode(), "p2p.txt")


# --- damage ----------------------------------------------------------------------------------------------------------

ROCM = """\
============================ Hops between two GPUs =============================
       GPU0  GPU1  GPU2
GPU0   0     1     2
GPU1   1     0     1
GPU2   2     1     0
========================== Link Type between two GPUs ==========================
       GPU0  GPU1  GPU2
GPU0   0     XGMI  XGMI
GPU1   XGMI  0     XGMI
GPU2   XGMI  XGMI  0
================================== Numa Nodes ==================================
GPU[0]   : (Topology) Numa Node: 0
GPU[1]   : (Topology) Numa Node: 0
GPU[2]   : (Topology) Numa Node: 1
"""


@settings(max_examples=150)
@given(st.data())
def test_damaged_files_give_a_node_or_a_clear_refusal(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([ROCM, xml_text(gpus=3), matrix_text("NV8", 4, nics=4), matrix_text("PHB", 2)]))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 30)))
        middle = data.draw(st.sampled_from(["", text[start:end] * 2, "GPU7", "NV99", "nvlink", "0", "-1", "\t", "\n"]))
        text = text[:start] + middle + text[end:]
    with contextlib.suppress(SpecError):
        seen = seen_nodes(text.encode(), "x")
        lint_nodes(seen)
        for node in seen:
            assert diff_nodes(node, node) == ()
            node_type = import_node(node).node_type
            assert len(node_type.gpus) == len(node.gpus)
            node_paths(node_type)


def test_rocm_links_are_direct_where_one_hop_is_and_contradictions_are_named() -> None:
    (node,) = seen_nodes(ROCM.encode(), "x")
    assert lint_node(node) == ()
    words = node_paths(import_node(node).node_type).words
    assert words[0] == ("X", "XGMI1", "NVB")  # two hops, over the GPU between them
    wrong = ROCM.replace("GPU2   2     1     0", "GPU2   1     1     0")
    (problem,) = lint_node(seen_nodes(wrong.encode(), "x")[0])
    assert (problem.id, problem.what) == ("T08", "GPU0 to GPU2 is XGMI, 2 hops, back it is XGMI, 1 hop")


# --- loading ---------------------------------------------------------------------------------------------------------


def load(folder: Path, name: str, text: str, **options: object) -> Loaded:
    path = folder / name
    path.write_text(text)
    return load_cluster(str(path), **options)  # type: ignore[arg-type]


def test_targets_are_presets_files_and_hosts(tmp_path: Path) -> None:
    assert load_cluster("gb200-nvl72:2").cluster.num_gpus == 144
    assert load_cluster("gb200-nvl72", nodes=16).cluster.num_gpus == 64
    hosts = load(tmp_path, "hosts", "n[01-03] slots=8\n", host_type="dgx-h100").cluster
    assert (hosts.num_gpus, hosts.node_name(2)) == (24, "n03")
    many = load(tmp_path, "m.txt", matrix_text("NV8", nics=8), nodes=6).cluster
    assert find_routes(many, 0, 47).bottleneck_bytes_per_s(many)[0] > 20e9


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("dgx-h10", {}, "did you mean 'dgx-h100'"), ("dgx-h100:0", {}, "at least one node"),
        ("dgx-h100:2", {"nodes": 3}, "give the count once"), ("no/such.txt", {}, "cannot be read"),
        ("no-such-preset", {}, "unknown preset"), (".", {}, "cannot be read"),
    ],
)  # fmt: skip
def test_targets_that_are_none(target: str, options: dict[str, int], said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        load_cluster(target, **options)  # type: ignore[arg-type]


def test_files_of_other_kinds_say_what_they_are(tmp_path: Path) -> None:
    for name, text, said in (
        ("h", "n1 slots=8\nn2 slots=8\n", "--hosts-are"),
        ("log", "n1:1:1 [0] NCCL INFO Bootstrap : Using eth0\n", "nccl log"),
        ("empty", "", "no topology matrix"), ("x.toml", "name = 1\n", "expected a name"),
        ("two", matrix_text(host="a") + matrix_text(host="b"), "2 nodes and nothing between"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=said):
            load(tmp_path, name, text)
    with pytest.raises(SpecError, match="16 slots; a dgx-h100 has 8 GPUs"):
        load(tmp_path, "h", "n1 slots=16\n", host_type="dgx-h100")
    with pytest.raises(SpecError, match="says itself how many"):
        load(tmp_path, "h", "n1 slots=8\n", host_type="dgx-h100", nodes=4)
    with pytest.raises(SpecError, match="unknown preset"):
        cluster_of_hosts((), "dgx")
    assert read_file(str(tmp_path / "h")) == b"n1 slots=8\n"


# --- comparisons -----------------------------------------------------------------------------------------------------


def test_differences_are_named_device_by_device() -> None:
    left = xml_node()
    right = xml_node(counts={1: 11}, widths={2: 8}, speeds={3: 100000})
    found = [(one.device, one.what, one.left, one.right) for one in diff_nodes(left, right)]
    assert found == [
        ("gpu1", "links to nvswitch0", "12", "11"),
        ("gpu2", "PCIe", "16 GT/s x16", "16 GT/s x8"),
        ("nic3", "speed", "25 GB/s", "12.5 GB/s"),
    ]
    mirrored = [(one.device, one.what, one.right, one.left) for one in diff_nodes(right, left)]
    assert mirrored == found


def test_a_missing_gpu_and_a_moved_nic() -> None:
    fewer = diff_nodes(matrix_node("NV8", 8, nics=8), matrix_node("NV8", 6, nics=6))
    assert ("node", "GPUs", "8", "6") in [(one.device, one.what, one.left, one.right) for one in fewer]
    assert {one.device for one in fewer if one.what == "presence"} == {"gpu6", "gpu7"}
    moved = diff_nodes(matrix_node("NV8", nics=8), matrix_node("NV8", nics=8, far=(2,)))
    assert [(one.device, one.what, one.left, one.right) for one in moved] == [("gpu2", "path to nic2", "PIX", "PHB")]


def test_a_matrix_and_a_file_of_one_machine_are_alike() -> None:
    file = xml_node(gpus=8, links=8)
    matrix = matrix_node("NV8", nics=8)
    assert [one.device for one in diff_nodes(file, matrix) if one.what.startswith("links")] == []
    assert nvlinks("NV8") == file.gpus[0].island_links
    with pytest.raises(SpecError, match="nothing to compare"):
        diff_nodes(file, seen_in_xml(read_topology_xml('<system version="1"/>', "x")))
