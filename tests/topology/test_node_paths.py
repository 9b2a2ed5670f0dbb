"""Paths within a node: searched once from each device, and none shorter by enumeration of all simple ways."""

from __future__ import annotations

import pytest

from atoll.topology import node_paths as module
from atoll.topology.node_type import LinkKind, NodeType, kind_of
from atoll.topology.presets import PRESETS, preset


def node_type(name: str) -> NodeType:
    return preset(name).groups[0].node_type


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_one_search_a_device_and_kind_of_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By NVLink, by NVLink and a GPU, over PCIe, over PCIe and memory: four at most from any device."""
    asked: list[object] = []
    real = module._Finder._from

    def counting(self: module._Finder, a: str, kinds: frozenset[LinkKind], through: tuple[str, ...]) -> object:
        asked.append((a, kinds, through))
        return real(self, a, kinds, through)

    monkeypatch.setattr(module._Finder, "_from", counting)
    found = node_type(name)
    module._Finder(found).find()
    assert asked
    assert len(asked) == len(set(asked)) <= 4 * len(found.devices)


@pytest.mark.parametrize("name", ["dgx-a100", "aws-p4d", "l40s-pcie", "azure-ndv4"])
def test_no_way_over_pcie_is_shorter(name: str) -> None:
    """Every simple way from the first GPU to each NIC, by depth-first search."""
    found = node_type(name)
    finder = module._Finder(found)
    gpu = found.gpus[0]

    def ways(at: str, seen: tuple[str, ...], path: tuple[int, ...]) -> dict[str, tuple[int, int, int]]:
        best: dict[str, tuple[int, int, int]] = {}
        for end, number, kind in finder.edges[at]:
            if kind not in (LinkKind.PCIE, LinkKind.C2C, LinkKind.SMP) or end in seen:
                continue
            steps = {end: finder._length((*path, number))}
            if kind_of(end) in ("pcie", "cpu"):
                steps |= ways(end, (*seen, end), (*path, number))
            for device, length in steps.items():
                best[device] = min(length, best.get(device, length))
        return best

    shortest = ways(gpu, (gpu,), ())
    for nic in found.nics:
        path = finder._host(gpu, nic)
        assert path is not None
        assert finder._length(path) == shortest[nic]
