"""ibstat, ibstatus and ibv_devinfo."""

# ruff: noqa: E501 (lines as programs print them)

from pathlib import Path

import pytest

from atoll.errors import SpecError
from atoll.readers.ibstat import read_ibstat

TWO_PORTS = """\
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 2
\tFirmware version: 28.39.1002
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 59
\t\tSM lid: 1
\t\tPort GUID: 0x946dae03008a5b4c
\t\tLink layer: InfiniBand
\tPort 2:
\t\tState: Down
\t\tPhysical state: Disabled
\t\tRate: 10
\t\tBase lid: 65535
\t\tSM lid: 0
\t\tLink layer: Ethernet
"""


def test_ports_of_an_adapter() -> None:
    first, second = read_ibstat(TWO_PORTS, "ib")
    assert (first.adapter, first.port, first.state, first.physical_state) == ("mlx5_0", 1, "Active", "LinkUp")
    assert (first.rate_bytes_per_s, first.link_layer, first.sm_lid, first.base_lid) == (50e9, "InfiniBand", 1, 59)
    assert (first.adapter_type, first.firmware, first.port_guid) == ("MT4129", "28.39.1002", "0x946dae03008a5b4c")
    assert first.source.line == 6, "the line that shows the state"
    assert (second.port, second.state, second.physical_state, second.link_layer) == (2, "Down", "Disabled", "Ethernet")


def test_other_tools_say_the_same() -> None:
    ibstatus = (
        "Infiniband device 'mlx5_0' port 1 status:\n\tdefault gid:\t fe80::1\n\tbase lid:\t 0x3b\n\tsm lid:\t\t 0x1\n"
        "\tstate:\t\t 4: ACTIVE\n\tphys state:\t 5: LinkUp\n\trate:\t\t 400 Gb/sec (4X NDR)\n\tlink_layer:\t InfiniBand\n"
    )
    devinfo = (
        "hca_id:\tmlx5_0\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t28.39.1002\n\t\tport:\t1\n"
        "\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tsm_lid:\t\t\t1\n\t\t\tport_lid:\t\t59\n\t\t\tlink_layer:\t\tInfiniBand\n"
        "\t\t\tactive_width:\t\t4X (2)\n\t\t\tactive_speed:\t\t100.0 Gbps (128)\n\t\t\tphys_state:\t\tLINK_UP (5)\n"
    )
    expected = read_ibstat(TWO_PORTS, "ib")[0]
    for text in (ibstatus, devinfo):
        (port,) = read_ibstat(text, "ib")
        for field in ("adapter", "port", "state", "rate_bytes_per_s", "link_layer", "sm_lid", "base_lid"):
            assert getattr(port, field) == getattr(expected, field), (field, text)


def test_hosts_from_pdsh() -> None:
    text = "".join(f"{host}: {line}\n" for host in ("n1", "n2") for line in TWO_PORTS.splitlines())
    assert [(port.host, port.port, port.state) for port in read_ibstat(text, "ib")] == [
        ("n1", 1, "Active"), ("n1", 2, "Down"), ("n2", 1, "Active"), ("n2", 2, "Down"),
    ]  # fmt: skip


def test_text_behind_the_last_adapter_is_not_its_own() -> None:
    (port, _) = read_ibstat(TWO_PORTS + "\n0x0002c90300048ca1\nState: Wrong\n", "ib")
    assert port.state == "Active"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["ib", "no port"]),
        ("CA 'mlx5_0'\n", ["no port"]),
        (TWO_PORTS.replace("Rate: 400", "Rate: fast"), ["ib:8", "Rate", "'fast'"]),
        (TWO_PORTS.replace("SM lid: 1", "SM lid: x"), ["ib:10", "LID"]),
    ],
)
def test_unreadable_is_an_error(text: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        read_ibstat(text, "ib")
    for word in words:
        assert word in str(caught.value)


def test_real_files(cases: Path) -> None:
    (waiting,) = read_ibstat((cases / "ib/nick_ibstat_initializing.txt").read_bytes(), "nick")
    assert (waiting.state, waiting.physical_state, waiting.sm_lid) == ("Initializing", "LinkUp", 0)
    mixed = read_ibstat((cases / "ib/cori_ibstat_mixed.txt").read_bytes(), "cori")
    assert [(port.adapter, round(port.rate_bytes_per_s * 8e-9), port.link_layer) for port in mixed] == [
        ("mlx4_0", 10, "Ethernet"), ("mlx5_0", 100, "InfiniBand"), ("mlx5_1", 56, "InfiniBand"),
        ("mlx5_2", 100, "InfiniBand"), ("mlx5_3", 100, "Ethernet"), ("mlx5_4", 100, "InfiniBand"),
        ("mlx5_5", 56, "InfiniBand"), ("mlx5_6", 100, "InfiniBand"), ("mlx5_7", 56, "InfiniBand"),
    ]  # fmt: skip
