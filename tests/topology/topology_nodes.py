"""Small inputs made for the tests of imports, lints and comparisons."""

from __future__ import annotations

from atoll.readers.topology_matrix import read_topology_matrices
from atoll.readers.topology_xml import read_topology_xml
from atoll.topology.seen import SeenNode
from atoll.topology.seen_matrix import seen_in_matrix
from atoll.topology.seen_xml import seen_in_xml


def matrix_text(bond: str = "NV8", gpus: int = 8, *, host: str = "", changes: dict[tuple[int, int], str] | None = None,
                nics: int = 0, far: tuple[int, ...] = ()) -> str:  # fmt: skip
    """A matrix of ``gpus`` GPUs and as many near NICs as asked for; ``changes`` sets single cells, ``far`` NICs that
    stand on no GPU's switch."""
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    half = gpus // 2

    def cell(a: int, b: int) -> str:
        if changes and (a, b) in changes:
            return changes[a, b]
        if a == b:
            return "X"
        if a < gpus and b < gpus:
            return bond
        x, y = (i % gpus if i >= gpus else i for i in (a, b))
        near = x == y and min(a, b) < gpus and max(a, b) - gpus not in far
        return "PIX" if near else "NODE" if (x < half) == (y < half) else "SYS"

    rows = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    for a, name in enumerate(names):
        tail = ["0-31" if a < half else "32-63", "0" if a < half else "1"] if a < gpus else []
        rows.append("\t".join([name, *(cell(a, b) for b in range(len(names))), *tail]))
    prefix = f"{host}: " if host else ""
    return "".join(f"{prefix}{row}\n" for row in rows)


def matrix_node(*arguments: object, **options: object) -> SeenNode:
    text = matrix_text(*arguments, **options)  # type: ignore[arg-type]
    return seen_in_matrix(read_topology_matrices(text, "node.txt")[0])


def xml_text(*, gpus: int = 4, links: int = 12, counts: dict[int, int] | None = None,
             widths: dict[int, int] | None = None, speeds: dict[int, int] | None = None, sm: int = 80,
             target: str = "0000:c0:00.0") -> str:  # fmt: skip
    """GPUs and NICs in pairs below PCIe switches, the GPUs' links to one NVSwitch; single figures may be changed."""
    parts = ['<system version="1">', '<cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">']
    for i in range(gpus):
        width = (widths or {}).get(i, 16)
        count = (counts or {}).get(i, links)
        speed = (speeds or {}).get(i, 200000)
        parts.append(
            f'<pci busid="0000:{i}0:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">'
            f'<pci busid="0000:{i}1:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="{width}">'
            f'<gpu dev="{i}" sm="{sm}" rank="{i}" gdr="1">'
            f'<nvlink target="{target}" count="{count}" tclass="0x068000"/></gpu></pci>'
            f'<pci busid="0000:{i}2:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16"><nic>'
            f'<net name="mlx5_{i}" dev="{i}" speed="{speed}" port="1" gdr="1"/></nic></pci></pci>'
        )
    return "\n".join([*parts, "</cpu>", "</system>"])


def xml_node(**options: object) -> SeenNode:
    return seen_in_xml(read_topology_xml(xml_text(**options), "node.xml"))  # type: ignore[arg-type]
