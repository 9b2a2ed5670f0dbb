"""How far off predictions from presets have been: the record that ``benchmarks/accuracy.py`` prints and tests hold.

Measured over predicted, by band, over the published single-node sweeps of A100 and H100 (docs/accuracy.md). Intervals
of uncalibrated predictions come from here; the predictions themselves do not.
"""

from __future__ import annotations

from typing import Final

from atoll.simulator.prediction import Spread

PRESET_SPREADS: Final[tuple[Spread, ...]] = (
    Spread(384, 1.0, 0.8, 1.3),
    Spread(336, 1.0, 0.8, 1.3),
    Spread(192, 1.0, 0.8, 1.3),
    Spread(144, 1.0, 0.8, 1.3),
)
