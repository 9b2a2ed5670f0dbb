"""Paths inside one node: which links lead from a GPU to another, to a NIC, or to the island's switch.

Rules, which are NCCL's (src/graph/paths.cc and topo.cc of NCCL 2.30 describe them):

- GPUs joined by NVLink or xGMI, directly or by an NVSwitch, use that. Failing this, one GPU in between may pass on
  (*NVB*), as on boards of 8 V100.
- Other pairs go over PCIe switches and CPUs by the path that crosses the fewest sockets, then CPUs, then links. Without
  peer-to-peer access the transfer is *staged*: written to the memory of the sender's NUMA node and read from there.
- A NIC with GPUDirect is reached the same way; without it the transfer is staged in the memory next to the GPU.
- A GPU's *near* NICs are those at the least distance. Channel c of GPU g takes near NIC (g + c) mod their number, so
  that GPUs that share NICs spread over them.
- *PXN*: a GPU reaches a NIC of another rail over NVLink and a GPU that has this NIC near.

Links are local directed numbers (2l forwards, 2l + 1 back); tables are padded with -1.
"""

from __future__ import annotations

import heapq
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np

from atoll.topology.cluster import Integers
from atoll.topology.node_type import ISLAND_KINDS, NETWORK, LinkKind, NodeType, kind_of

_HOST_KINDS: Final = frozenset({LinkKind.PCIE, LinkKind.C2C, LinkKind.SMP})
_STAGED_KINDS: Final = _HOST_KINDS | {LinkKind.DRAM}

Path = tuple[int, ...]


class NodePaths(msgspec.Struct, frozen=True):
    """All paths of one node type; G GPUs and N NICs by position.

    ``gpu_to_gpu`` [G, G, width]; ``words`` [G][G] says what kind of path it is (``NV18``, ``NVB``, ``PIX``, ``PXB``,
    ``PHB``, ``SYS``, ``HOST`` when staged, ``""`` where there is none). ``direct`` and ``staged``: GPU to NIC and back
    with and without GPUDirect, [G, N, width]. ``near`` [G][..]: positions of NICs. ``cable_up``, ``cable_down`` [N]:
    the NIC's link to its leaf, -1 where it has none. ``to_switch``, ``from_switch`` [G]: links to and from the island's
    switch. ``island`` [G, G]: joined by NVLink or xGMI.
    """

    gpu_to_gpu: Integers
    words: tuple[tuple[str, ...], ...]
    nic_words: tuple[tuple[str, ...], ...]
    direct_out: Integers
    direct_in: Integers
    staged_out: Integers
    staged_in: Integers
    near: tuple[tuple[int, ...], ...]
    cable_up: Integers
    cable_down: Integers
    to_switch: Integers
    from_switch: Integers
    island: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@lru_cache(maxsize=256)
def node_paths(node_type: NodeType) -> NodePaths:
    """The paths of a node type, worked out once."""
    return _Finder(node_type).find()


class _Finder:
    def __init__(self, node_type: NodeType) -> None:
        self.type = node_type
        self.gpus = node_type.gpus
        self.nics = node_type.nics
        self.edges: dict[str, list[tuple[str, int, LinkKind]]] = {}
        for number, link in enumerate(node_type.links):
            self.edges.setdefault(link.a, []).append((link.b, 2 * number, link.kind))
            self.edges.setdefault(link.b, []).append((link.a, 2 * number + 1, link.kind))
        self.kinds = {name: kind_of(name) for name in (*node_type.devices, *self.edges)}
        self.memories = [name for name in node_type.devices if self.kinds[name] == "mem"]
        self.lengths: dict[Path, tuple[int, int, int]] = {}
        self.known: dict[tuple[str, frozenset[LinkKind], tuple[str, ...]], dict[str, Path]] = {}

    def find(self) -> NodePaths:
        peers = [[self._between_gpus(a, b) for b in self.gpus] for a in self.gpus]
        out = [[self._host(gpu, nic) for nic in self.nics] for gpu in self.gpus]
        back = [[self._host(nic, gpu) for nic in self.nics] for gpu in self.gpus]
        staged_out = [[self._staged(gpu, nic, gpu) for nic in self.nics] for gpu in self.gpus]
        staged_in = [[self._staged(nic, gpu, gpu) for nic in self.nics] for gpu in self.gpus]
        if not self.type.gpudirect:
            out, back = staged_out, staged_in
        up = [self._step(nic, NETWORK) for nic in self.nics]
        switch = self.type.switches[0] if self.type.switches else ""
        to_switch = [self._step(gpu, switch) for gpu in self.gpus]
        near = tuple(self._near(gpu, up) for gpu in self.gpus)
        words = tuple(tuple(word for _, word in row) for row in peers)
        joined = np.array([[word[:2] in ("NV", "XG") and word != "NVB" for word in row] for row in words])
        nic_words = tuple(tuple(self._word(self._host(gpu, nic) or ()) for nic in self.nics) for gpu in self.gpus)
        return NodePaths(
            _padded([[path for path, _ in row] for row in peers]), words, nic_words, _padded(out), _padded(back),
            _padded(staged_out), _padded(staged_in), near, np.array(up, dtype=np.int64),
            _reversed(np.array(up, dtype=np.int64)), np.array(to_switch, dtype=np.int64),
            _reversed(np.array(to_switch, dtype=np.int64)), joined.reshape(len(self.gpus), len(self.gpus)),
        )  # fmt: skip

    def _between_gpus(self, a: str, b: str) -> tuple[Path | None, str]:
        if a == b:
            return (), "X"
        path = self._shortest(a, b, ISLAND_KINDS, ("nvswitch",))
        if path is not None and len(path) <= 2:
            lanes = min(self.type.links[link // 2].speed.lanes for link in path)
            kind = self.type.links[path[0] // 2].kind
            return path, f"{'NV' if kind is LinkKind.NVLINK else 'XGMI'}{lanes}"
        path = self._shortest(a, b, ISLAND_KINDS, ("gpu", "nvswitch"))
        if path is not None and len(path) <= 2:
            return path, "NVB"
        if self.type.peer_to_peer:
            path = self._host(a, b)
            return path, self._word(path or ())
        path = self._staged(a, b, a)
        return path, "HOST" if path is not None else ""

    def _host(self, a: str, b: str) -> Path | None:
        return self._shortest(a, b, _HOST_KINDS, ("pcie", "cpu"))

    def _staged(self, a: str, b: str, near: str) -> Path | None:
        """By way of the memory that is nearest to ``near``; without such a device, by way of nothing but the CPU."""
        if not self.memories:
            return self._host(a, b)
        best: tuple[tuple[int, int, int], Path] | None = None
        for memory in self.memories:
            first = self._shortest(a, memory, _STAGED_KINDS, ("pcie", "cpu"))
            second = self._shortest(memory, b, _STAGED_KINDS, ("pcie", "cpu"))
            if first is None or second is None:
                continue
            leg = first if near == a else second
            if best is None or self._length(leg) < best[0]:
                best = (self._length(leg), first + second)
        return best[1] if best is not None else None

    def _near(self, gpu: str, up: list[int]) -> tuple[int, ...]:
        """NICs that are cabled, at the least distance; the fastest of them."""
        reached = [
            (self._length(path), position)
            for position, nic in enumerate(self.nics)
            if up[position] >= 0 and (path := self._host(gpu, nic)) is not None
        ]
        if not reached:
            return ()
        least = min(length for length, _ in reached)
        return tuple(position for length, position in reached if length == least)

    def _length(self, path: Path) -> tuple[int, int, int]:
        """Sockets crossed, CPUs crossed, links."""
        if path not in self.lengths:
            links = [self.type.links[number // 2] for number in path]
            sockets = sum(link.kind is LinkKind.SMP for link in links)
            cpus = len({end for link in links for end in (link.a, link.b) if self.kinds[end] == "cpu"})
            self.lengths[path] = sockets, cpus, len(path)
        return self.lengths[path]

    def _word(self, path: Path) -> str:
        """The word of ``nvidia-smi topo -m`` for a path over PCIe."""
        if not path:
            return ""
        sockets, cpus, _ = self._length(path)
        if sockets:
            return "SYS"
        if cpus:
            return "PHB"
        switches = {
            end
            for number in path
            for end in (self.type.links[number // 2].a, self.type.links[number // 2].b)
            if kind_of(end) == "pcie"
        }
        return "PIX" if len(switches) == 1 else "PXB"

    def _step(self, a: str, b: str) -> int:
        return next((number for end, number, _ in self.edges.get(a, ()) if end == b), -1)

    def _shortest(self, a: str, b: str, kinds: frozenset[LinkKind], through: tuple[str, ...]) -> Path | None:
        """The path of least (sockets, CPUs, links) over links of ``kinds`` and devices of kind ``through``."""
        if a == b:
            return ()
        key = (a, kinds, through)
        if key not in self.known:
            self.known[key] = self._from(a, kinds, through)
        return self.known[key].get(b)

    def _from(self, a: str, kinds: frozenset[LinkKind], through: tuple[str, ...]) -> dict[str, Path]:
        """The shortest path from ``a`` to every device; of equal ones the one of lower link numbers."""
        found: dict[str, Path] = {}
        queue: list[tuple[tuple[int, int, int], Path, str]] = [((0, 0, 0), (), a)]
        while queue:
            (sockets, cpus, links), path, at = heapq.heappop(queue)
            if at in found:
                continue
            found[at] = path
            if at != a and self.kinds[at] not in through:
                continue
            for end, number, kind in self.edges.get(at, ()):
                if kind in kinds and end not in found:
                    cost = sockets + (kind is LinkKind.SMP), cpus + (self.kinds[end] == "cpu"), links + 1
                    heapq.heappush(queue, (cost, (*path, number), end))
        return found


def _padded(paths: list[list[Path | None]]) -> Integers:
    """Paths as one table, padded with -1; a path that does not exist starts with -2."""
    rows, columns = len(paths), len(paths[0]) if paths else 0
    width = max([1, *(len(path) for row in paths for path in row if path)])
    table = np.full((rows, columns, width), -1, dtype=np.int64)
    for i, row in enumerate(paths):
        for j, path in enumerate(row):
            if path is None:
                table[i, j, 0] = -2
            elif path:
                table[i, j, : len(path)] = path
    return table


def _reversed(links: Integers) -> Integers:
    """The other direction of each link; -1 stays."""
    return np.where(links >= 0, links ^ 1, links)
