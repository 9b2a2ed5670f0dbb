"""Orders of ranks over rails: every NIC is entered once by as many channels as a node has NICs."""

from collections import Counter

import numpy as np
import pytest

from atoll.topology.cluster import Cluster
from atoll.topology.names import link_ends
from atoll.topology.presets import preset
from atoll.topology.rail_orders import leaves_nics_idle, nics_per_node, rail_orders
from atoll.topology.routes import find_routes

PRESETS = ["dgx-h100", "dgx-a100", "aws-p4d", "aws-p5", "azure-ndv4", "hgx-b200", "mi300x", "l40s-pcie"]


def ring(order: list[int]) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    return np.array(order), np.array(order[1:] + order[:1])


def cables_used(cluster: Cluster, orders: list[list[int]]) -> Counter[int]:
    """How many channels use each link between a node and a leaf."""
    used: Counter[int] = Counter()
    for channel, order in enumerate(orders):
        links = np.unique(find_routes(cluster, *ring(order), channel).links)
        leaves = cluster.devices.leaves
        first, second = link_ends(cluster, links)
        used.update(links[(first < leaves) & (second >= leaves) | (first >= leaves) & (second < leaves)].tolist())
    return used


@pytest.mark.parametrize("name", PRESETS)
def test_every_nic_is_used_by_one_channel(name: str) -> None:
    cluster = preset(name, 3)
    gpus = range(cluster.num_gpus)
    nics = nics_per_node(cluster, gpus)
    assert nics == len(cluster.node_type(0).nics)
    orders = rail_orders(cluster, gpus, nics)
    used = cables_used(cluster, orders)
    assert len(used) == 2 * 3 * nics  # out of and into every node
    assert set(used.values()) == {1}
    islands = cluster.island_of_gpu(list(gpus)).tolist()
    for order in orders:
        assert sorted(order) == list(gpus)
        crossings = sum(islands[a] != islands[b] for a, b in zip(*ring(order), strict=True))
        assert crossings == len(set(islands))


def test_more_channels_than_nics_share_them_evenly() -> None:
    cluster = preset("dgx-h100", 2)
    used = cables_used(cluster, rail_orders(cluster, range(16), 24))
    assert set(used.values()) == {3}


def test_channels_that_turn_the_other_way_take_the_other_nics() -> None:
    cluster = preset("dgx-h100", 2)
    there = rail_orders(cluster, range(16), 4, width=2)
    both = [way for order in there for way in (order, order[::-1])]
    assert set(cables_used(cluster, both).values()) == {1}


def test_a_rack_is_entered_at_many_trays() -> None:
    cluster = preset("gb200-nvl72", 2)
    orders = rail_orders(cluster, range(cluster.num_gpus), 32)
    assert len(cables_used(cluster, orders)) == 2 * 2 * 32


def test_idle_nics_are_seen() -> None:
    cluster = preset("dgx-h100", 2)
    order, following = ring(list(range(16)))
    assert leaves_nics_idle(cluster, range(16), order, following, np.zeros(16, np.int64))
    across = np.arange(16), (np.arange(16) + 8) % 16
    assert not leaves_nics_idle(cluster, range(16), *across, np.zeros(16, np.int64))
    one_way = np.arange(8), np.arange(8) + 8
    assert leaves_nics_idle(cluster, range(16), *one_way, np.zeros(8, np.int64))
    within = np.arange(8), (np.arange(8) + 1) % 8
    assert not leaves_nics_idle(cluster, range(16), *within, np.zeros(8, np.int64))
    # Four GPUs of the second node are of the job: their NICs count, and no others.
    gpus = [0, 1, 2, 3, 8, 9, 10, 11]
    pairs = np.arange(8), (np.arange(8) + 4) % 8
    assert not leaves_nics_idle(cluster, gpus, *pairs, np.zeros(8, np.int64))
    assert nics_per_node(cluster, gpus) == 4
