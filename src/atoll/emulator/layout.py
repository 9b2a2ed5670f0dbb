"""What is emulated, as data: nodes, ranks, the switches between them, and what each link carries.

Vocabulary. Each *rank* has a network namespace of its own with two interfaces: ``island``, cabled to its node's island
switch, and ``network``, cabled to a leaf (or, where the ranks of a node share NICs, to the node's NIC). A *cable* is a
veth pair with a token bucket at each end, so that each direction has its own limit. All *switches* are bridges in one
more namespace, and carry whatever comes. With ``nodes_per_leaf`` leaves are joined by a spine; the uplink of a leaf
carries what its NICs may send, divided by ``oversubscription``.

Addresses. Rank r of node n is 10.77.n.(r + 1), and has that one address on both interfaces: towards its own node's
subnet it goes by ``island``, towards all others by ``network``. Nothing is forwarded by the kernel as a router.

Rates are of a link, in bytes per second and direction, Ethernet headers included; what payload reaches is 1448/1514 of
it, since a frame of 1514 bytes carries 1448 of TCP payload (RFC 793, 894 and 7323).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from atoll.errors import SpecError

PAYLOAD_SHARE: Final = 1448 / 1514
DEFAULT_RATIO: Final = 9.0
"""Island to network, per direction: 450 GB/s of NVLink 4 to 50 GB/s of one NDR NIC for each GPU."""
MAX_RANKS: Final = 64
"""Two veth pairs and a process each; a laptop has no more to give."""
LEAST_BYTES_PER_S: Final = 10_000.0
ISLAND: Final = "island"
NETWORK: Final = "network"
INSIDE: Final = "inside islands"
ACROSS: Final = "across nodes"
_NETWORK_PREFIX: Final = "10.77"


class Layout(msgspec.Struct, frozen=True):
    """See the module's text. ``nics_per_node`` 0: one for each rank; ``nodes_per_leaf`` 0: one leaf for all."""

    nodes: int
    ranks_per_node: int
    nics_per_node: int = 0
    nodes_per_leaf: int = 0
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("nodes", self.nodes, 1), ("ranks-per-node", self.ranks_per_node, 1), ("nics-per-node", self.nics, 1),
            ("nodes-per-leaf", self.nodes_per_leaf, 0),
        ):  # fmt: skip
            if value < least:
                raise SpecError(f"--{name}: expected at least {least}, got {value}")
        if not 2 <= self.world_size <= MAX_RANKS:
            raise SpecError(
                f"{self.nodes} nodes x {self.ranks_per_node} ranks: expected 2 to {MAX_RANKS} ranks in all on one "
                f"machine, got {self.world_size}"
            )
        if self.ranks_per_node % self.nics:
            raise SpecError(
                f"--nics-per-node {self.nics}: expected a divisor of the {self.ranks_per_node} ranks of a node"
            )
        if not (math.isfinite(self.oversubscription) and self.oversubscription >= 1):
            raise SpecError(f"--oversubscription: expected a ratio of at least 1, got {self.oversubscription:g}")
        if self.oversubscription > 1 and not self.has_spine:
            raise SpecError(
                "--oversubscription: there are no uplinks to oversubscribe, since all nodes are on one leaf; "
                f"give --nodes-per-leaf below {self.nodes}"
            )

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def nics(self) -> int:
        """Of each node."""
        return self.nics_per_node or self.ranks_per_node

    @property
    def shares_nics(self) -> bool:
        return self.nics < self.ranks_per_node

    @property
    def has_spine(self) -> bool:
        return 0 < self.nodes_per_leaf < self.nodes

    @property
    def leaves(self) -> int:
        return -(-self.nodes // self.nodes_per_leaf) if self.has_spine else 1

    def node_of(self, rank: int) -> int:
        return rank // self.ranks_per_node

    def nic_of(self, rank: int) -> int:
        """The NIC of its node that a rank uses: blocks of neighbours share one."""
        return rank % self.ranks_per_node // (self.ranks_per_node // self.nics)

    def leaf_of(self, node: int) -> int:
        return node // self.nodes_per_leaf if self.has_spine else 0

    def address(self, rank: int) -> str:
        return f"{_NETWORK_PREFIX}.{self.node_of(rank)}.{rank % self.ranks_per_node + 1}"

    def node_subnet(self, rank: int) -> str:
        """The rank's node."""
        return f"{_NETWORK_PREFIX}.{self.node_of(rank)}.0/24"

    @property
    def subnet(self) -> str:
        """All ranks."""
        return f"{_NETWORK_PREFIX}.0.0/16"

    def describe(self) -> str:
        """``2 nodes x 2 ranks``, and what is not usual about it."""
        words = [f"{self.nodes} node{'s' if self.nodes > 1 else ''} x {self.ranks_per_node} ranks"]
        if self.shares_nics:
            words.append(f"{self.nics} NIC{'s' if self.nics > 1 else ''} a node")
        if self.has_spine:
            words.append(f"{self.leaves} leaves under a spine, {self.oversubscription:g}:1")
        return ", ".join(words)


class Rates(msgspec.Struct, frozen=True):
    """Bytes per second of one link and direction, headers included: of a rank's island link, and of a NIC's cable."""

    island: float
    network: float

    def __post_init__(self) -> None:
        for name, value in ((ISLAND, self.island), (NETWORK, self.network)):
            if not (math.isfinite(value) and value >= LEAST_BYTES_PER_S):
                raise SpecError(
                    f"--{name}-bandwidth: expected at least {LEAST_BYTES_PER_S / 1000:g} KB/s, got {value:g}"
                )

    def uplink(self, layout: Layout) -> float:
        """Of a leaf's cable to the spine."""
        return self.network * layout.nics * layout.nodes_per_leaf / layout.oversubscription


class Cable(msgspec.Struct, frozen=True):
    """A veth pair. ``near`` is the interface in ``rank``'s namespace, or among the switches where that is None;
    ``far`` the one among the switches, plugged into the bridge ``switch`` (``near`` into ``near_switch``).
    ``bytes_per_s`` limits either direction; 0: no limit."""

    rank: int | None
    near: str
    near_switch: str
    far: str
    switch: str
    bytes_per_s: float


def cables(layout: Layout, rates: Rates) -> tuple[Cable, ...]:
    """Every cable of the cluster."""
    found: list[Cable] = []
    for rank in range(layout.world_size):
        node = layout.node_of(rank)
        found.append(Cable(rank, ISLAND, "", f"r{rank}-island", f"island{node}", rates.island))
        if layout.nodes == 1:
            continue
        if layout.shares_nics:
            nic = f"nic{node}-{layout.nic_of(rank)}"
            found.append(Cable(rank, NETWORK, "", f"r{rank}-nic", nic, 0))
        else:
            leaf = f"leaf{layout.leaf_of(node)}"
            found.append(Cable(rank, NETWORK, "", f"r{rank}-network", leaf, rates.network))
    if layout.nodes > 1 and layout.shares_nics:
        for node in range(layout.nodes):
            for number in range(layout.nics):
                nic, leaf = f"nic{node}-{number}", f"leaf{layout.leaf_of(node)}"
                found.append(Cable(None, f"{nic}-out", nic, f"{nic}-in", leaf, rates.network))
    if layout.has_spine:
        for number in range(layout.leaves):
            leaf = f"leaf{number}"
            found.append(Cable(None, f"{leaf}-up", leaf, f"{leaf}-down", "spine0", rates.uplink(layout)))
    return tuple(found)


def placements(layout: Layout) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The groups of tensor parallelism inside islands, and those across nodes; each as large as a node."""
    if layout.nodes < 2 or layout.ranks_per_node < 2:
        raise SpecError(
            f"{layout.describe()}: a comparison of islands with the network needs at least 2 nodes of 2 ranks"
        )
    size = layout.ranks_per_node
    dealt = [node * size + at for at in range(size) for node in range(layout.nodes)]
    inside = tuple(tuple(range(first, first + size)) for first in range(0, layout.world_size, size))
    across = tuple(tuple(dealt[first : first + size]) for first in range(0, layout.world_size, size))
    return {INSIDE: inside, ACROSS: across}
