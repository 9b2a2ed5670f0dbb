"""The network between nodes: leaves, spines, cores, as arithmetic.

Vocabulary. A *leaf* is the switch that NICs are cabled to; ``nodes_per_leaf`` nodes in a row, a *unit*, share the
leaves. With ``rails`` > 1 a unit has one leaf per *rail* and NIC i of each node goes to rail i mod rails
(rail-optimised); with ``rails`` = 1 all NICs of a unit go to one leaf (a plain fat tree). ``nodes_per_pod`` nodes share
*spines*; 0 says that there is one pod. With ``planes`` the spines of a pod are divided by rail, and rails meet only
above. *Cores* join pods.

Cables. A leaf has ``uplinks_per_leaf`` cables; cable c goes to spine c mod ``spines`` of its pod (and plane). A spine
has ``uplinks_per_spine``; spine s of every pod and plane is joined to core group s, ``cores / spines`` of them, cable v
to core v mod that number. So a message that went up to a spine or core comes down from the same one, on any of its
cables.

Routing. ``ecmp`` keeps a message on one cable, chosen by a hash, and two may meet on one while another is idle.
``adaptive`` (InfiniBand adaptive routing, AWS SRD, packet spraying) spreads each message over all cables: all cables of
a leaf then act as one *trunk*, and all those of a pod's (and plane's) spines as another.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import cached_property

import msgspec

from atoll.errors import SpecError
from atoll.topology.figure import Speed


class Routing(enum.Enum):
    ECMP = "ecmp"
    ADAPTIVE = "adaptive"


class Fabric(msgspec.Struct, frozen=True, dict=True):
    """See the module's text. Speeds are of one cable. Raises ``SpecError`` with all that does not fit."""

    name: str
    nodes_per_leaf: int
    rails: int = 1
    uplinks_per_leaf: int = 0
    spines: int = 0
    nodes_per_pod: int = 0
    planes: bool = False
    uplinks_per_spine: int = 0
    cores: int = 0
    routing: Routing = Routing.ECMP
    leaf_uplink: Speed | None = None
    spine_uplink: Speed | None = None
    source: str = ""

    def __post_init__(self) -> None:
        mistakes = list(self.mistakes())
        if mistakes:
            raise SpecError(f"fabric {self.name!r}: " + "; ".join(mistakes))

    def mistakes(self) -> Iterable[str]:
        for name, least in (
            ("nodes_per_leaf", 1), ("rails", 1), ("uplinks_per_leaf", 0), ("spines", 0), ("nodes_per_pod", 0),
            ("uplinks_per_spine", 0), ("cores", 0),
        ):  # fmt: skip
            if getattr(self, name) < least:
                yield f"{name}: expected at least {least}, got {getattr(self, name)}"
                return
        if self.spines and (self.uplinks_per_leaf == 0 or self.uplinks_per_leaf % self.spines):
            yield (
                f"uplinks_per_leaf: {self.uplinks_per_leaf} cables cannot be spread evenly over {self.spines} spines; "
                "expected a multiple"
            )
        if not self.spines and (self.uplinks_per_leaf or self.cores or self.nodes_per_pod):
            yield "uplinks_per_leaf, nodes_per_pod or cores without spines; give spines"
        if self.spines and self.leaf_uplink is None:
            yield "leaf_uplink: missing; a leaf with uplinks needs their speed"
        if self.nodes_per_pod % self.nodes_per_leaf:
            yield (
                f"nodes_per_pod: expected a multiple of nodes_per_leaf ({self.nodes_per_leaf}), "
                f"got {self.nodes_per_pod}"
            )
        if self.cores and not self.uplinks_per_spine:
            yield "uplinks_per_spine: missing; cores need cables to the spines"
        if self.uplinks_per_spine and (not self.cores or self.spine_uplink is None):
            yield "cores and spine_uplink are needed where spines have uplinks"
        if self.cores and self.spines and (self.cores % self.spines or self.uplinks_per_spine % self.core_group):
            yield (
                f"cores: {self.cores} cores over {self.spines} spines and {self.uplinks_per_spine} cables a spine: "
                "expected cores to be a multiple of spines, and cables a multiple of cores / spines"
            )

    @property
    def core_group(self) -> int:
        """Cores that one spine reaches."""
        return max(1, self.cores // self.spines) if self.spines else 1

    @property
    def num_planes(self) -> int:
        return self.rails if self.planes else 1

    def num_units(self, num_nodes: int) -> int:
        return -(-num_nodes // self.nodes_per_leaf)

    def num_pods(self, num_nodes: int) -> int:
        return -(-num_nodes // self.nodes_per_pod) if self.nodes_per_pod else 1

    def num_leaves(self, num_nodes: int) -> int:
        return self.num_units(num_nodes) * self.rails

    def num_spines(self, num_nodes: int) -> int:
        return self.num_pods(num_nodes) * self.num_planes * self.spines

    def oversubscription(self, nics_per_node: int, nic_bytes_per_s: float) -> float:
        """What NICs of a leaf may send over what its uplinks carry; 1 is non-blocking, inf without uplinks."""
        if self.leaf_uplink is None or not self.uplinks_per_leaf:
            return float("inf")
        nics = self.nodes_per_leaf * nics_per_node / self.rails
        return nics * nic_bytes_per_s / (self.uplinks_per_leaf * self.leaf_uplink.bandwidth_bytes_per_s())

    def spine_oversubscription(self) -> float:
        """What the leaves of a spine may send up to it over what its own uplinks carry; inf without cores."""
        if self.leaf_uplink is None or self.spine_uplink is None or not self.uplinks_per_spine or not self.spines:
            return float("inf")
        units = self.nodes_per_pod // self.nodes_per_leaf
        leaves = units * (1 if self.planes else self.rails)
        below = leaves * self.uplinks_per_leaf / self.spines * self.leaf_uplink.bandwidth_bytes_per_s()
        return below / (self.uplinks_per_spine * self.spine_uplink.bandwidth_bytes_per_s())

    @cached_property
    def tiers(self) -> Tiers:
        """Cables as routes see them: single ones under ECMP, trunks under adaptive routing."""
        if self.routing is Routing.ECMP or not self.spines:
            return Tiers(
                self.uplinks_per_leaf, max(1, self.spines), self.uplinks_per_spine, self.core_group, self.leaf_uplink,
                self.spine_uplink,
            )  # fmt: skip
        why = "all {} cables of {}, adaptive routing"
        leaf = self.leaf_uplink
        spine = self.spine_uplink
        if leaf is not None:
            leaf = _trunk(leaf, self.uplinks_per_leaf, why.format(self.uplinks_per_leaf, "a leaf"))
        if spine is not None:
            cables = self.uplinks_per_spine * self.spines
            spine = _trunk(spine, cables, why.format(cables, "a pod's spines"))
        return Tiers(1, 1, 1 if self.cores else 0, 1, leaf, spine)


class Tiers(msgspec.Struct, frozen=True):
    """Links above the leaves: ``leaf_cables`` of each leaf to ``spines`` spines, ``spine_cables`` of each spine to
    ``core_group`` cores; a speed is of one such cable, or trunk."""

    leaf_cables: int
    spines: int
    spine_cables: int
    core_group: int
    leaf_speed: Speed | None
    spine_speed: Speed | None


def _trunk(cable: Speed, cables: int, why: str) -> Speed:
    return msgspec.structs.replace(cable.times(cables, why), lanes=cable.lanes * cables)
