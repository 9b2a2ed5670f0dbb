"""Clusters for the tests of this folder: small ones of every preset, layout and routing."""

from __future__ import annotations

from hypothesis import strategies as st

from atoll.topology.cluster import Cluster
from atoll.topology.fabric import Routing
from atoll.topology.presets import PRESETS, preset


@st.composite
def small_clusters(draw: st.DrawFn) -> Cluster:
    """One to nine units of a preset, with switches small enough that two and three tiers occur."""
    name = draw(st.sampled_from(sorted(PRESETS)))
    count = draw(st.integers(1, 2 if "nvl72" in name else 9))
    return preset(
        name, count,
        layout=draw(st.sampled_from(["rail-optimised", "fat-tree"])),
        oversubscription=draw(st.sampled_from([1.0, 2.0, 3.0])),
        routing=draw(st.sampled_from(list(Routing))),
        ports=draw(st.sampled_from([4, 8, 12, 64])),
    )  # fmt: skip
