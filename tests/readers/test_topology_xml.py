"""NCCL topology XML of NVIDIA, AWS, Azure and RCCL; and XML that attacks its reader."""

# ruff: noqa: E501 (lines as programs print them)

from pathlib import Path

import pytest

from atoll.errors import SpecError
from atoll.readers.topology_xml import MAX_BYTES, read_topology_xml

SMALL = """\
<?xml version="1.0"?>
<!-- a comment -->
<system version="1">
  <cpu host_hash="0xabc" numaid="1" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="17">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:0A:00.0" class="0x030200" link_speed="16 GT/s" link_width="8">
        <gpu dev="3" sm="90" rank="11" gdr="1">
          <nvlink target="0000:0B:00.0" count="18" tclass="0x068000"/>
          <c2c bw="450" count="1"/>
        </gpu>
      </pci>
      <pci busid="0000:0c:00.0" class="0x020000">
        <nic><net name="mlx5_3" dev="2" speed="400000" port="1" latency="5.0" guid="0x1" maxconn="131072" gdr="0"/></nic>
      </pci>
      <pci busid="0000:0d:00.0" class="0x020700"/>
      <pci busid="0000:0e:00.0" class="0x120000"/>
    </pci>
    <nic><net name="eth0" dev="0" speed="10000"/></nic>
  </cpu>
</system>
"""


def test_a_small_topology() -> None:
    topology = read_topology_xml(SMALL, "topo.xml")
    assert topology.version == "1"
    (cpu,) = topology.cpus
    assert (cpu.numa_id, cpu.vendor, cpu.host_hash, cpu.family_id) == (1, "AuthenticAMD", "0xabc", 25)
    assert [(pci.bus_id, pci.parent, pci.link_gt_per_s, pci.link_width) for pci in topology.pcis[:2]] == [
        ("0000:01:00.0", "", 32.0, 16),
        ("0000:0a:00.0", "0000:01:00.0", 16.0, 8),
    ]
    gpu, accelerator = topology.gpus
    assert (gpu.bus_id, gpu.dev, gpu.rank, gpu.sm, gpu.gdr, gpu.numa_id) == ("0000:0a:00.0", 3, 11, 90, True, 1)
    assert [(link.kind, link.target, link.count, link.target_class) for link in gpu.links] == [
        ("nvlink", "0000:0b:00.0", 18, 0x068000),
        ("c2c", "", 1, None),
    ]
    assert gpu.links[0].source.line == 8
    assert (accelerator.bus_id, accelerator.declared) == ("0000:0e:00.0", False)
    named, bare, socket = topology.nets
    assert (named.name, named.bus_id, named.speed_bytes_per_s, named.latency_s) == (
        "mlx5_3",
        "0000:0c:00.0",
        5e10,
        5e-6,
    )
    assert (named.gdr, named.max_connections) == (False, 131072)
    assert (bare.bus_id, bare.declared, bare.name) == ("0000:0d:00.0", False, "")
    assert (socket.name, socket.bus_id) == ("eth0", "")


BILLION_LAUGHS = """<?xml version="1.0"?>
<!DOCTYPE lolz [<!ENTITY lol "lol"><!ENTITY lol2 "&lol;&lol;&lol;">]>
<system version="1">&lol2;</system>"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["x.xml:1", "not well-formed"]),
        (SMALL[:600], ["x.xml:", "not well-formed"]),
        (BILLION_LAUGHS, ["x.xml:2", "DOCTYPE", "refused"]),
        ("<system>" + "<a>" * 200, ["x.xml:1", "deeper than"]),
        ("<system>" + "<a/>" * 100_001 + "</system>", ["elements"]),
        ("<graphs version='1'/>", ["x.xml:1", "<graphs>", "rings and trees"]),
        ("<algo/>", ["<system>", "MSCCL"]),
        ("<html><body/></html>", ["<system>", "<html>"]),
        (SMALL.replace('count="18"', 'count="many"'), ["x.xml:8", "count", "'many'"]),
        (SMALL.replace('count="18"', 'count="-4"'), ["x.xml:8", "-4"]),
        (SMALL.replace('speed="400000"', 'speed="1e400"'), ["x.xml:13", "speed"]),
        (SMALL.replace('busid="0000:0A:00.0"', ""), ["x.xml:6", "busid"]),
        (SMALL.replace('target="0000:0B:00.0"', ""), ["x.xml:8", "target"]),
        ("<system><cpu><gpu dev='0'/></cpu></system>", ["outside a <pci>"]),
        ("<system><nvlink target='a' count='1'/></system>", ["outside a <gpu>"]),
        ("<system/> text", ["x.xml:1", "not well-formed"]),
    ],
)
def test_unreadable_or_hostile_is_refused(text: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        read_topology_xml(text, "x.xml")
    for word in words:
        assert word in str(caught.value)


def test_external_entities_are_never_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("<gpu/>")
    text = f'<!DOCTYPE system SYSTEM "file://{secret}"><system version="1"/>'
    with pytest.raises(SpecError, match="DOCTYPE"):
        read_topology_xml(text, "x.xml")


def test_size_is_bounded() -> None:
    with pytest.raises(SpecError, match="bytes of XML"):
        read_topology_xml(b" " * (MAX_BYTES + 1), "x.xml")


def test_real_files(cases: Path) -> None:
    found = {}
    for path in sorted((cases / "topology_xml").glob("*.xml")):
        topology = read_topology_xml(path.read_bytes(), path.name)
        found[path.name] = (len(topology.cpus), len(topology.gpus), len(topology.nets))
    assert found == {
        "aws_p4d-24xl-topo.xml": (2, 8, 4),
        "aws_p5.48xl-topo.xml": (1, 8, 32),
        "azure_ndv2_v100-topo.xml": (2, 8, 1),
        "azure_ndv4_a100-topo.xml": (4, 8, 8),
        "azure_ndv5_h100-topo.xml": (2, 8, 8),
        "rccl_topo_4p3l.xml": (1, 4, 2),
        "rccl_topo_8p_pcie.xml": (1, 8, 1),
        "timez_topo_fail.xml": (1, 2, 1),
        "timez_topo_real.xml": (1, 2, 1),
    }
    counts = {
        name: [
            link.count
            for gpu in read_topology_xml((cases / f"topology_xml/timez_topo_{name}.xml").read_bytes(), name).gpus
            for link in gpu.links
        ]
        for name in ("fail", "real")
    }
    assert counts == {"fail": [1, 12], "real": [12, 12]}
    aws = read_topology_xml((cases / "topology_xml/aws_p5.48xl-topo.xml").read_bytes(), "p5")
    assert {net.speed_bytes_per_s for net in aws.nets} == {12.5e9}


def test_schedules_are_not_topologies(cases: Path) -> None:
    for path in (cases / "schedules").glob("*.xml"):
        with pytest.raises(SpecError, match="MSCCL schedule"):
            read_topology_xml(path.read_bytes(), path.name)
