"""What ``nvidia-smi topo -m`` says of a node, as a tree.

The matrix holds words between pairs, not a tree; the tree is the simplest that gives the same words. Devices joined by
PIX are below one PCIe switch; groups of those joined by PXB below a common one; PHB and NODE say the same CPU, SYS
another. Where NVLink hides what lies below, the CPU affinity decides, and where nothing separates two groups they share
a CPU.

NVLinks of equal number between all pairs, more in total than any GPU has, lead to a switch; others go directly.
"""

from __future__ import annotations

from typing import Final

from atoll.errors import SpecError
from atoll.readers.topology_matrix import MatrixDevice, TopologyMatrix, nvlinks
from atoll.topology.gpu_models import FAMILIES
from atoll.topology.seen import (
    SWITCH,
    Contradiction,
    SeenBridge,
    SeenCpu,
    SeenGpu,
    SeenLinks,
    SeenNic,
    SeenNode,
    UnevenPair,
)

_LEVEL: Final = {"PIX": 1, "PXB": 2, "PSB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
_PEER_WORDS: Final = frozenset({"OK", "NS", "CNS", "GNS", "TNS", "DR", "U"})
MOST_LINKS: Final = max(family.nvlinks for family in FAMILIES)


def seen_in_matrix(matrix: TopologyMatrix) -> SeenNode:
    """Raises ``SpecError`` for the matrix of ``topo -p2p``, which says what may be read, not what lies between."""
    words = {cell for device in matrix.devices for cell in device.cells if cell is not None}
    if words & _PEER_WORDS:
        raise SpecError(
            f"{matrix.source}: a matrix of 'nvidia-smi topo -p2p'; it has no topology, give 'nvidia-smi topo -m'"
        )
    return _Tree(matrix).node()


class _Tree:
    def __init__(self, matrix: TopologyMatrix) -> None:
        self.matrix = matrix
        self.index = {device.name: at for at, device in enumerate(matrix.devices)}
        gpus, nics = matrix.of_kind("gpu"), matrix.of_kind("nic")
        self.devices = [*gpus, *nics]
        self.names = {device.name: f"gpu{_number(device, at)}" for at, device in enumerate(gpus)}
        self.names |= {device.name: f"nic{at}" for at, device in enumerate(nics)}
        if len(set(self.names.values())) != len(self.names):
            raise SpecError(f"{matrix.source}: two GPUs of one number; expected GPU0, GPU1, ...")

    def node(self) -> SeenNode:
        parents, bridges, cpus = self._pcie()
        gpus, nics = self.matrix.of_kind("gpu"), self.matrix.of_kind("nic")
        links = self._links(gpus)
        seen_gpus = tuple(
            SeenGpu(self.names[d.name], d.name, d.source, parents[d.name], links=links[d.name]) for d in gpus
        )
        seen_nics = tuple(SeenNic(self.names[d.name], d.hca or d.name, d.source, parents[d.name]) for d in nics)
        notes = () if self.matrix.complete else ("some cells are missing",)
        return SeenNode(
            "topo -m", self.matrix.source, seen_gpus, seen_nics, bridges, cpus, self.matrix.host,
            contradictions=tuple(self._contradictions()), uneven=tuple(self._uneven(gpus, links)), notes=notes,
        )  # fmt: skip

    def _cell(self, a: MatrixDevice, b: MatrixDevice) -> str | None:
        return a.cells[self.index[b.name]] if self.index[b.name] < len(a.cells) else None

    def _contradictions(self) -> list[Contradiction]:
        found = []
        for at, a in enumerate(self.devices):
            for b in self.devices[at + 1 :]:
                there, back = self._cell(a, b), self._cell(b, a)
                if there is not None and back is not None and there != back:
                    found.append(Contradiction(a.name, b.name, there, back, (a.source, b.source)))
        return found

    def _links(self, gpus: tuple[MatrixDevice, ...]) -> dict[str, tuple[SeenLinks, ...]]:
        counts = {(a.name, b.name): nvlinks(self._cell(a, b)) for a in gpus for b in gpus if a is not b}
        values = [count for count in counts.values() if count]
        usual = max(set(values), key=values.count) if values else 0
        switched = len(gpus) > 1 and all(counts.values()) and usual * (len(gpus) - 1) > MOST_LINKS
        result: dict[str, tuple[SeenLinks, ...]] = {}
        for a in gpus:
            mine = [(b, counts[a.name, b.name]) for b in gpus if a is not b and counts[a.name, b.name]]
            if switched:
                result[a.name] = (SeenLinks("nvlink", SWITCH, max(count for _, count in mine), a.source, False),)
            else:
                result[a.name] = tuple(SeenLinks("nvlink", self.names[b.name], count, a.source) for b, count in mine)
        return result

    def _uneven(self, gpus: tuple[MatrixDevice, ...], links: dict[str, tuple[SeenLinks, ...]]) -> list[UnevenPair]:
        found = []
        to_switch = {name: sum(link.count for link in mine if link.target == SWITCH) for name, mine in links.items()}
        for at, a in enumerate(gpus):
            for b in gpus[at + 1 :]:
                usual = min(to_switch[a.name], to_switch[b.name])
                count = min(nvlinks(self._cell(a, b)), nvlinks(self._cell(b, a)))
                # Where the two directions differ, that is said already.
                if usual and count < usual and self._cell(a, b) == self._cell(b, a):
                    found.append(UnevenPair(a.name, b.name, count, usual, (a.source, b.source)))
        return found

    def _pcie(self) -> tuple[dict[str, str], tuple[SeenBridge, ...], tuple[SeenCpu, ...]]:
        """The parent of each device, the switches and the CPUs."""
        single, several = self._joined(1), self._joined(2)
        cpu_of = self._cpus()
        parents: dict[str, str] = {}
        bridges: list[SeenBridge] = []
        for group in several:
            cpu = f"cpu{cpu_of[group[0].name]}"
            inner = [part for part in single if part[0] in group]
            above = cpu
            if len(group) > 1:
                above = f"pcie{len(bridges)}"
                bridges.append(SeenBridge(above, group[0].source, cpu))
            for part in inner:
                below = above
                if len(inner) > 1:
                    below = f"pcie{len(bridges)}"
                    bridges.append(SeenBridge(below, part[0].source, above))
                for device in part:
                    parents[device.name] = below
        cpus = tuple(SeenCpu(f"cpu{number}", self.matrix.source) for number in sorted(set(cpu_of.values())))
        return parents, tuple(bridges), cpus

    def _joined(self, level: int) -> list[list[MatrixDevice]]:
        """Groups of devices joined by words up to ``level``."""
        groups: list[list[MatrixDevice]] = []
        for device in self.devices:
            near = [group for group in groups if any(0 < self._level(device, other) <= level for other in group)]
            merged = [other for group in near for other in group]
            groups = [group for group in groups if group not in near]
            groups.append([*merged, device])
        return groups

    def _cpus(self) -> dict[str, int]:
        """The number of each device's CPU."""
        groups = self._joined(4)
        merged: list[list[MatrixDevice]] = []
        for group in groups:
            home = next((other for other in merged if not self._apart(group, other)), None)
            if home is None:
                merged.append(list(group))
            else:
                home.extend(group)
        merged.sort(key=lambda group: min(self.index[device.name] for device in group))
        return {device.name: number for number, group in enumerate(merged) for device in group}

    def _apart(self, one: list[MatrixDevice], other: list[MatrixDevice]) -> bool:
        if any(self._level(a, b) == 5 for a in one for b in other):
            return True
        mine, theirs = _affinities(one), _affinities(other)
        return bool(mine and theirs and not mine & theirs)

    def _level(self, a: MatrixDevice, b: MatrixDevice) -> int:
        return _LEVEL.get(self._cell(a, b) or self._cell(b, a) or "", 0)


def _affinities(group: list[MatrixDevice]) -> set[str]:
    return {device.numa_affinity or device.cpu_affinity for device in group} - {""}


def _number(device: MatrixDevice, at: int) -> int:
    return int(device.name[3:]) if device.name[3:].isdigit() else at
