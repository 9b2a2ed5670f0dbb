"""``atoll topology``, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from atoll.cli.main import main
from atoll.errors import SpecError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["topology", *arguments], catch_exceptions=False, standalone_mode=False)


DGX = """\
2 x dgx-h100: 2 nodes, 16 GPUs, 2 islands, 1 rack

nodes 0-1: dgx-h100, 8 x H100 SXM5, 8 NICs
  per direction              headline    usable  latency  from
  nvlink gpu0-7 - nvswitch0  450 GB/s  371 GB/s   300 ns  vendor
  pcie gpu0-7 - pcie0-7       63 GB/s   48 GB/s   250 ns  derived
  pcie nic0-7 - pcie0-7       63 GB/s   48 GB/s   250 ns  derived
  pcie pcie0-7 - cpu0-1       63 GB/s   48 GB/s   250 ns  derived
  smp cpu0-1 - mesh           22 GB/s   22 GB/s   300 ns  derived
  dram cpu0-1 - mem0-1       307 GB/s  230 GB/s   100 ns  derived
  network nic0-7 - network    50 GB/s   48 GB/s   600 ns  vendor

fabric rail-optimised: 8 rails, 8 leaves, 1 spine, non-blocking, adaptive routing
  per direction    headline   usable  latency  from
  leaf uplink x 2   50 GB/s  48 GB/s   250 ns  derived

routes, one at a time
  in the node           GPU 0 to 1  371 GB/s  600 ns  gpu0 > nvswitch0 > gpu1
  next node             GPU 0 to 8   48 GB/s  2.2 us  gpu0 > pcie0 > nic0 > leaf0 > nic0 > pcie0 > gpu0
  next node, other GPU  GPU 0 to 9   48 GB/s  2.8 us  gpu0 > nvswitch0 > gpu1 > pcie1 > nic1 > leaf1 > nic1 > @
""".replace("@", "pcie1 > gpu1")


def test_a_cluster_is_shown() -> None:
    assert run("show", "dgx-h100:2").stdout == DGX


def test_without_pxn_and_gpudirect_the_routes_change() -> None:
    crossing = run("show", "dgx-h100:2", "--no-pxn").stdout
    assert "nic0 > leaf0 > spine0 > leaf1 > nic1" in crossing
    staged = run("show", "dgx-h100:2", "--no-gpudirect").stdout
    assert "gpu0 > pcie0 > cpu0 > mem0 > cpu0 > pcie0 > nic0 > leaf0" in staged


def test_sources_name_the_origin_of_every_figure() -> None:
    text = run("show", "gb200-nvl72:2", "--sources").stdout
    assert "vendor: NVIDIA HGX B200, GB200 data sheets: 1.8 TB/s both ways" in text
    assert "assumed: a NIC and its cable" in text


def test_a_cluster_as_toml_may_be_changed_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(run("show", "dgx-a100", "--nodes", "4", "--toml").stdout)
    assert run("show", str(path)).stdout == run("show", "dgx-a100:4").stdout
    path.write_text(path.read_text().replace("count = 4", "count = 5"))
    assert run("show", str(path)).stdout.startswith("4 x dgx-a100: 5 nodes, 40 GPUs")
    assert run("check", str(path)).stdout == "1 cluster, nothing wrong\n"


def test_json_holds_the_whole_cluster() -> None:
    document = json.loads(run("show", "gb200-nvl72:2", "--json").stdout)
    assert document["schema_version"] == 1
    cluster = document["cluster"]
    assert (cluster["nodes"], cluster["gpus"], cluster["islands"]) == (36, 144, 2)
    assert cluster["routes"][0]["links"] == ["node0/gpu0 -> island0/nvswitch0", "island0/nvswitch0 -> node0/gpu1"]
    assert cluster["description"]["groups"][0]["node_type"]["groups"][0]["speed"]["bandwidth"]["provenance"] == "vendor"
    presets = json.loads(run("show", "--json").stdout)["presets"]
    assert {"name": "gb300-nvl72", "unit": "rack"}.items() <= {**presets[5]}.items()
    assert len(run("show").stdout.splitlines()) == len(presets)


def test_check_and_diff_of_the_wrong_file_and_its_twin(cases: Path) -> None:
    wrong, right = (str(cases / "topology_xml" / f"timez_topo_{which}.xml") for which in ("fail", "real"))
    checked = run("check", wrong, right)
    assert checked.return_value == 1
    assert checked.stdout == (
        f"T01 slow: 0000:17:00.0 has 1 nvlinks to 0000:65:00.0, which has 12 back  [{wrong}:5]\n"
        "    do: correct the file, or remove it and let NCCL detect; then compare the busbw\n"
    )
    clean = run("check", right)
    assert (clean.return_value, clean.stdout) == (0, "1 node, nothing wrong\n")
    differing = run("diff", wrong, right)
    assert (differing.return_value, differing.stdout) == (1, "gpu0: links to gpu1: 1 | 12\n")
    alike = run("diff", right, right)
    assert (alike.return_value, alike.stdout) == (0, f"{right} and {right} are alike in all that both say\n")
    document = json.loads(run("check", wrong, "--json").stdout)
    assert [problem["id"] for problem in document["problems"]] == ["T01"]
    rows = json.loads(run("diff", wrong, right, "--json").stdout)["differences"]
    assert rows == [{"device": "gpu0", "what": "links to gpu1", "left": "1", "right": "12"}]


MATRIX = """\
{host}: \tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity
{host}: GPU0\tX\t{word}\t0-7\t0
{host}: GPU1\t{word}\tX\t0-7\t0
"""


def test_one_host_of_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "all.txt"
    path.write_text(MATRIX.format(host="n1", word="NV12") + MATRIX.format(host="n2", word="NV10"))
    differing = run("diff", f"{path}@n1", f"{path}@n2")
    assert differing.stdout == "gpu0: links to gpu1: 12 | 10\ngpu1: links to gpu0: 12 | 10\n"
    with pytest.raises(SpecError, match=r"2 nodes; name one as FILE@HOST: n1, n2"):
        run("diff", str(path), str(path))
    with pytest.raises(SpecError, match="did you mean 'n2'"):
        run("diff", f"{path}@n1", f"{path}@n22")


def test_notes_say_what_was_assumed(tmp_path: Path) -> None:
    path = tmp_path / "node.txt"
    path.write_text(MATRIX.format(host="n1", word="NV12"))
    shown = run("show", str(path))
    assert shown.stdout.startswith("node: 1 node, 2 GPUs, 1 island\n\nnode 0 (n1): n1, 2 x A100, 0 NICs\n")
    assert "note: the GPU is taken for a A100" in shown.stderr
    assert json.loads(run("show", str(path), "--json").stdout)["notes"]


def test_hosts_are_named_with_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("n[01-04]\n")
    assert "nodes 0-3 (n01 ... n04): mi300x" in run("show", str(path), "--hosts-are", "mi300x").stdout


def test_forms_exclude_each_other() -> None:
    with pytest.raises(SpecError, match="choose one"):
        run("show", "dgx-h100", "--toml", "--json")
