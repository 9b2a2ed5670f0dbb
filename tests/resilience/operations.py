"""Jobs for tests, as hypothesis draws them: from calm to hopeless."""

from hypothesis import strategies as st

from atoll.resilience.cadence import Checkpoint
from atoll.resilience.goodput import FailureKind
from atoll.resilience.policies import Operation


def kinds_of(draw: st.DrawFn, mtbf_s: float, largest: int = 4) -> tuple[FailureKind, ...]:
    """One to three kinds of failures with shares that add up to 1."""
    weights = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    seconds = st.floats(0, 0.5 * mtbf_s)
    return tuple(
        FailureKind(
            f"kind {number}", weight / sum(weights), draw(seconds), draw(seconds), draw(st.integers(0, largest))
        )
        for number, weight in enumerate(weights)
    )


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    mtbf_s = draw(st.floats(600, 1e6))
    checkpoint = Checkpoint(
        draw(st.floats(1e-4, 0.3)) * mtbf_s, draw(st.floats(0, 0.1)) * mtbf_s, draw(st.floats(0, 0.5))
    )
    interval_s = max(draw(st.floats(0.01, 2)) * mtbf_s, checkpoint.background_s)
    return Operation(
        interval_s=interval_s, checkpoint=checkpoint, mtbf_s=mtbf_s, kinds=kinds_of(draw, mtbf_s),
        num_nodes=draw(st.integers(32, 4096)), repair_s=draw(st.floats(0.1, 8)) * mtbf_s,
        spares=draw(st.integers(0, 12)), shrink=draw(st.booleans()), rejoin_s=draw(st.floats(0, 0.1)) * mtbf_s,
        replica_nodes=draw(st.integers(1, 16)),
    )  # fmt: skip
