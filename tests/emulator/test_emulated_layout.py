"""The emulated cluster as data: addresses, cables, rates, and the same cluster as a topology."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.emulator.layout import ISLAND, NETWORK, PAYLOAD_SHARE, Layout, Rates, cables
from atoll.emulator.mark import Mark, parse_mark
from atoll.emulator.model import cluster_of
from atoll.emulator.probe import SHARE, choose_rates
from atoll.emulator.queues import BURST_S, burst_bytes, window_options
from atoll.emulator.start import Wish
from atoll.errors import SpecError
from atoll.topology.routes import Transport, find_routes


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    nodes, ranks = draw(st.tuples(st.integers(1, 8), st.integers(1, 8)).filter(lambda pair: pair[0] * pair[1] > 1))
    nics = draw(st.sampled_from([nics for nics in range(1, ranks + 1) if ranks % nics == 0]))
    per_leaf = draw(st.integers(0, nodes))
    over = draw(st.floats(1, 8)) if 0 < per_leaf < nodes else 1.0
    return Layout(nodes, ranks, nics, per_leaf, over)


@given(layouts())
def test_cables_are_where_the_layout_says(layout: Layout) -> None:
    wires = cables(layout, Rates(90e6, 10e6))
    names = [(wire.rank, wire.near) for wire in wires] + [(None, wire.far) for wire in wires]
    assert len(set(names)) == len(names), "two interfaces of one name in one namespace"
    assert all(len(name) <= 15 for _, name in names), "IFNAMSIZ of linux/if.h is 16 with its zero"
    assert sum(wire.near == ISLAND for wire in wires) == layout.world_size
    networks = [wire for wire in wires if wire.near == NETWORK]
    assert len(networks) == (layout.world_size if layout.nodes > 1 else 0)
    limited = [wire for wire in wires if wire.bytes_per_s == 10e6 and wire.switch.startswith("leaf")]
    assert len(limited) == (layout.nodes * layout.nics if layout.nodes > 1 else 0), "one limit for each NIC"
    uplinks = [wire for wire in wires if wire.switch == "spine0"]
    assert len(uplinks) == (layout.leaves if layout.has_spine else 0)
    for uplink in uplinks:
        below = layout.nics * layout.nodes_per_leaf * 10e6
        assert below / uplink.bytes_per_s == pytest.approx(layout.oversubscription)


@given(layouts())
def test_every_rank_has_an_address_of_its_own_in_the_subnet_of_its_node(layout: Layout) -> None:
    addresses = [layout.address(rank) for rank in range(layout.world_size)]
    assert len(set(addresses)) == layout.world_size
    for rank, address in enumerate(addresses):
        assert address.rpartition(".")[0] == layout.node_subnet(rank).rpartition(".")[0]


@given(layouts(), st.floats(1e8, 1e11), st.floats(1, 50))
def test_all_links_together_want_a_share_of_what_the_machine_moves(layout: Layout, moved: float, ratio: float) -> None:
    rates = choose_rates(layout, moved, ratio)
    network = layout.nodes * layout.nics * rates.network if layout.nodes > 1 else 0
    assert layout.world_size * rates.island + network == pytest.approx(SHARE * moved)
    assert rates.island / rates.network == pytest.approx(ratio)
    assert SHARE < 1 / 3


@given(layouts())
def test_the_topology_has_the_limits_of_the_cables(layout: Layout) -> None:
    rates = Rates(90e6, 10e6)
    cluster = cluster_of(layout, rates, latency_s=1e-3)
    assert (cluster.num_nodes, cluster.num_gpus) == (layout.nodes, layout.world_size)
    ranks = range(layout.world_size)
    pairs = [(a, b) for a in ranks for b in ranks if a != b]
    routes = find_routes(cluster, [a for a, _ in pairs], [b for _, b in pairs], 0, Transport(pxn=False))
    bottlenecks = routes.bottleneck_bytes_per_s(cluster)
    for (a, b), least, latency_s in zip(pairs, bottlenecks, routes.latency_s(cluster), strict=True):
        limit = rates.island
        if layout.node_of(a) != layout.node_of(b):
            limit = rates.network
            if layout.leaf_of(layout.node_of(a)) != layout.leaf_of(layout.node_of(b)):
                limit = min(limit, rates.uplink(layout))
        assert least == pytest.approx(limit * PAYLOAD_SHARE), (a, b)
        assert latency_s == pytest.approx(1e-3), (a, b)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 2), "--nodes: expected at least 1, got 0"),
        ((2, 0), "--ranks-per-node: expected at least 1, got 0"),
        ((1, 1), "expected 2 to 64 ranks"),
        ((40, 2), "expected 2 to 64 ranks"),
        ((2, 4, 3), "--nics-per-node 3: expected a divisor of the 4 ranks"),
        ((2, 2, 0, -1), "--nodes-per-leaf: expected at least 0"),
        ((2, 2, 0, 1, 0.5), "--oversubscription: expected a ratio of at least 1"),
        ((2, 2, 0, 2, 2.0), "--nodes-per-leaf below 2"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[int, ...], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        Layout(*arguments)
    assert words in str(caught.value)


def test_the_ratio_gives_the_bandwidth_that_is_not_given() -> None:
    assert Wish(island=90e6).rates() == Rates(90e6, 10e6)
    assert Wish(network=10e6, ratio=4.0).rates() == Rates(40e6, 10e6)
    assert Wish(island=50e6, network=10e6).rates() == Rates(50e6, 10e6)
    assert Wish().rates() is None
    with pytest.raises(SpecError, match="--ratio: expected more than 0"):
        Wish(ratio=0.0)
    with pytest.raises(SpecError, match="--network-bandwidth: expected at least"):
        Rates(1e6, 10.0)


@given(st.floats(1e4, 1e10))
def test_a_bucket_holds_a_moment_of_its_link_and_a_frame_at_least(rate: float) -> None:
    assert burst_bytes(rate) >= 1514
    assert burst_bytes(rate) <= max(4 * 1514, rate * BURST_S + 1)
    assert int(window_options(rate).split()[1]) >= burst_bytes(rate), "a window that never empties the bucket"


@given(st.integers(1, 2**64 - 1), st.integers(1, 2**22), st.integers(0, 2**60))
def test_a_mark_is_read_as_it_was_written(namespace: int, pid: int, start: int) -> None:
    mark = Mark(namespace, pid, start)
    assert parse_mark(str(mark)) == mark
    assert parse_mark(f"{mark}-1") is None
    assert parse_mark(f"x{mark}") is None
