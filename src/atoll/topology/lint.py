"""What is wrong with a topology before NCCL, or a simulation, believes it.

NCCL takes a topology file at its word: a wrong number of links silently becomes a wrong number of channels. The lints
work on what was seen (``seen``), so that each is written once for matrices, files and tools; ``LINTS`` names them. What
a file does not say is not wrong. Numbers of links are judged by the GPU's name or compute capability: 8 on an A800 is
healthy. ``lint_nodes`` also compares the nodes of one kind with each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeVar

import msgspec

from atoll.readers.source import Source
from atoll.topology.gpu_models import HEALTHY_BONDS, family_of, healthy_links, on_a_board
from atoll.topology.seen import SWITCH, PciRate, SeenGpu, SeenNode

LINTS: Final[dict[str, str]] = {
    "T01": "the two ends of a link do not agree on how many links there are",
    "T02": "a link leads to a bus id that is not in the file",
    "T03": "a GPU has fewer links than the others of its board, or than its model",
    "T04": "a bus id, device number or rank is given twice",
    "T05": "a GPU's or NIC's PCIe link is narrower or slower than its neighbours'",
    "T06": "the file names no GPU",
    "T07": "a number of NVLinks that no product has",
    "T08": "the matrix says different things in its two directions",
    "T09": "a GPU has no near NIC although the others have",
    "T10": "a NIC is slower than its twins",
    "T11": "a node differs from the others of its kind",
}
_LOOK_AT_LINKS: Final = (
    "look at nvidia-smi nvlink -s and the kernel log; a link that is down asks for a reset or a new board"
)
Level = Literal["slow", "notice"]
_Value = TypeVar("_Value", float, int)


class Problem(msgspec.Struct, frozen=True):
    """One fault: ``things`` are the devices it is about, as the file calls them; ``level`` ``slow`` costs bandwidth."""

    id: str
    what: str
    do: str
    things: tuple[str, ...]
    sources: tuple[Source, ...]
    level: Level = "slow"
    host: str = ""


def lint_nodes(nodes: Sequence[SeenNode], gpu_name: str = "") -> tuple[Problem, ...]:
    """Everything that is wrong with the nodes, and with one among three or more of a format."""
    found = [problem for node in nodes for problem in lint_node(node, gpu_name)]
    return (*found, *_outsiders(nodes))


def lint_node(node: SeenNode, gpu_name: str = "") -> tuple[Problem, ...]:
    """Everything that is wrong with one node. ``gpu_name`` gives the number of links to expect."""
    if not node.gpus:
        return (
            Problem("T06", "the file names no GPU", "take the dump on a node with GPUs", (), (node.source,), "notice",
                    node.host),
        )  # fmt: skip
    found = [*_contradictions(node), *_ends(node), *_repeated(node), *_narrow(node), *_slow_nics(node)]
    # Fewer links than the neighbours is the same fault as ends that disagree, said less well.
    if not any(problem.id in ("T01", "T08") for problem in found):
        found += _few_links(node, gpu_name)
    found += _far_nics(node)
    return tuple(msgspec.structs.replace(problem, host=node.host) for problem in found)


def _contradictions(node: SeenNode) -> Iterable[Problem]:
    for one in node.contradictions:
        yield Problem(
            "T08", f"{one.a} to {one.b} is {one.there}, back it is {one.back}",
            "take it again; if it stays, look at nvidia-smi nvlink -s on both GPUs", (one.a, one.b), one.sources,
        )  # fmt: skip


def _ends(node: SeenNode) -> Iterable[Problem]:
    by_name = {gpu.name: gpu for gpu in node.gpus}
    said = {frozenset((one.a, one.b)) for one in node.contradictions}
    for gpu in node.gpus:
        for target in dict.fromkeys(link.target for link in gpu.links if link.kind != "c2c"):
            link = next(link for link in gpu.links if link.target == target)
            here, far = gpu.count_to(target), by_name.get(target)
            if far is None:
                if link.to_gpu and target:
                    yield Problem(
                        "T02", f"a link of {gpu.label} leads to the GPU {target}, which is not in the file",
                        "dump the topology with all GPUs visible", (gpu.label, target), (link.source,),
                    )  # fmt: skip
                continue
            back = far.count_to(gpu.name)
            first_end = back == 0 or _before(node, gpu, far)
            if back != here and first_end and frozenset((gpu.label, far.label)) not in said:
                others = tuple(other.source for other in far.links if other.target == gpu.name)
                yield Problem(
                    "T01", f"{gpu.label} has {here} {link.kind}s to {far.label}, which has {back} back",
                    "correct the file, or remove it and let NCCL detect; then compare the busbw",
                    (gpu.label, far.label), (link.source, *others[:1]),
                )  # fmt: skip


def _before(node: SeenNode, gpu: SeenGpu, far: SeenGpu) -> bool:
    order = [other.name for other in node.gpus]
    return order.index(gpu.name) < order.index(far.name)


def _repeated(node: SeenNode) -> Iterable[Problem]:
    for one in node.repeated:
        yield Problem(
            "T04",
            f"{one.what} {one.value} is given to {len(one.labels)} GPUs",
            "correct the file",
            one.labels,
            one.sources,
        )


def _narrow(node: SeenNode) -> Iterable[Problem]:
    """PCIe links of GPUs, and of NICs of one speed, against the majority of their kind."""
    kinds: list[tuple[str, list[tuple[str, PciRate | None, Source]]]] = [
        ("GPU", [(gpu.label, gpu.pci, gpu.source) for gpu in node.gpus])
    ]
    kinds += [
        ("NIC", [(nic.label, nic.pci, nic.source) for nic in node.nics if nic.bytes_per_s == speed])
        for speed in dict.fromkeys(nic.bytes_per_s for nic in node.nics if nic.bytes_per_s)
    ]
    for kind, devices in kinds:
        rates = [(label, rate, source) for label, rate, source in devices if rate is not None]
        usual = _majority([rate.product for _, rate, _ in rates])
        for label, rate, source in rates:
            if usual is not None and rate.product < usual:
                yield Problem(
                    "T05", f"{kind} {label} has a PCIe link of {rate}, its neighbours have more",
                    "look at LnkSta in lspci -vv: reseat the card or riser, or correct the file", (label,), (source,),
                )  # fmt: skip


def _slow_nics(node: SeenNode) -> Iterable[Problem]:
    # Few are NICs for storage or management; only those as near to GPUs as the others are twins.
    near = {gpu.parent for gpu in node.gpus}
    twins = [nic for nic in node.nics if nic.bytes_per_s and nic.parent in near]
    usual = _majority([nic.bytes_per_s or 0.0 for nic in twins])
    for nic in twins:
        if usual is not None and (nic.bytes_per_s or 0) < usual:
            gbit, usual_gbit = (nic.bytes_per_s or 0) * 8 / 1e9, usual * 8 / 1e9
            yield Problem(
                "T10", f"NIC {nic.label} runs at {gbit:g} Gb/s, its twins at {usual_gbit:g}",
                "look at ibstat or ethtool: cable, transceiver or switch port", (nic.label,), (nic.source,),
            )  # fmt: skip


def _few_links(node: SeenNode, gpu_name: str) -> Iterable[Problem]:
    for pair in node.uneven:
        yield Problem(
            "T03", f"{pair.a} to {pair.b} has {pair.count} links, their other pairs have {pair.usual}", _LOOK_AT_LINKS,
            (pair.a, pair.b), pair.sources,
        )  # fmt: skip
    bonds = _bonds(node)
    if not bonds:
        return
    usual = _majority(list(bonds.values())) if len(bonds) > 2 else None
    by_name = {gpu.name: gpu for gpu in node.gpus}
    for (one, other), count in bonds.items():
        if usual is not None and count < usual:
            first, target = by_name[one], by_name.get(other)
            to = f" to {target.label}" if target is not None else ""
            sources = (first.source, target.source) if target is not None else (first.source,)
            things = (first.label, target.label) if target is not None else (first.label,)
            yield Problem(
                "T03", f"{first.label}{to} has {count} links, the others of the board have {usual}",
                _LOOK_AT_LINKS, things, sources,
            )  # fmt: skip
    if usual is None or usual == 0:
        return
    # From a switch a GPU has all its links; between GPUs without one they are shared out.
    switched = any(gpu.count_to(SWITCH) for gpu in node.gpus)
    per_gpu = usual if switched else _majority([gpu.island_links for gpu in node.gpus]) or 0
    named = family_of(gpu_name) if on_a_board(gpu_name) else None
    first = node.gpus[0]
    every = tuple(gpu.label for gpu in node.gpus)
    if named is not None and per_gpu < named.nvlinks:
        yield Problem(
            "T03", f"every GPU has {per_gpu} links; {gpu_name} has {named.nvlinks} ({named.source})",
            "look at nvidia-smi nvlink -s and the fabric manager", every, (first.source,),
        )  # fmt: skip
    elif named is None and switched:
        known = healthy_links(first.sm) or HEALTHY_BONDS
        if usual not in known:
            products = ", ".join(str(count) for count in sorted(known))
            yield Problem(
                "T07", f"every GPU has {usual} links, which no product has; expected one of {products}",
                "look at nvidia-smi nvlink -s and the fabric manager, or correct the file", every, (first.source,),
            )  # fmt: skip


def _bonds(node: SeenNode) -> dict[tuple[str, str], int]:
    """NVLinks by GPU and switch, or by pair where every GPU reaches every other; empty where neither is so."""
    if any(gpu.count_to(SWITCH) for gpu in node.gpus):
        return {(gpu.name, SWITCH): gpu.count_to(SWITCH) for gpu in node.gpus}
    pairs = {
        (one.name, other.name): one.count_to(other.name)
        for at, one in enumerate(node.gpus)
        for other in node.gpus[at + 1 :]
    }
    return pairs if len(node.gpus) >= 4 and all(pairs.values()) and len(set(pairs.values())) <= 2 else {}


def _far_nics(node: SeenNode) -> Iterable[Problem]:
    if len(node.nics) < len(node.gpus) or len(node.gpus) < 2:
        return
    switches = {bridge.name for bridge in node.bridges}
    above = {bridge.name: bridge.parent for bridge in node.bridges}

    def roots(parent: str) -> set[str]:
        """The switches between a device and its CPU."""
        found = set()
        while parent in switches:
            found.add(parent)
            parent = above[parent]
        return found

    nic_roots = set().union(*(roots(nic.parent) for nic in node.nics))
    without = [gpu for gpu in node.gpus if not roots(gpu.parent) & nic_roots]
    if without and (len(node.gpus) - len(without)) * 2 >= len(node.gpus):
        names = ", ".join(gpu.label for gpu in without)
        yield Problem(
            "T09", f"{names} {'has' if len(without) == 1 else 'have'} no NIC on the same PCIe switch; the others have",
            "PXN covers it if it is not disabled; else map the rank to a GPU with a NIC",
            tuple(gpu.label for gpu in without), tuple(gpu.source for gpu in without[:3]), "notice",
        )  # fmt: skip


def _outsiders(nodes: Sequence[SeenNode]) -> Iterable[Problem]:
    """Nodes that differ from most of those of the same format."""
    for format_ in dict.fromkeys(node.format for node in nodes):
        same = [node for node in nodes if node.format == format_]
        shapes = [_shape(node) for node in same]
        usual, times = Counter(shapes).most_common(1)[0]
        if len(same) < 3 or times * 2 <= len(same):
            continue
        model = same[shapes.index(usual)]
        for node, shape in zip(same, shapes, strict=True):
            if shape != usual:
                yield Problem(
                    "T11", f"{node.title} differs from {times} other nodes", f"atoll topology diff {model.title} "
                    f"{node.title} says in what", (node.title,), (node.source,), host=node.host,
                )  # fmt: skip


def _shape(node: SeenNode) -> tuple[object, ...]:
    gpus = tuple(
        (gpu.name, gpu.parent, gpu.pci, tuple((link.kind, link.target, link.count) for link in gpu.links), gpu.sm)
        for gpu in node.gpus
    )
    return gpus, tuple((nic.name, nic.parent, nic.pci, nic.bytes_per_s) for nic in node.nics)


def _majority(values: list[_Value]) -> _Value | None:
    """What more than half of three or more have."""
    if len(values) < 3:
        return None
    usual, times = Counter(values).most_common(1)[0]
    return usual if times * 2 > len(values) else None
