"""How far off predictions from presets have been: the record that ``benchmarks/accuracy.py`` prints and tests hold.

Measured over predicted, by band, over the published single-node sweeps of A100 and H100 (docs/accuracy.md): from
presets, and calibrated on all-reduce at two numbers of GPUs with all else held out. Intervals come from here;
predictions do not.
"""

from __future__ import annotations

from typing import Final

from atoll.simulator.prediction import Spread

PRESET_SPREADS: Final[tuple[Spread, ...]] = (
    Spread(336, 0.973, 0.830, 1.175),
    Spread(336, 1.091, 0.868, 1.308),
    Spread(192, 1.072, 0.901, 1.265),
    Spread(144, 1.037, 0.962, 1.116),
)

HELD_OUT_SPREADS: Final[tuple[Spread, ...]] = (
    Spread(280, 1.021, 0.966, 1.235),
    Spread(280, 1.010, 0.896, 1.144),
    Spread(160, 1.003, 0.874, 1.090),
    Spread(120, 1.002, 0.943, 1.084),
)
