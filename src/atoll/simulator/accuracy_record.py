"""How far off predictions from presets have been: the record that ``benchmarks/accuracy.py`` prints and tests hold.

Measured over predicted, by band, over the published single-node sweeps of A100 and H100 (docs/accuracy.md): from
presets, and calibrated on all-reduce at two numbers of GPUs with all else held out. Intervals come from here;
predictions do not.
"""

from __future__ import annotations

from typing import Final

from atoll.simulator.prediction import Spread

PRESET_SPREADS: Final[tuple[Spread, ...]] = (
    Spread(336, 0.966, 0.827, 1.170),
    Spread(336, 1.110, 0.913, 1.313),
    Spread(192, 1.091, 0.961, 1.269),
    Spread(144, 1.037, 0.962, 1.122),
)

HELD_OUT_SPREADS: Final[tuple[Spread, ...]] = (
    Spread(280, 0.999, 0.939, 1.074),
    Spread(280, 0.998, 0.927, 1.082),
    Spread(160, 1.023, 0.926, 1.104),
    Spread(120, 1.002, 0.943, 1.089),
)
